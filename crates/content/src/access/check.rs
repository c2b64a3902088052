//! Which privileges a commit needs, and whether its viewer has them.
//!
//! In: the state a session began with, its pending state, and the moves between the two. Out: nothing, or the first
//! privilege that is missing. What is needed follows Oak's permission validator:
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

use tympan_store::Map;

use crate::access::administrators::find_changed_administrator;
use crate::access::gate::Gate;
use crate::access::policy::{is_policy_name, is_policy_path};
use crate::access::privilege::Privileges;
use crate::access::restriction::Item;
use crate::boundary::is_container;
use crate::record::Record;
use crate::repository::MAIN;
use crate::withdrawal;
use crate::{
    Error, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Result, Snapshot, Subtree, keys,
};

/// What a session changed.
pub(crate) struct Changed<'a> {
    /// The state it began with.
    pub(crate) base: &'a Snapshot,
    /// That state with its edits.
    pub(crate) pending: &'a Snapshot,
    /// What it moved from where to where, in order.
    pub(crate) moves: &'a [(NodePath, NodePath)],
}

/// Checks that a viewer may commit what a session changed.
///
/// # Errors
/// [`Error::AccessDenied`] with the first privilege that is missing; errors of the store.
pub(crate) fn check(changed: &Changed<'_>, gate: &Gate) -> Result<()> {
    if gate.is_unbound() {
        return Ok(());
    }
    let check = Check { changed, gate };
    check.moved_away()?;
    check.withdrawn()?;
    if let Some(path) = find_changed_administrator(changed.base, changed.pending)? {
        return Err(Error::AccessDenied { path, privilege: "jcr:all" });
    }
    let recut = check.recut()?;
    for (key, after) in &changed.pending.0.overlay {
        let path = keys::path_of(key)?;
        if !recut.iter().any(|top| path != *top && path.is_within(top)) {
            check.record(&path, after.as_deref(), recut.contains(&path))?;
        }
    }
    Ok(())
}

struct Check<'a> {
    changed: &'a Changed<'a>,
    gate: &'a Gate,
}

