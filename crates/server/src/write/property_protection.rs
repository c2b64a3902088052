//! Protected properties: properties that only the repository may set, such as `jcr:uuid`, `jcr:created` and those of
//! users and policies.
//!
//! In: the properties that a request named, the nodes that it moved or copied, the state before it, and its pending
//! state. Out: an error for the first property that its node's types protect and whose value changes; unchanged values
//! that are sent back are accepted. Components are checked by their final container (`component_placement`).
//!
//! Not here: permissions to change a node (`content::access`), and importers, which contain such properties on purpose.

use tympan_content::{
    Error, MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Property, Session, Snapshot, Subtree,
};

use crate::failure::{RequestFailure, Result};
use crate::write::component_placement::PlacedComponents;

/// The property that makes a node a component.
const RESOURCE_TYPE_PROPERTY: &str = "sling:resourceType";

/// The properties that a request named, and the components that it placed.
#[derive(Debug, Default)]
pub(crate) struct RequestedProperties {
    properties: Vec<RequestedProperty>,
    placed_components: PlacedComponents,
}

/// The operation that relocated a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelocationKind {
    Move,
    Copy,
}

#[derive(Debug, Clone)]
struct RequestedProperty {
    /// The current path of the node.
    path: NodePath,
    /// The path of the node when the property was named.
    original_path: NodePath,
    name: String,
    /// The new value; `None` if the property is removed.
    value: Option<Property>,
    /// Index of the operation in its batch.
    operation: usize,
}

impl RequestedProperties {
    /// Records a property that is set or removed.
    pub(crate) fn add(
        &mut self,
        path: &NodePath,
        name: &str,
        value: Option<Property>,
        operation: usize,
    ) {
        if name == RESOURCE_TYPE_PROPERTY && value.is_some() {
            self.placed_components.add(path, operation);
        }
        let (path, origin) = (path.clone(), path.clone());
        self.properties.push(RequestedProperty {
            path,
            original_path: origin,
            name: name.to_owned(),
            value,
            operation,
        });
    }

    /// Records that a node was moved or copied: properties named below it are also checked at the new path.
    pub(crate) fn relocate(
        &mut self,
        from: &NodePath,
        to: &NodePath,
        kind: RelocationKind,
        operation: usize,
    ) {
        self.placed_components.relocate(from, to, kind, operation);
        let inside = |named: &RequestedProperty| {
            let path = named.path.rebase(from, to)?;
            Some(RequestedProperty { path, ..named.clone() })
        };
        let there: Vec<RequestedProperty> = self.properties.iter().filter_map(inside).collect();
        if kind == RelocationKind::Move {
            self.properties.retain(|named| !named.path.is_within(from));
        }
        self.properties.extend(there);
    }

    /// Records all properties of a subtree.
    pub(crate) fn add_tree(&mut self, path: &NodePath, tree: &Subtree, operation: usize) {
        for (name, property) in &tree.properties {
            self.add(path, name, Some(property.clone()), operation);
        }
        for child in &tree.children {
            if let Ok(path) = path.child(&child.name) {
                self.add_tree(&path, child, operation);
            }
        }
    }

    /// Returns an error for a change of a protected property, and for a component in a container that does not allow
    /// it.
    ///
    /// # Errors
    /// With the operation that named it; errors of the store.
    pub(crate) fn check_all(
        &self,
        base: &Snapshot,
        session: &mut Session,
    ) -> Result<(), OperationRefusal> {
        if self.properties.is_empty() && self.placed_components.is_empty() {
            return Ok(());
        }
        let states = ProtectionCheckStates::read_from(base, session)
            .map_err(|error| OperationRefusal::new(0, error.into()))?;
        for named in &self.properties {
            let checked = match &*named.name {
                PRIMARY_TYPE | MIXIN_TYPES => states.check_type_change(named),
                _ => states.check_property(named),
            };
            checked.map_err(|error| OperationRefusal::new(named.operation, error.into()))?;
        }
        self.placed_components.check_placements(&states.before_unrestricted, &states.pending)
    }

