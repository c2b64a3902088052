//! Dispatch of a request to its endpoint: login, CSRF check, parameters and body; and conversion of the response to
//! HTTP.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body as HttpBody;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use serde_json::Value;
use tympan_content::{JcrDate, NodePath, Viewer, check_item_name};
use tympan_web::body_limit::limit_body;
use tympan_web::disconnect_detection::DisconnectDetection;
use tympan_web::listen::ConnectionPeer;

use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointParameter, JsonApiResponse,
    MAX_JSON_BYTES, ParameterKind, RequestBodySpec,
};
use crate::api::{entity_tag, query};
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token, check_request_origin, sent_csrf_token};
use crate::query::require_queries_allowed;
use crate::{Instance, InstanceRole};

/// Maximum length of a parameter's text, in characters.
const MAX_PARAMETER_CHARS: usize = 4096;

/// Handles a request to an endpoint.
pub(crate) async fn handle_request(
    endpoint: &'static Endpoint,
    instance: Arc<Instance>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let identity = match authenticate_request(endpoint, &instance, &parts).await {
        Ok(identity) => identity,
        Err(failure) => return failure.into_problem_response(),
    };
    let headers = parts.headers.clone();
    let mut response = match run_handler(endpoint, &instance, identity.clone(), parts, body).await {
        Ok(ApiResponse::Json(reply)) => to_http_response(&headers, reply),
        Ok(ApiResponse::Http(response)) => response,
        Err(failure) => failure.into_problem_response(),
    };
    response
        .headers_mut()
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("private, no-cache"));
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    response
}

/// Authenticates the user and, for a write, checks that no other site made the browser send it.
///
/// A publisher also serves anonymous visitors: its few endpoints show what visitors may read.
async fn authenticate_request(
    endpoint: &Endpoint,
    instance: &Arc<Instance>,
    parts: &Parts,
) -> Result<Option<RequestIdentity>> {
    let identity = match instance.role {
        InstanceRole::Author => instance.require_reader(parts).await?,
        InstanceRole::Publish => match instance.identify_reader(parts).await? {
            Some(identity) => identity,
            None => {
                if query::is_query_endpoint(endpoint) {
                    require_queries_allowed(instance)?;
                }
                return Ok(None);
            }
        },
    };
    if endpoint.is_write() {
        identity.require_write_scope()?;
        check_csrf_token(&identity, sent_csrf_token(&parts.headers))?;
        check_request_origin(&identity, &parts.headers)?;
    }
    Ok(Some(identity))
}

async fn run_handler(
    endpoint: &'static Endpoint,
    instance: &Arc<Instance>,
    identity: Option<RequestIdentity>,
    parts: Parts,
    body: HttpBody,
) -> Result<ApiResponse> {
    let query = parts.uri.query().unwrap_or_default();
    let mut parameters = parse_parameters(endpoint.parameters, query)?;
    check_headers(endpoint, &parts.headers)?;
    let viewer = identity.as_ref().map_or_else(Viewer::anonymous, RequestIdentity::viewer);
    let (mut json, mut stream) = (Bytes::new(), None);
    match endpoint.body {
        RequestBodySpec::None => {}
        RequestBodySpec::Json(_) | RequestBodySpec::QueryJson(_) | RequestBodySpec::Patch(_) => {
            json = read_json_body(endpoint, &parts.headers, body).await?
        }
        RequestBodySpec::Form(fields) => {
            parameters.extend(read_form_body(fields, &parts.headers, body).await?)
        }
        RequestBodySpec::Text | RequestBodySpec::Bytes => stream = Some(body),
    }
    let call = ApiRequest {
        instance: Arc::clone(instance),
        identity,
        viewer,
        peer: parts.extensions.get::<ConnectionPeer>().copied(),
        disconnect_detection: parts.extensions.get::<DisconnectDetection>().cloned(),
        headers: parts.headers,
        parameters,
        json_body: json,
        body_stream: Mutex::new(stream),
        now: SystemTime::now(),
    };
    run_endpoint(endpoint, instance, call).await
}

async fn run_endpoint(
    endpoint: &'static Endpoint,
    instance: &Arc<Instance>,
    call: ApiRequest,
) -> Result<ApiResponse> {
    match endpoint.handler {
        EndpointHandler::Blocking(work) => {
            instance.run_work(move |instance| work(instance, &call)).await
        }
        EndpointHandler::Async(task) => task(call).await,
        EndpointHandler::Route(_) => {
            Err(RequestFailure::new(StatusCode::NOT_FOUND, "this endpoint has its own handler"))
        }
    }
}

