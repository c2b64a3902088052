//! Public behavior of `tympan-lab-tools`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod ab;
mod alone;
mod cacheability;
mod content;
mod fleet;
mod forms;
mod journal;
mod latency;
mod marked_log;
mod page;
mod phase;
mod project;
mod repeats;
mod requests;
mod sources;
mod sweep;
mod tough;
mod verify;
mod visitors;

tympan_testkit::every_test_file_is_listed!();
