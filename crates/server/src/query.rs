//! Queries over HTTP: AEM's `/bin/querybuilder.json`, and the code that the JSON API (`api::query`) shares with it.
//!
//! In: a statement or a map of predicates, and the user. Out: rows as far as the user may read them, with a cursor.
//!
//! An invalid query results in 400 with the error and its column. A query stopped by a limit results in 422 with the
//! name of the limit.

pub(crate) mod budget;
pub(crate) mod index_maintenance;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Form, Query as UrlQuery, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tympan_content::{JcrDate, Node, Property, Snapshot, Value as Stored, Viewer};
use tympan_content_query::{
    BuilderQuery, ContentQuery, Error, FullTextIndexStatus, QueryColumn, QueryColumnContent,
    QueryEngine, QueryPage, QueryRequest, QueryRow, parse_sql2, parse_xpath,
};

use crate::failure::{RequestFailure, Result};
use crate::{Instance, InstanceRole};

/// Default and maximum number of rows in a page.
const DEFAULT_QUERY_LIMIT: u64 = 100;
pub(crate) const MAX_QUERY_LIMIT: u64 = 10_000;
/// Maximum total number of nodes of all hits in a response, if hits include their descendants.
const MAX_HIT_NODES: usize = 200_000;
/// The same limit for anonymous visitors.
const MAX_VISITOR_HIT_NODES: usize = 5_000;

/// Returns the routes of queries.
pub(crate) fn query_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/querybuilder.json", get(serve_query_builder).post(serve_query_builder_form))
}

impl Instance {
    /// Returns the engine for a viewer's query.
    pub(crate) fn query_engine_for(&self, viewer: &Viewer) -> Result<&QueryEngine> {
        self.query_engines.engine_for(viewer, || self.is_administrator(viewer))
    }

    /// Returns true if queries of anonymous visitors are allowed.
    fn are_visitor_queries_allowed(&self) -> bool {
        self.role == InstanceRole::Publish && self.query_engines.allows_visitors()
    }
}

