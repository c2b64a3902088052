//! The options of a local store.

use super::record::RecordCompression;
use tympan_notation::ByteSize;

/// The options of a local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalStoreOptions {
    /// Memory for chunks that were read or written recently.
    ///
    /// A larger cache means fewer reads from the disk. Default 64 MiB; useful from 8 MiB up to the size of the tree.
    pub cache_size: ByteSize,
    /// The length at which a pack ends. Default and maximum 256 MiB; smaller values are for tests.
    pub pack_limit: ByteSize,
    /// The compression of records. Default lz4, which halves the bytes written and read.
    pub compression: RecordCompression,
}

impl LocalStoreOptions {
    pub(super) const MAX_PACK_SIZE: ByteSize = ByteSize::from_mib(256);
}

impl Default for LocalStoreOptions {
    fn default() -> Self {
        Self {
            cache_size: ByteSize::from_mib(64),
            pack_limit: Self::MAX_PACK_SIZE,
            compression: RecordCompression::default(),
        }
    }
}
