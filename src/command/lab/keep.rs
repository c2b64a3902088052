//! Folders that keep a run: what was asked, the plan without its secrets, and what came out.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_lab::phase::watch::{Facts, Source, Watch};
use tympan_lab::record::{Results, hlog, metrics};
use tympan_lab::report::sheet::Sheet;
use tympan_lab::report::{self, Report};
use tympan_lab::{kept, redact};

use super::write;
use crate::args::lab::{KeptRun, Watched};
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
        let Beside(watch) = Beside::begin(&kept.watched)?;
        Ok(Self { folder: kept.keep.as_deref(), plan, watch })
    }

    /// Keeps nothing.
    pub(super) fn nothing() -> Self {
        Self { folder: None, plan: None, watch: None }
    }

    /// Ends watching; returns what is to be written of a run.
    pub(super) fn end(self) -> Ended<'a> {
        let watched = self.watch.map(|watch| warned(watch.stop())).unwrap_or_default();
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
pub(super) fn source(watched: &Watched) -> Option<Source> {
    let metrics = watched.metrics.clone().map(Source::Metrics);
    metrics.or(watched.pid.map(Source::Process))
}

/// A target that is watched while a command runs whose report is a sheet.
pub(super) struct Beside(Option<Watch>);

impl Beside {
    /// Begins to watch what the arguments name.
    pub(super) fn begin(watched: &Watched) -> Result<Self, Fault> {
        let watch = source(watched).as_ref().map(Watch::start).transpose();
        watch.map(Self).map_err(|error| super::fault(&error))
    }

    /// Ends watching, and adds to a report what was seen.
    pub(super) fn tell(self, sheet: &mut Sheet) {
        if let Some(watch) = self.0 {
            sheet.add_target(&warned(watch.stop()));
        }
    }
}

/// Warns where nothing was seen: a process that is not there, or metrics that nobody answers with.
fn warned(watched: Vec<Facts>) -> Vec<Facts> {
    if watched.is_empty() {
        tracing::warn!("nothing could be seen of the tested process");
    }
    watched
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
