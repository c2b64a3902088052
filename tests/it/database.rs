//! Several authors on one PostgreSQL: what one saves, the others show; what is acknowledged stays.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::postgres_server::PostgresServer;

use crate::program::{Running, basic, free_address, post, run, run_ok, tympan};

/// A home with its section `[database]`.
fn configure(home: &Path, settings: &str) {
    std::fs::create_dir_all(home).unwrap();
    let schema = "program";
    std::fs::write(
        home.join("tympan.toml"),
        format!("[database]\nschema = \"{schema}\"\n{settings}\n"),
    )
    .unwrap();
}

fn start(home: &Path, url: &str, address: SocketAddr) -> Running {
    let (home, address) = (home.to_str().unwrap(), address.to_string());
    Running::start(&["author", "--home", home, "--listen", &address, "--database", url])
}

fn value_at(address: SocketAddr, password: &str, path: &str) -> Option<String> {
    let headers = [("Authorization", basic("admin", password))];
    let answer = crate::program::ask(address, "GET", path, &headers, b"").ok()?;
    let text = answer.text();
    Some(text.split("\"value\":\"").nth(1)?.split('"').next()?.to_owned())
}

/// Posts the numbers from 1 to a node until it is told to stop; says which are acknowledged.
fn count_up(
    address: SocketAddr,
    password: &str,
    path: &str,
    done: impl Fn(u64),
    is_over: &AtomicBool,
) -> Result<(), String> {
    let headers = [
        ("Authorization", basic("admin", password)),
        ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
    ];
    for n in 1.. {
        if is_over.load(Ordering::SeqCst) {
            break;
        }
        let form = format!("./value={n}");
        let answer = crate::program::ask(address, "POST", path, &headers, form.as_bytes());
        match answer {
            Ok(answer) if matches!(answer.status, 200 | 201) => done(n),
            outcome => return Err(format!("{outcome:?}")),
        }
    }
    Ok(())
}

#[test]
fn two_authors_share_a_repository_and_one_is_killed() {
    let server = PostgresServer::start(&["max_connections=60"]);
    let url = server.url();
    let dir = tempfile::tempdir().unwrap();
    let homes = ["one", "two"].map(|name| dir.path().join(name));
    homes.iter().for_each(|home| configure(home, "max_connections = 8"));
    let addresses = [free_address(), free_address()];
    let one = start(&homes[0], &url, addresses[0]);
    let two = start(&homes[1], &url, addresses[1]);
    let password = std::fs::read_to_string(homes[0].join("initial-password")).unwrap();
    let password = password.trim();
    assert!(!homes[1].join("initial-password").exists(), "the users are shared");
    assert_eq!(post(addresses[0], password, "/shared", "./value=first").status, 201);
    wait_until("the other shows it", || {
        value_at(addresses[1], password, "/shared.json").as_deref() == Some("first")
    });
    // Writers at both; each has a node of its own, and counts up.
    const WRITERS: usize = 8;
    let acknowledged: Mutex<Vec<[u64; 2]>> = Mutex::new(vec![[0; 2]; WRITERS]);
    let is_over = AtomicBool::new(false);
    let killed = AtomicBool::new(false);
    let total = || acknowledged.lock().unwrap().iter().flatten().sum::<u64>();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            for (side, address) in addresses.into_iter().enumerate() {
                let (acknowledged, is_over, killed) = (&acknowledged, &is_over, &killed);
                scope.spawn(move || {
                    let path = format!("/writer-{side}-{writer}");
                    let done = |n| acknowledged.lock().unwrap()[writer][side] = n;
                    let outcome = count_up(address, password, &path, done, is_over);
                    let is_expected = killed.load(Ordering::SeqCst) && side == 1;
                    assert!(outcome.is_ok() || is_expected, "{outcome:?}");
                });
            }
        }
        wait_until("both sides write", || {
            let acknowledged = acknowledged.lock().unwrap();
            acknowledged.iter().flatten().all(|count| *count >= 2)
        });
        killed.store(true, Ordering::SeqCst);
        two.kill();
        let before = total();
        wait_until("the other goes on", || total() > before + 16);
        is_over.store(true, Ordering::SeqCst);
    });
    for (writer, counts) in acknowledged.into_inner().unwrap().into_iter().enumerate() {
        for (side, count) in counts.into_iter().enumerate() {
            let path = format!("/writer-{side}-{writer}.json");
            let stored: u64 = value_at(addresses[0], password, &path).unwrap().parse().unwrap();
            assert!(
                (count..=count + 1).contains(&stored),
                "{path}: {count} acknowledged, {stored}"
            );
        }
    }
    // The dead one's connections are free at once, and its home starts again.
    let two = start(&homes[1], &url, addresses[1]);
    assert_eq!(value_at(addresses[1], password, "/shared.json").as_deref(), Some("first"));
    assert!(one.stop() && two.stop());
    // Offline commands work on the same repository.
    let home = homes[0].to_str().unwrap();
    let log = run_ok(&["repo", "log", "--home", home, "--database", &url]);
    assert!(log.lines().count() > 10, "{log}");
    run_ok(&["repo", "gc", "--home", home, "--database", &url]);
    // Without the URL, no empty repository begins beside it.
    let output = run(&["repo", "log", "--home", home]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("is stored in a database") && error.contains("TYMPAN_DATABASE"),
        "{error}"
    );
}

