//! Changes of the packages stored in content: stored, installed, uninstalled, removed, built.
//!
//! In: package files, and the paths of stored ones. Out: pending edits of a session; [`PackageSession::install`] and
//! [`PackageSession::uninstall`] commit them.
//!
//! Invariants
//! * An installation, including its dependencies and nested packages, is one commit.
//! * The content that an installation replaces is recorded by hash before the commit, so that it can be undone.
//!
//! Not here: permissions (the caller checks them).

use std::fmt;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};

use tympan_content::{
    Error as ContentError, JCR_CONTENT, JcrDate, NodePath, Property, ReplacedRecords, Session,
    Snapshot, UndoRefUpdates, Value,
};

use crate::archive::PackageLimits;
use crate::build::{self, PackageBuildReport, PackageManifest};
use crate::content_difference::{ContentDifference, DryRunTarget};
use crate::content_package::ContentPackage;
use crate::definition::{self, DEFINITION_NODE, find_newer_installed, set_install_stamp};
use crate::dependency::PackageDependency;
use crate::filter::PackageFilter;
use crate::install_options::{AuditStamp, DependencyRule, InstallOptions};
use crate::install_report::InstallReport;
use crate::install_target::InstallProgress;
use crate::package_id::PackageId;
use crate::package_properties::PackageProperties;
use crate::stored_package::{StoredPackage, StoredPackages};
use crate::uninstall_report::UninstallReport;
use crate::{Error, Result};

/// Changes the stored packages in a session.
#[derive(Debug)]
pub struct PackageSession<'a> {
    session: &'a mut Session,
}

impl<'a> PackageSession<'a> {
    /// Creates a view of a session that changes stored packages.
    #[must_use]
    pub fn new(session: &'a mut Session) -> Self {
        Self { session }
    }

    /// Stores the file of a package, as a pending edit. `name` identifies the file in messages. An identical file that
    /// is already stored is not changed.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a valid package; [`ContentError::NodeExists`] if the package is stored
    /// already and `if_exists` refuses to replace it.
    pub fn store(
        &mut self,
        file: &mut (impl Read + Seek),
        name: &str,
        if_exists: IfPackageExists,
        stamp: &AuditStamp,
    ) -> Result<StoredPackage> {
        let package =
            ContentPackage::read(&mut *file, name, &PackageLimits::default())?.into_description();
        file.seek(SeekFrom::Start(0))
            .map_err(|source| Error::Read { input_name: format!("`{name}`"), source })?;
        self.store_described_package(&package, file, if_exists, stamp)
    }

    /// Stores a package that was read from these bytes.
    fn store_described_package(
        &mut self,
        package: &PackageDescription,
        bytes: &mut dyn Read,
        if_exists: IfPackageExists,
        stamp: &AuditStamp,
    ) -> Result<StoredPackage> {
        let path = package.id.path()?;
        let existing = StoredPackages::new(&self.session.snapshot()?).find_at(&path)?;
        if existing.is_some() && if_exists == IfPackageExists::Refuse {
            return Err(ContentError::NodeExists(path).into());
        }
        let data = self.session.put_blob(bytes)?;
        let mut node = definition::build_definition_node(
            &package.id,
            &package.properties,
            &package.filter,
            stamp,
        );
        match existing {
            Some(existing_package)
                if existing_package.data == data && existing_package.id == package.id =>
            {
                return Ok(existing_package);
            }
            // The file is replaced; the installed content stays.
            Some(StoredPackage {
                last_unpacked: Some(at), last_unpacked_by: Some(user), ..
            }) => {
                set_install_stamp(&mut node, Some(&AuditStamp { user, time: at.to_system_time() }));
            }
            _ => {}
        }
        self.create_missing_folders(&path)?;
        self.session
            .put_node(&path, definition::build_file_node(path.name(), data, node, stamp))?;
        self.stored_package_at(&path)
    }

    /// Stores a package, installs it with its dependencies and nested packages, and commits everything as one revision.
    /// `bytes` are those that the package was read from.
    ///
    /// # Errors
    /// As [`PackageSession::install`].
    pub fn install_file<R: Read + Seek>(
        &mut self,
        package: &mut ContentPackage<R>,
        bytes: &mut dyn Read,
        how: PackageInstallation<'_>,
    ) -> Result<InstallReport> {
        let described = package.describe();
        let stored =
            self.store_described_package(&described, bytes, IfPackageExists::Replace, how.stamp)?;
        self.install_with_dependencies(&stored, Some(package), how)
    }

