//! The access gate of a snapshot: decides what one viewer may see of one state.
//!
//! In: the permissions of the viewer. Out: the visibility of a node, its properties and its children; for a document
//! that is visible only in part, an [`AccessMask`].
//!
//! Invariants
//! * An item is visible only if the policies of the state that is read, those of the newest state of `main`, *and* the
//!   former policies of nodes that were removed from `main` since allow reading it. A past state or a branch therefore
//!   shows nothing that was closed later, and a policy that is being moved still closes its old location.
//! * `rep:password` and `rep:pwd` are never visible.
//! * Viewers with equal permissions get equal decisions for every request.
//! * If a second viewer is compared, each decision that would differ for that viewer is recorded before the decision is
//!   used.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::access_mask::AccessMask;
use crate::access::guarded_name::{PASSWORD_HISTORY_NODE, PASSWORD_PROPERTY};
use crate::access::privilege::Privileges;
use crate::access::restriction::AccessedItem;
use crate::access::viewer_permissions::{ChildVisibility, ViewerPermissions};
use crate::document::body::{BodyNode, DocumentBody};

/// Decides what one viewer may see of one state.
#[derive(Debug, Clone)]
pub(crate) struct AccessGate {
    permissions: EffectivePermissions,
    /// A second viewer, for whom every decision is also made.
    compared: Option<ComparedViewer>,
}

/// The permissions by the policies of the state, by those of the newest state of `main` if these differ, and by former
/// policies if any apply. If the first is `None`, nothing is visible.
#[derive(Debug, Clone)]
struct EffectivePermissions([Option<Arc<ViewerPermissions>>; 3]);

/// A second viewer of the same state.
#[derive(Debug, Clone)]
struct ComparedViewer {
    /// The permissions of the viewer; `None` if all decisions are known to be the same.
    permissions: Option<EffectivePermissions>,
    /// Set when a decision differs.
    differs: Arc<AtomicBool>,
}

/// The permissions of a viewer without its identity. Viewers with equal fingerprints get equal decisions for every
/// request on a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessFingerprint([Option<ChunkId>; 3]);

impl fmt::Display for AccessFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().flatten().try_for_each(|digest| write!(f, "{digest}"))
    }
}

impl AccessGate {
    /// Returns true if the policies of the state decide alone.
    pub(crate) fn is_state_only(&self) -> bool {
        matches!(self.permissions.0, [Some(_), None, None])
    }

    /// Returns the number of the rules if they decide alone, so that decisions about a node can be cached; `None` if
    /// other rules take part in the decision.
    pub(crate) fn rule_number(&self) -> Option<u64> {
        match (&self.permissions.0, &self.compared) {
            ([Some(permissions), None, None], None) => Some(permissions.rule_number()),
            _ => None,
        }
    }

    /// Creates the gate of a viewer with the permissions by the policies of the state, and by those of the newest state
    /// of `main` and by former policies where these count too.
    pub(super) fn new(
        own: Arc<ViewerPermissions>,
        [newest, former]: [Option<Arc<ViewerPermissions>>; 2],
    ) -> Self {
        Self { permissions: EffectivePermissions([Some(own), newest, former]), compared: None }
    }

    /// Creates a gate that denies everything.
    pub(crate) fn deny_all() -> Self {
        Self { permissions: EffectivePermissions([None, None, None]), compared: None }
    }

    /// Returns the same gate, which also records decisions that would differ for the viewer of `other`.
    pub(crate) fn compared_with(&self, other: &Self) -> Self {
        let is_shut = self.permissions.0[0].is_none() || other.permissions.0[0].is_none();
        let effective =
            (self.fingerprint() != other.fingerprint()).then(|| other.permissions.clone());
        let beside =
            ComparedViewer { permissions: effective, differs: Arc::new(AtomicBool::new(is_shut)) };
        Self { permissions: self.permissions.clone(), compared: Some(beside) }
    }

    /// Returns true if all decisions so far are the same for the compared viewer; `None` if there is no compared
    /// viewer.
    pub(crate) fn is_decided_alike(&self) -> Option<bool> {
        self.compared.as_ref().map(|beside| !beside.differs.load(Ordering::Relaxed))
    }

