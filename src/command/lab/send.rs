//! The commands that send.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use tympan_lab::ab;
use tympan_lab::get;
use tympan_lab::plan::{Plan, Run as PlanRun};
use tympan_lab::watch_log::Logged;
use tympan_lab::{Error, Finding, goal, honesty, redact};

use super::keep::Keeper;
use super::logs::WatchedLogs;
use super::pages::addresses;
use super::{Telling, conclude, duration, fault, goals, read_text, write};
use crate::args::lab::{Ab, Arrivals, Get, Jmeter, KeptRun, Output, ReportArguments, Run};
use crate::command::{CHECK_FAILED, Fault, Outcome};
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

fn read_bytes(path: &Path) -> Result<Vec<u8>, Fault> {
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
        rows: arguments.jtl.clone(),
        seed: arguments.seed,
        trace: arguments.trace,
    };
    // The heading of reports, which are passed on.
    let title = load.urls.first().map_or_else(|| "get".to_owned(), |url| redact::text(url));
    let title = title.as_str();
    let logs = WatchedLogs::begin(&arguments.logs)?;
    if let Some(fleet) = super::fleet::fleet(&arguments.agents)? {
        only_here(&arguments.kept)?;
        return super::fleet::get(fleet, &load, title, (&arguments.output, logs));
    }
    let keeper = Keeper::begin(&arguments.kept, None);
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

fn only_here(kept: &KeptRun) -> Result<(), Fault> {
    if kept.keep.is_none() && kept.pid.is_none() {
        return Ok(());
    }
    Err(Fault::usage(
        "`--keep` and `--pid` are for what this process measures itself; with agents use --report and --json",
    ))
}

/// Prints what ab says while it runs.
#[expect(clippy::print_stderr, reason = "ab tells how far it has come at standard error")]
fn hear(word: ab::Word<'_>) {
    match word {
        ab::Word::Progress(text) => eprintln!("{text}"),
        ab::Word::Log(text) => say!("{text}"),
    }
}

/// Returns the attributes of ab's table, if one is wanted: each of them asks for it.
fn markup(arguments: &Ab) -> Option<ab::Markup> {
    let given = [&arguments.table, &arguments.row, &arguments.cell];
    let is_wanted = arguments.is_markup || given.iter().any(|attributes| attributes.is_some());
    let [table, row, cell] = given.map(|attributes| attributes.clone().unwrap_or_default());
    is_wanted.then_some(ab::Markup { table, row, cell })
}

