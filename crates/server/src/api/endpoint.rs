//! API endpoints: each is one row of a table that defines its route, its checks and its description.
//!
//! Invariants
//! * A request reaches its handler only with a login (on a publisher also without one), with the CSRF token if a cookie
//!   proves the login, and with parameters that match the row.
//! * A parameter that the row does not name is refused; the message names the closest known one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body as HttpBody;
use axum::routing::{MethodFilter, MethodRouter};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tympan_content::{JcrDate, NodePath, Repository, Session, Snapshot, Viewer};
use tympan_web::disconnect_detection::DisconnectDetection;
use tympan_web::listen::ConnectionPeer;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;

/// Maximum size of a JSON body, in bytes.
pub(crate) const MAX_JSON_BYTES: u64 = 8 * 1024 * 1024;

/// An API endpoint.
pub(crate) struct Endpoint {
    pub(crate) method: EndpointMethod,
    pub(crate) path: &'static str,
    /// Identifier of the endpoint for programs (`operationId`).
    pub(crate) id: &'static str,
    /// Description of one sentence.
    pub(crate) description: &'static str,
    pub(crate) parameters: &'static [EndpointParameter],
    pub(crate) body: RequestBodySpec,
    /// Responses on success; failure responses are the same for all endpoints.
    pub(crate) responses: &'static [ResponseSpec],
    pub(crate) handler: EndpointHandler,
}

impl Endpoint {
    /// Returns true if requests to the endpoint change something.
    pub(crate) fn is_write(&self) -> bool {
        self.method != EndpointMethod::Get && !matches!(self.body, RequestBodySpec::QueryJson(_))
    }
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointMethod {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl EndpointMethod {
    /// Returns the name in upper case.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Returns axum's filter for the method.
    pub(crate) fn to_method_filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Put => MethodFilter::PUT,
            Self::Post => MethodFilter::POST,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// A parameter in the query string or header of a request, or a field of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndpointParameter {
    pub(crate) name: &'static str,
    pub(crate) kind: ParameterKind,
    pub(crate) is_required: bool,
    pub(crate) description: &'static str,
}

/// The type of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// A node path.
    Path,
    /// A name of a node or property.
    Name,
    /// An integer within the given bounds.
    Integer(u64, u64),
    /// `true` or `false`.
    Flag,
    /// One of the given keywords.
    Keyword(&'static [&'static str]),
    /// A text of at most 4,096 characters.
    Text,
    /// A text of 1 to 4,096 characters.
    NonEmptyText,
    /// Text of any length, such as a query statement.
    Statement,
    /// Texts of at most 4,096 characters each; the parameter may be repeated.
    Texts,
    /// Texts of the form `name=value`; the parameter may be repeated.
    Pairs,
    /// A point in time: `2026-11-21T12:00:00Z`.
    Time,
    /// Any of the given keywords; the parameter may be repeated.
    Keywords(&'static [&'static str]),
    /// Paths or path patterns; the parameter may be repeated.
    Patterns,
    /// A cursor of the change feed, `now` or `oldest`.
    Cursor,
    /// A position in a listing.
    ListPosition,
    /// A duration in seconds: `30s`.
    Seconds(u64),
    /// A request header.
    Header,
    /// A request header with one possible value.
    HeaderKeyword(&'static str),
}

impl ParameterKind {
    /// Returns true if the parameter is a request header.
    pub(crate) fn is_header(self) -> bool {
        matches!(self, Self::Header | Self::HeaderKeyword(_))
    }

    /// Returns true if the parameter may be repeated.
    pub(crate) fn is_repeatable(self) -> bool {
        matches!(self, Self::Texts | Self::Pairs | Self::Keywords(_) | Self::Patterns)
    }
}

/// The branch that is read or changed.
pub(crate) const BRANCH_PARAMETER: EndpointParameter =
    EndpointParameter::new("branch", ParameterKind::Text, "The branch. Default `main`.");
/// The point in time whose state is read.
pub(crate) const AT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "at",
    ParameterKind::Time,
    "Reads the state at this instant, such as `2026-11-21T12:00:00Z`, as far back as the history reaches.",
);

