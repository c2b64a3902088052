//! Mounts, imports, duplicates and write-back of assets.
//!
//! Only administrators look after mounts and imports: they read what lies beside content. Duplicates are told as far as
//! the asker may read.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::{BlobId, Date, NodePath, Value};
use tympan_jobs::Job;
use tympan_jobs::asset::{ASSET, switch_write_back};
use tympan_jobs::mount::{ImportStatus, ImportWish, LastPass, MountStatus, Mounts};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, text, text_or_null};
use crate::failure::{Failure, Result};

/// The most groups of duplicates of one answer.
const MAX_GROUPS: u64 = 10_000;
const ORIGINAL: &str = "jcr:content/renditions/original/jcr:content";

const NAME: Parameter = Parameter::required("name", Kind::Text, "The mount.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/assets/mounts",
        id: "listMounts",
        about: "Lists the mounts with what their last passes did, and what is wrong with configurations, for administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Mounts", "The mounts, by name.")],
        handler: Handler::Task(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/assets/mounts/run",
        id: "runMount",
        about: "Begins a pass of a mount now, also of one that is paused.",
        parameters: &[
            NAME,
            Parameter::new(
                "acceptRemovals",
                Kind::Flag,
                "Whether files that are gone are believed to be, however many. Default false.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Changed", "It waits or runs.")],
        handler: Handler::Task(run),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/assets/mounts/pause",
        id: "pauseMount",
        about: "Ends the present pass of a mount and begins no other.",
        parameters: &[NAME],
        body: Body::None,
        answers: &[Answer::json("Changed", "It is paused.")],
        handler: Handler::Task(pause),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/assets/mounts/resume",
        id: "resumeMount",
        about: "Lets passes of a mount begin again, the first at once.",
        parameters: &[NAME],
        body: Body::None,
        answers: &[Answer::json("Changed", "It goes on.")],
        handler: Handler::Task(resume),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/assets/imports",
        id: "importAssets",
        about: "Makes assets of the files of a place; asked for again, goes on where it was.",
        parameters: &[
            Parameter::required(
                "source",
                Kind::Text,
                "Where the files are, in a place that the server's configuration allows.",
            ),
            Parameter::required(
                "target",
                Kind::Path,
                "The folder that gets them, below `/content/dam`.",
            ),
            Parameter::new("dryRun", Kind::Flag, "Whether nothing is written. Default false."),
        ],
        body: Body::None,
        answers: &[Answer::json("Import", "It waits or runs.")],
        handler: Handler::Task(import),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/assets/imports",
        id: "readImport",
        about: "Tells how far an import has come, and what it did.",
        parameters: &[Parameter::required(
            "name",
            Kind::Text,
            "The import, as it was named when it began.",
        )],
        body: Body::None,
        answers: &[Answer::json("Import", "The import.")],
        handler: Handler::Task(read_import),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/assets/duplicates",
        id: "listDuplicates",
        about: "Lists assets whose originals have the same bytes, as far as the asker may read.",
        parameters: &[
            Parameter::new("path", Kind::Path, "The folder; all assets without it."),
            Parameter::new(
                "limit",
                Kind::Integer(1, MAX_GROUPS),
                "How many groups at most. Default 1000.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Duplicates", "Groups of equal assets, the largest files first.")],
        handler: Handler::Work(duplicates),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/assets/write-back",
        id: "switchWriteBack",
        about: "Switches on or off that edited metadata is written into the files of assets.",
        parameters: &[Parameter::required("enabled", Kind::Flag, "Whether it is on.")],
        body: Body::None,
        answers: &[Answer::json("Changed", "It is switched.")],
        handler: Handler::Work(write_back),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let skipped = object(&[("path", text()), ("reason", text())]);
    let report = object(&[
        ("ended", text()),
        ("failure", text_or_null()),
        ("dryRun", flag()),
        ("added", count()),
        ("changed", count()),
        ("moved", count()),
        ("removed", count()),
        ("unchanged", count()),
        ("settling", count()),
        ("waiting", count()),
        ("heldBack", count()),
        ("bytes", count()),
        ("skipped", count()),
        ("skippedFiles", array(skipped)),
    ]);
    let job = object(&[
        ("id", count()),
        ("state", text()),
        ("done", count()),
        ("total", count()),
        ("message", text()),
        ("lastError", text_or_null()),
    ]);
    let or_null = |schema: Json| json!({ "anyOf": [schema, { "type": "null" }] });
    let mount = object(&[
        ("name", text()),
        ("source", text()),
        ("target", text()),
        ("path", text_or_null()),
        ("period", count()),
        ("paused", flag()),
        ("nextRun", text_or_null()),
        ("files", count()),
        ("job", or_null(job.clone())),
        ("last", or_null(report.clone())),
    ]);
    let fault = object(&[("path", text()), ("message", text())]);
    let group = object(&[("original", text()), ("bytes", count()), ("paths", array(text()))]);
    named([
        ("Mounts", object(&[("mounts", array(mount)), ("faults", array(fault))])),
        ("Import", object(&[("name", text()), ("job", or_null(job)), ("last", or_null(report))])),
        ("Duplicates", object(&[("groups", array(group)), ("more", flag())])),
    ])
}

