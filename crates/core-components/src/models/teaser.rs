//! The teaser component (`teaser`, v1 and v2): image, title and text of something that it links to.

use std::sync::Arc;

use crate::component_context::ComponentResource;
use crate::component_core::{ComponentCore, component_model, generated_id};
use crate::component_data::ComponentData;
use crate::content_value::ContentValue;
use crate::link::{ComponentLink, LINK_URL, RedirectPolicy};
use crate::list_item::item_type;
use crate::model_registry::{ModelRequest, component_version, type_chain};
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::models::title::HEADING_ELEMENTS;

/// Properties of the teaser that its image must not have.
const HIDDEN_FROM_IMAGE: [&str; 2] = ["jcr:title", "jcr:description"];

/// The model of a teaser.
#[derive(Debug)]
pub(crate) struct TeaserModel {
    core: ComponentCore,
    version: u8,
}

/// One call to action.
#[derive(Debug)]
struct TeaserAction {
    id: String,
    title: Option<Arc<str>>,
    link: ComponentLink,
    version: u8,
    data: Option<ComponentData>,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(TeaserModel::new(request))
}

/// Returns the resource of a teaser's image; `None` without one, and for components without an image to delegate to.
pub(super) fn teaser_image(request: &ModelRequest) -> Option<ComponentResource> {
    TeaserModel::new(request).image()
}

impl TeaserModel {
    fn new(request: &ModelRequest) -> Self {
        let core = ComponentCore::new(request);
        let version = component_version(core.context(), &core.resource_type(), "teaser", 2);
        Self { core, version }
    }

    fn has_actions_enabled(&self) -> bool {
        self.core.is_set("actionsEnabled") && !self.core.is_policy_set("actionsDisabled")
    }

    fn is_title_link_hidden(&self) -> bool {
        self.core.is_policy_set("titleLinkHidden")
    }

    fn is_image_link_hidden(&self) -> bool {
        self.core.is_policy_set("imageLinkHidden")
    }

    /// Returns the nodes of the calls to action that have an address.
    fn action_nodes(&self) -> Vec<ComponentResource> {
        if !self.has_actions_enabled() {
            return Vec::new();
        }
        let folder = format!("{}/actions", self.core.path());
        let context = self.core.context();
        context
            .child_names(&folder)
            .into_iter()
            .map(|name| ComponentResource::new(format!("{folder}/{name}")))
            .collect()
    }

    fn action_link(&self, node: &ComponentResource) -> ComponentLink {
        let context = self.core.context();
        ComponentLink::of_property(context, node, "link", RedirectPolicy::Follow)
    }

    fn actions(&self) -> Vec<ModelValue> {
        let id = self.core.id();
        let context = self.core.context();
        self.action_nodes()
            .iter()
            .map(|node| {
                let id = generated_id(&format!("{id}-cta"), node.path());
                let title = node.property(context, "text").and_then(|value| value.to_text());
                let link = self.action_link(node);
                let data = self.core.is_data_layer_enabled().then(|| ComponentData {
                    id: id.clone(),
                    resource_type: item_type(&self.core)
                        .map(|kind| kind.replace("/item", "/cta").into())
                        .or_else(|| node.resource_type(context)),
                    title: title.clone(),
                    link_url: link.url.clone(),
                    ..ComponentData::default()
                });
                let version = self.version;
                ModelValue::model(TeaserAction { id, title, link, version, data })
            })
            .collect()
    }

    /// Returns the link of the whole teaser: its own, or that of its first call to action.
    fn component_link(&self) -> ComponentLink {
        if self.has_actions_enabled()
            && let Some(first) = self.action_nodes().first()
        {
            return self.action_link(first);
        }
        ComponentLink::of_resource(
            self.core.context(),
            self.core.resource(),
            RedirectPolicy::Follow,
        )
    }

    fn link(&self) -> Option<ComponentLink> {
        self.component_link().valid()
    }

    fn link_url(&self) -> Option<String> {
        self.component_link().url
    }

    /// Returns the page that title, description and image are inherited from: the linked one, else the current one.
    fn inherited_page(&self) -> Option<String> {
        let link = self.component_link();
        if link.is_valid() { link.page } else { self.core.current_page() }
    }

    fn pretitle(&self) -> Option<Arc<str>> {
        if self.core.is_policy_set("pretitleHidden") { None } else { self.core.text("pretitle") }
    }

    fn title(&self) -> Option<Arc<str>> {
        if self.core.is_policy_set("titleHidden") {
            return None;
        }
        if !self.core.is_set("titleFromPage") {
            return self.core.text("jcr:title");
        }
        match self.inherited_page() {
            Some(page) => {
                let pages = self.core.pages();
                pages.text(&page, "pageTitle").or_else(|| pages.text(&page, "jcr:title"))
            }
            None => {
                let first = self.action_nodes().into_iter().next()?;
                first.property(self.core.context(), "text")?.to_text()
            }
        }
    }

    fn description(&self) -> Option<Arc<str>> {
        if self.core.is_policy_set("descriptionHidden") {
            return None;
        }
        if !self.core.is_set("descriptionFromPage") {
            return self.core.text("jcr:description");
        }
        let page = self.inherited_page()?;
        let description = self.core.pages().text(&page, "jcr:description")?;
        // The description of a page is plain text; that of a teaser is HTML.
        Some(escape_html(&description).into())
    }

