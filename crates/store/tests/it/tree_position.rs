//! Places of records: ranks, records by number, skipped records, scans backwards.

use std::ops::Bound;

use proptest::prelude::*;
use tympan_store::key::KeyRange;
use tympan_store::{ChunkBatch, ChunkStore, LocalStore, MapScan, SortedMap};

use crate::map_model::{Counting, Model, Numbers, build, value};
use crate::tree::{keys, model, site, site_key};

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

fn keys_of(scan: MapScan<'_>) -> Vec<Vec<u8>> {
    scan.map(|record| record.unwrap().0.to_vec()).collect()
}

fn bounds() -> impl Strategy<Value = (Bound<Vec<u8>>, Bound<Vec<u8>>)> {
    let bound = |key: BoxedStrategy<Vec<u8>>| {
        prop_oneof![
            2 => key.clone().prop_map(Bound::Included),
            2 => key.prop_map(Bound::Excluded),
            1 => Just(Bound::Unbounded),
        ]
    };
    (bound(keys().boxed()), bound(keys().boxed()))
}

/// What a range holds in the model; ranges that end before they begin are empty.
fn within(model: &Model, (start, end): (&Bound<Vec<u8>>, &Bound<Vec<u8>>)) -> Vec<Vec<u8>> {
    let is_behind_start = |key: &Vec<u8>| match start {
        Bound::Included(start) => key >= start,
        Bound::Excluded(start) => key > start,
        Bound::Unbounded => true,
    };
    let is_before_end = |key: &Vec<u8>| match end {
        Bound::Included(end) => key <= end,
        Bound::Excluded(end) => key < end,
        Bound::Unbounded => true,
    };
    model.keys().filter(|key| is_behind_start(key) && is_before_end(key)).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn ranges_forward_backward_and_from_any_place(
        model in model(),
        ranges in proptest::collection::vec((bounds(), 0..500_usize, 0..50_usize), 1..8),
    ) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        for ((start, end), skip, read) in &ranges {
            let range = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
            let mut expected = within(&model, (start, end));
            let skip = *skip % (expected.len() + 2);
            prop_assert_eq!(keys_of(map.range(&store, range)), expected.clone());
            let scan = map.range(&store, range).skip_records(skip as u64);
            prop_assert_eq!(keys_of(scan), expected.iter().skip(skip).cloned().collect::<Vec<_>>());
            // Skipped in the midst of a scan.
            let mut scan = map.range(&store, range);
            let first = scan.by_ref().take(*read).count();
            prop_assert_eq!(first, expected.len().min(*read));
            let rest = keys_of(scan.skip_records(skip as u64));
            prop_assert_eq!(rest, expected.iter().skip(*read).skip(skip).cloned().collect::<Vec<_>>());

            expected.reverse();
            let last = map.last_record_in(&store, range).unwrap().map(|(key, _)| key.to_vec());
            prop_assert_eq!(last.as_ref(), expected.first());
            prop_assert_eq!(keys_of(map.range_reversed(&store, range)), expected.clone());
            let back = map.range_reversed(&store, range).nth(skip);
            let back = back.map(|record| record.unwrap().0.to_vec());
            prop_assert_eq!(back.as_ref(), expected.get(skip));
        }
    }

    #[test]
    fn ranks_and_records_by_number(model in model(), absent in keys(), other in keys()) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        for (place, (key, value)) in model.iter().enumerate() {
            prop_assert_eq!(map.rank(&store, key).unwrap(), place as u64);
            let (found, at) = map.nth(&store, place as u64).unwrap().unwrap();
            prop_assert_eq!((found.as_ref(), &at), (key.as_slice(), value));
        }
        prop_assert!(map.nth(&store, model.len() as u64).unwrap().is_none());
        prop_assert!(map.nth(&store, u64::MAX).unwrap().is_none());
        let below = model.range(..absent.clone()).count();
        prop_assert_eq!(map.rank(&store, &absent).unwrap(), below as u64);
        for end in [Some(other), None] {
            let range = KeyRange { start: absent.clone(), end };
            let expected = model.keys().filter(|key| range.contains_key(key)).count();
            prop_assert_eq!(map.count_records_in(&store, &range).unwrap(), expected as u64);
        }
    }
}

#[test]
fn a_place_in_a_tall_tree_costs_one_path() {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, site(100_000)).unwrap();
    store.commit(batch).unwrap();
    let counting = Counting::new(&store);
    let mut numbers = Numbers(3);
    for _ in 0..50 {
        let n = numbers.below(100_000);
        // The keys of `site` are in the order of their numbers.
        assert_eq!(map.rank(&counting, &site_key(n)).unwrap(), n);
        let height = counting.take();
        assert!(height <= 5, "{height} chunks loaded for a rank");
        let (key, _) = map.nth(&counting, n).unwrap().unwrap();
        assert_eq!(key, site_key(n));
        let loads = counting.take();
        assert!(loads == height, "{loads} chunks loaded for a record by its number");
        let last = map.last_record_in(&counting, (Bound::Unbounded, Bound::Excluded(&site_key(n))));
        assert_eq!(last.unwrap().map(|(key, _)| key.to_vec()), n.checked_sub(1).map(site_key));
        let loads = counting.take();
        assert!(loads <= height + 2, "{loads} chunks loaded for the last record of a range");
        let page: Vec<_> = map.range(&counting, ALL).skip(n as usize).take(50).collect();
        assert_eq!(page.len() as u64, (100_000 - n).min(50));
        let loads = counting.take();
        assert!(loads <= height + 8, "{loads} chunks loaded for a page of 50 records");
    }
}

#[test]
fn skipping_beyond_the_end_is_the_end() {
    let store = LocalStore::open_in_memory().unwrap();
    let map = build(&store, &[(b"a".to_vec(), value("1"))].into());
    for count in [1, 2, u64::MAX] {
        assert!(map.range(&store, ALL).skip_records(count).next().is_none());
        assert!(map.range_reversed(&store, ALL).skip_records(count).next().is_none());
        assert!(SortedMap::EMPTY_MAP.range(&store, ALL).skip_records(count).next().is_none());
    }
    assert_eq!(SortedMap::EMPTY_MAP.rank(&store, b"a").unwrap(), 0);
    assert!(SortedMap::EMPTY_MAP.last_record_in(&store, ALL).unwrap().is_none());
}
