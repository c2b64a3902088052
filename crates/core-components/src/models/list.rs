//! The list component (`list`, v1 to v4): pages that are children, chosen, tagged or found, and external links.

use std::cmp::Ordering;
use std::sync::Arc;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::component_context::{ComponentResource, FullTextPageSearch};
use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::content_value::{ContentDate, ContentValue};
use crate::link::{ComponentLink, LINK_URL, RedirectPolicy};
use crate::list_item::{ComponentListItem, ItemDetails, ItemLinkForm, item_id, item_type};
use crate::model_registry::{ModelRequest, component_version, type_chain};
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::page_reader::node_name;
use crate::tag_reader::TaggedPageSearch;

/// Hits of a search.
const DEFAULT_SEARCH_LIMIT: usize = 100;
/// The largest depth of children.
const DEPTH_LIMIT: i64 = 64;
/// The form of dates, in the notation of Java.
const DEFAULT_DATE_FORMAT: &str = "yyyy-MM-dd";
/// The component that draws an item as a teaser, unless the list's component names one.
const DEFAULT_TEASER: &str = "core/wcm/components/teaser/v2/teaser";

/// The model of a list.
#[derive(Debug)]
pub(crate) struct ListModel {
    core: ComponentCore,
    version: u8,
}

/// An item of the first version: a page with its plain properties.
#[derive(Debug)]
struct ListPage {
    path: String,
    name: String,
    title: Option<Arc<str>>,
    page_title: Option<Arc<str>>,
    description: Option<Arc<str>>,
    modified: Option<ContentDate>,
}

/// Something to list, with the values it is ordered by.
#[derive(Clone)]
struct ListEntry {
    page: Option<String>,
    /// The node of a chosen link, of v4.
    link_node: Option<String>,
    title: Arc<str>,
    modified: Option<ContentDate>,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    let core = ComponentCore::new(request);
    let version = component_version(core.context(), &core.resource_type(), "list", 4);
    ModelValue::model(ListModel { core, version })
}

impl ListModel {
    fn text(&self, name: &str) -> Option<Arc<str>> {
        self.core.value_or_policy(name)?.to_text().filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.core.value_or_policy(name)?.to_long()
    }

    /// Returns the entries in their order.
    fn entries(&self) -> Vec<ListEntry> {
        let source = self.core.filled_text("listFrom");
        let links = self.link_nodes();
        let is_chosen = source.as_deref() == Some("static");
        let mut entries: Vec<ListEntry> = if is_chosen && !links.is_empty() {
            links.into_iter().filter_map(|node| self.link_entry(node)).collect()
        } else {
            self.pages(source.as_deref()).into_iter().map(|page| self.page_entry(page)).collect()
        };
        self.sort(&mut entries);
        // Chosen links are complete: an author chose each of them.
        let limit = self.number("maxItems").and_then(|limit| usize::try_from(limit).ok());
        if let Some(limit) = limit.filter(|limit| *limit > 0)
            && entries.iter().all(|entry| entry.link_node.is_none())
        {
            entries.truncate(limit);
        }
        entries
    }

    /// Returns the nodes of chosen links, of v4.
    fn link_nodes(&self) -> Vec<String> {
        if self.version < 4 {
            return Vec::new();
        }
        let folder = format!("{}/static", self.core.path());
        let names = self.core.context().child_names(&folder);
        names.into_iter().map(|name| format!("{folder}/{name}")).collect()
    }

    /// Returns the pages of a source.
    fn pages(&self, source: Option<&str>) -> Vec<String> {
        let context = self.core.context();
        match source {
            None | Some("children") => {
                let depth = self.number("childDepth").unwrap_or(1).min(DEPTH_LIMIT);
                let mut found = Vec::new();
                if let Some(parent) = self.root("parentPage") {
                    self.collect_children(&parent, depth, &mut found);
                }
                found
            }
            Some("static") => {
                let pages = self.core.value("pages").map(|value| value.to_texts());
                let pages = pages.unwrap_or_default().into_iter().map(|page| page.to_string());
                pages.filter(|page| self.core.pages().is_page(page)).collect()
            }
            Some("search") => {
                let (Some(text), Some(root)) = (self.text("query"), self.root("searchIn")) else {
                    return Vec::new();
                };
                let limit = self.number("limit").and_then(|limit| usize::try_from(limit).ok());
                let limit = limit.filter(|limit| *limit > 0).unwrap_or(DEFAULT_SEARCH_LIMIT);
                let mut pages = context.search_pages(&FullTextPageSearch {
                    root,
                    text: text.to_string(),
                    offset: 0,
                    limit: Some(limit),
                });
                pages.retain(|page| self.core.pages().is_page(page));
                pages
            }
            Some("tags") => {
                let tags = self.core.value("tags").map(|value| value.to_texts());
                let Some(root) = self.root("tagsSearchRoot") else { return Vec::new() };
                context.tagged_pages(&TaggedPageSearch {
                    root,
                    tags: tags.unwrap_or_default().iter().map(ToString::to_string).collect(),
                    is_conjunction: self.text("tagsMatch").as_deref() == Some("all"),
                })
            }
            Some(_) => Vec::new(),
        }
    }

