//! The report of an installation.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use tympan_content::NodePath;

use crate::package_id::PackageId;

/// The result of an installation, to be printed or sent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InstallReport {
    /// The package.
    pub package: PackageId,
    /// Number of docview elements that have attributes: the nodes that the package describes.
    pub elements: usize,
    /// Number of attributes of these, except namespace declarations: the properties that it describes.
    pub attributes: usize,
    /// Number of elements of type `cq:Page`.
    pub pages: usize,
    /// Number of elements of type `dam:Asset`.
    pub assets: usize,
    /// Number of plain files.
    pub files: usize,
    /// Number of elements whose nodes are now stored as the package describes them.
    pub elements_stored: usize,
    /// Number of created nodes, including those of files and folders.
    pub nodes_created: usize,
    /// Number of nodes whose properties changed.
    pub nodes_changed: usize,
    /// Number of nodes that already matched the package.
    pub nodes_unchanged: usize,
    /// Number of removed subtrees.
    pub subtrees_removed: usize,
    /// Number of blobs written to the target.
    pub blobs: usize,
    /// Total size of these blobs in bytes.
    pub blob_bytes: u64,
    /// Items that were not stored, with the reasons.
    pub skipped: Vec<SkippedPackageItem>,
    /// Anomalies that did not prevent the installation.
    pub warnings: Vec<String>,
    /// The reports of nested packages.
    pub nested: Vec<Self>,
    /// The reports of dependencies that were installed first.
    pub required: Vec<Self>,
}

/// An item of the package that was not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedPackageItem {
    /// The path of the described node, or the entry's name if it describes none.
    #[serde(serialize_with = "serialize_path")]
    pub path: NodePath,
    /// The entry in the package.
    pub file: String,
    /// The line in it; 0 if lines do not apply.
    pub line: u32,
    /// True for a docview element, false for a file.
    pub is_element: bool,
    /// The reason.
    pub reason: SkipReason,
}

fn serialize_path<S: Serializer>(path: &NodePath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_str())
}

/// The reason for which an item was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// No filter covers it.
    OutsideEveryFilter,
    /// The patterns of its filter exclude it.
    ExcludedByPattern,
    /// It is above the root of a filter and exists already.
    AncestorExists,
    /// Its filter only adds content, and it exists already.
    ExistsInMergeMode,
    /// The package has no filter, and it exists already.
    ExistsWithoutFilter,
    /// It is access control content, and `acHandling` says not to import it.
    AccessControl,
    /// The system maintains it.
    System,
    /// It is a cache that the system fills.
    Cache,
    /// A later element, or one in a file nearer to the node, describes the same node.
    Superseded,
    /// It is a second same-name sibling, such as `name[2]`, or below one.
    SameName,
    /// Its parent element only fixes the order, and the parent does not exist.
    ParentMissing,
    /// It is a file whose bytes are not in the package.
    NoBytes,
}

impl SkipReason {
    /// Returns the reason in words.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::OutsideEveryFilter => "outside every filter",
            Self::ExcludedByPattern => "excluded by the filter's patterns",
            Self::AncestorExists => "above the filters, already exists",
            Self::ExistsInMergeMode => "mode merge, already exists",
            Self::ExistsWithoutFilter => "no filter, already exists",
            Self::AccessControl => "access control, not imported by the package's acHandling",
            Self::System => "managed by the system",
            Self::Cache => "a cache that the system fills",
            Self::Superseded => "another element describes the same node",
            Self::SameName => "a sibling has the same name; give one of them another",
            Self::ParentMissing => "its parent only specifies an order and does not exist",
            Self::NoBytes => "a file whose bytes are not in the package",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

impl InstallReport {
    /// Returns the number of skipped items by reason.
    #[must_use]
    pub fn skipped_by_reason(&self) -> BTreeMap<SkipReason, usize> {
        let mut counts = BTreeMap::new();
        for skipped in &self.skipped {
            *counts.entry(skipped.reason).or_insert(0) += 1;
        }
        counts
    }
}

impl fmt::Display for InstallReport {
    /// Writes a small table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "package {}", self.package)?;
        writeln!(f, "  elements   {:>9}  attributes {:>9}", self.elements, self.attributes)?;
        writeln!(
            f,
            "  pages      {:>9}  assets     {:>9}  files     {:>9}",
            self.pages, self.assets, self.files
        )?;
        writeln!(
            f,
            "  created    {:>9}  changed    {:>9}  unchanged {:>9}  removed {:>6}",
            self.nodes_created, self.nodes_changed, self.nodes_unchanged, self.subtrees_removed
        )?;
        writeln!(f, "  blobs      {:>9}  bytes      {:>9}", self.blobs, self.blob_bytes)?;
        for (reason, count) in self.skipped_by_reason() {
            writeln!(f, "  skipped    {count:>9}  {reason}")?;
        }
        for warning in &self.warnings {
            writeln!(f, "  warning    {warning}")?;
        }
        self.nested.iter().chain(&self.required).try_for_each(|report| write!(f, "{report}"))
    }
}
