//! The commands that send.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_lab::get;
use tympan_lab::plan::{Plan, Run as PlanRun};
use tympan_lab::record::jtl::Added;
use tympan_lab::record::run_name;
use tympan_lab::{Error, Finding, redact};

use super::keep::Keeper;
use super::logs::WatchedLogs;
use super::pages::addresses;
use super::{Telling, conclude, duration, fault, goals, read_text};
use crate::args::lab::{Arrivals, Get, Jmeter, KeptRun, Output, ReportArguments, Run};
use crate::command::{Fault, Outcome};
use crate::say;

pub(super) fn headers(texts: &[String]) -> Result<Vec<(String, String)>, Fault> {
    texts
        .iter()
        .map(|text| match text.split_once(':') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), value.trim().replace(['\r', '\n'], " ")))
            }
            _ => Err(Fault::usage(format!("`{text}` is no header; expected `Name: value`"))),
        })
        .collect()
}

pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, Fault> {
    std::fs::read(path)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", path.display())))
}

pub(super) fn get(arguments: &Get) -> Outcome {
    let goals = goals(arguments.output.goals.as_deref())?;
    let requests = match (arguments.requests, &arguments.duration) {
        (None, None) => Some(arguments.users as u64),
        (requests, _) => requests,
    };
    let load = get::Get {
        urls: addresses(&arguments.urls)?,
        method: arguments.method(),
        headers: headers(&arguments.headers)?,
        body: arguments.body.as_deref().map(read_bytes).transpose()?.unwrap_or_default(),
        users: arguments.users,
        requests,
        duration: arguments.duration.as_deref().map(duration).transpose()?,
        rate: arguments.rate,
        arrivals: match arguments.arrivals {
            Arrivals::Uniform => get::Arrivals::Uniform,
            Arrivals::Poisson => get::Arrivals::Poisson,
        },
        max_users: arguments.max_users,
        think: arguments.think.as_deref().map(duration).transpose()?.unwrap_or_default(),
        workers: arguments.workers,
        keep_alive: !arguments.no_keep_alive,
        timeout: duration(&arguments.timeout)?,
        follow: arguments.follow,
        forgets_sessions: arguments.no_tls_resume,
        is_http2: arguments.http2,
        rows: arguments.jtl.clone(),
        added: added(arguments.jtl_us, arguments.mark),
        seed: arguments.seed,
        trace: arguments.trace,
        mark: run_mark(arguments.mark),
    };
    // The heading of reports, which are passed on.
    let title = load.urls.first().map_or_else(|| "get".to_owned(), |url| redact::text(url));
    let title = title.as_str();
    let logs = WatchedLogs::begin(&arguments.logs)?;
    if let Some(fleet) = super::fleet::fleet(&arguments.agents)? {
        only_here(&arguments.kept, load.added)?;
        return super::fleet::get(fleet, &load, title, (&arguments.output, logs));
    }
    let keeper = Keeper::begin(&arguments.kept, None)?;
    let mut live = super::live(title, load.duration);
    live.guard(&goals);
    let mut results = load.run_shown(&mut live).map_err(|error| fault(&error))?;
    drop(live);
    let output = &arguments.output;
    conclude(
        &mut results,
        &Telling { title, goals: &goals, output, is_own: true, keeper: keeper.end(), logs },
    )
}

fn only_here(kept: &KeptRun, added: Added) -> Result<(), Fault> {
    if added.microseconds {
        return Err(Fault::usage("rows of agents tell milliseconds: leave out --jtl-us"));
    }
    if added.mark {
        return Err(Fault::usage("samples of agents have no marks: leave out --mark"));
    }
    let watches = kept.watched.pid.is_some() || kept.watched.metrics.is_some();
    if kept.keep.is_none() && !watches {
        return Ok(());
    }
    Err(Fault::usage(
        "`--keep`, `--pid` and `--metrics` are for what this process measures itself; with agents use --report and --json",
    ))
}

pub(super) fn properties(texts: &[String]) -> Result<HashMap<String, String>, Fault> {
    texts
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Fault::usage(format!("`-J{text}` is no property; expected -Jname=value"))),
        })
        .collect()
}

