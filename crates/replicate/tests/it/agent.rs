//! Agents as content: what goes which way, in which form, and what becomes of what cannot go.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::watch;
use tympan_content::{
    ChunkId, NodePath, Property, Repository, Snapshot, Subtree, SubtreeScope, Value, ValueType,
    Viewer,
};
use tympan_jobs::{
    JOB_MIGRATIONS, JobFilter, JobQueues, JobState, JobWorker, JobWorkerOptions, QueueConfig,
};
use tympan_replicate::{
    AffectedUrlResolver, AffectedUrlSet, HomePairs, ReplicationAction, ReplicationRequest,
    ReplicationStatus, Replicator, RequestRecording, agent_topic, read_agents,
    require_replicate_permission, stamped_status, store_request_jobs,
};
use tympan_testkit::StateDatabase;

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// A cache that notes each request: its first line, headers in small letters, and body.
pub(crate) struct Cache {
    pub(crate) target: String,
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    /// What it answers; with [`STUMBLING`], 503 to every other request, beginning with the first one.
    pub(crate) status: Arc<AtomicU16>,
}

pub(crate) const STUMBLING: u16 = 0;

impl Cache {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}/invalidate", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let status = Arc::new(AtomicU16::new(200));
        let (noted, answered) = (seen.clone(), status.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (noted, answered) = (noted.clone(), answered.clone());
                std::thread::spawn(move || answer(stream, &noted, &answered));
            }
        });
        Self { target, seen, status }
    }

    pub(crate) async fn wait_for(&self, count: usize) -> Vec<String> {
        while self.seen.lock().len() < count {
            tokio::task::yield_now().await;
        }
        self.seen.lock().clone()
    }
}

