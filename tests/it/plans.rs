//! The plans of the documentation, run on the sample site: every page that they name is there, and draws.

use std::path::{Path, PathBuf};

use crate::program::{Demo, lab_command};

/// Returns a plan beside the customers of a demo, with less load, so that a test can run it.
fn plan(dir: &Path, name: &str, changes: &[(&str, &str)]) -> PathBuf {
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plans");
    let mut text = std::fs::read_to_string(plans.join(name)).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{name} has no `{from}`");
        text = text.replace(from, to);
    }
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs a plan: every answer that came is one that the plan expects. How many came in time is the machine's business.
fn check(plan: &Path, target: std::net::SocketAddr, more: &[&str]) {
    let target = format!("http://{target}");
    let arguments = ["run", plan.to_str().unwrap(), "--target", &target];
    let output = lab_command().args(arguments).args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nrequests "), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let is_reason = |line: &&str| {
        let count = line.trim_start().split_once(" x ").map(|(count, _)| count);
        count.is_some_and(|count| count.parse::<u64>().is_ok())
    };
    let wrong: Vec<&str> = text
        .lines()
        .filter(is_reason)
        .filter(|line| !line.ends_with("not finished when the run ended"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?} {text}");
}

#[test]
fn the_plans_of_the_documentation_fit_the_sample_site() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    // With 100 visits each share is there.
    let mix = plan(dir.path(), "mix.toml", &[]);
    check(&mix, demo.publish, &["--rate", "20/s", "--for", "5s"]);
    // The customers that the demo made, with their passwords.
    let changes = [
        (
            "users = 1000, every = \"2s\", ramp = \"20s\", duration = \"10m\"",
            "users = 5, every = \"1s\", duration = \"3s\"",
        ),
        (
            "users = 10000, every = \"2s\", ramp = \"20s\", duration = \"10m\"",
            "users = 20, every = \"1s\", duration = \"3s\"",
        ),
    ];
    let portal = plan(dir.path(), "portal.toml", &changes);
    assert!(dir.path().join("portal-users.csv").exists());
    check(&portal, demo.publish, &[]);
}
