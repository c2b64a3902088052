//! Backups of a repository through the program: beside its running author, by its URL, by schedule, and back again.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Demo, Running, ask, basic, free_address, get, post, run_ok, tympan};

const PASSWORD: &str = "correct horse";
/// A page of the sample site.
const PAGE: &str = "/content/wayfare/en";

/// A vault, and places to restore to.
pub(crate) struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(bench.path("secret"), PASSWORD).unwrap();
        bench.ok("init", &[]);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run(&self, word: &str, arguments: &[&str]) -> Output {
        let mut command = tympan();
        command.args(["backup", word, "-r"]).arg(self.path("vault"));
        command.arg("--password-file").arg(self.path("secret")).arg("--json").args(arguments);
        command.env("XDG_CACHE_HOME", self.path("cache")).env("XDG_STATE_HOME", self.path("state"));
        command.output().unwrap()
    }

    /// Runs a command that must end well, and returns the objects that it printed.
    pub(crate) fn ok(&self, word: &str, arguments: &[&str]) -> Vec<Value> {
        let output = self.run(word, arguments);
        assert!(output.status.success(), "{word} {arguments:?}: {output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        let said = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        // How far it was is told or not, by how fast the machine is.
        said.filter(|one| one["message_type"] != "status").collect()
    }

    pub(crate) fn save(&self, source: &[&str]) -> Value {
        self.ok("save", source).pop().unwrap()
    }

    /// Returns the roots that were saved, oldest first.
    fn roots(&self) -> Vec<String> {
        let root = |snapshot: &Value| {
            let tags = snapshot["tags"].as_array().unwrap();
            let root = tags.iter().find_map(|tag| tag.as_str().unwrap().strip_prefix("root:"));
            root.unwrap().to_owned()
        };
        self.ok("list", &[]).iter().map(root).collect()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_running_author_is_saved_and_comes_back() {
    let bench = Bench::new();
    let demo = Demo::start(&bench.path("demo"));
    let source = format!("repo:{}", demo.home.join("author").display());
    let first = bench.save(&[&source]);
    let edit = |number: usize| {
        let path = format!("{PAGE}/jcr:content");
        let answer = demo.post(&path, &format!("edited{number}=backup+{number}"));
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.text());
    };
    (0..10).for_each(edit);
    let second = bench.save(&[&source]);
    let count = |saved: &Value, name: &str| saved[name].as_u64().unwrap();
    for name in ["data_blobs", "data_added_packed"] {
        let (full, some) = (count(&first, name), count(&second, name));
        assert!(some * 4 < full, "{name}: {some} of {full}");
    }

    // Once more by its URL, as another machine does: the same root, and a path of its own.
    let url = format!("http://backup@{}/", demo.author);
    let refused = bench.run("save", &[&url]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let shared = demo.home.join("replication.key");
    let refused = bench.run("save", &["--key", text(&shared), &url]);
    assert_eq!(refused.status.code(), Some(1), "what publishers know opens nothing: {refused:?}");
    let key = bench.path("backup.key");
    let paired = ["pair", "backup", "--home", text(&demo.home), "--purpose", "clone", "--out"];
    run_ok(&[&paired[..], &[text(&key)]].concat());
    let by_url = bench.save(&["--key", text(&key), &url]);
    let roots = bench.roots();
    assert_eq!(roots.len(), 3);
    assert_eq!(roots[1], roots[2]);
    let paths = bench.ok("list", &[])[2]["paths"].clone();
    assert_eq!(paths[0], format!("/tympan/http/{}", demo.author));

    let kinds: Vec<String> =
        bench.ok("runs", &[]).iter().map(|run| run["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["full", "incremental", "failed", "failed", "full"]);

    // What was saved by its URL becomes a home of the same root.
    let copy = bench.path("copy");
    let restored = bench.ok("restore", &["latest", "--home", text(&copy)]);
    assert_eq!(restored[0]["root"], roots[2].as_str());
    run_ok(&["repo", "check", "--home", text(&copy)]);

    // And a folder that people read, which becomes a home, too.
    let out = bench.path("out");
    bench.ok("restore", &["latest", "--to", text(&out)]);
    let page = fs::read_to_string(out.join(format!("content{PAGE}/.content.xml"))).unwrap();
    assert!(page.contains("edited9=\"backup 9\""), "{page}");
    assert!(files_below(&out.join("content/content/dam")).iter().any(|file| is_picture(file)));
    let again = bench.path("again");
    let unpacked = ["--unpacked", text(&out), "--home", text(&again)];
    assert_eq!(bench.ok("restore", &unpacked)[0]["root"], roots[2].as_str());
    assert!(bench.ok("check", &["--read-data"])[0]["faults"].as_array().unwrap().is_empty());

    // Snapshots tell whether their repositories are still as they were; of an instance, nobody hears that without its key.
    edit(10);
    let (first, by_url) = (first["snapshot_id"].as_str(), by_url["snapshot_id"].as_str());
    for words in [&[first.unwrap()][..], &["--key", text(&key), by_url.unwrap()]] {
        let differs = bench.run("verify", words);
        let told = String::from_utf8(differs.stdout).unwrap();
        assert!(differs.status.code() == Some(1) && told.contains("the root is"), "{told}");
    }
    assert_eq!(bench.run("verify", &[by_url.unwrap()]).status.code(), Some(2));
    let copied = format!("repo:{}", text(&copy));
    let saved = bench.save(&[&copied]);
    bench.ok("verify", &[saved["snapshot_id"].as_str().unwrap()]);

    // Nothing is to be saved of it, and what a first save took stands in the log of runs.
    let estimate = bench.ok("estimate", &[&copied]).pop().unwrap();
    assert_eq!(estimate["next"]["data_added_packed"], 0, "{estimate}");
    let run = bench.ok("runs", &[]).pop().unwrap();
    let [start, end] = ["start", "end"]
        .map(|name| run[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap());
    let took = end.duration_since(start).as_millis();
    assert_eq!(estimate["full"]["elapsed_ms"].as_u64().map(i128::from), Some(took), "{estimate}");
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// Tells whether a file is what it is called.
fn is_picture(file: &Path) -> bool {
    let bytes = fs::read(file).unwrap();
    match file.extension().and_then(|end| end.to_str()) {
        Some("jpg" | "jpeg") => bytes.starts_with(&[0xff, 0xd8]),
        Some("png") => bytes.starts_with(b"\x89PNG"),
        Some("svg") => bytes.windows(4).any(|some| some == b"<svg"),
        _ => false,
    }
}

#[test]
fn an_author_saves_itself_by_schedule() {
    let bench = Bench::new();
    let home = bench.path("home");
    fs::create_dir_all(&home).unwrap();
    fs::create_dir_all(bench.path("beside")).unwrap();
    fs::write(bench.path("beside/note"), "kept").unwrap();
    let config = format!(
        "[backup]\nvault = {:?}\npassword_file = {:?}\nschedule = \"every 1s\"\nfolders = [{:?}]\nkeep = \"2\"\n",
        bench.path("vault"),
        bench.path("secret"),
        // With a slash at its end, as a shell completes it.
        bench.path("beside/")
    );
    fs::write(home.join("tympan.toml"), config).unwrap();
    fs::rename(bench.path("vault"), bench.path("away")).unwrap();
    let address = free_address();
    let author =
        Running::start(&["author", "--home", text(&home), "--listen", &address.to_string()]);
    let password = fs::read_to_string(home.join("initial-password")).unwrap();
    let runs = |query: &str| {
        let headers = [("Authorization", basic("admin", password.trim()))];
        let path = format!("/api/v1/backup/runs{query}");
        let answer = ask(address, "GET", &path, &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice::<Value>(&answer.body).unwrap()
    };
    // A run that does not get as far as the vault is one, too.
    let has_failed = || {
        let failed = &runs("?kind=failed")["runs"][0];
        failed["error"].is_string() && failed["snapshot"].is_null()
    };
    wait_until("a failure is told", has_failed);
    fs::rename(bench.path("away"), bench.path("vault")).unwrap();
    let is_healthy = || {
        let headers = [("Authorization", basic("admin", password.trim()))];
        let health = ask(address, "GET", "/health", &headers, b"").unwrap();
        let health: Value = serde_json::from_slice(&health.body).unwrap();
        let checks = health["checks"].as_array().unwrap().clone();
        checks.iter().any(|check| check["name"] == "backup" && check["ok"] == true)
    };
    wait_until("a save ends well", is_healthy);
    let metrics = get(address, "/metrics");
    let line = "tympan_backup_failing{role=\"author\"} 0";
    assert!(metrics.status != 200 || metrics.text().contains(line), "{}", metrics.text());

    // An edit is in the vault soon, without anybody asking for it.
    let answer = post(address, password.trim(), "/content/backed", "title=up");
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    let find = |name: &str| bench.run("find", &[name]).status.success();
    wait_until("the edit is saved", || find("backed"));
    assert!(find("note"));
    assert_a_page_is_restored(address, password.trim(), &find);
    // Each turn saves the folder, whether it changed or not.
    let turns = || {
        let log = fs::read_to_string(home.join("logs/backup.jsonl")).unwrap_or_default();
        log.lines().filter(|line| line.contains(text(&bench.path("beside")))).count()
    };
    wait_until("there are turns", || turns() >= 6);
    assert_runs_are_told(&runs);
    let answer = get(address, "/api/v1/backup/runs");
    assert!(matches!(answer.status, 401 | 403), "{}", answer.text());
    drop(author);
    let list = bench.ok("list", &[]);
    let repository =
        |snapshot: &&Value| snapshot["paths"][0].as_str().unwrap().starts_with("/tympan");
    let kept = list.iter().filter(repository).count();
    assert!(kept <= 3, "{kept} snapshots are kept");
    let kept = list.len() - kept;
    assert!(kept <= 3, "{kept} snapshots of the folder are kept");
    assert!(home.join("logs/backup.jsonl").is_file());
}

/// A page that the vault has is shown there, and gets its saved content.
fn assert_a_page_is_restored(address: SocketAddr, password: &str, find: &dyn Fn(&str) -> bool) {
    let form = "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent&./jcr:content/jcr:title=Kept";
    let answer = post(address, password, "/content/kept_page", form);
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
    wait_until("the page is saved", || find("kept_page"));
    let headers = [("Authorization", basic("admin", password))];
    let view = |path: &str| {
        let path = format!("/api/v1/operations/backup/{path}");
        ask(address, "GET", &path, &headers, b"").unwrap()
    };
    // Old states are removed while this looks at one.
    wait_until("the page is restored", || {
        let states: Value = serde_json::from_slice(&view("states").body).unwrap_or_default();
        let Some(state) = states["states"][0]["id"].as_str() else { return false };
        let names = view(&format!("pages?state={state}&path=/content"));
        let form = format!("state={state}&path=/content/kept_page");
        let restored = post(address, password, "/api/v1/operations/backup/restore", &form);
        names.text().contains("kept_page") && restored.status == 200
    });
    let content =
        ask(address, "GET", "/content/kept_page/jcr:content.json", &headers, b"").unwrap();
    let content: Value = serde_json::from_slice(&content.body).unwrap();
    assert_eq!(content["jcr:title"], "Kept");
    assert_eq!(content["cq:lastModifiedBy"], "admin");
}

/// Several turns of a repository and a folder have run.
fn assert_runs_are_told(runs: &dyn Fn(&str) -> Value) {
    let some = runs("?limit=3");
    assert_eq!(some["runs"].as_array().unwrap().len(), 3);
    assert_eq!(some["more"], true);
    let full = runs("?kind=full");
    let full = full["runs"].as_array().unwrap();
    assert_eq!(full.len(), 2, "the first of each: {full:?}");
    for run in full {
        assert!(run["start"].as_str().unwrap() <= run["end"].as_str().unwrap(), "{run}");
        assert!(run["bytes"].as_u64().unwrap() > 0 && run["storedBytes"].as_u64().unwrap() > 0);
        assert!(run["snapshot"].is_string() && run["error"].is_null(), "{run}");
    }
    let all = runs("?limit=10000");
    let starts: Vec<&str> =
        all["runs"].as_array().unwrap().iter().map(|run| run["start"].as_str().unwrap()).collect();
    assert!(starts.len() >= 8 && starts.is_sorted_by(|one, next| one >= next), "{starts:?}");
    let last = starts[starts.len() / 2];
    let later = runs(&format!("?limit=10000&since={last}"));
    let later = later["runs"].as_array().unwrap();
    assert!(!later.is_empty() && later.iter().all(|run| run["start"].as_str().unwrap() >= last));
    assert!(later.len() < runs("?limit=10000")["runs"].as_array().unwrap().len());
}