/// Calls an endpoint for a request to another address. The caller has authenticated the user and, for a write, checked
/// that no other site made the browser send it. Parameters are those of the query or the form; `body` is the JSON body,
/// or null. Returns the JSON of the response, or null.
///
/// # Errors
/// As the endpoint itself, with the same statuses.
pub(crate) async fn call_endpoint(
    endpoint: &'static Endpoint,
    (instance, identity): (&Arc<Instance>, &RequestIdentity),
    parameters: &[(&str, &str)],
    body: &Value,
) -> Result<Value> {
    let definitions = match endpoint.body {
        RequestBodySpec::Form(fields) => fields,
        _ => endpoint.parameters,
    };
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs =
        parameters.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    let parameters = parse_parameters(definitions, &pairs.collect::<Vec<_>>().join("&"))?;
    let call = ApiRequest {
        instance: Arc::clone(instance),
        identity: Some(identity.clone()),
        viewer: identity.viewer(),
        peer: None,
        disconnect_detection: None,
        headers: HeaderMap::new(),
        parameters,
        json_body: if body.is_null() { Bytes::new() } else { body.to_string().into() },
        body_stream: Mutex::new(None),
        now: SystemTime::now(),
    };
    match run_endpoint(endpoint, instance, call).await? {
        ApiResponse::Json(reply) => Ok(reply.value),
        ApiResponse::Http(_) => Ok(Value::Null),
    }
}

