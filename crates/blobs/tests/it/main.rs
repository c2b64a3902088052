//! Public behavior of `tympan-blobs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod bucket;
mod composite;
mod folder;
mod local;
mod oak;

tympan_testkit::every_test_file_is_listed!();
