//! L3 and L7: source 001's plan, and a report from many rows, beside Apache JMeter.
//!
//! JMeter is found through `TYMPAN_JMETER` (a folder with its `bin` and `lib`), or assembled by the peers' script.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::{Context, LOAD_CORE};
use crate::figure::{Figure, Goal};
use crate::nginx::{Duty, Nginx};
use crate::outcome::{Ran, run};
use crate::process::{is_installed, peer_script, pinned};

/// The plan of source 001, as its repository has it.
const PLAN: &str = "adobe__aem-dispatcher-experiments__Page-with-bad-component-test-plan.jmx";
/// Pairs: one takes most of a minute.
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(900);

fn home() -> Outcome<PathBuf> {
    if !is_installed("java") {
        return Err("skipped: java is not installed".into());
    }
    if let Some(home) = std::env::var_os("TYMPAN_JMETER") {
        return Ok(home.into());
    }
    let script = peer_script("jmeter.sh").map_err(|error| format!("skipped: {error}"))?;
    let made = Command::new("bash").arg(script).arg("-I").output()?;
    let text = String::from_utf8_lossy(&made.stdout);
    let home = text.lines().last().unwrap_or_default().trim();
    if home.is_empty() {
        Err("skipped: JMeter could not be installed".into())
    } else {
        Ok(home.into())
    }
}

fn jmeter(home: &Path, core: Option<usize>) -> Command {
    let mut command = match core {
        Some(core) => pinned(core, "java"),
        None => Command::new("java"),
    };
    let at = home.display();
    command
        .args(["-Xms256m", "-Xmx1g", "-Djava.awt.headless=true", "-cp"])
        .arg(format!("{at}/bin/ApacheJMeter.jar:{at}/lib/*:{at}/lib/ext/*"))
        .arg(format!("-Djmeter.home={at}"))
        .args(["org.apache.jmeter.NewDriver", "-Jjmeterengine.force.system.exit=true"]);
    command
}

/// What one run of the plan took.
struct Played {
    requests: f64,
    cpu: f64,
    peak_mib: f64,
}

fn played(ran: &Ran) -> Outcome<Played> {
    let line = ran.output.lines().rev().find(|line| line.starts_with("summary ="));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let requests = words.get(2).and_then(|word| word.parse().ok());
    let requests: f64 = requests.ok_or_else(|| format!("no summary in: {}", ran.output))?;
    if requests < 1.0 {
        return Err("the plan sent nothing".into());
    }
    Ok(Played { requests, cpu: ran.cpu, peak_mib: ran.peak_mib })
}

