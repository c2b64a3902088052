//! What people may not set: properties that the repository alone sets, such as `jcr:uuid`, `jcr:created` and those of
//! users and policies.
//!
//! In: the properties that a request named, the nodes that it moved or copied, the state before it, and its pending state.
//! Out: a refusal of the first that its node's types protect and that changes; what is sent back as it was read passes.
//! Components are judged by where they lie in the end (`placed`).
//!
//! Not here: who may change a node (`content`), and importers, which carry such properties on purpose.

use tympan_content::{
    Error, MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Property, Session, Snapshot, Subtree,
};

use crate::failure::{Failure, Result};
use crate::placed::Placed;

/// The property that makes a node a component.
const RESOURCE_TYPE: &str = "sling:resourceType";

/// The properties that a request named, and the components that it put somewhere.
#[derive(Debug, Default)]
pub(crate) struct SetProperties {
    named: Vec<Named>,
    placed: Placed,
}

/// How a node came to another place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Move,
    Copy,
}

#[derive(Debug, Clone)]
struct Named {
    /// Where the node is now.
    path: NodePath,
    /// Where it was when the property was named.
    origin: NodePath,
    name: String,
    /// What it is to be; nothing if it is to go.
    value: Option<Property>,
    /// Which operation of a batch named it.
    operation: usize,
}

impl SetProperties {
    /// Notes a property that is set, or removed.
    pub(crate) fn add(
        &mut self,
        path: &NodePath,
        name: &str,
        value: Option<Property>,
        operation: usize,
    ) {
        if name == RESOURCE_TYPE && value.is_some() {
            self.placed.add(path, operation);
        }
        let (path, origin) = (path.clone(), path.clone());
        self.named.push(Named { path, origin, name: name.to_owned(), value, operation });
    }

    /// Notes that a node was moved or copied: what was named below it is judged where it lies now, too.
    pub(crate) fn relocated(&mut self, from: &NodePath, to: &NodePath, way: Way, operation: usize) {
        self.placed.relocated(from, to, way, operation);
        let inside = |named: &Named| {
            let path = named.path.rebased(from, to)?;
            Some(Named { path, ..named.clone() })
        };
        let there: Vec<Named> = self.named.iter().filter_map(inside).collect();
        if way == Way::Move {
            self.named.retain(|named| !named.path.is_within(from));
        }
        self.named.extend(there);
    }

    /// Notes all properties of a tree.
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

    /// Refuses a change of a protected property, and a component where none of its kind may lie.
    ///
    /// # Errors
    /// With the operation that named it; errors of the store.
    pub(crate) fn check(&self, begun: &Snapshot, session: &mut Session) -> Result<(), Refused> {
        if self.named.is_empty() && self.placed.is_empty() {
            return Ok(());
        }
        let states = States::of(begun, session).map_err(|error| Refused::new(0, error.into()))?;
        for named in &self.named {
            let checked = match &*named.name {
                PRIMARY_TYPE | MIXIN_TYPES => states.check_types(named),
                _ => states.check(named),
            };
            checked.map_err(|error| Refused::new(named.operation, error.into()))?;
        }
        self.placed.check(&states.whole, &states.pending)
    }

    /// Refuses a component where none of its kind may lie.
    ///
    /// # Errors
    /// With the operation that put it there; errors of the store.
    pub(crate) fn check_places(
        &self,
        begun: &Snapshot,
        session: &mut Session,
    ) -> Result<(), Refused> {
        if self.placed.is_empty() {
            return Ok(());
        }
        let states = States::of(begun, session).map_err(|error| Refused::new(0, error.into()))?;
        self.placed.check(&states.whole, &states.pending)
    }

    /// Takes back changes of protected properties.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn take_back(&self, begun: &Snapshot, session: &mut Session) -> Result<()> {
        let states = States::of(begun, session)?;
        let mut refused = Vec::new();
        for named in &self.named {
            match states.check(named) {
                Ok(()) => {}
                Err(Error::Constraint(_)) => {
                    refused.push((named, property(&states.whole, &named.path, &named.name)?));
                }
                Err(error) => return Err(error.into()),
            }
        }
        drop(states);
        for (Named { path, name, .. }, before) in refused {
            match before {
                Some(before) => session.set_property(path, name, before)?,
                None => drop(session.remove_property(path, name)?),
            }
        }
        Ok(())
    }
}

/// A refusal, with the operation that it is for.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) operation: usize,
    pub(crate) failure: Box<Failure>,
}

impl Refused {
    pub(crate) fn new(operation: usize, failure: Failure) -> Self {
        Self { operation, failure: Box::new(failure) }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        *refused.failure
    }
}

/// The state before a request, and that with its edits.
struct States {
    begun: Snapshot,
    /// The state before with what its viewer does not see: a value that is hidden is no other one.
    whole: Snapshot,
    pending: Snapshot,
}

impl States {
    fn of(begun: &Snapshot, session: &mut Session) -> Result<Self, Error> {
        let whole = session.repository().snapshot_at(begun.root_id())?;
        Ok(Self { begun: begun.clone(), whole, pending: session.snapshot()? })
    }

    fn check(&self, named: &Named) -> Result<(), Error> {
        let Named { path, origin, name, value, .. } = named;
        let before = property(&self.whole, origin, name)?;
        if before == *value {
            return Ok(());
        }
        for property in [&before, value].into_iter().flatten() {
            self.whole.check_settable(origin, name, property)?;
            self.pending.check_settable(path, name, property)?;
        }
        Ok(())
    }

    /// Refuses types that make users or policies of what was plain content.
    fn check_types(&self, named: &Named) -> Result<(), Error> {
        let Named { path, origin, .. } = named;
        let (Some(before), Some(after)) = (self.begun.node(origin)?, self.pending.node(path)?)
        else {
            return Ok(());
        };
        let is_same = |name| before.property(name) == after.property(name);
        if is_same(PRIMARY_TYPE) && is_same(MIXIN_TYPES) {
            return Ok(());
        }
        let own = after.properties().into_iter().filter(|(name, _)| name.starts_with("rep:"));
        for (name, property) in own {
            if self.whole.check_settable(origin, &name, &property).is_ok() {
                self.pending.check_settable(path, &name, &property)?;
            }
        }
        Ok(())
    }
}

/// Tells whether the types of a node protect one of its properties.
pub(crate) fn is_protected(node: &Node, name: &str, property: &Property) -> Result<bool> {
    match node.snapshot().check_settable(node.path(), name, property) {
        Ok(()) => Ok(false),
        Err(Error::Constraint(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn property(snapshot: &Snapshot, path: &NodePath, name: &str) -> Result<Option<Property>, Error> {
    Ok(snapshot.node(path)?.and_then(|node| node.property(name)))
}
