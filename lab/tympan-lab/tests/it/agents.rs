//! Loads of the lab that several processes make together.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

use crate::program::{LAB_PROGRAM, lab_command, run_ok};

/// Returns a plan whose threads log in with a row of `users.csv` each time.
fn plan(origin: &OriginServer, threads: usize, loops: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="p" enabled="true"/><hashTree>
<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="visitors" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">continue</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><stringProp name="LoopController.loops">{loops}</stringProp></elementProp>
<stringProp name="ThreadGroup.num_threads">{threads}</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp>
</ThreadGroup><hashTree>
<CSVDataSet testclass="CSVDataSet" testname="users" enabled="true"><stringProp name="filename">users.csv</stringProp><stringProp name="variableNames">user,secret</stringProp><stringProp name="delimiter">,</stringProp><boolProp name="recycle">false</boolProp><boolProp name="stopThread">true</boolProp><stringProp name="shareMode">shareMode.all</stringProp></CSVDataSet><hashTree/>
<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="login" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{}</stringProp>
<stringProp name="HTTPSampler.path">/login?user=${{user}}</stringProp><stringProp name="HTTPSampler.method">GET</stringProp>
<boolProp name="HTTPSampler.use_keepalive">true</boolProp></HTTPSamplerProxy>
<hashTree/>
</hashTree></hashTree></hashTree></jmeterTestPlan>"#,
        origin.addr().port()
    )
}

/// Returns which row of the users a request was made from.
fn row_of(target: &str) -> usize {
    target.trim_start_matches("/login?user=user").parse().unwrap()
}

/// Writes a plan and `rows` users into a folder.
fn write(folder: &Path, plan: &str, rows: usize) -> PathBuf {
    let users: String = (0..rows).map(|user| format!("user{user:05},s{user}\n")).collect();
    std::fs::write(folder.join("users.csv"), users).unwrap();
    let path = folder.join("plan.jmx");
    std::fs::write(&path, plan).unwrap();
    path
}

/// Returns what stands in for `ssh`: it runs the program here and notes its process id by the host's name.
fn stand_in(folder: &Path) -> PathBuf {
    let text = format!("#!/bin/sh\necho $$ > {}/$3.pid\nshift 3\nexec \"$@\"\n", folder.display());
    write_script(folder, "ssh", &text)
}

/// Returns what stands in for the program `tympan` of an agent's machine: it starts the lab's program for `lab`.
fn whole_program(folder: &Path) -> PathBuf {
    write_script(folder, "tympan", &format!("#!/bin/sh\nshift\nexec '{LAB_PROGRAM}' \"$@\"\n"))
}

