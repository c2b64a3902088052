//! Ordered siblings: against a plain list, through merges, and what a place in the middle of many costs.

use std::sync::Arc;
use std::time::SystemTime;

use proptest::prelude::*;
use tympan_blobs::MemoryBlobStore;
use tympan_content::{
    NodePath, Repository, Session, SiblingPosition, Snapshot, Subtree, SubtreeScope,
};
use tympan_store::{ChunkBatch, ChunkStore, RefUpdate, StoreRoot};
use tympan_testkit::watched_store::WatchedStore;

use crate::cost::{Written, counting};

const FOLDER: &str = "/folder";

#[derive(Debug, Clone)]
enum Edit {
    Add(u8),
    Put(u8, Spot),
    Remove(u8),
    Rename(u8, u8),
    /// Two siblings take turns behind a third, so that keys grow long.
    Crowd(u8, u8, u8),
    Commit,
}

#[derive(Debug, Clone)]
enum Spot {
    First,
    Last,
    Before(u8),
    After(u8),
}

fn name(number: u8) -> String {
    format!("n{number}")
}

fn child(number: u8) -> NodePath {
    NodePath::new(&format!("{FOLDER}/{}", name(number))).unwrap()
}

fn spots(names: u8) -> impl Strategy<Value = Spot> {
    prop_oneof![
        1 => Just(Spot::First),
        1 => Just(Spot::Last),
        3 => (0..names).prop_map(Spot::Before),
        3 => (0..names).prop_map(Spot::After),
    ]
}

fn edits(names: u8) -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0..names).prop_map(Edit::Add),
        6 => (0..names, spots(names)).prop_map(|(number, spot)| Edit::Put(number, spot)),
        2 => (0..names).prop_map(Edit::Remove),
        1 => (0..names, 0..names).prop_map(|(from, to)| Edit::Rename(from, to)),
        1 => (0..names, 0..names, 0..names).prop_map(|(a, b, c)| Edit::Crowd(a, b, c)),
        2 => Just(Edit::Commit),
    ];
    prop::collection::vec(edit, 1..40)
}

fn position(model: &[u8], number: u8) -> Option<usize> {
    model.iter().position(|one| *one == number)
}

/// Puts a node in its place in the session and in the list; both must refuse the same.
fn put(number: u8, spot: &Spot, model: &mut Vec<u8>, session: &mut Session) {
    let place = match spot {
        Spot::First => SiblingPosition::First,
        Spot::Last => SiblingPosition::Last,
        Spot::Before(sibling) => SiblingPosition::Before(name(*sibling)),
        Spot::After(sibling) => SiblingPosition::After(name(*sibling)),
    };
    let done = session.reorder_node(&child(number), &place).is_ok();
    let at = position(model, number);
    let sibling = match spot {
        Spot::Before(sibling) | Spot::After(sibling) => position(model, *sibling).is_some(),
        Spot::First | Spot::Last => true,
    };
    assert_eq!(done, at.is_some() && sibling, "{number} {spot:?} {model:?}");
    let (Some(at), true) = (at, done) else { return };
    if matches!(spot, Spot::Before(sibling) | Spot::After(sibling) if *sibling == number) {
        return;
    }
    model.remove(at);
    let at = match spot {
        Spot::First => 0,
        Spot::Last => model.len(),
        Spot::Before(sibling) => position(model, *sibling).unwrap(),
        Spot::After(sibling) => position(model, *sibling).unwrap() + 1,
    };
    model.insert(at, number);
}

fn apply(edit: &Edit, model: &mut Vec<u8>, session: &mut Session) {
    match edit {
        Edit::Add(number) => {
            let is_new = position(model, *number).is_none();
            assert_eq!(session.add_node(&child(*number), "sling:Folder").is_ok(), is_new);
            if is_new {
                model.push(*number);
            }
        }
        Edit::Put(number, spot) => put(*number, spot, model, session),
        Edit::Remove(number) => {
            let at = position(model, *number);
            assert_eq!(session.remove_node(&child(*number)).is_ok(), at.is_some());
            at.map(|at| model.remove(at));
        }
        Edit::Rename(from, to) => {
            let at = position(model, *from).filter(|_| position(model, *to).is_none());
            assert_eq!(session.move_node(&child(*from), &child(*to)).is_ok(), at.is_some());
            if let Some(at) = at {
                model.remove(at);
                model.push(*to);
            }
        }
        Edit::Crowd(left, right, sibling) => {
            for _ in 0..160 {
                put(*left, &Spot::After(*sibling), model, session);
                put(*right, &Spot::After(*sibling), model, session);
            }
        }
        Edit::Commit => _ = session.commit("edit", SystemTime::UNIX_EPOCH).unwrap(),
    }
}

