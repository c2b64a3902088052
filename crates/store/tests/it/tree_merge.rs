//! Three-way merges against a plain model.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tympan_store::{Change, Conflict, LocalStore, Map, MergeStep, Value};

use crate::support::{Counting, Edits, Model, Numbers, apply, build, edit, value};
use crate::tree::{edits, model, site, site_key};

/// What the merge of models does with each key.
fn model_steps(base: &Model, ours: &Model, theirs: &Model) -> Vec<MergeStep> {
    let keys: BTreeSet<&Vec<u8>> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    let step = |key: &Vec<u8>| {
        let [base, ours, theirs] = [base, ours, theirs].map(|side| side.get(key).cloned());
        let change = |right: &Option<Value>| Change {
            key: key.clone().into(),
            left: base.clone(),
            right: right.clone(),
        };
        match (ours == base, theirs == base) {
            (true, true) => None,
            (false, true) => Some(MergeStep::Ours(change(&ours))),
            (true, false) => Some(MergeStep::Theirs(change(&theirs))),
            (false, false) if ours == theirs => Some(MergeStep::Same(change(&ours))),
            (false, false) => {
                Some(MergeStep::Conflict(Conflict { key: key.clone().into(), base, ours, theirs }))
            }
        }
    };
    keys.into_iter().filter_map(step).collect()
}

fn steps(store: &LocalStore, base: &Map, ours: &Map, theirs: &Map) -> Vec<MergeStep> {
    base.merge(ours, theirs, store).collect::<Result<_, _>>().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_those_of_the_model(base in model(), ours in edits(), theirs in edits()) {
        let store = LocalStore::memory().unwrap();
        let (mut our_model, mut their_model) = (base.clone(), base.clone());
        apply(&mut our_model, &ours);
        apply(&mut their_model, &theirs);
        let map = build(&store, &base);
        let (ours, theirs) = (build(&store, &our_model), build(&store, &their_model));
        let expected = model_steps(&base, &our_model, &their_model);
        prop_assert_eq!(steps(&store, &map, &ours, &theirs), expected);
    }
}

/// Returns `count` edits of a site, all of different records.
pub(crate) fn scattered(numbers: &mut Numbers, pages: u64, count: usize, text: &str) -> Edits {
    let mut edits = Edits::new();
    while edits.len() < count {
        let key = site_key(numbers.below(pages));
        let edit = match numbers.below(4) {
            0 => (key, None),
            1 => ([key, b"-new".to_vec()].concat(), Some(value(text))),
            _ => (key, Some(value(text))),
        };
        edits.extend([edit]);
    }
    edits
}

#[test]
fn cost_follows_the_changes_of_both_sides() {
    let store = LocalStore::memory().unwrap();
    let model: Model = site(50_000).collect();
    let base = build(&store, &model);
    let mut numbers = Numbers(31);
    for (changes, limit) in [(1, 24), (10, 200), (100, 1_400)] {
        let ours = edit(&store, base, &scattered(&mut numbers, 50_000, changes, "ours")).0;
        let theirs = edit(&store, base, &scattered(&mut numbers, 50_000, changes, "theirs")).0;
        let counting = Counting::new(&store);
        assert!(base.merge(&ours, &theirs, &counting).count() > 0);
        let loads = counting.take();
        assert!(loads <= limit, "{loads} chunks loaded for {changes} changes on each side");
    }
    let counting = Counting::new(&store);
    assert_eq!(base.merge(&base, &base, &counting).count(), 0);
    assert_eq!(counting.take(), 0, "equal maps are not read");
}

#[test]
fn a_failed_read_ends_the_merge() {
    let store = LocalStore::memory().unwrap();
    let base = build(&store, &site(1_000).collect());
    let absent = Map::from_root(Some(tympan_store::ChunkId::of(b"absent")));
    let ours = edit(&store, base, &Edits::from([(b"a".to_vec(), Some(value("1")))])).0;
    for (ours, theirs) in [(ours, absent), (absent, ours)] {
        let mut merge = base.merge(&ours, &theirs, &store);
        assert!(merge.next().unwrap().is_err());
        assert!(merge.next().is_none());
    }
}
