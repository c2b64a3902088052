//! D1 and D2: answers from the dispatcher's cache, against nginx.
//!
//! Both sides write an access log; the dispatcher writes its own log too, as it does in a home.

use std::path::Path;
use std::sync::Arc;

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::get_ok;
use crate::load::{Intensity, Load, Target, compare, run};
use crate::nginx::{Duty, Nginx};
use crate::origin::{self, Files, PAGE, PICTURE};
use crate::row::render::micros;
use crate::site::Server;
use crate::varnish::Peer;

pub(super) const CONFIG: &str = include_str!("dispatcher.any");

/// One subject with its goals.
struct Subject {
    row: &'static str,
    what: &'static str,
    path: &'static str,
    connections: &'static [usize],
    files_goal: f64,
    cache_goal: f64,
    others: &'static [(&'static str, f64)],
}

/// Measures D1.
pub(super) fn measure_page(context: &mut Context) -> Outcome<Vec<Figure>> {
    let subject = Subject {
        row: "D1",
        what: "cached page of 6 KB",
        path: PAGE,
        connections: if context.is_quick { &[64] } else { &[64, 512] },
        files_goal: 0.7,
        cache_goal: 0.6,
        others: &[("Varnish", 0.33), ("Apache", 0.28)],
    };
    measure(context, &subject)
}

/// Measures D2.
pub(super) fn measure_picture(context: &mut Context) -> Outcome<Vec<Figure>> {
    let subject = Subject {
        row: "D2",
        what: "cached picture of 100 KB",
        path: PICTURE,
        connections: &[64],
        files_goal: 1.1,
        cache_goal: 0.8,
        others: &[("Varnish", 0.6)],
    };
    measure(context, &subject)
}

fn measure(context: &mut Context, subject: &Subject) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let seconds = context.seconds();
    let folder = context.new_folder("dispatcher-")?;
    let files = Arc::new(Files::new());
    let origin = origin::serve(Arc::clone(&files))?;
    let dispatcher = start(context.program()?, origin, &folder)?;
    let static_nginx = start_nginx(&folder, "files", &files, None)?;
    let cache_nginx = start_nginx(&folder, "cache", &files, Some(origin))?;
    let target = |nginx: &Nginx| Target {
        address: nginx.address,
        path: subject.path.to_owned(),
        pid: nginx.pid(),
    };
    let targets = [dispatcher.target(subject.path), target(&static_nginx), target(&cache_nginx)];
    let expected = if subject.path == PAGE { &files.page } else { &files.picture };
    for target in &targets {
        check(target, expected)?;
    }
    let [own, by_files, by_cache] = &targets;
    let mut figures = Vec::new();
    for connections in subject.connections {
        let intensity = Intensity { connections: *connections, seconds };
        let load = |target| run(target, intensity, &folder);
        let loads =
            alternate(pairs, [&mut || load(own), &mut || load(by_files), &mut || load(by_cache)])?;
        figures.extend(figures_of(subject, *connections, &loads));
    }
    for (peer, goal) in subject.others {
        let measured = measure_peer(context, subject, (*peer, own), (&folder, origin));
        let what = || format!("{}, 64 connections, CPU", subject.what);
        let figure = match measured {
            Ok([ours, theirs]) => {
                let cost = ratio(&ours, &theirs, |load| load.cpu_us);
                Figure::spread(subject.row, what(), &cost, "x").note(micros(&ours, &theirs))
            }
            Err(reason) => Figure::missing(subject.row, what(), reason.to_string()),
        };
        figures.push(figure.against(*peer).goal(Goal::AtMost(*goal)));
    }
    Ok(figures)
}

