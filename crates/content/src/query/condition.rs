//! Constraints as ranges of an index.

use std::collections::BTreeSet;

use super::algebra::{Constraint, Operand, Operator};
use super::filter::{bound, like_pattern, like_prefix};
use crate::value_key::{Comparand, Span, equal_span, prefix_spans, range_span, whole_span};
use crate::{Result, Value};

/// A constraint on the values of one property, as far as an index can serve it.
pub(crate) struct Condition<'a> {
    pub(crate) property: &'a str,
    pub(crate) wish: Wish,
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
                return Ok(Some(Self { property, wish: Wish::Any }));
            }
            _ => return Ok(None),
        };
        // Whatever a function makes of a value, there has to be one.
        let (name, is_plain) = match operand {
            Operand::Property { name, .. } => (name, true),
            Operand::Lower(inner) | Operand::Upper(inner) | Operand::Length(inner) => {
                match &**inner {
                    Operand::Property { name, .. } => (name, false),
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { property: name, wish: if is_plain { wish } else { Wish::Any } }))
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
