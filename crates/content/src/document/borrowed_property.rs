//! Properties and values read in place: nothing is copied out of the document that holds them.
//!
//! In: the stored bytes of a property, and the tables of its document, which were validated completely when it was
//! opened. Out: values that borrow from both.

use std::fmt;

use tympan_store::BlobId;

use crate::document::codec::ByteCursor;
use crate::{JcrDate, Property, Value, ValueType};

/// Set in a property's tag byte when it holds a list.
pub(crate) const LIST_FLAG: u8 = 0x80;

/// The names and blobs of a document that its nodes and values refer to by index.
#[derive(Debug)]
pub(crate) struct BodyTables {
    /// The concatenated interned names, copied so that UTF-8 is validated only once.
    names: String,
    /// The end offset of each interned name in `names`.
    name_ends: Vec<u32>,
    blobs: Vec<BlobId>,
}

/// A property, read in place.
#[derive(Clone, Copy)]
pub struct BorrowedProperty<'a> {
    tables: &'a BodyTables,
    tag: u8,
    bytes: &'a [u8],
}

/// A value whose text is borrowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BorrowedValue<'a> {
    /// A value of one of the types that are texts.
    Text(ValueType, &'a str),
    /// A blob.
    Binary(BlobId),
    /// An integer.
    Long(i64),
    /// A floating point number.
    Double(f64),
    /// A date.
    Date(JcrDate),
    /// A boolean.
    Boolean(bool),
}

impl BodyTables {
    /// Creates tables without names, with room for `capacity` names.
    pub(super) fn new(capacity: usize, blobs: Vec<BlobId>) -> Self {
        Self { names: String::new(), name_ends: Vec::with_capacity(capacity), blobs }
    }

    /// Adds the next name; `None` if the names are too long together.
    pub(super) fn push_name(&mut self, name: &str) -> Option<()> {
        self.names.push_str(name);
        self.name_ends.push(u32::try_from(self.names.len()).ok()?);
        Some(())
    }

    /// Returns the blobs.
    pub(super) fn blobs(&self) -> &[BlobId] {
        &self.blobs
    }

    /// Returns true if the name is in the table.
    pub(super) fn has_name(&self, name: &str) -> bool {
        (0..self.name_ends.len() as u32).any(|index| self.interned_name(index) == Some(name))
    }

    /// Returns the memory use in bytes.
    pub(super) fn memory_size(&self) -> usize {
        self.names.len() + self.name_ends.len() * 4 + self.blobs.len() * 40
    }

    /// Returns true if an interned name equals `name`; most differ in length.
    #[inline]
    pub(super) fn is_interned_name(&self, index: u32, name: &str) -> bool {
        let index = index as usize;
        let start = index.checked_sub(1).and_then(|before| self.name_ends.get(before));
        let start = start.map_or(0, |start| *start as usize);
        let end = self.name_ends.get(index).map(|end| *end as usize);
        end.is_some_and(|end| {
            end - start == name.len()
                && self.names.as_bytes().get(start..end) == Some(name.as_bytes())
        })
    }

    /// Returns an interned name.
    #[inline]
    pub(super) fn interned_name(&self, index: u32) -> Option<&str> {
        let index = index as usize;
        let end = *self.name_ends.get(index)? as usize;
        let start = index.checked_sub(1).and_then(|before| self.name_ends.get(before));
        self.names.get(start.map_or(0, |start| *start as usize)..end)
    }
}

impl<'a> BorrowedProperty<'a> {
    pub(crate) fn new(tables: &'a BodyTables, tag: u8, bytes: &'a [u8]) -> Self {
        Self { tables, tag, bytes }
    }

    /// Returns the type of the value or values.
    #[must_use]
    pub fn value_type(self) -> ValueType {
        self.checked_type().unwrap_or(ValueType::String)
    }

    /// Returns true if the property is a list.
    #[inline]
    #[must_use]
    pub fn is_list(self) -> bool {
        self.tag & LIST_FLAG != 0
    }

