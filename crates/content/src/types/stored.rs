//! Node types and namespaces as content, below `/jcr:system`: in JCR's own form, one node for each type and each of its
//! definitions.
//!
//! Only what a site registers is stored. It is read once for each stored form; without any, the standard set stands.

use std::sync::Arc;

use tympan_store::{ChunkId, Map, ReadChunks};

use super::definition::{
    ChildDefinition, ItemFlags, OnParentVersion, Operator, PropertyDefinition, QueryUse, RESIDUAL,
    TypeDefinition, TypeFlags,
};
use super::namespace::Namespaces;
use super::registry::NodeTypes;
use crate::body::{Body, BodyNode};
use crate::record::{BodyPlace, Record};
use crate::snapshot::{Overlay, View};
use crate::{Error, NodePath, Property, Result, Subtree, Value, ValueType, keys};

/// The node of the repository itself.
pub(crate) const SYSTEM: &str = "/jcr:system";
/// Where node types are.
pub(crate) const TYPES: &str = "/jcr:system/jcr:nodeTypes";
/// Where namespaces are.
pub(crate) const NAMESPACES: &str = "/jcr:system/rep:namespaces";

const PROPERTY: &str = "jcr:propertyDefinition";
const CHILD: &str = "jcr:childNodeDefinition";

/// What names and types a state of the content knows.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) types: Arc<NodeTypes>,
    pub(crate) namespaces: Arc<Namespaces>,
}

/// The rules that were read, by the stored form of what holds them.
pub(crate) type RulesCache = quick_cache::sync::Cache<(ChunkId, ChunkId), Rules>;

/// How many rules are remembered: those of a few branches.
pub(crate) const MAX_RULES: usize = 8;

/// A node below `/jcr:system`, and the hash of the document that holds it, unless it is pending.
struct Place {
    body: Arc<Body>,
    node: BodyNode,
    id: Option<ChunkId>,
}

impl View {
    /// Returns the node types and namespaces of the state, as they are when these edits are made.
    pub(crate) fn rules(&self, edits: Option<&Overlay>) -> Result<Rules> {
        let types = self.system_node(edits, TYPES)?;
        let namespaces = self.system_node(edits, NAMESPACES)?;
        let nothing = ChunkId::from_bytes([0; 32]);
        let id = |place: &Option<Place>| place.as_ref().map_or(Some(nothing), |place| place.id);
        let cache = &self.shared.bodies.rules;
        let read = || -> Result<Rules> {
            Ok(Rules {
                types: read_types(types.as_ref())?,
                namespaces: read_namespaces(namespaces.as_ref()),
            })
        };
        match id(&types).zip(id(&namespaces)) {
            Some(key) => cache.get_or_insert_with(&key, read),
            None => read(),
        }
    }

    /// Finds a node below `/jcr:system`, which has a record of its own or stands in that of the system.
    fn system_node(&self, edits: Option<&Overlay>, path: &str) -> Result<Option<Place>> {
        for owner in [path, SYSTEM] {
            let key = keys::key_at(owner);
            let at = NodePath::new(owner)?;
            let record = match edits.and_then(|edits| edits.get(&key)) {
                Some(edit) => edit.clone(),
                None => self.record(&key, &at)?,
            };
            let Some(record) = record else { continue };
            let body = self.body(&record, &at)?;
            let id = match &record.body {
                BodyPlace::Stored(id) => Some(*id),
                BodyPlace::Inline(bytes) => Some(ChunkId::of(bytes)),
                BodyPlace::Pending(_) => None,
            };
            let relative = path.get(owner.len()..).unwrap_or_default();
            if let Some(node) = body.find(relative) {
                return Ok(Some(Place { body, node, id }));
            }
        }
        Ok(None)
    }
}

