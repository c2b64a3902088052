//! Versions: kept by value, named as Jackrabbit names them, labeled, restored, purged; against a plain model, with
//! collections in between.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    CheckInOptions, CheckOutState, Error, LabelConflictPolicy, NodePath, NodeVersion, Property,
    Repository, RevisionDetails, Session, Snapshot, Subtree, Value, ValueType, VersionRetention,
    Viewer,
};
use tympan_store::{
    ChunkBatch, ChunkStore, GarbageCollectionOptions, LocalStore, RevisionRetention, body,
};
use tympan_testkit::watched_store::WatchedStore;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn by(message: &str) -> RevisionDetails<'_> {
    RevisionDetails { user: "ann", message, time: at(9) }
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

const PAGE: &str = "/content/page";
const BALLAST_BYTES: usize = 80_000;
const KEEP: CheckInOptions<'_> = CheckInOptions {
    comment: "",
    created_at: UNIX_EPOCH,
    check_out_state: CheckOutState::CheckedOut,
};
const CLOSE: CheckInOptions<'_> =
    CheckInOptions { check_out_state: CheckOutState::CheckedIn, ..KEEP };

/// A text that is too long to stay in a record.
fn long(text: &str) -> String {
    format!("{text} {}", "and so on ".repeat(40))
}

fn page(title: &str) -> Subtree {
    let mixins = Property::List(ValueType::Name, vec![Value::Name("mix:versionable".into())]);
    let text = Subtree::new("text", "nt:unstructured").with_property("text", long(title).as_str());
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", title)
        .with_property("jcr:mixinTypes", mixins)
        .with_property(
            "cq:lastModified",
            Value::Date(tympan_content::JcrDate::from_system_time(at(0))),
        )
        .with_child(text);
    Subtree::new("page", "cq:Page").with_child(content)
}

fn site() -> (Repository, Arc<LocalStore>) {
    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let content = Subtree::new("content", "sling:OrderedFolder").with_child(page("first"));
    session.put_node(&path("/content"), content).unwrap();
    session.commit("import", at(0)).unwrap();
    (repository, store)
}

fn set_title(repository: &Repository, page: &str, title: &str) {
    let mut session = repository.session("ann").unwrap();
    let content = path(&format!("{page}/jcr:content"));
    session.set_property(&content, "jcr:title", title.into()).unwrap();
    session
        .set_property(&content.child("text").unwrap(), "text", long(title).as_str().into())
        .unwrap();
    session.commit("edit", at(1)).unwrap();
}

fn title_at(snapshot: &Snapshot, page: &str) -> Option<String> {
    snapshot.node(&path(&format!("{page}/jcr:content"))).unwrap()?.text("jcr:title")
}

fn title(repository: &Repository, page: &str) -> Option<String> {
    title_at(&repository.snapshot().unwrap(), page)
}

fn names(repository: &Repository, page: &str) -> Vec<String> {
    let versions = repository.snapshot().unwrap().versions(&path(page)).unwrap();
    versions.into_iter().map(|version| version.name).collect()
}

fn keep(repository: &Repository, page: &str) -> NodeVersion {
    repository.check_in("ann", &path(page), &KEEP).unwrap()
}

fn collect(store: &LocalStore) {
    // A collection spares an open pack that is too short to be worth ending.
    let mut seed = 7_u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let ballast: Vec<u8> = std::iter::repeat_with(&mut noise).take(BALLAST_BYTES).collect();
    let mut batch = ChunkBatch::new();
    body::write_body(&mut batch, &ballast, &[]).unwrap();
    store.commit(batch).unwrap();
    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        min_live_share: 1.1,
        ..GarbageCollectionOptions::at_time(at(100))
    };
    store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn a_page_is_kept_shown_compared_and_restored() {
    let (repository, store) = site();
    let first = keep(&repository, PAGE);
    assert_eq!((&*first.name, first.predecessor.as_deref(), &*first.user), ("1.0", None, "ann"));
    set_title(&repository, PAGE, "second");
    let second = keep(&repository, PAGE);
    assert_eq!((&*second.name, second.predecessor.as_deref()), ("1.1", Some("1.0")));
    set_title(&repository, PAGE, "third");
    collect(&store);

    let snapshot = repository.snapshot().unwrap();
    let read = |name: &str| {
        let version = snapshot.version(&path(PAGE), name).unwrap();
        snapshot.read_version(&version).unwrap()
    };
    assert_eq!(read("1.0").child("jcr:content").unwrap().text("jcr:title"), Some("first"));
    let differences: Vec<String> = read("1.0")
        .differences(&read("1.1"))
        .iter()
        .flat_map(|node| {
            node.properties.iter().map(|property| format!("{}/{}", node.path, property.name))
        })
        .collect();
    assert_eq!(differences, ["jcr:content/jcr:title", "jcr:content/text/text"]);
    let shown = snapshot.with_version(&path(PAGE), "1.0").unwrap();
    assert_eq!(title_at(&shown, PAGE).as_deref(), Some("first"));
    assert_eq!(title_at(&snapshot, PAGE).as_deref(), Some("third"));

    let mut session = repository.session("bob").unwrap();
    session.versions().restore_node(&path(PAGE), "1.0", at(5), CheckOutState::CheckedOut).unwrap();
    session.commit("restore", at(5)).unwrap();
    assert_eq!(title(&repository, PAGE).as_deref(), Some("first"));
    let content = repository.snapshot().unwrap().node(&path("/content/page/jcr:content")).unwrap();
    assert_eq!(content.unwrap().text("cq:lastModifiedBy").as_deref(), Some("bob"));
    // 1.1 stays, so the next one branches off 1.0.
    assert_eq!(keep(&repository, PAGE).name, "1.0.0");
    assert_eq!(names(&repository, PAGE), ["1.0", "1.1", "1.0.0"]);
    let missing = repository.snapshot().unwrap().version(&path(PAGE), "2.0");
    assert!(matches!(missing, Err(Error::VersionMissing { .. })));
}

