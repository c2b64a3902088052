//! The map against a plain model.

use std::ops::Bound;

use proptest::prelude::*;
use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, MapChange, MapValue, SortedMap, body,
};

use crate::map_model::{Counting, Edits, Model, Numbers, apply, build, edit, value};

/// Keys that share prefixes, are prefixes of each other, are long, or differ late.
pub(crate) fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => "[ab]{0,6}".prop_map(String::into_bytes),
        4 => (0..400_u32).prop_map(|n| format!("content\u{1}site\0page-{n:05}").into_bytes()),
        2 => (0..40_u32).prop_map(|n| n.to_be_bytes().to_vec()),
        1 => (0..30_u8).prop_map(|n| {
            let mut key = vec![b'x'; 2_000];
            key.push(n);
            key
        }),
        1 => proptest::collection::vec(any::<u8>(), 0..12),
    ]
}

pub(crate) fn values() -> impl Strategy<Value = MapValue> {
    let bytes = prop_oneof![
        6 => (any::<u8>(), 0..300_usize),
        1 => (any::<u8>(), 300..4_000_usize),
        1 => (any::<u8>(), Just(16_384)),
    ];
    (bytes, proptest::option::weighted(0.3, any::<u8>())).prop_map(|((byte, length), body)| {
        MapValue {
            bytes: vec![byte; length].into(),
            body: body.map(|body| ChunkId::hash_of(&[body])),
        }
    })
}

pub(crate) fn edits() -> impl Strategy<Value = Edits> {
    proptest::collection::btree_map(keys(), proptest::option::weighted(0.6, values()), 0..40)
}

pub(crate) fn model() -> impl Strategy<Value = Model> {
    proptest::collection::btree_map(keys(), values(), 0..400)
}

/// Compares two maps through `diff` with what their models differ in.
pub(crate) fn check_diff(
    store: &LocalStore,
    left: (&SortedMap, &Model),
    right: (&SortedMap, &Model),
) {
    let found: Vec<MapChange> = left.0.diff(right.0, store).collect::<Result<_, _>>().unwrap();
    let mut expected = Vec::new();
    let mut keys: Vec<&Vec<u8>> = left.1.keys().chain(right.1.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (left, right) = (left.1.get(key), right.1.get(key));
        if left != right {
            expected.push(MapChange {
                key: key.clone().into(),
                left: left.cloned(),
                right: right.cloned(),
            });
        }
    }
    assert_eq!(found, expected);
    for at in [0, found.len() / 2, found.len().saturating_sub(1)] {
        let Some(change) = found.get(at) else { continue };
        let after = [&change.key[..], b"\0"].concat();
        for behind in [&change.key[..], &after] {
            let rest: Vec<MapChange> =
                left.0.diff(right.0, store).start_after(behind).collect::<Result<_, _>>().unwrap();
            let is_behind = |one: &&MapChange| *one.key > *behind;
            let expected: Vec<MapChange> = found.iter().filter(is_behind).cloned().collect();
            assert_eq!(rest, expected);
        }
    }
}