    /// Returns an error for a component in a container that does not allow it.
    ///
    /// # Errors
    /// With the operation that put it there; errors of the store.
    pub(crate) fn check_placements(
        &self,
        base: &Snapshot,
        session: &mut Session,
    ) -> Result<(), OperationRefusal> {
        if self.placed_components.is_empty() {
            return Ok(());
        }
        let states = ProtectionCheckStates::read_from(base, session)
            .map_err(|error| OperationRefusal::new(0, error.into()))?;
        self.placed_components.check_placements(&states.before_unrestricted, &states.pending)
    }

    /// Reverts changes of protected properties.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn revert_protected(&self, base: &Snapshot, session: &mut Session) -> Result<()> {
        let states = ProtectionCheckStates::read_from(base, session)?;
        let mut refused = Vec::new();
        for named in &self.properties {
            match states.check_property(named) {
                Ok(()) => {}
                Err(Error::ConstraintViolations(_)) => {
                    refused.push((
                        named,
                        find_property(&states.before_unrestricted, &named.path, &named.name)?,
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        drop(states);
        for (RequestedProperty { path, name, .. }, before) in refused {
            match before {
                Some(before) => session.set_property(path, name, before)?,
                None => drop(session.remove_property(path, name)?),
            }
        }
        Ok(())
    }
}

/// An error, with the operation that caused it.
#[derive(Debug)]
pub(crate) struct OperationRefusal {
    pub(crate) operation: usize,
    pub(crate) failure: Box<RequestFailure>,
}

impl OperationRefusal {
    pub(crate) fn new(operation: usize, failure: RequestFailure) -> Self {
        Self { operation, failure: Box::new(failure) }
    }
}

impl From<OperationRefusal> for RequestFailure {
    fn from(refused: OperationRefusal) -> Self {
        *refused.failure
    }
}

/// The state before a request, and the state with its edits.
struct ProtectionCheckStates {
    before: Snapshot,
    /// The state before the request without access control: a hidden value counts as unchanged.
    before_unrestricted: Snapshot,
    pending: Snapshot,
}

impl ProtectionCheckStates {
    fn read_from(base: &Snapshot, session: &mut Session) -> Result<Self, Error> {
        let whole = session.repository().snapshot_at(base.root_id())?;
        Ok(Self { before: base.clone(), before_unrestricted: whole, pending: session.snapshot()? })
    }

    fn check_property(&self, named: &RequestedProperty) -> Result<(), Error> {
        let RequestedProperty { path, original_path, name, value, .. } = named;
        let before = find_property(&self.before_unrestricted, original_path, name)?;
        if before == *value {
            return Ok(());
        }
        for property in [&before, value].into_iter().flatten() {
            self.before_unrestricted.check_settable(original_path, name, property)?;
            self.pending.check_settable(path, name, property)?;
        }
        Ok(())
    }

    /// Refuses types that would turn plain content into users or policies.
    fn check_type_change(&self, named: &RequestedProperty) -> Result<(), Error> {
        let RequestedProperty { path, original_path, .. } = named;
        let (Some(before), Some(after)) =
            (self.before.node(original_path)?, self.pending.node(path)?)
        else {
            return Ok(());
        };
        let is_same = |name| before.property(name) == after.property(name);
        if is_same(PRIMARY_TYPE) && is_same(MIXIN_TYPES) {
            return Ok(());
        }
        let own = after.properties().into_iter().filter(|(name, _)| name.starts_with("rep:"));
        for (name, property) in own {
            if self.before_unrestricted.check_settable(original_path, &name, &property).is_ok() {
                self.pending.check_settable(path, &name, &property)?;
            }
        }
        Ok(())
    }
}

/// Returns true if the types of a node protect one of its properties.
pub(crate) fn is_property_protected(node: &Node, name: &str, property: &Property) -> Result<bool> {
    match node.snapshot().check_settable(node.path(), name, property) {
        Ok(()) => Ok(false),
        Err(Error::ConstraintViolations(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn find_property(
    snapshot: &Snapshot,
    path: &NodePath,
    name: &str,
) -> Result<Option<Property>, Error> {
    Ok(snapshot.node(path)?.and_then(|node| node.property(name)))
}
