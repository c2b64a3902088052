//! Edits of whole ranges against a plain model: replaced, copied, moved.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tympan_store::key::{self, KeyRange};
use tympan_store::{ChunkBatch, ChunkStore, Error, LocalStore, MapValue, Result, SortedMap};

use crate::map_model::{Counting, Edits, Model, Numbers, apply, build, edit, value};
use crate::tree::{check_content, edits, keys, model, site, site_key, values};

/// One change of a map.
#[derive(Clone, Debug)]
enum Change {
    Edits(Edits),
    Replace(KeyRange, Model),
    Copy(KeyRange, Rewrite),
    Move(KeyRange, Rewrite),
}

/// How a record's key changes. All of them keep the order of keys.
#[derive(Clone, Debug)]
enum Rewrite {
    Prefix(Vec<u8>),
    Suffix(u8),
    None,
}

impl Rewrite {
    fn apply(&self, key: &[u8], value: &MapValue) -> (Vec<u8>, MapValue) {
        let key = match self {
            Self::Prefix(prefix) => [prefix, key].concat(),
            // Doubled zeros keep the order where one key is a prefix of the next.
            Self::Suffix(byte) => {
                let mut escaped: Vec<u8> = key
                    .iter()
                    .flat_map(|byte| if *byte == 0 { vec![0, 1] } else { vec![*byte] })
                    .collect();
                escaped.extend([0, 0, *byte]);
                escaped
            }
            Self::None => key.to_vec(),
        };
        let mut value = value.clone();
        value.bytes = [&value.bytes[..value.bytes.len().min(16_000)], b"+"].concat().into();
        (key, value)
    }
}

fn ranges() -> impl Strategy<Value = KeyRange> {
    (keys(), proptest::option::weighted(0.9, keys())).prop_map(|(one, other)| match other {
        Some(other) if other < one => KeyRange { start: other, end: Some(one) },
        end => KeyRange { start: one, end },
    })
}

