//! Folders that keep a run: what was asked, the plan without its secrets, and what came out.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_lab::phase::watch::{Facts, Source, Watch};
use tympan_lab::record::{Results, hlog, metrics};
use tympan_lab::report::{self, Report};
use tympan_lab::{kept, redact};

use super::write;
use crate::args::lab::KeptRun;
use crate::command::Fault;

/// A run that may be kept, and the process that is watched meanwhile.
pub(super) struct Keeper<'a> {
    folder: Option<&'a Path>,
    plan: Option<&'a Path>,
    watch: Option<Watch>,
}

impl<'a> Keeper<'a> {
    /// Begins to watch the process that is named.
    pub(super) fn begin(kept: &'a KeptRun, plan: Option<&'a Path>) -> Result<Self, Fault> {
        let source = source(kept.pid, kept.metrics.as_deref());
        let watch = source.as_ref().map(Watch::start).transpose();
        let watch = watch.map_err(|error| super::fault(&error))?;
        Ok(Self { folder: kept.keep.as_deref(), plan, watch })
    }

    /// Keeps nothing.
    pub(super) fn nothing() -> Self {
        Self { folder: None, plan: None, watch: None }
    }

    /// Ends watching; returns what is to be written of a run.
    pub(super) fn end(self) -> Ended<'a> {
        let is_watching = self.watch.is_some();
        let watched = self.watch.map(Watch::stop).unwrap_or_default();
        if is_watching && watched.is_empty() {
            tracing::warn!("nothing could be seen of the tested process");
        }
        Ended { folder: self.folder, plan: self.plan, watched }
    }
}

/// A run that is over.
pub(super) struct Ended<'a> {
    folder: Option<&'a Path>,
    plan: Option<&'a Path>,
    /// What was seen of the process, if one was watched.
    pub(super) watched: Vec<Facts>,
}

impl Ended<'_> {
    /// Writes the folder, if one is wanted.
    pub(super) fn write(&self, results: &Results, report: &Report<'_>) -> Result<(), Fault> {
        let Some(folder) = self.folder else { return Ok(()) };
        let run = new_folder(folder, self.plan)?;
        write(&run.join("summary.json"), &format!("{}\n", report::json(report)))?;
        write(&run.join("report.html"), &report::html(report))?;
        write(&run.join("hist.hlog"), &hlog::text(results))?;
        write(&run.join("metrics.csv"), &metrics::text(results))
    }
}

/// Returns what arguments ask to watch.
pub(super) fn source(pid: Option<u32>, metrics: Option<&str>) -> Option<Source> {
    let metrics = metrics.map(|url| Source::Metrics(url.to_owned()));
    metrics.or(pid.map(Source::Process))
}

/// Makes a new folder `run-...` with what was asked and a copy of the plan.
pub(super) fn new_folder(folder: &Path, plan: Option<&Path>) -> Result<PathBuf, Fault> {
    let lost = |path: &Path, error: std::io::Error| {
        Fault::cannot_run(format!("cannot write `{}`: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| lost(folder, error))?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut number = since.as_secs();
    // Runs of the same second are told apart.
    let run = loop {
        let run = folder.join(format!("run-{number}"));
        match std::fs::create_dir(&run) {
            Ok(()) => break run,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(lost(&run, error)),
        }
    };
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let given: Vec<String> = std::env::args().collect();
    let words: Vec<String> = redact::words(&given).iter().map(|word| quoted(word)).collect();
    let asked = format!(
        "started = {}\ncommand = [{}]\nversion = {}\nprocessors = {}\n",
        number,
        words.join(", "),
        quoted(env!("CARGO_PKG_VERSION")),
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    write(&run.join("run.toml"), &asked)?;
    if let Some(plan) = plan {
        let extension = plan.extension().map_or_else(Default::default, |one| one.to_string_lossy());
        let copy = run.join(format!("plan.{extension}"));
        let text = super::read_text(plan)?;
        let kept = match extension.as_ref() {
            "yaml" | "yml" => Some(redact::yaml(&text)),
            "toml" => kept::toml(&text).map(|kept| kept.text),
            _ => kept::jmx(&text).map(|kept| kept.text),
        };
        // It was read as a plan before, so that it can be read now.
        let kept = kept.ok_or_else(|| {
            Fault::cannot_run(format!("cannot keep `{}`: it has changed meanwhile", plan.display()))
        })?;
        write(&copy, &kept)?;
    }
    Ok(run)
}
