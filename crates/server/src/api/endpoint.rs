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
use tympan_content::{Date, NodePath, Repository, Session, Snapshot, Viewer};
use tympan_web::listen::Peer;

use crate::Instance;
use crate::failure::{Failure, Result};
use crate::login::Identity;

/// The longest JSON body.
pub(crate) const MAX_JSON_BYTES: u64 = 8 * 1024 * 1024;

/// One endpoint.
pub(crate) struct Endpoint {
    pub(crate) verb: Verb,
    pub(crate) path: &'static str,
    /// The name by which programs know it.
    pub(crate) id: &'static str,
    /// One sentence.
    pub(crate) about: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) body: Body,
    /// The answers when all goes well; those of failures are the same everywhere.
    pub(crate) answers: &'static [Answer],
    pub(crate) handler: Handler,
}

impl Endpoint {
    /// Tells whether requests change something.
    pub(crate) fn writes(&self) -> bool {
        self.verb != Verb::Get && !matches!(self.body, Body::Question(_))
    }
}

/// A method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl Verb {
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
    pub(crate) fn filter(self) -> MethodFilter {
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
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) is_required: bool,
    pub(crate) about: &'static str,
}

/// What a parameter holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A node path.
    Path,
    /// A name of a node or property.
    Name,
    /// A whole number within bounds.
    Integer(u64, u64),
    /// `true` or `false`.
    Flag,
    /// One of some words.
    Words(&'static [&'static str]),
    /// A text of at most 4,096 characters.
    Text,
    /// Such a text that is not empty.
    Filled,
    /// Text of any length: a statement.
    Statement,
    /// Several texts of at most 4,096 characters: the parameter may be repeated.
    Texts,
    /// Several texts of the form `name=value`: the parameter may be repeated.
    Pairs,
    /// An instant: `2026-11-21T12:00:00Z`.
    Time,
    /// Several of some words: the parameter may be repeated.
    SomeWords(&'static [&'static str]),
    /// Several paths or patterns of paths: the parameter may be repeated.
    Patterns,
    /// A cursor of the change feed, `now` or `oldest`.
    Cursor,
    /// A place in a listing.
    Place,
    /// Seconds: `30s`.
    Seconds(u64),
    /// A header of the request.
    Header,
    /// A header of the request with one possible value.
    HeaderWord(&'static str),
}

impl Kind {
    /// Tells whether it stands in the head of the request.
    pub(crate) fn is_header(self) -> bool {
        matches!(self, Self::Header | Self::HeaderWord(_))
    }

    /// Tells whether the parameter may be repeated.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::Texts | Self::Pairs | Self::SomeWords(_) | Self::Patterns)
    }
}

/// The branch that is read or changed.
pub(crate) const BRANCH: Parameter =
    Parameter::new("branch", Kind::Text, "The branch. Default `main`.");
/// The instant whose state is read.
pub(crate) const AT: Parameter = Parameter::new(
    "at",
    Kind::Time,
    "Reads the state of this instant, such as `2026-11-21T12:00:00Z`, as far as the history reaches back.",
);

impl Parameter {
    /// Makes an optional parameter.
    pub(crate) const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, is_required: false, about }
    }

    /// Makes a parameter that must be given.
    pub(crate) const fn required(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, is_required: true, about }
    }
}

