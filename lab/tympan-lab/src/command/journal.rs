//! `journal`: adds steps by running this program itself, and prints them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use serde_json::{Value, json};
use tympan_lab_plan::redaction;
use tympan_lab_tools::journal::{JournalStep, RunFigures};
use tympan_lab_tools::{ab, journal};
use tympan_terminal::{CommandFault, CommandOutcome, PROGRAM_FILE, say};

use super::load_run::plan_run_from_args;
use super::{lab_fault, read_text, write_text};
use crate::args::ab::LabAbArgs;
use crate::args::fleet::{AgentDataDivision, LabAgentsArgs};
use crate::args::load::{LabGetArgs, LabLoadCommand, LabReplayArgs, LabRunArgs};
use crate::args::tune::{JournalAddArgs, JournalShowArgs, LabJournalArgs, LabJournalCommand};
use crate::args::{LabCommand, expand_flat_name};

pub(super) fn run_journal_command(arguments: &LabJournalArgs) -> CommandOutcome {
    match (&arguments.verb, &arguments.file) {
        (Some(LabJournalCommand::Add(add)), _) => self::add_journal_step(add),
        (Some(LabJournalCommand::Show(show)), _) => self::show_journal(show),
        (None, Some(file)) => print_ab_diary(file),
        (None, None) => {
            Err(CommandFault::usage("`journal` takes `add`, `show`, or a file with outputs of ab"))
        }
    }
}

fn print_ab_diary(file: &Path) -> CommandOutcome {
    let runs = ab::parse_ab_reports(&read_text(file)?);
    if runs.is_empty() {
        return Err(CommandFault::usage(format!("`{}` contains no output of ab", file.display())));
    }
    for (number, run) in runs.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| runs.get(before));
        let factor = before.map(|before| run.compare(before).to_string()).unwrap_or_default();
        let time =
            |percent| run.percentile(percent).map_or("-".to_owned(), |ms| format!("{ms} ms"));
        say!(
            "{:>3} {:>10.2}/s  p50 {:>8} p98 {:>8} max {:>8}  {factor}",
            number + 1,
            run.requests_per_second,
            time(50),
            time(98),
            time(100)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments of a step, parsed by this program's own parser.
#[derive(Debug, Parser)]
#[command(name = "lab", no_binary_name = true)]
struct StepArgs {
    #[command(subcommand)]
    lab: LabCommand,
}

fn add_journal_step(arguments: &JournalAddArgs) -> CommandOutcome {
    let words: Vec<&str> = arguments.command.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        ["tympan", "lab", rest @ ..] | ["lab", rest @ ..] => rest,
        all => all,
    };
    let words =
        expand_flat_name(words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>());
    let parsed =
        StepArgs::try_parse_from(&words).map_err(|error| CommandFault::usage(error.to_string()))?;
    let load_settings = load_command_settings(&parsed.lab)?;
    let is_ab = matches!(parsed.lab, LabCommand::Ab(_) | LabCommand::Load(LabLoadCommand::Ab(_)));
    let mut words = words;
    if !is_ab && !words.iter().any(|argument| argument == "--json") {
        words.push("--json".to_owned());
    }
    let (output, code) = run_own_program(&words)?;
    if !matches!(code, 0 | 1) {
        // Without a measurement there is no step.
        let report: Option<Value> = serde_json::from_str(output.trim()).ok();
        match report.filter(|_| !arguments.book.json) {
            Some(report) => say!(
                "nothing was measured, so no step is added: {}",
                invalid_measurement_reason(&report)
            ),
            None => say!("{}", output.trim_end()),
        }
        return Ok(ExitCode::from(code));
    }
    let mut report: Option<Value> = serde_json::from_str(output.trim()).ok();
    if let Some(report) = &mut report {
        redaction::redact_json(report);
    }
    let figures = match &report {
        Some(report) => RunFigures::from_report(report),
        None => ab::parse_ab_report(&output).map(|run| RunFigures::from_ab_report(&run)),
    };
    let Some(figures) = figures else {
        return Err(CommandFault::cannot_run(format!("`{}` printed no figures", words.join(" "))));
    };
    let mut step = JournalStep {
        what: arguments.what.clone(),
        at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: redaction::redact_command_line(&arguments.command),
        asked: load_settings,
        figures,
    };
    step.record_response_length();
    journal::append_step(&arguments.book.journal, &step).map_err(lab_fault)?;
    let steps = journal::read_steps(&arguments.book.journal).map_err(lab_fault)?;
    if let Some(report) = report {
        store_step_report(&arguments.book.journal, steps.len(), &report)?;
    }
    let rows = journal::compare_steps(&steps);
    let last = rows.get(rows.len().saturating_sub(1)..).unwrap_or_default();
    if arguments.book.json {
        say!("{}", json!({ "steps": last }));
    } else {
        say!("{}", journal::format_journal_table(last));
    }
    Ok(ExitCode::from(code))
}

