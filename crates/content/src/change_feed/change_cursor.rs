//! The position of a follower in the change feed, as a short text.

use std::fmt::{self, Write};
use std::str::FromStr;

use tympan_store::{ChunkId, Revision};

use crate::{Error, Result};

/// A position in the history of a branch: after a revision, or after some documents of the next revision.
///
/// The text form is the revision's number, its root, and for a position inside the next revision the document's key in
/// hexadecimal, joined by hyphens; a final `r` if the new order of the document's siblings was already reported.
/// Clients treat the text as opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeCursor {
    /// The last revision that was consumed completely.
    pub(crate) sequence: u64,
    /// The root of that revision.
    pub(crate) root: ChunkId,
    /// The key of the last consumed document of the next revision.
    pub(crate) last_document_key: Option<Vec<u8>>,
    /// True if the new order of this document's siblings was already reported.
    pub(crate) is_reorder_reported: bool,
}

impl ChangeCursor {
    /// Returns the cursor after a revision; `None` for a revision that removed its branch.
    pub(crate) fn after_revision(revision: &Revision) -> Option<Self> {
        let root = revision.update.new_root?;
        Some(Self::after_whole_revision(revision.sequence, root))
    }

    /// Creates the cursor after a revision with this root.
    pub(crate) fn after_whole_revision(sequence: u64, root: ChunkId) -> Self {
        Self { sequence, root, last_document_key: None, is_reorder_reported: false }
    }

    /// Returns the number of the last revision that was consumed completely.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the root of this revision.
    #[must_use]
    pub fn root(&self) -> ChunkId {
        self.root
    }
}

impl fmt::Display for ChangeCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.sequence, self.root)?;
        if let Some(key) = &self.last_document_key {
            f.write_char('-')?;
            f.write_str(&hex::encode(key))?;
            if self.is_reorder_reported {
                f.write_char('r')?;
            }
        }
        Ok(())
    }
}

impl FromStr for ChangeCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_cursor(text).ok_or_else(|| Error::ValueFormat {
            text: text.chars().take(200).collect(),
            expected_type: "a change feed cursor",
        })
    }
}

fn parse_cursor(text: &str) -> Option<ChangeCursor> {
    let mut parts = text.split('-');
    let sequence = parts.next()?;
    if !sequence.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (sequence, root) = (sequence.parse().ok()?, parts.next()?.parse().ok()?);
    let inside = parts.next();
    let reorder_digits = inside.and_then(|inside| inside.strip_suffix('r'));
    let (digits, is_reorder_told) = (reorder_digits.or(inside), reorder_digits.is_some());
    let inside = match digits {
        Some(digits) => Some(hex::decode(digits).ok()?),
        None => None,
    };
    let cursor = ChangeCursor {
        sequence,
        root,
        last_document_key: inside,
        is_reorder_reported: is_reorder_told,
    };
    parts.next().is_none().then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_nothing_else_is() {
        let root = ChunkId::hash_of(b"x");
        for inside in [None, Some(Vec::new()), Some(vec![0, 1, 255, 16])] {
            for is_reorder_told in [false, inside.is_some()] {
                let inside = inside.clone();
                let cursor = ChangeCursor {
                    sequence: 17,
                    root,
                    last_document_key: inside,
                    is_reorder_reported: is_reorder_told,
                };
                assert_eq!(cursor.to_string().parse::<ChangeCursor>().unwrap(), cursor);
            }
        }
        let root = root.to_string();
        for bad in ["", "1", "1-2", "x-1", "-", "1--", "now"] {
            assert!(bad.parse::<ChangeCursor>().is_err(), "{bad}");
        }
        for bad in [
            format!("1-{root}-2"),
            format!("1-{root}-2g"),
            format!("1-{root}-2f-2f"),
            format!("1-{root}r"),
            format!("1-{root}-2frr"),
        ] {
            assert!(bad.parse::<ChangeCursor>().is_err(), "{bad}");
        }
    }
}
