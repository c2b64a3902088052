//! Filters of fragments: expressions about the values of fields, as AEM's GraphQL has them.
//!
//! In: the argument `filter` as JSON. Out: whether a variation of a fragment matches.
//!
//! Invariants
//! * A field without a value equals only `null`; negated operators match it.
//! * Filters of referenced fragments follow a reference only to fragments that the index shows to the viewer.

use std::borrow::Cow;
use std::cell::RefCell;

use serde_json::{Map, Value as Json};
use tympan_content::{JcrDate, Property, Value, is_path_within};

use crate::fragment_index::FragmentIndex;
use crate::fragment_record::{FragmentRecord, VariationRecord};

/// Maximum depth of filters over references.
const MAX_FILTER_DEPTH: usize = 8;

/// A row that a filter decides about.
#[derive(Clone, Copy)]
pub(crate) struct FilterRow<'a> {
    pub fragment: &'a FragmentRecord,
    pub variation: &'a VariationRecord,
    /// The requested variation, which referenced fragments have if they can.
    pub requested_variation: Option<&'a str>,
    /// Takes the first failure to read a value.
    pub failure: &'a RefCell<Option<tympan_content::Error>>,
}

impl<'a> FilterRow<'a> {
    /// Returns the values of a field; none if they cannot be read, after the failure was noted.
    pub(crate) fn value(&self, index: &FragmentIndex, name: &str) -> Option<Cow<'a, Property>> {
        index.value(self.fragment, self.variation, name).unwrap_or_else(|error| {
            self.failure.borrow_mut().get_or_insert(error);
            None
        })
    }
}

/// How expressions are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogicalOperator {
    And,
    Or,
}

impl LogicalOperator {
    fn read(filter: &Map<String, Json>) -> Self {
        match filter.get("_logOp").and_then(Json::as_str) {
            Some("OR") => Self::Or,
            _ => Self::And,
        }
    }

    fn combine(self, mut results: impl Iterator<Item = bool>) -> bool {
        match self {
            Self::And => results.all(|result| result),
            Self::Or => results.any(|result| result),
        }
    }
}

/// Returns true if a row matches a filter of its model.
pub(crate) fn matches_filter(
    index: &FragmentIndex,
    row: FilterRow<'_>,
    filter: &Json,
    depth: usize,
) -> bool {
    let Some(filter) = filter.as_object() else { return true };
    if depth > MAX_FILTER_DEPTH {
        return false;
    }
    let terms = filter.iter().filter(|(name, term)| !is_option(name) && !term.is_null());
    // Without a term, an `OR` would match nothing.
    let mut terms = terms.peekable();
    terms.peek().is_none()
        || LogicalOperator::read(filter)
            .combine(terms.map(|(name, term)| matches_term(index, row, name, term, depth)))
}

/// Returns true for the names in filters that are no fields.
fn is_option(name: &str) -> bool {
    matches!(name, "_logOp" | "_apply" | "_instances")
}

fn matches_term(
    index: &FragmentIndex,
    row: FilterRow<'_>,
    name: &str,
    term: &Json,
    depth: usize,
) -> bool {
    let Some(fields) = term.as_object() else { return true };
    match name {
        "_path" => return matches_expressions(fields, &[text_value(row.fragment.path.as_str())]),
        "_id" => return matches_expressions(fields, &[text_value(&row.fragment.identifier)]),
        "_variation" => return matches_expressions(fields, &[text_value(&row.variation.name)]),
        "_locale" => {
            let locale = path_locale(row.fragment.path.as_str()).unwrap_or_default();
            return matches_expressions(fields, &[text_value(locale)]);
        }
        "_tags" => {
            let tags: Vec<Value> = row.variation.tags.iter().map(|tag| text_value(tag)).collect();
            return matches_list_expressions(fields, &tags);
        }
        _ => {}
    }
    let property = row.value(index, name);
    let values = property.as_deref().map_or(&[][..], Property::values);
    if fields.contains_key("_expressions") {
        let is_of_list = |expression: &&Map<String, Json>| {
            expression.contains_key("values") || expression.contains_key("_apply")
        };
        let is_list = property.as_deref().is_some_and(Property::is_list)
            || expressions(fields).iter().any(is_of_list);
        return if is_list {
            matches_list_expressions(fields, values)
        } else {
            matches_expressions(fields, values)
        };
    }
    // A filter of the referenced fragments.
    let matches_reference = |value: &Value, filter: &Json| {
        let Some(fragment) = index.fragment_at(&value.to_text()) else { return false };
        let Some(variation) = fragment.variation_or_master(row.requested_variation) else {
            return false;
        };
        let row = FilterRow { fragment, variation, ..row };
        matches_filter(index, row, filter, depth + 1)
    };
    match fields.get("_match") {
        Some(filter) => ArrayMode::read(fields)
            .applies(values.iter().map(|value| matches_reference(value, filter))),
        None => values.first().is_some_and(|value| matches_reference(value, term)),
    }
}

