//! The disk quota of a farm's document root.

/// The limits of a document root; farms that share one use the narrowest of their limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskQuota {
    /// The maximum number of bytes of cache files, in whole blocks of 4 KiB (`/x-maxSize`); `None` means no limit.
    pub max_bytes: Option<u64>,
    /// The maximum number of files, side files and folders (`/x-maxFiles`); `None` means no limit.
    pub max_files: Option<u64>,
    /// The number of bytes of the file system that stay free (`/x-minFree`); `None` means
    /// [`DiskQuota::default_min_free`] where another limit is set, and no limit otherwise.
    pub min_free: Option<u64>,
}

impl DiskQuota {
    /// Returns limits that satisfy both quotas.
    #[must_use]
    pub fn narrowest(self, other: Self) -> Self {
        let least =
            |own: Option<u64>, other_limit: Option<u64>| own.into_iter().chain(other_limit).min();
        Self {
            max_bytes: least(self.max_bytes, other.max_bytes),
            max_files: least(self.max_files, other.max_files),
            min_free: self.min_free.into_iter().chain(other.min_free).max(),
        }
    }

    /// Returns the free space in bytes to preserve on a file system of `all` bytes where other limits are set: one
    /// fiftieth, at most 1 GiB.
    #[must_use]
    pub fn default_min_free(all: u64) -> u64 {
        (all / 50).min(1 << 30)
    }
}

#[cfg(test)]
mod tests {
    use super::DiskQuota;

    #[test]
    fn farms_that_share_a_root_keep_the_narrowest_bounds() {
        let left = DiskQuota { max_bytes: Some(5), max_files: None, min_free: Some(1) };
        let right = DiskQuota { max_bytes: Some(3), max_files: Some(7), min_free: Some(2) };
        let both = DiskQuota { max_bytes: Some(3), max_files: Some(7), min_free: Some(2) };
        assert_eq!(left.narrowest(right), both);
        assert_eq!(right.narrowest(left), both);
        assert_eq!(left.narrowest(DiskQuota::default()), left);
    }
}
