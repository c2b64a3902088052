//! A farm of real processes: an author, two publishers and a dispatcher, each killed while pages are activated.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, basic, free_address, get, post};

const PAGES: usize = 4;

fn kills() -> usize {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(4)
}

/// One process that is started again where it was.
struct Part {
    command: Vec<String>,
    address: SocketAddr,
    running: Option<Running>,
}

impl Part {
    fn start(role: &str, home: &Path, address: SocketAddr) -> Self {
        let listen = address.to_string();
        let command = match role {
            "dispatcher" => {
                let config = home.join("dispatcher.any");
                vec!["dispatcher", "--config", config.to_str().unwrap(), "--listen", &listen]
                    .into_iter()
                    .map(str::to_owned)
                    .collect()
            }
            role => [role, "--home", home.to_str().unwrap(), "--listen", &listen]
                .map(str::to_owned)
                .to_vec(),
        };
        let mut part = Self { command, address, running: None };
        part.again();
        part
    }

    fn again(&mut self) {
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        self.running = Some(Running::start(&command));
    }

    fn kill(&mut self) {
        self.running.take().unwrap().kill();
    }
}

struct Farm {
    /// Author, publishers, dispatcher.
    parts: Vec<Part>,
    password: String,
}

fn home(dir: &Path, name: &str) -> PathBuf {
    let home = dir.join(name);
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("replication.key"), "the key of this farm").unwrap();
    home
}

impl Farm {
    fn start(dir: &Path) -> Self {
        let addresses = [free_address(), free_address(), free_address(), free_address()];
        let author_home = home(dir, "author");
        let dispatcher_home = home(dir, "dispatcher");
        let cache = dispatcher_home.join("cache");
        std::fs::create_dir_all(&cache).unwrap();
        let render = |address: SocketAddr| {
            format!("/r{0} {{ /hostname \"127.0.0.1\" /port \"{0}\" }}", address.port())
        };
        let config = format!(
            "/farms {{ /site {{ /clientheaders {{ \"*\" }} /virtualhosts {{ \"*\" }}\n\
             /renders {{ {} {} }}\n\
             /filter {{ /0001 {{ /type \"allow\" /url \"*\" }} }}\n\
             /cache {{ /docroot \"{}\" /rules {{ /0000 {{ /glob \"*\" /type \"allow\" }} }}\n\
             /invalidate {{ /0000 {{ /glob \"*\" /type \"allow\" }} }}\n\
             /allowedClients {{ /0000 {{ /glob \"*\" /type \"allow\" }} }} }} }} }}\n",
            render(addresses[1]),
            render(addresses[2]),
            cache.display()
        );
        std::fs::write(dispatcher_home.join("dispatcher.any"), config).unwrap();
        let author = Part::start("author", &author_home, addresses[0]);
        let password = std::fs::read_to_string(author_home.join("initial-password")).unwrap();
        let parts = vec![
            author,
            Part::start("publish", &home(dir, "one"), addresses[1]),
            Part::start("publish", &home(dir, "two"), addresses[2]),
            Part::start("dispatcher", &dispatcher_home, addresses[3]),
        ];
        let farm = Self { parts, password: password.trim().to_owned() };
        farm.configure();
        farm
    }

    fn configure(&self) {
        let kind = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=nt:unstructured";
        for (name, part) in [("one", 1), ("two", 2)] {
            let target = format!("http://{}/bin/receive", self.parts[part].address);
            let form = format!("{kind}&jcr:content/enabled=true&jcr:content/transportUri={target}");
            self.post_ok(&format!("/etc/replication/agents.author/{name}"), &form);
        }
        let target = format!("http://{}/dispatcher/invalidate.cache", self.parts[3].address);
        let form = format!(
            "{kind}&jcr:content/enabled=true&jcr:content/serializationType=flush&jcr:content/transportUri={target}"
        );
        self.post_ok("/etc/replication/agents.publish/flush", &form);
        // Publishers get their agents as they get all content.
        self.post_ok("/etc/replication/agents.publish/flush", ":operation=activate");
        for number in 0..PAGES {
            let kind = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent";
            self.post_ok(&page(number), kind);
        }
    }

    fn post(&self, path: &str, form: &str) -> std::io::Result<u16> {
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
        ];
        let answer = ask(self.parts[0].address, "POST", path, &headers, form.as_bytes())?;
        Ok(answer.status)
    }

    fn post_ok(&self, path: &str, form: &str) {
        let answer = post(self.parts[0].address, &self.password, path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    }

    /// Sets a page's title and activates it.
    fn activate(&self, number: usize, title: &str) {
        self.post_ok(&page(number), &format!("jcr:content/jcr:title={title}"));
        self.post_ok(&page(number), ":operation=activate");
    }

    /// Returns what a visitor reads of all pages.
    fn content_of(&self, part: usize) -> String {
        let read = |number: usize| {
            get(self.parts[part].address, &format!("{}.infinity.json", page(number)))
        };
        (0..PAGES).map(|number| read(number).text()).collect::<Vec<_>>().join("\n")
    }
}

fn page(number: usize) -> String {
    format!("/content/farm{number}")
}

#[test]
fn every_publisher_ends_with_the_same_content_whoever_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut farm = Farm::start(dir.path());
    for number in 0..PAGES {
        farm.activate(number, "begin");
    }
    let mut titles = vec!["begin".to_owned(); PAGES];
    for round in 0..kills() {
        // The dispatcher holds copies of what was there before.
        farm.content_of(3);
        let victim = round % 4;
        for (number, title) in titles.iter_mut().enumerate() {
            *title = format!("round-{round}-{number}");
            if number == 1 {
                farm.parts[victim].kill();
                if victim == 0 {
                    // What was not acknowledged is asked for again.
                    assert!(farm.post(&page(number), "x=y").is_err());
                    farm.parts[victim].again();
                }
            }
            farm.activate(number, title);
        }
        if victim != 0 {
            farm.parts[victim].again();
        }
    }
    let headers = [("Authorization", basic("admin", &farm.password))];
    wait_until("the queues are empty", || {
        let queue = ask(farm.parts[0].address, "GET", "/api/v1/queue", &headers, b"").unwrap();
        let text = queue.text();
        assert_eq!(queue.status, 200, "{text}");
        text.matches("\"queued\":0").count() == 2
    });
    let is_newest = |content: &str| titles.iter().all(|title| content.contains(title.as_str()));
    let (one, two) = (farm.content_of(1), farm.content_of(2));
    assert!(is_newest(&one), "{one}");
    assert_eq!(one, two, "both publishers hold the same content");
    wait_until("the dispatcher serves the newest", || is_newest(&farm.content_of(3)));
}
