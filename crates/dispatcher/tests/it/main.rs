//! Public behavior of `tympan-dispatcher`.
//!
//! Test names begin with the number of the rule in the conformance list (`cf08`, `fl113`, ...), where there is one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod cacheable;
mod config;
mod corpus;
mod front;
mod pattern;

tympan_testkit::every_test_file_is_listed!();
