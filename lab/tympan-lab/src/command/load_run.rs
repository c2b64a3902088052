//! The commands that generate load.

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_lab_engine::get_load;
use tympan_lab_engine::measurement::jtl::JtlExtraColumns;
use tympan_lab_engine::measurement::run_name;
use tympan_lab_engine::plan_run::{RunOptions, run_plan, run_plan_with_display};
use tympan_lab_plan::{Error, FileFinding, TestPlan, redaction};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::log_watch::WatchedLogs;
use super::page_latency::read_addresses;
use super::run_folder::RunRecorder;
use super::{RunReportOptions, conclude_run, duration_from_text, lab_fault, read_goals, read_text};
use crate::args::jmeter::LabJmeterArgs;
use crate::args::load::{ArrivalDistribution, LabGetArgs, LabRunArgs};
use crate::args::read::LabReportArgs;
use crate::args::{LabOutputArgs, RunFolderArgs};

pub(super) fn parse_headers(texts: &[String]) -> Result<Vec<(String, String)>, CommandFault> {
    texts
        .iter()
        .map(|text| match text.split_once(':') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), value.trim().replace(['\r', '\n'], " ")))
            }
            _ => Err(CommandFault::usage(format!(
                "`{text}` is not a header; expected `Name: value`"
            ))),
        })
        .collect()
}

pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>, CommandFault> {
    std::fs::read(path)
        .map_err(|error| CommandFault::usage(format!("cannot read `{}`: {error}", path.display())))
}

pub(super) fn run_get(arguments: &LabGetArgs) -> CommandOutcome {
    let goals = read_goals(arguments.output.goals.as_deref())?;
    let requests = match (arguments.requests, &arguments.duration) {
        (None, None) => Some(arguments.users as u64),
        (requests, _) => requests,
    };
    let load = get_load::GetLoad {
        urls: read_addresses(&arguments.urls)?,
        method: arguments.http_method(),
        headers: parse_headers(&arguments.headers)?,
        body: arguments.body.as_deref().map(read_bytes).transpose()?.unwrap_or_default(),
        users: arguments.users,
        requests,
        duration: arguments.duration.as_deref().map(duration_from_text).transpose()?,
        rate: arguments.rate,
        arrivals: match arguments.arrivals {
            ArrivalDistribution::Uniform => get_load::GetArrivals::Uniform,
            ArrivalDistribution::Poisson => get_load::GetArrivals::Poisson,
        },
        max_users: arguments.max_users,
        think: arguments.think.as_deref().map(duration_from_text).transpose()?.unwrap_or_default(),
        workers: arguments.workers,
        keep_alive: !arguments.no_keep_alive,
        timeout: duration_from_text(&arguments.timeout)?,
        follow: arguments.follow,
        forgets_sessions: arguments.no_tls_resume,
        is_http2: arguments.http2,
        rows: arguments.jtl.clone(),
        added: extra_columns(arguments.jtl_us, arguments.mark),
        seed: arguments.seed,
        trace: arguments.trace,
        mark: new_run_mark(arguments.mark),
    };
    // The heading of reports, which are passed on to others.
    let title =
        load.urls.first().map_or_else(|| "get".to_owned(), |url| redaction::redact_text(url));
    let title = title.as_str();
    let logs = WatchedLogs::start(&arguments.logs)?;
    if let Some(fleet) = super::agent_fleet::create_fleet(&arguments.agents)? {
        refuse_with_agents(&arguments.run_options, load.added)?;
        return super::agent_fleet::get_with_fleet(fleet, &load, title, &arguments.output, logs);
    }
    let recorder = RunRecorder::start(&arguments.run_options, None)?;
    let mut live = super::live_display(title, load.duration);
    live.set_abort_goals(&goals);
    let mut results = load.run_with_display(&mut live).map_err(lab_fault)?;
    drop(live);
    let output = &arguments.output;
    conclude_run(
        &mut results,
        &RunReportOptions {
            title,
            goals: &goals,
            output,
            is_generated_load: true,
            finished_run: recorder.finish(),
            watched_logs: logs,
        },
    )
}

fn refuse_with_agents(
    folder_args: &RunFolderArgs,
    added: JtlExtraColumns,
) -> Result<(), CommandFault> {
    if added.microseconds {
        return Err(CommandFault::usage(
            "results of agents are in milliseconds: leave out --jtl-us",
        ));
    }
    if added.mark {
        return Err(CommandFault::usage("samples of agents have no marks: leave out --mark"));
    }
    let watches = folder_args.watched.pid.is_some() || folder_args.watched.metrics.is_some();
    if folder_args.keep.is_none() && !watches {
        return Ok(());
    }
    Err(CommandFault::usage(
        "`--keep`, `--pid` and `--metrics` work only without agents; with agents use --report and --json",
    ))
}

pub(super) fn parse_properties(texts: &[String]) -> Result<HashMap<String, String>, CommandFault> {
    texts
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(CommandFault::usage(format!(
                "`-J{text}` is not a property; expected -Jname=value"
            ))),
        })
        .collect()
}

