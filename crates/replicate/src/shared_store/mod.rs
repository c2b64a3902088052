//! The store of another instance: reading it over HTTP, serving it, and following it as a standby.

pub(crate) mod circuit_breaker;
pub(crate) mod guest_note;
pub(crate) mod remote_store;
pub(crate) mod standby;
pub(crate) mod store_service;
