//! Lines of Sling's `access.log`: one per answered request.
//!
//! ```text
//! 127.0.0.1 - admin 21/Nov/2026:00:50:16 +0000 "POST /content/bench HTTP/1.1" 201 1285 "-" "curl/7.88.1"
//! ```
//! Written without brackets round the date, as Sling does; read with or without, so that Apache's combined log reads
//! too. `docs/formats/request-log.md` has the details.

use std::fmt;

use crate::digits::Digits;
use crate::escape::{Escaped, Place, split_quoted, unescape};
use crate::log_file::PutLine;
use crate::log_time::LogTime;
use crate::secret_parameters::without_secrets;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The client's address.
    pub client: String,
    /// Who was logged in.
    pub user: Option<String>,
    /// When the answer was complete.
    pub at: LogTime,
    /// The request line: method, target, version.
    pub request: String,
    /// The answer's status.
    pub status: u16,
    /// Bytes of the answer's body; `None` if there was none.
    pub bytes: Option<u64>,
    /// The `Referer` header.
    pub referer: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
}

/// One line whose parts are elsewhere, for writers that format many lines at once.
#[derive(Debug, Clone, Copy)]
pub struct LineRef<'a> {
    /// As in [`Line`].
    pub client: &'a str,
    /// As in [`Line`].
    pub user: Option<&'a str>,
    /// As in [`Line`].
    pub at: LogTime,
    /// As in [`Line`].
    pub request: &'a str,
    /// As in [`Line`].
    pub status: u16,
    /// As in [`Line`].
    pub bytes: Option<u64>,
    /// As in [`Line`].
    pub referer: Option<&'a str>,
    /// As in [`Line`].
    pub user_agent: Option<&'a str>,
}

/// The text is no line of an `access.log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `<client> - <user> <date> \"<request>\" <status> <bytes> \"<referer>\" \"<user agent>\"`"
)]
pub struct Malformed;

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = LineRef {
            client: &self.client,
            user: self.user.as_deref(),
            at: self.at,
            request: &self.request,
            status: self.status,
            bytes: self.bytes,
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
        };
        fmt::Display::fmt(&line, f)
    }
}

impl fmt::Display for LineRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.put(f)
    }
}

impl PutLine for LineRef<'_> {
    fn put(&self, out: &mut impl fmt::Write) -> fmt::Result {
        Escaped(self.client, Place::Word).put(out)?;
        out.write_str(" - ")?;
        match self.user {
            Some(user) => Escaped(user, Place::Word).put(out)?,
            None => out.write_str("-")?,
        }
        out.write_str(" ")?;
        self.at.put(out)?;
        out.write_str(" \"")?;
        Escaped(&without_secrets(self.request), Place::Quoted).put(out)?;
        out.write_str("\" ")?;
        out.write_str(Digits::of(self.status.into()).as_str())?;
        out.write_str(" ")?;
        match self.bytes {
            Some(bytes) => out.write_str(Digits::of(bytes).as_str())?,
            None => out.write_str("-")?,
        }
        let referer = self.referer.map(without_secrets);
        for value in [referer.as_deref(), self.user_agent] {
            match value {
                Some(value) => {
                    out.write_str(" \"")?;
                    Escaped(value, Place::Quoted).put(out)?;
                    out.write_str("\"")?;
                }
                None => out.write_str(" \"-\"")?,
            }
        }
        Ok(())
    }
}

/// Reads one line, without its line break; fields after the user agent are ignored.
///
/// # Errors
/// [`Malformed`] for any other text.
pub fn parse_line(text: &str) -> Result<Line, Malformed> {
    read_line(text).ok_or(Malformed)
}

fn read_line(text: &str) -> Option<Line> {
    let (client, rest) = text.split_once(' ')?;
    let (_identity, rest) = rest.split_once(' ')?;
    let (user, rest) = rest.split_once(' ')?;
    let (at, rest) = match rest.strip_prefix('[') {
        None => LogTime::parse_prefix(rest)?,
        Some(rest) => {
            let (at, rest) = LogTime::parse_prefix(rest)?;
            (at, rest.strip_prefix(']')?)
        }
    };
    let (request, rest) = split_quoted(rest.strip_prefix(' ')?)?;
    let (status, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    let (bytes, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (referer, rest) = read_optional(rest);
    let (user_agent, _more) = read_optional(rest.trim_start());
    Some(Line {
        client: unescape(client),
        user: (user != "-").then(|| unescape(user)),
        at,
        request,
        status: status.parse().ok()?,
        bytes: if bytes == "-" { None } else { Some(bytes.parse().ok()?) },
        referer,
        user_agent,
    })
}

/// Reads a quoted value; the common log format has none, and a bare dash stands for "absent".
fn read_optional(text: &str) -> (Option<String>, &str) {
    if let Some(rest) = text.strip_prefix("\"-\"") {
        return (None, rest);
    }
    match split_quoted(text) {
        Some((value, rest)) => (Some(value), rest),
        None => (None, text),
    }
}
