//! What names in a script stand for.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::codec::DigestName;
use super::date_time::Time;

/// A value of Java or Groovy, as far as scripts of plans use them.
#[derive(Debug, Clone, Default)]
pub(in super::super) enum Value {
    #[default]
    Null,
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(Rc<str>),
    List(Rc<RefCell<Vec<Value>>>),
    /// A text that grows.
    Builder(Rc<RefCell<String>>),
    /// A source of random numbers.
    Random,
    /// A date or a time.
    Time(Time),
    /// What JSON calls an object, in its order.
    Map(Rc<RefCell<MapEntries>>),
    Bytes(Rc<[u8]>),
    /// A pattern of dates.
    Format(Rc<str>),
    /// An object that holds nothing but what it is for.
    Tool(Tool),
    /// A key for message authentication codes.
    Key(Rc<[u8]>),
    /// What makes such codes, and its key.
    Authenticator(DigestName, Rc<RefCell<Rc<[u8]>>>),
}

/// The names and values of an object, in its order.
pub(in super::super) type MapEntries = Vec<(Rc<str>, Value)>;

/// What an object of Java's that holds nothing is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Tool {
    JsonReader,
    /// Base64, in the alphabet for addresses if so.
    Encoder(bool),
    Decoder(bool),
    Digest(DigestName),
}

impl fmt::Display for Value {
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
                self.show(&mut text, 0);
                f.write_str(&text)
            }
            Self::Builder(text) => f.write_str(&text.borrow()),
            Self::Random => f.write_str("java.util.Random"),
            Self::Time(time) => write!(f, "{time}"),
            Self::Bytes(bytes) => {
                let signed: Vec<String> =
                    bytes.iter().map(|byte| byte.cast_signed().to_string()).collect();
                write!(f, "[{}]", signed.join(", "))
            }
            Self::Format(pattern) => f.write_str(pattern),
            Self::Tool(_) | Self::Key(_) | Self::Authenticator(..) => {
                f.write_str("java.lang.Object")
            }
        }
    }
}

/// Longest text of a list, and deepest nesting that is shown: a list may hold itself.
const LONGEST: usize = 1 << 20;
const DEEPEST: usize = 30;

impl Value {
    pub(super) fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(values: Vec<Self>) -> Self {
        Self::List(Rc::new(RefCell::new(values)))
    }

    pub(super) fn map(entries: impl IntoIterator<Item = (Rc<str>, Self)>) -> Self {
        Self::Map(Rc::new(RefCell::new(entries.into_iter().collect())))
    }

    /// Adds the value as lists and maps show it.
    fn show(&self, out: &mut String, depth: usize) {
        if out.len() > LONGEST || depth > DEEPEST {
            return out.push_str("...");
        }
        match self {
            Self::List(values) => {
                out.push('[');
                for (place, value) in values.borrow().iter().enumerate() {
                    out.push_str(if place == 0 { "" } else { ", " });
                    value.show(out, depth + 1);
                    if out.len() > LONGEST {
                        break;
                    }
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (place, (key, value)) in entries.borrow().iter().enumerate() {
                    out.push_str(if place == 0 { "" } else { ", " });
                    out.push_str(key);
                    out.push('=');
                    value.show(out, depth + 1);
                    if out.len() > LONGEST {
                        break;
                    }
                }
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
    }

    /// Returns the bytes of the value, or those of its text.
    pub(super) fn bytes(&self) -> Rc<[u8]> {
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
            Self::Builder(text) => !text.borrow().is_empty(),
            Self::Map(entries) => !entries.borrow().is_empty(),
            Self::Bytes(bytes) => !bytes.is_empty(),
            Self::Random
            | Self::Time(_)
            | Self::Format(_)
            | Self::Tool(_)
            | Self::Key(_)
            | Self::Authenticator(..) => true,
        }
    }

    pub(super) fn double(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Double(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::List(one), Self::List(two)) => {
                Rc::ptr_eq(one, two)
                    || one.borrow().len() == two.borrow().len() && {
                        let (one, two) = (one.borrow(), two.borrow());
                        // Lists in lists are equal only if they are the same.
                        one.iter().zip(two.iter()).all(|(one, two)| match (one, two) {
                            (Self::List(one), Self::List(two)) => Rc::ptr_eq(one, two),
                            _ => one.equals(two),
                        })
                    }
            }
            (Self::Text(one), Self::Text(two)) => one == two,
            (Self::Time(one), Self::Time(two)) => one == two,
            (Self::Bytes(one), Self::Bytes(two)) => one == two,
            (Self::Map(one), Self::Map(two)) => Rc::ptr_eq(one, two),
            _ => match (self.double(), other.double()) {
                (Some(one), Some(two)) => one == two,
                _ => false,
            },
        }
    }
}
