//! Values as bytes: the sort keys of property indexes, and the operands that queries compare.
//!
//! A value belongs to a family: Booleans, numbers, dates, texts. Within a family, bytes sort in the order of values:
//! numbers of all types by their size, dates by their instant, texts by their UTF-8. Values of different families are
//! not comparable; a fixed value of a query is converted to the family of each value it is compared with, as in Oak.

use std::borrow::Cow;

use crate::document::borrowed_property::BorrowedValue;
use crate::{JcrDate, Value};

/// The index entry of a property without a comparable value: a blob, or an empty list.
pub(crate) const NO_VALUE_FAMILY: u8 = 0;
/// Booleans.
const BOOLEAN_FAMILY: u8 = 1;
/// Longs, doubles, decimals.
const NUMBER_FAMILY: u8 = 2;
/// Dates.
const DATE_FAMILY: u8 = 3;
/// All types represented as text.
const TEXT_FAMILY: u8 = 4;
/// The end marker after all families.
const END_FAMILY: u8 = 5;
/// The index entry that marks a property with several values, in addition to the entries of its values.
pub(crate) const MULTI_VALUE_MARKER: u8 = 6;

/// The maximum number of bytes of a text in an index; longer texts are truncated.
const MAX_INDEXED_TEXT_BYTES: usize = 512;

/// A value's family and the bytes used for comparison, which sort as values of the family do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueKey<'a> {
    family: u8,
    bytes: Cow<'a, [u8]>,
}

impl<'a> ValueKey<'a> {
    /// Returns the key of a stored value; `None` for a blob, which is not comparable.
    #[inline]
    #[must_use]
    pub fn from_value(value: BorrowedValue<'a>) -> Option<Self> {
        Some(match value {
            BorrowedValue::Text(crate::ValueType::Decimal, text) => {
                Self::number(text.parse().ok()?, None)
            }
            BorrowedValue::Text(_, text) => Self::text(text),
            BorrowedValue::Binary(_) => return None,
            BorrowedValue::Long(number) => Self::long(number),
            BorrowedValue::Double(number) => Self::number(number, None),
            BorrowedValue::Date(date) => Self::date(date),
            BorrowedValue::Boolean(truth) => Self::boolean(truth),
        })
    }

    /// Returns the key of a text.
    #[inline]
    #[must_use]
    pub fn text(text: &'a str) -> Self {
        Self { family: TEXT_FAMILY, bytes: Cow::Borrowed(text.as_bytes()) }
    }

    /// Returns the key of a text that it owns.
    #[inline]
    #[must_use]
    pub fn owned_text(text: String) -> Self {
        Self { family: TEXT_FAMILY, bytes: Cow::Owned(text.into_bytes()) }
    }

    /// Returns the key of an integer.
    #[expect(clippy::cast_precision_loss, reason = "the whole number follows as well")]
    #[must_use]
    pub fn long(number: i64) -> Self {
        Self::number(number as f64, Some(number))
    }

