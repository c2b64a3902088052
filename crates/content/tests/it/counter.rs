//! Atomic counters: increments of many sessions, of two processes and of branches add up.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    Error, NodePath, Property, Repository, RevisionDetails, Subtree, Value, ValueType,
};
use tympan_store::LocalStore;

fn at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// Two repositories over one store, as two processes have it, with a counter inside a document.
fn counters() -> [Repository; 2] {
    let (store, blobs) =
        (Arc::new(LocalStore::open_in_memory().unwrap()), Arc::new(MemoryBlobStore::default()));
    let open = || Repository::open(store.clone(), blobs.clone()).unwrap();
    let repository = open();
    let mut session = repository.session("setup").unwrap();
    let mixins = Property::List(ValueType::Name, vec![Value::Name("mix:atomicCounter".into())]);
    let counter = Subtree::new("views", "nt:unstructured").with_property("jcr:mixinTypes", mixins);
    let document = Subtree::new("doc", "nt:unstructured").with_child(counter);
    session.put_node(&path("/doc"), document).unwrap();
    session.commit("setup", at()).unwrap();
    [repository, open()]
}

fn add(repository: &Repository, amount: Property) {
    let mut session = repository.session("visitor").unwrap();
    session.set_property(&path("/doc/views"), "oak:increment", amount).unwrap();
    session.commit("count", at()).unwrap();
}

fn long(number: i64) -> Property {
    Value::Long(number).into()
}

fn count(repository: &Repository) -> Option<Property> {
    let node = repository.snapshot().unwrap().node(&path("/doc/views")).unwrap().unwrap();
    assert_eq!(node.property("oak:increment"), None, "an increment is gone with its commit");
    node.property("oak:counter")
}

#[test]
fn increments_of_sessions_and_processes_add_up_exactly() {
    let repositories = counters();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let repository = &repositories[thread % 2];
            scope.spawn(move || (0..10).for_each(|step| add(repository, long(step))));
        }
    });
    assert_eq!(count(&repositories[0]), Some(long(8 * 45)));
    assert_eq!(count(&repositories[1]), Some(long(8 * 45)));
}

#[test]
fn an_increment_is_a_number_in_whatever_form_a_client_sends_it() {
    let [repository, _] = counters();
    add(&repository, long(5));
    add(&repository, long(-2));
    add(&repository, Property::text("4"));
    assert_eq!(count(&repository), Some(long(7)));
    // Without the mixin, and what is no number, stays as it is.
    let mut session = repository.session("visitor").unwrap();
    session.set_property(&path("/doc"), "oak:increment", long(1)).unwrap();
    session.set_property(&path("/doc/views"), "oak:increment", Property::text("many")).unwrap();
    session.commit("no count", at()).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let left =
        |place: &str| snapshot.node(&path(place)).unwrap().unwrap().property("oak:increment");
    assert_eq!((left("/doc"), left("/doc/views")), (Some(long(1)), Some(Property::text("many"))));
}

#[test]
fn other_edits_beside_an_increment_merge_as_usual() {
    let [repository, _] = counters();
    let mut slow = repository.session("slow").unwrap();
    slow.set_property(&path("/doc/views"), "oak:increment", long(1)).unwrap();
    slow.set_property(&path("/doc"), "title", "by slow".into()).unwrap();
    add(&repository, long(10));
    slow.commit("slow", at()).unwrap();
    assert_eq!(count(&repository), Some(long(11)));
    let title = repository.snapshot().unwrap().node(&path("/doc")).unwrap().unwrap().text("title");
    assert_eq!(title.as_deref(), Some("by slow"));
}

#[test]
fn counting_what_another_removed_is_a_conflict() {
    for removed in ["/doc", "/doc/views"] {
        let [repository, _] = counters();
        let mut slow = repository.session("slow").unwrap();
        slow.set_property(&path("/doc/views"), "oak:increment", long(1)).unwrap();
        let mut quick = repository.session("quick").unwrap();
        quick.remove_node(&path(removed)).unwrap();
        quick.commit("remove", at()).unwrap();
        let done = slow.commit("slow", at());
        let Err(Error::Conflicts(conflicts)) = done else { panic!("{done:?}") };
        assert_eq!(conflicts[0].kind.name(), "changeRemovedNode", "{removed}");
        assert_eq!(conflicts[0].path, path("/doc/views"));
    }
}

#[test]
fn what_two_branches_count_adds_up() {
    let [main, _] = counters();
    add(&main, long(1));
    let by = |message| RevisionDetails { user: "ann", message, time: at() };
    main.create_branch("launch", by("launch")).unwrap();
    let launch = main.open_branch("launch").unwrap();
    (0..3).for_each(|_| add(&launch, long(1)));
    (0..3).for_each(|_| add(&main, long(1)));
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(count(&main), Some(long(7)), "equal counts on both sides are not one");
    main.merge_branch("launch", by("merge")).unwrap();
    assert_eq!(count(&main), Some(long(7)), "merged once");
}
