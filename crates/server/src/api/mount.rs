//! Mounts, imports, duplicates and write-back of assets.
//!
//! Only administrators manage mounts and imports, because these read data outside the content. Duplicates are listed as
//! far as the requesting user may read them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_assets::{ASSET_NODE_TYPE, set_write_back_enabled};
use tympan_content::{BlobId, NodePath, Value};
use tympan_jobs::Job;
use tympan_mounts::{ImportRequest, ImportStatus, LastMountPass, MountService, MountStatus};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::query::budget::ReadBudget;

/// Maximum number of groups of duplicates in a response.
const MAX_DUPLICATE_GROUPS: u64 = 10_000;
const ORIGINAL_PATH: &str = "jcr:content/renditions/original/jcr:content";

const NAME_PARAMETER: EndpointParameter =
    EndpointParameter::required("name", ParameterKind::Text, "The mount.");

/// The API endpoints that this module defines.
pub(crate) const MOUNT_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/assets/mounts",
        id: "listMounts",
        description: "Lists the mounts with the results of their last passes, and the errors in their \
            configurations. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Mounts", "The mounts, by name.")],
        handler: EndpointHandler::Async(list_mounts),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/assets/mounts/run",
        id: "runMount",
        description: "Starts a pass of a mount now, even if the mount is paused.",
        parameters: &[
            NAME_PARAMETER,
            EndpointParameter::new(
                "acceptRemovals",
                ParameterKind::Flag,
                "Whether missing files are treated as removed, however many there are. Default false.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "The pass is queued or running.")],
        handler: EndpointHandler::Async(run_mount),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/assets/mounts/pause",
        id: "pauseMount",
        description: "Stops the current pass of a mount and starts no others.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "The mount is paused.")],
        handler: EndpointHandler::Async(pause_mount),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/assets/mounts/resume",
        id: "resumeMount",
        description: "Resumes the passes of a mount; the first one starts at once.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "The mount is resumed.")],
        handler: EndpointHandler::Async(resume_mount),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/assets/imports",
        id: "importAssets",
        description: "Imports the files of a location as assets; a repeated request continues an import that \
            was interrupted.",
        parameters: &[
            EndpointParameter::required(
                "source",
                ParameterKind::Text,
                "The location of the files, within those that the server's configuration allows.",
            ),
            EndpointParameter::required(
                "target",
                ParameterKind::Path,
                "The target folder, below `/content/dam`.",
            ),
            EndpointParameter::new(
                "dryRun",
                ParameterKind::Flag,
                "Whether the import is only simulated and nothing is written. Default false.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Import", "The import is queued or running.")],
        handler: EndpointHandler::Async(start_import),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/assets/imports",
        id: "readImport",
        description: "Returns the progress and the results of an import.",
        parameters: &[EndpointParameter::required(
            "name",
            ParameterKind::Text,
            "The name of the import, as returned when it was started.",
        )],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Import", "The import.")],
        handler: EndpointHandler::Async(read_import_status),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/assets/duplicates",
        id: "listDuplicates",
        description: "Lists assets whose originals have the same bytes, limited to those that the caller may \
            read.",
        parameters: &[
            EndpointParameter::new("path", ParameterKind::Path, "The folder. Default: all assets."),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_DUPLICATE_GROUPS),
                "Maximum number of groups. Default 1000.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json(
            "Duplicates",
            "Groups of identical assets, the largest files first.",
        )],
        handler: EndpointHandler::Blocking(list_duplicates),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/assets/write-back",
        id: "switchWriteBack",
        description: "Enables or disables writing edited metadata into the files of assets.",
        parameters: &[EndpointParameter::required(
            "enabled",
            ParameterKind::Flag,
            "Whether it is enabled.",
        )],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Changed", "The setting was applied.")],
        handler: EndpointHandler::Blocking(write_back_assets),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn mount_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let skipped = object_schema(&[("path", text_schema()), ("reason", text_schema())]);
    let report = object_schema(&[
        ("ended", text_schema()),
        ("failure", text_or_null_schema()),
        ("dryRun", flag()),
        ("added", count_schema()),
        ("changed", count_schema()),
        ("moved", count_schema()),
        ("removed", count_schema()),
        ("unchanged", count_schema()),
        ("settling", count_schema()),
        ("waiting", count_schema()),
        ("heldBack", count_schema()),
        ("bytes", count_schema()),
        ("skipped", count_schema()),
        ("skippedFiles", array_schema(skipped)),
    ]);
    let job = object_schema(&[
        ("id", count_schema()),
        ("state", text_schema()),
        ("done", count_schema()),
        ("total", count_schema()),
        ("message", text_schema()),
        ("lastError", text_or_null_schema()),
    ]);
    let or_null = |schema: Json| json!({ "anyOf": [schema, { "type": "null" }] });
    let mount = object_schema(&[
        ("name", text_schema()),
        ("source", text_schema()),
        ("target", text_schema()),
        ("path", text_or_null_schema()),
        ("period", count_schema()),
        ("paused", flag()),
        ("nextRun", text_or_null_schema()),
        ("files", count_schema()),
        ("job", or_null(job.clone())),
        ("last", or_null(report.clone())),
    ]);
    let fault = object_schema(&[("path", text_schema()), ("message", text_schema())]);
    let group = object_schema(&[
        ("original", text_schema()),
        ("bytes", count_schema()),
        ("paths", array_schema(text_schema())),
    ]);
    schemas_by_name([
        (
            "Mounts",
            object_schema(&[("mounts", array_schema(mount)), ("faults", array_schema(fault))]),
        ),
        (
            "Import",
            object_schema(&[
                ("name", text_schema()),
                ("job", or_null(job)),
                ("last", or_null(report)),
            ]),
        ),
        ("Duplicates", object_schema(&[("groups", array_schema(group)), ("more", flag())])),
    ])
}

