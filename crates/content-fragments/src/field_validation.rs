//! Checks the values of a fragment against its model, as AEM's editor does before it saves.

use regex::Regex;
use tympan_content::{JcrDate, NodePath, Property, Value};

use crate::fragment_model::{FieldType, FragmentModel, ModelField};
use crate::fragment_record::VariationRecord;

/// A value that its model does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// The name of the field.
    pub field: String,
    /// The reason, for authors.
    pub message: String,
}

/// Returns what a model does not allow in a variation, in the order of the fields. `has_other` tells whether another
/// fragment of the model has a value in a field; it is asked for unique fields only.
pub fn validate_variation(
    model: &FragmentModel,
    variation: &VariationRecord,
    has_other: impl Fn(&str, &Value) -> bool,
) -> Vec<FieldViolation> {
    let mut violations = Vec::new();
    for field in &model.fields {
        let mut report = |message: String| {
            violations.push(FieldViolation { field: field.name.clone(), message });
        };
        let values = variation.value(&field.name).map_or(&[][..], Property::values);
        let is_empty = values.iter().all(|value| value.to_text().is_empty());
        if is_empty {
            if field.is_required {
                report(format!("`{}` needs a value", field.label));
            }
            continue;
        }
        if values.len() > 1 && !field.is_list {
            report(format!("`{}` has {} values, but takes one", field.label, values.len()));
        }
        for value in values {
            if let Some(message) = value_violation(field, value) {
                report(message);
            } else if field.is_unique && has_other(&field.name, value) {
                report(format!("another fragment has the same `{}`", field.label));
            }
        }
    }
    violations
}

/// Returns why a field does not take a value.
fn value_violation(field: &ModelField, value: &Value) -> Option<String> {
    let (label, text) = (&field.label, value.to_text());
    let not_of = |expected: &str| Some(format!("`{label}` takes {expected}, not `{text}`"));
    match &field.field_type {
        FieldType::Text | FieldType::MultiLineText { .. } => {}
        FieldType::Integer if text.parse::<i64>().is_err() => return not_of("a whole number"),
        FieldType::Float if text.parse::<f64>().is_err() => return not_of("a number"),
        FieldType::Integer | FieldType::Float => {
            let number: f64 = text.parse().unwrap_or_default();
            let (least, most) = field.range;
            if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
                let bounds = match (least, most) {
                    (Some(least), Some(most)) => format!("a number from {least} to {most}"),
                    (Some(least), None) => format!("a number of at least {least}"),
                    (None, most) => format!("a number of at most {}", most.unwrap_or_default()),
                };
                return field.message.clone().or_else(|| not_of(&bounds));
            }
        }
        FieldType::Boolean if !matches!(&*text, "true" | "false") => {
            return not_of("`true` or `false`");
        }
        FieldType::Date | FieldType::DateTime if JcrDate::parse_lenient(&text).is_err() => {
            return not_of("a date");
        }
        FieldType::Enumeration { options } if !options.iter().any(|option| **option == *text) => {
            return not_of("one of its options");
        }
        FieldType::ContentReference | FieldType::FragmentReference { .. }
            if NodePath::new(&text).is_err() =>
        {
            return not_of("a path");
        }
        FieldType::Json if serde_json::from_str::<serde_json::Value>(&text).is_err() => {
            return not_of("JSON");
        }
        _ => {}
    }
    if let Some(most) = field.max_length
        && text.chars().count() > most
    {
        return Some(format!("`{label}` takes at most {most} characters"));
    }
    let pattern = field.pattern.as_ref()?;
    // An expression that is none here allows everything: AEM's expressions are Java's.
    let matches =
        Regex::new(&format!("^(?:{pattern})$")).map_or(true, |regex| regex.is_match(&text));
    if matches {
        return None;
    }
    Some(field.message.clone().unwrap_or_else(|| format!("`{label}` does not match `{pattern}`")))
}
