//! The door of a snapshot: what one viewer sees of one state.
//!
//! In: the viewer's lenses. Out: whether a node, its properties and its children are seen; and for a document of which
//! only a part is, a [`Mask`].
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

use crate::access::lens::{Children, Lens};
use crate::access::policy::is_policy_name;
use crate::access::privilege::Privileges;
use crate::access::restriction::Item;
use crate::body::{Body, BodyNode};
use crate::repository::MAIN;
use crate::snapshot::View;
use crate::{NodePath, Result, Snapshot, Subtree};

use super::viewer::Viewer;

/// The property with the hash of a password.
const PASSWORD: &str = "rep:password";
/// The node with the hashes of former passwords.
const FORMER_PASSWORDS: &str = "rep:pwd";

/// What one viewer sees of one state.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    own: Lenses,
    /// Another viewer, for whom everything is decided, too.
    beside: Option<Beside>,
}

/// By the policies of the state, and of the newest of `main` if these differ; none lets nothing be seen.
#[derive(Debug, Clone)]
struct Lenses([Option<Arc<Lens>>; 2]);

/// Another viewer of the same state.
#[derive(Debug, Clone)]
struct Beside {
    /// Its lenses; nothing where all decisions are the same anyway.
    lenses: Option<Lenses>,
    /// Whether one decision was another one.
    differs: Arc<AtomicBool>,
}

/// What a viewer may do, apart from who it is: viewers with equal ones are decided about alike in all that is asked of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sight([Option<ChunkId>; 2]);

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().flatten().try_for_each(|lens| write!(f, "{lens}"))
    }
}

/// By which policies and accounts a door was opened; equal ones decide alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rulings {
    own: u64,
    main: u64,
}

/// What of a document is hidden.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Mask {
    /// Nodes, by where they are in the body.
    nodes: HashSet<u32>,
    /// Properties by node; nothing stands for all of them.
    properties: HashMap<u32, Option<Vec<Box<str>>>>,
}

impl Gate {
    /// Tells whether the policies of the state decide alone.
    pub(crate) fn is_of_state(&self) -> bool {
        let Lenses([own, newest]) = &self.own;
        own.is_some() && newest.is_none()
    }

    /// Returns the number of the rules that decide here alone, so that what they decided about a node stays decided; nothing
    /// while others have a say, too.
    pub(crate) fn number(&self) -> Option<u64> {
        match (&self.own.0, &self.beside) {
            ([Some(lens), None], None) => Some(lens.number()),
            _ => None,
        }
    }

    /// Opens the door of a state for a viewer. The one that was opened last is opened again as it is.
    pub(crate) fn open(snapshot: &Snapshot, viewer: &Viewer) -> Result<Arc<Self>> {
        let view = &snapshot.0;
        let cache = &view.shared.bodies.access;
        if !is_ahead(view)
            && let Some(main) = view.shared.chunks.read_ref(MAIN)?
            && let Some(gate) = cache.opened(view.content, main, viewer)
        {
            return Ok(gate);
        }
        let (gate, _, main) = Self::open_by(view, viewer)?;
        let gate = Arc::new(gate);
        if let Some(main) = main {
            cache.keep_opened(view.content, main, viewer, &gate);
        }
        Ok(gate)
    }

    /// Opens the door of a state for a viewer, and tells by which policies and accounts.
    pub(crate) fn open_with_rulings(view: &View, viewer: &Viewer) -> Result<(Self, Rulings)> {
        let (gate, rulings, _) = Self::open_by(view, viewer)?;
        Ok((gate, rulings))
    }

    /// Opens the door of a state for a viewer, and tells the newest state of `main`. A state of `main` that a commit is written
    /// over is its newest one, durable or not, and has no name.
    fn open_by(view: &View, viewer: &Viewer) -> Result<(Self, Rulings, Option<ChunkId>)> {
        let cache = &view.shared.bodies.access;
        let own = cache.of(view)?;
        let (main, root) = match is_ahead(view) {
            true => (own.clone(), None),
            false => {
                let (main, root) = cache.of_newest(&view.shared)?;
                (main, Some(root))
            }
        };
        let other = (own.id != main.id).then(|| main.lens(&viewer.0, &main));
        let rulings = Rulings { own: own.id, main: main.id };
        let own = Lenses([Some(own.lens(&viewer.0, &main)), other]);
        Ok((Self { own, beside: None }, rulings, root))
    }

    /// Makes a door that lets nothing through.
    pub(crate) fn shut() -> Self {
        Self { own: Lenses([None, None]), beside: None }
    }

