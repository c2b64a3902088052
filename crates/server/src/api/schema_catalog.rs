//! All schemas of the OpenAPI document, by name. A test of the whole program validates the responses against them.

use serde_json::{Map, Value, json};
use tympan_content::ValueType;

use crate::api::agent_queue::MAX_REQUEST_PATHS;
use crate::api::node::MAX_READ_DEPTH;
use crate::api::node_write::MAX_OPERATIONS;
use crate::api::schema::{
    array_schema, conflict_member_schemas, count_schema, map_schema, name_schema, object_schema,
    partial_object_schema, path_schema, reference_schema, schemas_by_name, text_or_null_schema,
    text_schema, time_or_null_schema, value_schema,
};

/// Returns all schemas.
pub(crate) fn all_schemas() -> Map<String, Value> {
    let mut all = node_schemas();
    all.extend(page_schemas());
    all.extend(feed_schemas());
    for schemas in [
        super::version::version_schemas(),
        super::reference::reference_schemas(),
        super::agent::agent_schemas(),
        super::presence::presence_schemas(),
        super::schedule::schedule_schemas(),
        super::backup::backup_schemas(),
        super::failed_step::failed_step_schemas(),
        super::query::query_schemas(),
        super::account::account_schemas(),
        super::permission::permission_schemas(),
        super::permission::policy_change::policy_change_schemas(),
        super::permission::permission_reason::permission_reason_schemas(),
        super::branch::branch_schemas(),
        super::branch::merge::merge_schemas(),
        super::node_type::node_type_schemas(),
        super::package::package_schemas(),
        super::repoinit::repoinit_schemas(),
        super::job::job_schemas(),
        super::job::queue::queue_schemas(),
        super::workflow::workflow_schemas(),
        super::workflow::inbox_step::inbox_schemas(),
        super::mount::mount_schemas(),
        super::operations::operations_schemas(),
    ] {
        all.extend(schemas);
    }
    all.insert("Conflict".to_owned(), object_schema(&conflict_member_schemas()));
    all.insert("Problem".to_owned(), problem_schema());
    all
}

/// Returns the schema of a property in responses: its type, and one value or several.
fn property_schema() -> Value {
    let variants = ValueType::ALL.iter().flat_map(|value_type| {
        let kind = json!({ "type": "string", "enum": [value_type.name()] });
        let value = value_schema(*value_type);
        [
            object_schema(&[("type", kind.clone()), ("value", value.clone())]),
            object_schema(&[("type", kind), ("values", array_schema(value))]),
        ]
    });
    json!({ "anyOf": variants.collect::<Vec<_>>() })
}

/// Returns the schema of a submitted property: with an explicit type, or as JSON that implies the type.
fn submitted_property_schema() -> Value {
    let scalar = json!({ "type": ["string", "number", "boolean"] });
    json!({ "anyOf": [reference_schema("Property"), scalar.clone(), array_schema(scalar)] })
}

fn operation_schema(keyword: &str, required: &[&str], members: &[(&str, Value)]) -> Value {
    let kind = ("op", json!({ "type": "string", "enum": [keyword] }));
    let members: Vec<_> = std::iter::once(kind).chain(members.iter().cloned()).collect();
    let required: Vec<&str> = std::iter::once("op").chain(required.iter().copied()).collect();
    partial_object_schema(&required, &members)
}

/// Returns the schema of an order operation: to the first or last position, or next to a sibling.
fn order_schema(position: &str, is_operation: bool) -> Value {
    let position_schema = |words: [&str; 2]| json!({ "type": "string", "enum": words });
    let mut members = vec![("path", path_schema())];
    match position {
        "first" => members.push(("place", position_schema(["first", "last"]))),
        _ => members
            .extend([("place", position_schema(["before", "after"])), ("sibling", name_schema())]),
    }
    if is_operation {
        members.push(("op", json!({ "type": "string", "enum": ["order"] })));
    }
    object_schema(&members)
}

