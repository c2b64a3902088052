//! A process that delegates work to another system over HTTP and monitors it.
//!
//! It posts the step's data, as JSON, to the address in `start`. A response of 200, 201 or 204 means that the work is
//! done. 202 means that it has begun: then the address in `Location`, or the same one, is requested again every
//! `every` (`10s`) until the status differs from 202. Nothing of the responses is stored or displayed, because users
//! who can read a workflow must not read what the other system returns to the author.
//!
//! Only hosts that `tympan.toml` lists are requested ([`OutgoingPolicy`]), and a step keeps the host, scheme and port
//! that it began with, whatever `Location` says.
//!
//! The request carries `Idempotency-Key`, the same for each attempt of a step, so that the other system can detect
//! repeated requests.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Map, Value as Json, json};
use tympan_notation::{error_chain_text, parse_duration};
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::outgoing_policy::OutgoingPolicy;
use tympan_web::tls::TlsTrust;

use crate::JobContext;
use crate::workflow::step_run::{StepOutcome, StepRun, WorkflowProcess};

/// Default interval at which another system is polled.
const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a response that are read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Delegates work to another system.
pub(super) struct ExternalProcess(HttpClient);

impl ExternalProcess {
    /// Creates a process that may request the listed hosts.
    pub(super) fn new(outgoing: &OutgoingPolicy) -> Self {
        let (outgoing, trust) = (Some(Arc::new(outgoing.clone())), TlsTrust::system_roots().ok());
        Self(HttpClient::new(ClientOptions {
            outgoing_policy: outgoing,
            tls_trust: trust,
            ..ClientOptions::default()
        }))
    }
}

/// The response of another system.
struct ExternalResponse {
    status: StatusCode,
    location: Option<String>,
}

impl ExternalProcess {
    async fn send_request(
        &self,
        method: Method,
        address: &str,
        step: &StepRun,
    ) -> Result<ExternalResponse, StepOutcome> {
        let wrong = |reason: String| StepOutcome::Failed(format!("`{address}`: {reason}"));
        let uri = address.parse::<http::Uri>().map_err(|error| wrong(error.to_string()))?;
        let host = uri.authority().map(ToString::to_string);
        let host = host.ok_or_else(|| wrong("no host".to_owned()))?;
        let body = match method {
            Method::POST => json!({
                "workflow": step.workflow_id, "model": step.model, "step": step.title,
                "payload": step.payload, "initiator": step.initiator, "data": step.data,
            })
            .to_string(),
            _ => String::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/json")
            .header("idempotency-key", format!("workflow-{}-{}", step.workflow_id, step.item_id))
            .body(Full::from(body))
            .map_err(|error| wrong(error.to_string()))?;
        let response = self.0.send(request).await.map_err(|error| {
            let reason = error_chain_text(&error);
            if error.is_transient() {
                StepOutcome::Retry(reason)
            } else {
                StepOutcome::Failed(reason)
            }
        })?;
        let (head, body) = response.into_parts();
        let location = head.headers.get(header::LOCATION).map(HeaderValue::as_bytes);
        let location = location.map(|value| String::from_utf8_lossy(value).into_owned());
        // The body is read to its end so that the connection can be reused.
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        body.map_err(|error| StepOutcome::Retry(format!("`{address}`: {error}")))?;
        Ok(ExternalResponse { status: head.status, location })
    }

    async fn poll_external_work(&self, step: &StepRun) -> Result<StepOutcome, StepOutcome> {
        let every =
            step.argument("every").map_or(Ok(DEFAULT_POLL_INTERVAL), |text| parse_duration(&text));
        let every = every.map_err(|error| StepOutcome::Failed(error.to_string()))?;
        let poll_address = step.saved_data.get("poll").and_then(Json::as_str);
        let address = match poll_address {
            Some(address) => address.to_owned(),
            None => step.required_argument("start")?,
        };
        let method = if poll_address.is_some() { Method::GET } else { Method::POST };
        let response = self.send_request(method, &address, step).await?;
        match response.status {
            StatusCode::ACCEPTED => {
                let mut keep = Map::new();
                let next = response
                    .location
                    .map_or(Ok(address.clone()), |next| resolve_same_host_url(&address, &next));
                keep.insert("poll".to_owned(), next?.into());
                Ok(StepOutcome::Wait { after: every, saved_data: keep })
            }
            status if status.is_success() => Ok(StepOutcome::Done(Map::new())),
            status => {
                let reason = format!("`{address}` answered {status}");
                if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                    Ok(StepOutcome::Retry(reason))
                } else {
                    Ok(StepOutcome::Failed(reason))
                }
            }
        }
    }
}

/// Returns the address to poll: a path, or an address of the same host.
fn resolve_same_host_url(base: &str, next: &str) -> Result<String, StepOutcome> {
    let begin = |text: &str| -> Option<String> {
        let uri: http::Uri = text.parse().ok()?;
        Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
    };
    let nowhere = || StepOutcome::Failed(format!("`{next}` is not a valid address"));
    let own = begin(base).ok_or_else(nowhere)?;
    if next.starts_with('/') && !next.starts_with("//") {
        return Ok(format!("{own}{next}"));
    }
    match begin(next) {
        Some(other) if other == own => Ok(next.to_owned()),
        Some(_) => {
            let reason =
                format!("`{base}` refers to another host, `{next}`, which is not followed");
            Err(StepOutcome::Failed(reason))
        }
        None => Err(nowhere()),
    }
}

impl WorkflowProcess for ExternalProcess {
    fn name(&self) -> &str {
        "tympan.workflow.process.HttpExternalProcess"
    }

    fn run(&self, step: &StepRun, context: &JobContext) -> StepOutcome {
        let Some(runtime) = context.runtime() else {
            return StepOutcome::Failed("this step runs outside of a worker".to_owned());
        };
        runtime.block_on(self.poll_external_work(step)).unwrap_or_else(|outcome| outcome)
    }
}
