//! Trees that nobody built: chunks that are well-formed one by one, and lie about each other. Walks end, with an error
//! or with what can be read, after work in proportion to the chunks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use tympan_store::key::KeyRange;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, ChunkKind, ConflictResolution, Error, MapValue, ReadChunks, Result,
    SortedMap,
};

use crate::map_model::{Edits, Numbers, value};

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// A chunk to forge. Children are named by their place in the list.
#[derive(Clone, Debug)]
enum Part {
    Leaf(BTreeSet<String>),
    Interior { level: u8, first: u8, others: BTreeMap<String, u8>, count: u64 },
}

impl Part {
    fn encode(&self) -> Chunk {
        let u16 = |number: usize| u16::try_from(number).unwrap().to_le_bytes();
        let ends = |texts: &mut dyn Iterator<Item = &String>| -> Vec<u8> {
            let mut end = 0;
            texts
                .flat_map(|text| {
                    end += text.len();
                    u16(end)
                })
                .collect()
        };
        let mut bytes = Vec::new();
        match self {
            Self::Leaf(keys) => {
                bytes.extend([1, 1, 0, 0, 0, 0, 0, 0]);
                bytes.extend(u16(keys.len()));
                bytes.extend(u16(0));
                bytes.extend(ends(&mut keys.iter()));
                bytes.extend(vec![0; 2 * keys.len()]);
                bytes.extend(keys.iter().flat_map(|key| key.bytes()));
            }
            Self::Interior { level, first, others, count } => {
                bytes.extend([2, 1]);
                bytes.extend(u16(others.len() + 1));
                bytes.extend(u16(0));
                for child in std::iter::once(first).chain(others.values()) {
                    bytes.extend_from_slice(id(*child).as_bytes());
                }
                bytes.extend([*level, 0]);
                bytes.extend(u16(others.len() + 1));
                bytes.extend(u16(0));
                bytes.extend(ends(&mut others.keys()));
                for _ in 0..=others.len() {
                    bytes.extend(count.to_le_bytes());
                }
                bytes.extend(others.keys().flat_map(|key| key.bytes()));
            }
        }
        Chunk::parse(bytes.into()).unwrap()
    }
}

fn id(place: u8) -> ChunkId {
    let mut bytes = [7; 32];
    bytes[0] = place;
    ChunkId::from_bytes(bytes)
}

/// Serves forged chunks; fails the test when a walk reads without end.
struct Forged {
    chunks: HashMap<ChunkId, Chunk>,
    reads: AtomicU64,
    most: u64,
    has_costly_round_trips: bool,
}

impl Forged {
    fn new(parts: &[Part], most: u64, has_costly_round_trips: bool) -> Self {
        let chunks =
            parts.iter().zip(0..).map(|(part, place)| (id(place), part.encode())).collect();
        Self { chunks, reads: AtomicU64::new(0), most, has_costly_round_trips }
    }
}

impl ReadChunks for Forged {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < self.most, "a walk reads without end");
        self.chunks.get(id).cloned().ok_or(Error::ChunkMissing { id: *id })
    }

    fn has_costly_round_trips(&self) -> bool {
        self.has_costly_round_trips
    }
}

