//! Public behavior of `tympan-web`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod cache_path;
mod certificate_validity;
mod certificates;
mod client;
mod disconnect;
mod flush_message;
mod handover;
mod http2;
mod limit;
mod listen;
mod logs;
mod passed_socket;
mod tls;

tympan_testkit::every_test_file_is_listed!();