/// A query of the JSON API.
#[derive(Debug, Default)]
pub(crate) struct ApiQuery {
    pub(crate) language: QueryLanguage,
    /// The statement, for `sql2` and `xpath`.
    pub(crate) statement: Option<String>,
    /// The predicates, for `querybuilder`.
    pub(crate) map: BTreeMap<String, String>,
    pub(crate) limit: Option<u64>,
    pub(crate) offset: u64,
    pub(crate) cursor: Option<String>,
    /// Values of the bind variables in the statement.
    pub(crate) parameters: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueryLanguage {
    #[default]
    Sql2,
    XPath,
    QueryBuilder,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueryExplainMode {
    #[default]
    None,
    Plan,
    Analyze,
}

/// Returns the viewer of a query; an author requires a login.
async fn query_viewer(instance: &Instance, parts: &Parts) -> Result<Viewer> {
    if instance.role == InstanceRole::Author {
        let identity = instance.require_reader(parts).await?;
        return Ok(identity.viewer());
    }
    match instance.identify_reader(parts).await? {
        Some(identity) => Ok(identity.viewer()),
        None => {
            require_queries_allowed(instance)?;
            Ok(Viewer::anonymous())
        }
    }
}

/// Refuses queries of anonymous visitors, unless the site allows them.
///
/// # Errors
/// Forbidden.
pub(crate) fn require_queries_allowed(instance: &Instance) -> Result<()> {
    match instance.are_visitor_queries_allowed() {
        true => Ok(()),
        false => {
            let message = "queries require a login; log in first";
            Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
        }
    }
}

/// Runs a query of the API.
pub(crate) fn run_api_query(
    (instance, viewer): (&Instance, &Viewer),
    snapshot: &Snapshot,
    api_query: ApiQuery,
) -> Result<Value> {
    let engine = instance.query_engine_for(viewer)?;
    let page = engine.query_page(snapshot, &query_request_of(api_query)?).map_err(query_failure)?;
    check_snapshot_readable(snapshot)?;
    let rows =
        page.rows.iter().map(|row| row_json(row, &page.columns)).collect::<Result<Vec<_>>>()?;
    Ok(json!({
        "columns": page.columns.iter().map(column_name).collect::<Vec<_>>(),
        "rows": rows,
        "words": page.suggestions,
        "facets": facets_json(&page),
        "cursor": page.cursor,
        "full_text": full_text_status(page.full_text_status),
    }))
}

/// Explains how a query of the API is executed.
pub(crate) fn explain_api_query(
    (instance, viewer): (&Instance, &Viewer),
    snapshot: &Snapshot,
    api_query: ApiQuery,
    explain: QueryExplainMode,
) -> Result<Value> {
    let is_run = explain == QueryExplainMode::Analyze;
    let engine = instance.query_engine_for(viewer)?;
    let explained = engine.explain(snapshot, &query_request_of(api_query)?, is_run);
    let explanation = explained.map_err(query_failure)?;
    let mut response_body = serde_json::to_value(&explanation).unwrap_or_default();
    if let Some(response_body) = response_body.as_object_mut() {
        response_body.insert("text".to_owned(), explanation.to_string().into());
    }
    Ok(response_body)
}

/// The possible states of the full-text index in a response.
pub(crate) const FULL_TEXT_STATUSES: [&str; 4] = ["none", "ready", "behind", "building"];

/// Returns the state of the full-text index for a response; with `building`, hits that only the index can find are
/// missing.
fn full_text_status(words_by: FullTextIndexStatus) -> &'static str {
    let [none, ready_status, behind, building] = FULL_TEXT_STATUSES;
    match words_by {
        FullTextIndexStatus::Unused => none,
        FullTextIndexStatus::Current => ready_status,
        FullTextIndexStatus::Stale => behind,
        FullTextIndexStatus::Building => building,
    }
}

/// Returns completions or corrections of a text, and the state of the full-text index.
pub(crate) fn word_suggestions(
    (instance, viewer): (&Instance, &Viewer),
    snapshot: &Snapshot,
    column: &str,
    function: &str,
    text: &str,
) -> Result<Value> {
    let statement = format!("SELECT [rep:{column}()] FROM [nt:base] WHERE {function}($text)");
    let parameters = BTreeMap::from([("text".to_owned(), text.into())]);
    let api_query = ApiQuery { statement: Some(statement), parameters, ..ApiQuery::default() };
    let engine = instance.query_engine_for(viewer)?;
    let page = engine.query_page(snapshot, &query_request_of(api_query)?).map_err(query_failure)?;
    check_snapshot_readable(snapshot)?;
    Ok(json!({ "words": page.suggestions, "full_text": full_text_status(page.full_text_status) }))
}

fn query_request_of(api_query: ApiQuery) -> Result<QueryRequest<'static>> {
    Ok(QueryRequest {
        query: parse_query(&api_query)?,
        variables: api_query
            .parameters
            .iter()
            .map(|(name, value)| Ok((name.clone(), variable_value(value)?)))
            .collect::<Result<_>>()?,
        limit: Some(api_query.limit.unwrap_or(DEFAULT_QUERY_LIMIT).min(MAX_QUERY_LIMIT)),
        offset: api_query.offset,
        cursor: api_query.cursor,
        component: "/api/v1/query",
    })
}

fn parse_query(api_query: &ApiQuery) -> Result<ContentQuery> {
    let statement = || {
        api_query
            .statement
            .as_deref()
            .ok_or_else(|| RequestFailure::bad_request("`statement` is missing"))
    };
    let parsed = match api_query.language {
        QueryLanguage::Sql2 => parse_sql2(statement()?),
        QueryLanguage::XPath => parse_xpath(statement()?),
        QueryLanguage::QueryBuilder => {
            let now = JcrDate::from_system_time(SystemTime::now());
            BuilderQuery::parse(&api_query.map, now).map(|built| built.query)
        }
    };
    parsed.map_err(|error| query_failure(error.into()))
}

fn variable_value(value: &Value) -> Result<Stored> {
    Ok(match value {
        Value::String(text) => Stored::String(text.clone()),
        Value::Bool(truth) => Stored::Boolean(*truth),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Stored::Long(number),
            (None, Some(number)) => Stored::Double(number),
            (None, None) => {
                return Err(RequestFailure::bad_request("a parameter is not a 64-bit number"));
            }
        },
        _ => {
            return Err(RequestFailure::bad_request(
                "a parameter must be a string, a number or a Boolean",
            ));
        }
    })
}

/// Converts a query error to a response that explains it.
fn query_failure(error: Error) -> RequestFailure {
    match &error {
        Error::Syntax(_) => RequestFailure::bad_request(error.to_string()),
        Error::QueryRefused { .. } | Error::QueryLimit { .. } => {
            RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
        }
        _ => error.into(),
    }
}

