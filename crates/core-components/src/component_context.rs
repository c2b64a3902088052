//! The interface through which models read: content, components, policies, the request, links, searches.
//!
//! A caller implements [`ComponentContext`]. Every read of a model goes through it, so the caller can record what the
//! output depends on. Methods with a default implementation express AEM's documented rule with the other methods; a
//! caller overrides one that it can answer faster or that its installation answers differently.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::content_value::ContentValue;
use crate::model_value::ModelValue;
use crate::tag_reader::{self, TaggedPageSearch};
use crate::{configuration_lookup, content_policy};

/// The content, the request and the services that models read.
pub trait ComponentContext: Send + Sync {
    /// Returns whether a node exists at a path.
    fn node_exists(&self, path: &str) -> bool;

    /// Returns one property of the node at a path.
    fn property(&self, path: &str, name: &str) -> Option<ContentValue>;

    /// Returns the names of the properties of the node at a path, in their order.
    fn property_names(&self, path: &str) -> Vec<String>;

    /// Returns the names of the child nodes of a path, in their order.
    fn child_names(&self, path: &str) -> Vec<String>;

    /// Returns the path of the component with a resource type, as found in the search paths `/apps` and `/libs`.
    fn component_path(&self, resource_type: &str) -> Option<String>;

    /// Returns the super type of a resource type.
    fn super_type(&self, resource_type: &str) -> Option<String> {
        let component = self.component_path(resource_type)?;
        let value = self.property(&component, "sling:resourceSuperType")?;
        value.to_text().map(|text| text.to_string()).filter(|text| !text.is_empty())
    }

    /// Returns the path of the page that is rendered.
    fn current_page(&self) -> Option<String>;

    /// Returns the request.
    fn request(&self) -> &ComponentRequest;

    /// Returns the path of the node that holds the content policy of a resource.
    ///
    /// The default reads the mapping `cq:policies` in the template of the page that contains the resource.
    fn content_policy(&self, resource: &ComponentResource) -> Option<String> {
        content_policy::find_content_policy(self, resource)
    }

    /// Returns the path of the node that holds a context-aware configuration of a resource.
    ///
    /// The default follows `sling:configRef` upwards from the resource.
    fn configuration(&self, resource_path: &str, name: &str) -> Option<String> {
        configuration_lookup::find_configuration(self, resource_path, name)
    }

    /// Returns the path of the design (`cq:designPath`) of the current page.
    fn design_path(&self) -> Option<String> {
        None
    }

    /// Whether containers show the components of the structure of the page's editable template, merged with the page.
    ///
    /// AEM does so for every request to a page. Without it, a container shows the children of its node only.
    fn merges_template_structure(&self) -> bool {
        false
    }

    /// Maps a content path to the path of a URL, without the context path.
    fn map_path(&self, path: &str) -> String {
        path.to_owned()
    }

    /// Returns the content path that the path of a URL resolves to.
    fn resolve_path(&self, url_path: &str) -> Option<String> {
        self.node_exists(url_path).then(|| url_path.to_owned())
    }

    /// Returns the complete URL of a mapped path on the publish instance.
    fn external_url(&self, mapped_path: &str) -> String {
        mapped_path.to_owned()
    }

    /// Whether links use the vanity path of their page.
    fn uses_vanity_paths(&self) -> bool {
        false
    }

    /// Translates a text of the components for a locale, or for the locale of the request.
    fn translate(&self, text: &str, locale: Option<&str>) -> String {
        let _ = locale;
        text.to_owned()
    }

    /// Returns paths of pages below a root that contain words, best first.
    fn search_pages(&self, search: &FullTextPageSearch) -> Vec<String> {
        let _ = search;
        Vec::new()
    }

    /// Returns paths of pages with tags.
    ///
    /// The default reads all pages below the root.
    fn tagged_pages(&self, search: &TaggedPageSearch) -> Vec<String> {
        tag_reader::find_tagged_pages(self, search)
    }

    /// Returns paths of content fragments that match, in the asked order.
    fn search_fragments(&self, search: &FragmentSearch) -> Vec<String> {
        let _ = search;
        Vec::new()
    }

