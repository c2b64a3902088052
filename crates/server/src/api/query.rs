//! API endpoints for queries, searches, completions and indexes; publishers also serve them to visitors.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::IndexState;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::node::deserialize_present;
use crate::api::schema::{
    array_schema, count_schema as number, object_schema, partial_object_schema, reference_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::query::{
    ApiQuery, FULL_TEXT_STATUSES, MAX_QUERY_LIMIT, QueryExplainMode, QueryLanguage,
    explain_api_query, run_api_query, word_suggestions,
};

const LIMIT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "limit",
    ParameterKind::Integer(0, MAX_QUERY_LIMIT),
    "Maximum number of rows. Default 100.",
);

/// The API endpoints that this module defines.
pub(crate) const QUERY_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/query",
        id: "query",
        description: "Runs a query and returns the rows that the caller may read, page by page. `explain` is \
            for administrators, because a plan contains counts of all content.",
        parameters: &[
            EndpointParameter::required(
                "statement",
                ParameterKind::Statement,
                "The query; for `querybuilder`, its predicates in the form of a query string.",
            ),
            EndpointParameter::new(
                "language",
                ParameterKind::Keyword(&["sql2", "xpath", "querybuilder"]),
                "Default `sql2`.",
            ),
            LIMIT_PARAMETER,
            EndpointParameter::new(
                "offset",
                ParameterKind::Integer(0, i64::MAX as u64),
                "Number of rows to skip. Default 0.",
            ),
            EndpointParameter::new(
                "cursor",
                ParameterKind::Statement,
                "Where to continue: `cursor` of the previous page.",
            ),
            EndpointParameter::new(
                "explain",
                ParameterKind::Keyword(&["none", "plan", "analyze"]),
                "Returns how the query is executed instead of its rows. Default `none`.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: QUERY_RESPONSES,
        handler: EndpointHandler::Blocking(query_by_url),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/query",
        id: "queryByBody",
        description: "The same as `GET`, with values for the variables of the statement.",
        parameters: &[],
        body: RequestBodySpec::QueryJson("Query"),
        responses: QUERY_RESPONSES,
        handler: EndpointHandler::Blocking(query_by_body),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/search",
        id: "search",
        description: "Finds nodes by their text, the best matches first, each with an excerpt.",
        parameters: &[
            EndpointParameter::required(
                "text",
                ParameterKind::Text,
                "Words, `\"phrases\"`, `-without`, `this OR that`, `begin*`.",
            ),
            EndpointParameter::new("path", ParameterKind::Path, "Only below this node."),
            EndpointParameter::new("type", ParameterKind::Name, "Only nodes of this type."),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, 1000),
                "Maximum number of hits. Default 20.",
            ),
            EndpointParameter::new(
                "cursor",
                ParameterKind::Statement,
                "Where to continue: `cursor` of the previous page.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Rows", "A page of hits.")],
        handler: EndpointHandler::Blocking(search_full_text),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/suggest",
        id: "suggest",
        description: "Completes the last word of a text with words of nodes that the caller may read.",
        parameters: &[EndpointParameter::required("prefix", ParameterKind::Text, "The text.")],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Words", "The completed texts, the most frequent first.")],
        handler: EndpointHandler::Blocking(suggest_words),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/spellcheck",
        id: "spellcheck",
        description: "Corrects unknown words of a text to words of nodes that the caller may read.",
        parameters: &[EndpointParameter::required("text", ParameterKind::Text, "The text.")],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json(
            "Words",
            "The corrected texts; none if all words are known.",
        )],
        handler: EndpointHandler::Blocking(check_spelling),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/query/slow",
        id: "listSlow",
        description: "Lists slow statements and statements without an index. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json(
            "SlowStatements",
            "The statements, the most expensive first.",
        )],
        handler: EndpointHandler::Blocking(list_slow_queries),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/indexes",
        id: "listIndexes",
        description: "Returns the state of the property indexes. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Indexes", "The indexes.")],
        handler: EndpointHandler::Blocking(list_indexes),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/indexes/rebuild",
        id: "rebuildIndexes",
        description: "Drops an index, or all of them, so that they are rebuilt. For administrators.",
        parameters: &[EndpointParameter::new(
            "name",
            ParameterKind::Text,
            "The index. Default: all of them.",
        )],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("DroppedIndexes", "The number of indexes to be rebuilt.")],
        handler: EndpointHandler::Blocking(rebuild_index),
    },
];

