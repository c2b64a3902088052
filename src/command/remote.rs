//! Commands that ask a running instance: `tympan status`, and what the others need to ask one.

use std::process::ExitCode;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tympan_web::client::Client;
use tympan_web::limit::limited;

use crate::args::Remote;
use crate::command::package_remote::STALL;
use crate::command::{CHECK_FAILED, Fault, Outcome, runtime};
use crate::home::chain;
use crate::say;

/// No answer of an instance is longer.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// Tells the health of an instance.
pub(crate) fn status(remote: &Remote) -> Outcome {
    let answered = exchange(remote, Method::GET, "/health", FORM, String::new())?;
    // An instance that does not do its work says so with 503, and why.
    let is_report = answered.json.get("checks").is_some();
    let health = if is_report { answered.json } else { answered.success()? };
    let is_ok = text(&health, "status") == "ok";
    if remote.json {
        say!("{health}");
    } else {
        let (role, status) = (text(&health, "role"), text(&health, "status"));
        match part(&health, "uptime_s") {
            Value::Null => say!(
                "{role} is {status}; details are told on its machine, to users of an author, and by the admin listener"
            ),
            uptime => say!("{role} is {status}, up for {uptime} s"),
        }
        for check in list(&health, "checks") {
            match part(check, "reason").as_str() {
                Some(reason) => say!("  {}: {reason}", text(check, "name")),
                None => say!("  {}: ok", text(check, "name")),
            }
        }
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

/// Returns a member of an object; null where there is none.
pub(crate) fn part<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

pub(crate) fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    part(value, name).as_array().into_iter().flatten()
}

pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    part(value, name).as_str().unwrap_or_default()
}

/// The response of an instance.
struct RemoteResponse {
    uri: String,
    status: StatusCode,
    json: Value,
}

impl RemoteResponse {
    /// Returns the JSON of a successful response.
    fn success(self) -> Result<Value, Fault> {
        let Self { uri, status, json } = self;
        if status.is_success() {
            return Ok(json);
        }
        let message = ["detail", "error"].map(|name| text(&json, name)).concat();
        let message = format!("{uri} answered {status}: {message}");
        Err(if status.is_client_error() {
            Fault::usage(message)
        } else {
            Fault::cannot_run(message)
        })
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

/// Sends a form and returns the JSON that comes back.
pub(crate) fn ask(remote: &Remote, method: Method, path: &str, form: &str) -> Result<Value, Fault> {
    exchange(remote, method, path, FORM, form.to_owned())?.success()
}

/// Sends JSON and returns the JSON that comes back.
pub(crate) fn ask_json(
    remote: &Remote,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, Fault> {
    exchange(remote, method, path, "application/json", body.to_string())?.success()
}

/// Sends one request with a body of a media type and returns the response, whatever its status.
fn exchange(
    remote: &Remote,
    method: Method,
    path: &str,
    media_type: &str,
    body: String,
) -> Result<RemoteResponse, Fault> {
    let uri = format!("{}{path}", remote.url.trim_end_matches('/'));
    let mut request = Request::builder()
        .method(method)
        .uri(&uri)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, media_type);
    if let Some(token) = &remote.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| Fault::usage(format!("`{uri}` is no URL: {error}")))?;
    runtime(4)?.block_on(async {
        let response = Client::default()
            .send(request)
            .await
            .map_err(|error| Fault::cannot_run(chain(&error)))?;
        let status = response.status();
        let body = limited(response.into_body(), MAX_ANSWER).stalling_at_most(STALL);
        let body = body.collect().await;
        let body = body
            .map_err(|error| Fault::cannot_run(format!("the answer broke off: {error}")))?
            .to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or_default();
        Ok(RemoteResponse { uri, status, json })
    })
}
