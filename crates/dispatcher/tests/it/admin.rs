//! The second listener: what it tells, and to whom.

use std::net::SocketAddr;

use tokio::sync::oneshot;
use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes};
use tympan_web::listen::{ListenerOptions, PortReuse, bind_listener};

use crate::front::{Front, Reply, Setup};

/// A front that is watched; dropping it stops the watching.
struct Watched {
    front: Front,
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watched {
    fn start(setup: &Setup, more: ListenerOptions) -> Self {
        let front = Front::start(setup);
        let listener =
            bind_listener(SocketAddr::from(([127, 0, 0, 1], 0)), PortReuse::Exclusive).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let dispatcher = front.dispatcher.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let until = async { drop(stopped.await) };
            runtime.block_on(dispatcher.serve_admin(listener, more, until)).unwrap();
        });
        Self { front, addr, stop: Some(stop), thread: Some(thread) }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let length = body.len();
        let host = if headers.contains("Host:") { "" } else { "Host: 127.0.0.1\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        Reply::parse(&exchange_bytes(self.addr, request.as_bytes()), method == "HEAD")
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", "")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

const TOKEN: &str = "Authorization: Bearer a-token-of-16-characters\r\n";
const SETTINGS: &str = "[admin]\ntoken = \"a-token-of-16-characters\"";
const SHARE: &str = "/x-share { /percent \"10\" }";

#[test]
fn it_tells_what_the_dispatcher_does() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let watched = Watched::start(
        &Setup { renders: vec![origin.addr()], ..Setup::default() },
        ListenerOptions::default(),
    );
    for _ in 0..9 {
        watched.front.get("/content/site/a.html");
    }
    watched.front.get("/content/site/b.html?q=1");
    let page = watched.get("/");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    for expected in
        ["Farm site", "<td>r0</td>", "/content/site", "request contained a query string"]
    {
        assert!(page.body.contains(expected), "{expected} in {}", page.body);
    }
    let json: serde_json::Value = serde_json::from_str(&watched.get("/status.json").body).unwrap();
    let farm = &json["farms"][0];
    assert_eq!(
        farm["requests"],
        serde_json::json!([["hit", 8], ["stale", 0], ["miss", 1], ["pass", 1]])
    );
    assert_eq!(farm["hit_ratio"], 80.0);
    assert_eq!(farm["renders"][0]["answered"], 2);
    assert_eq!(farm["top"][0][0], "/content/site/a.html");
    let metrics = watched.get("/metrics");
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    for expected in [
        "\ntympan_dispatcher_hits_total 8\n",
        "\ntympan_dispatcher_request_duration_seconds_count{farm=\"site\",method=\"GET\",status=\"2xx\"} 10\n",
        "\ntympan_dispatcher_render_requests_total{farm=\"site\",render=\"r0\",outcome=\"answered\"} 2\n",
        "\ntympan_dispatcher_connections_total 10\n",
    ] {
        assert!(metrics.body.contains(expected), "{expected} in {}", metrics.body);
    }
    assert_eq!(watched.get("/nothing").status, 404);
    assert_eq!(watched.send("HEAD", "/metrics", "", "").status, 200);
}

#[test]
fn every_metric_has_its_head_once() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = Front::start(&Setup { renders: vec![origin.addr()], ..Setup::default() });
    front.get("/a.html");
    let text = front.dispatcher.prometheus_metrics();
    let mut heads = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# TYPE ") {
            let name = head.split(' ').next().unwrap().to_owned();
            assert!(heads.insert(name), "{line} twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                heads.contains(name) || base.is_some_and(|base| heads.contains(base)),
                "{line}"
            );
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
}

#[test]
fn health_names_what_is_wrong() {
    let origin = OriginServer::start_constant(OriginResponse::with_status(503));
    let watched = Watched::start(
        &Setup {
            farm: "/x-health { /failures 1 /pause 1000 }",
            renders: vec![origin.addr()],
            ..Setup::default()
        },
        ListenerOptions::default(),
    );
    assert_eq!(watched.get("/health").body, "ok\n");
    watched.front.get("/a");
    let health = watched.get("/health");
    assert_eq!((health.status, health.body.as_str()), (503, "farm site: render r0 is out\n"));
    assert!(watched.get("/").body.contains("no available render"));
}

#[test]
fn health_fails_with_the_only_render_that_is_dead() {
    let dead = tympan_testkit::origin_server::refusing_addr();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let start = |renders| {
        let setup = Setup { renders, ..Setup::default() };
        Watched::start(&setup, ListenerOptions::default())
    };
    let watched = start(vec![dead]);
    assert_eq!(watched.front.get("/a").status, 502);
    let health = watched.get("/health");
    assert_eq!((health.status, health.body.as_str()), (503, "farm site: render r0 is failing\n"));
    // One that answers is enough.
    let watched = start(vec![dead, origin.addr()]);
    for _ in 0..3 {
        assert_eq!(watched.front.get("/a?x").status, 200);
    }
    assert_eq!(watched.get("/health").status, 200);
}