    /// Installs a stored package with its dependencies and nested packages, and commits.
    ///
    /// # Errors
    /// [`ContentError::NodeMissing`]; [`Error::InvalidPackage`] if it is damaged or lacks a dependency;
    /// [`ContentError::Conflicts`]. The session then holds a part of the package and must not be used again; nothing is
    /// committed.
    pub fn install(
        &mut self,
        path: &NodePath,
        how: PackageInstallation<'_>,
    ) -> Result<InstallReport> {
        let package = self.stored_package_at(path)?;
        self.install_with_dependencies::<Cursor<Vec<u8>>>(&package, None, how)
    }

    fn install_with_dependencies<R: Read + Seek>(
        &mut self,
        package: &StoredPackage,
        mut opened: Option<&mut ContentPackage<R>>,
        how: PackageInstallation<'_>,
    ) -> Result<InstallReport> {
        let PackageInstallation { options, stamp, on_progress } = how;
        let options = InstallOptions { stamp: Some(stamp.clone()), ..options.clone() };
        let mut plan = PackageInstallPlan::new(&self.session.snapshot()?, options.dependency_rule)?;
        plan.add_package(package)?;
        let mut keeping = UndoRefUpdates::default();
        let mut reports = Vec::new();
        for planned_package in &plan.packages {
            let before = self.session.snapshot()?;
            let newer = find_newer_installed(self.session, &planned_package.id)?;
            let mut report = match opened.as_mut().filter(|_| planned_package.path == package.path)
            {
                Some(opened) => opened.install_with_options(self.session, &options, on_progress)?,
                None => {
                    let mut opened = StoredPackages::new(&before)
                        .open(planned_package, &PackageLimits::default())?;
                    opened.install_with_options(self.session, &options, on_progress)?
                }
            };
            report
                .warnings
                .extend(newer.map(|newer| format!("a newer version is also installed: `{newer}`")));
            let after = self.session.snapshot()?;
            let replaced = ReplacedRecords::between(&before, &after, &planned_package.path)?;
            drop((before, after));
            // A package whose content is already installed needs no undo record.
            if !(planned_package.is_installed() && replaced.is_empty()) {
                // Records of a failed attempt are ignored.
                let replaced = if planned_package.is_installed() {
                    replaced.on_top_of_stored(self.session.repository(), &planned_package.path)?
                } else {
                    replaced
                };
                let path = &planned_package.path;
                let message = format!("records replaced by the installation of {path}");
                let details = stamp.revision_details(&message);
                keeping.add_replaced(self.session.repository(), path, &replaced, details)?;
                definition::mark_installed(self.session, &planned_package.path, Some(stamp))?;
            }
            reports.push(report);
        }
        let message = format!("install package {}", package.id);
        keeping
            .commit_with_rollback(self.session, |session| session.commit(&message, stamp.time))
            .map_err(Error::from)
            .map_err(|error| match &opened {
                Some(opened) => opened.with_rule_locations(error),
                None => error,
            })?;
        let mut report = reports.pop().unwrap_or_default();
        report.warnings.extend(plan.warnings);
        report.required = reports;
        Ok(report)
    }

    /// Returns the changes that installing a package would make. The session then holds the changes, without their
    /// blobs, and must be discarded.
    ///
    /// # Errors
    /// As [`ContentPackage::install`]; [`Error::InvalidPackage`] if it changes more than `max_nodes` nodes, reads many times
    /// as many, or changes documents that have more in one of the two states.
    pub fn preview<R: Read + Seek>(
        &mut self,
        package: &mut ContentPackage<R>,
        options: &InstallOptions,
        max_nodes: usize,
    ) -> Result<(ContentDifference, InstallReport)> {
        let before = self.session.snapshot()?;
        let mut target = DryRunTarget::new(self.session, package.id().to_string(), max_nodes);
        let report = package.install_with_options(&mut target, options, &mut |_| {})?;
        let too_many = target.too_many_nodes();
        let after = self.session.snapshot()?;
        let difference = ContentDifference::between(&before, &after, max_nodes)?;
        Ok((difference.ok_or(too_many)?, report))
    }

