//! A process that has another system do the work, over HTTP, and looks after it.
//!
//! It posts what the step is about, as JSON, to the address in `start`. An answer of 200, 201 or 204 says that the work is
//! done. 202 says that it has begun: then the address in `Location`, or the same one, is asked again every `every` (`10s`)
//! until it answers otherwise than 202. Nothing of the answers is kept or shown: whoever reads a workflow must not read
//! what the other system tells the author.
//!
//! Only hosts are asked that `tympan.toml` lists ([`Outgoing`]), and a step stays with the host, scheme and port that it
//! began with, whatever `Location` says.
//!
//! The request carries `Idempotency-Key`, the same for each attempt of a step, so that the other system can tell that it
//! knows the work already.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Map, Value as Json, json};
use tympan_web::client::{Client, Options};
use tympan_web::outgoing::Outgoing;
use tympan_web::tls::Trust;

use crate::JobContext;
use crate::error::chain;
use crate::workflow::handler::{Process, StepOutcome, StepRun};
use crate::workflow::timeout::parse_span;

/// How often another system is asked.
const EVERY: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read.
const MAX_ANSWER: usize = 64 * 1024;

/// Has another system do the work.
pub(super) struct External(Client);

impl External {
    /// Makes one that asks the hosts that are listed.
    pub(super) fn new(outgoing: &Outgoing) -> Self {
        let (outgoing, trust) = (Some(Arc::new(outgoing.clone())), Trust::system().ok());
        Self(Client::new(Options { outgoing, trust, ..Options::default() }))
    }
}

/// What another system answered.
struct Answer {
    status: StatusCode,
    location: Option<String>,
}

impl External {
    async fn ask(
        &self,
        method: Method,
        address: &str,
        step: &StepRun,
    ) -> Result<Answer, StepOutcome> {
        let wrong = |reason: String| StepOutcome::Failed(format!("`{address}`: {reason}"));
        let uri: http::Uri = address.parse().map_err(|_| wrong("is no URI".to_owned()))?;
        let host = uri.authority().map(ToString::to_string);
        let host = host.ok_or_else(|| wrong("names no host".to_owned()))?;
        let body = match method {
            Method::POST => json!({
                "workflow": step.workflow, "model": step.model, "step": step.title,
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
            .header("idempotency-key", format!("workflow-{}-{}", step.workflow, step.item))
            .body(Full::from(body))
            .map_err(|error| wrong(error.to_string()))?;
        let answer = self.0.send(request).await.map_err(|error| {
            let reason = chain(&error);
            if error.is_transient() {
                StepOutcome::Retry(reason)
            } else {
                StepOutcome::Failed(reason)
            }
        })?;
        let (head, body) = answer.into_parts();
        let location = head.headers.get(header::LOCATION).map(HeaderValue::as_bytes);
        let location = location.map(|value| String::from_utf8_lossy(value).into_owned());
        // Read to its end so that the connection can be used again.
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        body.map_err(|error| StepOutcome::Retry(format!("`{address}`: {error}")))?;
        Ok(Answer { status: head.status, location })
    }

    async fn look_after(&self, step: &StepRun) -> Result<StepOutcome, StepOutcome> {
        let every = step.argument("every").map_or(Ok(EVERY), |text| parse_span(&text));
        let every = every.map_err(StepOutcome::Failed)?;
        let kept = step.kept.get("poll").and_then(Json::as_str);
        let address = match kept {
            Some(address) => address.to_owned(),
            None => step.required("start")?,
        };
        let method = if kept.is_some() { Method::GET } else { Method::POST };
        let answer = self.ask(method, &address, step).await?;
        match answer.status {
            StatusCode::ACCEPTED => {
                let mut keep = Map::new();
                let next =
                    answer.location.map_or(Ok(address.clone()), |next| absolute(&address, &next));
                keep.insert("poll".to_owned(), next?.into());
                Ok(StepOutcome::Wait { after: every, keep })
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

/// Returns where to ask again: a path, or an address of the same host.
fn absolute(base: &str, next: &str) -> Result<String, StepOutcome> {
    let begin = |text: &str| -> Option<String> {
        let uri: http::Uri = text.parse().ok()?;
        Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
    };
    let nowhere = || StepOutcome::Failed(format!("`{next}` leads nowhere"));
    let own = begin(base).ok_or_else(nowhere)?;
    if next.starts_with('/') && !next.starts_with("//") {
        return Ok(format!("{own}{next}"));
    }
    match begin(next) {
        Some(other) if other == own => Ok(next.to_owned()),
        Some(_) => {
            let reason =
                format!("`{base}` sends on to another host, `{next}`, which is not followed");
            Err(StepOutcome::Failed(reason))
        }
        None => Err(nowhere()),
    }
}

impl Process for External {
    fn name(&self) -> &str {
        "tympan.workflow.process.HttpExternalProcess"
    }

    fn run(&self, step: &StepRun, context: &JobContext) -> StepOutcome {
        let Some(runtime) = context.runtime() else {
            return StepOutcome::Failed("this step runs outside of a worker".to_owned());
        };
        runtime.block_on(self.look_after(step)).unwrap_or_else(|outcome| outcome)
    }
}