fn text_value(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn expressions(filter: &Map<String, Json>) -> Vec<&Map<String, Json>> {
    match filter.get("_expressions") {
        Some(Json::Array(list)) => list.iter().filter_map(Json::as_object).collect(),
        Some(Json::Object(single)) => vec![single],
        _ => Vec::new(),
    }
}

/// Applies the expressions of a field with one value.
fn matches_expressions(filter: &Map<String, Json>, values: &[Value]) -> bool {
    let expressions = expressions(filter);
    expressions.is_empty()
        || LogicalOperator::read(filter)
            .combine(expressions.iter().map(|expression| matches_value(expression, values.first())))
}

/// Applies the expressions of a field with a list of values.
fn matches_list_expressions(filter: &Map<String, Json>, values: &[Value]) -> bool {
    let expressions = expressions(filter);
    let matches = |expression: &&Map<String, Json>| match expression.get("values") {
        // The list as a whole, in its order.
        Some(Json::Array(wanted)) => {
            let is_equal = wanted.len() == values.len()
                && wanted.iter().zip(values).all(|(wanted, value)| {
                    let mut single = (*expression).clone();
                    single.insert("value".to_owned(), wanted.clone());
                    single.remove("_operator");
                    matches_value(&single, Some(value))
                });
            let operator = expression.get("_operator").and_then(Json::as_str);
            is_equal != operator.is_some_and(is_negated)
        }
        _ => {
            let mode = if expression.contains_key("_apply") { *expression } else { filter };
            let operator = expression.get("_operator").and_then(Json::as_str);
            // `CONTAINS` of a list of texts without a mode asks for one of them.
            let mode = match (mode.contains_key("_apply"), operator) {
                (false, Some("CONTAINS")) => ArrayMode::AtLeastOnce,
                _ => ArrayMode::read(mode),
            };
            mode.applies(values.iter().map(|value| matches_value(expression, Some(value))))
        }
    };
    expressions.is_empty() || LogicalOperator::read(filter).combine(expressions.iter().map(matches))
}

/// How many values of a list must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArrayMode {
    All,
    AllOrEmpty,
    AtLeastOnce,
    Instances(usize),
}

impl ArrayMode {
    fn read(filter: &Map<String, Json>) -> Self {
        match filter.get("_apply").and_then(Json::as_str) {
            Some("ALL_OR_EMPTY") => Self::AllOrEmpty,
            Some("AT_LEAST_ONCE") => Self::AtLeastOnce,
            Some("INSTANCES") => {
                let count = filter.get("_instances").and_then(Json::as_u64);
                Self::Instances(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1))
            }
            _ => Self::All,
        }
    }

    fn applies(self, mut results: impl ExactSizeIterator<Item = bool>) -> bool {
        match self {
            Self::All => results.len() > 0 && results.all(|result| result),
            Self::AllOrEmpty => results.all(|result| result),
            Self::AtLeastOnce => results.any(|result| result),
            Self::Instances(count) => results.filter(|result| *result).count() == count,
        }
    }
}

fn is_negated(operator: &str) -> bool {
    matches!(operator, "EQUALS_NOT" | "CONTAINS_NOT" | "UNEQUAL" | "NOT_AT")
}

