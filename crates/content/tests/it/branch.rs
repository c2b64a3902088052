//! Branches: made at no cost, merged document by document, kept from collection, taken back.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{Error, NodePath, Repository, RevisionDetails, Subtree};
use tympan_store::{ChunkStore, GarbageCollectionOptions, LocalStore, RevisionRetention};
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

/// A repository with two pages, over a store that refuses commits with chunks in them when told to.
fn site() -> (Repository, Arc<LocalStore>) {
    let store = Arc::new(LocalStore::open_in_memory().unwrap());
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    let page = |name: &str| {
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("jcr:title", name)
            .with_property("jcr:description", "as made");
        Subtree::new(name, "cq:Page").with_child(content)
    };
    let mut content = Subtree::new("content", "sling:Folder");
    content.children = vec![page("one"), page("two")].into();
    session.put_node(&path("/content"), content).unwrap();
    session.commit("import", at(0)).unwrap();
    (repository, store)
}

fn set(repository: &Repository, page: &str, name: &str, value: &str) {
    let mut session = repository.session("ann").unwrap();
    let content = path(&format!("/content/{page}/jcr:content"));
    session.set_property(&content, name, value.into()).unwrap();
    session.commit("edit", at(1)).unwrap();
}

fn read(repository: &Repository, page: &str, name: &str) -> Option<String> {
    let content = path(&format!("/content/{page}/jcr:content"));
    repository.snapshot().unwrap().node(&content).unwrap().unwrap().text(name)
}

#[test]
fn a_branch_is_edited_and_merged_back() {
    let (main, _) = site();
    main.create_branch("launch", by("new look")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    set(&launch, "one", "jcr:title", "on the branch");
    set(&main, "one", "jcr:description", "on main");
    set(&main, "two", "jcr:title", "on main");
    assert_eq!(read(&main, "one", "jcr:title").as_deref(), Some("one"));
    assert_eq!(read(&launch, "two", "jcr:title").as_deref(), Some("two"));
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(read(&main, "one", "jcr:title").as_deref(), Some("on the branch"));
    assert_eq!(read(&main, "one", "jcr:description").as_deref(), Some("on main"));
    assert_eq!(read(&main, "two", "jcr:title").as_deref(), Some("on main"));
    // Merged once, only later changes count: taking one back on main is not undone by the next merge.
    set(&main, "one", "jcr:title", "taken back");
    set(&launch, "two", "jcr:description", "later");
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(read(&main, "one", "jcr:title").as_deref(), Some("taken back"));
    assert_eq!(read(&main, "two", "jcr:description").as_deref(), Some("later"));
    let messages = main.revisions(None, 2).unwrap();
    assert_eq!(messages[0].update.message, "merge");
}

#[test]
fn what_both_sides_changed_differently_is_a_conflict_and_nothing_is_merged() {
    let (main, _) = site();
    main.create_branch("launch", by("new look")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    set(&launch, "one", "jcr:title", "theirs");
    set(&launch, "two", "jcr:title", "theirs");
    set(&main, "one", "jcr:title", "ours");
    let before = main.head_root().unwrap();
    let merged = main.merge_branch("launch", by("merge"));
    let Err(Error::Conflicts(conflicts)) = merged else { panic!("{merged:?}") };
    assert_eq!(conflicts.len(), 1);
    assert_eq!(conflicts[0].path, path("/content/one/jcr:content"));
    assert_eq!(main.head_root().unwrap(), before);
}

#[test]
fn making_renaming_and_removing_a_branch_writes_no_chunk() {
    let (_, store) = site();
    let watched = WatchedStore::new(store, |batch| {
        assert_eq!(batch.chunks().len(), 0, "a branch is refs and nothing else");
        Ok(())
    });
    let main = Repository::open(Arc::new(watched), Arc::new(MemoryBlobStore::default())).unwrap();
    let root = main.create_branch("staging/one", by("try")).unwrap();
    assert_eq!(root, main.head_root().unwrap());
    main.rename_branch("staging/one", "staging/two", by("rename")).unwrap();
    let names: Vec<String> =
        main.branches().unwrap().into_iter().map(|branch| branch.name).collect();
    assert_eq!(names, ["main", "staging/two"]);
    assert_eq!(main.branches().unwrap()[1].base, Some(root));
    assert!(main.open_branch("staging/one").is_err());
    main.delete_branch("staging/two", by("done")).unwrap();
    assert_eq!(main.branches().unwrap().len(), 1);
    for name in ["", "main", "base/x", "a b", "-x", "/x", "ä", &"n".repeat(201)] {
        let made = main.create_branch(name, by("no"));
        assert!(matches!(made, Err(Error::InvalidBranch { .. })), "{name}");
    }
    assert!(matches!(main.delete_branch("main", by("no")), Err(Error::InvalidBranch { .. })));
    assert!(matches!(main.delete_branch("absent", by("no")), Err(Error::InvalidBranch { .. })));
    assert!(matches!(main.merge_branch("main", by("no")), Err(Error::InvalidBranch { .. })));
}

#[test]
fn an_earlier_state_comes_back_while_its_history_is_kept() {
    let (main, store) = site();
    let early = main.head_root().unwrap();
    set(&main, "one", "jcr:title", "a mistake");
    main.revert_to_root(early, by("undo")).unwrap();
    assert_eq!(read(&main, "one", "jcr:title").as_deref(), Some("one"));
    assert_eq!(main.revisions(None, 1).unwrap()[0].update.new_root, Some(early));
    set(&main, "one", "jcr:title", "next");
    let options = GarbageCollectionOptions {
        retention: RevisionRetention::KEEP_NEWEST,
        ..GarbageCollectionOptions::at_time(at(100))
    };
    store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    let gone = main.revert_to_root(early, by("too late"));
    assert!(matches!(gone, Err(Error::InvalidBranch { .. })), "{gone:?}");
}

#[test]
fn the_base_of_a_branch_outlives_collections() {
    let (main, store) = site();
    main.create_branch("launch", by("new look")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    for n in 0..20 {
        set(&launch, "one", "jcr:title", &format!("branch {n}"));
        set(&main, "two", "jcr:title", &format!("main {n}"));
        let options = GarbageCollectionOptions {
            retention: RevisionRetention::KEEP_NEWEST,
            min_live_share: 1.1,
            ..GarbageCollectionOptions::at_time(at(100))
        };
        store.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    }
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(read(&main, "one", "jcr:title").as_deref(), Some("branch 19"));
    assert_eq!(read(&main, "two", "jcr:title").as_deref(), Some("main 19"));
}
