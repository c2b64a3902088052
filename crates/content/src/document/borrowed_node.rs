//! Nodes, properties and values read in place: nothing is copied out of the document that holds them.
//!
//! In: a [`DocumentBody`], which was validated completely when it was opened. Out: names and values that borrow from
//! it.

use std::fmt;

use tympan_store::BlobId;

use crate::access::AccessMask;
use crate::document::body::{BodyNode, DocumentBody, LIST_FLAG};
use crate::document::codec::ByteCursor;
use crate::{JcrDate, Property, Value, ValueType};

/// A node of a document, read in place. Children with records of their own are not among its children.
#[derive(Clone, Copy)]
pub struct BorrowedNode<'a> {
    body: &'a DocumentBody,
    body_node: BodyNode,
    /// The hidden parts of the body.
    mask: Option<&'a AccessMask>,
}

/// A property, read in place.
#[derive(Clone, Copy)]
pub struct BorrowedProperty<'a> {
    body: &'a DocumentBody,
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

impl<'a> BorrowedNode<'a> {
    pub(crate) fn new(body: &'a DocumentBody, at: BodyNode, mask: Option<&'a AccessMask>) -> Self {
        Self { body, body_node: at, mask }
    }

    /// Returns the node's position in its document.
    #[inline]
    #[must_use]
    pub fn body_node(self) -> BodyNode {
        self.body_node
    }

    /// Returns the name; it is empty for a document's own node, whose name is in its path.
    #[inline]
    #[must_use]
    pub fn name(self) -> &'a str {
        self.body.name(self.body_node)
    }

    /// Returns a property.
    #[inline]
    #[must_use]
    pub fn property(self, name: &str) -> Option<BorrowedProperty<'a>> {
        let is_shown = self.mask.is_none_or(|mask| mask.is_property_visible(self.body_node, name));
        self.body.property(self.body_node, name).filter(|_| is_shown)
    }

    /// Returns a single text-like property.
    #[inline]
    #[must_use]
    pub fn text(self, name: &str) -> Option<&'a str> {
        let is_shown = self.mask.is_none_or(|mask| mask.is_property_visible(self.body_node, name));
        self.body.text(self.body_node, name).filter(|_| is_shown)
    }

    /// Returns all properties, sorted by name.
    pub fn properties(self) -> impl Iterator<Item = (&'a str, BorrowedProperty<'a>)> {
        let Self { body, body_node: at, mask } = self;
        let is_shown = move |name: &str| mask.is_none_or(|mask| mask.is_property_visible(at, name));
        body.properties(at).filter(move |(name, _)| is_shown(name))
    }

    /// Returns the children in order.
    pub fn children(self) -> impl Iterator<Item = Self> {
        let Self { body, body_node: at, mask } = self;
        let is_shown = move |at: &BodyNode| mask.is_none_or(|mask| mask.is_visible(*at));
        body.children(at).filter(is_shown).map(move |at| Self { body, body_node: at, mask })
    }

    /// Finds a child by name.
    #[must_use]
    pub fn child(self, name: &str) -> Option<Self> {
        let at = self.body.child(self.body_node, name)?;
        let is_shown = self.mask.is_none_or(|mask| mask.is_visible(at));
        is_shown.then_some(Self { body_node: at, ..self })
    }
}

impl<'a> BorrowedProperty<'a> {
    pub(crate) fn new(body: &'a DocumentBody, tag: u8, bytes: &'a [u8]) -> Self {
        Self { body, tag, bytes }
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
                BorrowedValue::Text(value_type, self.body.interned_name(index)?)
            }
            ValueType::Binary => {
                BorrowedValue::Binary(*self.body.blobs().get(cursor.read_length()?)?)
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

impl fmt::Debug for BorrowedNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BorrowedNode({})", self.name())
    }
}

impl fmt::Debug for BorrowedProperty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}
