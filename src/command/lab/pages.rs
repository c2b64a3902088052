//! The commands that look at single pages: page, components, slo.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tympan_lab::report::sheet::{Sheet, Tone};
use tympan_lab::watch_log::Logged;
use tympan_lab::{components as profile, page as visit, slo as latency};

use super::logs::WatchedLogs;
use super::phases::finish;
use super::send::headers;
use super::{fault, goals};
use crate::args::lab_pages::{Components, Page, Slo};
use crate::command::{Fault, Outcome};
use crate::say;

pub(super) fn page(arguments: &Page) -> Outcome {
    let mut all = headers(&arguments.asker.headers)?;
    all.extend(arguments.asker.login.as_deref().map(basic));
    let visits = visit::Visits {
        urls: addresses(&arguments.urls)?,
        headers: all,
        count: arguments.visits,
        is_warm: arguments.warm,
        goals: goals(arguments.kept.output.goals.as_deref())?,
    };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let mut sheet = visit::run(&visits).map_err(|error| fault(&error))?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

pub(super) fn components(arguments: &Components) -> Outcome {
    let asked = profile::Profile {
        url: arguments.url.clone(),
        headers: headers(&arguments.asker.headers)?,
        login: arguments.asker.login.clone(),
        count: arguments.samples,
    };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let mut sheet = profile::run(&asked).map_err(|error| fault(&error))?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

pub(super) fn slo(arguments: &Slo) -> Outcome {
    if arguments.kept.output.goals.is_some() {
        return Err(Fault::usage(
            "slo has goals of its own; for others use `tympan lab get --goals`",
        ));
    }
    let pages = latency::Pages {
        urls: addresses(&arguments.urls)?,
        samples: arguments.samples,
        headers: headers(&arguments.asker.headers)?,
        login: arguments.asker.login.clone(),
        bypass: arguments.bypass.clone(),
        admin: arguments.admin.clone(),
    };
    if arguments.samples == 0 {
        return Err(Fault::usage("--samples is a number above 0"));
    }
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    if arguments.watch {
        return watch(arguments, &pages, logs);
    }
    let mut sheet = measure(arguments, &pages)?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

/// Returns addresses; a word that is none is a file with one per line.
pub(super) fn addresses(words: &[String]) -> Result<Vec<String>, Fault> {
    let mut all = Vec::new();
    for word in words {
        if word.contains("://") || !Path::new(word).is_file() {
            all.push(word.clone());
            continue;
        }
        let text = super::read_text(Path::new(word))?;
        let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
        all.extend(
            lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned),
        );
    }
    Ok(all)
}

fn measure(arguments: &Slo, pages: &latency::Pages) -> Result<Sheet, Fault> {
    let mut sheet = latency::run(pages).map_err(|error| fault(&error))?;
    if arguments.strict && !is_true(&sheet, "comparable") {
        sheet.say(Tone::Doubt, "not measured: --strict wants all five conditions");
    }
    Ok(sheet)
}

fn is_true(sheet: &Sheet, key: &str) -> bool {
    sheet.json.get(key).and_then(Value::as_bool) == Some(true)
}

/// How often a folder is looked at, and how long to wait where none is.
const LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(5);

/// Measures again and again, and tells each time whether the goal is met and what was logged as an error since.
fn watch(arguments: &Slo, pages: &latency::Pages, mut logs: WatchedLogs) -> Outcome {
    let mut round = 0;
    // What was logged in an earlier round fails the whole watch: it does not come again.
    let mut has_logged = false;
    loop {
        round += 1;
        let seen = arguments.watch_dir.as_deref().map(newest);
        let mut sheet = measure(arguments, pages)?;
        let logged = logs.take();
        sheet.add_logged(&logged);
        has_logged |= logged.iter().any(|log| log.errors.count > 0);
        if arguments.kept.output.json {
            say!("{}", sheet.to_json());
        } else {
            let told = |key: &str| sheet.json.get(key);
            let number = |key: &str| told(key).and_then(Value::as_f64).unwrap_or(0.0);
            say!(
                "{} {}: p70 {:.1} ms, p95 {:.1} ms, p99 {:.1} ms, longest {:.1} ms, by the {} clock{}",
                round,
                if is_true(&sheet, "met") && !sheet.is_bad() { "met" } else { "MISSED" },
                number("p70_ms"),
                number("p95_ms"),
                number("p99_ms"),
                number("max_ms"),
                told("clock").and_then(Value::as_str).unwrap_or("client's"),
                if is_true(&sheet, "comparable") { "" } else { " (not comparable)" },
            );
            for line in logged.iter().flat_map(Logged::told) {
                say!("{line}");
            }
        }
        if arguments.rounds.is_some_and(|rounds| round >= rounds) {
            return Ok(if sheet.is_doubtful() {
                ExitCode::from(3)
            } else if sheet.is_bad() || has_logged {
                ExitCode::from(crate::command::CHECK_FAILED)
            } else {
                ExitCode::SUCCESS
            });
        }
        match &arguments.watch_dir {
            None => std::thread::sleep(PAUSE),
            // What changed during the measurement counts for the next one.
            Some(folder) => {
                while Some(newest(folder)) == seen {
                    std::thread::sleep(LOOK);
                }
            }
        }
    }
}

/// Returns the newest change below a folder, and how many files there are.
fn newest(folder: &Path) -> (Option<SystemTime>, u64) {
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

fn basic(login: &str) -> (String, String) {
    use base64::Engine as _;
    let encoded = base64::engine::general_purpose::STANDARD.encode(login);
    ("Authorization".to_owned(), format!("Basic {encoded}"))
}
