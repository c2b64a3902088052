//! Typed values and properties, as JCR has them.

use std::borrow::Cow;

use tympan_store::BlobId;

use crate::{Error, JcrDate, Result};

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ValueType {
    /// Text.
    String = 1,
    /// Bytes, stored as a blob.
    Binary = 2,
    /// A 64-bit integer.
    Long = 3,
    /// A 64-bit floating point number.
    Double = 4,
    /// A date with its offset.
    Date = 5,
    /// `true` or `false`.
    Boolean = 6,
    /// A name, such as a node type's.
    Name = 7,
    /// A path.
    Path = 8,
    /// The identifier of a node that must exist.
    Reference = 9,
    /// The identifier of a node that may be missing.
    WeakReference = 10,
    /// A URI.
    Uri = 11,
    /// A decimal number of any length.
    Decimal = 12,
}

impl ValueType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::String,
        Self::Binary,
        Self::Long,
        Self::Double,
        Self::Date,
        Self::Boolean,
        Self::Name,
        Self::Path,
        Self::Reference,
        Self::WeakReference,
        Self::Uri,
        Self::Decimal,
    ];

    /// Returns the type's name as docviews and type hints spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "String",
            Self::Binary => "Binary",
            Self::Long => "Long",
            Self::Double => "Double",
            Self::Date => "Date",
            Self::Boolean => "Boolean",
            Self::Name => "Name",
            Self::Path => "Path",
            Self::Reference => "Reference",
            Self::WeakReference => "WeakReference",
            Self::Uri => "URI",
            Self::Decimal => "Decimal",
        }
    }

    /// Finds the type with this name, case-insensitively.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value_type| value_type.name().eq_ignore_ascii_case(name))
    }
}

/// One typed value.
#[derive(Debug, Clone)]
pub enum Value {
    /// Text.
    String(String),
    /// A blob.
    Binary(BlobId),
    /// An integer.
    Long(i64),
    /// A floating point number; equal when its bits are equal.
    Double(f64),
    /// A date.
    Date(JcrDate),
    /// A Boolean value.
    Boolean(bool),
    /// A name.
    Name(String),
    /// A path, not necessarily of an existing node.
    Path(String),
    /// A node's identifier.
    Reference(String),
    /// A node's identifier; the node may be missing.
    WeakReference(String),
    /// A URI.
    Uri(String),
    /// A decimal number as text.
    Decimal(String),
}

impl Value {
    /// Returns the value's type.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::String(_) => ValueType::String,
            Self::Binary(_) => ValueType::Binary,
            Self::Long(_) => ValueType::Long,
            Self::Double(_) => ValueType::Double,
            Self::Date(_) => ValueType::Date,
            Self::Boolean(_) => ValueType::Boolean,
            Self::Name(_) => ValueType::Name,
            Self::Path(_) => ValueType::Path,
            Self::Reference(_) => ValueType::Reference,
            Self::WeakReference(_) => ValueType::WeakReference,
            Self::Uri(_) => ValueType::Uri,
            Self::Decimal(_) => ValueType::Decimal,
        }
    }

    /// Parses a text as a value of the given type.
    ///
    /// # Errors
    /// [`Error::ValueFormat`] if the text is malformed, and always for `Binary`: bytes come from a blob store.
    pub fn parse(value_type: ValueType, text: &str) -> Result<Self> {
        let invalid =
            || Error::ValueFormat { text: text.to_owned(), expected_type: value_type.name() };
        Ok(match value_type {
            ValueType::String => Self::String(text.to_owned()),
            ValueType::Binary => return Err(invalid()),
            ValueType::Long => Self::Long(text.trim().parse().map_err(|_| invalid())?),
            ValueType::Double => Self::Double(text.trim().parse().map_err(|_| invalid())?),
            ValueType::Date => Self::Date(JcrDate::parse(text.trim())?),
            ValueType::Boolean => Self::Boolean(text.trim().eq_ignore_ascii_case("true")),
            ValueType::Name => Self::Name(text.to_owned()),
            ValueType::Path => Self::Path(text.to_owned()),
            ValueType::Reference => Self::Reference(text.to_owned()),
            ValueType::WeakReference => Self::WeakReference(text.to_owned()),
            ValueType::Uri => Self::Uri(text.to_owned()),
            ValueType::Decimal => {
                Self::Decimal(parse_decimal_text(text.trim()).ok_or_else(invalid)?)
            }
        })
    }

    /// Returns the value as text by JCR's string conversion; a blob's id for a binary.
    #[must_use]
    pub fn to_text(&self) -> Cow<'_, str> {
        match self {
            Self::String(text)
            | Self::Name(text)
            | Self::Path(text)
            | Self::Reference(text)
            | Self::WeakReference(text)
            | Self::Uri(text)
            | Self::Decimal(text) => Cow::Borrowed(text),
            Self::Binary(blob) => Cow::Owned(blob.to_string()),
            Self::Long(number) => Cow::Owned(number.to_string()),
            Self::Double(number) => Cow::Owned(format_double(*number)),
            Self::Date(date) => Cow::Owned(date.to_string()),
            Self::Boolean(truth) => Cow::Borrowed(if *truth { "true" } else { "false" }),
        }
    }

    /// Returns the text of a text-like value without copying, or `None` for numbers, dates, Booleans and blobs.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self.to_text() {
            Cow::Borrowed(text) if !matches!(self, Self::Boolean(_)) => Some(text),
            _ => None,
        }
    }
}

