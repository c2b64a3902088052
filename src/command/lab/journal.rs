//! `journal`: adds steps by running this program itself, and shows them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use serde_json::{Value, json};
use tympan_lab::ab;
use tympan_lab::journal::{self, Figures, Step};

use super::{fault, read_text, write};
use crate::args::lab::Lab;
use crate::args::lab_proof::{Journal, JournalAdd, JournalShow, JournalVerb, Proof};
use crate::command::{Fault, Outcome};
use crate::say;

pub(super) fn journal(arguments: &Journal) -> Outcome {
    match (&arguments.verb, &arguments.file) {
        (Some(JournalVerb::Add(add)), _) => self::add(add),
        (Some(JournalVerb::Show(show)), _) => self::show(show),
        (None, Some(file)) => diary(file),
        (None, None) => {
            Err(Fault::usage("`journal` takes `add`, `show`, or a file with texts of ab"))
        }
    }
}

fn diary(file: &Path) -> Outcome {
    let runs = ab::parse_all(&read_text(file)?);
    if runs.is_empty() {
        return Err(Fault::usage(format!("`{}` holds no text of ab", file.display())));
    }
    for (number, run) in runs.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| runs.get(before));
        let factor = before.map(|before| run.compare(before).to_string()).unwrap_or_default();
        let time =
            |percent| run.percentile(percent).map_or("-".to_owned(), |ms| format!("{ms} ms"));
        say!(
            "{:>3} {:>10.2}/s  p50 {:>8} p98 {:>8} max {:>8}  {factor}",
            number + 1,
            run.rate,
            time(50),
            time(98),
            time(100)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The words of a step, read as this program reads them.
#[derive(Debug, Parser)]
#[command(name = "lab", no_binary_name = true)]
struct Words {
    #[command(subcommand)]
    lab: Lab,
}

fn add(arguments: &JournalAdd) -> Outcome {
    let words: Vec<&str> = arguments.command.iter().map(String::as_str).collect();
    let words = match words.as_slice() {
        ["tympan", "lab", rest @ ..] | ["lab", rest @ ..] => rest,
        all => all,
    };
    let parsed = Words::try_parse_from(words).map_err(|error| Fault::usage(error.to_string()))?;
    let asked = asked(&parsed.lab)?;
    let is_ab = matches!(parsed.lab, Lab::Ab(_));
    let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    if !is_ab && !words.iter().any(|word| word == "--json") {
        words.push("--json".to_owned());
    }
    let (output, code) = run_self(&words)?;
    if !matches!(code, 0 | 1) {
        // What was not measured is no step.
        say!("{}", output.trim_end());
        return Ok(ExitCode::from(code));
    }
    let report: Option<Value> = serde_json::from_str(output.trim()).ok();
    let figures = match &report {
        Some(report) => Figures::of_report(report),
        None => ab::parse(&output).map(|run| Figures::of_ab(&run)),
    };
    let Some(figures) = figures else {
        return Err(Fault::cannot_run(format!("`{}` printed no figures", words.join(" "))));
    };
    let mut step = Step {
        what: arguments.what.clone(),
        at: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        command: arguments.command.clone(),
        asked,
        figures,
    };
    step.note_length();
    journal::add(&arguments.journal, &step).map_err(|error| fault(&error))?;
    let steps = journal::read(&arguments.journal).map_err(|error| fault(&error))?;
    if let Some(report) = report {
        keep_report(&arguments.journal, steps.len(), &report)?;
    }
    let rows = journal::rows(&steps);
    let last = rows.get(rows.len().saturating_sub(1)..).unwrap_or_default();
    if arguments.json {
        say!("{}", json!({ "steps": last }));
    } else {
        say!("{}", journal::table(last));
    }
    Ok(ExitCode::from(code))
}

/// Keeps a step's whole report in the folder beside the journal, for `lab compare`.
fn keep_report(journal: &Path, number: usize, report: &Value) -> Result<(), Fault> {
    let folder = journal.with_extension("runs");
    std::fs::create_dir_all(&folder).map_err(|error| {
        Fault::cannot_run(format!("cannot make `{}`: {error}", folder.display()))
    })?;
    write(&folder.join(format!("step-{number:03}.json")), &report.to_string())
}

/// Runs this program with words of its own; returns what it printed and its exit code.
fn run_self(words: &[String]) -> Result<(String, u8), Fault> {
    let lost = |error: std::io::Error| Fault::cannot_run(format!("cannot run the step: {error}"));
    let program = std::env::current_exe().map_err(lost)?;
    let output = Command::new(program)
        .arg("lab")
        .args(words)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(lost)?;
    let code = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(3);
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), code))
}

