//! Public behavior of `tympan-server`: requests against the router of an instance in this process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod access_matrix;
mod costly_requests;
mod cross_site;
mod form_values;
mod node_round_trip;
mod publish_matrix;
mod refused_bytes;
mod replication_rights;
mod support;
mod uploads;

tympan_testkit::every_test_file_is_listed!();
