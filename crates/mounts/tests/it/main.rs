//! Public behavior of `tympan-mounts`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod bucket;
mod many;
mod pass;
mod service;
mod source;

tympan_testkit::every_test_file_is_listed!();
