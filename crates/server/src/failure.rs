//! Conversion of errors of the crates below to HTTP responses.

use std::io::ErrorKind;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use tympan_content::{ConstraintViolation, ConstraintViolationKind, MergeConflict};
use tympan_notation::error_chain_text;
use tympan_web::body_limit::{is_body_timeout, is_body_too_large};

/// An error response.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) conflicts: Vec<MergeConflict>,
    pub(crate) violations: Vec<ConstraintViolation>,
    /// Value of `Retry-After`, in seconds.
    pub(crate) retry_after_seconds: Option<u64>,
    /// Additional machine-readable members of the problem details, by name.
    pub(crate) details: Vec<(&'static str, Value)>,
}

pub(crate) type Result<T, E = RequestFailure> = std::result::Result<T, E>;

impl RequestFailure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            conflicts: Vec::new(),
            violations: Vec::new(),
            retry_after_seconds: None,
            details: Vec::new(),
        }
    }

    /// Adds a machine-readable detail.
    pub(crate) fn with_detail(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Creates the failure for a request body that could not be read to its end.
    pub(crate) fn unreadable_body(error: &(dyn std::error::Error + 'static)) -> Self {
        if is_body_too_large(error) {
            let message = "the body is larger than this server accepts";
            Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        } else if is_body_timeout(error) {
            Self::new(StatusCode::REQUEST_TIMEOUT, "timed out while receiving the body")
        } else {
            Self::bad_request(format!("the body cannot be read: {error}"))
        }
    }

    /// Creates a failure for a request that is well-formed but does not fit the existing content.
    pub(crate) fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    pub(crate) fn not_found(path: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is nothing at `{path}`"))
    }

    /// Creates a failure for a login attempt that follows others too quickly.
    pub(crate) fn too_many_attempts(wait: std::time::Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let message = format!("too many failed logins; try again in {seconds} s");
        let failure = Self::new(StatusCode::TOO_MANY_REQUESTS, message);
        Self { retry_after_seconds: Some(seconds), ..failure }
    }

    /// Creates a failure for damaged stored data, with a hint for its repair.
    pub(crate) fn damaged_data(hint: &str) -> Self {
        let message = format!("the stored data is damaged and was not sent: {hint}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Creates a failure for an internal error. The error is logged and its details are not disclosed, except that a
    /// full disk is reported as such.
    pub(crate) fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        if is_disk_full(error) {
            tracing::error!(reason = %error, "the disk is full");
            let message = "the disk is full: nothing was saved, but reads still work; free some space, then \
                try again";
            return Self::new(StatusCode::INSUFFICIENT_STORAGE, message);
        }
        // The stream reader of a blob can return only this type of error.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let content = error.downcast_ref().or_else(|| inner?.downcast_ref());
        if let Some(hint) = content.and_then(tympan_content::Error::repair_hint) {
            tracing::error!(reason = error_chain_text(error), "stored data is damaged");
            return Self::damaged_data(hint);
        }
        let is_of_base = content.is_some_and(tympan_content::Error::is_base_store_error);
        if is_of_base {
            let reason = error_chain_text(error);
            // Logged at debug level only, to avoid flooding the log: `/health` and the readers of the base report the
            // error.
            tracing::debug!(reason, "cannot read the base store");
            let message =
                format!("{reason}; content that was read before is still served, try again later");
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        }
        let is_busy = error.downcast_ref().is_some_and(tympan_content::Error::is_transient);
        if is_busy || is_state_unavailable(error) {
            tracing::warn!(reason = %error, "request refused temporarily");
            let message = format!("{error}; nothing was saved, try again in a moment");
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        }
        tracing::error!(reason = error_chain_text(error), "request failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal server error; see the error log of the server",
        )
    }

    /// Returns the problem details (RFC 9457), as in the JSON API.
    pub(crate) fn problem_details(&self) -> Value {
        let title = self.status.canonical_reason().unwrap_or("Failure");
        let mut body = Map::new();
        body.insert("type".to_owned(), "about:blank".into());
        body.insert("title".to_owned(), title.into());
        body.insert("status".to_owned(), self.status.as_u16().into());
        body.insert("detail".to_owned(), self.message.clone().into());
        self.add_details(&mut body);
        body.extend(self.details.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Object(body)
    }

    /// Converts to a response with problem details, as in the JSON API.
    pub(crate) fn into_problem_response(self) -> Response {
        let body = self.problem_details();
        let media_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let tag = self.details.iter().find(|(name, _)| *name == "currentTag");
        let tag = tag.and_then(|(_, tag)| tag.as_str());
        let tag = tag.and_then(|tag| HeaderValue::from_str(tag).ok());
        let response = (self.status, media_type, body.to_string()).into_response();
        let mut response = self.with_hint_headers(response);
        if let Some(tag) = tag {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }

    /// Adds the details of the cause.
    fn add_details(&self, body: &mut Map<String, Value>) {
        if !self.conflicts.is_empty() {
            let conflicts: Vec<Value> = self.conflicts.iter().map(conflict_json).collect();
            body.insert("conflicts".to_owned(), conflicts.into());
        }
        if !self.violations.is_empty() {
            let violations: Vec<Value> = self.violations.iter().map(violation_json).collect();
            body.insert("violations".to_owned(), violations.into());
        }
    }

    /// Adds the headers that tell the client when to retry and how to log in.
    fn with_hint_headers(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Basic realm=\"Tympan\", charset=\"UTF-8\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// Returns an error and its causes, including those wrapped in an I/O error.
fn error_causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        inner.map(|inner| inner as &(dyn std::error::Error + 'static)).or_else(|| error.source())
    })
}

/// Returns the error code of a statement that the database refused.
fn database_error_code(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let error = error.downcast_ref::<sqlx::Error>()?.as_database_error()?;
    error.code().map(std::borrow::Cow::into_owned)
}

/// Returns true if the state database is currently unavailable.
fn is_state_unavailable(error: &(dyn std::error::Error + 'static)) -> bool {
    error_causes(error).any(|cause| {
        let cause = cause.downcast_ref::<sqlx::Error>();
        matches!(cause, Some(sqlx::Error::PoolTimedOut | sqlx::Error::Io(_)))
    })
}

/// Returns true if a disk or a database is full: code 13 in SQLite, 53100 in PostgreSQL.
fn is_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    error_causes(error).any(|cause| {
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
            || database_error_code(cause).is_some_and(|code| code == "13" || code == "53100")
    })
}

/// Returns true if the state database can be read but not written: its disk is full, fails or is mounted read-only, or
/// the server is a standby of another one.
pub(crate) fn is_write_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    // The lower byte of a SQLite code is its kind: read-only, I/O error, full.
    let is_of_sqlite = |code: &str| {
        code.len() < 5 && code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 8 | 10 | 13))
    };
    is_disk_full(error)
        || error_causes(error)
            .filter_map(database_error_code)
            .any(|code| is_of_sqlite(&code) || code == "25006")
}

/// Describes a conflict with the values of all sides, and the author of the other change.
pub(crate) fn conflict_json(conflict: &MergeConflict) -> Value {
    let text = |property: &Option<tympan_content::Property>| {
        let values = property.as_ref()?.values();
        let values: Vec<_> = values.iter().map(|value| value.to_text().into_owned()).collect();
        Some(values.join(", "))
    };
    json!({
        "path": conflict.path.as_str(),
        "kind": conflict.kind.name(),
        "property": conflict.property,
        "base": text(&conflict.base),
        "ours": text(&conflict.ours),
        "theirs": text(&conflict.theirs),
        "changed": conflict.last_change.as_ref().map(|by| json!({
            "user": by.user,
            "at": tympan_content::JcrDate::from_system_time(by.time).to_string(),
            "revision": by.revision,
            "message": by.message,
        })),
    })
}

impl IntoResponse for RequestFailure {
    fn into_response(self) -> Response {
        let mut body = Map::new();
        body.insert("error".to_owned(), self.message.clone().into());
        body.insert("status.code".to_owned(), self.status.as_u16().into());
        body.insert("status.message".to_owned(), self.message.clone().into());
        self.add_details(&mut body);
        let response = (self.status, axum::Json(body)).into_response();
        self.with_hint_headers(response)
    }
}

impl From<tympan_content::Error> for RequestFailure {
    fn from(error: tympan_content::Error) -> Self {
        use tympan_content::{Error, LostCursor};
        let status = match &error {
            Error::InvalidName { .. } | Error::ValueFormat { .. } => StatusCode::BAD_REQUEST,
            Error::NodeMissing(_) | Error::VersionMissing { .. } => StatusCode::NOT_FOUND,
            Error::NodeExists(_) | Error::DocumentChanged(_) => StatusCode::PRECONDITION_FAILED,
            Error::CursorLost { .. } => StatusCode::GONE,
            Error::InvalidEdit { .. }
            | Error::InvalidBranch { .. }
            | Error::InvalidNodeTypes(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Conflicts(_) => StatusCode::CONFLICT,
            Error::InvalidNamespace { .. } => StatusCode::CONFLICT,
            Error::ConstraintViolations(violations) => violation_status(violations),
            Error::AccessDenied { .. } => StatusCode::FORBIDDEN,
            Error::NotUnique { .. } => StatusCode::CONFLICT,
            _ => return Self::internal(&error),
        };
        let message = error.to_string();
        let failure = Self::new(status, message);
        match error {
            Error::Conflicts(conflicts) => Self { conflicts, ..failure },
            Error::ConstraintViolations(violations) => Self { violations, ..failure },
            Error::NotUnique { property, path, existing_path } => {
                let kind = ConstraintViolationKind::DuplicateIdentifier;
                let detail = existing_path.map_or_else(String::new, |existing_path| {
                    format!("{existing_path} already has it")
                });
                let (referrers, others) = (Vec::new(), Vec::new());
                let violation = ConstraintViolation {
                    path,
                    kind,
                    item: property,
                    detail,
                    referrers,
                    conflicting_paths: others,
                    hidden_count: 0,
                };
                Self { violations: vec![violation], ..failure }
            }
            Error::CursorLost(lost) => {
                let LostCursor { oldest, newest, root, .. } = *lost;
                let failure = failure.with_detail("oldest", oldest).with_detail("newest", newest);
                failure.with_detail("root", root.to_string())
            }
            _ => failure,
        }
    }
}

impl From<tympan_content_package::Error> for RequestFailure {
    fn from(error: tympan_content_package::Error) -> Self {
        use tympan_content_package::Error;
        match error {
            Error::Content(error) => error.into(),
            Error::InvalidPackage { .. } | Error::PackageFaults(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            }
            _ => Self::internal(&error),
        }
    }
}

impl From<tympan_content_query::Error> for RequestFailure {
    fn from(error: tympan_content_query::Error) -> Self {
        use tympan_content_query::Error;
        match error {
            Error::Content(error) => error.into(),
            Error::Syntax(_) => Self::new(StatusCode::BAD_REQUEST, error.to_string()),
            _ => Self::internal(&error),
        }
    }
}

/// Returns 409 if all violations are about the content of other nodes, and 422 if the submitted content itself is
/// invalid.
fn violation_status(violations: &[ConstraintViolation]) -> StatusCode {
    let is_about_others = |violation: &ConstraintViolation| {
        ConstraintViolationKind::is_about_other_nodes(violation.kind)
    };
    if !violations.is_empty() && violations.iter().all(is_about_others) {
        StatusCode::CONFLICT
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    }
}

fn violation_json(violation: &ConstraintViolation) -> Value {
    let mut body = json!({
        "path": violation.path.as_str(),
        "code": violation.kind.code(),
        "item": violation.item,
        "message": violation.to_string(),
    });
    if let (false, Some(body)) = (violation.referrers.is_empty(), body.as_object_mut()) {
        let referrers: Vec<_> = violation
            .referrers
            .iter()
            .map(|constraint| {
                json!({ "path": constraint.path.as_str(), "property": constraint.property, "kind": constraint.kind.name() })
            })
            .collect();
        body.insert("referrers".to_owned(), referrers.into());
    }
    body
}

impl From<tympan_replicate::Error> for RequestFailure {
    fn from(error: tympan_replicate::Error) -> Self {
        use tympan_replicate::Error;
        match error {
            Error::Malformed(_) | Error::Mismatch { .. } => Self::bad_request(error.to_string()),
            Error::Absent(_) => Self::new(StatusCode::NOT_FOUND, error.to_string()),
            Error::InvalidAgent { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())
            }
            Error::InvalidGuestNote(_) => Self::new(StatusCode::CONFLICT, error.to_string()),
            Error::Content(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<tympan_jobs::Error> for RequestFailure {
    fn from(error: tympan_jobs::Error) -> Self {
        use tympan_jobs::Error;
        match error {
            Error::InvalidTopic(_) | Error::TooLarge { .. } => Self::bad_request(error.to_string()),
            Error::Workflow(reason) => Self::new(StatusCode::CONFLICT, reason),
            Error::Content(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<tympan_mounts::Error> for RequestFailure {
    fn from(error: tympan_mounts::Error) -> Self {
        use tympan_mounts::Error;
        match error {
            Error::Jobs(error) => error.into(),
            Error::Content(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<tympan_render::Error> for RequestFailure {
    fn from(error: tympan_render::Error) -> Self {
        match error {
            tympan_render::Error::Content(error) => error.into(),
            error => Self::internal(&error),
        }
    }
}

impl From<sqlx::Error> for RequestFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::internal(&error)
    }
}

impl From<minijinja::Error> for RequestFailure {
    fn from(error: minijinja::Error) -> Self {
        Self::internal(&error)
    }
}

impl From<std::io::Error> for RequestFailure {
    fn from(error: std::io::Error) -> Self {
        Self::internal(&error)
    }
}

impl From<tokio::task::JoinError> for RequestFailure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::internal(&error)
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::{NodePath, Repository, Subtree, Value};

    use super::*;

    fn failure(edit: impl FnOnce(&mut tympan_content::Session)) -> RequestFailure {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH;
        let id = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";
        let tree = Subtree::new("", "nt:unstructured").with_property("jcr:uuid", id);
        session.put_node(&NodePath::new("/a").unwrap(), tree).unwrap();
        let tree =
            Subtree::new("", "nt:unstructured").with_property("to", Value::Reference(id.into()));
        session.put_node(&NodePath::new("/b").unwrap(), tree).unwrap();
        session.commit("begin", now).unwrap();
        edit(&mut session);
        session.commit("edit", now).unwrap_err().into()
    }

    #[test]
    fn broken_rules_are_reported_one_by_one() {
        let wrong = failure(|session| {
            session.add_node(&NodePath::new("/c").unwrap(), "nt:file").unwrap();
        });
        assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
        let body = violation_json(&wrong.violations[0]);
        assert_eq!((&body["code"], &body["path"]), (&json!("OakConstraint0025"), &json!("/c")));
        assert_eq!(body["item"], "jcr:content");
        assert_eq!(body.get("referrers"), None);
    }

    #[test]
    fn referrers_are_listed_with_the_node_that_cannot_go() {
        let refusal =
            failure(|session| session.remove_node(&NodePath::new("/a").unwrap()).unwrap());
        assert_eq!(refusal.status, StatusCode::CONFLICT);
        let body = violation_json(&refusal.violations[0]);
        let referrer = json!([{ "path": "/b", "property": "to", "kind": "reference" }]);
        assert_eq!((&body["code"], &body["referrers"]), (&json!("OakIntegrity0001"), &referrer));
    }
}
