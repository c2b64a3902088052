//! Staging over production's data: not a byte of production changes, what was seen once is served while production is
//! down, and what is made on staging goes back.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, basic, free_address, post, run, run_ok};

/// A running author.
struct Author {
    running: Running,
    address: SocketAddr,
    password: String,
}

impl Author {
    /// Starts an author; the password is that of the home whose content it has.
    fn start(home: &Path, password_of: &Path, address: SocketAddr) -> Self {
        let running =
            Running::start(&["author", "--home", text(home), "--listen", &address.to_string()]);
        let password = std::fs::read_to_string(password_of.join("initial-password")).unwrap();
        Self { running, address, password: password.trim().to_owned() }
    }

    fn post(&self, path: &str, form: &str) {
        let answer = post(self.address, &self.password, path, form);
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }

    fn ask(&self, path: &str) -> (u16, Vec<u8>) {
        let headers = [("Authorization", basic("admin", &self.password))];
        let answer = ask(self.address, "GET", path, &headers, b"").unwrap();
        (answer.status, answer.body)
    }

    fn get(&self, path: &str) -> Vec<u8> {
        let (status, body) = self.ask(path);
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&body));
        body
    }

    fn upload(&self, folder: &str, name: &str, bytes: &[u8]) {
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
        let answer = ask(self.address, "POST", folder, &headers, &body).unwrap();
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    }

    /// Returns what `/health` says about the base.
    fn base_reason(&self) -> Option<String> {
        let answer = ask(self.address, "GET", "/health", &[], b"").unwrap();
        let health: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let checks = health["checks"].as_array().unwrap();
        let base = checks.iter().find(|check| check["name"] == "base").unwrap();
        base["reason"].as_str().map(str::to_owned)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Everything that can be told about the files below a folder, but when they were read.
type Listing = BTreeMap<String, (u64, u64, u32, i64, i64, i64, i64)>;

fn listing(folder: &Path) -> Listing {
    let mut all = Listing::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            waiting.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let (modified, modified_nanos, changed, changed_nanos) = times;
        let known =
            (meta.ino(), meta.len(), meta.mode(), modified, modified_nanos, changed, changed_nanos);
        all.insert(path.display().to_string(), known);
    }
    all
}

fn difference(before: &Listing, after: &Listing) -> Vec<String> {
    let is_new = |path: &&String| before.get(*path) != after.get(*path);
    before.keys().chain(after.keys()).filter(is_new).cloned().collect()
}

#[test]
fn staging_changes_nothing_in_production() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let leases = dir.path().join("leases");
    std::fs::create_dir(&leases).unwrap();
    let clone = ["repo", "clone", "--from", text(&production), "--to", text(&staging)];
    let clone = [&clone[..], &["--leases", text(&leases)]].concat();
    let author = Author::start(&production, &production, free_address());
    author.upload("/uploads", "large.bin", &bytes(1, 200_000));
    author.upload("/uploads", "small.bin", &bytes(2, 5_000));
    author.post("/pages/one", "./value=1");
    assert!(author.running.stop());
    // A folder that production pays no heed to would keep nothing.
    assert_eq!(run(&clone).status.code(), Some(2));
    let config = format!("[history]\nleases = [{:?}]\n", text(&leases));
    std::fs::write(production.join("tympan.toml"), config).unwrap();

    let before = listing(&production);
    run_ok(&clone);
    let staged = Author::start(&staging, &production, free_address());
    assert!(staged.get("/uploads/large.bin") == bytes(1, 200_000));
    assert!(staged.get("/uploads/small.bin") == bytes(2, 5_000));
    staged.post("/pages/one", "./value=2");
    staged.post("/pages/two", "./value=2");
    staged.upload("/uploads", "mine.bin", &bytes(3, 100_000));
    // The same bytes as production has.
    staged.upload("/uploads", "again.bin", &bytes(1, 200_000));
    assert_eq!(staged.base_reason(), None);
    assert!(staged.running.stop());
    run_ok(&["repo", "gc", "--home", text(&staging)]);
    run_ok(&["blobs", "gc", "--home", text(&staging)]);
    let checked = run_ok(&["blobs", "check", "--rehash", "--home", text(&staging)]);
    assert!(checked.trim_end().ends_with(": clean"), "{checked}");
    assert_eq!(difference(&before, &listing(&production)), Vec::<String>::new());
    run_ok(&["repo", "gc", "--home", text(&production)]);
    assert_eq!(std::fs::read_dir(&leases).unwrap().count(), 1);
    // Without the folder nobody knows what it keeps.
    std::fs::rename(&leases, dir.path().join("unmounted")).unwrap();
    let refused = run(&["repo", "gc", "--home", text(&production)]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn staging_serves_what_it_knows_while_production_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let address = free_address();
    let author = Author::start(&production, &production, address);
    author.upload("/uploads", "seen.bin", &bytes(1, 100_000));
    author.upload("/uploads", "unseen.bin", &bytes(2, 100_000));
    author.post("/pages/seen", "./value=1");
    let key = dir.path().join("staging.key");
    let paired = ["pair", "staging", "--home", text(&production), "--purpose", "clone", "--out"];
    run_ok(&[&paired[..], &[text(&key)]].concat());
    let url = format!("http://{address}");
    run_ok(&["repo", "clone", "--from", &url, "--key", text(&key), "--to", text(&staging)]);
    let staged_at = free_address();
    let staged = Author::start(&staging, &production, staged_at);
    assert_eq!(staged.base_reason(), None);
    staged.post("/pages/own", "./value=2");
    staged.upload("/uploads", "own.bin", &bytes(3, 50_000));
    let seen: Vec<(&str, Vec<u8>)> = ["/pages/seen.json", "/pages/own.json", "/uploads/seen.bin"]
        .into_iter()
        .map(|path| (path, staged.get(path)))
        .collect();
    assert!(author.running.stop());

    let check = |staged: &Author| {
        wait_until("the outage is found out", || {
            staged.ask("/uploads/unseen.bin").0 == 503 && staged.base_reason().is_some()
        });
        let (_, said) = staged.ask("/uploads/unseen.bin");
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains(&url), "it names production: {said}");
        assert!(staged.base_reason().unwrap().contains(&url));
        for (path, before) in &seen {
            assert!(staged.get(path) == *before, "{path}");
        }
        assert!(staged.get("/uploads/own.bin") == bytes(3, 50_000));
    };
    check(&staged);
    // A restart meanwhile changes nothing.
    assert!(staged.running.stop());
    let staged = Author::start(&staging, &production, staged_at);
    check(&staged);

    // Production is back, and staging finds that out by itself.
    let author = Author::start(&production, &production, address);
    wait_until("production is found again", || staged.ask("/uploads/unseen.bin").0 == 200);
    assert!(staged.get("/uploads/unseen.bin") == bytes(2, 100_000));
    wait_until("the lease is renewed", || staged.base_reason().is_none());
    staged.post("/pages/seen", "./value=3");
    assert!(staged.running.stop() && author.running.stop());
}

