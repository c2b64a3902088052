//! `tympan lab`: from words to the performance lab, and from its verdicts to exit codes: 0 goals met, 1 a goal missed,
//! 2 refused, 3 could not measure.

mod ab;
mod compare;
mod convert;
mod fleet;
mod journal;
mod keep;
mod logs;
mod pages;
mod phases;
mod project;
mod proof;
mod read;
mod send;
mod site;
mod tough;
mod tune;
mod upload;

use std::fs::File;
use std::io::{BufReader, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab::calculate::parse_duration;
use tympan_lab::goal::{self, Goal, Judged};
use tympan_lab::live::{Form, Live};
use tympan_lab::record::Results;
use tympan_lab::report::{self, Report};
use tympan_lab::watch_log::Logged;

use self::logs::WatchedLogs;
use crate::args::lab::{Lab, Output};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::home::chain;
use crate::say;

/// Runs the command.
pub(crate) fn run(lab: Lab) -> Outcome {
    match lab {
        Lab::Get(arguments) => send::get(&arguments),
        Lab::Ab(arguments) => ab::ab(&arguments),
        Lab::Jmeter(arguments) => send::jmeter(&arguments),
        Lab::Run(arguments) => send::run(&arguments),
        Lab::Check(arguments) => read::check(&arguments),
        Lab::Slo(arguments) => pages::slo(&arguments),
        Lab::Agent(arguments) => fleet::agent(&arguments),
        Lab::Report(arguments) => read::report(&arguments),
        Lab::Log(arguments) => read::log(&arguments),
        Lab::CacheRatio(arguments) => read::cache_ratio(&arguments),
        Lab::Users(arguments) => read::users(&arguments),
        Lab::UploadGoal(arguments) => read::upload_goal(&arguments),
        Lab::Proof(command) => proof::run(&command),
        Lab::Breakpoint(arguments) => phases::breakpoint(&arguments),
        Lab::Endure(arguments) => phases::endure(&arguments),
        Lab::Golive(arguments) => phases::golive(&arguments),
        Lab::Errors(arguments) => phases::errors(&arguments),
        Lab::Component(arguments) => phases::component(&arguments),
        Lab::Page(arguments) => pages::page(&arguments),
        Lab::Components(arguments) => pages::components(&arguments),
        Lab::Upload(arguments) => upload::upload(&arguments),
        Lab::Tough(arguments) => tough::tough(&arguments),
        Lab::BackupImpact(arguments) => tough::backup_impact(&arguments),
        Lab::Other(words) => {
            let word = words.first().map_or("", String::as_str);
            Err(Fault::usage(format!(
                "`tympan lab` knows no `{word}`; `tympan lab --help` lists what it knows"
            )))
        }
    }
}

fn fault(error: &tympan_lab::Error) -> Fault {
    if error.is_usage() { Fault::usage(chain(error)) } else { Fault::cannot_run(chain(error)) }
}

fn duration(text: &str) -> Result<Duration, Fault> {
    parse_duration(text).ok_or_else(|| {
        Fault::usage(format!(
            "`{text}` is no duration; write it with a unit, such as 30s, 150ms or 1h30m"
        ))
    })
}

fn open(path: &Path) -> Result<BufReader<File>, Fault> {
    File::open(path)
        .map(BufReader::new)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", path.display())))
}

fn read_text(path: &Path) -> Result<String, Fault> {
    let bytes = std::fs::read(path)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", path.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write(path: &Path, text: &str) -> Result<(), Fault> {
    std::fs::write(path, text)
        .map_err(|error| Fault::cannot_run(format!("cannot write `{}`: {error}", path.display())))
}

fn goals(path: Option<&Path>) -> Result<Vec<Goal>, Fault> {
    match path {
        None => Ok(Vec::new()),
        Some(path) => goal::parse(&read_text(path)?, &path.display().to_string())
            .map_err(|error| fault(&error)),
    }
}

/// Shows a run at standard error while it goes on: a board on a terminal, a line now and then elsewhere.
fn live(title: &str, lasts: Option<Duration>) -> Live {
    let is_terminal = std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_some_and(|kind| kind != "dumb");
    let form = if is_terminal { Form::Board } else { Form::Lines };
    Live::new(Box::new(std::io::stderr()), form, title, lasts)
}

/// What a run is told with.
struct Telling<'a> {
    title: &'a str,
    goals: &'a [Goal],
    output: &'a Output,
    /// The lab made the load itself.
    is_own: bool,
    /// What is kept of the run.
    keeper: keep::Ended<'a>,
    /// What nothing may be logged to.
    logs: WatchedLogs,
}

/// Writes the reports, prints the summary, and decides the exit code.
fn conclude(results: &mut Results, telling: &Telling<'_>) -> Outcome {
    results.logged = telling.logs.end();
    results.target.clone_from(&telling.keeper.watched);
    let results = &*results;
    let mut judged: Vec<Judged> = goal::judge(telling.goals, results);
    judged.extend(results.logged.iter().map(Logged::judged));
    let report = Report { title: telling.title, results, goals: &judged, is_own: telling.is_own };
    telling.keeper.write(results, &report)?;
    if let Some(path) = &telling.output.report {
        write_report(path, &report)?;
    }
    if let Some(path) = &telling.output.junit {
        write(path, &report::junit(&report))?;
    }
    if let Some(path) = &telling.output.markdown {
        write(path, &report::markdown(&report))?;
    }
    if telling.output.json {
        say!("{}", report::json(&report));
    } else {
        say!("{}", report::plain(&report).trim_end());
    }
    Ok(exit_code(results, &judged, telling.is_own))
}

/// Writes a report; beside the index of a folder, as JMeter makes one, its numbers too.
fn write_report(path: &Path, report: &Report<'_>) -> Result<(), Fault> {
    write(path, &report::html(report))?;
    if path.file_name().is_some_and(|name| name == "index.html") {
        write(&path.with_file_name("statistics.json"), &report::statistics(report.results))?;
    }
    Ok(())
}

/// Tells "slow" from "not measured": a saturated generator, or a target that never answered, measures nothing.
fn exit_code(results: &Results, judged: &[Judged], is_own: bool) -> ExitCode {
    let total = results.total();
    // Of nothing at all, too.
    let is_unreachable = total.statuses.keys().all(|status| *status == 0);
    let is_doubtful = !tympan_lab::honesty::doubts(results).is_empty();
    let is_incomplete = !tympan_lab::honesty::losses(results).is_empty()
        || results.logged.iter().any(|log| log.unread.is_some());
    if is_own && (is_unreachable || is_doubtful || is_incomplete) {
        ExitCode::from(3)
    } else if judged.iter().any(|goal| !goal.is_met) {
        ExitCode::from(CHECK_FAILED)
    } else {
        ExitCode::SUCCESS
    }
}
