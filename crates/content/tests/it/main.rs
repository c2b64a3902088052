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
mod launch;
mod listing;
mod merge_naive;
mod merge_shape;
mod model;
mod moved_apart;
mod order;
mod references;
mod session;
mod siblings;
mod types_check;
mod types_cnd;
mod types_cost;
mod types_naive;
mod types_stored;
mod version;

tympan_testkit::every_test_file_is_listed!();
