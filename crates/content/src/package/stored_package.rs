//! The packages stored in content, below `/etc/packages`: listed, stored, installed, uninstalled, built.
//!
//! In: package files, and the paths of stored ones. Out: pending edits of a session; [`Session::install_package`] and
//! [`Session::uninstall_package`] commit them.
//!
//! Invariants
//! * An installation, including its dependencies and nested packages, is one commit.
//! * The content that an installation replaces is recorded by hash before the commit, so that it can be undone.
//!
//! Not here: permissions (the caller checks them).

use std::fmt;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};

use serde::{Serialize, Serializer};

use super::build::{self, PackageBuildReport, PackageManifest};
use super::content_difference::{ContentDifference, DryRunTarget};
use super::definition::{
    self, DEFINITION_NODE, PackageDefinition, find_newer_installed, set_install_stamp,
};
use super::dependency::PackageDependency;
use super::filter::PackageFilter;
use super::install_options::{AuditStamp, DependencyRule, InstallOptions};
use super::install_report::InstallReport;
use super::install_target::InstallProgress;
use super::package_id::{PACKAGES_PATH, PackageId};
use super::package_properties::PackageProperties;
use super::replaced_records::{self, ReplacedRecords, UndoRefUpdates, UninstallReport};
use super::version::PackageVersion;
use super::{ContentPackage, PackageLimits};
use crate::{
    BlobContent, BlobId, Error, JCR_CONTENT, JcrDate, Node, NodePath, Property, Result, Session,
    Snapshot, Subtree, Value,
};

/// A package that is stored in content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredPackage {
    /// The path of its file.
    #[serde(serialize_with = "serialize_display")]
    pub path: NodePath,
    /// Its identifier.
    pub id: PackageId,
    /// The size of its file in bytes.
    pub size: u64,
    /// The blob of its file.
    #[serde(serialize_with = "serialize_display")]
    pub data: BlobId,
    /// Its dependencies.
    #[serde(serialize_with = "serialize_display_list")]
    pub dependencies: Vec<PackageDependency>,
    /// The time at which it was stored.
    #[serde(serialize_with = "serialize_date")]
    pub created: Option<JcrDate>,
    /// The user who stored it.
    pub created_by: Option<String>,
    /// The time at which it was installed; `None` if it is not installed.
    #[serde(serialize_with = "serialize_date")]
    pub last_unpacked: Option<JcrDate>,
    /// The user who installed it.
    pub last_unpacked_by: Option<String>,
}

fn serialize_display<T: ToString, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn serialize_display_list<T: ToString, S: Serializer>(
    list: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(ToString::to_string))
}

fn serialize_date<S: Serializer>(date: &Option<JcrDate>, serializer: S) -> Result<S::Ok, S::Error> {
    match date {
        Some(date) => serializer.serialize_some(&date.to_string()),
        None => serializer.serialize_none(),
    }
}

impl StoredPackage {
    /// Returns true if it is installed.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.last_unpacked.is_some()
    }

    fn from_node(node: &Node) -> Result<Option<Self>> {
        let Some(content) = node.child(JCR_CONTENT)? else {
            return Ok(None);
        };
        let Some(Property::Single(Value::Binary(data))) = content.property("jcr:data") else {
            return Ok(None);
        };
        let definition = content.child(DEFINITION_NODE)?.map(|node| Subtree {
            properties: node.properties().into_iter().collect(),
            ..Subtree::default()
        });
        let PackageDefinition {
            id,
            dependencies,
            created,
            created_by,
            last_unpacked,
            last_unpacked_by,
        } = PackageDefinition::from_node(node.path(), definition.as_ref());
        Ok(Some(Self {
            path: node.path().clone(),
            id,
            size: data.length(),
            data,
            dependencies,
            created,
            created_by,
            last_unpacked,
            last_unpacked_by,
        }))
    }
}

impl Snapshot {
    /// Returns the stored packages, sorted by group, name and version.
    ///
    /// # Errors
    /// If the store fails.
    pub fn stored_packages(&self) -> Result<Vec<StoredPackage>> {
        let mut packages = Vec::new();
        let mut folders: Vec<Node> =
            self.node(&NodePath::new(PACKAGES_PATH)?)?.into_iter().collect();
        while let Some(folder) = folders.pop() {
            for child in folder.children()? {
                if child.name().ends_with(".zip") {
                    packages.extend(StoredPackage::from_node(&child)?);
                } else if child.name() != ".snapshot" && child.name() != JCR_CONTENT {
                    folders.push(child);
                }
            }
        }
        packages.sort_by(|left, right| {
            let names =
                |package: &StoredPackage| (package.id.group.clone(), package.id.name.clone());
            let versions = || {
                PackageVersion::new(&left.id.version)
                    .compare(&PackageVersion::new(&right.id.version))
            };
            names(left).cmp(&names(right)).then_with(versions)
        });
        Ok(packages)
    }