impl Check<'_> {
    /// Returns the nodes whose children went into records of their own or out of these.
    fn recut(&self) -> Result<BTreeSet<NodePath>> {
        let mut paths = BTreeSet::new();
        for (key, after) in &self.changed.pending.0.overlay {
            let path = keys::path_of(key)?;
            let before = self.before(&path)?;
            let is_folder =
                |record: &Record| is_container(path.name(), record.summary.primary_type());
            if let (Some(before), Some(after)) = (&before, after)
                && is_folder(before) != is_folder(after)
            {
                paths.insert(path);
            }
        }
        Ok(paths)
    }

    /// Checks that what was moved away from a place could be removed there, whatever came to be in its place.
    fn moved_away(&self) -> Result<()> {
        for (number, (from, _)) in self.changed.moves.iter().enumerate() {
            let before = self.changed.moves.iter().take(number).rev();
            let place = before
                .fold(from.clone(), |path, (from, to)| path.rebased(to, from).unwrap_or(path));
            if self.destination(&place) == place {
                continue;
            }
            if let Some(node) = self.changed.base.node(&place)? {
                let top = Subtree::new(node.name(), node.primary_type());
                self.removed(&place, &top)?;
            }
        }
        Ok(())
    }

    /// Checks that whoever removes or moves what visitors have may take it away from them.
    fn withdrawn(&self) -> Result<()> {
        let base = &self.changed.base.0;
        if base.shared.branch != MAIN {
            return Ok(());
        }
        let unstamped = withdrawal::activated_map(base)?;
        let has_unstamped = unstamped != Map::EMPTY;
        for (key, after) in &self.changed.pending.0.overlay {
            let Some(before) = base.find(key)? else { continue };
            let is_stamped = before.summary.is_activated();
            if !is_stamped && (!has_unstamped || unstamped.get(base.shared.reads(), key)?.is_none())
            {
                continue;
            }
            let path = keys::path_of(key)?;
            let stays = match after {
                Some(after) if !is_stamped => {
                    after.summary.primary_type() == before.summary.primary_type()
                }
                Some(after) => {
                    let view = &self.changed.pending.0;
                    withdrawal::holds_stamps(view, &path, (&before, after))?
                }
                None => false,
            };
            if !stays {
                self.need(&path, None, before.summary.primary_type(), Privileges::REPLICATE)?;
            }
        }
        Ok(())
    }

    /// Returns where the session moved a node.
    fn destination(&self, path: &NodePath) -> NodePath {
        let moves = self.changed.moves.iter();
        moves.fold(path.clone(), |path, (from, to)| path.rebased(from, to).unwrap_or(path))
    }

    /// Returns where a node was before the session moved it.
    fn origin(&self, path: &NodePath) -> NodePath {
        self.changed
            .moves
            .iter()
            .rev()
            .fold(path.clone(), |path, (from, to)| path.rebased(to, from).unwrap_or(path))
    }

    fn before(&self, path: &NodePath) -> Result<Option<Record>> {
        let origin = self.origin(path);
        if origin == *path && self.destination(path) != *path {
            // What was here is elsewhere; this is new.
            return Ok(None);
        }
        self.changed.base.0.find(&keys::key_of(&origin)?)
    }

    /// Compares a record with what it was.
    fn record(&self, path: &NodePath, after: Option<&Record>, is_recut: bool) -> Result<()> {
        let before = self.before(path)?;
        let read = |snapshot: &Snapshot,
                    path: &NodePath,
                    record: Option<&Record>|
         -> Result<Option<Subtree>> {
            match record {
                Some(_) if is_recut => snapshot.read(path),
                Some(record) => {
                    let body = snapshot.0.body(record, path)?;
                    Ok(Some(body.subtree(body.root())))
                }
                None => Ok(None),
            }
        };
        let old = read(self.changed.base, &self.origin(path), before.as_ref())?;
        let new = read(self.changed.pending, path, after)?;
        let is_target = self.is_target(path);
        match (old, new) {
            (None, Some(new)) => self.added(path, &new),
            (Some(old), None) => {
                let parent = path.parent().unwrap_or_else(NodePath::root);
                let is_top = self.changed.pending.node(&parent)?.is_some();
                if is_top { self.removed(path, &old) } else { Ok(()) }
            }
            (Some(old), Some(new)) => {
                let order = |record: Option<&Record>| record.map(|record| record.order.clone());
                if !is_target && order(before.as_ref()) != order(after) && !self.is_moved(path) {
                    self.reordered(&path.parent().unwrap_or_else(NodePath::root))?;
                }
                self.kept(path, &old, &new)
            }
            (None, None) => Ok(()),
        }
    }

    fn is_target(&self, path: &NodePath) -> bool {
        self.changed.moves.iter().any(|(_, to)| to == path)
    }

    fn is_moved(&self, path: &NodePath) -> bool {
        self.origin(path) != *path
    }

    /// Checks a node that was there, here or where it was moved from.
    fn kept(&self, path: &NodePath, old: &Subtree, new: &Subtree) -> Result<()> {
        if self.is_target(path) {
            self.placed(path, new)?;
            if !is_policy_path(path.as_str()) {
                self.need(path, None, new.primary_type(), Privileges::NODE_TYPE_MANAGEMENT)?;
            }
        }
        if is_policy_name(path.name()) {
            return if old == new { Ok(()) } else { self.controlled(path) };
        }
        if old.primary_type() != new.primary_type() {
            // What becomes an account, or was one, is as if it were added or removed.
            for node in [old, new] {
                if let Some(special) = special(path, node.primary_type()) {
                    self.need_special(path, node, special)?;
                }
            }
        }
        for (name, property) in &new.properties {
            match old.properties.get(name) {
                None => self.property(path, new, name, [None, Some(property)])?,
                Some(before) if before != property => {
                    self.property(path, new, name, [Some(before), Some(property)])?;
                }
                Some(_) => {}
            }
        }
        for (name, property) in &old.properties {
            if !new.properties.contains_key(name) {
                self.property(path, old, name, [Some(property), None])?;
            }
        }
        self.children(path, old, new)
    }

    fn children(&self, path: &NodePath, old: &Subtree, new: &Subtree) -> Result<()> {
        for child in &old.children {
            if new.child(&child.name).is_none() {
                self.removed(&path.child_unchecked(&child.name), child)?;
            }
        }
        for child in &new.children {
            let child_path = path.child_unchecked(&child.name);
            if self.is_target(&child_path) {
                let origin = self.origin(&child_path);
                match self.changed.base.read(&origin)? {
                    Some(before) => self.kept(&child_path, &before, child)?,
                    None => self.added(&child_path, child)?,
                }
                continue;
            }
            match old.child(&child.name) {
                Some(before) => self.kept(&child_path, before, child)?,
                None => self.added(&child_path, child)?,
            }
        }
        let in_both = |tree: &'_ Subtree, other: &'_ Subtree| -> Vec<String> {
            let names = tree.children.iter().map(|child| &child.name);
            names.filter(|name| other.child(name).is_some()).cloned().collect()
        };
        if in_both(old, new) == in_both(new, old) { Ok(()) } else { self.reordered(path) }
    }

    fn added(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        self.placed(path, node)?;
        if is_policy_path(path.as_str()) {
            return Ok(());
        }
        for (name, property) in &node.properties {
            // What the repository makes for every new node of such types is nobody's wish.
            if !matches!(&**name, PRIMARY_TYPE | "jcr:uuid" | "jcr:created" | "jcr:createdBy") {
                self.property(path, node, name, [None, Some(property)])?;
            }
        }
        for child in &node.children {
            self.added(&path.child_unchecked(&child.name), child)?;
        }
        Ok(())
    }

    /// Checks that a node may come to be at a path.
    fn placed(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        if is_policy_path(path.as_str()) {
            return self.controlled(path);
        }
        match special(path, node.primary_type()) {
            Some(special) => self.need_special(path, node, special),
            None => self.need_at_parent(path, Privileges::ADD_CHILD_NODES),
        }
    }

    fn removed(&self, path: &NodePath, node: &Subtree) -> Result<()> {
        if is_policy_path(path.as_str()) {
            return self.controlled(path);
        }
        if let Some(special) = special(path, node.primary_type()) {
            return self.need_special(path, node, special);
        }
        self.need(path, None, node.primary_type(), Privileges::REMOVE_NODE)?;
        self.need_at_parent(path, Privileges::REMOVE_CHILD_NODES)
    }

    fn reordered(&self, parent: &NodePath) -> Result<()> {
        let primary_type = self.primary_type(parent)?;
        self.need(parent, None, &primary_type, Privileges::ADD_CHILD_NODES)?;
        self.need(parent, None, &primary_type, Privileges::REMOVE_CHILD_NODES)
    }

    fn property(
        &self,
        path: &NodePath,
        node: &Subtree,
        name: &str,
        [before, after]: [Option<&Property>; 2],
    ) -> Result<()> {
        let primary_type = node.primary_type();
        if let Some(special) = special(path, primary_type)
            && (special != Privileges::USER_MANAGEMENT || name.starts_with("rep:"))
        {
            return self.need_special(path, node, special);
        }
        let wanted = match name {
            PRIMARY_TYPE => Privileges::NODE_TYPE_MANAGEMENT,
            MIXIN_TYPES if concerns_policies_only(before, after) => {
                Privileges::MODIFY_ACCESS_CONTROL
            }
            MIXIN_TYPES => Privileges::NODE_TYPE_MANAGEMENT,
            "jcr:lockOwner" | "jcr:lockIsDeep" => Privileges::LOCK_MANAGEMENT,
            "jcr:isCheckedOut" | "jcr:baseVersion" | "jcr:predecessors" | "jcr:versionHistory"
            | "jcr:mergeFailed" | "jcr:activity" | "jcr:configuration" => {
                Privileges::VERSION_MANAGEMENT
            }
            _ => {
                let wanted = match (before, after) {
                    (None, _) => Privileges::ADD_PROPERTIES,
                    (Some(_), Some(_)) => Privileges::ALTER_PROPERTIES,
                    (Some(_), None) => Privileges::REMOVE_PROPERTIES,
                };
                return self.need(path, Some(name), primary_type, wanted);
            }
        };
        self.need(path, None, primary_type, wanted)
    }

    /// Checks a change of the policy at or above a path.
    fn controlled(&self, path: &NodePath) -> Result<()> {
        let mut node = path.clone();
        while is_policy_path(node.as_str()) {
            node = node.parent().unwrap_or_else(NodePath::root);
        }
        let primary_type = self.primary_type(&node)?;
        self.need(&node, None, &primary_type, Privileges::MODIFY_ACCESS_CONTROL)
    }

    fn need_at_parent(&self, path: &NodePath, wanted: Privileges) -> Result<()> {
        let parent = path.parent().unwrap_or_else(NodePath::root);
        let primary_type = self.primary_type(&parent)?;
        self.need(&parent, None, &primary_type, wanted)
    }

    fn need_special(&self, path: &NodePath, node: &Subtree, wanted: Privileges) -> Result<()> {
        if !is_of_repository(wanted) {
            return self.need(path, None, node.primary_type(), wanted);
        }
        if self.gate.granted_in_repository(wanted).contains(wanted) {
            return Ok(());
        }
        Err(Error::AccessDenied { path: path.clone(), privilege: wanted.first_name() })
    }

    fn need(
        &self,
        path: &NodePath,
        property: Option<&str>,
        primary_type: &str,
        wanted: Privileges,
    ) -> Result<()> {
        let item = Item { path: path.as_str(), property, primary_type };
        if self.gate.granted(&item, wanted).contains(wanted) {
            return Ok(());
        }
        Err(Error::AccessDenied { path: path.clone(), privilege: wanted.first_name() })
    }

    /// Returns the type of a node, as it is or as it was.
    fn primary_type(&self, path: &NodePath) -> Result<String> {
        let node = match self.changed.pending.node(path)? {
            Some(node) => Some(node),
            None => self.changed.base.node(path)?,
        };
        Ok(node.map(|node| node.primary_type().to_owned()).unwrap_or_default())
    }
}

/// Tells whether a commit may change a property that a node has.
pub(crate) fn may_alter(gate: &Gate, (path, primary_type): (&NodePath, &str), name: &str) -> bool {
    if gate.is_unbound() {
        return true;
    }
    if is_policy_path(path.as_str()) || special(path, primary_type).is_some() {
        return false;
    }
    let item = Item { path: path.as_str(), property: Some(name), primary_type };
    gate.granted(&item, Privileges::ALTER_PROPERTIES).contains(Privileges::ALTER_PROPERTIES)
}

/// Returns the privilege that stands for all others where a node is no plain content.
fn special(path: &NodePath, primary_type: &str) -> Option<Privileges> {
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

fn is_of_repository(privilege: Privileges) -> bool {
    privilege == Privileges::NODE_TYPE_DEFINITION_MANAGEMENT
        || privilege == Privileges::NAMESPACE_MANAGEMENT
        || privilege == Privileges::PRIVILEGE_MANAGEMENT
}

/// Tells whether two lists of mixins differ in those only that come and go with policies.
fn concerns_policies_only(before: Option<&Property>, after: Option<&Property>) -> bool {
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