fn answer(stream: std::net::TcpStream, noted: &Mutex<Vec<String>>, status: &AtomicU16) {
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
            // Only the first line keeps its case.
            let line = if head.is_empty() { line } else { line.to_lowercase() };
            if let Some(count) = line.strip_prefix("content-length:") {
                length = count.trim().parse().unwrap();
            }
            head.push_str(&line.replace('\r', ""));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let count = {
            let mut noted = noted.lock();
            noted.push(format!("{head}\n{}", String::from_utf8(body).unwrap()));
            noted.len()
        };
        let status = match status.load(Ordering::SeqCst) {
            STUMBLING if count % 2 == 1 => 503,
            STUMBLING => 200,
            status => status,
        };
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

pub(crate) fn put(repository: &Repository, at: &str, tree: Subtree) {
    let mut session = repository.session("ann").unwrap();
    let mut folder = NodePath::root();
    let target = path(at);
    for name in target.parent().unwrap().names() {
        folder = folder.child(name).unwrap();
        if session.node(&folder).unwrap().is_none() {
            session.add_node(&folder, "sling:Folder").unwrap();
        }
    }
    session.put_node(&target, tree).unwrap();
    session.commit("put", SystemTime::now()).unwrap();
}

pub(crate) fn page(name: &str, title: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
    Subtree::new(name, "cq:Page").with_child(content)
}

pub(crate) fn put_agent(
    repository: &Repository,
    role: &str,
    name: &str,
    properties: &[(&str, Property)],
) {
    let mut content = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("enabled", Property::Single(Value::Boolean(true)));
    for (property, value) in properties {
        content = content.with_property(*property, value.clone());
    }
    let tree = Subtree::new(name, "cq:Page").with_child(content);
    put(repository, &format!("/etc/replication/agents.{role}/{name}"), tree);
}

pub(crate) fn texts(texts: &[&str]) -> Property {
    let values = texts.iter().map(|text| Value::String((*text).to_owned())).collect();
    Property::List(ValueType::String, values)
}

pub(crate) async fn queues(dir: &tempfile::TempDir) -> JobQueues {
    let state = StateDatabase::open(&dir.path().join("state.db")).await.unwrap();
    state.migrate_tables("jobs", JOB_MIGRATIONS).await.unwrap();
    JobQueues::new(state.pool().clone())
}

pub(crate) fn replicator(
    role: &'static str,
    repository: &Repository,
    queues: &JobQueues,
) -> Replicator {
    Replicator::new(
        role,
        repository.clone(),
        queues.clone(),
        "key".to_owned(),
        HomePairs::default(),
    )
}

/// A ledger that knows one page which shows another.
#[derive(Debug)]
pub(crate) struct Ledger;

impl AffectedUrlResolver for Ledger {
    fn find_affected_urls(
        &self,
        _before: &Snapshot,
        _after: &Snapshot,
        changed: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        let is_known = changed.iter().any(|path| path.as_str() == "/content/a");
        let urls = ["/content/teaser.html".to_owned(), "/content/a.html".to_owned()];
        Ok(if is_known { AffectedUrlSet::Urls(urls.to_vec()) } else { AffectedUrlSet::Unknown })
    }
}

/// A kind, more properties, the requests it takes, and what they hold and do not hold.
type Form<'a> = (&'a str, &'a [(&'a str, Property)], usize, &'a [&'a str], &'a [&'a str]);

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_agent_flushes_in_its_form() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let cache = Cache::start();
    put_agent(&repository, "publish", "one", &[("transportUri", Property::text(&*cache.target))]);
    put(&repository, "/content/before", page("before", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Ledger));
    let agent = path("/etc/replication/agents.publish/one/jcr:content");
    let switch = |properties: &[(&str, Property)]| {
        let mut session = repository.session("ann").unwrap();
        for (name, value) in properties {
            session.set_property(&agent, name, value.clone()).unwrap();
        }
        session.commit("switch", SystemTime::now()).unwrap();
    };
    let (stop, stopped) = watch::channel(false);
    sender.store_flushes(SystemTime::now()).await.unwrap();
    tokio::spawn(sender.clone().run(stopped));
    let mut count = 0;
    // A switch counts for the next flush; nothing is restarted.
    let forms: [Form<'_>; 6] = [
        (
            "flush",
            &[],
            1,
            &["POST /invalidate", "cq-action: activate", "cq-handle: /content/a", "x-tympan-seq: "],
            &["cq-action-scope", "/content/a.html"],
        ),
        ("flush_refetch", &[], 1, &["cq-handle: /content/a", "\n/content/a.html\n"], &["scope"]),
        (
            "precise",
            &[],
            1,
            &[
                "cq-handle: /content/a",
                "cq-action-scope: resourceonly",
                "content-type: text/plain",
                "\n/content/a.html\n/content/teaser.html\n",
            ],
            &[],
        ),
        ("purge", &[], 3, &["PURGE /content/a.html HTTP/1.1"], &["cq-action"]),
        (
            "purge_keys",
            &[],
            1,
            &[
                "PURGE /invalidate",
                "surrogate-key: /content/a /content/a.html /content/teaser.html\n",
            ],
            &["cq-action"],
        ),
        (
            "purge_keys",
            &[
                ("protocolHTTPMethod", Property::text("POST")),
                ("protocolHTTPHeaders", texts(&["xkey-purge: p{path}", "Fastly-Key: secret"])),
            ],
            1,
            &["POST /invalidate", "xkey-purge: p/content/a\n", "fastly-key: secret"],
            &["surrogate-key"],
        ),
    ];
    for (round, (kind, more, requests, with, without)) in forms.into_iter().enumerate() {
        switch(&[&[("serializationType", Property::text(kind))], more].concat());
        sender.store_flushes(SystemTime::now()).await.unwrap();
        // What follows from the agent's own change is not what is looked at.
        while queues.statistics().count_jobs(&agent_topic("publish", "one")).await.unwrap() > 0 {
            tokio::task::yield_now().await;
        }
        count = cache.seen.lock().len().max(count);
        put(&repository, "/content/a", page("a", &format!("round {round}")));
        sender.store_flushes(SystemTime::now()).await.unwrap();
        let seen = cache.wait_for(count + requests).await;
        let seen = seen[count..].join("\n---\n");
        for text in with {
            assert!(seen.contains(text), "{kind}: no `{text}` in {seen}");
        }
        for text in without {
            assert!(!seen.contains(text), "{kind}: `{text}` in {seen}");
        }
        count += requests;
    }
    stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_for_some_paths_hears_of_every_url() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let cache = Cache::start();
    let properties = [
        ("transportUri", Property::text(&*cache.target)),
        ("serializationType", Property::text("precise")),
        ("paths", texts(&["/content/z"])),
    ];
    put_agent(&repository, "publish", "one", &properties);
    put(&repository, "/content/before", page("before", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Ledger));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    // One step with a path before it that the agent does not take.
    put(&repository, "/content/a", page("a", "x"));
    put(&repository, "/content/z", page("z", "x"));
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 1);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    let seen = cache.wait_for(1).await;
    for text in ["cq-handle: /content/a.html\n", "\n/content/a.html\n/content/teaser.html\n"] {
        assert!(seen[0].contains(text), "no `{text}` in {}", seen[0]);
    }
    stop.send_replace(true);
}

