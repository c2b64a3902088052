//! Tests of scripts, one file per subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod hostile;
mod test_host;
mod use_api;

tympan_testkit::every_test_file_is_listed!();