/// Does with two maps everything that can be done.
fn exercise(reads: &Forged, one: SortedMap, other: SortedMap) {
    let range = KeyRange { start: b"b".to_vec(), end: Some(b"cb".to_vec()) };
    let rewrite = |key: &[u8], value: &MapValue| Ok(([b"b", key].concat(), value.clone()));
    let walks: [&dyn Fn() -> bool; 16] = [
        &|| one.range(reads, ALL).all(|record| record.is_ok()),
        &|| one.range_reversed(reads, ALL).all(|record| record.is_ok()),
        &|| one.range(reads, range.bounds()).all(|record| record.is_ok()),
        &|| one.range(reads, range.bounds()).skip_records(3).all(|record| record.is_ok()),
        &|| one.nth(reads, 5).is_ok(),
        &|| one.rank(reads, b"c").is_ok(),
        &|| one.count_records_in(reads, &range).is_ok(),
        &|| one.get_many(reads, &["a", "b", "ca", "dd"]).is_ok(),
        &|| one.last_record_in(reads, range.bounds()).is_ok(),
        &|| one.diff(&other, reads).all(|change| change.is_ok()),
        &|| SortedMap::EMPTY_MAP.diff(&one, reads).all(|change| change.is_ok()),
        &|| {
            let merge = SortedMap::EMPTY_MAP.merge(&one, &other, reads);
            merge.apply_merge(&mut ChunkBatch::new(), |_| Ok(ConflictResolution::Theirs)).is_ok()
        },
        &|| {
            let edits = ["", "a", "bb", "ca", "d"].map(|key| (key.into(), Some(value("x"))));
            one.edit(reads, &mut ChunkBatch::new(), Edits::from(edits)).is_ok()
        },
        &|| one.replace_range(reads, &mut ChunkBatch::new(), &range, std::iter::empty()).is_ok(),
        &|| one.copy_range(reads, &mut ChunkBatch::new(), &range, rewrite).is_ok(),
        &|| one.move_range(reads, &mut ChunkBatch::new(), &range, rewrite).is_ok(),
    ];
    for walk in walks {
        reads.reads.store(0, Ordering::Relaxed);
        // Whether a walk can tell that something is wrong depends on where it goes.
        walk();
    }
}

