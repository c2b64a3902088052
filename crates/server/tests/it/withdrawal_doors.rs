//! Withdrawn is withdrawn, whatever did it: POST operations, the JSON API, launches, packages, versions, mounts, and the
//! commands that work on the home of an author that is stopped, by the calls that they are made of.

use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use http::Method;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tympan_content::{
    ChunkId, Node, NodePath, Property, RevisionDetails, Snapshot, Subtree, Value, ValueType,
};
use tympan_content_package::{
    AuditStamp, ContentPackage, InstallOptions, PackageInstallation, PackageLimits, PackageSession,
};
use tympan_jobs::{JobQueues, JobState, JobWorker, JobWorkerOptions, OsgiConfigs};
use tympan_mounts::{MOUNT_MIGRATIONS, MountConfig, MountLocation, MountService, MountSettings};
use tympan_replicate::{Replicator, agent_topic, list_live_documents, list_orphaned_documents};
use tympan_server::InstanceRole;
use tympan_web::listen::ConnectionPeer;

use crate::support::{TestInstance, path, zipped};

/// An author with an agent, and the publisher that it sends to.
struct Stage {
    author: TestInstance,
    publisher: TestInstance,
    replicator: Replicator,
    queues: JobQueues,
    /// The states that content had.
    past: Mutex<Vec<ChunkId>>,
    /// A folder whose files are assets, and what follows it.
    folder: tempfile::TempDir,
    mounts: MountService,
}

/// The folder for assets that shows the mounted one.
const MOUNTED: &str = "/content/dam/archive";

impl Stage {
    async fn start() -> Self {
        let publisher = TestInstance::publish().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = publisher.router().layer(from_fn(|mut request: Request, next: Next| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
            request.extensions_mut().insert(ConnectionPeer::new(address, true));
            next.run(request)
        }));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut parts = None;
        let author = TestInstance::start(InstanceRole::Author, |options| {
            parts = Some((options.replicator.clone(), options.queues.clone()));
        })
        .await;
        let (replicator, queues) = parts.unwrap();
        author.edit(|session| {
            let content = Subtree::new("jcr:content", "nt:unstructured")
                .with_property("enabled", Value::Boolean(true))
                .with_property(
                    "transportUri",
                    Property::text(format!("http://{address}/bin/receive")),
                );
            let agent = Subtree::new("one", "cq:Page").with_child(content);
            let agents = Subtree::new("agents.author", "cq:Page").with_child(agent);
            let folder = Subtree::new("replication", "sling:Folder").with_child(agents);
            session
                .put_node(&path("/etc"), Subtree::new("etc", "sling:Folder").with_child(folder))
                .unwrap();
        });
        author.state.migrate_tables("mounts", MOUNT_MIGRATIONS).await.unwrap();
        author.edit(|session| {
            session.put_node(&path("/content/dam"), Subtree::new("dam", "sling:Folder")).unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().to_str().unwrap();
        let settings = MountSettings {
            locations: vec![MountLocation { url: source.to_owned(), ..MountLocation::default() }],
            mounts: vec![MountConfig::new("archive", source, MOUNTED).unwrap()],
            ..MountSettings::default()
        };
        let runtime = tokio::runtime::Handle::current();
        let mounts =
            MountService::new(author.repository.clone(), queues.clone(), runtime, settings);
        mounts.load_configs(&OsgiConfigs::default());
        let past = Mutex::new(vec![author.repository.head_root().unwrap()]);
        Self { author, publisher, replicator, queues, past, folder, mounts }
    }

    /// Runs what follows the mounted folder.
    fn follow_mounts(&self, stopped: watch::Receiver<bool>) {
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(20),
            ..JobWorkerOptions::new("author", "mounts".to_owned())
        };
        let worker = JobWorker::new(self.queues.clone(), options);
        self.mounts.handlers().into_iter().for_each(|handler| worker.register_handler(handler));
        tokio::spawn(worker.run(stopped));
    }

