//! D3: the same answers over TLS 1.3, with HTTP/1.1 and HTTP/2, and handshakes, against nginx sending files.
//!
//! Both sides have the same P-256 certificate and write an access log. HTTP/2 has 8 connections with 32 streams each. A full
//! handshake belongs to a client that was never seen before; `wrk` keeps the session of the connection before, and resumes it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::alternate::{Spread, alternate, ratio};
use crate::context::{Context, LOAD_CORE};
use crate::figure::{Figure, Goal};
use crate::nginx::{Duty, Nginx};
use crate::origin::{self, Files, PAGE, PICTURE};
use crate::process::{is_installed, pinned};
use crate::row::dispatcher;
use crate::site::Server;
use crate::{Outcome, cpu};

/// What is asked, and how.
#[derive(Debug, Clone, Copy)]
struct Subject {
    what: &'static str,
    path: &'static str,
    way: Way,
    goal: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Http1,
    Http2,
    /// A new client for each request.
    Handshake,
    /// A connection for each request, with the session of the one before.
    Resumed,
}

const SUBJECTS: [Subject; 6] = [
    Subject { what: "page, HTTP/1.1", path: PAGE, way: Way::Http1, goal: Some(0.7) },
    Subject { what: "picture, HTTP/1.1", path: PICTURE, way: Way::Http1, goal: Some(0.5) },
    Subject { what: "page, HTTP/2", path: PAGE, way: Way::Http2, goal: Some(0.8) },
    Subject { what: "picture, HTTP/2", path: PICTURE, way: Way::Http2, goal: Some(0.5) },
    Subject { what: "full handshake and page", path: PAGE, way: Way::Handshake, goal: Some(0.55) },
    Subject { what: "resumed handshake and page", path: PAGE, way: Way::Resumed, goal: None },
];

/// A server that speaks TLS.
struct Target {
    address: SocketAddr,
    pid: u32,
}

/// Measures D3.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    for tool in ["wrk", "openssl"] {
        if !is_installed(tool) {
            return Err(format!("{tool} is not installed").into());
        }
    }
    let folder = context.new_folder("tls-")?;
    let pair = make_certificate(&folder)?;
    let files = Arc::new(Files::new());
    let origin = origin::serve(Arc::clone(&files))?;
    let dispatcher = start(context.program()?, origin, &folder, &pair)?;
    let root = folder.join("files/root");
    std::fs::create_dir_all(&root)?;
    std::fs::write(root.join(PAGE.trim_start_matches('/')), &files.page)?;
    std::fs::write(root.join(PICTURE.trim_start_matches('/')), &files.picture)?;
    let nginx = Nginx::start(
        Duty::Secure(&root, [pair.0.as_path(), pair.1.as_path()]),
        &folder.join("files"),
    )?;
    let ours = Target { address: dispatcher.address, pid: dispatcher.pid() };
    let theirs = Target { address: nginx.address, pid: nginx.pid() };
    for target in [&ours, &theirs] {
        check(target, &files)?;
    }
    // Three pairs of five subjects take two minutes and a half.
    let pairs = if context.is_quick { 3 } else { 5 };
    let seconds = context.seconds().min(3);
    let mut figures = Vec::new();
    for subject in SUBJECTS {
        let needs_h2load = matches!(subject.way, Way::Http2 | Way::Handshake);
        if needs_h2load && !is_installed("h2load") {
            let reason = "h2load is not installed; it is in the package nghttp2-client";
            let figure = Figure::missing("D3", format!("TLS, {}, CPU", subject.what), reason);
            figures.push(figure.against("nginx, a file"));
            continue;
        }
        let load = |target: &Target| load(target, subject, seconds, &folder);
        let [own, other] = alternate(pairs, [&mut || load(&ours), &mut || load(&theirs)])?;
        let spread = ratio(&own, &other, |cpu| *cpu);
        let median = |all: &[f64]| Spread::of(all.iter().copied()).median;
        let note = format!("{:.1} µs against {:.1} µs", median(&own), median(&other));
        let figure = Figure::spread("D3", format!("TLS, {}, CPU", subject.what), &spread, "x");
        let figure = figure.against("nginx, a file").note(note);
        figures.push(match subject.goal {
            Some(goal) => figure.goal(Goal::AtMost(goal)),
            None => figure,
        });
    }
    Ok(figures)
}

