//! Public behavior of `tympan-lab-engine`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod authorization;
mod get;
mod http2;
mod idioms;
mod jmeter;
mod jmeter_requests;
mod left_out;
mod marks;
mod markup;
mod names;
mod opening;
mod own_plan;
mod plan;
mod report;
mod sub_rows;
mod trace;
mod walk;

tympan_testkit::every_test_file_is_listed!();