fn batch_schema() -> Value {
    let transfer =
        [("from", path_schema()), ("to", path_schema()), ("replace", json!({ "type": "boolean" }))];
    let operations = [
        operation_schema(
            "put",
            &["path", "node"],
            &[
                ("path", path_schema()),
                ("node", reference_schema("NewNode")),
                ("ifMatch", text_schema()),
                ("ifNoneMatch", json!({ "const": "*" })),
            ],
        ),
        operation_schema(
            "patch",
            &["path", "patch"],
            &[
                ("path", path_schema()),
                ("patch", reference_schema("NodePatch")),
                ("ifMatch", text_schema()),
            ],
        ),
        operation_schema(
            "delete",
            &["path"],
            &[("path", path_schema()), ("ifMatch", text_schema())],
        ),
        operation_schema("move", &["from", "to"], &transfer),
        operation_schema("copy", &["from", "to"], &transfer),
        order_schema("first", true),
        order_schema("before", true),
    ];
    let operations =
        json!({ "type": "array", "maxItems": MAX_OPERATIONS, "items": { "anyOf": operations } });
    partial_object_schema(
        &["operations"],
        &[("operations", operations), ("message", text_schema())],
    )
}

/// Returns the schema of failures: RFC 9457 problem details.
fn problem_schema() -> Value {
    let referrer = object_schema(&[
        ("path", text_schema()),
        ("property", text_schema()),
        ("kind", text_schema()),
    ]);
    let violation = json!({
        "type": "object",
        "properties": {
            "path": text_schema(),
            "code": text_schema(),
            "item": text_schema(),
            "message": text_schema(),
            "referrers": array_schema(referrer),
        },
        "additionalProperties": false,
        "required": ["path", "code", "item", "message"],
    });
    json!({
        "type": "object",
        "properties": {
            "type": text_schema(),
            "title": text_schema(),
            "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            "detail": { "type": "string", "description": "What failed, where, and what to do." },
            "conflicts": array_schema(reference_schema("Conflict")),
            "violations": array_schema(violation),
            "currentTag": { "type": "string", "description": "The current `ETag` of the document." },
            "operation": { "type": "integer", "minimum": 0, "description": "The index of the operation of a \
                batch that failed." },
            "oldest": { "type": "string", "description": "The oldest cursor from which changes are still \
                available." },
            "newest": { "type": "string", "description": "The cursor after the newest change." },
            "root": { "type": "string", "description": "The root at the newest cursor." },
        },
        "required": ["type", "title", "status", "detail"],
    })
}

