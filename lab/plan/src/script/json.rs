//! JSON in scripts: Groovy's `JsonSlurper` and `JsonOutput`.

use super::value::ScriptValue;

/// Parses a text as `JsonSlurper.parseText` does.
///
/// # Errors
/// Groovy's exception for invalid JSON.
pub(super) fn parse_json(text: &str) -> Result<ScriptValue, String> {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(json) => Ok(from_json(json)),
        Err(error) => Err(format!("groovy.json.JsonException: {error}")),
    }
}

fn from_json(json: serde_json::Value) -> ScriptValue {
    match json {
        serde_json::Value::Null => ScriptValue::Null,
        serde_json::Value::Bool(flag) => ScriptValue::Bool(flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => ScriptValue::Int(number),
            None => ScriptValue::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => ScriptValue::from_text(text),
        serde_json::Value::Array(items) => {
            ScriptValue::from_list(items.into_iter().map(from_json).collect())
        }
        serde_json::Value::Object(entries) => ScriptValue::from_map(
            entries.into_iter().map(|(key, value)| (key.into(), from_json(value))),
        ),
    }
}

/// Maximum nesting depth of output.
const MAX_JSON_DEPTH: usize = 100;

/// Serializes a value as `JsonOutput.toJson` does.
///
/// # Errors
/// A value that contains itself, or that JSON cannot represent.
pub(super) fn write_json(value: &ScriptValue) -> Result<String, String> {
    to_json(value, 0).map(|json| json.to_string())
}

fn to_json(value: &ScriptValue, depth: usize) -> Result<serde_json::Value, String> {
    if depth > MAX_JSON_DEPTH {
        return Err("java.lang.StackOverflowError".to_owned());
    }
    Ok(match value {
        ScriptValue::Null => serde_json::Value::Null,
        ScriptValue::Bool(flag) => (*flag).into(),
        ScriptValue::Int(number) => (*number).into(),
        ScriptValue::Double(number) => (*number).into(),
        ScriptValue::List(items) => {
            let items: Result<Vec<_>, String> =
                items.borrow().iter().map(|item| to_json(item, depth + 1)).collect();
            items?.into()
        }
        ScriptValue::Map(entries) => {
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
