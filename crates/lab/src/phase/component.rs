//! Single components: each alone, at its average and at its peak.

use std::time::Duration;

use serde_json::json;

use super::{
    Measured, Phase, Show, Subject, add_row, grid, measure, target_charts, watch, with_errors,
};
use crate::Result;
use crate::goal::{Goal, Judged, judge};
use crate::plan::{Amount, Offer, Plan, Run};
use crate::report::sheet::{Part, Sheet, Tone};

/// How components are tried.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The addresses that draw one component each.
    pub urls: Vec<String>,
    /// Requests per second on average.
    pub average: f64,
    /// And at the peak.
    pub peak: f64,
    /// How long each is held.
    pub hold: Duration,
    /// What each component must reach in both.
    pub goals: Vec<Goal>,
    /// What to watch beside the load.
    pub watched: Option<watch::Source>,
}

/// Tries every component, and shows each meanwhile if that is wanted.
///
/// # Errors
/// As [`measure`].
pub fn run(
    trial: &Trial,
    run: &Run,
    show: Option<Show<'_>>,
    say: &mut dyn FnMut(&str),
) -> Result<Sheet> {
    let mut all: Vec<(String, Vec<Judged>, Measured)> = Vec::new();
    for url in &trial.urls {
        let plan = Plan::of_url(url)?;
        let subject =
            Subject { plan: &plan, run: run.clone(), watched: trial.watched.clone(), show };
        for (name, rate) in [("average", trial.average), ("peak", trial.peak)] {
            say(&format!("{url}: {name}, {rate:.1}/s"));
            let amount = Amount::Rate(rate);
            let offer = Offer { amount, lasts: trial.hold, ramp: Duration::ZERO, is_random: true };
            let name = format!("{url} {name}");
            let measured = measure(&subject, Phase { name, offer })?;
            all.push((url.clone(), judge_one(&trial.goals, &measured, rate), measured));
        }
    }
    Ok(tell(all))
}

fn judge_one(goals: &[Goal], measured: &Measured, rate: f64) -> Vec<Judged> {
    let mut judged = judge(&with_errors(goals), &measured.results);
    judged.push(Judged {
        label: "*".to_owned(),
        wanted: format!("{rate:.1} transactions per second"),
        measured: format!("{:.1}/s", measured.achieved),
        is_met: measured.achieved >= rate * 0.97,
    });
    for goal in &mut judged {
        goal.label.clone_from(&measured.phase.name);
    }
    judged
}

fn tell(all: Vec<(String, Vec<Judged>, Measured)>) -> Sheet {
    let mut sheet = Sheet::new("Single components");
    let charts = target_charts(&all.iter().map(|(_, _, measured)| measured).collect::<Vec<_>>());
    let mut table = grid("Components, each alone");
    let mut told = Vec::new();
    for (url, judged, measured) in all {
        let is_met = judged.iter().all(|goal| goal.is_met);
        let (tone, word) = match (measured.doubts.is_empty(), is_met) {
            (false, _) => (Tone::Doubt, "not measured"),
            (true, true) => (Tone::Good, "met"),
            (true, false) => (Tone::Bad, "missed"),
        };
        for doubt in &measured.doubts {
            sheet.say(Tone::Doubt, format!("at {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.say(Tone::Doubt, format!("{url} never answered"));
        }
        add_row(&mut table, &measured, tone, word);
        told.push(measured.to_json());
        sheet.goals.extend(judged);
    }
    let missed = sheet.goals.iter().filter(|goal| !goal.is_met).count();
    match missed {
        0 => sheet.say(Tone::Good, "every component reaches its average and its peak"),
        missed => {
            sheet.say(Tone::Bad, format!("{missed} of {} goals are missed", sheet.goals.len()))
        }
    }
    sheet.parts.push(Part::Grid(table));
    sheet.parts.extend(charts);
    sheet.json = json!({ "components": told });
    sheet
}
