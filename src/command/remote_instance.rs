//! Commands that query a running instance: `tympan status`, and helpers of other commands.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tympan_home::Home;
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};
use tympan_web::body_limit::limit_body;
use tympan_web::client::HttpClient;

use crate::args::{HomeOrUrlArgs, InstanceLoginArgs, RemoteInstanceArgs};
use crate::command::runtime::create_runtime;
use crate::home::{open_existing_home, refuse_running_home};

/// The maximum size of a response.
const MAX_RESPONSE_BYTES: u64 = 16 * 1024 * 1024;
/// The maximum time without data in a response that has begun.
pub(crate) const RESPONSE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

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

/// Prints a response: as JSON if requested, else as the text that `print_text` prints.
pub(crate) fn print_response(
    is_json: bool,
    response: &Value,
    print_text: impl FnOnce(),
) -> CommandOutcome {
    if is_json {
        say!("{response}");
    } else {
        print_text();
    }
    Ok(ExitCode::SUCCESS)
}

/// Encodes fields as a form, which is also the query of a URL.
pub(crate) fn encode_form<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = fields
        .into_iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The response of an instance.
struct RemoteResponse {
    uri: String,
    status: StatusCode,
    body: Bytes,
    json: Value,
}

impl RemoteResponse {
    /// Returns the JSON of a successful response.
    fn into_success(self) -> Result<Value, CommandFault> {
        let Self { uri, status, json, body: _ } = self;
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

/// Returns the text at a path, also that of a response with an error.
pub(crate) fn fetch_text(remote: &RemoteInstanceArgs, path: &str) -> Result<String, CommandFault> {
    let response = send_request(remote, Method::GET, path, FORM_MEDIA_TYPE, String::new())?;
    Ok(String::from_utf8_lossy(&response.body).into_owned())
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

/// Sends a text and returns the JSON response.
pub(crate) fn send_text(
    remote: &RemoteInstanceArgs,
    path: &str,
    text: &str,
) -> Result<Value, CommandFault> {
    let media_type = "text/plain; charset=utf-8";
    send_request(remote, Method::POST, path, media_type, text.to_owned())?.into_success()
}

/// Opens the home that the arguments name; its instance must not be running.
///
/// # Errors
/// If the arguments name no home, or its instance is running, which is reached with `--url`; otherwise as
/// [`open_existing_home`].
pub(crate) fn open_stopped_home(location: &HomeOrUrlArgs) -> Result<Home, CommandFault> {
    let dir = home_dir(location)?;
    refuse_running_home(dir)?;
    open_existing_home(dir)
}

/// Returns the directory of the home that the arguments name.
///
/// # Errors
/// If they name none.
pub(crate) fn home_dir(location: &HomeOrUrlArgs) -> Result<&Path, CommandFault> {
    location
        .home
        .as_deref()
        .ok_or_else(|| CommandFault::usage("name a home with --home, or an instance with --url"))
}

/// Encodes a text as the value of a URL parameter.
pub(crate) fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the value of the header `Authorization` for credentials, if there are any.
///
/// # Errors
/// If the file of a token cannot be read.
pub(crate) fn authorization_header(
    credentials: &InstanceLoginArgs,
) -> Result<Option<String>, CommandFault> {
    let InstanceLoginArgs { login, token_file, token } = credentials;
    Ok(match (token_file, token, login) {
        (Some(file), ..) => {
            let token = std::fs::read_to_string(file).map_err(|error| {
                CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
            })?;
            Some(format!("Bearer {}", token.trim()))
        }
        (None, Some(token), _) => Some(format!("Bearer {token}")),
        (None, None, Some(login)) => Some(format!("Basic {}", BASE64.encode(login))),
        (None, None, None) => None,
    })
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
    if let Some(authorization) = authorization_header(&remote.credentials)? {
        request = request.header(header::AUTHORIZATION, authorization);
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
        Ok(RemoteResponse { uri, status, body, json })
    })
}
