//! Cursors: positions as opaque texts. A cursor holds a version, its statement, the number of preceding rows, and the
//! position.

use tympan_content::{ChunkId, NodePath};

use crate::node_source::NodeSourcePosition;
use crate::query_plan::{CursorPosition, RowPosition};
use crate::syntax_error::QuerySyntaxError;

const CURSOR_VERSION: u8 = 2;

/// Encodes a position.
pub(crate) fn encode_cursor(position: &CursorPosition, count: u64, statement: &str) -> String {
    let mut out = vec![CURSOR_VERSION];
    out.extend_from_slice(&statement_fingerprint(statement));
    out.extend_from_slice(&count.to_be_bytes());
    match position {
        CursorPosition::Unsorted { part_index, position: mark } => {
            out.push(0);
            put_bytes(&mut out, &(*part_index as u64).to_be_bytes());
            put_row_position(&mut out, mark);
        }
        CursorPosition::Sorted { sort_keys, paths } => {
            out.push(1);
            out.push(u8::try_from(sort_keys.len()).unwrap_or(u8::MAX));
            sort_keys.iter().for_each(|key| put_optional_bytes(&mut out, key.as_deref()));
            put_paths(&mut out, paths);
        }
    }
    hex::encode(out)
}

/// Decodes a position and the number of preceding rows.
///
/// # Errors
/// If the text is not a cursor of this statement.
pub(crate) fn decode_cursor(
    text: &str,
    statement: &str,
) -> Result<(CursorPosition, u64), QuerySyntaxError> {
    let foreign = || {
        QuerySyntaxError::new(
            1,
            "the cursor does not belong to this statement; start again without a cursor",
        )
    };
    let bytes = hex::decode(text).map_err(|_| foreign())?;
    let mut input = CursorDecoder(&bytes);
    let is_own = input.read_byte() == Some(CURSOR_VERSION)
        && input.read_exact(8) == Some(&statement_fingerprint(statement)[..]);
    let position = if is_own { input.read_cursor_position() } else { None };
    position.filter(|_| input.0.is_empty()).ok_or_else(foreign)
}

fn statement_fingerprint(statement: &str) -> [u8; 8] {
    let id = ChunkId::hash_of(statement.as_bytes());
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(id.as_bytes()).for_each(|(to, from)| *to = *from);
    bytes
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_optional_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    put_bytes(out, bytes.unwrap_or_default());
}

fn put_paths(out: &mut Vec<u8>, paths: &[Option<NodePath>]) {
    out.push(u8::try_from(paths.len()).unwrap_or(u8::MAX));
    for path in paths {
        put_optional_bytes(out, path.as_ref().map(|path| path.as_str().as_bytes()));
    }
}

fn put_row_position(out: &mut Vec<u8>, mark: &RowPosition) {
    match mark {
        RowPosition::Single(mark) => {
            out.push(0);
            put_source_position(out, Some(mark));
        }
        RowPosition::Joined { previous_outer, outer_path, inner_paths } => {
            out.push(1);
            put_source_position(out, previous_outer.as_ref());
            put_bytes(out, outer_path.as_str().as_bytes());
            put_paths(out, inner_paths);
        }
    }
}

fn put_source_position(out: &mut Vec<u8>, mark: Option<&NodeSourcePosition>) {
    match mark {
        None => out.push(0),
        Some(NodeSourcePosition::Path(path)) => {
            out.push(1);
            put_bytes(out, path.as_str().as_bytes());
        }
        Some(NodeSourcePosition::Key { map_name, key }) => {
            out.push(2);
            put_bytes(out, map_name.as_bytes());
            put_bytes(out, key);
        }
        Some(NodeSourcePosition::Scan { document, path }) => {
            out.push(3);
            put_bytes(out, document.as_str().as_bytes());
            put_bytes(out, path.as_str().as_bytes());
        }
        Some(NodeSourcePosition::Score { score, document, path }) => {
            out.push(4);
            put_bytes(out, &score.to_bits().to_be_bytes());
            put_bytes(out, document.as_str().as_bytes());
            put_bytes(out, path.as_str().as_bytes());
        }
    }
}

struct CursorDecoder<'a>(&'a [u8]);

impl<'a> CursorDecoder<'a> {
    fn read_exact(&mut self, count: usize) -> Option<&'a [u8]> {
        let (prefix, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(prefix)
    }

    fn read_byte(&mut self) -> Option<u8> {
        self.read_exact(1)?.first().copied()
    }

    fn read_number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.read_exact(8)?.first_chunk()?))
    }

    fn read_bytes(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(*self.read_exact(4)?.first_chunk()?);
        self.read_exact(length as usize)
    }

    fn read_optional_bytes(&mut self) -> Option<Option<&'a [u8]>> {
        let is_there = self.read_byte()? != 0;
        let bytes = self.read_bytes()?;
        Some(is_there.then_some(bytes))
    }

    fn read_path(&mut self) -> Option<NodePath> {
        path_from_bytes(self.read_bytes()?)
    }

    fn read_paths(&mut self) -> Option<Vec<Option<NodePath>>> {
        let count = self.read_byte()?;
        (0..count)
            .map(|_| match self.read_optional_bytes()? {
                Some(bytes) => Some(Some(path_from_bytes(bytes)?)),
                None => Some(None),
            })
            .collect()
    }

    fn read_cursor_position(&mut self) -> Option<(CursorPosition, u64)> {
        let count = self.read_number()?;
        let position = match self.read_byte()? {
            0 => {
                let part =
                    usize::try_from(u64::from_be_bytes(*self.read_bytes()?.first_chunk()?)).ok()?;
                CursorPosition::Unsorted { part_index: part, position: self.read_row_position()? }
            }
            1 => {
                let keys = self.read_byte()?;
                let keys = (0..keys).map(|_| Some(self.read_optional_bytes()?.map(<[u8]>::to_vec)));
                CursorPosition::Sorted {
                    sort_keys: keys.collect::<Option<_>>()?,
                    paths: self.read_paths()?,
                }
            }
            _ => return None,
        };
        Some((position, count))
    }

    fn read_row_position(&mut self) -> Option<RowPosition> {
        match self.read_byte()? {
            0 => Some(RowPosition::Single(self.read_source_position()??)),
            1 => {
                let before = self.read_source_position()?;
                Some(RowPosition::Joined {
                    previous_outer: before,
                    outer_path: self.read_path()?,
                    inner_paths: self.read_paths()?,
                })
            }
            _ => None,
        }
    }

    fn read_source_position(&mut self) -> Option<Option<NodeSourcePosition>> {
        Some(Some(match self.read_byte()? {
            0 => return Some(None),
            1 => NodeSourcePosition::Path(self.read_path()?),
            2 => {
                let map = std::str::from_utf8(self.read_bytes()?).ok()?.to_owned();
                NodeSourcePosition::Key { map_name: map, key: self.read_bytes()?.to_vec() }
            }
            3 => NodeSourcePosition::Scan { document: self.read_path()?, path: self.read_path()? },
            4 => {
                let score = f32::from_bits(u32::from_be_bytes(*self.read_bytes()?.first_chunk()?));
                NodeSourcePosition::Score {
                    score,
                    document: self.read_path()?,
                    path: self.read_path()?,
                }
            }
            _ => return None,
        }))
    }
}

fn path_from_bytes(bytes: &[u8]) -> Option<NodePath> {
    NodePath::new(std::str::from_utf8(bytes).ok()?).ok()
}
