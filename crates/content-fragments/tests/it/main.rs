//! Public behavior of `tympan-content-fragments`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod models;

tympan_testkit::every_test_file_is_listed!();
