//! The schemas of the OpenAPI document, by name. A test of the whole program holds the answers against them.

use serde_json::{Map, Value, json};
use tympan_content::ValueType;

use crate::api::endpoint::{Kind, Parameter};
use crate::api::node::MAX_DEPTH;
use crate::api::queue::MAX_PATHS;
use crate::api::write::MAX_OPERATIONS;

// A letter of a name, blanks aside; and one with them. What ends with `(?![\s\S])` matches to the very end, where `$`
// would let a line feed pass.
const LETTER: &str = r"[^\u0000-\u001f\u007f-\u009f\ufffe\uffff/\[\]|*: \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]";
const ANY: &str = r"[^\u0000-\u001f\u007f-\u009f\ufffe\uffff/\[\]|*:]";
const END: &str = r"(?![\s\S])";

/// Returns the pattern of one name: JCR's rules.
fn name() -> String {
    format!(
        r"(?!\.{{1,2}}(?:/|{END})|[^/]{{257}})(?:{LETTER}(?:{ANY}*{LETTER})?|{LETTER}+:(?:{ANY}*{LETTER}))"
    )
}

/// Returns the schema of a name.
pub(crate) fn name_schema() -> Value {
    json!({ "type": "string", "pattern": format!("^{}{END}", name()), "maxLength": 256 })
}

/// Returns the schema of the folders in which a user stands: names with slashes between them; further slashes mean nothing.
pub(crate) fn folders_schema() -> Value {
    let pattern = format!("^/*(?:{name}(?:/+{name})*)?/*{END}", name = name());
    json!({
        "type": "string",
        "pattern": pattern,
        "maxLength": 1000,
        "description": "Where the user stands below `/home/users`; missing folders are made.",
        "examples": ["north/berlin"],
    })
}

/// Returns the schema of a path.
pub(crate) fn path_schema() -> Value {
    let pattern = format!("^(?:/{END}|(?:/{})+{END})", name());
    json!({ "type": "string", "pattern": pattern, "maxLength": 1000, "examples": ["/content"] })
}

/// Returns the schema of a parameter's value.
pub(crate) fn of_parameter(parameter: &Parameter) -> Value {
    let list = |items: Value| json!({ "type": "array", "items": items });
    match parameter.kind {
        Kind::Text => {
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END}") })
        }
        Kind::Filled => {
            json!({ "type": "string", "minLength": 1, "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END}") })
        }
        Kind::Pairs => list(
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^=\\u0000]+=[^\\u0000]*{END}") }),
        ),
        Kind::Statement => json!({ "type": "string", "pattern": format!("^[^\\u0000]*{END}") }),
        Kind::Time => value_of(ValueType::Date),
        Kind::Texts => list(
            json!({ "type": "string", "maxLength": 4096, "pattern": format!("^[^\\u0000]*{END}") }),
        ),
        Kind::Header => json!({ "type": "string" }),
        Kind::HeaderWord(word) => json!({ "type": "string", "enum": [word] }),
        Kind::Path => path_schema(),
        Kind::Name => name_schema(),
        Kind::Integer(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Words(words) => json!({ "type": "string", "enum": words }),
        Kind::SomeWords(words) => list(json!({ "type": "string", "enum": words })),
        Kind::Seconds(most) => {
            let tens = most / 10;
            json!({ "type": "string", "pattern": format!("^(?:[0-9]|[1-{}][0-9]|{most})s{END}", tens - 1) })
        }
        Kind::Patterns => {
            let pattern = format!(r"^/[^*]{{0,400}}\*[\s\S]{{0,400}}{END}");
            list(json!({ "anyOf": [path_schema(), { "type": "string", "pattern": pattern }] }))
        }
        Kind::Cursor => {
            let pattern = format!(
                "^(?:now|oldest|[0-9]{{1,19}}-[0-9a-f]{{64}}(?:-(?:[0-9a-f]{{2}})*r?)?){END}"
            );
            json!({ "type": "string", "pattern": pattern, "maxLength": 4096 })
        }
        Kind::Place => {
            let pattern = format!("^(?:[0-9a-f]{{2}})*\\.(?:[0-9a-f]{{2}})*{END}");
            json!({ "type": "string", "pattern": pattern, "maxLength": 4096 })
        }
    }
}

