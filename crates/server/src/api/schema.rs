//! The forms of schemas in the OpenAPI document: values, paths, lists, objects and parameters.

use serde_json::{Map, Value, json};
use tympan_content::ValueType;

use crate::api::endpoint::{EndpointParameter, ParameterKind};

// One pattern for a letter of a name without blanks, and one with blanks. The ending `(?![\s\S])` matches only at the
// very end, where `$` would accept a line feed.
const NAME_LETTER_PATTERN: &str = r"[^\u0000-\u001f\u007f-\u009f\ufffe\uffff/\[\]|*: \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]";
const NAME_CHARACTER_PATTERN: &str = r"[^\u0000-\u001f\u007f-\u009f\ufffe\uffff/\[\]|*:]";
const END_PATTERN: &str = r"(?![\s\S])";

/// Returns the pattern of a name, according to JCR's rules.
fn name_pattern() -> String {
    format!(
        r"(?!\.{{1,2}}(?:/|{END_PATTERN})|[^/]{{257}})(?:{NAME_LETTER_PATTERN}(?:{NAME_CHARACTER_PATTERN}*{NAME_LETTER_PATTERN})?|{NAME_LETTER_PATTERN}+:(?:{NAME_CHARACTER_PATTERN}*{NAME_LETTER_PATTERN}))"
    )
}

/// Returns the schema of a name.
pub(crate) fn name_schema() -> Value {
    json!({ "type": "string", "pattern": format!("^{}{END_PATTERN}", name_pattern()), "maxLength": 256 })
}

/// Returns the schema of a user's folder path: names separated by slashes; additional slashes are ignored.
pub(crate) fn folders_schema() -> Value {
    let pattern = format!("^/*(?:{name}(?:/+{name})*)?/*{END_PATTERN}", name = name_pattern());
    json!({
        "type": "string",
        "pattern": pattern,
        "maxLength": 1000,
        "description": "The folder of the user below `/home/users`; missing folders are created.",
        "examples": ["north/berlin"],
    })
}

/// Returns the schema of a path.
pub(crate) fn path_schema() -> Value {
    let pattern = format!("^(?:/{END_PATTERN}|(?:/{})+{END_PATTERN})", name_pattern());
    json!({ "type": "string", "pattern": pattern, "maxLength": 1000, "examples": ["/content"] })
}

/// Returns the schema of a parameter's value.
pub(crate) fn parameter_schema(parameter: &EndpointParameter) -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items });
    match parameter.kind {
        ParameterKind::Text => {
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END_PATTERN}") })
        }
        ParameterKind::NonEmptyText => {
            json!({ "type": "string", "minLength": 1, "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END_PATTERN}") })
        }
        ParameterKind::Pairs => list(
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^=\\u0000]+=[^\\u0000]*{END_PATTERN}") }),
        ),
        ParameterKind::Statement => {
            json!({ "type": "string", "pattern": format!("^[^\\u0000]*{END_PATTERN}") })
        }
        ParameterKind::Time => value_schema(ValueType::Date),
        ParameterKind::Texts => list(
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END_PATTERN}") }),
        ),
        ParameterKind::Header => json!({ "type": "string" }),
        ParameterKind::HeaderKeyword(keyword) => json!({ "type": "string", "enum": [keyword] }),
        ParameterKind::Path => path_schema(),
        ParameterKind::Name => name_schema(),
        ParameterKind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        ParameterKind::Flag => json!({ "type": "boolean" }),
        ParameterKind::Keyword(words) => json!({ "type": "string", "enum": words }),
        ParameterKind::Keywords(words) => list(json!({ "type": "string", "enum": words })),
        ParameterKind::Seconds(most) => {
            let tens = most / 10;
            json!({ "type": "string", "pattern": format!("^(?:[0-9]|[1-{}][0-9]|{most})s{END_PATTERN}", tens - 1) })
        }
        ParameterKind::Patterns => {
            let pattern = format!(r"^/[^*]{{0,400}}\*[\s\S]{{0,400}}{END_PATTERN}");
            list(json!({ "anyOf": [path_schema(), { "type": "string", "pattern": pattern }] }))
        }
        ParameterKind::Cursor => {
            let pattern = format!(
                "^(?:now|oldest|[0-9]{{1,19}}-[0-9a-f]{{64}}(?:-(?:[0-9a-f]{{2}})*r?)?){END_PATTERN}"
            );
            json!({ "type": "string", "pattern": pattern, "maxLength": 4096 })
        }
        ParameterKind::ListPosition => {
            let pattern = format!("^(?:[0-9a-f]{{2}})*\\.(?:[0-9a-f]{{2}})*{END_PATTERN}");
            json!({ "type": "string", "pattern": pattern, "maxLength": 4096 })
        }
    }
}

