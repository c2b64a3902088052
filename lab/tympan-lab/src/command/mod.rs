//! `tympan lab`: converts arguments to calls of the performance lab, and its results to exit codes: 0 goals met, 1 a
//! goal missed, 2 refused, 3 could not measure.

mod ab;
mod agent_fleet;
mod compare;
mod convert;
mod evaluation;
mod journal;
mod load_phase;
mod load_run;
mod log_watch;
mod page_latency;
mod performance_project;
mod run_folder;
mod site_traffic;
mod tough;
mod tune;
mod upload;
mod verify;

use std::fs::File;
use std::io::{BufReader, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab_engine::goal::GoalResult;
use tympan_lab_engine::live_display::{LiveDisplay, LiveDisplayMode};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::measurement::RunResults;
use tympan_lab_engine::measurement::log_watch_result::LogWatchResult;
use tympan_lab_engine::report::RunReport;
use tympan_lab_engine::{goal, report};
use tympan_lab_plan::goal::LoadGoal;
use tympan_notation::parse_duration;
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, is_color_shown, say,
    start_logging,
};

use self::log_watch::WatchedLogs;
use crate::args::author::LabAuthorCommand;
use crate::args::estimate::LabEstimateCommand;
use crate::args::limit::LabLimitCommand;
use crate::args::load::LabLoadCommand;
use crate::args::page::LabPageCommand;
use crate::args::plan::LabPlanCommand;
use crate::args::read::LabReadCommand;
use crate::args::tune::LabTuneCommand;
use crate::args::{LabArgs, LabCommand, LabLoginArgs, LabOutputArgs};

/// Runs the command that the arguments of this process name, prints its fault if it fails, and returns the exit code.
#[must_use]
pub fn run_program() -> ExitCode {
    let lab = LabArgs::parse_process().command;
    match start_logging(None).and_then(|()| run_lab_command(lab)) {
        Ok(code) => code,
        Err(fault) => {
            fault.print();
            fault.exit_code()
        }
    }
}

fn run_lab_command(lab: LabCommand) -> CommandOutcome {
    match lab {
        LabCommand::Get(arguments) => load_run::run_get(&arguments),
        LabCommand::Ab(arguments) => ab::run_ab(&arguments),
        LabCommand::Jmeter(arguments) => load_run::run_jmeter(&arguments),
        LabCommand::Report(arguments) => evaluation::report_results(&arguments),
        LabCommand::Load(command) => run_load_command(command),
        LabCommand::Plan(command) => run_plan_command(&command),
        LabCommand::Limit(command) => run_limit_command(&command),
        LabCommand::Page(command) => run_page_command(&command),
        LabCommand::Read(command) => run_read_command(&command),
        LabCommand::Tune(command) => run_tune_command(&command),
        LabCommand::Author(command) => run_author_command(&command),
        LabCommand::Estimate(command) => run_estimate_command(&command),
        LabCommand::Completions(arguments) => {
            tympan_terminal::print_completions(crate::command_definition(), arguments.shell)
        }
        LabCommand::ManPages { dir } => {
            tympan_terminal::write_man_pages(crate::command_definition(), &dir)
        }
    }
}

fn run_load_command(command: LabLoadCommand) -> CommandOutcome {
    match command {
        LabLoadCommand::Get(arguments) => load_run::run_get(&arguments),
        LabLoadCommand::Ab(arguments) => ab::run_ab(&arguments),
        LabLoadCommand::Jmeter(arguments) => load_run::run_jmeter(&arguments),
        LabLoadCommand::Run(arguments) => load_run::run_plan_command(&arguments),
        LabLoadCommand::Replay(arguments) => site_traffic::run_replay(&arguments),
        LabLoadCommand::Agent(arguments) => agent_fleet::run_agent(&arguments),
    }
}

fn run_plan_command(command: &LabPlanCommand) -> CommandOutcome {
    match command {
        LabPlanCommand::Check(arguments) => evaluation::check_plans(arguments),
        LabPlanCommand::Convert(arguments) => convert::convert_plan(arguments),
        LabPlanCommand::Export(arguments) => convert::export_plan(arguments),
        LabPlanCommand::Record(arguments) => site_traffic::run_recorder(arguments),
        LabPlanCommand::Profile(arguments) => site_traffic::run_profile(arguments),
    }
}