/// What an endpoint takes as body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Nothing; what is sent is not read.
    None,
    /// JSON of the schema with this name; `application/merge-patch+json` too where it is a patch.
    Json(&'static str),
    /// JSON of the schema with this name that asks and changes nothing.
    Question(&'static str),
    /// JSON merge patch of the schema with this name.
    Patch(&'static str),
    /// The fields of a form, which the handler finds among the parameters.
    Form(&'static [Parameter]),
    /// Text in UTF-8, left to the handler as a stream.
    Text,
    /// Bytes of any type, left to the handler as a stream.
    Bytes,
}

/// An answer that is no failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) about: &'static str,
    pub(crate) content: Content,
}

/// What an answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Nothing,
    /// JSON of the schema with this name.
    Json(&'static str),
    /// JSON of the schema with this name, or server-sent events.
    JsonOrEvents(&'static str),
    /// Bytes of any type.
    Bytes,
}

impl Answer {
    /// Makes an answer with a status of 200 and JSON.
    pub(crate) const fn json(schema: &'static str, about: &'static str) -> Self {
        Self { status: 200, about, content: Content::Json(schema) }
    }

    /// Makes an answer with a status of 201 and JSON.
    pub(crate) const fn created(schema: &'static str, about: &'static str) -> Self {
        Self { status: 201, about, content: Content::Json(schema) }
    }

    /// Makes an answer without a body.
    pub(crate) const fn nothing(status: u16, about: &'static str) -> Self {
        Self { status, about, content: Content::Nothing }
    }
}

/// What does the work.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// Runs on the bounded pool of blocking threads.
    Work(fn(&Instance, &Call) -> Result<Reply>),
    /// Runs on the async runtime.
    Task(fn(Call) -> Pending),
    /// A handler of axum's kind, which reads the request itself.
    #[expect(dead_code, reason = "the door for rooms with handlers of their own")]
    Route(fn() -> MethodRouter<Arc<Instance>>),
}

/// An answer on its way.
pub(crate) type Pending = Pin<Box<dyn Future<Output = Result<Reply>> + Send>>;

/// A request that has passed the checks of its endpoint.
pub(crate) struct Call {
    pub(crate) instance: Arc<Instance>,
    pub(crate) identity: Option<Identity>,
    pub(crate) viewer: Viewer,
    pub(crate) peer: Option<Peer>,
    pub(crate) headers: HeaderMap,
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) json: Bytes,
    /// The unread body, where the endpoint takes bytes.
    pub(crate) stream: Mutex<Option<HttpBody>>,
    pub(crate) now: SystemTime,
}

impl Call {
    /// Returns a parameter.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.texts(name).next()
    }

    /// Returns all values of a parameter.
    pub(crate) fn texts<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let found = self.parameters.iter().filter(move |(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the path in a parameter; the root where it is not given.
    pub(crate) fn path(&self, name: &str) -> Result<NodePath> {
        match self.text(name) {
            Some(text) => Ok(NodePath::new(text)?),
            None => Ok(NodePath::root()),
        }
    }

    /// Returns a number.
    pub(crate) fn number(&self, name: &str, default: usize) -> usize {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// Returns a whole number that is given.
    pub(crate) fn whole(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// Tells whether a flag is set.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// Returns a duration.
    pub(crate) fn seconds(&self, name: &str) -> Duration {
        let text = self.text(name).map(|text| text.strip_suffix('s').unwrap_or(text));
        Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Returns a header of the request.
    pub(crate) fn header(&self, name: &header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the body.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T> {
        // A list of values would pass for an object that has as many members.
        if self.json.trim_ascii_start().first() != Some(&b'{') {
            return Err(Failure::bad_request("the body does not fit: it must be an object"));
        }
        serde_json::from_slice(&self.json)
            .map_err(|error| Failure::bad_request(format!("the body does not fit: {error}")))
    }

    /// Returns the branch that is asked about: the one in the parameter `branch`, or `main`.
    pub(crate) fn repository(&self) -> Result<Repository> {
        let main = &self.instance.repository;
        match self.text("branch") {
            Some(name) => on_branch(main, name),
            None => Ok(main.clone()),
        }
    }

    /// Pins the state that is asked about as the asker may see it: the newest of the branch, or that of the instant in
    /// the parameter `at`.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let repository = self.repository()?;
        let snapshot = match self.text("at") {
            Some(at) => repository.snapshot_at_time(Date::parse(at)?.to_system_time())?,
            None => repository.snapshot()?,
        };
        Ok(snapshot.seen_by(&self.viewer))
    }

    /// Begins a session of the asker on the branch that is asked about.
    pub(crate) fn session(&self) -> Result<Session> {
        Ok(self.repository()?.session_of(&self.viewer)?)
    }

    /// Refuses whoever is no administrator; `what` completes "only administrators may".
    pub(crate) fn require_administrator(&self, what: &str) -> Result<()> {
        if self.identity.is_none() {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "log in first"));
        }
        self.instance.require_administrator(&self.viewer, what)
    }

    /// Returns the name of the asker.
    pub(crate) fn user(&self) -> &str {
        self.identity.as_ref().map_or("anonymous", |identity| &identity.user)
    }
}

/// Opens a branch.
pub(crate) fn on_branch(main: &Repository, name: &str) -> Result<Repository> {
    if !main.branches()?.iter().any(|branch| branch.name == name) {
        let message = format!("there is no branch `{name}`");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    Ok(main.on_branch(name)?)
}

/// What a handler answers.
#[derive(Debug)]
pub(crate) enum Reply {
    /// JSON.
    Json(JsonReply),
    /// Anything else, ready.
    Http(axum::response::Response),
}

/// An answer in JSON.
#[derive(Debug)]
pub(crate) struct JsonReply {
    pub(crate) status: StatusCode,
    pub(crate) value: serde_json::Value,
    /// The tag of the document that the answer is about.
    pub(crate) tag: Option<String>,
    /// Where what was made is.
    pub(crate) location: Option<String>,
}

impl Reply {
    /// Makes an answer of JSON.
    pub(crate) fn json(value: serde_json::Value) -> Self {
        Self::Json(JsonReply { status: StatusCode::OK, value, tag: None, location: None })
    }

    /// Makes an answer of JSON about something new.
    pub(crate) fn created(value: serde_json::Value) -> Self {
        let status = StatusCode::CREATED;
        Self::Json(JsonReply { status, value, tag: None, location: None })
    }

    /// Makes an answer without a body.
    pub(crate) fn nothing() -> Self {
        Self::Http(axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT))
    }

    /// Makes an answer of JSON about a document.
    pub(crate) fn tagged(value: serde_json::Value, tag: Option<String>) -> Self {
        Self::Json(JsonReply { status: StatusCode::OK, value, tag, location: None })
    }
}