    /// Returns the single value, or the first value of a list.
    #[inline]
    #[must_use]
    pub fn first(self) -> Option<BorrowedValue<'a>> {
        self.values().next()
    }

    /// Returns the values; a single property yields one.
    pub fn values(self) -> impl Iterator<Item = BorrowedValue<'a>> {
        let value_type = self.checked_type();
        let mut cursor = ByteCursor::new(self.bytes, 0);
        let count = if self.is_list() { cursor.read_length().unwrap_or(0) } else { 1 };
        (0..count).map_while(move |_| self.read_value(value_type?, &mut cursor))
    }

    /// Copies the property.
    #[must_use]
    pub fn to_property(self) -> Property {
        let mut values = self.values().map(BorrowedValue::to_value);
        if self.is_list() {
            return Property::List(self.value_type(), values.collect());
        }
        // A body opens only if all of its properties are valid.
        values.next().map_or_else(|| Property::text(""), Property::Single)
    }

    /// Returns true if two properties, possibly of different bodies, have equal types and values.
    #[must_use]
    pub fn has_equal_values(self, other: Self) -> bool {
        if self.tag != other.tag {
            return false;
        }
        match self.value_type() {
            // Names and blobs are stored as indexes that are valid only in their own body.
            ValueType::Name | ValueType::Binary => self.to_property() == other.to_property(),
            _ => self.bytes == other.bytes,
        }
    }

    /// Returns true if every byte is valid.
    pub(crate) fn is_well_formed(self) -> bool {
        let mut cursor = ByteCursor::new(self.bytes, 0);
        let count = if self.is_list() { cursor.read_length() } else { Some(1) };
        let (Some(value_type), Some(count)) = (self.checked_type(), count) else {
            return false;
        };
        (0..count).all(|_| self.read_value(value_type, &mut cursor).is_some()) && cursor.is_at_end()
    }

    fn checked_type(self) -> Option<ValueType> {
        ValueType::ALL.get(usize::from(self.tag & !LIST_FLAG).checked_sub(1)?).copied()
    }

    #[inline]
    fn read_value(
        self,
        value_type: ValueType,
        cursor: &mut ByteCursor<'a>,
    ) -> Option<BorrowedValue<'a>> {
        Some(match value_type {
            ValueType::String
            | ValueType::Path
            | ValueType::Reference
            | ValueType::WeakReference
            | ValueType::Uri
            | ValueType::Decimal => BorrowedValue::Text(value_type, cursor.read_prefixed_text()?),
            ValueType::Name => {
                let index = u32::try_from(cursor.read_varint()?).ok()?;
                BorrowedValue::Text(value_type, self.tables.interned_name(index)?)
            }
            ValueType::Binary => {
                BorrowedValue::Binary(*self.tables.blobs().get(cursor.read_length()?)?)
            }
            ValueType::Long => BorrowedValue::Long(cursor.read_signed_varint()?),
            ValueType::Double => {
                let bits = u64::from_le_bytes(*cursor.read_exact_bytes(8)?.first_chunk()?);
                BorrowedValue::Double(f64::from_bits(bits))
            }
            ValueType::Boolean => BorrowedValue::Boolean(cursor.read_byte()? != 0),
            ValueType::Date => BorrowedValue::Date(JcrDate {
                millis: cursor.read_signed_varint()?,
                offset_minutes: i16::try_from(cursor.read_signed_varint()?).ok()?,
            }),
        })
    }
}

impl<'a> BorrowedValue<'a> {
    /// Returns the text of a text-like value.
    #[inline]
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(_, text) => Some(text),
            _ => None,
        }
    }

    /// Copies the value.
    #[must_use]
    pub fn to_value(self) -> Value {
        match self {
            Self::Text(value_type, text) => {
                let text = text.to_owned();
                match value_type {
                    ValueType::Name => Value::Name(text),
                    ValueType::Path => Value::Path(text),
                    ValueType::Reference => Value::Reference(text),
                    ValueType::WeakReference => Value::WeakReference(text),
                    ValueType::Uri => Value::Uri(text),
                    ValueType::Decimal => Value::Decimal(text),
                    _ => Value::String(text),
                }
            }
            Self::Binary(blob) => Value::Binary(blob),
            Self::Long(number) => Value::Long(number),
            Self::Double(number) => Value::Double(number),
            Self::Date(date) => Value::Date(date),
            Self::Boolean(truth) => Value::Boolean(truth),
        }
    }
}

impl fmt::Debug for BorrowedProperty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}
