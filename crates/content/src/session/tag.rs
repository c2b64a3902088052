//! Moved tags: a redirect at the old path leads to the new one, as in AEM.
//!
//! In: a move of a tag, or of a folder of tags. Out: at each old path a tag whose `cq:movedTo` names the new one, and
//! at each new path `cq:backlinks` with the old one. Content that names the tag by its old name therefore still refers
//! to it.

use super::Session;
use crate::access::AccessedItem;
use crate::{Node, NodePath, Privileges, Property, Result, Snapshot, Subtree, Value, ValueType};

/// The roots of tags that are named by `namespace:path`.
pub(crate) const TAG_ROOTS: [&str; 2] = ["/content/cq:tags", "/etc/tags"];
const TAG_TYPE: &str = "cq:Tag";
/// The property with the new path of a moved tag.
const MOVED_TO_PROPERTY: &str = "cq:movedTo";
/// The property with the former paths of a tag.
const BACKLINKS_PROPERTY: &str = "cq:backlinks";
/// The maximum length of a chain of moves; a longer one is an error.
const MAX_TAG_MOVES: usize = 16;

impl Snapshot {
    /// Finds a tag by its name, `namespace:path`, or by its path. For a moved tag, returns the tag at its new path.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_tag(&self, name: &str) -> Result<Option<Node>> {
        let paths = if name.starts_with('/') {
            vec![name.to_owned()]
        } else {
            let (namespace, rest) = name.split_once(':').unwrap_or(("default", name));
            TAG_ROOTS.iter().map(|root| format!("{root}/{namespace}/{rest}")).collect()
        };
        for path in paths {
            let Ok(path) = NodePath::new(path.trim_end_matches('/')) else { continue };
            let mut next = self.node(&path)?;
            for _ in 0..MAX_TAG_MOVES {
                let Some(node) = next else { break };
                match node.text(MOVED_TO_PROPERTY).and_then(|path| NodePath::new(&path).ok()) {
                    Some(path) => next = self.node(&path)?,
                    None => return Ok(Some(node)),
                }
            }
        }
        Ok(None)
    }
}

impl Session {
    /// Removes the redirect of a moved tag, if only redirects are below it, from the target path of a move.
    pub(super) fn clear_moved_tag(&mut self, to: &NodePath) -> Result<()> {
        let Some(node) = self.node(to)? else { return Ok(()) };
        if has_only_moved_tags(&node)? {
            drop(node);
            self.remove_node(to)?;
        }
        Ok(())
    }

    /// Creates redirects at the old paths of moved tags. Where the user may not add nodes, none are created.
    pub(super) fn leave_tag_redirects(&mut self, from: &NodePath, to: &NodePath) -> Result<()> {
        if !is_tag_path(from) || !is_tag_path(to) {
            return Ok(());
        }
        let Some(top) = self.node(to)? else { return Ok(()) };
        let mut moved = Vec::new();
        collect_tag_paths(&top, &mut moved)?;
        drop(top);
        for path in moved {
            let Some(old) = path.rebase(to, from) else { continue };
            if !self.can_leave_tag(&old)? {
                continue;
            }
            let left =
                Subtree::new(old.name(), TAG_TYPE).with_property(MOVED_TO_PROPERTY, path.as_str());
            self.put_node(&old, left)?;
            let Some(node) = self.node(&path)? else { continue };
            let redirects = node.property(BACKLINKS_PROPERTY);
            let redirects = redirects.iter().flat_map(Property::values);
            let mut backlinks: Vec<Value> =
                redirects.filter(|value| value.to_text() != path.as_str()).cloned().collect();
            drop(node);
            let backlink = Value::String(old.to_string());
            if !backlinks.contains(&backlink) {
                backlinks.push(backlink);
            }
            self.set_property(
                &path,
                BACKLINKS_PROPERTY,
                Property::List(ValueType::String, backlinks),
            )?;
        }
        Ok(())
    }

    fn can_leave_tag(&mut self, old: &NodePath) -> Result<bool> {
        let parent = old.parent().unwrap_or_else(NodePath::root);
        let Some(gate) = self.access_gate.clone() else { return Ok(true) };
        let Some(node) = self.unrestricted_snapshot()?.node(&parent)? else { return Ok(false) };
        let privileges = Privileges::ADD_CHILD_NODES;
        let item = AccessedItem {
            path: parent.as_str(),
            property: None,
            primary_type: node.primary_type(),
        };
        let own = AccessedItem {
            path: old.as_str(),
            property: Some(MOVED_TO_PROPERTY),
            primary_type: TAG_TYPE,
        };
        let mut needed = [
            (&item, privileges),
            (&own, Privileges::ADD_PROPERTIES),
            (&own, Privileges::REMOVE_PROPERTIES),
        ]
        .into_iter();
        Ok(needed.all(|(item, privileges)| {
            gate.granted_privileges(item, privileges).contains(privileges)
        }))
    }
}

pub(super) fn is_tag_path(path: &NodePath) -> bool {
    let path = path.as_str();
    TAG_ROOTS.iter().filter_map(|root| path.strip_prefix(root)).any(|rest| rest.starts_with('/'))
}

/// Adds the paths of a tag and of the tags below it, parents first. Stops at any other node, because no redirect can be
/// created below one.
fn collect_tag_paths(node: &Node, paths: &mut Vec<NodePath>) -> Result<()> {
    if node.primary_type() != TAG_TYPE || is_moved_tag(node) {
        return Ok(());
    }
    paths.push(node.path().clone());
    node.children()?.iter().try_for_each(|child| collect_tag_paths(child, paths))
}

fn has_only_moved_tags(node: &Node) -> Result<bool> {
    if !is_moved_tag(node) {
        return Ok(false);
    }
    for child in &node.children()? {
        if !has_only_moved_tags(child)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if a node is the redirect of a moved tag.
fn is_moved_tag(node: &Node) -> bool {
    node.primary_type() == TAG_TYPE && node.text(MOVED_TO_PROPERTY).is_some()
}