/// A ledger that lost what it knew of a folder.
#[derive(Debug)]
struct Forgetful;

impl AffectedUrlResolver for Forgetful {
    fn find_affected_urls(
        &self,
        _: &Snapshot,
        _: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        let (urls, folders) = (vec!["/content/a.html".to_owned()], vec!["/content/old".to_owned()]);
        Ok(AffectedUrlSet::UrlsAndFolders { urls, folders })
    }
}

/// A ledger of copies that were drawn from what nobody sees any more.
#[derive(Debug, Default)]
struct Astray {
    urls: Mutex<Vec<&'static str>>,
    stored: Mutex<Vec<ChunkId>>,
}

impl AffectedUrlResolver for Astray {
    fn find_affected_urls(
        &self,
        _: &Snapshot,
        _: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        Ok(AffectedUrlSet::Urls(self.urls.lock().iter().map(|url| (*url).to_owned()).collect()))
    }

    fn mark_flushes_stored(&self, root: ChunkId) {
        self.urls.lock().clear();
        self.stored.lock().push(root);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_rendered_in_between_is_flushed_although_nothing_differs() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let caches = ["precise", "purge", "purge_keys", "flush", "elsewhere"].map(|name| {
        let cache = Cache::start();
        let kind = if name == "elsewhere" { "precise" } else { name };
        let paths = if name == "elsewhere" { "/content/z" } else { "/content" };
        let properties = [
            ("transportUri", Property::text(&*cache.target)),
            ("serializationType", Property::text(kind)),
            ("paths", texts(&[paths])),
        ];
        put_agent(&repository, "publish", name, &properties);
        cache
    });
    put(&repository, "/content/a", page("a", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    let ledger = Arc::new(Astray::default());
    sender.set_url_resolver(ledger.clone());
    sender.store_flushes(SystemTime::now()).await.unwrap();
    // One at a page, and one where nothing is any more.
    *ledger.urls.lock() = vec!["/content/a.html", "/content/gone.html"];
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 5);
    let root = repository.snapshot().unwrap().root_id();
    assert_eq!(*ledger.stored.lock(), [root, root]);
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 0, "they are stored");
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    let [precise, purge, keys, plain, elsewhere] = &caches;
    for cache in [precise, elsewhere] {
        let seen = cache.wait_for(1).await;
        assert!(seen[0].contains("cq-action-scope: resourceonly\n"), "{seen:?}");
        assert!(seen[0].ends_with("\n\n/content/a.html\n/content/gone.html\n"), "{seen:?}");
    }
    let seen = purge.wait_for(3).await.join("\n");
    for url in ["/content/a.html", "/content/gone.html"] {
        assert!(seen.contains(&format!("PURGE {url} HTTP/1.1")), "{seen}");
    }
    let seen = keys.wait_for(1).await;
    assert!(seen[0].contains("/content/a.html /content/gone.html\n"), "{seen:?}");
    // One that goes by `.stat` files is told of the page.
    let seen = plain.wait_for(1).await;
    assert!(seen[0].contains("cq-handle: /content/a\n"), "{seen:?}");
    stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_dropped_with_its_folder() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let caches = ["precise", "purge_keys", "flush"].map(|kind| {
        let cache = Cache::start();
        let target = Property::text(&*cache.target);
        let properties = [("transportUri", target), ("serializationType", Property::text(kind))];
        put_agent(&repository, "publish", kind, &properties);
        cache
    });
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Forgetful));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    put(&repository, "/content/a", page("a", "x"));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    // What needs no account of URLs gets one flush of the page and of the folder that was made with it.
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    let [precise, keys, plain] = &caches;
    let seen = precise.wait_for(2).await;
    assert!(seen[0].contains("cq-action: delete\n"), "{seen:?}");
    assert!(seen[0].contains("cq-handle: /content/old\n"), "{seen:?}");
    assert!(!seen[0].contains("cq-action-scope"), "{seen:?}");
    assert!(seen[1..].iter().any(|one| one.ends_with("\n/content/a.html\n")), "{seen:?}");
    let seen = keys.wait_for(2).await;
    assert!(seen[0].contains("surrogate-key: all\n"), "{seen:?}");
    while queues.statistics().count_jobs(&agent_topic("publish", "flush")).await.unwrap() > 0 {
        tokio::task::yield_now().await;
    }
    let seen = plain.seen.lock().join("\n");
    assert!(seen.contains("cq-handle: /content/a\n") && !seen.contains("old"), "{seen}");
    stop.send_replace(true);
}

