//! Public behavior of `tympan-jobs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod asset_draw;
mod asset_folder;
mod asset_hostile;
mod asset_ingest;
mod asset_jobs;
mod asset_quality;
mod asset_support;
mod asset_tools;
mod asset_write_back;
mod asset_write_back_flow;
mod asset_write_back_pdf;
mod config;
mod kill;
mod mount;
mod mount_bucket;
mod mount_many;
mod mount_service;
mod mount_source;
mod place;
mod queue;
mod queue_many;
mod worker;
mod workflow;
mod workflow_cut;
mod workflow_kill;
mod workflow_process;
mod workflow_step;

tympan_testkit::every_test_file_is_listed!();
