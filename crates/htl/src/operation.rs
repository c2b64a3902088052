//! Operators on values: properties, equality, order, `in`, conversion to numbers and collections.

use std::borrow::Cow;
use std::rc::Rc;

use crate::error::HostError;
use crate::syntax::CompareOperator;
use crate::value::{HtlList, HtlObject, HtlValue};

/// What a collection is for a loop, a join or `in`.
pub(crate) enum ItemSource {
    List(HtlList),
    /// Items that are collected one by one.
    Iterator(Box<dyn Iterator<Item = Result<HtlValue, HostError>>>),
}

/// Returns the value that an object stands for, or the value itself.
pub(crate) fn simple_value(value: &HtlValue) -> Cow<'_, HtlValue> {
    if let HtlValue::Object(object) = value
        && let Some(primitive) = object.primitive()
    {
        return Cow::Owned(primitive);
    }
    Cow::Borrowed(value)
}

/// Returns a property of a value, null if it has none.
pub(crate) fn property_of(value: &HtlValue, key: &HtlValue) -> Result<HtlValue, HostError> {
    let key = simple_value(key);
    if let Some(index) = whole_number(&key) {
        let item = match value {
            HtlValue::List(items) => {
                usize::try_from(index).ok().and_then(|index| items.get(index)).cloned()
            }
            HtlValue::Object(object) => match usize::try_from(index) {
                Ok(index) => object.item(index)?,
                Err(_) => None,
            },
            _ => None,
        };
        if let Some(item) = item {
            return Ok(item);
        }
    }
    let text;
    let name = match &*key {
        HtlValue::Null => return Ok(HtlValue::Null),
        HtlValue::Text(name) => &**name,
        other => {
            text = other.to_text();
            &text
        }
    };
    named_property(value, name)
}

fn whole_number(value: &HtlValue) -> Option<i64> {
    match value {
        HtlValue::Integer(number) => Some(*number),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "Java truncates, too; out of range finds nothing"
        )]
        HtlValue::Float(number) => Some(*number as i64),
        _ => None,
    }
}

/// Returns a property by name; of values without an object, the methods without arguments that Java has for them.
pub(crate) fn named_property(value: &HtlValue, name: &str) -> Result<HtlValue, HostError> {
    let count = |length: usize| HtlValue::Integer(i64::try_from(length).unwrap_or(i64::MAX));
    let property = match value {
        HtlValue::Object(object) => object.property(name)?,
        HtlValue::Map(map) => {
            map.value(name).filter(|value| !value.is_null()).cloned().or_else(|| match name {
                "size" => Some(count(map.len())),
                "empty" | "isEmpty" => Some(map.is_empty().into()),
                "keySet" => {
                    Some(HtlValue::list(map.iter().map(|(key, _)| HtlValue::Text(key.clone()))))
                }
                "values" => Some(HtlValue::list(map.iter().map(|(_, value)| value.clone()))),
                _ => None,
            })
        }
        HtlValue::List(items) => match name {
            "size" | "length" => Some(count(items.len())),
            "empty" | "isEmpty" => Some(items.is_empty().into()),
            _ => None,
        },
        HtlValue::Text(text) => match name {
            "length" => Some(count(text.encode_utf16().count())),
            "empty" | "isEmpty" => Some(text.is_empty().into()),
            "blank" | "isBlank" => Some(text.trim().is_empty().into()),
            "trim" | "strip" => Some(text.trim().into()),
            "toLowerCase" => Some(text.to_lowercase().into()),
            "toUpperCase" => Some(text.to_uppercase().into()),
            "toString" => Some(value.clone()),
            _ => None,
        },
        HtlValue::Date(date) => match name {
            "time" => Some(value.clone()),
            "timeInMillis" => Some(date.millis.into()),
            _ => None,
        },
        HtlValue::Null
        | HtlValue::Boolean(_)
        | HtlValue::Integer(_)
        | HtlValue::Float(_)
        | HtlValue::Template(_) => None,
    };
    Ok(property.unwrap_or_default())
}

/// Returns a number as floating point.
pub(crate) fn float_of(value: &HtlValue) -> Option<f64> {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "Java compares numbers so")]
        HtlValue::Integer(number) => Some(*number as f64),
        HtlValue::Float(number) => Some(*number),
        _ => None,
    }
}

/// Converts a value to a number; texts are parsed.
pub(crate) fn number_of(value: &HtlValue) -> Option<HtlValue> {
    let value = simple_value(value);
    match &*value {
        HtlValue::Integer(_) | HtlValue::Float(_) => Some(value.into_owned()),
        HtlValue::Text(text) => {
            let text = text.trim();
            let integer = text.parse().ok().map(HtlValue::Integer);
            integer.or_else(|| {
                let number: f64 = text.parse().ok()?;
                number.is_finite().then_some(HtlValue::Float(number))
            })
        }
        _ => None,
    }
}

