//! The door of a snapshot: what one viewer sees of one state.
//!
//! In: the viewer's lenses. Out: whether a node, its properties and its children are seen; and for a document of which
//! only a part is, a [`AccessMask`].
//!
//! Invariants
//! * What is seen may be read by the policies of the state that is read *and* by those of the newest state of `main`. So
//!   the past shows nothing that was closed since, and a policy that moves away at this moment still closes where it was.
//! * `rep:password` and `rep:pwd` are never seen.
//! * Viewers with equal sights are decided about alike, whatever is asked.
//! * Who is read beside another viewer notes each decision that the other one would have met with another answer, before
//!   the decision is used.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_store::ChunkId;

use crate::access::policy::is_policy_name;
use crate::access::privilege::Privileges;
use crate::access::restriction::AccessedItem;
use crate::access::viewer_permissions::{ChildVisibility, ViewerPermissions};
use crate::document_body::{BodyNode, DocumentBody};
use crate::repository::MAIN_BRANCH;
use crate::snapshot::SnapshotView;
use crate::{NodePath, Result, Snapshot, Subtree};

use super::viewer::Viewer;

/// The property with the hash of a password.
const PASSWORD_PROPERTY: &str = "rep:password";
/// The node with the hashes of former passwords.
const PASSWORD_HISTORY_NODE: &str = "rep:pwd";

/// What one viewer sees of one state.
#[derive(Debug, Clone)]
pub(crate) struct AccessGate {
    permissions: EffectivePermissions,
    /// Another viewer, for whom everything is decided, too.
    compared: Option<ComparedViewer>,
}

/// By the policies of the state, and of the newest of `main` if these differ; none lets nothing be seen.
#[derive(Debug, Clone)]
struct EffectivePermissions([Option<Arc<ViewerPermissions>>; 2]);

/// Another viewer of the same state.
#[derive(Debug, Clone)]
struct ComparedViewer {
    /// Its lenses; nothing where all decisions are the same anyway.
    permissions: Option<EffectivePermissions>,
    /// Whether one decision was another one.
    differs: Arc<AtomicBool>,
}

/// What a viewer may do, apart from who it is: viewers with equal ones are decided about alike in all that is asked of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessFingerprint([Option<ChunkId>; 2]);

impl fmt::Display for AccessFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().flatten().try_for_each(|lens| write!(f, "{lens}"))
    }
}

/// By which policies and accounts a door was opened; equal ones decide alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessPolicyIds {
    own_id: u64,
    main_id: u64,
}

/// What of a document is hidden.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct AccessMask {
    /// Nodes, by where they are in the body.
    hidden_nodes: HashSet<u32>,
    /// Properties by node; nothing stands for all of them.
    hidden_properties: HashMap<u32, Option<Vec<Box<str>>>>,
}

impl AccessGate {
    /// Tells whether the policies of the state decide alone.
    pub(crate) fn is_state_only(&self) -> bool {
        let EffectivePermissions([own, newest]) = &self.permissions;
        own.is_some() && newest.is_none()
    }

    /// Returns the number of the rules that decide here alone, so that what they decided about a node stays decided; nothing
    /// while others have a say, too.
    pub(crate) fn rule_number(&self) -> Option<u64> {
        match (&self.permissions.0, &self.compared) {
            ([Some(lens), None], None) => Some(lens.rule_number()),
            _ => None,
        }
    }

    /// Opens the door of a state for a viewer. The one that was opened last is opened again as it is.
    pub(crate) fn open(snapshot: &Snapshot, viewer: &Viewer) -> Result<Arc<Self>> {
        let view = &snapshot.0;
        let cache = &view.repository_state.cache.access_policies;
        if !is_commit_base(view)
            && let Some(main) = view.repository_state.chunks.read_ref(MAIN_BRANCH)?
            && let Some(gate) = cache.cached_gate(view.content_map, main, viewer)
        {
            return Ok(gate);
        }
        let (gate, _, main) = Self::open_at_newest(view, viewer)?;
        let gate = Arc::new(gate);
        if let Some(main) = main {
            cache.cache_gate(view.content_map, main, viewer, &gate);
        }
        Ok(gate)
    }

    /// Opens the door of a state for a viewer, and tells by which policies and accounts.
    pub(crate) fn open_with_policy_ids(
        view: &SnapshotView,
        viewer: &Viewer,
    ) -> Result<(Self, AccessPolicyIds)> {
        let (gate, rulings, _) = Self::open_at_newest(view, viewer)?;
        Ok((gate, rulings))
    }

