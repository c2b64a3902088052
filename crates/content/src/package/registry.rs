//! The packages that are stored in content, below `/etc/packages`: listed, stored, installed, uninstalled, built.
//!
//! In: package files, and the paths of stored ones. Out: pending edits of a session; [`Session::install_package`] and
//! [`Session::uninstall_package`] commit them.
//!
//! Invariants
//! * An installation, that of the packages it needs and of those within it are one commit.
//! * What an installation replaces is kept by hash before it is committed, so that it can be undone.
//!
//! Not here: who may do this (the caller asks).

use std::fmt;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom, Write};

use serde::{Serialize, Serializer};

use super::build::{self, BuildReport, Manifest};
use super::definition::{self, DEFINITION, Definition, newer_installed, set_installed};
use super::dependency::Dependency;
use super::difference::{Difference, Trial};
use super::filter::Filter;
use super::options::{DependencyRule, InstallOptions, Stamp};
use super::properties::{PACKAGES, PackageId, Properties};
use super::replaced::{self, Keeping, Replaced, Uninstalled};
use super::report::InstallReport;
use super::target::Progress;
use super::version::Version;
use super::{Limits, Package};
use crate::{
    BlobContent, BlobId, Date, Error, JCR_CONTENT, Node, NodePath, Property, Result, Session,
    Snapshot, Subtree, Value,
};

/// A package that is stored in content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredPackage {
    /// Where its file is.
    #[serde(serialize_with = "as_text")]
    pub path: NodePath,
    /// Its name.
    pub id: PackageId,
    /// Bytes of its file.
    pub size: u64,
    /// The bytes.
    #[serde(serialize_with = "as_text")]
    pub data: BlobId,
    /// The packages that it needs.
    #[serde(serialize_with = "as_texts")]
    pub dependencies: Vec<Dependency>,
    /// When it was stored.
    #[serde(serialize_with = "as_date")]
    pub created: Option<Date>,
    /// Who stored it.
    pub created_by: Option<String>,
    /// When it was installed; nothing if it is not.
    #[serde(serialize_with = "as_date")]
    pub last_unpacked: Option<Date>,
    /// Who installed it.
    pub last_unpacked_by: Option<String>,
}

fn as_text<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn as_texts<T: ToString, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(ToString::to_string))
}

fn as_date<S: Serializer>(date: &Option<Date>, serializer: S) -> Result<S::Ok, S::Error> {
    match date {
        Some(date) => serializer.serialize_some(&date.to_string()),
        None => serializer.serialize_none(),
    }
}

