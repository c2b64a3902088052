//! `journal`: adds steps by running this program itself, and shows them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::process::{Command, ExitCode};

use clap::Parser;
use serde_json::{Value, json};
use tympan_lab::ab;
use tympan_lab::journal::{self, Figures, Step};
use tympan_lab::redact;

use super::send::plan_run;
use super::{fault, read_text, write};
use crate::args::lab::{Ab, Get, Lab, Run};
use crate::args::lab_fleet::{Agents, Data};
use crate::args::lab_proof::{Journal, JournalAdd, JournalShow, JournalVerb, Proof, Replay};
use crate::command::{Fault, Outcome};
use crate::open_program::OPEN_PROGRAM;
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
        let report: Option<Value> = serde_json::from_str(output.trim()).ok();
        match report.filter(|_| !arguments.book.json) {
            Some(report) => say!("nothing was measured, so no step is added: {}", why(&report)),
            None => say!("{}", output.trim_end()),
        }
        return Ok(ExitCode::from(code));
    }
    let mut report: Option<Value> = serde_json::from_str(output.trim()).ok();
    if let Some(report) = &mut report {
        redact::value(report);
    }
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
        command: redact::words(&arguments.command),
        asked,
        figures,
    };
    step.note_length();
    journal::add(&arguments.book.journal, &step).map_err(|error| fault(&error))?;
    let steps = journal::read(&arguments.book.journal).map_err(|error| fault(&error))?;
    if let Some(report) = report {
        keep_report(&arguments.book.journal, steps.len(), &report)?;
    }
    let rows = journal::rows(&steps);
    let last = rows.get(rows.len().saturating_sub(1)..).unwrap_or_default();
    if arguments.book.json {
        say!("{}", json!({ "steps": last }));
    } else {
        say!("{}", journal::table(last));
    }
    Ok(ExitCode::from(code))
}

/// Returns why a report is no measurement.
fn why(report: &Value) -> String {
    let texts = |name: &str| -> Vec<String> {
        let all = report.get(name).and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let mut reasons = [texts("incomplete"), texts("doubts")].concat();
    let failed = report.pointer("/total/reasons").and_then(Value::as_object);
    let failed = failed.into_iter().flatten();
    reasons.extend(failed.map(|(reason, count)| format!("{count} x {reason}")));
    if reasons.is_empty() { "the target never answered".to_owned() } else { reasons.join("; ") }
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
    let output = Command::new(OPEN_PROGRAM)
        .arg("lab")
        .args(words)
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(lost)?;
    let code = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(3);
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), code))
}

/// What a command asks for, by name.
#[derive(Debug, Default)]
struct Asked(BTreeMap<String, String>);

impl Asked {
    fn note(&mut self, name: &str, value: impl Display) {
        self.0.insert(name.to_owned(), value.to_string());
    }

    fn note_if<T: Display>(&mut self, name: &str, value: Option<&T>) {
        match value {
            Some(value) => self.note(name, value),
            None => self.note(name, "-"),
        }
    }

    /// Agents share a load, and make another one if each has all rows.
    fn note_agents(&mut self, agents: &Agents) {
        let count = agents.agents.as_deref().map(|text| match text.parse::<usize>() {
            Ok(count) => count,
            Err(_) => text.split(',').count(),
        });
        self.note_if("agents", count.as_ref());
        self.note("rows", if agents.data == Data::Copy { "copy" } else { "share" });
    }

    fn note_headers(&mut self, headers: &[String]) {
        self.note("headers", sorted(headers.iter().map(|header| redact::header(header))));
    }

    fn get(&mut self, get: &Get) -> Result<(), Fault> {
        self.note("command", "get");
        self.note("urls", redact::text(&super::pages::addresses(&get.urls)?.join(" ")));
        self.note("method", get.method());
        self.note_if("body", get.body.as_deref().map(digest).transpose()?.as_ref());
        self.note("concurrency", get.users);
        self.note_if("count", get.requests.as_ref());
        self.note_if("time", get.duration.as_ref());
        self.note_if("rate", get.rate.as_ref());
        if get.rate.is_some() {
            self.note("arrivals", format!("{:?}, at most {}", get.arrivals, get.max_users));
        }
        self.note_if("pause", get.think.as_ref());
        self.note("keep-alive", !get.no_keep_alive);
        self.note("redirects", get.follow);
        if get.no_tls_resume {
            self.note("sessions", "full handshakes");
        }
        if get.http2 {
            self.note("protocol", "HTTP/2");
        }
        self.note_headers(&get.headers);
        self.note_agents(&get.agents);
        Ok(())
    }

