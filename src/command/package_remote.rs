//! `tympan package … --url`: the same commands through the JSON API of a running instance.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tympan_content_package::{InstallOptions, PackageId};
use tympan_terminal::{CommandFault, error_chain_text, say};
use tympan_web::body_limit::limit_body;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::reader_body::body_from_reader;

use crate::args::{HomeOrInstanceArgs, HomeOrUrlArgs, InstanceLoginArgs, RemoteInstanceArgs};
use crate::command::remote_instance::{
    RESPONSE_IDLE_TIMEOUT, authorization_header, percent_encode,
};
use crate::command::runtime::create_runtime;

/// The maximum size of a response, except for a package.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024 * 1024;
/// The maximum size of a built package.
const MAX_PACKAGE_BYTES: u64 = 64 * 1024 * 1024 * 1024;

type PackageRequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// The payload of a request.
enum PackageRequestPayload<'a> {
    Empty,
    Bytes(Vec<u8>),
    File(&'a Path),
}

/// A client of a running instance.
pub(crate) struct RemotePackageClient<'a> {
    url: &'a str,
    credentials: &'a InstanceLoginArgs,
    is_json: bool,
}

impl<'a> RemotePackageClient<'a> {
    /// Returns the instance that the arguments name, if any.
    pub(crate) fn from_args(location: &'a HomeOrInstanceArgs) -> Option<Self> {
        let HomeOrUrlArgs { url, credentials, .. } = &location.location;
        let url = url.as_deref()?.trim_end_matches('/');
        Some(Self { url, credentials, is_json: location.json })
    }

    /// Returns the client of an instance.
    pub(crate) fn from_instance(instance: &'a RemoteInstanceArgs) -> Self {
        let url = instance.url.trim_end_matches('/');
        Self { url, credentials: &instance.credentials, is_json: instance.json }
    }

    /// Prints a response: its `text`, or all of it.
    pub(crate) fn print_response(&self, response: &Value) {
        match response.get("text").and_then(Value::as_str) {
            Some(text) if !self.is_json => say!("{}", text.trim_end()),
            _ => say!("{}", response.get("report").unwrap_or(response)),
        }
    }

    pub(crate) fn install_file(
        &self,
        file: &Path,
        options: &InstallOptions,
    ) -> Result<Value, CommandFault> {
        self.upload_and_install(PackageRequestPayload::File(file), options)
    }

    pub(crate) fn install_bytes(
        &self,
        package: Vec<u8>,
        options: &InstallOptions,
    ) -> Result<Value, CommandFault> {
        self.upload_and_install(PackageRequestPayload::Bytes(package), options)
    }

    fn upload_and_install(
        &self,
        package: PackageRequestPayload<'_>,
        options: &InstallOptions,
    ) -> Result<Value, CommandFault> {
        let path = format!("/api/v1/packages?install=true&replace=true{}", install_query(options));
        self.request_json(Method::POST, &path, package)
    }

    pub(crate) fn install(
        &self,
        id: &str,
        options: &InstallOptions,
    ) -> Result<Value, CommandFault> {
        let path =
            format!("/api/v1/packages/install?id={}{}", percent_encode(id), install_query(options));
        self.request_json(Method::POST, &path, PackageRequestPayload::Empty)
    }

    pub(crate) fn diff(&self, file: &Path) -> Result<Value, CommandFault> {
        self.request_json(Method::POST, "/api/v1/packages/diff", PackageRequestPayload::File(file))
    }

    pub(crate) fn uninstall(&self, id: &str, force: bool) -> Result<Value, CommandFault> {
        let path = format!("/api/v1/packages/uninstall?id={}&force={force}", percent_encode(id));
        self.request_json(Method::POST, &path, PackageRequestPayload::Empty)
    }

    pub(crate) fn list(&self) -> Result<Value, CommandFault> {
        let response =
            self.request_json(Method::GET, "/api/v1/packages", PackageRequestPayload::Empty)?;
        Ok(response.get("packages").cloned().unwrap_or_default())
    }

