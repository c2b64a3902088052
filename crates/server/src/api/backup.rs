//! The saves that an instance makes of itself: their log, and starting one now.
//!
//! Not here: saving; the program that runs the instance tells what its log holds, and under which schedule it saves.

use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::Date;

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, text, text_or_null};
use crate::failure::{Failure, Result};

/// The most runs of one answer.
const MAX_RUNS: u64 = 10_000;
/// How many there are unless somebody asks for more.
const USUAL_RUNS: usize = 100;
/// What a run may have done.
const KINDS: &[&str] = &["full", "incremental", "unchanged", "copy", "failed"];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/backup/runs",
        id: "listBackupRuns",
        about: "Lists the saves that this instance made by schedule, the newest first, for administrators.",
        parameters: &[
            Parameter::new("kind", Kind::Words(KINDS), "Only runs of this kind."),
            Parameter::new("since", Kind::Time, "Only runs that began then or later."),
            Parameter::new("limit", Kind::Integer(1, MAX_RUNS), "How many at most. Default 100."),
        ],
        body: Body::None,
        answers: &[Answer::json("BackupRuns", "The runs, and whether there are more.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/backup/runs",
        id: "startBackup",
        about: "Saves this instance now as its schedule does, unless a save waits or runs already; for administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json(
            "BackupStarted",
            "The job, which `/api/v1/jobs` lists until it is done; then its run is in the log.",
        )],
        handler: Handler::Task(start),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let run = object(&[
        ("start", text()),
        ("end", text()),
        ("kind", json!({ "type": "string", "enum": KINDS })),
        ("paths", array(text())),
        ("snapshot", text_or_null()),
        ("items", count()),
        ("readItems", count()),
        ("bytes", count()),
        ("addedBytes", count()),
        ("storedBytes", count()),
        ("faults", count()),
        ("error", text_or_null()),
    ]);
    named([
        ("BackupRuns", object(&[("runs", array(run)), ("more", json!({ "type": "boolean" }))])),
        ("BackupStarted", object(&[("job", count())])),
    ])
}

/// A save that an instance made of itself.
#[derive(Debug, Clone)]
pub struct BackupRun {
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// What it did: `full`, `incremental`, `unchanged`, `copy` or `failed`.
    pub kind: &'static str,
    /// What was saved.
    pub paths: Vec<String>,
    /// The snapshot, if one was made.
    pub snapshot: Option<String>,
    /// Things that were looked at.
    pub items: u64,
    /// Those among them that had to be read.
    pub read_items: u64,
    /// The bytes of all that was looked at.
    pub bytes: u64,
    /// Those that the vault lacked.
    pub added_bytes: u64,
    /// What they took there.
    pub stored_bytes: u64,
    /// Things that could not be saved.
    pub faults: u64,
    /// Why it ended without a result.
    pub error: Option<String>,
}

impl BackupRun {
    fn to_json(&self) -> Json {
        let iso = |time| Date::from_system_time(time).to_string();
        json!({
            "start": iso(self.start),
            "end": iso(self.end),
            "kind": self.kind,
            "paths": self.paths,
            "snapshot": self.snapshot,
            "items": self.items,
            "readItems": self.read_items,
            "bytes": self.bytes,
            "addedBytes": self.added_bytes,
            "storedBytes": self.stored_bytes,
            "faults": self.faults,
            "error": self.error,
        })
    }
}

type Source = Box<dyn Fn() -> io::Result<Vec<BackupRun>> + Send + Sync>;

/// Where the log of saves is read, and the schedule by which the instance saves itself.
#[derive(Default)]
pub(crate) struct BackupLog {
    source: OnceLock<Source>,
    schedule: OnceLock<&'static str>,
}

impl std::fmt::Debug for BackupLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BackupLog")
    }
}

impl Instance {
    /// Lets the API list the saves that `source` reads, oldest first.
    pub fn tell_backups(
        &self,
        source: impl Fn() -> io::Result<Vec<BackupRun>> + Send + Sync + 'static,
    ) {
        // An instance is told once, when it starts.
        self.backups.source.set(Box::new(source)).ok();
    }

    /// Lets the API start the job of a schedule that saves the instance.
    pub fn save_by(&self, schedule: &'static str) {
        // An instance is told once, when it starts.
        self.backups.schedule.set(schedule).ok();
    }
}

fn start(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("start a backup")?;
        let missing = || {
            let message = "this instance does not save itself: name a vault in the section `[backup]` of its tympan.toml";
            Failure::new(StatusCode::NOT_FOUND, message)
        };
        let schedule = *call.instance.backups.schedule.get().ok_or_else(missing)?;
        let queues = &call.instance.queues;
        let job = queues.run_schedule(schedule, call.user(), call.now).await?;
        Ok(Reply::json(json!({ "job": job.ok_or_else(missing)?.0 })))
    })
}

fn list(instance: &Instance, call: &Call) -> Result<Reply> {
    call.require_administrator("look at backups")?;
    let missing =
        || Failure::new(StatusCode::NOT_FOUND, "this instance saves nothing; ask the author");
    let mut runs = instance.backups.source.get().ok_or_else(missing)?()?;
    if let Some(since) = call.text("since") {
        let since = Date::parse(since)?.to_system_time();
        runs.retain(|run| run.start >= since);
    }
    if let Some(kind) = call.text("kind") {
        runs.retain(|run| run.kind == kind);
    }
    let limit = call.number("limit", USUAL_RUNS);
    let newest: Vec<Json> = runs.iter().rev().take(limit).map(BackupRun::to_json).collect();
    Ok(Reply::json(json!({ "runs": newest, "more": runs.len() > limit })))
}
