//! Tough Day: the tests, weights and modes with which Adobe loads an author, on the lab's own engine.
//!
//! In: a [`ToughConfig`], of a predefined suite or from a Tough Day YAML file, and an author. Out: a [`ReportSheet`]
//! with Tough Day's metrics per test.
//!
//! Invariants
//! * All content that tests create is below one name of the run, and is deleted at its end unless it is to be retained.
//! * Tests take turns in exactly the shares of their weights. Their prerequisites come from other tests of the suite:
//!   pages to delete or publish, assets, tags. A test whose prerequisites are missing is skipped and counted as
//!   skipped.
//!
//! Not here: live copies, which are rejected by name.

mod action;
pub mod backup_impact;
mod config;
mod shared_state;
mod suite;
mod tester;
mod yaml;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tympan_lab_engine::goal::{format_response_time, judge_goals};
use tympan_lab_engine::live_display::LiveDisplay;
use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest, ProbeResponse};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::load::{
    LoadRun, LoadRunState, VirtualUser, WorkerLoad, processor_count, run_load,
};
use tympan_lab_engine::measurement::{RunResults, SampleStats};
use tympan_lab_engine::net::LoadTarget;
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_engine::result_validity;
use tympan_lab_plan::goal::LoadGoal;
use tympan_lab_plan::{AbsoluteUrl, ArrivalProcess, ArrivalSchedule, RateInterval};

use crate::{Error, Result};

pub use config::{ToughConfig, config_of_suites, config_of_yaml};
pub use suite::{
    LoadRamp, PageAppearance, SUITE_NAMES, ToughLoadMode, ToughPhase, ToughTest, ToughTestKind,
    find_suite,
};

use action::USERS_ROOT;
use shared_state::{CreatedContent, ToughEnvironment, ToughServer, ToughSharedState};
use tester::ToughTester;

/// Query for a page on the author that a component renders.
const RENDERED_PAGE_QUERY: &str = "/bin/querybuilder.json?path=%2Fcontent&type=cq%3APageContent&property=sling%3AresourceType\
                     &property.operation=exists&orderby=path&p.limit=1&p.hits=full";
/// Maximum number of concurrent executions of the open model.
const MAX_CONCURRENT_EXECUTIONS: usize = 10_000;
/// Maximum time for executions in progress at the end of a phase.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A run of Tough Day.
#[derive(Debug)]
pub struct ToughDayRun<'a> {
    /// The configuration to run.
    pub config: ToughConfig,
    /// URL of the author, such as `http://127.0.0.1:4502`.
    pub author_url: String,
    /// URL of publish, for tests of publish and for the time until a publication is visible.
    pub publish_url: Option<String>,
    /// The credentials of the user who runs the tests.
    pub authorization: RequestAuthorization,
    /// The name of the run; all content is created below it.
    pub run_name: String,
    /// If true, created content is retained.
    pub keeps_content: bool,
    /// A picture to upload instead of a generated one.
    pub upload_picture: Option<Vec<u8>>,
    /// Seed of the generated pictures.
    pub picture_seed: u64,
    /// Prefix of the passwords of users that tests create. These users can log in until the run ends.
    pub user_password_prefix: String,
    /// Goals over all measured phases.
    pub goals: &'a [LoadGoal],
}

/// Number of executions and skips of each test of a phase.
type TestExecutionCounts = Vec<(u64, u64)>;
/// Waits that were pending when a phase ended: number and longest duration.
type PendingWaits = BTreeMap<String, (u64, Duration)>;

