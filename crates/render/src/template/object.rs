//! Nodes as template objects: nothing is copied until a template asks for it.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};
use tympan_content::{BorrowedNode, ChildList, Node, NodePath};

use super::scope::Scope;
use super::value::from_property;
use crate::resource::Resource;

/// A resource, as `resource` in templates.
pub(super) struct ResourceObject {
    pub scope: Arc<Scope>,
    pub resource: Resource,
}

impl ResourceObject {
    /// Makes the value of a node.
    pub(super) fn value(scope: &Arc<Scope>, node: Node) -> Value {
        Value::from_object(Self { scope: Arc::clone(scope), resource: Resource::of(node) })
    }

    /// Makes the value of a node that may be missing.
    pub(super) fn maybe(scope: &Arc<Scope>, node: Option<Node>) -> Value {
        node.map_or(Value::UNDEFINED, |node| Self::value(scope, node))
    }
}

impl Object for ResourceObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let node = self.resource.node();
        Some(match key {
            "path" => Value::from(self.resource.path().as_shared()),
            "name" => Value::from(self.resource.path().name()),
            "resource_type" => {
                if let Some(node) = node {
                    self.scope.reader.note_type(node);
                }
                Value::from(self.resource.resource_type())
            }
            "primary_type" => Value::from(node?.primary_type()),
            "exists" => Value::from(node.is_some()),
            "parent" => {
                let parent = node?.path().parent();
                let parent = parent.and_then(|parent| self.scope.reader.glance(&parent));
                ResourceObject::maybe(&self.scope, parent)
            }
            "properties" => properties(&self.scope, Some(&self.resource)),
            "children" => ChildrenObject::value(&self.scope, node),
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
                let found = self
                    .resource
                    .node()
                    .and_then(|node| self.scope.reader.glance_below(node, relative));
                Ok(ResourceObject::maybe(&self.scope, found))
            }
            ("child", _) => Err(Error::new(
                ErrorKind::MissingArgument,
                "`child` wants one name, such as `resource.child(\"image\")`",
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

/// Makes the value of a node's properties; of nothing, if there is no node.
pub(super) fn properties(scope: &Arc<Scope>, resource: Option<&Resource>) -> Value {
    match resource.filter(|resource| resource.node().is_some()) {
        None => Value::from_pairs(std::iter::empty::<(&str, Value)>()),
        Some(resource) => {
            let (scope, resource) = (Arc::clone(scope), resource.clone());
            Value::from_object(PropertiesObject { scope, resource })
        }
    }
}

/// The properties of a node, read one by one.
struct PropertiesObject {
    scope: Arc<Scope>,
    resource: Resource,
}

impl Object for PropertiesObject {
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.scope.reader.borrowed(self.resource.node()?, key).map(from_property)
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let node = self.resource.node();
        if let Some(node) = node {
            self.scope.reader.note_properties(node);
        }
        let borrowed = node.and_then(Node::borrowed);
        let pairs = borrowed.into_iter().flat_map(BorrowedNode::properties);
        let pairs: Vec<(Value, Value)> =
            pairs.map(|(name, property)| (Value::from(name), from_property(property))).collect();
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

/// The children of a node as resources: each is looked at and noted when it is reached.
struct ChildrenObject {
    scope: Arc<Scope>,
    list: ChildList,
}

impl ChildrenObject {
    /// Makes the list of a node's children; an empty one of nothing.
    fn value(scope: &Arc<Scope>, node: Option<&Node>) -> Value {
        match node.and_then(|node| scope.reader.glance_list(node)) {
            Some(list) => Value::from_object(Self { scope: Arc::clone(scope), list }),
            None => NodeList::value(scope, Vec::new(), ResourceObject::value),
        }
    }
}

impl Object for ChildrenObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let child = self.list.at(key.as_usize()?)?;
        self.scope.reader.note_listed(&child);
        Some(ResourceObject::value(&self.scope, child))
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

/// A list of nodes that become objects when they are reached.
pub(super) struct NodeList {
    scope: Arc<Scope>,
    nodes: Vec<Node>,
    make: fn(&Arc<Scope>, Node) -> Value,
}

impl NodeList {
    /// Makes a list of nodes with the function that turns one into a value.
    pub(super) fn value(
        scope: &Arc<Scope>,
        nodes: Vec<Node>,
        make: fn(&Arc<Scope>, Node) -> Value,
    ) -> Value {
        Value::from_object(Self { scope: Arc::clone(scope), nodes, make })
    }
}

impl Object for NodeList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let node = self.nodes.get(key.as_usize()?)?;
        Some((self.make)(&self.scope, node.clone()))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.nodes.len())
    }
}

impl fmt::Debug for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.path().as_str())).finish()
    }
}
