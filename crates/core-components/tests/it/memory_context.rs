//! Content in memory, loaded from the JSON form of content.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tympan_core_components::{
    ComponentContext, ComponentRequest, ComponentResource, ContentDate, ContentValue,
    DynamicMediaAsset, FragmentSearch, FullTextPageSearch, ModelMap, ModelValue, OembedAnswer,
    RemoteMediaSettings,
};

/// A node: its properties and the names of its children, in their order.
#[derive(Clone, Debug, Default)]
struct MemoryNode {
    properties: Vec<(String, ContentValue)>,
    children: Vec<String>,
}

/// Content, policies and answers of services.
#[derive(Default)]
pub(crate) struct MemoryContext {
    nodes: BTreeMap<String, MemoryNode>,
    /// Policies by resource type.
    pub(crate) policies: BTreeMap<String, String>,
    pub(crate) request: ComponentRequest,
    pub(crate) current_page: Option<String>,
    pub(crate) design_path: Option<String>,
    pub(crate) uses_vanity_paths: bool,
    pub(crate) merges_template_structure: bool,
    pub(crate) live_copies: BTreeMap<String, Vec<String>>,
    pub(crate) found_pages: Vec<String>,
    pub(crate) found_fragments: Vec<String>,
    pub(crate) client_library: Option<String>,
    pub(crate) dynamic_media: Option<DynamicMediaAsset>,
    pub(crate) remote_media: Option<RemoteMediaSettings>,
    pub(crate) remote_metadata: Option<String>,
    pub(crate) oembed: Option<OembedAnswer>,
    /// The folder whose children a data source gives, by resource type.
    pub(crate) data_sources: BTreeMap<String, String>,
}

impl MemoryContext {
    /// Loads the JSON form of a tree below a path; nodes that exist get more properties and children.
    pub(crate) fn load(&mut self, path: &str, tree: &Value) {
        self.create(path);
        let Value::Object(members) = tree else { return };
        for (name, value) in members {
            match value {
                Value::Object(_) => self.load(&format!("{path}/{name}"), value),
                _ => {
                    let (name, value) = match name.strip_prefix(':') {
                        Some(name) => (name, ContentValue::Binary(value.as_u64().unwrap_or(0))),
                        None => (name.as_str(), content_value(name, value)),
                    };
                    self.set(path, name, value);
                }
            }
        }
    }

    /// Creates a node and those above it.
    pub(crate) fn create(&mut self, path: &str) {
        if self.nodes.contains_key(path) {
            return;
        }
        self.nodes.insert(path.to_owned(), MemoryNode::default());
        if let Some((parent, name)) = path.rsplit_once('/') {
            if !parent.is_empty() {
                self.create(parent);
            }
            let parent = self.nodes.entry(parent.to_owned()).or_default();
            if !parent.children.iter().any(|child| child == name) {
                parent.children.push(name.to_owned());
            }
        }
    }

    /// Sets a property.
    pub(crate) fn set(&mut self, path: &str, name: &str, value: ContentValue) {
        self.create(path);
        let node = self.nodes.get_mut(path).unwrap();
        node.properties.retain(|(key, _)| key != name);
        node.properties.push((name.to_owned(), value));
    }

    /// Switches the data layer on for all content.
    pub(crate) fn enable_data_layer(&mut self) {
        let path =
            "/conf/global/sling:configs/com.adobe.cq.wcm.core.components.internal.DataLayerConfig";
        self.set(path, "enabled", ContentValue::Boolean(true));
    }
}

/// Reads a value as Sling's content loader does.
fn content_value(name: &str, value: &Value) -> ContentValue {
    match value {
        Value::String(text) if name == "jcr:primaryType" => {
            ContentValue::Name(text.as_str().into())
        }
        Value::String(text) => match date(text) {
            Some(date) => ContentValue::Date(date),
            None => ContentValue::text(text.as_str()),
        },
        Value::Bool(value) => ContentValue::Boolean(*value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => ContentValue::Long(number),
            None => ContentValue::Double(number.as_f64().unwrap()),
        },
        Value::Array(values) => {
            ContentValue::List(values.iter().map(|value| content_value(name, value)).collect())
        }
        Value::Null | Value::Object(_) => ContentValue::text(""),
    }
}

