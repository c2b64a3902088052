//! The values of names in a script.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::codec::JavaDigest;
use super::date_time::ScriptDateTime;

/// A value of Java or Groovy, as far as scripts of plans use them.
#[derive(Debug, Clone, Default)]
pub(crate) enum ScriptValue {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Rc<str>),
    List(Rc<RefCell<Vec<ScriptValue>>>),
    /// A mutable string.
    StringBuilder(Rc<RefCell<String>>),
    /// A random number generator.
    RandomSource,
    /// A date or a time.
    DateTime(ScriptDateTime),
    /// A map, or a JSON object, in insertion order.
    Map(Rc<RefCell<ScriptMapEntries>>),
    Bytes(Rc<[u8]>),
    /// A date pattern.
    DateFormat(Rc<str>),
    /// A stateless utility object.
    Utility(JavaUtility),
    /// A key for MACs.
    Key(Rc<[u8]>),
    /// A MAC generator and its key.
    Authenticator(JavaDigest, Rc<RefCell<Rc<[u8]>>>),
}

/// The names and values of a map, in insertion order.
pub(crate) type ScriptMapEntries = Vec<(Rc<str>, ScriptValue)>;

/// The kind of a stateless Java object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JavaUtility {
    JsonReader,
    /// Base64; the URL-safe alphabet if true.
    Base64Encoder(bool),
    Base64Decoder(bool),
    Digest(JavaDigest),
}

impl fmt::Display for ScriptValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            // Java writes `1.0`.
            Self::Double(value) if value.fract() == 0.0 && value.abs() < 1e15 => {
                write!(f, "{value:.1}")
            }
            Self::Double(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
            Self::List(_) | Self::Map(_) => {
                let mut text = String::new();
                self.write_shown(&mut text, 0);
                f.write_str(&text)
            }
            Self::StringBuilder(text) => f.write_str(&text.borrow()),
            Self::RandomSource => f.write_str("java.util.Random"),
            Self::DateTime(time) => write!(f, "{time}"),
            Self::Bytes(bytes) => {
                let signed: Vec<String> =
                    bytes.iter().map(|byte| byte.cast_signed().to_string()).collect();
                write!(f, "[{}]", signed.join(", "))
            }
            Self::DateFormat(pattern) => f.write_str(pattern),
            Self::Utility(_) | Self::Key(_) | Self::Authenticator(..) => {
                f.write_str("java.lang.Object")
            }
        }
    }
}

/// Maximum length of a formatted list, and maximum nesting depth: a list may contain itself.
const MAX_SHOWN_LEN: usize = 1 << 20;
const MAX_SHOWN_DEPTH: usize = 30;

impl ScriptValue {
    pub(super) fn from_text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn from_list(values: Vec<Self>) -> Self {
        Self::List(Rc::new(RefCell::new(values)))
    }

    pub(super) fn from_map(entries: impl IntoIterator<Item = (Rc<str>, Self)>) -> Self {
        Self::Map(Rc::new(RefCell::new(entries.into_iter().collect())))
    }

    /// Appends the value as lists and maps display it.
    fn write_shown(&self, out: &mut String, depth: usize) {
        if out.len() > MAX_SHOWN_LEN || depth > MAX_SHOWN_DEPTH {
            return out.push_str("...");
        }
        match self {
            Self::List(values) => {
                out.push('[');
                for (index, value) in values.borrow().iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    value.write_shown(out, depth + 1);
                    if out.len() > MAX_SHOWN_LEN {
                        break;
                    }
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (index, (key, value)) in entries.borrow().iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    out.push_str(key);
                    out.push('=');
                    value.write_shown(out, depth + 1);
                    if out.len() > MAX_SHOWN_LEN {
                        break;
                    }
                }
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
    }

    /// Returns the bytes of the value, or those of its text.
    pub(super) fn to_bytes(&self) -> Rc<[u8]> {
        match self {
            Self::Bytes(bytes) | Self::Key(bytes) => Rc::clone(bytes),
            other => other.to_string().into_bytes().into(),
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Double(value) => *value != 0.0,
            Self::Text(value) => !value.is_empty(),
            Self::List(values) => !values.borrow().is_empty(),
            Self::StringBuilder(text) => !text.borrow().is_empty(),
            Self::Map(entries) => !entries.borrow().is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::RandomSource
            | Self::DateTime(_)
            | Self::DateFormat(_)
            | Self::Utility(_)
            | Self::Key(_)
            | Self::Authenticator(..) => true,
        }
    }

    pub(super) fn to_double(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::List(left), Self::List(right)) => {
                Rc::ptr_eq(left, right)
                    || left.borrow().len() == right.borrow().len() && {
                        let (left, right) = (left.borrow(), right.borrow());
                        // Nested lists are equal only if they are identical.
                        left.iter().zip(right.iter()).all(|(left_value, right_value)| {
                            match (left_value, right_value) {
                                (Self::List(left_list), Self::List(right_list)) => {
                                    Rc::ptr_eq(left_list, right_list)
                                }
                                _ => left_value.equals(right_value),
                            }
                        })
                    }
            }
            (Self::Text(left), Self::Text(right)) => left == right,
            (Self::DateTime(left), Self::DateTime(right)) => left == right,
            (Self::Bytes(left), Self::Bytes(right)) => left == right,
            (Self::Map(left), Self::Map(right)) => Rc::ptr_eq(left, right),
            _ => match (self.to_double(), other.to_double()) {
                (Some(left_number), Some(right_number)) => left_number == right_number,
                _ => false,
            },
        }
    }
}