fn run_limit_command(command: &LabLimitCommand) -> CommandOutcome {
    match command {
        LabLimitCommand::Breakpoint(arguments) => load_phase::run_breakpoint(arguments),
        LabLimitCommand::Endure(arguments) => load_phase::run_endurance(arguments),
        LabLimitCommand::Golive(arguments) => load_phase::run_go_live(arguments),
        LabLimitCommand::Errors(arguments) => load_phase::run_error_test(arguments),
        LabLimitCommand::Component(arguments) => load_phase::run_component_test(arguments),
    }
}

fn run_page_command(command: &LabPageCommand) -> CommandOutcome {
    match command {
        LabPageCommand::Page(arguments) => page_latency::run_page_measurement(arguments),
        LabPageCommand::Components(arguments) => page_latency::run_component_measurement(arguments),
        LabPageCommand::Slo(arguments) => page_latency::run_slo(arguments),
        LabPageCommand::Cacheability(arguments) => site_traffic::run_cacheability(arguments),
        LabPageCommand::Verify(arguments) => verify::run_site_verification(arguments),
    }
}

fn run_read_command(command: &LabReadCommand) -> CommandOutcome {
    match command {
        LabReadCommand::Report(arguments) => evaluation::report_results(arguments),
        LabReadCommand::Log(arguments) => evaluation::summarize_request_log(arguments),
        LabReadCommand::CacheRatio(arguments) => evaluation::print_cache_ratio(arguments),
        LabReadCommand::Compare(arguments) => compare::run_compare(arguments),
        LabReadCommand::Map(arguments) => performance_project::draw_application_map(arguments),
    }
}

fn run_tune_command(command: &LabTuneCommand) -> CommandOutcome {
    match command {
        LabTuneCommand::Sweep(arguments) => tune::run_sweep(arguments),
        LabTuneCommand::Settings(arguments) => tune::run_tuning(arguments),
        LabTuneCommand::Journal(arguments) => journal::run_journal_command(arguments),
        LabTuneCommand::Experiment(arguments) => performance_project::run_experiments(arguments),
    }
}

fn run_author_command(command: &LabAuthorCommand) -> CommandOutcome {
    match command {
        LabAuthorCommand::Tough(arguments) => tough::run_tough(arguments),
        LabAuthorCommand::Upload(arguments) => upload::run_upload_test(arguments),
        LabAuthorCommand::Content(arguments) => {
            performance_project::run_content_generation(arguments)
        }
        LabAuthorCommand::BackupImpact(arguments) => tough::run_backup_impact(arguments),
    }
}

fn run_estimate_command(command: &LabEstimateCommand) -> CommandOutcome {
    match command {
        LabEstimateCommand::Users(arguments) => evaluation::calculate_users(arguments),
        LabEstimateCommand::UploadGoal(arguments) => evaluation::calculate_upload_goal(arguments),
    }
}

/// Returns the credentials that the arguments name; a token takes precedence over a login of the environment.
fn request_authorization(
    credentials: &LabLoginArgs,
) -> Result<Option<RequestAuthorization>, CommandFault> {
    Ok(match (&credentials.token_file, &credentials.login) {
        (Some(file), _) => Some(RequestAuthorization::bearer(read_text(file)?.trim())),
        (None, Some(login)) => Some(RequestAuthorization::basic(login)),
        (None, None) => None,
    })
}

fn lab_fault(error: impl Into<tympan_lab_tools::Error>) -> CommandFault {
    let error = error.into();
    if error.is_usage() {
        CommandFault::usage(error_chain_text(&error))
    } else {
        CommandFault::cannot_run(error_chain_text(&error))
    }
}

fn duration_from_text(text: &str) -> Result<Duration, CommandFault> {
    parse_duration(text).map_err(|error| CommandFault::usage(error.to_string()))
}

fn open_file(path: &Path) -> Result<BufReader<File>, CommandFault> {
    File::open(path)
        .map(BufReader::new)
        .map_err(|error| CommandFault::usage(format!("cannot read `{}`: {error}", path.display())))
}

fn read_text(path: &Path) -> Result<String, CommandFault> {
    let bytes = std::fs::read(path).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", path.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write_text(path: &Path, text: &str) -> Result<(), CommandFault> {
    std::fs::write(path, text).map_err(|error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", path.display()))
    })
}

