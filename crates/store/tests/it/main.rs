//! Public behavior of `tympan-store`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says aloud what it counted"
)]

mod bodies;
mod check;
mod collect;
mod commits;
mod committer;
mod composite;
mod conformance;
mod crash;
mod decode;
mod faults;
mod follow;
mod kill;
mod map_model;
mod postgres;
mod races;
mod reference;
mod repair;
mod sample;
mod site;
mod soak;
mod state;
mod sync;
mod tree;
mod tree_ahead;
mod tree_hostile;
mod tree_merge;
mod tree_position;
mod tree_range_edit;
mod tree_shape;

tympan_testkit::every_test_file_is_listed!();
