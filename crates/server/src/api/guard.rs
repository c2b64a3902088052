//! From a request to its endpoint: login, CSRF, parameters, body; and from its reply to HTTP.

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
use percent_encoding::percent_decode;
use tympan_content::{Date, NodePath, check_name};
use tympan_web::limit::{BodyLimit, is_stalled, is_too_large, limited};
use tympan_web::listen::Peer;

use crate::api::endpoint::{
    Body, Call, Endpoint, Handler, JsonReply, Kind, MAX_JSON_BYTES, Parameter, Reply,
};
use crate::api::{query, require_reader, tag};
use crate::failure::{Failure, Result};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};
use crate::query::require_open;
use crate::{Instance, Role};

/// The longest text of a parameter, in characters.
const MAX_TEXT: usize = 4096;

/// Answers a request to an endpoint.
pub(crate) async fn answer(
    endpoint: &'static Endpoint,
    instance: Arc<Instance>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let identity = match admit(endpoint, &instance, &parts).await {
        Ok(identity) => identity,
        Err(failure) => return failure.into_problem(),
    };
    let headers = parts.headers.clone();
    let mut response = match carry_out(endpoint, &instance, identity.clone(), parts, body).await {
        Ok(Reply::Json(reply)) => to_http(&headers, reply),
        Ok(Reply::Http(response)) => response,
        Err(failure) => failure.into_problem(),
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

/// Checks who asks, and for a write that no other site made a browser send it.
///
/// A publisher answers visitors, too: the few endpoints that it has show what they may read.
async fn admit(
    endpoint: &Endpoint,
    instance: &Arc<Instance>,
    parts: &Parts,
) -> Result<Option<Identity>> {
    let identity = match instance.role {
        Role::Author => require_reader(instance, parts).await?,
        Role::Publish => match instance.identify_reader(parts).await? {
            Some(identity) => identity,
            None => {
                if query::is_query(endpoint) {
                    require_open(instance)?;
                }
                return Ok(None);
            }
        },
    };
    if endpoint.writes() {
        identity.require_write_scope()?;
        let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        check_csrf(&identity, token)?;
        check_origin(&identity, &parts.headers)?;
    }
    Ok(Some(identity))
}

async fn carry_out(
    endpoint: &'static Endpoint,
    instance: &Arc<Instance>,
    identity: Option<Identity>,
    parts: Parts,
    body: HttpBody,
) -> Result<Reply> {
    let query = parts.uri.query().unwrap_or_default();
    let mut parameters = read_parameters(endpoint.parameters, query)?;
    check_headers(endpoint, &parts.headers)?;
    let viewer = instance.viewer_of(identity.as_ref())?;
    let (mut json, mut stream) = (Bytes::new(), None);
    match endpoint.body {
        Body::None => {}
        Body::Json(_) | Body::Question(_) | Body::Patch(_) => {
            json = read_json(endpoint, &parts.headers, body).await?
        }
        Body::Form(fields) => parameters.extend(read_form(fields, &parts.headers, body).await?),
        Body::Text | Body::Bytes => {
            let limit = parts.extensions.get::<BodyLimit>().map_or(MAX_JSON_BYTES, |limit| limit.0);
            stream = Some(HttpBody::new(limited(body, limit)));
        }
    }
    let call = Call {
        instance: Arc::clone(instance),
        identity,
        viewer,
        peer: parts.extensions.get::<Peer>().copied(),
        headers: parts.headers,
        parameters,
        json,
        stream: Mutex::new(stream),
        now: SystemTime::now(),
    };
    match endpoint.handler {
        Handler::Work(work) => instance.work(move |instance| work(instance, &call)).await,
        Handler::Task(task) => task(call).await,
        Handler::Route(_) => Err(Failure::new(StatusCode::NOT_FOUND, "this route is another's")),
    }
}

/// Reads a JSON body.
async fn read_json(endpoint: &Endpoint, headers: &HeaderMap, body: HttpBody) -> Result<Bytes> {
    let essence = media_type_of(headers);
    let is_patch = matches!(endpoint.body, Body::Patch(_));
    let fits = essence.eq_ignore_ascii_case("application/json")
        || (is_patch && essence.eq_ignore_ascii_case("application/merge-patch+json"));
    if !fits {
        let message = "the body must be JSON, with `Content-Type: application/json`";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    read_all(body).await
}

/// Reads the fields of a form.
async fn read_form(
    fields: &'static [Parameter],
    headers: &HeaderMap,
    body: HttpBody,
) -> Result<Vec<(String, String)>> {
    if !media_type_of(headers).eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let message =
            "the body must be a form, with `Content-Type: application/x-www-form-urlencoded`";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = read_all(body).await?;
    let text = std::str::from_utf8(&body)
        .map_err(|_| Failure::bad_request("the form is not in ASCII, with other letters as %XX"))?;
    read_parameters(fields, text)
}

fn media_type_of(headers: &HeaderMap) -> &str {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

async fn read_all(body: HttpBody) -> Result<Bytes> {
    let collected = HttpBody::new(limited(body, MAX_JSON_BYTES)).collect().await;
    Ok(collected.map_err(|error| broken(&error))?.to_bytes())
}

/// Sorts what went wrong while a body was read.
pub(crate) fn broken(error: &(dyn std::error::Error + 'static)) -> Failure {
    if is_too_large(error) {
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than this endpoint takes")
    } else if is_stalled(error) {
        Failure::new(StatusCode::REQUEST_TIMEOUT, "the body stopped arriving")
    } else {
        Failure::bad_request(format!("the body cannot be read: {error}"))
    }
}

/// Reads a query or a form by what the endpoint knows.
fn read_parameters(known: &[Parameter], query: &str) -> Result<Vec<(String, String)>> {
    let known: Vec<&Parameter> = known.iter().filter(|one| !one.kind.is_header()).collect();
    let mut given: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        let Some(parameter) = known.iter().find(|one| one.name == name) else {
            return Err(unknown(&name, &known));
        };
        if !parameter.kind.is_list() && given.iter().any(|(before, _)| *before == name) {
            return Err(Failure::bad_request(format!("`{name}` is given twice")));
        }
        check_value(parameter, &value)?;
        given.push((name, value));
    }
    let is_missing =
        |one: &&&Parameter| one.is_required && !given.iter().any(|(name, _)| name == one.name);
    match known.iter().find(is_missing) {
        Some(missing) => {
            let message = format!("`{}` is missing: {}", missing.name, missing.about);
            Err(Failure::bad_request(message))
        }
        None => Ok(given),
    }
}

fn decode(text: &str) -> Result<String> {
    let spaced = text.replace('+', " ");
    let decoded = percent_decode(spaced.as_bytes()).decode_utf8();
    let decoded = decoded.map_err(|_| Failure::bad_request("what is sent is not UTF-8"))?;
    Ok(decoded.into_owned())
}

/// Refuses a parameter that the endpoint does not know.
fn unknown(name: &str, known: &[&Parameter]) -> Failure {
    let names: Vec<&str> = known.iter().map(|one| one.name).collect();
    let nearest = names.iter().map(|one| (distance(name, one), *one)).min();
    let hint = match nearest {
        Some((away, nearest)) if away <= 3 => format!("did you mean `{nearest}`?"),
        Some(_) => format!("there are {}", names.join(", ")),
        None => "there are none".to_owned(),
    };
    let name: String = name.chars().take(100).collect();
    Failure::bad_request(format!("`{name}` is no parameter here: {hint}"))
}

/// Counts the letters to put in, leave out or change (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().take(64).enumerate() {
        let mut next = vec![at + 1];
        for (column, (known, above)) in other.iter().zip(row.windows(2)).enumerate() {
            let [diagonal, above] = above else { continue };
            let left = next.get(column).copied().unwrap_or(usize::MAX - 1);
            next.push((diagonal + usize::from(*known != letter)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

/// Checks a value by what its parameter holds.
fn check_value(parameter: &Parameter, value: &str) -> Result<()> {
    let wanted = match parameter.kind {
        Kind::Text | Kind::Texts | Kind::Header | Kind::HeaderWord(_) => {
            let fits = value.chars().count() <= MAX_TEXT && !value.contains('\0');
            (!fits).then(|| format!("a text of at most {MAX_TEXT} characters"))
        }
        Kind::Filled => {
            let fits = (1..=MAX_TEXT).contains(&value.chars().count()) && !value.contains('\0');
            (!fits).then(|| format!("a text of 1 to {MAX_TEXT} characters"))
        }
        Kind::Pairs => {
            let is_pair = value.split_once('=').is_some_and(|(name, _)| !name.is_empty());
            let fits = is_pair && value.chars().count() <= MAX_TEXT && !value.contains('\0');
            (!fits).then(|| format!("`name=value`, of at most {MAX_TEXT} characters"))
        }
        Kind::Path => return Ok(NodePath::new(value).map(drop)?),
        Kind::Name => return Ok(check_name(value)?),
        Kind::Integer(least, most) => {
            let is_plain = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse::<u64>().ok().filter(|_| is_plain);
            let fits = number.is_some_and(|number| (least..=most).contains(&number));
            (!fits).then(|| format!("a number from {least} to {most}"))
        }
        Kind::Flag => (!matches!(value, "true" | "false")).then(|| "true or false".to_owned()),
        Kind::Statement => value.contains('\0').then(|| "a text without U+0000".to_owned()),
        Kind::Time => return Ok(Date::parse(value).map(drop)?),
        // Read by the handler, which says what is wrong.
        Kind::Patterns | Kind::Cursor | Kind::Place => None,
        Kind::Words(words) | Kind::SomeWords(words) => {
            (!words.contains(&value)).then(|| format!("one of {}", words.join(", ")))
        }
        Kind::Seconds(most) => {
            let digits = value.strip_suffix('s').unwrap_or_default();
            let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let fits = is_plain && digits.parse::<u64>().is_ok_and(|number| number <= most);
            (!fits).then(|| format!("seconds from `0s` to `{most}s`"))
        }
    };
    match wanted {
        Some(wanted) => Err(Failure::bad_request(format!("`{}` must be {wanted}", parameter.name))),
        None => Ok(()),
    }
}

/// Checks headers that have one possible value, and refuses a condition that nobody would look at.
fn check_headers(endpoint: &Endpoint, headers: &HeaderMap) -> Result<()> {
    let takes = |name: &str| endpoint.parameters.iter().any(|one| one.name == name);
    if endpoint.writes() && headers.contains_key(header::IF_MATCH) && !takes("If-Match") {
        let message = "this takes no condition: what `If-Match` asks for would not be checked";
        return Err(Failure::bad_request(message));
    }
    for one in endpoint.parameters {
        let Kind::HeaderWord(word) = one.kind else { continue };
        if headers.get(one.name).is_some_and(|value| value.as_bytes() != word.as_bytes()) {
            return Err(Failure::bad_request(format!("the header `{}` can be `{word}`", one.name)));
        }
    }
    Ok(())
}

/// Turns a reply into HTTP, or into 304 where the client has it already.
fn to_http(asked: &HeaderMap, reply: JsonReply) -> Response {
    let body = reply.value.to_string();
    let tag = tag::of_answer(reply.tag.as_deref(), body.as_bytes());
    let is_read = reply.status == StatusCode::OK;
    let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = is_read && known.is_some_and(|known| tag::names_answer(known, &tag));
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
    if let Some(location) = reply.location.and_then(|place| HeaderValue::from_str(&place).ok()) {
        headers.insert(header::LOCATION, location);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        for (one, other, expected) in [
            ("", "", 0),
            ("path", "path", 0),
            ("pth", "path", 1),
            ("limits", "limit", 1),
            ("abc", "xyz", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn values_fit_their_parameter_or_are_refused() {
        let check = |kind, value: &str, fits: bool| {
            let parameter = Parameter::new("p", kind, "");
            assert_eq!(check_value(&parameter, value).is_ok(), fits, "{kind:?} {value}");
        };
        check(Kind::Integer(1, 10), "10", true);
        check(Kind::Integer(1, 10), "0", false);
        check(Kind::Integer(1, 10), "+1", false);
        check(Kind::Integer(1, 10), "", false);
        check(Kind::Flag, "true", true);
        check(Kind::Flag, "1", false);
        check(Kind::Path, "/a/b", true);
        check(Kind::Path, "a", false);
        check(Kind::Path, "/a/../b", false);
        check(Kind::Name, "jcr:title", true);
        check(Kind::Name, "a/b", false);
        check(Kind::Seconds(60), "30s", true);
        check(Kind::Seconds(60), "61s", false);
        check(Kind::Seconds(60), "s", false);
        check(Kind::Words(&["a", "b"]), "c", false);
        check(Kind::Text, "", true);
        check(Kind::Filled, "", false);
        check(Kind::Filled, "a", true);
        check(Kind::Pairs, "a=b=c", true);
        check(Kind::Pairs, "a=", true);
        check(Kind::Pairs, "=b", false);
        check(Kind::Pairs, "a", false);
    }
}
