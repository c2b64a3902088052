//! The initial addresses of an export: those of pages, files and assets, and those that a change may have added.
//!
//! Not here: addresses that only links name, which rendering finds.

use std::collections::BTreeSet;

use tympan_content::{Node, NodePath, Snapshot, Viewer, is_path_within};
use tympan_render::{ChangedAspects, encode_path};

use super::StaticExporter;
use crate::address_resolver::{ExportAddress, INHERITED_PROPERTIES};
use crate::error::{ExportError, ExportResult};

impl StaticExporter {
    /// Returns true if a change may rename files.
    pub(super) fn may_rename_files(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &ChangedAspects,
    ) -> ExportResult<bool> {
        let (before, after) =
            (before.as_viewer(&Viewer::system()), after.as_viewer(&Viewer::system()));
        for path in touched.changed_documents() {
            if inherited_settings(&before, path)? != inherited_settings(&after, path)? {
                return Ok(true);
            }
        }
        Ok(touched.is_everything_changed())
    }

    /// Calls a function with the addresses of all pages, files and assets.
    pub(super) fn for_each_seed(
        &self,
        snapshot: &Snapshot,
        mut hear: impl FnMut(ExportAddress),
    ) -> ExportResult<()> {
        let root = snapshot.node(&NodePath::root())?;
        if root.is_some_and(|root| root.resource_type().is_some()) {
            hear(ExportAddress::parse("/"));
        }
        for path in &self.options.content_roots {
            self.for_each_seed_below(snapshot, path, &mut hear)?;
        }
        Ok(())
    }

    fn for_each_seed_below(
        &self,
        snapshot: &Snapshot,
        path: &str,
        hear: &mut dyn FnMut(ExportAddress),
    ) -> ExportResult<()> {
        let Ok(path) = NodePath::new(path) else { return Ok(()) };
        let mut pending: Vec<Node> = snapshot.node(&path)?.into_iter().collect();
        while let Some(node) = pending.pop() {
            if let Some(address) = seed_address(&node) {
                hear(address);
            }
            pending.extend(node.listed_children()?.into_iter().rev());
        }
        match snapshot.failure() {
            Some(error) => Err(ExportError::Comparison(Box::new(tympan_render::Error::Blob {
                path: path.to_string(),
                source: std::io::Error::other(error.to_string()),
            }))),
            None => Ok(()),
        }
    }

    /// Returns the addresses that a change may have added.
    pub(super) fn new_seed_addresses(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &ChangedAspects,
    ) -> ExportResult<BTreeSet<ExportAddress>> {
        let mut addresses = BTreeSet::new();
        if touched.is_everything_changed() {
            self.for_each_seed(after, |address| {
                addresses.insert(address);
            })?;
            return Ok(addresses);
        }
        for path in touched.changed_documents() {
            let is_root = path.depth() == 0;
            let is_within =
                self.options.content_roots.iter().any(|root| is_path_within(path.as_str(), root))
                    || is_root;
            let decides_below =
                inherited_settings(before, path)? != inherited_settings(after, path)?;
            if decides_below {
                // The decision for everything below changes, up to the roots.
                for root in &self.options.content_roots {
                    let begin =
                        if is_path_within(root, path.as_str()) { root } else { path.as_str() };
                    if is_path_within(begin, root) {
                        self.for_each_seed_below(after, begin, &mut |address| {
                            addresses.insert(address);
                        })?;
                    }
                }
            }
            if let Some(node) = after.node(path)?.filter(|_| is_within) {
                addresses.extend(seed_address(&node));
            }
            if is_root {
                addresses.insert(ExportAddress::parse("/"));
            }
        }
        Ok(addresses)
    }
}

/// Returns the address of a page, file or asset.
fn seed_address(node: &Node) -> Option<ExportAddress> {
    let path = encode_path(node.path().as_str());
    let path = match node.primary_type() {
        "nt:file" | "dam:Asset" => path,
        _ if node.is_page() => format!("{path}.html"),
        _ => return None,
    };
    Some(ExportAddress { path, query: String::new() })
}

/// Returns the settings of a node that apply to everything below it.
fn inherited_settings(snapshot: &Snapshot, path: &NodePath) -> ExportResult<Vec<Option<String>>> {
    let Some(node) = snapshot.node(path)? else { return Ok(Vec::new()) };
    let content = node.content_node()?;
    let both = [Some(&node), content.as_ref()];
    let texts = both.into_iter().flat_map(|node| {
        INHERITED_PROPERTIES.iter().map(move |name| node.and_then(|node| node.text(name)))
    });
    Ok(texts.collect())
}