impl EndpointParameter {
    /// Creates an optional parameter.
    pub(crate) const fn new(name: &'static str, kind: ParameterKind, about: &'static str) -> Self {
        Self { name, kind, is_required: false, description: about }
    }

    /// Creates a required parameter.
    pub(crate) const fn required(
        name: &'static str,
        kind: ParameterKind,
        about: &'static str,
    ) -> Self {
        Self { name, kind, is_required: true, description: about }
    }
}

/// The request body that an endpoint accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestBodySpec {
    /// No body; data that is sent is not read.
    None,
    /// JSON of the schema with this name; `application/merge-patch+json` is also accepted where the body is a patch.
    Json(&'static str),
    /// JSON of the schema with this name, for a query that changes nothing.
    QueryJson(&'static str),
    /// A JSON merge patch of the schema with this name.
    Patch(&'static str),
    /// A form; the handler finds its fields among the parameters.
    Form(&'static [EndpointParameter]),
    /// UTF-8 text, passed to the handler as a stream.
    Text,
    /// Bytes of any type, passed to the handler as a stream.
    Bytes,
}

/// A successful response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: ResponseContent,
}

/// The content of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseContent {
    Empty,
    /// JSON of the schema with this name.
    Json(&'static str),
    /// JSON of the schema with this name, or server-sent events.
    JsonOrEvents(&'static str),
    /// Bytes of any type.
    Bytes,
}

impl ResponseSpec {
    /// Creates a response with status 200 and JSON.
    pub(crate) const fn json(schema: &'static str, about: &'static str) -> Self {
        Self { status: 200, description: about, content: ResponseContent::Json(schema) }
    }

    /// Creates a response with status 201 and JSON.
    pub(crate) const fn created_json(schema: &'static str, about: &'static str) -> Self {
        Self { status: 201, description: about, content: ResponseContent::Json(schema) }
    }

    /// Creates a response without a body.
    pub(crate) const fn empty(status: u16, about: &'static str) -> Self {
        Self { status, description: about, content: ResponseContent::Empty }
    }
}

/// The function that handles the requests of an endpoint.
#[derive(Clone, Copy)]
pub(crate) enum EndpointHandler {
    /// Runs on the bounded pool of blocking threads.
    Blocking(fn(&Instance, &ApiRequest) -> Result<ApiResponse>),
    /// Runs on the async runtime.
    Async(fn(ApiRequest) -> PendingApiResponse),
    /// An axum handler, which reads the request itself.
    #[expect(dead_code, reason = "for endpoints with handlers of their own")]
    Route(fn() -> MethodRouter<Arc<Instance>>),
}

/// A future that resolves to a response.
pub(crate) type PendingApiResponse = Pin<Box<dyn Future<Output = Result<ApiResponse>> + Send>>;

/// A request that has passed the checks of its endpoint.
pub(crate) struct ApiRequest {
    pub(crate) instance: Arc<Instance>,
    pub(crate) identity: Option<RequestIdentity>,
    pub(crate) viewer: Viewer,
    pub(crate) peer: Option<ConnectionPeer>,
    pub(crate) disconnect_detection: Option<DisconnectDetection>,
    pub(crate) headers: HeaderMap,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) json_body: Bytes,
    /// The unread body, if the endpoint accepts a stream of bytes.
    pub(crate) body_stream: Mutex<Option<HttpBody>>,
    pub(crate) now: SystemTime,
}

impl ApiRequest {
    /// Returns the value of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameter_values(name).next()
    }

    /// Returns all values of a parameter.
    pub(crate) fn parameter_values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let pairs = self.parameters.iter().filter(move |(key, _)| key == name);
        pairs.map(|(_, value)| value.as_str())
    }

    /// Returns the path in a parameter, or the root if the parameter is missing.
    pub(crate) fn path_parameter(&self, name: &str) -> Result<NodePath> {
        match self.parameter(name) {
            Some(text) => Ok(NodePath::new(text)?),
            None => Ok(NodePath::root()),
        }
    }

    /// Returns the number in a parameter, or `default`.
    pub(crate) fn number_parameter(&self, name: &str, default: usize) -> usize {
        self.parameter(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// Returns the integer in a parameter, if it is present.
    pub(crate) fn integer_parameter(&self, name: &str) -> Option<i64> {
        self.parameter(name)?.parse().ok()
    }

    /// Returns true if a flag is set.
    pub(crate) fn flag_parameter(&self, name: &str) -> bool {
        self.parameter(name) == Some("true")
    }

    /// Returns the duration in a parameter.
    pub(crate) fn seconds_parameter(&self, name: &str) -> Duration {
        let text = self.parameter(name).map(|text| text.strip_suffix('s').unwrap_or(text));
        Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Returns a request header.
    pub(crate) fn header(&self, name: &header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Deserializes the JSON body.
    pub(crate) fn parse_body<T: DeserializeOwned>(&self) -> Result<T> {
        // Serde would accept an array with as many elements as the object has members.
        if self.json_body.trim_ascii_start().first() != Some(&b'{') {
            return Err(RequestFailure::bad_request("invalid body: it must be a JSON object"));
        }
        serde_json::from_slice(&self.json_body)
            .map_err(|error| RequestFailure::bad_request(format!("invalid body: {error}")))
    }

    /// Returns the branch of the request: the one in the parameter `branch`, or `main`.
    pub(crate) fn open_branch(&self) -> Result<Repository> {
        let main = &self.instance.repository;
        match self.parameter("branch") {
            Some(name) => open_branch_of(main, name),
            None => Ok(main.clone()),
        }
    }

    /// Pins the snapshot of the request, as seen by the requesting user: the newest state of the branch, or the state
    /// at the time in the parameter `at`.
    pub(crate) fn pin_snapshot(&self) -> Result<Snapshot> {
        let repository = self.open_branch()?;
        let snapshot = match self.parameter("at") {
            Some(at) => repository.snapshot_at_time(JcrDate::parse(at)?.to_system_time())?,
            None => repository.snapshot()?,
        };
        Ok(snapshot.as_viewer(&self.viewer))
    }

    /// Begins a session of the requesting user on the branch of the request.
    pub(crate) fn begin_session(&self) -> Result<Session> {
        Ok(self.open_branch()?.session_as(&self.viewer)?)
    }

    /// Refuses users who are not administrators; `action` completes "only administrators may".
    pub(crate) fn require_administrator(&self, action: &str) -> Result<()> {
        if self.identity.is_none() {
            return Err(RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"));
        }
        self.instance.require_administrator(&self.viewer, action)
    }

    /// Returns the name of the requesting user.
    pub(crate) fn user_name(&self) -> &str {
        self.identity.as_ref().map_or("anonymous", |identity| &identity.user)
    }
}

/// Opens a branch.
pub(crate) fn open_branch_of(main: &Repository, name: &str) -> Result<Repository> {
    if !main.branches()?.iter().any(|branch| branch.name == name) {
        let message = format!("there is no branch `{name}`");
        return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
    }
    Ok(main.open_branch(name)?)
}

/// The response of a handler.
#[derive(Debug)]
pub(crate) enum ApiResponse {
    /// JSON.
    Json(JsonApiResponse),
    /// Any other response, complete.
    Http(axum::response::Response),
}

/// A JSON response.
#[derive(Debug)]
pub(crate) struct JsonApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) value: serde_json::Value,
    /// Entity tag of the document that the response describes.
    pub(crate) tag: Option<String>,
    /// URL of the created resource.
    pub(crate) location: Option<String>,
}

impl ApiResponse {
    /// Creates a JSON response.
    pub(crate) fn json(value: serde_json::Value) -> Self {
        Self::Json(JsonApiResponse { status: StatusCode::OK, value, tag: None, location: None })
    }

    /// Creates a JSON response for a created resource.
    pub(crate) fn created(value: serde_json::Value) -> Self {
        let status = StatusCode::CREATED;
        Self::Json(JsonApiResponse { status, value, tag: None, location: None })
    }

    /// Creates a response without a body.
    pub(crate) fn empty() -> Self {
        Self::Http(axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT))
    }

    /// Creates a JSON response for a document.
    pub(crate) fn tagged(value: serde_json::Value, tag: Option<String>) -> Self {
        Self::Json(JsonApiResponse { status: StatusCode::OK, value, tag, location: None })
    }
}
