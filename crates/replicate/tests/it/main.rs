//! Public behavior of `tympan-replicate`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod agent;
mod composition;
mod listing;
mod overtaken;
mod purge;
mod remote;
mod standby;
mod times;
mod tree;
mod version;
mod withdraw;

tympan_testkit::every_test_file_is_listed!();
