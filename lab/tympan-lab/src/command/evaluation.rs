//! The commands that evaluate existing measurements, and those that only calculate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::measurement::ServerLogJoin;
use tympan_lab_engine::report::run_comparison;
use tympan_lab_engine::{goal, report as reports};
use tympan_lab_plan::{FileFinding, PlanInventory};
use tympan_lab_tools::calculator::peak_factor;
use tympan_lab_tools::request_log::{
    CacheReachReport, LatencyGoalRow, RequestLog, RequestLogLimits,
};
use tympan_lab_tools::{calculator, request_log};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::log_watch::WatchedLogs;
use super::run_folder::RunRecorder;
use super::{
    RunReportOptions, conclude_run, duration_from_text, lab_fault, open_file, read_goals,
    write_text,
};
use crate::args::estimate::{LabUploadGoalArgs, LabUsersArgs};
use crate::args::plan::LabCheckArgs;
use crate::args::read::{LabCacheRatioArgs, LabLogArgs, LabReportArgs};

pub(super) fn check_plans(arguments: &LabCheckArgs) -> CommandOutcome {
    let mut problems = 0;
    let mut reports = Vec::new();
    let mut refusals = PlanRefusals::default();
    for path in &arguments.plans {
        let check = tympan_lab_plan::check_plan_without(path, &arguments.allowed.allow_ignore);
        let check = check.map_err(lab_fault)?;
        problems += check.findings.len();
        refusals.add(&check.findings);
        let is_jmx = path.extension().is_none_or(|extension| extension != "toml");
        if arguments.json {
            reports.push(plan_check_json(path, &check, is_jmx));
            continue;
        }
        for finding in &check.findings {
            say!("{finding}");
        }
        for element in &check.inventory.excluded_elements {
            say!("{element}: left out");
        }
        for function in &check.inventory.unknown_functions {
            say!("{function}");
        }
        let verdict = if check.findings.is_empty() { "can be run" } else { "cannot be run" };
        let subset = if is_jmx { element_subset(&check.inventory) } else { String::new() };
        say!("{}: {verdict}{subset}", path.display());
        if arguments.explain {
            print_inventory(&check.inventory, is_jmx);
        }
    }
    if arguments.json {
        say!("{}", json!({ "plans": reports, "refused": refusals.to_json() }));
    } else if arguments.plans.len() > 1 {
        refusals.print();
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// The reasons why plans were refused, with their counts.
#[derive(Debug, Default)]
struct PlanRefusals(BTreeMap<String, (usize, usize)>);

impl PlanRefusals {
    /// Adds the findings of one plan.
    fn add(&mut self, findings: &[FileFinding]) {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for finding in findings {
            *reasons.entry(finding_reason(&finding.message)).or_default() += 1;
        }
        for (reason, count) in reasons {
            let (plans, all) = self.0.entry(reason).or_default();
            *plans += 1;
            *all += count;
        }
    }

    /// Returns the reasons with the number of plans that have them and of all occurrences, the most frequent first.
    fn by_frequency(&self) -> Vec<(&str, usize, usize)> {
        let mut all: Vec<_> =
            self.0.iter().map(|(reason, (plans, all))| (reason.as_str(), *plans, *all)).collect();
        all.sort_by_key(|(reason, plans, all)| (std::cmp::Reverse((*plans, *all)), *reason));
        all
    }

    fn print(&self) {
        if self.0.is_empty() {
            return;
        }
        say!("refused, the most frequent first:");
        say!("    plans  times  reason");
        for (reason, plans, all) in self.by_frequency() {
            say!("    {plans:>5}  {all:>5}  {reason}");
        }
    }

    fn to_json(&self) -> serde_json::Value {
        let entries = self.by_frequency().into_iter();
        entries
            .map(|(reason, plans, all)| json!({ "reason": reason, "plans": plans, "times": all }))
            .collect()
    }
}

/// Returns the subject of a finding without the element's own name and the line in its script.
fn finding_reason(message: &str) -> String {
    let (class, rest) = match message.split_once(" \"") {
        Some((class, rest)) if class.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            (class, rest)
        }
        _ => return message.to_owned(),
    };
    let reason = rest.split_once("\": ").map_or(rest, |(_, reason)| reason);
    let numbered = reason.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
    let reason = match numbered {
        Some((number, reason)) if number.bytes().all(|byte| byte.is_ascii_digit()) => reason,
        _ => reason,
    };
    format!("{class}: {reason}")
}

fn plan_check_json(
    path: &Path,
    check: &tympan_lab_plan::PlanCheck,
    is_jmx: bool,
) -> serde_json::Value {
    let inventory = &check.inventory;
    let texts = |all: &[FileFinding]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut report = json!({
        "file": path.display().to_string(),
        "can_be_run": check.findings.is_empty(),
        "findings": texts(&check.findings),
        "left_out": texts(&inventory.excluded_elements),
        "unknown": texts(&inventory.unknown_functions),
        "elements": inventory.elements,
        "functions": inventory.functions,
        "listeners": inventory.ignored_listeners,
    });
    // TOML plans have a different structure.
    if is_jmx && let Some(fields) = report.as_object_mut() {
        fields.insert("subset".to_owned(), json!(inventory.required_subset()));
        fields
            .insert("beyond".to_owned(), json!(inventory.unsupported_names().collect::<Vec<_>>()));
    }
    report
}

/// Returns a description of the subset of JMeter's elements that a plan needs.
fn element_subset(inventory: &PlanInventory) -> String {
    match inventory.required_subset() {
        Some(number) => format!(" (subset {number} of {})", tympan_lab_plan::HIGHEST_SUBSET),
        None => {
            let beyond: Vec<&str> = inventory.unsupported_names().collect();
            format!(" (beyond subset {}: {})", tympan_lab_plan::HIGHEST_SUBSET, beyond.join(", "))
        }
    }
}

/// Prints the structure of a plan; for a JMeter plan with the subset of each element.
fn print_inventory(inventory: &PlanInventory, is_jmx: bool) {
    for (name, count) in inventory.elements.iter().chain(&inventory.functions) {
        match tympan_lab_plan::subset_of(name).filter(|_| is_jmx) {
            Some(number) => say!("    {count:>5} {name}  (subset {number})"),
            None if is_jmx => say!("    {count:>5} {name}  (in no subset)"),
            None => say!("    {count:>5} {name}"),
        }
    }
    say!("    {:>5} ignored listeners", inventory.ignored_listeners);
}

pub(super) fn report_results(arguments: &LabReportArgs) -> CommandOutcome {
    if let Some(file) = &arguments.project {
        return super::performance_project::report_project(
            file,
            arguments.out.as_deref(),
            arguments.output.json,
        );
    }
    let rows = match arguments.runs.as_slice() {
        [rows] if !rows.is_dir() && rows.extension().is_none_or(|kind| kind != "json") => rows,
        runs => return report_several_runs(arguments, runs),
    };
    let goals = read_goals(arguments.output.goals.as_deref())?;
    let mut input = open_file(rows)?;
    let name = rows.display().to_string();
    let joined = read_server_logs(&arguments.request_log)?;
    let mut results =
        reports::read_results_with_log(&mut input, &name, joined).map_err(lab_fault)?;
    if results.server_log_join.as_ref().is_some_and(|joined| joined.marked_samples == 0) {
        return Err(CommandFault::usage(format!(
            "no row of `{name}` has a mark, so none can be matched with a request.log: run with --mark and \
             --jtl"
        )));
    }
    if results.labels.is_empty() && results.transactions.is_empty() {
        return Err(CommandFault::cannot_run(format!(
            "`{name}` contains no samples: nothing was measured"
        )));
    }
    if let Some(path) = &arguments.out {
        let judged = goal::judge_goals(&goals, &results);
        let report = reports::RunReport {
            title: &name,
            results: &results,
            judged_goals: &judged,
            is_own_load: false,
        };
        super::write_html_report(path, &report)?;
    }
    conclude_run(
        &mut results,
        &RunReportOptions {
            title: &name,
            goals: &goals,
            output: &arguments.output,
            is_generated_load: false,
            finished_run: RunRecorder::disabled().finish(),
            watched_logs: WatchedLogs::default(),
        },
    )
}

/// Reads the marks from server logs; `None` if no logs are given.
fn read_server_logs(paths: &[PathBuf]) -> Result<Option<ServerLogJoin>, CommandFault> {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        request_log::read_request_log(&mut open_file(path)?, &name, RequestLogLimits::default())
            .map_err(lab_fault)
    };
    let logs: Vec<RequestLog> = paths.iter().map(read).collect::<Result<_, _>>()?;
    Ok((!logs.is_empty())
        .then(|| ServerLogJoin::from_marked_times(logs.iter().flat_map(RequestLog::marked_times))))
}

