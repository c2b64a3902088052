//! The counts collected while a package is read, and the limit of its reported faults.

/// Maximum number of faults of a package that are reported together.
pub(super) const MAX_REPORTED_FAULTS: usize = 100;

/// The counts collected while a package was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PackageCounts {
    /// All elements, including those that only fix the order.
    pub(super) elements_with_order: usize,
    pub(super) elements: usize,
    pub(super) attributes: usize,
    pub(super) pages: usize,
    pub(super) assets: usize,
    pub(super) files: usize,
}