impl StoredPackage {
    /// Tells whether it is installed.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.last_unpacked.is_some()
    }

    fn of(node: &Node) -> Result<Option<Self>> {
        let Some(content) = node.child(JCR_CONTENT)? else {
            return Ok(None);
        };
        let Some(Property::Single(Value::Binary(data))) = content.property("jcr:data") else {
            return Ok(None);
        };
        let definition = content.child(DEFINITION)?.map(|node| Subtree {
            properties: node.properties().into_iter().collect(),
            ..Subtree::default()
        });
        let Definition { id, dependencies, created, created_by, last_unpacked, last_unpacked_by } =
            Definition::of(node.path(), definition.as_ref());
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
    /// Returns the packages that are stored, sorted by group, name and version.
    ///
    /// # Errors
    /// If the store fails.
    pub fn packages(&self) -> Result<Vec<StoredPackage>> {
        let mut packages = Vec::new();
        let mut folders: Vec<Node> = self.node(&NodePath::new(PACKAGES)?)?.into_iter().collect();
        while let Some(folder) = folders.pop() {
            for child in folder.children()? {
                if child.name().ends_with(".zip") {
                    packages.extend(StoredPackage::of(&child)?);
                } else if child.name() != ".snapshot" && child.name() != JCR_CONTENT {
                    folders.push(child);
                }
            }
        }
        packages.sort_by(|left, right| {
            let names = |one: &StoredPackage| (one.id.group.clone(), one.id.name.clone());
            let versions =
                || Version::new(&left.id.version).compare(&Version::new(&right.id.version));
            names(left).cmp(&names(right)).then_with(versions)
        });
        Ok(packages)
    }

    /// Finds a stored package by the path of its file.
    ///
    /// # Errors
    /// If the store fails.
    pub fn package_at(&self, path: &NodePath) -> Result<Option<StoredPackage>> {
        self.node(path)?.map_or(Ok(None), |node| StoredPackage::of(&node))
    }

    /// Finds a stored package by its name; without a version the newest one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_package(&self, id: &PackageId) -> Result<Option<StoredPackage>> {
        let fits = |one: &StoredPackage| {
            one.id.group == id.group
                && one.id.name == id.name
                && (id.version.is_empty() || one.id.version == id.version)
        };
        Ok(self.packages()?.into_iter().rfind(fits))
    }

    /// Opens the file of a stored package and reads it.
    ///
    /// # Errors
    /// [`Error::Package`] if it is not a sound package; errors of the store.
    pub fn open_package(
        &self,
        package: &StoredPackage,
        limits: &Limits,
    ) -> Result<Package<Box<dyn ReadSeek>>> {
        let content =
            self.0.shared.blobs.open(&package.data)?.ok_or(Error::BlobMissing(package.data))?;
        let reader: Box<dyn ReadSeek> = match content {
            BlobContent::Bytes(bytes) => Box::new(Cursor::new(bytes)),
            BlobContent::File { file, .. } => Box::new(BufReader::new(file)),
        };
        Package::read(reader, package.path.name(), limits)
    }
}

/// Bytes that can be read at any place.
pub trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}

impl Session {
    /// Stores the file of a package, as a pending edit. `name` stands for the file in messages. A file that is stored
    /// already, byte for byte, changes nothing.
    ///
    /// # Errors
    /// [`Error::Package`] if it is not a sound package; [`Error::NodeExists`] if the package is stored already and
    /// `if_exists` keeps it.
    pub fn store_package(
        &mut self,
        file: &mut (impl Read + Seek),
        name: &str,
        if_exists: IfExists,
        stamp: &Stamp,
    ) -> Result<StoredPackage> {
        let package = Package::read(&mut *file, name, &Limits::default())?.without_archive();
        file.seek(SeekFrom::Start(0))
            .map_err(|source| Error::Read { what: format!("`{name}`"), source })?;
        self.store_opened(&package, file, if_exists, stamp)
    }

    /// Stores a package that was read from these bytes.
    fn store_opened(
        &mut self,
        package: &Described,
        bytes: &mut dyn Read,
        if_exists: IfExists,
        stamp: &Stamp,
    ) -> Result<StoredPackage> {
        let path = package.id.path()?;
        let known = self.snapshot()?.package_at(&path)?;
        if known.is_some() && if_exists == IfExists::Refuse {
            return Err(Error::NodeExists(path));
        }
        let data = self.put_blob(bytes)?;
        let mut node =
            definition::definition(&package.id, &package.properties, &package.filter, stamp);
        match known {
            Some(known) if known.data == data && known.id == package.id => return Ok(known),
            // The file changes; what of it is installed does not.
            Some(StoredPackage {
                last_unpacked: Some(at), last_unpacked_by: Some(user), ..
            }) => {
                set_installed(&mut node, Some(&Stamp { user, at: at.to_system_time() }));
            }
            _ => {}
        }
        self.require_folders(&path)?;
        self.put(&path, definition::file(path.name(), data, node, stamp))?;
        self.stored_at(&path)
    }

    /// Stores a package, installs it, those that it needs and those within it, and commits all of it as one revision.
    /// `bytes` are those that the package was read from.
    ///
    /// # Errors
    /// As [`Session::install_package`].
    pub fn install_file<R: Read + Seek>(
        &mut self,
        package: &mut Package<R>,
        bytes: &mut dyn Read,
        how: Installation<'_>,
    ) -> Result<InstallReport> {
        let described = package.described();
        let stored = self.store_opened(&described, bytes, IfExists::Replace, how.stamp)?;
        self.install_stored(&stored, Some(package), how)
    }

