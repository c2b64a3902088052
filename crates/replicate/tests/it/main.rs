//! Public behavior of `tympan-replicate`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod remote;
mod standby;
mod version;

tympan_testkit::every_test_file_is_listed!();
