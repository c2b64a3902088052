//! Public behavior of `tympan-blobs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking"
)]

mod bucket;
mod collect;
mod composite;
mod folder;
mod interleaved;
mod local;
mod oak;

tympan_testkit::every_test_file_is_listed!();
