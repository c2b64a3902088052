//! Secrets of recordings, logs and plans, which no output may show.

pub mod plan_redaction;
pub mod redaction;
pub(crate) mod secret_mask;
