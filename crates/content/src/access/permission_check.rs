//! Checks that the viewer of a commit has the privileges that the commit needs.
//!
//! In: the base state of a session, its pending state, and the moves between the two. Out: nothing, or the first
//! missing privilege. The requirements follow Oak's permission validator:
//!
//! | change | privilege |
//! |---|---|
//! | a node is added | `jcr:addChildNodes` at the parent, and what its properties and children need |
//! | a node is removed | `jcr:removeNode` at the node and `jcr:removeChildNodes` at the parent; nothing for what is below |
//! | a node is moved | as removed there and added here, and `jcr:nodeTypeManagement`; what is below moves as it is |
//! | children change places | `jcr:addChildNodes` and `jcr:removeChildNodes` at the parent |
//! | a property is added, changed, removed | `rep:addProperties`, `rep:alterProperties`, `rep:removeProperties` |
//! | `jcr:mixinTypes`, or the primary type of a node that was there | `jcr:nodeTypeManagement` |
//! | a policy, a closed user group, their mixins | `jcr:modifyAccessControl` at the controlled node |
//! | users and groups: nodes and what identifies them | `rep:userManagement` |
//! | an account that leads to all rights, before or after | `jcr:all`, which administrators alone have |
//! | a document that visitors have is removed or moved | `crx:replicate` at the document |
//! | state of versions, of locks, definitions of indexes | `jcr:versionManagement`, `jcr:lockManagement`, `rep:indexDefinitionManagement` |
//! | node types, namespaces, privileges | the repository's privilege for them |

use std::collections::BTreeSet;

use tympan_store::{ChunkId, SortedMap};

use crate::access::access_gate::AccessGate;
use crate::access::administrator::find_changed_administrator;
use crate::access::gate_opening::AccessPolicyIds;
use crate::access::policy::{is_policy_name, is_policy_path};
use crate::access::privilege::Privileges;
use crate::access::restriction::AccessedItem;
use crate::access::viewer::Viewer;
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::repository::Repository;
use crate::snapshot::SnapshotView;
use crate::version::version_entry::{VersionMapKey, parse_version_key};
use crate::withdrawal;
use crate::{
    Error, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Result, Snapshot, Subtree,
    document::record_key,
};

/// The changes of a session.
pub(crate) struct SessionChanges<'a> {
    /// The base state of the session.
    pub(crate) base_snapshot: &'a Snapshot,
    /// That state with its edits.
    pub(crate) pending_snapshot: &'a Snapshot,
    /// The moves of the session as pairs of source and target, in order.
    pub(crate) moves: &'a [(NodePath, NodePath)],
}

/// The permission of one commit: checked on the newest state, and again on the state onto which the edits are written.
pub(crate) struct CommitPermission<'a> {
    changes: SessionChanges<'a>,
    viewer: &'a Viewer,
    /// The state whose policies permit the commit, and the numbers of these policies; `None` if no policy applies.
    permitted_by: Option<(ChunkId, AccessPolicyIds)>,
}

impl<'a> CommitPermission<'a> {
    /// Checks that the viewer has the privileges that the edits need, by the newest policies.
    ///
    /// # Errors
    /// [`Error::AccessDenied`] with the first privilege that is missing; errors of the store.
    pub(crate) fn check(
        repository: &Repository,
        changes: SessionChanges<'a>,
        viewer: &'a Viewer,
    ) -> Result<Self> {
        let pending = &changes.pending_snapshot.view;
        let has_edits = !(pending.record_edits.is_empty() && pending.version_edits.is_empty());
        let mut permitted_by = None;
        if has_edits && !viewer.is_system() {
            let newest = repository.snapshot()?;
            let (gate, policy_ids) = AccessGate::open_with_policy_ids(&newest.view, viewer)?;
            check_changes(&changes, &gate)?;
            permitted_by = Some((newest.root_id(), policy_ids));
        }
        Ok(Self { changes, viewer, permitted_by })
    }

    /// Repeats the check for the state onto which the edits are written. It costs nothing if that is the state already
    /// checked, and little if its policies and groups are the same.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) fn recheck(&self, head: &SnapshotView) -> Result<()> {
        let Some((root, permitted_ids)) = self.permitted_by else { return Ok(()) };
        if head.root_id == root && head.repository_state.branch == MAIN_BRANCH {
            return Ok(());
        }
        let (gate, policy_ids) = AccessGate::open_with_policy_ids(head, self.viewer)?;
        if policy_ids == permitted_ids { Ok(()) } else { check_changes(&self.changes, &gate) }
    }
}

