//! Public behavior of `tympan-server`: requests against the router of an instance in this process.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod access_matrix;
mod accounts;
mod activation_versions;
mod aem_addresses;
mod aem_dialogs;
mod aem_sites;
mod author_headers;
mod backup_start;
mod blocking_instance;
mod branches;
mod change_streams;
mod combined_reads;
mod concurrent_saves;
mod conditions;
mod container_policies;
mod content_fragments;
mod costly_requests;
mod credentials;
mod cross_site;
mod damaged_data;
mod editing_pages;
mod ended_accounts;
mod event_streams;
mod form_values;
mod health;
mod health_details;
mod hidden_nodes;
mod hostile_requests;
mod jobs_and_workflows;
mod late_withdrawals;
mod logins;
mod members;
mod merged_dialogs;
mod node_round_trip;
mod node_types;
mod operations;
mod own_agents;
mod package_manager;
mod package_rights;
mod page_creation;
mod page_headers;
mod page_listings;
mod permissions;
mod protected_properties;
mod publish_matrix;
mod queries;
mod received_parts;
mod references;
mod refused_bytes;
mod refused_readings;
mod replaced_nodes;
mod replication_rights;
mod repoinit;
mod request_heads;
mod shared_secret;
mod sling_post;
mod support;
mod two_instances;
mod uploads;
mod versions;
mod withdrawal_doors;
mod write_conditions;

tympan_testkit::every_test_file_is_listed!();
