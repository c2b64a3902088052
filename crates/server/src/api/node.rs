//! Nodes as JSON: typed properties, and children by name in their order.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Property, Session, Snapshot, Subtree, Value,
    ValueType,
};
use tympan_render::{find_merged_node, is_merged_path};

use crate::api::endpoint::{
    AT_PARAMETER, ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler,
    EndpointMethod, EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::entity_tag;
use crate::failure::{RequestFailure, Result};
use crate::write::property_protection::is_property_protected;
use crate::{Instance, InstanceRole};

/// Maximum number of nodes in a response.
pub(crate) const MAX_READ_NODES: usize = 1000;
/// Maximum depth of a response.
pub(crate) const MAX_READ_DEPTH: usize = 100;

/// The API endpoints that this module defines.
pub(crate) const NODE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/nodes",
    id: "readNode",
    description: "Returns a node with the types of its properties, and its descendants down to a depth, at \
        most 1,000 nodes.",
    parameters: &[
        EndpointParameter::required("path", ParameterKind::Path, "The node."),
        EndpointParameter::new(
            "depth",
            ParameterKind::Integer(0, MAX_READ_DEPTH as u64),
            "Levels of children. Default 0.",
        ),
        BRANCH_PARAMETER,
        AT_PARAMETER,
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("Node", "The node.")],
    handler: EndpointHandler::Blocking(read_node),
}];

/// Returns a node, or an error if it does not exist.
pub(crate) fn find_node(snapshot: &Snapshot, path: &NodePath) -> Result<Node> {
    snapshot.node(path)?.ok_or_else(|| RequestFailure::not_found(path.as_str()))
}

/// Returns a node and its descendants to a given depth.
fn read_node(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let path = call.path_parameter("path")?;
    let node = match instance.role == InstanceRole::Author && is_merged_path(path.as_str()) {
        true => find_merged_node(&snapshot, &path)?
            .ok_or_else(|| RequestFailure::not_found(path.as_str()))?,
        false => find_node(&snapshot, &path)?,
    };
    let mut left = MAX_READ_NODES;
    let value = node_json(&node, call.number_parameter("depth", 0), &mut left)?;
    crate::page::check_snapshot_failure(&snapshot)?;
    Ok(ApiResponse::tagged(value, entity_tag::document_tag(instance, &node)))
}

/// Describes a node as JSON. `left` is the number of nodes that may still be added; it is decremented for each node.
pub(crate) fn node_json(node: &Node, depth: usize, left: &mut usize) -> Result<Json> {
    *left = left.checked_sub(1).ok_or_else(|| {
        let message = format!(
            "the response would have more than {MAX_READ_NODES} nodes; request fewer levels, or use \
             `/api/v1/children`"
        );
        RequestFailure::new(http::StatusCode::UNPROCESSABLE_ENTITY, message)
    })?;
    let mut properties = Map::new();
    for (name, property) in node.properties() {
        // No user may read even the hash of a password.
        if name != "rep:password" {
            properties.insert(name, property_json(&property));
        }
    }
    let mut described = json!({
        "path": node.path().as_str(),
        "name": node.name(),
        "type": node.primary_type(),
        "properties": properties,
    });
    if depth > 0
        && let Some(described) = described.as_object_mut()
    {
        let mut children = Map::new();
        for child in node.children()? {
            children.insert(child.name().to_owned(), node_json(&child, depth - 1, left)?);
        }
        described.insert("children".to_owned(), children.into());
    }
    Ok(described)
}

/// Converts a property to JSON, with its type.
pub(crate) fn property_json(property: &Property) -> Json {
    let name = property.value_type().name();
    match property {
        Property::Single(value) => json!({ "type": name, "value": value_json(value) }),
        Property::List(_, values) => {
            json!({ "type": name, "values": values.iter().map(value_json).collect::<Vec<_>>() })
        }
    }
}

/// Converts a value to JSON: numbers and booleans as such, all other types as text.
fn value_json(value: &Value) -> Json {
    match value {
        Value::Long(number) => json!(number),
        Value::Double(number) if number.is_finite() => json!(number),
        Value::Boolean(truth) => json!(truth),
        other => json!(other.to_text()),
    }
}

