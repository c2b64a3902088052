//! C5: a publisher's start, with the sample site and with a large tree, and its memory with the sample site; a staging
//! clone of the large tree, from nothing to its first answer; beside them what Sling takes, if it is asked for.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::open::copy;
use crate::Outcome;
use crate::alternate::Spread;
use crate::context::{Context, SERVER_CORE};
use crate::cpu;
use crate::figure::{Figure, Goal};
use crate::http::{Connection, get_ok};
use crate::process::pinned;
use crate::site::{BENCH_PAGE, HOME_PAGE, Server};
use crate::tree::{NODES_PER_PAGE, page_path};

const ROW: &str = "C5";
const STARTS: usize = 5;
const REQUESTS: usize = 300;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let mut figures = with_sample_site(context)?;
    figures.extend(with_large_tree(context)?);
    figures.extend(of_sling(context));
    Ok(figures)
}

/// What Sling takes: a start with an empty repository, and its memory then.
fn of_sling(context: &mut Context) -> Vec<Figure> {
    const CONTEXT: &str = "C5/context";
    let costs = context.sling().ok().and_then(|sling| sling.start_costs());
    let Some((seconds, memory)) = costs else { return Vec::new() };
    vec![
        Figure::value(
            CONTEXT,
            "start of Sling to its first answer, empty repository",
            seconds,
            "s",
        ),
        Figure::value(CONTEXT, "resident memory of Sling after its start", memory, "MiB"),
    ]
}

fn with_sample_site(context: &mut Context) -> Outcome<Vec<Figure>> {
    let site = context.site()?;
    let mut starts = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..STARTS {
        let begin = Instant::now();
        let server = site.publish()?;
        get_ok(server.address, BENCH_PAGE)?;
        starts.push(begin.elapsed().as_secs_f64());
        let mut connection = Connection::open(server.address, Duration::from_secs(20))?;
        for request in 0..REQUESTS {
            connection.get(if request % 2 == 0 { HOME_PAGE } else { BENCH_PAGE })?;
        }
        memory
            .push(cpu::resident_mib(server.pid()).ok_or("the publisher's memory cannot be read")?);
    }
    Ok(vec![
        Figure::spread(
            ROW,
            "start to the first page, sample site and 1,000 bench pages",
            &Spread::of(starts),
            "s",
        )
        .goal(Goal::AtMost(1.0)),
        Figure::spread(ROW, "resident memory after 300 pages", &Spread::of(memory), "MiB")
            .goal(Goal::AtMost(100.0)),
    ])
}

/// Measures starts on a home with the large tree. The first start of a home makes what the tree lacks; a note tells how long that took.
fn with_large_tree(context: &mut Context) -> Outcome<Vec<Figure>> {
    let program = context.program()?.to_owned();
    let home = context.new_folder("large-")?;
    let folder = context.new_folder("clones-")?;
    let tree = context.tree()?;
    tree.full.close()?;
    copy(tree.full.folder(), &home.join("store"))?;
    let (nodes, page) =
        (tree.pages * NODES_PER_PAGE, format!("{}.json", page_path(tree.pages / 2)));
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        starts.push(start_once(&program, &home, &page)?);
    }
    let first = starts.first().copied().unwrap_or_default();
    let note = format!("the first start, which sets the home up, took {first:.2} s");
    let what = format!("start to the first answer, {nodes} nodes");
    let start = Figure::spread(ROW, what, &Spread::of(starts), "s");
    let mut clones = Vec::new();
    for number in 0..STARTS {
        clones.push(clone_once(&program, &home, &folder.join(format!("{number}")), &page)?);
    }
    let what = format!("staging clone, from the command to the first answer, {nodes} nodes");
    let clone = Figure::spread(ROW, what, &Spread::of(clones), "s");
    Ok(vec![start.goal(Goal::AtMost(1.0)).note(note), clone.goal(Goal::AtMost(2.0))])
}

/// Clones a home, starts a publisher on the clone, and asks for one page; returns the seconds until the answer.
fn clone_once(program: &Path, home: &Path, to: &Path, page: &str) -> Outcome<f64> {
    let begin = Instant::now();
    let mut command = pinned(SERVER_CORE, program);
    command.args(["repo", "clone", "--from"]).arg(home).arg("--to").arg(to);
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().into());
    }
    start_once(program, to, page)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Starts a publisher, asks for one page and stops it; returns the seconds until the answer.
fn start_once(program: &Path, home: &Path, page: &str) -> Outcome<f64> {
    let text = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    let begin = Instant::now();
    let arguments = ["publish", "--home", text, "--listen", "127.0.0.1:0"];
    let server = Server::start(program, &arguments, home)?;
    get_ok(server.address, page)?;
    Ok(begin.elapsed().as_secs_f64())
}