impl ToughDayRun<'_> {
    /// Describes the plan: phases, tests with their shares, and the nodes that would remain.
    #[must_use]
    pub fn describe_plan(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for phase in &self.config.phases {
            let load = match &phase.load_mode {
                ToughLoadMode::Normal { users, pause } => {
                    format!(
                        "normal: {} users, {} between executions",
                        format_ramp(users),
                        format_response_time(*pause)
                    )
                }
                ToughLoadMode::ConstantLoad { rate } => {
                    format!("constantload: {} executions/s", format_ramp(rate))
                }
            };
            writeln!(out, "{} ({}), {load}", phase.name, format_response_time(phase.duration)).ok();
            let weights: u64 = phase.tests.iter().map(|test| test.weight).sum();
            let executions = planned_executions(phase);
            let mut nodes = Some(0u64);
            for test in &phase.tests {
                let share = test.weight as f64 / weights.max(1) as f64;
                let count = test
                    .max_executions
                    .map_or_else(String::new, |count| format!(", at most {count} times"));
                writeln!(out, "    {:>5.1} %  {}{count}", share * 100.0, test.name).ok();
                let times = executions.map(|all| (all * share) as u64).or(
                    match test.kind.nodes_per_execution() {
                        0 => Some(0),
                        _ => test.max_executions,
                    },
                );
                let times = times.map(|times| times.min(test.max_executions.unwrap_or(u64::MAX)));
                nodes = nodes
                    .zip(times)
                    .map(|(nodes, times)| nodes + times * test.kind.nodes_per_execution());
            }
            match nodes {
                Some(nodes) => writeln!(out, "    about {nodes} nodes at most").ok(),
                None => writeln!(out, "    as many nodes as the author manages to make").ok(),
            };
        }
        out
    }

    /// Prepares the author, runs all phases, cleans up, and returns the report.
    ///
    /// # Errors
    /// `Error::InvalidUrl`, `Error::Resolve`, [`Error::UnusableInput`]; [`Error::NoResponse`] if the author cannot
    /// be prepared; [`Error::Engine`].
    pub fn run(&self, live: &mut LiveDisplay) -> Result<ReportSheet> {
        for phase in &self.config.phases {
            let needs_publish = phase.tests.iter().any(|test| test.is_on_publish);
            if needs_publish && self.publish_url.is_none() {
                return Err(Error::UnusableInput(
                    "tests of publish need `--publish URL`".to_owned(),
                ));
            }
            test_order(phase)?;
        }
        let mut author = ToughAuthor::new(&self.author_url, &self.authorization)?;
        author.create_roots(&self.run_name)?;
        if self.runs_any_of(&[ToughTestKind::CreateUserTree]) {
            let body = "./jcr%3AprimaryType=rep%3AAuthorizableFolder";
            author.post(&format!("{USERS_ROOT}/{}", self.run_name), body)?;
        }
        if self.runs_any_of(&[ToughTestKind::CreateGroupWithUsers]) {
            author.create_group(&ToughSharedState::everybody_group(&self.run_name))?;
        }
        let outcome = self.run_phases(&mut author, live);
        let cleaned = if self.keeps_content { Ok(()) } else { self.clean_up(&mut author) };
        let mut sheet = outcome?;
        if let Err(error) = cleaned {
            sheet.add_verdict(
                ReportTone::Doubtful,
                format!("cannot delete the content created below `{}`: {error}", self.run_name),
            );
        }
        Ok(sheet)
    }

    /// Returns true if one of these tests runs.
    fn runs_any_of(&self, kinds: &[ToughTestKind]) -> bool {
        let mut tests = self.config.phases.iter().flat_map(|phase| &phase.tests);
        tests.any(|test| kinds.contains(&test.kind))
    }

    fn clean_up(&self, author: &mut ToughAuthor) -> Result<()> {
        let is_published =
            self.runs_any_of(&[ToughTestKind::PublishPage, ToughTestKind::ActivatePagesTree]);
        let cleaned = author.clean_up(&self.run_name, is_published);
        let accounts = [
            ToughTestKind::CreateUser,
            ToughTestKind::CreateUserTree,
            ToughTestKind::CreateUserGroup,
            ToughTestKind::CreateGroupWithUsers,
        ];
        if self.runs_any_of(&accounts) {
            author.remove_accounts(&self.run_name)?;
        }
        if self.runs_any_of(&[ToughTestKind::CreateUserTree]) {
            author.post(&format!("{USERS_ROOT}/{}", self.run_name), "%3Aoperation=delete")?;
        }
        cleaned
    }

    fn run_phases(&self, author: &mut ToughAuthor, live: &mut LiveDisplay) -> Result<ReportSheet> {
        let mut setting = self.detect_environment(author)?;
        let mut left = CreatedContent::default();
        let mut phase_results = Vec::new();
        for phase in &self.config.phases {
            let wait = match &phase.load_mode {
                ToughLoadMode::Normal { pause: wait, .. } => *wait,
                ToughLoadMode::ConstantLoad { .. } => Duration::ZERO,
            };
            let shared = Arc::new(ToughSharedState::new(
                setting,
                phase.tests.clone(),
                test_order(phase)?,
                wait,
                left,
            ));
            let results = run_load(phase_load(phase, &shared), live)?;
            let counts = (shared.execution_and_skip_counts(), shared.pending_waits());
            // The workers have ended, so this is the only reference.
            let shared = Arc::into_inner(shared)
                .ok_or_else(|| Error::UnusableInput("a worker did not end".to_owned()))?;
            (setting, left) = shared.into_parts();
            phase_results.push((phase, results, counts));
        }
        Ok(self.build_tough_sheet(phase_results))
    }

    /// Detects the servers and their homepages.
    fn detect_environment(&self, author: &mut ToughAuthor) -> Result<ToughEnvironment> {
        let url = AbsoluteUrl::parse(self.author_url.trim_end_matches('/'))?;
        let publish = match &self.publish_url {
            None => None,
            Some(publish) => {
                let url = AbsoluteUrl::parse(publish.trim_end_matches('/'))?;
                let target = LoadTarget::resolve(url.is_tls, &url.host, url.port)?;
                Some(ToughServer { base_url: url, target, headers: Vec::new() })
            }
        };
        let homepage = [
            author.find_homepage(&url)?,
            match &publish {
                Some(site) => author.find_homepage(&site.base_url)?,
                None => "/".to_owned(),
            },
        ];
        Ok(ToughEnvironment {
            author: ToughServer {
                target: LoadTarget::resolve(url.is_tls, &url.host, url.port)?,
                base_url: url,
                headers: vec![self.authorization.to_header()],
            },
            publish,
            run_name: self.run_name.clone(),
            picture: self
                .upload_picture
                .clone()
                .unwrap_or_else(|| crate::content_generator::sample_picture(self.picture_seed)),
            homepages: homepage,
            default_appearance: author.page_appearance(),
            password_prefix: self.user_password_prefix.clone(),
        })
    }

    fn build_tough_sheet(
        &self,
        phase_results: Vec<(&ToughPhase, RunResults, (TestExecutionCounts, PendingWaits))>,
    ) -> ReportSheet {
        let mut sheet = ReportSheet::new("Tough Day");
        let mut whole: Option<RunResults> = None;
        let mut phases = Vec::new();
        for (phase, results, (counts, waiting)) in phase_results {
            let title = if phase.is_measured {
                phase.name.clone()
            } else {
                format!("{} (not measured)", phase.name)
            };
            let (grid, json) = test_metrics_table(&title, phase, &results, &counts);
            sheet.parts.push(ReportPart::Table(grid));
            phases.push(json);
            for doubt in result_validity::validity_doubts(&results) {
                sheet.add_verdict(
                    ReportTone::Doubtful,
                    format!("GENERATOR SATURATED in {}: {doubt}", phase.name),
                );
            }
            for (label, (count, longest)) in waiting {
                // The table's times do not include pending waits, so they are reported separately. Otherwise the table
                // looks better than the run was.
                sheet.add_verdict(
                    if results.labels.contains_key(label.as_str()) { ReportTone::Plain } else { ReportTone::Bad },
                    format!(
                        "{label}: {count} still waited when `{}` ended, the longest for {}; the table does \
                         not include them",
                        phase.name,
                        format_response_time(longest)
                    ),
                );
            }
            if !phase.is_measured {
                continue;
            }
            match &mut whole {
                None => whole = Some(results),
                Some(whole) => whole.append_part(results),
            }
        }
        let Some(results) = whole else {
            sheet.add_verdict(ReportTone::Doubtful, "no phase was measured");
            return sheet;
        };
        let total = results.total_stats();
        if total.status_counts.keys().all(|status| *status == 0) {
            sheet.add_verdict(ReportTone::Doubtful, "the author never responded");
        }
        let tone = if total.error_count == 0 { ReportTone::Good } else { ReportTone::Plain };
        sheet.add_verdict(
            tone,
            format!(
                "{} requests in {}, {:.1}/s, {} failed ({:.2} %)",
                total.count(),
                format_response_time(results.elapsed),
                results.rate_of(total.count()),
                total.error_count,
                total.error_rate() * 100.0
            ),
        );
        if let Some(line) = flat_to_tree_ratio(&results) {
            sheet.add_verdict(ReportTone::Plain, line);
        }
        sheet.judged_goals = judge_goals(self.goals, &results);
        sheet.json_result = json!({ "run": self.run_name, "phases": phases, "seconds": results.elapsed.as_secs_f64() });
        sheet
    }
}

