//! Public behavior of `tympan-search`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says aloud what it counted"
)]

mod blobs;
mod edits;
mod follow;
mod hits;
mod hostile;
mod indexed_site;
mod kill;
mod pdf;
mod queries;

tympan_testkit::every_test_file_is_listed!();