pub(crate) fn check_content(store: &LocalStore, map: &SortedMap, model: &Model) {
    assert_eq!(map.count_records(store).unwrap(), model.len() as u64);
    let all: Vec<(Vec<u8>, MapValue)> = map
        .range(store, (Bound::Unbounded, Bound::Unbounded))
        .map(|record| record.map(|(key, value)| (key.to_vec(), value)))
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(model.iter()), "all records in order");
    for (key, value) in model {
        assert_eq!(map.get(store, key).unwrap().as_ref(), Some(value));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn edits_give_the_root_of_a_bulk_build(
        first in model(),
        rounds in proptest::collection::vec(edits(), 1..6),
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let mut model = first;
        let mut map = build(&store, &model);
        for edits in rounds {
            let before = (map, model.clone());
            apply(&mut model, &edits);
            map = edit(&store, map, &edits).0;
            prop_assert_eq!(map, build(&store, &model));
            check_diff(&store, (&before.0, &before.1), (&map, &model));
            check_diff(&store, (&map, &model), (&before.0, &before.1));
        }
        check_content(&store, &map, &model);
    }

    #[test]
    fn ranges_and_misses(model in model(), low in keys(), high in keys(), absent in keys()) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        prop_assert_eq!(map.get(&store, &absent).unwrap(), model.get(&absent).cloned());
        let (low, high) = if low <= high { (low, high) } else { (high, low) };
        let bounds = [
            (Bound::Included(&low), Bound::Excluded(&high)),
            (Bound::Excluded(&low), Bound::Included(&high)),
            (Bound::Included(&low), Bound::Unbounded),
            (Bound::Unbounded, Bound::Included(&high)),
        ];
        for (start, end) in bounds {
            if low == high && matches!(end, Bound::Included(_)) && matches!(start, Bound::Excluded(_)) {
                continue;
            }
            let range = (start.map(Vec::as_slice), end.map(Vec::as_slice));
            let found: Vec<Vec<u8>> = map
                .range(&store, range)
                .map(|record| record.unwrap().0.to_vec())
                .collect();
            let expected: Vec<Vec<u8>> = model
                .range::<[u8], _>(range)
                .map(|(key, _)| key.clone())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}

/// A site of `count` pages in folders of 100, each with a header of about 250 bytes and a body.
pub(crate) fn site(count: u64) -> impl Iterator<Item = (Vec<u8>, MapValue)> {
    (0..count).map(|n| {
        let mut value = value(format!(
            "cq:Page|Page number {n} about travel|template/article|2024-01-{:02}T10:{:02}:00Z|{}",
            n % 28 + 1,
            n % 60,
            "words of a header that repeat now and then ".repeat(3),
        ));
        value.body = Some(ChunkId::hash_of(&n.to_le_bytes()));
        (site_key(n), value)
    })
}

pub(crate) fn site_key(n: u64) -> Vec<u8> {
    format!("content\u{1}magazine\u{1}en\u{1}section-{:04}\0article-{:02}", n / 100, n % 100)
        .into_bytes()
}

#[test]
fn one_record_saved_among_100_000_writes_one_path() {
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(100_000).collect();
    let map = build(&store, &model);
    let mut numbers = Numbers(7);
    let mut worst = 0;
    for round in 0..40_u64 {
        let n = numbers.below(100_000);
        let mut saved = model[&site_key(n)].clone();
        saved.bytes = [&saved.bytes[..], &round.to_le_bytes()].concat().into();
        let edits = Edits::from([(site_key(n), Some(saved))]);
        let counting = Counting::new(&store);
        let mut batch = ChunkBatch::new();
        let edited = map.edit(&counting, &mut batch, edits).unwrap();
        worst = worst.max(batch.chunks().len());
        assert!(counting.take() <= 6, "reads one path and a neighbor");
        store.commit(batch).unwrap();
        let counting = Counting::new(&store);
        let changes = map.diff(&edited, &counting).count();
        let loads = counting.take();
        assert_eq!(changes, 1);
        assert!(loads <= 12, "{loads} chunks loaded for one change");
    }
    assert!(worst <= 5, "{worst} chunks written for one record");
}

#[test]
fn diff_of_scattered_changes_loads_what_differs() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut model: Model = site(50_000).collect();
    let map = build(&store, &model);
    let before = model.clone();
    let mut numbers = Numbers(11);
    let mut edits = Edits::new();
    for _ in 0..100 {
        let n = numbers.below(50_000);
        let edit = match numbers.below(3) {
            0 => (site_key(n), None),
            1 => (site_key(n), Some(value("changed"))),
            _ => ([site_key(n), b"-new".to_vec()].concat(), Some(value("new"))),
        };
        edits.extend([edit]);
    }
    apply(&mut model, &edits);
    let (edited, ..) = edit(&store, map, &edits);
    assert_eq!(edited, build(&store, &model));
    check_diff(&store, (&map, &before), (&edited, &model));
    let counting = Counting::new(&store);
    assert_eq!(map.diff(&edited, &counting).count(), edits.len());
    let loads = counting.take();
    assert!(loads <= 700, "{loads} chunks loaded for 100 changes");
    assert_eq!(map.diff(&map, &counting).count(), 0);
    assert_eq!(counting.take(), 0, "equal maps are not read");
}

