//! Public behavior of `tympan-server`: requests against the router of an instance in this process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod access_matrix;
mod author_headers;
mod backup_start;
mod costly_requests;
mod cross_site;
mod damaged_data;
mod event_streams;
mod form_values;
mod health;
mod health_details;
mod logins;
mod node_round_trip;
mod own_agents;
mod page_headers;
mod publish_matrix;
mod received_parts;
mod references;
mod refused_bytes;
mod refused_readings;
mod replaced_nodes;
mod replication_rights;
mod request_heads;
mod shared_secret;
mod support;
mod uploads;
mod withdrawal_doors;
mod write_conditions;

tympan_testkit::every_test_file_is_listed!();