/// Loads the dispatcher and another peer in turn.
fn measure_peer(
    context: &Context,
    subject: &Subject,
    (peer, own): (&str, &Target),
    (folder, origin): (&Path, std::net::SocketAddr),
) -> Outcome<[Vec<Load>; 2]> {
    let running = match peer {
        "Varnish" => Peer::varnish(origin, folder)?,
        _ => Peer::apache(&folder.join("files/root"), folder)?,
    };
    let target =
        Target { address: running.address, path: subject.path.to_owned(), pid: running.pid() };
    for _ in 0..3 {
        get_ok(target.address, &target.path)?;
    }
    let intensity = Intensity { connections: 64, seconds: context.seconds().min(2) };
    compare(context.pairs().min(5), [own, &target], intensity, folder)
}

fn figures_of(
    subject: &Subject,
    connections: usize,
    [ours, by_files, by_cache]: &[Vec<Load>; 3],
) -> [Figure; 3] {
    let what = |figure: &str| format!("{}, {connections} connections, {figure}", subject.what);
    let cpu = |theirs: &[Load], goal, peer| {
        let figure =
            Figure::spread(subject.row, what("CPU"), &ratio(ours, theirs, |load| load.cpu_us), "x");
        figure.against(peer).goal(Goal::AtMost(goal)).note(micros(ours, theirs))
    };
    let median =
        |loads: &[Load], value: fn(&Load) -> f64| Spread::of(loads.iter().map(value)).median;
    let latency =
        Figure::spread(subject.row, what("p99"), &ratio(ours, by_files, |load| load.p99_ms), "x");
    let note = format!(
        "p99 {:.2} ms against {:.2} ms, p50 {:.2} ms against {:.2} ms",
        median(ours, |load| load.p99_ms),
        median(by_files, |load| load.p99_ms),
        median(ours, |load| load.p50_ms),
        median(by_files, |load| load.p50_ms)
    );
    [
        cpu(by_files, subject.files_goal, "nginx, a file"),
        cpu(by_cache, subject.cache_goal, "nginx, proxy_cache"),
        latency.against("nginx, a file").goal(Goal::AtMost(1.0)).note(note),
    ]
}

/// Starts a dispatcher in front of the origin.
fn start(program: &Path, origin: std::net::SocketAddr, folder: &Path) -> Outcome<Server> {
    let home = folder.join("home");
    write_config(origin, &home)?;
    let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    Server::start(program, &["dispatcher", "--home", home, "--listen", "127.0.0.1:0"], folder)
}

/// Writes the configuration of a dispatcher in front of the origin.
pub(super) fn write_config(origin: std::net::SocketAddr, home: &Path) -> Outcome<()> {
    write_text(CONFIG, origin, home)
}

/// Writes a configuration with the places filled in.
pub(super) fn write_text(text: &str, origin: std::net::SocketAddr, home: &Path) -> Outcome<()> {
    let docroot = home.join("cache");
    std::fs::create_dir_all(&docroot)?;
    let (host, port) = (origin.ip().to_string(), origin.port().to_string());
    let text = text.replace("@HOST@", &host).replace("@PORT@", &port);
    let text = text.replace("@DOCROOT@", &docroot.display().to_string());
    std::fs::write(home.join("dispatcher.any"), text)?;
    Ok(())
}

fn start_nginx(
    folder: &Path,
    name: &str,
    files: &Files,
    origin: Option<std::net::SocketAddr>,
) -> Outcome<Nginx> {
    let own = folder.join(name);
    let root = own.join("root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join(PAGE.trim_start_matches('/')), &files.page)?;
    std::fs::write(root.join(PICTURE.trim_start_matches('/')), &files.picture)?;
    Nginx::start(origin.map_or(Duty::Files(&root), Duty::Cache), &own)
}

/// Fills a cache and makes sure that the bytes are right.
fn check(target: &Target, expected: &[u8]) -> Outcome<()> {
    for _ in 0..3 {
        let answer = get_ok(target.address, &target.path)?;
        if answer.body != expected {
            return Err(
                format!("http://{}{} answers other bytes", target.address, target.path).into()
            );
        }
    }
    Ok(())
}