    fn heading(&self) -> Option<Arc<str>> {
        let shows_choice =
            self.core.policy_value("showTitleType").and_then(|value| value.to_boolean());
        let own = self.core.text("titleType").filter(|_| shows_choice != Some(false));
        own.or_else(|| self.core.policy_text("titleType"))
            .filter(|element| HEADING_ELEMENTS.contains(&&**element))
    }

    /// Returns whether the teaser has an image: a file, a reference, or that of the linked page.
    fn has_image(&self) -> bool {
        let context = self.core.context();
        if self.core.filled_text("fileReference").is_some()
            || context.node_exists(&format!("{}/file", self.core.path()))
        {
            return true;
        }
        if !self.core.is_set("imageFromPageImage") {
            return false;
        }
        self.inherited_page().is_some_and(|page| {
            let image = format!("{page}/jcr:content/cq:featuredimage");
            context.property(&image, "fileReference").is_some()
                || context.node_exists(&format!("{image}/file"))
        })
    }

    /// Returns the type that draws the image, as the teaser's component or a super type names it.
    fn image_delegate(&self) -> Option<Arc<str>> {
        let context = self.core.context();
        type_chain(context, &self.core.resource_type())
            .iter()
            .filter_map(|resource_type| context.component_path(resource_type))
            .find_map(|path| context.property(&path, "imageDelegate")?.to_text())
    }

    /// Returns the resource of the image: the teaser with the type of an image, without its title and, in calls to action
    /// or on demand, its link.
    fn image(&self) -> Option<ComponentResource> {
        if !self.has_image() {
            return None;
        }
        let mut resource = self.core.resource().clone().with_type(self.image_delegate()?);
        for name in HIDDEN_FROM_IMAGE {
            resource = resource.without_property(name);
        }
        if self.version > 1 || self.is_image_link_hidden() {
            // The second version links the whole teaser.
            let hides = self.is_image_link_hidden() || !self.has_separate_image_link();
            resource = if hides { resource.without_property(LINK_URL) } else { resource };
        }
        if let Some(page) = self.inherited_page().filter(|_| self.core.is_set("imageFromPageImage"))
        {
            resource = resource.with_property("imagePage", ContentValue::text(page));
        }
        let title = self.title().filter(|_| self.core.text("alt").is_none() && self.version == 1);
        if let Some(title) = title {
            resource = resource.with_property("alt", ContentValue::Text(title));
        }
        Some(resource)
    }

    /// Returns whether the image has a link of its own: then the teaser has calls to action, or no texts.
    fn has_separate_image_link(&self) -> bool {
        self.has_actions_enabled() && !self.action_nodes().is_empty()
            || (self.pretitle().is_none() && self.title().is_none() && self.description().is_none())
    }

    fn image_resource(&self) -> ModelValue {
        self.image().map_or(ModelValue::Null, ModelValue::Resource)
    }

    fn image_path(&self) -> Option<String> {
        self.has_image().then(|| self.core.path().to_owned())
    }

    fn data(&self) -> Option<ComponentData> {
        Some(ComponentData {
            title: self.title(),
            description: self.description(),
            link_url: self.link_url(),
            ..self.core.data()?
        })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("pretitle", self.pretitle());
        map.insert_present("title", self.title());
        map.insert_present("titleType", self.heading());
        map.insert_present("description", self.description());
        map.insert("actionsEnabled", self.has_actions_enabled());
        map.insert("actions", self.actions());
        map.insert("imageLinkHidden", self.is_image_link_hidden());
        map.insert("titleLinkHidden", self.is_title_link_hidden());
        if self.version == 1 {
            map.insert_present("linkURL", self.link_url());
        } else {
            map.insert_present("link", self.link());
        }
        map.insert_present("imagePath", self.image_path());
        self.core.export_end(&mut map, self.data());
        map
    }
}

/// Escapes the letters that HTML gives a meaning.
fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

component_model!(TeaserModel {
    "actionsEnabled" => has_actions_enabled,
    "actions" => actions,
    "link" => link,
    "linkURL" => link_url,
    "imageLinkHidden" => is_image_link_hidden,
    "titleLinkHidden" => is_title_link_hidden,
    "imageResource" => image_resource,
    "imagePath" => image_path,
    "pretitle" => pretitle,
    "title" => title,
    "titleType" => heading,
    "description" => description,
    "data" => data,
});

impl ComponentModel for TeaserAction {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "id" => self.id.as_str().into(),
            "title" => self.title.clone().into(),
            "link" => self.link.clone().into(),
            "url" | "URL" => self.link.url.clone().into(),
            "path" => self.link.page.clone().or_else(|| self.link.url.clone()).into(),
            "data" => self.data.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["id", "title", "link", "url", "URL", "path", "data"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id.as_str());
        map.insert_present("title", self.title.clone());
        if self.version == 1 {
            map.insert_present("url", self.link.url.clone());
        } else if self.link.is_valid() {
            map.insert("link", self.link.clone());
        }
        if let Some(data) = &self.data {
            map.insert("dataLayer", data.to_map());
        }
        map
    }
}