/// Returns the schema of a form with these fields.
pub(crate) fn of_form(fields: &[Parameter]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let mut schema = of_parameter(field);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), field.about.into());
            if field.is_required && field.kind.is_list() {
                schema.insert("minItems".to_owned(), json!(1));
            }
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let required = fields.iter().filter(|field| field.is_required);
    let required: Vec<&str> = required.map(|field| field.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// Makes an object of members that must all be there.
pub(crate) fn object(members: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        members.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Makes an object of members of which only some must be there.
pub(crate) fn sent(required: &[&str], members: &[(&str, Value)]) -> Value {
    let mut object = object(members);
    if let Some(object) = object.as_object_mut() {
        object.insert("required".to_owned(), json!(required));
    }
    object
}

pub(crate) fn text() -> Value {
    json!({ "type": "string" })
}

pub(crate) fn text_or_null() -> Value {
    json!({ "type": ["string", "null"] })
}

fn time_or_null() -> Value {
    json!({ "type": ["string", "null"], "format": "date-time" })
}

pub(crate) fn time() -> Value {
    value_of(ValueType::Date)
}

pub(crate) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

#[expect(clippy::needless_pass_by_value, reason = "callers make the schema in its place")]
pub(crate) fn array(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

/// Makes an object whose members have names of nodes or properties.
#[expect(clippy::needless_pass_by_value, reason = "callers make the schema in its place")]
pub(crate) fn by_name(values: Value) -> Value {
    json!({ "type": "object", "propertyNames": name_schema(), "additionalProperties": values })
}

/// Returns the schema of a value of a type.
fn value_of(value_type: ValueType) -> Value {
    const DAY: &str = "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)";
    match value_type {
        ValueType::Long => json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }),
        ValueType::Double => {
            json!({ "anyOf": [{ "type": "number" }, { "type": "string", "enum": ["NaN", "Infinity", "-Infinity"] }] })
        }
        ValueType::Boolean => json!({ "type": "boolean" }),
        ValueType::Date => {
            let pattern = format!(
                "^[0-9]{{4}}-{DAY}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{{1,3}})?(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]){END}"
            );
            json!({ "type": "string", "pattern": pattern })
        }
        ValueType::Decimal => {
            json!({ "type": "string", "pattern": format!("^[+-]?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?{END}") })
        }
        _ => text(),
    }
}

/// Returns the schema of a property as it is read: its type, and one value or several.
fn property() -> Value {
    let variants = ValueType::ALL.iter().flat_map(|value_type| {
        let kind = json!({ "type": "string", "enum": [value_type.name()] });
        let value = value_of(*value_type);
        [
            object(&[("type", kind.clone()), ("value", value.clone())]),
            object(&[("type", kind), ("values", array(value))]),
        ]
    });
    json!({ "anyOf": variants.collect::<Vec<_>>() })
}

/// Returns the schema of a property as it is sent: with its type, or as JSON that tells the type.
fn sent_property() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    json!({ "anyOf": [reference("Property"), scalar.clone(), array(scalar)] })
}

fn operation(word: &str, required: &[&str], members: &[(&str, Value)]) -> Value {
    let kind = ("op", json!({ "type": "string", "enum": [word] }));
    let members: Vec<_> = std::iter::once(kind).chain(members.iter().cloned()).collect();
    let required: Vec<&str> = std::iter::once("op").chain(required.iter().copied()).collect();
    sent(&required, &members)
}

/// Returns the schema of an order: at one end, or beside a sibling.
fn order(place: &str, is_operation: bool) -> Value {
    let places = |words: [&str; 2]| json!({ "type": "string", "enum": words });
    let mut members = vec![("path", path_schema())];
    match place {
        "first" => members.push(("place", places(["first", "last"]))),
        _ => members.extend([("place", places(["before", "after"])), ("sibling", name_schema())]),
    }
    if is_operation {
        members.push(("op", json!({ "type": "string", "enum": ["order"] })));
    }
    object(&members)
}

fn batch() -> Value {
    let transfer =
        [("from", path_schema()), ("to", path_schema()), ("replace", json!({ "type": "boolean" }))];
    let operations = [
        operation(
            "put",
            &["path", "node"],
            &[("path", path_schema()), ("node", reference("NewNode")), ("ifMatch", text())],
        ),
        operation(
            "patch",
            &["path", "patch"],
            &[("path", path_schema()), ("patch", reference("NodePatch")), ("ifMatch", text())],
        ),
        operation("delete", &["path"], &[("path", path_schema()), ("ifMatch", text())]),
        operation("move", &["from", "to"], &transfer),
        operation("copy", &["from", "to"], &transfer),
        order("first", true),
        order("before", true),
    ];
    let operations =
        json!({ "type": "array", "maxItems": MAX_OPERATIONS, "items": { "anyOf": operations } });
    sent(&["operations"], &[("operations", operations), ("message", text())])
}

/// Returns the members of a conflict, with what each side has and who made the other one.
pub(crate) fn conflict_members() -> Vec<(&'static str, Value)> {
    let changed = object(&[
        ("user", text()),
        ("at", text()),
        ("revision", count()),
        ("message", text_or_null()),
    ]);
    vec![
        ("path", text()),
        ("kind", text()),
        ("property", text_or_null()),
        ("base", text_or_null()),
        ("ours", text_or_null()),
        ("theirs", text_or_null()),
        ("changed", json!({ "anyOf": [changed, { "type": "null" }] })),
    ]
}

