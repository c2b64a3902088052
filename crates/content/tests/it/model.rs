//! Random edits against a plain tree: the same content, and the same root as content that was put at once.
//!
//! The trees follow no node types, so the sessions commit them as if they came from another instance.

use std::time::SystemTime;

use proptest::prelude::*;
use tympan_content::{NodePath, Property, Repository, Subtree};
use tympan_store::DeriveMaps;

/// Types on both sides of the rule by which documents are cut.
const TYPES: [&str; 5] = ["nt:unstructured", "cq:Page", "sling:Folder", "nt:folder", "dam:Asset"];
const NAMES: [&str; 4] = ["a", "b", "jcr:content", "d"];

#[derive(Debug, Clone)]
enum Edit {
    Add(Vec<usize>, usize),
    Set(Vec<usize>, usize, String),
    Type(Vec<usize>, usize),
    Remove(Vec<usize>),
    Move(Vec<usize>, Vec<usize>),
    Copy(Vec<usize>, Vec<usize>),
    Commit,
}

fn place() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..NAMES.len(), 1..5)
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (place(), 0..TYPES.len()).prop_map(|(at, kind)| Edit::Add(at, kind)),
        3 => (place(), 0..3_usize, ".{0,300}").prop_map(|(at, name, value)| Edit::Set(at, name, value)),
        2 => (place(), 0..TYPES.len()).prop_map(|(at, kind)| Edit::Type(at, kind)),
        1 => place().prop_map(Edit::Remove),
        2 => (place(), place()).prop_map(|(from, to)| Edit::Move(from, to)),
        1 => (place(), place()).prop_map(|(from, to)| Edit::Copy(from, to)),
        2 => Just(Edit::Commit),
    ];
    prop::collection::vec(edit, 1..60)
}

fn path_of(at: &[usize]) -> NodePath {
    let names: Vec<&str> = at.iter().map(|name| NAMES[*name]).collect();
    NodePath::new(&format!("/{}", names.join("/"))).unwrap()
}

/// The plain tree, with children sorted by name: order is not compared here.
#[derive(Debug, Clone)]
struct Model(Subtree);

impl Model {
    fn find(&mut self, path: &NodePath) -> Option<&mut Subtree> {
        self.0.find_descendant_mut(&path.as_str()[1..])
    }

    fn put(&mut self, path: &NodePath, mut tree: Subtree) -> bool {
        tree.name = path.name().to_owned();
        match self.find(&path.parent().unwrap()) {
            Some(parent) => {
                parent.put_child(tree);
                true
            }
            None => false,
        }
    }
}

fn sorted(mut tree: Subtree) -> Subtree {
    tree.children = tree.children.into_iter().map(sorted).collect();
    tree.children.sort_by(|left, right| left.name.cmp(&right.name));
    tree
}

