//! The commands around a performance project: `content`, `experiment`, `map`, and the project's report.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::measurement::log_watch_result::LogWatchResult;
use tympan_lab_tools::content_generator::{
    AuthorContentSink, ContentSink, ContentSpec, ContentTotals, CountingContentSink,
};
use tympan_lab_tools::experiment::{ExperimentTrial, LoadExperiment};
use tympan_lab_tools::project;
use tympan_lab_tools::project::PerformanceProject;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::log_watch::WatchedLogs;
use super::{duration_from_text, lab_fault, read_text, request_authorization, write_text};
use crate::args::author::LabContentArgs;
use crate::args::read::LabMapArgs;
use crate::args::tune::LabExperimentArgs;

pub(super) fn run_content_generation(arguments: &LabContentArgs) -> CommandOutcome {
    let spec = ContentSpec {
        name: arguments.name.clone(),
        pages_per_increment: arguments.pages,
        images_per_increment: arguments.images,
        tags_per_increment: arguments.tags,
        first_increment: arguments.from,
        increment_count: arguments.increments,
        children_per_node: arguments.children,
        seed: arguments.seed,
    };
    let mut nowhere = CountingContentSink;
    let mut author;
    let sink: &mut dyn ContentSink = match (&arguments.author, arguments.dry_run) {
        (_, true) => &mut nowhere,
        (None, false) => {
            return Err(CommandFault::usage("give --author URL, or --dry-run to count only"));
        }
        (Some(url), false) => {
            let authorization = content_authorization(arguments)?;
            let timeout = duration_from_text(&arguments.timeout)?;
            author = AuthorContentSink::new(url, authorization, timeout).map_err(lab_fault)?;
            &mut author
        }
    };
    let is_quiet = arguments.json;
    let mut increments = Vec::new();
    let whole = spec
        .store_all(sink, &mut |increment, sum| {
            increments.push(totals_json(sum));
            if !is_quiet {
                say!("increment {increment}: {}", totals_text(sum));
            }
        })
        .map_err(lab_fault)?;
    if is_quiet {
        say!("{}", json!({ "increments": increments, "total": totals_json(whole) }));
    } else {
        say!("total: {}", totals_text(whole));
    }
    Ok(ExitCode::SUCCESS)
}

fn content_authorization(arguments: &LabContentArgs) -> Result<RequestAuthorization, CommandFault> {
    if let Some(file) = &arguments.password_file {
        let password = read_text(file)?;
        let password = password.trim_end_matches(['\n', '\r']);
        return Ok(RequestAuthorization::basic(&format!("{}:{password}", arguments.user)));
    }
    request_authorization(&arguments.credentials)?.ok_or_else(|| {
        CommandFault::usage(
            "give the credentials of the author with --token-file, --login or TYMPAN_LAB_LOGIN",
        )
    })
}

fn totals_text(sum: ContentTotals) -> String {
    format!(
        "{} pages, {} images, {} tags, {} folders; {} bytes of images, {} bytes of text",
        sum.pages, sum.images, sum.tags, sum.folders, sum.image_bytes, sum.text_bytes
    )
}

fn totals_json(sum: ContentTotals) -> Value {
    json!({
        "pages": sum.pages,
        "images": sum.images,
        "tags": sum.tags,
        "folders": sum.folders,
        "image_bytes": sum.image_bytes,
        "text_bytes": sum.text_bytes,
    })
}