    /// Returns the content of a file node as text.
    fn text_file(&self, path: &str) -> Option<String> {
        let _ = path;
        None
    }

    /// Returns paths of live copies of a node.
    fn live_copies(&self, path: &str) -> Vec<String> {
        let _ = path;
        Vec::new()
    }

    /// Returns the markup that loads client libraries.
    fn client_library_markup(&self, libraries: &ClientLibraryInclusion) -> String {
        let _ = libraries;
        String::new()
    }

    /// Returns the URL path of a client library of a category, and whether it is served below `/etc.clientlibs`.
    fn client_library_path(&self, category: &str) -> Option<String> {
        let _ = category;
        None
    }

    /// Returns the server and the name under which Dynamic Media delivers an asset.
    fn dynamic_media(&self, asset_path: &str) -> Option<DynamicMediaAsset> {
        let _ = asset_path;
        None
    }

    /// Returns the configuration of Dynamic Media with OpenAPI.
    fn remote_media(&self) -> Option<RemoteMediaSettings> {
        None
    }

    /// Returns the metadata of a remote asset as JSON.
    fn remote_media_metadata(&self, url: &str) -> Option<String> {
        let _ = url;
        None
    }

    /// Returns the HTML and the data of an oEmbed provider for a URL.
    fn fetch_oembed(&self, endpoint: &str) -> Option<OembedAnswer> {
        let _ = endpoint;
        None
    }

    /// Returns the items that a data source component gives for a resource, as maps of `value` and `text`.
    fn data_source(&self, resource_type: &str, resource: &ComponentResource) -> Vec<ModelValue> {
        let _ = (resource_type, resource);
        Vec::new()
    }
}

impl fmt::Debug for dyn ComponentContext + '_ {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ComponentContext").finish_non_exhaustive()
    }
}

/// The request that a page is rendered for.
#[derive(Clone, Debug, Default)]
pub struct ComponentRequest {
    /// The path of the requested resource.
    pub path: String,
    /// Selectors of the URL.
    pub selectors: Vec<String>,
    /// Extension of the URL.
    pub extension: Option<String>,
    /// Suffix of the URL.
    pub suffix: Option<String>,
    /// Parameters in their order.
    pub parameters: Vec<(String, String)>,
    /// Attributes that an including script set.
    pub attributes: BTreeMap<String, ModelValue>,
    /// The prefix of all URLs of the application, without a final slash.
    pub context_path: String,
    /// The language that the visitor asked for.
    pub locale: Option<String>,
    /// The mode in which an author looks at the page.
    pub wcm_mode: AuthoringMode,
}

impl ComponentRequest {
    /// Returns the first value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a parameter.
    pub fn parameter_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.parameters.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// The mode in which a page is looked at (`wcmmode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthoringMode {
    /// As visitors see it.
    #[default]
    Disabled,
    /// The page editor.
    Edit,
    /// The preview of the page editor.
    Preview,
    /// The design mode of the classic editor.
    Design,
}

/// A resource that a model is asked about: a content node, or a wrapper with another type or other properties.
#[derive(Clone, Debug, PartialEq)]
pub struct ComponentResource {
    path: Arc<str>,
    resource_type: Option<Arc<str>>,
    overlay: Arc<BTreeMap<String, Option<ContentValue>>>,
    is_isolated: bool,
}

impl ComponentResource {
    /// Creates the resource of a content node.
    #[must_use]
    pub fn new(path: impl Into<Arc<str>>) -> ComponentResource {
        ComponentResource {
            path: path.into(),
            resource_type: None,
            overlay: Arc::default(),
            is_isolated: false,
        }
    }

    /// Returns the same resource with another resource type.
    #[must_use]
    pub fn with_type(mut self, resource_type: impl Into<Arc<str>>) -> ComponentResource {
        self.resource_type = Some(resource_type.into());
        self
    }

    /// Returns the same resource with a property that replaces the stored one.
    #[must_use]
    pub fn with_property(mut self, name: &str, value: ContentValue) -> ComponentResource {
        Arc::make_mut(&mut self.overlay).insert(name.to_owned(), Some(value));
        self
    }

