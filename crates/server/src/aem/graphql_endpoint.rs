//! GraphQL at AEM's addresses: the endpoint of a site, and the storage of persisted queries. Persisted queries are run by
//! the renderer, as pages are, so that caches hold their answers.
//!
//! In: a query with its variables, or a query to store. Out: AEM's JSON.
//!
//! Invariants
//! * A query changes nothing, so it needs no CSRF token, and visitors of a publisher may send one.
//! * The schema is shown by authors only.
//! * Who may write below `/conf/<site>` may store queries; whoever may not read it gets the answer for a site that does
//!   not exist.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tympan_content::{JcrDate, NodePath, Session, Subtree, Viewer};
use tympan_content_fragments::{
    GraphqlAnswer, GraphqlRequest, MAX_QUERY_BYTES, PersistedQuery, PersistedQueryAddress,
    persisted_queries_folder,
};
use tympan_web::body_limit::limit_body;

use super::aem_request::{authenticate, complete_response, missing_node, read_content};
use super::refusal::method_not_allowed;
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token};
use crate::observe::metrics::increment;
use crate::write::form::{FormFieldValue, parse_urlencoded_form};
use crate::{Instance, InstanceRole};

/// Maximum size of a request: a query in JSON, where each character may be an escape, with its variables.
const MAX_BODY_BYTES: u64 = 8 * MAX_QUERY_BYTES as u64;

/// The body of a request to an endpoint.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointBody {
    query: String,
    operation_name: Option<String>,
    variables: Option<Map<String, Value>>,
}

/// `/content/cq:graphql/<site>/endpoint.json`: runs a query.
pub(super) async fn serve_endpoint(
    State(instance): State<Arc<Instance>>,
    Path(site): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let identity = match instance.identify_reader(&parts).await {
        Ok(None) if instance.role == InstanceRole::Author => {
            return RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first").into_response();
        }
        Ok(identity) => identity,
        Err(failure) => return failure.into_response(),
    };
    let result = answer_query(&instance, identity.as_ref(), site, parts, body).await;
    let mut response = match identity {
        Some(identity) => complete_response(result, identity),
        None => result.unwrap_or_else(IntoResponse::into_response),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    headers.insert("dispatcher", HeaderValue::from_static("no-cache"));
    response
}

async fn answer_query(
    instance: &Arc<Instance>,
    identity: Option<&RequestIdentity>,
    site: String,
    parts: Parts,
    body: Body,
) -> Result<Response> {
    let sent = match parts.method {
        Method::GET | Method::HEAD => read_query_parameters(&parts)?,
        Method::POST => parse_endpoint_body(&read_body(body).await?)?,
        _ => return method_not_allowed("GET, POST"),
    };
    let request = GraphqlRequest {
        query: sent.query,
        operation_name: sent.operation_name.filter(|name| !name.is_empty()),
        variables: sent.variables.unwrap_or_default(),
        text_variables: Vec::new(),
        allows_introspection: instance.role == InstanceRole::Author,
    };
    let viewer = identity.map_or_else(Viewer::anonymous, RequestIdentity::viewer);
    let answer = instance
        .run_work(move |instance| {
            let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
            let endpoint = NodePath::new("/content/cq:graphql")?.child(&site)?.child("endpoint")?;
            if snapshot.node(&endpoint)?.is_none() {
                return Err(missing_node(&endpoint));
            }
            let answer = match instance.renderer.run_graphql(&snapshot, &site, &request) {
                Ok(answer) => answer,
                Err(tympan_content_fragments::Error::Content(error)) => return Err(error.into()),
                Err(error) => GraphqlAnswer::refused(&error.to_string()),
            };
            crate::page::check_snapshot_failure(&snapshot)?;
            Ok(answer)
        })
        .await?;
    Ok(Json(answer.body).into_response())
}

fn read_query_parameters(parts: &Parts) -> Result<EndpointBody> {
    let query = parts.uri.query().unwrap_or_default().as_bytes().to_vec();
    let mut sent = EndpointBody { query: String::new(), operation_name: None, variables: None };
    for field in parse_urlencoded_form(&query.into())? {
        let FormFieldValue::Text(text) = field.value else { continue };
        match &*field.name {
            "query" => sent.query = text,
            "operationName" => sent.operation_name = Some(text),
            "variables" => {
                let variables = serde_json::from_str(&text).map_err(|error| {
                    RequestFailure::bad_request(format!(
                        "`variables` is not a JSON object: {error}"
                    ))
                })?;
                sent.variables = Some(variables);
            }
            _ => {}
        }
    }
    if sent.query.is_empty() {
        return Err(RequestFailure::bad_request("the parameter `query` is missing"));
    }
    Ok(sent)
}

fn parse_endpoint_body(body: &[u8]) -> Result<EndpointBody> {
    if body.trim_ascii_start().starts_with(b"[") {
        let message = "several queries in one request are not run; send a request for each";
        return Err(RequestFailure::bad_request(message));
    }
    serde_json::from_slice(body).map_err(|error| {
        RequestFailure::bad_request(format!("the body is no JSON with a text `query`: {error}"))
    })
}

async fn read_body(body: Body) -> Result<Vec<u8>> {
    let collected = Body::new(limit_body(body, MAX_BODY_BYTES)).collect().await;
    let bytes = collected.map_err(|error| RequestFailure::unreadable_body(&error))?.to_bytes();
    Ok(bytes.to_vec())
}

/// `/graphql/persist.json/<site>/<name>`: stores a query with PUT, replaces one with POST.
pub(super) async fn serve_persist(
    State(instance): State<Arc<Instance>>,
    Path(address): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    match authenticate(&instance, &parts).await {
        Ok((identity, is_token_missing)) => {
            let result = match check_token(&identity, is_token_missing) {
                Ok(()) => persist_query(&instance, &identity, &address, parts, body).await,
                Err(failure) => Err(failure),
            };
            complete_response(result, identity)
        }
        Err(failure) => failure.into_response(),
    }
}

fn check_token(identity: &RequestIdentity, is_token_missing: bool) -> Result<()> {
    match is_token_missing {
        true => check_csrf_token(identity, None),
        false => Ok(()),
    }
}

async fn persist_query(
    instance: &Arc<Instance>,
    identity: &RequestIdentity,
    address: &str,
    parts: Parts,
    body: Body,
) -> Result<Response> {
    let must_exist = match parts.method {
        Method::PUT => false,
        Method::POST => true,
        _ => return method_not_allowed("PUT, POST"),
    };
    let address =
        PersistedQueryAddress::parse(address).filter(|address| address.variables.is_empty());
    let address = address.ok_or_else(|| {
        RequestFailure::bad_request("the address is `/graphql/persist.json/<site>/<name>`")
    })?;
    let body = String::from_utf8(read_body(body).await?)
        .map_err(|_| RequestFailure::bad_request("the query is not UTF-8"))?;
    let query = PersistedQuery::parse(&body)
        .map_err(|error| RequestFailure::unprocessable(error.to_string()))?;
    let viewer = identity.viewer();
    let answer = instance
        .run_work(move |instance| {
            let mut session = instance.repository.session_as(&viewer)?;
            store_query(&mut session, &address, &query, must_exist)
        })
        .await?;
    increment(&instance.metrics.commits);
    let status = if must_exist { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(answer)).into_response())
}