/// Returns the schema of failures: problem details of RFC 9457.
fn problem() -> Value {
    let referrer = object(&[("path", text()), ("property", text()), ("kind", text())]);
    let violation = json!({
        "type": "object",
        "properties": {
            "path": text(),
            "code": text(),
            "item": text(),
            "message": text(),
            "referrers": array(referrer),
        },
        "additionalProperties": false,
        "required": ["path", "code", "item", "message"],
    });
    json!({
        "type": "object",
        "properties": {
            "type": text(),
            "title": text(),
            "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            "detail": { "type": "string", "description": "What failed, where, and what to do." },
            "conflicts": array(reference("Conflict")),
            "violations": array(violation),
            "currentTag": { "type": "string", "description": "The tag of the document as it is now." },
            "operation": { "type": "integer", "minimum": 0, "description": "Which operation of a batch failed." },
            "oldest": { "type": "string", "description": "The cursor from which on changes are kept." },
            "newest": { "type": "string", "description": "The cursor behind the newest change." },
            "root": { "type": "string", "description": "The state that the newest cursor stands for." },
        },
        "required": ["type", "title", "status", "detail"],
    })
}

/// Returns all schemas.
pub(crate) fn all() -> Map<String, Value> {
    let mut all = nodes();
    all.extend(pages());
    all.extend(feed());
    for schemas in [
        super::version::schemas(),
        super::reference::schemas(),
        super::agent::schemas(),
        super::schedule::schemas(),
        super::backup::schemas(),
        super::step::schemas(),
        super::query::schemas(),
        super::account::schemas(),
        super::permission::schemas(),
        super::branch::schemas(),
        super::node_type::schemas(),
        super::package::schemas(),
        super::job::schemas(),
        super::workflow::schemas(),
        super::mount::schemas(),
    ] {
        all.extend(schemas);
    }
    all.insert("Conflict".to_owned(), object(&conflict_members()));
    all.insert("Problem".to_owned(), problem());
    all
}

