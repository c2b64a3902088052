//! The import of a project: each package is installed, then each repoinit script is carried out, up to the first failure.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value as Json;
use tympan_content::Repository;
use tympan_content_package::{
    AuditStamp, ContentPackage, Error as PackageError, InstallOptions, InstallProgress,
    PackageInstallation, PackageLimits, PackageSession, RepoinitOutcome, RepoinitResult,
    run_repoinit,
};
use tympan_notation::error_chain_text;

use super::project::AemProject;

/// Where a project is imported: a repository, or a running instance.
pub trait AemImportTarget {
    /// The error of the target.
    type Error;

    /// Installs a package in one commit, or compares it with the content; returns the report or the difference.
    ///
    /// # Errors
    /// If the package is refused or the content cannot be written; nothing of it is committed then.
    fn install(&mut self, file: &Path, is_dry_run: bool) -> Result<Json, Self::Error>;

    /// Carries out a repoinit script in one commit.
    ///
    /// # Errors
    /// If the content cannot be read or written.
    fn initialize(
        &mut self,
        text: &str,
        is_dry_run: bool,
    ) -> Result<Vec<RepoinitOutcome>, Self::Error>;

    /// Describes an error for the report.
    fn describe(error: &Self::Error) -> String;
}

/// A repository that no instance uses, as a target.
pub struct RepositoryImportTarget<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// The user of the commits.
    pub user: &'a str,
    /// The callback for progress, with the file that is installed.
    pub on_progress: &'a mut dyn FnMut(&Path, InstallProgress<'_>),
}

impl fmt::Debug for RepositoryImportTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepositoryImportTarget({})", self.user)
    }
}

impl AemImportTarget for RepositoryImportTarget<'_> {
    type Error = PackageError;

    fn install(&mut self, file: &Path, is_dry_run: bool) -> Result<Json, PackageError> {
        let mut package = ContentPackage::open(file, &PackageLimits::default())?;
        let mut session = self.repository.session(self.user)?;
        let options = InstallOptions::default();
        if is_dry_run {
            let (difference, _) =
                PackageSession::new(&mut session).preview(&mut package, &options, usize::MAX)?;
            return Ok(serde_json::to_value(difference).unwrap_or_default());
        }
        let mut bytes = File::open(file).map_err(|source| PackageError::Read {
            input_name: format!("`{}`", file.display()),
            source,
        })?;
        let stamp = AuditStamp { user: self.user.to_owned(), time: SystemTime::now() };
        let how = PackageInstallation {
            options: &options,
            stamp: &stamp,
            on_progress: &mut |step| (self.on_progress)(file, step),
        };
        let report =
            PackageSession::new(&mut session).install_file(&mut package, &mut bytes, how)?;
        Ok(serde_json::to_value(report).unwrap_or_default())
    }

    fn initialize(
        &mut self,
        text: &str,
        is_dry_run: bool,
    ) -> Result<Vec<RepoinitOutcome>, PackageError> {
        let mut session = self.repository.session(self.user)?;
        let outcomes = run_repoinit(&mut session, text)?;
        if !is_dry_run && session.has_changes()? {
            session.commit("initialize the repository", SystemTime::now())?;
        }
        Ok(outcomes)
    }

    fn describe(error: &PackageError) -> String {
        error_chain_text(error)
    }
}

/// What became of each package and script.
#[derive(Debug, Default, Serialize)]
pub struct AemImportProgress {
    /// The packages, in the order of their installation.
    pub packages: Vec<PackageImport>,
    /// The repoinit scripts, in order.
    pub repoinit: Vec<RepoinitImport>,
}

/// What became of a package.
#[derive(Debug, Serialize)]
pub struct PackageImport {
    /// The identifier.
    pub package: String,
    /// Where it was found.
    pub origin: String,
    /// The state.
    pub state: ImportState,
    /// Number of created nodes.
    pub created: u64,
    /// Number of changed nodes.
    pub changed: u64,
    /// Number of removed nodes, in an installation of removed subtrees.
    pub removed: u64,
    /// The reason of a failure.
    pub reason: Option<String>,
}

/// What became of a repoinit script.
#[derive(Debug, Serialize)]
pub struct RepoinitImport {
    /// The configuration or file that contains it.
    pub origin: String,
    /// The state.
    pub state: ImportState,
    /// The statements.
    pub statements: Vec<RepoinitOutcome>,
    /// The reason of a failure.
    pub reason: Option<String>,
}

/// The state of a package or script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportState {
    /// It changed content, or would.
    Done,
    /// Everything was there already.
    Unchanged,
    /// It was only read, or another one failed before.
    NotDone,
    /// It failed.
    Failed,
}

