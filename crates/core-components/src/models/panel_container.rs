//! The containers of panels (`accordion`, `carousel`, `tabs`, v1): components of which some are visible at a time.

use std::sync::Arc;

use crate::child_components::{child_components, export_children};
use crate::component_context::ComponentResource;
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::list_item::{item_id, item_type};
use crate::model_registry::ModelRequest;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::models::title::HEADING_ELEMENTS;

/// Milliseconds that a carousel shows a panel.
const DEFAULT_DELAY: i64 = 5000;

/// The property with the title of a panel, and its member in JSON.
const PANEL_TITLE: &str = "cq:panelTitle";

/// The model of an accordion.
#[derive(Debug)]
pub(crate) struct AccordionModel {
    core: ComponentCore,
}

/// The model of a carousel.
#[derive(Debug)]
pub(crate) struct CarouselModel {
    core: ComponentCore,
}

/// The model of tabs.
#[derive(Debug)]
pub(crate) struct TabsModel {
    core: ComponentCore,
}

/// One panel.
#[derive(Clone, Debug)]
struct PanelItem {
    id: String,
    resource: ComponentResource,
    resource_type: Option<Arc<str>>,
    title: Option<Arc<str>>,
    data: Option<ComponentData>,
}

/// Makes the model of an accordion.
pub(crate) fn create_accordion(request: &ModelRequest) -> ModelValue {
    ModelValue::model(AccordionModel { core: ComponentCore::new(request) })
}

/// Makes the model of a carousel.
pub(crate) fn create_carousel(request: &ModelRequest) -> ModelValue {
    ModelValue::model(CarouselModel { core: ComponentCore::new(request) })
}

/// Makes the model of tabs.
pub(crate) fn create_tabs(request: &ModelRequest) -> ModelValue {
    ModelValue::model(TabsModel { core: ComponentCore::new(request) })
}

/// Returns the title of a panel: `cq:panelTitle`, else `jcr:title`.
fn panel_title(core: &ComponentCore, panel: &ComponentResource) -> Option<Arc<str>> {
    [PANEL_TITLE, "jcr:title"].into_iter().find_map(|name| {
        panel.property(core.context(), name)?.to_text().filter(|title| !title.is_empty())
    })
}

/// Returns the panels of a container.
fn panel_items(core: &ComponentCore) -> Vec<PanelItem> {
    let id = core.id();
    let has_data = core.is_data_layer_enabled();
    let data_type = item_type(core);
    child_components(core)
        .into_iter()
        .map(|resource| {
            let title = panel_title(core, &resource);
            let id = item_id(&id, resource.path());
            let resource_type = resource.resource_type(core.context());
            let data = has_data.then(|| ComponentData {
                id: id.clone(),
                resource_type: data_type.clone().or_else(|| resource_type.clone()),
                modified: resource
                    .property(core.context(), "jcr:lastModified")
                    .and_then(|value| value.to_date()),
                title: title.clone(),
                ..ComponentData::default()
            });
            PanelItem { id, resource, resource_type, title, data }
        })
        .collect()
}

/// Returns the panels as values for a template.
fn panel_values(core: &ComponentCore) -> Vec<ModelValue> {
    panel_items(core).into_iter().map(ModelValue::model).collect()
}

/// Returns the name of the visible panel: the property `activeItem` if it names one, else the first.
fn active_panel(core: &ComponentCore) -> Option<String> {
    let children = child_components(core);
    let chosen = core.text("activeItem");
    children
        .iter()
        .find(|child| chosen.as_deref() == Some(child.name()))
        .or_else(|| children.first())
        .map(|child| child.name().to_owned())
}

/// Returns the data of a container, with the identifiers of its visible panels.
fn container_data(core: &ComponentCore, visible: &[String]) -> Option<ComponentData> {
    let mut data = core.data()?;
    let shown = panel_items(core)
        .into_iter()
        .filter(|item| visible.iter().any(|name| name == item.resource.name()))
        .map(|item| ModelValue::from(item.id));
    data.details.insert("shownItems", ModelValue::list(shown));
    Some(data)
}

/// Appends the JSON of the panels, with their titles.
fn export_panels(core: &ComponentCore, map: &mut ModelMap) {
    let adorn = |panel: &ComponentResource, exported: &mut ModelMap| {
        exported.insert_present(PANEL_TITLE, panel_title(core, panel));
    };
    export_children(core, &child_components(core), &adorn, map);
}

impl AccordionModel {
    fn children(&self) -> Vec<ModelValue> {
        panel_values(&self.core)
    }

    fn is_single_expansion(&self) -> bool {
        self.core.is_set("singleExpansion")
    }

    fn expanded_names(&self) -> Vec<String> {
        let children = child_components(&self.core);
        let chosen = self.core.value("expandedItems").map(|value| value.to_texts());
        let chosen = chosen.unwrap_or_default();
        let mut names: Vec<String> = chosen
            .iter()
            .filter(|name| children.iter().any(|child| child.name() == &***name))
            .map(ToString::to_string)
            .collect();
        if self.is_single_expansion() {
            names.truncate(1);
            if names.is_empty() {
                names.extend(children.first().map(|child| child.name().to_owned()));
            }
        }
        names
    }

