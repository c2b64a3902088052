//! Public behavior of `tympan-assets`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod draw;
mod folder;
mod hostile;
mod ingest;
mod jobs;
#[path = "../../../jobs/tests/it/place.rs"]
mod place;
mod quality;
mod test_pictures;
mod tools;
mod write_back;
mod write_back_flow;
mod write_back_pdf;

tympan_testkit::every_test_file_is_listed!();
