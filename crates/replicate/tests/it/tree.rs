//! Trees that are activated in parts: bounded, in order, and behind nobody's back.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tympan_content::{Date, Depth, Property, Subtree, Value};
use tympan_jobs::Job;
use tympan_replicate::{
    Action, Keeping, PART_DOCUMENTS, Status, TREES, TreeStep, Wish, status_of, topic_of,
};

use crate::agent::{page, path, put};
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
    wish(&author, Action::Activate, "/content/tree", Depth::Subtree).await;
    author
}

async fn wish(author: &Author, action: Action, at: &str, depth: Depth) {
    let wish = Wish { action, path: path(at), depth, user: "ann".to_owned() };
    author.sender.wish(vec![wish], Keeping::Nothing, SystemTime::now()).await.unwrap();
}

async fn queued(author: &Author) -> Vec<Job> {
    author.queues.list_topic(&topic_of("author", "one"), 100).await.unwrap()
}

/// Sends all there is, and waits until nothing is left.
async fn send_all(author: &Author) {
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    while !author.queues.list_topic(TREES, 1).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(author.until_still().await.len(), 0);
    stop.send_replace(true);
    running.await.unwrap();
}

fn title(author: &Author, at: &str) -> Option<String> {
    let snapshot = author.publisher.repository.snapshot().unwrap();
    snapshot.node(&path(at)).unwrap()?.content().unwrap()?.text("jcr:title")
}

fn status(author: &Author, at: &str) -> Status {
    status_of(&author.repository.snapshot().unwrap().node(&path(at)).unwrap().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_activation_waits_for_one_part_of_a_tree_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_tree(&dir).await;
    assert_eq!(queued(&author).await.len(), 0, "the wish is one job, whatever the tree");
    assert_eq!(status(&author, "/content/tree/p0000"), Status::Never);
    let now = SystemTime::now();
    assert_eq!(author.sender.activate_part(now).await.unwrap(), TreeStep::Stored);
    for _ in 0..3 {
        assert_eq!(author.sender.activate_part(now).await.unwrap(), TreeStep::Waiting);
    }
    wish(&author, Action::Activate, "/content/single", Depth::Document).await;
    let jobs = queued(&author).await;
    let place = jobs.iter().position(|job| job.properties["path"] == "/content/single");
    assert_eq!((jobs.len(), place), (2, Some(1)));
    let documents = jobs[0].properties["documents"].as_array().unwrap();
    assert_eq!(documents.len(), PART_DOCUMENTS);
    assert_eq!(status(&author, "/content/tree/p0000"), Status::Live);
    assert_eq!(status(&author, &format!("/content/tree/p{:04}", PAGES - 1)), Status::Never);

    send_all(&author).await;
    assert_eq!(title(&author, "/content/single").as_deref(), Some("single"));
    for number in 0..PAGES {
        let at = format!("/content/tree/p{number:04}");
        assert_eq!(title(&author, &at).as_deref(), Some("first"), "{at}");
        assert_eq!(status(&author, &at), Status::Live, "{at}");
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
            let date = Property::Single(Value::Date(Date::from_system_time(later)));
            session.set_property(&content, "cq:lastModified", date).unwrap();
        }
        session.commit("edit", later).unwrap();
    };
    edit(5, "draft", true);
    edit(7, "second", false);
    for (action, number) in
        [(Action::Activate, 7), (Action::Deactivate, 9), (Action::Deactivate, 700)]
    {
        let (path, user) = (path(&page_at(number)), "ann".to_owned());
        let wish = Wish { action, path, depth: Depth::Document, user };
        author.sender.wish(vec![wish], Keeping::Nothing, later).await.unwrap();
    }
    let mut session = author.repository.session("bob").unwrap();
    session.remove(&path(&page_at(11))).unwrap();
    session.commit("remove", later).unwrap();

    send_all(&author).await;
    let shown = |number: usize| title(&author, &page_at(number));
    assert_eq!(shown(5).as_deref(), Some("first"), "a draft since the wish is not shown");
    assert_eq!(status(&author, &page_at(5)), Status::Outdated);
    assert_eq!(shown(7).as_deref(), Some("second"), "an older state is not brought back");
    assert_eq!([shown(9), shown(11), shown(700)], [None, None, None]);
    assert_eq!(status(&author, &page_at(700)), Status::TakenAway);
    assert_eq!(shown(PAGES - 1).as_deref(), Some("first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_taken_away_goes_no_further() {
    let dir = tempfile::tempdir().unwrap();
    let author = author_with_tree(&dir).await;
    author.sender.activate_part(SystemTime::now()).await.unwrap();
    let later = SystemTime::now() + Duration::from_secs(1);
    let gone = Wish {
        action: Action::Deactivate,
        path: path("/content/tree"),
        depth: Depth::Document,
        user: "ann".to_owned(),
    };
    author.sender.wish(vec![gone], Keeping::Nothing, later).await.unwrap();
    send_all(&author).await;
    let snapshot = author.publisher.repository.snapshot().unwrap();
    assert!(snapshot.node(&path("/content/tree")).unwrap().is_none());
}
