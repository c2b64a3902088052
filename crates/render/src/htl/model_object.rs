//! Models as scripts see them, and the conversions between their values and those of HTL.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use tympan_core_components::{ComponentModel, ContentDate, ModelMap, ModelValue};
use tympan_htl::{HostError, HtlItems, HtlObject, HtlValue};

use super::content_conversion::{LocaleText, bean_property, htl_date};
use super::page_object::PageView;
use super::site_access::SiteAccess;
use super::site_object::ResourceView;

/// Maximum nesting depth of options that become values of models.
const MAX_OPTION_DEPTH: usize = 8;

/// Converts a value of a model to HTL.
pub(super) fn htl_model_value(access: &SiteAccess, value: ModelValue) -> HtlValue {
    match value {
        ModelValue::Null => HtlValue::Null,
        ModelValue::Boolean(value) => HtlValue::Boolean(value),
        ModelValue::Integer(number) => HtlValue::Integer(number),
        ModelValue::Number(number) => HtlValue::Float(number),
        ModelValue::Text(text) => HtlValue::Text(text),
        ModelValue::Date(date) => htl_date(date),
        ModelValue::List(values) => {
            HtlValue::list(values.iter().map(|value| htl_model_value(access, value.clone())))
        }
        ModelValue::Map(map) => HtlValue::object(MapView { access: access.clone(), map }),
        ModelValue::Model(model) => HtlValue::object(ModelView { access: access.clone(), model }),
        ModelValue::Resource(resource) => {
            HtlValue::object(ResourceView::of_model(access.clone(), resource))
        }
        ModelValue::Page(path) => PageView::value_at(access, &path),
        ModelValue::Constant { name, value } => HtlValue::object(ConstantView { name, value }),
    }
}

/// Converts a value of HTL to one of the models, for the options of `data-sly-use`.
pub(super) fn model_value(value: &HtlValue) -> ModelValue {
    nested_model_value(value, 0)
}

fn nested_model_value(value: &HtlValue, depth: usize) -> ModelValue {
    if depth > MAX_OPTION_DEPTH {
        return ModelValue::Null;
    }
    match value {
        HtlValue::Null | HtlValue::Template(_) => ModelValue::Null,
        HtlValue::Boolean(value) => ModelValue::Boolean(*value),
        HtlValue::Integer(number) => ModelValue::Integer(*number),
        HtlValue::Float(number) => ModelValue::Number(*number),
        HtlValue::Text(text) => ModelValue::Text(Arc::clone(text)),
        HtlValue::Date(date) => ModelValue::Date(ContentDate {
            epoch_ms: date.millis,
            offset_minutes: date.offset_minutes,
        }),
        HtlValue::List(items) => {
            ModelValue::list(items.iter().map(|item| nested_model_value(item, depth + 1)))
        }
        HtlValue::Map(map) => {
            let mut entries = ModelMap::new();
            for (name, item) in map.iter() {
                entries.insert(Arc::clone(name), nested_model_value(item, depth + 1));
            }
            ModelValue::Map(Arc::new(entries))
        }
        HtlValue::Object(object) => {
            if let Some(resource) = value.downcast_ref::<ResourceView>() {
                return ModelValue::Resource(resource.to_model_resource());
            }
            if let Some(page) = value.downcast_ref::<PageView>() {
                return ModelValue::Page(page.path().into());
            }
            if let Some(model) = value.downcast_ref::<ModelView>() {
                return ModelValue::Model(Arc::clone(&model.model));
            }
            if let Some(primitive) = object.primitive() {
                return nested_model_value(&primitive, depth + 1);
            }
            match object.items() {
                Ok(Some(items)) => ModelValue::list(
                    items.filter_map(Result::ok).map(|item| nested_model_value(&item, depth + 1)),
                ),
                _ => ModelValue::Null,
            }
        }
    }
}

/// A constant of an enumeration, as scripts see it.
#[derive(Debug)]
struct ConstantView {
    name: &'static str,
    value: &'static str,
}

impl HtlObject for ConstantView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        Ok(match &*bean_property(name) {
            "name" => Some(HtlValue::from(self.name)),
            "value" => Some(HtlValue::from(self.value)),
            _ => None,
        })
    }

    fn primitive(&self) -> Option<HtlValue> {
        Some(HtlValue::from(self.name))
    }
}

/// A model, as scripts see it.
pub(super) struct ModelView {
    pub access: SiteAccess,
    pub model: Arc<dyn ComponentModel>,
}

impl std::fmt::Debug for ModelView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

impl HtlObject for ModelView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let value = self.model.property(name).or_else(|| match bean_property(name) {
            Cow::Borrowed(same) if same == name => {
                // A boolean getter may be declared with its prefix.
                let mut letters = name.chars();
                let first = letters.next()?.to_ascii_uppercase();
                self.model.property(&format!("is{first}{}", letters.as_str()))
            }
            property => self.model.property(&property),
        });
        Ok(value.map(|value| htl_model_value(&self.access, value)))
    }
}

/// A map of a model, as scripts see it.
#[derive(Debug)]
pub(super) struct MapView {
    pub access: SiteAccess,
    pub map: Arc<ModelMap>,
}

impl HtlObject for MapView {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        if let Some(value) = self.map.value(name) {
            return Ok(Some(htl_model_value(&self.access, value.clone())));
        }
        let entry = |(key, value): (&str, &ModelValue)| {
            HtlValue::map([
                ("key", map_key(key)),
                ("value", htl_model_value(&self.access, value.clone())),
            ])
        };
        Ok(match &*bean_property(name) {
            "size" | "length" => Some(HtlValue::Integer(self.map.len() as i64)),
            "empty" => Some(HtlValue::Boolean(self.map.is_empty())),
            "keySet" => Some(HtlValue::list(self.map.iter().map(|(key, _)| map_key(key)))),
            "entrySet" => Some(HtlValue::list(self.map.iter().map(entry))),
            "values" => Some(HtlValue::list(
                self.map.iter().map(|(_, value)| htl_model_value(&self.access, value.clone())),
            )),
            _ => None,
        })
    }

    fn items(&self) -> Result<Option<HtlItems>, HostError> {
        let keys: Vec<_> = self.map.iter().map(|(key, _)| Ok(map_key(key))).collect();
        Ok(Some(Box::new(keys.into_iter())))
    }

    fn contains(&self, name: &str) -> Result<bool, HostError> {
        Ok(self.map.value(name).is_some())
    }
}

/// Returns the key of a map: a text that also has the methods of locales.
fn map_key(key: &str) -> HtlValue {
    HtlValue::Object(Rc::new(LocaleText(key.into())))
}
