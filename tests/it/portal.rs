//! The portal of the sample site: visitors log in, order in six steps and log out, over a back end that may be dead.

use std::net::SocketAddr;
use std::path::Path;

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::legacy_system::LegacySystem;
use tympan_testkit::origin_server::refusing_addr;

use crate::program::{Answer, Demo, ask, get};

/// A customer at the dispatcher.
struct Visitor {
    at: SocketAddr,
    cookie: Option<String>,
}

impl Visitor {
    fn new(at: SocketAddr) -> Self {
        Self { at, cookie: None }
    }

    fn send(&mut self, method: &str, path: &str, form: &str) -> Answer {
        let mut headers = Vec::new();
        if let Some(cookie) = &self.cookie {
            headers.push(("Cookie", cookie.clone()));
        }
        if method == "POST" {
            headers.push(("Content-Type", "application/x-www-form-urlencoded".to_owned()));
            headers.push(("Origin", format!("http://{}", self.at)));
        }
        let answer = ask(self.at, method, path, &headers, form.as_bytes()).unwrap();
        if let Some(cookie) = answer.header("set-cookie") {
            let cookie = cookie.split(';').next().unwrap();
            self.cookie = (!cookie.ends_with('=')).then(|| cookie.to_owned());
        }
        answer
    }

    fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, "")
    }

    /// Sends a form and returns where it leads.
    fn submit(&mut self, path: &str, form: &str) -> String {
        let answer = self.send("POST", path, form);
        assert_eq!(answer.status, 303, "{path}: {}", answer.text());
        answer.header("location").unwrap().to_owned()
    }

    fn log_in(&mut self, user: &str, password: &str) -> String {
        let path = "/login?resource=%2Fportal%2Fstatus.html&failed=%2Fportal.html%3Flogin%3Dfailed";
        self.submit(path, &format!("user={user}&password={password}"))
    }
}

/// The names and passwords that the demo wrote.
fn customers(home: &Path) -> Vec<(String, String)> {
    let file = home.join("portal-users.csv");
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "nobody else reads the passwords");
    let text = std::fs::read_to_string(file).unwrap();
    let pairs = text.lines().map(|line| line.split_once(',').unwrap());
    pairs.map(|(name, password)| (name.to_owned(), password.to_owned())).collect()
}

#[test]
fn a_customer_logs_in_orders_in_six_steps_and_logs_out() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let customers = customers(dir.path());
    let (name, password) = &customers[0];
    let mut visitor = Visitor::new(demo.dispatcher);

    assert!(visitor.get("/portal.html").text().contains("name=\"password\""));
    let needed = visitor.get("/portal/status.html");
    assert_eq!(needed.header("location"), Some("/portal.html?login=needed"), "{}", needed.text());
    assert_eq!(visitor.log_in(name, "wrong"), "/portal.html?login=failed");
    assert!(visitor.get("/portal.html?login=failed").text().contains("do not match"));
    assert_eq!(visitor.cookie, None);
    assert_eq!(visitor.log_in(name, password), "/portal/status.html");

    let status = visitor.get("/portal/status.html");
    assert_eq!(status.status, 200, "{}", status.text());
    assert!(status.text().contains("Anna, customer since") && status.text().contains("W-998"));
    assert_eq!(status.header("cache-control"), Some("private, no-cache"));

    // No step can be left out, and none is kept half.
    assert_eq!(
        visitor.submit("/portal/order.5.html", "address=x&email=x"),
        "/portal/order.1.html?state=incomplete"
    );
    assert_eq!(visitor.submit("/portal/order.1.html", ""), "/portal/order.1.html?state=incomplete");
    let steps = [
        "pass=A+month+of+night+trains",
        "travellers=2&names=%3Cscript%3Ealert%281%29%3C%2Fscript%3E",
        "begin=2027-05-01",
        "berth=A+couchette&bicycle=yes",
        "address=Long+Road+1&email=anna%40example.com",
        "agree=yes",
    ];
    for (at, form) in steps.iter().enumerate() {
        let page = visitor.get(&format!("/portal/order.{}.html", at + 1));
        assert!(page.text().contains("aria-current=\"step\""), "{}", page.text());
        assert!(!page.text().contains("<script>alert"));
        assert_eq!(page.header("cache-control"), Some("private, no-cache"));
        let next = if at == 5 {
            "/portal/done.html".to_owned()
        } else {
            format!("/portal/order.{}.html", at + 2)
        };
        assert_eq!(visitor.submit(&format!("/portal/order.{}.html", at + 1), form), next);
    }
    assert!(
        visitor
            .get("/portal/done.html")
            .text()
            .contains("<strong>W-1001</strong>: A month of night trains")
    );
    assert!(visitor.get("/portal/status.html").text().contains("W-1001"));

    // Another customer sees nothing of it.
    let mut other = Visitor::new(demo.dispatcher);
    other.log_in(&customers[1].0, &customers[1].1);
    let status = other.get("/portal/status.html").text();
    assert!(status.contains("Ben, customer since") && !status.contains("W-1001"), "{status}");

    assert_eq!(visitor.submit("/logout?resource=%2Fportal.html", ""), "/portal.html");
    let gone = visitor.get("/portal/status.html");
    assert_eq!(gone.header("location"), Some("/portal.html?login=needed"));
    let cached = dir.path().join("dispatcher/cache/portal");
    assert!(!cached.exists(), "nothing of a visitor is in the cache");
}