    /// Returns the key of a number. A whole number beyond 2^53 is distinguished from its neighbors by its own bytes.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast is at its limits where it is beyond them"
    )]
    fn number(number: f64, whole: Option<i64>) -> Self {
        // Both zeros are the same number.
        let bits = if number == 0.0 { 0 } else { number.to_bits() };
        let ordered = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
        let whole = whole.unwrap_or(number as i64).cast_unsigned() ^ (1 << 63);
        let bytes = [ordered.to_be_bytes(), whole.to_be_bytes()].concat();
        Self { family: NUMBER_FAMILY, bytes: Cow::Owned(bytes) }
    }

    /// Returns the key of a floating point number.
    #[must_use]
    pub fn double(number: f64) -> Self {
        Self::number(number, None)
    }

    fn date(date: JcrDate) -> Self {
        let millis = date.millis.cast_unsigned() ^ (1 << 63);
        Self { family: DATE_FAMILY, bytes: Cow::Owned(millis.to_be_bytes().to_vec()) }
    }

    fn boolean(truth: bool) -> Self {
        Self { family: BOOLEAN_FAMILY, bytes: Cow::Owned(vec![u8::from(truth)]) }
    }

    /// Returns the text of a value of the text family.
    pub(crate) fn as_text(&self) -> Option<&str> {
        if self.family == TEXT_FAMILY { std::str::from_utf8(&self.bytes).ok() } else { None }
    }

    /// Returns the value as a text, in the form in which queries compare texts.
    #[must_use]
    pub fn display_text(&self) -> Cow<'_, str> {
        let number = |at: usize| -> Option<u64> {
            Some(u64::from_be_bytes(*self.bytes.get(at..)?.first_chunk()?))
        };
        match self.family {
            TEXT_FAMILY => String::from_utf8_lossy(&self.bytes),
            BOOLEAN_FAMILY => (if *self.bytes == [1] { "true" } else { "false" }).into(),
            DATE_FAMILY => {
                let millis = (number(0).unwrap_or(0) ^ (1 << 63)).cast_signed();
                JcrDate { millis, offset_minutes: 0 }.to_string().into()
            }
            _ => {
                let ordered = number(0).unwrap_or(0);
                let bits = if ordered >> 63 == 1 { ordered ^ (1 << 63) } else { !ordered };
                let float = f64::from_bits(bits);
                if float.fract() == 0.0 && float.is_finite() {
                    return (number(8).unwrap_or(0) ^ (1 << 63)).cast_signed().to_string().into();
                }
                float.to_string().into()
            }
        }
    }

    /// Returns bytes that sort in the order of values, also across families.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [&[self.family][..], &self.bytes].concat()
    }

    /// Decodes the result of [`ValueKey::to_bytes`]; `None` if the bytes are no such result.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<ValueKey<'static>> {
        let (family, bytes) = bytes.split_first()?;
        let is_known = (BOOLEAN_FAMILY..=TEXT_FAMILY).contains(family);
        is_known.then(|| ValueKey { family: *family, bytes: Cow::Owned(bytes.to_vec()) })
    }

    /// Returns the key prefix of the value's entries in the map of a property index.
    #[must_use]
    pub fn entry_prefix(&self) -> Vec<u8> {
        let mut entry = vec![self.family];
        if self.family != TEXT_FAMILY {
            entry.extend_from_slice(&self.bytes);
            return entry;
        }
        for byte in self.bytes.get(..MAX_INDEXED_TEXT_BYTES).unwrap_or(&self.bytes) {
            entry.push(*byte);
            if *byte == 0 {
                entry.push(0xff);
            }
        }
        entry.extend_from_slice(&[0, 1]);
        entry
    }

    /// Returns true if index entries hold only a part of the value.
    fn is_truncated(&self) -> bool {
        self.family == TEXT_FAMILY && self.bytes.len() > MAX_INDEXED_TEXT_BYTES
    }
}

/// Splits a key of a property index into the value's part and the node path; `None` if it is not such a key.
#[must_use]
pub fn split_entry(key: &[u8]) -> Option<(&[u8], &str)> {
    let length = match key.first()? {
        &NO_VALUE_FAMILY | &MULTI_VALUE_MARKER => 1,
        &BOOLEAN_FAMILY => 2,
        &NUMBER_FAMILY => 17,
        &DATE_FAMILY => 9,
        &TEXT_FAMILY => key.windows(2).position(|pair| pair == [0, 1])? + 2,
        _ => return None,
    };
    let (value, path) = key.split_at_checked(length)?;
    Some((value, std::str::from_utf8(path).ok()?))
}

/// A fixed value to compare stored values with, converted to each family that it can be converted to.
#[derive(Debug, Clone)]
pub struct Comparand {
    keys: Vec<ValueKey<'static>>,
}

impl Comparand {
    /// Converts a value.
    #[must_use]
    pub fn new(value: &Value) -> Self {
        let text = value.to_text();
        let keys = [boolean_key(value), number_key(value, &text), date_key(value, &text)]
            .into_iter()
            .flatten();
        let is_text = !matches!(value, Value::Binary(_));
        let as_text = is_text.then(|| ValueKey::owned_text(text.into_owned()));
        Self { keys: keys.chain(as_text).collect() }
    }

    /// Returns the value in the family of another value; `None` if the two are not comparable.
    #[inline]
    #[must_use]
    pub fn for_family(&self, other: &ValueKey<'_>) -> Option<&ValueKey<'static>> {
        self.keys.iter().find(|key| key.family == other.family)
    }

    /// Returns the value in each family, in family order.
    #[must_use]
    pub fn keys(&self) -> &[ValueKey<'static>] {
        &self.keys
    }
}

fn boolean_key(value: &Value) -> Option<ValueKey<'static>> {
    match value {
        Value::Boolean(truth) => Some(ValueKey::boolean(*truth)),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(ValueKey::boolean(true)),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(ValueKey::boolean(false)),
        _ => None,
    }
}

fn number_key(value: &Value, text: &str) -> Option<ValueKey<'static>> {
    match value {
        Value::Long(number) => Some(ValueKey::long(*number)),
        Value::Double(number) => Some(ValueKey::number(*number, None)),
        Value::Date(date) => Some(ValueKey::long(date.millis)),
        Value::String(_) | Value::Decimal(_) => match text.trim().parse::<i64>() {
            Ok(number) => Some(ValueKey::long(number)),
            Err(_) => Some(ValueKey::number(text.trim().parse().ok()?, None)),
        },
        _ => None,
    }
}

