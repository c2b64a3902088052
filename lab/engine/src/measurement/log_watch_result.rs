//! Error lines that a watched log received during a load.

/// Maximum number of stored log lines; further ones are only counted.
pub const MAX_LOGGED_LINES: usize = 100;
/// Maximum stored length of a line, in characters.
pub const MAX_LOGGED_LINE_LEN: usize = 1000;

/// Log lines that report errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogErrors {
    /// Number of such lines.
    pub error_count: u64,
    /// The first of them, at most [`MAX_LOGGED_LINES`].
    pub first_lines: Vec<String>,
}

impl LogErrors {
    /// Counts a line, and stores it if there are not too many yet.
    pub fn add_line(&mut self, line: &[u8]) {
        self.error_count += 1;
        if self.first_lines.len() < MAX_LOGGED_LINES {
            let text = String::from_utf8_lossy(line);
            // A log may contain text from visitors, which must not control the terminal.
            let letters = text.chars().filter(|letter| !letter.is_control() || *letter == '\t');
            self.first_lines.push(letters.take(MAX_LOGGED_LINE_LEN).collect());
        }
    }
}

/// The errors written to a log during a load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogWatchResult {
    /// The path of the log.
    pub log_file: String,
    /// Lines that report errors.
    pub errors: LogErrors,
    /// The reason why the log could not be read; its errors are then unknown.
    pub read_failure: Option<String>,
}

impl LogWatchResult {
    /// Returns a human-readable description, line by line.
    pub fn describe_lines(&self) -> impl Iterator<Item = String> {
        let more = self.errors.error_count.saturating_sub(self.errors.first_lines.len() as u64);
        let lines = self.errors.first_lines.iter();
        let lines = lines.map(|line| format!("ERROR LOGGED {}: {line}", self.log_file));
        let unread = self.read_failure.iter().map(|reason| format!("LOG NOT READ {reason}"));
        let more = (more > 0).then(|| format!("ERROR LOGGED {}: {more} more lines", self.log_file));
        lines.chain(more).chain(unread)
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "file": self.log_file,
            "count": self.errors.error_count,
            "lines": self.errors.first_lines,
            "unread": self.read_failure,
        })
    }
}
