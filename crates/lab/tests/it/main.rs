//! Public behavior of `tympan-lab`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod ab;
mod alone;
mod authorization;
mod cacheability;
mod content;
mod fleet;
mod forms;
mod get;
mod http2;
mod idioms;
mod jmeter;
mod jmeter_requests;
mod journal;
mod latency;
mod left_out;
mod marks;
mod markup;
mod names;
mod opening;
mod own_plan;
mod page;
mod phase;
mod plan;
mod project;
mod repeats;
mod report;
mod requests;
mod sources;
mod sub_rows;
mod sweep;
mod tough;
mod trace;
mod verify;
mod visitors;
mod walk;

tympan_testkit::every_test_file_is_listed!();
