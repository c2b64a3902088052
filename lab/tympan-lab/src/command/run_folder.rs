//! Folders that store a run: the arguments, the plan without its secrets, and the results.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_lab_engine::measurement::ProcessMetrics;
use tympan_lab_engine::measurement::{RunResults, hlog, metrics_csv};
use tympan_lab_engine::report;
use tympan_lab_engine::report::RunReport;
use tympan_lab_engine::report::report_sheet::ReportSheet;
use tympan_lab_plan::{plan_redaction, redaction};
use tympan_lab_tools::phase::process_watch::{ProcessMetricsSource, ProcessWatch};
use tympan_terminal::CommandFault;

use super::write_text;
use crate::args::{RunFolderArgs, WatchedProcessArgs};

/// Records a run, if requested, and the process that is monitored during it.
pub(super) struct RunRecorder<'a> {
    folder: Option<&'a Path>,
    plan: Option<&'a Path>,
    watch: Option<ProcessWatch>,
}

impl<'a> RunRecorder<'a> {
    /// Starts to monitor the given process.
    pub(super) fn start(
        folder_args: &'a RunFolderArgs,
        plan: Option<&'a Path>,
    ) -> Result<Self, CommandFault> {
        let TargetWatch(watch) = TargetWatch::start(&folder_args.watched)?;
        Ok(Self { folder: folder_args.keep.as_deref(), plan, watch })
    }

    /// Returns a recorder that stores nothing.
    pub(super) fn disabled() -> Self {
        Self { folder: None, plan: None, watch: None }
    }

    /// Ends the monitoring; returns the data to write.
    pub(super) fn finish(self) -> FinishedRun<'a> {
        let watched = self.watch.map(|watch| warn_if_unobserved(watch.stop())).unwrap_or_default();
        FinishedRun { folder: self.folder, plan: self.plan, process_metrics: watched }
    }
}

/// A completed run.
pub(super) struct FinishedRun<'a> {
    folder: Option<&'a Path>,
    plan: Option<&'a Path>,
    /// The metrics of the monitored process, if any.
    pub(super) process_metrics: Vec<ProcessMetrics>,
}

impl FinishedRun<'_> {
    /// Writes the folder, if requested.
    pub(super) fn write_folder(
        &self,
        results: &RunResults,
        report: &RunReport<'_>,
    ) -> Result<(), CommandFault> {
        let Some(folder) = self.folder else { return Ok(()) };
        let run = create_run_folder(folder, self.plan)?;
        write_text(&run.join("summary.json"), &format!("{}\n", report::report_to_json(report)))?;
        write_text(&run.join("report.html"), &report::render_report_html(report))?;
        write_text(&run.join("hist.hlog"), &hlog::format_histogram_log(results))?;
        write_text(&run.join("metrics.csv"), &metrics_csv::format_metrics_csv(results))
    }
}

/// Returns the source of metrics that the arguments select.
pub(super) fn metrics_source(watched: &WatchedProcessArgs) -> Option<ProcessMetricsSource> {
    let metrics = watched.metrics.clone().map(ProcessMetricsSource::Metrics);
    metrics.or(watched.pid.map(ProcessMetricsSource::Process))
}

/// Monitors a target during a command whose report is a sheet.
pub(super) struct TargetWatch(Option<ProcessWatch>);

impl TargetWatch {
    /// Starts to monitor the target of the arguments.
    pub(super) fn start(watched: &WatchedProcessArgs) -> Result<Self, CommandFault> {
        let watch = metrics_source(watched).as_ref().map(ProcessWatch::start).transpose();
        watch.map(Self).map_err(super::lab_fault)
    }

    /// Ends the monitoring, and adds its metrics to a report.
    pub(super) fn add_to_sheet(self, sheet: &mut ReportSheet) {
        if let Some(watch) = self.0 {
            sheet.add_target_facts(&warn_if_unobserved(watch.stop()));
        }
    }
}

/// Warns if there are no metrics: because the process does not exist, or the metrics URL does not respond.
fn warn_if_unobserved(watched: Vec<ProcessMetrics>) -> Vec<ProcessMetrics> {
    if watched.is_empty() {
        tracing::warn!("no metrics of the tested process were collected");
    }
    watched
}

/// Creates a new folder `run-...` with the arguments and a copy of the plan.
pub(super) fn create_run_folder(
    folder: &Path,
    plan: Option<&Path>,
) -> Result<PathBuf, CommandFault> {
    let lost = |path: &Path, error: std::io::Error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| lost(folder, error))?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut number = since.as_secs();
    // Runs of the same second get different names.
    let run = loop {
        let run = folder.join(format!("run-{number}"));
        match std::fs::create_dir(&run) {
            Ok(()) => break run,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(lost(&run, error)),
        }
    };
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let command_line: Vec<String> =
        ["tympan", "lab"].map(str::to_owned).into_iter().chain(std::env::args().skip(1)).collect();
    let words: Vec<String> = redaction::redact_command_line(&command_line)
        .iter()
        .map(|argument| quoted(argument))
        .collect();
    let run_description = format!(
        "started = {}\ncommand = [{}]\nversion = {}\nprocessors = {}\n",
        number,
        words.join(", "),
        quoted(env!("CARGO_PKG_VERSION")),
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    write_text(&run.join("run.toml"), &run_description)?;
    if let Some(plan) = plan {
        let extension =
            plan.extension().map_or_else(Default::default, |suffix| suffix.to_string_lossy());
        let copy = run.join(format!("plan.{extension}"));
        let text = super::read_text(plan)?;
        let redacted_text = match extension.as_ref() {
            "yaml" | "yml" => Some(redaction::redact_yaml(&text)),
            "toml" => {
                plan_redaction::redact_toml_plan(&text).map(|redacted_plan| redacted_plan.text)
            }
            _ => plan_redaction::redact_jmx_plan(&text).map(|redacted_plan| redacted_plan.text),
        };
        // The file was parsed as a plan before, so that it is readable.
        let redacted_text = redacted_text.ok_or_else(|| {
            CommandFault::cannot_run(format!(
                "cannot store a copy of `{}`: it has changed in the meantime",
                plan.display()
            ))
        })?;
        write_text(&copy, &redacted_text)?;
    }
    Ok(run)
}