#[test]
fn a_check_in_writes_no_body_however_large_the_page() {
    let (repository, store) = site();
    let mut session = repository.session("ann").unwrap();
    let text = path("/content/page/jcr:content/text");
    session.set_property(&text, "text", "x".repeat(300_000).as_str().into()).unwrap();
    session.commit("grow", at(1)).unwrap();
    drop(session);
    let watched = WatchedStore::new(store, |batch| {
        let bytes: usize = batch.chunks().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 2_000, "{bytes} bytes for a check-in");
        Ok(())
    });
    let repository =
        Repository::open(Arc::new(watched), Arc::new(MemoryBlobStore::default())).unwrap();
    assert_eq!(keep(&repository, PAGE).name, "1.0");
}

#[test]
fn components_and_pages_below_are_restored_by_themselves() {
    let (repository, _) = site();
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/content/page/sub"), page("sub")).unwrap();
    session.commit("add", at(1)).unwrap();
    keep(&repository, PAGE);
    let mut session = repository.session("ann").unwrap();
    session.add_node(&path("/content/page/jcr:content/more"), "nt:unstructured").unwrap();
    session.remove_node(&path("/content/page/jcr:content/text")).unwrap();
    session.commit("edit", at(2)).unwrap();
    set(&repository, "/content/page/sub/jcr:content", "jcr:title", "later");

    let mut session = repository.session("ann").unwrap();
    let part = session
        .versions()
        .restore_component(&path(PAGE), "1.0", "jcr:content/text", at(3))
        .unwrap();
    assert_eq!(part, path("/content/page/jcr:content/text"));
    session.commit("restore a part", at(3)).unwrap();
    let node = repository.snapshot().unwrap().node(&path("/content/page/jcr:content")).unwrap();
    let children: Vec<String> =
        node.unwrap().children().unwrap().iter().map(|child| child.name().to_owned()).collect();
    assert_eq!(children, ["text", "more"], "in front, as it was");

    let mut session = repository.session("ann").unwrap();
    session.versions().restore_node(&path(PAGE), "1.0", at(4), CheckOutState::CheckedOut).unwrap();
    session.commit("restore", at(4)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    assert!(snapshot.node(&path("/content/page/jcr:content/more")).unwrap().is_none());
    assert_eq!(title_at(&snapshot, "/content/page/sub").as_deref(), Some("later"), "untouched");
    let none =
        session.versions().restore_component(&path(PAGE), "1.0", "jcr:content/absent", at(5));
    assert!(matches!(none, Err(Error::NodeMissing(_))), "{none:?}");
}

fn set(repository: &Repository, node: &str, name: &str, value: &str) {
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path(node), name, value.into()).unwrap();
    session.commit("edit", at(1)).unwrap();
}

#[test]
fn a_deleted_page_comes_back_also_elsewhere() {
    let (repository, store) = site();
    let uuid = |page: &str| {
        let node =
            repository.snapshot().unwrap().node(&path(&format!("{page}/jcr:content"))).unwrap();
        node.unwrap().text("jcr:uuid").unwrap()
    };
    let own = uuid(PAGE);
    keep(&repository, PAGE);
    keep(&repository, "/content/page/jcr:content");
    let deleted = |below: &str| -> Vec<String> {
        let deleted = repository.snapshot().unwrap().deleted_nodes(&path(below)).unwrap();
        deleted.into_iter().map(|node| format!("{} {}", node.path, node.versions.len())).collect()
    };
    assert_eq!(deleted("/"), [""; 0]);
    let mut session = repository.session("ann").unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.commit("delete", at(2)).unwrap();
    collect(&store);
    assert_eq!(deleted("/content"), ["/content/page 1", "/content/page/jcr:content 1"]);
    assert_eq!(deleted("/content/other"), [""; 0]);
    session.versions().restore_node(&path(PAGE), "1.0", at(3), CheckOutState::CheckedOut).unwrap();
    session.commit("undelete", at(3)).unwrap();
    assert_eq!(title(&repository, PAGE).as_deref(), Some("first"));
    assert_eq!(deleted("/content"), [""; 0]);
    // Elsewhere beside the first, it is another node: it gets identifiers of its own and no history.
    let version = repository.snapshot().unwrap().version(&path(PAGE), "1.0").unwrap();
    let copy = path("/content/copy");
    session.versions().restore_version(&version, &copy, at(4), CheckOutState::CheckedOut).unwrap();
    session.commit("copy", at(4)).unwrap();
    assert_eq!(uuid(PAGE), own);
    assert_ne!(uuid("/content/copy"), own);
    assert_eq!(names(&repository, "/content/copy"), [""; 0]);
}