/// Returns true if this module defines the endpoint.
pub(crate) fn is_query_endpoint(endpoint: &Endpoint) -> bool {
    QUERY_ENDPOINTS.iter().any(|candidate| candidate.id == endpoint.id)
}

const QUERY_RESPONSES: &[ResponseSpec] =
    &[ResponseSpec::json("QueryAnswer", "The rows, or the query plan.")];

/// Returns the JSON schemas that this module defines.
pub(crate) fn query_schemas() -> Map<String, Json> {
    let any = || json!({ "type": "object" });
    let texts = || json!({ "type": "object", "additionalProperties": text_schema() });
    let limit = json!({ "type": "integer", "minimum": 0, "maximum": MAX_QUERY_LIMIT });
    let scalar = json!({ "anyOf": [text_schema(), { "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }, { "type": "number" }, { "type": "boolean" }] });
    let row = object_schema(&[
        ("path", text_or_null_schema()),
        ("paths", any()),
        ("score", json!({ "type": ["number", "null"] })),
        ("values", any()),
    ]);
    let explanation = json!({
        "type": "object",
        "properties": { "statement": text_schema(), "steps": array_schema(any()), "order": text_schema(), "text": text_schema() },
        "required": ["statement", "steps", "order", "text"],
    });
    let state = json!({ "enum": ["ready", "waiting", "building", "failed"] });
    let full_text = || json!({ "enum": FULL_TEXT_STATUSES });
    schemas_by_name([
        (
            "Query",
            partial_object_schema(
                &[],
                &[
                    ("language", json!({ "enum": ["sql2", "xpath", "querybuilder"] })),
                    ("statement", text_schema()),
                    ("map", texts()),
                    ("limit", limit),
                    ("offset", json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX })),
                    ("cursor", text_schema()),
                    ("explain", json!({ "enum": ["none", "plan", "analyze"] })),
                    ("parameters", json!({ "type": "object", "additionalProperties": scalar })),
                ],
            ),
        ),
        (
            "Rows",
            object_schema(&[
                ("columns", array_schema(text_schema())),
                ("rows", array_schema(row)),
                ("words", array_schema(text_schema())),
                ("facets", any()),
                ("cursor", text_or_null_schema()),
                ("full_text", full_text()),
            ]),
        ),
        ("Explanation", explanation),
        (
            "QueryAnswer",
            json!({ "anyOf": [reference_schema("Rows"), reference_schema("Explanation")] }),
        ),
        (
            "Words",
            object_schema(&[("words", array_schema(text_schema())), ("full_text", full_text())]),
        ),
        (
            "SlowStatements",
            object_schema(&[("threshold_ms", number()), ("statements", array_schema(any()))]),
        ),
        (
            "Indexes",
            object_schema(&[(
                "indexes",
                array_schema(object_schema(&[
                    ("name", text_schema()),
                    ("property", text_or_null_schema()),
                    ("state", state),
                    ("detail", any()),
                ])),
            )]),
        ),
        ("DroppedIndexes", object_schema(&[("dropped", number())])),
    ])
}

/// A query as submitted in a request body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmittedQuery {
    #[serde(default)]
    language: QueryLanguage,
    /// The statement, for `sql2` and `xpath`.
    #[serde(default, deserialize_with = "deserialize_present")]
    statement: Option<String>,
    /// The predicates, for `querybuilder`.
    #[serde(default)]
    map: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "deserialize_present")]
    limit: Option<u64>,
    #[serde(default)]
    offset: u64,
    #[serde(default, deserialize_with = "deserialize_present")]
    cursor: Option<String>,
    #[serde(default)]
    explain: QueryExplainMode,
    /// Values of the bind variables in the statement.
    #[serde(default)]
    parameters: BTreeMap<String, Json>,
}

fn query_by_body(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let SubmittedQuery { language, statement, map, limit, offset, cursor, explain, parameters } =
        call.parse_body()?;
    run_query(
        instance,
        call,
        ApiQuery { language, statement, map, limit, offset, cursor, parameters },
        explain,
    )
}

fn query_by_url(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let language = match call.parameter("language") {
        Some("xpath") => QueryLanguage::XPath,
        Some("querybuilder") => QueryLanguage::QueryBuilder,
        _ => QueryLanguage::Sql2,
    };
    let explain = match call.parameter("explain") {
        Some("plan") => QueryExplainMode::Plan,
        Some("analyze") => QueryExplainMode::Analyze,
        _ => QueryExplainMode::None,
    };
    let statement = call.parameter("statement").unwrap_or_default();
    let pairs = statement.split('&').filter_map(|pair| pair.split_once('='));
    let map = match language {
        QueryLanguage::QueryBuilder => {
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        }
        _ => BTreeMap::new(),
    };
    let number = |name: &str| call.parameter(name).and_then(|text| text.parse().ok());
    let api_query = ApiQuery {
        language,
        statement: Some(statement.to_owned()),
        map,
        limit: number("limit"),
        offset: number("offset").unwrap_or(0),
        cursor: call.parameter("cursor").map(str::to_owned),
        parameters: BTreeMap::new(),
    };
    run_query(instance, call, api_query, explain)
}

