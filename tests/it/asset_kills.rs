//! Kills of all that works on assets: the server, the process that takes its work on assets, and the processes that draw.
//! In the end each asset has all its renditions, byte for byte those of a run in which nobody was killed.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tympan_testkit::condition_wait::wait_for;
use tympan_testkit::postgres_server::PostgresServer;

use crate::pictures::{bitmap, upload};
use crate::program::{Running, ask, basic, free_address, post};

/// Generous: what draws stands behind everything else on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
const FOLDER: &str = "/content/dam";
/// The rendition by which it is counted how often an asset got its own.
const FIRST: &str = "cq5dam.thumbnail.48.48.png";
/// Pictures that differ; assets beyond repeat them.
const PICTURES: u32 = 6;

pub(crate) fn kills(short: u64) -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(short)
}

/// A small generator: the same seeds give the same points.
pub(crate) fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// One process of the program that can be started again.
pub(crate) struct Instance {
    pub(crate) home: PathBuf,
    more: Vec<String>,
    running: Option<Running>,
    pub(crate) address: SocketAddr,
}

/// Starts two authors and a process for assets on one database and one folder of blobs.
pub(crate) fn three_on_one_database(dir: &Path, schema: &str) -> [Instance; 3] {
    let url = PostgresServer::shared_server().url();
    // Steps of workflows ask the test's own origin.
    let outgoing = "[outgoing]\nhosts = [\"127.0.0.1\"]\n";
    let homes = ["first", "second", "assets"].map(|name| dir.join(name));
    let blobs = homes[0].join("blobs");
    for home in &homes {
        std::fs::create_dir_all(home).unwrap();
        let settings =
            format!("[database]\nschema = \"{schema}\"\n[jobs]\nlease = \"2s\"\n{outgoing}");
        std::fs::write(home.join("tympan.toml"), settings).unwrap();
        match home.join("blobs") {
            own if own == blobs => std::fs::create_dir(own).unwrap(),
            link => std::os::unix::fs::symlink(&blobs, link).unwrap(),
        }
    }
    let [first, second, assets] = &homes;
    let database = ["--database", url.as_str()];
    [
        Instance::start(first, &database),
        Instance::start(second, &database),
        Instance::start(assets, &[&database[..], &["--role", "assets"]].concat()),
    ]
}

impl Instance {
    fn start(home: &Path, more: &[&str]) -> Self {
        let more = more.iter().map(|&argument| argument.to_owned()).collect();
        let (home, address) = (home.to_owned(), free_address());
        let mut instance = Self { home, more, running: None, address };
        instance.restart();
        instance
    }

    pub(crate) fn restart(&mut self) {
        self.address = free_address();
        let (home, address) = (self.home.to_str().unwrap(), self.address.to_string());
        let mut arguments = vec!["author", "--home", home, "--listen", &address];
        arguments.extend(self.more.iter().map(String::as_str));
        self.running = Some(Running::start(&arguments));
    }

    pub(crate) fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }

    /// Kills one of the processes that draw for it; tells whether there was one.
    fn kill_a_painter(&self, choice: u64) -> bool {
        let Some(running) = &self.running else { return false };
        let children = children_of(running.pid());
        let Some(count) = u64::try_from(children.len()).ok().filter(|count| *count > 0) else {
            return false;
        };
        let pid = children[usize::try_from(choice % count).unwrap()];
        // It may have ended meanwhile.
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).is_ok()
    }
}

fn children_of(parent: u32) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let child = |entry: std::fs::DirEntry| -> Option<i32> {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the name, which may hold anything: the state, then the parent.
        let of: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (of == parent).then_some(pid)
    };
    processes.filter_map(child).collect()
}

/// The processes that share a repository; the first ones, so many as there are authors, receive the uploads in turn.
struct Farm {
    instances: Vec<Instance>,
    authors: usize,
    password: String,
}

impl Farm {
    fn new(instances: Vec<Instance>, authors: usize) -> Self {
        let password = std::fs::read_to_string(instances[0].home.join("initial-password"));
        let farm = Self { password: password.unwrap().trim().to_owned(), instances, authors };
        for path in ["/content", FOLDER] {
            let form = "jcr:primaryType=sling:Folder";
            let made = post(farm.author(), &farm.password, path, form);
            assert!((200..300).contains(&made.status), "{path}: {}", made.text());
        }
        farm
    }

