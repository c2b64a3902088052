//! Commands that query a running instance: `tympan status`, and helpers of other commands.

use std::process::ExitCode;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};
use tympan_web::body_limit::limit_body;
use tympan_web::client::HttpClient;

use crate::args::RemoteInstanceArgs;
use crate::command::create_runtime;
use crate::command::package_remote::RESPONSE_IDLE_TIMEOUT;

/// The maximum size of a response.
const MAX_RESPONSE_BYTES: u64 = 16 * 1024 * 1024;

/// Prints the health of an instance.
pub(crate) fn print_instance_status(remote: &RemoteInstanceArgs) -> CommandOutcome {
    let answered = send_request(remote, Method::GET, "/health", FORM_MEDIA_TYPE, String::new())?;
    // An unhealthy instance responds with 503 and the reasons.
    let is_report = answered.json.get("checks").is_some();
    let health = if is_report { answered.json } else { answered.into_success()? };
    let is_ok = json_text(&health, "status") == "ok";
    if remote.json {
        say!("{health}");
    } else {
        let (role, status) = (json_text(&health, "role"), json_text(&health, "status"));
        match json_member(&health, "uptime_s") {
            Value::Null => say!(
                "{role} is {status}; details are available on its machine, to users of an author, and from \
                 the admin listener"
            ),
            uptime => say!("{role} is {status}, up for {uptime} s"),
        }
        for check in json_list(&health, "checks") {
            match json_member(check, "reason").as_str() {
                Some(reason) => say!("  {}: {reason}", json_text(check, "name")),
                None => say!("  {}: ok", json_text(check, "name")),
            }
        }
    }
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Returns a member of an object; null if it does not exist.
pub(crate) fn json_member<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

pub(crate) fn json_list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    json_member(value, name).as_array().into_iter().flatten()
}

pub(crate) fn json_text<'a>(value: &'a Value, name: &str) -> &'a str {
    json_member(value, name).as_str().unwrap_or_default()
}

/// The response of an instance.
struct RemoteResponse {
    uri: String,
    status: StatusCode,
    json: Value,
}

impl RemoteResponse {
    /// Returns the JSON of a successful response.
    fn into_success(self) -> Result<Value, CommandFault> {
        let Self { uri, status, json } = self;
        if status.is_success() {
            return Ok(json);
        }
        let message = ["detail", "error"].map(|name| json_text(&json, name)).concat();
        let message = format!("{uri} answered {status}: {message}");
        Err(if status.is_client_error() {
            CommandFault::usage(message)
        } else {
            CommandFault::cannot_run(message)
        })
    }
}

const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";

/// Sends a form and returns the JSON response.
pub(crate) fn send_form(
    remote: &RemoteInstanceArgs,
    method: Method,
    path: &str,
    form: &str,
) -> Result<Value, CommandFault> {
    send_request(remote, method, path, FORM_MEDIA_TYPE, form.to_owned())?.into_success()
}

/// Sends JSON and returns the JSON response.
pub(crate) fn send_json(
    remote: &RemoteInstanceArgs,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, CommandFault> {
    send_request(remote, method, path, "application/json", body.to_string())?.into_success()
}

/// Sends one request with a body of a media type and returns the response, regardless of its status.
fn send_request(
    remote: &RemoteInstanceArgs,
    method: Method,
    path: &str,
    media_type: &str,
    body: String,
) -> Result<RemoteResponse, CommandFault> {
    let uri = format!("{}{path}", remote.url.trim_end_matches('/'));
    let mut request = Request::builder()
        .method(method)
        .uri(&uri)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, media_type);
    if let Some(token) = &remote.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| {
        CommandFault::usage(format!("cannot send a request to `{uri}`: {error}"))
    })?;
    create_runtime(4)?.block_on(async {
        let response = HttpClient::default()
            .send(request)
            .await
            .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
        let status = response.status();
        let body = limit_body(response.into_body(), MAX_RESPONSE_BYTES)
            .with_idle_timeout(RESPONSE_IDLE_TIMEOUT);
        let body = body.collect().await;
        let body = body
            .map_err(|error| {
                CommandFault::cannot_run(format!("the response was interrupted: {error}"))
            })?
            .to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or_default();
        Ok(RemoteResponse { uri, status, json })
    })
}
