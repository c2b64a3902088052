//! Where a follower stands in the change feed, as a short text.

use std::fmt::{self, Write};
use std::str::FromStr;

use tympan_store::{ChunkId, Revision};

use crate::{Error, Result};

/// A place in the history of a branch: behind a revision, or behind some documents of the one after it.
///
/// As text: the revision's number, its root, and where it stands inside, the document's key in hexadecimal digits, joined
/// by hyphens; an `r` at the end if another order of the document's siblings was told already. Whoever keeps one takes it
/// as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The last revision that was digested whole.
    pub(crate) sequence: u64,
    /// The state that it led to.
    pub(crate) root: ChunkId,
    /// The key of the last document of the next revision that was digested.
    pub(crate) inside: Option<Vec<u8>>,
    /// Whether it was told that the siblings of this document have another order.
    pub(crate) is_reorder_told: bool,
}

impl Cursor {
    /// Returns the cursor behind a revision; nothing for one that removed its branch.
    pub(crate) fn behind(revision: &Revision) -> Option<Self> {
        let root = revision.update.new?;
        Some(Self::whole(revision.sequence, root))
    }

    /// Makes the cursor behind a revision and the state that it led to.
    pub(crate) fn whole(sequence: u64, root: ChunkId) -> Self {
        Self { sequence, root, inside: None, is_reorder_told: false }
    }

    /// Returns the number of the last revision that was digested whole.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the state that this revision led to.
    #[must_use]
    pub fn root(&self) -> ChunkId {
        self.root
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.sequence, self.root)?;
        if let Some(key) = &self.inside {
            f.write_char('-')?;
            key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            if self.is_reorder_told {
                f.write_char('r')?;
            }
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        read(text).ok_or_else(|| Error::ValueFormat {
            text: text.chars().take(200).collect(),
            wanted: "a cursor of the change feed",
        })
    }
}

fn read(text: &str) -> Option<Cursor> {
    let mut parts = text.split('-');
    let sequence = parts.next()?;
    if !sequence.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (sequence, root) = (sequence.parse().ok()?, parts.next()?.parse().ok()?);
    let inside = parts.next();
    let told = inside.and_then(|inside| inside.strip_suffix('r'));
    let (digits, is_reorder_told) = (told.or(inside), told.is_some());
    let inside = match digits {
        Some(digits) => Some(bytes(digits)?),
        None => None,
    };
    let cursor = Cursor { sequence, root, inside, is_reorder_told };
    parts.next().is_none().then_some(cursor)
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|one| u8::try_from(one).ok());
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(value(*high)? * 16 + value(*low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_nothing_else_is() {
        let root = ChunkId::of(b"x");
        for inside in [None, Some(Vec::new()), Some(vec![0, 1, 255, 16])] {
            for is_reorder_told in [false, inside.is_some()] {
                let inside = inside.clone();
                let cursor = Cursor { sequence: 17, root, inside, is_reorder_told };
                assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            }
        }
        let root = root.to_string();
        for bad in ["", "1", "1-2", "x-1", "-", "1--", "now"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
        for bad in [
            format!("1-{root}-2"),
            format!("1-{root}-2g"),
            format!("1-{root}-2f-2f"),
            format!("1-{root}r"),
            format!("1-{root}-2frr"),
        ] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }
}