/// What nobody knows is what lies under the same `.stat` files: no flush says that nothing else is touched.
#[tokio::test(flavor = "multi_thread")]
async fn without_an_account_of_urls_a_page_goes_with_its_stat_files() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let caches = ["precise", "purge", "purge_keys"].map(|kind| {
        let cache = Cache::start();
        let target = Property::text(&*cache.target);
        let properties = [("transportUri", target), ("serializationType", Property::text(kind))];
        put_agent(&repository, "publish", kind, &properties);
        cache
    });
    put(&repository, "/content/before", page("before", "x"));
    let queues = queues(&dir).await;
    // `follow` alone asks nobody; a ledger that cannot tell gives the same answer.
    let sender = replicator("publish", &repository, &queues);
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    let [precise, purge, keys] = &caches;
    for (round, ask) in [None, Some(Ledger)].into_iter().enumerate() {
        if let Some(ledger) = ask {
            sender.set_url_resolver(Arc::new(ledger));
        }
        put(&repository, "/content/b", page("b", &format!("round {round}")));
        sender.store_flushes(SystemTime::now()).await.unwrap();
        let seen = precise.wait_for(round + 1).await;
        assert!(seen[round].contains("cq-action: activate\n"), "{seen:?}");
        assert!(seen[round].contains("cq-handle: /content/b\n"), "{seen:?}");
        assert!(!seen[round].contains("cq-action-scope"), "{seen:?}");
        assert!(seen[round].ends_with("\n/content/b.html\n"), "{seen:?}");
        let seen = purge.wait_for(2 * round + 2).await[2 * round..].join("\n");
        for line in ["PURGE /content/b HTTP/1.1", "PURGE /content/b.html HTTP/1.1"] {
            assert!(seen.contains(line), "{seen}");
        }
        let seen = keys.wait_for(round + 1).await;
        assert!(seen[round].contains("surrogate-key: /content/b\n"), "{seen:?}");
    }
    stop.send_replace(true);
}

/// A ledger that knows which URLs a page has.
#[derive(Debug)]
struct Forms;

