//! Typed property values of content, and their conversions.
//!
//! A conversion follows the value conversion of Sling's `ValueMap`: a list gives its first value, a text that reads as
//! a number or a date gives it, and a value that cannot be converted gives nothing.

use std::sync::Arc;

/// One property value of a content node.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentValue {
    /// A string, or any other type whose text is its value (decimal, URI, reference).
    Text(Arc<str>),
    /// A qualified name.
    Name(Arc<str>),
    /// A path.
    Path(Arc<str>),
    /// A boolean.
    Boolean(bool),
    /// A whole number.
    Long(i64),
    /// A floating-point number.
    Double(f64),
    /// A point in time with its offset.
    Date(ContentDate),
    /// Bytes that are stored elsewhere, with their length.
    Binary(u64),
    /// Several values.
    List(Arc<[ContentValue]>),
}

/// A point in time with the offset from UTC in which it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentDate {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub epoch_ms: i64,
    /// Offset from UTC, in minutes.
    pub offset_minutes: i32,
}

impl ContentDate {
    /// Returns the UTC time in ISO 8601 form with whole seconds, for example `2016-01-13T15:14:51Z`.
    #[must_use]
    pub fn to_utc_text(self) -> String {
        jiff::Timestamp::from_second(self.epoch_ms.div_euclid(1000))
            .map_or_else(|_| String::new(), |time| time.to_string())
    }

    /// Reads an ISO 8601 date with an offset.
    #[must_use]
    pub fn parse(text: &str) -> Option<ContentDate> {
        let time: jiff::Timestamp = text.trim().parse().ok()?;
        let pieces = jiff::fmt::temporal::DateTimeParser::new().parse_pieces(text.trim()).ok();
        let offset_minutes = pieces
            .and_then(|pieces| pieces.to_numeric_offset())
            .map_or(0, |offset| offset.seconds() / 60);
        Some(ContentDate { epoch_ms: time.as_millisecond(), offset_minutes })
    }
}

impl ContentValue {
    /// Creates a text value.
    #[must_use]
    pub fn text(text: impl Into<Arc<str>>) -> ContentValue {
        ContentValue::Text(text.into())
    }

    /// Returns the value itself, or the first one of a list.
    #[must_use]
    pub fn first(&self) -> Option<&ContentValue> {
        match self {
            ContentValue::List(values) => values.first(),
            single => Some(single),
        }
    }

    /// Returns the value as text.
    #[must_use]
    pub fn to_text(&self) -> Option<Arc<str>> {
        match self.first()? {
            ContentValue::Text(text) | ContentValue::Name(text) | ContentValue::Path(text) => {
                Some(Arc::clone(text))
            }
            ContentValue::Boolean(value) => Some(value.to_string().into()),
            ContentValue::Long(value) => Some(value.to_string().into()),
            ContentValue::Double(value) => Some(value.to_string().into()),
            ContentValue::Date(date) => Some(date.to_utc_text().into()),
            ContentValue::Binary(_) | ContentValue::List(_) => None,
        }
    }

    /// Returns all values as texts.
    #[must_use]
    pub fn to_texts(&self) -> Vec<Arc<str>> {
        match self {
            ContentValue::List(values) => values.iter().filter_map(ContentValue::to_text).collect(),
            single => single.to_text().into_iter().collect(),
        }
    }

    /// Returns the value as a boolean; of texts, `true` in any case is true.
    #[must_use]
    pub fn to_boolean(&self) -> Option<bool> {
        match self.first()? {
            ContentValue::Boolean(value) => Some(*value),
            ContentValue::Long(value) => Some(*value != 0),
            ContentValue::Double(value) => Some(*value != 0.0),
            ContentValue::Text(text) | ContentValue::Name(text) | ContentValue::Path(text) => {
                Some(text.eq_ignore_ascii_case("true"))
            }
            ContentValue::Date(_) | ContentValue::Binary(_) | ContentValue::List(_) => None,
        }
    }

    /// Returns the value as a whole number.
    #[must_use]
    pub fn to_long(&self) -> Option<i64> {
        match self.first()? {
            ContentValue::Long(value) => Some(*value),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a conversion to a whole number cuts the fraction and saturates"
            )]
            ContentValue::Double(value) => Some(*value as i64),
            ContentValue::Date(date) => Some(date.epoch_ms),
            ContentValue::Text(text) => text.trim().parse().ok(),
            ContentValue::Boolean(_)
            | ContentValue::Name(_)
            | ContentValue::Path(_)
            | ContentValue::Binary(_)
            | ContentValue::List(_) => None,
        }
    }

    /// Returns the value as a floating-point number.
    #[must_use]
    pub fn to_double(&self) -> Option<f64> {
        match self.first()? {
            #[expect(clippy::cast_precision_loss, reason = "a conversion to a double rounds")]
            ContentValue::Long(value) => Some(*value as f64),
            ContentValue::Double(value) => Some(*value),
            ContentValue::Text(text) => text.trim().parse().ok(),
            ContentValue::Boolean(_)
            | ContentValue::Name(_)
            | ContentValue::Path(_)
            | ContentValue::Date(_)
            | ContentValue::Binary(_)
            | ContentValue::List(_) => None,
        }
    }

    /// Returns the value as a date.
    #[must_use]
    pub fn to_date(&self) -> Option<ContentDate> {
        match self.first()? {
            ContentValue::Date(date) => Some(*date),
            ContentValue::Text(text) => ContentDate::parse(text),
            ContentValue::Boolean(_)
            | ContentValue::Long(_)
            | ContentValue::Double(_)
            | ContentValue::Name(_)
            | ContentValue::Path(_)
            | ContentValue::Binary(_)
            | ContentValue::List(_) => None,
        }
    }
}
