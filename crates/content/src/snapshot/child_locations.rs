//! The locations of the children of a node, as they are cached.

use std::sync::Arc;

use super::node_location::NodeLocation;
use crate::access::is_guarded_child;

/// All children of a node of one kind, in order: those with records of their own, or those inside its document.
pub(crate) struct ChildLocations {
    locations: Box<[Arc<NodeLocation>]>,
    /// True if access control decides about one of the children by its name.
    has_access_controlled: bool,
}

impl ChildLocations {
    pub(super) fn new(locations: Vec<Arc<NodeLocation>>) -> Self {
        let has_guarded = locations.iter().any(|location| is_guarded_child(location.path.name()));
        Self { locations: locations.into(), has_access_controlled: has_guarded }
    }

    /// Returns the number of children.
    pub(crate) fn len(&self) -> usize {
        self.locations.len()
    }

    /// Returns the location at an index, counted from 0.
    pub(super) fn get(&self, index: usize) -> Option<&Arc<NodeLocation>> {
        self.locations.get(index)
    }

    /// Returns true if access control decides about one of the children by its name.
    pub(super) fn has_access_controlled(&self) -> bool {
        self.has_access_controlled
    }

    /// Returns the locations in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<NodeLocation>> {
        self.locations.iter()
    }
}
