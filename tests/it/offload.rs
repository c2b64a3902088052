//! Two processes on one PostgreSQL: the one with `--role assets` takes what concerns assets, and the other leaves it alone
//! as long as that one lives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tympan_testkit::bucket_server::BucketServer;
use tympan_testkit::condition_wait::wait_for;
use tympan_testkit::postgres_server::PostgresServer;

use crate::pictures::{bitmap, upload};
use crate::program::{Running, ask, basic, free_address, post, run, run_ok};

const PATIENCE: Duration = Duration::from_secs(60);
const MODEL: &str = "/etc/workflow/models/dam/scale";
const TOPIC: &str =
    "com/adobe/granite/workflow/job/etc/workflow/models/dam/scale/jcr_content/model";

fn start(home: &Path, address: SocketAddr, more: &[&str]) -> Running {
    let (home, address) = (configured(home, ("offload", "10s"), ""), address.to_string());
    let url = PostgresServer::shared_server().url();
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
    wait_for(|| {
        let text = ask(address, "GET", &path, &headers, b"").unwrap().text();
        let workers: Vec<String> = text
            .split("\"worker\":\"")
            .skip(1)
            .filter_map(|rest| Some(rest.split('"').next()?.to_owned()))
            .collect();
        if workers.len() >= count { Ok(workers) } else { Err(text) }
    })
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

/// Returns the renditions of an asset, once it has all of them.
fn renditions_of(address: SocketAddr, password: &str, name: &str) -> BTreeMap<String, Vec<u8>> {
    let headers = [("Authorization", basic("admin", password))];
    let get = |path: &str| ask(address, "GET", path, &headers, b"").unwrap();
    let content = format!("/content/dam/{name}/jcr:content");
    wait_for(|| {
        let state: Value = serde_json::from_slice(&get(&format!("{content}.json")).body).unwrap();
        if state["dam:assetState"] == "processed" { Ok(()) } else { Err(state.to_string()) }
    });
    let listed = get(&format!("{content}/renditions.1.json"));
    let listed: Value = serde_json::from_slice(&listed.body).unwrap();
    let names = listed.as_object().unwrap().keys().filter(|name| !name.contains(':'));
    let bytes = |name: &String| {
        let answer = get(&format!("{content}/renditions/{name}"));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        (name.clone(), answer.body)
    };
    names.map(bytes).collect()
}

/// Counts the assets that a process has finished.
fn finished_by(address: SocketAddr, password: &str) -> u64 {
    let headers = [("Authorization", basic("admin", password))];
    let text = ask(address, "GET", "/metrics", &headers, b"").unwrap().text();
    let line = text.lines().find(|line| line.starts_with("tympan_assets_processed_total{"));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// They have nothing in common but the database and a bucket: what one stores, the other reads from there.
#[test]
fn an_assets_process_shares_blobs_in_a_bucket() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(bucket) = BucketServer::start_moto(target.parent().unwrap()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (url, settings) =
        (PostgresServer::shared_server().url(), bucket.client_settings(bucket.addr()));
    let variables: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let start = |name: &str, address: SocketAddr, more: &[&str]| {
        let home = configured(&dir.path().join(name), ("offload_bucket", "10s"), "");
        let (listen, blobs) = (address.to_string(), bucket.url("site"));
        let arguments = ["author", "--home", &home, "--listen", &listen, "--database", &url];
        let arguments = [&arguments[..], &["--blobs", &blobs], more].concat();
        Running::try_start_with(&variables, &arguments).unwrap()
    };
    let (address, assets_address) = (free_address(), free_address());
    let _author = start("author", address, &[]);
    let assets = start("assets", assets_address, &["--role", "assets"]);
    let password = std::fs::read_to_string(dir.path().join("author/initial-password")).unwrap();
    let password = password.trim();
    for path in ["/content", "/content/dam"] {
        let made = post(address, password, path, "jcr:primaryType=sling:Folder");
        assert!((200..300).contains(&made.status), "{path}: {}", made.text());
    }
    let headers = [("Authorization", basic("admin", password))];
    let begun = Instant::now();
    let queues = || ask(address, "GET", "/api/v1/jobs/queues", &headers, b"").unwrap().text();
    while !queues().contains("\"assets\"") {
        assert!(begun.elapsed() < PATIENCE, "the assets process does not say that it lives");
    }
    let picture = bitmap(1400, 1000, 7);
    let send = |name: &str| {
        let answer = upload(address, password, "/content/dam", (name, &picture)).unwrap();
        assert!((200..300).contains(&answer.status), "{}", answer.text());
        renditions_of(address, password, name)
    };
    let theirs = send("theirs.bmp");
    assert_eq!(theirs.len(), 5, "{:?}", theirs.keys());
    assert!(theirs["original"] == picture);
    let large = theirs.values().filter(|bytes| bytes.len() >= 16 * 1024).count();
    assert!(large >= 2, "one is drawn that is large enough for the bucket");
    assert_eq!(renditions_of(assets_address, password, "theirs.bmp"), theirs);
    assert_eq!((finished_by(address, password), finished_by(assets_address, password)), (0, 1));
    for name in ["author", "assets"] {
        assert!(!dir.path().join(name).join("blobs").exists(), "`{name}` keeps no blobs itself");
    }

    assets.kill();
    let own = send("own.bmp");
    assert!(own == theirs, "the author draws the same by itself");
    assert_eq!(finished_by(address, password), 1);
}

fn token(home: &Path) -> String {
    let url = PostgresServer::shared_server().url();
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
    let url = PostgresServer::shared_server().url();
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
    refused("forgotten", "is not the blob folder of an author: start the author first");
    assert!(!dir.path().join("forgotten/blobs").exists(), "a link can be made there");
    let other = dir.path().join("mistaken/blobs");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("folder.id"), "somebody else's").unwrap();
    refused("mistaken", "is not the blob storage of the author on this database");

    // One that shares them, but not the mounts: it works, and both say what is wrong.
    let assets_home = dir.path().join("assets");
    share_blobs(&author_home, &assets_home);
    let mounts = "[mounts]\n[[mounts.location]]\nurl = \"/srv/press\"\n";
    let home = configured(&assets_home, ("offload_blobs", "60s"), mounts);
    let assets_address = free_address();
    let listen = assets_address.to_string();
    let arguments = ["author", "--home", &home, "--listen", &listen, "--database", &url];
    let _assets = Running::start(&[&arguments[..], &["--role", "assets"]].concat());
    for (address, other) in [(address, "`assets-"), (assets_address, "`author-")] {
        wait_for(|| {
            let health = ask(address, "GET", "/health", &[], b"").unwrap().text();
            let told = format!("the process {other}");
            match health.contains(&told) && health.contains("has a different `[mounts]` section") {
                true => Ok(()),
                false => Err(health),
            }
        });
    }
}