/// Compares two values.
///
/// # Errors
/// A message if the operator does not take such values.
pub(crate) fn compare(
    operator: CompareOperator,
    left: &HtlValue,
    right: &HtlValue,
) -> Result<bool, String> {
    let (left, right) = (simple_value(left), simple_value(right));
    let numbers = || match (float_of(&left), float_of(&right)) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err(format!(
            "only numbers have an order; these are {} and {}",
            kind_of(&left),
            kind_of(&right)
        )),
    };
    Ok(match operator {
        CompareOperator::Equal => is_equal(&left, &right)?,
        CompareOperator::NotEqual => !is_equal(&left, &right)?,
        CompareOperator::Less => numbers().map(|(first, second)| first < second)?,
        CompareOperator::LessOrEqual => numbers().map(|(first, second)| first <= second)?,
        CompareOperator::Greater => numbers().map(|(first, second)| first > second)?,
        CompareOperator::GreaterOrEqual => numbers().map(|(first, second)| first >= second)?,
    })
}

fn is_equal(left: &HtlValue, right: &HtlValue) -> Result<bool, String> {
    match (left, right) {
        (HtlValue::Text(left), HtlValue::Text(right)) => Ok(left == right),
        (HtlValue::Boolean(left), HtlValue::Boolean(right)) => Ok(left == right),
        (HtlValue::Null, HtlValue::Null) => Ok(true),
        (
            HtlValue::Null,
            HtlValue::Text(_) | HtlValue::Boolean(_) | HtlValue::Integer(_) | HtlValue::Float(_),
        )
        | (
            HtlValue::Text(_) | HtlValue::Boolean(_) | HtlValue::Integer(_) | HtlValue::Float(_),
            HtlValue::Null,
        ) => Ok(false),
        _ => match (float_of(left), float_of(right)) {
            #[expect(clippy::float_cmp, reason = "the language compares numbers exactly")]
            (Some(left), Some(right)) => Ok(left == right),
            _ => Err(format!(
                "`==` and `!=` do not compare {} with {}",
                kind_of(left),
                kind_of(right)
            )),
        },
    }
}

/// Returns true for simple values that are equal; other values are never equal.
pub(crate) fn is_same_item(item: &HtlValue, value: &HtlValue) -> bool {
    let (item, value) = (simple_value(item), simple_value(value));
    !item.is_null() && is_equal(&item, &value).unwrap_or(false)
}

fn kind_of(value: &HtlValue) -> &'static str {
    match value {
        HtlValue::Null => "null",
        HtlValue::Boolean(_) => "a boolean",
        HtlValue::Integer(_) | HtlValue::Float(_) => "a number",
        HtlValue::Text(_) => "a text",
        HtlValue::List(_) => "a list",
        HtlValue::Map(_) => "a map",
        HtlValue::Date(_) => "a date",
        HtlValue::Object(_) => "an object",
        HtlValue::Template(_) => "a template",
    }
}

/// Returns the items of a collection: those of lists and sequences, the keys of maps, a text or number itself, nothing
/// of anything else.
pub(crate) fn items_of(value: &HtlValue) -> Result<ItemSource, HostError> {
    Ok(match value {
        HtlValue::List(items) => ItemSource::List(items.clone()),
        HtlValue::Map(map) => {
            ItemSource::List(map.iter().map(|(key, _)| HtlValue::Text(key.clone())).collect())
        }
        HtlValue::Text(_) | HtlValue::Integer(_) | HtlValue::Float(_) => {
            ItemSource::List(std::iter::once(value.clone()).collect())
        }
        HtlValue::Object(object) => match object.items()? {
            Some(items) => ItemSource::Iterator(items),
            None => match object.primitive() {
                Some(
                    primitive @ (HtlValue::Text(_) | HtlValue::Integer(_) | HtlValue::Float(_)),
                ) => ItemSource::List(std::iter::once(primitive).collect()),
                _ => ItemSource::List(std::iter::empty().collect()),
            },
        },
        HtlValue::Null | HtlValue::Boolean(_) | HtlValue::Date(_) | HtlValue::Template(_) => {
            ItemSource::List(std::iter::empty().collect())
        }
    })
}

/// The position of a loop: `itemList`.
#[derive(Debug)]
pub(crate) struct LoopStatus {
    pub(crate) index: usize,
    pub(crate) length: usize,
}

impl LoopStatus {
    pub(crate) fn value(index: usize, length: usize) -> HtlValue {
        HtlValue::Object(Rc::new(Self { index, length }))
    }
}

impl HtlObject for LoopStatus {
    fn property(&self, name: &str) -> Result<Option<HtlValue>, HostError> {
        let count = |number: usize| HtlValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
        let (is_first, is_last) = (self.index == 0, self.index + 1 == self.length);
        Ok(Some(match name {
            "index" => count(self.index),
            "count" => count(self.index + 1),
            "length" => count(self.length),
            "first" => is_first.into(),
            "middle" => (!is_first && !is_last).into(),
            "last" => is_last.into(),
            "odd" => self.index.is_multiple_of(2).into(),
            "even" => (!self.index.is_multiple_of(2)).into(),
            _ => return Ok(None),
        }))
    }
}
