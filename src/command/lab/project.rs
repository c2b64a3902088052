//! The commands around a performance project: `content`, `experiment`, `map`, and the project's report.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_lab::content::{Author, Login, Nowhere, Sink, Sum, Wish};
use tympan_lab::experiment::{Experiment, Trial};
use tympan_lab::project::{self, Project};
use tympan_lab::watch_log::Logged;

use super::logs::WatchedLogs;
use super::{duration, fault, read_text, write};
use crate::args::lab_proof as args;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn content(arguments: &args::Content) -> Outcome {
    let wish = Wish {
        name: arguments.name.clone(),
        pages: arguments.pages,
        images: arguments.images,
        tags: arguments.tags,
        from: arguments.from,
        increments: arguments.increments,
        children: arguments.children,
        seed: arguments.seed,
    };
    let mut nowhere = Nowhere;
    let mut author;
    let sink: &mut dyn Sink = match (&arguments.author, arguments.dry_run) {
        (_, true) => &mut nowhere,
        (None, false) => {
            return Err(Fault::usage("give --author URL, or --dry-run to count only"));
        }
        (Some(url), false) => {
            let login = Login { user: arguments.user.clone(), password: password(arguments)? };
            let timeout = duration(&arguments.timeout)?;
            author = Author::new(url, &login, timeout).map_err(|error| fault(&error))?;
            &mut author
        }
    };
    let is_quiet = arguments.json;
    let mut told = Vec::new();
    let whole = wish
        .fill(sink, &mut |increment, sum| {
            told.push(sum_json(sum));
            if !is_quiet {
                say!("increment {increment}: {}", sum_text(sum));
            }
        })
        .map_err(|error| fault(&error))?;
    if is_quiet {
        say!("{}", json!({ "increments": told, "total": sum_json(whole) }));
    } else {
        say!("total: {}", sum_text(whole));
    }
    Ok(ExitCode::SUCCESS)
}

fn password(arguments: &args::Content) -> Result<String, Fault> {
    let path = arguments.password_file.as_deref().ok_or_else(|| {
        Fault::usage("give the password with --password-file; it never stands on the command line")
    })?;
    Ok(read_text(path)?.trim_end_matches(['\n', '\r']).to_owned())
}

fn sum_text(sum: Sum) -> String {
    format!(
        "{} pages, {} images, {} tags, {} folders; {} bytes of images, {} bytes of texts",
        sum.pages, sum.images, sum.tags, sum.folders, sum.image_bytes, sum.text_bytes
    )
}

fn sum_json(sum: Sum) -> Value {
    json!({
        "pages": sum.pages,
        "images": sum.images,
        "tags": sum.tags,
        "folders": sum.folders,
        "image_bytes": sum.image_bytes,
        "text_bytes": sum.text_bytes,
    })
}

pub(super) fn experiment(arguments: &args::Experiment) -> Outcome {
    let name = arguments.file.display().to_string();
    let folder = arguments.file.parent().unwrap_or(Path::new(""));
    let experiment = Experiment::read(&read_text(&arguments.file)?, &name, folder)
        .map_err(|error| fault(&error))?;
    let is_quiet = arguments.json;
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let findings = experiment
        .run(&mut |trial| {
            if !is_quiet {
                let side = if trial.is_after { "after " } else { "before" };
                let reached = trial.reached.map(|count| format!("  {count} reached the publisher"));
                say!("{side}  {}{}", trial.summary, reached.unwrap_or_default());
            }
        })
        .map_err(|error| fault(&error))?;
    let logged = logs.end();
    let (before, after) = findings.mean_times();
    let gain = findings.mean_gain();
    if is_quiet {
        let trials: Vec<Value> = findings.trials.iter().map(trial_json).collect();
        say!(
            "{}",
            json!({ "name": experiment.name, "trials": trials, "gains": findings.gains, "mean_gain": gain,
                "errors_logged": logged.iter().map(Logged::to_json).collect::<Vec<_>>() })
        );
    } else {
        let gains: Vec<String> = findings.gains.iter().map(|gain| format!("{gain:.1}x")).collect();
        say!("throughput {} per round, mean {gain:.1}x", gains.join(" and "));
        say!("mean time  {before:.1} ms -> {after:.1} ms");
        logged.iter().flat_map(Logged::told).for_each(|line| say!("{line}"));
    }
    let doubts: Vec<&String> = findings.trials.iter().flat_map(|trial| &trial.doubts).collect();
    if let Some(doubt) = doubts.first() {
        if !is_quiet {
            say!("not measured: {doubt}");
        }
        return Ok(ExitCode::from(3));
    }
    if logged.iter().any(|log| log.unread.is_some()) {
        return Ok(ExitCode::from(3));
    }
    let has_logged = logged.iter().any(|log| log.errors.count > 0);
    let is_missed = arguments.at_least.is_some_and(|wanted| gain < wanted);
    if is_missed && !is_quiet {
        say!("goal MISSED: at least {}x was wanted", arguments.at_least.unwrap_or_default());
    }
    Ok(if is_missed || has_logged { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS })
}

fn trial_json(trial: &Trial) -> Value {
    json!({
        "side": if trial.is_after { "after" } else { "before" },
        "per_second": trial.rate,
        "mean_ms": trial.mean_ms,
        "max_ms": trial.max_ms,
        "error_rate": trial.error_rate,
        "doubts": trial.doubts,
        "reached": trial.reached,
    })
}

fn load(file: &Path) -> Result<Project, Fault> {
    let folder = file.parent().unwrap_or(Path::new(""));
    project::read(&read_text(file)?, &file.display().to_string(), folder)
        .map_err(|error| fault(&error))
}

fn exit_code(project: &Project) -> ExitCode {
    if project.is_missed() { ExitCode::from(CHECK_FAILED) } else { ExitCode::SUCCESS }
}

pub(super) fn map(arguments: &args::Map) -> Outcome {
    let project = load(&arguments.project)?;
    let svg = project::svg(&project);
    match &arguments.out {
        Some(path) => write(path, &svg)?,
        None if !arguments.json => say!("{svg}"),
        None => {}
    }
    if arguments.json {
        let elements: Vec<Value> = project
            .elements
            .iter()
            .map(|element| json!({ "name": element.name, "color": project.color(element).name() }))
            .collect();
        say!("{}", json!({ "elements": elements }));
    }
    Ok(exit_code(&project))
}

/// Writes the report of a project, and tells its use cases.
pub(super) fn report(file: &Path, out: Option<&Path>, is_json: bool) -> Outcome {
    let project = load(file)?;
    if let Some(path) = out {
        write(path, &project::html(&project))?;
    }
    if is_json {
        let cases: Vec<Value> = project
            .use_cases
            .iter()
            .map(|case| {
                json!({
                    "name": case.name,
                    "color": case.color().name(),
                    "average": case.average,
                    "measured_average": case.measured_average,
                    "peak": case.peak,
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
    Ok(exit_code(&project))
}
