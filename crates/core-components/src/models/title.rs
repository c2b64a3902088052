//! The title component (`title`, v1 to v3): a heading, of its own or of the page, with a link.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::link::{ComponentLink, RedirectPolicy};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ModelMap, ModelValue};

/// Elements that a heading can be.
pub(crate) const HEADING_ELEMENTS: [&str; 6] = ["h1", "h2", "h3", "h4", "h5", "h6"];

/// The model of a title.
#[derive(Debug)]
pub(crate) struct TitleModel {
    core: ComponentCore,
    version: u8,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "title", 3);
    ModelValue::model(TitleModel { core, version })
}

impl TitleModel {
    fn text(&self) -> Option<Arc<str>> {
        self.core.filled_text("jcr:title").or_else(|| {
            let page = self.core.current_page()?;
            let pages = self.core.pages();
            pages.text(&page, "pageTitle").or_else(|| pages.text(&page, "jcr:title"))
        })
    }

    fn heading(&self) -> Option<Arc<str>> {
        let value = self.core.value("type").or_else(|| self.core.policy_value("type"))?;
        value.to_text().filter(|text| HEADING_ELEMENTS.contains(&&**text))
    }

    fn link(&self) -> Option<ComponentLink> {
        ComponentLink::of_resource(
            self.core.context(),
            self.core.resource(),
            RedirectPolicy::Follow,
        )
        .valid()
    }

    fn link_url(&self) -> Option<String> {
        self.link()?.url
    }

    fn is_link_disabled(&self) -> bool {
        self.core.is_set_or_policy("linkDisabled")
    }

    fn data(&self) -> Option<ComponentData> {
        let data = self.core.data()?;
        Some(ComponentData { title: self.text(), link_url: self.link_url(), ..data })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("text", self.text());
        map.insert_present("type", self.heading());
        if self.version < 3 {
            map.insert_present("linkURL", self.link_url());
        }
        if self.version > 1 {
            map.insert_present("link", self.link());
        }
        map.insert("linkDisabled", self.is_link_disabled());
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(TitleModel {
    "text" => text,
    "type" => heading,
    "link" => link,
    "linkURL" => link_url,
    "linkDisabled" => is_link_disabled,
    "data" => data,
});