/// Makes a certificate for this machine, and its key.
fn make_certificate(folder: &Path) -> Outcome<(PathBuf, PathBuf)> {
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ]);
    command.args([
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]);
    command.arg("-out").arg(&chain).arg("-keyout").arg(&key);
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("openssl: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok((chain, key))
}

fn start(
    program: &Path,
    origin: SocketAddr,
    folder: &Path,
    (chain, key): &(PathBuf, PathBuf),
) -> Outcome<Server> {
    let home = folder.join("home");
    dispatcher::write_config(origin, &home)?;
    let settings = format!(
        "[[dispatcher.front.certificate]]\nchain = {:?}\nkey = {:?}\n",
        chain.display().to_string(),
        key.display().to_string()
    );
    std::fs::write(home.join("tympan.toml"), settings)?;
    let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    Server::start(program, &["dispatcher", "--home", home, "--listen", "127.0.0.1:0"], folder)
}

/// Fills a cache and makes sure that the bytes are right.
fn check(target: &Target, files: &Files) -> Outcome<()> {
    for (path, expected) in [(PAGE, &files.page), (PICTURE, &files.picture)] {
        for _ in 0..2 {
            let url = format!("https://{}{path}", target.address);
            let answer = Command::new("curl").args(["-sk", "--max-time", "10", &url]).output()?;
            if answer.stdout != *expected {
                return Err(format!("{url} answers other bytes").into());
            }
        }
    }
    Ok(())
}

/// Loads a server, and returns the microseconds of its CPU for each request.
fn load(target: &Target, subject: Subject, seconds: u64, folder: &Path) -> Outcome<f64> {
    let url = format!("https://{}{}", target.address, subject.path);
    let before = cpu::of_tree(target.pid);
    let requests = match subject.way {
        Way::Http1 => with_wrk(&url, seconds, folder, &[])?,
        Way::Resumed => with_wrk(&url, seconds, folder, &["-H", "Connection: close"])?,
        Way::Http2 => with_h2load(&url, &["-c8", "-m32", &format!("-D{seconds}")])?,
        Way::Handshake => {
            (0..seconds).map(|_| with_h2load(&url, &NEW_CLIENTS)).sum::<Outcome<u64>>()?
        }
    };
    let spent = cpu::of_tree(target.pid) - before;
    if requests == 0 {
        return Err(format!("{url}: no request was answered").into());
    }
    if spent <= 0.0 {
        return Err(
            format!("{url}: {requests} requests cost less CPU than the kernel tells").into()
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^52")]
    let requests = requests as f64;
    Ok(spent * 1e6 / requests)
}

const SCRIPT: &str = "done = function(s, l) io.write(string.format('RESULT %d %d\\n', s.requests, \
    s.errors.connect + s.errors.write + s.errors.status + s.errors.timeout)) end\n";

fn with_wrk(url: &str, seconds: u64, folder: &Path, more: &[&str]) -> Outcome<u64> {
    let script = folder.join("tls.lua");
    std::fs::write(&script, SCRIPT)?;
    let mut command = pinned(LOAD_CORE, "wrk");
    command.args(["-t1", "-c64"]).arg(format!("-d{seconds}s")).arg("-s").arg(script);
    let output = command.args(more).arg(url).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let (requests, errors) =
        result.and_then(|result| result.split_once(' ')).ok_or("wrk printed no result")?;
    match errors.trim().parse()? {
        0_u64 => Ok(requests.parse()?),
        errors => Err(format!("{url}: {errors} of {requests} requests failed").into()),
    }
}

/// Each client connects once and asks once.
const NEW_CLIENTS: [&str; 3] = ["--h1", "-c1000", "-n1000"];

fn with_h2load(url: &str, how: &[&str]) -> Outcome<u64> {
    let mut command = pinned(LOAD_CORE, "h2load");
    let output = command.arg("-t1").args(how).arg(url).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // `requests: 1000 total, 1000 started, 1000 done, 1000 succeeded, 0 failed, 0 errored, 0 timeout`
    let line = text.lines().find(|line| line.starts_with("requests: "));
    let count = |what: &str| {
        let parts = line.unwrap_or_default().trim_start_matches("requests: ").split(", ");
        let part = parts.filter_map(|part| part.split_once(' ')).find(|(_, name)| *name == what);
        part.and_then(|(count, _)| count.parse::<u64>().ok())
    };
    match (count("succeeded"), count("failed")) {
        (Some(requests), Some(0)) => Ok(requests),
        _ => Err(format!("{url}: h2load says {}", line.unwrap_or("nothing")).into()),
    }
}