fn read_goals(path: Option<&Path>) -> Result<Vec<LoadGoal>, CommandFault> {
    match path {
        None => Ok(Vec::new()),
        Some(path) => {
            tympan_lab_plan::goal::parse_goals(&read_text(path)?, &path.display().to_string())
                .map_err(lab_fault)
        }
    }
}

/// Shows the progress of a run on standard error: a live display on a terminal, periodic lines otherwise.
fn live_display(title: &str, duration: Option<Duration>) -> LiveDisplay {
    let is_terminal = std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_some_and(|kind| kind != "dumb");
    let form = if is_terminal { LiveDisplayMode::Board } else { LiveDisplayMode::Lines };
    let mut live = LiveDisplay::new(Box::new(std::io::stderr()), form, title, duration);
    if !is_color_shown(&std::io::stderr()) {
        live.disable_color();
    }
    live
}

/// The options of a run's report.
struct RunReportOptions<'a> {
    title: &'a str,
    goals: &'a [LoadGoal],
    output: &'a LabOutputArgs,
    /// True if the lab generated the load itself.
    is_generated_load: bool,
    /// The stored data of the run.
    finished_run: run_folder::FinishedRun<'a>,
    /// The logs in which no error may appear.
    watched_logs: WatchedLogs,
}

/// Writes the reports, prints the summary, and decides the exit code.
fn conclude_run(results: &mut RunResults, telling: &RunReportOptions<'_>) -> CommandOutcome {
    results.log_watches = telling.watched_logs.log_results();
    results.target_facts.clone_from(&telling.finished_run.process_metrics);
    let results = &*results;
    let mut judged: Vec<GoalResult> = goal::judge_goals(telling.goals, results);
    judged.extend(results.log_watches.iter().map(LogWatchResult::to_judged_goal));
    let report = RunReport {
        title: telling.title,
        results,
        judged_goals: &judged,
        is_own_load: telling.is_generated_load,
    };
    telling.finished_run.write_folder(results, &report)?;
    if let Some(path) = &telling.output.report {
        write_html_report(path, &report)?;
    }
    if let Some(path) = &telling.output.junit {
        write_text(path, &report::report_to_junit(&report))?;
    }
    if let Some(path) = &telling.output.markdown {
        write_text(path, &report::report_to_markdown(&report))?;
    }
    if telling.output.json {
        say!("{}", report::report_to_json(&report));
    } else {
        say!("{}", report::report_to_plain_text(&report).trim_end());
    }
    Ok(run_exit_code(results, &judged, telling.is_generated_load))
}

/// Writes a report; if it is the index of a folder, as JMeter creates, also a file with its numbers.
fn write_html_report(path: &Path, report: &RunReport<'_>) -> Result<(), CommandFault> {
    write_text(path, &report::render_report_html(report))?;
    if path.file_name().is_some_and(|name| name == "index.html") {
        write_text(
            &path.with_file_name("statistics.json"),
            &report::render_jmeter_statistics(report.results),
        )?;
    }
    Ok(())
}

/// Distinguishes "slow" from "not measured": with a saturated generator, or a target that never responded, there is no
/// measurement.
fn run_exit_code(results: &RunResults, judged: &[GoalResult], is_own: bool) -> ExitCode {
    let total = results.total_stats();
    // Also applies to an empty result.
    let is_unreachable = total.status_counts.keys().all(|status| *status == 0);
    let is_doubtful = !tympan_lab_engine::result_validity::validity_doubts(results).is_empty();
    let is_incomplete = !tympan_lab_engine::result_validity::agent_losses(results).is_empty()
        || results.log_watches.iter().any(|log| log.read_failure.is_some());
    if is_own && (is_unreachable || is_doubtful || is_incomplete) {
        ExitCode::from(3)
    } else if judged.iter().any(|goal| !goal.is_met) {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_options_are_those_of_all_programs() {
        for (text, seconds) in [("30s", 30.0), ("150ms", 0.15), ("1h30m", 5400.0), ("1.5h", 5400.0)]
        {
            assert_eq!(duration_from_text(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        let fault = duration_from_text("30").unwrap_err();
        assert!(
            fault.message().starts_with("`30` is not a duration; write"),
            "{}",
            fault.message()
        );
    }
}
