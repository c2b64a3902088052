//! A publisher is killed at any moment while pages are drawn and activated: no page that a cache holds stays old.
//!
//! A dispatcher that is told URL by URL stands before it. After each kill, every page that the dispatcher holds must come
//! to be what the publisher draws, without another change.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::program::{Demo, Running, ask, get, post};

const AGENT: &str = "/etc/replication/agents.publish/flush";
const SITE: &str = "/content/wayfare/en";
/// Pages that show titles of each other: navigation, teasers, lists, breadcrumbs.
const PAGES: [&str; 10] = [
    "",
    "/journal",
    "/journal/night-train-to-lisbon",
    "/journal/the-last-ferry",
    "/journal/seven-ridges-before-supper",
    "/food",
    "/food/tea-for-strangers",
    "/food/sardines-in-june",
    "/culture/wool-and-walnut",
    "/about",
];
/// Those of them that are edited.
const EDITED: [&str; 5] =
    ["/journal", "/journal/the-last-ferry", "/food/tea-for-strangers", "/food", "/about"];

fn kills() -> Option<usize> {
    std::env::var("TYMPAN_KILLS").ok()?.parse().ok()
}

/// Numbers that repeat with the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// Author, publisher and dispatcher as processes of their own.
struct Trio {
    _author: Running,
    publisher: Option<Running>,
    _dispatcher: Running,
    addresses: [SocketAddr; 3],
    command: Vec<String>,
    password: String,
}

impl Trio {
    /// Takes over the homes of a demo.
    fn start(home: &Path) -> Self {
        let demo = Demo::start(home);
        let (addresses, password) =
            ([demo.author, demo.publish, demo.dispatcher], demo.password().to_owned());
        assert!(demo.running.stop());
        for role in ["author", "publish"] {
            std::fs::copy(home.join("replication.key"), home.join(role).join("replication.key"))
                .unwrap();
        }
        let command = |role: &str, at: usize| {
            let home = home.join(role).display().to_string();
            [
                role.to_owned(),
                "--home".to_owned(),
                home,
                "--listen".to_owned(),
                addresses[at].to_string(),
            ]
        };
        let start = |command: &[String]| {
            Running::start(&command.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let publish = command("publish", 1).to_vec();
        let trio = Self {
            _author: start(&command("author", 0)),
            publisher: Some(start(&publish)),
            _dispatcher: start(&command("dispatcher", 2)),
            addresses,
            command: publish,
            password,
        };
        trio.post(&format!("{AGENT}/jcr:content"), "./serializationType=precise");
        trio.post(AGENT, ":operation=activate");
        trio
    }

    fn post(&self, path: &str, form: &str) {
        let answer = post(self.addresses[0], &self.password, path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    }

    fn kill(&mut self) {
        self.publisher.take().unwrap().kill();
    }

    fn start_again(&mut self) {
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        self.publisher = Some(Running::start(&command));
    }

    /// Returns what the publisher draws and what the dispatcher hands out, if both do.
    fn both(&self, url: &str) -> Option<[String; 2]> {
        let read = |at: usize| {
            let answer = ask(self.addresses[at], "GET", url, &[], b"").ok()?;
            (answer.status == 200).then(|| answer.text())
        };
        Some([read(1)?, read(2)?])
    }

    /// Waits until a page at the publisher shows a text.
    fn wait_for(&self, url: &str, text: &str) {
        wait_until(format_args!("{url} shows `{text}`"), || {
            get(self.addresses[1], url).text().contains(text)
        });
    }

    /// Waits until the dispatcher's pages are those of the publisher.
    fn settle(&self, round: usize) {
        for url in PAGES.map(url_of) {
            wait_for(|| match self.both(&url) {
                Some([drawn, cached]) if drawn == cached => Ok(()),
                both => Err(format!("round {round}: {url} stays old: {both:?}")),
            });
        }
    }
}

fn url_of(page: &str) -> String {
    format!("{SITE}{page}.html")
}

#[test]
fn a_publisher_that_is_killed_leaves_no_page_old() {
    let Some(kills) = kills() else {
        println!(
            "SKIPPED: `TYMPAN_KILLS` says how often to kill; `make torture ROOM=program` does"
        );
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut trio = Trio::start(dir.path());
    let mut random = Random(0x1ed6e4);
    // The first change after a ledger begins empties the cache; what follows is told URL by URL.
    trio.post(&format!("{SITE}/about/jcr:content"), "./jcr:title=Begin");
    trio.post(&format!("{SITE}/about"), ":operation=activate");
    trio.wait_for(&url_of("/about"), "Begin");
    trio.settle(0);
    let (mut edits, mut visits) = (0, 0);
    for round in 1..=kills {
        let (is_over, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
        let dispatcher = trio.addresses[2];
        let mut last = (String::new(), String::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = round;
                while !is_over.load(Ordering::Relaxed) {
                    at = (at + 7) % PAGES.len();
                    // What fails while the publisher is down is no concern of this test.
                    ask(dispatcher, "GET", &url_of(PAGES[at]), &[], b"").ok();
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
            for number in 0..=random.below(4) {
                let page = EDITED[random.below(EDITED.len())];
                let title = format!("Round-{round}-{number}");
                trio.post(&format!("{SITE}{page}/jcr:content"), &format!("./jcr:title={title}"));
                trio.post(&format!("{SITE}{page}"), ":operation=activate");
                last = (url_of(page), title);
                edits += 1;
            }
            // At once, or in the midst of what follows from the last edit.
            let until = seen.load(Ordering::Relaxed) + random.below(60);
            wait_until("visitors go on", || seen.load(Ordering::Relaxed) >= until);
            trio.kill();
            trio.start_again();
            trio.wait_for(&last.0, &last.1);
            is_over.store(true, Ordering::Relaxed);
        });
        visits += seen.into_inner();
        trio.settle(round);
    }
    println!("{kills} kills, {edits} edits, {visits} visits: no page stayed old");
}
