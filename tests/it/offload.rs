//! Two processes on one PostgreSQL: the one with `--role assets` takes what concerns assets, and the other leaves it alone
//! as long as that one lives.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tympan_testkit::postgres::PostgresServer;

use crate::program::{Running, ask, basic, free_address, post, run, run_ok};

const PATIENCE: Duration = Duration::from_secs(60);
const MODEL: &str = "/etc/workflow/models/dam/scale";
const TOPIC: &str =
    "com/adobe/granite/workflow/job/etc/workflow/models/dam/scale/jcr_content/model";

fn start(home: &Path, address: SocketAddr, more: &[&str]) -> Running {
    let (home, address) = (configured(home, ("offload", "10s"), ""), address.to_string());
    let url = PostgresServer::shared().url();
    let mut arguments = vec!["author", "--home", &home, "--listen", &address, "--database", &url];
    arguments.extend(more);
    Running::start(&arguments)
}

/// Writes the configuration of a home; returns its path as a text. A machine that is busy must not make a process miss
/// its lease.
fn configured(home: &Path, (schema, lease): (&str, &str), more: &str) -> String {
    std::fs::create_dir_all(home).unwrap();
    let settings =
        format!("[database]\nschema = \"{schema}\"\n[jobs]\nlease = \"{lease}\"\n{more}");
    std::fs::write(home.join("tympan.toml"), settings).unwrap();
    home.to_str().unwrap().to_owned()
}

/// Lets a home have the folder of blobs of another one.
fn share_blobs(of: &Path, with: &Path) {
    std::fs::create_dir_all(with).unwrap();
    std::os::unix::fs::symlink(of.join("blobs"), with.join("blobs")).unwrap();
}

fn start_workflow(address: SocketAddr, password: &str) {
    let form = format!("model={MODEL}&payload=/content");
    assert_eq!(post(address, password, "/api/v1/workflows", &form).status, 201);
}

/// Waits until so many jobs of the model are done, and returns who did each.
fn done_by(address: SocketAddr, password: &str, count: usize) -> Vec<String> {
    let headers = [("Authorization", basic("admin", password))];
    let path = format!("/api/v1/jobs?topic={TOPIC}&state=succeeded&limit=1000");
    let start = Instant::now();
    loop {
        let text = ask(address, "GET", &path, &headers, b"").unwrap().text();
        let workers: Vec<String> = text
            .split("\"worker\":\"")
            .skip(1)
            .filter_map(|rest| Some(rest.split('"').next()?.to_owned()))
            .collect();
        if workers.len() >= count {
            return workers;
        }
        assert!(start.elapsed() < PATIENCE, "not in time: {text}");
        std::thread::yield_now();
    }
}

