//! Public behavior of `tympan-render`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod aem_paths;
mod backend;
mod binaries;
mod budgets;
mod check;
mod compared;
mod corpus;
mod dynamic;
mod edits;
mod exact;
mod fragments;
mod graphql;
mod htl_sites;
mod http_backend;
mod json;
mod ledger;
mod libraries;
mod live;
mod merged;
mod pages;
mod policies;
mod reads;
mod reference;
mod resolution;
mod site;
mod strays;
mod template_functions;
mod templates;
mod text_pictures;
mod urls;
mod use_scripts;
mod wild;
mod words;
mod xss;

tympan_testkit::every_test_file_is_listed!();
