//! What two sessions change at once: Oak's nine kinds from both sides, who was first, and trying again.

use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{
    Error, MergeConflict, NodePath, Property, Repository, RevisionDetails, Session, Subtree, Value,
};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// A repository with a folder of documents; what the tests change is at `/content/doc`, and at `/content/doc/in`.
fn site() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("setup").unwrap();
    let inner = Subtree::new("in", "nt:unstructured");
    let document = Subtree::new("doc", "nt:unstructured").with_child(inner);
    let content = Subtree::new("content", "sling:Folder").with_child(document);
    session.put_node(&path("/content"), content).unwrap();
    session.commit("setup", at(0)).unwrap();
    repository
}

/// Makes edits at a node: `p=1` sets a property, `-p` removes it; `+n` and `+n:1` add a child (with `x` set),
/// `!n` removes it, `n:2` sets its `x`.
fn edit(session: &mut Session, place: &NodePath, edits: &str) {
    for word in edits.split_whitespace() {
        if let Some(name) = word.strip_prefix('-') {
            session.remove_property(place, name).unwrap();
        } else if let Some(name) = word.strip_prefix('!') {
            session.remove_node(&place.child(name).unwrap()).unwrap();
        } else if let Some(added) = word.strip_prefix('+') {
            let (name, value) = added.split_once(':').unwrap_or((added, "0"));
            let node = Subtree::new(name, "nt:unstructured").with_property("x", value);
            session.put_node(&place.child(name).unwrap(), node).unwrap();
        } else if let Some((name, value)) = word.split_once('=') {
            session.set_property(place, name, value.into()).unwrap();
        } else if let Some((name, value)) = word.split_once(':') {
            session.set_property(&place.child(name).unwrap(), "x", value.into()).unwrap();
        }
    }
}

/// Makes both edits over one state, the first committed before the second; gives the second's conflicts.
fn clash(place: &str, base: &str, first: &str, second: &str) -> (Repository, Vec<MergeConflict>) {
    let repository = site();
    let place = path(place);
    let mut session = repository.session("setup").unwrap();
    edit(&mut session, &place, base);
    session.commit("base", at(1)).unwrap();
    let mut theirs = repository.session("theirs").unwrap();
    let mut ours = repository.session("ours").unwrap();
    edit(&mut theirs, &place, first);
    edit(&mut ours, &place, second);
    theirs.commit("first", at(2)).unwrap();
    let conflicts = match ours.commit("second", at(3)) {
        Ok(_) => Vec::new(),
        Err(Error::Conflicts(conflicts)) => conflicts,
        Err(error) => panic!("{error}"),
    };
    (repository, conflicts)
}

/// Checks what the second of two edits meets, inside documents and in folders of them.
fn check(base: &str, first: &str, second: &str, expected: &str) {
    for place in ["/content", "/content/doc", "/content/doc/in"] {
        let (_, conflicts) = clash(place, base, first, second);
        let mut kinds: Vec<&str> = conflicts.iter().map(|one| one.kind.name()).collect();
        let mut expected: Vec<&str> = expected.split_whitespace().collect();
        kinds.sort_unstable();
        expected.sort_unstable();
        assert_eq!(kinds, expected, "{place}: {base} | {first} | {second}");
        for conflict in &conflicts {
            let by = conflict.last_change.as_ref().expect("the history says who was first");
            assert_eq!(
                (&*by.user, by.time, by.message.as_deref()),
                ("theirs", at(2), Some("first"))
            );
        }
    }
}

