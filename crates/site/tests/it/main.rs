//! Public behavior of `tympan-site`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod aem_project;
mod site;

tympan_testkit::every_test_file_is_listed!();
