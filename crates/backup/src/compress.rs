//! Compression of what goes into a vault: Zstandard, with contexts that each thread keeps.

use std::cell::RefCell;
use std::io::{self, BufWriter, Cursor};

use serde::Serialize;
use zstd::bulk::{Compressor, Decompressor};
use zstd::stream::write::Encoder;

/// How hard to compress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Zstandard's usual level.
    #[default]
    Auto,
    /// Pieces of files stay as they are; folders are compressed.
    Off,
    /// The fastest level.
    Fastest,
    /// A slower, smaller level.
    Better,
    /// The smallest that is worth its time.
    Max,
}

impl Compression {
    const fn level(self) -> i32 {
        match self {
            Self::Auto | Self::Off => 3,
            Self::Fastest => 1,
            Self::Better => 7,
            Self::Max => 19,
        }
    }

    /// Returns what folders are compressed by: of lists of nodes, the fastest level makes as little as the usual one.
    pub(crate) const fn of_folders(self) -> Self {
        match self {
            Self::Auto | Self::Off | Self::Fastest => Self::Fastest,
            Self::Better | Self::Max => self,
        }
    }
}

thread_local! {
    // A new context costs ten times what compressing a small piece does.
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Encoders of JSON write some bytes at a time: so many go to the compressor at once.
const JSON_PART: usize = 32 << 10;

/// Compresses bytes; nothing if that fails.
pub(crate) fn compress(plain: &[u8], compression: Compression) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    compress_onto(plain, compression, &mut packed).map(|_| packed)
}

/// Compresses bytes behind what is in a buffer; returns the length, or nothing if that fails, where the buffer is as it was.
pub(crate) fn compress_onto(
    plain: &[u8],
    compression: Compression,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let level = compression.level();
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Some((level, Compressor::new(level).ok()?));
        }
        let (of, compressor) = kept.as_mut()?;
        if *of != level {
            compressor.set_compression_level(level).ok()?;
            *of = level;
        }
        let before = out.len();
        out.reserve_exact(zstd::compress_bound(plain.len()));
        let mut behind = Cursor::new(&mut *out);
        behind.set_position(before as u64);
        compressor.compress_to_buffer(plain, &mut behind).ok()
    })
}

/// Compresses a value as JSON behind what is in a buffer, without its text in memory: that of an index is long.
pub(crate) fn compress_json<T: Serialize>(
    value: &T,
    compression: Compression,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut parts = BufWriter::with_capacity(JSON_PART, Encoder::new(out, compression.level())?);
    serde_json::to_writer(&mut parts, value)?;
    let encoder = parts.into_inner().map_err(io::IntoInnerError::into_error)?;
    encoder.finish().map(|_| ())
}

/// Decompresses bytes to at most `limit` bytes; nothing if they are damaged or longer.
pub(crate) fn decompress(packed: &[u8], limit: usize) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Some(Decompressor::new().ok()?);
        }
        kept.as_mut()?.decompress(packed, limit).ok()
    })
}

/// Decompresses bytes whose length is not known, to at most `limit` bytes.
pub(crate) fn decompress_unknown(packed: &[u8], limit: usize) -> Option<Vec<u8>> {
    use std::io::Read;
    let mut plain = Vec::new();
    let reader = zstd::stream::read::Decoder::new(packed).ok()?;
    reader.take(limit as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= limit).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    #[test]
    fn what_is_compressed_behind_other_bytes_is_what_it_was() {
        let plain = b"a word, and a word again, ".repeat(100);
        let mut out = b"before".to_vec();
        let length = compress_onto(&plain, Compression::Auto, &mut out).unwrap();
        let packed = out.strip_prefix(b"before").unwrap();
        assert!(packed.len() == length && length < 100);
        assert_eq!(decompress(packed, LIMIT).unwrap(), plain);
        assert_eq!(compress(&plain, Compression::Auto).unwrap(), packed);
        // What cannot be made smaller is longer.
        let noise: Vec<u8> = (0..1000_u32)
            .flat_map(|n| crate::Id::of(&n.to_le_bytes()).as_bytes().to_owned())
            .collect();
        let packed = compress(&noise, Compression::Fastest).unwrap();
        assert!(packed.len() > noise.len());
        assert_eq!(decompress(&packed, LIMIT).unwrap(), noise);
    }

    /// A folder as a vault has it: hashes, and what all its nodes have in common.
    #[test]
    fn folders_are_as_small_by_the_fastest_level() {
        use crate::vault::node::{Node, NodeKind, Tree};
        let node = |number: u32| {
            let mut node = Node::new(format!("page{number}"), NodeKind::Dir, 0o700);
            node.subtree = Some(crate::Id::of(&number.to_le_bytes()));
            node
        };
        let folder = Tree::of((0..500).map(node)).to_bytes();
        let usual = compress(&folder, Compression::Auto).unwrap();
        let mut fast = Vec::new();
        for compression in [Compression::Auto, Compression::Off, Compression::Fastest] {
            fast.clear();
            compress_onto(&folder, compression.of_folders(), &mut fast).unwrap();
            assert_eq!(decompress(&fast, LIMIT).unwrap(), folder);
        }
        assert!(fast.len() <= usual.len(), "{} and {}", fast.len(), usual.len());
        // A level does not stay for what comes next.
        assert_eq!(compress(&folder, Compression::Auto).unwrap(), usual);
        assert_eq!(Compression::Max.of_folders(), Compression::Max);
    }

    #[test]
    fn json_is_compressed_as_it_is_written() {
        let value: Vec<String> = (0..20_000).map(|number| format!("number {number}")).collect();
        let text = serde_json::to_vec(&value).unwrap();
        assert!(text.len() > 2 * JSON_PART);
        let mut out = vec![7];
        compress_json(&value, Compression::Auto, &mut out).unwrap();
        let packed = out.strip_prefix(&[7]).unwrap();
        assert!(packed.len() < text.len() / 2);
        assert_eq!(decompress_unknown(packed, LIMIT).unwrap(), text);
    }
}
