//! Public behavior of `tympan-home`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod blobs;
mod clone;
mod content_home;
mod diagnosis;
mod opening;

tympan_testkit::every_test_file_is_listed!();