    /// Installs a stored package, those that it needs and those within it, and commits.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Package`] if it is damaged or lacks what it needs; [`Error::Conflicts`]. The
    /// session holds a part of the package then and must not be used again; nothing is committed.
    pub fn install_package(
        &mut self,
        path: &NodePath,
        how: Installation<'_>,
    ) -> Result<InstallReport> {
        let package = self.stored_at(path)?;
        self.install_stored::<Cursor<Vec<u8>>>(&package, None, how)
    }

    fn install_stored<R: Read + Seek>(
        &mut self,
        package: &StoredPackage,
        mut opened: Option<&mut Package<R>>,
        how: Installation<'_>,
    ) -> Result<InstallReport> {
        let Installation { options, stamp, progress } = how;
        let options = InstallOptions { stamp: Some(stamp.clone()), ..options.clone() };
        let mut plan = Plan::new(&self.snapshot()?, options.dependencies)?;
        plan.add(package)?;
        let mut keeping = Keeping::default();
        let mut reports = Vec::new();
        for one in &plan.packages {
            let before = self.snapshot()?;
            let newer = newer_installed(self, &one.id)?;
            let mut report = match opened.as_mut().filter(|_| one.path == package.path) {
                Some(opened) => opened.install_with(self, &options, progress)?,
                None => {
                    let mut opened = before.open_package(one, &Limits::default())?;
                    opened.install_with(self, &options, progress)?
                }
            };
            report
                .warnings
                .extend(newer.map(|newer| format!("a newer version is installed, too: `{newer}`")));
            let after = self.snapshot()?;
            let replaced = Replaced::between(&before.0, &after.0, &one.path)?;
            drop((before, after));
            // What is installed as it is already leaves no trace.
            if !(one.is_installed() && replaced.is_empty()) {
                // What an attempt that failed left behind does not count.
                let replaced = if one.is_installed() {
                    replaced.after_earlier(self.repository(), &one.path)?
                } else {
                    replaced
                };
                keeping.add(self.repository(), &one.path, &replaced, stamp)?;
                definition::mark_installed(self, &one.path, Some(stamp))?;
            }
            reports.push(report);
        }
        let message = format!("install package {}", package.id);
        keeping.around(self, |session| session.commit(&message, stamp.at)).map_err(|error| {
            match &opened {
                Some(opened) => opened.located(error),
                None => error,
            }
        })?;
        let mut report = reports.pop().unwrap_or_default();
        report.warnings.extend(plan.warnings);
        report.required = reports;
        Ok(report)
    }

    /// Tells what installing a package would change. The session holds the changes then, without their blobs, and
    /// must be thrown away.
    ///
    /// # Errors
    /// As [`Package::install`].
    pub fn try_package<R: Read + Seek>(
        &mut self,
        package: &mut Package<R>,
        options: &InstallOptions,
    ) -> Result<(Difference, InstallReport)> {
        let before = self.snapshot()?;
        let report = package.install_with(&mut Trial(self), options, &mut |_| {})?;
        let after = self.snapshot()?;
        Ok((Difference::between(&before.0, &after.0)?, report))
    }

