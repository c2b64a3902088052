//! The shape of trees, read back from their bytes as `docs/formats/tree.md` describes them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tympan_store::{
    Chunk, ChunkBatch, ChunkId, ChunkStore, LocalStore, MapValue, ReadChunks, SortedMap,
};

use crate::map_model::{Model, build, edit, value};
use crate::tree::{edits, model, site};

/// A chunk of a tree, decoded.
struct Part {
    level: u8,
    /// Keys of records, or the separators between children.
    keys: Vec<Vec<u8>>,
    counts: Vec<u64>,
    bytes: usize,
}

fn decode(chunk: &Chunk) -> Part {
    let payload = chunk.payload();
    let u16 = |at: usize| usize::from(u16::from_le_bytes([payload[at], payload[at + 1]]));
    let (level, count, prefix) = (payload[0], u16(2), u16(4));
    let mut at = 6 + prefix;
    let key_count = if level == 0 { count } else { count - 1 };
    let ends: Vec<usize> = (0..key_count).map(|index| u16(at + 2 * index)).collect();
    at += 2 * key_count;
    let mut counts = vec![1; count];
    if level == 0 {
        at += 2 * count * if chunk.chunk_refs().len() > 0 { 2 } else { 1 };
    } else {
        let words = payload[at..at + 8 * count].chunks_exact(8);
        counts = words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        at += 8 * count;
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let keys = starts
        .zip(&ends)
        .map(|(start, end)| [&payload[6..6 + prefix], &payload[at + start..at + end]].concat())
        .collect();
    Part { level, keys, counts, bytes: chunk.bytes().len() }
}

/// The chunks of each level in order, with the separators in front of them. Each chunk is read where it stands.
#[derive(Default)]
struct Shape {
    levels: BTreeMap<u8, Vec<(Vec<u8>, Part)>>,
}

impl Shape {
    fn of(reads: &dyn ReadChunks, map: &SortedMap) -> Self {
        let mut shape = Self::default();
        if let Some(root) = map.root() {
            shape.visit(reads, root, Vec::new());
        }
        shape
    }

    /// Visits a subtree; returns its level and the number of its records.
    fn visit(&mut self, reads: &dyn ReadChunks, id: ChunkId, separator: Vec<u8>) -> (u8, u64) {
        let chunk = reads.read_chunk(&id).unwrap();
        let part = decode(&chunk);
        let (level, total) = (part.level, part.counts.iter().sum());
        if level > 0 {
            let separators = std::iter::once(&separator).chain(&part.keys);
            let children = chunk.chunk_refs().zip(separators).zip(&part.counts);
            for ((child, separator), count) in children {
                let found = self.visit(reads, child, separator.clone());
                assert_eq!(found, (level - 1, *count), "level and count of a child");
            }
        }
        self.levels.entry(level).or_default().push((separator, part));
        (level, total)
    }

    fn height(&self) -> usize {
        self.levels.len()
    }

    fn check(&self) {
        let height = self.height();
        for (level, parts) in &self.levels {
            assert_eq!(
                parts.len() == 1,
                usize::from(*level) + 1 == height,
                "only the root is alone"
            );
            for (index, (_, part)) in parts.iter().enumerate() {
                let is_last = index + 1 == parts.len();
                assert!(part.bytes <= 32_768 + 2_048 + 16_384 + 4_096, "{} bytes", part.bytes);
                assert!(is_last || part.bytes >= 512, "{} bytes before the end", part.bytes);
                let least = if *level > 0 && (!is_last || parts.len() == 1) { 2 } else { 1 };
                assert!(part.counts.len() >= least, "{} entries", part.counts.len());
            }
        }
        let leaves = self.levels.get(&0).map_or(&[][..], Vec::as_slice);
        for pair in leaves.windows(2) {
            let [(_, before), (separator, after)] = pair else { unreachable!() };
            let (last, first) = (before.keys.last().unwrap(), &after.keys[0]);
            let shortest = (0..=first.len())
                .map(|length| &first[..length])
                .find(|part| *part > last.as_slice());
            assert_eq!(Some(separator.as_slice()), shortest, "separators are as short as can be");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_has_the_documented_shape(model in model(), edits in edits()) {
        let store = LocalStore::open_in_memory().unwrap();
        let map = build(&store, &model);
        Shape::of(&store, &map).check();
        Shape::of(&store, &edit(&store, map, &edits).0).check();
    }
}

/// Builds a map of `count` records and returns its shape.
fn shape_of(count: u64, record: impl Fn(u64) -> (Vec<u8>, MapValue)) -> Shape {
    let store = LocalStore::open_in_memory().unwrap();
    let mut batch = ChunkBatch::new();
    let map = SortedMap::build(&mut batch, (0..count).map(record)).unwrap();
    store.commit(batch).unwrap();
    let shape = Shape::of(&store, &map);
    shape.check();
    shape
}

#[test]
fn heights_grow_with_the_logarithm() {
    let small = |n: u64| (n.to_be_bytes().to_vec(), value(""));
    for (count, height) in [(1, 1), (100, 1), (10_000, 2), (300_000, 3)] {
        assert_eq!(shape_of(count, small).height(), height, "{count} small records");
    }
    let pages: Model = site(100_000).collect();
    let pages: Vec<_> = pages.into_iter().collect();
    let shape = shape_of(100_000, |n| pages[n as usize].clone());
    assert_eq!(shape.height(), 4, "100,000 pages");
    let interior: Vec<usize> = shape.levels[&1].iter().map(|(_, part)| part.counts.len()).collect();
    let mean = interior.iter().sum::<usize>() / interior.len();
    assert!(mean >= 45, "{mean} children per chunk: their keys are shortened");
}

#[test]
fn keys_as_long_as_can_be_make_no_towers() {
    // They differ at their ends only, so that no separator can be short; values make each record a leaf.
    let key = |n: u64| [vec![b'k'; 2_040], n.to_be_bytes().to_vec()].concat();
    let shape = shape_of(2_000, |n| (key(n), value(vec![0; 16_384])));
    assert_eq!(shape.levels[&0].len(), 2_000);
    assert!(shape.height() <= 5, "height {}", shape.height());
    // Long keys that differ at once have short separators.
    let key = |n: u64| [n.to_be_bytes().to_vec(), vec![b'k'; 2_040]].concat();
    let shape = shape_of(2_000, |n| (key(n), value("")));
    let longest = shape.levels[&1].iter().flat_map(|(_, part)| &part.keys).map(Vec::len).max();
    assert!(longest <= Some(8), "{longest:?} bytes of a separator");
}