    /// Builds a package and writes it to `out`; returns the message to print.
    pub(crate) fn build(
        &self,
        id: &PackageId,
        filter: Vec<u8>,
        out: &mut File,
    ) -> Result<String, CommandFault> {
        let path = format!("/api/v1/packages/build?id={}", percent_encode(&id.to_string()));
        create_runtime(4)?.block_on(async {
            let response = self
                .send_request(Method::POST, &path, PackageRequestPayload::Bytes(filter))
                .await?;
            let mut body = limit_body(response.into_body(), MAX_PACKAGE_BYTES)
                .with_idle_timeout(RESPONSE_IDLE_TIMEOUT);
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    CommandFault::cannot_run(format!(
                        "the transfer of the package was interrupted: {error}"
                    ))
                })?;
                if let Ok(data) = frame.into_data() {
                    length += data.len();
                    out.write_all(&data).map_err(|error| {
                        CommandFault::cannot_run(format!("cannot write the package: {error}"))
                    })?;
                }
            }
            Ok(format!("{length} bytes"))
        })
    }

    fn request_json(
        &self,
        method: Method,
        path: &str,
        payload: PackageRequestPayload<'_>,
    ) -> Result<Value, CommandFault> {
        create_runtime(4)?.block_on(async {
            let response = self.send_request(method, path, payload).await?;
            read_json_body(response).await
        })
    }

    /// Sends a request; a response without a success status is a fault with the instance's message.
    async fn send_request(
        &self,
        method: Method,
        path: &str,
        payload: PackageRequestPayload<'_>,
    ) -> Result<Response<PackageRequestBody>, CommandFault> {
        let uri = format!("{}{path}", self.url);
        let mut request = Request::builder()
            .method(method)
            .uri(&uri)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/zip");
        if let Some(authorization) = authorization_header(self.credentials)? {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(body_of_payload(payload)?).map_err(|error| {
            CommandFault::usage(format!("cannot send a request to `{uri}`: {error}"))
        })?;
        // The duration of an installation is unlimited.
        let client =
            HttpClient::new(ClientOptions { response_timeout: None, ..ClientOptions::default() });
        let response = client
            .send(request)
            .await
            .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
        let response = response.map(|body| body.map_err(std::io::Error::other).boxed_unsync());
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let response_json = read_json_body(response).await.unwrap_or_default();
        let message = response_json.get("detail").or_else(|| response_json.get("error"));
        let message = message.and_then(Value::as_str).unwrap_or_default();
        let message = format!("{uri} answered {status}: {message}");
        Err(if status.is_client_error() {
            CommandFault::usage(message)
        } else {
            CommandFault::cannot_run(message)
        })
    }
}

async fn read_json_body(response: Response<PackageRequestBody>) -> Result<Value, CommandFault> {
    let body = limit_body(response.into_body(), MAX_RESPONSE_BYTES)
        .with_idle_timeout(RESPONSE_IDLE_TIMEOUT);
    let body = body.collect().await;
    let body = body
        .map_err(|error| {
            CommandFault::cannot_run(format!("the response was interrupted: {error}"))
        })?
        .to_bytes();
    serde_json::from_slice(&body)
        .map_err(|error| CommandFault::cannot_run(format!("the response is not JSON: {error}")))
}

fn body_of_payload(payload: PackageRequestPayload<'_>) -> Result<PackageRequestBody, CommandFault> {
    let whole = |bytes: Vec<u8>| Full::new(Bytes::from(bytes)).map_err(|never| match never {});
    Ok(match payload {
        PackageRequestPayload::Empty => whole(Vec::new()).boxed_unsync(),
        PackageRequestPayload::Bytes(bytes) => whole(bytes).boxed_unsync(),
        PackageRequestPayload::File(file) => {
            let failed = |error: std::io::Error| {
                CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
            };
            let opened = File::open(file).map_err(failed)?;
            let length = opened.metadata().map_err(failed)?.len();
            BodyExt::boxed_unsync(body_from_reader(opened, length))
        }
    })
}

fn install_query(options: &InstallOptions) -> String {
    let (identifiers, dependencies) =
        (options.identifier_rule.name(), options.dependency_rule.name());
    format!("&dependencies={dependencies}&identifiers={identifiers}")
}
