//! Loads that several processes or machines make together.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab::fleet::{Carrier, Fleet, Manifest, Place, Token, manifest, serve};
use tympan_lab::get::Get;
use tympan_lab::plan::Run as PlanRun;

use super::keep::Keeper;
use super::logs::WatchedLogs;
use super::send::{load, tell_left_out};
use super::{Telling, conclude, duration, fault, goals, read_text};
use crate::args::lab::{Jmeter, Output, Run};
use crate::args::lab_fleet::{Agent, Agents, Data};
use crate::command::{Fault, Outcome};
use crate::open_program::OPEN_PROGRAM;
use crate::say;

/// How long agents may take to come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the pods of a manifest may.
const PATIENCE_WITH_PODS: Duration = Duration::from_secs(600);
/// Most agents that one controller gathers.
const MOST: usize = 1000;

pub(super) fn agent(arguments: &Agent) -> Outcome {
    let carrier = match &arguments.controller {
        Some(controller) if !arguments.stdio => Carrier::Dial {
            controller: controller.clone(),
            token: match (&arguments.token_file, std::env::var("TYMPAN_LAB_TOKEN")) {
                (Some(path), _) => read_token(path)?,
                (None, Ok(text)) => Token::parse(&text).map_err(|error| fault(&error))?,
                (None, Err(_)) => {
                    return Err(Fault::usage(
                        "give the controller's token with --token-file or in TYMPAN_LAB_TOKEN",
                    ));
                }
            },
            index: arguments.index,
            patience: duration(&arguments.wait)?,
        },
        _ => Carrier::Stdio,
    };
    serve(carrier).map(|()| ExitCode::SUCCESS).map_err(|error| fault(&error))
}

fn read_token(path: &Path) -> Result<Token, Fault> {
    Token::parse(&read_text(path)?).map_err(|error| fault(&error))
}

fn new_token() -> Result<Token, Fault> {
    let mut random = [0; 32];
    getrandom::fill(&mut random)
        .map_err(|error| Fault::cannot_run(format!("the system gives no random bytes: {error}")))?;
    Ok(Token::new(random))
}

/// Returns how long controller and agents wait for each other.
fn wait(arguments: &Agents, otherwise: Duration) -> Result<Duration, Fault> {
    arguments.agent_wait.as_deref().map_or(Ok(otherwise), duration)
}

/// Returns the agents that the arguments ask for; `None` if the load stays in this process.
pub(super) fn fleet(arguments: &Agents) -> Result<Option<Fleet>, Fault> {
    let Some(agents) = &arguments.agents else { return Ok(None) };
    let count = agents.parse::<usize>().ok();
    if count.is_some_and(|count| count == 0 || count > MOST) {
        return Err(Fault::usage(format!("--agents is a number from 1 to {MOST}, or hosts")));
    }
    let mut fleet = Fleet {
        places: Vec::new(),
        door: None,
        copies_rows: arguments.data == Data::Copy,
        copies_load: false,
        patience: wait(arguments, PATIENCE)?,
    };
    match (count, arguments.listen) {
        (Some(count), Some(address)) => {
            let listener = TcpListener::bind(address).map_err(|error| {
                Fault::cannot_run(format!("cannot listen at {address}: {error}"))
            })?;
            let token = match &arguments.token_file {
                Some(path) => read_token(path)?,
                None => new_token()?,
            };
            tell_door(&listener, arguments.token_file.is_none().then_some(&token));
            fleet.door = Some((listener, token, count));
        }
        (Some(count), None) => {
            fleet.places = vec![Place::Here { program: OPEN_PROGRAM.into() }; count];
        }
        (None, Some(_)) => {
            return Err(Fault::usage(
                "with --listen, --agents is the number of agents to wait for",
            ));
        }
        (None, None) => {
            let place = |host: &str| Place::Host {
                ssh: arguments.ssh.clone().into_os_string(),
                host: host.trim().to_owned(),
                program: arguments.agent_program.clone(),
            };
            fleet.places = agents.split(',').map(place).collect();
        }
    }
    Ok(Some(fleet))
}

/// Returns the agents of JMeter's `-R` and `-r`: each runs all threads of the plan with all rows of its data, unless the load
/// is to be divided.
pub(super) fn remote_engines(arguments: &Jmeter, hosts: &str) -> Result<Fleet, Fault> {
    let hosts: Vec<&str> =
        hosts.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    if hosts.is_empty() {
        return Err(Fault::usage(
            "no remote host is named: give -R HOST,HOST, or the property remote_hosts with -r",
        ));
    }
    let place = |host: &&str| Place::Host {
        ssh: arguments.ssh.clone().into_os_string(),
        // JMeter's hosts may have the port of its registry, which nobody speaks to here.
        host: host.split(':').next().unwrap_or(host).to_owned(),
        program: arguments.agent_program.clone(),
    };
    Ok(Fleet {
        places: hosts.iter().map(place).collect(),
        door: None,
        copies_rows: !arguments.divides,
        copies_load: !arguments.divides,
        patience: PATIENCE,
    })
}