/// Returns the reason why a report is no measurement.
fn invalid_measurement_reason(report: &Value) -> String {
    let texts = |name: &str| -> Vec<String> {
        let all = report.get(name).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut reasons = [texts("incomplete"), texts("doubts")].concat();
    let failed = report.pointer("/total/reasons").and_then(Value::as_object);
    let failed = failed.into_iter().flatten();
    reasons.extend(failed.map(|(reason, count)| format!("{count} x {reason}")));
    if reasons.is_empty() { "the target never responded".to_owned() } else { reasons.join("; ") }
}

/// Stores a step's complete report in the folder next to the journal, for `lab compare`.
fn store_step_report(journal: &Path, number: usize, report: &Value) -> Result<(), CommandFault> {
    let folder = journal.with_extension("runs");
    std::fs::create_dir_all(&folder).map_err(|error| {
        CommandFault::cannot_run(format!("cannot create `{}`: {error}", folder.display()))
    })?;
    write_text(&folder.join(format!("step-{number:03}.json")), &report.to_string())
}

/// Runs this program with the given arguments; returns its output and its exit code.
fn run_own_program(words: &[String]) -> Result<(String, u8), CommandFault> {
    let lost =
        |error: std::io::Error| CommandFault::cannot_run(format!("cannot run the step: {error}"));
    let output = Command::new(PROGRAM_FILE)
        .args(words)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(lost)?;
    let code = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(3);
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), code))
}

/// The load settings of a command, by name.
#[derive(Debug, Default)]
struct LoadCommandSettings(BTreeMap<String, String>);

impl LoadCommandSettings {
    fn add(&mut self, name: &str, value: impl Display) {
        self.0.insert(name.to_owned(), value.to_string());
    }

    fn add_optional<T: Display>(&mut self, name: &str, value: Option<&T>) {
        match value {
            Some(value) => self.add(name, value),
            None => self.add(name, "-"),
        }
    }

    /// Agents share a load, and generate a different one if each has all rows.
    fn add_agents(&mut self, agents: &LabAgentsArgs) {
        let count = agents.agents.as_deref().map(|text| match text.parse::<usize>() {
            Ok(count) => count,
            Err(_) => text.split(',').count(),
        });
        self.add_optional("agents", count.as_ref());
        self.add("rows", if agents.data == AgentDataDivision::Copy { "copy" } else { "share" });
    }

    fn add_headers(&mut self, headers: &[String]) {
        self.add(
            "headers",
            sort_and_join(headers.iter().map(|header| redaction::redact_header(header))),
        );
    }

    fn add_get(&mut self, get: &LabGetArgs) -> Result<(), CommandFault> {
        self.add("command", "get");
        self.add(
            "urls",
            redaction::redact_text(&super::page_latency::read_addresses(&get.urls)?.join(" ")),
        );
        self.add("method", get.http_method());
        self.add_optional("body", get.body.as_deref().map(file_digest).transpose()?.as_ref());
        self.add("concurrency", get.users);
        self.add_optional("count", get.requests.as_ref());
        self.add_optional("time", get.duration.as_ref());
        self.add_optional("rate", get.rate.as_ref());
        if get.rate.is_some() {
            self.add("arrivals", format!("{:?}, at most {}", get.arrivals, get.max_users));
        }
        self.add_optional("pause", get.think.as_ref());
        self.add("keep-alive", !get.no_keep_alive);
        self.add("redirects", get.follow);
        if get.no_tls_resume {
            self.add("sessions", "full handshakes");
        }
        if get.http2 {
            self.add("protocol", "HTTP/2");
        }
        self.add_headers(&get.headers);
        self.add_agents(&get.agents);
        Ok(())
    }