#[test]
fn forms_of_other_sites_and_addresses_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let (name, password) = customers(dir.path()).remove(0);
    let form = format!("user={name}&password={password}");
    let send = |path: &str, headers: &[(&str, String)]| {
        let kind = ("Content-Type", "application/x-www-form-urlencoded".to_owned());
        let headers: Vec<_> = headers.iter().cloned().chain([kind]).collect();
        ask(demo.publish, "POST", path, &headers, form.as_bytes()).unwrap()
    };
    let foreign = [("Origin", "http://evil.example".to_owned())];
    assert_eq!(send("/login?resource=/portal.html", &foreign).status, 403);
    assert_eq!(send("/portal/order.1.html", &foreign).status, 403);
    let page = [foreign[0].clone(), ("Accept", "text/html".to_owned())];
    let refused = send("/portal/order.1.html", &page);
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("<html"), "visitors get a page: {}", refused.text());
    for elsewhere in ["//evil.example", "https://evil.example", "/\\evil.example", "portal"] {
        let answer = send(&format!("/login?resource={elsewhere}"), &[]);
        assert_eq!((answer.status, answer.header("location")), (200, None), "{elsewhere}");
    }
    // A page that takes no forms takes none.
    assert_eq!(send("/content/wayfare/en.html", &[]).status, 405);
    let other = [("Content-Type", "text/plain".to_owned())];
    assert_eq!(
        ask(demo.publish, "POST", "/portal/order.1.html", &other, b"x").unwrap().status,
        415
    );
    let large = vec![b'a'; 70_000];
    assert_eq!(ask(demo.publish, "POST", "/portal/order.1.html", &[], &large).unwrap().status, 413);
}

#[test]
fn a_dead_back_end_leaves_the_pages_decorated() {
    let dir = tempfile::tempdir().unwrap();
    let publish = dir.path().join("publish");
    std::fs::create_dir_all(&publish).unwrap();
    let config = format!("[back_ends.portal]\nurl = \"http://{}\"\n", refusing_addr());
    std::fs::write(publish.join("tympan.toml"), config).unwrap();
    let demo = Demo::start(dir.path());
    let (name, password) = customers(dir.path()).remove(0);
    let mut visitor = Visitor::new(demo.dispatcher);
    visitor.log_in(&name, &password);
    for path in ["/portal/status.html", "/portal/order.2.html", "/portal/done.html"] {
        let page = visitor.get(path);
        let text = page.text();
        assert_eq!(page.status, 200, "{path}: {text}");
        assert!(text.contains("does") && text.contains("not answer"), "{path}: {text}");
        assert!(text.contains("site-header") && text.contains("site-footer"), "{path}: {text}");
    }
    let away = "/portal/order.1.html?state=away";
    assert_eq!(visitor.submit("/portal/order.1.html", "pass=x"), away);
    assert!(visitor.get(away).text().contains("not kept yet"));
}

#[test]
fn a_slow_back_end_is_asked_once_for_a_crowd() {
    let dir = tempfile::tempdir().unwrap();
    let publish = dir.path().join("publish");
    std::fs::create_dir_all(&publish).unwrap();
    let legacy = LegacySystem::start(
        std::time::Duration::from_millis(300),
        "{\"name\": \"Anna\", \"since\": 1970, \"orders\": [], \"draft\": {}, \"step\": 1, \"start\": \"sea\"}",
    );
    let config = format!(
        "[back_ends.portal]\nurl = \"http://{}\"\nmax_age = \"0s\"\ntimeout = \"60s\"\n",
        legacy.addr()
    );
    std::fs::write(publish.join("tympan.toml"), config).unwrap();
    let demo = Demo::start(dir.path());
    let (name, password) = customers(dir.path()).remove(0);
    let mut visitor = Visitor::new(demo.publish);
    visitor.log_in(&name, &password);
    let cookie = visitor.cookie.clone().unwrap();
    let crowd: Vec<_> = (0..16)
        .map(|_| {
            let (at, cookie) = (demo.publish, cookie.clone());
            std::thread::spawn(move || {
                ask(at, "GET", "/portal/status.html", &[("Cookie", cookie)], b"").unwrap()
            })
        })
        .collect();
    for one in crowd {
        let page = one.join().unwrap();
        assert!(page.text().contains("customer since 1970"), "{}", page.text());
    }
    assert_eq!(
        legacy.max_concurrent_requests(),
        1,
        "one address is asked by one request at a time"
    );
    assert!(legacy.request_count() <= 16);
}

