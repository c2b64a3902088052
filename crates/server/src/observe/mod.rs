//! What operators see: health, metrics, pools, timings, and recorded requests.

pub(crate) mod connection_metrics;
pub(crate) mod external_health;
pub(crate) mod external_metrics;
pub(crate) mod health;
pub(crate) mod manager_status;
pub(crate) mod metrics;
pub(crate) mod pool;
pub(crate) mod pool_report;
pub(crate) mod process_metrics;
pub(crate) mod readiness;
pub(crate) mod readiness_probe;
pub(crate) mod request_history;
pub(crate) mod request_recorder;
pub(crate) mod request_totals;
pub(crate) mod search_health;
pub(crate) mod timing;
