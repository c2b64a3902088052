//! Conversions of the values of content to those of the models and of HTL.

use std::borrow::Cow;
use std::sync::Arc;

use tympan_content::{Property, Value};
use tympan_core_components::{ContentDate, ContentValue};
use tympan_htl::{HostError, HtlDate, HtlObject, HtlValue};

/// Converts a stored property to a value of the models.
pub(super) fn content_value(property: &Property) -> ContentValue {
    match property {
        Property::Single(value) => single_content_value(value),
        Property::List(_, values) => {
            ContentValue::List(values.iter().map(single_content_value).collect())
        }
    }
}

fn single_content_value(value: &Value) -> ContentValue {
    match value {
        Value::String(text)
        | Value::Reference(text)
        | Value::WeakReference(text)
        | Value::Uri(text)
        | Value::Decimal(text) => ContentValue::text(text.as_str()),
        Value::Name(text) => ContentValue::Name(text.as_str().into()),
        Value::Path(text) => ContentValue::Path(text.as_str().into()),
        Value::Long(number) => ContentValue::Long(*number),
        Value::Double(number) => ContentValue::Double(*number),
        Value::Boolean(value) => ContentValue::Boolean(*value),
        Value::Date(date) => ContentValue::Date(ContentDate {
            epoch_ms: date.millis,
            offset_minutes: i32::from(date.offset_minutes),
        }),
        Value::Binary(blob) => ContentValue::Binary(blob.length()),
    }
}

/// Converts a value of content to HTL.
pub(super) fn htl_content_value(value: &ContentValue) -> HtlValue {
    match value {
        ContentValue::Text(text) | ContentValue::Name(text) | ContentValue::Path(text) => {
            HtlValue::Text(Arc::clone(text))
        }
        ContentValue::Boolean(value) => HtlValue::Boolean(*value),
        ContentValue::Long(number) => HtlValue::Integer(*number),
        ContentValue::Double(number) => HtlValue::Float(*number),
        ContentValue::Date(date) => htl_date(*date),
        ContentValue::Binary(_) => HtlValue::Null,
        ContentValue::List(values) => HtlValue::list(values.iter().map(htl_content_value)),
    }
}

/// Converts a date to HTL.
pub(super) fn htl_date(date: ContentDate) -> HtlValue {
    HtlValue::Date(HtlDate { millis: date.epoch_ms, offset_minutes: date.offset_minutes })
}

/// Returns the property that a name of a bean's method stands for: `getTitle` and `isEmpty` stand for `title` and
/// `empty`.
pub(super) fn bean_property(name: &str) -> Cow<'_, str> {
    for prefix in ["get", "is", "has"] {
        if let Some(rest) = name.strip_prefix(prefix)
            && let Some(first) = rest.chars().next().filter(char::is_ascii_uppercase)
        {
            // An abbreviation such as `getURL` keeps its case.
            let mut letters = rest.chars();
            letters.next();
            if letters.clone().next().is_some_and(|second| second.is_ascii_uppercase()) {
                return Cow::Borrowed(rest);
            }
            return Cow::Owned(format!("{}{}", first.to_ascii_lowercase(), letters.as_str()));
        }
    }
    Cow::Borrowed(name)
}

/// A text that may be a language.
#[derive(Debug)]
pub(super) struct LocaleText(pub Arc<str>);

impl HtlObject for LocaleText {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let part = |at| {
            let parts: Vec<&str> = self.0.split(['_', '-']).collect();
            HtlValue::from(parts.get(at).copied().unwrap_or_default())
        };
        Ok(match &*bean_property(name) {
            "toLanguageTag" => Some(HtlValue::from(self.0.replace('_', "-"))),
            "language" => Some(part(0)),
            "country" => Some(part(1)),
            "length" => Some(HtlValue::Integer(self.0.chars().count() as i64)),
            _ => None,
        })
    }

    fn primitive(&self) -> Option<HtlValue> {
        Some(HtlValue::Text(Arc::clone(&self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_beans_stand_for_properties() {
        for (method, property) in [
            ("getTitle", "title"),
            ("isEmpty", "empty"),
            ("getURL", "URL"),
            ("hasChildren", "children"),
            ("title", "title"),
            ("issue", "issue"),
            ("get", "get"),
            ("isÄ", "isÄ"),
        ] {
            assert_eq!(bean_property(method), property, "{method}");
        }
    }
}