/// Reads the node types of a stored state; the standard ones if they do not decode.
pub(crate) fn stored_types(content: Map, reads: &dyn ReadChunks) -> Result<Arc<NodeTypes>> {
    for owner in [TYPES, SYSTEM] {
        let Some(stored) = content.get(reads, &keys::key_at(owner))? else { continue };
        let Some(record) = Record::decode(&stored) else { continue };
        let Some(body) = record.read_body(reads)? else { continue };
        if let Some(node) = body.find(TYPES.get(owner.len()..).unwrap_or_default()) {
            let types = read_types(Some(&Place { body, node, id: None }));
            return Ok(types.unwrap_or_else(|_| NodeTypes::standard()));
        }
    }
    Ok(NodeTypes::standard())
}

fn read_types(place: Option<&Place>) -> Result<Arc<NodeTypes>> {
    let Some(Place { body, node, .. }) = place else {
        return Ok(NodeTypes::standard());
    };
    let tree = body.subtree(*node);
    let definitions: Vec<TypeDefinition> = tree.children.iter().map(read_type).collect();
    let types = NodeTypes::standard().with(&definitions);
    Ok(Arc::new(types.map_err(Error::NodeTypes)?))
}

fn read_namespaces(place: Option<&Place>) -> Arc<Namespaces> {
    let mut namespaces = Namespaces::default();
    if let Some(Place { body, node, .. }) = place {
        for (prefix, property) in body.properties(*node) {
            if let (false, Some(uri)) = (prefix.contains(':'), property.first()) {
                namespaces.add(prefix, uri.as_str().unwrap_or_default());
            }
        }
    }
    Arc::new(namespaces)
}

/// Makes the node that holds a site's own types.
pub(super) fn types_node(types: &NodeTypes) -> Subtree {
    types
        .own()
        .map(type_node)
        .fold(Subtree::new("jcr:nodeTypes", "rep:nodeTypes"), Subtree::with_child)
}

fn type_node(definition: &TypeDefinition) -> Subtree {
    let flags = definition.flags;
    let mut node = Subtree::new(&definition.name, "nt:nodeType")
        .with("jcr:nodeTypeName", Property::name(&definition.name))
        .with("jcr:supertypes", names(&definition.supertypes))
        .with("jcr:isAbstract", Value::Boolean(flags.is_abstract))
        .with("jcr:isMixin", Value::Boolean(flags.is_mixin))
        .with("jcr:isQueryable", Value::Boolean(flags.is_queryable))
        .with("jcr:hasOrderableChildNodes", Value::Boolean(flags.has_orderable_children));
    if let Some(item) = &definition.primary_item {
        node = node.with("jcr:primaryItemName", Property::name(item));
    }
    let properties = definition.properties.iter().map(property_node);
    let children = definition.children.iter().map(child_node);
    for (number, mut child) in properties.enumerate().chain(children.enumerate()) {
        // Oak has siblings of one name here; no two nodes have one name in this repository.
        if number > 0 {
            child.name = format!("{}-{}", child.name, number + 1);
        }
        node = node.with_child(child);
    }
    node
}

fn property_node(property: &PropertyDefinition) -> Subtree {
    let value_type = property.value_type.map_or("UNDEFINED", ValueType::name).to_uppercase();
    let operators: Vec<String> =
        property.query.operators.iter().map(|one| one.name().to_owned()).collect();
    let mut node = with_flags(Subtree::new(PROPERTY, "nt:propertyDefinition"), property.flags)
        .with("jcr:requiredType", Property::text(value_type))
        .with("jcr:multiple", Value::Boolean(property.is_multiple))
        .with("jcr:availableQueryOperators", names(&operators))
        .with("jcr:isFullTextSearchable", Value::Boolean(property.query.is_full_text_searchable))
        .with("jcr:isQueryOrderable", Value::Boolean(property.query.is_orderable));
    if property.name != RESIDUAL {
        node = node.with("jcr:name", Property::name(&property.name));
    }
    for (name, texts) in [
        ("jcr:defaultValues", &property.default_values),
        ("jcr:valueConstraints", &property.constraints),
    ] {
        if !texts.is_empty() {
            let values = texts.iter().cloned().map(Value::String).collect();
            node = node.with(name, Property::List(ValueType::String, values));
        }
    }
    node
}

