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
const URLS: [&str; 10] = [
    "/journal.html",
    "/journal/night-train-to-lisbon.html",
    "/journal/night-train-to-lisbon.print.html",
    "/journal/the-last-ferry.html",
    "/journal/seven-ridges-before-supper.html",
    "/food.html",
    "/food/tea-for-strangers.html",
    "/culture/wool-and-walnut.html",
    "/contact.html",
    "/about.html",
];

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

/// Saves a title and activates the page.
fn activate(demo: &Demo, page: &str, title: &str) {
    let path = format!("{SITE}{page}");
    assert_eq!(
        demo.post(&format!("{path}/jcr:content"), &format!("./jcr:title={title}")).status,
        200
    );
    assert_eq!(demo.post(&path, ":operation=activate").status, 200);
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: this never came to be");
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
    let agent = format!(
        "./serializationType=purge_keys&./transportUri=http://{}/&./retryDelay=1000",
        varnish.address
    );
    // The first change after a ledger begins drops everything.
    assert!(!varnish.is_hit("/about.html") && varnish.is_hit("/about.html"));
    assert_eq!(demo.post(&format!("{AGENT}/jcr:content"), &agent).status, 200);
    assert_eq!(demo.post(AGENT, ":operation=activate").status, 200);
    activate(&demo, EDITED, "One");
    let title =
        |url: &str, title: &str| varnish.get(url).text().contains(&format!("<title>{title}"));
    let edited = format!("{EDITED}.html");
    wait_for("the first title", || title(&edited, "One"));
    // What this change drops is dropped when the next one is: flushes go in order.
    activate(&demo, EDITED, "Two");
    wait_for("the second title", || title(&edited, "Two"));
    let before = URLS.map(|url| {
        varnish.get(url);
        assert!(varnish.is_hit(url), "{url} is not cached");
        varnish.get(url).text()
    });
    activate(&demo, EDITED, "Three-of-them");
    wait_for("the third title", || title(&edited, "Three-of-them"));
    let mut shown = 0;
    for (url, before) in URLS.iter().zip(&before) {
        let now = get(demo.publish, &url_of(url)).text();
        let is_kept = varnish.is_hit(url);
        assert_eq!(varnish.get(url).text(), now, "{url} is old");
        if *url != edited {
            assert_eq!(is_kept, *before == now, "{url}: dropped only if it differs");
        }
        shown += usize::from(*before != now);
    }
    assert!((2..URLS.len()).contains(&shown), "{shown} pages show the title");
    // Nothing that visitors see: all stay.
    let description = format!("{SITE}/contact/jcr:content");
    assert_eq!(demo.post(&description, "./note=unseen").status, 200);
    activate(&demo, "/contact", "Contact-us");
    wait_for("the title of another page", || title("/contact.html", "Contact-us"));
    assert!(varnish.is_hit(&edited));
    // A page that is gone goes in all its forms.
    let gone = "/journal/night-train-to-lisbon.print.html";
    assert!(varnish.is_hit(gone));
    assert_eq!(demo.post(&format!("{SITE}{EDITED}"), ":operation=deactivate").status, 200);
    wait_for("the page is gone", || varnish.get(gone).status == 404);
    wait_for("the page is gone", || varnish.get(&edited).status == 404);
}