/// Returns the ratio of creation times below one parent to those in a tree, which indicates a store that slows down
/// with many children.
fn flat_to_tree_ratio(results: &RunResults) -> Option<String> {
    let median = |label: &str| Some(results.labels.get(label)?.total.response_times.quantile(0.5));
    let flat = median(ToughTestKind::CreatePage.name())?;
    let tree = median(ToughTestKind::CreatePageTree.name())?;
    let ratio = flat.as_secs_f64() / tree.as_secs_f64().max(1e-9);
    Some(format!(
        "creating a page takes {} below one parent and {} in a tree (medians): {ratio:.2} times",
        format_response_time(flat),
        format_response_time(tree)
    ))
}

fn format_ramp(ramp: &LoadRamp) -> String {
    if ramp.start_level == ramp.end_level {
        return ramp.end_level.to_string();
    }
    format!(
        "{} to {}, {} every {}",
        ramp.start_level,
        ramp.end_level,
        ramp.step_size,
        format_response_time(ramp.step_interval)
    )
}

/// Returns the number of executions that a phase begins, if its load determines it.
fn planned_executions(phase: &ToughPhase) -> Option<f64> {
    match &phase.load_mode {
        ToughLoadMode::Normal { .. } => None,
        ToughLoadMode::ConstantLoad { rate } => Some(
            rate.levels(phase.duration)
                .iter()
                .map(|(level, duration)| level * duration.as_secs_f64())
                .sum(),
        ),
    }
}

