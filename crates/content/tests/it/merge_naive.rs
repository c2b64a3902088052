//! Random edits of two sides over one state: what only one side changed is in the merge as that side has it, in sessions
//! and in branches, and what is stored is what is listed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use tympan_content::{
    Error, Node, NodePath, Property, Repository, RevisionDetails, Session, SiblingPosition,
    Snapshot, Subtree,
};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

const NAMES: [&str; 3] = ["a", "b", "jcr:content"];
const TYPES: [&str; 4] = ["nt:unstructured", "sling:Folder", "sling:OrderedFolder", "cq:Page"];

fn tree(depth: u32) -> BoxedStrategy<Subtree> {
    let children = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => {
            let child = (prop::sample::select(&NAMES[..]), tree(depth - 1));
            prop::collection::vec(child, 0..3).boxed()
        }
    };
    (prop::sample::select(&TYPES[..]), 0_u8..3, children)
        .prop_map(|(kind, value, children)| {
            let mut tree = Subtree::new("", kind).with_property("x", value.to_string().as_str());
            for (name, mut child) in children {
                name.clone_into(&mut child.name);
                tree.put_child(child);
            }
            tree
        })
        .boxed()
}

fn place() -> impl Strategy<Value = NodePath> {
    prop::collection::vec(prop::sample::select(&NAMES[..]), 1..4)
        .prop_map(|names| path(&format!("/content/{}", names.join("/"))))
}

#[derive(Debug, Clone)]
enum Edit {
    Put(NodePath, Subtree),
    Set(NodePath, &'static str, u8),
    Type(NodePath, &'static str),
    Remove(NodePath),
    Move(NodePath, NodePath),
    Copy(NodePath, NodePath),
    First(NodePath),
    Last(NodePath),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let properties = &["x", "y", "z"][..];
    let edit = prop_oneof![
        2 => (place(), tree(1)).prop_map(|(at, tree)| Edit::Put(at, tree)),
        3 => (place(), prop::sample::select(properties), 0_u8..4)
            .prop_map(|(at, name, value)| Edit::Set(at, name, value)),
        1 => (place(), prop::sample::select(&TYPES[..])).prop_map(|(at, kind)| Edit::Type(at, kind)),
        2 => place().prop_map(Edit::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Move(from, to)),
        1 => (place(), place()).prop_map(|(from, to)| Edit::Copy(from, to)),
        1 => place().prop_map(Edit::First),
        1 => place().prop_map(Edit::Last),
    ];
    prop::collection::vec(edit, 1..4)
}

/// Makes the edits that make sense where they are made.
fn apply(session: &mut Session, edits: &[Edit]) {
    for edit in edits {
        let done = match edit {
            Edit::Put(at, tree) => session.put_node(at, tree.clone()),
            Edit::Set(at, name, value) => {
                session.set_property(at, name, value.to_string().as_str().into())
            }
            Edit::Type(at, kind) => {
                session.set_property(at, "jcr:primaryType", Property::name(*kind))
            }
            Edit::Remove(at) => session.remove_node(at),
            Edit::Move(from, to) => session.move_node(from, to),
            Edit::Copy(from, to) => session.copy_node(from, to),
            Edit::First(at) => session.reorder_node(at, &SiblingPosition::First),
            Edit::Last(at) => session.reorder_node(at, &SiblingPosition::Last),
        };
        match done {
            Ok(())
            | Err(Error::NodeMissing(_) | Error::NodeExists(_) | Error::InvalidEdit { .. }) => {}
            Err(error) => panic!("{edit:?}: {error}"),
        }
    }
}

/// What a state holds: `path` for a node and `path@name` for a property, each with its value.
type Items = BTreeMap<String, String>;

fn items(snapshot: &Snapshot) -> Items {
    fn visit(node: &Node, items: &mut Items) {
        let at = node.path();
        // Found as it is listed.
        let found = node.snapshot().node(at).unwrap();
        assert!(found.is_some(), "`{at}` is listed and not found");
        items.insert(at.to_string(), String::new());
        for (name, property) in node.properties() {
            // Who made or changed a node when is the commit's own affair.
            if !name.contains("reated") && !name.contains("odified") {
                items.insert(format!("{at}@{name}"), format!("{property:?}"));
            }
        }
        for child in node.children().unwrap() {
            visit(&child, items);
        }
    }
    let mut items = Items::new();
    let root = snapshot.root_node().unwrap();
    visit(&root, &mut items);
    for record in root.listed_descendants().unwrap() {
        assert!(items.contains_key(record.path().as_str()), "`{}` is not listed", record.path());
    }
    items
}

/// Sees to it that what one side left alone is as the other side has it.
fn check(base: &Items, ours: &Items, theirs: &Items, merged: &Items) {
    let all: BTreeSet<&String> =
        [base, ours, theirs, merged].iter().flat_map(|one| one.keys()).collect();
    for item in all {
        let [old, here, there, now] = [base, ours, theirs, merged].map(|one| one.get(item));
        let expected = if here == old {
            there
        } else if there == old || here == there {
            here
        } else {
            panic!("`{item}` was merged: {old:?}, {here:?}, {there:?}, {now:?}");
        };
        assert_eq!(now, expected, "`{item}`: {old:?}, {here:?}, {there:?}");
    }
}

fn begin(tree: &Subtree) -> Option<Repository> {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("setup").unwrap();
    let mut content = Subtree { name: "content".to_owned(), ..tree.clone() };
    content.properties.insert("jcr:primaryType".to_owned(), Property::name("sling:OrderedFolder"));
    session.put_node(&path("/content"), content).unwrap();
    session.commit("setup", at(0)).ok()?;
    Some(repository)
}

fn state(repository: &Repository) -> Items {
    items(&repository.snapshot().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_one_side_did_is_lost(first in edits(), second in edits(), tree in tree(3)) {
        let Some(repository) = begin(&tree) else { return Ok(()) };
        let base = state(&repository);
        let mut theirs = repository.session("theirs").unwrap();
        let mut ours = repository.session("ours").unwrap();
        apply(&mut theirs, &first);
        apply(&mut ours, &second);
        if theirs.commit("first", at(1)).is_err() {
            return Ok(());
        }
        let (there, here) = (state(&repository), items(&ours.snapshot().unwrap()));
        match ours.commit("second", at(2)) {
            Ok(_) => check(&base, &here, &there, &state(&repository)),
            Err(Error::Conflicts(_) | Error::ConstraintViolations(_)) => {
                assert_eq!(there, state(&repository), "nothing is written");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn nothing_that_a_branch_did_is_lost(first in edits(), second in edits(), tree in tree(3)) {
        let Some(main) = begin(&tree) else { return Ok(()) };
        let by = |message| RevisionDetails { user: "ann", message, time: at(5) };
        main.create_branch("launch", by("launch")).unwrap();
        let launch = main.open_branch("launch").unwrap();
        let base = state(&main);
        for (repository, edits) in [(&main, &first), (&launch, &second)] {
            let mut session = repository.session("ann").unwrap();
            apply(&mut session, edits);
            if session.commit("edit", at(1)).is_err() {
                return Ok(());
            }
        }
        let (there, here) = (state(&main), state(&launch));
        match main.merge_branch("launch", by("merge")) {
            Ok(_) => {
                check(&base, &here, &there, &state(&main));
                let again = main.preview_merge("launch", &Default::default()).unwrap();
                assert_eq!((again.document_changes.len(), again.conflicts.len()), (0, 0));
            }
            Err(Error::Conflicts(_) | Error::ConstraintViolations(_)) => {
                assert_eq!(there, state(&main), "nothing is written");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
