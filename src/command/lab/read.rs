//! The commands that read what was measured elsewhere, and those that only calculate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tympan_lab::calculate::{self, peak_factor};
use tympan_lab::plan::Inventory;
use tympan_lab::record::Joined;
use tympan_lab::report::overlay;
use tympan_lab::requests::{self, CacheReport, GoalRow, Limits, RequestLog};
use tympan_lab::{Finding, goal, plan, report as reports};

use super::keep::Keeper;
use super::logs::WatchedLogs;
use super::{Telling, conclude, duration, fault, goals, open, write};
use crate::args::lab::{CacheRatio, Check, Log, ReportArguments, UploadGoal, Users};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn check(arguments: &Check) -> Outcome {
    let mut problems = 0;
    let mut told = Vec::new();
    let mut refusals = Refusals::default();
    for path in &arguments.plans {
        let check = plan::check_without(path, &arguments.allowed.allow_ignore);
        let check = check.map_err(|error| fault(&error))?;
        problems += check.findings.len();
        refusals.add(&check.findings);
        let is_jmx = path.extension().is_none_or(|extension| extension != "toml");
        if arguments.json {
            told.push(check_json(path, &check, is_jmx));
            continue;
        }
        for finding in &check.findings {
            say!("{finding}");
        }
        for place in &check.inventory.left_out {
            say!("{place}: left out");
        }
        for place in &check.inventory.unknown {
            say!("{place}");
        }
        let verdict = if check.findings.is_empty() { "can be run" } else { "cannot be run" };
        let subset = if is_jmx { subset(&check.inventory) } else { String::new() };
        say!("{}: {verdict}{subset}", path.display());
        if arguments.explain {
            explain(&check.inventory, is_jmx);
        }
    }
    if arguments.json {
        say!("{}", json!({ "plans": told, "refused": refusals.to_json() }));
    } else if arguments.plans.len() > 1 {
        refusals.print();
    }
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// What plans were refused for, and how often.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<String, (usize, usize)>);

impl Refusals {
    /// Adds the findings of one plan.
    fn add(&mut self, findings: &[Finding]) {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for finding in findings {
            *reasons.entry(reason_of(&finding.message)).or_default() += 1;
        }
        for (reason, count) in reasons {
            let (plans, all) = self.0.entry(reason).or_default();
            *plans += 1;
            *all += count;
        }
    }

    /// Returns reasons with the plans that have them and how often they occur in all, the most frequent first.
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

/// Returns what a finding is about without the element's own name and the line in its script.
fn reason_of(message: &str) -> String {
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

fn check_json(path: &Path, check: &plan::Check, is_jmx: bool) -> serde_json::Value {
    let inventory = &check.inventory;
    let texts = |all: &[Finding]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut told = json!({
        "file": path.display().to_string(),
        "can_be_run": check.findings.is_empty(),
        "findings": texts(&check.findings),
        "left_out": texts(&inventory.left_out),
        "unknown": texts(&inventory.unknown),
        "elements": inventory.elements,
        "functions": inventory.functions,
        "listeners": inventory.ignored,
    });
    // Plans in TOML are made of other things.
    if is_jmx && let Some(fields) = told.as_object_mut() {
        fields.insert("subset".to_owned(), json!(inventory.subset()));
        fields.insert("beyond".to_owned(), json!(inventory.beyond().collect::<Vec<_>>()));
    }
    told
}

/// Says in words which subset of JMeter's elements a plan needs.
fn subset(inventory: &Inventory) -> String {
    match inventory.subset() {
        Some(number) => format!(" (subset {number} of {})", plan::SUBSETS),
        None => {
            let beyond: Vec<&str> = inventory.beyond().collect();
            format!(" (beyond subset {}: {})", plan::SUBSETS, beyond.join(", "))
        }
    }
}

/// Prints what a plan is made of, for one of JMeter with the subset of each.
fn explain(inventory: &Inventory, is_jmx: bool) {
    for (name, count) in inventory.elements.iter().chain(&inventory.functions) {
        match plan::subset_of(name).filter(|_| is_jmx) {
            Some(number) => say!("    {count:>5} {name}  (subset {number})"),
            None if is_jmx => say!("    {count:>5} {name}  (in no subset)"),
            None => say!("    {count:>5} {name}"),
        }
    }
    say!("    {:>5} listeners that have nothing to do here", inventory.ignored);
}

pub(super) fn report(arguments: &ReportArguments) -> Outcome {
    if let Some(file) = &arguments.project {
        return super::project::report(file, arguments.out.as_deref(), arguments.output.json);
    }
    let rows = match arguments.runs.as_slice() {
        [rows] if !rows.is_dir() && rows.extension().is_none_or(|kind| kind != "json") => rows,
        runs => return overlay(arguments, runs),
    };
    let goals = goals(arguments.output.goals.as_deref())?;
    let mut input = open(rows)?;
    let name = rows.display().to_string();
    let joined = joined(&arguments.request_log)?;
    let mut results =
        reports::read_rows_with(&mut input, &name, joined).map_err(|error| fault(&error))?;
    if results.joined.as_ref().is_some_and(|joined| joined.samples == 0) {
        return Err(Fault::usage(format!(
            "no row of `{name}` has a mark, so nothing is found in a request.log: run with --mark and --jtl"
        )));
    }
    if results.labels.is_empty() && results.transactions.is_empty() {
        return Err(Fault::cannot_run(format!("`{name}` holds no samples: nothing was measured")));
    }
    if let Some(path) = &arguments.out {
        let judged = goal::judge(&goals, &results);
        let report =
            reports::Report { title: &name, results: &results, goals: &judged, is_own: false };
        super::write_report(path, &report)?;
    }
    conclude(
        &mut results,
        &Telling {
            title: &name,
            goals: &goals,
            output: &arguments.output,
            is_own: false,
            keeper: Keeper::nothing().end(),
            logs: WatchedLogs::default(),
        },
    )
}

/// Reads the marks of logs of the server; nothing if there are none to read.
fn joined(paths: &[PathBuf]) -> Result<Option<Joined>, Fault> {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        requests::read(&mut open(path)?, &name, Limits::default()).map_err(|error| fault(&error))
    };
    let logs: Vec<RequestLog> = paths.iter().map(read).collect::<Result<_, _>>()?;
    Ok((!logs.is_empty()).then(|| Joined::with(&logs)))
}

/// Makes one report of several runs.
fn overlay(arguments: &ReportArguments, paths: &[PathBuf]) -> Outcome {
    if arguments.output.goals.is_some() {
        return Err(Fault::usage(
            "--goals is for a single result file: runs that were kept were judged when they ran",
        ));
    }
    if !arguments.request_log.is_empty() {
        return Err(Fault::usage(
            "--request-log is for a single result file, whose rows have the marks of all samples",
        ));
    }
    let runs = overlay::read_runs(paths).map_err(|error| fault(&error))?;
    let sheet = overlay::sheet(&runs);
    if let Some(path) = &arguments.out {
        write(path, &sheet.html())?;
    }
    let code = super::phases::finish(&sheet, &arguments.output, None, None)?;
    let is_missed = runs.iter().any(|run| run.goals().1 > 0);
    Ok(if is_missed { ExitCode::from(CHECK_FAILED) } else { code })
}

pub(super) fn log(arguments: &Log) -> Outcome {
    let mut input = open(&arguments.file)?;
    let limits = Limits {
        most_requests: arguments.most_requests,
        without_crxde: arguments.exclude.is_some(),
    };
    let name = arguments.file.display().to_string();
    let log = requests::read(&mut input, &name, limits).map_err(|error| fault(&error))?;
    let times: Vec<Duration> = log.requests.iter().map(|request| request.elapsed).collect();
    let rows = requests::judge_latency(&times);
    if arguments.json {
        let slowest: Vec<_> = log
            .slowest()
            .into_iter()
            .take(arguments.most_results.unwrap_or(100))
            .map(|request| {
                json!({
                    "at": request.at.to_string(),
                    "method": request.method,
                    "target": request.target,
                    "status": request.status,
                    "ms": u64::try_from(request.elapsed.as_millis()).unwrap_or(u64::MAX),
                    "sample": request.sample,
                })
            })
            .collect();
        let most_time: Vec<_> = log
            .totals()
            .into_iter()
            .take(arguments.most_results.unwrap_or(100))
            .map(|total| {
                json!({
                    "path": total.path,
                    "requests": total.count,
                    "ms": u64::try_from(total.elapsed.as_millis()).unwrap_or(u64::MAX),
                })
            })
            .collect();
        let goal: Vec<_> = rows
            .iter()
            .map(|row| json!({ "wanted": row.wanted, "under_ms": row.limit_ms, "measured": row.measured, "met": row.is_met() }))
            .collect();
        say!(
            "{}",
            json!({
                "requests": log.requests.len(),
                "unfinished": log.unfinished,
                "malformed": log.malformed,
                "most_at_a_time": log.most_at_a_time,
                "slowest": slowest,
                "most_time": most_time,
                "latency_goal": goal,
            })
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}", log.rlog(arguments.most_results).trim_end());
    if arguments.summary {
        summary(&log, &rows, arguments.most_results.unwrap_or(10));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints where the time goes: `most` paths, types, and the latency goal.
fn summary(log: &RequestLog, rows: &[GoalRow], most: usize) {
    say!("\nat most {} requests at a time", log.most_at_a_time);
    say!("\nmost time in all:");
    let totals = log.totals();
    let all: Duration = totals.iter().map(|total| total.elapsed).sum();
    for total in totals.iter().take(most) {
        let share = total.elapsed.as_secs_f64() / all.as_secs_f64().max(1e-9) * 100.0;
        let took = goal::show(total.elapsed);
        say!("{took:>10} {share:>5.1} % {:>8} requests {}", total.count, total.path);
    }
    say!("");
    for (kind, times) in log.per_type() {
        say!(
            "{kind:<32} {:>8} requests, p50 {}, p95 {}, max {}",
            times.count(),
            goal::show(times.quantile(0.5)),
            goal::show(times.quantile(0.95)),
            goal::show(times.max())
        );
    }
    for row in rows {
        let word = match (row.can_be_judged, row.is_met()) {
            (false, _) => "cannot be judged from so few requests",
            (true, true) => "met",
            (true, false) => "missed",
        };
        say!(
            "{:>5.0} % under {:>4} ms: {:>6.2} % {word}",
            row.wanted * 100.0,
            row.limit_ms,
            row.measured * 100.0
        );
    }
}

pub(super) fn cache_ratio(arguments: &CacheRatio) -> Outcome {
    if let (Some(total), Some(reached)) = (arguments.total, arguments.reached) {
        if total == 0 || reached > total {
            return Err(Fault::usage(
                "--total is above 0, and --reached counts those of them that a cache did not answer",
            ));
        }
        say!("{}", calculate::CacheRatio { total, reached });
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.access.is_empty() || arguments.request.is_empty() {
        return Err(Fault::usage(
            "give logs with --access and --request, or counts with --total and --reached",
        ));
    }
    let mut report = CacheReport::default();
    let mut malformed = 0;
    for path in &arguments.access {
        let name = path.display().to_string();
        malformed += report.add_access(&mut open(path)?, &name).map_err(|error| fault(&error))?;
    }
    for path in &arguments.request {
        let name = path.display().to_string();
        malformed += report.add_requests(&mut open(path)?, &name).map_err(|error| fault(&error))?;
    }
    if report.total == 0 {
        return Err(Fault::usage(
            "no line of --access is one of an access.log, so there is no ratio",
        ));
    }
    say!("{}", report.ratio());
    if malformed > 0 {
        say!("{malformed} lines were not understood and do not count");
    }
    table("extension", &report.extensions);
    table("folder", &report.folders);
    let mut queries: Vec<_> = report.queries.iter().collect();
    queries.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (path, count) in queries.into_iter().take(10) {
        say!("with a query string, so not cached by default: {count:>8} x {path}");
    }
    if report.reached > report.total {
        return Err(Fault::cannot_run(
            "more requests reached publish than came in: the logs are not of the same time, or others ask publish, too",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn table(name: &str, rows: &BTreeMap<String, (u64, u64)>) {
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by_key(|(_, (_, reached))| std::cmp::Reverse(*reached));
    for (key, &(total, reached)) in rows.into_iter().take(20) {
        let ratio = calculate::CacheRatio { total, reached };
        say!(
            "{name:<10} {key:<32} {total:>9} asked {reached:>9} reached publish {:>6.1} %",
            ratio.share() * 100.0
        );
    }
}

pub(super) fn users(arguments: &Users) -> Outcome {
    let every = duration(&arguments.every)?;
    if every.is_zero() {
        return Err(Fault::usage("--every is a time above 0"));
    }
    let users =
        calculate::Users { users: arguments.users, every, response: duration(&arguments.resp)? };
    say!("{users}");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn upload_goal(arguments: &UploadGoal) -> Outcome {
    let number = |text: &str| -> Result<f64, Fault> {
        let digits = text.split('/').next().unwrap_or_default().trim_end_matches("MB").trim();
        digits.parse().map_err(|_| Fault::usage(format!("`{text}` is no number")))
    };
    let window = duration(&arguments.spread.window)?;
    let (share, time) = arguments.spread.skew.split_once('/').ok_or_else(|| {
        Fault::usage("--skew is such as 80/20: percent of the work / percent of the time")
    })?;
    let (share, time) = (number(share)?, number(time)?);
    if window.is_zero() || time <= 0.0 {
        return Err(Fault::usage("the window and the time of --skew are above 0"));
    }
    let uploads = calculate::Uploads {
        assets: number(&arguments.assets)?,
        size: number(&arguments.size)?,
        renditions: number(&arguments.spread.renditions)?,
        window,
        peak: peak_factor(share / 100.0, time / 100.0),
    };
    say!("average  {:.3} MB/s", uploads.average());
    say!(
        "peak     {:.3} MB/s ({}x), {:.1} assets/min: the goal",
        uploads.goal(),
        uploads.peak,
        uploads.assets_per_minute()
    );
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_reason_and_plan() {
        let finding = |message: &str| Finding {
            file: "p.jmx".to_owned(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        };
        let mut refusals = Refusals::default();
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