/// Returns the order in which tests take turns.
fn test_order(phase: &ToughPhase) -> Result<Vec<usize>> {
    let weights: Vec<u64> = phase.tests.iter().map(|test| test.weight).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Err(Error::UnusableInput(format!("no test of `{}` has a weight", phase.name)));
    }
    // Tests without a weight never run and are left out of the order.
    let (test_indexes, weights): (Vec<usize>, Vec<u64>) =
        weights.into_iter().enumerate().filter(|(_, weight)| *weight > 0).unzip();
    let order = tympan_lab_plan::weighted_order(&weights).ok_or_else(|| {
        Error::UnusableInput(format!(
            "the ratio of the weights of `{}` is too fine; use smaller ones",
            phase.name
        ))
    })?;
    Ok(order.into_iter().filter_map(|turn| test_indexes.get(turn).copied()).collect())
}

/// Returns the load of a phase.
fn phase_load(phase: &ToughPhase, shared: &Arc<ToughSharedState>) -> LoadRun {
    let workers = processor_count();
    let mut crews: Vec<WorkerLoad> = Vec::new();
    match &phase.load_mode {
        ToughLoadMode::Normal { users, .. } => {
            crews.extend((0..workers).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }));
            for (number, (start, lives)) in
                user_lifetimes(users, phase.duration).into_iter().enumerate()
            {
                let user = ToughTester::new(Arc::clone(shared), lives, false);
                if let Some(crew) = crews.get_mut(number % workers) {
                    crew.users.push((start, Box::new(user) as Box<dyn VirtualUser>));
                }
            }
        }
        ToughLoadMode::ConstantLoad { rate } => {
            let stretches: Vec<RateInterval> = rate
                .levels(phase.duration)
                .into_iter()
                .map(|(level, duration)| RateInterval::constant(level, duration))
                .collect();
            let schedule = ArrivalSchedule::from_intervals(ArrivalProcess::Uniform, &stretches, 0);
            let hired = Arc::new(AtomicUsize::new(0));
            for worker in 0..workers {
                let (shared, hired) = (Arc::clone(shared), Arc::clone(&hired));
                let hire = move || {
                    let is_free = hired.fetch_add(1, Ordering::Relaxed) < MAX_CONCURRENT_EXECUTIONS;
                    is_free.then(|| {
                        Box::new(ToughTester::new(Arc::clone(&shared), None, true))
                            as Box<dyn VirtualUser>
                    })
                };
                let arrivals = Some((schedule.for_share(worker, workers), Box::new(hire) as _));
                crews.push(WorkerLoad { users: Vec::new(), arrivals });
            }
        }
    }
    LoadRun {
        worker_loads: crews,
        stop_after: Some(phase.duration),
        drain_timeout: DRAIN_TIMEOUT,
        run_state: Arc::new(LoadRunState::default()),
        row_sink: None,
    }
}

