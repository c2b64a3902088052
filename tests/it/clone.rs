//! Homes that stand on another one: staging over production while that runs, and a standby that takes over.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, basic, free_address, post, run, run_ok};

/// A running author.
pub(crate) struct Author {
    pub(crate) running: Running,
    address: SocketAddr,
    password: String,
}

impl Author {
    /// Starts an author; the password is that of the home whose content it has.
    pub(crate) fn start(home: &Path, password_of: &Path) -> Self {
        let address = free_address();
        let running =
            Running::start(&["author", "--home", text(home), "--listen", &address.to_string()]);
        let password = std::fs::read_to_string(password_of.join("initial-password")).unwrap();
        Self { running, address, password: password.trim().to_owned() }
    }

    pub(crate) fn post(&self, path: &str, form: &str) {
        let answer = post(self.address, &self.password, path, form);
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }

    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        let headers = [("Authorization", basic("admin", &self.password))];
        let answer = ask(self.address, "GET", path, &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.body
    }

    /// Returns a number that was posted.
    pub(crate) fn value(&self, path: &str) -> u64 {
        let node: serde_json::Value =
            serde_json::from_slice(&self.get(&format!("{path}.json"))).unwrap();
        node["value"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn upload(&self, name: &str, bytes: &[u8]) {
        let mut body = format!(
            "--b\r\nContent-Disposition: form-data; name=\"*\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .into_bytes();
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n--b--\r\n");
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "multipart/form-data; boundary=b".to_owned()),
        ];
        let answer = ask(self.address, "POST", "/uploads", &headers, &body).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
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

pub(crate) fn check_is_clean(home: &Path) {
    let report = run_ok(&["repo", "check", "--home", text(home)]);
    assert!(report.trim_end().ends_with(": clean"), "{report}");
}
pub(crate) fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn staging_costs_a_kilobyte_and_lives_beside_production() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let author = Author::start(&production, &production);
    author.upload("large.bin", &bytes(1, 200_000));
    author.upload("small.bin", &bytes(2, 5_000));
    for page in 0..30 {
        author.post(&format!("/pages/page-{page}"), &format!("./value={page}"));
    }
    let before = bytes_below(&production.join("store"));
    let said = run_ok(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    assert!(said.contains("tympan author --home"), "{said}");
    let written = bytes_below(&staging) + bytes_below(&production.join("store")) - before;
    assert!(written <= 1_024, "{written} bytes for a clone");

    let staged = Author::start(&staging, &production);
    assert_eq!(staged.value("/pages/page-7"), 7);
    assert!(staged.get("/uploads/large.bin") == bytes(1, 200_000));
    assert!(staged.get("/uploads/small.bin") == bytes(2, 5_000));
    // Each goes its own way from here.
    staged.post("/pages/page-7", "./value=700");
    staged.upload("mine.bin", &bytes(3, 100_000));
    author.post("/pages/page-8", "./value=800");
    assert_eq!((staged.value("/pages/page-7"), staged.value("/pages/page-8")), (700, 8));
    assert_eq!((author.value("/pages/page-7"), author.value("/pages/page-8")), (7, 800));
    assert!(staged.running.stop());
    check_is_clean(&staging);
    let staged = Author::start(&staging, &production);
    assert_eq!(staged.value("/pages/page-7"), 700);
    assert!(staged.get("/uploads/mine.bin") == bytes(3, 100_000));
    assert!(staged.running.stop() && author.running.stop());
    check_is_clean(&production);

    let again = dir.path().join("again");
    let refused = run(&["repo", "clone", "--from", text(&staging), "--to", text(&again)]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(!again.exists());
    let refused = run(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    // Without its base a clone does not pretend to be empty.
    std::fs::rename(&production, dir.path().join("moved")).unwrap();
    let refused = run(&["author", "--home", text(&staging), "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains(text(&production)), "{message}");
}

#[test]
fn production_collects_while_others_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let standby = dir.path().join("standby");
    std::fs::create_dir(&production).unwrap();
    let eager = "[collect]\ninterval = \"50ms\"\n\n\
                 [history]\nall = \"0s\"\nhourly = 0\ndaily = 0\nweekly = 0\n";
    std::fs::write(production.join("tympan.toml"), eager).unwrap();
    let author = Author::start(&production, &production);
    // Texts that lz4 cannot make small, so that packs fill.
    let fill = |seed: u64| -> String {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            char::from(b'a' + (state % 26) as u8)
        };
        (0..4_000).map(|_| next()).collect()
    };
    let write = |round: u64| {
        for page in 0..20 {
            let form =
                format!("./value={}&./text={}", round * 100 + page, fill(round * 100 + page));
            author.post(&format!("/pages/page-{page}"), &form);
        }
    };
    write(0);
    run_ok(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    let follow = ["repo", "clone", "--from", text(&production), "--to", text(&standby), "--follow"];
    let follower = Running::start(&follow);
    let staged = Author::start(&staging, &production);
    let packs = || -> Vec<String> {
        let entries = std::fs::read_dir(production.join("store")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("pack-") && !name.contains('.')).collect()
    };
    let cloned = packs();
    let mut rounds = 0;
    wait_until("packs that staging was cloned from are collected", || {
        rounds += 1;
        write(rounds);
        let page = rounds % 20;
        assert_eq!(staged.value(&format!("/pages/page-{page}")), page, "as it was cloned");
        staged.post(&format!("/own/page-{page}"), "./value=1");
        let left = packs();
        cloned.iter().any(|pack| !left.contains(pack)) && rounds >= 5
    });
    for page in 0..20 {
        assert_eq!(staged.value(&format!("/pages/page-{page}")), page);
    }
    let done_at = now();
    wait_until("the standby says that it has everything", || {
        status(&standby).is_some_and(|status| {
            status["complete_until"].as_f64().is_some_and(|until| until > done_at)
        })
    });
    assert!(follower.stop() && staged.running.stop());
    check_is_clean(&staging);
    let collected = run_ok(&["repo", "gc", "--home", text(&staging)]);
    check_is_clean(&staging);
    run_ok(&["repo", "promote", "--home", text(&standby)]);
    check_is_clean(&standby);
    let promoted = Author::start(&standby, &production);
    assert_eq!(promoted.value("/pages/page-7"), rounds * 100 + 7);
    let staged = Author::start(&staging, &production);
    assert_eq!((staged.value("/pages/page-7"), staged.value("/own/page-1")), (7, 1), "{collected}");
}

#[test]
fn a_full_copy_needs_its_origin_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, copy) = (dir.path().join("origin"), dir.path().join("copy"));
    let author = Author::start(&origin, &origin);
    author.upload("large.bin", &bytes(4, 70_000));
    author.post("/counter", "./value=5");
    run_ok(&["repo", "clone", "--from", text(&origin), "--to", text(&copy), "--full"]);
    author.running.kill();
    std::fs::rename(origin.join("store"), origin.join("gone")).unwrap();
    let copied = Author::start(&copy, &origin);
    assert_eq!(copied.value("/counter"), 5);
    assert!(copied.get("/uploads/large.bin") == bytes(4, 70_000));
    assert!(copied.running.stop());
    check_is_clean(&copy);
}

/// Returns what a standby says of itself.
fn status(home: &Path) -> Option<serde_json::Value> {
    serde_json::from_str(&std::fs::read_to_string(home.join("standby.json")).ok()?).ok()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn a_standby_takes_over_with_everything_before_its_lag() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, standby) = (dir.path().join("origin"), dir.path().join("standby"));
    let author = Author::start(&origin, &origin);
    author.upload("large.bin", &bytes(5, 90_000));
    author.post("/counter", "./value=0");
    let follow = ["repo", "clone", "--from", text(&origin), "--to", text(&standby), "--follow"];
    let follower = Running::start(&follow);
    let refused = run(&["author", "--home", text(&standby), "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("promote"), "{refused:?}");
    let busy = run(&["repo", "promote", "--home", text(&standby)]);
    assert_eq!(busy.status.code(), Some(3), "while it is followed into: {busy:?}");

    // Writes go on while the standby is killed and started again.
    let (acknowledged, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let follower = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let next = acknowledged.load(Ordering::Relaxed) + 1;
                author.post("/counter", &format!("./value={next}"));
                acknowledged.store(next, Ordering::Relaxed);
            }
        });
        let mut follower = follower;
        for round in 1..4 {
            let reached = acknowledged.load(Ordering::Relaxed) + 5;
            wait_until("writes", || acknowledged.load(Ordering::Relaxed) >= reached);
            follower.kill();
            follower = Running::start(&follow);
            author.upload(&format!("upload-{round}.bin"), &bytes(round, 40_000));
        }
        is_done.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        follower
    });
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    let done_at = now();
    wait_until("the standby says that it has everything", || {
        status(&standby).is_some_and(|status| {
            status["complete_until"].as_f64().is_some_and(|until| until > done_at)
                && status["revisions_behind"] == 0
        })
    });
    author.running.kill();
    follower.kill();
    let said = run_ok(&["repo", "promote", "--home", text(&standby), "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(said["complete_until"].as_f64().unwrap() > done_at, "{said}");
    std::fs::rename(origin.join("store"), origin.join("gone")).unwrap();
    let promoted = Author::start(&standby, &origin);
    assert_eq!(promoted.value("/counter"), acknowledged);
    for (seed, name) in [(5, "large"), (1, "upload-1"), (2, "upload-2"), (3, "upload-3")] {
        let length = if name == "large" { 90_000 } else { 40_000 };
        assert!(promoted.get(&format!("/uploads/{name}.bin")) == bytes(seed, length), "{name}");
    }
    promoted.post("/counter", "./value=mine");
    assert!(promoted.running.stop());
    check_is_clean(&standby);
    let again = run(&["repo", "promote", "--home", text(&standby)]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
}

#[test]
fn a_standby_keeps_blobs_where_its_configuration_says() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, standby) = (dir.path().join("origin"), dir.path().join("standby"));
    let author = Author::start(&origin, &origin);
    author.upload("large.bin", &bytes(5, 90_000));
    std::fs::create_dir(&standby).unwrap();
    let config = "[blobs]\nroles = \"disk\"\n[[blobs.delegates]]\nrole = \"disk\"\npath = \"../disk\"\n\
                  [collect]\ninterval = \"50ms\"\n";
    std::fs::write(standby.join("tympan.toml"), config).unwrap();
    let follow = ["repo", "clone", "--from", text(&origin), "--to", text(&standby), "--follow"];
    let follower = Running::start(&follow);
    author.upload("later.bin", &bytes(6, 90_000));
    let done_at = now();
    wait_until("the standby says that it has everything", || {
        status(&standby).is_some_and(|status| {
            status["complete_until"].as_f64().is_some_and(|until| until > done_at)
        })
    });
    let disk = dir.path().join("disk");
    assert!(!standby.join("blobs").exists());
    wait_until("it says which blobs it needs", || {
        let names = std::fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("marks-")).count() > 0
    });
    assert!(follower.stop());
    author.running.kill();
    std::fs::rename(&origin, dir.path().join("gone")).unwrap();
    run_ok(&["repo", "promote", "--home", text(&standby)]);
    let promoted = Author::start(&standby, &dir.path().join("gone"));
    assert!(promoted.get("/uploads/large.bin") == bytes(5, 90_000));
    assert!(promoted.get("/uploads/later.bin") == bytes(6, 90_000));
    assert!(promoted.running.stop());
    check_is_clean(&standby);
    let checked = run_ok(&["blobs", "check", "--rehash", "--home", text(&standby)]);
    assert!(checked.trim_end().ends_with("2 blobs: clean"), "{checked}");
    // What somebody else put there is no home to be.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("notes.txt"), "mine").unwrap();
    let refused = run(&["repo", "clone", "--from", text(&standby), "--to", text(&other), "--full"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn staging_and_standby_of_an_instance_on_another_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, staging) = (dir.path().join("origin"), dir.path().join("staging"));
    let standby = dir.path().join("standby");
    let author = Author::start(&origin, &origin);
    author.upload("large.bin", &bytes(6, 300_000));
    author.upload("small.bin", &bytes(7, 3_000));
    (0..20)
        .for_each(|page| author.post(&format!("/pages/page-{page}"), &format!("./value={page}")));
    let url = format!("http://{}/", author.address);
    let clone = |to: &Path, more: &[&str]| {
        let mut arguments = vec!["repo", "clone", "--from", &url, "--to", text(to)];
        arguments.extend_from_slice(more);
        run(&arguments)
    };
    for (access, code) in [(&[][..], 2), (&["--token", "guessed"], 3)] {
        let refused = clone(&staging, access);
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
        assert!(!staging.exists());
    }
    for (headers, status) in [
        (vec![], 401),
        (vec![("X-Tympan-Replication-Key", "guessed".to_owned())], 403),
        (vec![("Authorization", basic("admin", "guessed"))], 401),
    ] {
        for place in ["refs", "lease?holder=me", "blob/00/0"] {
            let place = format!("/bin/store/{place}");
            let answer = ask(author.address, "GET", &place, &headers, b"").unwrap();
            assert_eq!(answer.status, status, "{place} {headers:?}: {}", answer.text());
        }
    }
    let token = run_ok(&["user", "token", "admin", "--home", text(&origin)]);
    let before = bytes_below(&origin.join("store"));
    let done = clone(&staging, &["--token", token.trim()]);
    assert!(done.status.success(), "{done:?}");
    let written = bytes_below(&staging) + bytes_below(&origin.join("store")) - before;
    assert!(written <= 1_024, "{written} bytes for a clone");

    let staged = Author::start(&staging, &origin);
    staged.post("/pages/page-3", "./value=300");
    author.post("/pages/page-4", "./value=400");
    assert_eq!((staged.value("/pages/page-3"), staged.value("/pages/page-4")), (300, 4));
    assert!(staged.get("/uploads/large.bin") == bytes(6, 300_000));
    assert!(staged.get("/uploads/small.bin") == bytes(7, 3_000));
    assert!(staged.running.stop());
    check_is_clean(&staging);

    let shared = origin.join("replication.key");
    let refused =
        run(&["repo", "clone", "--from", &url, "--to", text(&standby), "--key", text(&shared)]);
    assert!(!refused.status.success(), "what publishers know opens nothing: {refused:?}");
    let key = dir.path().join("standby.key");
    let paired = ["pair", "standby", "--home", text(&origin), "--purpose", "clone", "--out"];
    run_ok(&[&paired[..], &[text(&key)]].concat());
    let follow =
        ["repo", "clone", "--from", &url, "--to", text(&standby), "--key", text(&key), "--follow"];
    let follower = Running::start(&follow);
    author.post("/pages/page-5", "./value=500");
    author.upload("late.bin", &bytes(8, 50_000));
    let done_at = now();
    wait_until("the standby says that it has everything", || {
        status(&standby).is_some_and(|status| {
            status["complete_until"].as_f64().is_some_and(|until| until > done_at)
        })
    });
    author.running.kill();
    // It says that it cannot see any further.
    wait_until("the fault is told", || {
        status(&standby).is_some_and(|status| status["fault"].is_string())
    });
    assert!(follower.stop());
    run_ok(&["repo", "promote", "--home", text(&standby)]);
    let promoted = Author::start(&standby, &origin);
    assert_eq!((promoted.value("/pages/page-5"), promoted.value("/pages/page-4")), (500, 400));
    assert!(promoted.get("/uploads/large.bin") == bytes(6, 300_000));
    assert!(promoted.get("/uploads/late.bin") == bytes(8, 50_000));
    assert!(promoted.running.stop());
    check_is_clean(&standby);
}