impl Instance {
    /// Lets the API look after mounts.
    pub fn synchronize_with(&self, mounts: Mounts) {
        // An instance is told once, when it starts.
        self.mounts.set(mounts).ok();
    }

    fn mounts(&self) -> Result<&Mounts> {
        let missing =
            || Failure::new(StatusCode::NOT_FOUND, "this instance has no mounts; ask the author");
        self.mounts.get().ok_or_else(missing)
    }
}

/// Tells which mounts are not as their places are; nothing where there are none. Anybody may ask, so that no address is told.
pub(crate) async fn checks(instance: &Instance) -> Vec<(&'static str, Option<String>)> {
    let Some(mounts) = instance.mounts.get() else { return Vec::new() };
    let status = match mounts.status().await {
        Ok(status) => status,
        Err(error) => return vec![("mounts", Some(error.to_string()))],
    };
    let left_out = mounts.faults().len();
    if status.is_empty() && left_out == 0 {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if left_out > 0 {
        faults.push(format!("{left_out} mounts are left out; see `tympan assets mount list`"));
    }
    for mount in &status {
        let Some(last) = &mount.last else { continue };
        let name = &mount.config.name;
        if last.failure.is_some() || last.report.held_back > 0 {
            faults.push(format!(
                "the mount `{name}` is not as its place is; see `tympan assets mount status {name}`"
            ));
        }
    }
    vec![("mounts", (!faults.is_empty()).then(|| faults.join("; ")))]
}

/// Writes the counters of mounts as Prometheus text.
pub(crate) fn metrics(instance: &Instance, role: &str) -> String {
    let Some(mounts) = instance.mounts.get() else { return String::new() };
    let counters = mounts.counters();
    let rows = [
        ("passes", &counters.passes, "Passes over mounts that began; none without mounts."),
        (
            "failed_passes",
            &counters.failed,
            "Passes that failed; a rise means a place that cannot be reached.",
        ),
        ("changes", &counters.changes, "Assets that passes added, changed, moved or removed."),
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

fn name_of(call: &Call) -> &str {
    call.text("name").unwrap_or_default()
}

fn list(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("look after mounts")?;
        let mounts = call.instance.mounts()?;
        let status = mounts.status().await?;
        let faults = mounts.faults();
        let faults: Vec<Json> = faults
            .iter()
            .map(|fault| json!({ "path": fault.path, "message": fault.message }))
            .collect();
        let mounts: Vec<Json> = status.iter().map(mount_json).collect();
        Ok(Reply::json(json!({ "mounts": mounts, "faults": faults })))
    })
}

fn mount_json(status: &MountStatus) -> Json {
    let config = &status.config;
    json!({
        "name": config.name,
        "source": config.source,
        "target": config.target.as_str(),
        "path": config.path,
        "period": config.period.map_or(0, |period| period.as_secs()),
        "paused": status.is_paused,
        "nextRun": status.next_run.map(iso),
        "files": status.files,
        "job": status.job.as_ref().map(job_json),
        "last": status.last.as_ref().map(last_json),
    })
}

fn job_json(job: &Job) -> Json {
    let progress = job.progress.clone().unwrap_or_default();
    json!({
        "id": job.id.0,
        "state": job.state.name(),
        "done": progress.done,
        "total": progress.total,
        "message": progress.message,
        "lastError": job.last_error,
    })
}

fn last_json(last: &LastPass) -> Json {
    let report = &last.report;
    let skipped = report.skipped_files.iter();
    let skipped: Vec<Json> =
        skipped.map(|(path, reason)| json!({ "path": path, "reason": reason })).collect();
    json!({
        "ended": iso(last.ended),
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

fn iso(time: SystemTime) -> String {
    Date::from_system_time(time).to_string()
}

fn run(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("look after mounts")?;
        let (mounts, name) = (call.instance.mounts()?, name_of(&call));
        if call.flag("acceptRemovals") && !mounts.accept_removals(name).await? {
            return changed(false, name);
        }
        changed(mounts.run_now(name, call.now).await?, name)
    })
}

fn pause(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("look after mounts")?;
        let is_there = call.instance.mounts()?.pause(name_of(&call)).await?;
        changed(is_there, name_of(&call))
    })
}