pub(crate) fn named<const N: usize>(schemas: [(&str, Value); N]) -> Map<String, Value> {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn nodes() -> Map<String, Value> {
    let children = |of: &str| by_name(reference(of));
    let optional_name = ("type", name_schema());
    let patch_child = json!({ "anyOf": [reference("NodePatch"), { "type": "null" }] });
    let patch_property = json!({ "anyOf": [reference("SentProperty"), { "type": "null" }] });
    named([
        ("Property", property()),
        ("SentProperty", sent_property()),
        (
            "Node",
            sent(
                &["path", "name", "type", "properties"],
                &[
                    ("path", text()),
                    ("name", text()),
                    ("type", text()),
                    (
                        "properties",
                        json!({ "type": "object", "additionalProperties": reference("Property") }),
                    ),
                    (
                        "children",
                        json!({ "type": "object", "additionalProperties": reference("Node"), "description": format!("In order, down to the depth that was asked for, at most {MAX_DEPTH}.") }),
                    ),
                ],
            ),
        ),
        (
            "NewNode",
            sent(
                &[],
                &[
                    optional_name.clone(),
                    ("properties", by_name(reference("SentProperty"))),
                    ("children", children("NewNode")),
                    ("path", text()),
                    ("name", text()),
                ],
            ),
        ),
        (
            "NodePatch",
            sent(
                &[],
                &[
                    optional_name,
                    ("properties", by_name(patch_property)),
                    ("children", by_name(patch_child)),
                ],
            ),
        ),
        ("Written", object(&[("path", text()), ("etag", text_or_null())])),
        (
            "Transfer",
            sent(
                &["from", "to"],
                &[
                    ("from", path_schema()),
                    ("to", path_schema()),
                    ("replace", json!({ "type": "boolean" })),
                ],
            ),
        ),
        (
            "Move",
            sent(
                &["from", "to"],
                &[
                    ("from", path_schema()),
                    ("to", path_schema()),
                    ("replace", json!({ "type": "boolean" })),
                    ("rewrite", json!({ "type": "boolean" })),
                ],
            ),
        ),
        (
            "Moved",
            object(&[
                ("path", text()),
                ("etag", text_or_null()),
                ("rewritten", array(reference("Referrer"))),
                ("kept", array(reference("KeptReference"))),
            ]),
        ),
        ("Order", json!({ "anyOf": [order("first", false), order("before", false)] })),
        ("Batch", batch()),
        (
            "BatchResults",
            object(&[(
                "results",
                array(sent(
                    &["op", "path", "status", "etag"],
                    &[
                        ("op", text()),
                        ("path", text()),
                        ("status", count()),
                        ("etag", text_or_null()),
                        ("rewritten", array(reference("Referrer"))),
                        ("kept", array(reference("KeptReference"))),
                    ],
                )),
            )]),
        ),
        (
            "Children",
            object(&[
                ("path", text()),
                ("total", count()),
                (
                    "items",
                    array(object(&[
                        ("path", text()),
                        ("name", text()),
                        ("type", text()),
                        ("title", text_or_null()),
                        ("resourceType", text_or_null()),
                        ("modified", text_or_null()),
                        ("modifiedBy", text_or_null()),
                        ("hasChildren", json!({ "type": "boolean" })),
                    ])),
                ),
                ("next", text_or_null()),
            ]),
        ),
    ])
}

fn pages() -> Map<String, Value> {
    let status = json!({ "type": "string", "enum": ["draft", "modified", "live", "deactivated", "queued", "failed"] });
    let kind = json!({ "type": "string", "enum": ["page", "folder", "asset", "node"] });
    let any = json!({ "type": "object" });
    let item = object(&[
        ("path", text()),
        ("name", text()),
        ("title", text()),
        ("type", kind.clone()),
        ("resourceType", text_or_null()),
        ("template", text_or_null()),
        ("modified", text_or_null()),
        ("modifiedBy", text_or_null()),
        ("hasChildren", json!({ "type": "boolean" })),
        ("status", status.clone()),
        ("activated", text_or_null()),
    ]);
    let job = object(&[
        ("id", json!({ "type": "integer" })),
        ("action", text_or_null()),
        ("path", text_or_null()),
        ("user", text_or_null()),
        ("created", time_or_null()),
        ("attempt", count()),
        ("lastError", text_or_null()),
        ("state", text()),
    ]);
    let agent = object(&[
        ("name", text()),
        ("title", text_or_null()),
        ("target", text_or_null()),
        ("enabled", json!({ "type": "boolean" })),
        ("blocked", text_or_null()),
        ("queued", count()),
        ("items", array(job)),
    ]);
    named([
        (
            "Me",
            object(&[
                ("user", text()),
                ("csrf", text_or_null()),
                ("version", text()),
                ("role", text()),
            ]),
        ),
        (
            "PageList",
            object(&[
                ("path", text()),
                ("title", text()),
                ("type", kind),
                ("crumbs", array(object(&[("path", text()), ("title", text())]))),
                ("total", count()),
                ("items", array(item)),
                ("next", text_or_null()),
            ]),
        ),
        (
            "Page",
            object(&[
                ("path", text()),
                ("title", text()),
                ("url", text()),
                ("status", status),
                ("activated", text_or_null()),
                ("modified", text_or_null()),
                ("modifiedBy", text_or_null()),
                ("content", any.clone()),
                ("components", array(any.clone())),
                ("insertable", array(any.clone())),
            ]),
        ),
        (
            "Dialog",
            object(&[
                ("path", text()),
                ("resourceType", text_or_null()),
                ("title", text()),
                ("tabs", array(any.clone())),
                ("values", any),
                ("types", json!({ "type": "object", "additionalProperties": text() })),
                ("hasDialog", json!({ "type": "boolean" })),
            ]),
        ),
        ("Queue", object(&[("agents", array(agent))])),
        ("Changed", object(&[("changed", json!({ "type": "boolean" }))])),
        (
            "Replication",
            sent(
                &["action", "paths"],
                &[
                    ("action", json!({ "type": "string", "enum": ["activate", "deactivate"] })),
                    (
                        "paths",
                        json!({ "type": "array", "items": path_schema(), "minItems": 1, "maxItems": MAX_PATHS }),
                    ),
                    ("deep", json!({ "type": "boolean" })),
                    ("companions", json!({ "type": "boolean" })),
                ],
            ),
        ),
        ("Replicated", object(&[("paths", array(text())), ("left", array(text()))])),
        ("OpenApi", json!({ "type": "object" })),
    ])
}

fn feed() -> Map<String, Value> {
    let kinds =
        json!({ "type": "string", "enum": ["added", "removed", "changed", "moved", "reordered"] });
    let property = object(&[("name", text()), ("kind", kinds.clone())]);
    let change = object(&[
        ("kind", kinds),
        ("path", text()),
        ("from", text_or_null()),
        ("type", text()),
        ("properties", array(property)),
    ]);
    let revision = object(&[
        ("sequence", count()),
        ("time", text()),
        ("user", text()),
        ("message", text_or_null()),
        ("root", text()),
        ("cursor", text()),
        ("changes", array(change)),
    ]);
    named([(
        "Changes",
        object(&[
            ("revisions", array(revision)),
            ("next", text()),
            ("root", text()),
            ("isEnd", json!({ "type": "boolean" })),
        ]),
    )])
}
