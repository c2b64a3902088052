//! Loads that several processes or machines generate together.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::plan_run::RunOptions;
use tympan_lab_tools::fleet::{
    AgentFleet, AgentPlacement, AgentTransport, FleetToken, KubernetesManifest, render_manifest,
    serve_agent,
};
use tympan_terminal::{CommandFault, CommandOutcome, PROGRAM_FILE, say};

use super::load_run::{load_plan, print_omitted_elements};
use super::log_watch::WatchedLogs;
use super::run_folder::RunRecorder;
use super::{RunReportOptions, conclude_run, duration_from_text, lab_fault, read_goals, read_text};
use crate::args::LabOutputArgs;
use crate::args::fleet::{AgentDataDivision, LabAgentArgs, LabAgentsArgs};
use crate::args::jmeter::LabJmeterArgs;
use crate::args::load::LabRunArgs;

/// The default time until all agents must be connected.
const AGENT_START_TIMEOUT: Duration = Duration::from_secs(60);
/// The default time until all pods of a manifest must be connected.
const POD_START_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum number of agents of one controller.
const MAX_AGENT_COUNT: usize = 1000;

pub(super) fn run_agent(arguments: &LabAgentArgs) -> CommandOutcome {
    let carrier = match &arguments.controller {
        Some(controller) if !arguments.stdio => AgentTransport::Dial {
            controller: controller.clone(),
            fleet_token: match (&arguments.token_file, std::env::var("TYMPAN_LAB_TOKEN")) {
                (Some(path), _) => read_token(path)?,
                (None, Ok(text)) => FleetToken::parse(&text).map_err(lab_fault)?,
                (None, Err(_)) => {
                    return Err(CommandFault::usage(
                        "give the controller's token with --token-file or in TYMPAN_LAB_TOKEN",
                    ));
                }
            },
            portion_index: arguments.index,
            connect_timeout: duration_from_text(&arguments.wait)?,
        },
        _ => AgentTransport::Stdio,
    };
    serve_agent(carrier).map(|()| ExitCode::SUCCESS).map_err(lab_fault)
}

fn read_token(path: &Path) -> Result<FleetToken, CommandFault> {
    FleetToken::parse(&read_text(path)?).map_err(lab_fault)
}

fn new_token() -> Result<FleetToken, CommandFault> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| {
        CommandFault::cannot_run(format!("cannot get random bytes from the system: {error}"))
    })?;
    Ok(FleetToken::new(random))
}

/// Returns the maximum time that controller and agents wait for each other.
fn agent_start_timeout(
    arguments: &LabAgentsArgs,
    otherwise: Duration,
) -> Result<Duration, CommandFault> {
    arguments.agent_wait.as_deref().map_or(Ok(otherwise), duration_from_text)
}

/// Returns the agents that the arguments request; `None` if the load stays in this process.
pub(super) fn create_fleet(arguments: &LabAgentsArgs) -> Result<Option<AgentFleet>, CommandFault> {
    let Some(agents) = &arguments.agents else { return Ok(None) };
    let count = agents.parse::<usize>().ok();
    if count.is_some_and(|count| count == 0 || count > MAX_AGENT_COUNT) {
        return Err(CommandFault::usage(format!(
            "--agents must be a number from 1 to {MAX_AGENT_COUNT}, or hosts"
        )));
    }
    let mut fleet = AgentFleet {
        placements: Vec::new(),
        dial_in: None,
        copies_data_rows: arguments.data == AgentDataDivision::Copy,
        copies_load: false,
        start_timeout: agent_start_timeout(arguments, AGENT_START_TIMEOUT)?,
    };
    match (count, arguments.listen) {
        (Some(count), Some(address)) => {
            let listener = TcpListener::bind(address).map_err(|error| {
                CommandFault::cannot_run(format!("cannot listen at {address}: {error}"))
            })?;
            let token = match &arguments.token_file {
                Some(path) => read_token(path)?,
                None => new_token()?,
            };
            print_agent_address(&listener, arguments.token_file.is_none().then_some(&token));
            fleet.dial_in = Some((listener, token, count));
        }
        (Some(count), None) => {
            fleet.placements = vec![AgentPlacement::Local { program: PROGRAM_FILE.into() }; count];
        }
        (None, Some(_)) => {
            return Err(CommandFault::usage(
                "with --listen, --agents is the number of agents to wait for",
            ));
        }
        (None, None) => {
            let placement = |host: &str| AgentPlacement::Ssh {
                ssh_program: arguments.ssh.clone().into_os_string(),
                host: host.trim().to_owned(),
                program: arguments.agent_program.clone(),
            };
            fleet.placements = agents.split(',').map(placement).collect();
        }
    }
    Ok(Some(fleet))
}

/// Returns the agents of JMeter's `-R` and `-r`: each runs all threads of the plan with all rows of its data, unless
/// the load is divided.
pub(super) fn create_remote_engine_fleet(
    arguments: &LabJmeterArgs,
    hosts: &str,
) -> Result<AgentFleet, CommandFault> {
    let hosts: Vec<&str> =
        hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() {
        return Err(CommandFault::usage(
            "no remote host: give -R HOST,HOST, or the property remote_hosts with -r",
        ));
    }
    let placement = |host: &&str| AgentPlacement::Ssh {
        ssh_program: arguments.ssh.clone().into_os_string(),
        // JMeter's hosts may include the port of its RMI registry, which is not used here.
        host: host.split(':').next().unwrap_or(host).to_owned(),
        program: arguments.agent_program.clone(),
    };
    Ok(AgentFleet {
        placements: hosts.iter().map(placement).collect(),
        dial_in: None,
        copies_data_rows: !arguments.divides,
        copies_load: !arguments.divides,
        start_timeout: AGENT_START_TIMEOUT,
    })
}