/// Returns the start and duration of each user of a ramp; a duration of `None` lasts to the end.
fn user_lifetimes(users: &LoadRamp, duration: Duration) -> Vec<(Duration, Option<Duration>)> {
    let mut spans: Vec<(Duration, Option<Duration>)> = Vec::new();
    let mut running: Vec<usize> = Vec::new();
    let mut now = Duration::ZERO;
    for (level, holds) in users.levels(duration) {
        let target_count = level.round().clamp(0.0, 1e6) as usize;
        while running.len() < target_count {
            running.push(spans.len());
            spans.push((now, None));
        }
        while running.len() > target_count {
            let Some(span) = running.pop().and_then(|last| spans.get_mut(last)) else { continue };
            span.1 = Some(now.saturating_sub(span.0));
        }
        now += holds;
    }
    spans
}

/// Returns Tough Day's metrics per test.
fn test_metrics_table(
    title: &str,
    phase: &ToughPhase,
    results: &RunResults,
    counts: &[(u64, u64)],
) -> (ReportTable, serde_json::Value) {
    let mut grid = ReportTable::new(
        title,
        &[
            "test",
            "passed",
            "failed",
            "skipped",
            "average",
            "median",
            "stddev",
            "min",
            "max",
            "90p",
            "99p",
            "99.9p",
            "real throughput",
            "reason",
        ],
    );
    let mut rows = Vec::new();
    let skipped = |label: &str| {
        let at = phase.tests.iter().position(|test| test.name == label);
        at.and_then(|at| counts.get(at)).map_or(0, |(_, skipped)| *skipped)
    };
    let mut add = |label: &str, stats: &SampleStats| {
        let tone = if stats.error_count == 0 { ReportTone::Plain } else { ReportTone::Bad };
        let time = |share: f64| format_response_time(stats.response_times.quantile(share));
        let rate = results.rate_of(stats.count() - stats.error_count.min(stats.count()));
        let reason = stats.failure_reason_counts.iter().max_by_key(|(_, count)| **count);
        let reason = reason.map_or_else(String::new, |(reason, _)| reason.clone());
        rows.push(json!({
            "test": label, "passed": stats.count() - stats.error_count, "failed": stats.error_count, "skipped": skipped(label),
            "average_ms": stats.response_times.mean().as_secs_f64() * 1e3,
            "median_ms": stats.response_times.quantile(0.5).as_secs_f64() * 1e3,
            "p99_ms": stats.response_times.quantile(0.99).as_secs_f64() * 1e3, "throughput": rate,
        }));
        grid.add_row(
            // A row with failures is marked doubtful, because goals determine the verdict.
            if tone == ReportTone::Bad { ReportTone::Doubtful } else { tone },
            vec![
                label.to_owned(),
                (stats.count() - stats.error_count).to_string(),
                stats.error_count.to_string(),
                skipped(label).to_string(),
                format_response_time(stats.response_times.mean()),
                time(0.5),
                format_response_time(stats.response_times.standard_deviation()),
                format_response_time(stats.response_times.min()),
                format_response_time(stats.response_times.max()),
                time(0.9),
                time(0.99),
                time(0.999),
                format!("{rate:.2}/s"),
                reason,
            ],
        );
    };
    for (label, series) in &results.labels {
        add(label, &series.total);
    }
    for test in phase.tests.iter().filter(|test| !results.labels.contains_key(test.name.as_str())) {
        // Samples of composite tests have names of their own.
        let is_composite = matches!(
            test.kind,
            ToughTestKind::Authoring
                | ToughTestKind::AuthoringTree
                | ToughTestKind::CreateGroupWithUsers
                | ToughTestKind::CreateUserTree
        );
        if !is_composite || skipped(&test.name) > 0 {
            add(&test.name, &SampleStats::default());
        }
    }
    (grid, json!({ "phase": phase.name, "measured": phase.is_measured, "tests": rows }))
}

