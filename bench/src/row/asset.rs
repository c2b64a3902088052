//! A1: processor time and memory of the four standard renditions of 24-megapixel JPEGs, beside other programs.
//!
//! The peers' own script makes the pictures, lets each program draw them in turn and notes what every process of it took.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::process::{is_installed, peer_script};

const ROW: &str = "A1";
const OURS: &str = "candidate";
/// Programs of the script, what they are called here, and the share of their processor time that is allowed.
const PEERS: [(&str, &str, f64); 3] = [
    ("vips-chain", "a chain of vipsthumbnail", 0.25),
    ("sharp", "sharp", 0.5),
    ("imagemagick", "ImageMagick", 0.15),
];

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Run {
    cpu_seconds: f64,
    peak_mib: f64,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    if !is_installed("vipsthumbnail") || !is_installed("vips") {
        let reason = "it needs `vips` and `vipsthumbnail` (libvips-tools), which are not installed";
        return Ok(vec![Figure::missing(ROW, "processor time of four renditions", reason)]);
    }
    let runs = run_script(context)?;
    let ours = by_picture(&runs, OURS);
    if ours.is_empty() {
        return Err("the program drew nothing; see the script's output".into());
    }
    let mut figures = Vec::new();
    for (name, words, share) in PEERS {
        let theirs = by_picture(&runs, name);
        let what = "processor time of four renditions, 24 megapixels";
        if theirs.is_empty() {
            let reason = format!("{name} is not installed");
            figures.push(Figure::missing(ROW, what, reason).against(words));
            continue;
        }
        let ratios = ours
            .iter()
            .filter_map(|(picture, run)| Some(run.cpu_seconds / theirs.get(picture)?.cpu_seconds));
        let spread = Spread::of(ratios);
        figures
            .push(Figure::spread(ROW, what, &spread, "x").against(words).goal(Goal::AtMost(share)));
    }
    let peak = ours.values().map(|run| run.peak_mib).fold(0.0, f64::max);
    let cpu = Spread::of(ours.values().map(|run| run.cpu_seconds)).median;
    let note = format!("processor time {cpu:.3} s a picture, start of two processes included");
    figures
        .push(Figure::value(ROW, "peak memory", peak, "MiB").goal(Goal::AtMost(64.0)).note(note));
    Ok(figures)
}

/// Runs by program, round and picture.
type Runs = BTreeMap<(String, String), Run>;

fn run_script(context: &Context) -> Outcome<Runs> {
    let folder = context.new_folder("images-")?;
    let results = folder.join("results.tsv");
    let program = context.program()?.to_str().ok_or("the program has a name that is not UTF-8")?;
    let draw = format!("'{program}' render-file \"$IMG_IN\" \"$IMG_OUT\" --quality 85");
    let (count, rounds) = if context.is_quick { ("1", "2") } else { ("3", "5") };
    // A wrapper of the interpreter in another folder would count as part of each picture.
    let path = format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default());
    let status = Command::new("bash")
        .arg(peer_script("images.sh")?)
        .args(["--candidate-cmd", &draw, "--count", count, "--rounds", rounds, "--out"])
        .arg(&results)
        .env("TMPDIR", &folder)
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err("`images.sh` failed".into());
    }
    read(&results)
}

fn read(results: &Path) -> Outcome<Runs> {
    let mut runs = Runs::new();
    for line in std::fs::read_to_string(results)?.lines().skip(1) {
        let cells: Vec<&str> = line.split('\t').collect();
        // One that did not make all four renditions does not count.
        if let [round, name, picture, cpu, _, peak, "0", "4"] = *cells {
            let run = Run { cpu_seconds: cpu.parse()?, peak_mib: peak.parse()? };
            runs.insert((name.to_owned(), format!("{round} {picture}")), run);
        }
    }
    Ok(runs)
}

fn by_picture<'a>(runs: &'a Runs, name: &str) -> BTreeMap<&'a str, Run> {
    let of_name = runs.iter().filter(|((program, _), _)| program == name);
    of_name.map(|((_, picture), run)| (&**picture, *run)).collect()
}