    /// Returns the same resource without a property.
    #[must_use]
    pub fn without_property(mut self, name: &str) -> ComponentResource {
        Arc::make_mut(&mut self.overlay).insert(name.to_owned(), None);
        self
    }

    /// Returns the same resource with only the properties that were set on it, none of the node's.
    #[must_use]
    pub fn isolated(mut self) -> ComponentResource {
        self.is_isolated = true;
        self
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the resource type that was set on the wrapper.
    pub(crate) fn own_type(&self) -> Option<&str> {
        self.resource_type.as_deref()
    }

    /// Returns the resource type: the one set on the wrapper, else that of the node.
    #[must_use]
    pub fn resource_type(&self, context: &dyn ComponentContext) -> Option<Arc<str>> {
        if let Some(resource_type) = &self.resource_type {
            return Some(Arc::clone(resource_type));
        }
        self.property(context, "sling:resourceType")
            .or_else(|| self.property(context, "jcr:primaryType"))
            .and_then(|value| value.to_text())
    }

    /// Returns one property.
    #[must_use]
    pub fn property(&self, context: &dyn ComponentContext, name: &str) -> Option<ContentValue> {
        match self.overlay.get(name) {
            Some(value) => value.clone(),
            None if self.is_isolated => None,
            None => context.property(&self.path, name),
        }
    }

    /// Returns the names of the properties: those of the node, then those set on the wrapper.
    #[must_use]
    pub fn property_names(&self, context: &dyn ComponentContext) -> Vec<String> {
        let mut names =
            if self.is_isolated { Vec::new() } else { context.property_names(&self.path) };
        names.retain(|name| self.overlay.get(name).is_none_or(Option::is_some));
        for (name, value) in self.overlay.iter() {
            if value.is_some() && !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Whether the resource differs from the content node at its path.
    #[must_use]
    pub fn is_wrapper(&self) -> bool {
        self.resource_type.is_some() || self.is_isolated || !self.overlay.is_empty()
    }
}

/// A search for pages that contain words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullTextPageSearch {
    /// The page below which to search.
    pub root: String,
    /// The words, as a visitor or an author typed them.
    pub text: String,
    /// The number of hits to skip.
    pub offset: usize,
    /// The largest number of hits; none for all.
    pub limit: Option<usize>,
}

/// A search for content fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentSearch {
    /// The path of the content fragment model.
    pub model: String,
    /// The folder below which to search.
    pub root: String,
    /// Tags, of which a fragment has one.
    pub tags: Vec<String>,
    /// The property to order by.
    pub order_by: String,
    /// Whether the largest value is first.
    pub is_descending: bool,
    /// The largest number of hits; none for all.
    pub limit: Option<usize>,
}

/// Client libraries whose markup a script asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLibraryInclusion {
    /// Categories in the asked order.
    pub categories: Vec<String>,
    /// Whether style sheets are included.
    pub has_css: bool,
    /// Whether scripts are included.
    pub has_js: bool,
    /// Attributes of the elements: `media`, `async`, `defer`, `crossorigin`, `onload`.
    pub attributes: Vec<(String, Option<String>)>,
    /// Whether the content of the libraries is asked for, in place of elements that load them.
    pub is_inline: bool,
}

/// An asset as Dynamic Media delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicMediaAsset {
    /// The image server, for example `https://s7d9.scene7.com`.
    pub server: String,
    /// The name on that server, `company/asset`.
    pub name: String,
}

/// The configuration of Dynamic Media with OpenAPI (next generation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteMediaSettings {
    /// The repository, whose host name is in the URLs of assets.
    pub repository: String,
    /// The path template of delivery, with `{asset-id}`, `{seo-name}` and `{format}`.
    pub delivery_path: String,
    /// The path template of metadata, with `{asset-id}`.
    pub metadata_path: String,
}

/// The answer of an oEmbed provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OembedAnswer {
    /// The members of the answer, with their names in oEmbed.
    pub members: Vec<(String, ModelValue)>,
}
