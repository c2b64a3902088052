//! The navigation components (`navigation` and `languagenavigation`, v1 and v2): trees of pages.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::link::{ComponentLink, RedirectPolicy};
use crate::list_item::{ComponentListItem, ItemLinkForm, ItemLocale};
use crate::model_registry::{ModelRequest, component_version};
use crate::model_value::{ModelMap, ModelValue};
use crate::page_reader::{RedirectDestination, is_at_or_below, path_at_level, path_level};
use crate::site_structure;

/// The largest depth of a tree.
const DEPTH_LIMIT: usize = 32;

/// The model of a navigation.
#[derive(Debug)]
pub(crate) struct NavigationModel {
    core: ComponentCore,
    version: u8,
}

/// The model of a language navigation.
#[derive(Debug)]
pub(crate) struct LanguageNavigationModel {
    core: ComponentCore,
    version: u8,
}

/// Makes the model of a navigation.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "navigation", 2);
    ModelValue::model(NavigationModel { core, version })
}

/// Makes the model of a language navigation.
pub(crate) fn create_language(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "languagenavigation", 2);
    ModelValue::model(LanguageNavigationModel { core, version })
}

/// Returns the form of links in JSON.
fn link_form(version: u8) -> ItemLinkForm {
    if version < 2 { ItemLinkForm::Url } else { ItemLinkForm::Link }
}

/// Where a tree begins and ends, in levels below the root.
struct NavigationRange {
    root: String,
    current: String,
    start: usize,
    /// The last level; none for all.
    depth: Option<usize>,
    follows_redirects: bool,
}

impl NavigationModel {
    fn number(&self, name: &str) -> Option<usize> {
        let number = self.core.value_or_policy(name)?.to_long()?;
        usize::try_from(number).ok()
    }

    /// Returns a property or that of the policy, else true.
    fn is_not_switched_off(&self, name: &str) -> bool {
        self.core.value_or_policy(name).and_then(|value| value.to_boolean()).unwrap_or(true)
    }

    fn range(&self) -> Option<NavigationRange> {
        let current = self.core.current_page()?;
        let root = self
            .core
            .filled_text("navigationRoot")
            .or_else(|| self.core.policy_text("navigationRoot"))?;
        let root = site_structure::local_root(self.core.context(), &root, &current);
        if !self.core.pages().is_page(&root) {
            return None;
        }
        let start = self
            .number("structureStart")
            .unwrap_or_else(|| usize::from(self.is_not_switched_off("skipNavigationRoot")));
        let depth = match self.is_not_switched_off("collectAllPages") {
            true => None,
            false => self.number("structureDepth"),
        };
        let follows_redirects = !self.core.is_set_or_policy("disableShadowing");
        Some(NavigationRange { root, current, start, depth, follows_redirects })
    }

    fn items(&self) -> Vec<ModelValue> {
        let Some(range) = self.range() else { return Vec::new() };
        let mut pages = vec![range.root.clone()];
        for _ in 0..range.start.min(DEPTH_LIMIT) {
            pages = pages.iter().flat_map(|page| self.visible_children(page)).collect();
        }
        pages.iter().map(|page| self.item(&range, page).into()).collect()
    }

    fn visible_children(&self, page: &str) -> Vec<String> {
        let pages = self.core.pages();
        let mut children = pages.child_pages(page);
        children.retain(|child| !pages.is_set(child, "hideInNav"));
        children
    }

