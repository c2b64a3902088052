//! The report of an uninstallation.

use std::fmt;

use serde::Serialize;
use tympan_content::MergeConflict;

use crate::package_id::PackageId;

/// The result of an uninstallation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct UninstallReport {
    /// The package.
    pub package: PackageId,
    /// Number of documents restored to their state before the installation.
    pub restored: usize,
    /// Number of removed documents that the installation had created.
    pub removed: usize,
    /// Items that something else changed since the installation; they stay unchanged.
    #[serde(serialize_with = "serialize_conflicts")]
    pub kept: Vec<MergeConflict>,
    /// Anomalies that did not prevent the uninstallation.
    pub warnings: Vec<String>,
}

fn serialize_conflicts<S: serde::Serializer>(
    list: &[MergeConflict],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|conflict| {
        serde_json::json!({
            "path": conflict.path.as_str(),
            "kind": conflict.kind.name(),
            "property": conflict.property,
        })
    }))
}

impl fmt::Display for UninstallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "package {}", self.package)?;
        writeln!(f, "  restored   {:>9}  removed    {:>9}", self.restored, self.removed)?;
        for conflict in &self.kept {
            let property =
                conflict.property.as_deref().map_or(String::new(), |name| format!("/{name}"));
            writeln!(
                f,
                "  kept       {}{property}: changed since ({})",
                conflict.path,
                conflict.kind.name()
            )?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "  warning    {warning}"))
    }
}
