//! What an endpoint of the API is: one row, from which its route, its checks and its description come.
//!
//! Invariants
//! * A request reaches its handler only with a login (on a publisher without one, too), with the CSRF token where a
//!   cookie proves the login, and with parameters that are as the row describes them.
//! * What a row does not name is refused, with the nearest name that it has.

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
use tympan_web::listen::ConnectionPeer;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;

/// The longest JSON body.
pub(crate) const MAX_JSON_BYTES: u64 = 8 * 1024 * 1024;

/// One endpoint.
pub(crate) struct Endpoint {
    pub(crate) method: EndpointMethod,
    pub(crate) path: &'static str,
    /// The name by which programs know it.
    pub(crate) id: &'static str,
    /// One sentence.
    pub(crate) description: &'static str,
    pub(crate) parameters: &'static [EndpointParameter],
    pub(crate) body: RequestBodySpec,
    /// The answers when all goes well; those of failures are the same everywhere.
    pub(crate) responses: &'static [ResponseSpec],
    pub(crate) handler: EndpointHandler,
}

impl Endpoint {
    /// Tells whether requests change something.
    pub(crate) fn is_write(&self) -> bool {
        self.method != EndpointMethod::Get && !matches!(self.body, RequestBodySpec::QueryJson(_))
    }
}

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndpointMethod {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl EndpointMethod {
    /// Returns the name in capitals.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Returns what routes by it.
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

/// A parameter in the query or the head of a request, or a field of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EndpointParameter {
    pub(crate) name: &'static str,
    pub(crate) kind: ParameterKind,
    pub(crate) is_required: bool,
    pub(crate) description: &'static str,
}

/// What a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    /// A node path.
    Path,
    /// A name of a node or property.
    Name,
    /// A whole number within bounds.
    Integer(u64, u64),
    /// `true` or `false`.
    Flag,
    /// One of some words.
    Keyword(&'static [&'static str]),
    /// A text of at most 4,096 characters.
    Text,
    /// Such a text that is not empty.
    NonEmptyText,
    /// Text of any length: a statement.
    Statement,
    /// Several texts of at most 4,096 characters: the parameter may be repeated.
    Texts,
    /// Several texts of the form `name=value`: the parameter may be repeated.
    Pairs,
    /// An instant: `2026-11-21T12:00:00Z`.
    Time,
    /// Several of some words: the parameter may be repeated.
    Keywords(&'static [&'static str]),
    /// Several paths or patterns of paths: the parameter may be repeated.
    Patterns,
    /// A cursor of the change feed, `now` or `oldest`.
    Cursor,
    /// A place in a listing.
    ListPosition,
    /// Seconds: `30s`.
    Seconds(u64),
    /// A header of the request.
    Header,
    /// A header of the request with one possible value.
    HeaderKeyword(&'static str),
}

impl ParameterKind {
    /// Tells whether it stands in the head of the request.
    pub(crate) fn is_header(self) -> bool {
        matches!(self, Self::Header | Self::HeaderKeyword(_))
    }

    /// Tells whether the parameter may be repeated.
    pub(crate) fn is_repeatable(self) -> bool {
        matches!(self, Self::Texts | Self::Pairs | Self::Keywords(_) | Self::Patterns)
    }
}

/// The branch that is read or changed.
pub(crate) const BRANCH_PARAMETER: EndpointParameter =
    EndpointParameter::new("branch", ParameterKind::Text, "The branch. Default `main`.");
/// The instant whose state is read.
pub(crate) const AT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "at",
    ParameterKind::Time,
    "Reads the state of this instant, such as `2026-11-21T12:00:00Z`, as far as the history reaches back.",
);

impl EndpointParameter {
    /// Makes an optional parameter.
    pub(crate) const fn new(name: &'static str, kind: ParameterKind, about: &'static str) -> Self {
        Self { name, kind, is_required: false, description: about }
    }

    /// Makes a parameter that must be given.
    pub(crate) const fn required(
        name: &'static str,
        kind: ParameterKind,
        about: &'static str,
    ) -> Self {
        Self { name, kind, is_required: true, description: about }
    }
}

/// What an endpoint takes as body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestBodySpec {
    /// Nothing; what is sent is not read.
    None,
    /// JSON of the schema with this name; `application/merge-patch+json` too where it is a patch.
    Json(&'static str),
    /// JSON of the schema with this name that asks and changes nothing.
    QueryJson(&'static str),
    /// JSON merge patch of the schema with this name.
    Patch(&'static str),
    /// The fields of a form, which the handler finds among the parameters.
    Form(&'static [EndpointParameter]),
    /// Text in UTF-8, left to the handler as a stream.
    Text,
    /// Bytes of any type, left to the handler as a stream.
    Bytes,
}

/// An answer that is no failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseSpec {
    pub(crate) status: u16,
    pub(crate) description: &'static str,
    pub(crate) content: ResponseContent,
}

/// What an answer holds.
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
    /// Makes an answer with a status of 200 and JSON.
    pub(crate) const fn json(schema: &'static str, about: &'static str) -> Self {
        Self { status: 200, description: about, content: ResponseContent::Json(schema) }
    }

    /// Makes an answer with a status of 201 and JSON.
    pub(crate) const fn created_json(schema: &'static str, about: &'static str) -> Self {
        Self { status: 201, description: about, content: ResponseContent::Json(schema) }
    }

    /// Makes an answer without a body.
    pub(crate) const fn empty(status: u16, about: &'static str) -> Self {
        Self { status, description: about, content: ResponseContent::Empty }
    }
}

/// What does the work.
#[derive(Clone, Copy)]
pub(crate) enum EndpointHandler {
    /// Runs on the bounded pool of blocking threads.
    Blocking(fn(&Instance, &ApiRequest) -> Result<ApiResponse>),
    /// Runs on the async runtime.
    Async(fn(ApiRequest) -> PendingApiResponse),
    /// A handler of axum's kind, which reads the request itself.
    #[expect(dead_code, reason = "the door for rooms with handlers of their own")]
    Route(fn() -> MethodRouter<Arc<Instance>>),
}

/// An answer on its way.
pub(crate) type PendingApiResponse = Pin<Box<dyn Future<Output = Result<ApiResponse>> + Send>>;

/// A request that has passed the checks of its endpoint.
pub(crate) struct ApiRequest {
    pub(crate) instance: Arc<Instance>,
    pub(crate) identity: Option<RequestIdentity>,
    pub(crate) viewer: Viewer,
    pub(crate) peer: Option<ConnectionPeer>,
    pub(crate) headers: HeaderMap,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) json_body: Bytes,
    /// The unread body, where the endpoint takes bytes.
    pub(crate) body_stream: Mutex<Option<HttpBody>>,
    pub(crate) now: SystemTime,
}