    /// Returns the page that a property names, else the current page.
    fn root(&self, name: &str) -> Option<String> {
        match self.text(name) {
            Some(path) => self.core.pages().is_page(&path).then(|| path.to_string()),
            None => self.core.current_page(),
        }
    }

    fn collect_children(&self, page: &str, depth: i64, found: &mut Vec<String>) {
        if depth < 1 {
            return;
        }
        let pages = self.core.pages();
        for child in pages.child_pages(page) {
            if pages.is_set(&child, "hideInNav") {
                continue;
            }
            found.push(child.clone());
            self.collect_children(&child, depth - 1, found);
        }
    }

    fn page_entry(&self, page: String) -> ListEntry {
        let pages = self.core.pages();
        ListEntry {
            title: pages.list_title(&page),
            modified: pages.date(&page, "cq:lastModified"),
            page: Some(page),
            link_node: None,
        }
    }

    /// Reads a chosen link; one without an address is left out.
    fn link_entry(&self, node: String) -> Option<ListEntry> {
        let text = |name: &str| self.core.context().property(&node, name)?.to_text();
        let address = text(LINK_URL).filter(|address| !address.trim().is_empty())?;
        let title = text("linkText").filter(|title| !title.trim().is_empty());
        let mut entry = if self.core.pages().is_page(&address) {
            self.page_entry(address.to_string())
        } else {
            ListEntry { page: None, link_node: None, title: address, modified: None }
        };
        if let Some(title) = title {
            entry.title = title;
        }
        entry.link_node = Some(node);
        Some(entry)
    }

    fn sort(&self, entries: &mut [ListEntry]) {
        let Some(order) = self.text("orderBy") else { return };
        let is_descending = self.text("sortOrder").as_deref() == Some("desc");
        entries.sort_by(|first, second| {
            let ordering = match &*order {
                "title" => title_order(&first.title, &second.title),
                "modified" => date_order(first.modified, second.modified),
                _ => Ordering::Equal,
            };
            if is_descending { ordering.reverse() } else { ordering }
        });
    }

    fn list_items(&self) -> Vec<ModelValue> {
        self.entries().iter().map(|entry| self.item(entry)).collect()
    }

    fn item(&self, entry: &ListEntry) -> ModelValue {
        if self.version == 1 {
            return entry.page.as_deref().map(|page| self.plain_page(page)).into();
        }
        let (context, form) = (self.core.context(), self.link_form());
        let node = entry.link_node.as_deref().map(ComponentResource::new);
        let mut link = match (&node, &entry.page) {
            (Some(node), _) => ComponentLink::of_resource(context, node, RedirectPolicy::Follow),
            (None, Some(page)) => ComponentLink::to_page(context, page, RedirectPolicy::Follow),
            (None, None) => ComponentLink::default(),
        };
        if self.version < 3 {
            link.clear_attributes();
        }
        let mut item = match &entry.page {
            Some(page) => ComponentListItem::of_page(&self.core, page, page, link, form),
            None => self.external_item(entry, link),
        };
        item.set_title(Arc::clone(&entry.title));
        if let Some(page) = &entry.page {
            let pages = self.core.pages();
            item.details = ItemDetails {
                path: Some(page.clone()),
                name: Some(node_name(page).to_owned()),
                modified: pages.date(page, "cq:lastModified"),
                description: pages.text(page, "jcr:description"),
                ..ItemDetails::default()
            };
        }
        if self.version > 2 {
            item.details.teaser = self.teaser(entry, &item);
        }
        item.into()
    }

    /// Returns the form of links in JSON.
    fn link_form(&self) -> ItemLinkForm {
        if self.version < 3 { ItemLinkForm::Url } else { ItemLinkForm::Link }
    }

    /// Creates the item of an address that is not a page.
    fn external_item(&self, entry: &ListEntry, link: ComponentLink) -> ComponentListItem {
        let node = entry.link_node.clone().unwrap_or_default();
        let id = item_id(&self.core.id(), &node);
        let node_type = ComponentResource::new(node).resource_type(self.core.context());
        let data = self.core.is_data_layer_enabled().then(|| ComponentData {
            id: id.clone(),
            resource_type: item_type(&self.core).or_else(|| node_type.clone()),
            title: Some(Arc::clone(&entry.title)),
            link_url: link.url.clone(),
            ..ComponentData::default()
        });
        ComponentListItem {
            id,
            title: Arc::clone(&entry.title),
            link_form: ItemLinkForm::Link,
            resource_type: node_type,
            data,
            page: None,
            details: ItemDetails { address: link.url.clone(), ..ItemDetails::default() },
            link,
        }
    }