#[test]
fn a_share_is_changed_by_who_shows_the_token() {
    let renders = vec![tympan_testkit::origin_server::refusing_addr()];
    let setup = Setup { farm: SHARE, settings: SETTINGS.to_owned(), renders, ..Setup::default() };
    let watched = Watched::start(&setup, ListenerOptions::default());
    let share = || watched.front.dispatcher.status().farms[0].share;
    assert_eq!(watched.send("PUT", "/shares/site", "", "50").status, 403);
    let wrong = "Authorization: Bearer another-token-of-many\r\n";
    assert_eq!(watched.send("PUT", "/shares/site", wrong, "50").status, 403);
    assert_eq!(share(), Some(10.0));
    assert_eq!(watched.send("PUT", "/shares/site", TOKEN, "12.5\n").status, 200);
    assert_eq!(share(), Some(12.5));
    for broken in ["", "-1", "101", "many", "NaN", &"1".repeat(100)] {
        assert_eq!(watched.send("PUT", "/shares/site", TOKEN, broken).status, 400, "{broken}");
    }
    assert_eq!(watched.send("PUT", "/shares/other", TOKEN, "50").status, 404);
    assert_eq!(watched.send("DELETE", "/shares/site", TOKEN, "").status, 405);
    assert_eq!(share(), Some(12.5));
}

#[test]
fn others_than_this_machine_show_the_token() {
    let renders = vec![tympan_testkit::origin_server::refusing_addr()];
    let setup = Setup { settings: SETTINGS.to_owned(), renders, ..Setup::default() };
    let watched = Watched::start(&setup, ListenerOptions::default());
    assert_eq!(watched.get("/metrics").status, 200);
    // A browser that was led here by a name of another site's choice.
    assert_eq!(watched.send("GET", "/metrics", "Host: evil.example\r\n", "").status, 403);
    for path in ["/", "/status", "/status.json", "/metrics", "/health", "/nothing"] {
        for host in ["evil.example", "evil.example:8081", "127.0.0.1.evil.example", "localhost."] {
            let named = format!("Host: {host}\r\n");
            assert_eq!(watched.send("GET", path, &named, "").status, 403, "{path} {host}");
            assert_eq!(watched.send("HEAD", path, &named, "").status, 403, "{path} {host}");
            assert_eq!(watched.send("PUT", "/shares/site", &named, "5").status, 403, "{host}");
        }
    }
    let shown = format!("Host: evil.example\r\n{TOKEN}");
    assert_eq!(watched.send("GET", "/metrics", &shown, "").status, 200);
    let proxies = vec!["127.0.0.1".parse().unwrap()].into();
    let watched = Watched::start(&setup, ListenerOptions { proxies, ..ListenerOptions::default() });
    let ask = |headers: &str| {
        let request = format!(
            "PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\nGET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n"
        );
        Reply::parse(&exchange_bytes(watched.addr, request.as_bytes()), false).status
    };
    assert_eq!((ask(""), ask(TOKEN)), (403, 200));
}

#[test]
fn a_short_token_is_refused() {
    let settings: tympan_dispatcher::DispatcherSettings =
        toml::from_str("[admin]\ntoken = \"short\"").unwrap();
    let config = crate::front::load(&Setup::default().text("/".as_ref())).config;
    let runtime = tympan_dispatcher::DispatcherRuntime::default();
    let error =
        tympan_dispatcher::Dispatcher::with_settings(config, &settings, runtime).unwrap_err();
    assert!(error.to_string().contains("at least 16 characters"), "{error}");
}

#[test]
fn an_uncached_address_is_explained() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let watched = Watched::start(
        &Setup { renders: vec![origin.addr()], ..Setup::default() },
        ListenerOptions::default(),
    );
    let explain = |url: &str| -> serde_json::Value {
        serde_json::from_str(&watched.get(&format!("/explain?url={url}")).body).unwrap()
    };
    let with_query = explain("/content/a.html%3Fq%3D1");
    assert_eq!(with_query["cache"], "not cacheable: request contained a query string");
    assert_eq!(with_query["is_served"], true);
    let absent = explain("/content/a.html");
    assert_eq!(absent["state"], "absent: the next request fetches it");
    watched.front.get("/content/a.html");
    assert!(explain("/content/a.html")["state"].as_str().unwrap().starts_with("fresh"));
    assert_eq!(watched.get("/explain").status, 400);
    assert_eq!(watched.get("/explain?url=%2Fa%2F..%2F..%2Fb").status, 400);
}

#[test]
fn an_administrator_flushes_paths_with_the_token() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let watched = Watched::start(
        &Setup { renders: vec![origin.addr()], settings: SETTINGS.to_owned(), ..Setup::default() },
        ListenerOptions::default(),
    );
    let pages = ["/content/a.html", "/content/b.html"];
    let fetched = || {
        pages.iter().for_each(|page| drop(watched.front.get(page)));
        origin.request_count()
    };
    assert_eq!((fetched(), fetched()), (2, 2));
    let body = r#"{"paths":["/content/a"]}"#;
    assert_eq!(watched.send("POST", "/flush", "", body).status, 403);
    assert_eq!(fetched(), 2);
    let done = watched.send("POST", "/flush", TOKEN, body);
    assert_eq!(done.status, 200, "{}", done.body);
    let counts: serde_json::Value = serde_json::from_str(&done.body).unwrap();
    assert_eq!(counts, serde_json::json!({ "farms": 1, "paths": 1 }));
    assert_eq!(fetched(), 3, "only the flushed page is fetched again");
    for wrong in ["", "{}", r#"{"paths":[]}"#, r#"{"paths":["a"]}"#, r#"{"paths":["/a"],"x":1}"#] {
        assert_eq!(watched.send("POST", "/flush", TOKEN, wrong).status, 400, "{wrong}");
    }
    assert_eq!(watched.send("DELETE", "/flush", TOKEN, "").status, 405);
}