#[test]
fn two_users_get_one_file_and_two_greetings() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let customers = customers(dir.path());
    let path = "/content/wayfare/portal/start.rail.html";
    let mut pages = Vec::new();
    for (name, password) in &customers[..2] {
        let mut visitor = Visitor::new(demo.dispatcher);
        visitor.log_in(name, password);
        pages.push(visitor.get(path));
    }
    for (page, (name, _)) in pages.iter().zip(&customers) {
        let text = page.text();
        assert!(text.contains(&format!("<a href=\"/portal/status.html\">{name}</a>")), "{text}");
        assert_eq!(page.header("cache-control"), Some("private, no-cache"));
    }
    assert!(
        get(demo.dispatcher, path).text().contains("Welcome. <a href=\"/portal.html\">Log in</a>")
    );
    let file = dir.path().join("dispatcher/cache").join(&path[1..]);
    let stored = std::fs::read_to_string(&file).unwrap();
    assert!(stored.contains("<!--#include virtual="), "{stored}");
    for (name, _) in &customers {
        assert!(!stored.contains(&format!(">{name}<")), "nobody's name is in the file");
    }
    // Both were logged in, so the page was drawn for each and for everybody; the file came once.
    assert_eq!(
        pages[0].text().replace(&customers[0].0, "NAME"),
        pages[1].text().replace(&customers[1].0, "NAME")
    );
}

#[test]
fn each_of_ten_start_pages_is_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let variants = [
        "slow",
        "rail",
        "sea",
        "mountains",
        "cities",
        "night",
        "walking",
        "table",
        "craft",
        "practical",
    ];
    let path = |variant: &str| format!("/content/wayfare/portal/start.{variant}.html");
    for _ in 0..3 {
        for variant in variants {
            let page = get(demo.dispatcher, &path(variant));
            assert_eq!(page.status, 200, "{variant}");
            assert!(page.text().contains("class=\"card"), "{variant}: {}", page.text());
        }
    }
    for variant in variants {
        assert_eq!(demo.renders_of(&path(variant)), 1, "{variant}");
    }
    let other = get(demo.dispatcher, &path("nonsense"));
    assert_eq!(other.header("location"), Some("/portal/start.html"), "invented ones fill nothing");
    let other = get(demo.dispatcher, &path("rail.sea"));
    assert_eq!(other.header("location"), Some("/portal/start.html"), "nor do two at once");
}

#[test]
fn pictures_go_with_their_page_and_stay_with_others() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let base = "/content/wayfare/portal";
    let pictures = |page: &str| {
        ["title", "nav.normal", "nav.active"].map(|kind| format!("{base}/{page}.{kind}.png"))
    };
    let all: Vec<String> = ["start", "status"].iter().flat_map(|page| pictures(page)).collect();
    for path in &all {
        let picture = get(demo.dispatcher, path);
        assert_eq!(
            (picture.status, picture.header("content-type")),
            (200, Some("image/png")),
            "{path}"
        );
        assert!(picture.body.starts_with(b"\x89PNG"));
    }
    let page = format!("{base}/start.html");
    assert!(
        get(demo.dispatcher, &page).text().contains("start.title.png\" alt=\"Your start page\"")
    );
    let cached = |path: &str| dir.path().join("dispatcher/cache").join(&path[1..]);
    let before: Vec<Vec<u8>> =
        all.iter().map(|path| std::fs::read(cached(path)).unwrap()).collect();
    // What Adobe's flush agent sends: the page's files go, pages everywhere are invalidated, other pictures stay.
    let headers = [
        ("CQ-Action", "Activate".to_owned()),
        ("CQ-Handle", format!("{base}/start")),
        ("Content-Type", "text/plain".to_owned()),
    ];
    let flushed =
        ask(demo.dispatcher, "POST", "/dispatcher/invalidate.cache", &headers, b"").unwrap();
    assert_eq!(flushed.status, 200);
    for path in pictures("start") {
        assert!(!cached(&path).exists(), "{path} went with its page");
    }
    let renders = |path: &str| demo.renders_of(path);
    for path in pictures("status") {
        get(demo.dispatcher, &path);
        assert_eq!(renders(&path), 1, "{path} stayed though its page was invalidated");
    }
    // A new title, activated: the picture follows.
    let content = format!("{base}/start/jcr:content");
    assert_eq!(demo.post(&content, "./jcr:title=Begin+here&./navTitle=Begin").status, 200);
    assert_eq!(demo.post(&format!("{base}/start"), ":operation=activate").status, 200);
    wait_until("the picture shows the new title", || {
        let picture = get(demo.dispatcher, &all[0]);
        picture.status == 200 && picture.body != before[0]
    });
}
