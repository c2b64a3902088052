//! Trees that are activated or deactivated in parts: bounded, in order, and behind nobody's back.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tympan_content::{JcrDate, NodePath, Property, Subtree, SubtreeScope, Value, Viewer};
use tympan_jobs::{Job, JobState, NewJob};
use tympan_replicate::{
    MAX_PART_DOCUMENTS, ReplicationAction, ReplicationRequest, ReplicationStatus, TREE_TOPIC,
    TreePartOutcome, agent_topic, stamped_status, store_request_jobs,
};

use crate::agent::{page, path, put, replicator};
use crate::overtaken::Author;

const PAGES: usize = 1_150;

/// A folder with pages, which is wished and not yet sent.
async fn author_with_tree(dir: &tempfile::TempDir) -> Author {
    let author = Author::start(dir).await;
    let mut tree = Subtree::new("tree", "sling:Folder");
    for number in 0..PAGES {
        tree.put_child(page(&format!("p{number:04}"), "first"));
    }
    put(&author.repository, "/content/tree", tree);
    put(&author.repository, "/content/single", page("single", "single"));
    wish(&author, ReplicationAction::Activate, "/content/tree", SubtreeScope::Subtree).await;
    author
}

async fn wish(author: &Author, action: ReplicationAction, at: &str, depth: SubtreeScope) {
    let wish = ReplicationRequest { action, path: path(at), depth, user: "ann".to_owned() };
    author.sender.replicate(Viewer::system(), vec![wish], SystemTime::now()).await.unwrap();
}

async fn queued(author: &Author) -> Vec<Job> {
    author.queues.list_topic(&agent_topic("author", "one"), 100).await.unwrap()
}

/// Sends all there is, and waits until nothing is left.
async fn send_all(author: &Author) {
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    while !author.queues.list_topic(TREE_TOPIC, 1).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(author.until_still().await.len(), 0);
    stop.send_replace(true);
    running.await.unwrap();
}

fn title(author: &Author, at: &str) -> Option<String> {
    let snapshot = author.publisher.repository.snapshot().unwrap();
    snapshot.node(&path(at)).unwrap()?.content_node().unwrap()?.text("jcr:title")
}