#[test]
fn clustered_edits_of_a_tall_tree_give_the_root_of_a_bulk_build() {
    let store = LocalStore::open_in_memory().unwrap();
    // Small values and long names: many records per leaf, several interior chunks.
    let key = |n: u64| format!("content\u{1}folder-{:03}\0a-rather-long-name-{n:06}", n / 90);
    let mut model: Model = (0..40_000)
        .filter(|n| n % 2 == 0)
        .map(|n| (key(n).into_bytes(), value(n.to_string())))
        .collect();
    let mut map = build(&store, &model);
    let mut numbers = Numbers(23);
    for round in 0..25 {
        let start = numbers.below(40_000);
        let span = [1, 2, 10, 300, 4_000][numbers.below(5) as usize];
        let mut edits = Edits::new();
        for n in start..(start + span).min(40_000) {
            let edit = match round % 3 {
                0 => None,
                1 => Some(value(format!("inserted {round}"))),
                _ => (numbers.below(2) > 0).then(|| value(format!("mixed {n} {round}"))),
            };
            edits.insert(key(n).into_bytes(), edit);
        }
        for _ in 0..numbers.below(5) {
            edits.insert(key(numbers.below(40_000)).into_bytes(), None);
        }
        let before = (map, model.clone());
        apply(&mut model, &edits);
        map = edit(&store, map, &edits).0;
        assert_eq!(map, build(&store, &model), "round {round}, {span} from {start}");
        check_diff(&store, (&before.0, &before.1), (&map, &model));
    }
    check_content(&store, &map, &model);
}

#[test]
fn everything_deleted_is_the_empty_map() {
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(5_000).collect();
    let map = build(&store, &model);
    let all: Edits = model.keys().map(|key| (key.clone(), None)).collect();
    assert_eq!(edit(&store, map, &all).0, SortedMap::EMPTY_MAP);
    // One record is left: the tower above it goes, and no chunk of it is staged.
    let mut rest = all.clone();
    rest.remove(&site_key(2_500));
    let (single, chunks, _) = edit(&store, map, &rest);
    assert_eq!((single.count_records(&store).unwrap(), chunks), (1, 1));
    assert_eq!(edit(&store, SortedMap::EMPTY_MAP, &all).0, SortedMap::EMPTY_MAP);
}

#[test]
fn edits_without_effect_stage_nothing() {
    let store = LocalStore::open_in_memory().unwrap();
    let model: Model = site(5_000).collect();
    let map = build(&store, &model);
    let same = (site_key(9), Some(model[&site_key(9)].clone()));
    let absent = (b"zzz".to_vec(), None);
    let (edited, chunks, _) = edit(&store, map, &Edits::from([same, absent]));
    assert_eq!((edited, chunks), (map, 0));
}

#[test]
fn edits_in_one_batch_see_each_other() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let first = SortedMap::build(&mut batch, site(3_000)).unwrap();
    let edits = Edits::from([(b"a".to_vec(), Some(value("1")))]);
    let second = first.edit(&store, &mut batch, edits).unwrap();
    store.commit(batch).unwrap();
    assert_eq!(second.count_records(&store).unwrap(), 3_001);
}

#[test]
fn records_beyond_the_limits_are_refused() {
    let store = LocalStore::open_in_memory().unwrap();
    let cases = [(vec![b'k'; 2_049], value("")), (b"k".to_vec(), value(vec![0; 16_385]))];
    for (key, value) in cases {
        let mut batch = ChunkBatch::new();
        let built = SortedMap::build(&mut batch, [(key.clone(), value.clone())].into_iter());
        assert!(matches!(built, Err(Error::TooLong { .. })));
        let edits = Edits::from([(key, Some(value))]);
        let edited = SortedMap::EMPTY_MAP.edit(&store, &mut batch, edits);
        assert!(matches!(edited, Err(Error::TooLong { .. })));
    }
    let unsorted = [("b", "1"), ("a", "2")].map(|(key, text)| (key.into(), value(text)));
    let built = SortedMap::build(&mut ChunkBatch::new(), unsorted.into_iter());
    assert!(matches!(built, Err(Error::Unsorted { position: 1 })));
}

#[test]
fn the_root_of_known_content_is_pinned() {
    // Another root means another format: existing stores would no longer compare equal.
    let store = LocalStore::open_in_memory().unwrap();
    let map = build(&store, &site(2_000).collect());
    check_id(map.root(), "cc95be214c1f0b84a16460ccc47a6fc4bc60ab0253d66f0d2f2f9d154a791682");
    let mut batch = ChunkBatch::new();
    let body = body::write_body(&mut batch, &[7; 200_000], &[]).unwrap();
    check_id(Some(body), "85e04c60622fe6f356fbe52e9452cfa7782c95907b4e78f30dd63d7616890491");
}

fn check_id(found: Option<ChunkId>, expected: &str) {
    assert_eq!(found.unwrap().to_string(), expected);
}