    /// Takes back what the installation of a package did, and commits. What something else changed since stays.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Package`] if it is not installed, an installed package needs it (unless
    /// `dependencies` ignores that), or what it replaced is not known.
    pub fn uninstall_package(
        &mut self,
        path: &NodePath,
        dependencies: DependencyRule,
        stamp: &Stamp,
    ) -> Result<Uninstalled> {
        let package = self.stored_at(path)?;
        let refuse = |message: String| {
            Err(Error::Package { file: package.id.to_string(), line: 0, message })
        };
        if !package.is_installed() {
            return refuse("the package is not installed".into());
        }
        let mut out = Uninstalled { package: package.id.clone(), ..Uninstalled::default() };
        let others = self.snapshot()?.packages()?;
        let needs = |one: &&StoredPackage| {
            one.is_installed()
                && one.path != package.path
                && one.dependencies.iter().any(|need| need.is_met_by(&package.id))
        };
        let replaced = replaced::find(self.repository(), path)?;
        let Some(replaced) = replaced else {
            return refuse(
                "what it replaced is not known: it came within another package, or was not installed here; \
                 uninstall the other one"
                    .into(),
            );
        };
        let before = self.snapshot()?;
        self.note_installation();
        replaced::undo(self, &replaced, &mut out)?;
        // Packages that came with this one need it and go with it.
        let after = self.snapshot()?;
        drop(before);
        for other in others.iter().filter(needs) {
            if after.package_at(&other.path)?.is_none_or(|one| !one.is_installed()) {
                continue;
            }
            let message = format!("the installed package `{}` needs it", other.id);
            if matches!(dependencies, DependencyRule::Ignore | DependencyRule::BestEffort) {
                out.warnings.push(message);
            } else {
                return refuse(message);
            }
        }
        drop(after);
        definition::mark_installed(self, path, None)?;
        self.commit(&format!("uninstall package {}", package.id), stamp.at)?;
        replaced::forget(self.repository(), path, stamp)?;
        Ok(out)
    }

    /// Removes the file of a stored package, and commits; its content stays.
    ///
    /// # Errors
    /// [`Error::NodeMissing`].
    pub fn remove_package(&mut self, path: &NodePath, stamp: &Stamp) -> Result<()> {
        let package = self.stored_at(path)?;
        self.remove(path)?;
        self.commit(&format!("remove package {}", package.id), stamp.at)?;
        replaced::forget(self.repository(), path, stamp)
    }

    /// Stores the definition of a new package without content, as a pending edit. Its filter says what
    /// [`Session::build_package`] fills it with.
    ///
    /// # Errors
    /// [`Error::NodeExists`]; [`Error::InvalidName`] if the name cannot be that of a file.
    pub fn create_package(
        &mut self,
        id: &PackageId,
        filter: &Filter,
        stamp: &Stamp,
    ) -> Result<StoredPackage> {
        let path = id.path()?;
        if self.node(&path)?.is_some() {
            return Err(Error::NodeExists(path));
        }
        let mut file = Cursor::new(Vec::new());
        let manifest = Manifest { id: id.clone(), ..Manifest::default() };
        build::write(&mut file, &manifest, &self.snapshot()?)?;
        let data = self.put_blob(&mut file.into_inner().as_slice())?;
        let node = definition::definition(id, &Properties::default(), filter, stamp);
        self.require_folders(&path)?;
        self.put(&path, definition::file(path.name(), data, node, stamp))?;
        self.stored_at(&path)
    }

    /// Fills a stored package with the content that its filter names now, as a pending edit. `file` takes the bytes
    /// on their way.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; [`Error::Package`] for a filter that makes no sense.
    pub fn build_package(
        &mut self,
        path: &NodePath,
        file: &mut (impl Read + Write + Seek),
        stamp: &Stamp,
    ) -> Result<BuildReport> {
        let package = self.stored_at(path)?;
        let snapshot = self.snapshot()?;
        let content = path.child_unchecked(JCR_CONTENT);
        let place = content.child_unchecked(DEFINITION);
        let mut node = snapshot.read(&place)?.ok_or_else(|| Error::NodeMissing(place.clone()))?;
        const KEPT: [&str; 4] = ["description", "acHandling", "cugHandling", "subPackageHandling"];
        let properties =
            KEPT.iter().filter_map(|key| Some(((*key).to_owned(), node.text(key)?.to_owned())));
        let manifest = Manifest {
            properties: properties.collect(),
            ..Manifest::of(&snapshot, package.id.clone(), definition::filter_of(&node)?)?
        };
        let report = build::write(&mut *file, &manifest, &snapshot)?;
        drop(snapshot);
        file.seek(SeekFrom::Start(0))
            .map_err(|source| Error::Read { what: "the package".into(), source })?;
        let data = self.put_blob(file)?;
        let now = || Property::Single(Value::Date(Date::from_system_time(stamp.at)));
        self.set_property(&content, "jcr:data", Property::Single(Value::Binary(data)))?;
        self.set_property(&content, "jcr:lastModified", now())?;
        node.properties.insert("lastWrapped".into(), now());
        node.properties.insert("lastWrappedBy".into(), stamp.user.as_str().into());
        self.replace_properties(&place, node.properties)?;
        Ok(report)
    }

