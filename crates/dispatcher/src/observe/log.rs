//! The dispatcher's own log, in the shape that existing scripts read.
//!
//! ```text
//! [Wed Jul 15 20:57:00 2020] [I] [pid 82526] "GET /content/x.html" - hit [publish/-] 1ms
//! ```
//! Times are in UTC. Control characters in values are escaped, so that one event stays one line. Secret
//! parameters of URLs are left out.

use std::fmt;
use std::time::SystemTime;

use tympan_web::log_file::LogFile;
use tympan_web::secret_parameter::redact_secrets;

use crate::clock::DispatcherClock;

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// `E`
    Error,
    /// `W`
    Warn,
    /// `I`
    Info,
    /// `D`
    Debug,
    /// `T`
    Trace,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The time of the event.
    pub time: SystemTime,
    /// The severity.
    pub level: LogLevel,
    /// The message.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            LogLevel::Error => 'E',
            LogLevel::Warn => 'W',
            LogLevel::Info => 'I',
            LogLevel::Debug => 'D',
            LogLevel::Trace => 'T',
        };
        // In `Sun, 06 Nov 1994 08:49:37 GMT` every part has a fixed position.
        let date = httpdate::fmt_http_date(self.time);
        let part = |from: usize, to: usize| date.get(from..to).unwrap_or("?");
        write!(
            f,
            "[{} {} {} {} {}] [{level}] [pid {}] ",
            part(0, 3),
            part(8, 11),
            part(5, 7),
            part(17, 25),
            part(12, 16),
            std::process::id()
        )?;
        f.write_str(&escape_control_chars(&redact_secrets(&self.text)))
    }
}

/// Returns `text` with control characters escaped, so that it stays on one line.
pub(crate) fn escape_control_chars(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
    }
    plain
}

/// The destination of log lines.
#[derive(Debug, Clone)]
pub struct DispatcherLog {
    /// The file, if one is written.
    pub file: Option<LogFile<LogLine>>,
    /// The least severe level that is written.
    pub level: LogLevel,
}

impl Default for DispatcherLog {
    fn default() -> Self {
        Self { file: None, level: LogLevel::Info }
    }
}

impl DispatcherLog {
    /// Returns true if lines of this level are written.
    pub(crate) fn is_enabled(&self, level: LogLevel) -> bool {
        self.file.is_some() && level <= self.level
    }

    pub(crate) fn write(
        &self,
        clock: &DispatcherClock,
        level: LogLevel,
        text: impl FnOnce() -> String,
    ) {
        let Some(file) = self.file.as_ref().filter(|_| level <= self.level) else {
            return;
        };
        file.write(LogLine { time: clock.now(), level, text: text() });
    }
}

#[cfg(test)]
mod tests {
    use super::{LogLevel, LogLine};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn ob130_a_line_break_in_a_value_starts_no_line() {
        let line = LogLine {
            time: UNIX_EPOCH + Duration::from_secs(784_111_777),
            level: LogLevel::Warn,
            text: "checking [/a\n[forged]]".to_owned(),
        };
        let expected = format!(
            "[Sun Nov 06 08:49:37 1994] [W] [pid {}] checking [/a\\n[forged]]",
            std::process::id()
        );
        assert_eq!(line.to_string(), expected);
    }
}