    fn item(&self, range: &NavigationRange, page: &str) -> ComponentListItem {
        let context = self.core.context();
        let destination = match self.core.pages().redirect_destination(page) {
            RedirectDestination::Page(destination) => destination,
            RedirectDestination::Address(_) => page.to_owned(),
        };
        // A page that redirects to the current one is marked as it, also where links name the page itself.
        let is_current = range.current == page || range.current == destination;
        let (redirects, shown) = match range.follows_redirects {
            true => (RedirectPolicy::Follow, destination),
            false => (RedirectPolicy::Keep, page.to_owned()),
        };
        let link = ComponentLink::to_page(context, page, redirects);
        let mut item =
            ComponentListItem::of_page(&self.core, page, &shown, link, link_form(self.version));
        let depth = path_level(page).saturating_sub(path_level(&range.root));
        let has_children = range.depth.is_none_or(|last| depth < last) && depth < DEPTH_LIMIT;
        let children = if has_children { self.visible_children(page) } else { Vec::new() };
        item.details.path = Some(shown);
        item.details.level = i64::try_from(depth.saturating_sub(range.start)).ok();
        item.details.is_current = Some(is_current);
        item.details.is_active = Some(is_current || is_at_or_below(&range.current, page));
        item.details.children =
            Some(children.iter().map(|child| self.item(range, child).into()).collect());
        item
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.text("accessibilityLabel")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("items", self.items());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl LanguageNavigationModel {
    fn depth(&self) -> usize {
        let depth = self.core.value_or_policy("structureDepth").and_then(|value| value.to_long());
        depth.and_then(|depth| usize::try_from(depth).ok()).unwrap_or(1).min(DEPTH_LIMIT)
    }

    fn items(&self) -> Vec<ModelValue> {
        let root = self
            .core
            .filled_text("navigationRoot")
            .or_else(|| self.core.policy_text("navigationRoot"));
        let (Some(root), Some(current)) = (root, self.core.current_page()) else {
            return Vec::new();
        };
        if !self.core.pages().is_page(&root) {
            return Vec::new();
        }
        self.items_below(&root, &root, &current, 0)
    }

    fn items_below(&self, root: &str, page: &str, current: &str, level: usize) -> Vec<ModelValue> {
        if level >= self.depth() {
            return Vec::new();
        }
        let pages = self.core.pages();
        let children = pages.child_pages(page);
        children
            .iter()
            .filter(|child| !pages.is_set(child, "hideInNav"))
            .map(|child| self.item(root, child, current, level).into())
            .collect()
    }

    /// Returns the page that stands for the current one below a language root, or the language root.
    fn counterpart(&self, root: &str, language_page: &str, current: &str) -> String {
        let level = path_level(root) + self.depth();
        let rest = path_at_level(current, level)
            .filter(|_| is_at_or_below(current, root))
            .and_then(|prefix| current.strip_prefix(prefix))
            .unwrap_or_default();
        let page = format!("{language_page}{rest}");
        if self.core.pages().is_page(&page) { page } else { language_page.to_owned() }
    }

    fn item(&self, root: &str, page: &str, current: &str, level: usize) -> ComponentListItem {
        let children = self.items_below(root, page, current, level + 1);
        let is_language = level + 1 == self.depth();
        let shown =
            if is_language { self.counterpart(root, page, current) } else { page.to_owned() };
        let context = self.core.context();
        let link = ComponentLink::to_page(context, &shown, RedirectPolicy::Follow);
        let mut item =
            ComponentListItem::of_page(&self.core, &shown, &shown, link, link_form(self.version));
        item.set_title(self.core.pages().list_title(page));
        let language = self.core.pages().language(&shown).unwrap_or_else(|| "en".to_owned());
        let country = language.split_once('-').map_or("", |(_, country)| country).to_owned();
        item.details.path = Some(shown.clone());
        item.details.level = i64::try_from(level).ok();
        item.details.is_current = Some(shown == current);
        item.details.is_active = Some(is_at_or_below(current, page));
        item.details.children = Some(children);
        item.details.locale = Some(ItemLocale { language, country });
        item
    }

    fn accessibility_label(&self) -> Option<Arc<str>> {
        self.core.text("accessibilityLabel")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("items", self.items());
        map.insert_present("accessibilityLabel", self.accessibility_label());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(NavigationModel {
    "items" => items,
    "accessibilityLabel" => accessibility_label,
});
component_model!(LanguageNavigationModel {
    "items" => items,
    "accessibilityLabel" => accessibility_label,
});
