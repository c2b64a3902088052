//! What the tests of all rooms share.
//!
//! Imported as a dev-dependency only, and only from `tests/it`: a unit test inside `store` or `blobs` would meet a
//! second copy of its own crate here.

pub mod bucket_server;
pub mod composition;
pub mod crowd;
pub mod cut_link;
pub mod disk;
pub mod far;
pub mod folder;
pub mod legacy;
pub mod listed;
pub mod manual;
pub mod origin;
pub mod postgres;
pub mod rest_server;
pub mod secure;
pub mod shelf;
pub mod sshd;
pub mod store;
pub mod tool;

pub use tympan_store::State;
