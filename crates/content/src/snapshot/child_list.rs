//! Children of a node: all of them, a page of them, their number, and lists whose nodes are created on access.
//!
//! Invariants
//! * Children that have records of their own are listed from the record headers, without reading a body.
//! * The locations of a node's children, visible or not, are cached by the content map in which they were found. What a
//!   viewer sees of them is decided on each access.
//!
//! Not here: pages that begin after a name ([`crate::document::child_listing`]), and what a viewer sees of a listing
//! ([`crate::access`]).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::child_locations::ChildLocations;
use super::node::{Node, NodeBody};
use super::node_location::{NodeLocation, NodeLocationKey, NodeLocationKeyRef, NodeLocationKind};
use super::pinned_snapshot::Snapshot;
use super::snapshot_view::{RangeRecord, damaged_record_error};
use crate::access::ChildVisibility;
use crate::document::body::DocumentBody;
use crate::document::boundary::{has_ordered_children, is_container};
use crate::document::record::ContentRecord;
use crate::{Error, NodePath, Result, document::record_key};

/// Longer lists of children are not cached: navigations do not have such lists, and few of them would fill the cache.
const MAX_CACHED_CHILDREN: usize = 2048;

/// The children of a node that a viewer sees, in order; nodes are created on access.
pub struct ChildList(ChildListSource);

enum ChildListSource {
    /// All children are visible.
    Locations {
        snapshot: Snapshot,
        locations: Arc<ChildLocations>,
        /// The body of the document, for children inside it.
        body: Option<Arc<DocumentBody>>,
    },
    Nodes(Vec<Node>),
}

impl ChildList {
    /// Returns the number of children.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            ChildListSource::Locations { locations, .. } => locations.len(),
            ChildListSource::Nodes(nodes) => nodes.len(),
        }
    }

    /// Returns true if there are no children.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the child at an index, counted from 0.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Node> {
        match &self.0 {
            ChildListSource::Locations { snapshot, locations, body } => {
                let body = body.clone().map_or_else(NodeBody::default, NodeBody::Loaded);
                Some(Node::at_location(snapshot.clone(), locations.get(index)?.clone(), body))
            }
            ChildListSource::Nodes(nodes) => nodes.get(index).cloned(),
        }
    }

    /// Returns the children in order.
    pub fn iter(&self) -> impl Iterator<Item = Node> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Returns the paths of the children in order.
    pub fn paths(&self) -> impl Iterator<Item = &NodePath> {
        (0..self.len()).filter_map(|index| match &self.0 {
            ChildListSource::Locations { locations, .. } => Some(&locations.get(index)?.path),
            ChildListSource::Nodes(nodes) => Some(nodes.get(index)?.path()),
        })
    }
}

impl fmt::Debug for ChildList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.paths()).finish()
    }
}

impl Node {
    /// Returns the children in order; by name if the type defines no order.
    ///
    /// # Errors
    /// If the store fails.
    pub fn children(&self) -> Result<Vec<Self>> {
        let mut children: Vec<Self> = match self.load_body() {
            Some(body) => body
                .children(self.body_node(body))
                .filter(|at| self.access_mask().is_none_or(|mask| mask.is_visible(*at)))
                .map(|at| self.inner_node(body, at, self.path().child_unchecked(body.name(at))))
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

    /// Returns the children that have records of their own, in order, without reading any body: all except
    /// `jcr:content` for a page, all for a folder, none for other nodes.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_children(&self) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.child_visibility() {
            None => {
                let locations = self.child_locations()?;
                Ok(locations.iter().map(|location| self.child_at_location(location)).collect())
            }
            Some(visibility) => {
                let mut children = self.visible_listed_children(&visibility)?;
                if has_ordered_children(self.primary_type()) {
                    // The sort is stable, so children with equal order keys stay sorted by name.
                    children.sort_by(|left, right| {
                        left.record().order_key.cmp(&right.record().order_key)
                    });
                }
                Ok(children)
            }
        }
    }

