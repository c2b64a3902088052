//! Public behavior of `tympan-render`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod backend;
mod binaries;
mod budgets;
mod check;
mod corpus;
mod edits;
mod exact;
mod export;
mod fragments;
mod json;
mod ledger;
mod live;
mod pages;
mod reads;
mod resolution;
mod site;
mod templates;
mod urls;
mod xss;

tympan_testkit::every_test_file_is_listed!();