/// Returns the run options from the arguments.
pub(super) fn plan_run_from_args(arguments: &LabRunArgs) -> Result<RunOptions, CommandFault> {
    let mut properties = parse_properties(&arguments.properties)?;
    if let Some(target) = &arguments.target {
        let plan = arguments.plan.to_string_lossy();
        properties.extend(super::load_phase::target_properties(target, &plan)?);
    }
    Ok(RunOptions {
        properties,
        proxy_address: None,
        is_http2: arguments.http2,
        result_file: arguments.jtl.clone(),
        worker_count: arguments.workers,
        seed: arguments.seed.unwrap_or_else(random_seed),
        without_listeners: arguments.without_listeners,
        load_offer: match arguments.rate.is_some() || arguments.users.is_some() {
            true => Some(super::load_phase::load_offer(
                arguments.rate.as_deref(),
                arguments.users,
                "--duration",
                arguments.duration.as_deref().unwrap_or("1m"),
            )?),
            false if arguments.duration.is_some() => {
                return Err(CommandFault::usage(
                    "--duration is the duration of a load of --rate or --users; the plan itself defines how long \
                     its own load lasts",
                ));
            }
            false => None,
        },
        traces_per_label: arguments.trace,
        host_addresses: parse_host_overrides(&arguments.resolve)?,
        goals: Vec::new(),
        excluded_classes: arguments.allowed.allow_ignore.clone(),
        extra_columns: extra_columns(arguments.jtl_us, arguments.mark),
        run_mark: new_run_mark(arguments.mark),
    })
}

/// Returns a random seed for a run without a given one.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

fn extra_columns(microseconds: bool, mark: bool) -> JtlExtraColumns {
    JtlExtraColumns { microseconds, mark }
}

/// Returns the identifier of a new run, if requests carry marks.
fn new_run_mark(is_marked: bool) -> Option<String> {
    is_marked.then(|| run_name(SystemTime::now()))
}

/// Loads a plan for a run; if it is refused, the fault names the options that leave out what cannot be run.
pub(super) fn load_plan(path: &Path, classes: &[String]) -> Result<TestPlan, CommandFault> {
    TestPlan::load_without_classes(path, classes).map_err(|error| match &error {
        Error::InvalidFile(findings) if !element_classes(findings).is_empty() => CommandFault::usage(format!(
            "{error}; `tympan lab plan check --explain` lists the elements of the plan. Disable what cannot be \
             run, or leave it out: --allow-ignore {}",
            element_classes(findings).join(" --allow-ignore ")
        )),
        _ => lab_fault(error),
    })
}

