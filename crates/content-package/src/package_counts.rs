//! The counts collected while a package is read, and the limit of its reported faults.

/// Maximum number of faults of a package that are reported together.
pub(crate) const MAX_REPORTED_FAULTS: usize = 100;

/// The counts collected while a package was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PackageCounts {
    /// All elements, including those that only fix the order.
    pub(crate) elements_with_order: usize,
    pub(crate) elements: usize,
    pub(crate) attributes: usize,
    pub(crate) pages: usize,
    pub(crate) assets: usize,
    pub(crate) files: usize,
}
