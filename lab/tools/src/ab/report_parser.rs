//! Parses the text output of old and new versions of ab, and compares two runs.
//!
//! Two runs are compared only if they made the same requests. A different page, number of connections or keep-alive
//! setting makes a factor meaningless, so the factor is withheld and the reason is given.

use std::fmt;

/// A run as parsed from ab's text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AbReport {
    /// `Server Software`.
    pub software: String,
    /// `Server Hostname`.
    pub host: String,
    /// `Server Port`.
    pub port: u16,
    /// `Document Path`.
    pub path: String,
    /// `Document Length`; `None` if it varies.
    pub document_length: Option<u64>,
    /// `Concurrency Level`.
    pub concurrency: u64,
    /// `Time taken for tests`, in seconds.
    pub duration_seconds: f64,
    /// `Complete requests`.
    pub completed_requests: u64,
    /// `Failed requests`.
    pub failed_requests: u64,
    /// `Keep-Alive requests`; `None` if the line is missing.
    pub keep_alive_requests: Option<u64>,
    /// `Total transferred`.
    pub total_transferred: u64,
    /// `HTML transferred`.
    pub html_transferred: u64,
    /// `Requests per second`.
    pub requests_per_second: f64,
    /// `Time per request` of one connection, in milliseconds.
    pub ms_per_request: f64,
    /// `Time per request` across all connections, in milliseconds.
    pub ms_per_request_overall: f64,
    /// `Transfer rate`, in KiB per second.
    pub transfer_rate_kib: f64,
    /// Connect, Processing, Waiting, Total: min, mean, deviation, median, max, in milliseconds.
    pub times: Vec<(String, [f64; 5])>,
    /// Pairs of percentage and milliseconds.
    pub percentiles: Vec<(u32, u64)>,
}

/// Parses the first run in `text`; `None` if there is none.
#[must_use]
pub fn parse_ab_report(text: &str) -> Option<AbReport> {
    parse_ab_reports(text).into_iter().next()
}

/// Parses all runs in `text`; other lines may surround them.
#[must_use]
pub fn parse_ab_reports(text: &str) -> Vec<AbReport> {
    let mut runs: Vec<AbReport> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.contains("erver Software:") {
            runs.push(AbReport {
                software: text_after_colon(line).to_owned(),
                ..AbReport::default()
            });
        } else if let Some(run) = runs.last_mut() {
            run.read_line(line);
        }
    }
    runs.retain(|run| run.completed_requests > 0 || run.duration_seconds > 0.0);
    runs
}

fn text_after_colon(line: &str) -> &str {
    line.split_once(':').map_or("", |(_, value)| value.trim())
}

fn parse_number<T: std::str::FromStr + Default>(line: &str) -> T {
    text_after_colon(line)
        .split_whitespace()
        .next()
        .and_then(|token| token.parse().ok())
        .unwrap_or_default()
}

impl AbReport {
    fn read_line(&mut self, line: &str) {
        let name = line.split(':').next().unwrap_or_default();
        match name {
            "Server Hostname" => text_after_colon(line).clone_into(&mut self.host),
            "Server Port" => self.port = parse_number(line),
            "Document Path" => text_after_colon(line).clone_into(&mut self.path),
            "Document Length" => {
                self.document_length = text_after_colon(line)
                    .split_whitespace()
                    .next()
                    .and_then(|token| token.parse().ok());
            }
            "Concurrency Level" => self.concurrency = parse_number(line),
            "Time taken for tests" => self.duration_seconds = parse_number(line),
            "Complete requests" => self.completed_requests = parse_number(line),
            "Failed requests" => self.failed_requests = parse_number(line),
            "Keep-Alive requests" => self.keep_alive_requests = Some(parse_number(line)),
            "Total transferred" => self.total_transferred = parse_number(line),
            "HTML transferred" => self.html_transferred = parse_number(line),
            "Requests per second" => self.requests_per_second = parse_number(line),
            "Time per request" if line.contains("across all") => {
                self.ms_per_request_overall = parse_number(line)
            }
            "Time per request" => self.ms_per_request = parse_number(line),
            "Transfer rate" => self.transfer_rate_kib = parse_number(line),
            "Connect" | "Processing" | "Waiting" | "Total" => self.read_times(name, line),
            _ => self.read_percentile(line),
        }
    }

    fn read_times(&mut self, name: &str, line: &str) {
        let mut values =
            text_after_colon(line).split_whitespace().map_while(|token| token.parse().ok());
        let mut row = [0.0; 5];
        for cell in &mut row {
            match values.next() {
                Some(value) => *cell = value,
                None => return,
            }
        }
        self.times.push((name.to_owned(), row));
    }

    fn read_percentile(&mut self, line: &str) {
        let Some((percent, rest)) = line.split_once('%') else { return };
        let time = rest.split_whitespace().next().and_then(|token| token.parse().ok());
        if let (Ok(percent), Some(time)) = (percent.trim().parse(), time) {
            self.percentiles.push((percent, time));
        }
    }

    /// Returns the time in milliseconds within which `percent` of the requests were served.
    #[must_use]
    pub fn percentile(&self, percent: u32) -> Option<u64> {
        self.percentiles
            .iter()
            .find(|(percentile, _)| *percentile == percent)
            .map(|(_, time)| *time)
    }

    /// Compares this run with an earlier one.
    #[must_use]
    pub fn compare(&self, before: &Self) -> AbComparison {
        let factor = if before.requests_per_second > 0.0 {
            self.requests_per_second / before.requests_per_second
        } else {
            0.0
        };
        let mut differences = Vec::new();
        if self.path != before.path {
            differences.push(format!("document path `{}` -> `{}`", before.path, self.path));
        }
        if self.document_length != before.document_length {
            let tell = |length: Option<u64>| {
                length.map_or("variable".to_owned(), |length| length.to_string())
            };
            differences.push(format!(
                "document length {} -> {}",
                tell(before.document_length),
                tell(self.document_length)
            ));
        }
        if self.concurrency != before.concurrency {
            differences.push(format!("concurrency {} -> {}", before.concurrency, self.concurrency));
        }
        if self.keep_alive_requests.is_some() != before.keep_alive_requests.is_some() {
            differences.push("keep-alive changed".to_owned());
        }
        AbComparison { rate_factor: factor, differences }
    }
}

/// A run compared with an earlier one.
#[derive(Debug, Clone, PartialEq)]
pub struct AbComparison {
    /// Requests per second of this run divided by those of the earlier one.
    pub rate_factor: f64,
    /// The reasons why the factor is meaningless; empty if it is valid.
    pub differences: Vec<String>,
}

impl AbComparison {
    /// Returns true if both runs made the same requests.
    #[must_use]
    pub fn is_fair(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for AbComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fair() {
            write!(f, "{:.2}x", self.rate_factor)
        } else {
            write!(f, "not comparable: {}", self.differences.join(", "))
        }
    }
}
