//! A real Varnish in front of a publisher drops by surrogate keys exactly what shows a change.
//!
//! Its configuration is the one in the guide.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::WAIT_TIMEOUT;

use crate::program::{Demo, ask, free_address, get};

const GUIDE: &str = include_str!("../../docs/guides/replication.md");
const PAGE: &str = "/content/wayfare/en/journal/night-train-to-lisbon";
const BYSTANDER: &str = "/content/wayfare/en/about.html";

/// A running Varnish; dropping it stops it.
struct Varnish {
    child: Child,
    address: SocketAddr,
}

impl Varnish {
    /// Starts it as the guide says; nothing where it is not installed.
    fn start(folder: &Path, publish: SocketAddr) -> Option<Self> {
        let (_, rest) = GUIDE.split_once("```vcl\n").expect("the guide has a configuration");
        let (text, _) = rest.split_once("```").unwrap();
        let address = free_address();
        let text = text.replace("\"4503\"", &format!("\"{}\"", publish.port()));
        std::fs::create_dir(folder).unwrap();
        let vcl = folder.join("tympan.vcl");
        std::fs::write(&vcl, text).unwrap();
        let errors = std::fs::File::create(folder.join("errors")).unwrap();
        let mut command = Command::new("varnishd");
        command.args(["-F", "-j", "none", "-s", "malloc,64m"]);
        command.arg("-a").arg(address.to_string()).arg("-f").arg(vcl);
        command.arg("-n").arg(folder.join("work"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: `varnishd` is not installed");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut varnish = Self { child, address };
        wait_until("Varnish answers", || {
            let errors = || std::fs::read_to_string(folder.join("errors")).unwrap();
            assert!(varnish.child.try_wait().unwrap().is_none(), "{}", errors());
            ask(address, "GET", "/", &[], b"").is_ok()
        });
        Some(varnish)
    }
}

impl Drop for Varnish {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Killed at once it would leave its worker behind.
            kill_process(pid, Signal::TERM).ok();
        }
        self.child.wait().ok();
    }
}

#[test]
fn a_change_drops_what_shows_it_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("publish")).unwrap();
    let settings = "[ledger]\nsurrogate_key = \"Surrogate-Key\"\n";
    std::fs::write(dir.path().join("publish/tympan.toml"), settings).unwrap();
    let demo = Demo::start(dir.path());
    let Some(varnish) = Varnish::start(&dir.path().join("varnish"), demo.publish) else { return };
    let url = format!("{PAGE}.html");
    let draws = || [url.as_str(), BYSTANDER].map(|url| demo.renders_of(url));
    let visit = || [url.as_str(), BYSTANDER].map(|url| get(varnish.address, url));
    let settle = || {
        let begun = Instant::now();
        loop {
            let before = draws();
            visit();
            if draws() == before {
                return before;
            }
            assert!(begun.elapsed() < WAIT_TIMEOUT, "Varnish keeps nothing: {:?}", visit());
        }
    };
    let first = settle();
    let agent = "/etc/replication/agents.publish/flush";
    let settings =
        format!("./serializationType=purge_keys&./transportUri=http://{}/", varnish.address);
    assert_eq!(demo.post(&format!("{agent}/jcr:content"), &settings).status, 200);
    assert_eq!(demo.post(agent, ":operation=activate").status, 200);

    let show = |title: &str| {
        let content = format!("{PAGE}/jcr:content");
        assert_eq!(demo.post(&content, &format!("./jcr:title={title}")).status, 200);
        assert_eq!(demo.post(PAGE, ":operation=activate").status, 200);
        wait_until(format_args!("Varnish shows {title}"), || {
            get(varnish.address, &url).text().contains(title)
        });
    };
    // The first change drops all, as nobody knows what the cache held before.
    show("Heron-one");
    let begun = Instant::now();
    while settle()[1] == first[1] {
        assert!(begun.elapsed() < WAIT_TIMEOUT, "nothing dropped all");
    }
    let before = settle();
    show("Heron-two");
    for answer in visit() {
        assert_eq!(answer.status, 200);
        assert!(answer.header("surrogate-key").is_none(), "{}", answer.head);
    }
    let after = draws();
    assert!(after[0] > before[0]);
    assert_eq!(after[1], before[1], "what does not show the change is not drawn");

    let purge = |keys: String| {
        let keys = [("Surrogate-Key", keys)];
        assert_eq!(ask(varnish.address, "PURGE", "/", &keys, b"").unwrap().status, 200);
        visit();
        draws()[1] - before[1]
    };
    assert_eq!(purge(BYSTANDER.replace("about.html", "about.htm")), 0, "a part of a key is no key");
    assert_eq!(purge(format!("/none {BYSTANDER}")), 1);
}
