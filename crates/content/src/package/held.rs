//! How much of a package is held in memory: bounded, for a package and all those within it together.

use super::Counts;
use super::archive::{File, Limits};
use crate::Result;

/// What is held in memory of a package and of those within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    nested_bytes: u64,
    document_bytes: u64,
    nodes: usize,
    properties: usize,
}

impl Held {
    /// Returns the limits for what comes next.
    pub(super) fn left_of(&self, limits: &Limits) -> Limits {
        Limits {
            nested_bytes: limits.nested_bytes.saturating_sub(self.nested_bytes),
            all_documents_bytes: limits.all_documents_bytes.saturating_sub(self.document_bytes),
            nodes: limits.nodes.saturating_sub(self.nodes),
            properties: limits.properties.saturating_sub(self.properties),
            ..limits.clone()
        }
    }

    /// Adds a package within the package, before it is read.
    pub(super) fn add_nested(&mut self, bytes: u64, file: &File, limits: &Limits) -> Result<()> {
        self.nested_bytes = self.nested_bytes.saturating_add(bytes);
        if self.nested_bytes > limits.nested_bytes {
            let limit = limits.nested_bytes;
            let message =
                format!("packages within the package take more than the limit of {limit} bytes");
            return Err(file.error(0, message));
        }
        Ok(())
    }

    /// Adds an XML file, before it is read.
    pub(super) fn add_document(&mut self, bytes: u64, file: &File, limits: &Limits) -> Result<()> {
        self.document_bytes = self.document_bytes.saturating_add(bytes);
        if self.document_bytes > limits.all_documents_bytes {
            let limit = limits.all_documents_bytes;
            let message = format!(
                "the files that describe nodes take more than the limit of {limit} bytes; split the package"
            );
            return Err(file.error(0, message));
        }
        Ok(())
    }

    /// Adds what an XML file held.
    pub(super) fn add_counts(&mut self, counts: Counts) {
        self.nodes += counts.nodes;
        self.properties += counts.attributes;
    }

    /// Adds what a package within the package holds itself.
    pub(super) fn add(&mut self, other: Self) {
        self.nested_bytes += other.nested_bytes;
        self.document_bytes += other.document_bytes;
        self.nodes += other.nodes;
        self.properties += other.properties;
    }
}

/// Refuses an XML file at the first node or property that is over the limit.
pub(super) fn check(file: &File, line: u32, counts: Counts, limits: &Limits) -> Result<()> {
    let kind = match () {
        () if counts.nodes > limits.nodes => "nodes",
        () if counts.attributes > limits.properties => "properties",
        () => return Ok(()),
    };
    Err(file.error(line, format!("the package describes more {kind} than the limit; split it")))
}
