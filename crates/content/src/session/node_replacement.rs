//! Replacing nodes by new content, such as an upload, without removing the policies that protect them.

use super::Session;
use crate::access::POLICY_NAMES;
use crate::{MIXIN_TYPES, NodePath, Property, Result, Snapshot, Subtree, Value, ValueType};

/// The mixins that allow policies at a node.
const POLICY_MIXINS: [&str; 4] = [
    "rep:AccessControllable",
    "rep:RepoAccessControllable",
    "rep:CugMixin",
    "rep:PrincipalBasedMixin",
];

impl Session {
    /// Replaces the node at a path as [`Session::put_node`] does. The policies of the node, and of the nodes below it
    /// that the new tree also has, stay unless the tree has others, so that new content does not open what is closed.
    ///
    /// # Errors
    /// As [`Session::put_node`].
    pub fn replace_node(&mut self, path: &NodePath, mut tree: Subtree) -> Result<()> {
        let snapshot = self.unrestricted_snapshot()?;
        add_stored_policies(&snapshot, path, &mut tree)?;
        drop(snapshot);
        self.put_node(path, tree)
    }
}

/// Adds the policies of the stored node at a path, and of its descendants, to a tree that lacks them.
fn add_stored_policies(snapshot: &Snapshot, path: &NodePath, tree: &mut Subtree) -> Result<()> {
    let Some(stored) = snapshot.node(path)? else { return Ok(()) };
    let mut has_stored_policy = false;
    for name in POLICY_NAMES {
        if tree.child(name).is_none()
            && let Some(policy) = stored.child(name)?
        {
            tree.put_child(policy.read_subtree()?);
            has_stored_policy = true;
        }
    }
    if has_stored_policy && let Some(mixins) = stored.property(MIXIN_TYPES) {
        add_policy_mixins(&mixins, tree);
    }
    for child in &mut tree.children {
        if !POLICY_NAMES.contains(&&*child.name) {
            add_stored_policies(snapshot, &path.child(&child.name)?, child)?;
        }
    }
    Ok(())
}

fn add_policy_mixins(stored: &Property, tree: &mut Subtree) {
    let own = tree.properties.get(MIXIN_TYPES).map(Property::values).unwrap_or_default();
    let is_missing =
        |mixin: &&Value| POLICY_MIXINS.contains(&&*mixin.to_text()) && !own.contains(mixin);
    let missing = stored.values().iter().filter(is_missing);
    let mixins: Vec<Value> = own.iter().chain(missing).cloned().collect();
    if mixins.len() > own.len() {
        tree.properties.insert(MIXIN_TYPES.to_owned(), Property::List(ValueType::Name, mixins));
    }
}