fn child_node(child: &ChildDefinition) -> Subtree {
    let mut node = with_flags(Subtree::new(CHILD, "nt:childNodeDefinition"), child.flags)
        .with("jcr:requiredPrimaryTypes", names(&child.required_types))
        .with("jcr:sameNameSiblings", Value::Boolean(child.allows_same_names));
    if child.name != RESIDUAL {
        node = node.with("jcr:name", Property::name(&child.name));
    }
    if let Some(default) = &child.default_type {
        node = node.with("jcr:defaultPrimaryType", Property::name(default));
    }
    node
}

fn with_flags(node: Subtree, flags: ItemFlags) -> Subtree {
    node.with("jcr:autoCreated", Value::Boolean(flags.is_autocreated))
        .with("jcr:mandatory", Value::Boolean(flags.is_mandatory))
        .with("jcr:protected", Value::Boolean(flags.is_protected))
        .with("jcr:onParentVersion", Property::text(flags.on_parent_version.name()))
}

fn names(names: &[String]) -> Property {
    Property::List(ValueType::Name, names.iter().cloned().map(Value::Name).collect())
}

/// Reads a type's node. What is missing is as where a CND text says nothing.
fn read_type(node: &Subtree) -> TypeDefinition {
    let is_property = |child: &&Subtree| child.primary_type() == "nt:propertyDefinition";
    let (properties, children): (Vec<&Subtree>, Vec<&Subtree>) =
        node.children.iter().partition(is_property);
    TypeDefinition {
        name: node.text("jcr:nodeTypeName").unwrap_or(&node.name).to_owned(),
        supertypes: texts(node, "jcr:supertypes"),
        flags: TypeFlags {
            is_abstract: is_true(node, "jcr:isAbstract"),
            is_mixin: is_true(node, "jcr:isMixin"),
            has_orderable_children: is_true(node, "jcr:hasOrderableChildNodes"),
            is_queryable: is_true(node, "jcr:isQueryable"),
        },
        primary_item: node.text("jcr:primaryItemName").map(str::to_owned),
        properties: properties.into_iter().map(read_property).collect(),
        children: children.into_iter().map(read_child).collect(),
    }
}

fn read_property(node: &Subtree) -> PropertyDefinition {
    let operators = texts(node, "jcr:availableQueryOperators");
    PropertyDefinition {
        name: node.text("jcr:name").unwrap_or(RESIDUAL).to_owned(),
        value_type: node.text("jcr:requiredType").and_then(ValueType::find),
        is_multiple: is_true(node, "jcr:multiple"),
        flags: read_flags(node),
        default_values: texts(node, "jcr:defaultValues"),
        constraints: texts(node, "jcr:valueConstraints"),
        query: QueryUse {
            operators: operators.iter().filter_map(|name| Operator::find(name)).collect(),
            is_full_text_searchable: is_true(node, "jcr:isFullTextSearchable"),
            is_orderable: is_true(node, "jcr:isQueryOrderable"),
        },
    }
}

fn read_child(node: &Subtree) -> ChildDefinition {
    ChildDefinition {
        name: node.text("jcr:name").unwrap_or(RESIDUAL).to_owned(),
        required_types: texts(node, "jcr:requiredPrimaryTypes"),
        default_type: node.text("jcr:defaultPrimaryType").map(str::to_owned),
        allows_same_names: is_true(node, "jcr:sameNameSiblings"),
        flags: read_flags(node),
    }
}

fn read_flags(node: &Subtree) -> ItemFlags {
    let on_parent_version = node.text("jcr:onParentVersion").and_then(OnParentVersion::find);
    ItemFlags {
        is_autocreated: is_true(node, "jcr:autoCreated"),
        is_mandatory: is_true(node, "jcr:mandatory"),
        is_protected: is_true(node, "jcr:protected"),
        on_parent_version: on_parent_version.unwrap_or_default(),
    }
}

fn is_true(node: &Subtree, name: &str) -> bool {
    let value = node.properties.get(name).and_then(Property::first);
    matches!(value, Some(Value::Boolean(true)))
}

fn texts(node: &Subtree, name: &str) -> Vec<String> {
    let values = node.properties.get(name).map_or(&[][..], Property::values);
    values.iter().map(|value| value.to_text().into_owned()).collect()
}
