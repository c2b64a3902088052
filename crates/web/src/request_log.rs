//! Lines of Sling's `request.log`: one when a request enters, one when its answer leaves.
//!
//! ```text
//! 21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html?a=b HTTP/1.1
//! 21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html 98ms
//! 21/Nov/2026:00:50:16 +0000 [3] <- 200 text/html; lab=19ab03ff2c1-17 98ms
//! ```
//! `docs/formats/request-log.md` has the details. Written through [`crate::log_file`], read by the lab.
//!
//! Invariants
//! * One [`Line`] is one line of text, whatever its values hold; what was written reads back equal.
//! * A number belongs to one entry and at most one exit between two starts of the server; exits come in any order.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::digits::Digits;
use crate::escape::{Escaped, Place, unescape};
use crate::log_file::PutLine;
use crate::log_time::LogTime;
use crate::sample_mark;
use crate::secret_parameters::without_secrets;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// When the request entered, or its answer left.
    pub at: LogTime,
    /// The request's number, counted from 1 at each start.
    pub request: u64,
    /// What happened.
    pub event: Event,
}

/// What a line tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The request came in.
    Entry {
        /// `GET`.
        method: String,
        /// Path and query as they were sent.
        target: String,
        /// `HTTP/1.1`.
        version: String,
    },
    /// The answer is complete.
    Exit {
        /// Its status.
        status: u16,
        /// Its content type, without parameters where we write it.
        media_type: Option<String>,
        /// From entry to exit, in whole milliseconds.
        elapsed: Duration,
        /// The lab's sample that the request belongs to, if it said so: see [`sample_mark`].
        sample: Option<String>,
    },
}

/// One line whose parts are elsewhere, for writers of many lines.
#[derive(Debug, Clone, Copy)]
pub struct LineRef<'a> {
    /// As in [`Line`].
    pub at: LogTime,
    /// As in [`Line`].
    pub request: u64,
    /// As in [`Line`].
    pub event: EventRef<'a>,
}

/// What a [`LineRef`] tells.
#[derive(Debug, Clone, Copy)]
pub enum EventRef<'a> {
    /// As in [`Event`].
    Entry {
        /// As in [`Event`].
        method: &'a str,
        /// As in [`Event`].
        target: &'a str,
        /// As in [`Event`].
        version: &'a str,
    },
    /// As in [`Event`].
    Exit {
        /// As in [`Event`].
        status: u16,
        /// As in [`Event`].
        media_type: Option<&'a str>,
        /// As in [`Event`].
        elapsed: Duration,
        /// As in [`Event`].
        sample: Option<&'a str>,
    },
}

/// Gives requests their numbers.
#[derive(Debug, Default)]
pub struct Numbers(AtomicU64);

impl Numbers {
    /// Returns the next number; the first is 1.
    pub fn take_next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The text is no line of a `request.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `<date> [<number>] -> <method> <url> <version>` or `<date> [<number>] <- <status> <type> <n>ms`"
)]
pub struct Malformed;

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let event = match &self.event {
            Event::Entry { method, target, version } => EventRef::Entry { method, target, version },
            Event::Exit { status, media_type, elapsed, sample } => EventRef::Exit {
                status: *status,
                media_type: media_type.as_deref(),
                elapsed: *elapsed,
                sample: sample.as_deref(),
            },
        };
        fmt::Display::fmt(&LineRef { at: self.at, request: self.request, event }, f)
    }
}

impl fmt::Display for LineRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.put(f)
    }
}

impl PutLine for LineRef<'_> {
    fn put(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.at.put(out)?;
        out.write_str(" [")?;
        out.write_str(Digits::of(self.request).as_str())?;
        match self.event {
            EventRef::Entry { method, target, version } => {
                out.write_str("] -> ")?;
                Escaped(method, Place::Word).put(out)?;
                out.write_str(" ")?;
                Escaped(&without_secrets(target), Place::Word).put(out)?;
                out.write_str(" ")?;
                Escaped(version, Place::Word).put(out)
            }
            EventRef::Exit { status, media_type, elapsed, sample } => {
                out.write_str("] <- ")?;
                out.write_str(Digits::of(status.into()).as_str())?;
                out.write_str(" ")?;
                match media_type {
                    Some(media_type) => put_media_type(media_type, out)?,
                    None => out.write_str("-")?,
                }
                if let Some(sample) = sample {
                    out.write_str(MARK)?;
                    Escaped(sample, Place::Word).put(out)?;
                }
                out.write_str(" ")?;
                let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
                out.write_str(Digits::of(elapsed_ms).as_str())?;
                out.write_str("ms")
            }
        }
    }
}

/// What stands before a mark: it has the form of a parameter of the media type, which all readers of these logs know.
const MARK: &str = "; lab=";

/// Writes a media type so that no part of it reads as a mark.
fn put_media_type(media_type: &str, out: &mut impl fmt::Write) -> fmt::Result {
    // Old servers write parameters after a space, so a bare space is part of the format here.
    let Some((before, after)) = media_type.split_once(MARK) else {
        return Escaped(media_type, Place::Quoted).put(out);
    };
    Escaped(before, Place::Quoted).put(out)?;
    out.write_str("\\x3b lab=")?;
    put_media_type(after, out)
}

/// Reads one line, without its line break.
///
/// # Errors
/// [`Malformed`] for any other text, for example a line that was cut by a crash.
pub fn parse_line(text: &str) -> Result<Line, Malformed> {
    read_line(text).ok_or(Malformed)
}

/// Returns a line without the name of the instance that wrote it, and that name: AEM as a Cloud Service puts the logs of
/// several instances together and ends each line with ` [cm-p1-e1-aem-publish-1]`. Numbers of requests are those of one
/// instance.
#[must_use]
pub fn split_instance(text: &str) -> (&str, Option<&str>) {
    let split = text.strip_suffix(']').and_then(|text| text.rsplit_once(" ["));
    match split {
        Some((line, name)) if !name.is_empty() && !name.contains([' ', '[', ']']) => {
            (line, Some(name))
        }
        _ => (text, None),
    }
}

fn read_line(text: &str) -> Option<Line> {
    let (at, rest) = LogTime::parse_prefix(text)?;
    let (request, rest) = rest.strip_prefix(" [")?.split_once("] ")?;
    let event = match rest.split_at_checked(3)? {
        ("-> ", entry) => read_entry(entry)?,
        ("<- ", exit) => read_exit(exit)?,
        _ => return None,
    };
    Some(Line { at, request: request.parse().ok()?, event })
}

fn read_entry(text: &str) -> Option<Event> {
    let (method, rest) = text.split_once(' ')?;
    let (target, version) = rest.rsplit_once(' ')?;
    Some(Event::Entry {
        method: unescape(method),
        target: unescape(target),
        version: unescape(version),
    })
}

fn read_exit(text: &str) -> Option<Event> {
    let (status, rest) = text.split_once(' ')?;
    let (media_type, elapsed) = rest.rsplit_once(' ')?;
    let elapsed = elapsed.strip_suffix("ms")?.parse().ok()?;
    let marked = media_type
        .rsplit_once(MARK)
        .and_then(|(media_type, sample)| Some((media_type, sample_mark::read(sample.as_bytes())?)));
    let (media_type, sample) =
        marked.map_or((media_type, None), |(media_type, sample)| (media_type, Some(sample)));
    Some(Event::Exit {
        status: status.parse().ok()?,
        media_type: (media_type != "-").then(|| unescape(media_type)),
        elapsed: Duration::from_millis(elapsed),
        sample: sample.map(str::to_owned),
    })
}