impl AffectedUrlResolver for Forms {
    fn find_affected_urls(
        &self,
        _: &Snapshot,
        _: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        let urls = ["/content/b.html", "/content/b.print.html", "/content/teaser.html"];
        Ok(AffectedUrlSet::Urls(urls.map(str::to_owned).to_vec()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_gone_is_purged_in_all_its_forms() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let caches = ["precise", "purge", "purge_keys"].map(|kind| {
        let cache = Cache::start();
        let target = Property::text(&*cache.target);
        let properties = [("transportUri", target), ("serializationType", Property::text(kind))];
        put_agent(&repository, "publish", kind, &properties);
        cache
    });
    put(&repository, "/content/b", page("b", "x"));
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_url_resolver(Arc::new(Forms));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let mut session = repository.session("ann").unwrap();
    session.remove_node(&path("/content/b")).unwrap();
    session.commit("remove", SystemTime::now()).unwrap();
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    let [precise, purge, keys] = &caches;
    // The files of the handle go; what is gone is not fetched again.
    let seen = precise.wait_for(1).await;
    assert!(seen[0].contains("cq-action: delete\n"), "{seen:?}");
    assert!(seen[0].ends_with("\n\n/content/teaser.html\n"), "{seen:?}");
    let seen = purge.wait_for(4).await.join("\n");
    for url in ["/content/b", "/content/b.html", "/content/b.print.html", "/content/teaser.html"] {
        assert!(seen.contains(&format!("PURGE {url} HTTP/1.1")), "{url}: {seen}");
    }
    let seen = keys.wait_for(1).await;
    let expected =
        "surrogate-key: /content/b /content/b.html /content/b.print.html /content/teaser.html\n";
    assert!(seen[0].contains(expected), "{seen:?}");
    stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_waits_for_a_cache_that_refuses_and_others_go_on() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let (slow, fast) = (Cache::start(), Cache::start());
    slow.status.store(503, Ordering::SeqCst);
    for (name, cache) in [("slow", &slow), ("fast", &fast)] {
        let target = Property::text(&*cache.target);
        put_agent(
            &repository,
            "publish",
            name,
            &[("transportUri", target), ("serializationType", Property::text("flush"))],
        );
    }
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    for number in 0..5 {
        put(&repository, &format!("/content/p{number}"), page("p", "x"));
        sender.store_flushes(SystemTime::now()).await.unwrap();
    }
    // The folder above the first is a change of its own.
    fast.wait_for(6).await;
    while sender.blocked_reason("slow").is_none() {
        tokio::task::yield_now().await;
    }
    let reason = sender.blocked_reason("slow").unwrap();
    assert!(reason.contains("answered 503"), "{reason}");
    assert_eq!(sender.blocked_reason("fast"), None);
    assert!(sender.test_agent("slow").await.is_err() && sender.test_agent("fast").await.is_ok());
    slow.status.store(200, Ordering::SeqCst);
    slow.seen.lock().clear();
    assert!(sender.test_agent("slow").await.is_ok());
    let tests = slow.seen.lock().clone();
    assert!(tests.last().unwrap().contains("cq-action: test"), "{tests:?}");
    slow.seen.lock().clear();
    sender.retry_jobs("slow", SystemTime::now()).await.unwrap();
    while queues.statistics().count_jobs(&agent_topic("publish", "slow")).await.unwrap() > 0 {
        tokio::task::yield_now().await;
    }
    let handles: Vec<String> = slow
        .seen
        .lock()
        .iter()
        .filter_map(|one| Some(one.split("cq-handle: ").nth(1)?.lines().next()?.to_owned()))
        .collect();
    let order: Vec<&String> = handles.iter().filter(|one| one.contains("/content/p")).collect();
    let wanted: Vec<String> = (0..5).map(|number| format!("/content/p{number}")).collect();
    assert_eq!(order, wanted.iter().collect::<Vec<_>>(), "in order");
    stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_its_paths_and_is_paused_and_cleared() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let queues = queues(&dir).await;
    for name in ["en", "de"] {
        put(&repository, &format!("/content/{name}/a"), page("a", name));
        let paths = texts(&[&format!("/content/{name}")]);
        let target = Property::text("http://127.0.0.1:9/");
        put_agent(&repository, "author", name, &[("transportUri", target), ("paths", paths)]);
    }
    let wish = |at: &str, depth: SubtreeScope| ReplicationRequest {
        action: ReplicationAction::Activate,
        path: path(at),
        depth,
        user: "ann".to_owned(),
    };
    let count = |name: &'static str| {
        let queues = queues.clone();
        async move { queues.statistics().count_jobs(&agent_topic("author", name)).await.unwrap() }
    };
    let sender = replicator("author", &repository, &queues);
    let now = SystemTime::now();
    sender
        .replicate(Viewer::system(), vec![wish("/content/en/a", SubtreeScope::Document)], now)
        .await
        .unwrap();
    assert_eq!((count("en").await, count("de").await), (1, 0));
    sender
        .replicate(Viewer::system(), vec![wish("/content", SubtreeScope::Subtree)], now)
        .await
        .unwrap();
    assert_eq!((count("en").await, count("de").await), (2, 1), "a part of it is for each");
    put(&repository, "/content/fr", page("fr", "fr"));
    let other = [wish("/content/fr", SubtreeScope::Document)];
    let refused = store_request_jobs(&repository, &queues, &other, now).await.unwrap_err();
    assert!(refused.to_string().contains("no enabled agent accepts `/content/fr`"), "{refused}");
    assert_eq!(sender.clear_jobs("en").await.unwrap(), 2);
    assert_eq!((count("en").await, count("de").await), (0, 1));
    sender.clear_jobs("nobody").await.unwrap_err();
    sender.pause_agent("de", "ann", now).await.unwrap();
    assert_eq!(queues.paused_queues().await.unwrap(), [sender.queue_name_of("de")]);
    assert!(sender.resume_agent("de").await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_withdrawn_while_a_request_waits_count() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let (queues, now) = (queues(&dir).await, SystemTime::now());
    let target = Property::text("http://127.0.0.1:9/");
    put_agent(&repository, "author", "one", &[("transportUri", target)]);
    put(&repository, "/content/a", page("a", "x"));
    repository.install_initial_policies(now).unwrap();
    let mut session = repository.session("system").unwrap();
    session.accounts().add_user("eve", "x").unwrap();
    session.accounts().add_member("content-authors", "eve").unwrap();
    session.commit("let eve replicate", now).unwrap();
    let (viewer, user) = (Viewer::of_user(Some("eve")), "eve".to_owned());
    let (action, depth) = (ReplicationAction::Activate, SubtreeScope::Document);
    let request = ReplicationRequest { action, path: path("/content/a"), depth, user };
    let visible = repository.snapshot().unwrap().as_viewer(&viewer);
    require_replicate_permission(&visible, &request).unwrap();
    let content = repository.clone();
    let withdraw_and_record = async move |recording: RequestRecording| {
        let privileges = Property::parse_list(ValueType::Name, ["crx:replicate"]).unwrap();
        let entry = Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "eve")
            .with_property("rep:privileges", privileges);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        put(&content, "/content/a/rep:policy", policy);
        recording()
    };
    let sender = replicator("author", &repository, &queues);
    let refused = sender.replicate_in(viewer, vec![request], now, withdraw_and_record).await;
    let refused: tympan_replicate::Error = refused.unwrap_err();
    assert!(refused.to_string().contains("crx:replicate"), "{refused}");
    assert_eq!(queues.statistics().count_jobs(&agent_topic("author", "one")).await.unwrap(), 0);
    let node = repository.snapshot().unwrap().node(&path("/content/a")).unwrap().unwrap();
    assert_eq!(stamped_status(&node), ReplicationStatus::Never);
}

#[tokio::test(flavor = "multi_thread")]
async fn pausing_holds_under_the_name_that_the_configuration_gives() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let cache = Cache::start();
    put_agent(
        &repository,
        "publish",
        "one",
        &[
            ("transportUri", Property::text(&*cache.target)),
            ("serializationType", Property::text("flush")),
        ],
    );
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    let worker = JobWorker::new(queues.clone(), JobWorkerOptions::new("publish", "w".to_owned()));
    worker.set_queue_configs(vec![QueueConfig {
        ranking: 10,
        pid: "x-mine".to_owned(),
        ..QueueConfig::new("mine", &["com/day/cq/replication/job/*"])
    }]);
    sender.set_queue_name_source(worker);
    assert_eq!(sender.queue_name_of("one"), "mine");
    queues.pause_queue("mine", "ann", SystemTime::now()).await.unwrap();
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped));
    put(&repository, "/content/a", page("a", "x"));
    sender.store_flushes(SystemTime::now()).await.unwrap();
    // A worker that would send does so at once; one look of all workers later it has not.
    for _ in 0..200 {
        sender.wake_agent_workers();
        tokio::task::yield_now().await;
    }
    let waiting = queues.list_topic(&agent_topic("publish", "one"), 10).await.unwrap();
    assert!(!waiting.is_empty() && waiting.iter().all(|job| job.state == JobState::Queued));
    assert_eq!(cache.seen.lock().len(), 0);
    queues.resume_queue("mine").await.unwrap();
    sender.wake_agent_workers();
    cache.wait_for(1).await;
    stop.send_replace(true);
}

