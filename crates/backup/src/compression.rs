//! Compression of vault data: Zstandard, with contexts that each thread reuses.

use std::cell::RefCell;
use std::io::{self, BufWriter, Cursor};

use serde::Serialize;
use zstd::bulk::{Compressor, Decompressor};
use zstd::stream::write::Encoder;

/// The compression level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionMode {
    /// Zstandard's default level.
    #[default]
    Auto,
    /// Pieces of files are not compressed; folders are.
    Off,
    /// The fastest level.
    Fastest,
    /// A slower level with a better ratio.
    Better,
    /// The best ratio that is worth its time.
    Max,
}

impl CompressionMode {
    const fn level(self) -> i32 {
        match self {
            Self::Auto | Self::Off => 3,
            Self::Fastest => 1,
            Self::Better => 7,
            Self::Max => 19,
        }
    }

    /// Returns the mode for folders: the fastest level compresses lists of nodes as well as the default one.
    pub(crate) const fn for_folders(self) -> Self {
        match self {
            Self::Auto | Self::Off | Self::Fastest => Self::Fastest,
            Self::Better | Self::Max => self,
        }
    }
}

thread_local! {
    // Creating a context costs ten times as much as compressing a small piece.
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// JSON encoders write a few bytes at a time; they are buffered to this size before compression.
const JSON_BUFFER_BYTES: usize = 32 << 10;

/// Compresses bytes; `None` on failure.
pub(crate) fn compress(plain: &[u8], compression: CompressionMode) -> Option<Vec<u8>> {
    let mut packed = Vec::new();
    compress_append(plain, compression, &mut packed).map(|_| packed)
}

/// Compresses bytes and appends them to a buffer. Returns the length; on failure returns `None` and leaves the buffer
/// unchanged.
pub(crate) fn compress_append(
    plain: &[u8],
    compression: CompressionMode,
    out: &mut Vec<u8>,
) -> Option<usize> {
    let level = compression.level();
    COMPRESSOR.with_borrow_mut(|compressor_slot| {
        if compressor_slot.is_none() {
            *compressor_slot = Some((level, Compressor::new(level).ok()?));
        }
        let (of, compressor) = compressor_slot.as_mut()?;
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

/// Compresses a value as JSON and appends it to a buffer, without holding its text in memory: that of an index is long.
pub(crate) fn compress_json_append<T: Serialize>(
    value: &T,
    compression: CompressionMode,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let mut parts =
        BufWriter::with_capacity(JSON_BUFFER_BYTES, Encoder::new(out, compression.level())?);
    serde_json::to_writer(&mut parts, value)?;
    let encoder = parts.into_inner().map_err(io::IntoInnerError::into_error)?;
    encoder.finish().map(|_| ())
}

/// Decompresses at most `limit` bytes; `None` if the input is damaged or the output is longer.
pub(crate) fn decompress(packed: &[u8], limit: usize) -> Option<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|decompressor_slot| {
        if decompressor_slot.is_none() {
            *decompressor_slot = Some(Decompressor::new().ok()?);
        }
        decompressor_slot.as_mut()?.decompress(packed, limit).ok()
    })
}

/// Decompresses input of unknown output length, to at most `limit` bytes.
pub(crate) fn decompress_unsized(packed: &[u8], limit: usize) -> Option<Vec<u8>> {
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
        let length = compress_append(&plain, CompressionMode::Auto, &mut out).unwrap();
        let packed = out.strip_prefix(b"before").unwrap();
        assert!(packed.len() == length && length < 100);
        assert_eq!(decompress(packed, LIMIT).unwrap(), plain);
        assert_eq!(compress(&plain, CompressionMode::Auto).unwrap(), packed);
        // Incompressible input becomes longer.
        let noise: Vec<u8> = (0..1000_u32)
            .flat_map(|n| crate::VaultObjectId::of(&n.to_le_bytes()).as_bytes().to_owned())
            .collect();
        let packed = compress(&noise, CompressionMode::Fastest).unwrap();
        assert!(packed.len() > noise.len());
        assert_eq!(decompress(&packed, LIMIT).unwrap(), noise);
    }

    /// A folder as a vault contains it: hashes, and what all its nodes have in common.
    #[test]
    fn folders_are_as_small_by_the_fastest_level() {
        use crate::vault::node::{SnapshotNode, SnapshotNodeKind, SnapshotTree};
        let node = |number: u32| {
            let mut node = SnapshotNode::new(format!("page{number}"), SnapshotNodeKind::Dir, 0o700);
            node.subtree = Some(crate::VaultObjectId::of(&number.to_le_bytes()));
            node
        };
        let folder = SnapshotTree::from_nodes((0..500).map(node)).to_bytes();
        let usual = compress(&folder, CompressionMode::Auto).unwrap();
        let mut fast = Vec::new();
        for compression in [CompressionMode::Auto, CompressionMode::Off, CompressionMode::Fastest] {
            fast.clear();
            compress_append(&folder, compression.for_folders(), &mut fast).unwrap();
            assert_eq!(decompress(&fast, LIMIT).unwrap(), folder);
        }
        assert!(fast.len() <= usual.len(), "{} and {}", fast.len(), usual.len());
        // A level does not persist to the next call.
        assert_eq!(compress(&folder, CompressionMode::Auto).unwrap(), usual);
        assert_eq!(CompressionMode::Max.for_folders(), CompressionMode::Max);
    }

    #[test]
    fn json_is_compressed_as_it_is_written() {
        let value: Vec<String> = (0..20_000).map(|number| format!("number {number}")).collect();
        let text = serde_json::to_vec(&value).unwrap();
        assert!(text.len() > 2 * JSON_BUFFER_BYTES);
        let mut out = vec![7];
        compress_json_append(&value, CompressionMode::Auto, &mut out).unwrap();
        let packed = out.strip_prefix(&[7]).unwrap();
        assert!(packed.len() < text.len() / 2);
        assert_eq!(decompress_unsized(packed, LIMIT).unwrap(), text);
    }
}