    /// Returns the same door, which notes what it would have decided otherwise for the viewer of another one.
    pub(crate) fn beside(&self, other: &Self) -> Self {
        let is_shut = self.own.0[0].is_none() || other.own.0[0].is_none();
        let lenses = (self.sight() != other.sight()).then(|| other.own.clone());
        let beside = Beside { lenses, differs: Arc::new(AtomicBool::new(is_shut)) };
        Self { own: self.own.clone(), beside: Some(beside) }
    }

    /// Tells whether all that was decided would be the same for the viewer beside; nothing if there is none.
    pub(crate) fn decided_alike(&self) -> Option<bool> {
        self.beside.as_ref().map(|beside| !beside.differs.load(Ordering::Relaxed))
    }

    /// Returns what the viewer may do, apart from who it is.
    pub(crate) fn sight(&self) -> Sight {
        Sight([0, 1].map(|at: usize| self.own.0.get(at)?.as_ref().map(|lens| lens.digest())))
    }

    /// Decides, and notes whether the viewer beside is decided about alike.
    fn decide<T: PartialEq>(&self, of: impl Fn(&Lenses) -> T) -> T {
        let own = of(&self.own);
        if let Some(Beside { lenses: Some(lenses), differs }) = &self.beside
            && !differs.load(Ordering::Relaxed)
            && of(lenses) != own
        {
            differs.store(true, Ordering::Relaxed);
        }
        own
    }

    /// Tells whether no policy binds the viewer.
    pub(crate) fn is_unbound(&self) -> bool {
        self.decide(|lenses| lenses.all(|lens| matches!(lens, Lens::All)))
    }

    /// Tells whether a node is seen.
    pub(crate) fn sees(&self, path: &NodePath, primary_type: &str) -> bool {
        self.decide(|lenses| lenses.sees(path, primary_type))
    }

    /// Returns which of the wanted privileges are granted for an item.
    pub(crate) fn granted(&self, item: &Item<'_>, wanted: Privileges) -> Privileges {
        self.decide(|lenses| lenses.granted(wanted, |lens, left| lens.granted(item, left)))
    }

    /// Returns which of the wanted privileges are granted for the repository as a whole.
    pub(crate) fn granted_in_repository(&self, wanted: Privileges) -> Privileges {
        self.decide(|lenses| lenses.granted(wanted, Lens::granted_in_repository))
    }

    /// Returns how the children of a node are seen, policies among them left out.
    pub(crate) fn children(&self, path: &NodePath) -> Children {
        self.decide(|lenses| lenses.children(path))
    }

    /// Tells whether everything that a record holds besides policies and passwords is seen: the node and, unless its
    /// children have records of their own, all below. Gives `false` in doubt.
    pub(crate) fn sees_record(&self, path: &NodePath, inner: Inner) -> bool {
        self.decide(|lenses| lenses.sees_record(path, inner))
    }

    /// Returns what of a document is hidden; nothing if all of it is seen.
    pub(crate) fn mask(&self, path: &NodePath, body: &Body, inner: Inner) -> Option<Arc<Mask>> {
        let mask = self.decide(|lenses| Hidden(lenses.mask(path, body, inner)));
        mask.0.map(Arc::new)
    }
}

/// Tells whether a state is one that a commit to `main` is written over.
fn is_ahead(view: &View) -> bool {
    view.shared.branch == MAIN && view.shared.commits.is_none()
}

/// What of a document is hidden: nothing, in either way of saying so, is the same.
struct Hidden(Option<Mask>);

impl PartialEq for Hidden {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => own == other,
            (Some(mask), None) | (None, Some(mask)) => *mask == Mask::default(),
            (None, None) => true,
        }
    }
}

impl Lenses {
    fn all(&self, sees: impl Fn(&Lens) -> bool) -> bool {
        self.0[0].is_some() && self.0.iter().flatten().all(|lens| sees(lens))
    }

    fn sees(&self, path: &NodePath, primary_type: &str) -> bool {
        self.all(|lens| lens.sees(path.as_str(), primary_type)) && !is_secret_node(path.as_str())
    }

    fn granted(
        &self,
        wanted: Privileges,
        of: impl Fn(&Lens, Privileges) -> Privileges,
    ) -> Privileges {
        if self.0[0].is_none() {
            return Privileges::NONE;
        }
        self.0.iter().flatten().fold(wanted, |left, lens| of(lens, left))
    }

    fn children(&self, path: &NodePath) -> Children {
        let mut lenses = self.0.iter().flatten();
        let Some(first) = lenses.next() else {
            return Children::Alike { is_visible: false, others: BTreeMap::new() };
        };
        let own = first.children(path.as_str());
        lenses.fold(own, |own, lens| both(own, lens.children(path.as_str())))
    }