    /// Returns the locations of the children that have records of their own, visible or not, in order.
    pub(crate) fn child_locations(&self) -> Result<Arc<ChildLocations>> {
        if let Some(cached_locations) = self.cached_child_locations() {
            return Ok(cached_locations);
        }
        let range = record_key::child_key_range(self.path())?;
        let location = |entry: Result<(Bytes, RangeRecord<'_>)>| {
            let (key, record) = entry?;
            let path = self.path().child_unchecked(record_key::record_name(&key)?);
            Ok(NodeLocation::new(path, NodeLocationKind::Document(record.into_record(&key)?)))
        };
        let entries = self.snapshot.view.range_records(&range);
        let mut locations = entries.map(location).collect::<Result<Vec<_>>>()?;
        if has_ordered_children(self.primary_type()) {
            locations.sort_by(|left, right| {
                left.document_record().1.order_key.cmp(&right.document_record().1.order_key)
            });
        }
        Ok(self.cache_child_locations(locations))
    }

    /// Returns the locations of the children inside the document, visible or not, in order.
    fn inner_child_locations(&self, body: &Arc<DocumentBody>) -> Arc<ChildLocations> {
        if let Some(cached_locations) = self.cached_child_locations() {
            return cached_locations;
        }
        let location = |at| {
            let path = self.path().child_unchecked(body.name(at));
            let (document, body) = (self.document_location().clone(), Arc::downgrade(body));
            NodeLocation::new(path, NodeLocationKind::Inside { document, body_node: at, body })
        };
        self.cache_child_locations(body.children(self.body_node(body)).map(location).collect())
    }

    /// Returns the cached locations of the children.
    fn cached_child_locations(&self) -> Option<Arc<ChildLocations>> {
        let view = &self.snapshot.view;
        view.repository_state
            .cache
            .child_locations
            .get(&NodeLocationKeyRef(&view.cacheable_map_id()?, self.path()))
    }

    /// Caches the locations of the children.
    fn cache_child_locations(&self, locations: Vec<Arc<NodeLocation>>) -> Arc<ChildLocations> {
        let (view, cached_locations) =
            (&self.snapshot.view, Arc::new(ChildLocations::new(locations)));
        if let Some(content) =
            view.cacheable_map_id().filter(|_| cached_locations.len() <= MAX_CACHED_CHILDREN)
        {
            let key = NodeLocationKey(content, self.path().clone());
            view.repository_state.cache.child_locations.insert(key, Arc::clone(&cached_locations));
        }
        cached_locations
    }

    /// Returns the same children as [`Node::children`], as a list whose nodes are created on access.
    ///
    /// # Errors
    /// If the store fails.
    pub fn child_list(&self) -> Result<ChildList> {
        let snapshot = || self.snapshot.clone();
        if self.is_folder() {
            let has_inner =
                |body: &Arc<DocumentBody>| body.children(self.body_node(body)).next().is_some();
            if !self.load_body().is_some_and(has_inner) {
                let locations = self.child_locations()?;
                if self.can_see_all(&locations) {
                    return Ok(ChildList(ChildListSource::Locations {
                        snapshot: snapshot(),
                        locations,
                        body: None,
                    }));
                }
            }
        } else if let Some(body) = self.load_body()
            && self.access_mask().is_none()
        {
            let (locations, body) = (self.inner_child_locations(body), Some(Arc::clone(body)));
            return Ok(ChildList(ChildListSource::Locations {
                snapshot: snapshot(),
                locations,
                body,
            }));
        }
        Ok(ChildList(ChildListSource::Nodes(self.children()?)))
    }

    /// Returns true if all children that have records of their own are known to be visible; `false` if in doubt.
    fn can_see_all(&self, locations: &ChildLocations) -> bool {
        match self.child_visibility() {
            None => true,
            Some(ChildVisibility::Uniform { is_visible, exceptions }) => {
                is_visible && exceptions.is_empty() && !locations.has_access_controlled()
            }
            Some(ChildVisibility::Individual) => false,
        }
    }

    /// Creates the node of a child that has a record of its own.
    pub(crate) fn child_at_location(&self, location: &Arc<NodeLocation>) -> Self {
        Self::at_location(self.snapshot.clone(), Arc::clone(location), NodeBody::default())
    }

