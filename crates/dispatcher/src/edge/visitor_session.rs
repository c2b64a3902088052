//! Login sessions: farms whose visitors must have logged in (`/sessionmanagement`).
//!
//! The render decides about access: a visitor's first request goes there with its credentials. If the render answers a
//! page with 200, and refuses the same page without credentials, they are accepted for as long as they are used at
//! least every `/timeout`. Visitors with accepted credentials get pages from the cache.
//!
//! A session is an empty file named by the SHA-256 of the credentials; its time is that of the last use. Files reveal
//! nothing about the credentials, and dispatchers that share the folder share their sessions.

use std::fs::{File, FileTimes};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use crate::config::SessionManagementConfig;
use crate::request::view::{RequestView, VisitorSession};

/// Returns the state of the visitor's session, and records its use.
pub(crate) fn find_session(
    sessions: &SessionManagementConfig,
    view: &RequestView,
    now: SystemTime,
) -> VisitorSession {
    let Some(file) = session_file(sessions, view) else { return VisitorSession::Absent };
    let Ok(used) = std::fs::symlink_metadata(&file).and_then(|metadata| metadata.modified()) else {
        return VisitorSession::Absent;
    };
    let idle = now.duration_since(used).unwrap_or_default();
    if idle > sessions.timeout {
        return VisitorSession::Expired;
    }
    // The time need not be exact, and a write for each request would cost more than the page.
    if idle > (sessions.timeout / 20).min(Duration::from_secs(30)) {
        touch_session_file(&file, now).ok();
    }
    VisitorSession::Valid
}

/// Begins a session: the visitor's credentials are accepted from now on.
pub(crate) fn begin_session(
    sessions: &SessionManagementConfig,
    view: &RequestView,
    now: SystemTime,
) {
    let Some(file) = session_file(sessions, view) else { return };
    let result =
        std::fs::create_dir_all(&sessions.directory).and_then(|()| touch_session_file(&file, now));
    if let Err(error) = result {
        let file = file.display();
        tracing::warn!(%file, reason = %error, "cannot store a session; not serving its visitor from the \
            cache");
    }
}

/// Ends a session: the visitor's credentials are no longer accepted.
pub(crate) fn end_session(sessions: &SessionManagementConfig, view: &RequestView) {
    if let Some(file) = session_file(sessions, view) {
        std::fs::remove_file(file).ok();
    }
}

/// Removes sessions that were idle for longer than their timeout.
pub(crate) fn sweep_sessions(sessions: &SessionManagementConfig, now: SystemTime) {
    let Ok(entries) = std::fs::read_dir(&sessions.directory) else { return };
    for entry in entries.flatten() {
        let is_own = entry.file_name().to_str().is_some_and(is_session_name);
        let used = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = used.is_ok_and(|used| {
            now.duration_since(used).is_ok_and(|idle| idle > sessions.timeout.saturating_mul(2))
        });
        if is_own && is_old {
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

fn is_session_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn touch_session_file(file: &std::path::Path, now: SystemTime) -> std::io::Result<()> {
    let mut options = File::options();
    options.write(true);
    let opened = match options.open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            use std::os::unix::fs::OpenOptionsExt;
            options.create(true).truncate(false).mode(0o600).open(file)
        }
        opened => opened,
    };
    opened?.set_times(FileTimes::new().set_modified(now))
}

/// Returns the visitor's session file; `None` if it sent no credentials.
fn session_file(sessions: &SessionManagementConfig, view: &RequestView) -> Option<PathBuf> {
    let credentials = session_credentials(&sessions.header, view)?;
    Some(sessions.directory.join(hex::encode(Sha256::digest(credentials))))
}

/// Returns true if a request has credentials of a session, valid or not.
pub(crate) fn has_credentials(sessions: &SessionManagementConfig, view: &RequestView) -> bool {
    session_credentials(&sessions.header, view).is_some()
}

/// Removes the header with the credentials of a session.
pub(crate) fn remove_credentials(sessions: &SessionManagementConfig, headers: &mut HeaderMap) {
    let (kind, name) = sessions.header.split_once(':').unwrap_or(("HTTP", &sessions.header));
    if kind.eq_ignore_ascii_case("cookie") {
        headers.remove(header::COOKIE);
    } else {
        headers.remove(name.trim());
    }
}

/// Returns the value that `HTTP:name` or `Cookie:name` refers to.
fn session_credentials<'a>(header: &str, view: &'a RequestView) -> Option<&'a [u8]> {
    let (kind, name) = header.split_once(':').unwrap_or(("HTTP", header));
    let value = if kind.eq_ignore_ascii_case("cookie") {
        view.cookie(name.trim())
    } else {
        view.headers.get(name.trim()).map(http::HeaderValue::as_bytes)
    };
    value.filter(|value| !value.is_empty())
}