/// A property as submitted by a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum SubmittedProperty {
    /// A value whose type follows from the JSON.
    Single(JsonScalar),
    /// Values whose type follows from the JSON. Must precede the next variant, which would also accept an array.
    List(Vec<JsonScalar>),
    /// A value with an explicit type.
    Typed(TypedSubmittedProperty),
}

/// A property with an explicit type.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TypedSubmittedProperty {
    r#type: String,
    #[serde(default, deserialize_with = "deserialize_present")]
    value: Option<JsonScalar>,
    #[serde(default, deserialize_with = "deserialize_present")]
    values: Option<Vec<JsonScalar>>,
}

/// Deserializes a member that is optional but must not be null.
pub(crate) fn deserialize_present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A single JSON value.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum JsonScalar {
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(String),
}

impl JsonScalar {
    fn value_type(&self) -> ValueType {
        match self {
            Self::Boolean(_) => ValueType::Boolean,
            Self::Integer(_) => ValueType::Long,
            Self::Number(_) => ValueType::Double,
            Self::Text(_) => ValueType::String,
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Boolean(truth) => truth.to_string(),
            Self::Integer(number) => number.to_string(),
            Self::Number(number) => Value::Double(*number).to_text().into_owned(),
            Self::Text(text) => text.clone(),
        }
    }

    /// Returns true if values of a type are written as this kind of JSON.
    fn matches_type(&self, value_type: ValueType) -> bool {
        match self {
            Self::Boolean(_) => value_type == ValueType::Boolean,
            Self::Integer(_) => matches!(value_type, ValueType::Long | ValueType::Double),
            Self::Number(number) => match value_type {
                // JSON does not distinguish 1 from 1.0.
                ValueType::Long => to_exact_integer(*number).is_some(),
                other => other == ValueType::Double,
            },
            Self::Text(text) => match value_type {
                ValueType::Boolean | ValueType::Long => false,
                ValueType::Double => matches!(text.as_str(), "NaN" | "Infinity" | "-Infinity"),
                _ => true,
            },
        }
    }

    fn to_value(&self, value_type: ValueType) -> Result<Value> {
        if !self.matches_type(value_type) {
            let message =
                format!("a value of the type {} cannot be `{}`", value_type.name(), self.to_text());
            return Err(RequestFailure::bad_request(message));
        }
        match (self, value_type) {
            (Self::Number(number), ValueType::Long) => {
                Ok(Value::Long(to_exact_integer(*number).unwrap_or_default()))
            }
            _ => Ok(Value::parse(value_type, &self.to_text())?),
        }
    }
}

/// Returns the integer that a number equals; `None` if it has a fraction or does not fit.
fn to_exact_integer(number: f64) -> Option<i64> {
    let text = format!("{number:.0}");
    text.parse().ok().filter(|_| number.fract() == 0.0)
}

impl SubmittedProperty {
    /// Converts to the property of the given name. `stored` is the current property of the node.
    pub(crate) fn to_property(&self, name: &str, stored: Option<&Property>) -> Result<Property> {
        let natural = |value_type| match name {
            PRIMARY_TYPE | MIXIN_TYPES => ValueType::Name,
            _ => value_type,
        };
        match self {
            Self::Single(scalar) => {
                let value_type = natural(scalar.value_type());
                Ok(Property::Single(Value::parse(value_type, &scalar.to_text())?))
            }
            Self::List(scalars) => {
                let value_type = natural(common_type(scalars));
                let values =
                    scalars.iter().map(|scalar| Value::parse(value_type, &scalar.to_text()));
                Ok(Property::List(value_type, values.collect::<Result<_, _>>()?))
            }
            Self::Typed(typed) => typed.to_property(stored),
        }
    }
}

/// Returns the type that all values of a list have or can be written as.
fn common_type(scalars: &[JsonScalar]) -> ValueType {
    let is_number =
        |value_type: &ValueType| matches!(value_type, ValueType::Long | ValueType::Double);
    let types: Vec<ValueType> = scalars.iter().map(JsonScalar::value_type).collect();
    match types.first() {
        Some(first) if types.iter().all(|value_type| value_type == first) => *first,
        Some(_) if types.iter().all(is_number) => ValueType::Double,
        _ => ValueType::String,
    }
}