    /// Finds a stored package by the path of its file.
    ///
    /// # Errors
    /// If the store fails.
    pub fn stored_package_at(&self, path: &NodePath) -> Result<Option<StoredPackage>> {
        self.node(path)?.map_or(Ok(None), |node| StoredPackage::from_node(&node))
    }

    /// Finds a stored package by its identifier; without a version the newest one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_stored_package(&self, id: &PackageId) -> Result<Option<StoredPackage>> {
        let fits = |package: &StoredPackage| {
            package.id.group == id.group
                && package.id.name == id.name
                && (id.version.is_empty() || package.id.version == id.version)
        };
        Ok(self.stored_packages()?.into_iter().rfind(fits))
    }

    /// Opens the file of a stored package and reads it.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a valid package; errors of the store.
    pub fn open_stored_package(
        &self,
        package: &StoredPackage,
        limits: &PackageLimits,
    ) -> Result<ContentPackage<Box<dyn ReadSeek>>> {
        let content = self
            .0
            .repository_state
            .blobs
            .open(&package.data)?
            .ok_or(Error::BlobMissing(package.data))?;
        let reader: Box<dyn ReadSeek> = match content {
            BlobContent::Bytes(bytes) => Box::new(Cursor::new(bytes)),
            BlobContent::File { file, .. } => Box::new(BufReader::new(file)),
        };
        ContentPackage::read(reader, package.path.name(), limits)
    }
}

/// A seekable reader.
pub trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}

impl Session {
    /// Stores the file of a package, as a pending edit. `name` identifies the file in messages. An identical file that
    /// is already stored is not changed.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a valid package; [`Error::NodeExists`] if the package is stored already
    /// and `if_exists` refuses to replace it.
    pub fn store_package(
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
        let existing = self.snapshot()?.stored_package_at(&path)?;
        if existing.is_some() && if_exists == IfPackageExists::Refuse {
            return Err(Error::NodeExists(path));
        }
        let data = self.put_blob(bytes)?;
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
        self.put_node(&path, definition::build_file_node(path.name(), data, node, stamp))?;
        self.stored_package_at(&path)
    }