#[test]
fn every_kind_of_conflict_from_both_sides() {
    // Properties: added, changed and removed on one side, against the same on the other.
    check("", "p=1", "p=2", "addExistingProperty");
    check("", "p=1", "p=1", "");
    check("", "p=1", "q=1", "");
    check("p=0", "p=1", "p=2", "changeChangedProperty");
    check("p=0", "p=1", "p=1", "");
    check("p=0", "p=1", "-p", "removeChangedProperty");
    check("p=0", "-p", "p=1", "changeRemovedProperty");
    check("p=0", "-p", "-p", "");
    check("p=0 q=0", "p=1", "-q", "");
    check("p=0 q=0", "-q", "p=1", "");
    // Nodes.
    check("", "+n:1", "+n:2", "addExistingNode");
    check("", "+n:1", "+n:1", "");
    check("", "+n", "+m", "");
    check("+n", "n:1", "n:2", "changeChangedProperty");
    check("+n", "n:1", "n:1", "");
    check("+n", "n:1", "!n", "removeChangedNode");
    check("+n", "!n", "n:1", "changeRemovedNode");
    check("+n", "!n", "!n", "");
    check("+n +m", "n:1", "!m", "");
    check("+n +m", "!m", "n:1", "");
    // All conflicts of a commit are told at once.
    check(
        "p=0 +n",
        "p=1 n:1 +k:1",
        "p=2 !n +k:2",
        "changeChangedProperty removeChangedNode addExistingNode",
    )
}

#[test]
fn a_conflict_shows_all_three_values() {
    let (repository, conflicts) = clash("/content/doc/in", "p=0", "p=1", "p=2");
    let [conflict] = &conflicts[..] else { panic!("{conflicts:?}") };
    assert_eq!(conflict.path, path("/content/doc/in"));
    assert_eq!(conflict.property.as_deref(), Some("p"));
    let values = [&conflict.base, &conflict.ours, &conflict.theirs];
    assert_eq!(
        values.map(Option::as_ref),
        ["0", "2", "1"].map(Property::text).each_ref().map(Some)
    );
    let revision = conflict.last_change.as_ref().unwrap().revision;
    assert_eq!(repository.revision(revision).unwrap().update.author, "theirs");
    let message = Error::Conflicts(conflicts).to_string();
    assert!(
        message.starts_with("OakState0001: Unresolved conflicts in /content/doc/in: "),
        "{message}"
    );
    assert!(
        message.contains("was `0`, ours is `2`, theirs is `1`, by `theirs` at 2023-"),
        "{message}"
    );
}

#[test]
fn the_one_who_made_the_change_is_named_among_many_revisions() {
    let repository = site();
    let document = path("/content/doc");
    let mut ours = repository.session("ours").unwrap();
    ours.set_property(&document, "p", "ours".into()).unwrap();
    for (number, user) in ["ann", "bob", "ann", "bob"].into_iter().enumerate() {
        let mut session = repository.session(user).unwrap();
        // Only bob's first edit touches the property; the others change the same document.
        let name = if number == 1 { "p" } else { "other" };
        session.set_property(&document, name, format!("{number}").as_str().into()).unwrap();
        session.commit("edit", at(10 + number as u64)).unwrap();
    }
    let Err(Error::Conflicts(conflicts)) = ours.commit("late", at(20)) else { panic!() };
    let by = conflicts[0].last_change.as_ref().unwrap();
    assert_eq!((&*by.user, by.time), ("bob", at(11)));
    // The session can still be looked at and begun anew.
    assert!(ours.has_changes().unwrap());
    ours.refresh().unwrap();
    ours.set_property(&document, "p", "ours".into()).unwrap();
    ours.commit("again", at(21)).unwrap();
}

#[test]
fn dates_and_the_order_of_children_resolve_themselves() {
    let repository = site();
    let document = path("/content/doc");
    let mut first = repository.session("first").unwrap();
    let mut second = repository.session("second").unwrap();
    let date = |seconds| {
        let date = tympan_content::JcrDate::from_system_time(at(seconds));
        Property::Single(Value::Date(date))
    };
    for (session, seconds, child) in [(&mut first, 9, "one"), (&mut second, 5, "two")] {
        session.set_property(&document, "jcr:lastModified", date(seconds)).unwrap();
        session.set_property(&document, "jcr:created", date(seconds)).unwrap();
        session.add_node(&document.child(child).unwrap(), "nt:unstructured").unwrap();
    }
    first.commit("first", at(1)).unwrap();
    second.commit("second", at(2)).unwrap();
    let node = second.node(&document).unwrap().unwrap();
    assert_eq!(node.property("jcr:lastModified"), Some(date(9)), "the later");
    assert_eq!(node.property("jcr:created"), Some(date(5)), "the earlier");
    let names: Vec<String> =
        node.children().unwrap().iter().map(|child| child.name().to_owned()).collect();
    assert_eq!(names, ["in", "one", "two"]);
}

