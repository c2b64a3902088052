//! Items of lists, navigations and breadcrumbs: a page, or an external address, with a title and a link.

use std::sync::Arc;

use crate::component_context::ComponentResource;
use crate::component_core::{ComponentCore, generated_id};
use crate::component_data::ComponentData;
use crate::content_value::ContentDate;
use crate::link::ComponentLink;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};

/// The form in which an item tells its address in JSON: the first versions give a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemLinkForm {
    /// A member `url` with the address.
    Url,
    /// A member `link` with the address and attributes.
    Link,
}

/// Members of an item that only some components have.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemDetails {
    /// The path, where JSON has it.
    pub(crate) path: Option<String>,
    /// The address, where JSON has it beside the link.
    pub(crate) address: Option<String>,
    /// The name of the page.
    pub(crate) name: Option<String>,
    /// The depth in a navigation.
    pub(crate) level: Option<i64>,
    /// The items below, in a navigation.
    pub(crate) children: Option<Vec<ModelValue>>,
    /// Whether the item is the current page or above it.
    pub(crate) is_active: Option<bool>,
    /// Whether the item is the current page.
    pub(crate) is_current: Option<bool>,
    /// When the page changed.
    pub(crate) modified: Option<ContentDate>,
    /// The description of the page.
    pub(crate) description: Option<Arc<str>>,
    /// A resource that draws the item as a teaser.
    pub(crate) teaser: Option<ComponentResource>,
    /// Language and country of an item of a language navigation.
    pub(crate) locale: Option<ItemLocale>,
}

/// The language of an item.
#[derive(Clone, Debug)]
pub(crate) struct ItemLocale {
    /// The language tag, `en-US`.
    pub(crate) language: String,
    /// The country, empty without one.
    pub(crate) country: String,
}

/// One item.
#[derive(Clone, Debug)]
pub(crate) struct ComponentListItem {
    pub(crate) id: String,
    pub(crate) title: Arc<str>,
    pub(crate) link: ComponentLink,
    pub(crate) link_form: ItemLinkForm,
    pub(crate) resource_type: Option<Arc<str>>,
    pub(crate) data: Option<ComponentData>,
    pub(crate) page: Option<String>,
    pub(crate) details: ItemDetails,
}

/// Returns the identifier of an item of a component.
pub(crate) fn item_id(component_id: &str, path: &str) -> String {
    generated_id(&format!("{component_id}-item"), path)
}

/// Returns the type that items of a component tell the data layer: that of the component with `/item`, if the component
/// exists.
pub(crate) fn item_type(core: &ComponentCore) -> Option<Arc<str>> {
    let resource_type = core.resource_type();
    core.context().component_path(&resource_type)?;
    Some(format!("{resource_type}/item").into())
}

impl ComponentListItem {
    /// Creates the item of a page, drawn as `shown` and identified by `source`, which differ for a redirect.
    pub(crate) fn of_page(
        core: &ComponentCore,
        source: &str,
        shown: &str,
        link: ComponentLink,
        link_form: ItemLinkForm,
    ) -> ComponentListItem {
        let pages = core.pages();
        let content = format!("{source}/jcr:content");
        let has_content = core.context().node_exists(&content);
        let id = item_id(&core.id(), if has_content { &content } else { source });
        let title = pages.list_title(shown);
        let resource_type = pages.content_type(shown);
        let data = core.is_data_layer_enabled().then(|| ComponentData {
            id: id.clone(),
            resource_type: item_type(core).or_else(|| resource_type.clone()),
            modified: pages.date(shown, "jcr:lastModified"),
            title: Some(Arc::clone(&title)),
            link_url: link.url.clone(),
            ..ComponentData::default()
        });
        ComponentListItem {
            id,
            title,
            link,
            link_form,
            resource_type,
            data,
            page: Some(shown.to_owned()),
            details: ItemDetails::default(),
        }
    }

    /// Replaces the title.
    pub(crate) fn set_title(&mut self, title: Arc<str>) {
        if let Some(data) = &mut self.data {
            data.title = Some(Arc::clone(&title));
        }
        self.title = title;
    }
}

impl From<ComponentListItem> for ModelValue {
    fn from(item: ComponentListItem) -> ModelValue {
        ModelValue::model(item)
    }
}

impl ComponentModel for ComponentListItem {
    fn property(&self, name: &str) -> Option<ModelValue> {
        let details = &self.details;
        Some(match name {
            "id" => self.id.as_str().into(),
            "title" => Arc::clone(&self.title).into(),
            "link" => self.link.clone().into(),
            "url" | "URL" => self.link.url.clone().into(),
            "path" => details.path.clone().or_else(|| self.page.clone()).into(),
            "name" => details.name.clone().into(),
            "page" => self.page.as_deref().map(|page| ModelValue::Page(page.into())).into(),
            "lastModified" => details.modified.into(),
            "description" => details.description.clone().into(),
            "level" => details.level.into(),
            "children" => details.children.clone().unwrap_or_default().into(),
            "active" => details.is_active.unwrap_or(false).into(),
            "current" => details.is_current.unwrap_or(false).into(),
            "teaserResource" => match &details.teaser {
                Some(resource) => ModelValue::Resource(resource.clone()),
                None => ModelValue::Null,
            },
            "language" => details.locale.as_ref().map(|locale| locale.language.as_str()).into(),
            "locale" => details.locale.as_ref().map(|locale| locale.language.as_str()).into(),
            "country" => details.locale.as_ref().map(|locale| locale.country.as_str()).into(),
            "data" => self.data.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "id",
            "title",
            "link",
            "url",
            "URL",
            "path",
            "name",
            "page",
            "lastModified",
            "description",
            "level",
            "children",
            "active",
            "current",
            "teaserResource",
            "language",
            "locale",
            "country",
            "data",
        ]
    }

    fn export(&self) -> ModelMap {
        let details = &self.details;
        let mut map = ModelMap::new();
        map.insert("id", self.id.as_str());
        map.insert_present("path", details.path.clone());
        map.insert_present("children", details.children.clone());
        map.insert_present("level", details.level);
        map.insert_present("active", details.is_active);
        map.insert_present("current", details.is_current);
        if let Some(locale) = &details.locale {
            map.insert("locale", locale.language.as_str());
            map.insert("country", locale.country.as_str());
            map.insert("language", locale.language.as_str());
        }
        match self.link_form {
            ItemLinkForm::Url => map.insert_present("url", self.link.url.clone()),
            ItemLinkForm::Link => {
                if self.link.is_valid() {
                    map.insert("link", self.link.clone());
                }
                map.insert_present("url", details.address.clone());
            }
        }
        map.insert_present("lastModified", details.modified);
        map.insert_present("description", details.description.clone());
        map.insert("title", Arc::clone(&self.title));
        map.insert_present(":type", self.resource_type.clone());
        if let Some(data) = &self.data {
            map.insert("dataLayer", data.to_map());
        }
        map
    }
}
