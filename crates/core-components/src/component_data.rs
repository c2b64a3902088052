//! The data layer of a component: what it tells the Adobe Client Data Layer about itself.

use std::sync::Arc;

use crate::content_value::ContentDate;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};

/// The data of one component, as a map from its identifier to its fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComponentData {
    pub(crate) id: String,
    pub(crate) resource_type: Option<Arc<str>>,
    pub(crate) modified: Option<ContentDate>,
    pub(crate) parent_id: Option<String>,
    pub(crate) title: Option<Arc<str>>,
    pub(crate) description: Option<Arc<str>>,
    pub(crate) text: Option<Arc<str>>,
    pub(crate) link_url: Option<String>,
    /// Fields of one kind of component: shown items, an image, template, language, tags.
    pub(crate) details: ModelMap,
}

impl ComponentData {
    /// Returns the fields in their order.
    fn fields(&self) -> ModelMap {
        let mut fields = ModelMap::new();
        fields.insert_present("@type", self.resource_type.clone());
        fields.insert_present("repo:modifyDate", self.modified.map(ContentDate::to_utc_text));
        fields.insert_present("parentId", self.parent_id.clone());
        fields.insert_present("dc:title", self.title.clone());
        fields.insert_present("dc:description", self.description.clone());
        fields.insert_present("xdm:text", self.text.clone());
        fields.insert_present("xdm:linkURL", self.link_url.clone());
        for (name, value) in self.details.iter() {
            fields.insert_present(name, value.clone());
        }
        fields
    }

    /// Returns the map from the identifier to the fields.
    pub(crate) fn to_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert(self.id.as_str(), self.fields());
        map
    }

    /// Returns the text form for the attribute `data-cmp-data-layer`.
    fn to_json_text(&self) -> String {
        ModelValue::from(self.to_map()).to_json().to_string()
    }
}

impl From<ComponentData> for ModelValue {
    fn from(data: ComponentData) -> ModelValue {
        ModelValue::model(data)
    }
}

impl ComponentModel for ComponentData {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "json" => self.to_json_text().into(),
            "id" => self.id.as_str().into(),
            "type" => self.resource_type.clone().into(),
            "lastModifiedDate" => self.modified.into(),
            "parentId" => self.parent_id.clone().into(),
            "title" => self.title.clone().into(),
            "description" => self.description.clone().into(),
            "text" => self.text.clone().into(),
            "linkUrl" => self.link_url.clone().into(),
            _ => self.details.value(name)?.clone(),
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "id",
            "type",
            "lastModifiedDate",
            "parentId",
            "title",
            "description",
            "text",
            "linkUrl",
            "json",
        ]
    }

    fn export(&self) -> ModelMap {
        self.to_map()
    }
}