/// Returns the schema of a form with these fields.
pub(crate) fn form_schema(fields: &[EndpointParameter]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let mut schema = parameter_schema(field);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), field.description.into());
            if field.is_required && field.kind.is_repeatable() {
                schema.insert("minItems".to_owned(), json!(1));
            }
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let required = fields.iter().filter(|field| field.is_required);
    let required: Vec<&str> = required.map(|field| field.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

pub(crate) fn reference_schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Returns the schema of an object whose members are all required.
pub(crate) fn object_schema(members: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Returns the schema of an object of which only the members in `required` are required.
pub(crate) fn partial_object_schema(required: &[&str], members: &[(&str, Value)]) -> Value {
    let mut object = object_schema(members);
    if let Some(object) = object.as_object_mut() {
        object.insert("required".to_owned(), json!(required));
    }
    object
}

pub(crate) fn text_schema() -> Value {
    json!({ "type": "string" })
}

pub(crate) fn text_or_null_schema() -> Value {
    json!({ "type": ["string", "null"] })
}

pub(crate) fn time_or_null_schema() -> Value {
    json!({ "type": ["string", "null"], "format": "date-time" })
}

pub(crate) fn time_schema() -> Value {
    value_schema(ValueType::Date)
}

pub(crate) fn count_schema() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

#[expect(clippy::needless_pass_by_value, reason = "callers build the schema in the argument")]
pub(crate) fn array_schema(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// Returns the schema of an object whose keys are names of nodes or properties.
#[expect(clippy::needless_pass_by_value, reason = "callers build the schema in the argument")]
pub(crate) fn map_schema(values: Value) -> Value {
    json!({ "type": "object", "propertyNames": name_schema(), "additionalProperties": values })
}

/// Returns the schema of a value of a type.
pub(crate) fn value_schema(value_type: ValueType) -> Value {
    const DAY: &str = "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)";
    match value_type {
        ValueType::Long => json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }),
        ValueType::Double => {
            json!({ "anyOf": [{ "type": "number" }, { "type": "string", "enum": ["NaN", "Infinity", "-Infinity"] }] })
        }
        ValueType::Boolean => json!({ "type": "boolean" }),
        ValueType::Date => {
            let pattern = format!(
                "^[0-9]{{4}}-{DAY}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{{1,3}})?(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]){END_PATTERN}"
            );
            json!({ "type": "string", "pattern": pattern })
        }
        ValueType::Decimal => {
            json!({ "type": "string", "pattern": format!("^[+-]?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?{END_PATTERN}") })
        }
        _ => text_schema(),
    }
}

/// Returns the members of a conflict, with the values of each side and the author of the other change.
pub(crate) fn conflict_member_schemas() -> Vec<(&'static str, Value)> {
    let changed = object_schema(&[
        ("user", text_schema()),
        ("at", text_schema()),
        ("revision", count_schema()),
        ("message", text_or_null_schema()),
    ]);
    vec![
        ("path", text_schema()),
        ("kind", text_schema()),
        ("property", text_or_null_schema()),
        ("base", text_or_null_schema()),
        ("ours", text_or_null_schema()),
        ("theirs", text_or_null_schema()),
        ("changed", json!({ "anyOf": [changed, { "type": "null" }] })),
    ]
}

pub(crate) fn schemas_by_name<const N: usize>(schemas: [(&str, Value); N]) -> Map<String, Value> {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}
