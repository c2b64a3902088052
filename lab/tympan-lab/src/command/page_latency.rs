//! The commands that analyze single pages: page, components, slo.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tympan_lab_engine::measurement::log_watch_result::LogWatchResult;
use tympan_lab_engine::report::report_sheet::{ReportSheet, ReportTone};
use tympan_lab_tools::{component_profile as profile, slo as latency, visit};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::load_phase::finish_phase_test;
use super::load_run::parse_headers;
use super::log_watch::WatchedLogs;
use super::{lab_fault, read_goals, request_authorization};
use crate::args::page::{LabComponentsArgs, LabPageArgs, LabSloArgs};

pub(super) fn run_page_measurement(arguments: &LabPageArgs) -> CommandOutcome {
    let mut all = parse_headers(&arguments.asker.headers)?;
    let authorization = request_authorization(&arguments.asker.credentials)?;
    all.extend(authorization.map(|authorization| authorization.to_header()));
    let visits = visit::PageVisitOptions {
        urls: read_addresses(&arguments.urls)?,
        headers: all,
        visits_per_page: arguments.visits,
        reuses_cache: arguments.warm,
        goals: read_goals(arguments.run_options.output.goals.as_deref())?,
    };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let mut sheet = visit::visit_pages(&visits).map_err(lab_fault)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

pub(super) fn run_component_measurement(arguments: &LabComponentsArgs) -> CommandOutcome {
    let options = profile::ComponentProfileOptions {
        url: arguments.url.clone(),
        headers: parse_headers(&arguments.asker.headers)?,
        authorization: request_authorization(&arguments.asker.credentials)?,
        request_count: arguments.requests,
    };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let mut sheet = profile::profile_components(&options).map_err(lab_fault)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

pub(super) fn run_slo(arguments: &LabSloArgs) -> CommandOutcome {
    if arguments.run_options.output.goals.is_some() {
        return Err(CommandFault::usage(
            "slo has its own goals; for others use `tympan lab get --goals`",
        ));
    }
    let pages = latency::SloCheck {
        urls: read_addresses(&arguments.urls)?,
        sample_count: arguments.requests,
        headers: parse_headers(&arguments.asker.headers)?,
        authorization: request_authorization(&arguments.asker.credentials)?,
        cache_bypass: arguments.bypass.clone(),
        admin_url: arguments.admin.clone(),
    };
    if arguments.requests == 0 {
        return Err(CommandFault::usage("--requests must be a number above 0"));
    }
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    if arguments.watch {
        return watch_slo(arguments, &pages, logs);
    }
    let mut sheet = measure_slo(arguments, &pages)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

/// Returns the URLs; an argument that is no URL is a file with one URL per line.
pub(super) fn read_addresses(words: &[String]) -> Result<Vec<String>, CommandFault> {
    let mut all = Vec::new();
    for address in words {
        if address.contains("://") || !Path::new(address).is_file() {
            all.push(address.clone());
            continue;
        }
        let text = super::read_text(Path::new(address))?;
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        all.extend(
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned),
        );
    }
    Ok(all)
}

fn measure_slo(
    arguments: &LabSloArgs,
    pages: &latency::SloCheck,
) -> Result<ReportSheet, CommandFault> {
    let mut sheet = latency::run_slo_check(pages).map_err(lab_fault)?;
    if arguments.strict && !is_true_in_sheet(&sheet, "comparable") {
        sheet.add_verdict(
            ReportTone::Doubtful,
            "not measured: --strict requires all five conditions",
        );
    }
    Ok(sheet)
}

fn is_true_in_sheet(sheet: &ReportSheet, key: &str) -> bool {
    sheet.json_result.get(key).and_then(Value::as_bool) == Some(true)
}

/// The polling interval of a folder, and the pause without one.
const FOLDER_POLL_INTERVAL: Duration = Duration::from_secs(1);
const MEASUREMENT_PAUSE: Duration = Duration::from_secs(5);

/// Measures repeatedly, and prints each time whether the goal is met and which errors were logged since.
fn watch_slo(
    arguments: &LabSloArgs,
    pages: &latency::SloCheck,
    mut logs: WatchedLogs,
) -> CommandOutcome {
    let mut round = 0;
    // An error logged in an earlier round fails the whole watch, because it does not appear again.
    let mut has_logged = false;
    loop {
        round += 1;
        let last_change = arguments.watch_dir.as_deref().map(newest_change);
        let mut sheet = measure_slo(arguments, pages)?;
        let logged = logs.take_log_results();
        sheet.add_log_watches(&logged);
        has_logged |= logged.iter().any(|log| log.errors.error_count > 0);
        if arguments.run_options.output.json {
            say!("{}", sheet.to_json());
        } else {
            let sheet_value = |key: &str| sheet.json_result.get(key);
            let number = |key: &str| sheet_value(key).and_then(Value::as_f64).unwrap_or(0.0);
            say!(
                "{} {}: p70 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, by the {} clock{}",
                round,
                if is_true_in_sheet(&sheet, "met") && !sheet.has_bad_result() {
                    "met"
                } else {
                    "MISSED"
                },
                number("p70_ms"),
                number("p95_ms"),
                number("p99_ms"),
                number("max_ms"),
                sheet_value("clock").and_then(Value::as_str).unwrap_or("client's"),
                if is_true_in_sheet(&sheet, "comparable") { "" } else { " (not comparable)" },
            );
            for line in logged.iter().flat_map(LogWatchResult::describe_lines) {
                say!("{line}");
            }
        }
        if arguments.rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(if sheet.is_doubtful() {
                ExitCode::from(3)
            } else if sheet.has_bad_result() || has_logged {
                ExitCode::from(tympan_terminal::CHECK_FAILED_EXIT_CODE)
            } else {
                ExitCode::SUCCESS
            });
        }
        match &arguments.watch_dir {
            None => std::thread::sleep(MEASUREMENT_PAUSE),
            // A change during the measurement triggers the next one.
            Some(folder) => {
                while Some(newest_change(folder)) == last_change {
                    std::thread::sleep(FOLDER_POLL_INTERVAL);
                }
            }
        }
    }
}

/// Returns the newest modification time below a folder, and the number of files.
fn newest_change(folder: &Path) -> (Option<SystemTime>, u64) {
    let (mut newest, mut count) = (None, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(facts) = entry.metadata() else { continue };
            newest = newest.max(facts.modified().ok());
            count += 1;
            if facts.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    (newest, count)
}