    /// Undoes the installation of a package, and commits. Later changes by others stay.
    ///
    /// # Errors
    /// [`ContentError::NodeMissing`]; [`Error::InvalidPackage`] if it is not installed, an installed package depends on
    /// it (unless `dependencies` ignores that), or the replaced content is not known.
    pub fn uninstall(
        &mut self,
        path: &NodePath,
        dependencies: DependencyRule,
        stamp: &AuditStamp,
    ) -> Result<UninstallReport> {
        let package = self.stored_package_at(path)?;
        let refuse = |message: String| {
            Err(Error::InvalidPackage { file: package.id.to_string(), line: 0, message })
        };
        if !package.is_installed() {
            return refuse("the package is not installed".into());
        }
        let mut out = UninstallReport { package: package.id.clone(), ..UninstallReport::default() };
        let others = StoredPackages::new(&self.session.snapshot()?).list()?;
        let needs = |candidate: &&StoredPackage| {
            candidate.is_installed()
                && candidate.path != package.path
                && candidate.dependencies.iter().any(|need| need.is_met_by(&package.id))
        };
        let replaced = ReplacedRecords::load(self.session.repository(), path)?;
        let Some(replaced) = replaced else {
            return refuse(
                "the content that it replaced is unknown: it came within another package, or was not \
                 installed here; uninstall the other package"
                    .into(),
            );
        };
        let before = self.session.snapshot()?;
        let undone = replaced.undo(self.session)?;
        (out.restored, out.removed, out.kept) = (undone.restored, undone.removed, undone.kept);
        // Nested packages of this one depend on it and are uninstalled with it.
        let after = self.session.snapshot()?;
        drop(before);
        for dependent in others.iter().filter(needs) {
            if StoredPackages::new(&after)
                .find_at(&dependent.path)?
                .is_none_or(|dependent_package| !dependent_package.is_installed())
            {
                continue;
            }
            let message = format!("the installed package `{}` needs it", dependent.id);
            if matches!(dependencies, DependencyRule::Ignore | DependencyRule::BestEffort) {
                out.warnings.push(message);
            } else {
                return refuse(message);
            }
        }
        drop(after);
        definition::mark_installed(self.session, path, None)?;
        self.session.commit(&format!("uninstall package {}", package.id), stamp.time)?;
        self.delete_replaced(path, stamp)?;
        Ok(out)
    }

    /// Removes the file of a stored package, and commits; its content stays.
    ///
    /// # Errors
    /// [`ContentError::NodeMissing`].
    pub fn remove(&mut self, path: &NodePath, stamp: &AuditStamp) -> Result<()> {
        let package = self.stored_package_at(path)?;
        self.session.remove_node(path)?;
        self.session.commit(&format!("remove package {}", package.id), stamp.time)?;
        self.delete_replaced(path, stamp)
    }

    /// Stores the definition of a new package without content, as a pending edit. Its filter selects the content that
    /// [`PackageSession::build`] adds.
    ///
    /// # Errors
    /// [`ContentError::NodeExists`]; [`ContentError::InvalidName`] if the identifier cannot be a file name.
    pub fn create(
        &mut self,
        id: &PackageId,
        filter: &PackageFilter,
        stamp: &AuditStamp,
    ) -> Result<StoredPackage> {
        let path = id.path()?;
        if self.session.node(&path)?.is_some() {
            return Err(ContentError::NodeExists(path).into());
        }
        let mut file = Cursor::new(Vec::new());
        let manifest = PackageManifest { id: id.clone(), ..PackageManifest::default() };
        build::write_package(
            &mut file,
            &manifest,
            &self.session.snapshot()?,
            &PackageLimits::default(),
        )?;
        let data = self.session.put_blob(&mut file.into_inner().as_slice())?;
        let node =
            definition::build_definition_node(id, &PackageProperties::default(), filter, stamp);
        self.create_missing_folders(&path)?;
        self.session
            .put_node(&path, definition::build_file_node(path.name(), data, node, stamp))?;
        self.stored_package_at(&path)
    }

    /// Builds a stored package with the current content of its filter, as a pending edit. `file` buffers the bytes.
    ///
    /// # Errors
    /// [`ContentError::NodeMissing`]; [`Error::InvalidPackage`] for an invalid filter, and for content over the limits.
    pub fn build(
        &mut self,
        path: &NodePath,
        file: &mut (impl Read + Write + Seek),
        stamp: &AuditStamp,
        limits: &PackageLimits,
    ) -> Result<PackageBuildReport> {
        let package = self.stored_package_at(path)?;
        let snapshot = self.session.snapshot()?;
        let content = path.child_unchecked(JCR_CONTENT);
        let definition_path = content.child_unchecked(DEFINITION_NODE);
        let mut node = snapshot
            .read_subtree(&definition_path)?
            .ok_or_else(|| ContentError::NodeMissing(definition_path.clone()))?;
        const KEPT: [&str; 4] = ["description", "acHandling", "cugHandling", "subPackageHandling"];
        let properties =
            KEPT.iter().filter_map(|key| Some(((*key).to_owned(), node.text(key)?.to_owned())));
        let manifest = PackageManifest {
            properties: properties.collect(),
            ..PackageManifest::from_snapshot(
                &snapshot,
                package.id.clone(),
                definition::read_filter(&node)?,
            )?
        };
        let report = build::write_package(&mut *file, &manifest, &snapshot, limits)?;
        drop(snapshot);
        file.seek(SeekFrom::Start(0))
            .map_err(|source| Error::Read { input_name: "the package".into(), source })?;
        let data = self.session.put_blob(file)?;
        let now = || Property::Single(Value::Date(JcrDate::from_system_time(stamp.time)));
        self.session.set_property(&content, "jcr:data", Property::Single(Value::Binary(data)))?;
        self.session.set_property(&content, "jcr:lastModified", now())?;
        node.properties.insert("lastWrapped".into(), now());
        node.properties.insert("lastWrappedBy".into(), stamp.user.as_str().into());
        self.session.replace_properties(&definition_path, node.properties)?;
        Ok(report)
    }

