//! The change feed over HTTP: exactly once, in order, with user, through kills of the server.
//!
//! `TYMPAN_CHANGES` sets how many changes are made; the row C6 of the bench asks for 10,000.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::program::{Running, ask, basic, free_address, post, run_ok};

/// An author that is killed and started again at the same address.
struct Author {
    address: SocketAddr,
    home: String,
    password: String,
    running: Option<Running>,
}

impl Author {
    fn start(home: &Path) -> Self {
        let (address, home_text) = (free_address(), home.to_str().unwrap().to_owned());
        let mut author = Self { address, home: home_text, password: String::new(), running: None };
        author.start_again();
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        password.trim().clone_into(&mut author.password);
        author
    }

    fn start_again(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
        let address = self.address.to_string();
        let running = Running::start(&["author", "--home", &self.home, "--listen", &address]);
        self.running = Some(running);
    }

    fn get(&self, path: &str) -> Value {
        let headers = [("Authorization", basic("admin", &self.password))];
        let answer = ask(self.address, "GET", path, &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Opens the stream of events, going on behind the event with this id.
    fn follow(&self, last_id: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "GET /changes?path=/content HTTP/1.0\r\nHost: a\r\nAccept: text/event-stream\r\nLast-Event-ID: {last_id}\r\nAuthorization: {}\r\n\r\n",
            basic("admin", &self.password)
        )
        .unwrap();
        BufReader::new(stream)
    }
}

/// Reads events until a change comes; gives its id and data, or nothing when the stream ends.
fn next_change(stream: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut id, mut is_change) = (String::new(), false);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if let Some(text) = line.strip_prefix("id: ") {
            text.clone_into(&mut id);
        }
        if let Some(text) = line.strip_prefix("event: ") {
            is_change = text == "change";
        }
        if let Some(data) = line.strip_prefix("data: ").filter(|_| is_change) {
            return Some((id, serde_json::from_str(data).ok()?));
        }
    }
}

fn count() -> usize {
    std::env::var("TYMPAN_CHANGES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn changes_are_reported_exactly_once_in_order_through_kills() {
    let dir = tempfile::tempdir().unwrap();
    let mut author = Author::start(dir.path());
    assert_eq!(post(author.address, &author.password, "/content/n", "./made=yes").status, 201);
    let mut cursor = author.get("/api/v1/changes?since=now")["next"].as_str().unwrap().to_owned();
    let mut seen = Vec::new();
    let mut made = 0;
    let step = count() / 6;
    for round in 0..6 {
        for _ in 0..step {
            made += 1;
            let form = format!("./value={made}");
            assert_eq!(post(author.address, &author.password, "/content/n", &form).status, 200);
        }
        // Half of what is there is read, through pages or through events, before the server dies.
        if round % 2 == 0 {
            let page =
                author.get(&format!("/api/v1/changes?since={cursor}&limit={}", step / 2 + 1));
            note_all(&page, &mut seen);
            page["next"].as_str().unwrap().clone_into(&mut cursor);
        } else {
            let mut stream = author.follow(&cursor);
            for _ in 0..step / 2 {
                let (id, revision) = next_change(&mut stream).unwrap();
                note(&revision, &mut seen);
                cursor = id;
            }
        }
        author.start_again();
    }
    // What is left comes by events that begin before the last change is made.
    let mut stream = author.follow(&cursor);
    made += 1;
    let form = format!("./value={made}");
    assert_eq!(post(author.address, &author.password, "/content/n", &form).status, 200);
    while seen.len() < made {
        let (id, revision) = next_change(&mut stream).unwrap();
        note(&revision, &mut seen);
        cursor = id;
    }
    let sequences: Vec<u64> = seen.clone();
    assert_eq!(sequences.len(), made);
    assert!(sequences.is_sorted_by(|one, next| one < next), "each once, in order");
    let rest = author.get(&format!("/api/v1/changes?since={cursor}"));
    assert_eq!(rest["revisions"].as_array().unwrap().len(), 0, "{rest}");
    assert_eq!(rest["isEnd"], true);
    author.running.take().unwrap().kill();
    assert!(run_ok(&["repo", "check", "--home", &author.home]).contains("clean"));
}

fn note_all(page: &Value, seen: &mut Vec<u64>) {
    page["revisions"].as_array().unwrap().iter().for_each(|revision| note(revision, seen));
}

/// Notes a revision, which must be a save of the value by the first user.
fn note(revision: &Value, seen: &mut Vec<u64>) {
    assert_eq!(revision["user"], "admin");
    let change = &revision["changes"][0];
    assert_eq!(change["path"], "/content/n", "{revision}");
    let kind = if seen.is_empty() { "added" } else { "changed" };
    let value = change["properties"].as_array().unwrap().iter().find(|one| one["name"] == "value");
    assert_eq!(value.unwrap()["kind"], kind, "{revision}");
    seen.push(revision["sequence"].as_u64().unwrap());
}