impl Instance {
    /// Lets the API manage mounts.
    pub fn set_mounts(&self, mounts: MountService) {
        // Set once, when the instance starts; later calls are ignored.
        self.mounts.set(mounts).ok();
    }

    fn mounts(&self) -> Result<&MountService> {
        let missing = || {
            RequestFailure::new(
                StatusCode::NOT_FOUND,
                "this instance has no mounts; use the author instance",
            )
        };
        self.mounts.get().ok_or_else(missing)
    }
}

/// Returns the health check of the mounts, with a fault that names the mounts that differ from their sources; empty if
/// there are no mounts. The result is public, so it contains no addresses.
pub(crate) async fn mount_checks(instance: &Instance) -> Vec<(&'static str, Option<String>)> {
    let Some(mounts) = instance.mounts.get() else { return Vec::new() };
    let status = match mounts.list_statuses().await {
        Ok(status) => status,
        Err(error) => return vec![("mounts", Some(error.to_string()))],
    };
    let left_out = mounts.faults().len();
    if status.is_empty() && left_out == 0 {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if left_out > 0 {
        faults.push(format!(
            "{left_out} mounts are ignored because of errors; see `tympan assets mount list`"
        ));
    }
    for mount in &status {
        let Some(last) = &mount.last_pass else { continue };
        let name = &mount.config.name;
        if last.failure.is_some() || last.report.held_back > 0 {
            faults.push(format!(
                "the mount `{name}` differs from its source; see `tympan assets mount status {name}`"
            ));
        }
    }
    vec![("mounts", (!faults.is_empty()).then(|| faults.join("; ")))]
}

/// Returns the metrics of mounts as Prometheus text.
pub(crate) fn mount_metrics(instance: &Instance, role: &str) -> String {
    let Some(mounts) = instance.mounts.get() else { return String::new() };
    let counters = mounts.counters();
    let rows = [
        ("passes", &counters.passes, "Passes of mounts that were started; none without mounts."),
        (
            "failed_passes",
            &counters.failed_passes,
            "Failed passes; a rise means that a source cannot be reached.",
        ),
        (
            "changes",
            &counters.changes,
            "Assets that were added, changed, moved or removed by passes.",
        ),
    ];
    rows.iter()
        .map(|(name, counter, about)| {
            let (name, value) =
                (format!("tympan_mounts_{name}_total"), counter.load(Ordering::Relaxed));
            format!(
                "# HELP {name} {about}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
            )
        })
        .collect()
}

fn mount_name_of(call: &ApiRequest) -> &str {
    call.parameter("name").unwrap_or_default()
}

fn list_mounts(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("manage mounts")?;
        let mounts = call.instance.mounts()?;
        let status = mounts.list_statuses().await?;
        let faults = mounts.faults();
        let faults: Vec<Json> = faults
            .iter()
            .map(|fault| json!({ "path": fault.path, "message": fault.message }))
            .collect();
        let mounts: Vec<Json> = status.iter().map(mount_json).collect();
        Ok(ApiResponse::json(json!({ "mounts": mounts, "faults": faults })))
    })
}

fn mount_json(status: &MountStatus) -> Json {
    let config = &status.config;
    json!({
        "name": config.name,
        "source": config.source,
        "target": config.target.as_str(),
        "path": config.path,
        "period": config.sync_period.map_or(0, |period| period.as_secs()),
        "paused": status.is_paused,
        "nextRun": status.next_run.map(to_iso_time),
        "files": status.file_count,
        "job": status.job.as_ref().map(job_json),
        "last": status.last_pass.as_ref().map(last_pass_json),
    })
}

fn job_json(job: &Job) -> Json {
    let progress = job.progress.clone().unwrap_or_default();
    json!({
        "id": job.id.0,
        "state": job.state.name(),
        "done": progress.completed,
        "total": progress.total,
        "message": progress.message,
        "lastError": job.last_error,
    })
}

