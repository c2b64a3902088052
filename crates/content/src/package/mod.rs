//! Content packages in the format of Apache Jackrabbit FileVault: reading, installing, building.
//!
//! In: a ZIP file. Out: the nodes that it describes ([`ContentPackage`]), the same nodes in a target
//! ([`ContentPackage::install`]), or a ZIP file again ([`build`]).
//!
//! Invariants
//! * A package is read and checked completely before anything is installed: a malformed one changes nothing.
//! * Bytes of files are not held in memory, except those of nested packages; they stream into the target.
//! * Memory, depth and unpacked size are bounded by [`PackageLimits`].
//! * Each element of a docview is either stored or listed in the report with the reason.
//!
//! On failure: [`crate::Error::InvalidPackage`] with the file and the line, or several at once
//! ([`crate::Error::PackageFaults`]).
//!
//! Not here: commits of [`ContentPackage::install`]. The caller commits once, after an installation succeeded; the
//! packages that are stored in content are installed and committed by [`crate::Session::install_package`].
//!
//! Deliberately absent: hooks, which are Java programs.

mod account;
mod archive;
pub mod build;
mod content_difference;
mod definition;
mod dependency;
pub mod docview;
mod entry_role;
mod filter;
mod identifier;
mod import_node;
mod install_options;
mod install_report;
mod install_target;
mod installer;
mod keyword;
mod loader;
mod memory_usage;
mod nested_package;
mod package_counts;
mod package_id;
mod package_properties;
mod permissive_type;
mod policy;
mod replaced_records;
mod stored_package;
mod undo_merge;
mod version;
mod xml_reader;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

pub use account::ACCOUNT_NODE_TYPES;
pub use archive::PackageLimits;
pub use content_difference::{ChangedNode, ChangedProperty, ContentDifference, NodeChangeKind};
pub use dependency::PackageDependency;
pub use filter::{FilterCoverage, FilterRoot, ImportMode, PackageFilter};
pub use import_node::{ImportNode, ImportNodeKind, ImportProperty, PackageLocation};
pub use install_options::{
    AuditStamp, DependencyRule, IdentifierRule, InstallOptions, NestedPackageRule,
};
pub use install_report::{InstallReport, SkipReason, SkippedPackageItem};
pub use install_target::{ExistingNode, InstallProgress, InstallTarget};
pub use package_id::PackageId;
pub use package_properties::{AccessControlHandling, PackageProperties};
pub use replaced_records::UninstallReport;
pub use stored_package::{IfPackageExists, PackageInstallation, ReadSeek, StoredPackage};
pub use version::{PackageVersion, VersionRange};

use crate::{Error, NodePath, Result};
use archive::{PackageArchive, PackageFileName};
use memory_usage::PackageMemoryUsage;
use package_counts::PackageCounts;

/// A content package that was read and checked.
#[derive(Debug)]
pub struct ContentPackage<R> {
    archive: PackageArchive<R>,
    id: PackageId,
    properties: PackageProperties,
    filter: PackageFilter,
    root: ImportNode,
    has_content: bool,
    counts: PackageCounts,
    namespaces: BTreeMap<String, String>,
    node_types: Vec<(String, String)>,
    nested: Vec<NestedPackage>,
    memory_usage: PackageMemoryUsage,
    superseded: Vec<SkippedPackageItem>,
    junk_entries: Vec<String>,
    warnings: Vec<String>,
}

/// A nested package.
#[derive(Debug)]
struct NestedPackage {
    path: NodePath,
    package: ContentPackage<Cursor<Vec<u8>>>,
    handling: package_properties::NestedPackageHandling,
}

impl ContentPackage<BufReader<fs::File>> {
    /// Opens and reads a package file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read; [`Error::InvalidPackage`] if it is not a valid package.
    pub fn open(path: &Path, limits: &PackageLimits) -> Result<Self> {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let file = fs::File::open(path).map_err(|source| Error::Read {
            input_name: format!("`{}`", path.display()),
            source,
        })?;
        Self::read(BufReader::new(file), &name, limits)
    }
}

impl<R: Read + Seek> ContentPackage<R> {
    /// Reads a package. `name` identifies the file in messages.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a valid package, with the position of the first fault.
    pub fn read(reader: R, name: &str, limits: &PackageLimits) -> Result<Self> {
        loader::read_package(reader, PackageFileName::new(name), None, limits)
    }

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

/// Types of nodes that hold their bytes themselves and not in a `jcr:content` child.
const RESOURCE_NODE_TYPES: [&str; 2] = ["nt:resource", "oak:Resource"];

const DATA_PROPERTY: &str = "jcr:data";

/// Returns true if a file at this path is installed as a package of its own.
fn is_nested_package(path: &NodePath) -> bool {
    path.as_str().starts_with("/etc/packages/") && path.as_str().ends_with(".zip")
}