/// Checks that the viewer of a gate may commit the changes of a session.
fn check_changes(changes: &SessionChanges<'_>, gate: &AccessGate) -> Result<()> {
    if gate.is_unrestricted() {
        return Ok(());
    }
    let check = CommitPermissionCheck { changes, gate };
    check.check_versions()?;
    check.check_moved_away()?;
    check.check_withdrawn()?;
    if let Some(path) = find_changed_administrator(changes.base_snapshot, changes.pending_snapshot)?
    {
        return Err(Error::AccessDenied { path, privilege: "jcr:all" });
    }
    let recut = check.find_recut_nodes()?;
    for (key, after) in &changes.pending_snapshot.view.record_edits {
        let path = record_key::record_path(key)?;
        if !recut.iter().any(|top| path != *top && path.is_within(top)) {
            check.check_record(&path, after.as_deref(), recut.contains(&path))?;
        }
    }
    Ok(())
}

struct CommitPermissionCheck<'a> {
    changes: &'a SessionChanges<'a>,
    gate: &'a AccessGate,
}

impl CommitPermissionCheck<'_> {
    /// Checks the permission to create, label or remove versions.
    fn check_versions(&self) -> Result<()> {
        let (base, pending) = (self.changes.base_snapshot, &self.changes.pending_snapshot.view);
        for key in pending.version_edits.keys() {
            let VersionMapKey::Version { history, name } = parse_version_key(key)? else {
                continue;
            };
            if name.is_empty() {
                continue;
            }
            let history_entry = match pending.version_history(history)? {
                Some(entry) => Some(entry),
                None => base.view.version_history(history)?,
            };
            let Some(path) = history_entry.map(|history| history.path) else { continue };
            let node = base.node(&path)?;
            let primary_type = node.as_ref().map_or("nt:unstructured", |node| node.primary_type());
            self.require(&path, None, primary_type, Privileges::VERSION_MANAGEMENT)?;
        }
        Ok(())
    }

    /// Returns the nodes whose children moved into records of their own or back out of them.
    fn find_recut_nodes(&self) -> Result<BTreeSet<NodePath>> {
        let mut paths = BTreeSet::new();
        for (key, after) in &self.changes.pending_snapshot.view.record_edits {
            let path = record_key::record_path(key)?;
            let before = self.record_before(&path)?;
            let is_folder =
                |record: &ContentRecord| is_container(path.name(), record.summary.primary_type());
            if let (Some(before), Some(after)) = (&before, after)
                && is_folder(before) != is_folder(after)
            {
                paths.insert(path);
            }
        }
        Ok(paths)
    }

    /// Checks that a node that was moved away could be removed from its old path, whatever replaced it there.
    fn check_moved_away(&self) -> Result<()> {
        for (number, (from, _)) in self.changes.moves.iter().enumerate() {
            let before = self.changes.moves.iter().take(number).rev();
            let former_path =
                before.fold(from.clone(), |path, (from, to)| path.rebase(to, from).unwrap_or(path));
            if self.destination_of(&former_path) == former_path {
                continue;
            }
            if let Some(node) = self.changes.base_snapshot.node(&former_path)? {
                let top = Subtree::new(node.name(), node.primary_type());
                self.check_removed(&former_path, &top)?;
            }
        }
        Ok(())
    }

    /// Checks the permission to remove or move documents that are activated.
    fn check_withdrawn(&self) -> Result<()> {
        let base = &self.changes.base_snapshot.view;
        if base.repository_state.branch != MAIN_BRANCH {
            return Ok(());
        }
        let unstamped = withdrawal::activated_map(base)?;
        let has_unstamped = unstamped != SortedMap::EMPTY_MAP;
        for (key, after) in &self.changes.pending_snapshot.view.record_edits {
            let Some(before) = base.find_record(key)? else { continue };
            let is_stamped = before.summary.is_activated();
            if !is_stamped
                && (!has_unstamped
                    || unstamped.get(base.repository_state.chunk_reader(), key)?.is_none())
            {
                continue;
            }
            let path = record_key::record_path(key)?;
            let stays = match after {
                Some(after) if !is_stamped => {
                    after.summary.primary_type() == before.summary.primary_type()
                }
                Some(after) => {
                    let view = &self.changes.pending_snapshot.view;
                    withdrawal::is_still_activated(view, &path, &before, after)?
                }
                None => false,
            };
            if !stays {
                self.require(&path, None, before.summary.primary_type(), Privileges::REPLICATE)?;
            }
        }
        Ok(())
    }

    /// Returns the path to which the session moved a node.
    fn destination_of(&self, path: &NodePath) -> NodePath {
        let moves = self.changes.moves.iter();
        moves.fold(path.clone(), |path, (from, to)| path.rebase(from, to).unwrap_or(path))
    }

    /// Returns the path of a node before the session moved it.
    fn origin_of(&self, path: &NodePath) -> NodePath {
        self.changes
            .moves
            .iter()
            .rev()
            .fold(path.clone(), |path, (from, to)| path.rebase(to, from).unwrap_or(path))
    }

    fn record_before(&self, path: &NodePath) -> Result<Option<ContentRecord>> {
        let origin = self.origin_of(path);
        if origin == *path && self.destination_of(path) != *path {
            // The old node was moved away; this one is new.
            return Ok(None);
        }
        self.changes.base_snapshot.view.find_record(&record_key::record_key(&origin)?)
    }

    /// Compares a record with its previous state.
    fn check_record(
        &self,
        path: &NodePath,
        after: Option<&ContentRecord>,
        is_recut: bool,
    ) -> Result<()> {
        let before = self.record_before(path)?;
        let read = |snapshot: &Snapshot,
                    path: &NodePath,
                    record: Option<&ContentRecord>|
         -> Result<Option<Subtree>> {
            match record {
                Some(_) if is_recut => snapshot.read_subtree(path),
                Some(record) => {
                    let body = snapshot.view.load_body(record, path)?;
                    Ok(Some(body.subtree(body.root())))
                }
                None => Ok(None),
            }
        };
        let old = read(self.changes.base_snapshot, &self.origin_of(path), before.as_ref())?;
        let new = read(self.changes.pending_snapshot, path, after)?;
        let is_target = self.is_move_target(path);
        match (old, new) {
            (None, Some(new)) => self.check_added(path, &new),
            (Some(old), None) => {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                let is_top = self.changes.pending_snapshot.node(&parent)?.is_some();
                if is_top { self.check_removed(path, &old) } else { Ok(()) }
            }
            (Some(old), Some(new)) => {
                let order =
                    |record: Option<&ContentRecord>| record.map(|record| record.order_key.clone());
                if !is_target && order(before.as_ref()) != order(after) && !self.is_moved(path) {
                    self.check_reordered(&path.parent().unwrap_or_else(NodePath::root))?;
                }
                self.check_existing(path, &old, &new)
            }
            (None, None) => Ok(()),
        }
    }

    fn is_move_target(&self, path: &NodePath) -> bool {
        self.changes.moves.iter().any(|(_, to)| to == path)
    }

    fn is_moved(&self, path: &NodePath) -> bool {
        self.origin_of(path) != *path
    }

    /// Checks a node that existed before, at this path or at the one it was moved from.
    fn check_existing(&self, path: &NodePath, old: &Subtree, new: &Subtree) -> Result<()> {
        if self.is_move_target(path) {
            self.check_placement(path, new)?;
            if !is_policy_path(path.as_str()) {
                self.require(path, None, new.primary_type(), Privileges::NODE_TYPE_MANAGEMENT)?;
            }
        }
        if is_policy_name(path.name()) {
            return if old == new { Ok(()) } else { self.check_policy_change(path) };
        }
        if old.primary_type() != new.primary_type() {
            // A node that becomes an account, or stops being one, is checked as if it were added or removed.
            for node in [old, new] {
                if let Some(special) = special_privilege(path, node.primary_type()) {
                    self.require_special(path, node, special)?;
                }
            }
        }
        for (name, property) in &new.properties {
            match old.properties.get(name) {
                None => self.check_property(path, new, name, [None, Some(property)])?,
                Some(before) if before != property => {
                    self.check_property(path, new, name, [Some(before), Some(property)])?;
                }
                Some(_) => {}
            }
        }
        for (name, property) in &old.properties {
            if !new.properties.contains_key(name) {
                self.check_property(path, old, name, [Some(property), None])?;
            }
        }
        self.check_children(path, old, new)
    }

    fn check_children(&self, path: &NodePath, old: &Subtree, new: &Subtree) -> Result<()> {
        for child in &old.children {
            if new.child(&child.name).is_none() {
                self.check_removed(&path.child_unchecked(&child.name), child)?;
            }
        }
        for child in &new.children {
            let child_path = path.child_unchecked(&child.name);
            if self.is_move_target(&child_path) {
                let origin = self.origin_of(&child_path);
                match self.changes.base_snapshot.read_subtree(&origin)? {
                    Some(before) => self.check_existing(&child_path, &before, child)?,
                    None => self.check_added(&child_path, child)?,
                }
                continue;
            }
            match old.child(&child.name) {
                Some(before) => self.check_existing(&child_path, before, child)?,
                None => self.check_added(&child_path, child)?,
            }
        }
        let in_both = |tree: &'_ Subtree, counterpart: &'_ Subtree| -> Vec<String> {
            let names = tree.children.iter().map(|child| &child.name);
            names.filter(|name| counterpart.child(name).is_some()).cloned().collect()
        };
        if in_both(old, new) == in_both(new, old) { Ok(()) } else { self.check_reordered(path) }
    }

    fn check_added(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        self.check_placement(path, node)?;
        if is_policy_path(path.as_str()) {
            return Ok(());
        }
        for (name, property) in &node.properties {
            // The repository itself sets these properties on every new node of such types; the user did not request
            // them.
            if !matches!(&**name, PRIMARY_TYPE | "jcr:uuid" | "jcr:created" | "jcr:createdBy") {
                self.check_property(path, node, name, [None, Some(property)])?;
            }
        }
        for child in &node.children {
            self.check_added(&path.child_unchecked(&child.name), child)?;
        }
        Ok(())
    }

    /// Checks that a node may be placed at a path.
    fn check_placement(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        if is_policy_path(path.as_str()) {
            return self.check_policy_change(path);
        }
        match special_privilege(path, node.primary_type()) {
            Some(special) => self.require_special(path, node, special),
            None => self.require_at_parent(path, Privileges::ADD_CHILD_NODES),
        }
    }

    fn check_removed(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        if is_policy_path(path.as_str()) {
            return self.check_policy_change(path);
        }
        if let Some(special) = special_privilege(path, node.primary_type()) {
            return self.require_special(path, node, special);
        }
        self.require(path, None, node.primary_type(), Privileges::REMOVE_NODE)?;
        self.require_at_parent(path, Privileges::REMOVE_CHILD_NODES)
    }

    fn check_reordered(&self, parent: &NodePath) -> Result<()> {
        let primary_type = self.primary_type(parent)?;
        self.require(parent, None, &primary_type, Privileges::ADD_CHILD_NODES)?;
        self.require(parent, None, &primary_type, Privileges::REMOVE_CHILD_NODES)
    }

    fn check_property(
        &self,
        path: &NodePath,
        node: &Subtree,
        name: &str,
        [before, after]: [Option<&Property>; 2],
    ) -> Result<()> {
        let primary_type = node.primary_type();
        if let Some(special) = special_privilege(path, primary_type)
            && (special != Privileges::USER_MANAGEMENT || name.starts_with("rep:"))
        {
            return self.require_special(path, node, special);
        }
        let privilege = match name {
            PRIMARY_TYPE => Privileges::NODE_TYPE_MANAGEMENT,
            MIXIN_TYPES if differs_in_policy_mixins_only(before, after) => {
                Privileges::MODIFY_ACCESS_CONTROL
            }
            MIXIN_TYPES => Privileges::NODE_TYPE_MANAGEMENT,
            "jcr:lockOwner" | "jcr:lockIsDeep" => Privileges::LOCK_MANAGEMENT,
            "jcr:isCheckedOut" | "jcr:baseVersion" | "jcr:predecessors" | "jcr:versionHistory"
            | "jcr:mergeFailed" | "jcr:activity" | "jcr:configuration" => {
                Privileges::VERSION_MANAGEMENT
            }
            _ => {
                let change_privilege = match (before, after) {
                    (None, _) => Privileges::ADD_PROPERTIES,
                    (Some(_), Some(_)) => Privileges::ALTER_PROPERTIES,
                    (Some(_), None) => Privileges::REMOVE_PROPERTIES,
                };
                return self.require(path, Some(name), primary_type, change_privilege);
            }
        };
        self.require(path, None, primary_type, privilege)
    }

    /// Checks a change of the policy at or above a path.
    fn check_policy_change(&self, path: &NodePath) -> Result<()> {
        let mut node = path.clone();
        while is_policy_path(node.as_str()) {
            node = node.parent().unwrap_or_else(NodePath::root);
        }
        let primary_type = self.primary_type(&node)?;
        self.require(&node, None, &primary_type, Privileges::MODIFY_ACCESS_CONTROL)
    }

    fn require_at_parent(&self, path: &NodePath, privileges: Privileges) -> Result<()> {
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let primary_type = self.primary_type(&parent)?;
        self.require(&parent, None, &primary_type, privileges)
    }

    fn require_special(
        &self,
        path: &NodePath,
        node: &Subtree,
        privileges: Privileges,
    ) -> Result<()> {
        if !is_repository_privilege(privileges) {
            return self.require(path, None, node.primary_type(), privileges);
        }
        if self.gate.granted_in_repository(privileges).contains(privileges) {
            return Ok(());
        }
        Err(Error::AccessDenied { path: path.clone(), privilege: privileges.first_name() })
    }

    fn require(
        &self,
        path: &NodePath,
        property: Option<&str>,
        primary_type: &str,
        privileges: Privileges,
    ) -> Result<()> {
        let item = AccessedItem { path: path.as_str(), property, primary_type };
        if self.gate.granted_privileges(&item, privileges).contains(privileges) {
            return Ok(());
        }
        Err(Error::AccessDenied { path: path.clone(), privilege: privileges.first_name() })
    }

    /// Returns the current or former primary type of a node.
    fn primary_type(&self, path: &NodePath) -> Result<String> {
        let node = match self.changes.pending_snapshot.node(path)? {
            Some(node) => Some(node),
            None => self.changes.base_snapshot.node(path)?,
        };
        Ok(node.map(|node| node.primary_type().to_owned()).unwrap_or_default())
    }
}

