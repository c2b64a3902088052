//! A number of bytes, as used in options and messages.

use std::fmt;

/// Creates a size from a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Creates a size from a number of bytes.
    #[must_use]
    pub const fn from_bytes(count: u64) -> Self {
        Self(count)
    }

    /// Creates a size from a number of KiB.
    #[must_use]
    pub const fn from_kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// Creates a size from a number of MiB.
    #[must_use]
    pub const fn from_mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            count if count >= 1 << 20 && count.trailing_zeros() >= 20 => {
                write!(f, "{} MiB", count >> 20)
            }
            count if count >= 1 << 10 && count.trailing_zeros() >= 10 => {
                write!(f, "{} KiB", count >> 10)
            }
            count => write!(f, "{count} bytes"),
        }
    }
}
