//! Lines of Sling's `request.log`: one when a request enters, one when its answer leaves.
//!
//! ```text
//! 21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html?a=b HTTP/1.1
//! 21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html 98ms
//! 21/Nov/2026:00:50:16 +0000 [3] <- 200 text/html; lab=19ab03ff2c1-17 98ms
//! ```
//! `docs/formats/request-log.md` has the details. Written through [`crate::log::log_file`], read by the lab.
//!
//! Invariants
//! * One [`RequestLogLine`] is one line of text, whatever its values hold; what was written reads back equal.
//! * A number belongs to one entry and at most one exit between two starts of the server; exits come in any order.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::log::log_escape::{EscapedLogField, LogEscapeContext, unescape_log_field};
use crate::log::log_file::WriteLogLine;
use crate::log::log_time::LogTime;
use crate::log::sample_mark;
use crate::log::secret_parameter::redact_secrets;
use crate::url::decimal_digits::DecimalDigits;

/// A line of a `request.log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestLogLine {
    /// Time at which the request arrived, or its response was sent.
    pub logged_at: LogTime,
    /// Number of the request, counted from 1 at each start.
    pub request_number: u64,
    /// The event.
    pub event: RequestLogEvent,
}

/// The event that a line records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestLogEvent {
    /// The request arrived.
    Entry {
        /// `GET`.
        method: String,
        /// Path and query as they were sent.
        target: String,
        /// `HTTP/1.1`.
        version: String,
    },
    /// The response is complete.
    Exit {
        /// Status of the response.
        status: u16,
        /// Media type of the response; lines written by this program omit its parameters.
        media_type: Option<String>,
        /// Time from entry to exit, in whole milliseconds.
        elapsed: Duration,
        /// The lab sample to which the request belongs, if it is marked: see [`sample_mark`].
        sample: Option<String>,
    },
}

/// A borrowed line, for writers of many lines.
#[derive(Debug, Clone, Copy)]
pub struct RequestLogLineRef<'a> {
    /// As in [`RequestLogLine`].
    pub logged_at: LogTime,
    /// As in [`RequestLogLine`].
    pub request_number: u64,
    /// As in [`RequestLogLine`].
    pub event: RequestLogEventRef<'a>,
}

/// The event of a [`RequestLogLineRef`].
#[derive(Debug, Clone, Copy)]
pub enum RequestLogEventRef<'a> {
    /// As in [`RequestLogEvent`].
    Entry {
        /// As in [`RequestLogEvent`].
        method: &'a str,
        /// As in [`RequestLogEvent`].
        target: &'a str,
        /// As in [`RequestLogEvent`].
        version: &'a str,
    },
    /// As in [`RequestLogEvent`].
    Exit {
        /// As in [`RequestLogEvent`].
        status: u16,
        /// As in [`RequestLogEvent`].
        media_type: Option<&'a str>,
        /// As in [`RequestLogEvent`].
        elapsed: Duration,
        /// As in [`RequestLogEvent`].
        sample: Option<&'a str>,
    },
}

/// Assigns numbers to requests.
#[derive(Debug, Default)]
pub struct RequestNumberSequence(AtomicU64);

