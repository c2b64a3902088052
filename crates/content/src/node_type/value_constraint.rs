//! Value constraints: patterns, ranges and names that restrict the values of a property.

use std::cmp::Ordering;

use regex::Regex;

use crate::{JcrDate, Value, ValueType};

/// One parsed constraint.
#[derive(Debug, Clone)]
pub(super) enum ValueConstraint {
    /// The whole text matches a pattern.
    Pattern(Regex),
    /// The value lies in a range; for binaries, the size.
    Range { lower_bound: Option<ConstraintBound>, upper_bound: Option<ConstraintBound> },
    /// The text equals this one.
    Text(String),
    /// The path is this one, or lies below it.
    Path { path: String, includes_descendants: bool },
    /// Every value is allowed: the type of a reference's target is not checked, as in Oak.
    Any,
}

#[derive(Debug, Clone)]
pub(super) struct ConstraintBound {
    value: Value,
    is_inclusive: bool,
}

impl ValueConstraint {
    /// Parses a constraint for values of a type.
    ///
    /// # Errors
    /// A description of the fault.
    pub(super) fn parse(value_type: Option<ValueType>, text: &str) -> Result<Self, String> {
        Ok(match value_type {
            None | Some(ValueType::String | ValueType::Uri) => {
                let pattern = Regex::new(&format!("^(?:{text})$"));
                Self::Pattern(
                    pattern.map_err(|error| format!("`{text}` is not a valid pattern: {error}"))?,
                )
            }
            Some(ValueType::Boolean | ValueType::Name) => Self::Text(text.to_owned()),
            Some(ValueType::Path) => {
                let below = text.strip_suffix("/*");
                let or_below = below.is_some() || text == "*";
                let path = below.unwrap_or(if or_below { "" } else { text });
                Self::Path { path: path.to_owned(), includes_descendants: or_below }
            }
            Some(ValueType::Reference | ValueType::WeakReference) => Self::Any,
            Some(number) => parse_range(number, text)
                .ok_or_else(|| format!("`{text}` is not a range such as `[1,5)`"))?,
        })
    }

    pub(super) fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.is_match(&value.to_text()),
            Self::Text(text) => value.to_text() == *text,
            Self::Path { path, includes_descendants } => {
                let value = value.to_text();
                let rest = value.strip_prefix(path.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty()
                        || (*includes_descendants && (path.is_empty() || rest.starts_with('/')))
                })
            }
            Self::Range { lower_bound, upper_bound } => {
                let is_within =
                    |bound: &Option<ConstraintBound>, outside_order: Ordering| match bound {
                        None => true,
                        Some(bound) => match compare_values(value, &bound.value) {
                            Some(Ordering::Equal) => bound.is_inclusive,
                            order => order == Some(outside_order),
                        },
                    };
                is_within(lower_bound, Ordering::Greater) && is_within(upper_bound, Ordering::Less)
            }
            Self::Any => true,
        }
    }
}

/// Parses `[1,5)`, `(,5]` or a single value.
fn parse_range(value_type: ValueType, text: &str) -> Option<ValueConstraint> {
    let text = text.trim();
    let bound = |text: &str, is_included: bool| {
        let text = text.trim();
        if text.is_empty() {
            return Some(None);
        }
        let value = match value_type {
            ValueType::Binary => Value::Long(text.parse().ok()?),
            ValueType::Date => Value::Date(JcrDate::parse_lenient(text).ok()?),
            scalar_type => Value::parse(scalar_type, text).ok()?,
        };
        Some(Some(ConstraintBound { value, is_inclusive: is_included }))
    };
    let Some(inner) = text.strip_prefix(['[', '(']) else {
        let bound = bound(text, true)??;
        return Some(ValueConstraint::Range {
            lower_bound: Some(bound.clone()),
            upper_bound: Some(bound),
        });
    };
    let (low, high) = inner.strip_suffix([']', ')'])?.split_once(',')?;
    Some(ValueConstraint::Range {
        lower_bound: bound(low, text.starts_with('['))?,
        upper_bound: bound(high, text.ends_with(']'))?,
    })
}

fn compare_values(value: &Value, bound: &Value) -> Option<Ordering> {
    let number = |value: &Value| value.to_text().parse::<f64>().ok();
    match (value, bound) {
        (Value::Long(left), Value::Long(right)) => Some(left.cmp(right)),
        (Value::Date(left), Value::Date(right)) => Some(left.millis.cmp(&right.millis)),
        (Value::Binary(blob), Value::Long(size)) => {
            Some(i64::try_from(blob.length()).unwrap_or(i64::MAX).cmp(size))
        }
        (left, right) => number(left)?.partial_cmp(&number(right)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_values_with_what_is_allowed() {
        let check = |value_type, constraint: &str, value: &str, is_met: bool| {
            let parsed = ValueConstraint::parse(Some(value_type), constraint).unwrap();
            let value = Value::parse(value_type, value).unwrap();
            assert_eq!(parsed.matches(&value), is_met, "{constraint} {value:?}");
        };
        check(ValueType::String, "a|b+", "bb", true);
        check(ValueType::String, "a|b+", "ab", false);
        check(ValueType::Long, "[1,5)", "1", true);
        check(ValueType::Long, "[1,5)", "5", false);
        check(ValueType::Long, "(,5]", "-9", true);
        check(ValueType::Long, "(1,)", "1", false);
        check(ValueType::Long, "7", "7", true);
        check(ValueType::Long, "7", "8", false);
        check(ValueType::Double, "[0.5,1]", "0.75", true);
        check(ValueType::Decimal, "[0.5,1]", "1.01", false);
        check(ValueType::Date, "[2020-01-01T00:00:00Z,)", "2021-01-01T00:00:00Z", true);
        check(ValueType::Date, "[2020-01-01T00:00:00Z,)", "2019-01-01T00:00:00Z", false);
        check(ValueType::Boolean, "true", "true", true);
        check(ValueType::Boolean, "true", "false", false);
        check(ValueType::Name, "nt:file", "nt:file", true);
        check(ValueType::Name, "nt:file", "nt:folder", false);
        check(ValueType::Path, "/a/*", "/a/b", true);
        check(ValueType::Path, "/a/*", "/ab", false);
        check(ValueType::Path, "/a", "/a", true);
        check(ValueType::Path, "/a", "/a/b", false);
        check(ValueType::Path, "*", "/b", true);
        check(ValueType::Reference, "nt:file", "any", true);
        let size = ValueConstraint::parse(Some(ValueType::Binary), "[,10]").unwrap();
        let blob = |length| Value::Binary(crate::BlobId::new([1; 32], length));
        assert!(size.matches(&blob(10)) && !size.matches(&blob(11)));
        for (value_type, text) in
            [(ValueType::String, "("), (ValueType::Long, "[1;2]"), (ValueType::Long, "x")]
        {
            assert!(ValueConstraint::parse(Some(value_type), text).is_err(), "{text}");
        }
    }
}