/// Applies an edit to both; the session must refuse exactly what makes no sense in the plain tree.
fn apply(edit: &Edit, model: &mut Model, session: &mut tympan_content::Session) {
    match edit {
        Edit::Add(at, kind) => {
            let path = path_of(at);
            let is_free = model.find(&path).is_none();
            let is_possible = is_free && model.put(&path, Subtree::new("", TYPES[*kind]));
            assert_eq!(session.add_node(&path, TYPES[*kind]).is_ok(), is_possible, "{edit:?}");
        }
        Edit::Set(at, name, value) => {
            let (path, name) = (path_of(at), ["x", "jcr:title", "sling:resourceType"][*name]);
            let node = model.find(&path);
            let is_possible = node.is_some();
            if let Some(node) = node {
                node.properties.insert(name.into(), Property::text(value.as_str()));
            }
            assert_eq!(
                session.set_property(&path, name, value.as_str().into()).is_ok(),
                is_possible,
                "{edit:?}"
            );
        }
        Edit::Type(at, kind) => {
            let (path, property) = (path_of(at), Property::name(TYPES[*kind]));
            let node = model.find(&path);
            let is_possible = node.is_some();
            if let Some(node) = node {
                node.properties.insert("jcr:primaryType".into(), property.clone());
            }
            assert_eq!(
                session.set_property(&path, "jcr:primaryType", property).is_ok(),
                is_possible,
                "{edit:?}"
            );
        }
        Edit::Remove(at) => {
            let path = path_of(at);
            let removed = model
                .find(&path.parent().unwrap())
                .and_then(|parent| parent.remove_child(path.name()));
            assert_eq!(session.remove_node(&path).is_ok(), removed.is_some(), "{edit:?}");
        }
        Edit::Move(from, to) | Edit::Copy(from, to) => {
            let is_move = matches!(edit, Edit::Move(..));
            let (from, to) = (path_of(from), path_of(to));
            let tree = model.find(&from).map(|node| node.clone());
            let is_possible = !to.is_within(&from)
                && model.find(&to).is_none()
                && model.find(&to.parent().unwrap()).is_some();
            let done =
                if is_move { session.move_node(&from, &to) } else { session.copy_node(&from, &to) };
            assert_eq!(done.is_ok(), is_possible && tree.is_some(), "{edit:?} {done:?}");
            if let (Some(tree), true) = (tree, is_possible) {
                model.put(&to, tree);
                if is_move {
                    model.find(&from.parent().unwrap()).unwrap().remove_child(from.name());
                }
            }
        }
        Edit::Commit => {
            session.mark_as_received();
            session.commit("edit", SystemTime::UNIX_EPOCH).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 1000 }))]

    #[test]
    fn random_edits_give_the_content_and_the_root_of_a_fresh_import(edits in edits()) {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        let mut model = Model(repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap());
        for edit in &edits {
            apply(edit, &mut model, &mut session);
        }
        session.mark_as_received();
        session.commit("last", SystemTime::UNIX_EPOCH).unwrap();
        let stored = repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap();
        prop_assert_eq!(sorted(stored.clone()), sorted(model.0));

        // The same content put at once, in the same order, has the same root: order keys are the only trace of
        // history, and putting the root anew deals them out anew.
        let mut again = repository.session("ann").unwrap();
        again.put_node(&NodePath::root(), stored.clone()).unwrap();
        again.mark_as_received();
        let rewritten = again.commit("rewrite", SystemTime::UNIX_EPOCH).unwrap();
        let fresh = Repository::in_memory().unwrap();
        let mut import = fresh.session("bob").unwrap();
        import.put_node(&NodePath::root(), stored).unwrap();
        import.mark_as_received();
        let imported = import.commit("import", SystemTime::UNIX_EPOCH).unwrap();
        prop_assert_eq!(rewritten, imported);
    }

    #[test]
    fn index_maps_made_again_are_those_that_commits_made(before in edits(), after in edits()) {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        let mut model = Model(repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap());
        let mut roots = Vec::new();
        for edits in [&before, &after] {
            for edit in edits {
                apply(edit, &mut model, &mut session);
            }
            session.mark_as_received();
            roots.push(session.commit("some", SystemTime::UNIX_EPOCH).unwrap());
        }
        let store = &**repository.chunks();
        let maps = tympan_content::IndexMapRebuilder::new(store);
        let read = |root| tympan_store::StoreRoot::read(store, root).unwrap();
        // From nothing, from the other state, from the state itself.
        for committed in roots.iter().map(read) {
            for base in [tympan_store::StoreRoot::default(), read(&roots[0]), read(&roots[1])] {
                let mut made = committed.clone();
                made.maps.retain(|name, _| !maps.is_derived(name));
                maps.derive_maps(&base, &mut made).unwrap();
                prop_assert_eq!(&made, &committed);
            }
        }
    }

    #[test]
    fn changed_paths_are_the_documents_that_differ(before in edits(), after in edits()) {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        let mut model = Model(repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap());
        for edit in &before {
            apply(edit, &mut model, &mut session);
        }
        session.mark_as_received();
        session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
        let old = repository.snapshot().unwrap();
        for edit in &after {
            apply(edit, &mut model, &mut session);
        }
        session.mark_as_received();
        session.commit("after", SystemTime::UNIX_EPOCH).unwrap();
        let new = repository.snapshot().unwrap();
        let changed = old.changed_paths(&new).unwrap();
        let documents = |snapshot: &tympan_content::Snapshot| -> std::collections::BTreeMap<NodePath, tympan_content::StoredDocument> {
            let all = snapshot.stored_documents(&NodePath::root(), tympan_content::SubtreeScope::Subtree).unwrap();
            all.into_iter().map(|document| (document.path.clone(), document)).collect()
        };
        let (old, new) = (documents(&old), documents(&new));
        let expected: std::collections::BTreeSet<&NodePath> =
            old.keys().chain(new.keys()).filter(|path| old.get(*path) != new.get(*path)).collect();
        prop_assert_eq!(changed.iter().collect::<std::collections::BTreeSet<_>>(), expected);
    }
}
