//! The public HTTP cache tests (npm package `http-cache-tests`), in short form: those without pauses.
//!
//! `TYMPAN_HTTP_CACHE_TESTS` names the folder that `scripts/http_cache_package.sh` prints, and
//! `TYMPAN_HTTP_CACHE_TESTS_FULL=1` runs all tests. `scripts/http_cache_tests.mjs` prints the results.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tympan_testkit::condition_wait::wait_until;

use crate::front::{Front, Setup};

/// A process that ends with the test.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder of the package, if node can run it.
fn package() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("TYMPAN_HTTP_CACHE_TESTS").map(PathBuf::from) else {
        eprintln!("skipped: TYMPAN_HTTP_CACHE_TESTS does not name the package `http-cache-tests`");
        return None;
    };
    let version = Command::new("node").arg("--version").stdout(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no `node` to run the HTTP cache tests with");
        return None;
    }
    Some(folder)
}

fn script(package: &Path) -> Command {
    let mut command = Command::new("node");
    command
        .arg("--no-warnings")
        .arg(repository().join("scripts/http_cache_tests.mjs"))
        .arg(package);
    command
}

/// Runs the tests through a farm with these keys; returns whether none but the known ones failed, and the report.
fn run(package: &Path, (farm, cache): (&'static str, &'static str), known: &str) -> (bool, String) {
    // Another process may take the port until the origin listens; then the run fails.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut origin = script(package);
    origin.args(["--origin", &port.to_string()]).stdout(Stdio::null());
    let _origin = Stopped(origin.spawn().unwrap());
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    wait_until("the origin listens", || TcpStream::connect(addr).is_ok());
    let front =
        Front::start_in_time(&Setup { farm, cache, renders: vec![addr], ..Setup::default() });
    let mut client = script(package);
    client.args(["--base", &format!("http://{}", front.addr), "--failed"]);
    client.arg("--known").arg(repository().join(known));
    if let Some(file) = std::env::var_os("TYMPAN_HTTP_CACHE_TESTS_JSON") {
        client.arg("--json").arg(file);
    }
    if let Some(id) = std::env::var_os("TYMPAN_HTTP_CACHE_TESTS_ID") {
        client.arg("--id").arg(id);
    } else if std::env::var_os("TYMPAN_HTTP_CACHE_TESTS_FULL").is_none() {
        client.arg("--short");
    }
    let output = client.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(report.contains("total: "), "{report}{errors}");
    (output.status.success(), report)
}

#[test]
fn an_http_farm_passes_the_public_cache_tests() {
    let Some(package) = package() else { return };
    let farm = "/x-http \"1\" /x-variantLimit \"0\"";
    // Some tests are about responses without a lifetime.
    let keys = (farm, "/x-defaultTTL 600");
    let (is_passed, report) = run(&package, keys, "scripts/http_cache_tests.known");
    eprintln!("{report}");
    assert!(is_passed, "{report}");
}

/// The table in `docs/compat/dispatcher.md` has the reasons.
#[test]
fn a_farm_in_adobes_words_fails_the_tests_that_its_documentation_contradicts() {
    let Some(package) = package() else { return };
    let keys = ("/x-variantLimit \"0\"", "/enableTTL \"1\" /headers { \"*\" }");
    let (is_passed, report) = run(&package, keys, "scripts/http_cache_tests_adobe.known");
    assert!(is_passed, "{report}");
}
