//! The received positions in the logs of siblings; stored in the document root because they describe the files there.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::SystemTime;

use super::message::{LogPosition, is_valid_id};

/// The file in the document root.
pub(super) const RECEIVED_POSITIONS_FILE: &str = ".tympan-heard";
/// The maximum size of the file in bytes; a longer one was not written by the dispatcher.
pub(super) const MAX_RECEIVED_FILE_BYTES: u64 = 1024 * 1024;
/// The first line of the file.
const RECEIVED_FILE_VERSION: &str = "tympan-heard 1";
/// The maximum number of logs remembered; the least recently received one is dropped first, and then starts anew.
const MAX_LOGS: usize = 256;

/// The position received in each log, the most recently received one last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReceivedPositions(Vec<(String, LogPosition)>);

impl ReceivedPositions {
    pub(super) fn position(&self, origin: &str) -> Option<&LogPosition> {
        self.0.iter().find(|(source, _)| source == origin).map(|(_, position)| position)
    }

    pub(super) fn record_position(&mut self, origin: &str, position: LogPosition) {
        self.0.retain(|(source, _)| source != origin);
        if self.0.len() >= MAX_LOGS {
            self.0.remove(0);
        }
        self.0.push((origin.to_owned(), position));
    }

    pub(super) fn positions(&self) -> &[(String, LogPosition)] {
        &self.0
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{RECEIVED_FILE_VERSION}\n");
        for (origin, LogPosition { run, count }) in &self.0 {
            // Writing to a string cannot fail.
            writeln!(text, "{origin} {run} {count}").ok();
        }
        text
    }

    /// Parses the output of [`ReceivedPositions::to_text`]; `None` if the text is malformed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        lines.next().filter(|first| *first == RECEIVED_FILE_VERSION)?;
        let mut positions = Self::default();
        for line in lines {
            let mut words = line.split(' ');
            let (origin, run) = (words.next()?, words.next()?);
            let position = LogPosition { run: run.to_owned(), count: words.next()?.parse().ok()? };
            if words.next().is_some() || !is_valid_id(origin) || !position.is_valid() {
                return None;
            }
            positions.record_position(origin, position);
        }
        Some(positions)
    }
}

/// A message that was tried before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttemptedMessage {
    /// The position after the message.
    pub(super) next_position: LogPosition,
    /// True if it invalidates every file.
    pub(super) invalidates_all: bool,
}

/// The last message of each log that failed partially. The completed part is not repeated when the message comes again;
/// otherwise an unreadable folder would invalidate pages every few seconds.
#[derive(Debug, Default)]
pub(crate) struct FailedMessages(HashMap<String, (AttemptedMessage, SystemTime)>);

impl FailedMessages {
    /// Returns the time of the first attempt of a message, if it failed then.
    pub(super) fn first_attempt(
        &self,
        origin: &str,
        tried: &AttemptedMessage,
    ) -> Option<SystemTime> {
        self.0.get(origin).filter(|(failed, _)| failed == tried).map(|(_, since)| *since)
    }

    pub(super) fn record_failure(
        &mut self,
        origin: &str,
        tried: AttemptedMessage,
        since: SystemTime,
    ) {
        if self.0.len() >= MAX_LOGS && !self.0.contains_key(origin) {
            self.0.clear();
        }
        self.0.insert(origin.to_owned(), (tried, since));
    }

    pub(super) fn forget(&mut self, origin: &str) {
        self.0.remove(origin);
    }
}

#[cfg(test)]
mod tests {
    use super::{AttemptedMessage, FailedMessages, MAX_LOGS, ReceivedPositions};
    use crate::flush::propagation::message::LogPosition;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(count: u64) -> LogPosition {
        LogPosition { run: "r".to_owned(), count }
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let text = "tympan-heard 1\n5f r 3\n77 r 12\n";
        let positions = ReceivedPositions::parse(text).unwrap();
        assert_eq!((positions.position("5f"), positions.position("66")), (Some(&at(3)), None));
        assert_eq!(positions.to_text(), text);
        for broken in
            ["", "x\n", "tympan-heard 2\n", &text[..text.len() - 1], "tympan-heard 1\na b\n"]
        {
            assert_eq!(ReceivedPositions::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_was_heard_longest_ago_is_forgotten_first() {
        let mut positions = ReceivedPositions::default();
        positions.record_position("old", at(1));
        positions.record_position("steady", at(1));
        for count in 0..2 * MAX_LOGS as u64 {
            positions.record_position(&format!("log{count}"), at(1));
            positions.record_position("steady", at(count));
        }
        assert_eq!(positions.positions().len(), MAX_LOGS);
        assert_eq!(positions.position("old"), None);
        assert_eq!(positions.position("steady"), Some(&at(2 * MAX_LOGS as u64 - 1)));
    }

    #[test]
    fn failures_are_remembered_by_message_and_bounded() {
        let (mut failed, then) = (FailedMessages::default(), UNIX_EPOCH + Duration::from_secs(1));
        let to = |count| AttemptedMessage { next_position: at(count), invalidates_all: true };
        failed.record_failure("a", to(1), UNIX_EPOCH);
        failed.record_failure("b", to(1), then);
        assert_eq!(failed.first_attempt("a", &to(1)), Some(UNIX_EPOCH));
        let others = [to(2), AttemptedMessage { invalidates_all: false, ..to(1) }];
        assert!(others.iter().all(|other| failed.first_attempt("a", other).is_none()));
        failed.record_failure("a", to(2), then);
        assert_eq!(
            (failed.first_attempt("a", &to(1)), failed.first_attempt("a", &to(2))),
            (None, Some(then))
        );
        failed.forget("a");
        assert_eq!(
            (failed.first_attempt("a", &to(2)), failed.first_attempt("b", &to(1))),
            (None, Some(then))
        );
        (0..3 * MAX_LOGS)
            .for_each(|number| failed.record_failure(&number.to_string(), to(1), then));
        assert!(failed.0.len() <= MAX_LOGS);
    }
}
