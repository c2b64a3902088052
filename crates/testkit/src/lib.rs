//! Shared test utilities of all crates.
//!
//! Imported as a dev-dependency only, and only from `tests/it`: a unit test inside `store` or `blobs` would link a
//! second copy of its own crate here.

pub mod bucket_server;
pub mod client_crowd;
pub mod composite_conformance;
pub mod condition_wait;
pub mod crash_disk;
pub mod cutting_proxy;
pub mod delay_proxy;
pub mod external_tool;
pub mod fixture_folder;
pub mod jmeter_plan;
pub mod legacy_system;
pub mod manual;
pub mod memory_file_tree;
pub mod origin_server;
pub mod postgres_server;
pub mod rest_server;
pub mod ssh_server;
pub mod store_folder;
pub mod test_file_list;
pub mod tls_proxy;
pub mod watched_store;

/// The stores below content, for tests of crates that do not stand on them.
pub use tympan_blobs as blobs;
pub use tympan_store as store;
pub use tympan_store::StateDatabase;