pub(super) fn ab(arguments: &Ab) -> Outcome {
    use base64::Engine as _;
    if arguments.is_version {
        say!("{}", ab::Ab::default().banner().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let base64 = base64::engine::general_purpose::STANDARD;
    let mut all = headers(&arguments.headers)?;
    if !arguments.cookies.is_empty() {
        all.push(("Cookie".to_owned(), arguments.cookies.join("; ")));
    }
    if let Some(login) = &arguments.login {
        all.push(("Authorization".to_owned(), format!("Basic {}", base64.encode(login))));
    }
    if let Some(login) = &arguments.proxy_login {
        all.push(("Proxy-Authorization".to_owned(), format!("Basic {}", base64.encode(login))));
    }
    let body = arguments.post.as_deref().or(arguments.put.as_deref());
    let method = match &arguments.method {
        Some(method) => method.as_str(),
        None if arguments.post.is_some() => "POST",
        None if arguments.put.is_some() => "PUT",
        None if arguments.head => "HEAD",
        None => "GET",
    };
    let default = if arguments.seconds.is_some() { 50_000 } else { 1 };
    let load = ab::Ab {
        url: arguments.url.clone().unwrap_or_default(),
        requests: arguments.requests.unwrap_or(default),
        concurrency: arguments.concurrency,
        time_limit: arguments.seconds.map(std::time::Duration::from_secs),
        timeout: std::time::Duration::from_secs(arguments.timeout),
        keep_alive: arguments.keep_alive,
        method: method.to_owned(),
        body: body.map(read_bytes).transpose()?.unwrap_or_default(),
        content_type: arguments.content_type.clone(),
        headers: all,
        proxy: arguments.proxy.clone(),
        source: arguments.source,
        window: arguments.window,
        protocol: arguments.protocol.clone(),
        ciphers: arguments.ciphers.clone(),
        certificate: arguments.certificate.clone(),
        hides_name: arguments.hides_name,
        verbosity: arguments.verbosity.unwrap_or(0),
        quiet: arguments.quiet,
        markup: markup(arguments),
        strict: arguments.strict_ab,
        any_length: arguments.any_length,
        without_deviation: arguments.without_deviation,
        without_percentiles: arguments.without_percentiles,
        csv: arguments.csv.clone(),
        gnuplot: arguments.gnuplot.clone(),
        workers: arguments.workers,
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let (line, end) = load.opening().map_err(|error| fault(&error))?;
    say!("{}", load.banner());
    // A run that tells meanwhile how far it has come, or what comes back, begins with its line; else that is told whole.
    let is_told_before = end.is_empty() || load.verbosity >= 2;
    if is_told_before {
        say!("{line}");
    }
    let run = load.run_heard(Arc::new(hear)).map_err(|error| fault(&error))?;
    let logged = logs.end();
    match is_told_before {
        true => say!("{}\n", end.trim_start_matches("...")),
        false => say!("{line}{end}\n"),
    }
    say!("\n{}", run.figures().trim_end());
    if let Some(path) = &arguments.csv {
        write(path, &run.csv())?;
    }
    if let Some(path) = &arguments.gnuplot {
        write(path, &run.gnuplot())?;
    }
    if run.varying_lengths() > 0 && !arguments.strict_ab {
        say!(
            "\nLength varies: {} answers; ab would call them failed (--strict-ab)",
            run.varying_lengths()
        );
    }
    let response = run.results.total().response;
    say!(
        "\nWith three digits: p50 {}, p95 {}, p99 {}, p99.9 {}, max {}",
        goal::show(response.quantile(0.5)),
        goal::show(response.quantile(0.95)),
        goal::show(response.quantile(0.99)),
        goal::show(response.quantile(0.999)),
        goal::show(response.max())
    );
    for line in logged.iter().flat_map(Logged::told) {
        say!("{line}");
    }
    let is_unread = logged.iter().any(|log| log.unread.is_some());
    match honesty::warning(&run.results) {
        Some(warning) => {
            say!("{warning}");
            Ok(ExitCode::from(3))
        }
        None if run.is_unreachable() || is_unread => Ok(ExitCode::from(3)),
        None if logged.iter().any(|log| log.errors.count > 0) => Ok(ExitCode::from(CHECK_FAILED)),
        None => Ok(ExitCode::SUCCESS),
    }
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
        rows: arguments.jtl.clone(),
        workers: arguments.workers,
        seed: arguments.seed,
        without_listeners: arguments.without_listeners,
        offer: match arguments.rate.is_some() || arguments.users.is_some() {
            true => Some(super::phases::offer(
                arguments.rate.as_deref(),
                arguments.users,
                ("--for", &arguments.lasts),
            )?),
            false => None,
        },
        trace: arguments.trace,
        hosts: hosts(&arguments.resolve)?,
        goals: Vec::new(),
        left_out: arguments.allowed.allow_ignore.clone(),
    })
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

/// Names what was left out of a plan.
pub(super) fn tell_left_out(plan: &Plan, tell: &mut dyn FnMut(&str)) {
    for place in &plan.inventory.left_out {
        tell(&format!("LEFT OUT {place}"));
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
        return super::fleet::emit(arguments, &run);
    }
    let logs = WatchedLogs::begin(&arguments.logs)?;
    if let Some(fleet) = super::fleet::fleet(&arguments.agents)? {
        only_here(&arguments.kept)?;
        return super::fleet::run(fleet, &arguments.plan, &run, (&arguments.output, logs));
    }
    let keeper = Keeper::begin(&arguments.kept, Some(arguments.plan.as_path()));
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
        let rows = Some(rows.clone());
        let report = ReportArguments { rows, project: None, out: page, output };
        return super::read::report(&report);
    }
    if arguments.report {
        output.report = report_path(arguments);
    }
    let Some(plan) = &arguments.plan else { return Err(Fault::usage("-t names no plan")) };
    if arguments.is_remote || arguments.remote.is_some() {
        let hosts = arguments.remote.as_deref().unwrap_or("HOST,HOST");
        return Err(Fault::usage(format!(
            "there are no remote engines to start; `tympan lab run {} --agents {hosts}` divides the load among machines, \
             and `--data copy` gives each all rows as JMeter does",
            plan.display()
        )));
    }
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
    let run = PlanRun {
        properties: properties_of_all,
        rows: arguments.rows.clone(),
        hosts: hosts(&arguments.resolve)?,
        left_out: arguments.allowed.allow_ignore.clone(),
        ..PlanRun::default()
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
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
