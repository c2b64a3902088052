//! Withdrawn is withdrawn: whatever door a live document goes out by, visitors lose it, and nothing else.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use serde_json::Map;
use tokio::sync::watch;
use tympan_content::{
    CheckInOptions, CheckOutState, MergeOptions, MergeSide, NodePath, Property, Repository,
    RevisionDetails, Snapshot, Subtree, SubtreeScope, Viewer,
};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::process::standard_processes;
use tympan_jobs::workflow::{StepOutcome, StepRun};
use tympan_replicate::{
    ReceiverRole, ReplicationAction, ReplicationMessage, ReplicationStatus, WireDocument,
    apply_replication, document_status, list_live_documents, list_orphaned_documents,
    mark_replicated, stamped_status,
};

use crate::agent::{page, path, put};
use crate::overtaken::Author;

const AGENTS: &str = "/etc/replication";

/// The pages that hold content, agents aside.
fn pages(snapshot: &Snapshot) -> BTreeSet<String> {
    let root = snapshot.root_node().unwrap();
    let all = root.listed_descendants().unwrap().into_iter();
    let pages = all.filter(|node| node.is_page() && node.content_node().unwrap().is_some());
    pages.map(|node| node.path().to_string()).filter(|path| !path.starts_with(AGENTS)).collect()
}

/// What the author says that visitors have.
fn promised(snapshot: &Snapshot) -> BTreeSet<String> {
    let documents =
        list_live_documents(snapshot, &NodePath::root(), None, 1000).unwrap().into_iter();
    let waiting = list_orphaned_documents(snapshot, &NodePath::root()).unwrap().into_iter();
    let is_page = |at: &NodePath| snapshot.node(at).unwrap().is_some_and(|node| node.is_page());
    let waiting = waiting
        .filter(|orphan| orphan.awaits_activation && orphan.moved_to.as_ref().is_some_and(is_page))
        .map(|orphan| orphan.path);
    documents.map(|document| document.path).chain(waiting).map(|path| path.to_string()).collect()
}

fn revising(at: SystemTime) -> RevisionDetails<'static> {
    RevisionDetails { user: "ann", message: "change", time: at }
}

fn edit<T>(repository: &Repository, work: impl FnOnce(&mut tympan_content::Session) -> T) -> T {
    let mut session = repository.session("ann").unwrap();
    let value = work(&mut session);
    session.commit("edit", SystemTime::now()).unwrap();
    value
}

impl Author {
    /// Lets the follower and the agent come to rest, and compares.
    async fn compare(&self, what: &str) {
        self.sender.store_withdrawals(SystemTime::now()).await.unwrap();
        assert_eq!(self.until_still().await.len(), 0, "{what}");
        let (author, publisher) =
            (self.repository.snapshot().unwrap(), self.publisher.repository.snapshot().unwrap());
        assert_eq!(pages(&publisher), promised(&author), "{what}");
        for document in
            author.activated_documents(&NodePath::root(), SubtreeScope::Subtree).unwrap()
        {
            assert!(publisher.node(&document.path).unwrap().is_some(), "{}: {what}", document.path);
        }
    }
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
        let names = ["a", "b", "c"];
        let mut text = "/content".to_owned();
        for _ in 0..=self.below(3) {
            text.push('/');
            text.push_str(names[self.below(3)]);
        }
        path(&text)
    }
}

fn tree(numbers: &mut Numbers, name: &str) -> Subtree {
    let mut tree = match numbers.below(4) {
        0 => Subtree::new(name, "sling:Folder"),
        _ => page(name, &format!("title {}", numbers.below(1000))),
    };
    for child in ["a", "b"] {
        if numbers.below(3) == 0 {
            tree = tree.with_child(page(child, &format!("title {}", numbers.below(1000))));
        }
    }
    tree
}

/// Carries out a step of a workflow about one node, as a worker would that keeps what it remembers.
fn step(repository: &Repository, name: &str, (payload, destination): (&NodePath, &NodePath)) {
    let processes = standard_processes(repository);
    let process = processes.iter().find(|one| one.name().ends_with(name)).unwrap();
    let mut run = StepRun {
        workflow_id: 1,
        item_id: 1,
        model: "/m".to_owned(),
        payload: payload.to_string(),
        initiator: "system".to_owned(),
        effective_user: "system".to_owned(),
        title: "a step".to_owned(),
        arguments: Map::from_iter([("destination".to_owned(), destination.as_str().into())]),
        data: Map::new(),
        saved_data: Map::new(),
    };
    while let StepOutcome::Wait { after, saved_data } = process.run(&run, &JobContext::detached()) {
        if !after.is_zero() {
            break;
        }
        run.saved_data = saved_data;
    }
}