#[test]
fn what_is_made_on_staging_goes_to_production() {
    let dir = tempfile::tempdir().unwrap();
    let (production, staging) = (dir.path().join("production"), dir.path().join("staging"));
    let author = Author::start(&production, &production, free_address());
    author.upload("/uploads", "old.bin", &bytes(1, 60_000));
    assert!(author.running.stop());
    run_ok(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    let staged = Author::start(&staging, &production, free_address());
    for seed in 2..5 {
        staged.upload("/uploads/new", &format!("{seed}.bin"), &bytes(seed, 60_000));
    }
    staged.upload("/uploads/new", "copy.bin", &bytes(1, 60_000));
    assert!(staged.running.stop());
    let (filter, package) = (dir.path().join("filter.xml"), dir.path().join("new.zip"));
    let xml = "<workspaceFilter version=\"1.0\"><filter root=\"/uploads/new\"/></workspaceFilter>";
    std::fs::write(&filter, xml).unwrap();
    run_ok(&[
        "package",
        "build",
        "-f",
        text(&filter),
        "-o",
        text(&package),
        "--home",
        text(&staging),
    ]);

    let promote =
        ["blobs", "promote", "/uploads/new", "--to", text(&production), "--json", "--home"];
    let done = run_ok(&[&promote[..], &[text(&staging)]].concat());
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    assert_eq!((&done["blobs"], &done["present"]), (&3.into(), &1.into()), "{done}");
    let is_blob = |path: &&String| path.rsplit('/').next().is_some_and(|name| name.len() == 64);
    let blobs = || listing(&production.join("blobs")).keys().filter(is_blob).count();
    let promoted = blobs();
    run_ok(&["package", "install", text(&package), "--home", text(&production)]);
    assert_eq!(blobs(), promoted, "the package brought no blob that was not there");
    let author = Author::start(&production, &production, free_address());
    for seed in 2..5 {
        assert!(author.get(&format!("/uploads/new/{seed}.bin")) == bytes(seed, 60_000));
    }
    assert!(author.running.stop());
    let checked = run_ok(&["blobs", "check", "--rehash", "--home", text(&production)]);
    assert!(checked.trim_end().ends_with(": clean"), "{checked}");

    // A blob that goes missing is named with the node that shows it.
    let mut gone = listing(&production.join("blobs")).into_keys().filter(|path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 60_000)
    });
    let gone = gone.find(|path| std::fs::read(path).unwrap() == bytes(3, 60_000)).unwrap();
    std::fs::remove_file(gone).unwrap();
    let checked = run(&["blobs", "check", "--home", text(&production)]);
    assert_eq!(checked.status.code(), Some(1));
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("/uploads/new/3.bin") && said.contains("is missing"), "{said}");
}