fn node_schemas() -> Map<String, Value> {
    let children = |of: &str| map_schema(reference_schema(of));
    let optional_name = ("type", name_schema());
    let patch_child = json!({ "anyOf": [reference_schema("NodePatch"), { "type": "null" }] });
    let patch_property = json!({ "anyOf": [reference_schema("SentProperty"), { "type": "null" }] });
    schemas_by_name([
        ("Property", property_schema()),
        ("SentProperty", submitted_property_schema()),
        (
            "Node",
            partial_object_schema(
                &["path", "name", "type", "properties"],
                &[
                    ("path", text_schema()),
                    ("name", text_schema()),
                    ("type", text_schema()),
                    (
                        "properties",
                        json!({ "type": "object", "additionalProperties": reference_schema("Property") }),
                    ),
                    (
                        "children",
                        json!({ "type": "object", "additionalProperties": reference_schema("Node"), "description": format!("In \
                            order, down to the requested depth, at most {MAX_READ_DEPTH}.") }),
                    ),
                ],
            ),
        ),
        (
            "NewNode",
            partial_object_schema(
                &[],
                &[
                    optional_name.clone(),
                    ("properties", map_schema(reference_schema("SentProperty"))),
                    ("children", children("NewNode")),
                    ("path", text_schema()),
                    ("name", text_schema()),
                ],
            ),
        ),
        (
            "NodePatch",
            partial_object_schema(
                &[],
                &[
                    optional_name,
                    ("properties", map_schema(patch_property)),
                    ("children", map_schema(patch_child)),
                ],
            ),
        ),
        ("Written", object_schema(&[("path", text_schema()), ("etag", text_or_null_schema())])),
        (
            "Transfer",
            partial_object_schema(
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
            partial_object_schema(
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
            object_schema(&[
                ("path", text_schema()),
                ("etag", text_or_null_schema()),
                ("rewritten", array_schema(reference_schema("Referrer"))),
                ("kept", array_schema(reference_schema("KeptReference"))),
            ]),
        ),
        (
            "Order",
            json!({ "anyOf": [order_schema("first", false), order_schema("before", false)] }),
        ),
        ("Batch", batch_schema()),
        (
            "BatchResults",
            object_schema(&[(
                "results",
                array_schema(partial_object_schema(
                    &["op", "path", "status", "etag"],
                    &[
                        ("op", text_schema()),
                        ("path", text_schema()),
                        ("status", count_schema()),
                        ("etag", text_or_null_schema()),
                        ("rewritten", array_schema(reference_schema("Referrer"))),
                        ("kept", array_schema(reference_schema("KeptReference"))),
                    ],
                )),
            )]),
        ),
        (
            "Children",
            object_schema(&[
                ("path", text_schema()),
                ("total", count_schema()),
                (
                    "items",
                    array_schema(object_schema(&[
                        ("path", text_schema()),
                        ("name", text_schema()),
                        ("type", text_schema()),
                        ("title", text_or_null_schema()),
                        ("resourceType", text_or_null_schema()),
                        ("modified", text_or_null_schema()),
                        ("modifiedBy", text_or_null_schema()),
                        ("hasChildren", json!({ "type": "boolean" })),
                    ])),
                ),
                ("next", text_or_null_schema()),
            ]),
        ),
    ])
}

fn page_schemas() -> Map<String, Value> {
    let status = json!({ "type": "string", "enum": ["draft", "modified", "live", "deactivated", "queued", "failed"] });
    let kind = json!({ "type": "string", "enum": ["page", "folder", "asset", "node"] });
    let any = json!({ "type": "object" });
    let flag = json!({ "type": "boolean" });
    let item = object_schema(&[
        ("path", text_schema()),
        ("name", text_schema()),
        ("title", text_schema()),
        ("type", kind.clone()),
        ("resourceType", text_or_null_schema()),
        ("template", text_or_null_schema()),
        ("modified", text_or_null_schema()),
        ("modifiedBy", text_or_null_schema()),
        ("hasChildren", json!({ "type": "boolean" })),
        ("status", status.clone()),
        ("activated", text_or_null_schema()),
    ]);
    let job = object_schema(&[
        ("id", json!({ "type": "integer" })),
        ("action", text_or_null_schema()),
        ("path", text_or_null_schema()),
        ("user", text_or_null_schema()),
        ("created", time_or_null_schema()),
        ("attempt", count_schema()),
        ("lastError", text_or_null_schema()),
        ("state", text_schema()),
    ]);
    let agent = object_schema(&[
        ("name", text_schema()),
        ("title", text_or_null_schema()),
        ("target", text_or_null_schema()),
        ("enabled", json!({ "type": "boolean" })),
        ("blocked", text_or_null_schema()),
        ("queued", count_schema()),
        ("items", array_schema(job)),
    ]);
    schemas_by_name([
        (
            "Me",
            object_schema(&[
                ("user", text_schema()),
                ("csrf", text_or_null_schema()),
                ("version", text_schema()),
                ("role", text_schema()),
                ("isAdministrator", json!({ "type": "boolean" })),
            ]),
        ),
        (
            "CombinedReads",
            object_schema(&[(
                "answers",
                array_schema(object_schema(&[
                    ("status", count_schema()),
                    ("tag", text_or_null_schema()),
                    ("value", json!({})),
                ])),
            )]),
        ),
        (
            "PageList",
            object_schema(&[
                ("path", text_schema()),
                ("title", text_schema()),
                ("type", kind),
                (
                    "crumbs",
                    array_schema(object_schema(&[
                        ("path", text_schema()),
                        ("title", text_schema()),
                    ])),
                ),
                ("total", count_schema()),
                ("items", array_schema(item)),
                ("next", text_or_null_schema()),
            ]),
        ),
        (
            "TemplateList",
            object_schema(&[
                ("path", text_schema()),
                (
                    "templates",
                    array_schema(object_schema(&[
                        ("path", text_schema()),
                        ("title", text_schema()),
                        ("description", text_or_null_schema()),
                        ("resourceType", text_or_null_schema()),
                    ])),
                ),
            ]),
        ),
        (
            "Page",
            object_schema(&[
                ("path", text_schema()),
                ("title", text_schema()),
                ("url", text_schema()),
                ("status", status),
                ("activated", text_or_null_schema()),
                ("modified", text_or_null_schema()),
                ("modifiedBy", text_or_null_schema()),
                ("onTime", text_or_null_schema()),
                ("offTime", text_or_null_schema()),
                ("denied", object_schema(&[("edit", flag.clone()), ("activate", flag)])),
                ("content", any.clone()),
                ("components", array_schema(any.clone())),
                ("insertable", array_schema(any.clone())),
            ]),
        ),
        (
            "Dialog",
            object_schema(&[
                ("path", text_schema()),
                ("resourceType", text_or_null_schema()),
                ("title", text_schema()),
                ("tabs", array_schema(any.clone())),
                ("values", any),
                ("types", json!({ "type": "object", "additionalProperties": text_schema() })),
                ("hasDialog", json!({ "type": "boolean" })),
                ("unknown", array_schema(text_schema())),
            ]),
        ),
        ("Queue", object_schema(&[("agents", array_schema(agent))])),
        ("Changed", object_schema(&[("changed", json!({ "type": "boolean" }))])),
        (
            "Replication",
            partial_object_schema(
                &["action", "paths"],
                &[
                    ("action", json!({ "type": "string", "enum": ["activate", "deactivate"] })),
                    (
                        "paths",
                        json!({ "type": "array", "items": path_schema(), "minItems": 1, "maxItems": MAX_REQUEST_PATHS }),
                    ),
                    ("deep", json!({ "type": "boolean" })),
                    ("companions", json!({ "type": "boolean" })),
                ],
            ),
        ),
        (
            "Replicated",
            object_schema(&[
                ("paths", array_schema(text_schema())),
                ("left", array_schema(text_schema())),
            ]),
        ),
        ("OpenApi", json!({ "type": "object" })),
    ])
}

fn feed_schemas() -> Map<String, Value> {
    let kinds =
        json!({ "type": "string", "enum": ["added", "removed", "changed", "moved", "reordered"] });
    let property = object_schema(&[("name", text_schema()), ("kind", kinds.clone())]);
    let change = object_schema(&[
        ("kind", kinds),
        ("path", text_schema()),
        ("from", text_or_null_schema()),
        ("type", text_schema()),
        ("properties", array_schema(property)),
    ]);
    let revision = object_schema(&[
        ("sequence", count_schema()),
        ("time", text_schema()),
        ("user", text_schema()),
        ("message", text_or_null_schema()),
        ("root", text_schema()),
        ("cursor", text_schema()),
        ("changes", array_schema(change)),
    ]);
    schemas_by_name([(
        "Changes",
        object_schema(&[
            ("revisions", array_schema(revision)),
            ("next", text_schema()),
            ("root", text_schema()),
            ("isEnd", json!({ "type": "boolean" })),
        ]),
    )])
}