/// Prints the address that agents connect to, on standard error: standard output is for results.
#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn print_agent_address(listener: &TcpListener, token: Option<&FleetToken>) {
    let Ok(address) = listener.local_addr() else { return };
    match token {
        Some(token) => eprintln!(
            "start agents with: TYMPAN_LAB_TOKEN={} tympan lab load agent {address}",
            token.reveal()
        ),
        None => eprintln!("agents connect to {address}"),
    }
}

/// Runs a plan on agents.
pub(super) fn run_plan_on_fleet(
    fleet: AgentFleet,
    path: &Path,
    run: &RunOptions,
    output: &LabOutputArgs,
    logs: WatchedLogs,
) -> CommandOutcome {
    let mut goals = read_goals(output.goals.as_deref())?;
    let plan = load_plan(path, &run.excluded_classes)?;
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    print_omitted_elements(&plan, &mut tell);
    goals.extend(plan.goals);
    let mut outcome = fleet.run_plan(path, run, &mut tell).map_err(lab_fault)?;
    for problem in &outcome.faults {
        tracing::error!(reason = %problem, "a thread of the plan ended early");
    }
    let title = path.file_stem().unwrap_or_default().to_string_lossy();
    let telling = RunReportOptions {
        title: &title,
        goals: &goals,
        output,
        is_generated_load: true,
        finished_run: RunRecorder::disabled().finish(),
        watched_logs: logs,
    };
    let code = conclude_run(&mut outcome.results, &telling)?;
    Ok(if outcome.faults.is_empty() { code } else { ExitCode::from(3) })
}

/// Puts URLs under load from agents.
pub(super) fn get_with_fleet(
    fleet: AgentFleet,
    get: &GetLoad,
    title: &str,
    output: &LabOutputArgs,
    logs: WatchedLogs,
) -> CommandOutcome {
    let goals = read_goals(output.goals.as_deref())?;
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    let mut outcome = fleet.run_get(get, &mut tell).map_err(lab_fault)?;
    let recorder = RunRecorder::disabled().finish();
    conclude_run(
        &mut outcome.results,
        &RunReportOptions {
            title,
            goals: &goals,
            output,
            is_generated_load: true,
            finished_run: recorder,
            watched_logs: logs,
        },
    )
}

/// Prints a manifest that runs a plan.
pub(super) fn print_manifest(arguments: &LabRunArgs, run: &RunOptions) -> CommandOutcome {
    let agents = arguments.agents.agents.as_deref().and_then(|agents| agents.parse().ok());
    let Some(agents) = agents.filter(|&agents| (1..=MAX_AGENT_COUNT).contains(&agents)) else {
        return Err(CommandFault::usage(format!(
            "--emit needs --agents N, from 1 to {MAX_AGENT_COUNT}"
        )));
    };
    let output = &arguments.output;
    let has_files =
        [&output.report, &output.junit, &output.markdown].iter().any(|file| file.is_some());
    if has_files || run.result_file.is_some() || run.traces_per_label > 0 {
        return Err(CommandFault::usage(
            "files written in a cluster are lost with its pods: leave out `--report`, `--junit`, \
             `--markdown`, `--jtl` and `--trace`, and read the result from the log of the controller",
        ));
    }
    if !arguments.logs.watch_log.is_empty() {
        return Err(CommandFault::usage(
            "the pods of a cluster cannot read the log of the target: watch it with a separate run, without \
             `--watch-log` here",
        ));
    }
    let plan = load_plan(&arguments.plan, &run.excluded_classes)?;
    let token = match &arguments.agents.token_file {
        Some(path) => read_token(path)?,
        None => new_token()?,
    };
    let mut files = plan.file_paths(&run.properties, run.seed).map_err(lab_fault)?;
    // Includes the effect of `--target` on the plan.
    let mut words: Vec<String> =
        run.properties.iter().map(|(name, value)| format!("-J{name}={value}")).collect();
    words.extend(run.excluded_classes.iter().map(|class| format!("--allow-ignore={class}")));
    words.extend(run.host_addresses.iter().map(|(name, at)| format!("--resolve={name}={at}")));
    words.sort_unstable();
    words.push(format!("--seed={}", run.seed));
    if arguments.agents.data == AgentDataDivision::Copy {
        words.push("--data=copy".to_owned());
    }
    if let Some(goals) = &arguments.output.goals {
        files.push(("goals.toml".to_owned(), goals.clone()));
        words.push("--goals=/load/goals.toml".to_owned());
    }
    let manifest = KubernetesManifest {
        image: &arguments.emit.image,
        agent_count: agents,
        arguments: &words,
        plan: &arguments.plan,
        files: &files,
        connect_timeout: agent_start_timeout(&arguments.agents, POD_START_TIMEOUT)?,
        token: &token,
    };
    say!("{}", render_manifest(&manifest).map_err(lab_fault)?.trim_end());
    Ok(ExitCode::SUCCESS)
}
