//! D4, D6 and D8: what rules cost, a storm of flushes, and a start before many files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::{Spread, ratio};
use crate::context::Context;
use crate::cpu::resident_mib;
use crate::figure::{Figure, Goal};
use crate::http::{Connection, get_ok};
use crate::load::{Intensity, compare, run};
use crate::origin::{self, Files, PAGE};
use crate::row::dispatcher::{CONFIG, write_config, write_text};
use crate::row::render::micros;
use crate::site::Server;

/// The rules of a farm in the cloud, as its vendor's project template has them.
const RULES: &str = include_str!("dispatcher-rules.any");

fn start(program: &Path, home: &Path, folder: &Path) -> Outcome<Server> {
    let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    Server::start(program, &["dispatcher", "--home", home, "--listen", "127.0.0.1:0"], folder)
}

/// Measures D4.
pub(super) fn measure_rules(context: &mut Context) -> Outcome<Vec<Figure>> {
    let intensity = Intensity { connections: 64, seconds: context.seconds() };
    let pairs = context.pairs();
    let folder = context.new_folder("rules-")?;
    let origin = origin::serve(Arc::new(Files::new()))?;
    let filter = |rules: &str| {
        let (before, rest) = CONFIG.split_once("      /0001").unwrap_or((CONFIG, ""));
        let (_, after) = rest.split_once("\n      }\n").unwrap_or(("", rest));
        format!("{before}{rules}      }}\n{after}")
    };
    let (with, without) = (folder.join("with"), folder.join("without"));
    write_text(&filter(RULES), origin, &with)?;
    write_text(&filter("      /0001 { /type \"allow\" /url \"*\" }\n"), origin, &without)?;
    let program = context.program()?;
    let servers = [start(program, &with, &folder)?, start(program, &without, &folder)?];
    let [ours, theirs] = servers.each_ref().map(|server| server.target(PAGE));
    for target in [&ours, &theirs] {
        for _ in 0..3 {
            get_ok(target.address, PAGE)?;
        }
    }
    let [ours, theirs] = compare(pairs, [&ours, &theirs], intensity, &folder)?;
    let cost = ratio(&ours, &theirs, |load| load.cpu_us);
    let what = format!("cached page of 6 KB, {} rules, CPU", RULES.lines().count());
    let figure = Figure::spread("D4", what, &cost, "x").against("one rule");
    Ok(vec![figure.goal(Goal::AtMost(1.15)).note(micros(&ours, &theirs))])
}

/// Makes so many files in folders of 100 below `content`.
fn fill(docroot: &Path, count: usize) -> Outcome<()> {
    for number in 0..count {
        let folder = docroot.join(folder_of(number));
        if number % 100 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        std::fs::write(folder.join(format!("p{}.html", number % 100)), b"<p>page</p>")?;
    }
    Ok(())
}

fn folder_of(number: usize) -> PathBuf {
    PathBuf::from(format!("content/s{}/f{}", number / 10_000, number / 100 % 100))
}

/// A page that no flush of the storm concerns.
const UNRELATED: &str = "/other/en/page.html";

/// Measures D6.
pub(super) fn measure_storm(context: &mut Context) -> Outcome<Vec<Figure>> {
    let (count, flushes) = if context.is_quick { (20_000, 300) } else { (100_000, 1000) };
    let seconds = if context.is_quick { 3 } else { 10 };
    let folder = context.new_folder("storm-")?;
    let files = Arc::new(Files::new());
    let origin = origin::serve(Arc::clone(&files))?;
    let home = folder.join("home");
    let text = CONFIG.replace("/glob \"*\" /type \"deny\"", "/glob \"127.0.0.1\" /type \"allow\"");
    write_text(&text.replace("/docroot", "/statfileslevel \"3\" /docroot"), origin, &home)?;
    let docroot = home.join("cache");
    fill(&docroot, count)?;
    // Its folder was flushed once and has a `.stat` file of its own, as on any site that is some days old.
    let unrelated = docroot.join(UNRELATED.trim_start_matches('/'));
    let own = unrelated.parent().ok_or("the page lies in a folder")?;
    std::fs::create_dir_all(own)?;
    std::fs::write(own.join(".stat"), b"")?;
    std::fs::write(&unrelated, &files.page)?;
    let server = start(context.program()?, &home, &folder)?;
    let target = server.target(UNRELATED);
    for _ in 0..3 {
        get_ok(target.address, UNRELATED)?;
    }
    let intensity = Intensity { connections: 32, seconds };
    let (mut quiet, mut stormy) = (Vec::new(), Vec::new());
    let before = files.requests.load(Ordering::Relaxed);
    let mut slowest = Vec::new();
    for round in 0..if context.is_quick { 1 } else { 3 } {
        quiet.push(run(&target, intensity, &folder)?);
        let pause = Duration::from_secs(seconds) / u32::try_from(flushes)?;
        let address = target.address;
        let storm = std::thread::spawn(move || {
            storm(address, round * flushes..(round + 1) * flushes, pause)
        });
        stormy.push(run(&target, intensity, &folder)?);
        slowest.push(storm.join().map_err(|_| "the storm panicked")??);
    }
    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    let fetched = (files.requests.load(Ordering::Relaxed) - before) as f64;
    let p99 = ratio(&stormy, &quiet, |load| load.p99_ms);
    let what = format!("{flushes} flushes in {seconds} s, {count} files");
    let row = "D6";
    Ok(vec![
        Figure::spread(row, format!("{what}, p99 of an unrelated page"), &p99, "x")
            .against("no flushes")
            .goal(Goal::AtMost(2.0)),
        Figure::value(row, format!("{what}, fetches of an unrelated page"), fetched, "fetches")
            .goal(Goal::AtMost(0.0)),
        Figure::spread(row, format!("{what}, slowest flush"), &Spread::of(slowest), "ms"),
    ])
}

