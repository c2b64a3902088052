//! The commands that prove, tune and look at a site: who does which, and `verify`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_lab::plan::Run as PlanRun;
use tympan_lab::verify::{Difference, Rules, Verdict, Verify, parse_list, verify_plan};
use tympan_lab::watch_log::Logged;

use super::logs::WatchedLogs;
use super::send::{headers, load, properties, tell_left_out};
use super::{compare, convert, duration, fault, journal, project, read_text, site, tune};
use crate::args::lab_proof::{self as args, Proof};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn run(command: &Proof) -> Outcome {
    match command {
        Proof::Verify(arguments) => verify(arguments),
        Proof::Sweep(arguments) => tune::sweep(arguments),
        Proof::Tune(arguments) => tune::tune(arguments),
        Proof::Compare(arguments) => compare::compare(arguments),
        Proof::Journal(arguments) => journal::journal(arguments),
        Proof::Cacheability(arguments) => site::cacheability(arguments),
        Proof::Profile(arguments) => site::profile(arguments),
        Proof::Replay(arguments) => site::replay(arguments),
        Proof::Record(arguments) => site::record(arguments),
        Proof::Convert(arguments) => convert::convert(arguments),
        Proof::Export(arguments) => convert::export(arguments),
        Proof::Content(arguments) => project::content(arguments),
        Proof::Experiment(arguments) => project::experiment(arguments),
        Proof::Map(arguments) => project::map(arguments),
    }
}

fn verify(arguments: &args::Verify) -> Outcome {
    let mut rules = Rules::default();
    rules.is_strict = arguments.strict;
    for rule in &arguments.rules {
        rules.add(rule).map_err(|error| fault(&error))?;
    }
    arguments.ignored_headers.iter().for_each(|name| rules.ignore_header(name));
    let verify = Verify {
        before: arguments.before.clone(),
        after: arguments.after.clone(),
        headers: headers(&arguments.headers)?,
        rules,
        timeout: duration(&arguments.timeout)?,
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let verdict = compare_sites(&verify, arguments)?;
    let logged = logs.end();
    if arguments.json {
        print_json(&verdict, &logged);
    } else {
        print(&verdict, &logged);
    }
    Ok(if !verdict.changes.is_empty() || logged.iter().any(|log| log.errors.count > 0) {
        ExitCode::from(CHECK_FAILED)
    } else if verdict.is_same() && logged.iter().all(|log| log.unread.is_none()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

fn compare_sites(verify: &Verify, arguments: &args::Verify) -> Result<Verdict, Fault> {
    if is_plan(&arguments.what) {
        if !verify.headers.is_empty() {
            return Err(Fault::usage("a plan brings its own headers; -H is for lists of requests"));
        }
        let plan = load(&arguments.what, &arguments.allowed.allow_ignore)?;
        tell_left_out(&plan, &mut |line| {
            if !arguments.json {
                say!("{line}");
            }
        });
        let run = PlanRun {
            properties: properties(&arguments.properties)?,
            seed: arguments.seed,
            ..PlanRun::default()
        };
        return verify_plan(verify, &plan, &run).map_err(|error| fault(&error));
    }
    let name = arguments.what.display().to_string();
    let asks = parse_list(&read_text(&arguments.what)?, &name).map_err(|error| fault(&error))?;
    verify.run(&asks).map_err(|error| fault(&error))
}

fn is_plan(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jmx" || extension == "toml")
}

fn print(verdict: &Verdict, logged: &[Logged]) {
    let tell = |word: &str, difference: &Difference| {
        say!("{word} {}: {}\n{}", difference.request, difference.aspect, difference.diff);
    };
    verdict.changes.iter().for_each(|difference| tell("CHANGED", difference));
    verdict.unstable.iter().for_each(|difference| tell("UNSTABLE", difference));
    for reason in &verdict.unanswered {
        say!("NO ANSWER {reason}");
    }
    for fault in &verdict.faults {
        say!("FAULT OF THE PLAN {fault}");
    }
    for line in logged.iter().flat_map(Logged::told) {
        say!("{line}");
    }
    say!(
        "{} requests compared: {} changes, {} unstable, {} without an answer, {} lines of errors logged",
        verdict.compared,
        verdict.changes.len(),
        verdict.unstable.len(),
        verdict.unanswered.len(),
        logged.iter().map(|log| log.errors.count).sum::<u64>()
    );
    if !verdict.unstable.is_empty() {
        say!(
            "unstable: a site differs from itself there; name what varies with --rule or --ignore-header"
        );
    }
}

fn print_json(verdict: &Verdict, logged: &[Logged]) {
    let list = |differences: &[Difference]| -> Vec<serde_json::Value> {
        differences
            .iter()
            .map(|one| json!({ "request": one.request, "aspect": one.aspect.to_string(), "diff": one.diff }))
            .collect()
    };
    let line = |log: &Logged, line: &String| json!({ "file": log.file, "line": line });
    let lines: Vec<_> =
        logged.iter().flat_map(|log| log.errors.lines.iter().map(|text| line(log, text))).collect();
    // Of very many, the first ones are kept.
    let count: u64 = logged.iter().map(|log| log.errors.count).sum();
    let unread: Vec<&String> = logged.iter().filter_map(|log| log.unread.as_ref()).collect();
    say!(
        "{}",
        json!({
            "compared": verdict.compared,
            "changes": list(&verdict.changes),
            "unstable": list(&verdict.unstable),
            "unanswered": verdict.unanswered,
            "faults": verdict.faults,
            "errors_logged": lines,
            "errors_logged_count": count,
            "logs_not_read": unread,
        })
    );
}