#[test]
fn an_assets_process_takes_the_work_on_assets_while_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let (author_address, assets_address) = (free_address(), free_address());
    let author_home = dir.path().join("author");
    let _author = start(&author_home, author_address, &[]);
    let password = std::fs::read_to_string(author_home.join("initial-password")).unwrap();
    let password = password.trim();
    let post_ok = |path: &str, form: &str| {
        let answer = post(author_address, password, path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    };
    post_ok("/content", "a=b");
    let mut form = String::from("jcr:content/model/title=scale");
    for (name, kind) in [("s", "START"), ("p", "PROCESS"), ("e", "END")] {
        let node = format!("jcr:content/model/nodes/{name}");
        form.push_str(&format!("&{node}/type={kind}&{node}/metaData/PROCESS=NoopProcess"));
    }
    for (name, from, to) in [("a", "s", "p"), ("b", "p", "e")] {
        let way = format!("jcr:content/model/transitions/{name}");
        form.push_str(&format!("&{way}/from={from}&{way}/to={to}"));
    }
    post_ok(MODEL, &form);
    let keep = "queue=Granite%20Workflow%20Queue&set=queue.keepJobs%3Dtrue";
    post_ok("/api/v1/jobs/queues/set", keep);

    start_workflow(author_address, password);
    let alone = done_by(author_address, password, 1);
    assert!(alone[0].starts_with("author-"), "{alone:?}");

    share_blobs(&author_home, &dir.path().join("assets"));
    let assets = start(&dir.path().join("assets"), assets_address, &["--role", "assets"]);
    // A process that is ready may still be about to say so to the others.
    let begun = Instant::now();
    let headers = [("Authorization", basic("admin", password))];
    while !ask(author_address, "GET", "/api/v1/jobs/queues", &headers, b"")
        .unwrap()
        .text()
        .contains("\"assets\"")
    {
        assert!(begun.elapsed() < PATIENCE, "the assets process does not say that it lives");
    }
    for _ in 0..20 {
        start_workflow(author_address, password);
    }
    let workers = done_by(author_address, password, 21);
    assert_eq!(workers.len(), 21, "no job ran twice");
    let by_assets = workers.iter().filter(|worker| worker.starts_with("assets-")).count();
    assert_eq!(by_assets, 20, "{workers:?}");

    assets.kill();
    start_workflow(author_address, password);
    let workers = done_by(author_address, password, 22);
    assert!(workers[21].starts_with("author-"), "after the lease nobody waits: {workers:?}");
    let topics = run_ok(&[
        "jobs",
        "topics",
        "--url",
        &format!("http://{author_address}"),
        "--token",
        &token(&author_home),
    ]);
    assert!(topics.contains(TOPIC) && topics.contains("22 done"), "{topics}");
}

fn token(home: &Path) -> String {
    let url = PostgresServer::shared().url();
    let made = crate::program::tympan()
        .args(["user", "token", "admin", "--home", home.to_str().unwrap()])
        .env("TYMPAN_DATABASE", url)
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    String::from_utf8(made.stdout).unwrap().lines().last().unwrap().trim().to_owned()
}

#[test]
fn a_process_for_assets_needs_a_database_to_share() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let refused = run(&["author", "--home", home.to_str().unwrap(), "--role", "assets"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`--database`"), "{refused:?}");
}

#[test]
fn a_process_for_assets_needs_the_blobs_of_the_author() {
    let dir = tempfile::tempdir().unwrap();
    let url = PostgresServer::shared().url();
    let author_home = dir.path().join("author");
    let home = configured(&author_home, ("offload_blobs", "60s"), "");
    let address = free_address();
    let listen = address.to_string();
    let _author =
        Running::start(&["author", "--home", &home, "--listen", &listen, "--database", &url]);
    let refused = |name: &str, expected: &str| {
        let home = configured(&dir.path().join(name), ("offload_blobs", "60s"), "");
        let listen = free_address().to_string();
        let arguments = ["author", "--home", &home, "--listen", &listen, "--database", &url];
        let refused = run(&[&arguments[..], &["--role", "assets"]].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused("forgotten", "is not the folder of blobs of an author: start the author first");
    assert!(!dir.path().join("forgotten/blobs").exists(), "a link can be made there");
    let other = dir.path().join("mistaken/blobs");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("folder.id"), "somebody else's").unwrap();
    refused("mistaken", "is another place for blobs than that of the author on this database");

    // One that shares them, but not the mounts: it works, and both say what is wrong.
    let assets_home = dir.path().join("assets");
    share_blobs(&author_home, &assets_home);
    let mounts = "[mounts]\n[[mounts.place]]\nurl = \"/srv/press\"\n";
    let home = configured(&assets_home, ("offload_blobs", "60s"), mounts);
    let assets_address = free_address();
    let listen = assets_address.to_string();
    let arguments = ["author", "--home", &home, "--listen", &listen, "--database", &url];
    let _assets = Running::start(&[&arguments[..], &["--role", "assets"]].concat());
    for (address, other) in [(address, "`assets-"), (assets_address, "`author-")] {
        let begun = Instant::now();
        loop {
            let health = ask(address, "GET", "/health", &[], b"").unwrap().text();
            let told = format!("the process {other}");
            if health.contains(&told) && health.contains("has another section `[mounts]`") {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "not in time: {health}");
            std::thread::yield_now();
        }
    }
}
