//! Node types and namespaces as content, below `/jcr:system`: in JCR's own form, one node for each type and each of its
//! definitions.
//!
//! Only registered types are stored, and each stored form is read once. Without any, the standard set applies.

use std::sync::Arc;

use tympan_store::{ChunkId, ReadChunks, SortedMap};

use super::namespace::NamespaceRegistry;
use super::node_type_rules::NodeTypeRules;
use super::type_definition::{
    AvailableQueryOperator, ChildDefinition, ItemFlags, NodeTypeDefinition, NodeTypeFlags,
    OnParentVersion, PropertyDefinition, PropertyQueryUse, RESIDUAL_NAME,
};
use super::type_registry::NodeTypes;
use crate::document::body::{BodyNode, DocumentBody};
use crate::document::record::{ContentRecord, RecordBody};
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{Error, NodePath, Property, Result, Subtree, Value, ValueType, document::record_key};

/// The node of the repository itself.
pub(crate) const SYSTEM_PATH: &str = "/jcr:system";
/// The folder of node types.
pub(crate) const NODE_TYPES_PATH: &str = "/jcr:system/jcr:nodeTypes";
/// The folder of namespaces.
pub(crate) const NAMESPACES_PATH: &str = "/jcr:system/rep:namespaces";

const PROPERTY_DEFINITION_NAME: &str = "jcr:propertyDefinition";
const CHILD_DEFINITION_NAME: &str = "jcr:childNodeDefinition";

/// A node below `/jcr:system`, and the hash of the document that holds it; `None` for a pending one.
struct SystemNode {
    body: Arc<DocumentBody>,
    body_node: BodyNode,
    document_id: Option<ChunkId>,
}

impl SnapshotView {
    /// Returns the node types and namespaces of the state with these edits applied.
    pub(crate) fn node_type_rules(&self, edits: Option<&RecordEdits>) -> Result<NodeTypeRules> {
        let types = self.system_node(edits, NODE_TYPES_PATH)?;
        let namespaces = self.system_node(edits, NAMESPACES_PATH)?;
        let nothing = ChunkId::from_bytes([0; 32]);
        let id = |system_node: &Option<SystemNode>| {
            system_node.as_ref().map_or(Some(nothing), |system_node| system_node.document_id)
        };
        let cache = &self.repository_state.cache.node_type_rules;
        let read = || -> Result<NodeTypeRules> {
            Ok(NodeTypeRules {
                node_types: read_types(types.as_ref())?,
                namespaces: read_namespaces(namespaces.as_ref()),
            })
        };
        match id(&types).zip(id(&namespaces)) {
            Some(key) => cache.get_or_insert_with(&key, read),
            None => read(),
        }
    }

    /// Finds a node below `/jcr:system`, which has a record of its own or is part of the system record.
    fn system_node(&self, edits: Option<&RecordEdits>, path: &str) -> Result<Option<SystemNode>> {
        for owner in [path, SYSTEM_PATH] {
            let key = record_key::record_key_at(owner);
            let at = NodePath::new(owner)?;
            let record = match edits.and_then(|edits| edits.get(&key)) {
                Some(edit) => edit.clone(),
                None => self.read_record(&key, &at)?,
            };
            let Some(record) = record else { continue };
            let body = self.load_body(&record, &at)?;
            let id = match &record.body {
                RecordBody::Stored(id) => Some(*id),
                RecordBody::Inline(bytes) => Some(ChunkId::hash_of(bytes)),
                RecordBody::Pending(_) => None,
            };
            let relative = path.get(owner.len()..).unwrap_or_default();
            if let Some(node) = body.find_relative(relative) {
                return Ok(Some(SystemNode { body, body_node: node, document_id: id }));
            }
        }
        Ok(None)
    }
}

/// Reads the node types of a stored state; returns the standard ones if they do not decode.
pub(crate) fn read_stored_types(
    content: SortedMap,
    reads: &dyn ReadChunks,
) -> Result<Arc<NodeTypes>> {
    for owner in [NODE_TYPES_PATH, SYSTEM_PATH] {
        let Some(stored) = content.get(reads, &record_key::record_key_at(owner))? else { continue };
        let Some(record) = ContentRecord::decode(&stored) else { continue };
        let Some(body) = record.read_body(reads)? else { continue };
        if let Some(node) =
            body.find_relative(NODE_TYPES_PATH.get(owner.len()..).unwrap_or_default())
        {
            let types = read_types(Some(&SystemNode { body, body_node: node, document_id: None }));
            return Ok(types.unwrap_or_else(|_| NodeTypes::standard()));
        }
    }
    Ok(NodeTypes::standard())
}

