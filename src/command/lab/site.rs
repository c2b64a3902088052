//! The commands that look at a site and its visitors: `cacheability`, `profile`, `replay`, `record`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tympan_lab::cacheability::{self, Crawl, Survey};
use tympan_lab::har;
use tympan_lab::plan::Plan;
use tympan_lab::profile::{self, Profile, Visit};
use tympan_lab::proxy::{Exchange, Proxy};
use tympan_lab::recording::{self, Options};
use tympan_lab::replay::Replay;

use super::keep::Keeper;
use super::logs::WatchedLogs;
use super::send::headers;
use super::{Telling, conclude, duration, fault, goals, open, read_text, write};
use crate::args::lab_proof as args;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn cacheability(arguments: &args::Cacheability) -> Outcome {
    let crawl = Crawl {
        url: arguments.url.clone(),
        most: arguments.most,
        headers: headers(&arguments.headers)?,
        visitor: headers(&arguments.visitor)?,
        timeout: duration(&arguments.timeout)?,
    };
    let survey = cacheability::survey(&crawl).map_err(|error| fault(&error))?;
    if arguments.json {
        print_survey_json(&survey);
    } else {
        print_survey(&survey, arguments.examples);
    }
    Ok(match (survey.found.is_empty(), survey.unanswered.is_empty()) {
        (false, _) => ExitCode::from(CHECK_FAILED),
        (true, false) => ExitCode::from(3),
        (true, true) => ExitCode::SUCCESS,
    })
}

fn print_survey(survey: &Survey, most: usize) {
    for (obstacle, examples) in &survey.found {
        say!("{obstacle}: {} addresses", examples.len());
        say!("  why  {}", obstacle.reason());
        say!("  do   {}", obstacle.advice());
        for example in examples.iter().take(most) {
            let from = match example.from.as_str() {
                "" => String::new(),
                from => format!("  (from {from})"),
            };
            say!("       {}  {}{from}", example.target, example.seen);
        }
        if examples.len() > most {
            say!("       and {} more", examples.len() - most);
        }
    }
    for reason in &survey.unanswered {
        say!("NO ANSWER {reason}");
    }
    say!(
        "{} addresses asked for, {} of them hard to cache{}",
        survey.asked,
        survey.hindered,
        match survey.left {
            0 => String::new(),
            left => format!("; at least {left} more were not looked at (--most)"),
        }
    );
}

fn print_survey_json(survey: &Survey) {
    let found: Vec<_> = survey
        .found
        .iter()
        .map(|(obstacle, examples)| {
            let examples: Vec<_> = examples
                .iter()
                .map(|one| json!({ "target": one.target, "seen": one.seen, "from": one.from }))
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
            "asked": survey.asked,
            "hindered": survey.hindered,
            "left": survey.left,
            "found": found,
            "unanswered": survey.unanswered,
        })
    );
}

fn visits(log: &std::path::Path) -> Result<(Vec<Visit>, u64), Fault> {
    let name = log.display().to_string();
    profile::read(&mut open(log)?, &name).map_err(|error| fault(&error))
}

