//! Tests of the language, one file per subject.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod conformance;
mod corpus;
mod differential;
mod expression;
mod hostile;
mod property;
mod statement;
mod test_host;
mod use_list;

tympan_testkit::every_test_file_is_listed!();