    /// Returns the resource that draws an item as a teaser: the featured image of its page, with title and link.
    fn teaser(&self, entry: &ListEntry, item: &ComponentListItem) -> Option<ComponentResource> {
        if !self.displays_teasers() {
            return None;
        }
        let context = self.core.context();
        let mut resource = match (&entry.page, &entry.link_node) {
            (Some(page), _) => {
                let image = format!("{page}/jcr:content/cq:featuredimage");
                match context.node_exists(&image) {
                    true => ComponentResource::new(image),
                    false => ComponentResource::new(format!("{page}/jcr:content")).isolated(),
                }
            }
            (None, Some(node)) => ComponentResource::new(node.as_str()).isolated(),
            (None, None) => return None,
        };
        resource = resource
            .with_type(self.teaser_type())
            .with_property("jcr:title", ContentValue::Text(Arc::clone(&item.title)));
        if let Some(description) =
            item.details.description.clone().filter(|_| self.shows_description())
        {
            resource = resource.with_property("jcr:description", ContentValue::Text(description));
        }
        if self.links_items() {
            let target =
                entry.link_node.as_deref().and_then(|node| context.property(node, LINK_URL));
            let page = entry.page.as_deref().map(ContentValue::text);
            resource = match page.or(target) {
                Some(address) => resource.with_property(LINK_URL, address),
                None => resource,
            };
            let target =
                entry.link_node.as_deref().and_then(|node| context.property(node, "linkTarget"));
            if let Some(target) = target {
                resource = resource.with_property("linkTarget", target);
            }
        }
        Some(resource)
    }

    /// Returns the type of the component that draws teasers, as the list's component or a super type names it.
    fn teaser_type(&self) -> Arc<str> {
        let context = self.core.context();
        type_chain(context, &self.core.resource_type())
            .iter()
            .filter_map(|resource_type| context.component_path(resource_type))
            .find_map(|path| context.property(&path, "teaserDelegate")?.to_text())
            .unwrap_or_else(|| DEFAULT_TEASER.into())
    }

    fn plain_page(&self, page: &str) -> ModelValue {
        let pages = self.core.pages();
        ModelValue::model(ListPage {
            path: page.to_owned(),
            name: node_name(page).to_owned(),
            title: pages.text(page, "jcr:title"),
            page_title: pages.text(page, "pageTitle"),
            description: pages.text(page, "jcr:description"),
            modified: pages.date(page, "cq:lastModified"),
        })
    }

    fn date_format(&self) -> Arc<str> {
        self.core.policy_text("dateFormat").unwrap_or_else(|| DEFAULT_DATE_FORMAT.into())
    }

    fn shows_description(&self) -> bool {
        self.core.is_set_or_policy("showDescription")
    }

    fn shows_modification_date(&self) -> bool {
        self.core.is_set_or_policy("showModificationDate")
    }

    fn links_items(&self) -> bool {
        self.core.is_set_or_policy("linkItems")
    }

    fn displays_teasers(&self) -> bool {
        self.core.is_set_or_policy("displayItemAsTeaser")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("dateFormatString", self.date_format());
        map.insert("items", self.list_items());
        map.insert("showDescription", self.shows_description());
        map.insert("showModificationDate", self.shows_modification_date());
        map.insert("linkItems", self.links_items());
        if self.version > 2 {
            map.insert("displayItemAsTeaser", self.displays_teasers());
        }
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(ListModel {
    "items" => list_items,
    "listItems" => list_items,
    "dateFormatString" => date_format,
    "showDescription" => shows_description,
    "showModificationDate" => shows_modification_date,
    "linkItems" => links_items,
    "displayItemAsTeaser" => displays_teasers,
});

impl ComponentModel for ListPage {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "path" => self.path.as_str().into(),
            "name" => self.name.as_str().into(),
            "title" => self.title.clone().into(),
            "pageTitle" => self.page_title.clone().into(),
            "description" => self.description.clone().into(),
            "lastModified" => self.modified.into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["path", "name", "title", "pageTitle", "description", "lastModified"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        for name in ["path", "pageTitle", "name", "description", "title"] {
            map.insert(name, self.property(name).unwrap_or_default());
        }
        map
    }
}

/// Orders titles as people do: letters before accents, accents before case.
fn title_order(first: &str, second: &str) -> Ordering {
    let folded =
        |text: &str| text.nfd().filter(|letter| !is_combining_mark(*letter)).collect::<String>();
    let lower = |text: &str| text.to_lowercase();
    folded(&lower(first))
        .cmp(&folded(&lower(second)))
        .then_with(|| lower(first).cmp(&lower(second)))
        .then_with(|| first.cmp(second))
}

/// Orders dates; what has none is last.
fn date_order(first: Option<ContentDate>, second: Option<ContentDate>) -> Ordering {
    match (first, second) {
        (Some(first), Some(second)) => first.epoch_ms.cmp(&second.epoch_ms),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}
