//! The values that models answer with.

use std::fmt;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::component_context::ComponentResource;
use crate::content_value::{ContentDate, ContentValue};

/// A value of a model, as a template reads it.
#[derive(Clone, Debug, Default)]
pub enum ModelValue {
    /// No value.
    #[default]
    Null,
    /// A boolean.
    Boolean(bool),
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Number(f64),
    /// A text.
    Text(Arc<str>),
    /// A point in time; in JSON, the milliseconds since 1970.
    Date(ContentDate),
    /// Values in their order.
    List(Arc<[ModelValue]>),
    /// Named values in their order.
    Map(Arc<ModelMap>),
    /// An object whose properties are computed when they are asked for; in JSON, its exported form.
    Model(Arc<dyn ComponentModel>),
    /// A resource that a template can include; in JSON, its path.
    Resource(ComponentResource),
    /// A page, by path; in JSON, its path.
    Page(Arc<str>),
    /// A constant of an enumeration, with the properties `name` and `value`; in JSON and as a text, its name.
    Constant {
        /// The name.
        name: &'static str,
        /// The value that markup has.
        value: &'static str,
    },
}

/// Named values in their order; a name occurs once.
#[derive(Clone, Debug, Default)]
pub struct ModelMap {
    entries: Vec<(Arc<str>, ModelValue)>,
}

/// An object of named properties that are computed when they are asked for.
pub trait ComponentModel: Send + Sync + fmt::Debug {
    /// Returns a property; nothing if the model has none of this name, [`ModelValue::Null`] if it has no value.
    fn property(&self, name: &str) -> Option<ModelValue>;

    /// Returns the names of all properties, in a fixed order.
    fn property_names(&self) -> Vec<&'static str>;

    /// Returns the members of the JSON form, in a fixed order.
    fn export(&self) -> ModelMap;
}

impl ModelMap {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> ModelMap {
        ModelMap::default()
    }

    /// Sets a value, at the end if the name is new.
    pub fn insert(&mut self, name: impl Into<Arc<str>>, value: impl Into<ModelValue>) {
        let (name, value) = (name.into(), value.into());
        match self.entries.iter_mut().find(|(key, _)| *key == name) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((name, value)),
        }
    }

    /// Sets a value that is not null.
    pub fn insert_present(&mut self, name: impl Into<Arc<str>>, value: impl Into<ModelValue>) {
        let value = value.into();
        if !value.is_null() {
            self.insert(name, value);
        }
    }

    /// Returns a value by name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&ModelValue> {
        self.entries.iter().find(|(key, _)| &**key == name).map(|(_, value)| value)
    }

    /// Iterates over names and values in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ModelValue)> {
        self.entries.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl IntoIterator for ModelMap {
    type Item = (Arc<str>, ModelValue);
    type IntoIter = std::vec::IntoIter<(Arc<str>, ModelValue)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl FromIterator<(Arc<str>, ModelValue)> for ModelMap {
    /// Creates a map from entries with different names.
    fn from_iter<I: IntoIterator<Item = (Arc<str>, ModelValue)>>(entries: I) -> ModelMap {
        ModelMap { entries: entries.into_iter().collect() }
    }
}

impl ModelValue {
    /// Creates a text.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> ModelValue {
        ModelValue::Text(text.into())
    }

    /// Creates a list.
    #[must_use]
    pub fn list(values: impl IntoIterator<Item = ModelValue>) -> ModelValue {
        ModelValue::List(values.into_iter().collect())
    }

    /// Creates a list of texts.
    #[must_use]
    pub fn texts<T: Into<Arc<str>>>(texts: impl IntoIterator<Item = T>) -> ModelValue {
        ModelValue::list(texts.into_iter().map(ModelValue::text))
    }

    /// Creates an object from a model.
    #[must_use]
    pub fn model(model: impl ComponentModel + 'static) -> ModelValue {
        ModelValue::Model(Arc::new(model))
    }

    /// Returns whether there is no value.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, ModelValue::Null)
    }

    /// Returns the text of a text or a constant.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            ModelValue::Text(text) => Some(text),
            ModelValue::Constant { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Returns a property of a map or a model.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<ModelValue> {
        match self {
            ModelValue::Map(map) => map.value(name).cloned(),
            ModelValue::Model(model) => model.property(name),
            ModelValue::Constant { name: text, .. } if name == "name" => Some((*text).into()),
            ModelValue::Constant { value, .. } if name == "value" => Some((*value).into()),
            _ => None,
        }
    }

    /// Returns the JSON form.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        // Every key is a text and every value has a JSON form, so this cannot fail.
        serde_json::to_value(self).unwrap_or(serde_json::Value::Null)
    }
}