    fn expanded_items(&self) -> ModelValue {
        ModelValue::texts(self.expanded_names())
    }

    fn heading_element(&self) -> Option<Arc<str>> {
        let element = self.core.value_or_policy("headingElement")?.to_text()?;
        HEADING_ELEMENTS.contains(&&*element).then_some(element)
    }

    fn data(&self) -> Option<ComponentData> {
        container_data(&self.core, &self.expanded_names())
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("singleExpansion", self.is_single_expansion());
        map.insert("expandedItems", self.expanded_items());
        map.insert_present("headingElement", self.heading_element());
        export_panels(&self.core, &mut map);
        self.core.export_end(&mut map, self.data());
        map
    }
}

impl CarouselModel {
    fn children(&self) -> Vec<ModelValue> {
        panel_values(&self.core)
    }

    fn active_item(&self) -> Option<String> {
        active_panel(&self.core)
    }

    fn is_autoplay(&self) -> bool {
        self.core.is_set_or_policy("autoplay")
    }

    fn delay(&self) -> i64 {
        self.core
            .value_or_policy("delay")
            .and_then(|value| value.to_long())
            .unwrap_or(DEFAULT_DELAY)
    }

    fn is_autopause_disabled(&self) -> bool {
        self.core.is_set_or_policy("autopauseDisabled")
    }

    fn is_controls_prepended(&self) -> bool {
        self.core.is_policy_set("controlsPrepended")
    }

    fn has_automatic_titles(&self) -> bool {
        self.core.is_set("accessibilityAutoItemTitles")
    }

    fn label(&self, name: &str) -> Option<Arc<str>> {
        self.core.text(name)
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityLabel")
    }

    fn previous_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityPrevious")
    }

    fn next_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityNext")
    }

    fn play_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityPlay")
    }

    fn pause_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityPause")
    }

    fn tab_list_label(&self) -> Option<Arc<str>> {
        self.label("accessibilityTablist")
    }

    fn data(&self) -> Option<ComponentData> {
        container_data(&self.core, self.active_item().as_slice())
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("activeItem", self.active_item());
        map.insert("autoplay", self.is_autoplay());
        map.insert("delay", self.delay());
        map.insert("autopauseDisabled", self.is_autopause_disabled());
        map.insert("controlsPrepended", self.is_controls_prepended());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        map.insert_present("accessibilityPrevious", self.previous_label());
        map.insert_present("accessibilityNext", self.next_label());
        map.insert_present("accessibilityPlay", self.play_label());
        map.insert_present("accessibilityPause", self.pause_label());
        map.insert_present("accessibilityTablist", self.tab_list_label());
        map.insert("accessibilityAutoItemTitles", self.has_automatic_titles());
        export_panels(&self.core, &mut map);
        self.core.export_end(&mut map, self.data());
        map
    }
}

impl TabsModel {
    fn children(&self) -> Vec<ModelValue> {
        panel_values(&self.core)
    }

    fn active_item(&self) -> Option<String> {
        active_panel(&self.core)
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.text("accessibilityLabel")
    }

    fn data(&self) -> Option<ComponentData> {
        container_data(&self.core, self.active_item().as_slice())
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("activeItem", self.active_item());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        export_panels(&self.core, &mut map);
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(AccordionModel {
    "children" => children,
    "items" => children,
    "singleExpansion" => is_single_expansion,
    "expandedItems" => expanded_items,
    "headingElement" => heading_element,
    "data" => data,
});

component_model!(CarouselModel {
    "children" => children,
    "items" => children,
    "activeItem" => active_item,
    "autoplay" => is_autoplay,
    "delay" => delay,
    "autopauseDisabled" => is_autopause_disabled,
    "controlsPrepended" => is_controls_prepended,
    "accessibilityLabel" => accessibility_label,
    "accessibilityPrevious" => previous_label,
    "accessibilityNext" => next_label,
    "accessibilityPlay" => play_label,
    "accessibilityPause" => pause_label,
    "accessibilityTablist" => tab_list_label,
    "accessibilityAutoItemTitles" => has_automatic_titles,
    "data" => data,
});

component_model!(TabsModel {
    "children" => children,
    "items" => children,
    "activeItem" => active_item,
    "accessibilityLabel" => accessibility_label,
    "data" => data,
});

impl ComponentModel for PanelItem {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "id" => self.id.as_str().into(),
            "name" => self.resource.name().into(),
            "path" => self.resource.path().into(),
            "title" => self.title.clone().into(),
            "resource" => ModelValue::Resource(self.resource.clone()),
            "resourceType" => self.resource_type.clone().into(),
            "data" => self.data.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["id", "name", "path", "title", "resource", "resourceType", "data"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id.as_str());
        map.insert_present("title", self.title.clone());
        map.insert_present(":type", self.resource_type.clone());
        if let Some(data) = &self.data {
            map.insert("dataLayer", data.to_map());
        }
        map
    }
}
