//! `tympan package … --url`: the same through the JSON API of a running instance.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tympan_content::package::{InstallOptions, PackageId};
use tympan_web::client::{Client, Options};
use tympan_web::limit::limited;
use tympan_web::read_body::from_reader;

use crate::args::Place;
use crate::command::{Fault, runtime};
use crate::home::chain;
use crate::say;

/// No answer but a package is longer.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;
/// No package that is built is longer.
const MAX_PACKAGE: u64 = 64 * 1024 * 1024 * 1024;
/// How long an answer that has begun may leave off arriving.
pub(crate) const STALL: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What a request sends.
enum Payload<'a> {
    Nothing,
    Bytes(Vec<u8>),
    File(&'a Path),
}

/// A running instance.
pub(crate) struct Instance<'a> {
    url: &'a str,
    token: Option<&'a str>,
    is_json: bool,
}

impl<'a> Instance<'a> {
    /// Returns the instance that the arguments name, if they name one.
    pub(crate) fn of(place: &'a Place) -> Option<Self> {
        let url = place.url.as_deref()?.trim_end_matches('/');
        Some(Self { url, token: place.token.as_deref(), is_json: place.json })
    }

    /// Prints an answer: its `text`, or all of it.
    pub(crate) fn tell(&self, answer: &Value) {
        match answer.get("text").and_then(Value::as_str) {
            Some(text) if !self.is_json => say!("{}", text.trim_end()),
            _ => say!("{}", answer.get("report").unwrap_or(answer)),
        }
    }

    pub(crate) fn install_file(
        &self,
        file: &Path,
        options: &InstallOptions,
    ) -> Result<Value, Fault> {
        let path = format!("/api/v1/packages?install=true&replace=true{}", query(options));
        self.ask(Method::POST, &path, Payload::File(file))
    }

    pub(crate) fn install(&self, id: &str, options: &InstallOptions) -> Result<Value, Fault> {
        let path = format!("/api/v1/packages/install?id={}{}", encoded(id), query(options));
        self.ask(Method::POST, &path, Payload::Nothing)
    }

    pub(crate) fn diff(&self, file: &Path) -> Result<Value, Fault> {
        self.ask(Method::POST, "/api/v1/packages/diff", Payload::File(file))
    }

    pub(crate) fn uninstall(&self, id: &str, force: bool) -> Result<Value, Fault> {
        let path = format!("/api/v1/packages/uninstall?id={}&force={force}", encoded(id));
        self.ask(Method::POST, &path, Payload::Nothing)
    }

    pub(crate) fn list(&self) -> Result<Value, Fault> {
        let answer = self.ask(Method::GET, "/api/v1/packages", Payload::Nothing)?;
        Ok(answer.get("packages").cloned().unwrap_or_default())
    }

    /// Has a package built and writes it to `out`; returns what to say of it.
    pub(crate) fn build(
        &self,
        id: &PackageId,
        filter: Vec<u8>,
        out: &mut File,
    ) -> Result<String, Fault> {
        let path = format!("/api/v1/packages/build?id={}", encoded(&id.to_string()));
        runtime(4)?.block_on(async {
            let response = self.send(Method::POST, &path, Payload::Bytes(filter)).await?;
            let mut body = limited(response.into_body(), MAX_PACKAGE).stalling_at_most(STALL);
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    Fault::cannot_run(format!("the package broke off: {error}"))
                })?;
                if let Ok(data) = frame.into_data() {
                    length += data.len();
                    out.write_all(&data).map_err(|error| {
                        Fault::cannot_run(format!("cannot write the package: {error}"))
                    })?;
                }
            }
            Ok(format!("{length} bytes"))
        })
    }

    fn ask(&self, method: Method, path: &str, payload: Payload<'_>) -> Result<Value, Fault> {
        runtime(4)?.block_on(async {
            let response = self.send(method, path, payload).await?;
            read_json(response).await
        })
    }

    /// Sends a request; answers that are no success are faults with the instance's own words.
    async fn send(
        &self,
        method: Method,
        path: &str,
        payload: Payload<'_>,
    ) -> Result<Response<Body>, Fault> {
        let uri = format!("{}{path}", self.url);
        let mut request = Request::builder()
            .method(method)
            .uri(&uri)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/zip");
        if let Some(token) = self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(body_of(payload)?)
            .map_err(|error| Fault::usage(format!("`{uri}` is no URL: {error}")))?;
        // Installing takes as long as it takes.
        let client = Client::new(Options { response_timeout: None, ..Options::default() });
        let response =
            client.send(request).await.map_err(|error| Fault::cannot_run(chain(&error)))?;
        let response = response.map(|body| body.map_err(std::io::Error::other).boxed_unsync());
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let answer = read_json(response).await.unwrap_or_default();
        let message = answer.get("detail").or_else(|| answer.get("error"));
        let message = message.and_then(Value::as_str).unwrap_or_default();
        let message = format!("{uri} answered {status}: {message}");
        Err(if status.is_client_error() {
            Fault::usage(message)
        } else {
            Fault::cannot_run(message)
        })
    }
}

async fn read_json(response: Response<Body>) -> Result<Value, Fault> {
    let body = limited(response.into_body(), MAX_ANSWER).stalling_at_most(STALL);
    let body = body.collect().await;
    let body = body
        .map_err(|error| Fault::cannot_run(format!("the answer broke off: {error}")))?
        .to_bytes();
    serde_json::from_slice(&body)
        .map_err(|error| Fault::cannot_run(format!("the answer is no JSON: {error}")))
}

fn body_of(payload: Payload<'_>) -> Result<Body, Fault> {
    let whole = |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).map_err(|never| match never {});
    Ok(match payload {
        Payload::Nothing => whole(Vec::new()).boxed_unsync(),
        Payload::Bytes(bytes) => whole(bytes).boxed_unsync(),
        Payload::File(file) => {
            let failed = |error: std::io::Error| {
                Fault::usage(format!("cannot read `{}`: {error}", file.display()))
            };
            let opened = File::open(file).map_err(failed)?;
            let length = opened.metadata().map_err(failed)?.len();
            BodyExt::boxed_unsync(from_reader(opened, length))
        }
    })
}

fn query(options: &InstallOptions) -> String {
    let (identifiers, dependencies) = (options.identifiers.name(), options.dependencies.name());
    format!("&dependencies={dependencies}&identifiers={identifiers}")
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}
