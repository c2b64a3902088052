//! Merges in which one side changes how a node is cut into records: whatever comes of them, nobody's content is lost
//! from sight.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{Error, NodePath, Property, Repository, Session, Subtree};

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// Types that a node at `/content/n` is switched between, with children that each admits.
const TYPES: [&str; 4] = ["nt:unstructured", "sling:Folder", "sling:OrderedFolder", "cq:Page"];

fn child(name: &str) -> Subtree {
    let kind = if name == "jcr:content" { "cq:PageContent" } else { "nt:unstructured" };
    Subtree::new(name, kind)
        .with_property("jcr:title", "kept")
        .with_child(Subtree::new("in", "nt:unstructured"))
}

/// What one of two sessions does at `/content/n`.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Type(&'static str),
    Add(&'static str),
    AddBelow(&'static str),
    Set(&'static str),
    Remove(&'static str),
    Touch,
}

fn apply(session: &mut Session, edit: Edit) -> Result<(), Error> {
    let n = path("/content/n");
    match edit {
        Edit::Type(kind) => session.set_property(&n, "jcr:primaryType", Property::name(kind)),
        Edit::Add(name) => session.put_node(&n.child(name)?, child(name)),
        Edit::AddBelow(name) => {
            session.put_node(&n.child(name)?.child("new")?, Subtree::new("new", "nt:unstructured"))
        }
        Edit::Set(name) => session.set_property(&n.child(name)?, "edited", "yes".into()),
        Edit::Remove(name) => session.remove_node(&n.child(name)?),
        Edit::Touch => session.set_property(&n, "touched", "yes".into()),
    }
}

/// Collects the paths of all nodes by listing, and sees to it that each is found by its path, too.
fn all(repository: &Repository) -> Vec<String> {
    fn walk(repository: &Repository, at: &NodePath, found: &mut Vec<String>) {
        let node = repository.snapshot().unwrap().node(at).unwrap();
        let node = node.unwrap_or_else(|| panic!("`{at}` is listed and not found"));
        found.push(at.to_string());
        for child in node.children().unwrap() {
            walk(repository, child.path(), found);
        }
    }
    let mut found = Vec::new();
    walk(repository, &NodePath::root(), &mut found);
    // What the content map holds is what can be listed.
    let root = repository.snapshot().unwrap().root_node().unwrap();
    for record in root.listed_descendants().unwrap() {
        assert!(
            found.contains(&record.path().to_string()),
            "{} is stored, not listed",
            record.path()
        );
    }
    found.sort();
    found
}

#[test]
fn a_merge_that_cuts_a_node_anew_loses_no_child() {
    let names = ["a", "jcr:content"];
    let mut edits = vec![Edit::Touch, Edit::Add("b"), Edit::Add("jcr:content")];
    edits.extend(TYPES.map(Edit::Type));
    for name in names {
        edits.extend([Edit::AddBelow(name), Edit::Set(name), Edit::Remove(name)]);
    }
    let mut merged_count = 0;
    for base in TYPES {
        for children in [&["a"][..], &["jcr:content"], &["a", "jcr:content"], &[]] {
            for first in &edits {
                for second in &edits {
                    let repository = Repository::in_memory().unwrap();
                    let mut session = repository.session("setup").unwrap();
                    let mut tree = Subtree::new("n", base);
                    children.iter().for_each(|name| tree.put_child(child(name)));
                    let content = Subtree::new("content", "sling:Folder").with_child(tree);
                    session.put_node(&path("/content"), content).unwrap();
                    if session.commit("setup", at(0)).is_err() {
                        continue;
                    }
                    let mut theirs = repository.session("theirs").unwrap();
                    let mut ours = repository.session("ours").unwrap();
                    if apply(&mut theirs, *first).is_err() || apply(&mut ours, *second).is_err() {
                        continue;
                    }
                    if theirs.commit("first", at(1)).is_err() {
                        continue;
                    }
                    let before = all(&repository);
                    let what = format!("{base} {children:?}: {first:?} then {second:?}");
                    match ours.commit("second", at(2)) {
                        Ok(_) => {}
                        Err(Error::Conflicts(_) | Error::ConstraintViolations(_)) => continue,
                        Err(error) => panic!("{what}: {error}"),
                    }
                    merged_count += 1;
                    let after = all(&repository);
                    let removed = match second {
                        Edit::Remove(name) => format!("/content/n/{name}"),
                        _ => "nothing".to_owned(),
                    };
                    for one in &before {
                        assert!(
                            after.contains(one) || one.starts_with(&removed),
                            "{what}: `{one}` is lost"
                        );
                    }
                    if let Edit::Add(name) = second {
                        assert!(after.contains(&format!("/content/n/{name}/in")), "{what}: lost");
                    }
                    if let Edit::AddBelow(name) = second {
                        assert!(after.contains(&format!("/content/n/{name}/new")), "{what}: lost");
                    }
                    // Every child can be edited and removed again.
                    let mut session = repository.session("later").unwrap();
                    for one in after.iter().filter(|one| one.starts_with("/content/n/")) {
                        session.set_property(&path(one), "later", "yes".into()).unwrap();
                    }
                    session.remove_node(&path("/content/n")).unwrap();
                    session.commit("remove", at(3)).unwrap();
                    assert_eq!(all(&repository), ["/", "/content"], "{what}");
                }
            }
        }
    }
    assert!(merged_count > 200, "{merged_count}");
}