    fn stored_at(&mut self, path: &NodePath) -> Result<StoredPackage> {
        self.snapshot()?.package_at(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))
    }

    /// Creates the folders above a package that are missing.
    fn require_folders(&mut self, path: &NodePath) -> Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        if self.node(&parent)?.is_none() {
            self.require_folders(&parent)?;
            self.add_node(&parent, "sling:Folder")?;
        }
        Ok(())
    }
}

/// What a package says of itself, without its content.
struct Described {
    id: PackageId,
    properties: Properties,
    filter: Filter,
}

impl<R: Read + Seek> Package<R> {
    fn described(&self) -> Described {
        Described {
            id: self.id.clone(),
            properties: self.properties.clone(),
            filter: self.filter.clone(),
        }
    }

    fn without_archive(self) -> Described {
        Described { id: self.id, properties: self.properties, filter: self.filter }
    }
}

/// What to do when a package is stored already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// The new one is refused.
    Refuse,
    /// The new one takes its place.
    Replace,
}

/// How a stored package is installed.
pub struct Installation<'a> {
    /// The rules.
    pub options: &'a InstallOptions,
    /// Who installs it, when.
    pub stamp: &'a Stamp,
    /// Who hears how far it is.
    pub progress: &'a mut dyn FnMut(Progress<'_>),
}

impl fmt::Debug for Installation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Installation({:?})", self.options)
    }
}

/// Packages in the order in which they are installed: the asked one last.
struct Plan {
    rule: DependencyRule,
    /// All that are stored, sorted by version.
    stored: Vec<StoredPackage>,
    /// Those whose needs are being met.
    open: Vec<PackageId>,
    packages: Vec<StoredPackage>,
    warnings: Vec<String>,
}

impl Plan {
    fn new(snapshot: &Snapshot, rule: DependencyRule) -> Result<Self> {
        let stored = snapshot.packages()?;
        let (open, packages, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { rule, stored, open, packages, warnings })
    }

    fn add(&mut self, package: &StoredPackage) -> Result<()> {
        if self.rule != DependencyRule::Ignore {
            self.open.push(package.id.clone());
            package.dependencies.iter().try_for_each(|need| self.meet(need, &package.id))?;
            self.open.pop();
        }
        self.packages.push(package.clone());
        Ok(())
    }

    fn meet(&mut self, need: &Dependency, asking: &PackageId) -> Result<()> {
        let fitting = || self.stored.iter().filter(|one| need.is_met_by(&one.id));
        if fitting().any(StoredPackage::is_installed) {
            return Ok(());
        }
        // The newest comes last.
        match fitting().next_back().cloned() {
            Some(best) if self.packages.iter().any(|one| one.path == best.path) => Ok(()),
            Some(best) if self.open.contains(&best.id) => {
                self.complain(asking, format!("`{}` and `{asking}` need each other", best.id))
            }
            Some(best) if self.rule != DependencyRule::Strict => self.add(&best),
            Some(best) => {
                let stored = &best.id;
                let message =
                    format!("it needs `{need}`, and `{stored}` is stored but not installed");
                self.complain(asking, message)
            }
            None => {
                let message = format!(
                    "it needs `{need}`, which is not stored here; store that package first"
                );
                self.complain(asking, message)
            }
        }
    }

    fn complain(&mut self, asking: &PackageId, message: String) -> Result<()> {
        if self.rule == DependencyRule::BestEffort {
            self.warnings.push(message);
            return Ok(());
        }
        Err(Error::Package { file: asking.to_string(), line: 0, message })
    }
}