fn write_script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn four_agent_processes_use_each_user_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &plan(&origin, 40, "-1"), 2000);
    let rows = folder.path().join("rows.jtl");
    let output = lab_command()
        .args(["run", path.to_str().unwrap(), "--agents", "4", "--workers", "1"])
        .args(["--jtl", rows.to_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // On a busy machine the generator may say of itself that it was saturated; nothing may be lost.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    assert!(!told.contains("INCOMPLETE"), "{told}");
    let mut seen: Vec<String> = origin.requests().iter().map(|seen| seen.target.clone()).collect();
    seen.sort();
    let wanted: Vec<String> = (0..2000).map(|user| format!("/login?user=user{user:05}")).collect();
    assert_eq!(seen, wanted);
    assert!(told.contains("the load is divided among 4 agents"), "{told}");
    assert!(told.contains("summary =   2000 in"), "{told}");
    assert!(told.contains("requests 2000 in"), "{told}");
    assert_eq!(std::fs::read_to_string(rows).unwrap().lines().count(), 2001);
}

/// Runs a plan in TOML with 1003 users and the given load on four agents; every user must come once.
fn each_user_comes_once(load: &str) {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let users: String = (0..1003).map(|user| format!("user{user:05},s{user}\n")).collect();
    let users = format!("user,secret\n{users}");
    std::fs::write(folder.path().join("data/users.csv"), users).unwrap();
    let path = folder.path().join("plan.toml");
    let plan = format!(
        r#"name = "users"
target = "http://{}"
{load}
[[data]]
file = "data/users.csv"
at_end = "stop"
[[scenario]]
name = "visit"
[[scenario.step]]
path = "/login?user=${{user}}"
"#,
        origin.addr()
    );
    std::fs::write(&path, plan).unwrap();
    let output = lab_command()
        .args(["run", path.to_str().unwrap(), "--agents", "4", "--workers", "1"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    // On a busy machine the generator may say of itself that it was saturated; nothing may be lost.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    assert!(!told.contains("INCOMPLETE"), "{told}");
    let mut seen: Vec<usize> = origin.requests().iter().map(|seen| row_of(&seen.target)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..1003).collect::<Vec<_>>());
}

#[test]
fn four_agent_processes_divide_the_rows_of_a_plan_in_toml() {
    // Five threads are two for the first agent and one for each other.
    each_user_comes_once("load = { users = 5, visits = 1000 }");
    // Visitors who come, more than there are rows.
    each_user_comes_once("load = { rate = 1000, duration = \"1100ms\", arrivals = \"uniform\" }");
}

#[test]
fn an_agent_that_dies_is_reported_and_the_verdict_says_so() {
    let gate = OriginGate::default();
    let held = gate.clone();
    let origin = OriginServer::start(move |seen| {
        // The third agent gets no answer to its later requests, so that it is at work when it dies.
        if row_of(&seen.target) % 4 == 2 && row_of(&seen.target) > 40 {
            held.wait_open();
        }
        OriginResponse::html("hello")
    });
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &plan(&origin, 4, "100"), 1000);
    let ssh = stand_in(folder.path());
    let program = whole_program(folder.path());
    let mut command = lab_command();
    command.args(["run", path.to_str().unwrap(), "--agents", "a,b,c,d", "--workers", "1"]).args([
        "--agent-program",
        program.to_str().unwrap(),
        "--ssh",
        ssh.to_str().unwrap(),
    ]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    origin.wait_for_requests(20);
    let pid = std::fs::read_to_string(folder.path().join("c.pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    gate.open();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(told.contains("agent 3 (c) is lost"), "{told}");
    assert!(told.contains("INCOMPLETE: agent 3 (c) was lost after"), "{told}");
    // The others send what is theirs, no more and no less.
    let seen = origin.requests();
    let of = |agent: usize| seen.iter().filter(|seen| row_of(&seen.target) % 4 == agent).count();
    assert_eq!([of(0), of(1), of(3)], [100; 3]);
    assert!(of(2) < 100);
}

#[test]
fn a_manifest_is_printed_and_nothing_is_sent() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &plan(&origin, 4, "1"), 4);
    let path = path.to_str().unwrap();
    let told = run_ok(&[
        "run",
        path,
        "--agents",
        "20",
        "--emit",
        "k8s",
        "--image",
        "site/tympan:2",
        "-Jthreads=7",
    ]);
    for wanted in [
        "completionMode: Indexed",
        "completions: 20",
        "\"-Jthreads=7\"",
        "\"users.csv\"",
        "\"--agent-wait\", \"600s\"",
        "--wait, 600s",
    ] {
        assert!(told.contains(wanted), "{wanted}\n{told}");
    }
    assert_eq!(origin.request_count(), 0);
    let told = run_ok(&["run", path, "--agents", "2", "--emit", "k8s", "--agent-wait", "25m"]);
    assert!(told.contains("\"--agent-wait\", \"1500s\""), "{told}");
    let refused = lab_command().args(["run", path, "--emit", "k8s"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn an_agent_without_a_controller_or_a_token_says_so() {
    let without = lab_command().args(["agent", "127.0.0.1:9"]).output().unwrap();
    assert_eq!(without.status.code(), Some(2));
    let text = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(text.contains("--token-file"), "{text}");
    let alone = lab_command()
        .args(["agent", "127.0.0.1:9", "--wait", "0s"])
        .env("TYMPAN_LAB_TOKEN", "t".repeat(40))
        .output()
        .unwrap();
    assert_eq!(alone.status.code(), Some(3), "{alone:?}");
}
