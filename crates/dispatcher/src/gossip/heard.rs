//! How far the logs of siblings were heard; it is kept in the document root, as it speaks of the files there.

use std::fmt::Write;

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

#[cfg(test)]
mod tests {
    use super::{Heard, MAX_LOGS};
    use crate::gossip::message::Position;

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
}
