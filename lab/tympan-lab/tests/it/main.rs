//! Promises of the program `tympan-lab` to those who type its commands.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod agents;
mod phases;
mod plans;
mod program;
mod proof;

tympan_testkit::every_test_file_is_listed!();
