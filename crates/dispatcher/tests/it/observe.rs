//! What an operator sees (`OB`): log lines, counters, explanations.

use std::net::SocketAddr;
use std::path::Path;
use std::time::SystemTime;

use http::{HeaderMap, Method};
use tympan_dispatcher::config::DispatcherConfig;
use tympan_dispatcher::log::{DispatcherLog, LogLevel};
use tympan_dispatcher::{
    Dispatcher, DispatcherClock, DispatcherRuntime, DispatcherSettings, ExplainedRequest,
    RequestExplanation, explain_request,
};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, exchange_bytes, refusing_addr};
use tympan_web::access_log;
use tympan_web::listen::{ListenerOptions, PortReuse, bind_listener};
use tympan_web::log_file::LogFile;

use crate::front::{Setup, front, load};

/// Serves while `visit` asks, and returns the text of the dispatcher's log and of its access log.
fn logs_of(docroot: &Path, origin: &OriginServer, visit: fn(SocketAddr)) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let (file, access) = (folder.path().join("dispatcher.log"), folder.path().join("access.log"));
    let setup = Setup {
        farm:
            "/filter { /0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /url \"/closed*\" } }
               /auth_checker { /url \"/check\" /filter { /0 { /type \"deny\" /glob \"*\" } } }",
        cache: "/enableTTL 1 /ignoreUrlParams { /0 { /type \"allow\" /glob \"utm_*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    let dead = refusing_addr().port();
    let text = setup.text(docroot);
    let render = format!("/renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{dead}\" }} }}");
    let text = format!(
        "{} /dead {{ /virtualhosts {{ \"dead\" }} /numberOfRetries 1 /retryDelay 0 {render} }}
           /shut {{ /virtualhosts {{ \"shut\" }} {render} /cache {{ /docroot \"{}\"
             /allowedClients {{ /0 {{ /type \"deny\" /glob \"*\" }} }} }} }} }}",
        text.strip_suffix('}').unwrap(),
        docroot.display()
    );
    let runtime = DispatcherRuntime {
        clock: DispatcherClock::new(SystemTime::now),
        log: DispatcherLog { file: Some(LogFile::open(&file).unwrap()), level: LogLevel::Trace },
        access_log: Some(LogFile::open(&access).unwrap()),
        trust: None,
        ..DispatcherRuntime::default()
    };
    let dispatcher = Dispatcher::new(load(&text).config, runtime.clone()).unwrap();
    let listener = bind_listener(([127, 0, 0, 1], 0).into(), PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let client = std::thread::spawn(move || {
        visit(addr);
        drop(stop);
    });
    let until = async { drop(stopped.await) };
    tokio.block_on(dispatcher.serve(listener, ListenerOptions::default(), until)).unwrap();
    client.join().unwrap();
    runtime.log.file.unwrap().flush();
    runtime.access_log.unwrap().flush();
    let read = |file| std::fs::read_to_string(file).unwrap();
    (read(&file), read(&access))
}

/// A miss, a hit, a flush, a forged line, and enough hits for the ratio.
fn visit(addr: SocketAddr) {
    let send = |text: String| drop(exchange_bytes(addr, text.as_bytes()));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n");
    let last = "Connection: close\r\n";
    send(format!("{}{last}\r\n", get("/content/x.html")));
    send(format!("{}{last}\r\n", get("/content/x.html")));
    let flush = "CQ-Action: Activate\r\nCQ-Handle: /content/x\r\n";
    send(format!("{}{flush}{last}\r\n", get("/dispatcher/invalidate.cache")));
    send(format!("{}{last}\r\n", get("/a%0aforged.html")));
    for path in [
        "/content/x.html?utm_source=x",
        "/content/x.html?utm_source=x&page=2",
        "/content/ttl.html",
        "/content/ttl.html",
        "/content/file.v1",
        "/content/file.v1/suffix/s.html",
        "/content/brief.html",
        "/content/brief.html",
        "/content/old.html",
        "/closed.html",
        "/../x",
    ] {
        send(format!("{}{last}\r\n", get(path)));
    }
    send(format!("GET /a HTTP/1.1\r\nHost: dead\r\n{last}\r\n"));
    let others = "CQ-Action: Activate\r\nCQ-Handle: /content/none\r\n";
    send(format!("{}{others}{last}\r\n", get("/dispatcher/invalidate.cache")));
    send(format!("{}{last}\r\n", get("/content/old.html")));
    let shut = "GET /dispatcher/invalidate.cache HTTP/1.1\r\nHost: shut\r\n";
    send(format!("{shut}{others}{last}\r\n"));
    let page = get("/content/y.html");
    send(format!("{}{page}{last}\r\n", format!("{page}\r\n").repeat(1100)));
}

#[test]
fn ob129_ob131_the_log_reads_as_scripts_expect() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/content/ttl.html" => {
            OriginResponse::html("page").with_header("Cache-Control", "max-age=1000")
        }
        "/content/brief.html" => {
            OriginResponse::html("page").with_header("Cache-Control", "max-age=0")
        }
        _ => OriginResponse::html("page"),
    });
    let folder = tempfile::tempdir().unwrap();
    let docroot = folder.path().join("docroot");
    let (text, access) = logs_of(&docroot, &origin, visit);
    let root = docroot.display();
    let pid = std::process::id();
    for expected in [
        format!("[D] [pid {pid}] farms[site].cache.docroot = {root}"),
        "] checking [/content/x.html]".to_owned(),
        "] cache-action for [/content/x.html]: CREATE".to_owned(),
        format!("] Cache file successfully created: {root}/content/x.html"),
        "] \"GET /content/x.html\" - miss [site/r0] ".to_owned(),
        format!("] cache file is newer than lastflush -> use cache [{root}/content/x.html]"),
        "] cache-action for [/content/x.html]: DELIVER".to_owned(),
        "] \"GET /content/x.html\" - hit [site/-] ".to_owned(),
        "] Found farm site for flush".to_owned(),
        "] Activation detected: action=Activate [/content/x]".to_owned(),
        format!("] Touched {root}/.stat"),
        "] \"GET /dispatcher/invalidate.cache\" 200 purge [site/-] ".to_owned(),
        "] \"GET /a\\nforged.html\" - miss [site/r0] ".to_owned(),
        "] Current cache hit ratio: 98.".to_owned(),
        format!("] Connected to backend r0 (127.0.0.1:{})", origin.addr().port()),
        "] Query string ignored: utm_source=x".to_owned(),
        "] Name not in ignored URL parameters ACL: page".to_owned(),
        "] request contains a query string: utm_source=x&page=2".to_owned(),
        "] cache-action for [/content/x.html]: NONE".to_owned(),
        format!("] cache file has not expired: {root}/content/ttl.html"),
        format!("] cache file has expired: {root}/content/brief.html"),
        format!("] cache file is older than lastflush -> flush [{root}/content/old.html]"),
        format!(
            "] Unable to create parent directory {root}/content/file.v1/suffix: Not a directory"
        ),
        "] Found farm shut for flush".to_owned(),
        "] Flushing rejected from 127.0.0.1".to_owned(),
        "] \"GET /dispatcher/invalidate.cache\" 403 none [shut/-] ".to_owned(),
        "] AuthChecker: initialized with URL '/check'.".to_owned(),
        "] Filter rejects: GET /closed.html HTTP/1.1".to_owned(),
        "] 'GET /closed.html HTTP/1.1' was blocked because of /1".to_owned(),
        "] Unable to connect to any backend in farm dead".to_owned(),
        "] request declined".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected} in {text}");
    }
    let is_whole = |line: &str| line.starts_with('[') && line.contains("] [pid ");
    assert!(text.lines().all(is_whole), "{text}");
    let first = access_log::parse_access_log_line(access.lines().next().unwrap()).unwrap();
    assert_eq!(first.request, "GET /content/x.html HTTP/1.1");
    assert_eq!((first.status, first.body_bytes), (200, Some(4)));
    assert_eq!(first.client, "127.0.0.1");
}

#[test]
fn ob132_the_cache_speaks_only_when_asked_and_allowed() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let quiet = crate::front::Front::start(&Setup {
        farm: "/info 0",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    assert_eq!(quiet.get("/a.html").header("x-cache-info"), None);
    let open = front(&origin, "");
    let request = b"GET /a.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let answer = exchange_bytes(open.addr, request);
    assert!(!String::from_utf8_lossy(&answer).contains("x-cache-info"));
    assert!(open.get("/a.html").is_hit());
}

#[test]
fn counters_add_up() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front(&origin, "");
    front.get("/a.html");
    front.get("/a.html");
    front.get("/a");
    front.flush("Activate", "/a", &[]);
    for (name, expected) in [
        ("misses_total", 1),
        ("hits_total", 1),
        ("passes_total", 1),
        ("flushes_total", 1),
        ("stored_total", 1),
        ("stored_bytes_total", 4),
        ("files_deleted_total", 1),
        ("fetches", 0),
    ] {
        assert_eq!(front.metric(name), expected, "{name}");
    }
}

#[test]
fn an_explanation_names_farm_rule_file_and_state() {
    let folder = tempfile::tempdir().unwrap();
    let text = Setup {
        farm: "/filter { /0 { /type \"deny\" /url \"*\" } /pages { /type \"allow\" /extension \"html\" } }",
        ..Setup::default()
    }
    .text(folder.path());
    let config = load(&text).config;
    let ask = |url: &str| {
        let now = SystemTime::now();
        ask(&config, url, now).unwrap()
    };
    let absent = ask("http://www.example.com/content/a.html?x=1");
    assert_eq!(
        absent.request,
        "GET /content/a.html?x=1 HTTP/1.1 at host `www.example.com` over http"
    );
    assert!(
        absent.farm.starts_with("/site (test.any:1:10), by its virtual hosts"),
        "{}",
        absent.farm
    );
    assert!(absent.filter.starts_with("allowed by /pages (test.any:"), "{}", absent.filter);
    assert_eq!(absent.cache, "not cacheable: request contained a query string");
    let denied = ask("/content/a.json");
    assert!(denied.filter.starts_with("denied by /0") && !denied.is_served, "{denied}");
    std::fs::write(folder.path().join("a.html"), "page").unwrap();
    let fresh = ask("/a.html");
    assert_eq!(fresh.cache, format!("cacheable as {}", folder.path().join("a.html").display()));
    assert!(fresh.state.unwrap().starts_with("fresh, fetched "));
    assert_eq!(ask("/b.html").state.unwrap(), "absent: the next request fetches it");
    let later = std::fs::File::create(folder.path().join(".stat")).unwrap();
    later.set_modified(SystemTime::now() + std::time::Duration::from_secs(1)).unwrap();
    assert!(ask("/a.html").state.unwrap().starts_with("stale, fetched "));
    let climbing = ask_with(&config, "", "/../x", SystemTime::now());
    assert!(climbing.is_err());
}

fn ask(
    config: &DispatcherConfig,
    url: &str,
    now: SystemTime,
) -> Result<RequestExplanation, tympan_dispatcher::Error> {
    ask_with(config, "", url, now)
}

fn ask_with(
    config: &DispatcherConfig,
    settings: &str,
    url: &str,
    now: SystemTime,
) -> Result<RequestExplanation, tympan_dispatcher::Error> {
    let settings: DispatcherSettings = toml::from_str(settings).unwrap();
    let question = ExplainedRequest { method: &Method::GET, url, headers: &HeaderMap::new(), now };
    explain_request(config, &settings, &question)
}

#[test]
fn explain_applies_the_rules_of_hosts_first() {
    let config = load(&Setup::default().text("/docroot".as_ref())).config;
    let settings = r#"
        decline_root = true
        [[host]]
        names = ["www.example.com"]
        [[host.rule]]
        match = '^/old$'
        redirect = "/new.html"
        status = 301
        [[host.rule]]
        match = '^/gone$'
        answer = 410
        [[host.rule]]
        match = '^/api/(.*)$'
        proxy = "http://127.0.0.1:1/$1"
        [[host.rule]]
        match = '^/(en|de)/(.*)$'
        rewrite = "/content/$1/$2"
    "#;
    let told = |path: &str| {
        let url = format!("http://www.example.com{path}");
        let told = ask_with(&config, settings, &url, SystemTime::now()).unwrap();
        (told.rules.unwrap_or_default(), told.cache, told.is_served)
    };
    let not_asked = "not consulted".to_owned();
    let moved = "redirected with 301 to http://www.example.com/new.html".to_owned();
    assert_eq!(told("/old"), (moved, not_asked.clone(), true));
    assert_eq!(told("/gone"), ("answered with 410".to_owned(), not_asked.clone(), false));
    let proxied = "answered by http://127.0.0.1:1/x, never cached".to_owned();
    assert_eq!(told("/api/x"), (proxied, not_asked.clone(), true));
    assert_eq!(told("/").0, "answered with 404 by `decline_root`");
    let (rules, cache, _) = told("/en/a.html");
    assert_eq!(rules, "rewritten to /content/en/a.html");
    assert_eq!(cache, "cacheable as /docroot/content/en/a.html");
    assert_eq!(told("/x.html").0, "");
}

#[test]
fn a_host_without_a_farm_is_warned_of_at_each_request() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dispatcher.log");
    let log = DispatcherLog { file: Some(LogFile::open(&file).unwrap()), level: LogLevel::Info };
    let front = crate::front::Front::start(&Setup {
        farm: "/virtualhosts { \"other.example.com\" }",
        renders: vec![origin.addr()],
        log: log.clone(),
        ..Setup::default()
    });
    for host in ["www.example.com", "other.example.com"] {
        // What the lane answers, the memory behind hyper, and the full way.
        for more in
            ["Connection: close", "Connection: close, x", "Connection: close\r\nX-Unknown: 1"]
        {
            for _ in 0..3 {
                let request = format!("GET /a.html HTTP/1.1\r\nHost: {host}\r\n{more}\r\n\r\n");
                let answer = exchange_bytes(front.addr, request.as_bytes());
                assert!(answer.starts_with(b"HTTP/1.1 200"));
            }
        }
    }
    assert!(front.metric("fast_path_hits_total") >= 2, "the lane took part");
    assert!(front.metric("memory_hits_total") > front.metric("fast_path_hits_total"));
    drop(front);
    log.file.unwrap().flush();
    let text = std::fs::read_to_string(&file).unwrap();
    let warned = |host: &str| {
        let warning = format!(
            "[W] [pid {}] No farm matches host '{host}', selected last farm 'site'",
            std::process::id()
        );
        text.lines().filter(|line| line.ends_with(&warning)).count()
    };
    assert_eq!((warned("www.example.com"), warned("other.example.com")), (9, 0), "{text}");
}
