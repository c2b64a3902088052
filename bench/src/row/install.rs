//! C1: a real content package, installed into a new home by the program, from its start to its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::{Context, SERVER_CORE};
use crate::figure::{Figure, Goal};
use crate::process::pinned;

const ROW: &str = "C1";
const CONTEXT: &str = "C1/context";
/// The package of the goal: 2,730 nodes, 40 assets, 294 files.
const PACKAGE: &str = "core.wcm.components.examples.ui.content-2.26.0.zip";
/// Another one: 4,980 nodes, 31,703 properties.
const LARGER: &str = "wknd.ui.content.sample.zip";

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let program = context.program()?.to_owned();
    let mut figures = Vec::new();
    for (row, name, goal) in [(ROW, PACKAGE, Goal::AtMost(1.0)), (CONTEXT, LARGER, Goal::None)] {
        let package = fixture(name)?;
        let mut installs = Vec::new();
        let mut again = Vec::new();
        for _ in 0..pairs {
            let home = context.new_folder("install-")?;
            installs.push(run(&program, "install", &package, &home)?);
            again.push(run(&program, "install", &package, &home)?);
            std::fs::remove_dir_all(&home)?;
        }
        let what = format!("install of {name} into a new home");
        figures.push(Figure::spread(row, what, &Spread::of(installs), "s").goal(goal));
        let what = format!("the same again, where nothing changes ({name})");
        figures.push(Figure::spread(CONTEXT, what, &Spread::of(again), "s"));
    }
    let reason = "the Sling Starter that the peers' script starts has no package manager";
    figures.push(
        Figure::missing(ROW, "install, beside Sling's", format!("not measured: {reason}"))
            .goal(Goal::AtLeast(10.0))
            .against("Sling"),
    );
    Ok(figures)
}

/// Runs `tympan package` once; gives the seconds that it took.
fn run(program: &Path, verb: &str, package: &Path, home: &Path) -> Outcome<f64> {
    let mut command: Command = pinned(SERVER_CORE, program);
    command.args(["package", verb]).arg(package).arg("--home").arg(home);
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let elapsed = begin.elapsed().as_secs_f64();
    if output.status.success() {
        Ok(elapsed)
    } else {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("`tympan package {verb}` failed: {message}").into())
    }
}

/// Finds a package among the fixtures: in `TYMPAN_FIXTURES`, or beside the workspace.
fn fixture(name: &str) -> Outcome<PathBuf> {
    let folder = match std::env::var_os("TYMPAN_FIXTURES") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures"),
    };
    let file = folder.join("packages").join(name);
    if file.is_file() {
        Ok(file)
    } else {
        Err(format!("there is no `{}`; set TYMPAN_FIXTURES", file.display()).into())
    }
}