fn parts() -> impl Strategy<Value = Part> {
    let key = || "[a-d]{0,2}";
    prop_oneof![
        2 => proptest::collection::btree_set(key(), 1..4).prop_map(Part::Leaf),
        3 => (
            1..4_u8,
            0..10_u8,
            proptest::collection::btree_map(key(), 0..10_u8, 0..4),
            prop_oneof![Just(0), Just(1), 2..9_u64, Just(u64::MAX)],
        )
            .prop_map(|(level, first, others, count)| Part::Interior { level, first, others, count }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn walks_of_forged_trees_end(
        parts in proptest::collection::vec(parts(), 4..12),
        has_costly_round_trips in any::<bool>(),
    ) {
        let reads = Forged::new(&parts, 2_000, has_costly_round_trips);
        for place in 0..parts.len() as u8 {
            let other = (place + 1) % parts.len() as u8;
            exercise(&reads, SortedMap::from_root(Some(id(place))), SortedMap::from_root(Some(id(other))));
        }
    }
}

/// Builds a map of short keys over few letters.
fn tree(batch: &mut ChunkBatch, seed: u64, count: u64) -> SortedMap {
    let mut numbers = Numbers(seed);
    let mut keys = BTreeSet::new();
    for _ in 0..count {
        let key = (0..=numbers.below(6)).map(|_| b'a' + numbers.below(4) as u8);
        keys.insert(key.collect::<Vec<_>>());
    }
    SortedMap::build(batch, keys.into_iter().map(|key| (key, value(vec![b'v'; 300])))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn walks_of_trees_with_exchanged_parts_end(
        seed in any::<u64>(),
        exchanges in proptest::collection::vec(any::<(prop::sample::Index, prop::sample::Index)>(), 0..6),
        flips in proptest::collection::vec(any::<(prop::sample::Index, prop::sample::Index, u8)>(), 0..4),
        has_costly_round_trips in any::<bool>(),
    ) {
        let mut batch = ChunkBatch::new();
        let maps = [(seed, 3_000), (seed.wrapping_add(1), 2_000), (seed.wrapping_add(2), 300)]
            .map(|(seed, count)| tree(&mut batch, seed, count));
        let staged: Vec<(ChunkId, Chunk)> = batch
            .chunks()
            .map(|(id, bytes)| (*id, Chunk::parse(bytes.clone()).unwrap()))
            .collect();
        // Interior chunks are few: they are the ones that lies are about.
        let interior: Vec<_> =
            staged.iter().filter(|(_, chunk)| chunk.kind() == ChunkKind::Interior).collect();
        let mut chunks: HashMap<ChunkId, Chunk> = staged.iter().cloned().collect();
        for (at, from) in &exchanges {
            chunks.insert(at.get(&interior).0, from.get(&interior).1.clone());
        }
        for (at, offset, byte) in &flips {
            let (id, chunk) = at.get(&interior);
            let mut bytes = chunk.bytes().to_vec();
            let offset = offset.index(bytes.len());
            bytes[offset] = *byte;
            chunks.extend(Chunk::parse(bytes.into()).ok().map(|chunk| (*id, chunk)));
        }
        let most = 20 * chunks.len() as u64;
        let reads = Forged { chunks, reads: AtomicU64::new(0), most, has_costly_round_trips };
        for (one, other) in [(0, 1), (1, 2), (2, 0)] {
            exercise(&reads, maps[one], maps[other]);
        }
    }
}

/// A tree as tall as can be in which each chunk lists the one below it `width` times: it pretends to `width` to the
/// power of 40 records.
fn folded(width: usize, leaf: &str) -> Vec<Part> {
    let mut parts = vec![Part::Leaf([leaf.to_owned()].into())];
    for level in 1..=40 {
        let others = (1..width).map(|n| (format!("m{n}"), level - 1)).collect();
        parts.push(Part::Interior { level, first: level - 1, others, count: 1 << 20 });
    }
    parts
}

#[test]
fn a_tree_that_lists_its_parts_many_times_is_refused() {
    for width in [1, 2, 5] {
        // Two of them, which differ in their leaves only.
        let mut parts = folded(width, "a");
        let offset = parts.len() as u8;
        parts.extend(folded(width, "b").into_iter().map(|part| match part {
            Part::Interior { level, first, others, count } => Part::Interior {
                level,
                first: first + offset,
                others: others.into_iter().map(|(key, child)| (key, child + offset)).collect(),
                count,
            },
            leaf @ Part::Leaf(_) => leaf,
        }));
        for has_costly_round_trips in [false, true] {
            let reads = Forged::new(&parts, 4_000, has_costly_round_trips);
            let [one, other] = [40, offset + 40].map(|root| SortedMap::from_root(Some(id(root))));
            exercise(&reads, one, other);
            reads.reads.store(0, Ordering::Relaxed);
            let scanned = one.range(&reads, ALL).collect::<Result<Vec<_>>>();
            let compared = one.diff(&other, &reads).collect::<Result<Vec<_>>>();
            assert_eq!(
                scanned.is_ok(),
                width == 1,
                "one child per chunk is a long way, not a circle"
            );
            assert_eq!(compared.is_ok(), width == 1);
        }
    }
}

#[test]
fn an_edit_does_not_spread_a_wrong_count() {
    let leaf = |keys: &[&str]| Part::Leaf(keys.iter().map(|key| (*key).to_owned()).collect());
    let root =
        |count| Part::Interior { level: 1, first: 1, others: [("b".to_owned(), 2)].into(), count };
    for (count, is_right) in [(2, true), (1, false), (3, false), (u64::MAX, false)] {
        let parts = [root(count), leaf(&["a", "aa"]), leaf(&["b", "c"])];
        let reads = Forged::new(&parts, 100, false);
        let edits = Edits::from([("a".into(), None)]);
        let edited = SortedMap::from_root(Some(id(0))).edit(&reads, &mut ChunkBatch::new(), edits);
        assert_eq!(edited.is_ok(), is_right, "{count}: {edited:?}");
    }
}

#[test]
fn an_edit_of_a_key_that_its_chunk_disowns_is_refused() {
    // The parent leads `b` to a chunk whose separators are all behind `m`.
    let leaf = |key: &str| Part::Leaf([key.to_owned()].into());
    let parts = [
        Part::Interior { level: 2, first: 1, others: [("c".to_owned(), 2)].into(), count: 2 },
        Part::Interior { level: 1, first: 3, others: [("m".to_owned(), 4)].into(), count: 1 },
        Part::Interior { level: 1, first: 3, others: [("a".to_owned(), 4)].into(), count: 1 },
        leaf("a"),
        leaf("n"),
    ];
    let reads = Forged::new(&parts, 100, false);
    let map = SortedMap::from_root(Some(id(0)));
    for key in ["b", "d", "x"] {
        let edits = Edits::from([(key.into(), Some(value("x")))]);
        let edited = map.edit(&reads, &mut ChunkBatch::new(), edits);
        assert!(matches!(edited, Err(Error::ChunkDamaged { .. })), "{key}: {edited:?}");
    }
    let scanned = map.range(&reads, ALL).collect::<Result<Vec<_>>>();
    assert!(matches!(scanned, Err(Error::ChunkDamaged { .. })));
}
