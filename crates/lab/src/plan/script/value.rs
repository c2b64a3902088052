//! What names in a script stand for.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

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
    /// A moment, in milliseconds of the epoch.
    Moment(i64),
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
            Self::List(values) => {
                let all: Vec<String> =
                    values.borrow().iter().take(10_000).map(Self::shallow).collect();
                write!(f, "[{}]", all.join(", "))
            }
            Self::Builder(text) => f.write_str(&text.borrow()),
            Self::Random => f.write_str("java.util.Random"),
            Self::Moment(ms) => write!(f, "{ms}"),
        }
    }
}

impl Value {
    pub(super) fn text(text: impl Into<Rc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(values: Vec<Self>) -> Self {
        Self::List(Rc::new(RefCell::new(values)))
    }

    /// A list in a list is not shown, since it may hold itself.
    fn shallow(&self) -> String {
        if matches!(self, Self::List(_)) { "[...]".to_owned() } else { self.to_string() }
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
            Self::Random | Self::Moment(_) => true,
        }
    }

    pub(super) fn double(&self) -> Option<f64> {
        match self {
            Self::Int(value) | Self::Moment(value) => Some(*value as f64),
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
            _ => match (self.double(), other.double()) {
                (Some(one), Some(two)) => one == two,
                _ => false,
            },
        }
    }
}