    fn author(&self) -> SocketAddr {
        self.instances[0].address
    }

    fn get(&self, address: SocketAddr, path: &str) -> Option<Vec<u8>> {
        let headers = [("Authorization", basic("admin", &self.password))];
        let answer = ask(address, "GET", path, &headers, b"").ok()?;
        (answer.status == 200).then_some(answer.body)
    }

    fn json(&self, path: &str) -> Value {
        let body = self.get(self.author(), path).unwrap_or_else(|| panic!("{path} is not there"));
        serde_json::from_slice(&body).unwrap()
    }

    fn upload(&self, name: &str, picture: u32) {
        let bytes = bitmap(260 + 20 * picture, 200, picture);
        let author = self.instances[usize::try_from(picture).unwrap() % self.authors].address;
        let answer = upload(author, &self.password, FOLDER, (name, &bytes)).unwrap();
        assert!((200..300).contains(&answer.status), "{}", answer.text());
    }

    /// Counts the assets that the living processes have finished since they began.
    fn finished(&self) -> u64 {
        let of = |instance: &Instance| -> Option<u64> {
            let text = self.get(instance.address, "/metrics")?;
            let text = String::from_utf8(text).ok()?;
            let line = text.lines().find(|line| line.starts_with("tympan_assets_processed_total{"));
            line?.rsplit(' ').next()?.parse().ok()
        };
        self.instances.iter().filter_map(of).sum()
    }

    /// Counts, for each asset, the revisions since a cursor that gave it its first rendition.
    fn appearances(&self, cursor: &str) -> BTreeMap<String, u32> {
        let (mut found, mut cursor) = (BTreeMap::new(), cursor.to_owned());
        loop {
            let asked =
                format!("/api/v1/changes?since={cursor}&kind=added&path={FOLDER}/**/{FIRST}");
            let page = self.json(&asked);
            let changes = page["revisions"].as_array().unwrap().iter();
            for change in changes.flat_map(|revision| revision["changes"].as_array().unwrap()) {
                *found.entry(change["path"].as_str().unwrap().to_owned()).or_default() += 1;
            }
            page["next"].as_str().unwrap().clone_into(&mut cursor);
            if page["isEnd"] == true {
                return found;
            }
        }
    }

    /// Returns the jobs that are stored.
    fn jobs(&self) -> Vec<Value> {
        let jobs = self.json("/api/v1/jobs?topic=dam/update_asset&limit=1000");
        jobs["jobs"].as_array().unwrap().clone()
    }

    /// Waits until each of these assets is finished, and returns its renditions by name.
    fn settle(&self, names: &[String]) -> Vec<BTreeMap<String, Vec<u8>>> {
        let mut all = Vec::new();
        for name in names {
            let content = format!("{FOLDER}/{name}/jcr:content");
            wait_for(|| {
                let state = self.json(&format!("{content}.json"));
                match state["dam:assetState"].as_str() {
                    Some("processed") => return Ok(()),
                    None => {}
                    Some(_) => panic!("{name}: {state}"),
                }
                let jobs = self.jobs();
                let lost = jobs.iter().find(|job| !job["ended"].is_null());
                assert!(lost.is_none(), "a job was given up: {lost:?}");
                Err(format!("{name} is not finished: {jobs:?}"))
            });
            let renditions = self.json(&format!("{content}/renditions.1.json"));
            let names = renditions.as_object().unwrap().keys();
            let names = names.filter(|name| !name.contains(':') && *name != "original");
            let bytes = |name: &String| {
                let bytes = self.get(self.author(), &format!("{content}/renditions/{name}"));
                (name.clone(), bytes.unwrap_or_else(|| panic!("{content}: {name}")))
            };
            all.push(names.map(bytes).collect());
        }
        all
    }
}

/// Returns the renditions of each picture, of a run in which nobody was killed.
fn quiet_run(dir: &Path) -> Vec<BTreeMap<String, Vec<u8>>> {
    let farm = Farm::new(vec![Instance::start(&dir.join("quiet"), &[])], 1);
    let names: Vec<String> = (0..PICTURES).map(|picture| format!("{picture}.bmp")).collect();
    for (picture, name) in (0..).zip(&names) {
        farm.upload(name, picture);
    }
    let renditions = farm.settle(&names);
    assert!(renditions.iter().all(|of_one| of_one.len() == 4), "{:?}", renditions[0].keys());
    renditions
}

