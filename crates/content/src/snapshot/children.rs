//! Children of a node: all of them, a page of them, how many there are, and lists of which no node is made before it is
//! reached.
//!
//! Invariants
//! * Children that have records of their own are listed from the headers of these, without reading a body.
//! * Where the children of a node are is kept in memory beside the content map that they were found in, seen or not; what
//!   of them a viewer sees is decided each time.
//!
//! Not here: pages that begin behind a name ([`crate::listing`]), and what a viewer sees of a listing ([`crate::access`]).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::node::HeldBody;
use super::place::{Place, PlaceKey, PlaceKind, PlaceQuery};
use super::view::{Found, damaged};
use super::{Node, Snapshot};
use crate::access::{Children, is_guarded_child};
use crate::body::Body;
use crate::boundary::{has_ordered_children, is_container};
use crate::record::Record;
use crate::{Error, NodePath, Result, keys};

/// Longer lists of children are read anew each time: navigations have no such lists, and few of them would fill the memory.
const MAX_KEPT_CHILDREN: usize = 2048;

/// All children of a node of one kind, in order: those with records of their own, or those inside its document.
pub(crate) struct ChildPlaces {
    places: Box<[Arc<Place>]>,
    /// Whether access control decides about one of them by its name.
    has_guarded: bool,
}

impl ChildPlaces {
    fn new(places: Vec<Arc<Place>>) -> Self {
        let has_guarded = places.iter().any(|place| is_guarded_child(place.path.name()));
        Self { places: places.into(), has_guarded }
    }

    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns them in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Place>> {
        self.places.iter()
    }
}

/// The children of a node that a viewer sees, in order, which become nodes when they are reached.
pub struct ChildList(ListKind);

enum ListKind {
    /// All of them are seen.
    Places {
        snapshot: Snapshot,
        places: Arc<ChildPlaces>,
        /// The document's body, of children inside it.
        body: Option<Arc<Body>>,
    },
    Nodes(Vec<Node>),
}

impl ChildList {
    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            ListKind::Places { places, .. } => places.len(),
            ListKind::Nodes(nodes) => nodes.len(),
        }
    }

    /// Tells whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the one at a place, counted from 0.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<Node> {
        match &self.0 {
            ListKind::Places { snapshot, places, body } => {
                let body = body.clone().map_or_else(HeldBody::default, HeldBody::Known);
                Some(Node::at_place(snapshot.clone(), places.places.get(index)?.clone(), body))
            }
            ListKind::Nodes(nodes) => nodes.get(index).cloned(),
        }
    }

    /// Returns them in order.
    pub fn iter(&self) -> impl Iterator<Item = Node> {
        (0..self.len()).filter_map(|index| self.at(index))
    }

    /// Returns their paths in order.
    pub fn paths(&self) -> impl Iterator<Item = &NodePath> {
        (0..self.len()).filter_map(|index| match &self.0 {
            ListKind::Places { places, .. } => Some(&places.places.get(index)?.path),
            ListKind::Nodes(nodes) => Some(nodes.get(index)?.path()),
        })
    }
}

impl fmt::Debug for ChildList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.paths()).finish()
    }
}