/// Tells where agents dial in, on standard error: standard output is for what was measured.
#[expect(clippy::print_stderr, reason = "a command speaks to the person who called it")]
fn tell_door(listener: &TcpListener, token: Option<&Token>) {
    let Ok(address) = listener.local_addr() else { return };
    match token {
        Some(token) => eprintln!(
            "agents dial in with: TYMPAN_LAB_TOKEN={} tympan lab agent {address}",
            token.reveal()
        ),
        None => eprintln!("agents dial in at {address}"),
    }
}

/// Runs a plan on agents.
pub(super) fn run(
    fleet: Fleet,
    path: &Path,
    run: &PlanRun,
    (output, logs): (&Output, WatchedLogs),
) -> Outcome {
    let mut goals = goals(output.goals.as_deref())?;
    let plan = load(path, &run.left_out)?;
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    tell_left_out(&plan, &mut tell);
    goals.extend(plan.goals);
    let mut outcome = fleet.run_plan(path, run, &mut tell).map_err(|error| fault(&error))?;
    for problem in &outcome.faults {
        tracing::error!(reason = %problem, "a thread of the plan ended early");
    }
    let title = path.file_stem().unwrap_or_default().to_string_lossy();
    let telling = Telling {
        title: &title,
        goals: &goals,
        output,
        is_own: true,
        keeper: Keeper::nothing().end(),
        logs,
    };
    let code = conclude(&mut outcome.results, &telling)?;
    Ok(if outcome.faults.is_empty() { code } else { ExitCode::from(3) })
}

/// Puts URLs under load from agents.
pub(super) fn get(
    fleet: Fleet,
    get: &Get,
    title: &str,
    (output, logs): (&Output, WatchedLogs),
) -> Outcome {
    let goals = goals(output.goals.as_deref())?;
    let is_quiet = output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    let mut outcome = fleet.run_get(get, &mut tell).map_err(|error| fault(&error))?;
    let keeper = Keeper::nothing().end();
    conclude(
        &mut outcome.results,
        &Telling { title, goals: &goals, output, is_own: true, keeper, logs },
    )
}

/// Prints a manifest that runs a plan.
pub(super) fn emit(arguments: &Run, run: &PlanRun) -> Outcome {
    let agents = arguments.agents.agents.as_deref().and_then(|agents| agents.parse().ok());
    let Some(agents) = agents.filter(|&agents| (1..=MOST).contains(&agents)) else {
        return Err(Fault::usage(format!("--emit needs --agents N, from 1 to {MOST}")));
    };
    let output = &arguments.output;
    let has_files =
        [&output.report, &output.junit, &output.markdown].iter().any(|file| file.is_some());
    if has_files || run.rows.is_some() || run.trace > 0 {
        return Err(Fault::usage(
            "what a cluster writes into files is lost with its pods: leave out `--report`, `--junit`, `--markdown`, `--jtl` and \
             `--trace`, and read the result from the log of the controller",
        ));
    }
    if !arguments.logs.watch_log.is_empty() {
        return Err(Fault::usage(
            "the pods of a cluster see no log of the target: watch it with a run of your own, without `--watch-log` here",
        ));
    }
    let plan = load(&arguments.plan, &run.left_out)?;
    let token = match &arguments.agents.token_file {
        Some(path) => read_token(path)?,
        None => new_token()?,
    };
    let mut files = plan.files(run).map_err(|error| fault(&error))?;
    // With what `--target` means for the plan.
    let mut words: Vec<String> =
        run.properties.iter().map(|(name, value)| format!("-J{name}={value}")).collect();
    words.extend(run.left_out.iter().map(|class| format!("--allow-ignore={class}")));
    words.extend(run.hosts.iter().map(|(name, at)| format!("--resolve={name}={at}")));
    words.sort_unstable();
    words.push(format!("--seed={}", run.seed));
    if arguments.agents.data == Data::Copy {
        words.push("--data=copy".to_owned());
    }
    if let Some(goals) = &arguments.output.goals {
        files.push(("goals.toml".to_owned(), goals.clone()));
        words.push("--goals=/load/goals.toml".to_owned());
    }
    let wanted = Manifest {
        image: &arguments.emit.image,
        agents,
        arguments: &words,
        plan: &arguments.plan,
        files: &files,
        wait: wait(&arguments.agents, PATIENCE_WITH_PODS)?,
        token: &token,
    };
    say!("{}", manifest(&wanted).map_err(|error| fault(&error))?.trim_end());
    Ok(ExitCode::SUCCESS)
}
