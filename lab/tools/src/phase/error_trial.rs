//! Error scenarios: healthy traffic alone, then with errors in addition, and without the back ends of the site.
//!
//! It checks two things: whether each error receives the right response quickly, and how much the errors slow down
//! healthy traffic.

use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::{GoalResult, format_response_time};
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, RunOptions};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_plan::TestPlan;

use super::healthy_traffic::judge_healthy_traffic;
use super::outage::{OutageOptions, OutageResult};
use super::slow_client::SlowClients;
use super::{
    LoadPhase, PhaseMeasurement, PhaseSubject, add_phase_row, phase_grid, process_charts,
    run_phase, top_failure_reason,
};
use crate::{Error, Result};

/// Options and limits of an error trial.
#[derive(Debug, Clone)]
pub struct ErrorTrial {
    /// The healthy visits.
    pub healthy_offer: LoadOffer,
    /// Visits with errors, in addition to the healthy ones.
    pub error_offer: LoadOffer,
    /// Maximum 95th percentile of the response times of errors.
    pub max_error_p95: Duration,
    /// Maximum slowdown of healthy responses, as a share.
    pub max_slowdown: f64,
    /// Endlessly slow clients in addition to the errors: the site, and their number.
    pub slow_clients: Option<(String, usize)>,
    /// Outages of back ends, one after the other, after the errors.
    pub outages: Option<OutageOptions>,
}

/// Returns a plan of common mistakes that any site must tolerate: pages that do not exist, query strings that defeat
/// caches, invalid URLs and encodings, searches if there is a search page, and uploads of a size (`64 MiB`) to a path
/// where they are rejected.
///
/// # Errors
/// `Error::InvalidFile` if `target` is not a valid URL, or the size is invalid.
pub fn common_mistakes_plan(
    target: &str,
    page: &str,
    search: Option<&str>,
    upload: Option<(&str, &str)>,
) -> Result<TestPlan> {
    // A JSON string is a valid TOML string.
    let quoted = |text: &str| Value::from(text).to_string();
    let mut text = format!(
        "name = \"errors\"\ntarget = {}\nredirects = false\n\
         [load]\nrate = 1\nduration = \"1s\"\n",
        quoted(target)
    );
    let mut add = |name: &str, path: &str, expect: &str| {
        text.push_str(&format!(
            "[[scenario]]\nname = {0}\n[[scenario.step]]\nname = {0}\npath = {1}\nexpect = {{ status = {expect} }}\n",
            quoted(name),
            quoted(path)
        ));
    };
    let separator = if page.contains('?') { '&' } else { '?' };
    add("no such page", "/tympan-lab-${__Random(1,1000000000)}/missing.html", "[404, 410]");
    add(
        "query string that defeats the cache",
        &format!("{page}{separator}tympan-lab=${{__Random(1,1000000000)}}"),
        "[200, 301, 302, 304, 404]",
    );
    add("encoding that is wrong", "/%zz/%ff.html", "[400, 403, 404]");
    add("way out of the site", "/..%2f..%2fetc/passwd", "[400, 403, 404]");
    if let Some(search) = search {
        add(
            "search for nothing sensible",
            &search.replace("{}", "%22%28%5B*%3A%3A%22"),
            "[200, 400, 404]",
        );
        add("search for everything", &search.replace("{}", "e*"), "[200, 400]");
    }
    if let Some((path, size)) = upload {
        add("upload that is too large", path, "[400, 401, 403, 404, 405, 413]");
        text.push_str(&format!("body_size = {}\n", quoted(size)));
    }
    Ok(TestPlan::parse(text.as_bytes(), "errors.toml", std::path::PathBuf::new())?)
}

/// Runs both phases.
///
/// # Errors
/// As [`run_phase`].
pub fn run_error_trial(
    subject: &PhaseSubject<'_>,
    errors: &TestPlan,
    trial: &ErrorTrial,
    say: &mut dyn FnMut(&str),
) -> Result<ReportSheet> {
    trial.outages.as_ref().map_or(Ok(()), OutageOptions::check_placeholder_absent)?;
    say("healthy traffic alone");
    let phase = |name: &str, offer: &LoadOffer| LoadPhase {
        name: name.to_owned(),
        load_offer: offer.clone(),
    };
    let alone = run_phase(subject, phase("healthy alone", &trial.healthy_offer))?;
    say("healthy traffic beside errors");
    let run = RunOptions { result_file: None, ..subject.run.clone() };
    // Only the healthy traffic is displayed and monitored.
    let error_subject =
        PhaseSubject { plan: errors, run, metrics_source: None, live_display: None };
    let slow =
        trial.slow_clients.as_ref().map(|(site, clients)| SlowClients::start(site, *clients));
    let slow = slow.transpose()?;
    let (beside, mistakes) = std::thread::scope(|scope| {
        let mistakes =
            scope.spawn(|| run_phase(&error_subject, phase("errors", &trial.error_offer)));
        let beside = run_phase(subject, phase("healthy beside errors", &trial.healthy_offer));
        let mistakes = mistakes.join().unwrap_or_else(|_| {
            Err(Error::Engine(std::io::Error::other("the thread that sends errors panicked")))
        });
        (beside, mistakes)
    });
    let slow = slow.map(SlowClients::stop).transpose()?;
    let (beside, mistakes) = (beside?, mistakes?);
    let survived = match &trial.outages {
        Some(outages) => outages.run_outages(subject, &trial.healthy_offer, say)?,
        None => Vec::new(),
    };
    let mut sheet = build_error_sheet(trial, [&alone, &beside, &mistakes], &survived);
    if let Some(stats) = slow {
        sheet.parts.push(ReportPart::Table(stats.to_grid()));
        if let Value::Object(fields) = &mut sheet.json_result {
            fields.insert("slow".to_owned(), stats.to_json());
        }
    }
    Ok(sheet)
}

