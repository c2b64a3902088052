//! Error scenarios: healthy traffic alone, then the same with errors beside it, and without the back ends of the site.
//!
//! Two questions: was each error answered rightly and quickly, and what did it cost those who made none.

use std::time::Duration;

use serde_json::{Value, json};

use super::outage::{Outages, Survived};
use super::slow::Slow;
use super::{Measured, Phase, Subject, add_row, first_reason, grid, measure, target_charts};
use crate::goal::{Judged, show};
use crate::plan::{Amount, Offer, Plan, Run};
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::{Error, Result};

/// What is allowed.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Healthy visits.
    pub healthy: Offer,
    /// Visits with errors, beside the healthy ones.
    pub errors: Offer,
    /// Longest time in which 95 % of the errors are answered.
    pub within: Duration,
    /// How much slower healthy answers may become, as a share.
    pub delta: f64,
    /// Clients beside the errors that are slow without end: the site, and how many.
    pub slow: Option<(String, usize)>,
    /// Back ends that go away, one after the other, when the errors are over.
    pub outages: Option<Outages>,
}

/// Smaller differences of healthy times are noise.
const FLOOR: Duration = Duration::from_millis(5);

/// Returns the mistakes that any site can be asked to bear, as a plan: pages that do not exist, query strings that
/// defeat caches, addresses and encodings that are wrong, searches if there is a page for them, and uploads of a size
/// (`64 MiB`) to a path where they are refused.
///
/// # Errors
/// [`Error::Refused`] if `target` is no address, or the size none.
pub fn common_mistakes(
    target: &str,
    page: &str,
    search: Option<&str>,
    upload: Option<(&str, &str)>,
) -> Result<Plan> {
    // A text of JSON is one of TOML.
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
    Plan::parse(text.as_bytes(), "errors.toml", std::path::PathBuf::new())
}

/// Runs both phases.
///
/// # Errors
/// As [`measure`].
pub fn run(
    subject: &Subject<'_>,
    errors: &Plan,
    trial: &Trial,
    say: &mut dyn FnMut(&str),
) -> Result<Sheet> {
    trial.outages.as_ref().map_or(Ok(()), Outages::check)?;
    say("healthy traffic alone");
    let phase = |name: &str, offer: &Offer| Phase { name: name.to_owned(), offer: offer.clone() };
    let alone = measure(subject, phase("healthy alone", &trial.healthy))?;
    say("healthy traffic beside errors");
    let run = Run { rows: None, ..subject.run.clone() };
    // The healthy traffic is what is shown and watched.
    let other = Subject { plan: errors, run, watched: None, show: None };
    let slow = trial.slow.as_ref().map(|(site, clients)| Slow::start(site, *clients));
    let slow = slow.transpose()?;
    let (beside, mistakes) = std::thread::scope(|scope| {
        let mistakes = scope.spawn(|| measure(&other, phase("errors", &trial.errors)));
        let beside = measure(subject, phase("healthy beside errors", &trial.healthy));
        let mistakes = mistakes.join().unwrap_or_else(|_| {
            Err(Error::Engine(std::io::Error::other("the thread that sends errors has ended")))
        });
        (beside, mistakes)
    });
    let slow = slow.map(Slow::stop).transpose()?;
    let (beside, mistakes) = (beside?, mistakes?);
    let survived = match &trial.outages {
        Some(outages) => outages.run(subject, trial, say)?,
        None => Vec::new(),
    };
    let mut sheet = tell(trial, [&alone, &beside, &mistakes], &survived);
    if let Some(fates) = slow {
        sheet.parts.push(Part::Grid(fates.grid()));
        if let Value::Object(fields) = &mut sheet.json {
            fields.insert("slow".to_owned(), fates.to_json());
        }
    }
    Ok(sheet)
}

/// Returns what the healthy traffic lost: name, before, after, and whether that is allowed.
pub(super) fn costs(trial: &Trial, alone: &Measured, beside: &Measured) -> Vec<Judged> {
    let label = format!("healthy {}", beside.phase.name.trim_start_matches("healthy "));
    let time = |name: &str, share: f64| {
        let (before, after) =
            (alone.total.response.quantile(share), beside.total.response.quantile(share));
        let most = before.mul_f64(1.0 + trial.delta).max(before + FLOOR);
        Judged {
            label: label.clone(),
            wanted: format!("{name} at most {}", show(most)),
            measured: format!("{} (alone {})", show(after), show(before)),
            is_met: after <= most,
        }
    };
    let rate = |measured: &Measured| measured.achieved;
    let errors = (alone.total.error_rate(), beside.total.error_rate());
    vec![
        time("p50", 0.5),
        time("p95", 0.95),
        Judged {
            label: label.clone(),
            wanted: format!("at least {:.1}/s", rate(alone) * (1.0 - trial.delta)),
            measured: format!("{:.1}/s (alone {:.1}/s)", rate(beside), rate(alone)),
            is_met: rate(beside) >= rate(alone) * (1.0 - trial.delta),
        },
        Judged {
            label: label.clone(),
            wanted: "no more failures than alone, or 0.1 %".to_owned(),
            measured: format!("{:.2} % (alone {:.2} %)", errors.1 * 100.0, errors.0 * 100.0),
            is_met: errors.1 <= (errors.0 * (1.0 + trial.delta)).max(0.001),
        },
    ]
}

