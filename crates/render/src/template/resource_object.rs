//! Nodes as template objects; no data is copied before a template uses it.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};
use tympan_content::{BorrowedNode, ChildList, Node, NodePath};

use super::scope::RenderScope;
use super::value::property_to_template_value;
use crate::resource::ContentResource;

/// A resource, as `resource` in templates.
pub(super) struct ResourceObject {
    pub scope: Arc<RenderScope>,
    pub resource: ContentResource,
}

impl ResourceObject {
    /// Creates the template value of a node.
    pub(super) fn to_template_value(scope: &Arc<RenderScope>, node: Node) -> Value {
        Value::from_object(Self {
            scope: Arc::clone(scope),
            resource: ContentResource::from_node(node),
        })
    }

    /// Creates the template value of a node that may be missing.
    pub(super) fn to_optional_value(scope: &Arc<RenderScope>, node: Option<Node>) -> Value {
        node.map_or(Value::UNDEFINED, |node| Self::to_template_value(scope, node))
    }
}

impl Object for ResourceObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let node = self.resource.node();
        Some(match key {
            "path" => Value::from(self.resource.path().as_arc()),
            "name" => Value::from(self.resource.path().name()),
            "resource_type" => {
                if let Some(node) = node {
                    self.scope.reader.record_type(node);
                }
                Value::from(self.resource.resource_type())
            }
            "primary_type" => Value::from(node?.primary_type()),
            "exists" => Value::from(node.is_some()),
            "parent" => {
                let parent = node?.path().parent();
                let parent = parent.and_then(|parent| self.scope.reader.node_existence(&parent));
                ResourceObject::to_optional_value(&self.scope, parent)
            }
            "properties" => properties_value(&self.scope, Some(&self.resource)),
            "children" => ChildrenObject::to_template_value(&self.scope, node),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match (method, args) {
            ("child", [relative]) => {
                let relative = relative.as_str().unwrap_or_default();
                let descendant = self
                    .resource
                    .node()
                    .and_then(|node| self.scope.reader.descendant_existence(node, relative));
                Ok(ResourceObject::to_optional_value(&self.scope, descendant))
            }
            ("child", _) => Err(Error::new(
                ErrorKind::MissingArgument,
                "`child` needs one name, such as `resource.child(\"image\")`",
            )),
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource.path())
    }
}

impl fmt::Debug for ResourceObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource.path())
    }
}

/// Creates the template value of a node's properties; empty if there is no node.
pub(super) fn properties_value(
    scope: &Arc<RenderScope>,
    resource: Option<&ContentResource>,
) -> Value {
    match resource.filter(|resource| resource.node().is_some()) {
        None => Value::from_pairs(std::iter::empty::<(&str, Value)>()),
        Some(resource) => {
            let (scope, resource) = (Arc::clone(scope), resource.clone());
            Value::from_object(PropertiesObject { scope, resource })
        }
    }
}

/// The properties of a node, read individually.
struct PropertiesObject {
    scope: Arc<RenderScope>,
    resource: ContentResource,
}

impl Object for PropertiesObject {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.scope
            .reader
            .borrowed_property(self.resource.node()?, key)
            .map(property_to_template_value)
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let node = self.resource.node();
        if let Some(node) = node {
            self.scope.reader.record_properties(node);
        }
        let borrowed = node.and_then(Node::as_borrowed);
        let pairs = borrowed.into_iter().flat_map(BorrowedNode::properties);
        let pairs: Vec<(Value, Value)> = pairs
            .map(|(name, property)| (Value::from(name), property_to_template_value(property)))
            .collect();
        Enumerator::KeyValueIter(Box::new(pairs.into_iter()))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

impl fmt::Debug for PropertiesObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "properties of {}", self.resource.path())
    }
}

/// The children of a node as resources; each is read and recorded when it is reached.
struct ChildrenObject {
    scope: Arc<RenderScope>,
    list: ChildList,
}

impl ChildrenObject {
    /// Creates the list of a node's children; empty if there is no node.
    fn to_template_value(scope: &Arc<RenderScope>, node: Option<&Node>) -> Value {
        match node.and_then(|node| scope.reader.child_list(node)) {
            Some(list) => Value::from_object(Self { scope: Arc::clone(scope), list }),
            None => NodeListObject::to_template_value(
                scope,
                Vec::new(),
                ResourceObject::to_template_value,
            ),
        }
    }
}

impl Object for ChildrenObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let child = self.list.get(key.as_usize()?)?;
        self.scope.reader.record_listed_child(&child);
        Some(ResourceObject::to_template_value(&self.scope, child))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.list.len())
    }
}

impl fmt::Debug for ChildrenObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.paths().map(NodePath::as_str)).finish()
    }
}

/// A list of nodes that are converted to objects on access.
pub(super) struct NodeListObject {
    scope: Arc<RenderScope>,
    nodes: Vec<Node>,
    to_value: fn(&Arc<RenderScope>, Node) -> Value,
}

impl NodeListObject {
    /// Creates a list of nodes with the function that converts each to a value.
    pub(super) fn to_template_value(
        scope: &Arc<RenderScope>,
        nodes: Vec<Node>,
        make: fn(&Arc<RenderScope>, Node) -> Value,
    ) -> Value {
        Value::from_object(Self { scope: Arc::clone(scope), nodes, to_value: make })
    }
}

impl Object for NodeListObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let node = self.nodes.get(key.as_usize()?)?;
        Some((self.to_value)(&self.scope, node.clone()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.nodes.len())
    }
}

impl fmt::Debug for NodeListObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.path().as_str())).finish()
    }
}