/// Uploads and kills in turn; the seed chooses who is killed, and when.
fn torture(mut farm: Farm, quiet: &[BTreeMap<String, Vec<u8>>], kills: u64, mut seed: u64) {
    let mut names = Vec::new();
    let mut pictures = Vec::new();
    let mut painters = 0;
    let cursor = farm.json("/api/v1/changes?since=now")["next"].as_str().unwrap().to_owned();
    for _ in 0..kills {
        let before = farm.finished();
        for _ in 0..1 + next(&mut seed) % 3 {
            let number = u32::try_from(names.len()).unwrap();
            names.push(format!("a{number}.bmp"));
            pictures.push(number % PICTURES);
            farm.upload(names.last().unwrap(), number % PICTURES);
        }
        // The point is a number of assets that are finished and a moment more, so that it lies in the middle of work.
        let wanted = before + next(&mut seed) % 3;
        let begun = Instant::now();
        while farm.finished() < wanted && !farm.jobs().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "nothing is finished: {:?}", farm.jobs());
        }
        let moment = Instant::now() + Duration::from_micros(next(&mut seed) % 80_000);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let choice = next(&mut seed);
        let count = u64::try_from(farm.instances.len()).unwrap();
        let place = usize::try_from(choice / 2 % count).unwrap();
        let instance = &mut farm.instances[place];
        if choice.is_multiple_of(2) && instance.kill_a_painter(choice / 4) {
            painters += 1;
        } else {
            instance.kill();
            instance.restart();
        }
    }
    let found = farm.settle(&names);
    for ((name, picture), renditions) in names.iter().zip(&pictures).zip(&found) {
        let expected = &quiet[usize::try_from(*picture).unwrap()];
        let keys = |of: &BTreeMap<String, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(renditions), keys(expected), "{name}");
        assert!(renditions == expected, "{name} is not drawn as in the quiet run");
    }
    let appearances = farm.appearances(&cursor);
    assert_eq!(appearances.len(), names.len(), "{appearances:?}");
    assert!(appearances.values().all(|times| *times == 1), "{appearances:?}");
    let assets = names.len();
    eprintln!(
        "{kills} kills, {painters} of them of processes that draw: {assets} assets, all whole"
    );
}

#[test]
fn kills_of_the_server_and_of_rendition_processes_lose_no_asset() {
    let dir = tempfile::tempdir().unwrap();
    let quiet = quiet_run(dir.path());
    let farm = Farm::new(vec![Instance::start(&dir.path().join("author"), &[])], 1);
    torture(farm, &quiet, kills(6), 0x5eed_a55e);
}

#[test]
fn kills_of_a_process_for_assets_lose_no_asset() {
    let dir = tempfile::tempdir().unwrap();
    let quiet = quiet_run(dir.path());
    let (author, assets) = (dir.path().join("author"), dir.path().join("assets"));
    for home in [&author, &assets] {
        std::fs::create_dir_all(home).unwrap();
        let settings = "[database]\nschema = \"asset_kills\"\n[jobs]\nlease = \"2s\"\n";
        std::fs::write(home.join("tympan.toml"), settings).unwrap();
    }
    // Both have one folder of blobs.
    std::fs::create_dir_all(author.join("blobs")).unwrap();
    std::os::unix::fs::symlink(author.join("blobs"), assets.join("blobs")).unwrap();
    let url = PostgresServer::shared_server().url();
    let first = Instance::start(&author, &["--database", &url]);
    let second = Instance::start(&assets, &["--database", &url, "--role", "assets"]);
    torture(Farm::new(vec![first, second], 1), &quiet, kills(4), 0x5eed_0ff1);
}

#[test]
fn kills_of_two_authors_and_a_process_for_assets_lose_no_asset() {
    let dir = tempfile::tempdir().unwrap();
    let quiet = quiet_run(dir.path());
    let farm = Farm::new(three_on_one_database(dir.path(), "asset_farm").into(), 2);
    torture(farm, &quiet, kills(4), 0x5eed_0fa2);
}
