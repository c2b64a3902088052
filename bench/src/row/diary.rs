//! DIARY: source 004's tuning diary as one experiment, with the tool and the numbers of requests that it used.
//!
//! Steps that follow each other differ in one thing; the page, the number of visitors at once and of requests stay the
//! same until the last step, which says so. The diary itself changed page and visitors on the way.

use tympan_content::{NodePath, Repository};

use crate::Outcome;
use crate::ab::{self, Run};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::process::{free_address, is_installed, peer_script};
use crate::site::{HOME_PAGE, Site};

const ROW: &str = "DIARY";
/// As in the diary: so many at once, so many requests.
const AT_ONCE: (u32, u32) = (60, 1_000);
const CROWD: (u32, u32) = (200, 10_000);
/// Rounds of a step; the median round counts.
const ROUNDS: usize = 5;

/// What a step runs with.
struct Step {
    name: &'static str,
    settings: &'static str,
    /// Whether the caches are filled before it counts.
    is_warm: bool,
    load: (u32, u32),
}

const STEPS: [Step; 5] = [
    Step {
        name: "1 baseline: a chunk cache of 1 MiB, nothing kept",
        settings: "[store]\ncache = \"1 MiB\"\n[fragments]\nenabled = false\n",
        is_warm: true,
        load: AT_ONCE,
    },
    Step {
        name: "2 store tuned: a chunk cache of 64 MiB, the default",
        settings: "[fragments]\nenabled = false\n",
        is_warm: true,
        load: AT_ONCE,
    },
    Step { name: "3 fragment cache, cold", settings: "", is_warm: false, load: AT_ONCE },
    Step { name: "4 fragment cache, warm", settings: "", is_warm: true, load: AT_ONCE },
    Step { name: "5 the same, 200 at once", settings: "", is_warm: true, load: CROWD },
];

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    if !is_installed("ab") {
        return Err("`ab` is not installed (apache2-utils)".into());
    }
    let wagtail = Wagtail::start(context);
    let site = context.site()?;
    keep_components(&site.open()?)?;
    let mut runs = Vec::new();
    let mut figures = Vec::new();
    for step in &STEPS {
        let run = run_step(site, step);
        site.configure("")?;
        let run = run?;
        figures.extend(figures_of(step, &run, runs.last()));
        runs.push(run);
    }
    // What the diary gained by its cache, and what it ends with.
    let rate = |number: usize| runs.get(number).map_or(0.0, |run| run.per_second);
    let gained = rate(3) / rate(1).max(1e-9);
    let what = "requests/s of step 4 against step 2, same page and visitors: what the fragment cache gives";
    figures.push(
        Figure::value(ROW, what, gained, "x").note("source 004 gained about 4x by its FlexCache"),
    );
    figures.extend(wagtail_figures(wagtail));
    Ok(figures)
}

fn run_step(site: &Site, step: &Step) -> Outcome<Run> {
    site.configure(step.settings)?;
    let mut rounds = Vec::new();
    // A cold cache is cold once for each start.
    let server = if step.is_warm { Some(site.publish_unpinned()?) } else { None };
    for _ in 0..if step.load == CROWD { 1 } else { ROUNDS } {
        let run = match &server {
            Some(server) => {
                if rounds.is_empty() {
                    ab::run(server.address, HOME_PAGE, AT_ONCE)?;
                }
                ab::run(server.address, HOME_PAGE, step.load)?
            }
            None => {
                let server = site.publish_unpinned()?;
                ab::run(server.address, HOME_PAGE, step.load)?
            }
        };
        rounds.push(run);
    }
    rounds.sort_by(|left, right| left.per_second.total_cmp(&right.per_second));
    rounds.get(rounds.len() / 2).copied().ok_or_else(|| "no round was run".into())
}

fn figures_of(step: &Step, run: &Run, before: Option<&Run>) -> Vec<Figure> {
    let factor = before.map_or_else(String::new, |before| {
        format!(
            "; {:.2}x the requests/s of the step before{}",
            run.per_second / before.per_second.max(1e-9),
            if step.load == CROWD { ", which had 60 at once: only the rate compares" } else { "" }
        )
    });
    let note = format!(
        "p50 {:.0} ms, p98 {:.0} ms, max {:.0} ms, {} bytes, -c {} -n {}{factor}",
        run.p50, run.p98, run.max, run.bytes, step.load.0, step.load.1
    );
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let failed = run.failed as f64;
    vec![
        Figure::value(ROW, step.name, run.per_second, "requests/s").note(note),
        Figure::value(ROW, format!("{}: failed", step.name), failed, "").goal(Goal::Exactly(0.0)),
    ]
}

/// Says in content that the components of the site may be kept.
fn keep_components(repository: &Repository) -> Outcome<()> {
    let mut session = repository.session("bench")?;
    session.set_property(&NodePath::new("/apps/wayfare")?, "cache", "always".into())?;
    session.commit("keep components", std::time::SystemTime::now())?;
    Ok(())
}

/// A page of Wagtail, for the step in which fragments are kept.
struct Wagtail {
    folder: std::path::PathBuf,
    address: std::net::SocketAddr,
    script: std::path::PathBuf,
}

impl Wagtail {
    fn start(context: &mut Context) -> Result<Self, String> {
        if !context.has_peer("wagtail") {
            return Err("set PEERS=wagtail".to_owned());
        }
        let begin = || -> Outcome<Self> {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../target/bench/peer-wagtail");
            std::fs::create_dir_all(&folder)?;
            let (folder, script) = (folder.canonicalize()?, peer_script("wagtail.sh")?);
            let address = free_address()?;
            let mut command = std::process::Command::new("bash");
            command.arg(&script).arg("up").arg(&folder).arg(address.port().to_string());
            let log = std::fs::File::create(folder.join("up.log"))?;
            let status = command.stdout(log.try_clone()?).stderr(log).status()?;
            if !status.success() {
                return Err(format!(
                    "`wagtail.sh up` failed; see `{}`",
                    folder.join("up.log").display()
                )
                .into());
            }
            Ok(Self { folder, address, script })
        };
        begin().map_err(|error| error.to_string())
    }
}

impl Drop for Wagtail {
    fn drop(&mut self) {
        let mut command = std::process::Command::new("bash");
        command.arg(&self.script).arg("down").arg(&self.folder);
        // It may have ended by itself.
        command.status().ok();
    }
}

/// Measures the peer's page without and with kept fragments: the factor compares with ours, the rates do not.
fn wagtail_figures(wagtail: Result<Wagtail, String>) -> Vec<Figure> {
    let what = "Wagtail, kept fragments against none: requests/s";
    let run = |wagtail: &Wagtail| -> Outcome<Figure> {
        let mut rates = Vec::new();
        for path in ["/plain/p1/", "/frag/p1/"] {
            ab::run(wagtail.address, path, (20, 200))?;
            rates.push(ab::run(wagtail.address, path, AT_ONCE)?.per_second);
        }
        let [plain, kept] = rates.as_slice() else { return Err("two pages are asked for".into()) };
        let note = format!(
            "{kept:.0} against {plain:.0} requests/s; another page and language: the factors compare, the rates do not"
        );
        Ok(Figure::value(ROW, what, kept / plain.max(1e-9), "x").against("Wagtail").note(note))
    };
    let figure = match &wagtail {
        Ok(wagtail) => run(wagtail),
        Err(reason) => Err(reason.clone().into()),
    };
    vec![figure.unwrap_or_else(|reason| {
        Figure::value(ROW, what, 0.0, "x").note(format!("not measured: {reason}"))
    })]
}