#[test]
fn what_is_written_wrongly_is_said() {
    let repository = Repository::in_memory().unwrap();
    let check = |name: &str, properties: &[(&str, Property)], expected: Option<&str>| {
        let target = [("transportUri", Property::text("http://127.0.0.1:9/"))];
        put_agent(&repository, "publish", name, &[&target[..], properties].concat());
        let all = read_agents(&repository.snapshot().unwrap(), "publish").unwrap();
        let agent = all.into_iter().find(|agent| agent.name == name).unwrap();
        let fault = agent.config_error.unwrap_or_default();
        assert!(fault.contains(expected.unwrap_or_default()), "{fault}");
        assert_eq!(fault.is_empty(), expected.is_none(), "{fault}");
    };
    check(
        "a",
        &[("serializationType", Property::text("flsuh"))],
        Some("`flsuh` is not a `serializationType`"),
    );
    check("b", &[("serializationType", Property::text("durbo"))], None);
    check("c", &[("paths", texts(&["content"]))], Some("`content` in `paths`"));
    check("d", &[("protocolHTTPHeaders", texts(&["x"]))], Some("not of the form `Name: value`"));
}

/// A ledger that knows what a page elsewhere shows, and what it lost.
#[derive(Debug)]
struct Beside {
    urls: &'static [&'static str],
    folders: &'static [&'static str],
}

