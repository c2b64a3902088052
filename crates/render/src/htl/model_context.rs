//! Content and services as the models of the Core Components read them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tympan_content::{Node, NodePath};
use tympan_core_components::{
    AuthoringMode, ClientLibraryInclusion, ComponentContext, ComponentRequest, ContentValue,
    FullTextPageSearch,
};
use tympan_notation::escape_html;

use super::content_conversion::content_value;
use crate::client_library::ClientLibraryKind;
use crate::dependency::content_reader::RequestFacts;
use crate::page;
use crate::page::link::encode_path;
use crate::page::search::{PageSearch, search_pages};
use crate::page::template_structure::TemplateStructure;
use crate::template::RenderScope;

/// Search paths of components, in order.
const SEARCH_PATHS: [&str; 2] = ["/apps/", "/libs/"];

/// Number of pages that a search returns if the model names no limit.
const DEFAULT_SEARCH_LIMIT: usize = 100;

/// The content and the services for the models of one component.
#[derive(Debug)]
pub(super) struct SiteModelContext {
    scope: Arc<RenderScope>,
    request: ComponentRequest,
    /// The editable template whose structure the component may lie in.
    structure: Option<Arc<TemplateStructure>>,
    /// The nodes that the component looked up.
    nodes: Mutex<HashMap<String, Option<Node>>>,
}

impl SiteModelContext {
    /// Creates the context of a component.
    pub(super) fn new(
        scope: Arc<RenderScope>,
        selectors: &[String],
        structure: Option<Arc<TemplateStructure>>,
        mode: AuthoringMode,
    ) -> Self {
        let url = &scope.request.url;
        let names = scope.request.parameters.names();
        let parameters = names.flat_map(|name| {
            let values = scope.request.parameters.values(name).unwrap_or_default();
            values.iter().map(move |value| (name.to_owned(), value.clone()))
        });
        let request = ComponentRequest {
            path: url.path.clone(),
            selectors: selectors.to_vec(),
            extension: url.extension.clone(),
            suffix: url.suffix.clone(),
            parameters: parameters.collect(),
            wcm_mode: mode,
            ..ComponentRequest::default()
        };
        Self { scope, request, structure, nodes: Mutex::default() }
    }

    /// Returns the editable template whose structure the component may lie in.
    pub(super) fn structure(&self) -> Option<&Arc<TemplateStructure>> {
        self.structure.as_ref()
    }

    /// Returns true if there is a page at a path.
    pub(super) fn is_page(&self, path: &str) -> bool {
        self.node(path).is_some_and(|node| node.is_page())
    }

    /// Returns the node at a path: for an editable place of a template's structure, the node of the page.
    pub(super) fn node(&self, path: &str) -> Option<Node> {
        if let Some(node) = self.nodes.lock().get(path) {
            return node.clone();
        }
        let reader = &self.scope.reader;
        let node = NodePath::new(path).ok().and_then(|path| {
            let editable = self
                .structure
                .as_ref()
                .and_then(|structure| structure.editable_path(reader, &path));
            reader.node_existence(&editable.unwrap_or(path))
        });
        self.nodes.lock().insert(path.to_owned(), node.clone());
        node
    }

    /// Returns a resource type and its super types, nearest first.
    pub(super) fn super_types(&self, resource_type: &str) -> Vec<String> {
        let scripts = &self.scope.scripts;
        scripts.record_script_folders(&self.scope.reader, resource_type, None);
        scripts.super_types(resource_type)
    }

    /// Returns the language of the requested page.
    pub(super) fn page_language(&self) -> String {
        let page = self.scope.requested_page();
        page.map(|page| page::page_language(&self.scope.reader, page)).unwrap_or_default()
    }

    /// Translates a text with a hint for translators.
    pub(super) fn translate_with_hint(
        &self,
        text: &str,
        hint: Option<&str>,
        locale: Option<&str>,
    ) -> String {
        let language = locale.map_or_else(|| self.page_language(), str::to_owned);
        self.scope.reader.record_any_script();
        let dictionaries = self.scope.scripts.dictionaries();
        if let Some(hint) = hint {
            let key = format!("{text} (({hint}))");
            let (message, _) = dictionaries.find(&language, &key);
            if message != key {
                return message.to_owned();
            }
        }
        dictionaries.find(&language, text).0.to_owned()
    }
}

impl ComponentContext for SiteModelContext {
    fn node_exists(&self, path: &str) -> bool {
        self.node(path).is_some()
    }

    fn property(&self, path: &str, name: &str) -> Option<ContentValue> {
        let node = self.node(path)?;
        let value =
            self.scope.reader.property(&node, name).map(|property| content_value(&property))?;
        // Models look up the policies of a page's template themselves.
        if name == "cq:template"
            && let Some(template) = value.to_text()
        {
            self.scope.reader.open_template(&template);
        }
        if name == "cq:model"
            && let Some(model) = value.to_text()
        {
            self.scope.reader.open_fragment_model(&model);
        }
        Some(value)
    }