/// Makes one report of several runs.
fn report_several_runs(arguments: &LabReportArgs, paths: &[PathBuf]) -> CommandOutcome {
    if arguments.output.goals.is_some() {
        return Err(CommandFault::usage(
            "--goals is for a single result file: stored runs were judged when they ran",
        ));
    }
    if !arguments.request_log.is_empty() {
        return Err(CommandFault::usage(
            "--request-log is for a single result file, whose rows have the marks of all samples",
        ));
    }
    let runs = run_comparison::read_compared_runs(paths).map_err(lab_fault)?;
    let sheet = run_comparison::run_comparison_sheet(&runs);
    if let Some(path) = &arguments.out {
        write_text(path, &sheet.to_html())?;
    }
    let code = super::load_phase::finish_phase_test(&sheet, &arguments.output, None, None)?;
    let is_missed = runs.iter().any(|run| run.goal_counts().1 > 0);
    Ok(if is_missed { ExitCode::from(CHECK_FAILED_EXIT_CODE) } else { code })
}

pub(super) fn summarize_request_log(arguments: &LabLogArgs) -> CommandOutcome {
    let mut input = open_file(&arguments.file)?;
    let limits = RequestLogLimits {
        max_requests: arguments.most_requests,
        skips_crxde: arguments.exclude.is_some(),
    };
    let name = arguments.file.display().to_string();
    let log = request_log::read_request_log(&mut input, &name, limits).map_err(lab_fault)?;
    let times: Vec<Duration> = log.requests.iter().map(|request| request.elapsed).collect();
    let rows = request_log::judge_latency(&times);
    if arguments.json {
        let slowest: Vec<_> = log
            .slowest()
            .into_iter()
            .take(arguments.most_results.unwrap_or(100))
            .map(|request| {
                json!({
                    "at": request.entry_time.to_string(),
                    "method": request.method,
                    "target": request.target,
                    "status": request.status,
                    "ms": u64::try_from(request.elapsed.as_millis()).unwrap_or(u64::MAX),
                    "sample": request.sample_mark,
                })
            })
            .collect();
        let most_time: Vec<_> = log
            .path_totals()
            .into_iter()
            .take(arguments.most_results.unwrap_or(100))
            .map(|total| {
                json!({
                    "path": total.path,
                    "requests": total.request_count,
                    "ms": u64::try_from(total.total_elapsed.as_millis()).unwrap_or(u64::MAX),
                })
            })
            .collect();
        let goal: Vec<_> = rows
            .iter()
            .map(|row| json!({ "wanted": row.required_share, "under_ms": row.limit_ms, "measured": row.measured_share, "met": row.is_met() }))
            .collect();
        say!(
            "{}",
            json!({
                "requests": log.requests.len(),
                "unfinished": log.unfinished_count,
                "malformed": log.malformed_lines,
                "max_concurrent": log.max_concurrent,
                "slowest": slowest,
                "max_time": most_time,
                "latency_goal": goal,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", log.to_rlog_text(arguments.most_results).trim_end());
    if arguments.summary {
        print_log_summary(&log, &rows, arguments.most_results.unwrap_or(10));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints where the time is spent: `most` paths, types, and the latency goal.
fn print_log_summary(log: &RequestLog, rows: &[LatencyGoalRow], most: usize) {
    say!("\nat most {} requests at a time", log.max_concurrent);
    say!("\nmost total time:");
    let totals = log.path_totals();
    let all: Duration = totals.iter().map(|total| total.total_elapsed).sum();
    for total in totals.iter().take(most) {
        let share = total.total_elapsed.as_secs_f64() / all.as_secs_f64().max(1e-9) * 100.0;
        let took = goal::format_response_time(total.total_elapsed);
        say!("{took:>10} {share:>5.1} % {:>8} requests {}", total.request_count, total.path);
    }
    say!("");
    for (kind, times) in log.times_per_media_type() {
        say!(
            "{kind:<32} {:>8} requests, p50 {}, p95 {}, max {}",
            times.count(),
            goal::format_response_time(times.quantile(0.5)),
            goal::format_response_time(times.quantile(0.95)),
            goal::format_response_time(times.max())
        );
    }
    for row in rows {
        let verdict_text = match (row.has_enough_samples, row.is_met()) {
            (false, _) => "too few requests to judge",
            (true, true) => "met",
            (true, false) => "missed",
        };
        say!(
            "{:>5.0} % under {:>4} ms: {:>6.2} % {verdict_text}",
            row.required_share * 100.0,
            row.limit_ms,
            row.measured_share * 100.0
        );
    }
}

pub(super) fn print_cache_ratio(arguments: &LabCacheRatioArgs) -> CommandOutcome {
    if let (Some(total), Some(reached)) = (arguments.total, arguments.reached) {
        if total == 0 || reached > total {
            return Err(CommandFault::usage(
                "--total must be above 0, and --reached must be the number of those requests that a cache did \
                 not answer",
            ));
        }
        let ratio =
            calculator::CacheHitRatio { total_requests: total, publisher_requests: reached };
        match arguments.json {
            true => say!("{}", ratio_json(&ratio)),
            false => say!("{ratio}"),
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.access_log.is_empty() || arguments.request_log.is_empty() {
        return Err(CommandFault::usage(
            "give logs with --access-log and --request-log, or counts with --total and --reached",
        ));
    }
    let mut report = CacheReachReport::default();
    let mut malformed = 0;
    for path in &arguments.access_log {
        let name = path.display().to_string();
        malformed += report.add_access_log(&mut open_file(path)?, &name).map_err(lab_fault)?;
    }
    for path in &arguments.request_log {
        let name = path.display().to_string();
        malformed += report.add_request_log(&mut open_file(path)?, &name).map_err(lab_fault)?;
    }
    if report.total_requests == 0 {
        return Err(CommandFault::usage(
            "--access-log contains no line of an access.log, so there is no ratio",
        ));
    }
    let mut queries: Vec<_> = report.query_requests_per_path.iter().collect();
    queries.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    if arguments.json {
        let mut body = ratio_json(&report.cache_ratio());
        if let Some(members) = body.as_object_mut() {
            members.insert("malformed_lines".to_owned(), json!(malformed));
            members.insert("extensions".to_owned(), ratio_rows_json(&report.counts_per_extension));
            members.insert("folders".to_owned(), ratio_rows_json(&report.counts_per_folder));
            let row = |&(path, count): &(&String, &u64)| json!({ "path": path, "requests": count });
            let queries: Vec<_> = queries.iter().map(row).collect();
            members.insert("paths_with_query".to_owned(), json!(queries));
        }
        say!("{body}");
    } else {
        say!("{}", report.cache_ratio());
        if malformed > 0 {
            say!("{malformed} malformed lines were ignored");
        }
        print_ratio_table("extension", &report.counts_per_extension);
        print_ratio_table("folder", &report.counts_per_folder);
        for (path, count) in queries.into_iter().take(10) {
            say!("with a query string, so not cached by default: {count:>8} x {path}");
        }
    }
    if report.publisher_requests > report.total_requests {
        return Err(CommandFault::cannot_run(
            "more requests reached publish than came in: the logs cover different times, or other clients \
             send requests to publish, too",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn ratio_json(ratio: &calculator::CacheHitRatio) -> Value {
    json!({
        "requests": ratio.total_requests,
        "reached_publish": ratio.publisher_requests,
        "hit_share": ratio.hit_share(),
    })
}

/// Returns the ratios by name, all of them.
fn ratio_rows_json(rows: &BTreeMap<String, (u64, u64)>) -> Value {
    rows.iter()
        .map(|(name, &(total, reached))| {
            let ratio =
                calculator::CacheHitRatio { total_requests: total, publisher_requests: reached };
            (name.clone(), ratio_json(&ratio))
        })
        .collect()
}

fn print_ratio_table(name: &str, rows: &BTreeMap<String, (u64, u64)>) {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|(_, (_, reached))| std::cmp::Reverse(*reached));
    for (key, &(total, reached)) in rows.into_iter().take(20) {
        let ratio =
            calculator::CacheHitRatio { total_requests: total, publisher_requests: reached };
        say!(
            "{name:<10} {key:<32} {total:>9} requests {reached:>9} reached publish {:>6.1} %",
            ratio.hit_share() * 100.0
        );
    }
}

pub(super) fn calculate_users(arguments: &LabUsersArgs) -> CommandOutcome {
    let every = duration_from_text(&arguments.interval)?;
    if every.is_zero() {
        return Err(CommandFault::usage("--interval must be a time above 0"));
    }
    let users = calculator::VisitorLoad {
        user_count: arguments.users,
        request_interval: every,
        response_time: duration_from_text(&arguments.response_time)?,
    };
    if arguments.json {
        let in_flight = (!users.response_time.is_zero()).then(|| users.in_flight());
        say!("{}", json!({ "arrivals_per_second": users.arrival_rate(), "in_flight": in_flight }));
    } else {
        say!("{users}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn calculate_upload_goal(arguments: &LabUploadGoalArgs) -> CommandOutcome {
    let number = |text: &str| -> Result<f64, CommandFault> {
        let digits = text.split('/').next().unwrap_or_default().trim_end_matches("MB").trim();
        digits.parse().map_err(|_| CommandFault::usage(format!("`{text}` is not a number")))
    };
    let window = duration_from_text(&arguments.spread.window)?;
    let (share, time) = arguments.spread.skew.split_once('/').ok_or_else(|| {
        CommandFault::usage("--skew has the form 80/20: percent of the work / percent of the time")
    })?;
    let (share, time) = (number(share)?, number(time)?);
    if window.is_zero() || time <= 0.0 {
        return Err(CommandFault::usage("the window and the time of --skew must be above 0"));
    }
    let uploads = calculator::UploadWorkload {
        assets_per_window: number(&arguments.assets)?,
        original_mb: number(&arguments.size)?,
        renditions_mb: number(&arguments.spread.renditions)?,
        window,
        peak_factor: peak_factor(share / 100.0, time / 100.0),
    };
    if arguments.json {
        say!(
            "{}",
            json!({
                "average_mb_per_second": uploads.average_mb_per_second(),
                "peak_mb_per_second": uploads.peak_mb_per_second(),
                "peak_factor": uploads.peak_factor,
                "peak_assets_per_minute": uploads.peak_assets_per_minute(),
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("average  {:.3} MB/s", uploads.average_mb_per_second());
    say!(
        "peak     {:.3} MB/s ({}x), {:.1} assets/min: the goal",
        uploads.peak_mb_per_second(),
        uploads.peak_factor,
        uploads.peak_assets_per_minute()
    );
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason_and_plan() {
        let finding = |message: &str| FileFinding {
            file: "p.jmx".to_owned(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        };
        let mut refusals = PlanRefusals::default();
        refusals.add(&[
            finding("JSR223Sampler \"a\": line 3: script calls `collect()` (not supported)"),
            finding("JSR223Sampler \"b\": line 9: script calls `collect()` (not supported)"),
            finding("JDBCSampler \"load: users\": not supported"),
        ]);
        refusals.add(&[finding("JDBCSampler \"x\": not supported"), finding("it is no plan")]);
        assert_eq!(
            refusals.by_frequency(),
            [
                ("JDBCSampler: not supported", 2, 2),
                ("JSR223Sampler: script calls `collect()` (not supported)", 1, 2),
                ("it is no plan", 1, 1),
            ]
        );
    }
}
