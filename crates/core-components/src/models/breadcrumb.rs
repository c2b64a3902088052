//! The breadcrumb component (`breadcrumb`, v1 to v3): the pages from a level down to the current one.

use crate::component_core::{ComponentCore, component_model};
use crate::link::{ComponentLink, RedirectPolicy};
use crate::list_item::{ComponentListItem, ItemLinkForm};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ModelMap, ModelValue};
use crate::page_reader::{path_at_level, path_level};

/// The level of the first page: of `/content/site/en`, 2.
const DEFAULT_START_LEVEL: usize = 2;

/// The model of a breadcrumb.
#[derive(Debug)]
pub(crate) struct BreadcrumbModel {
    core: ComponentCore,
    version: u8,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "breadcrumb", 3);
    ModelValue::model(BreadcrumbModel { core, version })
}

impl BreadcrumbModel {
    fn items(&self) -> Vec<ModelValue> {
        let Some(current) = self.core.current_page() else { return Vec::new() };
        let pages = self.core.pages();
        let start = self
            .core
            .value_or_policy("startLevel")
            .and_then(|value| value.to_long())
            .and_then(|level| usize::try_from(level).ok())
            .unwrap_or(DEFAULT_START_LEVEL);
        let shows_hidden = self.core.is_set_or_policy("showHidden");
        let hides_current = self.core.is_set_or_policy("hideCurrent");
        let mut items = Vec::new();
        for level in start..=path_level(&current) {
            let Some(page) = path_at_level(&current, level) else { break };
            let is_current = page == current;
            let has_content = self.core.context().node_exists(&format!("{page}/jcr:content"));
            if !pages.is_page(page) || !has_content || (is_current && hides_current) {
                continue;
            }
            if pages.is_set(page, "hideInNav") && !shows_hidden {
                continue;
            }
            items.push(self.item(page, is_current).into());
        }
        items
    }

    fn item(&self, page: &str, is_current: bool) -> ComponentListItem {
        let form = if self.version < 3 { ItemLinkForm::Url } else { ItemLinkForm::Link };
        let link = ComponentLink::to_page(self.core.context(), page, RedirectPolicy::Keep);
        let mut item = ComponentListItem::of_page(&self.core, page, page, link, form);
        item.details.is_active = Some(is_current);
        item.details.is_current = Some(is_current);
        item
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("items", self.items());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(BreadcrumbModel { "items" => items });