    /// Stores a package, installs it with its dependencies and nested packages, and commits everything as one revision.
    /// `bytes` are those that the package was read from.
    ///
    /// # Errors
    /// As [`Session::install_package`].
    pub fn install_package_file<R: Read + Seek>(
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
    /// [`Error::NodeMissing`]; [`Error::InvalidPackage`] if it is damaged or lacks a dependency; [`Error::Conflicts`].
    /// The session then holds a part of the package and must not be used again; nothing is committed.
    pub fn install_package(
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
        let PackageInstallation { options, stamp, on_progress: progress } = how;
        let options = InstallOptions { stamp: Some(stamp.clone()), ..options.clone() };
        let mut plan = PackageInstallPlan::new(&self.snapshot()?, options.dependency_rule)?;
        plan.add_package(package)?;
        let mut keeping = UndoRefUpdates::default();
        let mut reports = Vec::new();
        for planned_package in &plan.packages {
            let before = self.snapshot()?;
            let newer = find_newer_installed(self, &planned_package.id)?;
            let mut report = match opened.as_mut().filter(|_| planned_package.path == package.path)
            {
                Some(opened) => opened.install_with_options(self, &options, progress)?,
                None => {
                    let mut opened =
                        before.open_stored_package(planned_package, &PackageLimits::default())?;
                    opened.install_with_options(self, &options, progress)?
                }
            };
            report
                .warnings
                .extend(newer.map(|newer| format!("a newer version is also installed: `{newer}`")));
            let after = self.snapshot()?;
            let replaced = ReplacedRecords::between(&before.0, &after.0, &planned_package.path)?;
            drop((before, after));
            // A package whose content is already installed needs no undo record.
            if !(planned_package.is_installed() && replaced.is_empty()) {
                // Records of a failed attempt are ignored.
                let replaced = if planned_package.is_installed() {
                    replaced.on_top_of_stored(self.repository(), &planned_package.path)?
                } else {
                    replaced
                };
                keeping.add_replaced(self.repository(), &planned_package.path, &replaced, stamp)?;
                definition::mark_installed(self, &planned_package.path, Some(stamp))?;
            }
            reports.push(report);
        }
        let message = format!("install package {}", package.id);
        keeping
            .commit_with_rollback(self, |session| session.commit(&message, stamp.time))
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
    pub fn preview_package<R: Read + Seek>(
        &mut self,
        package: &mut ContentPackage<R>,
        options: &InstallOptions,
        max_nodes: usize,
    ) -> Result<(ContentDifference, InstallReport)> {
        let before = self.snapshot()?;
        let mut target = DryRunTarget::new(self, package.id().to_string(), max_nodes);
        let report = package.install_with_options(&mut target, options, &mut |_| {})?;
        let too_many = target.too_many_nodes();
        let after = self.snapshot()?;
        let difference = ContentDifference::between(&before.0, &after.0, max_nodes)?;
        Ok((difference.ok_or(too_many)?, report))
    }

    /// Undoes the installation of a package, and commits. Later changes by others stay.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidPackage`] if it is not installed, an installed package depends on it
    /// (unless `dependencies` ignores that), or the replaced content is not known.
    pub fn uninstall_package(
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
        let others = self.snapshot()?.stored_packages()?;
        let needs = |candidate: &&StoredPackage| {
            candidate.is_installed()
                && candidate.path != package.path
                && candidate.dependencies.iter().any(|need| need.is_met_by(&package.id))
        };
        let replaced = replaced_records::load_replaced(self.repository(), path)?;
        let Some(replaced) = replaced else {
            return refuse(
                "the content that it replaced is unknown: it came within another package, or was not \
                 installed here; uninstall the other package"
                    .into(),
            );
        };
        let before = self.snapshot()?;
        self.mark_as_installation();
        replaced_records::undo_installation(self, &replaced, &mut out)?;
        // Nested packages of this one depend on it and are uninstalled with it.
        let after = self.snapshot()?;
        drop(before);
        for dependent in others.iter().filter(needs) {
            if after
                .stored_package_at(&dependent.path)?
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
        definition::mark_installed(self, path, None)?;
        self.commit(&format!("uninstall package {}", package.id), stamp.time)?;
        replaced_records::delete_replaced(self.repository(), path, stamp)?;
        Ok(out)
    }

    /// Removes the file of a stored package, and commits; its content stays.
    ///
    /// # Errors
    /// [`Error::NodeMissing`].
    pub fn remove_package(&mut self, path: &NodePath, stamp: &AuditStamp) -> Result<()> {
        let package = self.stored_package_at(path)?;
        self.remove_node(path)?;
        self.commit(&format!("remove package {}", package.id), stamp.time)?;
        replaced_records::delete_replaced(self.repository(), path, stamp)
    }

    /// Stores the definition of a new package without content, as a pending edit. Its filter selects the content that
    /// [`Session::build_package`] adds.
    ///
    /// # Errors
    /// [`Error::NodeExists`]; [`Error::InvalidName`] if the identifier cannot be a file name.
    pub fn create_package(
        &mut self,
        id: &PackageId,
        filter: &PackageFilter,
        stamp: &AuditStamp,
    ) -> Result<StoredPackage> {
        let path = id.path()?;
        if self.node(&path)?.is_some() {
            return Err(Error::NodeExists(path));
        }
        let mut file = Cursor::new(Vec::new());
        let manifest = PackageManifest { id: id.clone(), ..PackageManifest::default() };
        build::write_package(&mut file, &manifest, &self.snapshot()?)?;
        let data = self.put_blob(&mut file.into_inner().as_slice())?;
        let node =
            definition::build_definition_node(id, &PackageProperties::default(), filter, stamp);
        self.create_missing_folders(&path)?;
        self.put_node(&path, definition::build_file_node(path.name(), data, node, stamp))?;
        self.stored_package_at(&path)
    }

    /// Builds a stored package with the current content of its filter, as a pending edit. `file` buffers the bytes.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::InvalidPackage`] for an invalid filter.
    pub fn build_package(
        &mut self,
        path: &NodePath,
        file: &mut (impl Read + Write + Seek),
        stamp: &AuditStamp,
    ) -> Result<PackageBuildReport> {
        let package = self.stored_package_at(path)?;
        let snapshot = self.snapshot()?;
        let content = path.child_unchecked(JCR_CONTENT);
        let definition_path = content.child_unchecked(DEFINITION_NODE);
        let mut node = snapshot
            .read_subtree(&definition_path)?
            .ok_or_else(|| Error::NodeMissing(definition_path.clone()))?;
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
        let report = build::write_package(&mut *file, &manifest, &snapshot)?;
        drop(snapshot);
        file.seek(SeekFrom::Start(0))
            .map_err(|source| Error::Read { input_name: "the package".into(), source })?;
        let data = self.put_blob(file)?;
        let now = || Property::Single(Value::Date(JcrDate::from_system_time(stamp.time)));
        self.set_property(&content, "jcr:data", Property::Single(Value::Binary(data)))?;
        self.set_property(&content, "jcr:lastModified", now())?;
        node.properties.insert("lastWrapped".into(), now());
        node.properties.insert("lastWrappedBy".into(), stamp.user.as_str().into());
        self.replace_properties(&definition_path, node.properties)?;
        Ok(report)
    }

    fn stored_package_at(&mut self, path: &NodePath) -> Result<StoredPackage> {
        self.snapshot()?.stored_package_at(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))
    }

    /// Creates the missing folders above a package.
    fn create_missing_folders(&mut self, path: &NodePath) -> Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        if self.node(&parent)?.is_none() {
            self.create_missing_folders(&parent)?;
            self.add_node(&parent, "sling:Folder")?;
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
        let stored = snapshot.stored_packages()?;
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