#[test]
fn a_history_goes_where_its_node_goes() {
    let (repository, _) = site();
    keep(&repository, PAGE);
    let mut session = repository.session("ann").unwrap();
    session.add_node(&path("/content/news"), "sling:Folder").unwrap();
    session.move_node(&path(PAGE), &path("/content/news/page")).unwrap();
    session.commit("move", at(1)).unwrap();
    session.move_node(&path("/content/news"), &path("/content/old")).unwrap();
    session.commit("move the folder", at(1)).unwrap();
    let moved = "/content/old/page";
    assert_eq!(names(&repository, moved), ["1.0"]);
    assert_eq!(keep(&repository, moved).name, "1.1");
    assert_eq!(names(&repository, PAGE), [""; 0]);
    // A new page at the old place has a history of its own.
    session.refresh().unwrap();
    session.put_node(&path(PAGE), page("new")).unwrap();
    session.commit("new", at(2)).unwrap();
    assert_eq!(keep(&repository, PAGE).name, "1.0");
    assert_eq!(names(&repository, moved), ["1.0", "1.1"]);
    // It is deleted, and the first moves back over its history, which is still there to restore from.
    session.refresh().unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.move_node(&path(moved), &path(PAGE)).unwrap();
    session.commit("move back", at(3)).unwrap();
    assert_eq!(names(&repository, PAGE), ["1.0", "1.1"]);
    let snapshot = repository.snapshot().unwrap();
    let deleted = snapshot.deleted_nodes(&path("/")).unwrap();
    assert_eq!(deleted.len(), 1);
    let tree = snapshot.read_version(&deleted[0].versions[0]).unwrap();
    assert_eq!(tree.child("jcr:content").unwrap().text("jcr:title"), Some("new"));
    // A copy begins without versions.
    session.copy_node(&path(PAGE), &path("/content/copy")).unwrap();
    session.commit("copy", at(4)).unwrap();
    assert_eq!(names(&repository, "/content/copy"), [""; 0]);
}

/// An edit that is refused.
type Attempt = fn(&mut Session) -> Result<(), Error>;

#[test]
fn a_checked_in_node_is_read_only_until_it_is_checked_out() {
    let (repository, _) = site();
    let content = path("/content/page/jcr:content");
    let mut session = repository.session("ann").unwrap();
    let whole = session.versions().check_in(&path(PAGE), &CLOSE);
    assert!(
        matches!(whole, Err(Error::InvalidEdit { .. })),
        "a page is not versionable, its content is"
    );
    assert_eq!(session.versions().check_in(&content, &CLOSE).unwrap().name, "1.0");
    session.commit("check in", at(1)).unwrap();
    assert_eq!(
        session.versions().check_in(&content, &CLOSE).unwrap().name,
        "1.0",
        "nothing has changed"
    );
    let attempts: [Attempt; 4] = [
        |session| session.set_property(&path("/content/page/jcr:content"), "x", "1".into()),
        |session| session.remove_node(&path("/content/page/jcr:content/text")),
        |session| session.add_node(&path("/content/page/jcr:content/new"), "nt:unstructured"),
        |session| {
            let mut tree = page("other");
            let content = tree.child_mut("jcr:content").unwrap();
            content.properties.insert("jcr:isCheckedOut".into(), Value::Boolean(false).into());
            session.put_node(&path(PAGE), tree)
        },
    ];
    for (number, attempt) in attempts.into_iter().enumerate() {
        attempt(&mut session).unwrap();
        let done = session.commit("edit", at(2));
        assert!(
            matches!(&done, Err(Error::InvalidEdit { path, .. }) if *path == content),
            "{number}: {done:?}"
        );
        session.refresh().unwrap();
    }
    // What replication notes, and what is beside the node, may change.
    session.set_property(&content, "cq:lastReplicatedBy", "ann".into()).unwrap();
    session.put_node(&path("/content/page/sub"), page("sub")).unwrap();
    session.commit("beside", at(3)).unwrap();
    session.versions().check_out(&content).unwrap();
    session.set_property(&content, "x", "1".into()).unwrap();
    session.commit("check out and edit", at(4)).unwrap();
    session.versions().check_in(&content, &CLOSE).unwrap();
    session.commit("check in", at(5)).unwrap();
    session.versions().restore_node(&content, "1.0", at(6), CheckOutState::CheckedIn).unwrap();
    session.commit("restore", at(6)).unwrap();
    assert_eq!(session.node(&content).unwrap().unwrap().property("x"), None);
    session.set_property(&content, "x", "2".into()).unwrap();
    assert!(session.commit("edit", at(7)).is_err(), "it is checked in after a restore");
    session.refresh().unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.commit("removing is an edit of the parent", at(8)).unwrap();
}

