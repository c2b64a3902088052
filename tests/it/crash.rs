//! Crashes: the process is killed at points that a seed chooses; what was acknowledged is there afterwards.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::program::{Running, basic, free_address, get, post, run_ok, tympan};

/// How many kills each test makes.
fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8)
}

/// A small generator: the same seeds give the same points.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn check_is_clean(home: &Path) {
    let report = run_ok(&["repo", "check", "--home", home.to_str().unwrap()]);
    assert!(report.trim_end().ends_with(": clean"), "{report}");
}

/// Adds up the bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_stream_of_commits_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let home_text = home.to_str().unwrap();
    let mut seed = 0x5eed_0001;
    let mut acknowledged: u64 = 0;
    let mut sent: u64 = 0;
    for kill in 0..kills() {
        let address = free_address();
        let running =
            Running::start(&["author", "--home", home_text, "--listen", &address.to_string()]);
        let password =
            std::fs::read_to_string(home.join("initial-password")).unwrap().trim().to_owned();
        if kill == 0 {
            assert_eq!(post(address, &password, "/counter", "./value=0").status, 201);
        }
        let stored = stored_value(address, &password);
        assert!(
            stored >= acknowledged,
            "kill {kill}: {acknowledged} was acknowledged, {stored} is stored"
        );
        assert!(stored <= sent, "kill {kill}: {stored} was never sent");
        for _ in 0..next(&mut seed) % 12 {
            sent += 1;
            assert_eq!(
                post(address, &password, "/counter", &format!("./value={sent}")).status,
                200
            );
            acknowledged = sent;
        }
        // The last request is on its way when the process dies, at an instant that the seed chooses.
        sent += 1;
        let body = format!("./value={sent}");
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /counter HTTP/1.1\r\nHost: a\r\nAuthorization: {}\r\nContent-Type: \
             application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            basic("admin", &password),
            body.len()
        )
        .unwrap();
        let until =
            std::time::Instant::now() + std::time::Duration::from_micros(next(&mut seed) % 6000);
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        running.kill();
        check_is_clean(&home);
    }
    eprintln!("{} kills, {acknowledged} acknowledged commits, none lost", kills());
}

fn stored_value(address: std::net::SocketAddr, password: &str) -> u64 {
    let headers = [("Authorization", basic("admin", password))];
    let answer = crate::program::ask(address, "GET", "/counter.json", &headers, b"").unwrap();
    let text = answer.text();
    let value = text.split("\"value\":\"").nth(1).and_then(|rest| rest.split('"').next());
    value.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn a_killed_installation_leaves_all_or_nothing() {
    let Some(packages) = fixture_folder("packages") else { return };
    let package = packages.join("core.wcm.components.examples.ui.content-2.26.0.zip");
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    run_ok(&["package", "install", package.to_str().unwrap(), "--home", whole.to_str().unwrap()]);
    let (size, pages) = (bytes_below(&whole), pages_in(&whole));
    assert!(pages > 0);
    let mut seed = 0x5eed_0002;
    let mut finished = 0;
    for kill in 0..kills() {
        let home = dir.path().join(format!("home{kill}"));
        let mut child = tympan()
            .args([
                "package",
                "install",
                package.to_str().unwrap(),
                "--home",
                home.to_str().unwrap(),
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Killed when the home has grown to a share of its final size, or when it is done.
        let limit = size * (next(&mut seed) % 100) / 100;
        wait_until("the home grows", || {
            bytes_below(&home) >= limit || child.try_wait().unwrap().is_some()
        });
        child.kill().ok();
        child.wait().unwrap();
        if !home.join("store").is_dir() {
            continue;
        }
        check_is_clean(&home);
        let stored = pages_in(&home);
        assert!(stored == 0 || stored == pages, "kill {kill}: {stored} of {pages} pages");
        finished += u64::from(stored == pages);
        // What was left behind does not hinder the next attempt.
        run_ok(&[
            "package",
            "install",
            package.to_str().unwrap(),
            "--home",
            home.to_str().unwrap(),
        ]);
        assert_eq!(pages_in(&home), pages);
        std::fs::remove_dir_all(&home).unwrap();
    }
    eprintln!("{} kills, {finished} after the commit", kills());
}

fn pages_in(home: &Path) -> u64 {
    let stats = run_ok(&["repo", "stats", "--json", "--home", home.to_str().unwrap()]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    stats["pages"].as_u64().unwrap()
}

#[test]
fn the_demo_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let demo = crate::program::Demo::start(dir.path());
    let (author, publish, dispatcher) = (demo.author, demo.publish, demo.dispatcher);
    assert_eq!(get(dispatcher, "/content/wayfare/en.html").status, 200);
    demo.running.kill();
    let demo = crate::program::Demo::start_at(dir.path(), author, publish, dispatcher);
    assert_eq!(get(demo.dispatcher, "/content/wayfare/en.html").status, 200);
}
