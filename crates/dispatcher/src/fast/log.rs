//! Log lines of the lane, formatted many at a time.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use tympan_web::access_log::LineRef;
use tympan_web::log_time::LogTime;

use super::head::Plain;
use crate::dispatcher::Runtime;
use crate::log::{Level, Line, escaped};
use crate::memory::Ready;

/// Text that waits for the writers is handed on at this size.
const BUFFER_BYTES: usize = 64 * 1024;

/// What was logged and not handed on yet, and the texts of the current second.
#[derive(Debug, Default)]
pub(super) struct Logs {
    access: String,
    own: String,
    second: u64,
    /// What a line of the dispatcher's own log begins with.
    own_prefix: String,
    /// The same for a warning.
    warning_prefix: String,
    request: String,
    /// When the first line that waits was noted, on the worker's clock.
    since_ms: u64,
}

/// An answer that was given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) ready: &'a Ready,
    pub(super) status: u16,
    /// The announced length of the body.
    pub(super) length: Option<u64>,
}

impl Logs {
    /// Notes an answer that was given at a time, on the dispatcher's clock and the worker's.
    pub(super) fn note(
        &mut self,
        runtime: &Runtime,
        (now, now_ms): (SystemTime, u64),
        (client, plain): (&str, &Plain<'_>),
        given: Given<'_>,
    ) {
        self.set_time(now);
        if !self.has_text() {
            self.since_ms = now_ms;
        }
        if runtime.access_log.is_some() {
            self.request.clear();
            self.request.push_str(if plain.key.kind.is_head() { "HEAD " } else { "GET " });
            self.request.push_str(&String::from_utf8_lossy(plain.key.target));
            let is_http2 = plain.key.kind.is_http2();
            self.request.push_str(if is_http2 { " HTTP/2.0" } else { " HTTP/1.1" });
            let referer = plain.referer.map(String::from_utf8_lossy);
            let user_agent = plain.user_agent.map(String::from_utf8_lossy);
            let line = LineRef {
                client,
                user: None,
                at: LogTime::from_system(now),
                request: &self.request,
                status: given.status,
                bytes: given.length,
                referer: referer.as_deref(),
                user_agent: user_agent.as_deref(),
            };
            // Writing to a string cannot fail.
            writeln!(self.access, "{line}").ok();
        }
        if let Some(warning) = &given.ready.source.warning
            && runtime.log.writes(Level::Warn)
        {
            self.own.push_str(&self.warning_prefix);
            self.own.push_str(&escaped(warning));
            self.own.push('\n');
        }
        if runtime.log.writes(Level::Info) {
            self.own.push_str(&self.own_prefix);
            self.own.push_str(&given.ready.log_text);
            self.own.push('\n');
        }
        if self.access.len() > BUFFER_BYTES || self.own.len() > BUFFER_BYTES {
            self.hand_on(runtime);
        }
    }

    /// Tells whether something waits to be handed on.
    pub(super) fn has_text(&self) -> bool {
        !self.access.is_empty() || !self.own.is_empty()
    }

    /// Returns for how many milliseconds something waits; none if nothing does.
    pub(super) fn wait_since(&self, now_ms: u64) -> u64 {
        if self.has_text() { now_ms.saturating_sub(self.since_ms) } else { 0 }
    }

    /// Hands everything on to the writers.
    pub(super) fn hand_on(&mut self, runtime: &Runtime) {
        if let Some(log) = runtime.access_log.as_ref().filter(|_| !self.access.is_empty()) {
            log.write_text(&self.access);
            self.access.clear();
        }
        if let Some(log) = runtime.log.file.as_ref().filter(|_| !self.own.is_empty()) {
            log.write_text(&self.own);
            self.own.clear();
        }
    }

    fn set_time(&mut self, now: SystemTime) {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second == self.second && !self.own_prefix.is_empty() {
            return;
        }
        self.second = second;
        let prefix = |level| Line { at: now, level, text: String::new() }.to_string();
        self.own_prefix = prefix(Level::Info);
        self.warning_prefix = prefix(Level::Warn);
    }
}
