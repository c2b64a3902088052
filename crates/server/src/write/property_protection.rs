//! Protected properties: properties that only the repository may set, such as `jcr:uuid`, `jcr:created` and those of
//! users and policies.
//!
//! In: the properties that a request named, the nodes that it moved or copied, the state before it, and its pending
//! state. Out: an error for the first property that its node's types protect and whose value changes; unchanged values
//! that are sent back are accepted. Components are checked by their final container (`component_placement`).
//!
//! Not here: permissions to change a node (`content::access`), and importers, which contain such properties on purpose.

use std::collections::BTreeMap;

use tympan_content::{
    Error, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, PropertyProtection, Session, Snapshot,
    Subtree,
};

use crate::failure::{RequestFailure, Result};
use crate::write::component_placement::PlacedComponents;
use crate::write::page_creation::{
    TEMPLATE_PROPERTY, complete_new_page, require_readable_template,
};

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

    /// Returns an error for a change of a protected property, for a component in a container that does not allow it, and
    /// for a new page whose template is not allowed there. New pages get the initial content of their templates.
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
        let mut states = ProtectionCheckStates::read_from(base, session)
            .map_err(|error| OperationRefusal::new(0, error.into()))?;
        for named in &self.properties {
            let checked = match &*named.name {
                PRIMARY_TYPE | MIXIN_TYPES => states.check_type_change(named),
                _ => states.check_property(named),
            };
            checked.map_err(|error| OperationRefusal::new(named.operation, error.into()))?;
        }
        self.placed_components.check_placements(&states.before_unrestricted, &states.pending)?;
        drop(states);
        self.complete_new_pages(base, session)
    }

    /// Gives new pages the initial content of the templates that the request names for them.
    fn complete_new_pages(
        &self,
        base: &Snapshot,
        session: &mut Session,
    ) -> Result<(), OperationRefusal> {
        let named = self.properties.iter().filter(|named| named.name == TEMPLATE_PROPERTY);
        for RequestedProperty { path, original_path, value, operation, .. } in named {
            let refusal = |failure| OperationRefusal::new(*operation, failure);
            let Some(template) = value.as_ref().and_then(Property::first) else { continue };
            let template = template.to_text();
            let before = base.node(original_path).map_err(|error| refusal(error.into()))?;
            let is_same = before.as_ref().is_some_and(|before| {
                before.text(TEMPLATE_PROPERTY).is_some_and(|before| before == template)
            });
            if is_same {
                continue;
            }
            require_readable_template(base, session, &template).map_err(refusal)?;
            if before.is_none() {
                complete_new_page(session, path, &template).map_err(refusal)?;
            }
        }
        Ok(())
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
        let mut states = ProtectionCheckStates::read_from(base, session)?;
        let mut refused = Vec::new();
        for named in &self.properties {
            match states.check_property(named) {
                Ok(()) => {}
                Err(Error::ConstraintViolations(_)) => {
                    let node = states.checked_node(named)?;
                    refused.push((named, node.properties_before.get(&named.name).cloned()));
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
struct ProtectionCheckStates<'a> {
    before: Snapshot,
    /// The state before the request without access control: a hidden value counts as unchanged.
    before_unrestricted: Snapshot,
    pending: Snapshot,
    /// The last node whose properties were checked. The properties of a node follow each other, so it is read once,
    /// whatever their number.
    checked_node: Option<CheckedNode<'a>>,
}

/// A node whose properties are checked.
struct CheckedNode<'a> {
    path: &'a NodePath,
    original_path: &'a NodePath,
    properties_before: BTreeMap<String, Property>,
    protection_before: PropertyProtection,
    pending_protection: PropertyProtection,
}

impl CheckedNode<'_> {
    fn check_settable(&self, name: &str, property: &Property) -> Result<(), Error> {
        self.protection_before.check_settable(name, property)?;
        self.pending_protection.check_settable(name, property)
    }
}

impl<'a> ProtectionCheckStates<'a> {
    fn read_from(base: &Snapshot, session: &mut Session) -> Result<Self, Error> {
        let whole = session.repository().snapshot_at(base.root_id())?;
        Ok(Self {
            before: base.clone(),
            before_unrestricted: whole,
            pending: session.snapshot()?,
            checked_node: None,
        })
    }

    /// Returns the node that has a property; it is read if the last one was another.
    fn checked_node(&mut self, named: &'a RequestedProperty) -> Result<&CheckedNode<'a>, Error> {
        let RequestedProperty { path, original_path, .. } = named;
        let node = match self.checked_node.take() {
            Some(node) if (node.path, node.original_path) == (path, original_path) => node,
            _ => self.read_checked_node(path, original_path)?,
        };
        Ok(self.checked_node.insert(node))
    }

    fn read_checked_node(
        &self,
        path: &'a NodePath,
        original_path: &'a NodePath,
    ) -> Result<CheckedNode<'a>, Error> {
        let before = self.before_unrestricted.node(original_path)?;
        let properties_before = before.map(|node| node.properties().into_iter().collect());
        Ok(CheckedNode {
            path,
            original_path,
            properties_before: properties_before.unwrap_or_default(),
            protection_before: self.before_unrestricted.property_protection(original_path)?,
            pending_protection: self.pending.property_protection(path)?,
        })
    }

    fn check_property(&mut self, named: &'a RequestedProperty) -> Result<(), Error> {
        let node = self.checked_node(named)?;
        let before = node.properties_before.get(&named.name);
        if before == named.value.as_ref() {
            return Ok(());
        }
        let mut values = before.into_iter().chain(&named.value);
        values.try_for_each(|property| node.check_settable(&named.name, property))
    }

    /// Refuses types that would turn plain content into users or policies.
    fn check_type_change(&self, named: &RequestedProperty) -> Result<(), Error> {
        let RequestedProperty { path, original_path, .. } = named;
        let Some(before) = self.before.node(original_path)? else { return Ok(()) };
        let Some(after) = self.pending.node(path)? else { return Ok(()) };
        let is_same = |name| before.property(name) == after.property(name);
        if is_same(PRIMARY_TYPE) && is_same(MIXIN_TYPES) {
            return Ok(());
        }
        let protection_before = self.before_unrestricted.property_protection(original_path)?;
        let pending_protection = self.pending.property_protection(path)?;
        let own = after.properties().into_iter().filter(|(name, _)| name.starts_with("rep:"));
        for (name, property) in own {
            if protection_before.check_settable(&name, &property).is_ok() {
                pending_protection.check_settable(&name, &property)?;
            }
        }
        Ok(())
    }
}

/// Returns true if the types of a node protect one of its properties.
pub(crate) fn is_property_protected(
    protection: &PropertyProtection,
    name: &str,
    property: &Property,
) -> Result<bool> {
    match protection.check_settable(name, property) {
        Ok(()) => Ok(false),
        Err(Error::ConstraintViolations(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
