//! What operators see: metrics, the status page, and the log.

pub mod log;
pub(crate) mod metrics;
pub(crate) mod status;
pub(crate) mod status_page;