    /// Opens the door of a state for a viewer, and tells the newest state of `main`. A state of `main` that a commit is written
    /// over is its newest one, durable or not, and has no name.
    fn open_at_newest(
        view: &SnapshotView,
        viewer: &Viewer,
    ) -> Result<(Self, AccessPolicyIds, Option<ChunkId>)> {
        let cache = &view.repository_state.cache.access_policies;
        let own = cache.policies_of(view)?;
        let (main, root) = match is_commit_base(view) {
            true => (own.clone(), None),
            false => {
                let (main, root) = cache.policies_of_newest(&view.repository_state)?;
                (main, Some(root))
            }
        };
        let other = (own.id != main.id).then(|| main.permissions_for(&viewer.0, &main));
        let rulings = AccessPolicyIds { own_id: own.id, main_id: main.id };
        let own = EffectivePermissions([Some(own.permissions_for(&viewer.0, &main)), other]);
        Ok((Self { permissions: own, compared: None }, rulings, root))
    }

    /// Makes a door that lets nothing through.
    pub(crate) fn deny_all() -> Self {
        Self { permissions: EffectivePermissions([None, None]), compared: None }
    }

    /// Returns the same door, which notes what it would have decided otherwise for the viewer of another one.
    pub(crate) fn compared_with(&self, other: &Self) -> Self {
        let is_shut = self.permissions.0[0].is_none() || other.permissions.0[0].is_none();
        let lenses = (self.fingerprint() != other.fingerprint()).then(|| other.permissions.clone());
        let beside =
            ComparedViewer { permissions: lenses, differs: Arc::new(AtomicBool::new(is_shut)) };
        Self { permissions: self.permissions.clone(), compared: Some(beside) }
    }

    /// Tells whether all that was decided would be the same for the viewer beside; nothing if there is none.
    pub(crate) fn is_decided_alike(&self) -> Option<bool> {
        self.compared.as_ref().map(|beside| !beside.differs.load(Ordering::Relaxed))
    }

    /// Returns what the viewer may do, apart from who it is.
    pub(crate) fn fingerprint(&self) -> AccessFingerprint {
        AccessFingerprint(
            [0, 1].map(|at: usize| self.permissions.0.get(at)?.as_ref().map(|lens| lens.digest())),
        )
    }

    /// Decides, and notes whether the viewer beside is decided about alike.
    fn decide_with<T: PartialEq>(&self, of: impl Fn(&EffectivePermissions) -> T) -> T {
        let own = of(&self.permissions);
        if let Some(ComparedViewer { permissions: Some(lenses), differs }) = &self.compared
            && !differs.load(Ordering::Relaxed)
            && of(lenses) != own
        {
            differs.store(true, Ordering::Relaxed);
        }
        own
    }

    /// Tells whether no policy binds the viewer.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.decide_with(|lenses| {
            lenses.all_permit(|lens| matches!(lens, ViewerPermissions::Unrestricted))
        })
    }

    /// Tells whether a node is seen.
    pub(crate) fn can_see(&self, path: &NodePath, primary_type: &str) -> bool {
        self.decide_with(|lenses| lenses.can_see(path, primary_type))
    }

    /// Returns which of the wanted privileges are granted for an item.
    pub(crate) fn granted_privileges(
        &self,
        item: &AccessedItem<'_>,
        wanted: Privileges,
    ) -> Privileges {
        self.decide_with(|lenses| {
            lenses.granted_privileges(wanted, |lens, left| lens.granted_privileges(item, left))
        })
    }

    /// Returns which of the wanted privileges are granted for the repository as a whole.
    pub(crate) fn granted_in_repository(&self, wanted: Privileges) -> Privileges {
        self.decide_with(|lenses| {
            lenses.granted_privileges(wanted, ViewerPermissions::granted_in_repository)
        })
    }

    /// Returns how the children of a node are seen, policies among them left out.
    pub(crate) fn child_visibility(&self, path: &NodePath) -> ChildVisibility {
        self.decide_with(|lenses| lenses.child_visibility(path))
    }

    /// Tells whether everything that a record holds besides policies and passwords is seen: the node and, unless its
    /// children have records of their own, all below. Gives `false` in doubt.
    pub(crate) fn can_see_record(&self, path: &NodePath, inner: RecordExtent) -> bool {
        self.decide_with(|lenses| lenses.can_see_record(path, inner))
    }

    /// Returns what of a document is hidden; nothing if all of it is seen.
    pub(crate) fn compute_mask(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        inner: RecordExtent,
    ) -> Option<Arc<AccessMask>> {
        let mask =
            self.decide_with(|lenses| ComparableMask(lenses.compute_mask(path, body, inner)));
        mask.0.map(Arc::new)
    }
}

