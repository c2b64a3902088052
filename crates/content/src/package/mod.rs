//! Content packages in the format of Apache Jackrabbit FileVault: reading, installing, building.
//!
//! In: a ZIP file. Out: the nodes that it describes ([`Package`]), the same nodes in a target ([`Package::install`]),
//! or a ZIP file again ([`build`]).
//!
//! Invariants
//! * A package is read whole and checked before anything is installed: a malformed one changes nothing.
//! * Bytes of files are not held in memory, but for packages within the package; they stream into the target.
//! * Memory, depth and unpacked size are bounded by [`Limits`].
//! * Each element of a docview is either stored or listed in the report with the reason why not.
//!
//! On failure: [`crate::Error::Package`] with the file and the line, or several at once ([`crate::Error::PackageFaults`]).
//!
//! Not here: commits of [`Package::install`]. The caller commits once, after an installation succeeded; the packages
//! that are stored in content are installed and committed by [`crate::Session::install_package`].
//!
//! Deliberately absent: hooks, which are Java programs.

mod accounts;
mod apply;
mod archive;
pub mod build;
mod definition;
mod dependency;
mod difference;
pub mod docview;
mod entry;
mod filter;
mod held;
mod identifiers;
mod load;
mod nested;
mod open_types;
mod options;
mod policy;
mod properties;
mod registry;
mod replaced;
mod report;
mod settle;
mod target;
mod tree;
mod version;
mod words;
mod xml;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

pub use accounts::ACCOUNT_TYPES;
pub use archive::Limits;
pub use dependency::Dependency;
pub use difference::{Change, ChangedNode, ChangedProperty, Difference};
pub use filter::{Coverage, Filter, FilterRoot, Mode};
pub use options::{DependencyRule, IdentifierRule, InstallOptions, NestedRule, Stamp};
pub use properties::{AccessControl, PackageId, Properties};
pub use registry::{IfExists, Installation, ReadSeek, StoredPackage};
pub(crate) use replaced::REPLACED;
pub use replaced::Uninstalled;
pub use report::{InstallReport, SkipReason, Skipped};
pub use target::{ExistingNode, InstallTarget, Progress};
pub use tree::{ImportNode, ImportProperty, Kind, Source};
pub use version::{Version, VersionRange};

use crate::{Error, NodePath, Result};
use archive::{Archive, File};
use held::Held;

/// How many faults of a package are told at once.
const MAX_FAULTS: usize = 100;

/// A content package that was read and checked.
#[derive(Debug)]
pub struct Package<R> {
    archive: Archive<R>,
    id: PackageId,
    properties: Properties,
    filter: Filter,
    root: ImportNode,
    has_content: bool,
    counts: Counts,
    namespaces: BTreeMap<String, String>,
    node_types: Vec<(String, String)>,
    nested: Vec<Nested>,
    held: Held,
    superseded: Vec<Skipped>,
    junk: Vec<String>,
    warnings: Vec<String>,
}

/// What a package holds, counted while it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// All elements, those that only give the order among them.
    nodes: usize,
    elements: usize,
    attributes: usize,
    pages: usize,
    assets: usize,
    files: usize,
}

/// A package that is a file of another one.
#[derive(Debug)]
struct Nested {
    path: NodePath,
    package: Package<Cursor<Vec<u8>>>,
    handling: properties::NestedHandling,
}

impl Package<BufReader<fs::File>> {
    /// Opens and reads a package file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read; [`Error::Package`] if it is not a sound package.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let file = fs::File::open(path)
            .map_err(|source| Error::Read { what: format!("`{}`", path.display()), source })?;
        Self::read(BufReader::new(file), &name, limits)
    }
}

impl<R: Read + Seek> Package<R> {
    /// Reads a package. `name` stands for the file in messages.
    ///
    /// # Errors
    /// [`Error::Package`] if it is not a sound package, with the place of the first fault.
    pub fn read(reader: R, name: &str, limits: &Limits) -> Result<Self> {
        load::read(reader, File::new(name), None, limits)
    }

    /// Returns the package's name.
    #[must_use]
    pub fn id(&self) -> &PackageId {
        &self.id
    }

    /// Returns what the package says of itself.
    #[must_use]
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Returns which nodes the package brings.
    #[must_use]
    pub fn filter(&self) -> &Filter {
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

    /// Returns the node type definitions in the package: the file's name and its text in CND notation.
    #[must_use]
    pub fn node_types(&self) -> &[(String, String)] {
        &self.node_types
    }

    /// Returns what is odd about the package but does not keep it from being installed.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Types of nodes that hold bytes themselves and not in a `jcr:content` below.
const RESOURCE_TYPES: [&str; 2] = ["nt:resource", "oak:Resource"];

const JCR_DATA: &str = "jcr:data";

/// Tells whether a file at this path is installed as a package of its own.
fn is_nested_package(path: &NodePath) -> bool {
    path.as_str().starts_with("/etc/packages/") && path.as_str().ends_with(".zip")
}
