//! How much of a package is held in memory: bounded, for a package and all those within it together.

use super::PackageCounts;
use super::archive::{PackageFileName, PackageLimits};
use crate::Result;

/// What is held in memory of a package and of those within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PackageMemoryUsage {
    nested_bytes: u64,
    document_bytes: u64,
    nodes: usize,
    properties: usize,
}

impl PackageMemoryUsage {
    /// Returns the limits for what comes next.
    pub(super) fn remaining_limits(&self, limits: &PackageLimits) -> PackageLimits {
        PackageLimits {
            max_nested_bytes: limits.max_nested_bytes.saturating_sub(self.nested_bytes),
            max_all_documents_bytes: limits
                .max_all_documents_bytes
                .saturating_sub(self.document_bytes),
            max_nodes: limits.max_nodes.saturating_sub(self.nodes),
            max_properties: limits.max_properties.saturating_sub(self.properties),
            ..limits.clone()
        }
    }

    /// Adds a package within the package, before it is read.
    pub(super) fn add_nested(
        &mut self,
        bytes: u64,
        file: &PackageFileName,
        limits: &PackageLimits,
    ) -> Result<()> {
        self.nested_bytes = self.nested_bytes.saturating_add(bytes);
        if self.nested_bytes > limits.max_nested_bytes {
            let limit = limits.max_nested_bytes;
            let message =
                format!("packages within the package take more than the limit of {limit} bytes");
            return Err(file.to_error(0, message));
        }
        Ok(())
    }

    /// Adds an XML file, before it is read.
    pub(super) fn add_document(
        &mut self,
        bytes: u64,
        file: &PackageFileName,
        limits: &PackageLimits,
    ) -> Result<()> {
        self.document_bytes = self.document_bytes.saturating_add(bytes);
        if self.document_bytes > limits.max_all_documents_bytes {
            let limit = limits.max_all_documents_bytes;
            let message = format!(
                "the files that describe nodes take more than the limit of {limit} bytes; split the package"
            );
            return Err(file.to_error(0, message));
        }
        Ok(())
    }

    /// Adds what an XML file held.
    pub(super) fn add_counts(&mut self, counts: PackageCounts) {
        self.nodes += counts.elements_with_order;
        self.properties += counts.attributes;
    }

    /// Adds what a package within the package holds itself.
    pub(super) fn add_usage(&mut self, other: Self) {
        self.nested_bytes += other.nested_bytes;
        self.document_bytes += other.document_bytes;
        self.nodes += other.nodes;
        self.properties += other.properties;
    }
}

/// Refuses an XML file at the first node or property that is over the limit.
pub(super) fn check_counts(
    file: &PackageFileName,
    line: u32,
    counts: PackageCounts,
    limits: &PackageLimits,
) -> Result<()> {
    let kind = match () {
        () if counts.elements_with_order > limits.max_nodes => "nodes",
        () if counts.attributes > limits.max_properties => "properties",
        () => return Ok(()),
    };
    Err(file.to_error(line, format!("the package describes more {kind} than the limit; split it")))
}
