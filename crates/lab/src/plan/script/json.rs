//! JSON in scripts: Groovy's `JsonSlurper` and `JsonOutput`.

use super::value::Value;

/// Reads a text as `JsonSlurper.parseText` does.
///
/// # Errors
/// Groovy's exception for a text that is no JSON.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(json) => Ok(from_json(json)),
        Err(error) => Err(format!("groovy.json.JsonException: {error}")),
    }
}

fn from_json(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(flag) => Value::Bool(flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::text(text),
        serde_json::Value::Array(items) => Value::list(items.into_iter().map(from_json).collect()),
        serde_json::Value::Object(entries) => {
            Value::map(entries.into_iter().map(|(key, value)| (key.into(), from_json(value))))
        }
    }
}

/// Deepest nesting that is written.
const DEEPEST: usize = 100;

/// Writes a value as `JsonOutput.toJson` does.
///
/// # Errors
/// A value that holds itself, or that JSON has no form for.
pub(super) fn write(value: &Value) -> Result<String, String> {
    to_json(value, 0).map(|json| json.to_string())
}

fn to_json(value: &Value, depth: usize) -> Result<serde_json::Value, String> {
    if depth > DEEPEST {
        return Err("java.lang.StackOverflowError".to_owned());
    }
    Ok(match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(flag) => (*flag).into(),
        Value::Int(number) => (*number).into(),
        Value::Double(number) => (*number).into(),
        Value::List(items) => {
            let items: Result<Vec<_>, String> =
                items.borrow().iter().map(|item| to_json(item, depth + 1)).collect();
            items?.into()
        }
        Value::Map(entries) => {
            let entries: Result<serde_json::Map<_, _>, String> = entries
                .borrow()
                .iter()
                .map(|(key, value)| Ok((key.to_string(), to_json(value, depth + 1)?)))
                .collect();
            entries?.into()
        }
        other => other.to_string().into(),
    })
}
