//! The page component (`page`, v1 to v3): what the head and the body of a page need.

use std::sync::Arc;

use crate::child_components::{components_below, export_children};
use crate::component_context::ClientLibraryInclusion;
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::content_value::{ContentDate, ContentValue};
use crate::link::{ComponentLink, RedirectPolicy, with_context_path};
use crate::model_registry::{ModelRequest, component_version, type_chain};
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::page_reader::{node_name, page_path_of_link, parent_path};
use crate::tag_reader::tag_title;

/// The configuration of elements that a site adds to its pages.
const PAGE_ITEMS_CONFIGURATION: &str =
    "com.adobe.cq.wcm.core.components.config.HtmlPageItemsConfig";

/// The configuration of the data layer.
const DATA_LAYER_CONFIGURATION: &str = "com.adobe.cq.wcm.core.components.internal.DataLayerConfig";

/// The global variable of the data layer.
const DEFAULT_DATA_LAYER_NAME: &str = "adobeDataLayer";

/// The icons of v1 in the folder of the design.
const DESIGN_ICONS: [(&str, &str); 10] = [
    ("faviconIco", "favicon.ico"),
    ("faviconPng", "favicon_32.png"),
    ("touchIcon60", "touch-icon_60.png"),
    ("touchIcon76", "touch-icon_76.png"),
    ("touchIcon120", "touch-icon_120.png"),
    ("touchIcon152", "touch-icon_152.png"),
    ("touchIcon167", "touch-icon_167.png"),
    ("touchIcon180", "touch-icon_180.png"),
    ("touchIcon192", "touch-icon_192.png"),
    ("touchIcon310", "touch-icon_310.png"),
];

/// The model of a page.
#[derive(Debug)]
pub(crate) struct PageModel {
    core: ComponentCore,
    version: u8,
}

/// An element that a site adds to its pages.
#[derive(Debug)]
struct HtmlPageItem {
    element: &'static str,
    location: &'static str,
    attributes: ModelMap,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "page", 3);
    ModelValue::model(PageModel { core, version })
}

impl PageModel {
    /// Returns the path of the page.
    fn page(&self) -> String {
        self.core.current_page().unwrap_or_else(|| parent_path(self.core.path()).to_owned())
    }

    fn text(&self, name: &str) -> Option<Arc<str>> {
        self.core.pages().text(&self.page(), name)
    }

    fn title(&self) -> Arc<str> {
        self.text("jcr:title").unwrap_or_else(|| node_name(&self.page()).into())
    }

    fn description(&self) -> Option<Arc<str>> {
        self.text("jcr:description")
    }

    /// Returns the brand that the title ends with: that of the page, or of the nearest page above that has one.
    fn brand_slug(&self) -> Option<Arc<str>> {
        let page = self.page();
        let mut path = page.as_str();
        while !path.is_empty() {
            if let Some(slug) = self.core.pages().text(path, "brandSlug") {
                return Some(slug);
            }
            path = parent_path(path);
        }
        None
    }

    fn language(&self) -> String {
        self.core.pages().language(&self.page()).unwrap_or_else(|| "en".to_owned())
    }

    fn modified(&self) -> Option<ContentDate> {
        self.core.pages().date(&self.page(), "cq:lastModified")
    }

    fn template(&self) -> Option<Arc<str>> {
        self.text("cq:template")
    }

    fn template_name(&self) -> Option<Arc<str>> {
        Some(node_name(&self.template()?).into())
    }

    fn tag_titles(&self) -> Vec<Arc<str>> {
        let tags = self.core.pages().value(&self.page(), "cq:tags");
        let tags = tags.map(|value| value.to_texts()).unwrap_or_default();
        tags.iter().map(|tag| tag_title(self.core.context(), tag)).collect()
    }

    fn keywords(&self) -> ModelValue {
        ModelValue::texts(self.tag_titles())
    }

    fn robots_tags(&self) -> ModelValue {
        let tags = self.core.pages().value(&self.page(), "cq:robotsTags");
        ModelValue::texts(tags.map(|value| value.to_texts()).unwrap_or_default())
    }

    fn design_path(&self) -> Option<String> {
        let path = self
            .core
            .context()
            .design_path()
            .or_else(|| self.text("cq:designPath").map(|path| path.to_string()))?;
        // The default design has no styles.
        (path != "/etc/designs/default").then_some(path)
    }

