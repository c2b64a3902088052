//! Where an export begins: the addresses of pages, files and assets, and those that a change may have made new.
//!
//! Not here: addresses that only links lead to, which drawing finds.

use std::collections::BTreeSet;

use tympan_content::{Node, NodePath, Snapshot, Viewer};

use super::place::{Address, DECIDING};
use super::{Error, Exporter, Result, is_below};
use crate::link::encode_path;
use crate::touched::Touched;

impl Exporter {
    /// Tells whether a change may give files other names.
    pub(super) fn are_named_otherwise(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &Touched,
    ) -> Result<bool> {
        let (before, after) = (before.seen_by(&Viewer::system()), after.seen_by(&Viewer::system()));
        for path in touched.changed() {
            if said(&before, path)? != said(&after, path)? {
                return Ok(true);
            }
        }
        Ok(touched.is_everything())
    }

    /// Walks the addresses of all pages, files and assets.
    pub(super) fn seeds(&self, snapshot: &Snapshot, mut hear: impl FnMut(Address)) -> Result<()> {
        let root = snapshot.node(&NodePath::root())?;
        if root.is_some_and(|root| root.resource_type().is_some()) {
            hear(Address::of("/"));
        }
        for path in &self.options.roots {
            self.seeds_below(snapshot, path, &mut hear)?;
        }
        Ok(())
    }

    fn seeds_below(
        &self,
        snapshot: &Snapshot,
        path: &str,
        hear: &mut dyn FnMut(Address),
    ) -> Result<()> {
        let Ok(path) = NodePath::new(path) else { return Ok(()) };
        let mut pending: Vec<Node> = snapshot.node(&path)?.into_iter().collect();
        while let Some(node) = pending.pop() {
            if let Some(address) = seed_of(&node) {
                hear(address);
            }
            pending.extend(node.listed_children()?.into_iter().rev());
        }
        match snapshot.failure() {
            Some(error) => Err(Error::Compare(Box::new(crate::Error::Blob {
                path: path.to_string(),
                source: std::io::Error::other(error.to_string()),
            }))),
            None => Ok(()),
        }
    }

    /// Returns the addresses that a change may have made new.
    pub(super) fn new_seeds(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &Touched,
    ) -> Result<BTreeSet<Address>> {
        let mut found = BTreeSet::new();
        if touched.is_everything() {
            self.seeds(after, |address| {
                found.insert(address);
            })?;
            return Ok(found);
        }
        for path in touched.changed() {
            let is_root = path.depth() == 0;
            let is_within =
                self.options.roots.iter().any(|root| is_below(path.as_str(), root)) || is_root;
            let decides_below = said(before, path)? != said(after, path)?;
            if decides_below {
                // What is below is decided anew, up to the roots.
                for root in &self.options.roots {
                    let begin = if is_below(root, path.as_str()) { root } else { path.as_str() };
                    if is_below(begin, root) {
                        self.seeds_below(after, begin, &mut |address| {
                            found.insert(address);
                        })?;
                    }
                }
            }
            if let Some(node) = after.node(path)?.filter(|_| is_within) {
                found.extend(seed_of(&node));
            }
            if is_root {
                found.insert(Address::of("/"));
            }
        }
        Ok(found)
    }
}

/// Returns the address of a page, file or asset.
fn seed_of(node: &Node) -> Option<Address> {
    let path = encode_path(node.path().as_str());
    let path = match node.primary_type() {
        "nt:file" | "dam:Asset" => path,
        _ if node.is_page() => format!("{path}.html"),
        _ => return None,
    };
    Some(Address { path, query: String::new() })
}

/// Returns what a node says about everything below it.
fn said(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<Option<String>>> {
    let Some(node) = snapshot.node(path)? else { return Ok(Vec::new()) };
    let content = node.content()?;
    let both = [Some(&node), content.as_ref()];
    let texts = both
        .into_iter()
        .flat_map(|node| DECIDING.iter().map(move |name| node.and_then(|node| node.text(name))));
    Ok(texts.collect())
}
