//! The commands that analyze a site and its visitors: `cacheability`, `profile`, `replay`, `record`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tympan_lab_plan::TestPlan;
use tympan_lab_tools::cacheability::{CacheabilitySurvey, CrawlOptions};
use tympan_lab_tools::recording::RecordingOptions;
use tympan_lab_tools::recording_proxy::{ProxyExchange, RecordingProxy};
use tympan_lab_tools::replay::LogReplay;
use tympan_lab_tools::traffic_profile::{AccessLogVisit, TrafficProfile};
use tympan_lab_tools::{cacheability, har, recording, traffic_profile};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::load_run::parse_headers;
use super::log_watch::WatchedLogs;
use super::run_folder::RunRecorder;
use super::{
    RunReportOptions, conclude_run, duration_from_text, lab_fault, open_file, read_goals,
    read_text, write_text,
};
use crate::args::load::LabReplayArgs;
use crate::args::page::LabCacheabilityArgs;
use crate::args::plan::{LabProfileArgs, LabRecordArgs};

pub(super) fn run_cacheability(arguments: &LabCacheabilityArgs) -> CommandOutcome {
    let crawl = CrawlOptions {
        start_url: arguments.url.clone(),
        max_addresses: arguments.limit,
        headers: parse_headers(&arguments.headers)?,
        visitor_headers: parse_headers(&arguments.visitor)?,
        timeout: duration_from_text(&arguments.timeout)?,
    };
    let survey = cacheability::survey_cacheability(&crawl).map_err(lab_fault)?;
    if arguments.json {
        print_survey_json(&survey);
    } else {
        print_survey(&survey, arguments.examples);
    }
    Ok(match (survey.examples.is_empty(), survey.failures.is_empty()) {
        (false, _) => ExitCode::from(CHECK_FAILED_EXIT_CODE),
        (true, false) => ExitCode::from(3),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn print_survey(survey: &CacheabilitySurvey, most: usize) {
    for (obstacle, examples) in &survey.examples {
        say!("{obstacle}: {} addresses", examples.len());
        say!("  why  {}", obstacle.reason());
        say!("  do   {}", obstacle.advice());
        for example in examples.iter().take(most) {
            let from = match example.referrer.as_str() {
                "" => String::new(),
                from => format!("  (from {from})"),
            };
            say!("       {}  {}{from}", example.target, example.observation);
        }
        if examples.len() > most {
            say!("       and {} more", examples.len() - most);
        }
    }
    for reason in &survey.failures {
        say!("NO RESPONSE {reason}");
    }
    say!(
        "{} addresses requested, {} of them hard to cache{}",
        survey.requested_count,
        survey.hindered_count,
        match survey.skipped_count {
            0 => String::new(),
            left => format!("; at least {left} more were not checked (--limit)"),
        }
    );
}

fn print_survey_json(survey: &CacheabilitySurvey) {
    let obstacles: Vec<_> = survey
        .examples
        .iter()
        .map(|(obstacle, examples)| {
            let examples: Vec<_> = examples
                .iter()
                .map(|example| json!({ "target": example.target, "seen": example.observation, "from": example.referrer }))
                .collect();
            json!({
                "obstacle": obstacle.name(),
                "reason": obstacle.reason(),
                "advice": obstacle.advice(),
                "examples": examples,
            })
        })
        .collect();
    say!(
        "{}",
        json!({
            "asked": survey.requested_count,
            "hindered": survey.hindered_count,
            "left": survey.skipped_count,
            "found": obstacles,
            "unanswered": survey.failures,
        })
    );
}

fn read_visits(log: &std::path::Path) -> Result<(Vec<AccessLogVisit>, u64), CommandFault> {
    let name = log.display().to_string();
    traffic_profile::read_access_log(&mut open_file(log)?, &name).map_err(lab_fault)
}

pub(super) fn run_profile(arguments: &LabProfileArgs) -> CommandOutcome {
    let (visits, malformed) = read_visits(&arguments.log)?;
    let profile = TrafficProfile::from_visits(&visits, malformed);
    if let Some(path) = &arguments.plan {
        write_text(path, &profile.plan(&arguments.target, arguments.limit).to_toml())?;
    }
    if let Some(path) = &arguments.goals {
        write_text(path, &profile.goals())?;
    }
    if !arguments.json {
        say!("{profile}");
        return Ok(ExitCode::SUCCESS);
    }
    let requests: Vec<_> = profile
        .requests_per_address
        .iter()
        .take(arguments.limit)
        .map(
            |(method, target, count)| json!({ "method": method, "target": target, "count": count }),
        )
        .collect();
    say!(
        "{}",
        json!({
            "requests": profile.requests,
            "malformed": profile.malformed_lines,
            "seconds": profile.span_seconds,
            "clients": profile.client_count,
            "average_per_second": profile.average_rate,
            "peak_minute_per_second": profile.peak_minute_rate,
            "peak_second": profile.peak_second_requests,
            "share_in_busiest_fifth": profile.busiest_fifth_share,
            "share_for_wanted_fifth": profile.popular_fifth_share,
            "dispersion": profile.dispersion,
            "error_rate": profile.error_rate,
            "methods": profile.methods,
            "statuses": profile.statuses,
            "wanted": requests,
        })
    );
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run_replay(arguments: &LabReplayArgs) -> CommandOutcome {
    let goals = read_goals(arguments.output.goals.as_deref())?;
    let (visits, malformed) = read_visits(&arguments.log)?;
    let speed = arguments.speed.trim_end_matches(['x', 'X']);
    let speed = speed.parse().map_err(|_| {
        CommandFault::usage(format!("--speed `{}` is not a factor such as 2x", arguments.speed))
    })?;
    let replay = LogReplay {
        base_url: arguments.target.clone(),
        speed,
        headers: parse_headers(&arguments.headers)?,
        sends_all_methods: arguments.all_methods,
        worker_count: arguments.workers,
        timeout: duration_from_text(&arguments.timeout)?,
    };
    let logs = WatchedLogs::start(&arguments.logs)?;
    let recorder = RunRecorder::start(&arguments.run_options, None)?;
    let title = arguments.log.display().to_string();
    let mut live = super::live_display(&title, None);
    live.set_abort_goals(&goals);
    let mut replayed = replay.run_live(&visits, &mut live).map_err(lab_fault)?;
    drop(live);
    if !arguments.output.json {
        if malformed > 0 {
            say!("{malformed} malformed lines of the log are left out");
        }
        if replayed.skipped_visits > 0 {
            say!(
                "{} requests that may change something are left out (--all-methods)",
                replayed.skipped_visits
            );
        }
    }
    conclude_run(
        &mut replayed.results,
        &RunReportOptions {
            title: &title,
            goals: &goals,
            output: &arguments.output,
            is_generated_load: true,
            finished_run: recorder.finish(),
            watched_logs: logs,
        },
    )
}

/// The recorded exchanges, with a condition variable for the waiting thread.
type SharedExchangeList = Arc<(Mutex<Vec<ProxyExchange>>, Condvar)>;

/// Creates a plan from a browser's HAR file; a plan that cannot be run is not written.
fn record_from_har(file: &Path, arguments: &LabRecordArgs) -> CommandOutcome {
    let name = file.display().to_string();
    let har = har::parse_har(&read_text(file)?, &name, arguments.target.as_deref());
    let har = har.map_err(lab_fault)?;
    let options = RecordingOptions { keeps_page_parts: arguments.with_parts };
    let mut draft = recording::recording_to_plan(&har.target_site, &har.exchanges, options);
    draft.comment_lines.extend(har.describe_omissions());
    let text = draft.to_toml();
    let folder = arguments.out.parent().map(Path::to_owned).unwrap_or_default();
    TestPlan::parse(text.as_bytes(), &arguments.out.display().to_string(), folder)
        .map_err(lab_fault)?;
    write_text(&arguments.out, &text)?;
    let steps: usize = draft.scenarios.iter().map(|scenario| scenario.steps.len()).sum();
    for remark in &draft.comment_lines {
        say!("{remark}");
    }
    say!("{steps} steps at {} written to {}", har.target_site, arguments.out.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run_recorder(arguments: &LabRecordArgs) -> CommandOutcome {
    if let Some(file) = &arguments.from_har {
        return record_from_har(file, arguments);
    }
    let duration = arguments.duration.as_deref().map(duration_from_text).transpose()?;
    let options = RecordingOptions { keeps_page_parts: arguments.with_parts };
    let count: SharedExchangeList = Arc::default();
    let shared_count = Arc::clone(&count);
    let proxy = RecordingProxy::start(
        arguments.listen,
        arguments.target.as_deref(),
        Duration::from_secs(60),
        move |exchange| {
            say!("{} {} {}", exchange.status, exchange.method, exchange.url);
            // Response bodies are not part of the plan.
            let recorded_exchange = ProxyExchange { response_body: Vec::new(), ..exchange.clone() };
            shared_count.0.lock().unwrap_or_else(PoisonError::into_inner).push(recorded_exchange);
            shared_count.1.notify_all();
        },
    )
    .map_err(lab_fault)?;
    say!("recording at http://{}; stop with Ctrl-C", proxy.address());
    let end = duration.map(|duration| Instant::now() + duration);
    let mut written = 0;
    loop {
        let exchanges = wait_for_exchanges(&count, written, end);
        if exchanges.len() > written {
            written = exchanges.len();
            write_plan(arguments, &exchanges, options)?;
        }
        let is_enough = arguments.requests.is_some_and(|most| written >= most);
        if is_enough || end.is_some_and(|end| Instant::now() >= end) {
            say!("{written} requests recorded into {}", arguments.out.display());
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Waits for exchanges beyond the first `known_count`, and returns all; returns early at `end`.
fn wait_for_exchanges(
    count: &SharedExchangeList,
    known_count: usize,
    end: Option<Instant>,
) -> Vec<ProxyExchange> {
    let limit =
        end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
    let list = count.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = count.1.wait_timeout_while(list, limit, |list| list.len() <= known_count);
    waited.unwrap_or_else(PoisonError::into_inner).0.clone()
}

/// Writes the plan to a temporary file and renames it, so that the plan is complete at any time.
fn write_plan(
    arguments: &LabRecordArgs,
    exchanges: &[ProxyExchange],
    options: RecordingOptions,
) -> Result<(), CommandFault> {
    let first = exchanges.first().map(|exchange| {
        exchange.url.strip_suffix(exchange.target.as_str()).unwrap_or_default().to_owned()
    });
    let target = arguments.target.clone().or(first).unwrap_or_default();
    let text = recording::recording_to_plan(&target, exchanges, options).to_toml();
    let beside = arguments.out.with_extension("toml.part");
    write_text(&beside, &text)?;
    std::fs::rename(&beside, &arguments.out).map_err(|error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", arguments.out.display()))
    })
}
