//! L1, L2 and L8: requests for each second of the generator's processor time, and agents beside one process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::alternate::{Spread, ratio};
use crate::context::{Context, LOAD_CORE};
use crate::figure::{Figure, Goal};
use crate::nginx::{Duty, Nginx};
use crate::outcome::{Ran, run};
use crate::process::{is_installed, pinned};

/// Connections, each used again.
const USERS: u32 = 50;
/// A generator that says so itself was at its limit; here that is the point.
const CODES: [i32; 2] = [0, 3];

/// A generator and what it got done.
#[derive(Clone, Copy, Debug)]
struct Load {
    requests: f64,
    cpu: f64,
    peak_mib: f64,
}

impl Load {
    fn per_second(&self) -> f64 {
        self.requests / self.cpu.max(0.01)
    }
}

/// What is measured against, and by which figure.
const PEERS: [(&str, f64); 3] = [("wrk", 0.9), ("oha", 1.3), ("k6", 4.5)];

/// Measures L1: a plain page against wrk, oha and k6, as far as they are installed.
pub(super) fn plain(context: &mut Context) -> Outcome<Vec<Figure>> {
    let bench = Bench::start(context)?;
    let mut figures = Vec::new();
    for (peer, wanted) in PEERS {
        let what = format!("plain GET, requests per CPU second of the generator, against {peer}");
        if !is_installed(peer) {
            figures.push(Figure::missing("L1", what, format!("skipped: {peer} is not installed")));
            continue;
        }
        let (ours, theirs) = bench.pair(|| bench.lab_get(), || bench.peer(peer))?;
        figures.push(figure("L1", &what, (&ours, &theirs), peer, wanted));
    }
    Ok(figures)
}

/// Measures L2: a plan with data, cookie, headers, assertion and transaction against plain wrk.
pub(super) fn plan(context: &mut Context) -> Outcome<Vec<Figure>> {
    if !is_installed("wrk") {
        return Err("skipped: wrk is not installed".into());
    }
    let bench = Bench::start(context)?;
    let plan = bench.write_plan()?;
    let (ours, theirs) = bench.pair(|| bench.lab_plan(&plan), || bench.peer("wrk"))?;
    let what =
        "a plan with CSV, cookie, headers, assertion and transaction, requests per CPU second";
    Ok(vec![figure("L2", what, (&ours, &theirs), "plain wrk", 0.7)])
}

/// Measures L8: how many samples four agents and one process tell of one schedule.
pub(super) fn agents(context: &mut Context) -> Outcome<Vec<Figure>> {
    let bench = Bench::start(context)?;
    let count = if context.is_quick { 2_000 } else { 20_000 };
    let load = |agents: Option<&str>| -> Outcome<f64> {
        let mut command = bench.lab("get");
        command.args([&bench.url, "--rate", "1000", "-n", &count.to_string(), "--json"]);
        if let Some(agents) = agents {
            command.args(["--agents", agents]);
        }
        let ran = run(command, &bench.folder, Duration::from_secs(120), &CODES)?;
        let told: serde_json::Value = serde_json::from_str(&ran.output)?;
        let samples = told.pointer("/total/samples").and_then(serde_json::Value::as_f64);
        Ok(samples.ok_or("the report tells no samples")?)
    };
    let (four, one) = (load(Some("4"))?, load(None)?);
    let note = format!(
        "{four} and {one} samples of {count}; that the merged histograms are those of one process is a test of the lab"
    );
    Ok(vec![
        Figure::value("L8", "samples of four agents less those of one process", four - one, "")
            .goal(Goal::Exactly(0.0))
            .note(note),
    ])
}

fn figure(
    row: &str,
    what: &str,
    (ours, theirs): (&[Load], &[Load]),
    peer: &str,
    wanted: f64,
) -> Figure {
    let median =
        |loads: &[Load], value: fn(&Load) -> f64| Spread::of(loads.iter().map(value)).median;
    let note = format!(
        "{:.0} and {:.0} requests per CPU second; {:.0} and {:.0} MiB",
        median(ours, Load::per_second),
        median(theirs, Load::per_second),
        median(ours, |load| load.peak_mib),
        median(theirs, |load| load.peak_mib)
    );
    Figure::spread(row, what, &ratio(ours, theirs, Load::per_second), "x")
        .against(peer)
        .goal(Goal::AtLeast(wanted))
        .note(note)
}

/// A page of 6 KB on a server of its own core.
struct Bench {
    program: PathBuf,
    folder: PathBuf,
    seconds: u64,
    pairs: usize,
    url: String,
    port: u16,
    _server: Nginx,
}