#[test]
fn a_checked_in_node_stays_so_where_it_is_moved() {
    let (repository, _) = site();
    let content = path("/content/page/jcr:content");
    repository.check_in("ann", &content, &CLOSE).unwrap();
    let mut session = repository.session("ann").unwrap();
    session.move_node(&path(PAGE), &path("/content/moved")).unwrap();
    session.commit("move", at(2)).unwrap();
    let moved = path("/content/again/jcr:content");
    session.move_node(&path("/content/moved"), &path("/content/again")).unwrap();
    session.set_property(&moved, "jcr:title", "changed".into()).unwrap();
    let done = session.commit("move and change", at(3));
    assert!(matches!(&done, Err(Error::InvalidEdit { action: "change", .. })), "{done:?}");
    session.versions().check_out(&moved).unwrap();
    session.commit("check out", at(4)).unwrap();
    assert_eq!(title(&repository, "/content/again").as_deref(), Some("changed"));
}

#[test]
fn a_copy_of_a_checked_in_node_can_be_changed() {
    let (repository, _) = site();
    let content = path("/content/page/jcr:content");
    repository.check_in("ann", &content, &CLOSE).unwrap();
    let mut session = repository.session("ann").unwrap();
    session.copy_node(&path(PAGE), &path("/content/copy")).unwrap();
    session.commit("copy", at(2)).unwrap();
    set_title(&repository, "/content/copy", "changed");
    assert_eq!(title(&repository, "/content/copy").as_deref(), Some("changed"));
}

#[test]
fn labels_stand_for_one_version_and_move() {
    let (repository, _) = site();
    keep(&repository, PAGE);
    keep(&repository, PAGE);
    let mut session = repository.session("ann").unwrap();
    let page = path(PAGE);
    session.versions().add_label(&page, "1.0", "gold", LabelConflictPolicy::Refuse).unwrap();
    let taken = session.versions().add_label(&page, "1.1", "gold", LabelConflictPolicy::Refuse);
    assert!(matches!(taken, Err(Error::InvalidEdit { .. })), "{taken:?}");
    session.versions().add_label(&page, "1.1", "gold", LabelConflictPolicy::Move).unwrap();
    session.versions().add_label(&page, "1.1", "gold", LabelConflictPolicy::Refuse).unwrap();
    session.commit("label", at(1)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(snapshot.version(&page, "gold").unwrap().name, "1.1");
    assert_eq!(snapshot.version(&page, "1.0").unwrap().labels, [""; 0]);
    assert!(session.versions().remove_label(&page, "gold").unwrap());
    assert!(!session.versions().remove_label(&page, "gold").unwrap());
    assert!(session.versions().add_label(&page, "1.0", "a/b", LabelConflictPolicy::Move).is_err());
}

#[test]
fn check_ins_at_once_lose_nothing() {
    let (repository, _) = site();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let repository = &repository;
            scope.spawn(move || {
                let user = format!("u{thread}");
                for step in 0..5 {
                    let check_in = CheckInOptions { created_at: at(step), ..KEEP };
                    let kept = repository.check_in(&user, &path(PAGE), &check_in).unwrap();
                    assert_eq!((&*kept.user, kept.created_at), (&*user, at(step)));
                }
            });
        }
    });
    let versions = repository.snapshot().unwrap().versions(&path(PAGE)).unwrap();
    assert_eq!(versions.len(), 20);
    let mut names: Vec<&str> = versions.iter().map(|version| &*version.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 20, "every name once");
    assert_eq!(versions.iter().filter(|version| version.is_base).count(), 1);
}

