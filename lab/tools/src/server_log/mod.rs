//! Logs and counters of the tested server.

pub mod log_watch;
pub mod request_log;
pub(crate) mod server_counters;
