//! Constraints as ranges of an index.

use std::collections::BTreeSet;

use super::algebra::{Constraint, Operand, Operator};
use super::filter::{bound, like_pattern, like_prefix};
use crate::property_index::Reading;
use crate::value_key::{Comparand, Span, equal_span, prefix_spans, range_span, whole_span};
use crate::{Result, Value};

/// A constraint on the values of one property or function, as far as an index can serve it.
pub(crate) struct Condition<'a> {
    /// The property; empty where the function takes none.
    pub(crate) property: &'a str,
    pub(crate) reading: Reading,
    /// Which values of the function are wanted.
    wish: Wish,
}

/// The values that are wanted.
pub(crate) enum Wish {
    Equal(Vec<Value>),
    Range(Value, Operator),
    Prefix(String),
    Any,
}

impl<'a> Condition<'a> {
    pub(crate) fn of(constraint: &'a Constraint) -> Result<Option<Self>> {
        let (operand, wish) = match constraint {
            Constraint::Compare { operand, operator, value } => {
                let value = bound(value)?;
                let wish = match operator {
                    Operator::Equal => Wish::Equal(vec![value.clone()]),
                    Operator::NotEqual => Wish::Any,
                    Operator::Like => Wish::Prefix(like_prefix(&like_pattern(&value.to_text()))),
                    other => Wish::Range(value.clone(), *other),
                };
                (operand, wish)
            }
            Constraint::In { operand, values } => {
                let values = values.iter().map(|value| bound(value).cloned());
                (operand, Wish::Equal(values.collect::<Result<_>>()?))
            }
            Constraint::Exists { property, .. } => {
                return Ok(Some(Self { property, reading: Reading::Value, wish: Wish::Any }));
            }
            _ => return Ok(None),
        };
        let read = read(operand);
        Ok(read.map(|(property, reading)| Self { property, reading, wish }))
    }

    /// Returns what an index has to have that reads values in this way; nothing if it is of no use.
    pub(crate) fn wish(&self, reading: Reading) -> Option<&Wish> {
        match reading {
            _ if reading == self.reading => Some(&self.wish),
            // Whatever a function makes of a value, there has to be one.
            Reading::Value if !self.property.is_empty() => Some(&Wish::Any),
            _ => None,
        }
    }
}

/// Returns the property and the function that an operand reads, if an index can.
pub(crate) fn read(operand: &Operand) -> Option<(&str, Reading)> {
    let (inner, reading) = match operand {
        Operand::Property { name, .. } => return Some((name, Reading::Value)),
        Operand::Name(_) => return Some(("", Reading::Name)),
        Operand::LocalName(_) => return Some(("", Reading::LocalName)),
        Operand::Lower(inner) => (inner, Reading::Lower),
        Operand::Upper(inner) => (inner, Reading::Upper),
        Operand::Length(inner) => (inner, Reading::Length),
        _ => return None,
    };
    match &**inner {
        Operand::Property { name, .. } => Some((name, reading)),
        _ => None,
    }
}

impl Wish {
    pub(crate) fn spans(&self) -> Vec<Span> {
        let keys = |value: &Value| Comparand::new(value);
        match self {
            Self::Equal(values) => {
                let spans: BTreeSet<Span> = values
                    .iter()
                    .flat_map(|value| keys(value).keys().iter().map(equal_span).collect::<Vec<_>>())
                    .collect();
                spans.into_iter().collect()
            }
            Self::Range(value, operator) => {
                let is_above = matches!(operator, Operator::Greater | Operator::GreaterOrEqual);
                let is_inclusive =
                    matches!(operator, Operator::GreaterOrEqual | Operator::LessOrEqual);
                let comparand = keys(value);
                comparand.keys().iter().map(|key| range_span(key, is_above, is_inclusive)).collect()
            }
            Self::Prefix(prefix) => prefix_spans(prefix),
            Self::Any => vec![whole_span()],
        }
    }
}
