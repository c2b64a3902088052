//! Public behavior of `tympan-content-query`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod index_definition;
mod query;
mod query_cost;
mod query_random;
mod query_spec;
mod query_text;
mod restricted_rows;
mod test_session;

tympan_testkit::every_test_file_is_listed!();
