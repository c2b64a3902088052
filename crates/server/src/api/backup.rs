//! Backup runs of the instance: their log, and starting one now.
//!
//! Not here: the backup itself. The program that runs the instance supplies the contents of the log and the name of the
//! backup schedule.

use std::io;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::JcrDate;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{
    array_schema, count_schema, object_schema, reference_schema, schemas_by_name,
    text_or_null_schema, text_schema,
};
use crate::backup_log::BackupRun;
use crate::failure::{RequestFailure, Result};

/// Maximum number of runs in a response.
const MAX_LISTED_RUNS: u64 = 10_000;
/// Number of runs listed by default.
const DEFAULT_LISTED_RUNS: usize = 100;
/// The possible results of a run.
const RUN_KINDS: &[&str] = &["full", "incremental", "unchanged", "copy", "failed"];

/// The API endpoints that this module defines.
pub(crate) const BACKUP_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/backup/runs",
        id: "listBackupRuns",
        description: "Lists the scheduled backups of this instance, the newest first. For administrators.",
        parameters: &[
            EndpointParameter::new(
                "kind",
                ParameterKind::Keyword(RUN_KINDS),
                "Only runs of this kind.",
            ),
            EndpointParameter::new(
                "since",
                ParameterKind::Time,
                "Only runs that began at this time or later.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_LISTED_RUNS),
                "Maximum number of runs. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("BackupRuns", "The runs, and whether there are more.")],
        handler: EndpointHandler::Blocking(list_backup_runs),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/backup/runs",
        id: "startBackup",
        description: "Starts a backup of this instance now, as its schedule does, unless one is already \
            queued or running. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json(
            "BackupStarted",
            "The job, which `/api/v1/jobs` lists until it is finished; after that, its run is in the log.",
        )],
        handler: EndpointHandler::Async(start_backup),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn backup_schemas() -> Map<String, Json> {
    let run = object_schema(&[
        ("start", text_schema()),
        ("end", text_schema()),
        ("kind", json!({ "type": "string", "enum": RUN_KINDS })),
        ("paths", array_schema(text_schema())),
        ("snapshot", text_or_null_schema()),
        ("items", count_schema()),
        ("readItems", count_schema()),
        ("bytes", count_schema()),
        ("addedBytes", count_schema()),
        ("storedBytes", count_schema()),
        ("faults", count_schema()),
        ("error", text_or_null_schema()),
    ]);
    schemas_by_name([
        (
            "BackupRuns",
            object_schema(&[
                ("runs", array_schema(reference_schema("BackupRun"))),
                ("more", json!({ "type": "boolean" })),
            ]),
        ),
        ("BackupRun", run),
        ("BackupStarted", object_schema(&[("job", count_schema())])),
    ])
}

impl Instance {
    /// Lets the API list the backup runs that `source` returns, oldest first.
    pub fn set_backup_run_source(
        &self,
        source: impl Fn() -> io::Result<Vec<BackupRun>> + Send + Sync + 'static,
    ) {
        // Set once, when the instance starts; later calls are ignored.
        self.backup_log.set_source(Box::new(source));
    }

    /// Lets the API start the job of the schedule that saves the instance.
    pub fn set_backup_schedule(&self, schedule: &'static str) {
        // Set once, when the instance starts; later calls are ignored.
        self.backup_log.set_schedule(schedule);
    }
}

fn start_backup(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("start a backup")?;
        let missing = || {
            let message = "this instance has no scheduled backup: set a vault in the section `[backup]` of \
                its tympan.toml";
            RequestFailure::new(StatusCode::NOT_FOUND, message)
        };
        let schedule = call.instance.backup_log.schedule().ok_or_else(missing)?;
        let queues = &call.instance.queues;
        let job = queues.schedules().run_now(schedule, call.user_name(), call.now).await?;
        Ok(ApiResponse::json(json!({ "job": job.ok_or_else(missing)?.0 })))
    })
}

fn list_backup_runs(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("list backups")?;
    let missing = || {
        RequestFailure::new(
            StatusCode::NOT_FOUND,
            "this instance makes no backups; use the author instance",
        )
    };
    let mut runs = instance.backup_log.runs().ok_or_else(missing)??;
    if let Some(since) = call.parameter("since") {
        let since = JcrDate::parse(since)?.to_system_time();
        runs.retain(|run| run.start >= since);
    }
    if let Some(kind) = call.parameter("kind") {
        runs.retain(|run| run.kind == kind);
    }
    let limit = call.number_parameter("limit", DEFAULT_LISTED_RUNS);
    let newest: Vec<Json> = runs.iter().rev().take(limit).map(BackupRun::to_json).collect();
    Ok(ApiResponse::json(json!({ "runs": newest, "more": runs.len() > limit })))
}