/// Returns true if a commit may change an existing property of a node.
pub(crate) fn can_alter_property(
    gate: &AccessGate,
    (path, primary_type): (&NodePath, &str),
    name: &str,
) -> bool {
    if gate.is_unrestricted() {
        return true;
    }
    if is_policy_path(path.as_str()) || special_privilege(path, primary_type).is_some() {
        return false;
    }
    let item = AccessedItem { path: path.as_str(), property: Some(name), primary_type };
    gate.granted_privileges(&item, Privileges::ALTER_PROPERTIES)
        .contains(Privileges::ALTER_PROPERTIES)
}

/// Returns the privilege that replaces all others for a node that is not plain content.
fn special_privilege(path: &NodePath, primary_type: &str) -> Option<Privileges> {
    let is_account = matches!(
        primary_type,
        "rep:User"
            | "rep:SystemUser"
            | "rep:Group"
            | "rep:AuthorizableFolder"
            | "rep:Password"
            | "rep:Members"
            | "rep:MemberReferencesList"
            | "rep:MemberReferences"
    );
    if is_account {
        return Some(Privileges::USER_MANAGEMENT);
    }
    if path.names().any(|name| name == "oak:index") {
        return Some(Privileges::INDEX_DEFINITION_MANAGEMENT);
    }
    let mut names = path.names();
    match (names.next(), names.next()) {
        (Some("jcr:system"), Some("jcr:nodeTypes")) => {
            Some(Privileges::NODE_TYPE_DEFINITION_MANAGEMENT)
        }
        (Some("jcr:system"), Some("rep:namespaces")) => Some(Privileges::NAMESPACE_MANAGEMENT),
        (Some("jcr:system"), Some("rep:privileges")) => Some(Privileges::PRIVILEGE_MANAGEMENT),
        (Some("jcr:system"), Some("jcr:versionStorage")) => Some(Privileges::VERSION_MANAGEMENT),
        _ => None,
    }
}

fn is_repository_privilege(privilege: Privileges) -> bool {
    privilege == Privileges::NODE_TYPE_DEFINITION_MANAGEMENT
        || privilege == Privileges::NAMESPACE_MANAGEMENT
        || privilege == Privileges::PRIVILEGE_MANAGEMENT
}

/// Returns true if two lists of mixins differ only in those that are added and removed with policies.
fn differs_in_policy_mixins_only(before: Option<&Property>, after: Option<&Property>) -> bool {
    let others = |property: Option<&Property>| -> BTreeSet<String> {
        let values = property.map(Property::values).unwrap_or_default();
        let names = values.iter().map(|value| value.to_text().into_owned());
        names
            .filter(|name| {
                !matches!(
                    &**name,
                    "rep:AccessControllable"
                        | "rep:RepoAccessControllable"
                        | "rep:CugMixin"
                        | "rep:PrincipalBasedMixin"
                )
            })
            .collect()
    };
    others(before) == others(after)
}