/// Calls an endpoint that reads, for the viewer of another request, with the parameters of a query string. The caller has
/// made sure that the endpoint answers with JSON.
///
/// # Errors
/// As the endpoint itself, with the same statuses.
pub(crate) async fn read_json(
    endpoint: &'static Endpoint,
    request: &ApiRequest,
    query: &str,
) -> Result<JsonApiResponse> {
    let parameters = parse_parameters(endpoint.parameters, query)?;
    let waits = |definition: &EndpointParameter| {
        matches!(definition.kind, ParameterKind::Seconds(_))
            && parameters.iter().any(|(name, _)| name == definition.name)
    };
    if endpoint.parameters.iter().any(waits) {
        return Err(RequestFailure::bad_request("a read that waits must be requested alone"));
    }
    // Of the headers, the read has what says who asks; conditions and accepted types are those of the whole request.
    let mut headers = HeaderMap::new();
    for name in [header::AUTHORIZATION, header::COOKIE] {
        for value in request.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let call = ApiRequest {
        instance: Arc::clone(&request.instance),
        identity: request.identity.clone(),
        viewer: request.viewer.clone(),
        peer: request.peer,
        disconnect_detection: None,
        headers,
        parameters,
        json_body: Bytes::new(),
        body_stream: Mutex::new(None),
        now: request.now,
    };
    match run_endpoint(endpoint, &request.instance, call).await? {
        ApiResponse::Json(reply) => Ok(reply),
        ApiResponse::Http(_) => {
            Err(RequestFailure::bad_request("this read has no JSON; request it alone"))
        }
    }
}

/// Returns the entity tag that the response has when it is sent.
pub(crate) fn entity_tag_of(reply: &JsonApiResponse) -> String {
    entity_tag::response_tag(reply.tag.as_deref(), reply.value.to_string().as_bytes())
}

/// Reads a JSON body.
async fn read_json_body(endpoint: &Endpoint, headers: &HeaderMap, body: HttpBody) -> Result<Bytes> {
    let essence = media_type_of(headers);
    let is_patch = matches!(endpoint.body, RequestBodySpec::Patch(_));
    let fits = essence.eq_ignore_ascii_case("application/json")
        || (is_patch && essence.eq_ignore_ascii_case("application/merge-patch+json"));
    if !fits {
        let message = "the body must be JSON, with `Content-Type: application/json`";
        return Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    read_whole_body(body).await
}

/// Reads the fields of a form.
async fn read_form_body(
    fields: &'static [EndpointParameter],
    headers: &HeaderMap,
    body: HttpBody,
) -> Result<Vec<(String, String)>> {
    if !media_type_of(headers).eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let message =
            "the body must be a form, with `Content-Type: application/x-www-form-urlencoded`";
        return Err(RequestFailure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = read_whole_body(body).await?;
    let text = std::str::from_utf8(&body).map_err(|_| {
        RequestFailure::bad_request(
            "the form must be ASCII, with all other characters percent-encoded",
        )
    })?;
    parse_parameters(fields, text)
}

fn media_type_of(headers: &HeaderMap) -> &str {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

async fn read_whole_body(body: HttpBody) -> Result<Bytes> {
    let collected = HttpBody::new(limit_body(body, MAX_JSON_BYTES)).collect().await;
    Ok(collected.map_err(|error| RequestFailure::unreadable_body(&error))?.to_bytes())
}

/// Parses a query string or a form against the parameters that the endpoint knows.
fn parse_parameters(
    definitions: &[EndpointParameter],
    query: &str,
) -> Result<Vec<(String, String)>> {
    let query_definitions: Vec<&EndpointParameter> =
        definitions.iter().filter(|definition| !definition.kind.is_header()).collect();
    let mut values: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode_percent(name)?, decode_percent(value)?);
        let Some(parameter) = query_definitions.iter().find(|definition| definition.name == name)
        else {
            return Err(unknown_parameter_failure(&name, &query_definitions));
        };
        if !parameter.kind.is_repeatable() && values.iter().any(|(before, _)| *before == name) {
            return Err(RequestFailure::bad_request(format!("`{name}` is given twice")));
        }
        check_parameter_value(parameter, &value)?;
        values.push((name, value));
    }
    let is_missing = |definition: &&&EndpointParameter| {
        definition.is_required && !values.iter().any(|(name, _)| name == definition.name)
    };
    match query_definitions.iter().find(is_missing) {
        Some(missing) => {
            let message = format!("the parameter `{}` is missing", missing.name);
            Err(RequestFailure::bad_request(message))
        }
        None => Ok(values),
    }
}

fn decode_percent(text: &str) -> Result<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8();
    let decoded =
        decoded.map_err(|_| RequestFailure::bad_request("the parameters are not UTF-8"))?;
    Ok(decoded.into_owned())
}

/// Returns the failure for a parameter that the endpoint does not know.
fn unknown_parameter_failure(name: &str, definitions: &[&EndpointParameter]) -> RequestFailure {
    let name: String = name.chars().take(100).collect();
    let names: Vec<&str> = definitions.iter().map(|definition| definition.name).collect();
    let distances =
        names.iter().map(|candidate| (strsim::levenshtein(&name, candidate), *candidate));
    let nearest = distances.min();
    let hint = match nearest {
        Some((away, nearest)) if away <= 3 => format!("did you mean `{nearest}`?"),
        Some(_) => format!("it takes {}", names.join(", ")),
        None => "it takes none".to_owned(),
    };
    RequestFailure::bad_request(format!("`{name}` is not a parameter of this endpoint: {hint}"))
}

/// Checks a value against the type of its parameter.
fn check_parameter_value(parameter: &EndpointParameter, value: &str) -> Result<()> {
    let expected = match parameter.kind {
        ParameterKind::Text
        | ParameterKind::Texts
        | ParameterKind::Header
        | ParameterKind::HeaderKeyword(_) => {
            let fits = value.chars().count() <= MAX_PARAMETER_CHARS && !value.contains('\0');
            (!fits).then(|| format!("a string of at most {MAX_PARAMETER_CHARS} characters"))
        }
        ParameterKind::NonEmptyText => {
            let fits =
                (1..=MAX_PARAMETER_CHARS).contains(&value.chars().count()) && !value.contains('\0');
            (!fits).then(|| format!("a string of 1 to {MAX_PARAMETER_CHARS} characters"))
        }
        ParameterKind::Pairs => {
            let is_pair = value.split_once('=').is_some_and(|(name, _)| !name.is_empty());
            let fits =
                is_pair && value.chars().count() <= MAX_PARAMETER_CHARS && !value.contains('\0');
            (!fits).then(|| format!("`name=value`, of at most {MAX_PARAMETER_CHARS} characters"))
        }
        ParameterKind::Path => return Ok(NodePath::new(value).map(drop)?),
        ParameterKind::Name => return Ok(check_item_name(value)?),
        ParameterKind::Integer(least, most) => {
            let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|_| is_plain);
            let fits = number.is_some_and(|number| (least..=most).contains(&number));
            (!fits).then(|| format!("a number from {least} to {most}"))
        }
        ParameterKind::Flag => {
            (!matches!(value, "true" | "false")).then(|| "true or false".to_owned())
        }
        ParameterKind::Statement => {
            value.contains('\0').then(|| "a string without U+0000".to_owned())
        }
        ParameterKind::Time => return Ok(JcrDate::parse(value).map(drop)?),
        // The handler parses these and reports errors.
        ParameterKind::Patterns | ParameterKind::Cursor | ParameterKind::ListPosition => None,
        ParameterKind::Keyword(words) | ParameterKind::Keywords(words) => {
            (!words.contains(&value)).then(|| format!("one of {}", words.join(", ")))
        }
        ParameterKind::Seconds(most) => {
            let digits = value.strip_suffix('s').unwrap_or_default();
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let fits = is_plain && digits.parse::<u64>().is_ok_and(|number| number <= most);
            (!fits).then(|| format!("whole seconds from `0s` to `{most}s`"))
        }
    };
    match expected {
        Some(expected) => {
            Err(RequestFailure::bad_request(format!("`{}` must be {expected}", parameter.name)))
        }
        None => Ok(()),
    }
}