    fn stored_package_at(&mut self, path: &NodePath) -> Result<StoredPackage> {
        let package = StoredPackages::new(&self.session.snapshot()?).find_at(path)?;
        Ok(package.ok_or_else(|| ContentError::NodeMissing(path.clone()))?)
    }

    /// Drops the records that the installation of a package replaced.
    fn delete_replaced(&self, path: &NodePath, stamp: &AuditStamp) -> Result<()> {
        let message = format!("{path} is no longer installed");
        let details = stamp.revision_details(&message);
        Ok(ReplacedRecords::delete(self.session.repository(), path, details)?)
    }

    /// Creates the missing folders above a package.
    fn create_missing_folders(&mut self, path: &NodePath) -> Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        if self.session.node(&parent)?.is_none() {
            self.create_missing_folders(&parent)?;
            self.session.add_node(&parent, "sling:Folder")?;
        }
        Ok(())
    }
}

/// The metadata of a package, without its content.
struct PackageDescription {
    id: PackageId,
    properties: PackageProperties,
    filter: PackageFilter,
}

impl<R: Read + Seek> ContentPackage<R> {
    fn describe(&self) -> PackageDescription {
        PackageDescription {
            id: self.id.clone(),
            properties: self.properties.clone(),
            filter: self.filter.clone(),
        }
    }

    fn into_description(self) -> PackageDescription {
        PackageDescription { id: self.id, properties: self.properties, filter: self.filter }
    }
}

/// The rule for a package that is already stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfPackageExists {
    /// The new one is refused.
    Refuse,
    /// The new one replaces it.
    Replace,
}

/// The parameters of the installation of a stored package.
pub struct PackageInstallation<'a> {
    /// The options.
    pub options: &'a InstallOptions,
    /// The user and time of the installation.
    pub stamp: &'a AuditStamp,
    /// The callback for progress.
    pub on_progress: &'a mut dyn FnMut(InstallProgress<'_>),
}

impl fmt::Debug for PackageInstallation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Installation({:?})", self.options)
    }
}

/// The packages in order of installation; the requested one is last.
struct PackageInstallPlan {
    dependency_rule: DependencyRule,
    /// All stored packages, sorted by version.
    stored_packages: Vec<StoredPackage>,
    /// The packages whose dependencies are being resolved.
    open_ids: Vec<PackageId>,
    packages: Vec<StoredPackage>,
    warnings: Vec<String>,
}

impl PackageInstallPlan {
    fn new(snapshot: &Snapshot, rule: DependencyRule) -> Result<Self> {
        let stored = StoredPackages::new(snapshot).list()?;
        let (open, packages, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            dependency_rule: rule,
            stored_packages: stored,
            open_ids: open,
            packages,
            warnings,
        })
    }

    fn add_package(&mut self, package: &StoredPackage) -> Result<()> {
        if self.dependency_rule != DependencyRule::Ignore {
            self.open_ids.push(package.id.clone());
            package
                .dependencies
                .iter()
                .try_for_each(|need| self.resolve_dependency(need, &package.id))?;
            self.open_ids.pop();
        }
        self.packages.push(package.clone());
        Ok(())
    }

    fn resolve_dependency(&mut self, need: &PackageDependency, asking: &PackageId) -> Result<()> {
        let fitting =
            || self.stored_packages.iter().filter(|candidate| need.is_met_by(&candidate.id));
        if fitting().any(StoredPackage::is_installed) {
            return Ok(());
        }
        // The newest is last.
        match fitting().next_back().cloned() {
            Some(best) if self.packages.iter().any(|package| package.path == best.path) => Ok(()),
            Some(best) if self.open_ids.contains(&best.id) => self.report_missing(
                asking,
                format!("`{}` and `{asking}` depend on each other", best.id),
            ),
            Some(best) if self.dependency_rule != DependencyRule::Strict => self.add_package(&best),
            Some(best) => {
                let stored = &best.id;
                let message =
                    format!("it needs `{need}`, and `{stored}` is stored but not installed");
                self.report_missing(asking, message)
            }
            None => {
                let message = format!(
                    "it needs `{need}`, which is not stored here; store that package first"
                );
                self.report_missing(asking, message)
            }
        }
    }

    fn report_missing(&mut self, asking: &PackageId, message: String) -> Result<()> {
        if self.dependency_rule == DependencyRule::BestEffort {
            self.warnings.push(message);
            return Ok(());
        }
        Err(Error::InvalidPackage { file: asking.to_string(), line: 0, message })
    }
}
