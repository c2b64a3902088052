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
use tympan_web::secret_parameters::without_secrets;

use crate::clock::Clock;

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
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
pub struct Line {
    /// When it happened.
    pub at: SystemTime,
    /// How important it is.
    pub level: Level,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => 'E',
            Level::Warn => 'W',
            Level::Info => 'I',
            Level::Debug => 'D',
            Level::Trace => 'T',
        };
        // `Sun, 06 Nov 1994 08:49:37 GMT`, of which every part has a fixed place.
        let date = httpdate::fmt_http_date(self.at);
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
        f.write_str(&escaped(&without_secrets(&self.text)))
    }
}

/// Returns `text` with control characters escaped, so that it stays on one line.
pub(crate) fn escaped(text: &str) -> String {
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

/// Where lines go.
#[derive(Debug, Clone)]
pub struct Log {
    /// The file, if one is written.
    pub file: Option<LogFile<Line>>,
    /// Lines less important than this are not written.
    pub level: Level,
}

impl Default for Log {
    fn default() -> Self {
        Self { file: None, level: Level::Info }
    }
}

impl Log {
    /// Tells whether lines of this importance are written.
    pub(crate) fn writes(&self, level: Level) -> bool {
        self.file.is_some() && level <= self.level
    }

    pub(crate) fn write(&self, clock: &Clock, level: Level, text: impl FnOnce() -> String) {
        let Some(file) = self.file.as_ref().filter(|_| level <= self.level) else {
            return;
        };
        file.write(Line { at: clock.now(), level, text: text() });
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Line};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn ob130_a_line_break_in_a_value_starts_no_line() {
        let line = Line {
            at: UNIX_EPOCH + Duration::from_secs(784_111_777),
            level: Level::Warn,
            text: "checking [/a\n[forged]]".to_owned(),
        };
        let expected = format!(
            "[Sun Nov 06 08:49:37 1994] [W] [pid {}] checking [/a\\n[forged]]",
            std::process::id()
        );
        assert_eq!(line.to_string(), expected);
    }
}