/// A client for the author before and after the tests, with one request at a time.
struct ToughAuthor {
    base_url: AbsoluteUrl,
    client: ProbeClient,
    headers: Vec<(String, String)>,
}

impl ToughAuthor {
    fn new(url: &str, authorization: &RequestAuthorization) -> Result<Self> {
        Ok(Self {
            base_url: AbsoluteUrl::parse(url.trim_end_matches('/'))?,
            client: ProbeClient::new(Duration::from_secs(60)),
            headers: vec![authorization.to_header()],
        })
    }

    fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let prefix = self.base_url.path_and_query.trim_end_matches('/');
        let url = AbsoluteUrl {
            path_and_query: format!("{prefix}{}", path.replace(':', "%3A")),
            ..self.base_url.clone()
        };
        let mut headers = self.headers.clone();
        headers.push(("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
        let question =
            ProbeRequest { method: "POST", url: &url, headers: &headers, body: body.as_bytes() };
        let response = self.client.send(&question)?;
        if response.status < 400 {
            return Ok(());
        }
        Err(Error::NoResponse {
            url: url.to_string(),
            reason: format!("it returned status {}", response.status),
        })
    }

    /// Creates the roots of test content.
    fn create_roots(&mut self, run: &str) -> Result<()> {
        for (path, kind) in ToughSharedState::content_roots(run) {
            let body = match kind {
                "cq:Page" => format!(
                    "./jcr%3AprimaryType=cq%3APage&./jcr%3Acontent/jcr%3AprimaryType=cq%3APageContent&./jcr%3Acontent/jcr%3Atitle={run}"
                ),
                "cq:Tag" => format!("./jcr%3AprimaryType=cq%3ATag&./jcr%3Atitle={run}"),
                _ => "./jcr%3AprimaryType=sling%3AOrderedFolder".to_owned(),
            };
            self.post(&path, &body)?;
        }
        Ok(())
    }

    /// Creates a group.
    fn create_group(&mut self, name: &str) -> Result<()> {
        let body = json!({ "name": name }).to_string();
        self.send_request("POST", "/api/v1/groups", body.as_bytes()).map(|_| ())
    }

    /// Removes the users and groups of a run, including those whose creation was not acknowledged.
    fn remove_accounts(&mut self, run: &str) -> Result<()> {
        let prefix = format!("{run}-");
        for (kind, singular) in [("users", "user"), ("groups", "group")] {
            let mut after = String::new();
            loop {
                let list = format!("/api/v1/{kind}?search={prefix}&limit=100&after={after}");
                let response = self.send_request("GET", &list, b"")?;
                let page: serde_json::Value =
                    serde_json::from_slice(&response.body).unwrap_or_default();
                let names = page.get(kind).and_then(serde_json::Value::as_array);
                for account in names.into_iter().flatten() {
                    let name = account.get("name").and_then(serde_json::Value::as_str);
                    let Some(name) = name.filter(|name| name.starts_with(&prefix)) else {
                        continue;
                    };
                    self.send_request("DELETE", &format!("/api/v1/{singular}?name={name}"), b"")?;
                }
                match page.get("next").and_then(serde_json::Value::as_str) {
                    Some(next) => next.clone_into(&mut after),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Sends a request to the author's API.
    fn send_request(
        &mut self,
        method: &'static str,
        path: &str,
        body: &[u8],
    ) -> Result<ProbeResponse> {
        let prefix = self.base_url.path_and_query.trim_end_matches('/');
        let url =
            AbsoluteUrl { path_and_query: format!("{prefix}{path}"), ..self.base_url.clone() };
        let mut headers = self.headers.clone();
        if !body.is_empty() {
            headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
        }
        let response =
            self.client.send(&ProbeRequest { method, url: &url, headers: &headers, body })?;
        if response.status < 400 {
            return Ok(response);
        }
        Err(Error::NoResponse {
            url: url.to_string(),
            reason: format!("it returned status {}", response.status),
        })
    }

    /// Deletes all content that tests created, and withdraws it from publish. A deletion on the author withdraws a page
    /// that was itself published, but not content published below a page that never was.
    fn clean_up(&mut self, run: &str, is_published: bool) -> Result<()> {
        let mut withdrawn = Ok(());
        if is_published {
            let body = "%3Aoperation=deactivate&%3Adeep=true";
            withdrawn = self.post(&format!("/content/{run}"), body);
        }
        for path in [
            format!("/content/{run}"),
            format!("/content/dam/{run}"),
            format!("/content/cq:tags/{run}"),
        ] {
            self.post(&path, "%3Aoperation=delete")?;
        }
        withdrawn
    }

    /// Returns the appearance of an existing page on the author, so that created pages are rendered in the same way. An
    /// author without pages, or without a search, yields the default appearance, and pages are created without one.
    fn page_appearance(&mut self) -> PageAppearance {
        let prefix = self.base_url.path_and_query.trim_end_matches('/');
        let url = AbsoluteUrl {
            path_and_query: format!("{prefix}{RENDERED_PAGE_QUERY}"),
            ..self.base_url.clone()
        };
        let question = ProbeRequest { method: "GET", url: &url, headers: &self.headers, body: b"" };
        let Ok(response) = self.client.send(&question) else { return PageAppearance::default() };
        let page: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let text = |name| Some(page.pointer("/hits/0")?.get(name)?.as_str()?.to_owned());
        PageAppearance { resource_type: text("sling:resourceType"), template: text("cq:template") }
    }

    /// Follows redirects from the root. Returns the path where they end.
    fn find_homepage(&mut self, base: &AbsoluteUrl) -> Result<String> {
        let prefix = base.path_and_query.trim_end_matches('/').to_owned();
        let mut path = "/".to_owned();
        for _ in 0..5 {
            let url = AbsoluteUrl { path_and_query: format!("{prefix}{path}"), ..base.clone() };
            let question =
                ProbeRequest { method: "GET", url: &url, headers: &self.headers, body: b"" };
            let response = self.client.send(&question)?;
            let next =
                response.header("Location").filter(|_| (300..400).contains(&response.status));
            let Some(next) = next else { break };
            // Only redirects on the same host are followed, because another host must not be loaded.
            let own = AbsoluteUrl::parse(next)
                .ok()
                .filter(|to| to.host == base.host && to.port == base.port);
            path = match own {
                Some(to) => {
                    to.path_and_query.strip_prefix(&prefix).unwrap_or(&to.path_and_query).to_owned()
                }
                None if next.starts_with('/') => {
                    next.strip_prefix(&prefix).unwrap_or(next).to_owned()
                }
                None => break,
            };
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_and_go_as_the_ramp_says() {
        let seconds = Duration::from_secs;
        let up = LoadRamp {
            start_level: 1.0,
            end_level: 3.0,
            step_size: 1.0,
            step_interval: seconds(2),
        };
        assert_eq!(
            user_lifetimes(&up, seconds(10)),
            [(seconds(0), None), (seconds(2), None), (seconds(4), None)]
        );
        let down = LoadRamp { start_level: 3.0, end_level: 1.0, ..up };
        assert_eq!(
            user_lifetimes(&down, seconds(10)),
            [(seconds(0), None), (seconds(0), Some(seconds(4))), (seconds(0), Some(seconds(2)))]
        );
    }

    #[test]
    fn tests_take_turns_by_their_weights() {
        let mut phase = config_of_suites("toughday").unwrap().phases.remove(0);
        let turns = test_order(&phase).unwrap();
        let counts: Vec<usize> =
            (0..5).map(|index| turns.iter().filter(|turn| **turn == index).count()).collect();
        assert_eq!(counts, [1, 1, 1, 2, 15]);
        phase.tests[4].weight = 0;
        assert!(!test_order(&phase).unwrap().contains(&4));
        phase.tests.iter_mut().for_each(|test| test.weight = 0);
        assert!(test_order(&phase).is_err());
    }
}
