//! Lines of Sling's `access.log`: one per answered request.
//!
//! ```text
//! 127.0.0.1 - admin 21/Nov/2026:00:50:16 +0000 "POST /content/bench HTTP/1.1" 201 1285 "-" "curl/7.88.1"
//! ```
//! Written without brackets round the date, as Sling does; read with or without, so that Apache's combined log reads
//! too. `docs/formats/request-log.md` has the details.

use std::fmt;

use crate::log::log_escape::{
    EscapedLogField, LogEscapeContext, split_quoted_field, unescape_log_field,
};
use crate::log::log_file::WriteLogLine;
use crate::log::log_time::LogTime;
use crate::log::secret_parameter::redact_secrets;
use crate::url::decimal_digits::DecimalDigits;

/// A line of an `access.log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogLine {
    /// Address of the client.
    pub client: String,
    /// Name of the logged-in user, if any.
    pub user: Option<String>,
    /// Time at which the response was complete.
    pub completed_at: LogTime,
    /// The request line: method, target, version.
    pub request: String,
    /// Status of the response.
    pub status: u16,
    /// Length of the response body in bytes; `None` if there was none.
    pub body_bytes: Option<u64>,
    /// The `Referer` header.
    pub referer: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
}

/// A borrowed line, for writers that format many lines.
#[derive(Debug, Clone, Copy)]
pub struct AccessLogLineRef<'a> {
    /// As in [`AccessLogLine`].
    pub client: &'a str,
    /// As in [`AccessLogLine`].
    pub user: Option<&'a str>,
    /// As in [`AccessLogLine`].
    pub completed_at: LogTime,
    /// As in [`AccessLogLine`].
    pub request: &'a str,
    /// As in [`AccessLogLine`].
    pub status: u16,
    /// As in [`AccessLogLine`].
    pub body_bytes: Option<u64>,
    /// As in [`AccessLogLine`].
    pub referer: Option<&'a str>,
    /// As in [`AccessLogLine`].
    pub user_agent: Option<&'a str>,
}

/// The text is not a line of an `access.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `<client> - <user> <date> \"<request>\" <status> <bytes> \"<referer>\" \"<user agent>\"`"
)]
pub struct MalformedAccessLogLine;

impl fmt::Display for AccessLogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = AccessLogLineRef {
            client: &self.client,
            user: self.user.as_deref(),
            completed_at: self.completed_at,
            request: &self.request,
            status: self.status,
            body_bytes: self.body_bytes,
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
        };
        fmt::Display::fmt(&line, f)
    }
}

impl fmt::Display for AccessLogLineRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_line(f)
    }
}

impl WriteLogLine for AccessLogLineRef<'_> {
    fn write_line(&self, out: &mut impl fmt::Write) -> fmt::Result {
        EscapedLogField(self.client, LogEscapeContext::Bare).write_to(out)?;
        out.write_str(" - ")?;
        match self.user {
            Some(user) => EscapedLogField(user, LogEscapeContext::Bare).write_to(out)?,
            None => out.write_str("-")?,
        }
        out.write_str(" ")?;
        self.completed_at.write_cached(out)?;
        out.write_str(" \"")?;
        EscapedLogField(&redact_secrets(self.request), LogEscapeContext::Quoted).write_to(out)?;
        out.write_str("\" ")?;
        out.write_str(DecimalDigits::from_number(self.status.into()).as_str())?;
        out.write_str(" ")?;
        match self.body_bytes {
            Some(bytes) => out.write_str(DecimalDigits::from_number(bytes).as_str())?,
            None => out.write_str("-")?,
        }
        let referer = self.referer.map(redact_secrets);
        for value in [referer.as_deref(), self.user_agent] {
            match value {
                Some(value) => {
                    out.write_str(" \"")?;
                    EscapedLogField(value, LogEscapeContext::Quoted).write_to(out)?;
                    out.write_str("\"")?;
                }
                None => out.write_str(" \"-\"")?,
            }
        }
        Ok(())
    }
}

/// Parses one line, without its line break; fields after the user agent are ignored.
///
/// # Errors
/// [`MalformedAccessLogLine`] for any other text.
pub fn parse_access_log_line(text: &str) -> Result<AccessLogLine, MalformedAccessLogLine> {
    parse_access_log_fields(text).ok_or(MalformedAccessLogLine)
}

fn parse_access_log_fields(text: &str) -> Option<AccessLogLine> {
    let (client, rest) = text.split_once(' ')?;
    let (_identity, rest) = rest.split_once(' ')?;
    let (user, rest) = rest.split_once(' ')?;
    let (at, rest) = match rest.strip_prefix('[') {
        None => LogTime::parse_time_prefix(rest)?,
        Some(rest) => {
            let (at, rest) = LogTime::parse_time_prefix(rest)?;
            (at, rest.strip_prefix(']')?)
        }
    };
    let (request, rest) = split_quoted_field(rest.strip_prefix(' ')?)?;
    let (status, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    let (bytes, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (referer, rest) = parse_quoted_field(rest);
    let (user_agent, _more) = parse_quoted_field(rest.trim_start());
    Some(AccessLogLine {
        client: unescape_log_field(client),
        user: (user != "-").then(|| unescape_log_field(user)),
        completed_at: at,
        request,
        status: status.parse().ok()?,
        body_bytes: if bytes == "-" { None } else { Some(bytes.parse().ok()?) },
        referer,
        user_agent,
    })
}

/// Parses a quoted value. The common log format has none, and an unquoted dash stands for a missing value.
fn parse_quoted_field(text: &str) -> (Option<String>, &str) {
    if let Some(rest) = text.strip_prefix("\"-\"") {
        return (None, rest);
    }
    match split_quoted_field(text) {
        Some((value, rest)) => (Some(value), rest),
        None => (None, text),
    }
}