    /// Looks at the mounted folder once.
    async fn pass(&self) {
        self.mounts.start_pass_now("archive", SystemTime::now()).await.unwrap();
        loop {
            let status = self.mounts.list_statuses().await.unwrap();
            if status.iter().all(|mount| mount.job.is_none()) {
                break;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns a state that content had.
    fn past(&self, numbers: &mut Numbers) -> ChunkId {
        let past = self.past.lock().unwrap();
        past[numbers.below(past.len())]
    }

    /// Lets the follower and the agent come to rest, and compares what visitors have with what the author says.
    async fn compare(&self, what: &str) {
        self.replicator.store_withdrawals(SystemTime::now()).await.unwrap();
        loop {
            let jobs = self.queues.list_topic(&agent_topic("author", "one"), 10).await.unwrap();
            if jobs.is_empty() {
                break;
            }
            assert!(jobs.iter().all(|job| job.state != JobState::GivenUp), "{what}: {jobs:?}");
            tokio::task::yield_now().await;
        }
        assert_eq!(pages(&self.publisher.snapshot()), promised(&self.author.snapshot()), "{what}");
    }

    async fn send(&self, method: Method, target: &str, body: &Json) {
        let reply = self.author.as_admin(method, target).json(body).send().await;
        assert!(!reply.status.is_server_error(), "{target} {body}: {reply:?}");
    }
}

fn pages(snapshot: &Snapshot) -> BTreeSet<String> {
    let all = snapshot.node(&path("/content")).unwrap().unwrap().listed_descendants().unwrap();
    let pages = all
        .iter()
        .filter(|node| is_compared(node))
        .filter(|node| node.content_node().unwrap().is_some());
    pages.map(|node| node.path().to_string()).collect()
}

/// Tells whether a node is a page or an asset.
fn is_compared(node: &Node) -> bool {
    node.is_page() || node.primary_type() == "dam:Asset"
}

fn promised(snapshot: &Snapshot) -> BTreeSet<String> {
    let top = path("/content");
    let documents =
        list_live_documents(snapshot, &top, None, 1000).unwrap().into_iter().map(|one| one.path);
    let is_there =
        |at: &NodePath| snapshot.node(at).unwrap().is_some_and(|node| is_compared(&node));
    let waiting = list_orphaned_documents(snapshot, &top).unwrap().into_iter();
    let waiting =
        waiting.filter(|one| one.awaits_activation && one.moved_to.as_ref().is_some_and(is_there));
    documents.chain(waiting.map(|one| one.path)).map(|path| path.to_string()).collect()
}

/// Installs a package with a page, and without what was below it, as `tympan package install --home` does.
fn install(stage: &Stage, at: &NodePath) {
    let filter =
        format!("<workspaceFilter version=\"1.0\"><filter root=\"{at}\"/></workspaceFilter>");
    let page = "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:cq=\"http://www.day.com/jcr/cq/1.0\" \
                jcr:primaryType=\"cq:Page\"><jcr:content jcr:primaryType=\"cq:PageContent\"/></jcr:root>";
    let properties = "<?xml version=\"1.0\"?><properties><entry key=\"group\">g</entry>\
                      <entry key=\"name\">pages</entry><entry key=\"version\">1</entry></properties>";
    let bytes = zipped(&[
        ("META-INF/vault/properties.xml", properties),
        ("META-INF/vault/filter.xml", &filter),
        (&format!("jcr_root{at}/.content.xml"), page),
    ]);
    let mut package =
        ContentPackage::read(Cursor::new(bytes.clone()), "pages", &PackageLimits::default())
            .unwrap();
    let stamp = AuditStamp { user: "admin".to_owned(), time: SystemTime::now() };
    let options = InstallOptions::default();
    let how = PackageInstallation { options: &options, stamp: &stamp, on_progress: &mut |_| {} };
    let mut session = stage.author.repository.session("admin").unwrap();
    PackageSession::new(&mut session)
        .install_file(&mut package, &mut Cursor::new(bytes), how)
        .unwrap();
}

/// Brings a node back as it was, as `tympan repo restore-path` does.
fn restore_path(stage: &Stage, past: ChunkId, (at, to): (&NodePath, &NodePath)) {
    let repository = &stage.author.repository;
    let mut session = repository.session("system").unwrap();
    session.bypass_check_ins();
    let past = repository.snapshot_at(past).unwrap();
    if session.replace_from_snapshot(&past, at, to).is_ok() {
        // A name may be needed elsewhere, so that it is refused.
        drop(session.commit("restore", SystemTime::now()));
    }
}

/// Writes or removes a file of the mounted folder; sometimes makes live what it shows.
async fn change_mounted(stage: &Stage, numbers: &mut Numbers) {
    let name = ["a.txt", "b.txt", "c.txt"][numbers.below(3)];
    let file = stage.folder.path().join(name);
    if file.exists() && numbers.below(2) == 0 {
        fs::remove_file(&file).unwrap();
    } else {
        fs::write(&file, format!("{}", numbers.below(1000))).unwrap();
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();
    }
    stage.pass().await;
    let body = json!({ "action": "activate", "paths": [format!("{MOUNTED}/{name}")] });
    stage.send(Method::POST, "/api/v1/replication", &body).await;
}

/// Numbers without end from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn place(&mut self) -> NodePath {
        let mut text = "/content".to_owned();
        for _ in 0..=self.below(3) {
            text.push('/');
            text.push_str(["a", "b", "c"][self.below(3)]);
        }
        path(&text)
    }
}

const DOORS: usize = 25;

/// Sends one request. What cannot be done changes nothing.
async fn go(stage: &Stage, numbers: &mut Numbers) -> String {
    let (one, other) = (numbers.place(), numbers.place());
    let (at, to) = (one.as_str(), other.as_str());
    let parent = one.parent().unwrap();
    let author = &stage.author;
    let page = json!({
        "type": "cq:Page",
        "children": { "jcr:content": {
            "type": "cq:PageContent",
            "properties": { "jcr:title": { "type": "String", "value": format!("{}", numbers.below(9)) } },
        } },
    });
    let door = numbers.below(DOORS);
    match door {
        0 | 1 => {
            let title = format!("title {}", numbers.below(1000));
            let form = [("jcr:primaryType", "cq:Page"), ("jcr:content/jcr:title", title.as_str())];
            author.try_post(at, &form).await;
        }
        2 => drop(author.try_post(at, &[(":operation", "delete")]).await),
        3 => {
            let form = [(":operation", "move"), (":dest", to), (":replace", "true")];
            author.try_post(at, &form).await;
        }
        4 => {
            let form = [(":operation", "copy"), (":dest", to), (":replace", "true")];
            author.try_post(at, &form).await;
        }
        5 => {
            let hint = format!("{}@Delete", one.name());
            author.try_post(parent.as_str(), &[(hint.as_str(), "x")]).await;
        }
        6 => {
            let hint = format!("{}@MoveFrom", one.name());
            author.try_post(parent.as_str(), &[(hint.as_str(), to)]).await;
        }
        7 => {
            let name = one.name();
            let content = "{\"jcr:primaryType\":\"cq:Page\",\"jcr:content\":{\"jcr:primaryType\":\"cq:PageContent\"}}";
            let form = [
                (":operation", "import"),
                (":contentType", "json"),
                (":name", name),
                (":replace", "true"),
                (":content", content),
            ];
            author.try_post(parent.as_str(), &form).await;
        }
        8 => stage.send(Method::PUT, &format!("/api/v1/nodes?path={at}"), &page).await,
        9 => {
            let patch = json!({ "children": { one.name(): null } });
            let target = format!("/api/v1/nodes?path={parent}");
            let request = author.as_admin(Method::PATCH, &target);
            let request = request.body(patch.to_string());
            request.header("content-type", "application/merge-patch+json").send().await;
        }
        10 => {
            author.as_admin(Method::DELETE, &format!("/api/v1/nodes?path={at}")).send().await;
        }
        11 => {
            let body = json!({ "from": at, "to": to, "replace": true, "rewrite": true });
            stage.send(Method::POST, "/api/v1/nodes/move", &body).await;
        }
        12 => {
            let operations = json!([
                { "op": "copy", "from": at, "to": to, "replace": true },
                { "op": "delete", "path": at },
            ]);
            stage.send(Method::POST, "/api/v1/batch", &json!({ "operations": operations })).await;
        }
        13 | 14 => {
            let body = json!({ "action": "activate", "paths": [at], "deep": door == 13 });
            stage.send(Method::POST, "/api/v1/replication", &body).await;
        }
        15 => {
            let body = json!({ "action": "deactivate", "paths": [at] });
            stage.send(Method::POST, "/api/v1/replication", &body).await;
        }
        // A launch.
        16 => {
            stage.send(Method::POST, "/api/v1/branches", &json!({ "name": "launch" })).await;
            author
                .as_admin(Method::DELETE, &format!("/api/v1/nodes?path={at}&branch=launch"))
                .send()
                .await;
            let merge = json!({ "name": "launch", "prefer": "mine" });
            stage.send(Method::POST, "/api/v1/branches/merge", &merge).await;
            author.as_admin(Method::DELETE, "/api/v1/branches?name=launch").send().await;
        }
        17 => install(stage, &one),
        // The whole of content as it was, as `tympan repo revert` does it.
        18 => {
            let revising =
                RevisionDetails { user: "system", message: "revert", time: SystemTime::now() };
            author.repository.revert_to_root(stage.past(numbers), revising).unwrap();
        }
        19 => restore_path(stage, stage.past(numbers), (&one, &one)),
        20 => restore_path(stage, stage.past(numbers), (&one, &other)),
        21 | 22 => change_mounted(stage, numbers).await,
        // A branch that takes the place of `main`.
        23 => {
            stage.send(Method::POST, "/api/v1/branches", &json!({ "name": "next" })).await;
            let target = format!("/api/v1/nodes?path={at}&branch=next");
            author.as_admin(Method::DELETE, &target).send().await;
            let promotion = json!({ "name": "next", "replace": true });
            stage.send(Method::POST, "/api/v1/branches/promote", &promotion).await;
            author.as_admin(Method::DELETE, "/api/v1/branches?name=next").send().await;
        }
        // A version from before.
        _ => {
            let versions = author.get(&format!("/api/v1/versions?path={at}")).await;
            let versions = serde_json::from_slice::<Json>(&versions.body).unwrap_or_default();
            let name = versions["versions"][0]["name"].as_str().unwrap_or("1.0").to_owned();
            let body = json!({ "path": at, "version": name });
            stage.send(Method::POST, "/api/v1/versions/restore", &body).await;
        }
    }
    stage.past.lock().unwrap().push(author.repository.head_root().unwrap());
    format!("door {door}, {one}, {other}")
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_shows_what_the_author_says_whatever_the_request() {
    for seed in 0..6 {
        let stage = Stage::start().await;
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(stage.replicator.clone().run(stopped.clone()));
        stage.follow_mounts(stopped);
        for at in ["/content/a", "/content/a/b", "/content/b", "/content/b/c"] {
            let form = [("jcr:primaryType", "cq:Page"), ("jcr:content/jcr:title", at)];
            stage.author.post(at, &form).await;
        }
        let all =
            json!({ "action": "activate", "paths": ["/content/a", "/content/b"], "deep": true });
        stage.send(Method::POST, "/api/v1/replication", &all).await;
        let mut numbers = Numbers(seed);
        let mut told = Vec::new();
        for _ in 0..40 {
            told.push(go(&stage, &mut numbers).await);
            // Sometimes several requests come between two looks.
            if numbers.below(3) > 0 {
                stage.compare(&format!("seed {seed}: {told:?}")).await;
            }
        }
        stage.compare(&format!("seed {seed}: {told:?}")).await;
        stop.send_replace(true);
        running.await.unwrap();
    }
}

/// Returns a policy by which nobody but administrators has some privileges.
fn deny(privilege: &str) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, [privilege]).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "everyone")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_sends_what_its_user_may_replicate_and_nothing_else() {
    let stage = Stage::start().await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(stage.replicator.clone().run(stopped));
    let editor = stage.author.user("editor", &["content-authors"]).await;
    let powerless = stage.author.user("powerless", &[]).await;
    let admin = stage.author.token_of("admin").await;
    let content = |references: &[&str]| {
        let mut content = Subtree::new("jcr:content", "cq:PageContent");
        for reference in references {
            let name = reference.rsplit('/').next().unwrap();
            content.put_child(
                Subtree::new(name, "nt:unstructured").with_property("fileReference", *reference),
            );
        }
        content
    };
    let page = |name: &str, references: &[&str]| {
        Subtree::new(name, "cq:Page").with_child(content(references))
    };
    stage.author.edit(|session| {
        for (asset, policy) in
            [("shown", None), ("locked", Some("crx:replicate")), ("unseen", Some("jcr:all"))]
        {
            let tree = Subtree::new("", "dam:Asset")
                .with_child(Subtree::new("jcr:content", "dam:AssetContent"));
            let tree = policy.map(deny).into_iter().fold(tree, Subtree::with_child);
            session.put_node(&path(&format!("/content/dam/{asset}")), tree).unwrap();
        }
        let assets = ["/content/dam/shown", "/content/dam/locked", "/content/dam/unseen"];
        let tree = page("", &[])
            .with_child(page("open", &assets))
            .with_child(page("closed", &[]).with_child(deny("crx:replicate")));
        session.put_node(&path("/content/tree"), tree).unwrap();
    });
    let ask = async |token: &str, action: &str, at: &str, is_deep: bool| {
        let body = json!({ "action": action, "paths": [at], "deep": is_deep, "companions": true });
        let request = stage.author.request(Method::POST, "/api/v1/replication").bearer(token);
        let reply = request.json(&body).send().await;
        let is_told = reply.text().contains("unseen");
        assert!(token == admin || !is_told, "{reply:?}");
        loop {
            let topic = agent_topic("author", "one");
            if stage.queues.list_topic(&topic, 10).await.unwrap().is_empty() {
                break (reply.status.as_u16(), reply.json());
            }
            tokio::task::yield_now().await;
        }
    };
    let has = |at: &str| {
        let node = stage.publisher.snapshot().node(&path(at)).unwrap();
        node.is_some_and(|node| node.content_node().unwrap().is_some())
    };
    let sent = || {
        let all = [
            "/content/tree",
            "/content/tree/open",
            "/content/tree/closed",
            "/content/dam/shown",
            "/content/dam/locked",
            "/content/dam/unseen",
        ];
        all.into_iter().filter(|at| has(at)).collect::<Vec<_>>()
    };
    assert_eq!(ask(&powerless, "activate", "/content/tree/open", false).await.0, 403);
    assert_eq!(ask(&editor, "activate", "/content/tree", true).await.0, 403);
    assert_eq!(ask(&editor, "activate", "/content/tree/closed", false).await.0, 403);
    assert_eq!(sent(), Vec::<&str>::new());
    let (status, reply) = ask(&editor, "activate", "/content/tree/open", false).await;
    assert_eq!((status, &reply["left"]), (200, &json!(["/content/dam/locked"])), "{reply}");
    assert_eq!(sent(), ["/content/tree/open", "/content/dam/shown"]);
    assert_eq!(ask(&powerless, "deactivate", "/content/tree/open", false).await.0, 403);
    assert_eq!(ask(&admin, "activate", "/content/tree", true).await.0, 200);
    assert!(has("/content/tree/closed"));
    assert_eq!(ask(&editor, "deactivate", "/content/tree", false).await.0, 403);
    assert!(has("/content/tree/closed") && has("/content/tree/open"));
    assert_eq!(ask(&editor, "deactivate", "/content/tree/open", false).await.0, 200);
    assert!(!has("/content/tree/open"));
    stop.send_replace(true);
    running.await.unwrap();
}
