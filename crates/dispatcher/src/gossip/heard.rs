//! How far the logs of siblings were heard; it is kept in the document root, as it speaks of the files there.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::SystemTime;

use super::message::{Position, is_word};

/// The file in the document root.
pub(super) const HEARD_FILE: &str = ".tympan-heard";
/// A longer file is not ours.
pub(super) const MAX_HEARD_BYTES: u64 = 1024 * 1024;
/// The first line of the file.
const VERSION: &str = "tympan-heard 1";
/// Logs that are remembered; the one that was heard longest ago is forgotten first, and begins anew then.
const MAX_LOGS: usize = 256;

/// How far which log was heard, the one that was heard last at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Heard(Vec<(String, Position)>);

impl Heard {
    pub(super) fn position(&self, origin: &str) -> Option<&Position> {
        self.0.iter().find(|(known, _)| known == origin).map(|(_, position)| position)
    }

    pub(super) fn note(&mut self, origin: &str, position: Position) {
        self.0.retain(|(known, _)| known != origin);
        if self.0.len() >= MAX_LOGS {
            self.0.remove(0);
        }
        self.0.push((origin.to_owned(), position));
    }

    pub(super) fn all(&self) -> &[(String, Position)] {
        &self.0
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{VERSION}\n");
        for (origin, Position { run, count }) in &self.0 {
            // Writing to a string cannot fail.
            writeln!(text, "{origin} {run} {count}").ok();
        }
        text
    }

    /// Reads what [`Heard::to_text`] wrote; nothing if it is anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        lines.next().filter(|first| *first == VERSION)?;
        let mut heard = Self::default();
        for line in lines {
            let mut words = line.split(' ');
            let (origin, run) = (words.next()?, words.next()?);
            let position = Position { run: run.to_owned(), count: words.next()?.parse().ok()? };
            if words.next().is_some() || !is_word(origin) || !position.is_sound() {
                return None;
            }
            heard.note(origin, position);
        }
        Some(heard)
    }
}

/// A message that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tried {
    /// How far it goes.
    pub(super) next: Position,
    /// Whether it makes every file out of date.
    pub(super) is_of_all: bool,
}

/// Messages that could not be carried out whole, the last one of each log: what was done is not done again when they come
/// again, or a folder that cannot be read would make pages out of date every few seconds.
#[derive(Debug, Default)]
pub(crate) struct Failed(HashMap<String, (Tried, SystemTime)>);

impl Failed {
    /// Returns when a message was tried first, if it failed then.
    pub(super) fn since(&self, origin: &str, tried: &Tried) -> Option<SystemTime> {
        self.0.get(origin).filter(|(failed, _)| failed == tried).map(|(_, since)| *since)
    }

    pub(super) fn note(&mut self, origin: &str, tried: Tried, since: SystemTime) {
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
    use super::{Failed, Heard, MAX_LOGS, Tried};
    use crate::gossip::message::Position;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(count: u64) -> Position {
        Position { run: "r".to_owned(), count }
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let text = "tympan-heard 1\n5f r 3\n77 r 12\n";
        let heard = Heard::parse(text).unwrap();
        assert_eq!((heard.position("5f"), heard.position("66")), (Some(&at(3)), None));
        assert_eq!(heard.to_text(), text);
        for broken in
            ["", "x\n", "tympan-heard 2\n", &text[..text.len() - 1], "tympan-heard 1\na b\n"]
        {
            assert_eq!(Heard::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_was_heard_longest_ago_is_forgotten_first() {
        let mut heard = Heard::default();
        heard.note("old", at(1));
        heard.note("steady", at(1));
        for count in 0..2 * MAX_LOGS as u64 {
            heard.note(&format!("log{count}"), at(1));
            heard.note("steady", at(count));
        }
        assert_eq!(heard.all().len(), MAX_LOGS);
        assert_eq!(heard.position("old"), None);
        assert_eq!(heard.position("steady"), Some(&at(2 * MAX_LOGS as u64 - 1)));
    }

    #[test]
    fn failures_are_remembered_by_message_and_bounded() {
        let (mut failed, then) = (Failed::default(), UNIX_EPOCH + Duration::from_secs(1));
        let to = |count| Tried { next: at(count), is_of_all: true };
        failed.note("a", to(1), UNIX_EPOCH);
        failed.note("b", to(1), then);
        assert_eq!(failed.since("a", &to(1)), Some(UNIX_EPOCH));
        let others = [to(2), Tried { is_of_all: false, ..to(1) }];
        assert!(others.iter().all(|other| failed.since("a", other).is_none()));
        failed.note("a", to(2), then);
        assert_eq!((failed.since("a", &to(1)), failed.since("a", &to(2))), (None, Some(then)));
        failed.forget("a");
        assert_eq!((failed.since("a", &to(2)), failed.since("b", &to(1))), (None, Some(then)));
        (0..3 * MAX_LOGS).for_each(|number| failed.note(&number.to_string(), to(1), then));
        assert!(failed.0.len() <= MAX_LOGS);
    }
}