/// Checks headers that have one possible value, and refuses a precondition that the endpoint would ignore.
fn check_headers(endpoint: &Endpoint, headers: &HeaderMap) -> Result<()> {
    let takes = |name: &str| endpoint.parameters.iter().any(|parameter| parameter.name == name);
    if endpoint.is_write() && headers.contains_key(header::IF_MATCH) && !takes("If-Match") {
        let message = "this endpoint does not support `If-Match`; send the request without it";
        return Err(RequestFailure::bad_request(message));
    }
    for parameter in endpoint.parameters {
        let ParameterKind::HeaderKeyword(keyword) = parameter.kind else { continue };
        if headers.get(parameter.name).is_some_and(|value| value.as_bytes() != keyword.as_bytes()) {
            return Err(RequestFailure::bad_request(format!(
                "the header `{}` must be `{keyword}`",
                parameter.name
            )));
        }
    }
    Ok(())
}

/// Converts a response to HTTP; to status 304 if the client already has it.
fn to_http_response(request_headers: &HeaderMap, reply: JsonApiResponse) -> Response {
    let body = reply.value.to_string();
    let tag = entity_tag::response_tag(reply.tag.as_deref(), body.as_bytes());
    let is_read = reply.status == StatusCode::OK;
    let condition =
        request_headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = is_read
        && condition.is_some_and(|condition| entity_tag::matches_response_tag(condition, &tag));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let media_type = [(header::CONTENT_TYPE, "application/json")];
        (reply.status, media_type, body).into_response()
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    if let Some(location) = reply.location.and_then(|url| HeaderValue::from_str(&url).ok()) {
        headers.insert(header::LOCATION, location);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_their_parameter_or_are_refused() {
        let check = |kind, value: &str, fits: bool| {
            let parameter = EndpointParameter::new("p", kind, "");
            assert_eq!(check_parameter_value(&parameter, value).is_ok(), fits, "{kind:?} {value}");
        };
        check(ParameterKind::Integer(1, 10), "10", true);
        check(ParameterKind::Integer(1, 10), "0", false);
        check(ParameterKind::Integer(1, 10), "+1", false);
        check(ParameterKind::Integer(1, 10), "", false);
        check(ParameterKind::Flag, "true", true);
        check(ParameterKind::Flag, "1", false);
        check(ParameterKind::Path, "/a/b", true);
        check(ParameterKind::Path, "a", false);
        check(ParameterKind::Path, "/a/../b", false);
        check(ParameterKind::Name, "jcr:title", true);
        check(ParameterKind::Name, "a/b", false);
        check(ParameterKind::Seconds(60), "30s", true);
        check(ParameterKind::Seconds(60), "61s", false);
        check(ParameterKind::Seconds(60), "s", false);
        check(ParameterKind::Keyword(&["a", "b"]), "c", false);
        check(ParameterKind::Text, "", true);
        check(ParameterKind::NonEmptyText, "", false);
        check(ParameterKind::NonEmptyText, "a", true);
        check(ParameterKind::Pairs, "a=b=c", true);
        check(ParameterKind::Pairs, "a=", true);
        check(ParameterKind::Pairs, "=b", false);
        check(ParameterKind::Pairs, "a", false);
    }
}