impl AffectedUrlResolver for Beside {
    fn find_affected_urls(
        &self,
        _: &Snapshot,
        _: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        let [urls, folders] =
            [self.urls, self.folders].map(|all| all.iter().map(|one| (*one).to_owned()).collect());
        Ok(AffectedUrlSet::UrlsAndFolders { urls, folders })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_for_some_paths_hears_what_lies_below_them_whatever_changed() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    for (name, path) in
        [("below", "/content/z"), ("elsewhere", "/content/y"), ("escaped", "/content/z/ä b")]
    {
        let properties = [
            ("transportUri", Property::text("http://127.0.0.1:1/")),
            ("serializationType", Property::text("precise")),
            ("paths", texts(&[path])),
        ];
        put_agent(&repository, "publish", name, &properties);
    }
    for name in ["a", "z", "z/x", "z/ä b"] {
        put(&repository, &format!("/content/{name}"), page("a", "x"));
    }
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let told = async |round: &str, ledger: Beside| {
        sender.set_url_resolver(Arc::new(ledger));
        put(&repository, "/content/a", page("a", round));
        sender.store_flushes(SystemTime::now()).await.unwrap();
        let mut told = Vec::new();
        for name in ["below", "elsewhere", "escaped"] {
            let topic = agent_topic("publish", name);
            let filter = JobFilter { topics: vec![topic.clone()], ..JobFilter::default() };
            let jobs = queues.list_jobs(&filter, 100).await.unwrap();
            let mut texts: Vec<String> = jobs
                .iter()
                .map(|job| match job.properties["part"].as_str() {
                    Some("folder") => format!("drop {}", job.properties["path"].as_str().unwrap()),
                    _ => job.properties["urls"].to_string(),
                })
                .collect();
            texts.sort();
            told.push(texts.join(" "));
            queues.clear_topic(&topic).await.unwrap();
        }
        told
    };
    let (none, below) = (&[][..], &["/content/a.html", "/content/z/x.html", "/content/z.html"]);
    assert_eq!(
        told("1", Beside { urls: below, folders: none }).await,
        [r#"["/content/z/x.html","/content/z.html"]"#, "", ""]
    );
    // Nobody tells of which page a short address is, which mappings, vanity paths and aliases make.
    let short = &["/content/a.html", "/content/z/%C3%A4%20b.html", "/short.html", "/z/x.html"];
    assert_eq!(
        told("2", Beside { urls: short, folders: none }).await,
        [
            r#"["/content/z/%C3%A4%20b.html","/short.html","/z/x.html"]"#,
            r#"["/short.html","/z/x.html"]"#,
            r#"["/content/z/%C3%A4%20b.html","/short.html","/z/x.html"]"#
        ]
    );
    // Of what nobody knows below a folder, only the agent's own part goes.
    for (folders, dropped) in [
        (&["/content/z/deep"][..], ["drop /content/z/deep", "", ""]),
        (&["/"][..], ["drop /content/z", "drop /content/y", "drop /content/z/ä b"]),
        (&["/content/a"][..], ["", "", ""]),
    ] {
        let round = format!("{folders:?}");
        assert_eq!(told(&round, Beside { urls: none, folders }).await, dropped, "{folders:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_are_emptied_where_the_state_of_the_last_flush_is_gone() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let kinds = ["flush", "flush_refetch", "flush_precise", "purge_keys"];
    let caches: Vec<Cache> = kinds.iter().map(|_| Cache::start()).collect();
    for (kind, cache) in std::iter::zip(kinds, &caches) {
        let properties = [
            ("transportUri", Property::text(&*cache.target)),
            ("serializationType", Property::text(kind)),
        ];
        put_agent(&repository, "publish", kind, &properties);
    }
    let queues = queues(&dir).await;
    let sender = replicator("publish", &repository, &queues);
    sender.set_publisher("one");
    // As a database that was restored from a backup says.
    let gone = ChunkId::from_bytes([7; 32]).to_string();
    assert!(
        queues
            .followers()
            .advance("flush/one", (None, &gone), Vec::new(), SystemTime::now())
            .await
            .unwrap()
    );
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), kinds.len());
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(sender.clone().run(stopped));
    for (kind, cache) in std::iter::zip(kinds, &caches) {
        let seen = cache.wait_for(1).await.remove(0);
        match kind {
            "purge_keys" => assert!(seen.contains("surrogate-key: all"), "{seen}"),
            _ => assert!(seen.contains("cq-action: delete\ncq-handle: /\n"), "{kind}: {seen}"),
        }
        assert!(!seen.contains("resourceonly"), "{kind}: {seen}");
    }
    assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 0);
    stop.send(true).unwrap();
    running.await.unwrap();
}

/// A publisher's ledger that notes the steps it is asked about.
#[derive(Debug, Default)]
struct Steps {
    asked: Mutex<Vec<(ChunkId, ChunkId)>>,
    gone: Mutex<Vec<String>>,
}

impl AffectedUrlResolver for Steps {
    fn find_affected_urls(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        _: &[NodePath],
    ) -> tympan_replicate::Result<AffectedUrlSet> {
        self.asked.lock().push((before.root_id(), after.root_id()));
        Ok(AffectedUrlSet::Urls(vec!["/content/a.html".to_owned()]))
    }