fn read_types(system_node: Option<&SystemNode>) -> Result<Arc<NodeTypes>> {
    let Some(SystemNode { body, body_node, .. }) = system_node else {
        return Ok(NodeTypes::standard());
    };
    let tree = body.subtree(*body_node);
    let definitions: Vec<NodeTypeDefinition> = tree.children.iter().map(read_type).collect();
    let types = NodeTypes::standard().with_definitions(&definitions);
    Ok(Arc::new(types.map_err(Error::InvalidNodeTypes)?))
}

fn read_namespaces(system_node: Option<&SystemNode>) -> Arc<NamespaceRegistry> {
    let mut namespaces = NamespaceRegistry::default();
    if let Some(SystemNode { body, body_node, .. }) = system_node {
        for (prefix, property) in body.properties(*body_node) {
            if let (false, Some(uri)) = (prefix.contains(':'), property.first()) {
                namespaces.add_mapping(prefix, uri.as_str().unwrap_or_default());
            }
        }
    }
    Arc::new(namespaces)
}

/// Creates the node that holds a site's own types.
pub(super) fn types_node(types: &NodeTypes) -> Subtree {
    types
        .custom_definitions()
        .map(type_node)
        .fold(Subtree::new("jcr:nodeTypes", "rep:nodeTypes"), Subtree::with_child)
}