impl Serialize for ModelValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ModelValue::Null => serializer.serialize_unit(),
            ModelValue::Boolean(value) => serializer.serialize_bool(*value),
            ModelValue::Integer(value) => serializer.serialize_i64(*value),
            ModelValue::Number(value) => serializer.serialize_f64(*value),
            ModelValue::Text(text) | ModelValue::Page(text) => serializer.serialize_str(text),
            ModelValue::Constant { name, .. } => serializer.serialize_str(name),
            ModelValue::Date(date) => serializer.serialize_i64(date.epoch_ms),
            ModelValue::List(values) => {
                let mut sequence = serializer.serialize_seq(Some(values.len()))?;
                for value in values.iter() {
                    sequence.serialize_element(value)?;
                }
                sequence.end()
            }
            ModelValue::Map(map) => map.serialize(serializer),
            ModelValue::Model(model) => model.export().serialize(serializer),
            ModelValue::Resource(resource) => serializer.serialize_str(resource.path()),
        }
    }
}

impl Serialize for ModelMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len()))?;
        for (name, value) in &self.entries {
            map.serialize_entry(&**name, value)?;
        }
        map.end()
    }
}

impl PartialEq for ModelValue {
    fn eq(&self, other: &ModelValue) -> bool {
        self.to_json() == other.to_json()
    }
}

impl From<bool> for ModelValue {
    fn from(value: bool) -> ModelValue {
        ModelValue::Boolean(value)
    }
}

impl From<i64> for ModelValue {
    fn from(value: i64) -> ModelValue {
        ModelValue::Integer(value)
    }
}

impl From<f64> for ModelValue {
    fn from(value: f64) -> ModelValue {
        ModelValue::Number(value)
    }
}

impl From<&str> for ModelValue {
    fn from(text: &str) -> ModelValue {
        ModelValue::text(text)
    }
}

impl From<String> for ModelValue {
    fn from(text: String) -> ModelValue {
        ModelValue::text(text)
    }
}

impl From<Arc<str>> for ModelValue {
    fn from(text: Arc<str>) -> ModelValue {
        ModelValue::Text(text)
    }
}

impl From<ContentDate> for ModelValue {
    fn from(date: ContentDate) -> ModelValue {
        ModelValue::Date(date)
    }
}

impl From<ModelMap> for ModelValue {
    fn from(map: ModelMap) -> ModelValue {
        ModelValue::Map(Arc::new(map))
    }
}

impl From<Vec<ModelValue>> for ModelValue {
    fn from(values: Vec<ModelValue>) -> ModelValue {
        ModelValue::list(values)
    }
}

impl From<ContentValue> for ModelValue {
    fn from(value: ContentValue) -> ModelValue {
        match value {
            ContentValue::Text(text) | ContentValue::Name(text) | ContentValue::Path(text) => {
                ModelValue::Text(text)
            }
            ContentValue::Boolean(value) => ModelValue::Boolean(value),
            ContentValue::Long(value) => ModelValue::Integer(value),
            ContentValue::Double(value) => ModelValue::Number(value),
            ContentValue::Date(date) => ModelValue::Date(date),
            ContentValue::Binary(_) => ModelValue::Null,
            ContentValue::List(values) => {
                ModelValue::list(values.iter().cloned().map(ModelValue::from))
            }
        }
    }
}

impl<T: Into<ModelValue>> From<Option<T>> for ModelValue {
    fn from(value: Option<T>) -> ModelValue {
        value.map_or(ModelValue::Null, Into::into)
    }
}
