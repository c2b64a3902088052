//! What administrators see and do while an instance runs: one endpoint for each view of the interface's section
//! "Operations", so that a view needs one request.
//!
//! Invariants
//! * Everything here is for administrators: it names addresses, users and settings.
//! * No response holds a secret: values of settings and headers that may be one are replaced by `***`.
//! * Every list is bounded.
//!
//! Not here: the commands on jobs (`job`) and agents (`agent`), which these views offer.

mod backup;
mod caches;
mod configuration;
mod health;
mod jobs;
mod logs;
mod maintenance;
mod performance;
mod replication;
mod workflows;

use serde_json::{Map, Value as Json};

use crate::api::endpoint::Endpoint;

/// The endpoint tables of all views.
pub(crate) const OPERATIONS_TABLES: [&[Endpoint]; 10] = [
    jobs::JOBS_VIEW_ENDPOINTS,
    replication::REPLICATION_VIEW_ENDPOINTS,
    workflows::WORKFLOWS_VIEW_ENDPOINTS,
    health::HEALTH_VIEW_ENDPOINTS,
    configuration::CONFIGURATION_VIEW_ENDPOINTS,
    caches::CACHES_VIEW_ENDPOINTS,
    performance::PERFORMANCE_VIEW_ENDPOINTS,
    backup::BACKUP_VIEW_ENDPOINTS,
    logs::LOGS_VIEW_ENDPOINTS,
    maintenance::MAINTENANCE_VIEW_ENDPOINTS,
];

/// Returns the JSON schemas of all views.
pub(crate) fn operations_schemas() -> Map<String, Json> {
    let mut all = jobs::jobs_view_schemas();
    all.extend(replication::replication_view_schemas());
    all.extend(workflows::workflows_view_schemas());
    all.extend(health::health_view_schemas());
    all.extend(configuration::configuration_view_schemas());
    all.extend(caches::caches_view_schemas());
    all.extend(performance::performance_view_schemas());
    all.extend(backup::backup_view_schemas());
    all.extend(logs::logs_view_schemas());
    all.extend(maintenance::maintenance_view_schemas());
    all
}
