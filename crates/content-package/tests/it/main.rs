//! Public behavior of `tympan-content-package`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod package_accounts;
mod package_build;
mod package_filevault;
mod package_fixed_point;
mod package_hostile;
mod package_matrix;
mod package_modes;
mod package_naive;
mod package_open;
mod package_real;
mod package_registry;
mod package_session;
mod package_target;
mod package_versions;
mod references_whole;
mod repoinit;
mod types_packages;

tympan_testkit::every_test_file_is_listed!();