fn status(author: &Author, at: &str) -> ReplicationStatus {
    stamped_status(&author.repository.snapshot().unwrap().node(&path(at)).unwrap().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_activation_waits_for_one_part_of_a_tree_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_tree(&dir).await;
    assert_eq!(queued(&author).await.len(), 0, "the wish is one job, whatever the tree");
    assert_eq!(status(&author, "/content/tree/p0000"), ReplicationStatus::Never);
    let now = SystemTime::now();
    assert_eq!(author.sender.replicate_next_part(now).await.unwrap(), TreePartOutcome::Stored);
    for _ in 0..3 {
        assert_eq!(author.sender.replicate_next_part(now).await.unwrap(), TreePartOutcome::Waiting);
    }
    wish(&author, ReplicationAction::Activate, "/content/single", SubtreeScope::Document).await;
    let jobs = queued(&author).await;
    let place = jobs.iter().position(|job| job.properties["path"] == "/content/single");
    assert_eq!((jobs.len(), place), (2, Some(1)));
    let documents = jobs[0].properties["documents"].as_array().unwrap();
    assert_eq!(documents.len(), MAX_PART_DOCUMENTS);
    assert_eq!(status(&author, "/content/tree/p0000"), ReplicationStatus::Live);
    assert_eq!(
        status(&author, &format!("/content/tree/p{:04}", PAGES - 1)),
        ReplicationStatus::Never
    );

    send_all(&author).await;
    assert_eq!(title(&author, "/content/single").as_deref(), Some("single"));
    for number in 0..PAGES {
        let at = format!("/content/tree/p{number:04}");
        assert_eq!(title(&author, &at).as_deref(), Some("first"), "{at}");
        assert_eq!(status(&author, &at), ReplicationStatus::Live, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_is_sent_as_it_was_wished_but_for_what_was_said_since() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_tree(&dir).await;
    let page_at = |number: usize| format!("/content/tree/p{number:04}");
    let later = SystemTime::now() + Duration::from_secs(1);
    let edit = |number: usize, text: &str, is_dated: bool| {
        let mut session = author.repository.session("bob").unwrap();
        let content = path(&page_at(number)).child("jcr:content").unwrap();
        session.set_property(&content, "jcr:title", Property::text(text)).unwrap();
        if is_dated {
            let date = Property::Single(Value::Date(JcrDate::from_system_time(later)));
            session.set_property(&content, "cq:lastModified", date).unwrap();
        }
        session.commit("edit", later).unwrap();
    };
    edit(5, "draft", true);
    edit(7, "second", false);
    for (action, number) in [
        (ReplicationAction::Activate, 7),
        (ReplicationAction::Deactivate, 9),
        (ReplicationAction::Deactivate, 700),
    ] {
        let (path, user) = (path(&page_at(number)), "ann".to_owned());
        let wish = ReplicationRequest { action, path, depth: SubtreeScope::Document, user };
        author.sender.replicate(Viewer::system(), vec![wish], later).await.unwrap();
    }
    let mut session = author.repository.session("bob").unwrap();
    session.remove_node(&path(&page_at(11))).unwrap();
    session.commit("remove", later).unwrap();

    send_all(&author).await;
    let shown = |number: usize| title(&author, &page_at(number));
    assert_eq!(shown(5).as_deref(), Some("first"), "a draft since the wish is not shown");
    assert_eq!(status(&author, &page_at(5)), ReplicationStatus::Outdated);
    assert_eq!(shown(7).as_deref(), Some("second"), "an older state is not brought back");
    assert_eq!([shown(9), shown(11), shown(700)], [None, None, None]);
    assert_eq!(status(&author, &page_at(700)), ReplicationStatus::Deactivated);
    assert_eq!(shown(PAGES - 1).as_deref(), Some("first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_taken_away_goes_no_further() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_tree(&dir).await;
    author.sender.replicate_next_part(SystemTime::now()).await.unwrap();
    let later = SystemTime::now() + Duration::from_secs(1);
    let gone = ReplicationRequest {
        action: ReplicationAction::Deactivate,
        path: path("/content/tree"),
        depth: SubtreeScope::Document,
        user: "ann".to_owned(),
    };
    author.sender.replicate(Viewer::system(), vec![gone], later).await.unwrap();
    send_all(&author).await;
    let snapshot = author.publisher.repository.snapshot().unwrap();
    assert!(snapshot.node(&path("/content/tree")).unwrap().is_none());
}

const CLOSED: usize = 500;
const PARENT: usize = 30;

fn page_at(number: usize) -> String {
    format!("/content/tree/p{number:04}")
}

fn has(author: &Author, at: &str) -> bool {
    author.publisher.repository.snapshot().unwrap().node(&path(at)).unwrap().is_some()
}

/// An author whose tree is at the publisher, too: with a page that is closed, one with a page below it, and a folder with a
/// tag.
async fn author_with_live_tree(dir: &tempfile::TempDir) -> Author {
    let author = author_with_tree(dir).await;
    send_all(&author).await;
    let mut session = author.repository.session("ann").unwrap();
    session.mark_as_received();
    let policy = path(&page_at(CLOSED)).child("rep:cugPolicy").unwrap();
    session.put_node(&policy, Subtree::new("rep:cugPolicy", "rep:CugPolicy")).unwrap();
    session.commit("close", SystemTime::now()).unwrap();
    put(&author.repository, &format!("{}/below", page_at(PARENT)), page("below", "below"));
    put(&author.repository, "/content/tree/folder/tag", Subtree::new("tag", "cq:Tag"));
    for at in [page_at(CLOSED), page_at(PARENT), "/content/tree/folder".to_owned()] {
        wish(&author, ReplicationAction::Activate, &at, SubtreeScope::Subtree).await;
    }
    send_all(&author).await;
    assert!(has(&author, policy.as_str()) && has(&author, "/content/tree/folder/tag"));
    author
}

/// Wishes by name, a second later.
async fn wish_later(author: &Author, action: ReplicationAction, at: &str) {
    let wish = ReplicationRequest {
        action,
        path: path(at),
        depth: SubtreeScope::Document,
        user: "bob".to_owned(),
    };
    let later = SystemTime::now() + Duration::from_secs(1);
    author.sender.replicate(Viewer::system(), vec![wish], later).await.unwrap();
}

fn documents(job: &Job) -> Vec<&str> {
    let documents = job.properties["documents"].as_array().unwrap();
    documents.iter().filter_map(serde_json::Value::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_deactivation_goes_in_parts_from_children_to_parents() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_live_tree(&dir).await;
    wish(&author, ReplicationAction::Deactivate, "/content/tree", SubtreeScope::Document).await;
    assert_eq!(queued(&author).await.len(), 0, "the wish is one job, whatever the tree");
    assert_eq!(status(&author, &page_at(PAGES - 1)), ReplicationStatus::Live);
    let now = SystemTime::now();
    assert_eq!(author.sender.replicate_next_part(now).await.unwrap(), TreePartOutcome::Stored);
    assert_eq!(author.sender.replicate_next_part(now).await.unwrap(), TreePartOutcome::Waiting);
    wish(&author, ReplicationAction::Activate, "/content/single", SubtreeScope::Document).await;
    let jobs = queued(&author).await;
    assert_eq!((jobs.len(), &jobs[1].properties["path"]), (2, &"/content/single".into()));
    let part = documents(&jobs[0]);
    assert!(part.len() <= MAX_PART_DOCUMENTS && part.contains(&"/content/tree/folder/tag"));
    assert!(!part.iter().any(|path| path.contains("rep:")), "policies go with their pages");
    assert_eq!(status(&author, &page_at(PAGES - 1)), ReplicationStatus::Deactivated);
    assert_eq!(status(&author, &page_at(0)), ReplicationStatus::Live);

    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    while has(&author, "/content/tree") {
        let snapshot = author.publisher.repository.snapshot().unwrap();
        let closed = path(&page_at(CLOSED));
        let policy = closed.child("rep:cugPolicy").unwrap();
        let is_there = |at: &NodePath| snapshot.node(at).unwrap().is_some();
        assert_eq!(is_there(&closed), is_there(&policy), "a page is closed until it is gone");
        tokio::task::yield_now().await;
    }
    assert_eq!(author.until_still().await.len(), 0);
    stop.send_replace(true);
    running.await.unwrap();
    assert_eq!(title(&author, "/content/single").as_deref(), Some("single"));
    for number in 0..PAGES {
        assert_eq!(status(&author, &page_at(number)), ReplicationStatus::Deactivated, "{number}");
    }
    let snapshot = author.repository.snapshot().unwrap();
    let top = path("/content/tree");
    assert!(snapshot.activated_documents(&top, SubtreeScope::Subtree).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn trees_that_are_large_together_go_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let mut requests = Vec::new();
    for tree in ["a", "b", "c"] {
        let mut folder = Subtree::new(tree, "sling:Folder");
        for number in 0..300 {
            folder.put_child(page(&format!("p{number}"), "first"));
        }
        put(&author.repository, &format!("/content/{tree}"), folder);
        let at = path(&format!("/content/{tree}"));
        for (action, path) in [
            (ReplicationAction::Deactivate, at.clone()),
            (ReplicationAction::Deactivate, at.child("p1").unwrap()),
        ] {
            let depth = SubtreeScope::Document;
            requests.push(ReplicationRequest { action, path, depth, user: "ann".to_owned() });
        }
    }
    author.sender.replicate(Viewer::system(), requests, SystemTime::now()).await.unwrap();
    let trees = author.queues.list_topic(TREE_TOPIC, 10).await.unwrap();
    let trees: Vec<_> = trees.iter().map(|job| job.properties["path"].as_str().unwrap()).collect();
    assert_eq!(trees, ["/content/b", "/content/c"]);
    assert_eq!(status(&author, "/content/a/p0"), ReplicationStatus::Deactivated);
    assert_eq!(status(&author, "/content/b/p0"), ReplicationStatus::Never);
    send_all(&author).await;
    assert_eq!(status(&author, "/content/c/p299"), ReplicationStatus::Deactivated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deactivation_in_parts_leaves_what_was_activated_since() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_live_tree(&dir).await;
    wish(&author, ReplicationAction::Deactivate, "/content/tree", SubtreeScope::Document).await;
    author.sender.replicate_next_part(SystemTime::now()).await.unwrap();
    let below = format!("{}/below", page_at(PARENT));
    put(&author.repository, &format!("{}/new", page_at(8)), page("new", "new"));
    // Pages below pages that go, one of a later part, one of the part that was made, and a tag.
    for at in [
        below.clone(),
        format!("{}/new", page_at(8)),
        page_at(7),
        page_at(PAGES - 1),
        "/content/tree/folder/tag".to_owned(),
    ] {
        wish_later(&author, ReplicationAction::Activate, &at).await;
    }
    let mut session = author.repository.session("bob").unwrap();
    session.remove_node(&path(&page_at(11))).unwrap();
    session.commit("remove", SystemTime::now()).unwrap();

    send_all(&author).await;
    let left: Vec<usize> = (0..PAGES).filter(|number| has(&author, &page_at(*number))).collect();
    assert_eq!(left, [7, 8, PARENT, PAGES - 1]);
    assert_eq!(title(&author, &below).as_deref(), Some("below"));
    assert_eq!(title(&author, &format!("{}/new", page_at(8))).as_deref(), Some("new"));
    let snapshot = author.publisher.repository.snapshot().unwrap();
    for number in [8, PARENT] {
        let node = snapshot.node(&path(&page_at(number))).unwrap().unwrap();
        assert!(node.content_node().unwrap().is_none(), "of {number} only the place is left");
    }
    assert!(has(&author, "/content/tree/folder/tag"));
    assert_eq!(status(&author, &page_at(7)), ReplicationStatus::Live);
    assert_eq!(status(&author, &page_at(PARENT)), ReplicationStatus::Deactivated);
    let activated = author.repository.snapshot().unwrap();
    let activated =
        activated.activated_documents(&path("/content/tree"), SubtreeScope::Subtree).unwrap();
    let paths: Vec<&str> = activated.iter().map(|document| document.path.as_str()).collect();
    assert_eq!(paths, ["/content/tree/folder/tag"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deactivation_in_parts_goes_on_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_live_tree(&dir).await;
    let gone = ReplicationRequest {
        action: ReplicationAction::Deactivate,
        path: path("/content/tree"),
        depth: SubtreeScope::Document,
        user: "ann".to_owned(),
    };
    // The process ends after the job was stored and before it was released.
    let now = SystemTime::now();
    store_request_jobs(&author.repository, &author.queues, &[gone], now).await.unwrap();
    assert_eq!(author.queues.release_all_claims().await.unwrap(), 1);
    // The next one ends after a part was stored, and its job is still there; so it is done again.
    let before = author.queues.list_topic(TREE_TOPIC, 10).await.unwrap();
    let restarted = replicator("author", &author.repository, &author.queues);
    assert_eq!(restarted.replicate_next_part(now).await.unwrap(), TreePartOutcome::Stored);
    drop(restarted);
    let Job { properties, user, .. } = before[0].clone();
    author.queues.add_job(NewJob::new(TREE_TOPIC, properties).with_user(user), now).await.unwrap();
    let parts = queued(&author).await;
    assert!(parts.len() == 1 && parts[0].state == JobState::Queued);
    assert_eq!(status(&author, &page_at(PAGES - 1)), ReplicationStatus::Deactivated);
    assert_eq!(status(&author, &page_at(0)), ReplicationStatus::Live);
    assert!(has(&author, &page_at(PAGES - 1)));

    send_all(&author).await;
    assert!(!has(&author, "/content/tree"));
    for number in 0..PAGES {
        assert_eq!(status(&author, &page_at(number)), ReplicationStatus::Deactivated, "{number}");
    }
}
