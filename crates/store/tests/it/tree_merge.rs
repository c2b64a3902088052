//! Three-way merges against a plain model.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tympan_store::{
    ChunkBatch, ChunkStore, ConflictResolution, Error, LocalStore, MapChange, MapMergeConflict,
    MapValue, MergeStep, SortedMap,
};

use crate::map_model::{Counting, Edits, Model, Numbers, apply, build, edit, value};
use crate::tree::{check_content, edits, model, site, site_key};

/// What the merge of models does with each key.
fn model_steps(base: &Model, ours: &Model, theirs: &Model) -> Vec<MergeStep> {
    let keys: BTreeSet<&Vec<u8>> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    let step = |key: &Vec<u8>| {
        let [base, ours, theirs] = [base, ours, theirs].map(|side| side.get(key).cloned());
        let change = |right: &Option<MapValue>| MapChange {
            key: key.clone().into(),
            left: base.clone(),
            right: right.clone(),
        };
        match (ours == base, theirs == base) {
            (true, true) => None,
            (false, true) => Some(MergeStep::Ours(change(&ours))),
            (true, false) => Some(MergeStep::Theirs(change(&theirs))),
            (false, false) if ours == theirs => Some(MergeStep::Same(change(&ours))),
            (false, false) => Some(MergeStep::Conflict(MapMergeConflict {
                key: key.clone().into(),
                base,
                ours,
                theirs,
            })),
        }
    };
    keys.into_iter().filter_map(step).collect()
}

fn steps(
    store: &LocalStore,
    base: &SortedMap,
    ours: &SortedMap,
    theirs: &SortedMap,
) -> Vec<MergeStep> {
    base.merge(ours, theirs, store).collect::<Result<_, _>>().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn steps_are_those_of_the_model(base in model(), ours in edits(), theirs in edits()) {
        let store = LocalStore::open_in_memory().unwrap();
        let (mut our_model, mut their_model) = (base.clone(), base.clone());
        apply(&mut our_model, &ours);
        apply(&mut their_model, &theirs);
        let map = build(&store, &base);
        let (ours, theirs) = (build(&store, &our_model), build(&store, &their_model));
        let expected = model_steps(&base, &our_model, &their_model);
        prop_assert_eq!(steps(&store, &map, &ours, &theirs), expected);
    }
}

/// Decides about a conflict by its key, in each of the possible ways.
fn decide(conflict: &MapMergeConflict) -> ConflictResolution {
    match conflict.key.last().map_or(0, |byte| byte % 5) {
        0 => ConflictResolution::Ours,
        1 => ConflictResolution::Theirs,
        2 => ConflictResolution::Replace(value("both")),
        3 => ConflictResolution::Delete,
        _ => ConflictResolution::Unresolved,
    }
}

/// What a merge with [`decide`] makes of models.
fn merge_models(base: &Model, ours: &Model, theirs: &Model) -> (Model, Vec<MapMergeConflict>) {
    let (mut merged, mut unresolved) = (ours.clone(), Vec::new());
    let mut edits = Edits::new();
    for step in model_steps(base, ours, theirs) {
        match step {
            MergeStep::Ours(_) | MergeStep::Same(_) => {}
            MergeStep::Theirs(change) => drop(edits.insert(change.key.to_vec(), change.right)),
            MergeStep::Conflict(conflict) => match decide(&conflict) {
                ConflictResolution::Ours => {}
                ConflictResolution::Theirs => {
                    drop(edits.insert(conflict.key.to_vec(), conflict.theirs))
                }
                ConflictResolution::Replace(value) => {
                    drop(edits.insert(conflict.key.to_vec(), Some(value)))
                }
                ConflictResolution::Delete => drop(edits.insert(conflict.key.to_vec(), None)),
                ConflictResolution::Unresolved => unresolved.push(conflict),
            },
        }
    }
    apply(&mut merged, &edits);
    (merged, unresolved)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn merged_maps_are_those_of_the_model(base in model(), ours in edits(), theirs in edits()) {
        let store = LocalStore::open_in_memory().unwrap();
        let (mut our_model, mut their_model) = (base.clone(), base.clone());
        apply(&mut our_model, &ours);
        apply(&mut their_model, &theirs);
        let map = build(&store, &base);
        let (ours, theirs) = (build(&store, &our_model), build(&store, &their_model));
        let mut batch = ChunkBatch::new();
        let merge = map.merge(&ours, &theirs, &store);
        let merged = merge.apply_merge(&mut batch, |conflict| Ok(decide(conflict))).unwrap();
        store.commit(batch).unwrap();
        let (model, unresolved) = merge_models(&base, &our_model, &their_model);
        prop_assert_eq!(merged.unresolved, unresolved);
        prop_assert_eq!(merged.map, build(&store, &model));
        check_content(&store, &merged.map, &model);
    }
}

#[test]
fn a_side_that_stands_still_costs_nothing() {
    let store = LocalStore::open_in_memory().unwrap();
    let base = build(&store, &site(2_000).collect());
    let other = edit(&store, base, &Edits::from([(site_key(7), None)])).0;
    let counting = Counting::new(&store);
    for (ours, theirs, expected) in
        [(base, other, other), (other, base, other), (other, other, other), (base, base, base)]
    {
        let mut batch = ChunkBatch::new();
        let merged = base
            .merge(&ours, &theirs, &counting)
            .apply_merge(&mut batch, |conflict| panic!("no conflict: {conflict:?}"))
            .unwrap();
        assert_eq!((merged.map, merged.unresolved.len()), (expected, 0));
        assert!(batch.is_empty());
    }
    assert_eq!(counting.take(), 0);
}

#[test]
fn a_refused_resolution_stages_nothing() {
    let store = LocalStore::open_in_memory().unwrap();
    let base = build(&store, &site(100).collect());
    let [ours, theirs] = ["ours", "theirs"]
        .map(|text| edit(&store, base, &Edits::from([(site_key(7), Some(value(text)))])).0);
    let mut batch = ChunkBatch::new();
    let long = ConflictResolution::Replace(value(vec![0; 16_385]));
    let merged = base.merge(&ours, &theirs, &store).apply_merge(&mut batch, |_| Ok(long.clone()));
    assert!(matches!(merged, Err(Error::TooLong { .. })));
    let failing = |_: &MapMergeConflict| Err(Error::Unsorted { position: 5 });
    let merged = base.merge(&ours, &theirs, &store).apply_merge(&mut batch, failing);
    assert!(matches!(merged, Err(Error::Unsorted { position: 5 })));
    assert!(batch.is_empty());
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
    let store = LocalStore::open_in_memory().unwrap();
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
    let store = LocalStore::open_in_memory().unwrap();
    let base = build(&store, &site(1_000).collect());
    let absent = SortedMap::from_root(Some(tympan_store::ChunkId::hash_of(b"absent")));
    let ours = edit(&store, base, &Edits::from([(b"a".to_vec(), Some(value("1")))])).0;
    for (ours, theirs) in [(ours, absent), (absent, ours)] {
        let mut merge = base.merge(&ours, &theirs, &store);
        assert!(merge.next().unwrap().is_err());
        assert!(merge.next().is_none());
    }
}
