//! A request to one of AEM's addresses: who sends it, and its parameters.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::Value;
use tympan_content::{NodePath, Snapshot, Viewer};

use crate::Instance;
use crate::api::call_endpoint;
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token, check_request_origin, sent_csrf_token};
use crate::write::form::{FormField, FormFieldValue, parse_urlencoded_form, read_form};
use crate::write::sling_post::{
    PostOutcome, PostResponseOptions, failure_response, success_response,
};

/// The form field with the CSRF token.
const CSRF_FIELD: &str = ":cq_csrf_token";

/// A future that resolves to a response.
pub(super) type PendingAemResponse = Pin<Box<dyn Future<Output = Result<Response>> + Send>>;

/// A request whose user is known and whose write no other site made a browser send.
pub(super) struct AemRequest {
    pub(super) instance: Arc<Instance>,
    pub(super) identity: RequestIdentity,
    pub(super) parts: Parts,
    parameters: Vec<(String, String)>,
}

/// Returns the route of an address whose handler takes the parameters of the query and of a form.
pub(super) fn aem_route(
    handler: fn(AemRequest) -> PendingAemResponse,
) -> MethodRouter<Arc<Instance>> {
    any(move |State(instance): State<Arc<Instance>>, request: Request| async move {
        serve_request(&instance, request, handler).await
    })
}

/// Reads a request, calls its handler, and completes the response.
pub(super) async fn serve_request(
    instance: &Arc<Instance>,
    request: Request,
    handler: fn(AemRequest) -> PendingAemResponse,
) -> Response {
    match AemRequest::read(instance, request).await {
        Ok(request) => {
            let identity = request.identity.clone();
            complete_response(handler(request).await, identity)
        }
        Err(failure) => failure.into_response(),
    }
}

/// Adds the headers that all responses have, and the user for the access log.
pub(super) fn complete_response(result: Result<Response>, identity: RequestIdentity) -> Response {
    let mut response = result.unwrap_or_else(IntoResponse::into_response);
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("private, no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.extensions_mut().insert(identity);
    response
}

/// Authenticates a request; for a write also checks its origin, and the CSRF token if it is in a header. Returns true
/// if the token is still to be checked.
pub(super) async fn authenticate(
    instance: &Instance,
    parts: &Parts,
) -> Result<(RequestIdentity, bool)> {
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok((instance.require_reader(parts).await?, false));
    }
    let identity = instance.require_user(parts).await?;
    identity.require_write_scope()?;
    check_request_origin(&identity, &parts.headers)?;
    match sent_csrf_token(&parts.headers) {
        // A wrong token is refused before the body is read.
        Some(token) => check_csrf_token(&identity, Some(token)).map(|()| (identity, false)),
        None => Ok((identity, true)),
    }
}

/// Reads the newest state as a user sees it, on the pool for content work.
pub(super) async fn read_content<T, F>(
    (instance, identity): (&Arc<Instance>, &RequestIdentity),
    read: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Snapshot) -> Result<T> + Send + 'static,
{
    let viewer = identity.viewer();
    let work = move |instance: &Instance| {
        let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
        let result = read(&snapshot)?;
        crate::page::check_snapshot_failure(&snapshot)?;
        Ok(result)
    };
    instance.run_work(work).await
}

