//! The reading side of AEM's Assets HTTP API: folders, assets and renditions as Siren entities.
//!
//! In: a node below `/content/dam`. Out: JSON with `class`, `properties`, `entities` and `links`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::{JCR_CONTENT, Node, NodePath, Property, ValueType};

use super::aem_request::{AemRequest, PendingAemResponse};
use super::refusal::method_not_allowed;
use crate::failure::{RequestFailure, Result};

/// The folder that the API shows.
pub(super) const ASSETS_FOLDER: &str = "/content/dam";
/// The address of that folder.
pub(super) const ASSETS_ADDRESS: &str = "/api/assets";
/// Default and maximum number of entities in a response.
const DEFAULT_PAGE_SIZE: usize = 20;
const MAX_PAGE_SIZE: usize = 1000;
/// Properties of metadata and content whose prefix `jcr` the API replaces by `dc`.
const RENAMED_PROPERTIES: [&str; 3] = ["jcr:title", "jcr:description", "jcr:language"];

/// The requested part of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntityRange {
    offset: usize,
    limit: usize,
}

impl EntityRange {
    /// Parses `offset` and `limit`.
    pub(super) fn parse(offset: Option<&str>, limit: Option<&str>) -> Result<Self> {
        let number = |name: &str, text: Option<&str>, default: usize| {
            let wrong = || RequestFailure::bad_request(format!("`{name}` must be a number"));
            text.map_or(Ok(default), |text| text.parse::<usize>().map_err(|_| wrong()))
        };
        Ok(Self {
            offset: number("offset", offset, 0)?,
            limit: number("limit", limit, DEFAULT_PAGE_SIZE)?.clamp(1, MAX_PAGE_SIZE),
        })
    }
}

/// `/api.json`: names the services below `/api`.
pub(super) fn describe_service(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        if !request.is_read() {
            return method_not_allowed("GET and HEAD");
        }
        let link = |relation: &str, address: &str| json!({ "rel": [relation], "href": address });
        let body = json!({
            "class": ["core/services"],
            "properties": { "name": "api" },
            "links": [link("self", "/api.json"), link("http://www.day.com/dam/2012/api/assets", "/api/assets.json")],
        });
        Ok(Json(body).into_response())
    })
}

/// Returns the address of a node below the folder of assets.
pub(super) fn entity_address(path: &NodePath) -> String {
    let rest = path.as_str().strip_prefix(ASSETS_FOLDER).unwrap_or_default();
    let names: Vec<String> = rest
        .split('/')
        .map(|name| percent_encoding::utf8_percent_encode(name, PATH_NAME_SET).to_string())
        .collect();
    format!("{ASSETS_ADDRESS}{}", names.join("/"))
}

/// The characters of a name that a URL contains unencoded.
const PATH_NAME_SET: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Describes a folder or an asset.
///
/// # Errors
/// Not found, for any other node.
pub(super) fn entity_response(node: &Node, range: EntityRange) -> Result<Response> {
    let class =
        entity_class(node).ok_or_else(|| RequestFailure::not_found(node.path().as_str()))?;
    let address = entity_address(node.path());
    let mut links = vec![json!({ "rel": ["self"], "href": format!("{address}.json") })];
    if let Some(parent) = node.path().parent().filter(|_| node.path().as_str() != ASSETS_FOLDER) {
        let href = format!("{}.json", entity_address(&parent));
        links.push(json!({ "rel": ["parent"], "href": href }));
    }
    let mut properties = entity_properties(node, class)?;
    let entities = match class {
        EntityClass::Asset => {
            links.push(json!({ "rel": ["content"], "href": node.path().as_str() }));
            rendition_entities(node)?
        }
        EntityClass::Folder => {
            let total = node.count_listed_children()?;
            let EntityRange { offset, limit } = range;
            let end = offset.saturating_add(limit);
            if end < total {
                let href = format!("{address}.json?offset={end}&limit={limit}");
                links.push(json!({ "rel": ["next"], "href": href }));
            }
            let paging = json!({ "total": total, "offset": offset, "limit": limit });
            properties.insert("srn:paging".to_owned(), paging);
            child_entities(node, range)?
        }
    };
    let body = json!({
        "class": [class.name()], "properties": properties, "entities": entities, "links": links,
    });
    Ok(Json(body).into_response())
}

/// The kind of an entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntityClass {
    Folder,
    Asset,
}

impl EntityClass {
    fn name(self) -> &'static str {
        match self {
            Self::Folder => "assets/folder",
            Self::Asset => "assets/asset",
        }
    }
}

