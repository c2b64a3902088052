//! Surrogate keys in front of a real Varnish: a publish drops what shows the change, and nothing else.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Answer, Demo, free_address, get};

/// How long a test waits for something that must happen.
const PATIENCE: Duration = Duration::from_secs(120);
const SITE: &str = "/content/wayfare/en";
const AGENT: &str = "/etc/replication/agents.publish/flush";
const EDITED: &str = "/journal/night-train-to-lisbon";
/// Pages of which some show the titles of others, with a selector and a picture among them.
const URLS: [&str; 9] = [
    "/journal.html",
    "/journal/night-train-to-lisbon.html",
    "/journal/night-train-to-lisbon.print.html",
    "/journal/the-last-ferry.html",
    "/journal/seven-ridges-before-supper.html",
    "/food.html",
    "/food/tea-for-strangers.html",
    "/culture/wool-and-walnut.html",
    "/about.html",
];
/// Shows what nobody else shows: once a change of it has reached the cache, all changes before it have.
const MARK: &str = "/contact/jcr:content.json";

/// A running Varnish that is stopped when the test ends.
struct Varnish {
    child: Child,
    address: SocketAddr,
}

impl Varnish {
    /// Caches what a publisher answers, and drops what carries a key that a `PURGE` names.
    fn before(publish: SocketAddr, folder: &Path) -> Option<Self> {
        let program = ["/usr/sbin/varnishd", "/usr/bin/varnishd", "/usr/local/sbin/varnishd"];
        let Some(program) = program.iter().find(|program| Path::new(program).exists()) else {
            eprintln!("skipped: varnishd is not installed");
            return None;
        };
        std::fs::create_dir_all(folder).unwrap();
        let config = folder.join("keys.vcl");
        std::fs::write(&config, rules(publish)).unwrap();
        let address = free_address();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new(program)
            .args(["-F", "-a", &address.to_string(), "-j", "none", "-s", "malloc,64m"])
            .args(["-f", config.to_str().unwrap(), "-n", folder.join("work").to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut varnish = Self { child, address };
        let started = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            let ended = varnish.child.try_wait().unwrap();
            let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(ended.is_none() && started.elapsed() < PATIENCE, "varnishd: {log}");
            std::thread::yield_now();
        }
        Some(varnish)
    }

    fn get(&self, url: &str) -> Answer {
        get(self.address, &url_of(url))
    }

    /// Asks for a page; tells whether the cache had it.
    fn is_hit(&self, url: &str) -> bool {
        let answer = self.get(url);
        assert_eq!(answer.status, 200, "{url}: {}", answer.text());
        answer.header("x-cache") == Some("hit")
    }
}

impl Drop for Varnish {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // Its worker ends with it.
        kill_process(pid, Signal::TERM).ok();
        self.child.wait().ok();
    }
}

/// Returns the configuration: keys are words of the header, so that no module is needed which Debian does not have.
fn rules(publish: SocketAddr) -> String {
    format!(
        r#"vcl 4.1;
import std;
backend default {{ .host = "{}"; .port = "{}"; }}
sub vcl_recv {{
  if (req.method == "PURGE") {{
    set req.http.x-keys = regsuball(regsuball(req.http.surrogate-key, "[.]", "[.]"), " +", "|");
    if (std.ban("obj.http.surrogate-key ~ (^|\s)(" + req.http.x-keys + ")(\s|$)")) {{
      return (synth(200, "purged"));
    }}
    return (synth(500, std.ban_error()));
  }}
}}
sub vcl_backend_response {{
  if (beresp.http.cache-control ~ "private|no-store") {{ set beresp.uncacheable = true; }}
  else {{ set beresp.ttl = 1d; }}
}}
sub vcl_deliver {{
  if (obj.hits > 0) {{ set resp.http.x-cache = "hit"; }} else {{ set resp.http.x-cache = "miss"; }}
}}
"#,
        publish.ip(),
        publish.port()
    )
}

fn url_of(url: &str) -> String {
    format!("{SITE}{url}")
}

/// Saves a property, activates the page, and waits until the publisher shows it.
fn publish(demo: &Demo, page: &str, (name, value): (&str, &str), shown_at: &str) {
    let path = format!("{SITE}{page}");
    let saved = demo.post(&format!("{path}/jcr:content"), &format!("./{name}={value}"));
    assert_eq!(saved.status, 200, "{}", saved.text());
    assert_eq!(demo.post(&path, ":operation=activate").status, 200);
    // Varnish keeps what it asked for before a purge and got after it. So nobody asks it meanwhile.
    wait_for(value, || get(demo.publish, &url_of(shown_at)).text().contains(value));
}

/// Waits until all changes so far have reached the cache.
fn settle(demo: &Demo, varnish: &Varnish, mark: &str) {
    publish(demo, "/contact", ("note", mark), MARK);
    wait_for(mark, || varnish.get(MARK).text().contains(mark));
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "`{what}` never came to be");
        std::thread::yield_now();
    }
}

#[test]
fn a_publish_drops_from_varnish_what_shows_it_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    std::fs::create_dir_all(home.join("publish")).unwrap();
    let settings = "[ledger]\nsurrogate_key = \"Surrogate-Key\"\n";
    std::fs::write(home.join("publish/tympan.toml"), settings).unwrap();
    let demo = Demo::start(&home);
    let Some(varnish) = Varnish::before(demo.publish, &dir.path().join("varnish")) else { return };
    // Kept from now on, so that it shows what changes have reached the cache.
    assert_eq!(varnish.get(MARK).status, 200);
    let agent =
        format!("./serializationType=purge_keys&./transportUri=http://{}/", varnish.address);
    assert_eq!(demo.post(&format!("{AGENT}/jcr:content"), &agent).status, 200);
    assert_eq!(demo.post(AGENT, ":operation=activate").status, 200);
    // The first change after a ledger begins drops everything.
    settle(&demo, &varnish, "mark-one");
    let edited = format!("{EDITED}.html");
    let before = URLS.map(|url| {
        varnish.get(url);
        assert!(varnish.is_hit(url), "{url} is not cached");
        varnish.get(url).text()
    });
    publish(&demo, EDITED, ("jcr:title", "Another-night"), &edited);
    settle(&demo, &varnish, "mark-two");
    let mut shown = 0;
    for (url, before) in URLS.iter().zip(&before) {
        let is_kept = varnish.is_hit(url);
        let now = get(demo.publish, &url_of(url)).text();
        assert_eq!(varnish.get(url).text(), now, "{url} is old");
        // All forms of the page that was activated go with it.
        if !url.starts_with(EDITED) {
            assert_eq!(is_kept, *before == now, "{url}: dropped only if it differs");
        }
        shown += usize::from(*before != now);
    }
    assert!((2..URLS.len()).contains(&shown), "{shown} pages show the title");
    // A page that is gone goes in all its forms.
    let gone = format!("{EDITED}.print.html");
    assert!(varnish.is_hit(&gone) && varnish.is_hit(&edited));
    assert_eq!(demo.post(&format!("{SITE}{EDITED}"), ":operation=deactivate").status, 200);
    wait_for("the page is gone", || get(demo.publish, &url_of(&edited)).status == 404);
    settle(&demo, &varnish, "mark-three");
    for url in [&gone, &edited] {
        assert_eq!(varnish.get(url).status, 404, "{url}");
    }
}