fn tell(trial: &Trial, [alone, beside, mistakes]: [&Measured; 3], survived: &[Survived]) -> Sheet {
    let mut sheet = Sheet::new("Error scenarios");
    let mut answers = Grid::new(
        "Answers to errors",
        &["error", "sent", "answered wrongly", "p50", "p95", "reason", ""],
    );
    let mut told = serde_json::Map::new();
    for (name, series) in &mistakes.results.labels {
        let stats = &series.total;
        let p95 = stats.response.quantile(0.95);
        let is_met = stats.errors == 0 && p95 <= trial.within;
        let reason = if stats.errors > 0 { first_reason(stats) } else { String::new() };
        let (tone, word) = if is_met { (Tone::Good, "right") } else { (Tone::Bad, "wrong") };
        answers.add(
            tone,
            vec![
                name.to_string(),
                stats.count().to_string(),
                stats.errors.to_string(),
                show(stats.response.quantile(0.5)),
                show(p95),
                reason.clone(),
                word.to_owned(),
            ],
        );
        told.insert(name.to_string(), json!({
            "sent": stats.count(), "wrong": stats.errors, "p95_ms": p95.as_secs_f64() * 1000.0, "statuses": stats.statuses, "right": is_met,
        }));
        sheet.goals.push(Judged {
            label: name.to_string(),
            wanted: format!("answered rightly, 95 % within {}", show(trial.within)),
            measured: format!("{} of {} wrong, p95 {}", stats.errors, stats.count(), show(p95)),
            is_met,
        });
    }
    let costs = costs(trial, alone, beside);
    let are_right = sheet.goals.iter().all(|goal| goal.is_met);
    let is_unharmed = costs.iter().all(|goal| goal.is_met);
    sheet.goals.extend(costs);
    let others = || survived.iter().flat_map(Survived::measured);
    for measured in [alone, beside, mistakes].into_iter().chain(others()) {
        for doubt in &measured.doubts {
            sheet.say(Tone::Doubt, format!("in {}: {doubt}", measured.phase.name));
        }
        if measured.is_unreachable() {
            sheet.say(Tone::Doubt, format!("{}: the target never answered", measured.phase.name));
        }
    }
    sheet.say(
        if are_right { Tone::Good } else { Tone::Bad },
        if are_right {
            "every error is answered rightly and quickly"
        } else {
            "errors are answered wrongly or slowly"
        },
    );
    sheet.say(
        if is_unharmed { Tone::Good } else { Tone::Bad },
        if is_unharmed { "healthy visitors do not notice" } else { "healthy visitors pay for it" },
    );
    let told_of = |one: &Survived| {
        let outages = trial.outages.as_ref()?;
        Some(one.tell(&mut sheet, (trial, outages), alone))
    };
    let outages: Vec<Value> = survived.iter().filter_map(told_of).collect();
    let mut table = grid("Healthy traffic");
    add_row(&mut table, alone, Tone::Plain, "");
    add_row(&mut table, beside, if is_unharmed { Tone::Good } else { Tone::Bad }, "");
    others().for_each(|measured| add_row(&mut table, measured, Tone::Plain, ""));
    sheet.parts.push(Part::Grid(table));
    sheet.parts.push(Part::Grid(answers));
    let healthy: Vec<&Measured> = [alone, beside].into_iter().chain(others()).collect();
    sheet.parts.extend(target_charts(&healthy));
    sheet.json = json!({
        "alone": alone.to_json(), "beside": beside.to_json(), "errors": told,
        "answered_rightly": are_right, "healthy_unharmed": is_unharmed, "outages": outages,
    });
    sheet
}

/// Returns the load of the errors for a healthy load: a fifth of it.
#[must_use]
pub fn share_of(healthy: &Offer, share: f64) -> Offer {
    let amount = match healthy.amount {
        Amount::Rate(rate) => Amount::Rate(rate * share),
        Amount::Users(users) => Amount::Users(((users as f64 * share).round() as u64).max(1)),
    };
    Offer { amount, ..healthy.clone() }
}