/// Returns what a command asks for, by name: two runs may be compared only where all of it is the same.
fn asked(lab: &Lab) -> Result<BTreeMap<String, String>, Fault> {
    let mut asked = BTreeMap::new();
    let mut note = |name: &str, value: String| asked.insert(name.to_owned(), value);
    let count = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    match lab {
        Lab::Get(get) => {
            note("command", "get".to_owned());
            note("urls", get.urls.join(" "));
            note("method", get.method.to_uppercase());
            note("concurrency", get.users.to_string());
            note("count", count(get.requests));
            note("time", get.duration.clone().unwrap_or_else(|| "-".to_owned()));
            note("rate", get.rate.map_or("-".to_owned(), |rate| rate.to_string()));
            note("pause", get.think.clone().unwrap_or_else(|| "-".to_owned()));
            note("keep-alive", (!get.no_keep_alive).to_string());
            note("headers", named(&get.headers));
        }
        Lab::Ab(ab) => {
            note("command", "ab".to_owned());
            note("urls", ab.url.clone());
            note("concurrency", ab.concurrency.to_string());
            note("count", count(ab.requests));
            note("time", count(ab.seconds));
            note("keep-alive", ab.keep_alive.to_string());
            note("headers", named(&ab.headers));
        }
        Lab::Run(run) => {
            note("command", "run".to_owned());
            note("plan", digest(&run.plan)?);
            note("properties", sorted(&run.properties));
        }
        Lab::Proof(Proof::Replay(replay)) => {
            note("command", "replay".to_owned());
            note("log", digest(&replay.log)?);
            note("target", replay.target.clone());
            note("speed", replay.speed.clone());
        }
        _ => {
            return Err(Fault::usage(
                "a step is measured with `get`, `ab`, `run` or `replay`; what others ask for cannot be told yet",
            ));
        }
    }
    note("client", client());
    Ok(asked)
}

/// Returns a file's name with its content's size and sum: a changed plan is another plan.
fn digest(path: &Path) -> Result<String, Fault> {
    let text = read_text(path)?;
    let sum = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Ok(format!("{} ({sum:016x})", path.display()))
}

fn sorted(texts: &[String]) -> String {
    let mut texts = texts.to_vec();
    texts.sort();
    if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
}

/// Returns the names of headers; their values may be secrets.
fn named(headers: &[String]) -> String {
    let names: Vec<String> = headers
        .iter()
        .map(|header| header.split(':').next().unwrap_or_default().trim().to_ascii_lowercase())
        .collect();
    sorted(&names)
}

/// Returns the machine that measures.
fn client() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {processors} processors")
}

fn show(arguments: &JournalShow) -> Outcome {
    let steps = journal::read(&arguments.journal).map_err(|error| fault(&error))?;
    if steps.is_empty() {
        return Err(Fault::usage(format!("`{}` holds no step", arguments.journal.display())));
    }
    let rows = journal::rows(&steps);
    if arguments.json {
        say!("{}", json!({ "steps": rows }));
    } else {
        say!("{}", journal::table(&rows));
    }
    Ok(ExitCode::SUCCESS)
}
