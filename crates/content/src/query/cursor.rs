//! Positions as opaque texts: a version, the statement they belong to, how many rows came before, and the place.

use tympan_store::ChunkId;

use super::access::Mark;
use super::rows::{Position, RowMark};
use super::syntax_error::SyntaxError;
use crate::NodePath;

const VERSION: u8 = 2;

/// Writes a position.
pub(crate) fn write(position: &Position, count: u64, statement: &str) -> String {
    let mut out = vec![VERSION];
    out.extend_from_slice(&fingerprint(statement));
    out.extend_from_slice(&count.to_be_bytes());
    match position {
        Position::Found { part, mark } => {
            out.push(0);
            put(&mut out, &(*part as u64).to_be_bytes());
            put_row_mark(&mut out, mark);
        }
        Position::Sorted { keys, paths } => {
            out.push(1);
            out.push(u8::try_from(keys.len()).unwrap_or(u8::MAX));
            keys.iter().for_each(|key| put_optional(&mut out, key.as_deref()));
            put_paths(&mut out, paths);
        }
    }
    out.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a position, and how many rows came before it.
///
/// # Errors
/// If the text is no cursor of this statement.
pub(crate) fn read(text: &str, statement: &str) -> Result<(Position, u64), SyntaxError> {
    let foreign = || {
        SyntaxError::new(1, "the cursor does not belong to this statement; begin again without one")
    };
    let bytes = unhex(text).ok_or_else(foreign)?;
    let mut input = Input(&bytes);
    let is_own =
        input.byte() == Some(VERSION) && input.take(8) == Some(&fingerprint(statement)[..]);
    let position = if is_own { input.position() } else { None };
    position.filter(|_| input.0.is_empty()).ok_or_else(foreign)
}

fn fingerprint(statement: &str) -> [u8; 8] {
    let id = ChunkId::of(statement.as_bytes());
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(id.as_bytes()).for_each(|(to, from)| *to = *from);
    bytes
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let is_plain = digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
    if is_plain { digits.chunks(2).map(byte).collect() } else { None }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    put(out, bytes.unwrap_or_default());
}

fn put_paths(out: &mut Vec<u8>, paths: &[Option<NodePath>]) {
    out.push(u8::try_from(paths.len()).unwrap_or(u8::MAX));
    for path in paths {
        put_optional(out, path.as_ref().map(|path| path.as_str().as_bytes()));
    }
}

fn put_row_mark(out: &mut Vec<u8>, mark: &RowMark) {
    match mark {
        RowMark::One(mark) => {
            out.push(0);
            put_mark(out, Some(mark));
        }
        RowMark::Joined { before, outer, inner } => {
            out.push(1);
            put_mark(out, before.as_ref());
            put(out, outer.as_str().as_bytes());
            put_paths(out, inner);
        }
    }
}

fn put_mark(out: &mut Vec<u8>, mark: Option<&Mark>) {
    match mark {
        None => out.push(0),
        Some(Mark::Path(path)) => {
            out.push(1);
            put(out, path.as_str().as_bytes());
        }
        Some(Mark::Key { map, key }) => {
            out.push(2);
            put(out, map.as_bytes());
            put(out, key);
        }
        Some(Mark::Scan { document, path }) => {
            out.push(3);
            put(out, document.as_str().as_bytes());
            put(out, path.as_str().as_bytes());
        }
        Some(Mark::Score { score, document, path }) => {
            out.push(4);
            put(out, &score.to_bits().to_be_bytes());
            put(out, document.as_str().as_bytes());
            put(out, path.as_str().as_bytes());
        }
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.take(8)?.first_chunk()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(*self.take(4)?.first_chunk()?);
        self.take(length as usize)
    }

    fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        let is_there = self.byte()? != 0;
        let bytes = self.bytes()?;
        Some(is_there.then_some(bytes))
    }

    fn path(&mut self) -> Option<NodePath> {
        as_path(self.bytes()?)
    }

    fn paths(&mut self) -> Option<Vec<Option<NodePath>>> {
        let count = self.byte()?;
        (0..count)
            .map(|_| match self.optional()? {
                Some(bytes) => Some(Some(as_path(bytes)?)),
                None => Some(None),
            })
            .collect()
    }

    fn position(&mut self) -> Option<(Position, u64)> {
        let count = self.number()?;
        let position = match self.byte()? {
            0 => {
                let part =
                    usize::try_from(u64::from_be_bytes(*self.bytes()?.first_chunk()?)).ok()?;
                Position::Found { part, mark: self.row_mark()? }
            }
            1 => {
                let keys = self.byte()?;
                let keys = (0..keys).map(|_| Some(self.optional()?.map(<[u8]>::to_vec)));
                Position::Sorted { keys: keys.collect::<Option<_>>()?, paths: self.paths()? }
            }
            _ => return None,
        };
        Some((position, count))
    }

    fn row_mark(&mut self) -> Option<RowMark> {
        match self.byte()? {
            0 => Some(RowMark::One(self.mark()??)),
            1 => {
                let before = self.mark()?;
                Some(RowMark::Joined { before, outer: self.path()?, inner: self.paths()? })
            }
            _ => None,
        }
    }

    fn mark(&mut self) -> Option<Option<Mark>> {
        Some(Some(match self.byte()? {
            0 => return Some(None),
            1 => Mark::Path(self.path()?),
            2 => {
                let map = std::str::from_utf8(self.bytes()?).ok()?.to_owned();
                Mark::Key { map, key: self.bytes()?.to_vec() }
            }
            3 => Mark::Scan { document: self.path()?, path: self.path()? },
            4 => {
                let score = f32::from_bits(u32::from_be_bytes(*self.bytes()?.first_chunk()?));
                Mark::Score { score, document: self.path()?, path: self.path()? }
            }
            _ => return None,
        }))
    }
}

fn as_path(bytes: &[u8]) -> Option<NodePath> {
    NodePath::new(std::str::from_utf8(bytes).ok()?).ok()
}
