//! What an installation did.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::package_properties::PackageId;
use crate::NodePath;

/// What an installation did, to be printed or sent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct InstallReport {
    /// The package.
    pub package: PackageId,
    /// Elements of docviews that have attributes: the nodes that the package describes.
    pub elements: usize,
    /// Attributes of these, declarations of namespaces not counted: the properties that it describes.
    pub attributes: usize,
    /// Elements of type `cq:Page`.
    pub pages: usize,
    /// Elements of type `dam:Asset`.
    pub assets: usize,
    /// Plain files.
    pub files: usize,
    /// Elements whose nodes are stored now as the package describes them.
    pub elements_stored: usize,
    /// Nodes that were missing, those of files and folders counted, too.
    pub nodes_created: usize,
    /// Nodes whose properties changed.
    pub nodes_changed: usize,
    /// Nodes that were as the package wants them.
    pub nodes_unchanged: usize,
    /// Subtrees that were removed.
    pub subtrees_removed: usize,
    /// Blobs handed to the target, and their bytes.
    pub blobs: usize,
    /// Bytes of these blobs.
    pub blob_bytes: u64,
    /// What was not stored, and why.
    pub skipped: Vec<SkippedPackageItem>,
    /// What is odd but did not keep the package from being installed.
    pub warnings: Vec<String>,
    /// The reports of packages within the package.
    pub nested: Vec<Self>,
    /// The reports of packages that it needs and that were installed before it.
    pub required: Vec<Self>,
}

/// Something in the package that was not stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkippedPackageItem {
    /// The node that it describes, or the entry's name where it describes none.
    #[serde(serialize_with = "serialize_path")]
    pub path: NodePath,
    /// The entry in the package.
    pub file: String,
    /// The line in it; 0 where lines make no sense.
    pub line: u32,
    /// Whether it is an element of a docview; otherwise a file.
    pub is_element: bool,
    /// Why it was not stored.
    pub reason: SkipReason,
}

fn serialize_path<S: Serializer>(path: &NodePath, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(path.as_str())
}

/// Why something was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// No filter covers it.
    OutsideEveryFilter,
    /// The patterns of its filter leave it out.
    ExcludedByPattern,
    /// It is above the root of a filter and exists already.
    AncestorExists,
    /// Its filter adds only, and it exists already.
    ExistsInMergeMode,
    /// The package has no filter, and it exists already.
    ExistsWithoutFilter,
    /// It is access control, and `acHandling` says not to import it.
    AccessControl,
    /// The system keeps it itself.
    System,
    /// It is a cache that the system fills itself.
    Cache,
    /// A later element, or one in a file nearer to the node, describes the same node.
    Superseded,
    /// It is a second sibling of the same name, `name[2]`, or below one.
    SameName,
    /// Its parent is named for its order only and does not exist.
    ParentMissing,
}

impl SkipReason {
    /// Returns the reason in words.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::OutsideEveryFilter => "outside every filter",
            Self::ExcludedByPattern => "excluded by the filter's patterns",
            Self::AncestorExists => "above the filters, exists already",
            Self::ExistsInMergeMode => "mode merge, exists already",
            Self::ExistsWithoutFilter => "no filter, exists already",
            Self::AccessControl => "access control, not imported by the package's acHandling",
            Self::System => "kept by the system itself",
            Self::Cache => "a cache that the system fills itself",
            Self::Superseded => "another element describes the same node",
            Self::SameName => "a sibling has the same name; give one of them another",
            Self::ParentMissing => "its parent is named for its order only and does not exist",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

impl InstallReport {
    /// Counts what was skipped, by reason.
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
        self.nested.iter().chain(&self.required).try_for_each(|other| write!(f, "{other}"))
    }
}