#[test]
fn branches_bring_their_versions_along() {
    let (main, _) = site();
    keep(&main, PAGE);
    main.create_branch("launch", by("launch")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    set_title(&launch, PAGE, "on the branch");
    keep(&launch, PAGE);
    let mut session = launch.session("ann").unwrap();
    session.versions().add_label(&path(PAGE), "1.1", "gold", LabelConflictPolicy::Refuse).unwrap();
    session.commit("label", at(1)).unwrap();
    keep(&main, PAGE);
    let mut session = main.session("ann").unwrap();
    session.versions().add_label(&path(PAGE), "1.1", "gold", LabelConflictPolicy::Refuse).unwrap();
    session.commit("label", at(1)).unwrap();
    main.merge_branch("launch", by("merge")).unwrap();
    let snapshot = main.snapshot().unwrap();
    let versions = snapshot.versions(&path(PAGE)).unwrap();
    assert_eq!(versions.len(), 3, "{versions:?}");
    let gold = snapshot.version(&path(PAGE), "gold").unwrap();
    assert_eq!(versions.iter().filter(|version| !version.labels.is_empty()).count(), 1);
    let tree = snapshot.read_version(&gold).unwrap();
    assert_eq!(tree.child("jcr:content").unwrap().text("jcr:title"), Some("on the branch"));
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(names(&main, PAGE).len(), 3);
    // A revert takes the content back, not what was kept.
    let early = main.revisions(None, usize::MAX).unwrap();
    let early = early.iter().rev().find(|one| one.update.message == "import").unwrap();
    main.revert_to_root(early.update.new_root.unwrap(), by("revert")).unwrap();
    assert_eq!(title(&main, PAGE).as_deref(), Some("first"));
    assert_eq!(names(&main, PAGE).len(), 3);
}

#[test]
fn equal_versions_have_one_root_and_removing_all_leaves_no_trace() {
    let (repository, _) = site();
    let mut session = repository.session("ann").unwrap();
    for name in ["a", "b"] {
        session.put_node(&path(&format!("/content/{name}")), page(name)).unwrap();
    }
    session.commit("pages", at(1)).unwrap();
    let before = repository.head_root().unwrap();
    let roots = [["a", "b"], ["b", "a"]].map(|order| {
        for name in order {
            keep(&repository, &format!("/content/{name}"));
        }
        let root = repository.head_root().unwrap();
        for name in order {
            session.refresh().unwrap();
            session.versions().remove_version(&path(&format!("/content/{name}")), "1.0").unwrap();
            session.commit("remove", at(2)).unwrap();
        }
        assert_eq!(repository.head_root().unwrap(), before);
        root
    });
    assert_eq!(roots[0], roots[1]);
}

/// Puts a policy at a node: whether everyone is granted or denied which privileges.
fn set_policy(repository: &Repository, node: &str, entries: &[(&str, &[&str])]) {
    let mut policy = Subtree::new("rep:policy", "rep:ACL");
    for (number, (kind, privileges)) in entries.iter().enumerate() {
        let names = privileges.iter().map(|name| Value::Name((*name).to_owned())).collect();
        let entry = Subtree::new(format!("entry{number}"), kind)
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", Property::List(ValueType::Name, names));
        policy.put_child(entry);
    }
    let mut session = repository.session("system").unwrap();
    session.put_node(&path(node).child("rep:policy").unwrap(), policy).unwrap();
    session.commit("policy", at(1)).unwrap();
}

#[test]
fn a_restored_component_stays_closed() {
    let (repository, _) = site();
    let text = "/content/page/jcr:content/text";
    set_policy(&repository, text, &[("rep:GrantACE", &["jcr:read"])]);
    keep(&repository, PAGE);
    set_policy(&repository, text, &[("rep:DenyACE", &["jcr:read"])]);
    let policy =
        || repository.snapshot().unwrap().read_subtree(&path(text).child("rep:policy").unwrap());
    let today = policy().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.versions().restore_component(&path(PAGE), "1.0", "jcr:content/text", at(3)).unwrap();
    session.commit("restore a part", at(3)).unwrap();
    assert_eq!(policy().unwrap(), today);
    assert!(
        today.is_some_and(|policy| policy.child("entry0").unwrap().primary_type() == "rep:DenyACE")
    );
}

#[test]
fn what_was_closed_in_a_version_and_is_gone_is_for_those_who_manage_versions() {
    let (repository, _) = site();
    let text = path("/content/page/jcr:content/text");
    set_policy(&repository, "/content", &[("rep:GrantACE", &["jcr:read", "rep:write"])]);
    set_policy(&repository, text.as_str(), &[("rep:DenyACE", &["jcr:read"])]);
    keep(&repository, PAGE);
    let vic = Viewer::of_user(Some("vic"));
    let seen = || repository.snapshot().unwrap().as_viewer(&vic);
    let is_shown = || {
        let snapshot = seen();
        let version = snapshot.version(&path(PAGE), "1.0").unwrap();
        let tree = snapshot.read_version(&version).unwrap();
        let shown = snapshot.with_version(&path(PAGE), "1.0").unwrap();
        [tree.find_descendant("jcr:content/text").is_some(), shown.node(&text).unwrap().is_some()]
    };
    assert_eq!(is_shown(), [false; 2]);
    // Its policy goes with it.
    let mut session = repository.session("system").unwrap();
    session.remove_node(&text).unwrap();
    session.commit("remove", at(2)).unwrap();
    assert_eq!(is_shown(), [false; 2]);
    let mut session = repository.session_as(&vic).unwrap();
    let restored =
        session.versions().restore_component(&path(PAGE), "1.0", "jcr:content/text", at(3));
    assert!(matches!(restored, Err(Error::NodeMissing(_))), "{restored:?}");
    let rights = ["jcr:read", "rep:write", "jcr:versionManagement"];
    set_policy(&repository, "/content", &[("rep:GrantACE", &rights)]);
    assert_eq!(is_shown(), [true; 2]);
    let mut session = repository.session_as(&vic).unwrap();
    session.versions().restore_component(&path(PAGE), "1.0", "jcr:content/text", at(3)).unwrap();
    session.commit("restore", at(3)).unwrap();
    // What was opened since is open in its versions, too.
    set_policy(&repository, "/content", &[("rep:GrantACE", &["jcr:read"])]);
    assert_eq!(is_shown(), [true; 2]);
}

#[test]
fn versions_are_for_those_who_may_see_the_node() {
    let (repository, _) = site();
    let viewer = Viewer::of_user(Some("vic"));
    keep(&repository, PAGE);
    let seen = || {
        let snapshot = repository.snapshot().unwrap().as_viewer(&viewer);
        snapshot.versions(&path(PAGE)).unwrap()
    };
    assert_eq!(seen().len(), 0, "nothing is granted");
    set_policy(&repository, "/content", &[("rep:GrantACE", &["jcr:read"])]);
    assert_eq!(seen().len(), 1);
    let snapshot = repository.snapshot().unwrap().as_viewer(&viewer);
    let shown = snapshot.with_version(&path(PAGE), "1.0").unwrap();
    assert_eq!(title_at(&shown, PAGE).as_deref(), Some("first"));
    let mut session = repository.session_as(&viewer).unwrap();
    session.versions().check_in(&path(PAGE), &KEEP).unwrap();
    let done = session.commit("check in", at(2));
    assert!(matches!(&done, Err(Error::AccessDenied { .. })), "{done:?}");
    let rights = ["jcr:read", "jcr:versionManagement"];
    set_policy(&repository, "/content", &[("rep:GrantACE", &rights)]);
    session.refresh().unwrap();
    session.versions().check_in(&path(PAGE), &KEEP).unwrap();
    session.commit("check in", at(3)).unwrap();
    // The newest policies count for old states, and for nodes that are gone.
    set_policy(&repository, PAGE, &[("rep:DenyACE", &["jcr:read"])]);
    assert_eq!(seen().len(), 0);
    let shown = snapshot.with_version(&path(PAGE), "1.0");
    assert!(shown.is_ok(), "the snapshot of before still stands: {shown:?}");
    let snapshot = repository.snapshot().unwrap().as_viewer(&viewer);
    assert!(matches!(snapshot.version(&path(PAGE), "1.0"), Err(Error::VersionMissing { .. })));
    set_policy(&repository, "/content", &[("rep:DenyACE", &["jcr:read"])]);
    let mut session = repository.session("system").unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.commit("delete", at(4)).unwrap();
    let snapshot = repository.snapshot().unwrap();
    assert_eq!(snapshot.deleted_nodes(&path("/")).unwrap().len(), 1);
    assert_eq!(snapshot.as_viewer(&viewer).deleted_nodes(&path("/")).unwrap().len(), 0);
}

#[test]
fn versions_of_a_deleted_node_are_for_those_who_manage_versions() {
    let (repository, _) = site();
    keep(&repository, PAGE);
    set_policy(&repository, "/content", &[("rep:GrantACE", &["jcr:read"])]);
    set_policy(&repository, PAGE, &[("rep:DenyACE", &["jcr:read"])]);
    let version = repository.snapshot().unwrap().version(&path(PAGE), "1.0").unwrap();
    let mut session = repository.session("system").unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.commit("delete", at(4)).unwrap();
    // The policy that closed the page went with it.
    let vic = Viewer::of_user(Some("vic"));
    let seen = || repository.snapshot().unwrap().as_viewer(&vic);
    assert_eq!(seen().versions(&path(PAGE)).unwrap().len(), 0);
    assert_eq!(seen().deleted_nodes(&path("/")).unwrap().len(), 0);
    assert!(matches!(seen().with_version(&path(PAGE), "1.0"), Err(Error::VersionMissing { .. })));
    assert!(matches!(seen().read_version(&version), Err(Error::NodeMissing(_))));
    let rights = ["jcr:read", "jcr:versionManagement"];
    set_policy(&repository, "/content", &[("rep:GrantACE", &rights)]);
    assert_eq!(seen().versions(&path(PAGE)).unwrap().len(), 1);
    assert_eq!(seen().deleted_nodes(&path("/")).unwrap().len(), 1);
    assert!(seen().read_version(&version).is_ok());
}

#[test]
fn a_purge_of_neighbors_leaves_no_predecessor_that_is_gone() {
    let (repository, _) = site();
    for number in 0..4 {
        set_title(&repository, PAGE, &format!("state {number}"));
        let check_in = CheckInOptions { created_at: at(number), ..KEEP };
        repository.check_in("ann", &path(PAGE), &check_in).unwrap();
    }
    let retention = VersionRetention { max_count: Some(2), max_age: None };
    repository.purge_versions(&retention, by("purge")).unwrap();
    let versions = repository.snapshot().unwrap().versions(&path(PAGE)).unwrap();
    let known: Vec<(&str, Option<&str>)> =
        versions.iter().map(|one| (&*one.name, one.predecessor.as_deref())).collect();
    assert_eq!(known, [("1.2", None), ("1.3", Some("1.2"))]);
}

#[test]
fn a_label_given_on_a_launch_keeps_a_version_that_main_let_go() {
    let (repository, _) = site();
    keep(&repository, PAGE);
    repository.create_branch("launch", by("launch")).unwrap();
    let launch = repository.open_branch("launch").unwrap();
    let mut session = launch.session("ann").unwrap();
    session.versions().add_label(&path(PAGE), "1.0", "gold", LabelConflictPolicy::Refuse).unwrap();
    session.commit("label", at(2)).unwrap();
    let mut session = repository.session("ann").unwrap();
    session.versions().remove_version(&path(PAGE), "1.0").unwrap();
    session.commit("remove", at(3)).unwrap();
    assert_eq!(names(&repository, PAGE), [""; 0]);
    repository.merge_branch("launch", by("merge")).unwrap();
    let kept = repository.snapshot().unwrap().version(&path(PAGE), "gold").unwrap();
    assert_eq!((kept.name.as_str(), kept.is_base), ("1.0", true));
}

#[test]
fn a_purge_keeps_what_is_labeled_new_or_based_on() {
    let (repository, store) = site();
    let mut bodies = Vec::new();
    for number in 0..6 {
        set_title(&repository, PAGE, &format!("state {number}"));
        let check_in = CheckInOptions { created_at: at(number * 100), ..KEEP };
        bodies.push(repository.check_in("ann", &path(PAGE), &check_in).unwrap().name);
    }
    let mut session = repository.session("ann").unwrap();
    session.versions().add_label(&path(PAGE), "1.0", "gold", LabelConflictPolicy::Refuse).unwrap();
    session
        .versions()
        .restore_node(&path(PAGE), "1.2", at(650), CheckOutState::CheckedOut)
        .unwrap();
    session.commit("label and restore", at(650)).unwrap();
    let gone =
        repository.snapshot().unwrap().version(&path(PAGE), "1.1").unwrap().body_id().unwrap();
    let purge = |max_count, max_age: Option<u64>, now| {
        let max_age = max_age.map(Duration::from_secs);
        let retention = VersionRetention { max_count, max_age };
        let revising = RevisionDetails { user: "system", message: "purge", time: at(now) };
        repository.purge_versions(&retention, revising).unwrap().removed_count
    };
    assert_eq!(purge(None, None, 10_000), 0);
    assert_eq!(purge(Some(2), None, 700), 2);
    assert_eq!(names(&repository, PAGE), ["1.0", "1.2", "1.4", "1.5"], "1.0 labeled, 1.2 the base");
    assert_eq!(purge(Some(2), None, 700), 0);
    assert_eq!(purge(None, Some(250), 700), 1);
    assert_eq!(names(&repository, PAGE), ["1.0", "1.2", "1.5"]);
    // What reads an older state keeps it.
    drop(session);
    assert!(store.contains_chunks(&[gone]).unwrap()[0]);
    collect(&store);
    assert!(!store.contains_chunks(&[gone]).unwrap()[0], "a purged state is garbage");
    let predecessors: Vec<Option<String>> = repository
        .snapshot()
        .unwrap()
        .versions(&path(PAGE))
        .unwrap()
        .into_iter()
        .map(|version| version.predecessor)
        .collect();
    assert_eq!(predecessors, [None, Some("1.0".to_owned()), Some("1.2".to_owned())]);
    // Of a deleted node the newest stays, until it is too old.
    let mut session = repository.session("ann").unwrap();
    session.versions().remove_label(&path(PAGE), "gold").unwrap();
    session.remove_node(&path(PAGE)).unwrap();
    session.commit("delete", at(700)).unwrap();
    assert_eq!(purge(Some(1), None, 700), 1);
    assert_eq!(names(&repository, PAGE), ["1.2", "1.5"]);
    assert_eq!(purge(None, Some(250), 10_000), 2);
    assert_eq!(repository.snapshot().unwrap().deleted_nodes(&path("/")).unwrap().len(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Edit(usize, u8),
    Keep(usize),
    Label(usize, u8, u8),
    Restore(usize, u8),
    Remove(usize, u8),
    Delete(usize),
    Move(usize, usize),
    Purge(usize),
    Commit,
    Collect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = || 0..3_usize;
    let step = prop_oneof![
        4 => (page(), any::<u8>()).prop_map(|(page, text)| Step::Edit(page, text)),
        5 => page().prop_map(Step::Keep),
        2 => (page(), any::<u8>(), 0..3_u8).prop_map(|(page, which, label)| Step::Label(page, which, label)),
        2 => (page(), any::<u8>()).prop_map(|(page, which)| Step::Restore(page, which)),
        1 => (page(), any::<u8>()).prop_map(|(page, which)| Step::Remove(page, which)),
        1 => page().prop_map(Step::Delete),
        1 => (page(), page()).prop_map(|(from, to)| Step::Move(from, to)),
        1 => (1..4_usize).prop_map(Step::Purge),
        3 => Just(Step::Commit),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 1..50)
}

/// What one node and its versions should be: by name the text, and the labels; in the order of keeping.
#[derive(Debug, Clone, Default)]
struct Kept {
    text: Option<String>,
    versions: Vec<(String, String, Vec<String>)>,
    base: String,
}

/// The plain model: three places with nodes that have identifiers, so that a history is the node's wherever it is.
#[derive(Debug, Clone, Default)]
struct Model {
    nodes: BTreeMap<usize, Kept>,
    next: usize,
    /// Which node is at each place.
    places: [Option<usize>; 3],
}

fn place(number: usize) -> NodePath {
    path(&format!("/content/p{number}"))
}

impl Model {
    fn at(&mut self, place: usize) -> Option<&mut Kept> {
        self.places[place].and_then(|id| self.nodes.get_mut(&id))
    }

    fn step(&mut self, step: &Step, session: &mut Session, repository: &Repository) {
        match step {
            Step::Edit(at, text) => {
                let text = long(&format!("text {text}"));
                if self.places[*at].is_none() {
                    let tree = Subtree::new("", "nt:unstructured")
                        .with_property("jcr:uuid", format!("id-{}", self.next).as_str());
                    session.put_node(&place(*at), tree).unwrap();
                    self.nodes.insert(self.next, Kept::default());
                    self.places[*at] = Some(self.next);
                    self.next += 1;
                }
                session.set_property(&place(*at), "text", text.as_str().into()).unwrap();
                self.at(*at).unwrap().text = Some(text);
            }
            Step::Keep(at) => {
                let kept = session.versions().check_in(&place(*at), &KEEP);
                let Some(node) = self.at(*at) else {
                    assert!(matches!(kept, Err(Error::NodeMissing(_))));
                    return;
                };
                let name = kept.unwrap().name;
                assert!(node.versions.iter().all(|(other, ..)| *other != name));
                node.base.clone_from(&name);
                node.versions.push((name, node.text.clone().unwrap_or_default(), Vec::new()));
            }
            Step::Label(at, which, label) => {
                let Some(node) = self.at(*at).filter(|node| !node.versions.is_empty()) else {
                    return;
                };
                let (label, which) =
                    (format!("l{label}"), usize::from(*which) % node.versions.len());
                let name = node.versions[which].0.clone();
                session
                    .versions()
                    .add_label(&place(*at), &name, &label, LabelConflictPolicy::Move)
                    .unwrap();
                node.versions
                    .iter_mut()
                    .for_each(|(.., labels)| labels.retain(|one| *one != label));
                node.versions[which].2.push(label);
                node.versions[which].2.sort();
            }
            Step::Restore(at, which) => {
                let Some(node) = self.at(*at).filter(|node| !node.versions.is_empty()) else {
                    return;
                };
                let (name, text, _) =
                    node.versions[usize::from(*which) % node.versions.len()].clone();
                session
                    .versions()
                    .restore_node(&place(*at), &name, at_now(), CheckOutState::CheckedOut)
                    .unwrap();
                node.text = Some(text).filter(|text| !text.is_empty());
                node.base = name;
            }
            Step::Remove(at, which) => {
                let Some(node) = self.at(*at).filter(|node| !node.versions.is_empty()) else {
                    return;
                };
                let which = usize::from(*which) % node.versions.len();
                let (name, ..) = node.versions.remove(which);
                session.versions().remove_version(&place(*at), &name).unwrap();
                if node.base == name {
                    let left = session.snapshot().unwrap().versions(&place(*at)).unwrap();
                    node.base = left
                        .into_iter()
                        .find(|one| one.is_base)
                        .map_or_else(String::new, |one| one.name);
                }
            }
            Step::Delete(at) => {
                if self.places[*at].take().is_some() {
                    session.remove_node(&place(*at)).unwrap();
                }
            }
            Step::Move(from, to) => {
                if self.places[*from].is_some() && self.places[*to].is_none() {
                    session.move_node(&place(*from), &place(*to)).unwrap();
                    self.places[*to] = self.places[*from].take();
                }
            }
            Step::Purge(max) => {
                session.commit("before the purge", at(1)).unwrap();
                let retention = VersionRetention { max_count: Some(*max), max_age: None };
                repository.purge_versions(&retention, by("purge")).unwrap();
                session.refresh().unwrap();
                for node in self.nodes.values_mut() {
                    let surplus = node.versions.len().saturating_sub(*max);
                    let (last, base) = (node.versions.len(), node.base.clone());
                    let mut at = 0;
                    node.versions.retain(|(name, _, labels)| {
                        at += 1;
                        at > surplus || at == last || *name == base || !labels.is_empty()
                    });
                }
            }
            Step::Commit => _ = session.commit("edit", at(1)).unwrap(),
            Step::Collect => {}
        }
    }

    fn check(&self, snapshot: &Snapshot) {
        for (at, id) in self.places.iter().enumerate() {
            let Some(node) = id.and_then(|id| self.nodes.get(&id)) else { continue };
            let read = snapshot.node(&place(at)).unwrap().unwrap();
            assert_eq!(read.text("text"), node.text);
            let versions = snapshot.versions(&place(at)).unwrap();
            let found: Vec<(String, String, Vec<String>)> = versions
                .iter()
                .map(|version| {
                    let tree = snapshot.read_version(version).unwrap();
                    let text = tree.text("text").unwrap_or_default().to_owned();
                    (version.name.clone(), text, version.labels.clone())
                })
                .collect();
            assert_eq!(found, node.versions, "{}", place(at));
            let base =
                versions.iter().find(|version| version.is_base).map(|version| &*version.name);
            assert_eq!(base.unwrap_or_default(), node.base);
        }
        // Nodes that are gone keep their versions.
        let gone = self.nodes.iter().filter(|(id, _)| !self.places.contains(&Some(**id)));
        let mut expected: Vec<Vec<String>> = gone
            .map(|(_, node)| {
                node.versions.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>()
            })
            .filter(|names| !names.is_empty())
            .collect();
        let deleted = snapshot.deleted_nodes(&NodePath::root()).unwrap();
        let mut found: Vec<Vec<String>> = deleted
            .into_iter()
            .map(|node| node.versions.into_iter().map(|version| version.name).collect())
            .collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }
}

fn at_now() -> SystemTime {
    at(7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn versions_equal_a_plain_list(steps in steps()) {
        let (repository, store) = site();
        let mut session = repository.session("ann").unwrap();
        let mut model = Model::default();
        for step in &steps {
            model.step(step, &mut session, &repository);
            if matches!(step, Step::Collect) {
                session.commit("before the collection", at(1)).unwrap();
                collect(&store);
            }
            model.check(&session.snapshot().unwrap());
        }
        session.commit("last", at(1)).unwrap();
        collect(&store);
        // Opened anew: nothing comes from a cache.
        let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
        model.check(&repository.snapshot().unwrap());
    }
}