/// Returns how the arguments run their plan.
pub(super) fn plan_run(arguments: &Run) -> Result<PlanRun, Fault> {
    let mut properties = properties(&arguments.properties)?;
    if let Some(target) = &arguments.target {
        let plan = arguments.plan.to_string_lossy();
        properties.extend(super::phases::target_properties(target, &plan)?);
    }
    Ok(PlanRun {
        properties,
        detour: None,
        is_http2: arguments.http2,
        rows: arguments.jtl.clone(),
        workers: arguments.workers,
        seed: arguments.seed.unwrap_or_else(new_seed),
        without_listeners: arguments.without_listeners,
        offer: match arguments.rate.is_some() || arguments.users.is_some() {
            true => Some(super::phases::offer(
                arguments.rate.as_deref(),
                arguments.users,
                ("--for", arguments.lasts.as_deref().unwrap_or("1m")),
            )?),
            false if arguments.lasts.is_some() => {
                return Err(Fault::usage(
                    "--for is the time of a load of --rate or --users; the plan itself says how long its own load lasts",
                ));
            }
            false => None,
        },
        trace: arguments.trace,
        hosts: hosts(&arguments.resolve)?,
        goals: Vec::new(),
        left_out: arguments.allowed.allow_ignore.clone(),
        added: added(arguments.jtl_us, arguments.mark),
        mark: run_mark(arguments.mark),
    })
}

/// Returns what the random numbers of a run derive from where nobody says it.
fn new_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

fn added(microseconds: bool, mark: bool) -> Added {
    Added { microseconds, mark }
}

/// Returns the name of a run that begins now, if servers are told which sample a request belongs to.
fn run_mark(is_marked: bool) -> Option<String> {
    is_marked.then(|| run_name(SystemTime::now()))
}

/// Reads a plan for a run; where it is refused, says how what cannot be run could be left out.
pub(super) fn load(path: &Path, classes: &[String]) -> Result<Plan, Fault> {
    Plan::load_without(path, classes).map_err(|error| match &error {
        Error::Refused(findings) if !classes_of(findings).is_empty() => Fault::usage(format!(
            "{error}; `tympan lab check --explain` tells what the plan is made of. Disable what cannot be run, or leave it \
             out: --allow-ignore {}",
            classes_of(findings).join(" --allow-ignore ")
        )),
        _ => fault(&error),
    })
}

