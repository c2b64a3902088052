//! Tests single components: each alone, at its average and at its peak load.

use std::time::Duration;

use serde_json::json;
use tympan_lab_engine::goal::{GoalResult, judge_goals};
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, RunOptions};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTone};
use tympan_lab_plan::TestPlan;
use tympan_lab_plan::goal::LoadGoal;

use super::{
    LiveDisplayFactory, LoadPhase, PhaseMeasurement, PhaseSubject, add_phase_row, phase_grid,
    process_charts, process_watch, run_phase, with_error_bound,
};
use crate::Result;

/// Options of a component trial.
#[derive(Debug, Clone)]
pub struct ComponentTrial {
    /// URLs that render one component each.
    pub urls: Vec<String>,
    /// Requests per second on average.
    pub average_rate: f64,
    /// Requests per second at the peak.
    pub peak_rate: f64,
    /// Duration of each phase.
    pub hold_duration: Duration,
    /// The goals for each component in both phases.
    pub goals: Vec<LoadGoal>,
    /// The metrics source to monitor during the load.
    pub metrics_source: Option<process_watch::ProcessMetricsSource>,
}

/// Tests every component and optionally displays the progress of each.
///
/// # Errors
/// As [`run_phase`].
pub fn run_component_trial(
    trial: &ComponentTrial,
    run: &RunOptions,
    show: Option<LiveDisplayFactory<'_>>,
    say: &mut dyn FnMut(&str),
) -> Result<ReportSheet> {
    let mut all: Vec<(String, Vec<GoalResult>, PhaseMeasurement)> = Vec::new();
    for url in &trial.urls {
        let plan = TestPlan::for_url(url)?;
        let subject = PhaseSubject {
            plan: &plan,
            run: run.clone(),
            metrics_source: trial.metrics_source.clone(),
            live_display: show,
        };
        for (name, rate) in [("average", trial.average_rate), ("peak", trial.peak_rate)] {
            say(&format!("{url}: {name}, {rate:.1}/s"));
            let amount = LoadAmount::Rate(rate);
            let offer = LoadOffer {
                amount,
                duration: trial.hold_duration,
                ramp: Duration::ZERO,
                is_random: true,
            };
            let name = format!("{url} {name}");
            let measured = run_phase(&subject, LoadPhase { name, load_offer: offer })?;
            all.push((url.clone(), judge_component(&trial.goals, &measured, rate), measured));
        }
    }
    Ok(build_component_sheet(all))
}

fn judge_component(goals: &[LoadGoal], measured: &PhaseMeasurement, rate: f64) -> Vec<GoalResult> {
    let mut judged = judge_goals(&with_error_bound(goals), &measured.results);
    judged.push(GoalResult {
        label: "*".to_owned(),
        requirement: format!("{rate:.1} transactions per second"),
        measured: format!("{:.1}/s", measured.achieved_rate),
        is_met: measured.achieved_rate >= rate * 0.97,
    });
    for goal in &mut judged {
        goal.label.clone_from(&measured.phase.name);
    }
    judged
}

fn build_component_sheet(all: Vec<(String, Vec<GoalResult>, PhaseMeasurement)>) -> ReportSheet {
    let mut sheet = ReportSheet::new("Single components");
    let charts = process_charts(&all.iter().map(|(_, _, measured)| measured).collect::<Vec<_>>());
    let mut table = phase_grid("Components, each requested alone");
    let mut json_entries = Vec::new();
    for (url, judged, measured) in all {
        let is_met = judged.iter().all(|goal| goal.is_met);
        let (tone, label) = match (measured.doubts.is_empty(), is_met) {
            (false, _) => (ReportTone::Doubtful, "not measured"),
            (true, true) => (ReportTone::Good, "met"),
            (true, false) => (ReportTone::Bad, "missed"),
        };
        for doubt in &measured.doubts {
            sheet.add_verdict(ReportTone::Doubtful, format!("at {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.add_verdict(ReportTone::Doubtful, format!("{url} never responded"));
        }
        add_phase_row(&mut table, &measured, tone, label);
        json_entries.push(measured.to_json());
        sheet.judged_goals.extend(judged);
    }
    let missed = sheet.judged_goals.iter().filter(|goal| !goal.is_met).count();
    match missed {
        0 => {
            sheet.add_verdict(ReportTone::Good, "every component reaches its average and its peak")
        }
        missed => sheet.add_verdict(
            ReportTone::Bad,
            format!("{missed} of {} goals are missed", sheet.judged_goals.len()),
        ),
    }
    sheet.parts.push(ReportPart::Table(table));
    sheet.parts.extend(charts);
    sheet.json_result = json!({ "components": json_entries });
    sheet
}