/// Stores a query, with the folders that it needs, and returns AEM's answer.
fn store_query(
    session: &mut Session,
    address: &PersistedQueryAddress,
    query: &PersistedQuery,
    must_exist: bool,
) -> Result<Value> {
    let PersistedQueryAddress { site, name, .. } = address;
    let site_path = NodePath::new("/conf")?.child(site)?;
    if session.node(&site_path)?.is_none() {
        return Err(missing_node(&site_path));
    }
    let folder = persisted_queries_folder(site).map_err(to_bad_request)?;
    let path = folder.child(name)?;
    let exists = session.node(&path)?.is_some();
    if must_exist && !exists {
        return Err(missing_node(&path));
    }
    let settings = site_path.child("settings")?;
    let page = |name: &str| {
        Subtree::new(name, "cq:Page").with_child(Subtree::new("jcr:content", "nt:unstructured"))
    };
    for (path, node) in [
        (settings.clone(), Subtree::new("settings", "sling:Folder")),
        (settings.child("graphql")?, page("graphql")),
        (folder, page("persistentQueries")),
    ] {
        if session.node(&path)?.is_none() {
            session.put_node(&path, node)?;
        }
    }
    let now = SystemTime::now();
    let blobs = session.put_blobs(&[query.query.as_bytes()])?;
    let data = blobs.first().map(|blob| tympan_content::Value::Binary(*blob));
    let data = data.unwrap_or_else(|| tympan_content::Value::String(query.query.clone()));
    session.put_node(&path, query.to_subtree(name, data, JcrDate::from_system_time(now)))?;
    session.commit(&format!("persist query {path}"), now)?;
    Ok(json!({
        "action": if exists { "update" } else { "create" },
        "configurationName": site,
        "name": name,
        "shortPath": format!("/{site}/{name}"),
        "path": path.as_str(),
    }))
}

fn to_bad_request(error: tympan_content_fragments::Error) -> RequestFailure {
    match error {
        tympan_content_fragments::Error::Content(error) => error.into(),
        error => RequestFailure::bad_request(error.to_string()),
    }
}

/// `/graphql/list.json` and `/graphql/list.json/<site>`: lists the stored queries that the user may read.
pub(super) async fn serve_list(
    State(instance): State<Arc<Instance>>,
    site: Option<Path<String>>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    match instance.require_reader(&parts).await {
        Ok(identity) => {
            let site = site.map(|Path(site)| site);
            let result = list_queries(&instance, &identity, site, &parts.method).await;
            complete_response(result, identity)
        }
        Err(failure) => failure.into_response(),
    }
}

async fn list_queries(
    instance: &Arc<Instance>,
    identity: &RequestIdentity,
    site: Option<String>,
    method: &Method,
) -> Result<Response> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return method_not_allowed("GET");
    }
    let list = read_content((instance, identity), move |snapshot| {
        let conf = snapshot.node(&NodePath::new("/conf")?)?;
        let sites = conf.map(|conf| conf.listed_children()).transpose()?.unwrap_or_default();
        let mut list = Vec::new();
        for node in sites {
            if site.as_deref().is_some_and(|site| site != node.name()) {
                continue;
            }
            let folder = persisted_queries_folder(node.name()).map_err(to_bad_request)?;
            let Some(folder) = snapshot.node(&folder)? else { continue };
            let mut queries = Vec::new();
            for stored in folder.children()? {
                let Some(query) = PersistedQuery::read(&stored).map_err(to_bad_request)? else {
                    continue;
                };
                queries.push(json!({
                    "path": {
                        "shortForm": format!("{}/{}", node.name(), stored.name()),
                        "longForm": stored.path().as_str().trim_start_matches("/conf/"),
                    },
                    "data": { "query": query.query, "headers": [] },
                }));
            }
            list.push(json!({ "configurationName": node.name(), "queries": queries }));
        }
        Ok(list)
    })
    .await?;
    Ok(Json(list).into_response())
}
