//! The log lines of the fast path, formatted in batches.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use tympan_web::access_log::AccessLogLineRef;
use tympan_web::log_time::LogTime;

use super::request_head::FastRequest;
use crate::cache::response_memory::CachedResponse;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::observe::log::{LogLevel, LogLine, escape_control_chars};

/// The size in bytes at which pending text is passed to the writers.
const LOG_BUFFER_BYTES: usize = 64 * 1024;

/// The log text not yet passed on, and the texts of the current second.
#[derive(Debug, Default)]
pub(super) struct FastLogBuffer {
    access_log_text: String,
    own_log_text: String,
    current_second: u64,
    /// The prefix of a line of the dispatcher's own log.
    own_prefix: String,
    /// The same for a warning.
    warning_prefix: String,
    request_text: String,
    /// The time at which the oldest pending line was recorded, on the worker's clock.
    oldest_line_ms: u64,
}

/// A response that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedResponse<'a> {
    pub(super) client: &'a str,
    pub(super) request: &'a FastRequest<'a>,
    pub(super) response: &'a CachedResponse,
    pub(super) status: u16,
    /// The announced length of the body.
    pub(super) length: Option<u64>,
}

impl FastLogBuffer {
    /// Records a response that was sent at a time, on the dispatcher's clock and the worker's.
    pub(super) fn record_response(
        &mut self,
        runtime: &DispatcherRuntime,
        now: SystemTime,
        now_ms: u64,
        served_response: ServedResponse<'_>,
    ) {
        let request = served_response.request;
        self.set_time(now);
        if !self.has_text() {
            self.oldest_line_ms = now_ms;
        }
        if runtime.access_log.is_some() {
            self.request_text.clear();
            self.request_text.push_str(if request.response_key.flags.is_head() {
                "HEAD "
            } else {
                "GET "
            });
            self.request_text.push_str(&String::from_utf8_lossy(request.response_key.target));
            let is_http2 = request.response_key.flags.is_http2();
            self.request_text.push_str(if is_http2 { " HTTP/2.0" } else { " HTTP/1.1" });
            let referer = request.referer.map(String::from_utf8_lossy);
            let user_agent = request.user_agent.map(String::from_utf8_lossy);
            let line = AccessLogLineRef {
                client: served_response.client,
                user: None,
                completed_at: LogTime::from_system(now),
                request: &self.request_text,
                status: served_response.status,
                body_bytes: served_response.length,
                referer: referer.as_deref(),
                user_agent: user_agent.as_deref(),
            };
            // Writing to a string cannot fail.
            writeln!(self.access_log_text, "{line}").ok();
        }
        if let Some(warning) = &served_response.response.source.warning
            && runtime.log.is_enabled(LogLevel::Warn)
        {
            self.own_log_text.push_str(&self.warning_prefix);
            self.own_log_text.push_str(&escape_control_chars(warning));
            self.own_log_text.push('\n');
        }
        if runtime.log.is_enabled(LogLevel::Info) {
            self.own_log_text.push_str(&self.own_prefix);
            self.own_log_text.push_str(&served_response.response.log_text);
            self.own_log_text.push('\n');
        }
        if self.access_log_text.len() > LOG_BUFFER_BYTES
            || self.own_log_text.len() > LOG_BUFFER_BYTES
        {
            self.flush_to_writers(runtime);
        }
    }

    /// Returns true if text is pending.
    pub(super) fn has_text(&self) -> bool {
        !self.access_log_text.is_empty() || !self.own_log_text.is_empty()
    }

    /// Returns the number of milliseconds for which text has been pending; 0 if there is none.
    pub(super) fn pending_ms(&self, now_ms: u64) -> u64 {
        if self.has_text() { now_ms.saturating_sub(self.oldest_line_ms) } else { 0 }
    }

    /// Passes all text to the writers.
    pub(super) fn flush_to_writers(&mut self, runtime: &DispatcherRuntime) {
        if let Some(log) = runtime.access_log.as_ref().filter(|_| !self.access_log_text.is_empty())
        {
            log.write_text(&self.access_log_text);
            self.access_log_text.clear();
        }
        if let Some(log) = runtime.log.file.as_ref().filter(|_| !self.own_log_text.is_empty()) {
            log.write_text(&self.own_log_text);
            self.own_log_text.clear();
        }
    }

    fn set_time(&mut self, now: SystemTime) {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second == self.current_second && !self.own_prefix.is_empty() {
            return;
        }
        self.current_second = second;
        let prefix = |level| LogLine { time: now, level, text: String::new() }.to_string();
        self.own_prefix = prefix(LogLevel::Info);
        self.warning_prefix = prefix(LogLevel::Warn);
    }
}