    fn static_design_path(&self) -> Option<String> {
        let file = format!("{}/static.css", self.design_path()?);
        self.core.context().node_exists(&file).then_some(file)
    }

    fn favicons(&self) -> ModelMap {
        let mut map = ModelMap::new();
        let Some(folder) = self.design_path() else { return map };
        for (name, file) in DESIGN_ICONS {
            let path = format!("{folder}/{file}");
            if self.core.context().node_exists(&path) {
                map.insert(name, path);
            }
        }
        map
    }

    fn categories(&self, name: &str) -> Vec<Arc<str>> {
        self.core.policy_value(name).map(|value| value.to_texts()).unwrap_or_default()
    }

    fn client_libraries(&self) -> ModelValue {
        ModelValue::texts(self.categories("clientlibs"))
    }

    fn head_scripts(&self) -> ModelValue {
        ModelValue::texts(self.categories("clientlibsJsHead"))
    }

    /// Returns the client libraries whose scripts are at the end of the page: all but those of the head.
    fn body_scripts(&self) -> ModelValue {
        let head = self.categories("clientlibsJsHead");
        let all = self.categories("clientlibs").into_iter();
        ModelValue::texts(all.filter(|category| !head.contains(category)))
    }

    fn is_async(&self) -> bool {
        self.core.is_policy_set("clientlibsAsync")
    }

    /// Returns the folder of the icons and manifests of the site.
    fn resources_path(&self) -> Option<String> {
        let category = self.core.policy_text("appResourcesClientlib")?;
        let context = self.core.context();
        let library = context.client_library_path(&category)?;
        Some(with_context_path(context, &format!("{library}/resources")))
    }

    /// Returns the classes of the body: the names of the component and its super types, and those of the styles.
    fn css_classes(&self) -> Option<String> {
        let context = self.core.context();
        if let Some(classes) = context.request().attributes.get("cssClassNames") {
            return classes.as_text().map(str::to_owned);
        }
        let mut classes: Vec<String> = Vec::new();
        for resource_type in type_chain(context, &self.core.resource_type()) {
            let name = node_name(&resource_type).to_owned();
            if !classes.contains(&name) {
                classes.push(name);
            }
        }
        classes.extend(self.core.style_classes());
        Some(classes.join(" "))
    }

    fn main_content(&self) -> Option<Arc<str>> {
        self.core.policy_text("mainContentSelector")
    }

    fn redirect_target(&self) -> ModelValue {
        let Some(target) = self.text("cq:redirectTarget") else { return ModelValue::Null };
        let context = self.core.context();
        let link = ComponentLink::to(context, &target, RedirectPolicy::Keep);
        let path = page_path_of_link(&target);
        let mut map = ModelMap::new();
        if self.core.pages().is_page(path) {
            let mut page = ModelMap::new();
            page.insert("path", path);
            page.insert("title", self.core.pages().list_title(path));
            map.insert("page", page);
        }
        map.insert("link", link);
        map.into()
    }

    /// Returns the address that search engines take for the page, unless the page is not for them.
    fn canonical_link(&self) -> Option<String> {
        let robots = self.core.pages().value(&self.page(), "cq:robotsTags");
        let robots = robots.map(|value| value.to_texts()).unwrap_or_default();
        if robots.iter().any(|tag| &**tag == "noindex") {
            return None;
        }
        if let Some(address) = self.text("cq:canonicalUrl") {
            let link = ComponentLink::to(self.core.context(), &address, RedirectPolicy::Keep);
            return link.external_url().map(str::to_owned);
        }
        let link = ComponentLink::to_page(self.core.context(), &self.page(), RedirectPolicy::Keep);
        link.external_url().map(str::to_owned)
    }

    /// Returns the addresses of the page in other languages, if the policy asks for them, in the form of a Java map.
    fn alternate_links(&self) -> ModelValue {
        if !self.core.is_policy_set("renderAlternateLanguageLinks") {
            return ModelValue::Null;
        }
        let (context, pages, page) = (self.core.context(), self.core.pages(), self.page());
        let Some(root) = crate::site_structure::language_root(context, &page) else {
            return ModelValue::Null;
        };
        let rest = page.strip_prefix(root.as_str()).unwrap_or_default();
        let siblings = pages.child_pages(parent_path(&root));
        let mut entries = Vec::new();
        for sibling in siblings.iter().map(|sibling| format!("{sibling}{rest}")) {
            if !pages.is_page(&sibling) {
                continue;
            }
            let Some(language) = pages.language(&sibling) else { continue };
            let link = ComponentLink::to_page(context, &sibling, RedirectPolicy::Keep);
            let mut key = ModelMap::new();
            key.insert("toLanguageTag", language);
            let mut entry = ModelMap::new();
            entry.insert("key", key);
            entry.insert_present("value", link.external_url().map(str::to_owned));
            entries.push(ModelValue::from(entry));
        }
        let mut map = ModelMap::new();
        map.insert("entrySet", entries);
        map.into()
    }

