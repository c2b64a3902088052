//! JCR values as template values.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{DynObject, Object, ObjectRepr};
use tympan_content::{BlobId, BorrowedProperty, BorrowedValue, JcrDate};

/// Converts a property to a template value: a list becomes a list, a single value a single one.
pub(super) fn property_to_template_value(property: BorrowedProperty<'_>) -> Value {
    let mut values = property.values().map(jcr_to_template_value);
    if property.is_list() {
        return values.collect::<Vec<_>>().into();
    }
    // A single property always has a value.
    values.next().unwrap_or_else(|| Value::from(""))
}

/// Converts a single JCR value to a template value.
fn jcr_to_template_value(value: BorrowedValue<'_>) -> Value {
    match value {
        BorrowedValue::Text(_, text) => Value::from(text),
        BorrowedValue::Long(number) => Value::from(number),
        BorrowedValue::Double(number) => Value::from(number),
        BorrowedValue::Boolean(truth) => Value::from(truth),
        BorrowedValue::Date(date) => date_to_template_value(date),
        BorrowedValue::Binary(blob) => Value::from_object(BinaryValue(blob)),
    }
}

/// Converts a date to a template value.
pub(super) fn date_to_template_value(date: JcrDate) -> Value {
    Value::from_object(DateValue(date))
}

/// A date: prints ISO 8601, compares by its instant.
#[derive(Debug)]
pub(super) struct DateValue(pub JcrDate);

impl Object for DateValue {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key {
            "iso" => return Some(Value::from(self.0.to_string())),
            "millis" => return Some(Value::from(self.0.millis)),
            _ => {}
        }
        let zoned = self.0.to_zoned()?;
        Some(match key {
            "year" => Value::from(zoned.year()),
            "month" => Value::from(zoned.month()),
            "day" => Value::from(zoned.day()),
            "hour" => Value::from(zoned.hour()),
            "minute" => Value::from(zoned.minute()),
            "second" => Value::from(zoned.second()),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.0.millis.cmp(&other.downcast_ref::<Self>()?.0.millis))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A binary value: prints nothing, provides its size.
#[derive(Debug)]
struct BinaryValue(BlobId);

impl Object for BinaryValue {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("size")).then(|| Value::from(self.0.length()))
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
