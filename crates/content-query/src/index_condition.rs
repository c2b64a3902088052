//! Constraints expressed as ranges of an index.

use std::collections::BTreeSet;

use tympan_content::{Comparand, IndexFunction, KeySpan, Value, ValueKey};

use crate::Result;
use crate::algebra::{ComparisonOperator, QueryConstraint, QueryOperand};
use crate::row_filter::{bound_value, like_pattern, like_prefix};

/// A constraint on the values of one property or function, as far as an index can serve it.
pub(crate) struct IndexCondition<'a> {
    /// The property; empty if the function takes none.
    pub(crate) property: &'a str,
    pub(crate) function: IndexFunction,
    /// The wanted values of the function.
    value_match: IndexValueMatch,
}

/// The set of wanted values.
pub(crate) enum IndexValueMatch {
    Equal(Vec<Value>),
    Range(Value, ComparisonOperator),
    Prefix(String),
    Any,
}

impl<'a> IndexCondition<'a> {
    pub(crate) fn from_constraint(constraint: &'a QueryConstraint) -> Result<Option<Self>> {
        let (operand, value_match) = match constraint {
            QueryConstraint::Compare { operand, operator, value } => {
                let value = bound_value(value)?;
                let value_match = match operator {
                    ComparisonOperator::Equal => IndexValueMatch::Equal(vec![value.clone()]),
                    ComparisonOperator::NotEqual => IndexValueMatch::Any,
                    ComparisonOperator::Like => {
                        IndexValueMatch::Prefix(like_prefix(&like_pattern(&value.to_text())))
                    }
                    comparison => IndexValueMatch::Range(value.clone(), *comparison),
                };
                (operand, value_match)
            }
            QueryConstraint::In { operand, values } => {
                let values = values.iter().map(|value| bound_value(value).cloned());
                (operand, IndexValueMatch::Equal(values.collect::<Result<_>>()?))
            }
            QueryConstraint::Exists { property, .. } => {
                return Ok(Some(Self {
                    property,
                    function: IndexFunction::Value,
                    value_match: IndexValueMatch::Any,
                }));
            }
            _ => return Ok(None),
        };
        let read = indexed_operand(operand);
        Ok(read.map(|(property, reading)| Self { property, function: reading, value_match }))
    }

    /// Returns the values that an index with the given function must contain; `None` if the index is of no use.
    pub(crate) fn value_match_for(&self, reading: IndexFunction) -> Option<&IndexValueMatch> {
        match reading {
            _ if reading == self.function => Some(&self.value_match),
            // A function has a result only if there is a value.
            IndexFunction::Value if !self.property.is_empty() => Some(&IndexValueMatch::Any),
            _ => None,
        }
    }
}

/// Returns the property and the function that an operand reads, if an index can serve it.
pub(crate) fn indexed_operand(operand: &QueryOperand) -> Option<(&str, IndexFunction)> {
    let (inner, reading) = match operand {
        QueryOperand::Property { name, .. } => return Some((name, IndexFunction::Value)),
        QueryOperand::Name(_) => return Some(("", IndexFunction::Name)),
        QueryOperand::LocalName(_) => return Some(("", IndexFunction::LocalName)),
        QueryOperand::Lower(inner) => (inner, IndexFunction::LowerCase),
        QueryOperand::Upper(inner) => (inner, IndexFunction::UpperCase),
        QueryOperand::Length(inner) => (inner, IndexFunction::Length),
        _ => return None,
    };
    match &**inner {
        QueryOperand::Property { name, .. } => Some((name, reading)),
        _ => None,
    }
}

impl IndexValueMatch {
    pub(crate) fn key_spans(&self) -> Vec<KeySpan> {
        let keys = |value: &Value| Comparand::new(value);
        match self {
            Self::Equal(values) => {
                let spans: BTreeSet<KeySpan> = values
                    .iter()
                    .flat_map(|value| {
                        keys(value).keys().iter().map(ValueKey::equal_span).collect::<Vec<_>>()
                    })
                    .collect();
                spans.into_iter().collect()
            }
            Self::Range(value, operator) => {
                let is_above = matches!(
                    operator,
                    ComparisonOperator::Greater | ComparisonOperator::GreaterOrEqual
                );
                let is_inclusive = matches!(
                    operator,
                    ComparisonOperator::GreaterOrEqual | ComparisonOperator::LessOrEqual
                );
                let comparand = keys(value);
                comparand.keys().iter().map(|key| key.range_span(is_above, is_inclusive)).collect()
            }
            Self::Prefix(prefix) => ValueKey::prefix_spans(prefix),
            Self::Any => vec![ValueKey::full_span()],
        }
    }
}