/// Equality of stored values: doubles by their bits, so that a value always equals itself.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Binary(left), Self::Binary(right)) => left == right,
            (Self::Double(left), Self::Double(right)) => left.to_bits() == right.to_bits(),
            (Self::Date(left), Self::Date(right)) => left == right,
            (left, right) => {
                left.value_type() == right.value_type() && left.to_text() == right.to_text()
            }
        }
    }
}

impl Eq for Value {}

/// Writes a double with a fraction, as Java does for whole numbers.
fn format_double(number: f64) -> String {
    if number.is_finite() && number.fract() == 0.0 && number.abs() < 1e15 {
        format!("{number:.1}")
    } else {
        number.to_string()
    }
}

/// Returns the text if it is a plain decimal number, with an optional exponent.
fn parse_decimal_text(text: &str) -> Option<String> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let has_point_at_most_once = mantissa.matches('.').count() <= 1;
    let digits: String = mantissa.chars().filter(|character| *character != '.').collect();
    (has_point_at_most_once && is_number(&digits) && is_number(exponent)).then(|| text.to_owned())
}

/// The content of a property: one value, or a list of values of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Property {
    /// A single value.
    Single(Value),
    /// A list, possibly empty; every value has the given type.
    List(ValueType, Vec<Value>),
}

impl Property {
    /// Creates a property with a single text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Single(Value::String(text.into()))
    }

    /// Creates a property with a single name.
    #[must_use]
    pub fn name(name: impl Into<String>) -> Self {
        Self::Single(Value::Name(name.into()))
    }

    /// Parses texts as a list of the given type.
    ///
    /// # Errors
    /// [`Error::ValueFormat`] for the first malformed text.
    pub fn parse_list<'a>(
        value_type: ValueType,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let values =
            texts.into_iter().map(|text| Value::parse(value_type, text)).collect::<Result<_>>()?;
        Ok(Self::List(value_type, values))
    }

    /// Returns the type of the value or values.
    #[must_use]
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::Single(value) => value.value_type(),
            Self::List(value_type, _) => *value_type,
        }
    }

    /// Returns the values: one for a single property.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        match self {
            Self::Single(value) => std::slice::from_ref(value),
            Self::List(_, values) => values,
        }
    }

    /// Returns the number of bytes of all values as texts.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.values().iter().map(|value| value.to_text().len() as u64).sum()
    }

    /// Returns the single value, or the first of a list.
    #[must_use]
    pub fn first(&self) -> Option<&Value> {
        self.values().first()
    }

    /// Returns true if this is a list.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(self, Self::List(..))
    }
}

impl From<Value> for Property {
    fn from(value: Value) -> Self {
        Self::Single(value)
    }
}

impl From<&str> for Property {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_value_reads_back() {
        let texts = [
            (ValueType::String, "a b"),
            (ValueType::Long, "-7"),
            (ValueType::Double, "1.5"),
            (ValueType::Double, "2.0"),
            (ValueType::Date, "2019-03-01T10:20:30.456+01:00"),
            (ValueType::Boolean, "true"),
            (ValueType::Name, "cq:Page"),
            (ValueType::Path, "/content"),
            (ValueType::Uri, "https://example.org/"),
            (ValueType::Decimal, "3.14159265358979323846"),
        ];
        for (value_type, text) in texts {
            let value = Value::parse(value_type, text).unwrap();
            assert_eq!(value.to_text(), text);
            assert_eq!(Value::parse(value_type, &value.to_text()).unwrap(), value);
        }
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for (value_type, text) in [
            (ValueType::Long, "7.5"),
            (ValueType::Double, "x"),
            (ValueType::Decimal, "1.2.3"),
            (ValueType::Decimal, ""),
            (ValueType::Date, "today"),
            (ValueType::Binary, "00"),
        ] {
            assert!(Value::parse(value_type, text).is_err(), "{text}");
        }
    }

    #[test]
    fn types_are_found_by_name() {
        for value_type in ValueType::ALL {
            assert_eq!(ValueType::find(value_type.name()), Some(value_type));
        }
        assert_eq!(ValueType::find("uri"), Some(ValueType::Uri));
        assert_eq!(ValueType::find("Object"), None);
    }
}