/// Returns the classes of the elements that findings are about; they begin with them: `JDBCSampler "load users": ...`.
fn classes_of(findings: &[Finding]) -> Vec<&str> {
    let starts = findings.iter().filter_map(|finding| finding.message.split_once(" \""));
    let is_class = |class: &&str| class.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut classes: Vec<&str> = starts.map(|(class, _)| class).filter(is_class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// Names what was left out of a plan, and what nobody knows in it.
pub(super) fn tell_left_out(plan: &Plan, tell: &mut dyn FnMut(&str)) {
    for place in &plan.inventory.left_out {
        tell(&format!("LEFT OUT {place}"));
    }
    for place in &plan.inventory.unknown {
        tell(&format!("UNKNOWN {place}"));
    }
}

/// Reads names with the addresses that they have for this run.
fn hosts(texts: &[String]) -> Result<HashMap<String, String>, Fault> {
    let read = |text: &String| match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && !address.is_empty() => {
            Ok((name.to_owned(), address.to_owned()))
        }
        _ => Err(Fault::usage(format!("--resolve `{text}` is not such as shop.example=127.0.0.1"))),
    };
    texts.iter().map(read).collect()
}

pub(super) fn run(arguments: &Run) -> Outcome {
    let run = plan_run(arguments)?;
    let has_agents = arguments.agents.agents.is_some() || arguments.agents.listen.is_some();
    if run.offer.is_some() && (has_agents || arguments.emit.emit.is_some()) {
        return Err(Fault::usage(
            "agents follow the load that the plan itself asks for: leave out `--rate` and `--users`",
        ));
    }
    if arguments.emit.emit.is_some() {
        only_here(&arguments.kept, run.added)?;
        return super::fleet::emit(arguments, &run);
    }
    let logs = WatchedLogs::begin(&arguments.logs)?;
    if let Some(fleet) = super::fleet::fleet(&arguments.agents)? {
        only_here(&arguments.kept, run.added)?;
        return super::fleet::run(fleet, &arguments.plan, &run, (&arguments.output, logs));
    }
    let keeper = Keeper::begin(&arguments.kept, Some(arguments.plan.as_path()))?;
    play(&arguments.plan, &run, &arguments.output, (keeper, logs))
}

fn play(
    path: &Path,
    run: &PlanRun,
    output: &Output,
    (keeper, logs): (Keeper<'_>, WatchedLogs),
) -> Outcome {
    let mut goals = goals(output.goals.as_deref())?;
    let plan = load(path, &run.left_out)?;
    goals.extend(plan.goals.iter().cloned());
    let run = &PlanRun { goals: goals.clone(), ..run.clone() };
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    tell_left_out(&plan, &mut tell);
    if plan.inventory.ignored > 0 {
        tell(&format!("{} listeners of the plan have nothing to do here", plan.inventory.ignored));
    }
    let title = if plan.name().is_empty() { "plan" } else { plan.name() };
    // Where there is no terminal, JMeter's summary lines tell how the run goes on.
    let mut outcome = if std::io::stderr().is_terminal() {
        let mut live = super::live(title, run.offer.as_ref().map(|offer| offer.lasts));
        plan.run_shown(run, &mut tell, &mut live)
    } else {
        plan.run(run, &mut tell)
    }
    .map_err(|error| fault(&error))?;
    let keeper = keeper.end();
    for problem in &outcome.faults {
        tracing::error!(reason = %problem, "a thread of the plan ended early");
    }
    let telling = Telling { title, goals: &goals, output, is_own: true, keeper, logs };
    let code = conclude(&mut outcome.results, &telling)?;
    Ok(if outcome.faults.is_empty() { code } else { ExitCode::from(3) })
}

pub(super) fn jmeter(arguments: &Jmeter) -> Outcome {
    let mut output = Output { goals: None, report: None, junit: None, markdown: None, json: false };
    if let Some(rows) = &arguments.report_only {
        let page = report_path(arguments);
        let runs = vec![rows.clone()];
        let report =
            ReportArguments { runs, project: None, out: page, request_log: Vec::new(), output };
        return super::read::report(&report);
    }
    if arguments.report {
        output.report = report_path(arguments);
    }
    let Some(plan) = &arguments.plan else { return Err(Fault::usage("-t names no plan")) };
    if arguments.deletes {
        for path in arguments.rows.iter().chain(&output.report) {
            delete(path)?;
        }
    }
    let mut properties_of_all = HashMap::new();
    for file in arguments.property_file.iter().chain(&arguments.property_files) {
        properties_of_all.extend(tympan_lab::properties::parse(&read_text(file)?));
    }
    properties_of_all.extend(properties(&arguments.global_properties)?);
    properties_of_all.extend(properties(&arguments.properties)?);
    let seed = match properties_of_all.get("tympan.seed") {
        None => new_seed(),
        Some(text) => text.trim().parse().map_err(|_| {
            Fault::usage(format!("the property tympan.seed is a whole number, not `{text}`"))
        })?,
    };
    let run = PlanRun {
        properties: properties_of_all,
        seed,
        rows: arguments.rows.clone(),
        hosts: hosts(&arguments.resolve)?,
        left_out: arguments.allowed.allow_ignore.clone(),
        ..PlanRun::default()
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let hosts = match &arguments.remote {
        Some(hosts) => Some(hosts.clone()),
        None if arguments.is_remote => {
            Some(run.properties.get("remote_hosts").cloned().unwrap_or_default())
        }
        None => None,
    };
    if let Some(hosts) = hosts {
        let fleet = super::fleet::remote_engines(arguments, &hosts)?;
        return super::fleet::run(fleet, plan, &run, (&output, logs));
    }
    play(plan, &run, &output, (Keeper::nothing(), logs))
}

fn delete(path: &Path) -> Result<(), Fault> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Fault::cannot_run(format!("cannot delete `{}`: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// JMeter makes a folder with an index; here the report is one file, in that folder if it is one.
fn report_path(arguments: &Jmeter) -> Option<std::path::PathBuf> {
    let path = arguments.output.as_ref()?;
    if path.extension().is_some_and(|extension| extension == "html") {
        return Some(path.clone());
    }
    std::fs::create_dir_all(path).ok();
    Some(path.join("index.html"))
}
