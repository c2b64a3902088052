//! The button component (`button`, v1 and v2): a button or a link with a text and an icon.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::link::{ComponentLink, LINK_URL, RedirectPolicy};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ModelMap, ModelValue};

/// The property of v1 with the address.
const FIRST_VERSION_LINK: &str = "link";

/// The model of a button.
#[derive(Debug)]
pub(crate) struct ButtonModel {
    core: ComponentCore,
    version: u8,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "button", 2);
    ModelValue::model(ButtonModel { core, version })
}

impl ButtonModel {
    fn text(&self) -> Option<Arc<str>> {
        self.core.text("jcr:title")
    }

    fn icon(&self) -> Option<Arc<str>> {
        self.core.text("icon")
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.text("accessibilityLabel")
    }

    fn button_link(&self) -> Option<ComponentLink> {
        let name = match self.core.filled_text(LINK_URL) {
            Some(_) => LINK_URL,
            None => FIRST_VERSION_LINK,
        };
        let (context, resource) = (self.core.context(), self.core.resource());
        ComponentLink::of_property(context, resource, name, RedirectPolicy::Follow).valid()
    }

    fn link_url(&self) -> Option<String> {
        self.button_link()?.url
    }

    fn data(&self) -> Option<ComponentData> {
        let data = self.core.data()?;
        Some(ComponentData { title: self.text(), link_url: self.link_url(), ..data })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("text", self.text());
        if self.version == 1 {
            map.insert_present("link", self.link_url());
        } else {
            map.insert_present("buttonLink", self.button_link());
        }
        map.insert_present("icon", self.icon());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(ButtonModel {
    "text" => text,
    "link" => link_url,
    "buttonLink" => button_link,
    "icon" => icon,
    "accessibilityLabel" => accessibility_label,
    "data" => data,
});