    fn has_cloud_configuration(&self) -> bool {
        self.core.context().component_path("cq/cloudconfig/components/scripttags/header").is_some()
    }

    fn data_layer_value(&self, name: &str) -> Option<ContentValue> {
        let context = self.core.context();
        let node = context.configuration(self.core.path(), DATA_LAYER_CONFIGURATION)?;
        context.property(&node, name)
    }

    fn data_layer_name(&self) -> Arc<str> {
        self.data_layer_value("name")
            .and_then(|value| value.to_text())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| DEFAULT_DATA_LAYER_NAME.into())
    }

    fn includes_data_layer_script(&self) -> bool {
        let skips =
            self.data_layer_value("skipClientlibInclude").and_then(|value| value.to_boolean());
        !skips.unwrap_or(false)
    }

    /// Returns the elements that the site adds to its pages.
    fn page_items(&self) -> Vec<ModelValue> {
        let context = self.core.context();
        let Some(node) = context.configuration(self.core.path(), PAGE_ITEMS_CONFIGURATION) else {
            return Vec::new();
        };
        let prefix = context.property(&node, "prefixPath").and_then(|value| value.to_text());
        let prefix = prefix.unwrap_or_else(|| "".into());
        let items = format!("{node}/items");
        let folder = if context.node_exists(&items) { items } else { node };
        context
            .child_names(&folder)
            .into_iter()
            .filter_map(|name| self.page_item(&format!("{folder}/{name}"), &prefix))
            .map(ModelValue::model)
            .collect()
    }

    fn page_item(&self, node: &str, prefix: &str) -> Option<HtmlPageItem> {
        let context = self.core.context();
        let text = |name: &str| context.property(node, name)?.to_text();
        let element = match &*text("element")? {
            "link" => "link",
            "script" => "script",
            "meta" => "meta",
            _ => return None,
        };
        let location =
            if text("location").as_deref() == Some("footer") { "footer" } else { "header" };
        let folder = format!("{node}/attributes");
        let mut attributes = ModelMap::new();
        // The older form has properties; the newer one has nodes with a name and a value.
        for name in context.property_names(&folder) {
            if name != "jcr:primaryType"
                && let Some(value) = context.property(&folder, &name)
            {
                attributes.insert(name.as_str(), attribute_value(&name, &value, prefix));
            }
        }
        for child in context.child_names(&folder) {
            let attribute = format!("{folder}/{child}");
            let name = context.property(&attribute, "name").and_then(|value| value.to_text());
            let name = name.unwrap_or_else(|| child.as_str().into());
            if let Some(value) = context.property(&attribute, "value") {
                attributes.insert(Arc::clone(&name), attribute_value(&name, &value, prefix));
            }
        }
        Some(HtmlPageItem { element, location, attributes })
    }

    fn data(&self) -> Option<ComponentData> {
        let mut data = ComponentData {
            title: Some(self.title()),
            description: self.description(),
            modified: self.modified(),
            ..self.core.data()?
        };
        data.details.insert_present("xdm:template", self.template());
        data.details.insert("xdm:language", self.language());
        data.details.insert("xdm:tags", ModelValue::texts(self.tag_titles()));
        let link = ComponentLink::to_page(self.core.context(), &self.page(), RedirectPolicy::Keep);
        data.details.insert_present("repo:path", link.url);
        Some(data)
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("designPath", self.design_path());
        map.insert_present("staticDesignPath", self.static_design_path());
        map.insert("title", self.title());
        map.insert_present("description", self.description());
        map.insert_present("brandSlug", self.brand_slug());
        map.insert_present("lastModifiedDate", self.modified());
        map.insert_present("templateName", self.template_name());
        if self.version > 1 {
            map.insert_present("appResourcesPath", self.resources_path());
            map.insert("htmlPageItems", self.page_items());
            map.insert_present("cssClassNames", self.css_classes());
            map.insert_present("mainContentSelector", self.main_content());
            map.insert_present("redirectTarget", self.redirect_target());
        }
        map.insert("language", self.language());
        let children = components_below(&self.core, self.core.path());
        export_children(&self.core, &children, &|_, _| {}, &mut map);
        self.core.export_end(&mut map, self.data());
        map
    }
}

