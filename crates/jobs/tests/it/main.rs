//! Public behavior of `tympan-jobs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod place;
mod queue;
mod worker;

tympan_testkit::every_test_file_is_listed!();
