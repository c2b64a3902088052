//! A content package that was read and checked: its properties, filter and nodes.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek};

use tympan_content::{JCR_CONTENT, NodePath, Property, Value};

use crate::Result;

use crate::archive::PackageArchive;
use crate::filter::PackageFilter;
use crate::import_node::{ImportNode, ImportProperty};
use crate::install_report::SkippedPackageItem;
use crate::memory_usage::PackageMemoryUsage;
use crate::package_counts::PackageCounts;
use crate::package_id::PackageId;
use crate::package_properties::{NestedPackageHandling, PackageProperties};

/// A content package that was read and checked.
#[derive(Debug)]
pub struct ContentPackage<R> {
    pub(crate) archive: PackageArchive<R>,
    pub(crate) id: PackageId,
    pub(crate) properties: PackageProperties,
    pub(crate) filter: PackageFilter,
    pub(crate) root: ImportNode,
    pub(crate) has_content: bool,
    pub(crate) counts: PackageCounts,
    pub(crate) namespaces: BTreeMap<String, String>,
    pub(crate) node_types: Vec<(String, String)>,
    pub(crate) nested: Vec<NestedPackage>,
    pub(crate) memory_usage: PackageMemoryUsage,
    pub(crate) superseded: Vec<SkippedPackageItem>,
    pub(crate) junk_entries: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// A nested package.
#[derive(Debug)]
pub(crate) struct NestedPackage {
    pub(crate) path: NodePath,
    pub(crate) package: ContentPackage<Cursor<Vec<u8>>>,
    pub(crate) handling: NestedPackageHandling,
}

impl<R> ContentPackage<R> {
    /// Returns the package's identifier.
    #[must_use]
    pub fn id(&self) -> &PackageId {
        &self.id
    }

    /// Returns the properties of the package.
    #[must_use]
    pub fn properties(&self) -> &PackageProperties {
        &self.properties
    }

    /// Returns the filter of the package.
    #[must_use]
    pub fn filter(&self) -> &PackageFilter {
        &self.filter
    }

    /// Returns the root of all nodes that the package describes.
    #[must_use]
    pub fn root(&self) -> &ImportNode {
        &self.root
    }

    /// Returns the prefixes that names in the package use, and their namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<String, String> {
        &self.namespaces
    }

    /// Returns the node type definitions in the package as pairs of file name and CND text.
    #[must_use]
    pub fn node_types(&self) -> &[(String, String)] {
        &self.node_types
    }

    /// Returns anomalies of the package that do not prevent its installation.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl<R: Read + Seek> ContentPackage<R> {
    /// Reads the bytes of a file that the package describes; `None` if there is no such file.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`](crate::Error::InvalidPackage) if it is longer than `max_bytes`, or damaged.
    pub fn read_file(&mut self, path: &NodePath, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let Some(node) = self.root.find_descendant(path) else { return Ok(None) };
        let content = node.child(JCR_CONTENT).unwrap_or(node);
        match content.properties().get(DATA_PROPERTY) {
            Some(ImportProperty::Binary(entry)) => {
                self.archive.read_entry(*entry, max_bytes).map(Some)
            }
            Some(ImportProperty::InlineBinary { values, .. }) => Ok(values.first().cloned()),
            Some(ImportProperty::Value(Property::Single(Value::String(text)))) => {
                Ok(Some(text.clone().into_bytes()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the packages in the package that are installed with it.
    pub fn nested_packages(
        &mut self,
    ) -> impl Iterator<Item = &mut ContentPackage<Cursor<Vec<u8>>>> {
        self.nested.iter_mut().map(|nested| &mut nested.package)
    }
}

/// Types of nodes that hold their bytes themselves and not in a `jcr:content` child.
pub(crate) const RESOURCE_NODE_TYPES: [&str; 2] = ["nt:resource", "oak:Resource"];

pub(crate) const DATA_PROPERTY: &str = "jcr:data";

/// Returns true if a file at this path is installed as a package of its own.
pub(crate) fn is_nested_package(path: &NodePath) -> bool {
    path.as_str().starts_with("/etc/packages/") && path.as_str().ends_with(".zip")
}
