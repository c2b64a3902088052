//! `tympan lab page verify`: compares the responses of two sites.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_lab_engine::measurement::log_watch_result::LogWatchResult;
use tympan_lab_engine::plan_run::RunOptions;
use tympan_lab_tools::verification::ComparisonRules;
use tympan_lab_tools::verification::ResponseDifference;
use tympan_lab_tools::verification::compare_plan_runs;
use tympan_lab_tools::verification::{SiteComparison, SiteComparisonResult, parse_request_list};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::load_run::{load_plan, parse_headers, parse_properties, print_omitted_elements};
use super::log_watch::WatchedLogs;
use super::{duration_from_text, lab_fault, read_text};
use crate::args::page::LabVerifyArgs;

pub(super) fn run_site_verification(arguments: &LabVerifyArgs) -> CommandOutcome {
    let mut rules = ComparisonRules::default();
    rules.is_strict = arguments.strict;
    for rule in &arguments.rules {
        rules.add_rule(rule).map_err(lab_fault)?;
    }
    arguments.ignored_headers.iter().for_each(|name| rules.ignore_header(name));
    let verify = SiteComparison {
        before_url: arguments.before.clone(),
        after_url: arguments.after.clone(),
        headers: parse_headers(&arguments.headers)?,
        rules,
        timeout: duration_from_text(&arguments.timeout)?,
    };
    let logs = WatchedLogs::start(&arguments.logs)?;
    let verdict = compare_sites(&verify, arguments)?;
    let logged = logs.log_results();
    if arguments.json {
        print_site_comparison_json(&verdict, &logged);
    } else {
        print_site_comparison(&verdict, &logged);
    }
    Ok(if !verdict.changes.is_empty() || logged.iter().any(|log| log.errors.error_count > 0) {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else if verdict.is_same() && logged.iter().all(|log| log.read_failure.is_none()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

fn compare_sites(
    verify: &SiteComparison,
    arguments: &LabVerifyArgs,
) -> Result<SiteComparisonResult, CommandFault> {
    if is_plan_file(&arguments.what) {
        if !verify.headers.is_empty() {
            return Err(CommandFault::usage(
                "a plan has its own headers; -H is for lists of requests",
            ));
        }
        let plan = load_plan(&arguments.what, &arguments.allowed.allow_ignore)?;
        print_omitted_elements(&plan, &mut |line| {
            if !arguments.json {
                say!("{line}");
            }
        });
        let run = RunOptions {
            properties: parse_properties(&arguments.properties)?,
            seed: arguments.seed,
            ..RunOptions::default()
        };
        return compare_plan_runs(verify, &plan, &run).map_err(lab_fault);
    }
    let name = arguments.what.display().to_string();
    let asks = parse_request_list(&read_text(&arguments.what)?, &name).map_err(lab_fault)?;
    verify.compare_requests(&asks).map_err(lab_fault)
}

fn is_plan_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jmx" || extension == "toml")
}

fn print_site_comparison(verdict: &SiteComparisonResult, logged: &[LogWatchResult]) {
    let tell = |label: &str, difference: &ResponseDifference| {
        say!("{label} {}: {}\n{}", difference.request_line, difference.aspect, difference.diff);
    };
    verdict.changes.iter().for_each(|difference| tell("CHANGED", difference));
    verdict.unstable_differences.iter().for_each(|difference| tell("UNSTABLE", difference));
    for reason in &verdict.unanswered_requests {
        say!("NO RESPONSE {reason}");
    }
    for fault in &verdict.plan_faults {
        say!("FAULT OF THE PLAN {fault}");
    }
    for line in logged.iter().flat_map(LogWatchResult::describe_lines) {
        say!("{line}");
    }
    say!(
        "{} requests compared: {} changes, {} unstable, {} without a response, {} error lines logged",
        verdict.compared_count,
        verdict.changes.len(),
        verdict.unstable_differences.len(),
        verdict.unanswered_requests.len(),
        logged.iter().map(|log| log.errors.error_count).sum::<u64>()
    );
    if !verdict.unstable_differences.is_empty() {
        say!(
            "unstable: responses of the same site differ there; name the varying parts with --rule or \
             --ignore-header"
        );
    }
}

fn print_site_comparison_json(verdict: &SiteComparisonResult, logged: &[LogWatchResult]) {
    let list = |differences: &[ResponseDifference]| -> Vec<serde_json::Value> {
        differences
            .iter()
            .map(|difference| json!({ "request": difference.request_line, "aspect": difference.aspect.to_string(), "diff": difference.diff }))
            .collect()
    };
    let line = |log: &LogWatchResult, line: &String| json!({ "file": log.log_file, "line": line });
    let lines: Vec<_> = logged
        .iter()
        .flat_map(|log| log.errors.first_lines.iter().map(|text| line(log, text)))
        .collect();
    // Only the first ones of a large number are stored.
    let count: u64 = logged.iter().map(|log| log.errors.error_count).sum();
    let unread: Vec<&String> = logged.iter().filter_map(|log| log.read_failure.as_ref()).collect();
    say!(
        "{}",
        json!({
            "compared": verdict.compared_count,
            "changes": list(&verdict.changes),
            "unstable": list(&verdict.unstable_differences),
            "unanswered": verdict.unanswered_requests,
            "faults": verdict.plan_faults,
            "errors_logged": lines,
            "errors_logged_count": count,
            "logs_not_read": unread,
        })
    );
}