fn list_property(value_type: ValueType, scalars: &[JsonScalar]) -> Result<Property> {
    let values = scalars.iter().map(|scalar| scalar.to_value(value_type));
    Ok(Property::List(value_type, values.collect::<Result<_>>()?))
}

impl TypedSubmittedProperty {
    fn to_property(&self, stored: Option<&Property>) -> Result<Property> {
        let unknown =
            || RequestFailure::bad_request(format!("`{}` is not a value type", self.r#type));
        let candidate =
            ValueType::find(&self.r#type).filter(|candidate| candidate.name() == self.r#type);
        let value_type = candidate.ok_or_else(unknown)?;
        if value_type == ValueType::Binary {
            // A hash alone gives no right to the bytes; a blob that is already there may stay.
            let texts = |property: &Property| {
                property
                    .values()
                    .iter()
                    .map(|value| value.to_text().into_owned())
                    .collect::<Vec<_>>()
            };
            let scalars = self.values.iter().flatten().chain(&self.value);
            let sent: Vec<String> = scalars.map(JsonScalar::to_text).collect();
            let same = stored.filter(|stored| {
                stored.value_type() == ValueType::Binary
                    && stored.is_list() == self.values.is_some()
                    && texts(stored) == sent
            });
            let message = "write binary values with PUT /api/v1/blob";
            return same.cloned().ok_or_else(|| {
                RequestFailure::new(http::StatusCode::UNPROCESSABLE_ENTITY, message)
            });
        }
        match (&self.value, &self.values) {
            (Some(value), None) => Ok(Property::Single(value.to_value(value_type)?)),
            (None, Some(values)) => list_property(value_type, values),
            _ => {
                Err(RequestFailure::bad_request("a property must have either `value` or `values`"))
            }
        }
    }
}

/// A node as submitted by a client.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmittedNode {
    /// The primary type, if it is not among the properties.
    #[serde(default, deserialize_with = "deserialize_present")]
    r#type: Option<String>,
    #[serde(default)]
    properties: ordered_object::OrderedMembers<SubmittedProperty>,
    /// The complete list of children. If missing, as from a reader who was shown no children, the existing children
    /// stay.
    #[serde(default, deserialize_with = "deserialize_present")]
    children: Option<ordered_object::OrderedMembers<SubmittedNode>>,
    /// Ignored; accepted because clients send back what they read. The URL determines the path.
    #[expect(dead_code, reason = "what was read may be sent back as it is")]
    #[serde(default, deserialize_with = "deserialize_present")]
    path: Option<String>,
    #[expect(dead_code, reason = "what was read may be sent back as it is")]
    #[serde(default, deserialize_with = "deserialize_present")]
    name: Option<String>,
}

impl SubmittedNode {
    /// Builds the subtree to create where no node exists yet.
    pub(crate) fn to_subtree(&self, name: &str) -> Result<Subtree> {
        let mut tree = Subtree::new(name, self.primary_type());
        for (name, sent) in &self.properties.0 {
            tree.properties.insert(name.clone(), sent.to_property(name, None)?);
        }
        if let Some(kind) = &self.r#type {
            tree.properties.insert(PRIMARY_TYPE.to_owned(), Property::name(kind));
        }
        for (name, child) in self.children.iter().flat_map(|children| &children.0) {
            tree.children.push(child.to_subtree(name)?);
        }
        Ok(tree)
    }

    /// Returns the submitted properties, resolved against those of an existing node.
    pub(crate) fn submitted_properties(
        &self,
        stored: &BTreeMap<String, Property>,
    ) -> Result<Vec<(String, Property)>> {
        let sent = self
            .properties
            .0
            .iter()
            .map(|(name, sent)| Ok((name.clone(), sent.to_property(name, stored.get(name))?)));
        let mut properties = sent.collect::<Result<Vec<_>>>()?;
        let has_type = properties.iter().any(|(name, _)| name == PRIMARY_TYPE);
        if self.r#type.is_some() || !has_type {
            properties.retain(|(name, _)| name != PRIMARY_TYPE);
            properties.push((PRIMARY_TYPE.to_owned(), Property::name(self.primary_type())));
        }
        Ok(properties)
    }