    fn ab(&mut self, ab: &Ab) -> Result<(), Fault> {
        self.note("command", "ab");
        self.note("urls", redact::text(ab.url.as_deref().unwrap_or_default()));
        let is_head = if ab.head { "HEAD" } else { "-" };
        self.note("method", ab.method.as_deref().unwrap_or(is_head));
        let body = ab.post.as_deref().or(ab.put.as_deref());
        self.note_if("body", body.map(digest).transpose()?.as_ref());
        self.note("concurrency", ab.concurrency);
        self.note_if("count", ab.requests.as_ref());
        self.note_if("time", ab.seconds.as_ref());
        self.note("keep-alive", ab.keep_alive);
        self.note_if("proxy", ab.proxy.as_deref().map(redact::text).as_ref());
        if let Some(source) = &ab.source {
            self.note("source", source);
        }
        self.note_headers(&ab.headers);
        let name = |cookie: &String| cookie.split('=').next().unwrap_or_default().to_owned();
        self.note("cookies", sorted(ab.cookies.iter().map(name)));
        self.note("login", ab.login.is_some());
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<(), Fault> {
        self.note("command", "run");
        self.note("plan", digest(&run.plan)?);
        let left_out = &run.allowed.allow_ignore;
        let plan = super::send::load(&run.plan, left_out)?;
        let files = plan.files(&plan_run(run)?).map_err(|error| fault(&error))?;
        for (name, path) in files {
            self.note(&format!("file {name}"), digest(&path)?);
        }
        self.note_if("target", run.target.as_deref().map(redact::text).as_ref());
        self.note_if("rate", run.rate.as_ref());
        self.note_if("users", run.users.as_ref());
        if run.rate.is_some() || run.users.is_some() {
            self.note("time", run.lasts.as_deref().unwrap_or("1m"));
        }
        self.note_if("seed", run.seed.as_ref());
        if !left_out.is_empty() {
            self.note("left out", sorted(left_out.iter().cloned()));
        }
        let properties = run.properties.iter().map(|property| redact::property(property));
        self.note("properties", sorted(properties));
        self.note_agents(&run.agents);
        Ok(())
    }

    fn replay(&mut self, replay: &Replay) -> Result<(), Fault> {
        self.note("command", "replay");
        self.note("log", digest(&replay.log)?);
        self.note("target", redact::text(&replay.target));
        self.note("speed", &replay.speed);
        self.note("methods", if replay.all_methods { "all" } else { "reading" });
        self.note_headers(&replay.headers);
        Ok(())
    }
}

/// Returns what a command asks for: two runs may be compared only where all of it is the same.
fn asked(lab: &Lab) -> Result<BTreeMap<String, String>, Fault> {
    let mut asked = Asked::default();
    match lab {
        Lab::Get(get) => asked.get(get)?,
        Lab::Ab(ab) => asked.ab(ab)?,
        Lab::Run(run) => asked.run(run)?,
        Lab::Proof(Proof::Replay(replay)) => asked.replay(replay)?,
        _ => {
            return Err(Fault::usage(
                "a step is measured with `get`, `ab`, `run` or `replay`; what others ask for cannot be told yet",
            ));
        }
    }
    asked.note("client", client());
    Ok(asked.0)
}

/// Returns a file's name with the sum of its content: a changed plan is another plan, wherever it lies.
fn digest(path: &Path) -> Result<String, Fault> {
    let bytes = std::fs::read(path)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", path.display())))?;
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{name} ({sum:016x})"))
}

fn sorted(texts: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    if texts.is_empty() { "-".to_owned() } else { texts.join(", ") }
}

/// Returns the machine that measures.
fn client() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {processors} processors")
}

fn show(arguments: &JournalShow) -> Outcome {
    let steps = journal::read(&arguments.book.journal).map_err(|error| fault(&error))?;
    if steps.is_empty() {
        return Err(Fault::usage(format!("`{}` holds no step", arguments.book.journal.display())));
    }
    let rows = journal::rows(&steps);
    if arguments.book.json {
        say!("{}", json!({ "steps": rows }));
    } else {
        say!("{}", journal::table(&rows));
    }
    Ok(ExitCode::SUCCESS)
}