    fn property_names(&self, path: &str) -> Vec<String> {
        let Some(node) = self.node(path) else { return Vec::new() };
        self.scope.reader.record_properties(&node);
        node.properties().into_iter().map(|(name, _)| name).collect()
    }

    fn child_names(&self, path: &str) -> Vec<String> {
        let Some(node) = self.node(path) else { return Vec::new() };
        let children = self.scope.reader.children_existence(&node);
        children.iter().map(|child| child.name().to_owned()).collect()
    }

    fn component_path(&self, resource_type: &str) -> Option<String> {
        if resource_type.starts_with('/') {
            return self.node_exists(resource_type).then(|| resource_type.to_owned());
        }
        let mut paths =
            SEARCH_PATHS.iter().map(|search_path| format!("{search_path}{resource_type}"));
        paths.find(|path| self.node_exists(path))
    }

    fn super_type(&self, resource_type: &str) -> Option<String> {
        self.super_types(resource_type).into_iter().nth(1)
    }

    fn current_page(&self) -> Option<String> {
        self.scope.requested_page().map(|page| page.path().to_string())
    }

    fn request(&self) -> &ComponentRequest {
        let facts =
            [RequestFacts::URL, RequestFacts::PAGE, RequestFacts::PARAMETERS, RequestFacts::EDIT];
        facts.into_iter().for_each(|fact| self.scope.reader.record_fact(fact));
        &self.request
    }

    fn map_path(&self, path: &str) -> String {
        let (path, rest) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
        format!("{}{rest}", self.scope.external_url(encode_path(path)))
    }

    fn external_url(&self, mapped_path: &str) -> String {
        let request = &self.scope.request;
        self.scope.reader.record_fact(RequestFacts::HOST);
        if request.host.is_empty() || !mapped_path.starts_with('/') || mapped_path.starts_with("//")
        {
            return mapped_path.to_owned();
        }
        format!("{}://{}{mapped_path}", request.scheme, request.host)
    }

    fn translate(&self, text: &str, locale: Option<&str>) -> String {
        self.translate_with_hint(text, None, locale)
    }

    fn search_pages(&self, search: &FullTextPageSearch) -> Vec<String> {
        let Some(root) = self.node(&search.root) else { return Vec::new() };
        let limit = search.limit.unwrap_or(DEFAULT_SEARCH_LIMIT).max(1);
        let request = PageSearch {
            root: &root,
            input: &search.text,
            page_number: search.offset / limit + 1,
            limit,
            component: "core/wcm/components/search",
        };
        match search_pages(&self.scope.reader, &self.scope.query_engine, request) {
            Ok(results) => results.hits.iter().map(|hit| hit.page.path().to_string()).collect(),
            Err(error) => {
                tracing::warn!(path = %search.root, error = %error, "a search of a component failed");
                Vec::new()
            }
        }
    }

    fn client_library_markup(&self, inclusion: &ClientLibraryInclusion) -> String {
        // Another file in any library changes the address.
        self.scope.reader.record_any_script();
        let libraries = self.scope.scripts.client_libraries();
        let kinds = [
            (ClientLibraryKind::Css, inclusion.has_css),
            (ClientLibraryKind::Js, inclusion.has_js),
        ];
        let mut markup = String::new();
        for (kind, _) in kinds.into_iter().filter(|(_, is_requested)| *is_requested) {
            if inclusion.is_inline {
                markup.push_str(&libraries.joined_text(&inclusion.categories, kind));
                continue;
            }
            for address in libraries.library_addresses(&inclusion.categories, kind) {
                let address = escape_html(&address);
                let attributes = library_attributes(inclusion, kind);
                markup.push_str(&match kind {
                    ClientLibraryKind::Css => format!(
                        "<link rel=\"stylesheet\" href=\"{address}\" type=\"text/css\"{attributes}>\n"
                    ),
                    ClientLibraryKind::Js => {
                        format!("<script{attributes} src=\"{address}\"></script>\n")
                    }
                });
            }
        }
        markup
    }

    fn client_library_path(&self, category: &str) -> Option<String> {
        self.scope.reader.record_any_script();
        self.scope.scripts.client_libraries().category_path(category)
    }
}

/// Returns the attributes of the element that loads a library.
fn library_attributes(inclusion: &ClientLibraryInclusion, kind: ClientLibraryKind) -> String {
    let names: &[&str] = match kind {
        ClientLibraryKind::Css => &["media"],
        ClientLibraryKind::Js => &["async", "defer", "crossorigin", "onload"],
    };
    let attributes = inclusion.attributes.iter().filter(|(name, _)| names.contains(&name.as_str()));
    attributes
        .map(|(name, value)| match value {
            Some(value) => format!(" {name}=\"{}\"", escape_html(value)),
            None => format!(" {name}"),
        })
        .collect()
}
