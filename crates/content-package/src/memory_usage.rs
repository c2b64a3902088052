//! The memory usage of a package, limited for the package and all nested packages together.

use crate::Result;
use crate::archive::{PackageFileName, PackageLimits};
use crate::package_counts::PackageCounts;

/// The memory used by a package and its nested packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PackageMemoryUsage {
    nested_bytes: u64,
    document_bytes: u64,
    nodes: usize,
    properties: usize,
}

impl PackageMemoryUsage {
    /// Returns the remaining limits.
    pub(crate) fn remaining_limits(&self, limits: &PackageLimits) -> PackageLimits {
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

    /// Adds a nested package, before it is read.
    pub(crate) fn add_nested(
        &mut self,
        bytes: u64,
        file: &PackageFileName,
        limits: &PackageLimits,
    ) -> Result<()> {
        self.nested_bytes = self.nested_bytes.saturating_add(bytes);
        if self.nested_bytes > limits.max_nested_bytes {
            let limit = limits.max_nested_bytes;
            let message = format!("the nested packages exceed the limit of {limit} bytes");
            return Err(file.to_error(0, message));
        }
        Ok(())
    }

    /// Adds an XML file, before it is read.
    pub(crate) fn add_document(
        &mut self,
        bytes: u64,
        file: &PackageFileName,
        limits: &PackageLimits,
    ) -> Result<()> {
        self.document_bytes = self.document_bytes.saturating_add(bytes);
        if self.document_bytes > limits.max_all_documents_bytes {
            let limit = limits.max_all_documents_bytes;
            let message = format!(
                "the files that describe nodes exceed the limit of {limit} bytes; split the package"
            );
            return Err(file.to_error(0, message));
        }
        Ok(())
    }

    /// Adds the contents of an XML file.
    pub(crate) fn add_counts(&mut self, counts: PackageCounts) {
        self.nodes += counts.elements_with_order;
        self.properties += counts.attributes;
    }

    /// Adds the memory used by a nested package itself.
    pub(crate) fn add_usage(&mut self, other: Self) {
        self.nested_bytes += other.nested_bytes;
        self.document_bytes += other.document_bytes;
        self.nodes += other.nodes;
        self.properties += other.properties;
    }
}

/// Returns an error at the first node or property of an XML file that exceeds the limit.
pub(crate) fn check_counts(
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
    Err(file.to_error(line, format!("the package has more {kind} than the limit; split it")))
}