/// Returns the classes of the elements in findings, which begin with the class: `JDBCSampler "load users": ...`.
fn element_classes(findings: &[FileFinding]) -> Vec<&str> {
    let starts = findings.iter().filter_map(|finding| finding.message.split_once(" \""));
    let is_class = |class: &&str| class.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let mut classes: Vec<&str> = starts.map(|(class, _)| class).filter(is_class).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// Prints the elements of a plan that were left out, and the unknown ones.
pub(super) fn print_omitted_elements(plan: &TestPlan, tell: &mut dyn FnMut(&str)) {
    for element in &plan.inventory.excluded_elements {
        tell(&format!("LEFT OUT {element}"));
    }
    for function in &plan.inventory.unknown_functions {
        tell(&format!("UNKNOWN {function}"));
    }
}

/// Parses host names with their addresses for this run.
fn parse_host_overrides(texts: &[String]) -> Result<HashMap<String, String>, CommandFault> {
    let read = |text: &String| match text.split_once('=') {
        Some((name, address)) if !name.is_empty() && !address.is_empty() => {
            Ok((name.to_owned(), address.to_owned()))
        }
        _ => Err(CommandFault::usage(format!(
            "--resolve `{text}` is not of the form shop.example=127.0.0.1"
        ))),
    };
    texts.iter().map(read).collect()
}

pub(super) fn run_plan_command(arguments: &LabRunArgs) -> CommandOutcome {
    let run = plan_run_from_args(arguments)?;
    let has_agents = arguments.agents.agents.is_some() || arguments.agents.listen.is_some();
    if run.load_offer.is_some() && (has_agents || arguments.emit.emit.is_some()) {
        return Err(CommandFault::usage(
            "agents run the load that the plan itself defines: leave out `--rate` and `--users`",
        ));
    }
    if arguments.emit.emit.is_some() {
        refuse_with_agents(&arguments.run_options, run.extra_columns)?;
        return super::agent_fleet::print_manifest(arguments, &run);
    }
    let logs = WatchedLogs::start(&arguments.logs)?;
    if let Some(fleet) = super::agent_fleet::create_fleet(&arguments.agents)? {
        refuse_with_agents(&arguments.run_options, run.extra_columns)?;
        return super::agent_fleet::run_plan_on_fleet(
            fleet,
            &arguments.plan,
            &run,
            &arguments.output,
            logs,
        );
    }
    let recorder = RunRecorder::start(&arguments.run_options, Some(arguments.plan.as_path()))?;
    execute_plan(&arguments.plan, &run, &arguments.output, recorder, logs)
}

fn execute_plan(
    path: &Path,
    run: &RunOptions,
    output: &LabOutputArgs,
    recorder: RunRecorder<'_>,
    logs: WatchedLogs,
) -> CommandOutcome {
    let mut goals = read_goals(output.goals.as_deref())?;
    let plan = load_plan(path, &run.excluded_classes)?;
    goals.extend(plan.goals.iter().cloned());
    let run = &RunOptions { goals: goals.clone(), ..run.clone() };
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    print_omitted_elements(&plan, &mut tell);
    if plan.inventory.ignored_listeners > 0 {
        tell(&format!("{} listeners of the plan are ignored", plan.inventory.ignored_listeners));
    }
    let title = if plan.name().is_empty() { "plan" } else { plan.name() };
    // Without a terminal, JMeter's summary lines show the progress.
    let mut outcome = if std::io::stderr().is_terminal() {
        let mut live =
            super::live_display(title, run.load_offer.as_ref().map(|offer| offer.duration));
        run_plan_with_display(&plan, run, &mut tell, &mut live)
    } else {
        run_plan(&plan, run, &mut tell)
    }
    .map_err(lab_fault)?;
    let recorder = recorder.finish();
    for problem in &outcome.errors {
        tracing::error!(reason = %problem, "a thread of the plan ended early");
    }
    let telling = RunReportOptions {
        title,
        goals: &goals,
        output,
        is_generated_load: true,
        finished_run: recorder,
        watched_logs: logs,
    };
    let code = conclude_run(&mut outcome.results, &telling)?;
    Ok(if outcome.errors.is_empty() { code } else { ExitCode::from(3) })
}

pub(super) fn run_jmeter(arguments: &LabJmeterArgs) -> CommandOutcome {
    let mut output =
        LabOutputArgs { goals: None, report: None, junit: None, markdown: None, json: false };
    if let Some(rows) = &arguments.report_only {
        let page = jmeter_report_path(arguments);
        let runs = vec![rows.clone()];
        let report =
            LabReportArgs { runs, project: None, out: page, request_log: Vec::new(), output };
        return super::evaluation::report_results(&report);
    }
    if arguments.report {
        output.report = jmeter_report_path(arguments);
    }
    let Some(plan) = &arguments.plan else {
        return Err(CommandFault::usage("no plan: give one with -t"));
    };
    if arguments.deletes {
        for path in arguments.rows.iter().chain(&output.report) {
            delete_output(path)?;
        }
    }
    let mut properties_of_all = HashMap::new();
    for file in arguments.property_file.iter().chain(&arguments.property_files) {
        properties_of_all
            .extend(tympan_lab_plan::property_file::parse_properties(&read_text(file)?));
    }
    properties_of_all.extend(parse_properties(&arguments.global_properties)?);
    properties_of_all.extend(parse_properties(&arguments.properties)?);
    let seed = match properties_of_all.get("tympan.seed") {
        None => random_seed(),
        Some(text) => text.trim().parse().map_err(|_| {
            CommandFault::usage(format!(
                "the property tympan.seed must be a whole number, not `{text}`"
            ))
        })?,
    };
    let run = RunOptions {
        properties: properties_of_all,
        seed,
        result_file: arguments.rows.clone(),
        host_addresses: parse_host_overrides(&arguments.resolve)?,
        excluded_classes: arguments.allowed.allow_ignore.clone(),
        ..RunOptions::default()
    };
    let logs = WatchedLogs::start(&arguments.logs)?;
    let hosts = match &arguments.remote {
        Some(hosts) => Some(hosts.clone()),
        None if arguments.is_remote => {
            Some(run.properties.get("remote_hosts").cloned().unwrap_or_default())
        }
        None => None,
    };
    if let Some(hosts) = hosts {
        let fleet = super::agent_fleet::create_remote_engine_fleet(arguments, &hosts)?;
        return super::agent_fleet::run_plan_on_fleet(fleet, plan, &run, &output, logs);
    }
    execute_plan(plan, &run, &output, RunRecorder::disabled(), logs)
}

fn delete_output(path: &Path) -> Result<(), CommandFault> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CommandFault::cannot_run(format!("cannot delete `{}`: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Returns the path of the report: JMeter creates a folder with an index, while this report is one file, inside the
/// folder if the path is a folder.
fn jmeter_report_path(arguments: &LabJmeterArgs) -> Option<std::path::PathBuf> {
    let path = arguments.output.as_ref()?;
    if path.extension().is_some_and(|extension| extension == "html") {
        return Some(path.clone());
    }
    std::fs::create_dir_all(path).ok();
    Some(path.join("index.html"))
}