#[test]
fn what_stands_in_a_removed_folder_is_a_conflict_of_its_own() {
    let check = |first: &str, second: &str, expected: &[(&str, &str)]| {
        let repository = site();
        let (folder, place) = (path("/content/folder"), path("/content"));
        let mut session = repository.session("setup").unwrap();
        session.add_node(&folder, "sling:Folder").unwrap();
        session.commit("base", at(1)).unwrap();
        let mut sessions = ["theirs", "ours"].map(|user| repository.session(user).unwrap());
        for (session, what) in sessions.iter_mut().zip([first, second]) {
            match what {
                "remove" => session.remove_node(&folder).unwrap(),
                "document" => {
                    let plain = Subtree::new("folder", "nt:unstructured");
                    session.put_node(&place.child("folder").unwrap(), plain).unwrap();
                }
                name => session.add_node(&folder.child(name).unwrap(), "nt:unstructured").unwrap(),
            }
        }
        let [mut theirs, mut ours] = sessions;
        theirs.commit("first", at(2)).unwrap();
        let done = ours.commit("second", at(3));
        let found: Vec<(String, &str)> = match &done {
            Err(Error::Conflicts(conflicts)) => {
                conflicts.iter().map(|one| (one.path.to_string(), one.kind.name())).collect()
            }
            _ => Vec::new(),
        };
        let expected: Vec<(String, &str)> =
            expected.iter().map(|(path, kind)| ((*path).to_owned(), *kind)).collect();
        assert_eq!(found, expected, "{first} | {second}: {done:?}");
    };
    check("new", "remove", &[("/content/folder/new", "removeChangedNode")]);
    check("remove", "new", &[("/content/folder", "changeRemovedNode")]);
    check("new", "document", &[("/content/folder/new", "removeChangedNode")]);
    check("document", "new", &[("/content/folder", "changeRemovedNode")]);
    check("remove", "remove", &[]);
    check("new", "other", &[]);
}

#[test]
fn trying_again_takes_the_next_free_number() {
    let repository = site();
    let folder = path("/content");
    let attempts = NonZeroUsize::new(50).unwrap();
    // Takes the next free number of the folder's documents for one of its own.
    let take = |user: &str| {
        let revising = RevisionDetails { user, message: "take a number", time: at(1) };
        repository.commit_with_retry(attempts, revising, |session| {
            let next = session.node(&folder)?.unwrap().count_listed_children()?;
            let own = folder.child(&format!("n{next}"))?;
            session
                .put_node(&own, Subtree::new("", "nt:unstructured").with_property("by", user))?;
            Ok(next)
        })
    };
    let numbers: Vec<usize> = std::thread::scope(|scope| {
        let take = &take;
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    (0..5).map(|_| take(&format!("u{thread}")).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=20).collect::<Vec<_>>(), "every number once: {numbers:?}");
}

#[test]
fn trying_again_ends_with_the_last_conflicts() {
    let repository = site();
    let document = path("/content/doc");
    let mut calls = 0;
    let revising = RevisionDetails { user: "ours", message: "edit", time: at(1) };
    let done = repository.commit_with_retry(NonZeroUsize::new(3).unwrap(), revising, |session| {
        calls += 1;
        // Someone is always quicker.
        let mut quick = repository.session("quick")?;
        quick.set_property(&document, "p", format!("{calls}").as_str().into())?;
        quick.commit("quick", at(1))?;
        session.set_property(&document, "p", "ours".into())
    });
    assert!(matches!(&done, Err(Error::Conflicts(conflicts)) if conflicts.len() == 1), "{done:?}");
    assert_eq!(calls, 3);
    let other = repository.commit_with_retry(NonZeroUsize::MIN, revising, |session| {
        session.set_property(&path("/absent"), "p", "x".into())
    });
    assert!(matches!(other, Err(Error::NodeMissing(_))), "{other:?}");
}