/// Returns the names in order, after checking that all ways to list them agree.
fn listed(snapshot: &Snapshot) -> Vec<String> {
    let folder = snapshot.node(&NodePath::new(FOLDER).unwrap()).unwrap().unwrap();
    let all = folder.listed_children().unwrap();
    let names: Vec<String> = all.iter().map(|node| node.name().to_owned()).collect();
    assert_eq!(folder.count_listed_children().unwrap(), names.len());
    let mut paged = Vec::new();
    for offset in (0..=names.len()).step_by(3) {
        let page = folder.listed_page(offset, 3).unwrap();
        paged.extend(page.iter().map(|node| node.name().to_owned()));
    }
    assert_eq!(paged, names);
    names
}

fn names(model: &[u8]) -> Vec<String> {
    model.iter().map(|number| name(*number)).collect()
}

fn repository(folder: &str, children: u8) -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let mut tree = Subtree::new("folder", folder);
    tree.children = (0..children).map(|one| Subtree::new(name(one), "sling:Folder")).collect();
    session.put_node(&NodePath::new(FOLDER).unwrap(), tree).unwrap();
    session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
    repository
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 500 }))]

    #[test]
    fn siblings_stay_as_a_list_has_them(edits in edits(12)) {
        let repository = repository("sling:OrderedFolder", 3);
        let mut session = repository.session("ann").unwrap();
        let mut model: Vec<u8> = (0..3).collect();
        for edit in &edits {
            apply(edit, &mut model, &mut session);
            prop_assert_eq!(listed(&session.snapshot().unwrap()), names(&model), "{:?}", edit);
        }
        session.commit("last", SystemTime::UNIX_EPOCH).unwrap();
        prop_assert_eq!(listed(&repository.snapshot().unwrap()), names(&model));
    }

    #[test]
    fn merged_sessions_keep_the_order_of_what_the_other_left_alone(
        ours in prop::collection::vec((0_u8..5, spots(16)), 0..6),
        theirs in prop::collection::vec((5_u8..10, spots(16)), 0..6),
        is_added in any::<[bool; 2]>(),
    ) {
        let repository = repository("sling:OrderedFolder", 16);
        let mut sessions =
            [repository.session("ann").unwrap(), repository.session("bob").unwrap()];
        let mut models: [Vec<u8>; 2] = std::array::from_fn(|_| (0..16).collect());
        for (side, edits) in [ours, theirs].iter().enumerate() {
            let (session, model) = (&mut sessions[side], &mut models[side]);
            edits.iter().for_each(|(number, spot)| put(*number, spot, model, session));
            if is_added[side] {
                apply(&Edit::Add(20 + side as u8), model, session);
            }
        }
        for session in &mut sessions {
            session.commit("side", SystemTime::UNIX_EPOCH).unwrap();
        }
        let merged = listed(&repository.snapshot().unwrap());
        let touched = [0..5, 5..10];
        let without = |list: &[String], side: usize| -> Vec<String> {
            let is_touched = |name: &String| {
                let number: u8 = name[1..].parse().unwrap();
                touched[side].contains(&number) || number == 20 + side as u8
            };
            list.iter().filter(|name| !is_touched(name)).cloned().collect()
        };
        for (side, model) in models.iter().enumerate() {
            let other = 1 - side;
            prop_assert_eq!(without(&merged, other), without(&names(model), other));
        }
    }
}