    /// Returns a page of [`Node::listed_children`]: at most `limit` children after skipping `offset`. If the children
    /// are ordered, only the headers of the page are read; nothing after the page is read.
    ///
    /// # Errors
    /// If the store fails.
    pub fn listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        if !self.is_folder() {
            return Ok(Vec::new());
        }
        match self.child_visibility() {
            None => self.unfiltered_listed_page(offset, limit),
            Some(visibility) => self.visible_listed_page(&visibility, offset, limit),
        }
    }

    /// Returns a page of all children that have records of their own, visible or not.
    pub(crate) fn unfiltered_listed_page(&self, offset: usize, limit: usize) -> Result<Vec<Self>> {
        let view = &self.snapshot.view;
        if !has_ordered_children(self.primary_type()) {
            let range = record_key::child_key_range(self.path())?;
            return view
                .range_record_page(&range, offset, limit)
                .map(|entry| self.child_from_entry(entry))
                .collect();
        }
        let Some(siblings) = view.ordered_siblings(self.path())? else {
            return Ok(self.listed_children()?.into_iter().skip(offset).take(limit).collect());
        };
        let child = |entry: Vec<u8>| {
            let key = siblings.entry_record_key(&entry)?;
            let record = view.find_record(&key)?;
            let missing = "its map of order keys lists a child that does not exist";
            let record = record.ok_or_else(|| damaged_record_error(self.path(), missing))?;
            Ok(self.node_from_record(
                self.path().child_unchecked(record_key::record_name(&key)?),
                record,
            ))
        };
        siblings.entry_page(offset, limit)?.into_iter().map(child).collect()
    }

    /// Counts the children that [`Node::listed_children`] returns, without decoding headers.
    ///
    /// # Errors
    /// If the store fails.
    pub fn count_listed_children(&self) -> Result<usize> {
        if !self.is_folder() {
            return Ok(0);
        }
        match self.child_visibility() {
            None => self.count_unfiltered_children(),
            Some(visibility) => self.count_visible_listed_children(&visibility),
        }
    }

    /// Counts all children that have records of their own, visible or not.
    pub(crate) fn count_unfiltered_children(&self) -> Result<usize> {
        let range = record_key::child_key_range(self.path())?;
        let view = &self.snapshot.view;
        if view.record_edits.range::<[u8], _>(range.bounds()).next().is_some() {
            return view.range_records(&range).try_fold(0, |count, entry| entry.map(|_| count + 1));
        }
        let count =
            view.content_map.count_records_in(view.repository_state.chunk_reader(), &range)?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Creates the node of a child from an entry of the range of children.
    fn child_from_entry(&self, entry: Result<(Bytes, RangeRecord<'_>)>) -> Result<Self> {
        let (key, record) = entry?;
        let path = self.path().child_unchecked(record_key::record_name(&key)?);
        Ok(self.node_from_record(path, record.into_record(&key)?))
    }

    /// Creates the node of a record from a range.
    pub(crate) fn node_from_record(&self, path: NodePath, record: ContentRecord) -> Self {
        self.snapshot.record_node(path, record)
    }

    /// Returns true if children of the node have records of their own.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        match &self.location.kind {
            NodeLocationKind::Document(record) => {
                is_container(self.name(), record.summary.primary_type())
            }
            NodeLocationKind::Inside { .. } => false,
        }
    }

    /// Returns true if the node has children with records of their own.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_listed_children(&self) -> Result<bool> {
        if !self.is_folder() {
            return Ok(false);
        }
        if let Some(visibility) = self.child_visibility() {
            return self.has_visible_listed_children(&visibility);
        }
        let range = record_key::child_key_range(self.path())?;
        Ok(self.snapshot.view.range_records(&range).next().transpose()?.is_some())
    }

    /// Returns every descendant that has a record of its own, in key order, without reading any body.
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

    /// Calls `visit` with every descendant that has a record of its own, in key order, without reading any body. Only
    /// one node at a time is in memory. The first error ends the visit.
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
        let range = record_key::descendant_key_range(self.path())?;
        for entry in self.snapshot.view.range_records(&range) {
            let (key, record) = entry?;
            let node =
                self.node_from_record(record_key::record_path(&key)?, record.into_record(&key)?);
            if node.is_visible() {
                visit(node)?;
            }
        }
        Ok(())
    }

    /// Returns the visibility rules of the children for the viewer; `None` if the viewer is the program itself.
    fn child_visibility(&self) -> Option<ChildVisibility> {
        self.snapshot.node_gate().map(|gate| gate.child_visibility(self.path()))
    }
}
