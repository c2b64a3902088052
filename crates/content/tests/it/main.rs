//! Public behavior of `tympan-content`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod model;
mod session;

tympan_testkit::every_test_file_is_listed!();