pub(super) fn run_experiments(arguments: &LabExperimentArgs) -> CommandOutcome {
    let name = arguments.file.display().to_string();
    let folder = arguments.file.parent().unwrap_or(Path::new(""));
    let experiment =
        LoadExperiment::parse(&read_text(&arguments.file)?, &name, folder).map_err(lab_fault)?;
    let is_quiet = arguments.json;
    let logs = WatchedLogs::start(&arguments.logs)?;
    let findings = experiment
        .run(&mut |trial| {
            if !is_quiet {
                let side = if trial.is_after_arrangement { "after " } else { "before" };
                let reached = trial
                    .publisher_requests
                    .map(|count| format!("  {count} reached the publisher"));
                say!("{side}  {}{}", trial.summary, reached.unwrap_or_default());
            }
        })
        .map_err(lab_fault)?;
    let logged = logs.log_results();
    let (before, after) = findings.mean_times();
    let gain = findings.mean_gain();
    if is_quiet {
        let trials: Vec<Value> = findings.trials.iter().map(trial_json).collect();
        say!(
            "{}",
            json!({ "name": experiment.name, "trials": trials, "gains": findings.gains, "mean_gain": gain,
                "errors_logged": logged.iter().map(LogWatchResult::to_json).collect::<Vec<_>>() })
        );
    } else {
        let gains: Vec<String> = findings.gains.iter().map(|gain| format!("{gain:.1}x")).collect();
        say!("throughput {} per round, mean {gain:.1}x", gains.join(" and "));
        say!("mean time  {before:.1} ms -> {after:.1} ms");
        logged.iter().flat_map(LogWatchResult::describe_lines).for_each(|line| say!("{line}"));
    }
    let doubts: Vec<&String> = findings.trials.iter().flat_map(|trial| &trial.doubts).collect();
    if let Some(doubt) = doubts.first() {
        if !is_quiet {
            say!("not measured: {doubt}");
        }
        return Ok(ExitCode::from(3));
    }
    if logged.iter().any(|log| log.read_failure.is_some()) {
        return Ok(ExitCode::from(3));
    }
    let has_logged = logged.iter().any(|log| log.errors.error_count > 0);
    let is_missed = arguments.at_least.is_some_and(|min_gain| gain < min_gain);
    if is_missed && !is_quiet {
        say!("goal MISSED: at least {}x was required", arguments.at_least.unwrap_or_default());
    }
    Ok(if is_missed || has_logged {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    })
}

fn trial_json(trial: &ExperimentTrial) -> Value {
    json!({
        "side": if trial.is_after_arrangement { "after" } else { "before" },
        "per_second": trial.rate,
        "mean_ms": trial.mean_ms,
        "max_ms": trial.max_ms,
        "error_rate": trial.error_rate,
        "doubts": trial.doubts,
        "reached": trial.publisher_requests,
    })
}

fn load_project(file: &Path) -> Result<PerformanceProject, CommandFault> {
    let folder = file.parent().unwrap_or(Path::new(""));
    project::read_project(&read_text(file)?, &file.display().to_string(), folder).map_err(lab_fault)
}

fn project_exit_code(project: &PerformanceProject) -> ExitCode {
    if project.has_missed_target() {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    }
}

pub(super) fn draw_application_map(arguments: &LabMapArgs) -> CommandOutcome {
    let project = load_project(&arguments.project)?;
    let svg = project::render_map_svg(&project);
    match &arguments.out {
        Some(path) => write_text(path, &svg)?,
        None if !arguments.json => say!("{svg}"),
        None => {}
    }
    if arguments.json {
        let elements: Vec<Value> = project
            .elements
            .iter()
            .map(|element| json!({ "name": element.name, "color": project.element_color(element).name() }))
            .collect();
        say!("{}", json!({ "elements": elements }));
    }
    Ok(project_exit_code(&project))
}

/// Writes the report of a project, and prints its use cases.
pub(super) fn report_project(file: &Path, out: Option<&Path>, is_json: bool) -> CommandOutcome {
    let project = load_project(file)?;
    if let Some(path) = out {
        write_text(path, &project::render_html_page(&project))?;
    }
    if is_json {
        let cases: Vec<Value> = project
            .use_cases
            .iter()
            .map(|case| {
                json!({
                    "name": case.name,
                    "color": case.color().name(),
                    "average": case.average_target,
                    "measured_average": case.measured_average,
                    "peak": case.peak_target,
                    "measured_peak": case.measured_peak,
                })
            })
            .collect();
        say!(
            "{}",
            json!({ "title": project.title, "use_cases": cases, "remarks": project.remarks })
        );
    } else {
        for case in &project.use_cases {
            say!("{:<6} {}", case.color().name(), case.name);
        }
        for remark in &project.remarks {
            say!("note: {remark}");
        }
    }
    Ok(project_exit_code(&project))
}
