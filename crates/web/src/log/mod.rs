//! Logs and histograms of requests: their formats, and the files that they are written to.

pub mod access_log;
pub(crate) mod log_escape;
pub mod log_file;
pub mod log_time;
pub mod request_histogram;
pub mod request_log;
pub mod sample_mark;
pub mod secret_parameter;
