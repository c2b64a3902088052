//! D9: the public HTTP cache tests that a farm with `/x-http` passes.
//!
//! The origin and the client are those of the npm package; `scripts/http_cache_tests.mjs` runs them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::row::dispatcher::write_text;
use crate::site::Server;

const CONFIG: &str = include_str!("http-cache.any");
const START_LIMIT: Duration = Duration::from_secs(20);

/// The origin of the tests; dropping it stops it.
struct Origin(Child);

impl Drop for Origin {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Measures D9.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let printed = Command::new(scripts.join("http_cache_package.sh")).output()?;
    let package = String::from_utf8_lossy(&printed.stdout).trim().to_owned();
    if package.is_empty() {
        return Err("the public HTTP cache tests need node, npm and a network".into());
    }
    let script = |package: &str| {
        let mut command = Command::new("node");
        command.arg("--no-warnings").arg(scripts.join("http_cache_tests.mjs")).arg(package);
        command
    };
    let folder = context.new_folder("http-cache-")?;
    let address = free_address()?;
    let mut origin = script(&package);
    origin.args(["--origin", &address.port().to_string()]).stdout(Stdio::null());
    let _origin = Origin(origin.spawn()?);
    wait_for(address)?;
    let home = folder.join("home");
    write_text(CONFIG, address, &home)?;
    let home = home.to_str().ok_or("the work folder has a name that is not UTF-8")?;
    let arguments = ["dispatcher", "--home", home, "--listen", "127.0.0.1:0"];
    let server = Server::start_unpinned(context.program()?, &arguments, &folder)?;
    let known: PathBuf = scripts.join("http_cache_tests.known");
    let base = format!("http://{}", server.address);
    let mut client = script(&package);
    let output = client.args(["--base", &base, "--failed", "--known"]).arg(known).output()?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    figures_of(&report, output.status.success())
}

fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn wait_for(address: SocketAddr) -> Outcome<()> {
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        if begin.elapsed() > START_LIMIT {
            return Err("the origin of the HTTP cache tests does not start".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Reads the last line of a report: `total: required 1/2, optimal 3/4, check 5/6`.
fn figures_of(report: &str, is_expected: bool) -> Outcome<Vec<Figure>> {
    let total = report.lines().find_map(|line| line.strip_prefix("total: "));
    let total = total.ok_or_else(|| format!("the HTTP cache tests did not end: {report}"))?;
    let passed = |kind: &str| -> Outcome<(f64, f64)> {
        let part = total.split(", ").find_map(|part| part.strip_prefix(kind)?.strip_prefix(' '));
        let (passed, all) =
            part.and_then(|part| part.split_once('/')).ok_or("a count is missing")?;
        Ok((passed.parse()?, all.parse()?))
    };
    let (required, all_required) = passed("required")?;
    let (optimal, all_optimal) = passed("optimal")?;
    let known = if is_expected { "others contradict the RFC" } else { "see the failed tests" };
    Ok(vec![
        Figure::value("D9", "required HTTP cache tests passed", required, "")
            .note(format!("of {all_required}; {known}")),
        Figure::value("D9", "unexplained failures", if is_expected { 0.0 } else { 1.0 }, "")
            .goal(Goal::Exactly(0.0)),
        Figure::value("D9", "optimal HTTP cache tests passed", optimal, "")
            .note(format!("of {all_optimal}"))
            .goal(Goal::AtLeast(81.0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::figures_of;

    #[test]
    fn the_total_of_a_report_is_read() {
        let report = "vary: required 9/9\ntotal: required 151/165, optimal 82/95, check 60/90\n";
        let figures = figures_of(report, true).unwrap();
        assert_eq!(figures.len(), 3);
        assert_eq!(figures[2].met(), Some(true));
        assert!(figures_of("Error", false).is_err());
    }
}
