//! Promises of the whole program, and the guards of its structure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod floors;

tympan_testkit::every_test_file_is_listed!();
