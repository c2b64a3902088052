//! Compression of what goes into a vault: Zstandard, with contexts that each thread keeps.

use std::cell::RefCell;

use zstd::bulk::{Compressor, Decompressor};

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
}

thread_local! {
    // A new context costs ten times what compressing a small piece does.
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses bytes; nothing if that fails.
pub(crate) fn compress(plain: &[u8], compression: Compression) -> Option<Vec<u8>> {
    let level = compression.level();
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|(of, _)| *of != level) {
            *kept = Some((level, Compressor::new(level).ok()?));
        }
        let (_, compressor) = kept.as_mut()?;
        compressor.compress(plain).ok()
    })
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