fn resume(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("look after mounts")?;
        let is_there = call.instance.mounts()?.resume(name_of(&call), call.now).await?;
        changed(is_there, name_of(&call))
    })
}

fn changed(is_there: bool, name: &str) -> Result<Reply> {
    if is_there {
        return Ok(Reply::json(json!({ "changed": true })));
    }
    let message = format!("there is no mount `{name}`");
    Err(Failure::new(StatusCode::NOT_FOUND, message))
}

fn import(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("import assets")?;
        let mounts = call.instance.mounts()?;
        let wish = ImportWish {
            source: call.text("source").unwrap_or_default().to_owned(),
            target: call.text("target").unwrap_or_default().to_owned(),
            is_dry: call.flag("dryRun"),
            user: call.user().to_owned(),
        };
        let begun = mounts.import(&wish, call.now).await?;
        let refused = |reason| Failure::new(StatusCode::UNPROCESSABLE_ENTITY, reason);
        let (name, _) = begun.map_err(refused)?;
        Ok(Reply::json(import_json(&mounts.import_status(&name).await?)))
    })
}

fn read_import(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("import assets")?;
        let status = call.instance.mounts()?.import_status(name_of(&call)).await?;
        if status.job.is_none() && status.last.is_none() {
            let message = format!("there is no import `{}`", status.name);
            return Err(Failure::new(StatusCode::NOT_FOUND, message));
        }
        Ok(Reply::json(import_json(&status)))
    })
}

fn import_json(status: &ImportStatus) -> Json {
    json!({
        "name": status.name,
        "job": status.job.as_ref().map(job_json),
        "last": status.last.as_ref().map(last_json),
    })
}

fn duplicates(_: &Instance, call: &Call) -> Result<Reply> {
    let (below, snapshot) = (call.path("path")?, call.snapshot()?);
    let mut equal: BTreeMap<BlobId, Vec<NodePath>> = BTreeMap::new();
    // A record that is damaged is somebody else's to report.
    for node in snapshot.document_nodes().filter_map(std::result::Result::ok) {
        let (is_within, path) = (node.path().is_within(&below), node.path());
        if !is_within || node.primary_type() != ASSET || !snapshot.would_see(path, ASSET) {
            continue;
        }
        let resource = node.find(ORIGINAL)?;
        let data = resource.and_then(|resource| resource.property("jcr:data"));
        if let Some(Value::Binary(blob)) = data.as_ref().and_then(|data| data.first()) {
            equal.entry(*blob).or_default().push(path.clone());
        }
    }
    equal.retain(|_, paths| paths.len() > 1);
    let mut groups: Vec<_> = equal.into_iter().collect();
    groups.sort_by_key(|(blob, _)| std::cmp::Reverse(blob.length()));
    let limit = call.number("limit", 1000);
    let has_more = groups.len() > limit;
    groups.truncate(limit);
    let groups: Vec<Json> = groups
        .iter()
        .map(|(blob, paths)| {
            let paths: Vec<&str> = paths.iter().map(NodePath::as_str).collect();
            json!({ "original": blob.to_string(), "bytes": blob.length(), "paths": paths })
        })
        .collect();
    Ok(Reply::json(json!({ "groups": groups, "more": has_more })))
}

fn write_back(_: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("switch write-back")?;
    let mut session = call.session()?;
    switch_write_back(&mut session, call.flag("enabled"))?;
    let has_changes = session.has_changes()?;
    session.commit("switch write-back of metadata", call.now)?;
    Ok(Reply::json(json!({ "changed": has_changes })))
}