impl Node {
    /// Returns the children in order: by name where the type has no order.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children(&self) -> Result<Vec<Self>> {
        let mut children: Vec<Self> = match self.body() {
            Some(body) => body
                .children(self.at(body))
                .filter(|at| self.mask().is_none_or(|mask| mask.shows(*at)))
                .map(|at| self.inner(body, at, self.path().child_unchecked(body.name(at))))
                .collect(),
            None => Vec::new(),
        };
        let listed = self.listed_children()?;
        if children.is_empty() {
            return Ok(listed);
        }
        children.extend(listed);
        Ok(children)
    }

    /// Returns the children that have records of their own, in order, without reading any body: all but `jcr:content`
    /// of a page, all of a folder, none of other nodes.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_children(&self) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.seen_children() {
            None => {
                let places = self.places_of_children()?;
                Ok(places.iter().map(|place| self.child_at(place)).collect())
            }
            Some(seen) => {
                let mut children = self.seen_listed_children(&seen)?;
                if has_ordered_children(self.primary_type()) {
                    // Stable: those with equal order keys stay sorted by name.
                    children.sort_by(|left, right| left.record().order.cmp(&right.record().order));
                }
                Ok(children)
            }
        }
    }

    /// Returns where the children are that have records of their own, seen or not, in order.
    pub(crate) fn places_of_children(&self) -> Result<Arc<ChildPlaces>> {
        if let Some(kept) = self.kept_places() {
            return Ok(kept);
        }
        let range = keys::children_of(self.path())?;
        let place = |entry: Result<(Bytes, Found<'_>)>| {
            let (key, found) = entry?;
            let path = self.path().child_unchecked(keys::name_of(&key)?);
            Ok(Place::new(path, PlaceKind::Document(found.record(&key)?)))
        };
        let entries = self.snapshot.0.entries(&range);
        let mut places = entries.map(place).collect::<Result<Vec<_>>>()?;
        if has_ordered_children(self.primary_type()) {
            places.sort_by(|left, right| left.document().1.order.cmp(&right.document().1.order));
        }
        Ok(self.keep_places(places))
    }

    /// Returns where the children are that lie in the document, seen or not, in order.
    fn places_inside(&self, body: &Arc<Body>) -> Arc<ChildPlaces> {
        if let Some(kept) = self.kept_places() {
            return kept;
        }
        let place = |at| {
            let path = self.path().child_unchecked(body.name(at));
            let (document, body) = (self.document_place().clone(), Arc::downgrade(body));
            Place::new(path, PlaceKind::Inside { document, at, body })
        };
        self.keep_places(body.children(self.at(body)).map(place).collect())
    }

    /// Returns the places of the children as they were found before.
    fn kept_places(&self) -> Option<Arc<ChildPlaces>> {
        let view = &self.snapshot.0;
        view.shared.bodies.listings.get(&PlaceQuery(&view.known_map()?, self.path()))
    }

    /// Keeps the places of the children for whoever asks for them again.
    fn keep_places(&self, places: Vec<Arc<Place>>) -> Arc<ChildPlaces> {
        let (view, places) = (&self.snapshot.0, Arc::new(ChildPlaces::new(places)));
        if let Some(content) = view.known_map().filter(|_| places.len() <= MAX_KEPT_CHILDREN) {
            let key = PlaceKey(content, self.path().clone());
            view.shared.bodies.listings.insert(key, Arc::clone(&places));
        }
        places
    }

    /// Returns what [`Node::children`] does, as a list whose nodes are made when they are reached.
    ///
    /// # Errors
    /// If the store fails.
    pub fn child_list(&self) -> Result<ChildList> {
        let snapshot = || self.snapshot.clone();
        if self.is_folder() {
            let has_inner = |body: &Arc<Body>| body.children(self.at(body)).next().is_some();
            if !self.body().is_some_and(has_inner) {
                let places = self.places_of_children()?;
                if self.sees_all_of(&places) {
                    return Ok(ChildList(ListKind::Places {
                        snapshot: snapshot(),
                        places,
                        body: None,
                    }));
                }
            }
        } else if let Some(body) = self.body()
            && self.mask().is_none()
        {
            let (places, body) = (self.places_inside(body), Some(Arc::clone(body)));
            return Ok(ChildList(ListKind::Places { snapshot: snapshot(), places, body }));
        }
        Ok(ChildList(ListKind::Nodes(self.children()?)))
    }

    /// Tells whether all children that have records of their own are seen. Gives `false` in doubt.
    fn sees_all_of(&self, places: &ChildPlaces) -> bool {
        match self.seen_children() {
            None => true,
            Some(Children::Alike { is_visible, others }) => {
                is_visible && others.is_empty() && !places.has_guarded
            }
            Some(Children::Each) => false,
        }
    }

    /// Makes the node of a child that has a record of its own.
    pub(crate) fn child_at(&self, place: &Arc<Place>) -> Self {
        Self::at_place(self.snapshot.clone(), Arc::clone(place), HeldBody::default())
    }

    /// Returns a page of what [`Node::listed_children`] gives: at most `limit` children, `offset` of them skipped. The
    /// headers of the others are not read where children have an order, and nothing behind the page is.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.seen_children() {
            None => self.any_listed_page(offset, limit),
            Some(seen) => self.seen_listed_page(&seen, offset, limit),
        }
    }

    /// Returns a page of all children that have records of their own, seen or not.
    pub(crate) fn any_listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        let view = &self.snapshot.0;
        if !has_ordered_children(self.primary_type()) {
            let range = keys::children_of(self.path())?;
            return view
                .page(&range, offset, limit)
                .map(|entry| self.listed_child(entry))
                .collect();
        }
        let Some(siblings) = view.siblings(self.path())? else {
            return Ok(self.listed_children()?.into_iter().skip(offset).take(limit).collect());
        };
        let child = |entry: Vec<u8>| {
            let key = siblings.record_of(&entry)?;
            let record = view.find(&key)?;
            let missing = "its map of order keys lists a child that is not there";
            let record = record.ok_or_else(|| damaged(self.path(), missing))?;
            Ok(self.listed(self.path().child_unchecked(keys::name_of(&key)?), record))
        };
        siblings.page(offset, limit)?.into_iter().map(child).collect()
    }

    /// Counts what [`Node::listed_children`] gives, without decoding headers.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_listed_children(&self) -> Result<usize> {
        if !self.is_folder() {
            return Ok(0);
        }
        match self.seen_children() {
            None => self.count_any_listed_children(),
            Some(seen) => self.count_seen_listed_children(&seen),
        }
    }

    /// Counts all children that have records of their own, seen or not.
    pub(crate) fn count_any_listed_children(&self) -> Result<usize> {
        let range = keys::children_of(self.path())?;
        let view = &self.snapshot.0;
        if view.overlay.range::<[u8], _>(range.bounds()).next().is_some() {
            return view.entries(&range).try_fold(0, |count, entry| entry.map(|_| count + 1));
        }
        let count = view.content.count_in(view.shared.reads(), &range)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Makes the node of a child that the range of children gave.
    fn listed_child(&self, entry: Result<(Bytes, Found<'_>)>) -> Result<Self> {
        let (key, found) = entry?;
        let path = self.path().child_unchecked(keys::name_of(&key)?);
        Ok(self.listed(path, found.record(&key)?))
    }

    /// Makes the node of a record that a range gave.
    pub(crate) fn listed(&self, path: NodePath, record: Record) -> Self {
        self.snapshot.own_node(path, record)
    }

    /// Tells whether children of the node have records of their own.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        match &self.place.kind {
            PlaceKind::Document(record) => is_container(self.name(), record.summary.primary_type()),
            PlaceKind::Inside { .. } => false,
        }
    }

    /// Tells whether the node has children with records of their own.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_listed_children(&self) -> Result<bool> {
        if !self.is_folder() {
            return Ok(false);
        }
        if let Some(seen) = self.seen_children() {
            return self.has_seen_listed_children(&seen);
        }
        let range = keys::children_of(self.path())?;
        Ok(self.snapshot.0.entries(&range).next().transpose()?.is_some())
    }

    /// Returns every node below that has a record of its own, in order of keys, without reading any body.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_descendants(&self) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        let mut nodes = Vec::new();
        self.visit_listed_descendants(|node| -> Result<()> {
            nodes.push(node);
            Ok(())
        })?;
        Ok(nodes)
    }

    /// Calls `visit` with every node below that has a record of its own, in order of keys, without reading any body. One node
    /// at a time is in memory; the first error ends it.
    ///
    /// # Errors
    /// If the store fails; the errors of `visit`.
    pub fn visit_listed_descendants<E: From<Error>>(
        &self,
        mut visit: impl FnMut(Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !self.is_folder() {
            return Ok(());
        }
        let range = keys::below(self.path())?;
        for entry in self.snapshot.0.entries(&range) {
            let (key, found) = entry?;
            let node = self.listed(keys::path_of(&key)?, found.record(&key)?);
            if node.is_seen() {
                visit(node)?;
            }
        }
        Ok(())
    }

    /// Returns how the viewer sees the children; nothing if it is the program itself.
    fn seen_children(&self) -> Option<Children> {
        self.snapshot.1.as_ref().map(|gate| gate.children(self.path()))
    }
}