impl ApiRequest {
    /// Returns a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameter_values(name).next()
    }

    /// Returns all values of a parameter.
    pub(crate) fn parameter_values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let found = self.parameters.iter().filter(move |(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the path in a parameter; the root where it is not given.
    pub(crate) fn path_parameter(&self, name: &str) -> Result<NodePath> {
        match self.parameter(name) {
            Some(text) => Ok(NodePath::new(text)?),
            None => Ok(NodePath::root()),
        }
    }

    /// Returns a number.
    pub(crate) fn number_parameter(&self, name: &str, default: usize) -> usize {
        self.parameter(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// Returns a whole number that is given.
    pub(crate) fn integer_parameter(&self, name: &str) -> Option<i64> {
        self.parameter(name)?.parse().ok()
    }

    /// Tells whether a flag is set.
    pub(crate) fn flag_parameter(&self, name: &str) -> bool {
        self.parameter(name) == Some("true")
    }

    /// Returns a duration.
    pub(crate) fn seconds_parameter(&self, name: &str) -> Duration {
        let text = self.parameter(name).map(|text| text.strip_suffix('s').unwrap_or(text));
        Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Returns a header of the request.
    pub(crate) fn header(&self, name: &header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the body.
    pub(crate) fn parse_body<T: DeserializeOwned>(&self) -> Result<T> {
        // A list of values would pass for an object that has as many members.
        if self.json_body.trim_ascii_start().first() != Some(&b'{') {
            return Err(RequestFailure::bad_request("the body does not fit: it must be an object"));
        }
        serde_json::from_slice(&self.json_body)
            .map_err(|error| RequestFailure::bad_request(format!("the body does not fit: {error}")))
    }

    /// Returns the branch that is asked about: the one in the parameter `branch`, or `main`.
    pub(crate) fn open_branch(&self) -> Result<Repository> {
        let main = &self.instance.repository;
        match self.parameter("branch") {
            Some(name) => open_branch_of(main, name),
            None => Ok(main.clone()),
        }
    }

    /// Pins the state that is asked about as the asker may see it: the newest of the branch, or that of the instant in
    /// the parameter `at`.
    pub(crate) fn pin_snapshot(&self) -> Result<Snapshot> {
        let repository = self.open_branch()?;
        let snapshot = match self.parameter("at") {
            Some(at) => repository.snapshot_at_time(JcrDate::parse(at)?.to_system_time())?,
            None => repository.snapshot()?,
        };
        Ok(snapshot.as_viewer(&self.viewer))
    }

    /// Begins a session of the asker on the branch that is asked about.
    pub(crate) fn begin_session(&self) -> Result<Session> {
        Ok(self.open_branch()?.session_as(&self.viewer)?)
    }

    /// Refuses whoever is no administrator; `what` completes "only administrators may".
    pub(crate) fn require_administrator(&self, what: &str) -> Result<()> {
        if self.identity.is_none() {
            return Err(RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"));
        }
        self.instance.require_administrator(&self.viewer, what)
    }

    /// Returns the name of the asker.
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

/// What a handler answers.
#[derive(Debug)]
pub(crate) enum ApiResponse {
    /// JSON.
    Json(JsonApiResponse),
    /// Anything else, ready.
    Http(axum::response::Response),
}

/// An answer in JSON.
#[derive(Debug)]
pub(crate) struct JsonApiResponse {
    pub(crate) status: StatusCode,
    pub(crate) value: serde_json::Value,
    /// The tag of the document that the answer is about.
    pub(crate) tag: Option<String>,
    /// Where what was made is.
    pub(crate) location: Option<String>,
}

impl ApiResponse {
    /// Makes an answer of JSON.
    pub(crate) fn json(value: serde_json::Value) -> Self {
        Self::Json(JsonApiResponse { status: StatusCode::OK, value, tag: None, location: None })
    }

    /// Makes an answer of JSON about something new.
    pub(crate) fn created(value: serde_json::Value) -> Self {
        let status = StatusCode::CREATED;
        Self::Json(JsonApiResponse { status, value, tag: None, location: None })
    }

    /// Makes an answer without a body.
    pub(crate) fn empty() -> Self {
        Self::Http(axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT))
    }

    /// Makes an answer of JSON about a document.
    pub(crate) fn tagged(value: serde_json::Value, tag: Option<String>) -> Self {
        Self::Json(JsonApiResponse { status: StatusCode::OK, value, tag, location: None })
    }
}
