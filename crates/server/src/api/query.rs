//! Queries, searches, completions, and indexes over the API; also on publishers, where visitors ask.

use std::collections::BTreeMap;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::IndexState;

use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::api::node::given;
use crate::api::schema::{
    array, count as number, named, object, reference, sent, text, text_or_null,
};
use crate::failure::{Failure, Result};
use crate::query::{
    Asked, Explain, FULL_TEXT_WORDS, Language, MAX_LIMIT, answer, explained, words,
};

const LIMIT: Parameter =
    Parameter::new("limit", Kind::Integer(0, MAX_LIMIT), "The most rows. Default 100.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/query",
        id: "query",
        about: "Runs a query: rows as far as the asker may read, page by page. `explain` is for administrators, as a \
                plan counts what is there.",
        parameters: &[
            Parameter::required(
                "statement",
                Kind::Statement,
                "The query; for `querybuilder` its predicates, written like a query string.",
            ),
            Parameter::new(
                "language",
                Kind::Words(&["sql2", "xpath", "querybuilder"]),
                "Default `sql2`.",
            ),
            LIMIT,
            Parameter::new("offset", Kind::Integer(0, i64::MAX as u64), "Rows to skip. Default 0."),
            Parameter::new(
                "cursor",
                Kind::Statement,
                "Where to go on: `cursor` of the page before.",
            ),
            Parameter::new(
                "explain",
                Kind::Words(&["none", "plan", "analyze"]),
                "Tells how the query is run, in place of its rows. Default `none`.",
            ),
        ],
        body: Body::None,
        answers: ANSWERS,
        handler: Handler::Work(ask_by_url),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/query",
        id: "queryByBody",
        about: "The same as `GET`, with values for the statement's variables.",
        parameters: &[],
        body: Body::Question("Query"),
        answers: ANSWERS,
        handler: Handler::Work(ask),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/search",
        id: "search",
        about: "Finds nodes by their text, the best first, each with an excerpt.",
        parameters: &[
            Parameter::required(
                "text",
                Kind::Text,
                "Words, `\"phrases\"`, `-without`, `this OR that`, `begin*`.",
            ),
            Parameter::new("path", Kind::Path, "Only below this node."),
            Parameter::new("type", Kind::Name, "Only nodes of this type."),
            Parameter::new("limit", Kind::Integer(1, 1000), "The most hits. Default 20."),
            Parameter::new(
                "cursor",
                Kind::Statement,
                "Where to go on: `cursor` of the page before.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Rows", "A page of hits.")],
        handler: Handler::Work(search),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/suggest",
        id: "suggest",
        about: "Completes the last word of a text, with words of nodes that the asker may read.",
        parameters: &[Parameter::required("prefix", Kind::Text, "The text.")],
        body: Body::None,
        answers: &[Answer::json("Words", "The completed texts, the most frequent first.")],
        handler: Handler::Work(suggest),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/spellcheck",
        id: "spellcheck",
        about: "Corrects unknown words of a text to words of nodes that the asker may read.",
        parameters: &[Parameter::required("text", Kind::Text, "The text.")],
        body: Body::None,
        answers: &[Answer::json("Words", "The corrected texts; none if all words are known.")],
        handler: Handler::Work(spellcheck),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/query/slow",
        id: "listSlow",
        about: "Lists slow statements, and those without an index. For administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("SlowStatements", "The statements, the costliest first.")],
        handler: Handler::Work(slow),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/indexes",
        id: "listIndexes",
        about: "Tells the state of the property indexes. For administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Indexes", "The indexes.")],
        handler: Handler::Work(indexes),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/indexes/rebuild",
        id: "rebuildIndexes",
        about: "Drops an index, or all of them, to be built anew. For administrators.",
        parameters: &[Parameter::new("name", Kind::Text, "The index. Default: all of them.")],
        body: Body::None,
        answers: &[Answer::json("DroppedIndexes", "How many are built anew.")],
        handler: Handler::Work(rebuild),
    },
];