fn build_error_sheet(
    trial: &ErrorTrial,
    [alone, beside, mistakes]: [&PhaseMeasurement; 3],
    survived: &[OutageResult],
) -> ReportSheet {
    let mut sheet = ReportSheet::new("Error scenarios");
    let mut response_table = ReportTable::new(
        "Responses to errors",
        &["error", "sent", "wrong responses", "p50", "p95", "reason", ""],
    );
    let mut json_entries = serde_json::Map::new();
    for (name, series) in &mistakes.results.labels {
        let stats = &series.total;
        let p95 = stats.response_times.quantile(0.95);
        let is_met = stats.error_count == 0 && p95 <= trial.max_error_p95;
        let reason = if stats.error_count > 0 { top_failure_reason(stats) } else { String::new() };
        let (tone, label) =
            if is_met { (ReportTone::Good, "right") } else { (ReportTone::Bad, "wrong") };
        response_table.add_row(
            tone,
            vec![
                name.to_string(),
                stats.count().to_string(),
                stats.error_count.to_string(),
                format_response_time(stats.response_times.quantile(0.5)),
                format_response_time(p95),
                reason.clone(),
                label.to_owned(),
            ],
        );
        json_entries.insert(name.to_string(), json!({
            "sent": stats.count(), "wrong": stats.error_count, "p95_ms": p95.as_secs_f64() * 1000.0, "statuses": stats.status_counts, "right": is_met,
        }));
        sheet.judged_goals.push(GoalResult {
            label: name.to_string(),
            requirement: format!(
                "correct responses, 95 % within {}",
                format_response_time(trial.max_error_p95)
            ),
            measured: format!(
                "{} of {} wrong, p95 {}",
                stats.error_count,
                stats.count(),
                format_response_time(p95)
            ),
            is_met,
        });
    }
    let costs = judge_healthy_traffic(trial.max_slowdown, alone, beside);
    let are_right = sheet.judged_goals.iter().all(|goal| goal.is_met);
    let is_unharmed = costs.iter().all(|goal| goal.is_met);
    sheet.judged_goals.extend(costs);
    let others = || survived.iter().flat_map(OutageResult::measurements);
    for measured in [alone, beside, mistakes].into_iter().chain(others()) {
        for doubt in &measured.doubts {
            sheet.add_verdict(ReportTone::Doubtful, format!("in {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.add_verdict(
                ReportTone::Doubtful,
                format!("{}: the target never responded", measured.phase.name),
            );
        }
    }
    sheet.add_verdict(
        if are_right { ReportTone::Good } else { ReportTone::Bad },
        if are_right {
            "the responses to all errors are correct and fast"
        } else {
            "responses to errors are wrong or slow"
        },
    );
    sheet.add_verdict(
        if is_unharmed { ReportTone::Good } else { ReportTone::Bad },
        if is_unharmed {
            "healthy visitors are not affected"
        } else {
            "healthy visitors are affected"
        },
    );
    let told_of = |outage: &OutageResult| {
        let outages = trial.outages.as_ref()?;
        Some(outage.add_to_sheet(
            &mut sheet,
            outages,
            trial.max_error_p95,
            trial.max_slowdown,
            alone,
        ))
    };
    let outages: Vec<Value> = survived.iter().filter_map(told_of).collect();
    let mut table = phase_grid("Healthy traffic");
    add_phase_row(&mut table, alone, ReportTone::Plain, "");
    add_phase_row(
        &mut table,
        beside,
        if is_unharmed { ReportTone::Good } else { ReportTone::Bad },
        "",
    );
    others().for_each(|measured| add_phase_row(&mut table, measured, ReportTone::Plain, ""));
    sheet.parts.push(ReportPart::Table(table));
    sheet.parts.push(ReportPart::Table(response_table));
    let healthy: Vec<&PhaseMeasurement> = [alone, beside].into_iter().chain(others()).collect();
    sheet.parts.extend(process_charts(&healthy));
    sheet.json_result = json!({
        "alone": alone.to_json(), "beside": beside.to_json(), "errors": json_entries,
        "correct_responses": are_right, "healthy_unaffected": is_unharmed, "outages": outages,
    });
    sheet
}

/// Returns the load of the errors: the healthy load multiplied by `share`.
#[must_use]
pub fn scale_offer(healthy: &LoadOffer, share: f64) -> LoadOffer {
    let amount = match healthy.amount {
        LoadAmount::Rate(rate) => LoadAmount::Rate(rate * share),
        LoadAmount::Users(users) => {
            LoadAmount::Users(((users as f64 * share).round() as u64).max(1))
        }
    };
    LoadOffer { amount, ..healthy.clone() }
}
