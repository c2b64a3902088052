//! Public behavior of `tympan-render-export`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod bounds;
mod export;
#[expect(dead_code, reason = "the tests of `render` use all of it")]
#[path = "../../../render/tests/it/site.rs"]
mod site;

tympan_testkit::every_test_file_is_listed!();