/// Returns the kind of entity that a node is; `None` for nodes that the API does not show.
pub(super) fn entity_class(node: &Node) -> Option<EntityClass> {
    match node.primary_type() {
        "dam:Asset" => Some(EntityClass::Asset),
        "nt:folder" | "sling:Folder" | "sling:OrderedFolder" => Some(EntityClass::Folder),
        _ => None,
    }
}

fn child_entities(folder: &Node, range: EntityRange) -> Result<Vec<Value>> {
    let mut entities = Vec::new();
    for child in folder.listed_page(range.offset, range.limit)? {
        let Some(class) = entity_class(&child) else { continue };
        let href = format!("{}.json", entity_address(child.path()));
        entities.push(json!({
            "class": [class.name()],
            "rel": ["child"],
            "properties": entity_properties(&child, class)?,
            "links": [{ "rel": ["self"], "href": href }],
        }));
    }
    Ok(entities)
}

fn rendition_entities(asset: &Node) -> Result<Vec<Value>> {
    let renditions = asset.snapshot().node(&asset.path().resolve("jcr:content/renditions")?)?;
    let Some(renditions) = renditions else { return Ok(Vec::new()) };
    let mut entities = Vec::new();
    for rendition in renditions.children()? {
        if rendition.primary_type() != "nt:file" {
            continue;
        }
        let content = rendition.child(JCR_CONTENT)?;
        let media_type = content.as_ref().and_then(|content| content.text("jcr:mimeType"));
        entities.push(json!({
            "class": ["assets/rendition"],
            "rel": ["child"],
            "properties": { "name": rendition.name(), "dc:format": media_type },
            "links": [{ "rel": ["content"], "href": rendition.path().as_str() }],
        }));
    }
    Ok(entities)
}

fn entity_properties(node: &Node, class: EntityClass) -> Result<Map<String, Value>> {
    let mut properties = Map::new();
    properties.insert("name".to_owned(), node.name().into());
    let content = node.child(JCR_CONTENT)?;
    if class == EntityClass::Asset {
        let metadata = match &content {
            Some(content) => content.child("metadata")?,
            None => None,
        };
        let metadata = metadata.map(|metadata| property_members(&metadata)).unwrap_or_default();
        properties.insert("metadata".to_owned(), metadata.into());
    }
    for source in content.iter().chain([node]) {
        for (name, value) in property_members(source) {
            properties.entry(name).or_insert(value);
        }
    }
    Ok(properties)
}

/// Returns the properties of a node, without those that describe its storage.
fn property_members(node: &Node) -> Map<String, Value> {
    let mut members = Map::new();
    for (name, property) in node.properties() {
        let is_of_storage =
            matches!(name.as_str(), "jcr:primaryType" | "jcr:mixinTypes" | "jcr:uuid");
        if is_of_storage || property.value_type() == ValueType::Binary {
            continue;
        }
        let name = match name.strip_prefix("jcr:") {
            Some(rest) if RENAMED_PROPERTIES.contains(&name.as_str()) => format!("dc:{rest}"),
            _ => name,
        };
        members.insert(name, property_value(&property));
    }
    members
}

fn property_value(property: &Property) -> Value {
    use tympan_content::Value as Stored;
    let value = |stored: &Stored| match stored {
        Stored::Long(number) => Value::from(*number),
        Stored::Double(number) => Value::from(*number),
        Stored::Boolean(truth) => Value::from(*truth),
        other => Value::from(other.to_text().into_owned()),
    };
    let mut values: Vec<Value> = property.values().iter().map(value).collect();
    match property.is_list() {
        true => values.into(),
        false => values.pop().unwrap_or_default(),
    }
}

/// Describes a rendition.
pub(super) fn rendition_response(node: &Node) -> Response {
    Json(json!({
        "class": ["assets/rendition"],
        "properties": { "name": node.name() },
        "links": [{ "rel": ["content"], "href": node.path().as_str() }],
    }))
    .into_response()
}

/// Describes a write for its response.
pub(super) fn write_response(status: StatusCode, path: &NodePath) -> Response {
    let parent = path.parent().unwrap_or_else(NodePath::root);
    let location = entity_address(path);
    let body = json!({
        "class": ["core/response"],
        "properties": {
            "path": path.as_str(),
            "location": location,
            "parentLocation": entity_address(&parent),
            "status.code": status.as_u16(),
            "status.message": status.canonical_reason(),
        },
    });
    let mut response = (status, Json(body)).into_response();
    if status == StatusCode::CREATED
        && let Ok(location) = http::HeaderValue::from_str(&location)
    {
        response.headers_mut().insert(http::header::LOCATION, location);
    }
    response
}