/// Tells whether an endpoint is one of this part.
pub(crate) fn is_query(endpoint: &Endpoint) -> bool {
    ENDPOINTS.iter().any(|one| one.id == endpoint.id)
}

const ANSWERS: &[Answer] = &[Answer::json("QueryAnswer", "Rows, or how they are found.")];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let any = || json!({ "type": "object" });
    let texts = || json!({ "type": "object", "additionalProperties": text() });
    let limit = json!({ "type": "integer", "minimum": 0, "maximum": MAX_LIMIT });
    let scalar = json!({ "anyOf": [text(), { "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }, { "type": "number" }, { "type": "boolean" }] });
    let row = object(&[
        ("path", text_or_null()),
        ("paths", any()),
        ("score", json!({ "type": ["number", "null"] })),
        ("values", any()),
    ]);
    let explanation = json!({
        "type": "object",
        "properties": { "statement": text(), "steps": array(any()), "order": text(), "text": text() },
        "required": ["statement", "steps", "order", "text"],
    });
    let state = json!({ "enum": ["ready", "waiting", "building", "failed"] });
    let full_text = || json!({ "enum": FULL_TEXT_WORDS });
    named([
        (
            "Query",
            sent(
                &[],
                &[
                    ("language", json!({ "enum": ["sql2", "xpath", "querybuilder"] })),
                    ("statement", text()),
                    ("map", texts()),
                    ("limit", limit),
                    ("offset", json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX })),
                    ("cursor", text()),
                    ("explain", json!({ "enum": ["none", "plan", "analyze"] })),
                    ("parameters", json!({ "type": "object", "additionalProperties": scalar })),
                ],
            ),
        ),
        (
            "Rows",
            object(&[
                ("columns", array(text())),
                ("rows", array(row)),
                ("words", array(text())),
                ("facets", any()),
                ("cursor", text_or_null()),
                ("full_text", full_text()),
            ]),
        ),
        ("Explanation", explanation),
        ("QueryAnswer", json!({ "anyOf": [reference("Rows"), reference("Explanation")] })),
        ("Words", object(&[("words", array(text())), ("full_text", full_text())])),
        ("SlowStatements", object(&[("threshold_ms", number()), ("statements", array(any()))])),
        (
            "Indexes",
            object(&[(
                "indexes",
                array(object(&[
                    ("name", text()),
                    ("property", text_or_null()),
                    ("state", state),
                    ("detail", any()),
                ])),
            )]),
        ),
        ("DroppedIndexes", object(&[("dropped", number())])),
    ])
}

/// A query as it is sent in a body.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    #[serde(default)]
    language: Language,
    /// The statement of `sql2` and `xpath`.
    #[serde(default, deserialize_with = "given")]
    statement: Option<String>,
    /// The predicates of `querybuilder`.
    #[serde(default)]
    map: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "given")]
    limit: Option<u64>,
    #[serde(default)]
    offset: u64,
    #[serde(default, deserialize_with = "given")]
    cursor: Option<String>,
    #[serde(default)]
    explain: Explain,
    /// Values of the statement's variables.
    #[serde(default)]
    parameters: BTreeMap<String, Json>,
}

fn ask(instance: &Instance, call: &Call) -> Result<Reply> {
    let Sent { language, statement, map, limit, offset, cursor, explain, parameters } =
        call.body()?;
    run(
        instance,
        call,
        Asked { language, statement, map, limit, offset, cursor, parameters },
        explain,
    )
}