    /// Returns the names of properties that the viewer can see on the node and that are not submitted; these are
    /// removed.
    pub(crate) fn omitted_properties(
        &self,
        session: &mut Session,
        path: &NodePath,
        stored: &BTreeMap<String, Property>,
    ) -> Result<Vec<String>> {
        let sent: HashSet<&str> = self.properties.0.iter().map(|(name, _)| name.as_str()).collect();
        // A password hash is never shown, so clients cannot send it back.
        let is_omitted = |(name, _): &(&String, _)| {
            !(sent.contains(&***name) || *name == PRIMARY_TYPE || *name == "rep:password")
        };
        let mut omitted = stored.iter().filter(is_omitted).peekable();
        if omitted.peek().is_none() {
            return Ok(Vec::new());
        }
        // Properties that only the repository sets stay, whether or not they are sent back.
        let stored_type = stored.get(PRIMARY_TYPE).filter(|property| !property.is_list());
        let stored_type = stored_type.and_then(|property| property.first()?.as_str());
        let is_of_same_type = stored_type.unwrap_or("nt:unstructured") == self.requested_type();
        let protection = session.property_protection(path)?;
        let mut dropped = Vec::new();
        for (name, property) in omitted {
            if !(is_of_same_type && is_property_protected(&protection, name, property)?) {
                dropped.push(name.clone());
            }
        }
        Ok(dropped)
    }

    /// Returns the submitted children; `None` if the request does not mention children, in which case the existing ones
    /// stay.
    pub(crate) fn children(&self) -> Option<&[(String, SubmittedNode)]> {
        self.children.as_ref().map(|children| &*children.0)
    }

    fn primary_type(&self) -> &str {
        self.r#type.as_deref().unwrap_or("nt:unstructured")
    }

    /// Returns the submitted primary type, from its own member or from the properties.
    fn requested_type(&self) -> String {
        let sent = self.properties.0.iter().find(|(name, _)| name == PRIMARY_TYPE);
        let sent = sent.and_then(|(name, sent)| sent.to_property(name, None).ok());
        let sent = sent.and_then(|sent| Some(sent.first()?.to_text().into_owned()));
        match (&self.r#type, sent) {
            (None, Some(sent)) => sent,
            _ => self.primary_type().to_owned(),
        }
    }
}

/// A change of a node like a JSON merge patch (RFC 7396): members that are not named stay, and null removes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodePatch {
    #[serde(default)]
    pub(crate) properties: ordered_object::OrderedMembers<Option<SubmittedProperty>>,
    #[serde(default)]
    pub(crate) children: ordered_object::OrderedMembers<Option<NodePatch>>,
    /// The primary type of a new node.
    #[serde(default, deserialize_with = "deserialize_present")]
    pub(crate) r#type: Option<String>,
}

/// JSON objects whose members keep their order.
pub(crate) mod ordered_object {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

    /// The members of an object, in order.
    #[derive(Debug, Clone)]
    pub(crate) struct OrderedMembers<T>(pub(crate) Vec<(String, T)>);

    impl<T> Default for OrderedMembers<T> {
        fn default() -> Self {
            Self(Vec::new())
        }
    }

    impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedMembers<T> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Members<T>(PhantomData<T>);
            impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
                type Value = OrderedMembers<T>;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut names = std::collections::BTreeSet::new();
                    let mut entries = Vec::new();
                    while let Some((name, value)) = map.next_entry::<String, T>()? {
                        if !names.insert(name.clone()) {
                            return Err(A::Error::custom(format!("`{name}` is given twice")));
                        }
                        entries.push((name, value));
                    }
                    Ok(OrderedMembers(entries))
                }
            }
            deserializer.deserialize_map(Members(PhantomData))
        }
    }
}