/// Returns an error if a document could not be read for the response.
fn check_snapshot_readable(snapshot: &Snapshot) -> Result<()> {
    match snapshot.failure() {
        Some(error) => {
            tracing::error!(reason = %error, "query failed");
            let message = "internal server error; see the error log of the server";
            Err(RequestFailure::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
        None => Ok(()),
    }
}

fn column_name(column: &QueryColumn) -> String {
    if let Some(alias) = &column.alias {
        return alias.clone();
    }
    let content = match &column.content {
        QueryColumnContent::All => "*".to_owned(),
        QueryColumnContent::Property(name) => name.clone(),
        QueryColumnContent::Excerpt(_) => "rep:excerpt()".to_owned(),
        QueryColumnContent::Facet(name) => format!("rep:facet({name})"),
        QueryColumnContent::Suggest => "rep:suggest()".to_owned(),
        QueryColumnContent::Spellcheck => "rep:spellcheck()".to_owned(),
    };
    format!("{}.{content}", column.selector)
}

fn row_json(row: &QueryRow, columns: &[QueryColumn]) -> Result<Value> {
    let paths: Map<String, Value> = row
        .nodes
        .iter()
        .map(|(name, node)| (name.clone(), node.as_ref().map(|node| node.path().as_str()).into()))
        .collect();
    let mut values = Map::new();
    for column in columns {
        let value = match &column.content {
            QueryColumnContent::All => {
                let node = row.nodes.iter().find(|(name, _)| *name == column.selector);
                node.and_then(|(_, node)| node.as_ref()).map(properties_json)
            }
            _ => row.column_value(column)?.map(|property| property_json(&property)),
        };
        values.insert(column_name(column), value.unwrap_or_default());
    }
    let path = row.node().map(|node| node.path().as_str());
    Ok(json!({ "path": path, "paths": paths, "score": row.score, "values": values }))
}

fn properties_json(node: &Node) -> Value {
    let properties = node.properties().into_iter();
    properties
        .map(|(name, property)| (name, property_json(&property)))
        .collect::<Map<_, _>>()
        .into()
}

fn property_json(property: &Property) -> Value {
    let to_json = |value: &Stored| match value {
        Stored::Long(number) => (*number).into(),
        Stored::Double(number) => (*number).into(),
        Stored::Boolean(truth) => (*truth).into(),
        other => Value::from(other.to_text()),
    };
    if property.is_list() {
        return property.values().iter().map(to_json).collect::<Vec<_>>().into();
    }
    property.first().map(to_json).unwrap_or_default()
}

fn facets_json(page: &QueryPage) -> Value {
    let facet = |(name, values): &(String, Vec<(String, u64)>)| {
        let values = values.iter().map(|(value, count)| json!({ "value": value, "count": count }));
        (name.clone(), Value::Array(values.collect()))
    };
    page.facets.iter().map(facet).collect::<Map<_, _>>().into()
}

async fn serve_query_builder(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let (parts, _) = request.into_parts();
    let viewer = query_viewer(&instance, &parts).await?;
    let parameters = UrlQuery::<BTreeMap<String, String>>::try_from_uri(&parts.uri)
        .map_err(|error| RequestFailure::bad_request(error.body_text()))?;
    let body = instance
        .run_work(move |instance| run_query_builder(instance, &viewer, &parameters.0))
        .await?;
    Ok(Json(body).into_response())
}

async fn serve_query_builder_form(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let viewer = query_viewer(&instance, &parts).await?;
    let request = Request::from_parts(parts, body);
    let form = <Form<BTreeMap<String, String>> as axum::extract::FromRequest<_>>::from_request(
        request, &instance,
    )
    .await
    .map_err(|error| RequestFailure::bad_request(error.body_text()))?;
    let body =
        instance.run_work(move |instance| run_query_builder(instance, &viewer, &form.0)).await?;
    Ok(Json(body).into_response())
}

/// Returns the response in the format of AEM's QueryBuilder.
fn run_query_builder(
    instance: &Instance,
    viewer: &Viewer,
    map: &BTreeMap<String, String>,
) -> Result<Value> {
    let snapshot = instance.repository.snapshot()?.as_viewer(viewer);
    let now = JcrDate::from_system_time(SystemTime::now());
    let built = BuilderQuery::parse(map, now).map_err(|error| query_failure(error.into()))?;
    let limit = built.limit.unwrap_or(MAX_QUERY_LIMIT).min(MAX_QUERY_LIMIT);
    let request = QueryRequest {
        limit: Some(limit),
        offset: built.offset,
        component: "/bin/querybuilder.json",
        ..QueryRequest::new(built.query.clone())
    };
    let engine = instance.query_engine_for(viewer)?;
    let page = engine.query_page(&snapshot, &request).map_err(query_failure)?;
    check_snapshot_readable(&snapshot)?;
    let end_offset = built.offset.saturating_add(page.rows.len() as u64);
    let more = page.cursor.is_some();
    // Counting all hits requires reading all of them; with a guess, no more hits are counted than requested.
    let total = match (more, built.guess_total) {
        (false, _) => end_offset,
        (true, Some(bound)) => engine
            .count_rows(&snapshot, &built.query, bound.max(end_offset + 1))
            .map_err(query_failure)?,
        (true, None) => {
            engine.count_rows(&snapshot, &built.query, u64::MAX).map_err(query_failure)?
        }
    };
    let mut left = if viewer.is_anonymous() { MAX_VISITOR_HIT_NODES } else { MAX_HIT_NODES };
    let hits =
        page.rows.iter().filter_map(QueryRow::node).map(|node| hit_json(node, &built, &mut left));
    let mut response_body = json!({
        "success": true,
        "results": page.rows.len(),
        "total": total,
        "more": more,
        "offset": built.offset,
        "hits": hits.collect::<Result<Vec<_>>>()?,
    });
    if let Some(response_body) = response_body.as_object_mut() {
        if built.count_facets {
            response_body.insert("facets".to_owned(), facets_json(&page));
        }
        // AEM clients expect only AEM's own fields unless there is something to report.
        if page.full_text_status == FullTextIndexStatus::Building {
            response_body
                .insert("fullText".to_owned(), full_text_status(page.full_text_status).into());
        }
    }
    Ok(response_body)
}

/// Describes a hit. `left` is the number of nodes that may still be added; it is decremented for each node.
fn hit_json(node: &Node, built: &BuilderQuery, left: &mut usize) -> Result<Value> {
    match &*built.hit_format {
        "full" => full_hit_json(node, built.node_depth.min(10), left),
        "selective" => {
            let mut hit = Map::new();
            for name in &built.hit_properties {
                let (parents, leaf) = name.rsplit_once('/').unwrap_or(("", name));
                let value = match (name.as_str(), node.find_descendant(parents)?) {
                    ("path" | "jcr:path", _) => Some(node.path().as_str().into()),
                    ("name", _) => Some(node.name().into()),
                    (_, Some(node)) => node.property(leaf).as_ref().map(property_json),
                    (_, None) => None,
                };
                hit.extend(value.map(|value| (name.clone(), value)));
            }
            Ok(hit.into())
        }
        _ => simple_hit_json(node),
    }
}

fn full_hit_json(node: &Node, depth: u32, left: &mut usize) -> Result<Value> {
    *left = left.checked_sub(1).ok_or_else(|| {
        let message =
            "the hits have too many nodes for one response; reduce `p.limit` or `p.nodedepth`";
        RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    })?;
    let mut hit = Map::new();
    hit.insert("jcr:path".to_owned(), node.path().as_str().into());
    if let Value::Object(properties) = properties_json(node) {
        hit.extend(properties);
    }
    if depth > 0 {
        for child in node.children()? {
            let name = child.name().to_owned();
            hit.insert(name, full_hit_json(&child, depth - 1, left)?);
        }
    }
    Ok(hit.into())
}

fn simple_hit_json(node: &Node) -> Result<Value> {
    let content = node.content_node()?;
    let of_content = |name: &str| {
        let own = content.as_ref().and_then(|content| content.property(name));
        own.or_else(|| node.property(name))
    };
    let date = |names: [&str; 2]| {
        let values = names.into_iter().find_map(of_content);
        values.map_or_else(String::new, |values| {
            values.first().map(|value| value.to_text().into_owned()).unwrap_or_default()
        })
    };
    let title = of_content("jcr:title");
    let title = title.as_ref().and_then(Property::first).map(|title| title.to_text().into_owned());
    Ok(json!({
        "path": node.path().as_str(),
        "excerpt": "",
        "name": node.name(),
        "title": title.unwrap_or_else(|| node.name().to_owned()),
        "lastModified": date(["cq:lastModified", "jcr:lastModified"]),
        "created": date(["jcr:created", "jcr:created"]),
    }))
}