impl RequestNumberSequence {
    /// Returns the next number; the first is 1.
    pub fn take_next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The text is not a line of a `request.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `<date> [<number>] -> <method> <url> <version>` or `<date> [<number>] <- <status> <type> <n>ms`"
)]
pub struct MalformedRequestLogLine;

impl fmt::Display for RequestLogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = match &self.event {
            RequestLogEvent::Entry { method, target, version } => {
                RequestLogEventRef::Entry { method, target, version }
            }
            RequestLogEvent::Exit { status, media_type, elapsed, sample } => {
                RequestLogEventRef::Exit {
                    status: *status,
                    media_type: media_type.as_deref(),
                    elapsed: *elapsed,
                    sample: sample.as_deref(),
                }
            }
        };
        fmt::Display::fmt(
            &RequestLogLineRef {
                logged_at: self.logged_at,
                request_number: self.request_number,
                event,
            },
            f,
        )
    }
}

impl fmt::Display for RequestLogLineRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_line(f)
    }
}

impl WriteLogLine for RequestLogLineRef<'_> {
    fn write_line(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.logged_at.write_cached(out)?;
        out.write_str(" [")?;
        out.write_str(DecimalDigits::from_number(self.request_number).as_str())?;
        match self.event {
            RequestLogEventRef::Entry { method, target, version } => {
                out.write_str("] -> ")?;
                EscapedLogField(method, LogEscapeContext::Bare).write_to(out)?;
                out.write_str(" ")?;
                EscapedLogField(&redact_secrets(target), LogEscapeContext::Bare).write_to(out)?;
                out.write_str(" ")?;
                EscapedLogField(version, LogEscapeContext::Bare).write_to(out)
            }
            RequestLogEventRef::Exit { status, media_type, elapsed, sample } => {
                out.write_str("] <- ")?;
                out.write_str(DecimalDigits::from_number(status.into()).as_str())?;
                out.write_str(" ")?;
                match media_type {
                    Some(media_type) => write_media_type(media_type, out)?,
                    None => out.write_str("-")?,
                }
                if let Some(sample) = sample {
                    out.write_str(SAMPLE_MARK_PREFIX)?;
                    EscapedLogField(sample, LogEscapeContext::Bare).write_to(out)?;
                }
                out.write_str(" ")?;
                let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
                out.write_str(DecimalDigits::from_number(elapsed_ms).as_str())?;
                out.write_str("ms")
            }
        }
    }
}

/// Prefix of a mark: it has the form of a parameter of the media type, which all readers of these logs accept.
const SAMPLE_MARK_PREFIX: &str = "; lab=";

/// Writes a media type so that no part of it can be parsed as a mark.
fn write_media_type(media_type: &str, out: &mut impl fmt::Write) -> fmt::Result {
    // Old servers write parameters after a space, so an unescaped space is part of the format here.
    let Some((before, after)) = media_type.split_once(SAMPLE_MARK_PREFIX) else {
        return EscapedLogField(media_type, LogEscapeContext::Quoted).write_to(out);
    };
    EscapedLogField(before, LogEscapeContext::Quoted).write_to(out)?;
    out.write_str("\\x3b lab=")?;
    write_media_type(after, out)
}

/// Parses one line, without its line break.
///
/// # Errors
/// [`MalformedRequestLogLine`] for any other text, for example a line that was cut off by a crash.
pub fn parse_request_log_line(text: &str) -> Result<RequestLogLine, MalformedRequestLogLine> {
    parse_request_log_fields(text).ok_or(MalformedRequestLogLine)
}

/// Returns a line without the name of the instance that wrote it, and that name: AEM as a Cloud Service merges the logs
/// of several instances and ends each line with ` [cm-p1-e1-aem-publish-1]`. Request numbers are those of one instance.
#[must_use]
pub fn split_instance_name(text: &str) -> (&str, Option<&str>) {
    let split = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
    match split {
        Some((line, name)) if !name.is_empty() && !name.contains([' ', '[', ']']) => {
            (line, Some(name))
        }
        _ => (text, None),
    }
}

fn parse_request_log_fields(text: &str) -> Option<RequestLogLine> {
    let (at, rest) = LogTime::parse_time_prefix(text)?;
    let (request, rest) = rest.strip_prefix(" [")?.split_once("] ")?;
    let event = match rest.split_at_checked(3)? {
        ("-> ", entry) => parse_entry_event(entry)?,
        ("<- ", exit) => parse_exit_event(exit)?,
        _ => return None,
    };
    Some(RequestLogLine { logged_at: at, request_number: request.parse().ok()?, event })
}

fn parse_entry_event(text: &str) -> Option<RequestLogEvent> {
    let (method, rest) = text.split_once(' ')?;
    let (target, version) = rest.rsplit_once(' ')?;
    Some(RequestLogEvent::Entry {
        method: unescape_log_field(method),
        target: unescape_log_field(target),
        version: unescape_log_field(version),
    })
}

fn parse_exit_event(text: &str) -> Option<RequestLogEvent> {
    let (status, rest) = text.split_once(' ')?;
    let (media_type, elapsed) = rest.rsplit_once(' ')?;
    let elapsed = elapsed.strip_suffix("ms")?.parse().ok()?;
    let marked = media_type.rsplit_once(SAMPLE_MARK_PREFIX).and_then(|(media_type, sample)| {
        Some((media_type, sample_mark::parse_sample_mark(sample.as_bytes())?))
    });
    let (media_type, sample) =
        marked.map_or((media_type, None), |(media_type, sample)| (media_type, Some(sample)));
    Some(RequestLogEvent::Exit {
        status: status.parse().ok()?,
        media_type: (media_type != "-").then(|| unescape_log_field(media_type)),
        elapsed: Duration::from_millis(elapsed),
        sample: sample.map(str::to_owned),
    })
}