/// Sends flushes, each at its time; returns how long the slowest took, in milliseconds.
fn storm(
    address: SocketAddr,
    handles: std::ops::Range<usize>,
    pause: Duration,
) -> Result<f64, String> {
    let mut slowest: f64 = 0.0;
    let begin = Instant::now();
    for (turn, number) in handles.enumerate() {
        let at = begin + pause * u32::try_from(turn).unwrap_or(u32::MAX);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        let handle = folder_of(number * 37 % 100_000).join(format!("p{}", number % 100));
        flush(address, &handle).map_err(|error| error.to_string())?;
        slowest = slowest.max(sent.elapsed().as_secs_f64() * 1e3);
    }
    Ok(slowest)
}

fn flush(address: SocketAddr, handle: &Path) -> std::io::Result<()> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address)?;
    let handle = handle.display();
    let head = format!(
        "POST /dispatcher/invalidate.cache HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\
         CQ-Action: Activate\r\nCQ-Handle: /{handle}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let is_done = answer.starts_with("HTTP/1.1 200");
    if is_done { Ok(()) } else { Err(std::io::Error::other(format!("a flush failed: {answer}"))) }
}

/// Measures D8.
pub(super) fn measure_start(context: &mut Context) -> Outcome<Vec<Figure>> {
    let count = if context.is_quick { 50_000 } else { 1_000_000 };
    let asked = if context.is_quick { 5_000 } else { 50_000 };
    let folder = context.new_folder("many-")?;
    let origin = origin::serve(Arc::new(Files::new()))?;
    let home = folder.join("home");
    write_config(origin, &home)?;
    let empty = start(context.program()?, &home, &folder)?;
    let base = resident_mib(empty.pid()).ok_or("the memory of the dispatcher is not told")?;
    drop(empty);
    fill(&home.join("cache"), count)?;
    let begin = Instant::now();
    let server = start(context.program()?, &home, &folder)?;
    let took = begin.elapsed().as_secs_f64();
    let started = resident_mib(server.pid()).ok_or("the memory of the dispatcher is not told")?;
    let mut connection = Connection::open(server.address, Duration::from_secs(10))?;
    for number in 0..asked {
        let path = folder_of(number).join(format!("p{}.html", number % 100));
        let path = format!("/{}", path.display());
        // Twice: the second answer is kept.
        for _ in 0..2 {
            connection.get(&path)?;
        }
    }
    let kept = resident_mib(server.pid()).ok_or("the memory of the dispatcher is not told")?;
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let each = (started - base).max(0.0) * 1_048_576.0 / count as f64;
    let what = |figure: &str| format!("{count} cached objects, {figure}");
    Ok(vec![
        Figure::value("D8", what("start"), took, "s").goal(Goal::AtMost(5.0)),
        Figure::value("D8", what("memory for each"), each, "bytes")
            .goal(Goal::AtMost(150.0))
            .note("the folder is the index; memory holds only the answers that are asked for most"),
        Figure::value(
            "D8",
            format!("memory after {asked} of them were asked for"),
            kept - base,
            "MiB",
        )
        .goal(Goal::AtMost(128.0)),
    ])
}