/// Goes out by some door. What cannot be done there changes nothing.
async fn go(
    author: &Author,
    numbers: &mut Numbers,
    roots: &mut Vec<tympan_content::ChunkId>,
) -> String {
    let repository = &author.repository;
    let (one, other) = (numbers.place(), numbers.place());
    let door = numbers.below(18);
    let at = SystemTime::now();
    let commit = |work: &dyn Fn(&mut tympan_content::Session) -> tympan_content::Result<()>| {
        let mut session = repository.session("ann").unwrap();
        if work(&mut session).is_ok() {
            session.commit("edit", at).ok();
        }
    };
    match door {
        0 | 1 => {
            let made = tree(numbers, one.name());
            commit(&|session| session.put_node(&one, made.clone()));
        }
        2 => commit(&|session| session.remove_node(&one)),
        3 => commit(&|session| session.move_node(&one, &other)),
        4 => commit(&|session| session.copy_node(&one, &other)),
        5..=7 => {
            let is_there = repository.snapshot().unwrap().node(&one).unwrap().is_some();
            if is_there {
                let depth = if door == 5 { SubtreeScope::Document } else { SubtreeScope::Subtree };
                author.wish(ReplicationAction::Activate, one.as_str(), depth).await;
            }
        }
        8 => author.wish(ReplicationAction::Deactivate, one.as_str(), SubtreeScope::Subtree).await,
        // A package.
        9 => {
            let made = tree(numbers, one.name());
            let stamped = made.clone().with_child(
                Subtree::new("jcr:content", "cq:PageContent")
                    .with_property("cq:lastReplicationAction", "Activate")
                    .with_property("jcr:title", "package"),
            );
            let made = if made.primary_type() == "cq:Page" { stamped } else { made };
            commit(&|session| {
                session.mark_as_installation();
                session.put_node(&one, made.clone())
            });
        }
        // Stamps by hand, and content that goes.
        10 => {
            let content = one.child("jcr:content").unwrap();
            let action =
                Property::text(if numbers.below(2) == 0 { "Activate" } else { "Deactivate" });
            commit(&|session| {
                session.set_property(&content, "cq:lastReplicationAction", action.clone())
            });
            if numbers.below(3) == 0 {
                commit(&|session| session.remove_node(&content));
            }
        }
        // A launch.
        11 => {
            repository.create_branch("launch", revising(at)).unwrap();
            let launch = repository.open_branch("launch").unwrap();
            let mut session = launch.session("ann").unwrap();
            let done = match numbers.below(3) {
                0 => session.remove_node(&one),
                1 => session.move_node(&one, &other),
                _ => session.copy_node(&one, &other),
            };
            if done.is_ok() && session.commit("launch", at).is_ok() {
                let choice =
                    MergeOptions { default_side: Some(MergeSide::Ours), ..MergeOptions::default() };
                repository.merge_branch_part("launch", &choice, revising(at)).unwrap();
            }
            repository.delete_branch("launch", revising(at)).unwrap();
        }
        // An earlier state, as a whole and of one node.
        12 => {
            let root = roots[numbers.below(roots.len())];
            repository.revert_to_root(root, revising(at)).unwrap();
        }
        13 => {
            let root = roots[numbers.below(roots.len())];
            let earlier = repository.snapshot_at(root).unwrap();
            commit(&|session| session.replace_from_snapshot(&earlier, &one, &one));
        }
        // Steps of workflows.
        14 => step(repository, "MoveProcess", (&one, &other)),
        15 => step(repository, "DeleteNodeProcess", (&one, &other)),
        // Versions: kept, and restored, also of what is gone.
        16 => {
            let check_in = CheckInOptions {
                comment: "kept",
                created_at: at,
                check_out_state: CheckOutState::CheckedOut,
            };
            commit(&|session| {
                session.versions().create_version_if_changed(&one, &check_in).map(drop)
            });
        }
        _ => {
            let snapshot = repository.snapshot().unwrap();
            let versions = snapshot.versions(&one).unwrap_or_default();
            if let Some(version) = versions.first() {
                commit(&|session| {
                    session.versions().restore_version(version, &one, at, CheckOutState::CheckedOut)
                });
            }
        }
    }
    roots.push(repository.head_root().unwrap());
    format!("door {door}, {one}, {other}")
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_shows_what_the_author_says_whatever_the_endpoint() {
    for seed in 0..12 {
        let dir = tempfile::tempdir().unwrap();
        let author = Author::start(&dir).await;
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(author.sender.clone().run(stopped));
        for name in ["a", "a/b", "b", "b/c"] {
            put(&author.repository, &format!("/content/{name}"), page(name, name));
        }
        author.wish(ReplicationAction::Activate, "/content/a", SubtreeScope::Subtree).await;
        let mut numbers = Numbers(seed);
        let mut roots = vec![author.repository.head_root().unwrap()];
        let mut told = Vec::new();
        for _ in 0..30 {
            told.push(go(&author, &mut numbers, &mut roots).await);
            // Sometimes several commits come between two looks.
            if numbers.below(3) > 0 {
                author.compare(&format!("seed {seed}: {told:?}")).await;
            }
        }
        author.compare(&format!("seed {seed}: {told:?}")).await;
        stop.send_replace(true);
        running.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_page_stays_at_its_old_address_until_the_new_one_is_live() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    for name in ["s/a", "s/a/sub"] {
        put(&author.repository, &format!("/content/{name}"), page(name, "first"));
    }
    author.wish(ReplicationAction::Activate, "/content/s/a", SubtreeScope::Subtree).await;
    edit(&author.repository, |session| {
        session.move_node(&path("/content/s/a"), &path("/content/s/b")).unwrap();
    });
    // Its second move is followed.
    edit(&author.repository, |session| {
        session.move_node(&path("/content/s/b"), &path("/content/s/c")).unwrap();
    });
    author.compare("moved").await;
    let snapshot = author.repository.snapshot().unwrap();
    let moved = snapshot.node(&path("/content/s/c")).unwrap().unwrap();
    assert_eq!(stamped_status(&moved), ReplicationStatus::Never, "visitors do not have it here");
    let left = list_orphaned_documents(&snapshot, &path("/content/s")).unwrap();
    let told: Vec<_> = left
        .iter()
        .map(|one| {
            (one.path.as_str(), one.moved_to.as_ref().map(NodePath::as_str), one.awaits_activation)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("/content/s/a", Some("/content/s/c"), true),
            ("/content/s/a/sub", Some("/content/s/c/sub"), true),
        ]
    );
    let shown = || pages(&author.publisher.repository.snapshot().unwrap());
    assert_eq!(shown(), ["/content/s/a".to_owned(), "/content/s/a/sub".to_owned()].into());

    // Page by page.
    author.wish(ReplicationAction::Activate, "/content/s/c", SubtreeScope::Document).await;
    author.compare("one is live").await;
    assert_eq!(shown(), ["/content/s/a/sub".to_owned(), "/content/s/c".to_owned()].into());
    author.wish(ReplicationAction::Activate, "/content/s/c", SubtreeScope::Subtree).await;
    author.compare("both are live").await;
    assert_eq!(shown(), ["/content/s/c".to_owned(), "/content/s/c/sub".to_owned()].into());
    assert_eq!(author.repository.snapshot().unwrap().withdrawals(&NodePath::root()).unwrap(), []);
    stop.send_replace(true);
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_commit_and_queue_loses_no_withdrawal() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    for name in ["a", "b"] {
        put(&author.repository, &format!("/content/{name}"), page(name, "first"));
        author
            .wish(ReplicationAction::Activate, &format!("/content/{name}"), SubtreeScope::Document)
            .await;
    }
    edit(&author.repository, |session| session.remove_node(&path("/content/a")).unwrap());
    let before = author.repository.snapshot().unwrap().withdrawals(&NodePath::root()).unwrap();
    assert_eq!((before.len(), &*before[0].user), (1, "ann"));
    author.compare("withdrawn").await;

    // Jobs that are stored, and an entry that is still there: what a crash leaves. Meanwhile the page is live again.
    edit(&author.repository, |session| session.remove_node(&path("/content/b")).unwrap());
    let repository = author.repository.clone();
    author.sender.store_withdrawals(SystemTime::now()).await.unwrap();
    put(&repository, "/content/b", page("b", "second"));
    author.wish(ReplicationAction::Activate, "/content/b", SubtreeScope::Document).await;
    let again = tympan_jobs::NewJob::new(
        tympan_replicate::agent_topic("author", "one"),
        serde_json::json!({ "action": "Deactivate", "path": "/content/b", "deep": true, "withdrawal": true }),
    );
    author.queues.add_job(again, SystemTime::now()).await.unwrap();
    author.sender.wake_agent_workers();
    author.compare("withdrawn twice").await;
    assert!(pages(&author.publisher.repository.snapshot().unwrap()).contains("/content/b"));
    stop.send_replace(true);
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_agent_takes_stays_listed() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    put(&author.repository, "/content/a", page("a", "first"));
    let wish = tympan_replicate::ReplicationRequest {
        action: ReplicationAction::Activate,
        path: path("/content/a"),
        depth: SubtreeScope::Document,
        user: "ann".to_owned(),
    };
    mark_replicated(&author.repository, &[wish], SystemTime::now()).unwrap();
    edit(&author.repository, |session| {
        session.remove_node(&path("/etc/replication/agents.author/one")).unwrap();
        session.remove_node(&path("/content/a")).unwrap();
    });
    assert_eq!(author.sender.store_withdrawals(SystemTime::now()).await.unwrap(), 0);
    let left =
        list_orphaned_documents(&author.repository.snapshot().unwrap(), &path("/content")).unwrap();
    assert_eq!((left.len(), left[0].awaits_activation), (1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_and_folders_that_were_activated_alone_are_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let (stop, stopped) = watch::channel(false);
    let running = tokio::spawn(author.sender.clone().run(stopped));
    let tag = |name: &str| Subtree::new(name, "cq:Tag");
    let tags = tag("ns").with_child(tag("red").with_child(tag("dark"))).with_child(tag("blue"));
    put(&author.repository, "/content/cq:tags/ns", tags);
    put(&author.repository, "/content/cq:tags/other", tag("other"));
    put(&author.repository, "/content/dam/folder", Subtree::new("folder", "sling:Folder"));
    put(&author.repository, "/conf/s/policy", Subtree::new("policy", "nt:unstructured"));
    for at in [
        "/content/cq:tags/ns/red",
        "/content/cq:tags/other",
        "/content/dam/folder",
        "/conf/s/policy",
    ] {
        author.wish(ReplicationAction::Activate, at, SubtreeScope::Document).await;
    }
    let has = |at: &str| {
        author.publisher.repository.snapshot().unwrap().node(&path(at)).unwrap().is_some()
    };
    let status = |at: &str| {
        let node = author.repository.snapshot().unwrap().node(&path(at)).unwrap().unwrap();
        document_status(&node).unwrap()
    };
    assert!(has("/content/cq:tags/ns/red/dark") && has("/content/dam/folder"));
    assert_eq!(status("/content/cq:tags/ns/red"), ReplicationStatus::Live);

    // A tag inside an activated document of tags, and one that is a document.
    edit(&author.repository, |session| {
        session.remove_node(&path("/content/cq:tags/ns/red")).unwrap();
        session.remove_node(&path("/content/cq:tags/other")).unwrap();
    });
    author.compare("removed").await;
    assert!(!has("/content/cq:tags/ns/red") && !has("/content/cq:tags/other"));
    assert!(has("/content/cq:tags/ns/blue"));
    assert_eq!(status("/content/cq:tags/ns"), ReplicationStatus::Outdated);

    // Nothing waits for a folder without content; other documents stay until they are live where they are now.
    edit(&author.repository, |session| {
        session.move_node(&path("/content/dam/folder"), &path("/content/dam/moved")).unwrap();
        session.move_node(&path("/conf/s/policy"), &path("/conf/s/moved")).unwrap();
    });
    author.compare("moved").await;
    assert!(!has("/content/dam/folder") && has("/conf/s/policy"));
    author.wish(ReplicationAction::Activate, "/conf/s/moved", SubtreeScope::Document).await;
    author.compare("live again").await;
    assert!(!has("/conf/s/policy") && has("/conf/s/moved"));

    // What is left of a moved tag stays what visitors have, until it is removed.
    edit(&author.repository, |session| {
        session.move_node(&path("/content/cq:tags/ns"), &path("/content/cq:tags/new")).unwrap();
    });
    author.compare("a moved tag").await;
    assert!(has("/content/cq:tags/ns/blue"));
    edit(&author.repository, |session| session.remove_node(&path("/content/cq:tags/ns")).unwrap());
    author.compare("removed for good").await;
    assert!(!has("/content/cq:tags/ns"));
    assert_eq!(author.repository.snapshot().unwrap().withdrawals(&NodePath::root()).unwrap(), []);
    stop.send_replace(true);
    running.await.unwrap();
}

#[test]
fn who_removes_an_activated_folder_needs_the_privilege() {
    let author = Repository::in_memory().unwrap();
    put(&author, "/content/folder", Subtree::new("folder", "sling:Folder"));
    let mut session = author.session("admin").unwrap();
    session.accounts().add_user("bob", "x").unwrap();
    let write = Property::parse_list(tympan_content::ValueType::Name, ["jcr:read", "jcr:write"]);
    let entry = Subtree::new("entry", "rep:GrantACE")
        .with_property("rep:principalName", "bob")
        .with_property("rep:privileges", write.unwrap());
    let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
    session.put_node(&path("/content/rep:policy"), policy).unwrap();
    session.commit("begin", SystemTime::now()).unwrap();
    let remove = || {
        let viewer = Viewer::of_user(Some("bob"));
        let mut session = author.session_as(&viewer).unwrap();
        session.remove_node(&path("/content/folder")).unwrap();
        session.commit("remove", SystemTime::now()).map(drop)
    };
    let wish = tympan_replicate::ReplicationRequest {
        action: ReplicationAction::Activate,
        path: path("/content/folder"),
        depth: SubtreeScope::Document,
        user: "ann".to_owned(),
    };
    mark_replicated(&author, std::slice::from_ref(&wish), SystemTime::now()).unwrap();
    let refused = remove().unwrap_err().to_string();
    assert!(refused.contains("crx:replicate"), "{refused}");
    mark_replicated(
        &author,
        &[tympan_replicate::ReplicationRequest { action: ReplicationAction::Deactivate, ..wish }],
        SystemTime::now(),
    )
    .unwrap();
    remove().unwrap();
}

#[test]
fn pages_that_stay_keep_the_policies_above_them_and_nothing_else() {
    let publisher = Repository::in_memory().unwrap();
    let policy = Subtree::new("rep:cugPolicy", "rep:CugPolicy");
    let closed = page("a", "old").with_child(policy);
    for (at, tree) in [
        ("/content/a", closed),
        ("/content/a/kept", page("kept", "kept")),
        ("/content/a/kept/own", Subtree::new("own", "nt:unstructured")),
        ("/content/a/gone", page("gone", "gone")),
    ] {
        let mut session = publisher.session("ann").unwrap();
        session.mark_as_received();
        if session.node(&path("/content")).unwrap().is_none() {
            session.add_node(&path("/content"), "sling:Folder").unwrap();
        }
        session.put_node(&path(at), tree).unwrap();
        session.commit("receive", SystemTime::now()).unwrap();
    }
    let message = ReplicationMessage {
        agent: "one".to_owned(),
        sequence: 1,
        action: "Deactivate".to_owned(),
        path: "/content/a".to_owned(),
        user: "ann".to_owned(),
        ancestors: Vec::new(),
        documents: Vec::<WireDocument>::new(),
        chunks: Vec::new(),
        blobs: Vec::new(),
        kept: vec!["/content/a/kept".to_owned()],
        taken_away: Vec::new(),
    };
    apply_replication(&publisher, &message, ReceiverRole::Publisher, SystemTime::now()).unwrap();
    let snapshot = publisher.snapshot().unwrap();
    let has = |at: &str| snapshot.node(&path(at)).unwrap().is_some();
    assert!(has("/content/a/rep:cugPolicy") && has("/content/a/kept/jcr:content"));
    assert!(has("/content/a/kept/own"));
    assert!(!has("/content/a/jcr:content") && !has("/content/a/gone"));
}

#[test]
fn an_author_that_receives_withdraws_from_its_own_visitors() {
    let author = Repository::in_memory().unwrap();
    put(&author, "/content/dam/a", page("a", "first"));
    let wish = tympan_replicate::ReplicationRequest {
        action: ReplicationAction::Activate,
        path: path("/content/dam/a"),
        depth: SubtreeScope::Document,
        user: "ann".to_owned(),
    };
    mark_replicated(&author, &[wish], SystemTime::now() - Duration::from_secs(9)).unwrap();
    let message = |action: &str| ReplicationMessage {
        agent: "one".to_owned(),
        sequence: 1,
        action: action.to_owned(),
        path: "/content/dam/a".to_owned(),
        user: "ann".to_owned(),
        ancestors: Vec::new(),
        documents: Vec::new(),
        chunks: Vec::new(),
        blobs: Vec::new(),
        kept: Vec::new(),
        taken_away: Vec::new(),
    };
    apply_replication(&author, &message("Deactivate"), ReceiverRole::Author, SystemTime::now())
        .unwrap();
    assert_eq!(
        list_orphaned_documents(&author.snapshot().unwrap(), &NodePath::root()).unwrap().len(),
        1
    );
}
