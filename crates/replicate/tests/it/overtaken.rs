//! What was given up and is tried again undoes nothing that was sent since.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tokio::sync::watch;
use tympan_content::{Property, Repository, SubtreeScope, Viewer};
use tympan_jobs::{Job, JobQueues, JobState};
use tympan_replicate::{
    ReceiverRole, ReplicationAction, ReplicationMessage, ReplicationRequest, Replicator,
    agent_topic, apply_replication,
};

use crate::agent::{page, path, put, put_agent, queues, replicator};

/// A publisher that applies messages, or understands and refuses them.
pub(crate) struct Publisher {
    pub(crate) repository: Repository,
    target: String,
    is_refusing: Arc<AtomicBool>,
}

impl Publisher {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = format!("http://{}/bin/receive", listener.local_addr().unwrap());
        let repository = Repository::in_memory().unwrap();
        let is_refusing = Arc::new(AtomicBool::new(false));
        let publisher = Self { repository, target, is_refusing };
        let (receiving, refusing) = (publisher.repository.clone(), publisher.is_refusing.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (receiving, refusing) = (receiving.clone(), refusing.clone());
                std::thread::spawn(move || answer(stream, &receiving, &refusing));
            }
        });
        publisher
    }

    fn title(&self, at: &str) -> Option<String> {
        let content = path(at).child("jcr:content").unwrap();
        self.repository.snapshot().unwrap().node(&content).unwrap()?.text("jcr:title")
    }
}

fn answer(stream: TcpStream, repository: &Repository, is_refusing: &AtomicBool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            if let Some(count) = line.to_lowercase().strip_prefix("content-length:") {
                length = count.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let status = if is_refusing.load(Ordering::SeqCst) {
            422
        } else {
            let message: ReplicationMessage = serde_json::from_slice(&body).unwrap();
            apply_replication(repository, &message, ReceiverRole::Publisher, SystemTime::now())
                .unwrap();
            200
        };
        let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        if stream.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// An author with one agent.
pub(crate) struct Author {
    pub(crate) repository: Repository,
    pub(crate) queues: JobQueues,
    pub(crate) sender: Replicator,
    pub(crate) publisher: Publisher,
}

impl Author {
    pub(crate) async fn start(dir: &tempfile::TempDir) -> Self {
        let (repository, publisher) = (Repository::in_memory().unwrap(), Publisher::start());
        let target = Property::text(&*publisher.target);
        put_agent(&repository, "author", "one", &[("transportUri", target)]);
        let queues = queues(dir).await;
        let sender = replicator("author", &repository, &queues);
        Self { repository, queues, sender, publisher }
    }

    pub(crate) async fn wish(&self, action: ReplicationAction, at: &str, depth: SubtreeScope) {
        let wish = ReplicationRequest { action, path: path(at), depth, user: "ann".to_owned() };
        self.sender.replicate(Viewer::system(), vec![wish], SystemTime::now()).await.unwrap();
        self.until_still().await;
    }

    /// Wishes something that the publisher refuses for good.
    async fn wish_in_vain(&self, action: ReplicationAction, at: &str, depth: SubtreeScope) {
        self.publisher.is_refusing.store(true, Ordering::SeqCst);
        self.wish(action, at, depth).await;
        self.publisher.is_refusing.store(false, Ordering::SeqCst);
    }

    async fn retry(&self) -> Vec<Job> {
        self.sender.retry_jobs("one", SystemTime::now()).await.unwrap();
        self.until_still().await
    }

    /// Waits until nothing waits or runs; returns what was given up.
    pub(crate) async fn until_still(&self) -> Vec<Job> {
        loop {
            let jobs = self.queues.list_topic(&agent_topic("author", "one"), 10).await.unwrap();
            if jobs.iter().all(|job| job.state == JobState::GivenUp) {
                return jobs;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activation_tried_again_brings_no_older_state_back() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    let title = |at: &str| author.publisher.title(at);
    for name in ["s", "s/a", "s/b", "s/c"] {
        put(&author.repository, &format!("/content/{name}"), page(name, "first"));
    }
    author.wish_in_vain(ReplicationAction::Activate, "/content/s", SubtreeScope::Subtree).await;
    assert_eq!(author.until_still().await.len(), 1);

    // One page is newer since, one was taken away.
    put(&author.repository, "/content/s/a", page("a", "second"));
    author.wish(ReplicationAction::Activate, "/content/s/a", SubtreeScope::Document).await;
    author.wish(ReplicationAction::Deactivate, "/content/s/b", SubtreeScope::Subtree).await;
    assert_eq!(author.retry().await.len(), 0);
    assert_eq!(title("/content/s/a").as_deref(), Some("second"));
    assert_eq!(title("/content/s/b"), None);
    for at in ["/content/s", "/content/s/c"] {
        assert_eq!(title(at).as_deref(), Some("first"), "{at} was not sent since");
    }

    // Nothing is left of a wish that later ones cover, also one for the page's inside.
    put(&author.repository, "/content/s/c", page("c", "second"));
    author.wish_in_vain(ReplicationAction::Activate, "/content/s/c", SubtreeScope::Document).await;
    put(&author.repository, "/content/s/c", page("c", "third"));
    author
        .wish(ReplicationAction::Activate, "/content/s/c/jcr:content", SubtreeScope::Document)
        .await;
    assert_eq!(author.retry().await.len(), 0);
    assert_eq!(title("/content/s/c").as_deref(), Some("third"));
    stop.send_replace(true);
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deactivation_tried_again_takes_nothing_away_that_was_activated_since() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    let title = |at: &str| author.publisher.title(at);
    for name in ["s", "s/a"] {
        put(&author.repository, &format!("/content/{name}"), page(name, "first"));
    }
    author.wish(ReplicationAction::Activate, "/content/s", SubtreeScope::Subtree).await;
    author.wish_in_vain(ReplicationAction::Deactivate, "/content/s", SubtreeScope::Subtree).await;
    put(&author.repository, "/content/s/a", page("a", "second"));
    author.wish(ReplicationAction::Activate, "/content/s/a", SubtreeScope::Document).await;
    let given_up = author.retry().await;
    let reason = given_up[0].last_error.clone().unwrap();
    assert!(reason.contains("a later request for `/content/s/a`"), "{reason}");
    assert_eq!(title("/content/s/a").as_deref(), Some("second"));

    // Once all is taken away, there is nothing left to refuse.
    author.wish(ReplicationAction::Deactivate, "/content/s", SubtreeScope::Subtree).await;
    assert_eq!(title("/content/s/a"), None);
    assert_eq!(author.retry().await.len(), 0);
    stop.send_replace(true);
    running.await.unwrap();
}