    fn add_ab(&mut self, ab: &LabAbArgs) -> Result<(), CommandFault> {
        self.add("command", "ab");
        self.add("urls", redaction::redact_text(ab.url.as_deref().unwrap_or_default()));
        let is_head = if ab.head { "HEAD" } else { "-" };
        self.add("method", ab.method.as_deref().unwrap_or(is_head));
        let body = ab.post.as_deref().or(ab.put.as_deref());
        self.add_optional("body", body.map(file_digest).transpose()?.as_ref());
        self.add("concurrency", ab.concurrency);
        self.add_optional("count", ab.requests.as_ref());
        self.add_optional("time", ab.seconds.as_ref());
        self.add("keep-alive", ab.keep_alive);
        self.add_optional("proxy", ab.proxy.as_deref().map(redaction::redact_text).as_ref());
        if let Some(source) = &ab.source {
            self.add("source", source);
        }
        self.add_headers(&ab.headers);
        let name = |cookie: &String| cookie.split('=').next().unwrap_or_default().to_owned();
        self.add("cookies", sort_and_join(ab.cookies.iter().map(name)));
        self.add("login", ab.login.is_some());
        Ok(())
    }

    fn add_run(&mut self, run: &LabRunArgs) -> Result<(), CommandFault> {
        self.add("command", "run");
        self.add("plan", file_digest(&run.plan)?);
        let left_out = &run.allowed.allow_ignore;
        let plan = super::load_run::load_plan(&run.plan, left_out)?;
        let options = plan_run_from_args(run)?;
        let files = plan.file_paths(&options.properties, options.seed).map_err(lab_fault)?;
        for (name, path) in files {
            self.add(&format!("file {name}"), file_digest(&path)?);
        }
        self.add_optional("target", run.target.as_deref().map(redaction::redact_text).as_ref());
        self.add_optional("rate", run.rate.as_ref());
        self.add_optional("users", run.users.as_ref());
        if run.rate.is_some() || run.users.is_some() {
            self.add("time", run.duration.as_deref().unwrap_or("1m"));
        }
        self.add_optional("seed", run.seed.as_ref());
        if !left_out.is_empty() {
            self.add("left out", sort_and_join(left_out.iter().cloned()));
        }
        let properties = run.properties.iter().map(|property| redaction::redact_property(property));
        self.add("properties", sort_and_join(properties));
        self.add_agents(&run.agents);
        Ok(())
    }

    fn add_replay(&mut self, replay: &LabReplayArgs) -> Result<(), CommandFault> {
        self.add("command", "replay");
        self.add("log", file_digest(&replay.log)?);
        self.add("target", redaction::redact_text(&replay.target));
        self.add("speed", &replay.speed);
        self.add("methods", if replay.all_methods { "all" } else { "reading" });
        self.add_headers(&replay.headers);
        Ok(())
    }
}

/// Returns the load settings of a command: two runs may be compared only if all of them are equal.
fn load_command_settings(lab: &LabCommand) -> Result<BTreeMap<String, String>, CommandFault> {
    let mut settings = LoadCommandSettings::default();
    match lab {
        LabCommand::Get(get) | LabCommand::Load(LabLoadCommand::Get(get)) => {
            settings.add_get(get)?;
        }
        LabCommand::Ab(ab) | LabCommand::Load(LabLoadCommand::Ab(ab)) => settings.add_ab(ab)?,
        LabCommand::Load(LabLoadCommand::Run(run)) => settings.add_run(run)?,
        LabCommand::Load(LabLoadCommand::Replay(replay)) => settings.add_replay(replay)?,
        _ => {
            return Err(CommandFault::usage(
                "a step is measured with `get`, `ab`, `run` or `replay`; other commands are not supported yet",
            ));
        }
    }
    settings.add("client", client_machine());
    Ok(settings.0)
}

/// Returns a file's name with the hash of its content: a changed plan counts as another plan, regardless of its folder.
fn file_digest(path: &Path) -> Result<String, CommandFault> {
    let bytes = std::fs::read(path).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", path.display()))
    })?;
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{name} ({sum:016x})"))
}

fn sort_and_join(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// Returns a description of the measuring machine.
fn client_machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {processors} processors")
}

fn show_journal(arguments: &JournalShowArgs) -> CommandOutcome {
    let steps = journal::read_steps(&arguments.book.journal).map_err(lab_fault)?;
    if steps.is_empty() {
        return Err(CommandFault::usage(format!(
            "`{}` contains no steps",
            arguments.book.journal.display()
        )));
    }
    let rows = journal::compare_steps(&steps);
    if arguments.book.json {
        say!("{}", json!({ "steps": rows }));
    } else {
        say!("{}", journal::format_journal_table(&rows));
    }
    Ok(ExitCode::SUCCESS)
}