#[test]
fn children_without_order_keys_get_them_where_order_begins() {
    // One session gives the folder an order while another adds a child that needs none.
    let repository = repository("sling:Folder", 3);
    let folder = NodePath::new(FOLDER).unwrap();
    let mut ordering = repository.session("ann").unwrap();
    let mut adding = repository.session("bob").unwrap();
    let mut early = repository.session("eve").unwrap();
    early.add_node(&child(4), "sling:Folder").unwrap();
    early.commit("early", SystemTime::UNIX_EPOCH).unwrap();
    let ordered = tympan_content::Property::name("sling:OrderedFolder");
    ordering.set_property(&folder, "jcr:primaryType", ordered).unwrap();
    ordering.reorder_node(&child(2), &SiblingPosition::First).unwrap();
    ordering.commit("order", SystemTime::UNIX_EPOCH).unwrap();
    adding.add_node(&child(3), "sling:Folder").unwrap();
    adding.commit("add", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(listed(&repository.snapshot().unwrap()), ["n2", "n0", "n1", "n4", "n3"]);

    // The folder's own document arrives with another type than it has here.
    let received = self::repository("sling:Folder", 4);
    let snapshot = repository.snapshot().unwrap();
    let documents = snapshot.stored_documents(&folder, SubtreeScope::Document).unwrap();
    let mut session = received.session("replication").unwrap();
    session.put_document(&documents[0]).unwrap();
    session.commit("receive", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(listed(&received.snapshot().unwrap()), ["n0", "n1", "n2", "n3"]);
    let plain = self::repository("sling:Folder", 8).snapshot().unwrap();
    let documents = plain.stored_documents(&child(7), SubtreeScope::Document).unwrap();
    session.put_document(&documents[0]).unwrap();
    session.commit("receive", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(listed(&received.snapshot().unwrap()), ["n0", "n1", "n2", "n3", "n7"]);
}

#[test]
fn a_state_from_before_the_map_gets_it_when_it_is_opened() {
    let (store, _) = counting();
    let open = || Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let repository = open();
    let mut session = repository.session("ann").unwrap();
    let mut tree = Subtree::new("folder", "sling:OrderedFolder");
    tree.children = (0..20).rev().map(|one| Subtree::new(name(one), "sling:Folder")).collect();
    session.put_node(&NodePath::new(FOLDER).unwrap(), tree).unwrap();
    let built = session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
    let expected = listed(&repository.snapshot().unwrap());

    let mut maps = StoreRoot::read(&*store, &built).unwrap().maps;
    assert!(maps.remove("order").is_some());
    let mut batch = ChunkBatch::new();
    let old = StoreRoot { maps }.write(&mut batch).unwrap();
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: Some(built),
        new_root: Some(old),
        updated_at: SystemTime::UNIX_EPOCH,
        author: "test".to_owned(),
        message: "without the map".to_owned(),
    });
    store.commit(batch).unwrap();
    assert_eq!(listed(&repository.snapshot().unwrap()), expected);

    // A commit onto it leaves no map that has a part of the order.
    session.refresh().unwrap();
    session.remove_node(&child(7)).unwrap();
    session.commit("remove", SystemTime::UNIX_EPOCH).unwrap();
    session.put_node(&child(7), Subtree::new(name(7), "sling:Folder")).unwrap();
    session.commit("put", SystemTime::UNIX_EPOCH).unwrap();
    let without = listed(&repository.snapshot().unwrap());
    assert_eq!((without.len(), without.last()), (20, Some(&name(7))));
    let opened = open();
    assert!(
        StoreRoot::read(&*store, &opened.head_root().unwrap()).unwrap().maps.contains_key("order")
    );
    assert_eq!(listed(&opened.snapshot().unwrap()), without);
}

/// Makes a page that has little in it.
fn page(number: usize) -> Subtree {
    let content =
        Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", "A page");
    Subtree::new(format!("page-{number:06}"), "cq:Page").with_child(content)
}

/// What a new page in the middle of a folder costs: chunk reads, chunks and bytes written.
fn cost_in_the_middle(
    store: &WatchedStore,
    written: &Written,
    repository: &Repository,
    folder: &str,
    siblings: usize,
) -> [usize; 3] {
    let new = NodePath::new(&format!("{folder}/new")).unwrap();
    let middle = format!("page-{:06}", siblings / 2);
    let mut session = repository.session("ann").unwrap();
    let before = written.get();
    store.take_read_count();
    session.put_node(&new, page(0)).unwrap();
    session.reorder_node(&new, &SiblingPosition::After(middle.clone())).unwrap();
    session.commit("insert", SystemTime::UNIX_EPOCH).unwrap();
    let after = written.get();
    let reads = usize::try_from(store.take_read_count()).unwrap();
    let cost = [reads, after.0 - before.0, after.1 - before.1];
    let snapshot = repository.snapshot().unwrap();
    let folder = snapshot.node(&new.parent().unwrap()).unwrap().unwrap();
    let page = folder.listed_page(siblings / 2, 2).unwrap();
    let names: Vec<&str> = page.iter().map(|node| node.name()).collect();
    assert_eq!(names, [middle.as_str(), "new"]);
    cost
}

#[test]
fn a_place_in_the_middle_costs_the_same_whatever_the_number_of_siblings() {
    let (store, written) = counting();
    let repository = Repository::open(store.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let mut session = repository.session("ann").unwrap();
    for (folder, siblings) in [("/few", 10), ("/many", 100_000)] {
        let mut tree = Subtree::new("", "sling:OrderedFolder");
        tree.children = (0..siblings).map(page).collect();
        session.put_node(&NodePath::new(folder).unwrap(), tree).unwrap();
    }
    session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
    let few = cost_in_the_middle(&store, &written, &repository, "/few", 10);
    let many = cost_in_the_middle(&store, &written, &repository, "/many", 100_000);
    println!("chunk reads, chunks and bytes written: {few:?} among 10, {many:?} among 100,000");
    assert!(many[0] <= few[0] + 8, "{few:?} {many:?}");
    // A boundary may move in each of the maps that change.
    assert!(many[1] <= few[1] + 3, "{few:?} {many:?}");

    // A save that changes no order leaves the map of order keys alone.
    let map = || {
        let root = repository.head_root().unwrap();
        StoreRoot::read(&*store, &root).unwrap().map("order")
    };
    let before = map();
    let content = NodePath::new("/many/page-050000/jcr:content").unwrap();
    let mut session = repository.session("ann").unwrap();
    session.set_property(&content, "jcr:title", "Another title".into()).unwrap();
    session.commit("save", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(map(), before);
}
