//! Under a crowd: many visitors at once, on pages that nobody keeps; more than there are places; what `/metrics` says.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Demo, Running, ask, free_address, get, read_answer};

const PATIENCE: Duration = Duration::from_secs(120);
const HOME_PAGE: &str = "/content/wayfare/en.html";

/// A publisher with the sample site.
fn publisher(dir: &Path, settings: &str) -> (Running, SocketAddr, SocketAddr) {
    let demo = Demo::start(&dir.join("demo"));
    assert!(demo.running.stop());
    let home = dir.join("demo/publish");
    std::fs::write(home.join("tympan.toml"), settings).unwrap();
    let (main, admin) = (free_address(), free_address());
    let running = Running::start(&[
        "publish",
        "--home",
        home.to_str().unwrap(),
        "--listen",
        &main.to_string(),
        "--admin-listen",
        &admin.to_string(),
    ]);
    (running, main, admin)
}

/// Returns the value of a pool in `/metrics`.
fn pool(text: &str, what: &str, name: &str) -> Option<f64> {
    let begin = format!("tympan_pool_{what}{{role=\"publish\",pool=\"{name}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}

#[test]
fn nobody_of_a_crowd_is_turned_away() {
    const VISITORS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let (_running, main, admin) = publisher(dir.path(), "[fragments]\nenabled = false\n");
    // All connect and ask before anybody reads: the server has every request at once.
    let mut streams: Vec<TcpStream> = (0..VISITORS)
        .map(|_| {
            let mut stream = TcpStream::connect(main).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "GET {HOME_PAGE} HTTP/1.0\r\nHost: {main}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for stream in streams.drain(..) {
        let answer = read_answer(stream).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().contains("</html>"));
    }
    let text = get(admin, "/metrics").text();
    for (name, limit) in [("work", 128.0), ("connections", 10_000.0)] {
        assert_eq!(pool(&text, "limit", name), Some(limit), "{text}");
        assert_eq!(pool(&text, "refused_total", name), Some(0.0), "{text}");
        for what in ["in_use", "idle", "waiting", "timeouts_total"] {
            assert!(pool(&text, what, name).is_some(), "{what} of {name}: {text}");
        }
    }
    assert!(pool(&text, "limit", "state").is_some_and(|limit| limit >= 1.0), "{text}");
    for name in ["process_cpu_seconds_total", "process_threads", "process_resident_memory_bytes"] {
        assert!(text.contains(&format!("\n{name} ")), "{text}");
    }
}

#[test]
fn requests_beyond_the_queue_are_told_when_to_retry() {
    let dir = tempfile::tempdir().unwrap();
    let settings = "[work]\npermits = 1\nmax_waiting = 1\n[fragments]\nenabled = false\n";
    let (_running, main, admin) = publisher(dir.path(), settings);
    let started = Instant::now();
    loop {
        let mut streams: Vec<TcpStream> = (0..32)
            .map(|_| {
                let mut stream = TcpStream::connect(main).unwrap();
                write!(stream, "GET {HOME_PAGE} HTTP/1.0\r\nHost: {main}\r\n\r\n").unwrap();
                stream
            })
            .collect();
        let answers: Vec<_> =
            streams.drain(..).map(|stream| read_answer(stream).unwrap()).collect();
        assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 503)), "{answers:?}");
        assert!(answers.iter().any(|answer| answer.status == 200));
        if let Some(refused) = answers.iter().find(|answer| answer.status == 503) {
            assert_eq!(refused.header("retry-after"), Some("1"), "{}", refused.head);
            break;
        }
        assert!(started.elapsed() < PATIENCE, "nobody was ever told to come again");
    }
    let text = get(admin, "/metrics").text();
    assert!(pool(&text, "refused_total", "work").is_some_and(|count| count >= 1.0), "{text}");
    assert_eq!(get(main, HOME_PAGE).status, 200, "and afterwards all is well");
}

#[test]
fn connections_beyond_the_limit_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (_running, main, admin) = publisher(dir.path(), "[listen]\nmax_connections = 2\n");
    let held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(main).unwrap()).collect();
    wait_until("both connections are counted", || {
        pool(&get(admin, "/metrics").text(), "in_use", "connections") == Some(2.0)
    });
    let refused = get(main, HOME_PAGE);
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1")),
        "{}",
        refused.head
    );
    let health = get(admin, "/health").text();
    assert!(health.contains("all 2 slots of the pool `connections` are in use"), "{health}");
    drop(held);
    wait_until("connections are taken again", || get(main, HOME_PAGE).status == 200);
}

#[test]
fn visitors_see_no_timing_unless_the_configuration_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (running, main, _) = publisher(dir.path(), "");
    let page = get(main, HOME_PAGE);
    assert_eq!((page.status, page.header("server-timing")), (200, None), "{}", page.head);
    let asked = get(main, &format!("{HOME_PAGE}?tympan-profile=1"));
    assert!(!asked.text().contains("<!-- tympan:"), "a visitor's wish means nothing");
    assert!(running.stop());
    let settings = "[timing]\nheader = \"everybody\"\ncomment = \"everybody\"\n";
    let home = dir.path().join("demo/publish");
    std::fs::write(home.join("tympan.toml"), settings).unwrap();
    let main = free_address();
    let _running = Running::start(&[
        "publish",
        "--home",
        home.to_str().unwrap(),
        "--listen",
        &main.to_string(),
    ]);
    let page = get(main, HOME_PAGE);
    assert!(page.header("server-timing").is_some_and(|times| times.starts_with("render;dur=")));
    assert!(page.text().contains("<!-- tympan: total us"), "{}", page.text());
}

#[test]
fn a_hangup_begins_new_log_files() {
    use rustix::process::{Pid, Signal, kill_process};
    let dir = tempfile::tempdir().unwrap();
    let (running, main, _) = publisher(dir.path(), "");
    let log = dir.path().join("demo/publish/logs/request.log");
    let aside = dir.path().join("aside.log");
    let hostile = "/a%0ab\"y\"\\?x=1";
    ask(main, "GET", hostile, &[("User-Agent", "a\tb\"c".to_owned())], b"").unwrap();
    std::fs::rename(&log, &aside).unwrap();
    let pid = Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    wait_until("a new log file is begun", || log.exists());
    assert_eq!(get(main, HOME_PAGE).status, 200);
    assert!(running.stop(), "and it goes on until it is told to stop");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(&format!("-> GET {HOME_PAGE} HTTP/1.0")), "{text}");
    let old = std::fs::read_to_string(&aside).unwrap();
    assert!(old.contains("-> GET /a%0ab\\\"y\\\"\\\\?x=1 HTTP/1.0"), "{old}");
    for line in old.lines().chain(text.lines()) {
        assert!(line.contains("] -> ") || line.contains("] <- "), "{line}");
    }
    let access = std::fs::read_to_string(log.with_file_name("access.log")).unwrap();
    assert!(access.contains("a\\x09b\\\"c"), "{access}");
}