fn type_node(definition: &NodeTypeDefinition) -> Subtree {
    let flags = definition.flags;
    let mut node = Subtree::new(&definition.name, "nt:nodeType")
        .with_property("jcr:nodeTypeName", Property::name(&definition.name))
        .with_property("jcr:supertypes", names_property(&definition.supertypes))
        .with_property("jcr:isAbstract", Value::Boolean(flags.is_abstract))
        .with_property("jcr:isMixin", Value::Boolean(flags.is_mixin))
        .with_property("jcr:isQueryable", Value::Boolean(flags.is_queryable))
        .with_property("jcr:hasOrderableChildNodes", Value::Boolean(flags.has_orderable_children));
    if let Some(item) = &definition.primary_item {
        node = node.with_property("jcr:primaryItemName", Property::name(item));
    }
    let properties = definition.properties.iter().map(property_node);
    let children = definition.children.iter().map(child_node);
    for (number, mut child) in properties.enumerate().chain(children.enumerate()) {
        // Oak uses same-name siblings here; this repository does not allow them.
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
        property.query_use.operators.iter().map(|operator| operator.name().to_owned()).collect();
    let mut node =
        with_flags(Subtree::new(PROPERTY_DEFINITION_NAME, "nt:propertyDefinition"), property.flags)
            .with_property("jcr:requiredType", Property::text(value_type))
            .with_property("jcr:multiple", Value::Boolean(property.is_multiple))
            .with_property("jcr:availableQueryOperators", names_property(&operators))
            .with_property(
                "jcr:isFullTextSearchable",
                Value::Boolean(property.query_use.is_full_text_searchable),
            )
            .with_property("jcr:isQueryOrderable", Value::Boolean(property.query_use.is_orderable));
    if property.name != RESIDUAL_NAME {
        node = node.with_property("jcr:name", Property::name(&property.name));
    }
    for (name, texts) in [
        ("jcr:defaultValues", &property.default_values),
        ("jcr:valueConstraints", &property.constraints),
    ] {
        if !texts.is_empty() {
            let values = texts.iter().cloned().map(Value::String).collect();
            node = node.with_property(name, Property::List(ValueType::String, values));
        }
    }
    node
}

fn child_node(child: &ChildDefinition) -> Subtree {
    let mut node =
        with_flags(Subtree::new(CHILD_DEFINITION_NAME, "nt:childNodeDefinition"), child.flags)
            .with_property("jcr:requiredPrimaryTypes", names_property(&child.required_types))
            .with_property("jcr:sameNameSiblings", Value::Boolean(child.allows_same_names));
    if child.name != RESIDUAL_NAME {
        node = node.with_property("jcr:name", Property::name(&child.name));
    }
    if let Some(default) = &child.default_type {
        node = node.with_property("jcr:defaultPrimaryType", Property::name(default));
    }
    node
}

fn with_flags(node: Subtree, flags: ItemFlags) -> Subtree {
    node.with_property("jcr:autoCreated", Value::Boolean(flags.is_autocreated))
        .with_property("jcr:mandatory", Value::Boolean(flags.is_mandatory))
        .with_property("jcr:protected", Value::Boolean(flags.is_protected))
        .with_property("jcr:onParentVersion", Property::text(flags.on_parent_version.name()))
}

fn names_property(names: &[String]) -> Property {
    Property::List(ValueType::Name, names.iter().cloned().map(Value::Name).collect())
}

/// Reads a type's node. Missing attributes get the same defaults as in a CND text.
fn read_type(node: &Subtree) -> NodeTypeDefinition {
    let is_property = |child: &&Subtree| child.primary_type() == "nt:propertyDefinition";
    let (properties, children): (Vec<&Subtree>, Vec<&Subtree>) =
        node.children.iter().partition(is_property);
    NodeTypeDefinition {
        name: node.text("jcr:nodeTypeName").unwrap_or(&node.name).to_owned(),
        supertypes: text_values(node, "jcr:supertypes"),
        flags: NodeTypeFlags {
            is_abstract: is_true_property(node, "jcr:isAbstract"),
            is_mixin: is_true_property(node, "jcr:isMixin"),
            has_orderable_children: is_true_property(node, "jcr:hasOrderableChildNodes"),
            is_queryable: is_true_property(node, "jcr:isQueryable"),
        },
        primary_item: node.text("jcr:primaryItemName").map(str::to_owned),
        properties: properties.into_iter().map(read_property).collect(),
        children: children.into_iter().map(read_child).collect(),
    }
}

fn read_property(node: &Subtree) -> PropertyDefinition {
    let operators = text_values(node, "jcr:availableQueryOperators");
    PropertyDefinition {
        name: node.text("jcr:name").unwrap_or(RESIDUAL_NAME).to_owned(),
        value_type: node.text("jcr:requiredType").and_then(ValueType::find),
        is_multiple: is_true_property(node, "jcr:multiple"),
        flags: read_flags(node),
        default_values: text_values(node, "jcr:defaultValues"),
        constraints: text_values(node, "jcr:valueConstraints"),
        query_use: PropertyQueryUse {
            operators: operators
                .iter()
                .filter_map(|name| AvailableQueryOperator::find(name))
                .collect(),
            is_full_text_searchable: is_true_property(node, "jcr:isFullTextSearchable"),
            is_orderable: is_true_property(node, "jcr:isQueryOrderable"),
        },
    }
}

fn read_child(node: &Subtree) -> ChildDefinition {
    ChildDefinition {
        name: node.text("jcr:name").unwrap_or(RESIDUAL_NAME).to_owned(),
        required_types: text_values(node, "jcr:requiredPrimaryTypes"),
        default_type: node.text("jcr:defaultPrimaryType").map(str::to_owned),
        allows_same_names: is_true_property(node, "jcr:sameNameSiblings"),
        flags: read_flags(node),
    }
}

fn read_flags(node: &Subtree) -> ItemFlags {
    let on_parent_version = node.text("jcr:onParentVersion").and_then(OnParentVersion::find);
    ItemFlags {
        is_autocreated: is_true_property(node, "jcr:autoCreated"),
        is_mandatory: is_true_property(node, "jcr:mandatory"),
        is_protected: is_true_property(node, "jcr:protected"),
        on_parent_version: on_parent_version.unwrap_or_default(),
    }
}

fn is_true_property(node: &Subtree, name: &str) -> bool {
    let value = node.properties.get(name).and_then(Property::first);
    matches!(value, Some(Value::Boolean(true)))
}

fn text_values(node: &Subtree, name: &str) -> Vec<String> {
    let values = node.properties.get(name).map_or(&[][..], Property::values);
    values.iter().map(|value| value.to_text().into_owned()).collect()
}