/// Measures L3: processor time for each request, and memory, of source 001's plan.
pub(super) fn plan(context: &mut Context) -> Outcome<Vec<Figure>> {
    let home = home()?;
    let folder = context.new_folder("lab-")?;
    let root = folder.join("root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join("page.html"), "lorem ipsum ".repeat(500))?;
    let server = Nginx::start(Duty::Files(&root), &folder)?;
    let plan = folder.join("plan.jmx");
    std::fs::write(&plan, copy(&source()?, server.address.port())?)?;
    let seconds = if context.is_quick { 8 } else { 20 };
    let properties =
        ["-Jthreads=100".to_owned(), "-Jrampup=5".to_owned(), format!("-Jduration={seconds}")];
    let program = context.program()?.to_owned();
    let mut ours = || {
        let mut command = pinned(LOAD_CORE, &program);
        command
            .args(["lab", "jmeter", "-n", "-t"])
            .arg(&plan)
            .args(&properties)
            .current_dir(&folder);
        played(&run(command, &folder, LIMIT, &[0, 3])?)
    };
    let mut theirs = || {
        let mut command = jmeter(&home, Some(LOAD_CORE));
        command.arg("-n").arg("-t").arg(&plan).args(&properties).current_dir(&folder);
        command.arg("-j").arg(folder.join("jmeter.log"));
        played(&run(command, &folder, LIMIT, &[0])?)
    };
    let rounds = if context.is_quick { 1 } else { ROUNDS };
    let [ours, theirs] = alternate(rounds, [&mut ours, &mut theirs])?;
    let of = |all: &[Played], value: fn(&Played) -> f64| Spread::of(all.iter().map(value)).median;
    let per_request = |played: &Played| played.cpu / played.requests;
    let note = format!(
        "{seconds} s, whole run; {:.0} and {:.0} requests; {:.1} and {:.1} us of CPU for each; {:.0} and {:.0} MiB",
        of(&ours, |played| played.requests),
        of(&theirs, |played| played.requests),
        of(&ours, per_request) * 1e6,
        of(&theirs, per_request) * 1e6,
        of(&ours, |played| played.peak_mib),
        of(&theirs, |played| played.peak_mib)
    );
    let cpu = ratio(&ours, &theirs, per_request);
    let memory = ratio(&ours, &theirs, |played| played.peak_mib);
    Ok(vec![
        Figure::spread("L3", "source 001's plan: CPU for each request", &cpu, "x")
            .against("JMeter")
            .goal(Goal::AtMost(0.1))
            .note(note),
        Figure::spread("L3", "source 001's plan: most memory", &memory, "x")
            .against("JMeter")
            .goal(Goal::AtMost(0.1)),
    ])
}

fn source() -> Outcome<String> {
    let folder = match std::env::var_os("TYMPAN_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let path = folder.join("jmx").join(PLAN);
    std::fs::read_to_string(&path)
        .map_err(|error| format!("skipped: cannot read `{}`: {error}", path.display()).into())
}

/// Points the plan at the server of this run.
fn copy(text: &str, port: u16) -> Outcome<String> {
    let mut text = text.to_owned();
    for (name, value) in [
        ("HTTPSampler.domain", "127.0.0.1".to_owned()),
        ("HTTPSampler.port", port.to_string()),
        ("HTTPSampler.protocol", "http".to_owned()),
        ("HTTPSampler.path", "/page.html".to_owned()),
        // Listeners write files, of which both would write their own.
        ("filename", String::new()),
    ] {
        let begin = format!("<stringProp name=\"{name}\">");
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(&begin) {
            let (_, after) = after.split_once("</stringProp>").ok_or("the plan is cut")?;
            out.push_str(&format!("{before}{begin}{value}</stringProp>"));
            rest = after;
        }
        out.push_str(rest);
        text = out.replace(
            &format!("<stringProp name=\"{name}\"/>"),
            &format!("{begin}{value}</stringProp>"),
        );
    }
    Ok(text)
}

/// Measures L7: a report from many rows.
pub(super) fn report(context: &mut Context) -> Outcome<Vec<Figure>> {
    let home = home()?;
    let folder = context.new_folder("lab-")?;
    let rows = folder.join("rows.jtl");
    let count: u64 = if context.is_quick { 100_000 } else { 1_000_000 };
    write_rows(&rows, count)?;
    let page = folder.join("report.html");
    let mut command = Command::new(context.program()?);
    command.args(["lab", "report"]).arg(&rows).arg("-o").arg(&page);
    let ours = run(command, &folder, LIMIT, &[0])?;
    let mut command = jmeter(&home, None);
    command.arg("-g").arg(&rows).arg("-o").arg(folder.join("dashboard"));
    command.arg("-j").arg(folder.join("jmeter.log"));
    let theirs = run(command, &folder, LIMIT, &[0])?;
    let note = format!(
        "{count} rows: {:.2} s and {:.2} s; CPU {:.2} s and {:.2} s; {:.0} and {:.0} MiB; our page has {:.0} kB",
        ours.wall,
        theirs.wall,
        ours.cpu,
        theirs.cpu,
        ours.peak_mib,
        theirs.peak_mib,
        std::fs::metadata(&page)?.len() / 1000
    );
    Ok(vec![
        Figure::value("L7", "report from a result file: time", ours.wall / theirs.wall, "x")
            .against("jmeter -g")
            .goal(Goal::AtMost(0.05))
            .note(note),
        Figure::value(
            "L7",
            "report from a result file: memory",
            ours.peak_mib / theirs.peak_mib,
            "x",
        )
        .against("jmeter -g"),
    ])
}

fn write_rows(path: &Path, count: u64) -> Outcome<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    writeln!(
        out,
        "timeStamp,elapsed,label,responseCode,responseMessage,threadName,dataType,success,failureMessage,bytes,sentBytes,grpThreads,allThreads,URL,Latency,IdleTime,Connect"
    )?;
    for row in 0..count {
        let mixed = row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let (elapsed, page) = (5 + mixed % 400, mixed % 12);
        let (code, word, is_ok) =
            if mixed % 97 == 0 { (500, "Server Error", false) } else { (200, "OK", true) };
        writeln!(
            out,
            "{},{elapsed},GET /page-{page}.html,{code},{word},visitors 1-{},text,{is_ok},,{},120,50,50,http://site/page-{page}.html,{},0,{}",
            1_700_000_000_000 + row,
            1 + row % 50,
            4000 + mixed % 9000,
            elapsed / 2,
            mixed % 3
        )?;
    }
    Ok(out.flush()?)
}
