//! The packages stored in content, below `/etc/packages`: found, listed and opened.
//!
//! Not here: changes of stored packages (`package_session`).

use std::io::{BufReader, Cursor, Read, Seek};

use serde::{Serialize, Serializer};
use tympan_content::{
    BlobContent, BlobId, JCR_CONTENT, JcrDate, Node, NodePath, Property, Snapshot, Subtree, Value,
};

use crate::Result;
use crate::archive::PackageLimits;
use crate::content_package::ContentPackage;
use crate::definition::{DEFINITION_NODE, PackageDefinition};
use crate::dependency::PackageDependency;
use crate::package_id::{PACKAGES_PATH, PackageId};
use crate::version::PackageVersion;

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

/// The packages stored in one state of the content.
#[derive(Debug, Clone, Copy)]
pub struct StoredPackages<'a> {
    snapshot: &'a Snapshot,
}

impl<'a> StoredPackages<'a> {
    /// Creates a view of the packages that a snapshot shows.
    #[must_use]
    pub fn new(snapshot: &'a Snapshot) -> Self {
        Self { snapshot }
    }

    /// Returns the stored packages, sorted by group, name and version.
    ///
    /// # Errors
    /// If the store fails.
    pub fn list(&self) -> Result<Vec<StoredPackage>> {
        let mut packages = Vec::new();
        let mut folders: Vec<Node> =
            self.snapshot.node(&NodePath::new(PACKAGES_PATH)?)?.into_iter().collect();
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
    pub fn find_at(&self, path: &NodePath) -> Result<Option<StoredPackage>> {
        self.snapshot.node(path)?.map_or(Ok(None), |node| StoredPackage::from_node(&node))
    }

    /// Finds a stored package by its identifier; without a version the newest one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find(&self, id: &PackageId) -> Result<Option<StoredPackage>> {
        let fits = |package: &StoredPackage| {
            package.id.group == id.group
                && package.id.name == id.name
                && (id.version.is_empty() || package.id.version == id.version)
        };
        Ok(self.list()?.into_iter().rfind(fits))
    }

    /// Opens the file of a stored package and reads it.
    ///
    /// # Errors
    /// `Error::InvalidPackage` if it is not a valid package; errors of the store.
    pub fn open(
        &self,
        package: &StoredPackage,
        limits: &PackageLimits,
    ) -> Result<ContentPackage<Box<dyn ReadSeek>>> {
        let reader: Box<dyn ReadSeek> = match self.snapshot.open_blob(&package.data)? {
            BlobContent::Bytes(bytes) => Box::new(Cursor::new(bytes)),
            BlobContent::File { file, .. } => Box::new(BufReader::new(file)),
        };
        ContentPackage::read(reader, package.path.name(), limits)
    }
}

/// A seekable reader.
pub trait ReadSeek: Read + Seek + Send {}

impl<T: Read + Seek + Send> ReadSeek for T {}