#[test]
fn a_pool_that_is_used_up_answers_503_and_recovers() {
    let server = PostgresServer::start(&["max_connections=30"]);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    configure(&home, "max_connections = 1\nwait = \"300ms\"");
    let address = free_address();
    let running = start(&home, &server.url(), address);
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let password = password.trim();
    assert_eq!(post(address, password, "/page", "./value=0").status, 201);
    // Another client keeps the ref's row to itself.
    let mut psql = Command::new("psql")
        .args(["--no-psqlrc", "--quiet"])
        .arg(server.url())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = psql.stdin.take().unwrap();
    writeln!(input, "begin; select name from program.ref for update;\n\\echo locked").unwrap();
    let output = BufReader::new(psql.stdout.take().unwrap());
    assert!(output.lines().map_while(Result::ok).any(|line| line == "locked"));
    let refused = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..6 {
            let refused = &refused;
            scope.spawn(move || {
                let answer = post(address, password, &format!("/page-{writer}"), "./value=1");
                if answer.status == 503 {
                    assert!(answer.header("retry-after").is_some(), "{}", answer.head);
                    assert!(answer.text().contains("try again"), "{}", answer.text());
                    refused.store(true, Ordering::SeqCst);
                }
            });
        }
        wait_until("one is refused", || refused.load(Ordering::SeqCst));
        writeln!(input, "rollback;").unwrap();
    });
    wait_until("it recovers", || post(address, password, "/after", "./value=1").status < 300);
    let headers = [("Authorization", basic("admin", password))];
    let metrics = crate::program::ask(address, "GET", "/metrics", &headers, b"").unwrap().text();
    let pool = |what: &str| -> f64 {
        let begin = format!("tympan_pool_{what}{{role=\"author\",pool=\"store\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok());
        value.unwrap_or_else(|| panic!("{what}: {metrics}"))
    };
    assert!(pool("limit") >= 1.0 && pool("in_use") <= pool("limit"), "{metrics}");
    let line =
        metrics.lines().find(|line| line.starts_with("tympan_overload_rejections_total")).unwrap();
    assert!(!line.ends_with(" 0"), "{line}");
    drop(input);
    psql.wait().unwrap();
    assert!(running.stop());
}

#[test]
fn a_home_with_packs_takes_no_database() {
    let server = PostgresServer::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let address = free_address().to_string();
    assert!(Running::start(&["author", "--home", home, "--listen", &address]).stop());
    let output = tympan()
        .args(["author", "--home", home, "--listen", &address])
        .env("TYMPAN_DATABASE", server.url())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("has its own repository in `store`"));
}