    /// Returns the permissions of the viewer, without its identity.
    pub(crate) fn fingerprint(&self) -> AccessFingerprint {
        AccessFingerprint(
            self.permissions
                .0
                .each_ref()
                .map(|permissions| permissions.as_ref().map(|permissions| permissions.digest())),
        )
    }

    /// Makes a decision, and records whether it differs for the compared viewer.
    fn decide_with<T: PartialEq>(&self, of: impl Fn(&EffectivePermissions) -> T) -> T {
        let own = of(&self.permissions);
        if let Some(ComparedViewer { permissions: Some(effective), differs }) = &self.compared
            && !differs.load(Ordering::Relaxed)
            && of(effective) != own
        {
            differs.store(true, Ordering::Relaxed);
        }
        own
    }

    /// Returns true if no policy restricts the viewer.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.decide_with(|effective| {
            effective
                .all_permit(|permissions| matches!(permissions, ViewerPermissions::Unrestricted))
        })
    }

    /// Returns true if a node is visible.
    pub(crate) fn can_see(&self, path: &NodePath, primary_type: &str) -> bool {
        self.decide_with(|effective| effective.can_see(path, primary_type))
    }

    /// Returns true if a property of a node of this type is visible.
    pub(crate) fn can_see_property(&self, path: &NodePath, primary_type: &str, name: &str) -> bool {
        self.decide_with(|effective| effective.can_see_property(path, primary_type, name))
    }

    /// Returns which of the wanted privileges are granted for an item.
    pub(crate) fn granted_privileges(
        &self,
        item: &AccessedItem<'_>,
        privileges: Privileges,
    ) -> Privileges {
        self.decide_with(|effective| {
            effective.granted_privileges(privileges, |permissions, left| {
                permissions.granted_privileges(item, left)
            })
        })
    }

    /// Returns which of the wanted privileges are granted for the repository as a whole.
    pub(crate) fn granted_in_repository(&self, privileges: Privileges) -> Privileges {
        self.decide_with(|effective| {
            effective.granted_privileges(privileges, ViewerPermissions::granted_in_repository)
        })
    }

    /// Returns the visibility of the children of a node, except policies.
    pub(crate) fn child_visibility(&self, path: &NodePath) -> ChildVisibility {
        self.decide_with(|effective| effective.child_visibility(path))
    }

    /// Returns true if everything in a record, except policies and passwords, is visible: the node and, unless its
    /// children have records of their own, all descendants. Returns `false` in doubt.
    pub(crate) fn can_see_record(&self, path: &NodePath, inner: RecordExtent) -> bool {
        self.decide_with(|effective| effective.can_see_record(path, inner))
    }

    /// Returns the hidden parts of a document; `None` if all of it is visible.
    pub(crate) fn compute_mask(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        inner: RecordExtent,
    ) -> Option<Arc<AccessMask>> {
        let mask =
            self.decide_with(|effective| ComparableMask(effective.compute_mask(path, body, inner)));
        mask.0.map(Arc::new)
    }
}

/// The hidden parts of a document, comparable: both representations of "nothing hidden" are equal.
struct ComparableMask(Option<AccessMask>);

impl PartialEq for ComparableMask {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => own == other,
            (Some(mask), None) | (None, Some(mask)) => *mask == AccessMask::default(),
            (None, None) => true,
        }
    }
}

impl EffectivePermissions {
    fn all_permit(&self, sees: impl Fn(&ViewerPermissions) -> bool) -> bool {
        self.0[0].is_some() && self.0.iter().flatten().all(|permissions| sees(permissions))
    }

    fn can_see(&self, path: &NodePath, primary_type: &str) -> bool {
        self.all_permit(|permissions| permissions.can_see(path.as_str(), primary_type))
            && !is_secret_path(path.as_str())
    }

    fn can_see_property(&self, path: &NodePath, primary_type: &str, name: &str) -> bool {
        let is_permitted = |permissions: &ViewerPermissions| {
            permissions.can_see_property(path.as_str(), primary_type, name)
        };
        name != PASSWORD_PROPERTY && self.all_permit(is_permitted)
    }

