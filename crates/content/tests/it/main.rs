//! Public behavior of `tympan-content`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod access;
mod access_accounts;
mod access_commit;
mod branch;
mod changes;
mod conflict;
mod cost;
mod counter;
mod index_check;
mod index_definition;
mod launch;
mod listing;
mod merge_naive;
mod merge_shape;
mod model;
mod moved_apart;
mod order;
mod package_accounts;
mod package_build;
mod package_filevault;
mod package_fixed_point;
mod package_hostile;
mod package_matrix;
mod package_modes;
mod package_naive;
mod package_open;
mod package_real;
mod package_registry;
mod package_session;
mod package_target;
mod package_versions;
mod query;
mod query_cost;
mod query_random;
mod query_spec;
mod query_text;
mod references;
mod references_whole;
mod session;
mod siblings;
mod types_check;
mod types_cnd;
mod types_cost;
mod types_naive;
mod types_packages;
mod types_stored;
mod version;

tympan_testkit::every_test_file_is_listed!();
