//! What people may not set: properties that the repository alone sets, such as `jcr:uuid`, `jcr:created` and those of
//! users and policies.
//!
//! In: the properties that a request named, the state before it, and its pending state. Out: a refusal of the first
//! that its node's types protect and that changes; what is sent back as it was read passes.
//!
//! Not here: who may change a node (`content`), and importers, which carry such properties on purpose.

use tympan_content::{
    Error, MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Property, Session, Snapshot, Subtree,
};

use crate::failure::{Failure, Result};

/// The properties that a request named.
#[derive(Debug, Default)]
pub(crate) struct SetProperties(Vec<Named>);

#[derive(Debug)]
struct Named {
    path: NodePath,
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
        self.0.push(Named { path: path.clone(), name: name.to_owned(), value, operation });
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

    /// Refuses a change of a protected property.
    ///
    /// # Errors
    /// With the operation that named it; errors of the store.
    pub(crate) fn check(&self, begun: &Snapshot, session: &mut Session) -> Result<(), Refused> {
        if self.0.is_empty() {
            return Ok(());
        }
        let states = States::of(begun, session).map_err(|error| Refused::new(0, error))?;
        for named in &self.0 {
            let checked = match &*named.name {
                PRIMARY_TYPE | MIXIN_TYPES => states.check_types(&named.path),
                _ => states.check(named),
            };
            checked.map_err(|error| Refused::new(named.operation, error))?;
        }
        Ok(())
    }

    /// Takes back changes of protected properties.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn take_back(&self, begun: &Snapshot, session: &mut Session) -> Result<()> {
        let states = States::of(begun, session)?;
        let mut refused = Vec::new();
        for named in &self.0 {
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

/// A refusal, with the operation that named the property.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) operation: usize,
    pub(crate) failure: Box<Failure>,
}

impl Refused {
    fn new(operation: usize, error: Error) -> Self {
        Self { operation, failure: Box::new(error.into()) }
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
        let Named { path, name, value, .. } = named;
        let before = property(&self.whole, path, name)?;
        if before == *value {
            return Ok(());
        }
        for property in [&before, value].into_iter().flatten() {
            self.whole.check_settable(path, name, property)?;
            self.pending.check_settable(path, name, property)?;
        }
        Ok(())
    }

    /// Refuses types that make users or policies of what was plain content.
    fn check_types(&self, path: &NodePath) -> Result<(), Error> {
        let (Some(before), Some(after)) = (self.begun.node(path)?, self.pending.node(path)?) else {
            return Ok(());
        };
        let is_same = |name| before.property(name) == after.property(name);
        if is_same(PRIMARY_TYPE) && is_same(MIXIN_TYPES) {
            return Ok(());
        }
        let own = after.properties().into_iter().filter(|(name, _)| name.starts_with("rep:"));
        for (name, property) in own {
            if self.whole.check_settable(path, &name, &property).is_ok() {
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
