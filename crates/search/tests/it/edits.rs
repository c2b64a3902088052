//! Random edits, closings and rebuilds in any order: the index says what one built from nothing says.

use std::time::UNIX_EPOCH;

use proptest::prelude::*;
use tympan_content::{NodePath, Property, Repository, Subtree};
use tympan_search::{SearchIndex, SearchIndexOptions};

use crate::indexed_site::{now, page, probe, probe_rebuilt};

const TYPES: [&str; 4] = ["nt:unstructured", "cq:Page", "sling:Folder", "dam:Asset"];
const NAMES: [&str; 5] = ["a", "de", "jcr:content", "tree-page", "b"];
const TEXTS: [&str; 6] =
    ["alpha beta", "<p>alpha</p> gamma", "running runs", "Häuser, delta", "beta alpha 0", ""];
const PROPERTIES: [&str; 4] = ["jcr:title", "text", "jcr:language", "sling:resourceType"];

#[derive(Debug, Clone)]
enum Step {
    Add(Vec<usize>, usize),
    Page(Vec<usize>, usize),
    Set(Vec<usize>, usize, usize),
    Remove(Vec<usize>),
    Move(Vec<usize>, Vec<usize>),
    Commit,
    CatchUp,
    Reopen,
    Rebuild,
}

fn place() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..NAMES.len(), 1..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (place(), 0..TYPES.len()).prop_map(|(at, kind)| Step::Add(at, kind)),
        4 => (place(), 0..TEXTS.len()).prop_map(|(at, text)| Step::Page(at, text)),
        4 => (place(), 0..PROPERTIES.len(), 0..TEXTS.len())
            .prop_map(|(at, name, text)| Step::Set(at, name, text)),
        2 => place().prop_map(Step::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Step::Move(from, to)),
        5 => Just(Step::Commit),
        2 => Just(Step::CatchUp),
        1 => Just(Step::Reopen),
        1 => Just(Step::Rebuild),
    ];
    prop::collection::vec(step, 1..50)
}

fn path_of(at: &[usize]) -> NodePath {
    let names: Vec<&str> = at.iter().map(|name| NAMES[*name]).collect();
    NodePath::new(&format!("/{}", names.join("/"))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn following_and_building_anew_agree(steps in steps()) {
        let repository = Repository::in_memory().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("search");
        let open = || SearchIndex::open(repository.clone(), &folder, SearchIndexOptions::default()).unwrap();
        let mut index = Some(open());
        let mut session = repository.session("author").unwrap();
        for step in steps {
            // What content refuses changes nothing.
            match step {
                Step::Add(at, kind) => drop(session.add_node(&path_of(&at), TYPES[kind])),
                Step::Page(at, text) => drop(session.put_node(&path_of(&at), page("page", TEXTS[text]))),
                Step::Set(at, name, text) => {
                    let value = if PROPERTIES[name] == "jcr:language" { "de" } else { TEXTS[text] };
                    drop(session.set_property(&path_of(&at), PROPERTIES[name], Property::text(value)));
                }
                Step::Remove(at) => drop(session.remove_node(&path_of(&at))),
                Step::Move(from, to) => drop(session.move_node(&path_of(&from), &path_of(&to))),
                Step::Commit => commit(&mut session),
                Step::CatchUp => prop_assert!(index.as_ref().unwrap().wait_until_current(PATIENCE)),
                Step::Reopen => {
                    drop(index.take());
                    index = Some(open());
                }
                Step::Rebuild => index.as_ref().unwrap().request_rebuild(),
            }
        }
        commit(&mut session);
        let index = index.unwrap();
        prop_assert!(index.wait_until_current(PATIENCE), "{:?}", index.status(now()));
        prop_assert_eq!(probe(&index), probe_rebuilt(&repository, &dir.path().join("other")));
    }
}

/// Commits whatever the node types say: what is indexed does not depend on them.
fn commit(session: &mut tympan_content::Session) {
    session.mark_as_received();
    session.commit("edit", UNIX_EPOCH).unwrap();
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn a_language_changes_with_its_document() {
    let site = crate::indexed_site::Site::new();
    let text = |language: &str| {
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("jcr:language", Property::text(language))
            .with_property("text", Property::text("continuellement running"));
        Subtree::new("", "cq:Page").with_child(content)
    };
    let find = |word: &str| site.find(crate::indexed_site::term(word)).len();
    site.put("/content/a", text("fr_CA"));
    assert_eq!((find("continuelle"), find("runs")), (1, 0));
    site.put("/content/a", text("en"));
    assert_eq!((find("continuelle"), find("runs")), (0, 1));
}