impl Bench {
    fn start(context: &Context) -> Outcome<Self> {
        let folder = context.new_folder("lab-")?;
        let root = folder.join("root");
        std::fs::create_dir_all(&root)?;
        let text = "lorem ipsum dolor sit amet ".repeat(230);
        std::fs::write(root.join("page.html"), format!("<html><body>{text}</body></html>"))?;
        let server = Nginx::start(Duty::Files(&root), &folder)?;
        Ok(Self {
            program: context.program()?.to_owned(),
            seconds: context.seconds().max(2),
            pairs: context.pairs(),
            url: format!("http://{}/page.html", server.address),
            port: server.address.port(),
            folder,
            _server: server,
        })
    }

    fn lab(&self, word: &str) -> Command {
        let mut command = pinned(LOAD_CORE, &self.program);
        command.args(["lab", word]);
        command
    }

    fn pair(
        &self,
        ours: impl Fn() -> Outcome<Load>,
        theirs: impl Fn() -> Outcome<Load>,
    ) -> Outcome<(Vec<Load>, Vec<Load>)> {
        let [ours, theirs] =
            crate::alternate::alternate(self.pairs, [&mut || ours(), &mut || theirs()])?;
        Ok((ours, theirs))
    }

    fn finish(&self, command: Command, count: impl Fn(&str) -> Option<f64>) -> Outcome<Load> {
        let limit = Duration::from_secs(self.seconds * 4 + 60);
        let Ran { output, cpu, peak_mib, .. } = run(command, &self.folder, limit, &CODES)?;
        let requests = count(&output).ok_or_else(|| format!("no count in: {output}"))?;
        Ok(Load { requests, cpu, peak_mib })
    }

    fn lab_get(&self) -> Outcome<Load> {
        let mut command = self.lab("get");
        command.args([&self.url, "-c", &USERS.to_string(), "-z", &format!("{}s", self.seconds)]);
        command.args(["--workers", "1"]);
        self.finish(command, after("requests "))
    }

    fn lab_plan(&self, plan: &Path) -> Outcome<Load> {
        let mut command = self.lab("run");
        command.arg(plan).args(["--workers", "1"]);
        command.arg(format!("-Jduration={}", self.seconds));
        self.finish(command, after("\nrequests "))
    }

    fn peer(&self, name: &str) -> Outcome<Load> {
        let (users, time) = (USERS.to_string(), format!("{}s", self.seconds));
        let mut command = pinned(LOAD_CORE, name);
        match name {
            "wrk" => {
                command.args(["-t1", &format!("-c{users}"), &format!("-d{time}"), &self.url]);
                self.finish(command, |text| {
                    let line = text.lines().find(|line| line.contains(" requests in "))?;
                    line.split_whitespace().next()?.parse().ok()
                })
            }
            "oha" => {
                command.args(["--no-tui", "--output-format", "json", "-c", &users, "-z", &time]);
                command.arg(&self.url);
                self.finish(command, |text| {
                    let told: serde_json::Value = serde_json::from_str(text).ok()?;
                    let codes = told.get("statusCodeDistribution")?.as_object()?;
                    Some(codes.values().filter_map(serde_json::Value::as_f64).sum())
                })
            }
            _ => {
                let script = self.folder.join("page.js");
                let text = format!(
                    "import http from 'k6/http';\nexport const options={{vus:{users},discardResponseBodies:true}};\n\
                     export default function(){{ http.get('{}'); }}\n",
                    self.url
                );
                std::fs::write(&script, text)?;
                let summary = self.folder.join("k6.json");
                command.args(["run", "--quiet", "--no-usage-report", "--duration", &time]);
                command.arg("--summary-export").arg(&summary).arg(&script);
                self.finish(command, |_| {
                    let text = std::fs::read_to_string(&summary).ok()?;
                    let told: serde_json::Value = serde_json::from_str(&text).ok()?;
                    told.pointer("/metrics/http_reqs/count")?.as_f64()
                })
            }
        }
    }

    fn write_plan(&self) -> Outcome<PathBuf> {
        let rows: String = (0..1_000).map(|user| format!("user{user}\n")).collect();
        std::fs::write(self.folder.join("users.csv"), rows)?;
        let path = self.folder.join("plan.jmx");
        let text = include_str!("lab-plan.jmx")
            .replace("{users}", &USERS.to_string())
            .replace("{port}", &self.port.to_string());
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

/// Reads the number after some words.
fn after(words: &'static str) -> impl Fn(&str) -> Option<f64> {
    move |text| text.split_once(words)?.1.split_whitespace().next()?.parse().ok()
}