/// Tells whether a state is one that a commit to `main` is written over.
fn is_commit_base(view: &SnapshotView) -> bool {
    view.repository_state.branch == MAIN_BRANCH && view.repository_state.session_committer.is_none()
}

/// What of a document is hidden: nothing, in either way of saying so, is the same.
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
        self.0[0].is_some() && self.0.iter().flatten().all(|lens| sees(lens))
    }

    fn can_see(&self, path: &NodePath, primary_type: &str) -> bool {
        self.all_permit(|lens| lens.can_see(path.as_str(), primary_type))
            && !is_secret_path(path.as_str())
    }

    fn granted_privileges(
        &self,
        wanted: Privileges,
        of: impl Fn(&ViewerPermissions, Privileges) -> Privileges,
    ) -> Privileges {
        if self.0[0].is_none() {
            return Privileges::NONE;
        }
        self.0.iter().flatten().fold(wanted, |left, lens| of(lens, left))
    }

    fn child_visibility(&self, path: &NodePath) -> ChildVisibility {
        let mut lenses = self.0.iter().flatten();
        let Some(first) = lenses.next() else {
            return ChildVisibility::Uniform { is_visible: false, exceptions: BTreeMap::new() };
        };
        let own = first.child_visibility(path.as_str());
        lenses
            .fold(own, |own, lens| intersect_visibility(own, lens.child_visibility(path.as_str())))
    }

    fn can_see_record(&self, path: &NodePath, inner: RecordExtent) -> bool {
        let path = path.as_str();
        self.all_permit(|lens| match inner {
            RecordExtent::All => lens.can_see_subtree(path),
            RecordExtent::None => lens.can_see_whole_node(path),
            RecordExtent::JcrContent => {
                let content = format!("{path}/{}", crate::JCR_CONTENT);
                lens.can_see_whole_node(path) && lens.can_see_subtree(&content)
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

    /// Notes what is hidden of a node and below it.
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
            let is_visible = name != PASSWORD_PROPERTY
                && self.all_permit(|lens| lens.can_see_property(path.as_str(), primary_type, name));
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

/// What a record holds below its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordExtent {
    /// Everything: a document.
    All,
    /// `jcr:content`: a page.
    JcrContent,
    /// Nothing: a folder.
    None,
}

impl AccessMask {
    /// Tells whether a node is seen.
    pub(crate) fn is_visible(&self, node: BodyNode) -> bool {
        !self.hidden_nodes.contains(&node.offset_id())
    }

    /// Decodes what is seen of a node and all below it.
    pub(crate) fn visible_subtree(&self, body: &DocumentBody, node: BodyNode) -> Subtree {
        let properties =
            body.properties(node).filter(|(name, _)| self.is_property_visible(node, name));
        let children = body.children(node).filter(|child| self.is_visible(*child));
        Subtree {
            name: body.name(node).to_owned(),
            properties: properties
                .map(|(name, property)| (name.to_owned(), property.to_property()))
                .collect(),
            children: children.map(|child| self.visible_subtree(body, child)).collect(),
        }
    }

    /// Tells whether a property of a node is seen.
    pub(crate) fn is_property_visible(&self, node: BodyNode, name: &str) -> bool {
        match self.hidden_properties.get(&node.offset_id()) {
            None => true,
            Some(None) => false,
            Some(Some(hidden)) => !hidden.iter().any(|one| **one == *name),
        }
    }
}

/// Tells whether a body with these names may hold what is hidden from nearly everybody.
pub(crate) fn is_guarded_name(name: &str) -> bool {
    name == PASSWORD_PROPERTY || name == PASSWORD_HISTORY_NODE || is_policy_name(name)
}

/// Returns the names of children that are decided by themselves, whatever counts for their siblings.
pub(crate) const GUARDED_CHILD_NAMES: [&str; 5] =
    ["rep:policy", "rep:repoPolicy", "rep:cugPolicy", "rep:principalPolicy", PASSWORD_HISTORY_NODE];

fn is_secret_path(path: &str) -> bool {
    path.contains("/rep:pwd") && path.split('/').any(|name| name == PASSWORD_HISTORY_NODE)
}

/// Joins two views of the same children: seen is what both see.
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
        let seen = left_others.get(name).copied().unwrap_or(left)
            && right_others.get(name).copied().unwrap_or(right);
        (seen != is_visible).then(|| (name.clone(), seen))
    });
    ChildVisibility::Uniform { is_visible, exceptions: others.collect() }
}