impl ImportState {
    fn text(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unchanged => "unchanged",
            Self::NotDone => "not done",
            Self::Failed => "FAILED",
        }
    }
}

/// Installs all packages of a project, then carries out its scripts, which set policies on the nodes of packages. Without
/// a target, everything is listed as not done. The first failure ends the import; what was done before stays.
pub fn import_aem_project<T: AemImportTarget>(
    project: &AemProject,
    mut target: Option<&mut T>,
    is_dry_run: bool,
) -> (AemImportProgress, Result<(), T::Error>) {
    let mut progress = AemImportProgress::default();
    let mut failure = None;
    for package in &project.packages {
        let mut import = PackageImport {
            package: package.id.to_string(),
            origin: package.origin.clone(),
            state: ImportState::NotDone,
            created: 0,
            changed: 0,
            removed: 0,
            reason: None,
        };
        if let (Some(target), None) = (&mut target, &failure) {
            match target.install(&package.file, is_dry_run) {
                Ok(report) => import.record(&report),
                Err(error) => {
                    import.state = ImportState::Failed;
                    import.reason = Some(T::describe(&error));
                    failure = Some(error);
                }
            }
        }
        progress.packages.push(import);
    }
    for script in &project.repoinit_scripts {
        let mut import = RepoinitImport {
            origin: script.origin.clone(),
            state: ImportState::NotDone,
            statements: Vec::new(),
            reason: None,
        };
        if let (Some(target), None) = (&mut target, &failure) {
            match target.initialize(&script.text, is_dry_run) {
                Ok(statements) => import.record(statements),
                Err(error) => {
                    import.state = ImportState::Failed;
                    import.reason = Some(T::describe(&error));
                    failure = Some(error);
                }
            }
        }
        progress.repoinit.push(import);
    }
    (progress, failure.map_or(Ok(()), Err))
}

impl PackageImport {
    /// Takes the numbers from the report of an installation, or from a difference.
    fn record(&mut self, report: &Json) {
        let nodes = report.get("nodes").and_then(Json::as_array);
        for node in nodes.into_iter().flatten() {
            match node.get("change").and_then(Json::as_str) {
                Some("added") => self.created += 1,
                Some("removed") => self.removed += 1,
                _ => self.changed += 1,
            }
        }
        self.add_installation(report);
        let changes = self.created + self.changed + self.removed;
        self.state = if changes == 0 { ImportState::Unchanged } else { ImportState::Done };
    }

    fn add_installation(&mut self, report: &Json) {
        let number = |name: &str| report.get(name).and_then(Json::as_u64).unwrap_or_default();
        self.created += number("nodes_created");
        self.changed += number("nodes_changed");
        self.removed += number("subtrees_removed");
        for inner in ["nested", "required"] {
            let reports = report.get(inner).and_then(Json::as_array);
            reports.into_iter().flatten().for_each(|report| self.add_installation(report));
        }
    }
}

impl RepoinitImport {
    fn record(&mut self, statements: Vec<RepoinitOutcome>) {
        self.statements = statements;
        let is_changed = self.count(RepoinitResult::Changed) > 0;
        self.state = if is_changed { ImportState::Done } else { ImportState::Unchanged };
    }

    fn count(&self, result: RepoinitResult) -> usize {
        self.statements.iter().filter(|statement| statement.result == result).count()
    }
}

impl fmt::Display for AemImportProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packages")?;
        for import in &self.packages {
            let PackageImport { package, origin, created, changed, removed, .. } = import;
            writeln!(
                f,
                "  {:<10} {package}  {created} nodes created, {changed} changed, {removed} removed  ({origin})",
                import.state.text()
            )?;
            write_reason(f, import.reason.as_deref())?;
        }
        if !self.repoinit.is_empty() {
            writeln!(f, "repoinit statements")?;
        }
        for import in &self.repoinit {
            let mut counts = String::new();
            for (result, name) in [
                (RepoinitResult::Changed, "changed"),
                (RepoinitResult::Unchanged, "unchanged"),
                (RepoinitResult::Skipped, "skipped"),
            ] {
                let separator = if counts.is_empty() { "" } else { ", " };
                write!(counts, "{separator}{} {name}", import.count(result))?;
            }
            writeln!(f, "  {:<10} {}  {counts}", import.state.text(), import.origin)?;
            for statement in &import.statements {
                if let Some(note) = &statement.note {
                    writeln!(
                        f,
                        "    line {}: {}\n      {note}",
                        statement.line, statement.statement
                    )?;
                }
            }
            write_reason(f, import.reason.as_deref())?;
        }
        Ok(())
    }
}

fn write_reason(f: &mut fmt::Formatter<'_>, reason: Option<&str>) -> fmt::Result {
    reason.map_or(Ok(()), |reason| writeln!(f, "    {reason}"))
}