fn run_query(
    instance: &Instance,
    call: &ApiRequest,
    api_query: ApiQuery,
    explain: QueryExplainMode,
) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    if explain == QueryExplainMode::None {
        return Ok(ApiResponse::json(run_api_query(
            (instance, &call.viewer),
            &snapshot,
            api_query,
        )?));
    }
    call.require_administrator("explain queries, because a plan contains counts of all content")?;
    Ok(ApiResponse::json(explain_api_query(
        (instance, &call.viewer),
        &snapshot,
        api_query,
        explain,
    )?))
}

fn search_full_text(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let text = call.parameter("text").unwrap_or_default();
    if text.trim().is_empty() {
        return Err(RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, "`text` is empty"));
    }
    let names = [("fulltext", "text"), ("path", "path"), ("type", "type")];
    let pairs = names
        .iter()
        .filter_map(|(key, name)| Some(((*key).to_owned(), call.parameter(name)?.to_owned())));
    let mut map: BTreeMap<String, String> = pairs.collect();
    map.insert("p.excerpt".to_owned(), "true".to_owned());
    map.insert("orderby".to_owned(), "@jcr:score".to_owned());
    map.insert("orderby.sort".to_owned(), "desc".to_owned());
    let api_query = ApiQuery {
        language: QueryLanguage::QueryBuilder,
        map,
        limit: Some(call.number_parameter("limit", 20) as u64),
        cursor: call.parameter("cursor").map(str::to_owned),
        ..ApiQuery::default()
    };
    Ok(ApiResponse::json(run_api_query(
        (instance, &call.viewer),
        &call.pin_snapshot()?,
        api_query,
    )?))
}

fn suggest_words(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let prefix = call.parameter("prefix").unwrap_or_default();
    let words = word_suggestions(
        (instance, &call.viewer),
        &call.pin_snapshot()?,
        "suggest",
        "SUGGEST",
        prefix,
    )?;
    Ok(ApiResponse::json(words))
}

fn check_spelling(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let text = call.parameter("text").unwrap_or_default();
    let words = word_suggestions(
        (instance, &call.viewer),
        &call.pin_snapshot()?,
        "spellcheck",
        "SPELLCHECK",
        text,
    )?;
    Ok(ApiResponse::json(words))
}

fn list_slow_queries(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("view the statements of other users")?;
    Ok(ApiResponse::json(describe_slow_statements(instance)))
}

/// Describes slow statements and statements without an index.
pub(crate) fn describe_slow_statements(instance: &Instance) -> Json {
    let threshold = instance.query_engines.administrators.limits().slow_threshold.as_millis();
    let threshold = u64::try_from(threshold).unwrap_or(u64::MAX);
    let statements = instance.query_engines.administrators.slow_statements();
    json!({ "threshold_ms": threshold, "statements": statements })
}

fn list_indexes(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("manage indexes")?;
    Ok(ApiResponse::json(json!({ "indexes": describe_indexes(instance)? })))
}

/// Describes the property indexes.
pub(crate) fn describe_indexes(instance: &Instance) -> Result<Vec<Json>> {
    let status = |status: tympan_content::IndexStatus| {
        let (state, detail) = match status.state {
            IndexState::Ready { entries } => ("ready", json!({ "entries": entries })),
            IndexState::Waiting => ("waiting", json!({})),
            IndexState::Building { documents_done, documents_total } => {
                ("building", json!({ "done": documents_done, "total": documents_total }))
            }
            IndexState::Failed { reason } => ("failed", json!({ "reason": reason })),
        };
        json!({ "name": status.name, "property": status.property, "state": state, "detail": detail })
    };
    Ok(instance.repository.index_statuses()?.into_iter().map(status).collect())
}

fn rebuild_index(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("manage indexes")?;
    let name = call.parameter("name");
    let dropped = instance.repository.drop_indexes(name)?;
    if let (0, Some(name)) = (dropped, name) {
        let message = format!("there is no index `{name}`");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    }
    Ok(ApiResponse::json(json!({ "dropped": dropped })))
}