    fn sees_record(&self, path: &NodePath, inner: Inner) -> bool {
        let path = path.as_str();
        self.all(|lens| match inner {
            Inner::All => lens.sees_all(path),
            Inner::None => lens.sees_whole_node(path),
            Inner::Content => {
                let content = format!("{path}/{}", crate::JCR_CONTENT);
                lens.sees_whole_node(path) && lens.sees_all(&content)
            }
        })
    }

    fn mask(&self, path: &NodePath, body: &Body, inner: Inner) -> Option<Mask> {
        if !body.is_guarded() && self.sees_record(path, inner) {
            return None;
        }
        let mut mask = Mask::default();
        self.hide(path, body, body.root(), &mut mask);
        Some(mask)
    }

    /// Notes what is hidden of a node and below it.
    fn hide(&self, path: &NodePath, body: &Body, node: BodyNode, mask: &mut Mask) {
        let primary_type = body.text(node, crate::PRIMARY_TYPE).unwrap_or("nt:unstructured");
        let mut hidden = Vec::new();
        let mut has_visible = false;
        for (name, _) in body.properties(node) {
            let is_visible = name != PASSWORD
                && self.all(|lens| lens.sees_property(path.as_str(), primary_type, name));
            has_visible |= is_visible;
            if !is_visible {
                hidden.push(Box::from(name));
            }
        }
        if !hidden.is_empty() {
            mask.properties.insert(node.id(), has_visible.then_some(hidden));
        }
        for child in body.children(node) {
            let name = body.name(child);
            let child_path = path.child_unchecked(name);
            let child_type = body.text(child, crate::PRIMARY_TYPE).unwrap_or("nt:unstructured");
            if !self.sees(&child_path, child_type) {
                mask.nodes.insert(child.id());
            }
            self.hide(&child_path, body, child, mask);
        }
    }
}

/// What a record holds below its own node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inner {
    /// Everything: a document.
    All,
    /// `jcr:content`: a page.
    Content,
    /// Nothing: a folder.
    None,
}

impl Mask {
    /// Tells whether a node is seen.
    pub(crate) fn shows(&self, node: BodyNode) -> bool {
        !self.nodes.contains(&node.id())
    }

    /// Decodes what is seen of a node and all below it.
    pub(crate) fn subtree(&self, body: &Body, node: BodyNode) -> Subtree {
        let properties = body.properties(node).filter(|(name, _)| self.shows_property(node, name));
        let children = body.children(node).filter(|child| self.shows(*child));
        Subtree {
            name: body.name(node).to_owned(),
            properties: properties
                .map(|(name, property)| (name.to_owned(), property.to_property()))
                .collect(),
            children: children.map(|child| self.subtree(body, child)).collect(),
        }
    }

    /// Tells whether a property of a node is seen.
    pub(crate) fn shows_property(&self, node: BodyNode, name: &str) -> bool {
        match self.properties.get(&node.id()) {
            None => true,
            Some(None) => false,
            Some(Some(hidden)) => !hidden.iter().any(|one| **one == *name),
        }
    }
}

/// Tells whether a body with these names may hold what is hidden from nearly everybody.
pub(crate) fn is_guarded_name(name: &str) -> bool {
    name == PASSWORD || name == FORMER_PASSWORDS || is_policy_name(name)
}

/// Returns the names of children that are decided by themselves, whatever counts for their siblings.
pub(crate) const GUARDED_CHILDREN: [&str; 5] =
    ["rep:policy", "rep:repoPolicy", "rep:cugPolicy", "rep:principalPolicy", FORMER_PASSWORDS];

fn is_secret_node(path: &str) -> bool {
    path.contains("/rep:pwd") && path.split('/').any(|name| name == FORMER_PASSWORDS)
}

/// Joins two views of the same children: seen is what both see.
fn both(left: Children, right: Children) -> Children {
    let (
        Children::Alike { is_visible: left, others: left_others },
        Children::Alike { is_visible: right, others: right_others },
    ) = (left, right)
    else {
        return Children::Each;
    };
    let is_visible = left && right;
    let names: HashSet<&String> = left_others.keys().chain(right_others.keys()).collect();
    let others = names.into_iter().filter_map(|name| {
        let seen = left_others.get(name).copied().unwrap_or(left)
            && right_others.get(name).copied().unwrap_or(right);
        (seen != is_visible).then(|| (name.clone(), seen))
    });
    Children::Alike { is_visible, others: others.collect() }
}
