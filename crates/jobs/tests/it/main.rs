//! Public behavior of `tympan-jobs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod config;
mod kill;
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