/// Returns the value of an attribute: a boolean, or a text, which for addresses begins with the site's prefix.
fn attribute_value(name: &str, value: &ContentValue, prefix: &str) -> ModelValue {
    let text = value.to_text().unwrap_or_else(|| "".into());
    match (&*text, name) {
        ("true", _) => true.into(),
        ("false", _) => false.into(),
        (path, "href" | "src") if path.starts_with('/') => format!("{prefix}{path}").into(),
        _ => text.into(),
    }
}

component_model!(PageModel {
    "title" => title,
    "description" => description,
    "brandSlug" => brand_slug,
    "language" => language,
    "lastModifiedDate" => modified,
    "templateName" => template_name,
    "keywords" => keywords,
    "robotsTags" => robots_tags,
    "designPath" => design_path,
    "staticDesignPath" => static_design_path,
    "favicons" => favicons,
    "clientLibCategories" => client_libraries,
    "clientLibCategoriesJsHead" => head_scripts,
    "clientLibCategoriesJsBody" => body_scripts,
    "isClientlibsAsync" => is_async,
    "clientlibsAsync" => is_async,
    "appResourcesPath" => resources_path,
    "cssClassNames" => css_classes,
    "mainContentSelector" => main_content,
    "redirectTarget" => redirect_target,
    "canonicalLink" => canonical_link,
    "alternateLanguageLinks" => alternate_links,
    "hasCloudconfigSupport" => has_cloud_configuration,
    "dataLayerName" => data_layer_name,
    "dataLayerClientlibIncluded" => includes_data_layer_script,
    "htmlPageItems" => page_items,
    "data" => data,
});

impl ComponentModel for HtmlPageItem {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "element" => ModelValue::Constant { name: self.element, value: self.element },
            "location" => ModelValue::Constant { name: self.location, value: self.location },
            "attributes" => self.attributes.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["element", "location", "attributes"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("element", self.element);
        map.insert("location", self.location);
        map.insert("attributes", self.attributes.clone());
        map
    }
}

/// The model that writes the elements for client libraries.
#[derive(Debug)]
pub(crate) struct ClientLibrariesModel {
    request: ModelRequest,
}

/// Makes the model that writes the elements for client libraries.
pub(crate) fn create_client_libraries(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ClientLibrariesModel { request: request.clone() })
}

impl ClientLibrariesModel {
    /// Returns the categories: one, several separated by commas, or a list.
    fn categories(&self) -> Vec<String> {
        let split = |text: &str| {
            text.split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        };
        match self.request.option("categories") {
            Some(ModelValue::List(values)) => {
                values.iter().filter_map(ModelValue::as_text).map(str::to_owned).collect()
            }
            Some(value) => value.as_text().map(split).unwrap_or_default(),
            None => Vec::new(),
        }
    }

    fn markup(&self, has_css: bool, has_js: bool, is_inline: bool) -> String {
        let attributes = ["media", "async", "defer", "crossorigin", "onload"]
            .into_iter()
            .filter_map(|name| match self.request.option(name)? {
                ModelValue::Boolean(true) => Some((name.to_owned(), None)),
                value => Some((name.to_owned(), Some(value.as_text()?.to_owned()))),
            })
            .collect();
        let categories = self.categories();
        self.request.context.client_library_markup(&ClientLibraryInclusion {
            categories,
            has_css,
            has_js,
            attributes,
            is_inline,
        })
    }
}

impl ComponentModel for ClientLibrariesModel {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "cssIncludes" => self.markup(true, false, false).into(),
            "jsIncludes" => self.markup(false, true, false).into(),
            "jsAndCssIncludes" => self.markup(true, true, false).into(),
            "cssInline" => self.markup(true, false, true).into(),
            "jsInline" => self.markup(false, true, true).into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["cssIncludes", "jsIncludes", "jsAndCssIncludes", "cssInline", "jsInline"]
    }

    fn export(&self) -> ModelMap {
        ModelMap::new()
    }
}
