//! Access to versions: the rules of the node at its current path, or at its last path if it is deleted.
//!
//! A policy is removed together with the node that it controls. Versions of a deleted node, and nodes in a version that
//! had a policy and are deleted since, are therefore visible only to viewers who may manage versions there.

use super::version_entry::NodeVersion;
use crate::access::{AccessGate, AccessedItem, Privileges, RecordExtent, is_policy_name};
use crate::document::body::DocumentBody;
use crate::{NodePath, Result, Snapshot, Subtree};

impl Snapshot {
    /// Returns true if the viewer may see the versions of the node at a path: anyone who sees the node may. The
    /// policies of a deleted node were removed with it, so its versions are visible to viewers who could see a node at
    /// that path and may manage versions.
    pub(super) fn can_see_versions(&self, path: &NodePath) -> Result<bool> {
        let Some(gate) = &self.access_gate else { return Ok(true) };
        if self.unrestricted().node(path)?.is_some() {
            return Ok(self.node(path)?.is_some());
        }
        Ok(gate.can_see(path, "nt:unstructured") && can_manage_versions(gate, path))
    }

    /// Decodes the visible part of a version.
    pub(super) fn visible_version(
        &self,
        version: &NodeVersion,
        body: &DocumentBody,
    ) -> Result<Option<Subtree>> {
        let Some(at) = body.find_relative(&version.stored_version.relative_path()) else {
            return Ok(None);
        };
        let Some(gate) = &self.access_gate else { return Ok(Some(body.subtree(at))) };
        let now = self.view.version_history(&version.history_id)?.map(|history| history.path);
        let mut document = now.unwrap_or_else(|| version.path.clone());
        if !self.can_see_versions(&document)? {
            return Ok(None);
        }
        let top = document.clone();
        for _ in 0..version.stored_version.inner_depth {
            document = document.parent().unwrap_or_else(NodePath::root);
        }
        let visible = match gate.compute_mask(&document, body, RecordExtent::All) {
            None => Some(body.subtree(at)),
            Some(mask) => mask.is_visible(at).then(|| mask.visible_subtree(body, at)),
        };
        let Some(mut visible) = visible else { return Ok(None) };
        if body.has_guarded_name() {
            self.remove_formerly_closed(&top, &body.subtree(at), &mut visible)?;
        }
        Ok(Some(visible))
    }

    /// Removes from the visible part of a version the nodes that had a policy and are deleted since, unless the viewer
    /// may manage versions there.
    pub(super) fn remove_formerly_closed(
        &self,
        path: &NodePath,
        version: &Subtree,
        visible: &mut Subtree,
    ) -> Result<()> {
        let Some(gate) = self.access_gate.as_ref().filter(|gate| !gate.is_unrestricted()) else {
            return Ok(());
        };
        for child in &version.children {
            let child_path = path.child_unchecked(&child.name);
            let has_policy = child.children.iter().any(|inner| is_policy_name(&inner.name));
            if has_policy
                && !can_manage_versions(gate, &child_path)
                && self.unrestricted().node(&child_path)?.is_none()
            {
                visible.remove_child(&child.name);
            } else if let Some(visible) = visible.child_mut(&child.name) {
                self.remove_formerly_closed(&child_path, child, visible)?;
            }
        }
        Ok(())
    }
}

fn can_manage_versions(gate: &AccessGate, path: &NodePath) -> bool {
    let (primary_type, privileges) = ("nt:unstructured", Privileges::VERSION_MANAGEMENT);
    let item = AccessedItem { path: path.as_str(), property: None, primary_type };
    gate.granted_privileges(&item, privileges).contains(privileges)
}