fn rewrites() -> impl Strategy<Value = Rewrite> {
    prop_oneof![
        keys().prop_map(|mut key| {
            key.truncate(20);
            Rewrite::Prefix(key)
        }),
        any::<u8>().prop_map(Rewrite::Suffix),
        Just(Rewrite::None),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    let records = proptest::collection::btree_map(keys(), values(), 0..200);
    prop_oneof![
        2 => edits().prop_map(Change::Edits),
        3 => (ranges(), records).prop_map(|(range, mut records)| {
            records.retain(|key, _| range.contains_key(key));
            Change::Replace(range, records)
        }),
        1 => ranges().prop_map(|range| Change::Replace(range, Model::new())),
        2 => (ranges(), rewrites()).prop_map(|(range, rewrite)| Change::Copy(range, rewrite)),
        2 => (ranges(), rewrites()).prop_map(|(range, rewrite)| Change::Move(range, rewrite)),
    ]
}

/// Changes the model; tells whether the change is possible.
fn change_model(model: &mut Model, change: &Change) -> bool {
    let within = |model: &Model, range: &KeyRange| -> Model {
        let records = model.iter().filter(|(key, _)| range.contains_key(key));
        records.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    match change {
        Change::Edits(edits) => apply(model, edits),
        Change::Replace(range, records) => {
            model.retain(|key, _| !range.contains_key(key));
            model.extend(records.clone());
        }
        Change::Copy(range, rewrite) | Change::Move(range, rewrite) => {
            let source = within(model, range);
            let copied: Model = source.iter().map(|(k, v)| rewrite.apply(k, v)).collect();
            if copied.keys().any(|key| key.len() > 2_048) {
                return false;
            }
            if matches!(change, Change::Move(..)) {
                model.retain(|key, _| !range.contains_key(key));
            }
            model.extend(copied);
        }
    }
    true
}

fn change_map(
    store: &LocalStore,
    map: SortedMap,
    change: &Change,
    batch: &mut ChunkBatch,
) -> Result<SortedMap> {
    match change {
        Change::Edits(edits) => map.edit(store, batch, edits.clone()),
        Change::Replace(range, records) => {
            map.replace_range(store, batch, range, records.clone().into_iter())
        }
        Change::Copy(range, rewrite) => {
            map.copy_range(store, batch, range, |key, value| Ok(rewrite.apply(key, value)))
        }
        Change::Move(range, rewrite) => {
            map.move_range(store, batch, range, |key, value| Ok(rewrite.apply(key, value)))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_gives_the_root_of_a_bulk_build(
        first in model(),
        sequence in proptest::collection::vec(changes(), 1..8),
        commits in any::<bool>(),
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let (mut map, mut model) = (build(&store, &first), first);
        let mut batch = ChunkBatch::new();
        for change in &sequence {
            let before = model.clone();
            let changed = change_map(&store, map, change, &mut batch);
            if !change_model(&mut model, change) {
                let is_refused = matches!(changed, Err(Error::TooLong { .. }));
                prop_assert!(is_refused);
                model = before;
                continue;
            }
            map = changed.unwrap();
            prop_assert_eq!(map, build(&LocalStore::open_in_memory().unwrap(), &model));
            if commits {
                store.commit(std::mem::take(&mut batch)).unwrap();
            }
        }
        store.commit(batch).unwrap();
        check_content(&store, &map, &model);
    }
}

#[test]
fn range_edits_of_a_tall_tree_give_the_root_of_a_bulk_build() {
    let store = LocalStore::open_in_memory().unwrap();
    let key = |n: u64| format!("content\u{1}folder-{:03}\0a-rather-long-name-{n:06}", n / 90);
    let key = |n: u64| key(n).into_bytes();
    let mut model: Model =
        (0..40_000).filter(|n| n % 2 == 0).map(|n| (key(n), value(n.to_string()))).collect();
    let mut map = build(&store, &model);
    let mut numbers = Numbers(41);
    for round in 0..24_u64 {
        let start = numbers.below(40_000);
        let span = [1, 90, 700, 9_000, 40_000][numbers.below(5) as usize];
        let end = (start + span < 40_000).then(|| key(start + span));
        let range = KeyRange { start: key(start), end };
        let change = match numbers.below(4) {
            0 => Change::Replace(range, Model::new()),
            1 => {
                let new = (start..(start + span).min(40_000)).filter(|_| numbers.below(3) > 0);
                let new = new.map(|n| (key(n), value(format!("{round}")))).collect();
                Change::Replace(range, new)
            }
            2 => Change::Copy(range, Rewrite::Suffix(round as u8)),
            _ => Change::Move(range, Rewrite::Prefix(vec![b'a' + numbers.below(5) as u8])),
        };
        // Records of a copy grow; what grew is thinned out before it slows the test down.
        model.retain(|key, _| key.len() < 70);
        let thin = model.iter().map(|(key, value)| (key.clone(), value.clone()));
        let mut batch = ChunkBatch::new();
        map = map.replace_range(&store, &mut batch, &all(), thin).unwrap();
        map = change_map(&store, map, &change, &mut batch).unwrap();
        store.commit(batch).unwrap();
        assert!(change_model(&mut model, &change));
        assert_eq!(map, build(&store, &model), "round {round}, {span} from {start}");
    }
    check_content(&store, &map, &model);
}

fn subtree(path: &str) -> KeyRange {
    key::subtree_range(&path.split('/').collect::<Vec<_>>()).unwrap()
}

fn all() -> KeyRange {
    KeyRange { start: Vec::new(), end: None }
}

#[test]
fn a_deleted_range_is_not_read() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    // Short records, so that a million of them build quickly; the tree is as tall as that of real pages.
    let key = |n: u32| format!("content\u{1}magazine\0page-{n:07}").into_bytes();
    let records = |range: std::ops::Range<u32>| range.map(|n| (key(n), value(n.to_string())));
    let map = SortedMap::build(&mut batch, records(0..1_000_000)).unwrap();
    store.commit(batch).unwrap();
    let deleted = KeyRange { start: key(450_000), end: Some(key(550_000)) };
    let counting = Counting::new(&store);
    let mut batch = ChunkBatch::new();
    let edited = map.replace_range(&counting, &mut batch, &deleted, std::iter::empty()).unwrap();
    let loads = counting.take();
    assert!(loads <= 16, "{loads} chunks loaded to delete 100,000 of 1,000,000 records");
    assert!(batch.chunks().len() <= 8, "{} chunks written", batch.chunks().len());
    let mut bulk = ChunkBatch::new();
    let rest = records(0..450_000).chain(records(550_000..1_000_000));
    assert_eq!(edited, SortedMap::build(&mut bulk, rest).unwrap());

    let everything = map.replace_range(&counting, &mut batch, &all(), std::iter::empty()).unwrap();
    assert_eq!(everything, SortedMap::EMPTY_MAP);
    assert!(counting.take() <= 8, "one path at the left edge");
}

#[test]
fn a_range_between_the_keys_of_two_leaves_is_deleted_to_the_end() {
    // The first leaf is as before, and ends by itself: only what follows it goes.
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(1_000).collect();
    let map = build(&store, &model);
    for n in 0..200 {
        let start = [site_key(n), b"-".to_vec()].concat();
        let range = KeyRange { start, end: None };
        let cut =
            map.replace_range(&store, &mut ChunkBatch::new(), &range, std::iter::empty()).unwrap();
        let rest = site(n + 1);
        assert_eq!(
            cut,
            SortedMap::build(&mut ChunkBatch::new(), rest).unwrap(),
            "after record {n}"
        );
    }
}

#[test]
fn a_replaced_range_reads_its_edges() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut model: Model = site(50_000).collect();
    let map = build(&store, &model);
    let range = subtree("content/magazine/en/section-0200");
    let new: Model = (0..3_000)
        .map(|n| {
            (
                format!("content\u{1}magazine\u{1}en\u{1}section-0200\0new-{n:05}").into_bytes(),
                value("new"),
            )
        })
        .collect();
    let counting = Counting::new(&store);
    let mut batch = ChunkBatch::new();
    let edited = map.replace_range(&counting, &mut batch, &range, new.clone().into_iter()).unwrap();
    let loads = counting.take();
    assert!(loads <= 14, "{loads} chunks loaded");
    model.retain(|key, _| !range.contains_key(key));
    model.extend(new);
    store.commit(batch).unwrap();
    assert_eq!(edited, build(&store, &model));
}

/// Puts a node's subtree below another node, as a move of pages does.
fn rename(from: &str, to: &str) -> impl FnMut(&[u8], &MapValue) -> Result<(Vec<u8>, MapValue)> {
    let [from, to] = [from, to].map(|path| path.replace('/', "\u{1}").into_bytes());
    move |key, value| Ok(([&to, &key[from.len()..]].concat(), value.clone()))
}

#[test]
fn subtrees_are_moved_before_and_behind_and_copied() {
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(20_000).collect();
    let map = build(&store, &model);
    let from = "content/magazine/en/section-0100";
    for to in [
        "content/magazine/de/section-0100",
        "content/magazine/fr/section-0100",
        "content/magazine/en/section-0100-b",
    ] {
        for is_move in [false, true] {
            let mut batch = ChunkBatch::new();
            let range = subtree(from);
            let counting = Counting::new(&store);
            let moved = if is_move {
                map.move_range(&counting, &mut batch, &range, rename(from, to)).unwrap()
            } else {
                map.copy_range(&counting, &mut batch, &range, rename(from, to)).unwrap()
            };
            let loads = counting.take();
            assert!(loads <= 60, "{loads} chunks loaded for 100 records to {to}");
            store.commit(batch).unwrap();
            let mut expected = model.clone();
            for (key, value) in model.iter().filter(|(key, _)| range.contains_key(key)) {
                let (new, value) = rename(from, to)(key, value).unwrap();
                expected.insert(new, value);
                if is_move {
                    expected.remove(key);
                }
            }
            assert_eq!(moved, build(&store, &expected), "to {to}");
        }
    }
}

#[test]
fn what_is_refused_stages_nothing() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = build(&store, &site(500).collect());
    let range = KeyRange { start: b"b".to_vec(), end: Some(b"d".to_vec()) };
    let mut batch = ChunkBatch::new();
    let cases =
        [(vec!["a"], 0), (vec!["c", "d"], 1), (vec!["c", "b"], 1), (vec!["bb", "c", "c"], 2)];
    for (keys, expected) in cases {
        let records = keys.iter().map(|key| (key.as_bytes().to_vec(), value("x")));
        let refused = map.replace_range(&store, &mut batch, &range, records);
        let Err(Error::Unsorted { position }) = refused else { panic!("{keys:?}: {refused:?}") };
        assert_eq!(position, expected, "{keys:?}");
    }
    let same = |_: &[u8], value: &MapValue| Ok((b"same".to_vec(), value.clone()));
    assert!(matches!(
        map.copy_range(&store, &mut batch, &all(), same),
        Err(Error::Unsorted { position: 1 })
    ));
    let long = |_: &[u8], value: &MapValue| Ok((vec![b'k'; 2_049], value.clone()));
    assert!(matches!(map.move_range(&store, &mut batch, &all(), long), Err(Error::TooLong { .. })));
    let failing = [Ok((b"a".to_vec(), None)), Err(Error::Unsorted { position: 77 })];
    let failed = map.edit_sorted(&store, &mut batch, failing.into_iter());
    assert!(matches!(failed, Err(Error::Unsorted { position: 77 })));
    assert!(batch.is_empty());
}

#[test]
fn sorted_edits_stream() {
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(5_000).collect();
    let map = build(&store, &model);
    let edits: BTreeMap<_, _> = (0..2_000)
        .map(|n| (site_key(n * 3), (n % 4 > 0).then(|| value(format!("new {n}")))))
        .collect();
    let mut batch = ChunkBatch::new();
    let streamed = map.edit_sorted(&store, &mut batch, edits.clone().into_iter().map(Ok)).unwrap();
    assert_eq!(streamed, edit(&store, map, &edits).0);
    let from_nothing =
        SortedMap::EMPTY_MAP.edit_sorted(&store, &mut batch, edits.clone().into_iter().map(Ok));
    assert_eq!(from_nothing.unwrap(), edit(&store, SortedMap::EMPTY_MAP, &edits).0);
}