/// Returns true if a value, or the lack of one, matches an expression.
fn matches_value(expression: &Map<String, Json>, value: Option<&Value>) -> bool {
    let operator = expression.get("_operator").and_then(Json::as_str).unwrap_or("EQUALS");
    let wanted = expression.get("value").unwrap_or(&Json::Null);
    match operator {
        "EQUALS_NOT" | "UNEQUAL" | "NOT_AT" => !is_equal(expression, wanted, value),
        "CONTAINS_NOT" => !contains(expression, wanted, value),
        "CONTAINS" => contains(expression, wanted, value),
        "STARTS_WITH" => {
            let (wanted, text) = texts(expression, wanted, value);
            text.is_some_and(|text| text.starts_with(&wanted))
        }
        "GREATER" => is_ordered(wanted, value, |order| order.is_gt()),
        "GREATER_EQUAL" => is_ordered(wanted, value, |order| order.is_ge()),
        "LOWER" => is_ordered(wanted, value, |order| order.is_lt()),
        "LOWER_EQUAL" => is_ordered(wanted, value, |order| order.is_le()),
        "BEFORE" => is_dated(wanted, value, |order| order.is_lt()),
        "AT_OR_BEFORE" => is_dated(wanted, value, |order| order.is_le()),
        "AFTER" => is_dated(wanted, value, |order| order.is_gt()),
        "AT_OR_AFTER" => is_dated(wanted, value, |order| order.is_ge()),
        "AT" => {
            is_dated(wanted, value, |order| order.is_eq()) || is_equal(expression, wanted, value)
        }
        _ => is_equal(expression, wanted, value),
    }
}

/// Returns both sides as texts, in lower case if case does not count.
fn texts(
    expression: &Map<String, Json>,
    wanted: &Json,
    value: Option<&Value>,
) -> (String, Option<String>) {
    let is_case_ignored = expression.get("_ignoreCase").and_then(Json::as_bool) == Some(true);
    let fold = |text: &str| if is_case_ignored { text.to_lowercase() } else { text.to_owned() };
    let wanted = wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned);
    (fold(&wanted), value.map(|value| fold(&value.to_text())))
}

fn contains(expression: &Map<String, Json>, wanted: &Json, value: Option<&Value>) -> bool {
    let (wanted, text) = texts(expression, wanted, value);
    text.is_some_and(|text| text.contains(&wanted))
}

fn is_equal(expression: &Map<String, Json>, wanted: &Json, value: Option<&Value>) -> bool {
    let Some(value) = value else { return wanted.is_null() };
    match wanted {
        Json::Null => false,
        Json::Number(number) => {
            let margin = expression.get("_sensitiveness").and_then(Json::as_f64).unwrap_or(0.0);
            let (wanted, value) = (number.as_f64(), value.to_text().parse::<f64>().ok());
            wanted.zip(value).is_some_and(|(wanted, value)| (wanted - value).abs() <= margin)
        }
        Json::Bool(wanted) => *value.to_text() == *wanted.to_string(),
        _ => {
            if let Value::Date(date) = value {
                return wanted.as_str().and_then(parse_date).is_some_and(|wanted| wanted == *date);
            }
            // The usual case needs no copies.
            if !expression.contains_key("_ignoreCase") {
                return wanted.as_str().is_some_and(|wanted| *value.to_text() == *wanted);
            }
            let (wanted, text) = texts(expression, wanted, Some(value));
            text == Some(wanted)
        }
    }
}

fn is_ordered(
    wanted: &Json,
    value: Option<&Value>,
    is_met: fn(std::cmp::Ordering) -> bool,
) -> bool {
    let value = value.and_then(|value| value.to_text().parse::<f64>().ok());
    let order = value.zip(wanted.as_f64()).and_then(|(value, wanted)| value.partial_cmp(&wanted));
    order.is_some_and(is_met)
}

fn is_dated(wanted: &Json, value: Option<&Value>, is_met: fn(std::cmp::Ordering) -> bool) -> bool {
    let (Some(value), Some(wanted)) = (value, wanted.as_str()) else { return false };
    let dates = match value {
        Value::Date(date) => Some(*date),
        _ => parse_date(&value.to_text()),
    };
    match dates.zip(parse_date(wanted)) {
        Some((date, wanted)) => is_met(date.millis.cmp(&wanted.millis)),
        // Times of day have one form, whose order is that of texts.
        None => is_met((*value.to_text()).cmp(wanted)),
    }
}

fn parse_date(text: &str) -> Option<JcrDate> {
    JcrDate::parse_lenient(text).ok()
}

/// Returns the language of a path: the first name below `/content/dam` that has the form of one, such as `en` or
/// `de_CH`.
pub(crate) fn path_locale(path: &str) -> Option<&str> {
    if !is_path_within(path, "/content/dam") {
        return None;
    }
    path.split('/').skip(3).find(|name| {
        let (language, country) = name.split_once(['_', '-']).unwrap_or((*name, "xx"));
        let is_code = |code: &str| code.len() == 2 && code.bytes().all(|b| b.is_ascii_alphabetic());
        is_code(language) && is_code(country)
    })
}
