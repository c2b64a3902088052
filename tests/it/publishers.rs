//! Two publishers on one PostgreSQL: each flushes what it drew, also what changed through the other, and while it was dead.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::postgres_server::PostgresServer;

use crate::program::{Running, ask, free_address, post};

const PAGE: &str = "/content/shared";

/// A cache that notes the flushes that it is sent.
struct Cache {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Cache {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let noted = Arc::clone(&noted);
                std::thread::spawn(move || note(stream, &noted));
            }
        });
        Self { address, seen }
    }

    /// Counts the flushes that hold a text.
    fn count(&self, text: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|one| one.contains(text)).count()
    }
}

fn note(stream: std::net::TcpStream, noted: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            let line = line.to_lowercase();
            if let Some(count) = line.strip_prefix("content-length:") {
                length = count.trim().parse().unwrap();
            }
            head.push_str(line.trim_end());
            head.push('\n');
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        noted.lock().unwrap().push(format!("{head}\n{}", String::from_utf8_lossy(&body)));
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

/// Tells whether an answer holds a text.
fn shows(address: SocketAddr, url: &str, text: &str) -> bool {
    ask(address, "GET", url, &[], b"").is_ok_and(|answer| answer.text().contains(text))
}

fn start(role: &str, home: &Path, address: SocketAddr, more: &[&str]) -> Running {
    let (home, address) = (home.to_str().unwrap(), address.to_string());
    let arguments = [role, "--home", home, "--listen", &address];
    Running::start(&[&arguments[..], more].concat())
}

#[test]
fn publishers_on_one_database_flush_what_each_drew() {
    let server = PostgresServer::start(&["max_connections=60"]);
    let url = server.url();
    let dir = tempfile::tempdir().unwrap();
    let [author_at, one_at, two_at] = [(); 3].map(|()| free_address());
    let author_home = dir.path().join("author");
    let _author = start("author", &author_home, author_at, &[]);
    let password = std::fs::read_to_string(author_home.join("initial-password")).unwrap();
    let homes = ["one", "two"].map(|name| dir.path().join(name));
    for home in &homes {
        std::fs::create_dir_all(home).unwrap();
        let settings = "[database]\nschema = \"publishers\"\nmax_connections = 8\n";
        std::fs::write(home.join("tympan.toml"), settings).unwrap();
        let key = "replication.key";
        std::fs::copy(author_home.join(key), home.join(key)).unwrap();
    }
    let publish = |at: usize, address| start("publish", &homes[at], address, &["--database", &url]);
    let (_one, two) = (publish(0, one_at), publish(1, two_at));
    let post_ok = |path: &str, form: &str| {
        let answer = post(author_at, password.trim(), path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    };
    let cache = Cache::start();
    let agent = |place: &str, target: String, kind: &str| {
        let path = format!("/etc/replication/{place}");
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=nt:unstructured&./jcr:content/enabled=true\
             &./jcr:content/transportUri={target}&./jcr:content/serializationType={kind}"
        );
        post_ok(&path, &form);
        path
    };
    let activate = |path: &str| post_ok(path, ":operation=activate");
    let publish_title = |title: &str| {
        post_ok(&format!("{PAGE}/jcr:content"), &format!("./jcr:title={title}"));
        activate(PAGE);
    };
    agent("agents.author/one", format!("http://{one_at}/bin/receive"), "tympan");
    post_ok(
        PAGE,
        "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent&./jcr:content/jcr:title=First",
    );
    let precise = agent("agents.publish/cache", format!("http://{}/", cache.address), "precise");
    activate(&precise);
    activate(PAGE);
    wait_until("both have the page", || {
        [one_at, two_at].iter().all(|at| shows(*at, &format!("{PAGE}.1.json"), "First"))
    });
    // Nobody knows what caches hold from before there was a ledger; each publisher says so once.
    publish_title("Begin");
    wait_until("both begin", || cache.count("cq-action: delete\n") >= 2);
    // One form of the page is drawn by the first, another by the second alone.
    let [of_one, of_two] = [format!("{PAGE}.2.json"), format!("{PAGE}.3.json")];
    wait_until("the first draws", || shows(one_at, &of_one, "Begin"));
    wait_until("the second draws", || shows(two_at, &of_two, "Begin"));
    let (by_one, by_two) = (cache.count(&of_one), cache.count(&of_two));
    publish_title("Second");
    wait_until("the first flushes", || cache.count(&of_one) > by_one);
    wait_until("the second flushes what the first received", || cache.count(&of_two) > by_two);
    // It is killed; what the first receives meanwhile concerns what it drew.
    wait_until("the second draws again", || shows(two_at, &of_two, "Second"));
    wait_until("the first draws again", || shows(one_at, &of_one, "Second"));
    two.kill();
    let (by_one, by_two) = (cache.count(&of_one), cache.count(&of_two));
    publish_title("Third");
    wait_until("the first goes on", || cache.count(&of_one) > by_one);
    let _two = publish(1, two_at);
    wait_until("the second flushes what it missed", || cache.count(&of_two) > by_two);
    assert!(shows(two_at, &of_two, "Third"));
}