fn date_key(value: &Value, text: &str) -> Option<ValueKey<'static>> {
    match value {
        Value::Date(date) => Some(ValueKey::date(*date)),
        Value::Long(millis) => Some(ValueKey::date(JcrDate { millis: *millis, offset_minutes: 0 })),
        Value::String(_) => Some(ValueKey::date(JcrDate::parse(text.trim()).ok()?)),
        _ => None,
    }
}

/// A half-open range of index keys: the first is included, the second excluded.
pub type KeySpan = (Vec<u8>, Vec<u8>);

/// Ranges of entries in the map of a property index.
impl ValueKey<'_> {
    /// Returns the range of entries of values that equal this one, or may equal it if they were truncated.
    #[must_use]
    pub fn equal_span(&self) -> KeySpan {
        let entry = self.entry_prefix();
        let end = prefix_successor(&entry);
        (entry, end)
    }

    /// Returns the range of entries of values in the same family that are above this one, or below it.
    #[must_use]
    pub fn range_span(&self, is_above: bool, is_inclusive: bool) -> KeySpan {
        let entry = self.entry_prefix();
        let takes_equal = is_inclusive || self.is_truncated();
        if is_above {
            let start = if takes_equal { entry } else { prefix_successor(&entry) };
            (start, vec![self.family + 1])
        } else {
            let end = if takes_equal { prefix_successor(&entry) } else { entry };
            (vec![self.family], end)
        }
    }

    /// Returns the ranges of entries of texts with this prefix, and of all values that are not texts.
    #[must_use]
    pub fn prefix_spans(prefix: &str) -> Vec<KeySpan> {
        let key = ValueKey::text(prefix).entry_prefix();
        let start = key.get(..key.len() - 2).unwrap_or(&key).to_vec();
        let end = if prefix.is_empty() { vec![END_FAMILY] } else { prefix_successor(&start) };
        vec![(vec![BOOLEAN_FAMILY], vec![TEXT_FAMILY]), (start, end)]
    }

    /// Returns the range of all entries; those without a value come first.
    #[must_use]
    pub fn full_span() -> KeySpan {
        (vec![NO_VALUE_FAMILY], vec![END_FAMILY])
    }

    /// Returns the range of entries that have a value.
    #[must_use]
    pub fn valued_span() -> KeySpan {
        (vec![BOOLEAN_FAMILY], vec![END_FAMILY])
    }

    /// Returns the range of entries of properties with several values. These entries are in addition to those of the
    /// values.
    #[must_use]
    pub fn multi_value_span() -> KeySpan {
        (vec![MULTI_VALUE_MARKER], vec![MULTI_VALUE_MARKER + 1])
    }

    /// Returns the key prefix of entries of properties without a comparable value: a blob, or an empty list.
    #[must_use]
    pub fn no_value_prefix() -> Vec<u8> {
        vec![NO_VALUE_FAMILY]
    }
}

/// Returns the first key after all keys that begin with `prefix`.
#[must_use]
pub fn prefix_successor(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(value: &Value) -> ValueKey<'static> {
        let comparand = Comparand::new(value);
        let family = match value {
            Value::Boolean(_) => BOOLEAN_FAMILY,
            Value::Long(_) | Value::Double(_) => NUMBER_FAMILY,
            Value::Date(_) => DATE_FAMILY,
            _ => TEXT_FAMILY,
        };
        comparand.keys.into_iter().find(|key| key.family == family).unwrap()
    }

    proptest! {
        #[test]
        fn numbers_sort_by_size(left: i64, right: i64, small in -9_i64..9, half in -9.0..9.0) {
            prop_assert_eq!(
                key(&Value::Long(left)).entry_prefix().cmp(&key(&Value::Long(right)).entry_prefix()),
                left.cmp(&right)
            );
            let (long, double) = (key(&Value::Long(small)).entry_prefix(), key(&Value::Double(half)).entry_prefix());
            prop_assert_eq!(long < double, (small as f64) < half);
        }

        #[test]
        fn texts_sort_by_bytes_and_split(left in "[a\u{0}\u{1}\u{ff}]{0,4}", right in "[a\u{0}\u{1}\u{ff}]{0,4}") {
            let (a, b) = (ValueKey::text(&left).entry_prefix(), ValueKey::text(&right).entry_prefix());
            prop_assert_eq!(a.cmp(&b), left.cmp(&right));
            let whole = [&a[..], b"/path"].concat();
            prop_assert_eq!(split_entry(&whole), Some((&a[..], "/path")));
        }
    }
}