    fn granted_privileges(
        &self,
        privileges: Privileges,
        of: impl Fn(&ViewerPermissions, Privileges) -> Privileges,
    ) -> Privileges {
        if self.0[0].is_none() {
            return Privileges::NONE;
        }
        self.0.iter().flatten().fold(privileges, |left, permissions| of(permissions, left))
    }

    fn child_visibility(&self, path: &NodePath) -> ChildVisibility {
        let mut others = self.0.iter().flatten();
        let Some(first) = others.next() else {
            return ChildVisibility::Uniform { is_visible: false, exceptions: BTreeMap::new() };
        };
        let own = first.child_visibility(path.as_str());
        others.fold(own, |own, permissions| {
            intersect_visibility(own, permissions.child_visibility(path.as_str()))
        })
    }

    fn can_see_record(&self, path: &NodePath, inner: RecordExtent) -> bool {
        let path = path.as_str();
        self.all_permit(|permissions| match inner {
            RecordExtent::All => permissions.can_see_subtree(path),
            RecordExtent::None => permissions.can_see_whole_node(path),
            RecordExtent::JcrContent => {
                let content = format!("{path}/{}", crate::JCR_CONTENT);
                permissions.can_see_whole_node(path) && permissions.can_see_subtree(&content)
            }
        })
    }

    fn compute_mask(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        inner: RecordExtent,
    ) -> Option<AccessMask> {
        if !body.has_guarded_name() && self.can_see_record(path, inner) {
            return None;
        }
        let mut mask = AccessMask::default();
        self.collect_hidden(path, body, body.root(), &mut mask);
        Some(mask)
    }

    /// Records what is hidden in a node and below it.
    fn collect_hidden(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        node: BodyNode,
        mask: &mut AccessMask,
    ) {
        let primary_type = body.text(node, crate::PRIMARY_TYPE).unwrap_or("nt:unstructured");
        let mut hidden = Vec::new();
        let mut has_visible = false;
        for (name, _) in body.properties(node) {
            let is_visible = self.can_see_property(path, primary_type, name);
            has_visible |= is_visible;
            if !is_visible {
                hidden.push(Box::from(name));
            }
        }
        if !hidden.is_empty() {
            mask.hidden_properties.insert(node.offset_id(), has_visible.then_some(hidden));
        }
        for child in body.children(node) {
            let name = body.name(child);
            let child_path = path.child_unchecked(name);
            let child_type = body.text(child, crate::PRIMARY_TYPE).unwrap_or("nt:unstructured");
            if !self.can_see(&child_path, child_type) {
                mask.hidden_nodes.insert(child.offset_id());
            }
            self.collect_hidden(&child_path, body, child, mask);
        }
    }
}

/// The part of the subtree that a record holds below its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordExtent {
    /// Everything: a document.
    All,
    /// `jcr:content`: a page.
    JcrContent,
    /// Nothing: a folder.
    None,
}

fn is_secret_path(path: &str) -> bool {
    path.contains("/rep:pwd") && path.split('/').any(|name| name == PASSWORD_HISTORY_NODE)
}

/// Intersects two visibilities of the same children: a child is visible if both show it.
fn intersect_visibility(left: ChildVisibility, right: ChildVisibility) -> ChildVisibility {
    let (
        ChildVisibility::Uniform { is_visible: left, exceptions: left_others },
        ChildVisibility::Uniform { is_visible: right, exceptions: right_others },
    ) = (left, right)
    else {
        return ChildVisibility::Individual;
    };
    let is_visible = left && right;
    let names: HashSet<&String> = left_others.keys().chain(right_others.keys()).collect();
    let others = names.into_iter().filter_map(|name| {
        let is_child_visible = left_others.get(name).copied().unwrap_or(left)
            && right_others.get(name).copied().unwrap_or(right);
        (is_child_visible != is_visible).then(|| (name.clone(), is_child_visible))
    });
    ChildVisibility::Uniform { is_visible, exceptions: others.collect() }
}
