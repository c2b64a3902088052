//! Public behavior of `tympan-backup`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod backends;
mod composite;
mod crash;
mod directory;
mod excludes;
mod fill;
mod full_disk;
mod growth;
mod index_table;
mod kill;
mod lock;
mod mount;
mod passing;
mod power;
mod power_disk;
mod prune;
mod remote;
mod repair;
mod repository;
mod rest;
mod restic;
mod restore;
mod sftp;
mod skew;
mod table;
mod taken_over;
mod vault;
mod vault_bench;
mod view;

tympan_testkit::every_test_file_is_listed!();