    fn take_gone_publishers(&self) -> Vec<String> {
        std::mem::take(&mut self.gone.lock())
    }
}

#[tokio::test]
async fn publishers_that_share_a_database_miss_no_step_of_each_other() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let target = Property::text("http://127.0.0.1:1/");
    put_agent(&repository, "publish", "one", &[("transportUri", target)]);
    let agent = path("/etc/replication/agents.publish/one/jcr:content");
    let mut session = repository.session("ann").unwrap();
    session.set_property(&agent, "serializationType", Property::text("precise")).unwrap();
    session.commit("precise", SystemTime::now()).unwrap();
    let queues = queues(&dir).await;
    let root = || repository.snapshot().unwrap().root_id();
    let edit = |title: &str| {
        put(&repository, "/content/a", page("a", title));
        root()
    };
    // All stood under one name, and something changed since.
    let first = edit("first");
    let none = Vec::new();
    assert!(
        queues
            .followers()
            .advance("flush", (None, &first.to_string()), none, SystemTime::now())
            .await
            .unwrap()
    );
    let second = edit("second");
    let names = ["a", "b"].map(str::to_owned);
    let publishers = names.clone().map(|name| {
        let (sender, steps) =
            (replicator("publish", &repository, &queues), Arc::new(Steps::default()));
        sender.set_publisher(&name);
        sender.set_url_resolver(steps.clone());
        (sender, steps)
    });
    for (sender, steps) in &publishers {
        sender.split_shared_follower(&names).await.unwrap();
        assert_eq!(sender.store_flushes(SystemTime::now()).await.unwrap(), 1);
        assert_eq!(std::mem::take(&mut *steps.asked.lock()), [(first, second)]);
    }
    assert_eq!(queues.followers().root_of("flush").await.unwrap(), None);
    let [(one, of_one), (two, of_two)] = &publishers;
    let third = edit("third");
    assert_eq!(one.store_flushes(SystemTime::now()).await.unwrap(), 1);
    // The second was silent for so long that the first took it for gone.
    of_one.gone.lock().push("b".to_owned());
    let fourth = edit("fourth");
    assert_eq!(one.store_flushes(SystemTime::now()).await.unwrap(), 1);
    assert_eq!(queues.followers().root_of("flush/b").await.unwrap(), None);
    assert_eq!(*of_one.asked.lock(), [(second, third), (third, fourth)]);
    // It was not, and goes on where it stood.
    assert_eq!(two.store_flushes(SystemTime::now()).await.unwrap(), 1);
    assert_eq!(*of_two.asked.lock(), [(second, fourth)]);
    assert_eq!(queues.followers().root_of("flush/b").await.unwrap(), Some(fourth.to_string()));
    assert_eq!(queues.statistics().count_jobs(&agent_topic("publish", "one")).await.unwrap(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_nobody_sent_is_flushed_too() {
    let (dir, repository) = (tempfile::tempdir().unwrap(), Repository::in_memory().unwrap());
    let cache = Cache::start();
    put_agent(&repository, "publish", "one", &[("transportUri", Property::text(&*cache.target))]);
    let agent = path("/etc/replication/agents.publish/one/jcr:content");
    let mut session = repository.session("ann").unwrap();
    session.set_property(&agent, "serializationType", Property::text("flush")).unwrap();
    session.commit("flush", SystemTime::now()).unwrap();
    let sender = replicator("publish", &repository, &queues(&dir).await);
    sender.store_flushes(SystemTime::now()).await.unwrap();
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(sender.clone().run(stopped.clone()));
    let following = tokio::spawn(sender.clone().run_flush_loop(stopped));
    put(&repository, "/content/a", page("a", "x"));
    let seen = cache.wait_for(1).await;
    assert!(seen.iter().any(|one| one.contains("cq-handle: /content")), "{seen:?}");
    stop.send_replace(true);
    following.await.unwrap();
}