/// Databases that share a folder of blobs are told apart by a name that lies in each, and sweep by themselves.
#[test]
fn a_database_has_a_name_of_its_own_beside_its_blobs() {
    let server = PostgresServer::start(&["max_connections=60"]);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("shared");
    let url = server.url();
    let start = |name: &str, schema: &str| {
        let home = dir.path().join(name);
        std::fs::create_dir_all(&home).unwrap();
        let config = format!(
            "[database]\nschema = \"{schema}\"\nmax_connections = 8\n[blobs]\nroles = \"shared\"\n\
             [[blobs.delegates]]\nrole = \"shared\"\npath = \"{}\"\n",
            folder.display()
        );
        std::fs::write(home.join("tympan.toml"), config).unwrap();
        let address = free_address();
        let text = home.to_str().unwrap().to_owned();
        let listen = address.to_string();
        let arguments = ["author", "--home", &text, "--listen", &listen, "--database", &url];
        (Running::start(&arguments), text, address)
    };
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap());
        names.filter(|name| name.starts_with("repository-")).collect()
    };
    let (one, home, address) = start("one", "first");
    assert_eq!(names().len(), 1);
    let (two, ..) = start("two", "first");
    assert_eq!(names().len(), 1, "homes on one database are one repository");
    let (other, ..) = start("other", "second");
    assert_eq!(names().len(), 2, "the other one has the same address, and a name of its own");
    let token = tympan()
        .args(["user", "token", "admin", "--home", &home])
        .env("TYMPAN_DATABASE", &url)
        .output()
        .unwrap();
    let token = String::from_utf8(token.stdout).unwrap().lines().last().unwrap().to_owned();
    let at = format!("http://{address}");
    let jobs =
        |words: &[&str]| run_ok(&[&["jobs"], words, &["--url", &at, "--token", &token]].concat());
    let schedules = jobs(&["schedules"]);
    let (_, rest) = schedules.split_once("maintenance/blobs").expect("it sweeps by itself");
    assert!(rest.trim_start().starts_with("`0 30 3 * * ?`"), "{schedules}");
    let marks = || {
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap());
        names.filter(|name| name.starts_with("marks-") && !name.contains('.')).count()
    };
    let done = || -> u64 {
        let topics = jobs(&["topics"]);
        let mut lines = topics.lines();
        lines.find(|line| line.contains("DataStoreGarbageCollectionTask"));
        let counts = lines.next().and_then(|line| line.split_once(" 0 waiting, 0 running, "));
        counts.map_or(0, |(_, done)| done.split_once(" done, 0 failed").unwrap().0.parse().unwrap())
    };
    // However often, by whichever process: it stays the same repository.
    for turn in 1..=3 {
        jobs(&["run", "maintenance/blobs"]);
        wait_until("the blobs are swept", || done() == turn);
    }
    assert_eq!((names().len(), marks()), (2, 1));
    assert!(one.stop() && two.stop() && other.stop());
}

#[test]
fn authors_on_one_database_publish_with_one_key() {
    let server = PostgresServer::start(&["max_connections=60"]);
    let url = server.url();
    let dir = tempfile::tempdir().unwrap();
    let homes = ["one", "two"].map(|name| dir.path().join(name));
    homes.iter().for_each(|home| configure(home, "max_connections = 8"));
    let addresses = [free_address(), free_address()];
    let one = start(&homes[0], &url, addresses[0]);
    let two = start(&homes[1], &url, addresses[1]);
    let password = std::fs::read_to_string(homes[0].join("initial-password")).unwrap();
    let password = password.trim();
    let key_of = |home: &Path| std::fs::read_to_string(home.join("replication.key")).unwrap();
    assert_ne!(key_of(&homes[0]), key_of(&homes[1]), "each home has made a key of its own");
    // The publisher has the key of the first.
    let publish_home = dir.path().join("publish");
    std::fs::create_dir_all(&publish_home).unwrap();
    std::fs::write(publish_home.join("replication.key"), key_of(&homes[0])).unwrap();
    let publish_at = free_address();
    let publish = Running::start(&[
        "publish",
        "--home",
        publish_home.to_str().unwrap(),
        "--listen",
        &publish_at.to_string(),
    ]);
    let post_ok = |at: SocketAddr, path: &str, form: &str| {
        let answer = post(at, password, path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    };
    let agent = format!(
        "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=nt:unstructured\
         &./jcr:content/enabled=true&./jcr:content/transportUri=http://{publish_at}/bin/receive"
    );
    post_ok(addresses[0], "/etc/replication/agents.author/publish", &agent);
    let shows = |text: &str| {
        let answer = crate::program::ask(publish_at, "GET", "/content/shared.1.json", &[], b"");
        answer.is_ok_and(|answer| answer.text().contains(text))
    };
    let publish_title = |at: SocketAddr, title: &str| {
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent\
             &./jcr:content/jcr:title={title}"
        );
        post_ok(at, "/content/shared", &form);
        post_ok(at, "/content/shared", ":operation=activate");
    };
    publish_title(addresses[0], "ByBoth");
    wait_until("one of both publishes", || shows("ByBoth"));
    // Alone, the second sends with the key that the first brought.
    assert!(one.stop());
    publish_title(addresses[1], "ByTheSecond");
    wait_until("the second publishes", || shows("ByTheSecond"));
    assert!(two.stop() && publish.stop());
}