fn last_pass_json(last: &LastMountPass) -> Json {
    let report = &last.report;
    let skipped = report.skipped_files.iter();
    let skipped: Vec<Json> =
        skipped.map(|(path, reason)| json!({ "path": path, "reason": reason })).collect();
    json!({
        "ended": to_iso_time(last.ended_at),
        "failure": last.failure,
        "dryRun": report.is_dry,
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "removed": report.removed,
        "unchanged": report.unchanged,
        "settling": report.settling,
        "waiting": report.waiting,
        "heldBack": report.held_back,
        "bytes": report.bytes,
        "skipped": report.skipped,
        "skippedFiles": skipped,
    })
}

fn run_mount(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("manage mounts")?;
        let (mounts, name) = (call.instance.mounts()?, mount_name_of(&call));
        if call.flag_parameter("acceptRemovals") && !mounts.accept_removals(name).await? {
            return mount_change_response(false, name);
        }
        mount_change_response(mounts.start_pass_now(name, call.now).await?, name)
    })
}

fn pause_mount(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("manage mounts")?;
        let is_there = call.instance.mounts()?.pause_mount(mount_name_of(&call)).await?;
        mount_change_response(is_there, mount_name_of(&call))
    })
}

fn resume_mount(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("manage mounts")?;
        let is_there = call.instance.mounts()?.resume_mount(mount_name_of(&call), call.now).await?;
        mount_change_response(is_there, mount_name_of(&call))
    })
}

fn mount_change_response(is_there: bool, name: &str) -> Result<ApiResponse> {
    if is_there {
        return Ok(ApiResponse::json(json!({ "changed": true })));
    }
    let message = format!("there is no mount `{name}`");
    Err(RequestFailure::new(StatusCode::NOT_FOUND, message))
}

fn start_import(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("import assets")?;
        let mounts = call.instance.mounts()?;
        let import_request = ImportRequest {
            source: call.parameter("source").unwrap_or_default().to_owned(),
            target: call.parameter("target").unwrap_or_default().to_owned(),
            is_dry_run: call.flag_parameter("dryRun"),
            user: call.user_name().to_owned(),
        };
        let import = mounts.start_import(&import_request, call.now).await?;
        let refused = |reason| RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, reason);
        let (name, _) = import.map_err(refused)?;
        Ok(ApiResponse::json(import_json(&mounts.import_status(&name).await?)))
    })
}

fn read_import_status(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator("import assets")?;
        let status = call.instance.mounts()?.import_status(mount_name_of(&call)).await?;
        if status.job.is_none() && status.last_pass.is_none() {
            let message = format!("there is no import `{}`", status.name);
            return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
        }
        Ok(ApiResponse::json(import_json(&status)))
    })
}

fn import_json(status: &ImportStatus) -> Json {
    json!({
        "name": status.name,
        "job": status.job.as_ref().map(job_json),
        "last": status.last_pass.as_ref().map(last_pass_json),
    })
}

fn list_duplicates(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (below, snapshot) = (call.path_parameter("path")?, call.pin_snapshot()?);
    let mut budget = ReadBudget::for_reading(instance.query_engine_for(&call.viewer)?.limits());
    let mut equal: BTreeMap<BlobId, Vec<NodePath>> = BTreeMap::new();
    // Damaged records are reported elsewhere.
    for node in snapshot.document_nodes().filter_map(std::result::Result::ok) {
        budget.count_node()?;
        let (is_within, path) = (node.path().is_within(&below), node.path());
        if !is_within
            || node.primary_type() != ASSET_NODE_TYPE
            || !snapshot.can_see(path, ASSET_NODE_TYPE)
        {
            continue;
        }
        let resource = node.find_descendant(ORIGINAL_PATH)?;
        let data = resource.and_then(|resource| resource.property("jcr:data"));
        if let Some(Value::Binary(blob)) = data.as_ref().and_then(|data| data.first()) {
            equal.entry(*blob).or_default().push(path.clone());
        }
    }
    equal.retain(|_, paths| paths.len() > 1);
    let mut groups: Vec<_> = equal.into_iter().collect();
    groups.sort_by_key(|(blob, _)| std::cmp::Reverse(blob.length()));
    let limit = call.number_parameter("limit", 1000);
    let has_more = groups.len() > limit;
    groups.truncate(limit);
    let groups: Vec<Json> = groups
        .iter()
        .map(|(blob, paths)| {
            let paths: Vec<&str> = paths.iter().map(NodePath::as_str).collect();
            json!({ "original": blob.to_string(), "bytes": blob.length(), "paths": paths })
        })
        .collect();
    Ok(ApiResponse::json(json!({ "groups": groups, "more": has_more })))
}

fn write_back_assets(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("enable or disable write-back")?;
    let mut session = call.begin_session()?;
    set_write_back_enabled(&mut session, call.flag_parameter("enabled"))?;
    let has_changes = session.has_changes()?;
    session.commit("set write-back of metadata", call.now)?;
    Ok(ApiResponse::json(json!({ "changed": has_changes })))
}