impl AemRequest {
    async fn read(instance: &Arc<Instance>, request: Request) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let (identity, is_token_missing) = authenticate(instance, &parts).await?;
        let query = parts.uri.query().unwrap_or_default().as_bytes().to_vec();
        let mut fields = parse_urlencoded_form(&query.into())?;
        let mut token = None;
        if parts.method == Method::POST {
            let form = read_form(&parts.headers, body, &instance.spool_folder).await?;
            token = form.iter().find(|field| field.name == CSRF_FIELD).and_then(field_text);
            fields.extend(form);
        }
        if is_token_missing {
            check_csrf_token(&identity, token.as_deref())?;
        }
        let parameters = fields.into_iter().filter_map(|FormField { name, value }| match value {
            FormFieldValue::Text(text) => Some((name, text)),
            FormFieldValue::File(_) => None,
        });
        let parameters = parameters.collect();
        Ok(Self { instance: Arc::clone(instance), identity, parts, parameters })
    }

    /// Returns the path in the URL.
    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.parts.method, Method::GET | Method::HEAD)
    }

    /// Refuses all methods except POST.
    pub(super) fn require_post(&self) -> Result<()> {
        if self.parts.method == Method::POST {
            Ok(())
        } else {
            super::refusal::method_not_allowed("POST")
        }
    }

    /// Returns the first value of a parameter that is not empty.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let values = self.parameters.iter().filter(|(key, _)| key == name);
        values.map(|(_, value)| value.as_str()).find(|value| !value.is_empty())
    }

    /// Returns all values of a parameter that are not empty.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let values = self.parameters.iter().filter(move |(key, _)| key == name);
        values.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the value of a required parameter.
    pub(super) fn required(&self, name: &str) -> Result<&str> {
        let missing = || RequestFailure::bad_request(format!("the parameter `{name}` is missing"));
        self.value(name).ok_or_else(missing)
    }

    /// Returns all parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if a switch is on. Its name is compared without regard to case, as AEM's addresses spell the same
    /// switches in different ways.
    pub(super) fn is_set(&self, name: &str) -> bool {
        let mut parameters = self.parameters.iter();
        parameters.any(|(key, value)| {
            key.eq_ignore_ascii_case(name) && matches!(value.as_str(), "true" | "1" | "on")
        })
    }

    pub(super) fn viewer(&self) -> Viewer {
        self.identity.viewer()
    }

    /// Reads the newest state as the user sees it, as [`read_content`] does.
    pub(super) async fn read_content<T, F>(&self, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Snapshot) -> Result<T> + Send + 'static,
    {
        read_content((&self.instance, &self.identity), read).await
    }

    /// Returns the name for a new node: `name`, or with a number if it is taken.
    pub(super) fn free_path(
        snapshot: &Snapshot,
        parent: &NodePath,
        name: &str,
    ) -> Result<NodePath> {
        let mut path = parent.child(name)?;
        for number in 0_usize.. {
            if snapshot.node(&path)?.is_none() {
                break;
            }
            path = parent.child(&format!("{name}{number}"))?;
        }
        Ok(path)
    }

    /// Calls an endpoint of the JSON API as the user.
    pub(super) async fn call(
        &self,
        endpoint: &str,
        parameters: &[(&str, &str)],
        body: &Value,
    ) -> Result<Value> {
        call_endpoint((&self.instance, &self.identity), endpoint, parameters, body).await
    }

    /// Converts the outcome of a command to the response that the client asks for: Sling's status as HTML or JSON.
    pub(super) fn status_response(&self, outcome: Result<PostOutcome>) -> Response {
        let text = |name: header::HeaderName| {
            self.parts.headers.get(name).and_then(|value| value.to_str().ok())
        };
        let accept = match self.path().ends_with(".json") {
            true => "application/json",
            false => text(header::ACCEPT).unwrap_or_default(),
        };
        let referer = text(header::REFERER).map(str::to_owned);
        let options = PostResponseOptions::from_headers(accept, referer);
        match outcome {
            Ok(outcome) => success_response(&options, &outcome),
            Err(failure) => failure_response(&options, self.path(), failure),
        }
    }
}

fn field_text(field: &FormField) -> Option<String> {
    match &field.value {
        FormFieldValue::Text(text) => Some(text.clone()),
        FormFieldValue::File(_) => None,
    }
}

/// Returns the failure for a node that a command names and that is not there.
pub(super) fn missing_node(path: &NodePath) -> RequestFailure {
    RequestFailure::new(StatusCode::NOT_FOUND, format!("there is nothing at `{path}`"))
}
