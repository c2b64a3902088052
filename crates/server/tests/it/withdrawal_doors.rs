//! Withdrawn is withdrawn, whatever request it was: POST operations, the JSON API, launches, packages, versions.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::SystemTime;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use http::Method;
use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tympan_content::{NodePath, Property, Snapshot, Subtree, Value};
use tympan_jobs::{JobState, Queues};
use tympan_replicate::{Replicator, live, orphans, topic_of};
use tympan_server::Role;
use tympan_web::listen::Peer;

use crate::support::{TestInstance, path};

/// An author with an agent, and the publisher that it sends to.
struct Stage {
    author: TestInstance,
    publisher: TestInstance,
    replicator: Replicator,
    queues: Queues,
}

impl Stage {
    async fn start() -> Self {
        let publisher = TestInstance::publish().await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = publisher.router().layer(from_fn(|mut request: Request, next: Next| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000));
            request.extensions_mut().insert(Peer::new(address, true));
            next.run(request)
        }));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let mut parts = None;
        let author = TestInstance::start(Role::Author, |options| {
            parts = Some((options.replicator.clone(), options.queues.clone()));
        })
        .await;
        let (replicator, queues) = parts.unwrap();
        author.edit(|session| {
            let content = Subtree::new("jcr:content", "nt:unstructured")
                .with("enabled", Value::Boolean(true))
                .with("transportUri", Property::text(format!("http://{address}/bin/receive")));
            let agent = Subtree::new("one", "cq:Page").with_child(content);
            let agents = Subtree::new("agents.author", "cq:Page").with_child(agent);
            let folder = Subtree::new("replication", "sling:Folder").with_child(agents);
            session
                .put(&path("/etc"), Subtree::new("etc", "sling:Folder").with_child(folder))
                .unwrap();
        });
        Self { author, publisher, replicator, queues }
    }

    /// Lets the follower and the agent come to rest, and compares what visitors have with what the author says.
    async fn compare(&self, what: &str) {
        self.replicator.withdraw(SystemTime::now()).await.unwrap();
        loop {
            let jobs = self.queues.list_topic(&topic_of("author", "one"), 10).await.unwrap();
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
    let pages = all.iter().filter(|node| node.is_page() && node.content().unwrap().is_some());
    pages.map(|node| node.path().to_string()).collect()
}

fn promised(snapshot: &Snapshot) -> BTreeSet<String> {
    let top = path("/content");
    let documents = live(snapshot, &top, None, 1000).unwrap().into_iter().map(|one| one.path);
    let is_page = |at: &NodePath| snapshot.node(at).unwrap().is_some_and(|node| node.is_page());
    let waiting = orphans(snapshot, &top).unwrap().into_iter();
    let waiting =
        waiting.filter(|one| one.is_waiting && one.moved_to.as_ref().is_some_and(is_page));
    documents.chain(waiting.map(|one| one.path)).map(|path| path.to_string()).collect()
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

const DOORS: usize = 18;

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
        // A version from before.
        _ => {
            let versions = author.get(&format!("/api/v1/versions?path={at}")).await;
            let versions = serde_json::from_slice::<Json>(&versions.body).unwrap_or_default();
            let name = versions["versions"][0]["name"].as_str().unwrap_or("1.0").to_owned();
            let body = json!({ "path": at, "version": name });
            stage.send(Method::POST, "/api/v1/versions/restore", &body).await;
        }
    }
    format!("door {door}, {one}, {other}")
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_shows_what_the_author_says_whatever_the_request() {
    for seed in 0..6 {
        let stage = Stage::start().await;
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(stage.replicator.clone().run(stopped));
        for at in ["/content/a", "/content/a/b", "/content/b", "/content/b/c"] {
            let form = [("jcr:primaryType", "cq:Page"), ("jcr:content/jcr:title", at)];
            stage.author.post(at, &form).await;
        }
        let all =
            json!({ "action": "activate", "paths": ["/content/a", "/content/b"], "deep": true });
        stage.send(Method::POST, "/api/v1/replication", &all).await;
        let mut numbers = Numbers(seed);
        let mut told = Vec::new();
        for _ in 0..30 {
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