pub(super) fn profile(arguments: &args::Profile) -> Outcome {
    let (visits, malformed) = visits(&arguments.log)?;
    let profile = Profile::of(&visits, malformed);
    if let Some(path) = &arguments.plan {
        write(path, &profile.plan(&arguments.target, arguments.most).to_toml())?;
    }
    if let Some(path) = &arguments.goals {
        write(path, &profile.goals())?;
    }
    if !arguments.json {
        say!("{profile}");
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<_> = profile
        .wanted
        .iter()
        .take(arguments.most)
        .map(
            |(method, target, count)| json!({ "method": method, "target": target, "count": count }),
        )
        .collect();
    say!(
        "{}",
        json!({
            "requests": profile.requests,
            "malformed": profile.malformed,
            "seconds": profile.seconds,
            "clients": profile.clients,
            "average_per_second": profile.average,
            "peak_minute_per_second": profile.peak_minute,
            "peak_second": profile.peak_second,
            "share_in_busiest_fifth": profile.in_busiest_fifth,
            "share_for_wanted_fifth": profile.for_wanted_fifth,
            "dispersion": profile.dispersion,
            "error_rate": profile.error_rate,
            "methods": profile.methods,
            "statuses": profile.statuses,
            "wanted": wanted,
        })
    );
    Ok(ExitCode::SUCCESS)
}

pub(super) fn replay(arguments: &args::Replay) -> Outcome {
    let goals = goals(arguments.output.goals.as_deref())?;
    let (visits, malformed) = visits(&arguments.log)?;
    let speed = arguments.speed.trim_end_matches(['x', 'X']);
    let speed = speed.parse().map_err(|_| {
        Fault::usage(format!("--speed `{}` is no factor, such as 2x", arguments.speed))
    })?;
    let replay = Replay {
        url: arguments.target.clone(),
        speed,
        headers: headers(&arguments.headers)?,
        all_methods: arguments.all_methods,
        workers: arguments.workers,
        timeout: duration(&arguments.timeout)?,
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let keeper = Keeper::begin(&arguments.kept, None)?;
    let title = arguments.log.display().to_string();
    let mut live = super::live(&title, None);
    live.guard(&goals);
    let mut replayed = replay.run_shown(&visits, &mut live).map_err(|error| fault(&error))?;
    drop(live);
    if !arguments.output.json {
        if malformed > 0 {
            say!("{malformed} lines of the log were not understood and are left out");
        }
        if replayed.left_out > 0 {
            say!(
                "{} requests that may change something are left out (--all-methods)",
                replayed.left_out
            );
        }
    }
    conclude(
        &mut replayed.results,
        &Telling {
            title: &title,
            goals: &goals,
            output: &arguments.output,
            is_own: true,
            keeper: keeper.end(),
            logs,
        },
    )
}

/// How many exchanges were recorded, for the one who waits.
type Count = Arc<(Mutex<Vec<Exchange>>, Condvar)>;

/// Makes a plan of what a browser saved; a plan that cannot be run is not written.
fn record_har(file: &Path, arguments: &args::Record) -> Outcome {
    let name = file.display().to_string();
    let har = har::read(&read_text(file)?, &name, arguments.target.as_deref());
    let har = har.map_err(|error| fault(&error))?;
    let options = Options { with_parts: arguments.with_parts };
    let mut draft = recording::plan(&har.target, &har.exchanges, options);
    draft.remarks.extend(har.remarks());
    let text = draft.to_toml();
    let folder = arguments.out.parent().map(Path::to_owned).unwrap_or_default();
    Plan::parse(text.as_bytes(), &arguments.out.display().to_string(), folder)
        .map_err(|error| fault(&error))?;
    write(&arguments.out, &text)?;
    let steps: usize = draft.scenarios.iter().map(|scenario| scenario.steps.len()).sum();
    for remark in &draft.remarks {
        say!("{remark}");
    }
    say!("{steps} steps at {} written to {}", har.target, arguments.out.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn record(arguments: &args::Record) -> Outcome {
    if let Some(file) = &arguments.from_har {
        return record_har(file, arguments);
    }
    let lasts = arguments.lasts.as_deref().map(duration).transpose()?;
    let options = Options { with_parts: arguments.with_parts };
    let count: Count = Arc::default();
    let seen = Arc::clone(&count);
    let proxy = Proxy::start(
        arguments.listen,
        arguments.target.as_deref(),
        Duration::from_secs(60),
        move |exchange| {
            say!("{} {} {}", exchange.status, exchange.method, exchange.url);
            // Of the answers only what they are enters the plan.
            let kept = Exchange { answer: Vec::new(), ..exchange.clone() };
            seen.0.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
            seen.1.notify_all();
        },
    )
    .map_err(|error| fault(&error))?;
    say!("recording at http://{}; end with Ctrl-C", proxy.address());
    let end = lasts.map(|lasts| Instant::now() + lasts);
    let mut written = 0;
    loop {
        let exchanges = wait_for_more(&count, written, end);
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

/// Waits for exchanges beyond the first `known`, and returns all; returns early at `end`.
fn wait_for_more(count: &Count, known: usize, end: Option<Instant>) -> Vec<Exchange> {
    let limit =
        end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
    let list = count.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = count.1.wait_timeout_while(list, limit, |list| list.len() <= known);
    waited.unwrap_or_else(PoisonError::into_inner).0.clone()
}

/// Writes the plan beside its place and moves it there, so that it is whole at any moment.
fn write_plan(
    arguments: &args::Record,
    exchanges: &[Exchange],
    options: Options,
) -> Result<(), Fault> {
    let first = exchanges.first().map(|exchange| {
        exchange.url.strip_suffix(exchange.target.as_str()).unwrap_or_default().to_owned()
    });
    let target = arguments.target.clone().or(first).unwrap_or_default();
    let text = recording::plan(&target, exchanges, options).to_toml();
    let beside = arguments.out.with_extension("toml.part");
    write(&beside, &text)?;
    std::fs::rename(&beside, &arguments.out).map_err(|error| {
        Fault::cannot_run(format!("cannot write `{}`: {error}", arguments.out.display()))
    })
}