fn ask_by_url(instance: &Instance, call: &Call) -> Result<Reply> {
    let language = match call.text("language") {
        Some("xpath") => Language::XPath,
        Some("querybuilder") => Language::QueryBuilder,
        _ => Language::Sql2,
    };
    let explain = match call.text("explain") {
        Some("plan") => Explain::Plan,
        Some("analyze") => Explain::Analyze,
        _ => Explain::None,
    };
    let statement = call.text("statement").unwrap_or_default();
    let pairs = statement.split('&').filter_map(|pair| pair.split_once('='));
    let map = match language {
        Language::QueryBuilder => {
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        }
        _ => BTreeMap::new(),
    };
    let number = |name: &str| call.text(name).and_then(|text| text.parse().ok());
    let asked = Asked {
        language,
        statement: Some(statement.to_owned()),
        map,
        limit: number("limit"),
        offset: number("offset").unwrap_or(0),
        cursor: call.text("cursor").map(str::to_owned),
        parameters: BTreeMap::new(),
    };
    run(instance, call, asked, explain)
}

fn run(instance: &Instance, call: &Call, asked: Asked, explain: Explain) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    if explain == Explain::None {
        return Ok(Reply::json(answer((instance, &call.viewer), &snapshot, asked)?));
    }
    call.require_administrator("ask how a query is run, as that counts what is there")?;
    Ok(Reply::json(explained((instance, &call.viewer), &snapshot, asked, explain)?))
}

fn search(instance: &Instance, call: &Call) -> Result<Reply> {
    let text = call.text("text").unwrap_or_default();
    if text.trim().is_empty() {
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "`text` is empty"));
    }
    let names = [("fulltext", "text"), ("path", "path"), ("type", "type")];
    let given = names
        .iter()
        .filter_map(|(key, name)| Some(((*key).to_owned(), call.text(name)?.to_owned())));
    let mut map: BTreeMap<String, String> = given.collect();
    map.insert("p.excerpt".to_owned(), "true".to_owned());
    map.insert("orderby".to_owned(), "@jcr:score".to_owned());
    map.insert("orderby.sort".to_owned(), "desc".to_owned());
    let asked = Asked {
        language: Language::QueryBuilder,
        map,
        limit: Some(call.number("limit", 20) as u64),
        cursor: call.text("cursor").map(str::to_owned),
        ..Asked::default()
    };
    Ok(Reply::json(answer((instance, &call.viewer), &call.snapshot()?, asked)?))
}

fn suggest(instance: &Instance, call: &Call) -> Result<Reply> {
    let prefix = call.text("prefix").unwrap_or_default();
    let words = words((instance, &call.viewer), &call.snapshot()?, "suggest", "SUGGEST", prefix)?;
    Ok(Reply::json(words))
}

fn spellcheck(instance: &Instance, call: &Call) -> Result<Reply> {
    let text = call.text("text").unwrap_or_default();
    let words =
        words((instance, &call.viewer), &call.snapshot()?, "spellcheck", "SPELLCHECK", text)?;
    Ok(Reply::json(words))
}

fn slow(instance: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("see the statements of others")?;
    let threshold = instance.query_engines.administrators.limits().slow.as_millis();
    let threshold = u64::try_from(threshold).unwrap_or(u64::MAX);
    let statements = instance.query_engines.administrators.slow();
    Ok(Reply::json(json!({ "threshold_ms": threshold, "statements": statements })))
}

fn indexes(instance: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("look after indexes")?;
    let status = |status: tympan_content::IndexStatus| {
        let (state, detail) = match status.state {
            IndexState::Ready { entries } => ("ready", json!({ "entries": entries })),
            IndexState::Waiting => ("waiting", json!({})),
            IndexState::Building { done, total } => {
                ("building", json!({ "done": done, "total": total }))
            }
            IndexState::Failed { reason } => ("failed", json!({ "reason": reason })),
        };
        json!({ "name": status.name, "property": status.property, "state": state, "detail": detail })
    };
    let statuses = instance.repository.index_statuses()?.into_iter().map(status);
    Ok(Reply::json(json!({ "indexes": statuses.collect::<Vec<_>>() })))
}

fn rebuild(instance: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("look after indexes")?;
    let name = call.text("name");
    let dropped = instance.repository.drop_indexes(name)?;
    if let (0, Some(name)) = (dropped, name) {
        let message = format!("there is no index `{name}`");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    Ok(Reply::json(json!({ "dropped": dropped })))
}