/// Reads `Wed Jan 13 2016 16:14:51 GMT+0100`, or an ISO date with a time.
fn date(text: &str) -> Option<ContentDate> {
    if text.len() > 20 && text.as_bytes()[4] == b'-' {
        return ContentDate::parse(text);
    }
    let words: Vec<&str> = text.split(' ').collect();
    let [_, month, day, year, time, zone] = words.as_slice() else { return None };
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| name == month)? + 1;
    let zone = zone.strip_prefix("GMT")?;
    let (hours, minutes) = zone.split_at_checked(3)?;
    ContentDate::parse(&format!("{year}-{month:02}-{day}T{time}{hours}:{minutes}"))
}

impl ComponentContext for MemoryContext {
    fn node_exists(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    fn property(&self, path: &str, name: &str) -> Option<ContentValue> {
        let node = self.nodes.get(path)?;
        node.properties.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    fn property_names(&self, path: &str) -> Vec<String> {
        self.nodes.get(path).map_or_else(Vec::new, |node| {
            node.properties.iter().map(|(name, _)| name.clone()).collect()
        })
    }

    fn child_names(&self, path: &str) -> Vec<String> {
        self.nodes.get(path).map_or_else(Vec::new, |node| node.children.clone())
    }

    fn component_path(&self, resource_type: &str) -> Option<String> {
        ["/apps/", "/libs/"]
            .into_iter()
            .map(|folder| format!("{folder}{resource_type}"))
            .find(|path| self.nodes.contains_key(path))
    }

    fn current_page(&self) -> Option<String> {
        self.current_page.clone()
    }

    fn request(&self) -> &ComponentRequest {
        &self.request
    }

    fn content_policy(&self, resource: &ComponentResource) -> Option<String> {
        let resource_type = resource.resource_type(self)?;
        self.policies
            .get(&*resource_type)
            .cloned()
            .or_else(|| tympan_core_components::find_content_policy(self, resource))
    }

    fn design_path(&self) -> Option<String> {
        self.design_path.clone()
    }

    fn merges_template_structure(&self) -> bool {
        self.merges_template_structure
    }

    fn map_path(&self, path: &str) -> String {
        path.strip_prefix("/content/links/site1/").map_or_else(
            || path.replace("/jcr:content", "/_jcr_content"),
            |rest| format!("/content/site1/{rest}"),
        )
    }

    fn external_url(&self, mapped_path: &str) -> String {
        if mapped_path.starts_with('/') {
            format!("https://example.org{mapped_path}")
        } else {
            mapped_path.to_owned()
        }
    }

    fn uses_vanity_paths(&self) -> bool {
        self.uses_vanity_paths
    }

    fn search_pages(&self, _: &FullTextPageSearch) -> Vec<String> {
        self.found_pages.clone()
    }

    fn search_fragments(&self, search: &FragmentSearch) -> Vec<String> {
        if search.model.is_empty() { Vec::new() } else { self.found_fragments.clone() }
    }

    fn live_copies(&self, path: &str) -> Vec<String> {
        self.live_copies.get(path).cloned().unwrap_or_default()
    }

    fn client_library_path(&self, _: &str) -> Option<String> {
        self.client_library.clone()
    }

    fn dynamic_media(&self, _: &str) -> Option<DynamicMediaAsset> {
        self.dynamic_media.clone()
    }

    fn remote_media(&self) -> Option<RemoteMediaSettings> {
        self.remote_media.clone()
    }

    fn remote_media_metadata(&self, _: &str) -> Option<String> {
        self.remote_metadata.clone()
    }

    fn fetch_oembed(&self, _: &str) -> Option<OembedAnswer> {
        self.oembed.clone()
    }

    fn data_source(&self, resource_type: &str, _: &ComponentResource) -> Vec<ModelValue> {
        let Some(folder) = self.data_sources.get(resource_type) else { return Vec::new() };
        self.child_names(folder)
            .into_iter()
            .map(|name| {
                let path = format!("{folder}/{name}");
                let mut map = ModelMap::new();
                for name in self.property_names(&path) {
                    map.insert(name.as_str(), self.property(&path, &name).unwrap());
                }
                map.into()
            })
            .collect()
    }
}

/// Makes the shared handle that models take.
pub(crate) fn shared(context: MemoryContext) -> Arc<dyn ComponentContext> {
    Arc::new(context)
}
