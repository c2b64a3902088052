//! Public behavior of `tympan-server`: requests against the router of an instance in this process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod costly_requests;
mod form_values;
mod node_round_trip;
mod page_headers;
mod support;
mod uploads;

tympan_testkit::every_test_file_is_listed!();
