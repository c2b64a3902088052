//! The tree written down naively, straight from `docs/formats/tree.md`: the document and the code must agree.

use proptest::prelude::*;
use tympan_store::{ChunkId, LocalStore, MapValue};

use crate::map_model::{Model, build};
use crate::tree::model;

/// An entry of a level: its key (or the separator in front of it) and what it leads to.
enum Entry {
    Record(Vec<u8>, MapValue),
    Child(Vec<u8>, ChunkId, u64),
}

impl Entry {
    fn key(&self) -> &[u8] {
        match self {
            Self::Record(key, _) | Self::Child(key, ..) => key,
        }
    }
}

fn root(model: &Model) -> Option<ChunkId> {
    let records = model.iter();
    let mut level: Vec<Entry> =
        records.map(|(key, value)| Entry::Record(key.clone(), value.clone())).collect();
    let mut number = 0;
    loop {
        level = cut(number, level);
        match level.as_slice() {
            [] => return None,
            [Entry::Child(_, id, _)] => return Some(*id),
            _ => number += 1,
        }
    }
}

/// Cuts a level into chunks; returns them as the entries of the level above.
fn cut(level: u8, entries: Vec<Entry>) -> Vec<Entry> {
    let mut above = Vec::new();
    let mut chunk: Vec<Entry> = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    let count = entries.len();
    for (position, entry) in entries.into_iter().enumerate() {
        let key = entry.key().to_vec();
        let before = if chunk.is_empty() { 0 } else { encode(level, &chunk).0.len() };
        chunk.push(entry);
        if ends(level, &chunk, before, &key) || position + 1 == count {
            let first = chunk[0].key();
            let separator = match &last {
                _ if level > 0 => first.to_vec(),
                None => Vec::new(),
                Some(last) => {
                    let shortest =
                        (0..=first.len()).find(|length| &first[..*length] > last.as_slice());
                    first[..shortest.unwrap()].to_vec()
                }
            };
            let (bytes, records) = encode(level, &chunk);
            above.push(Entry::Child(separator, ChunkId::hash_of(&bytes), records));
            last = Some(key);
            chunk.clear();
        }
    }
    above
}

fn ends(level: u8, chunk: &[Entry], before: usize, key: &[u8]) -> bool {
    if level > 0 && chunk.len() == 1 {
        return false;
    }
    let full: usize = chunk
        .iter()
        .enumerate()
        .map(|(index, entry)| match entry {
            Entry::Record(key, value) => {
                6 + if value.body.is_some() { 32 } else { 0 } + key.len() + value.bytes.len()
            }
            Entry::Child(separator, ..) => 42 + if index > 0 { separator.len() } else { 0 },
        })
        .sum();
    let size = encode(level, chunk).0.len();
    if full >= 32_768 {
        return true;
    }
    if size < 512 {
        return false;
    }
    if size >= 16_384 {
        return true;
    }
    let d = (size as u128).pow(4).saturating_sub((before as u128).pow(4));
    let h = u128::from(hash(level, key) >> 32);
    h * (4_096_u128.pow(4) + d) < d * (1 << 32)
}

fn hash(level: u8, key: &[u8]) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product >> 64) as u64 ^ product as u64
    };
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(level) + 1);
    for part in key.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        state = fold(state ^ u64::from_le_bytes(word), 0xA076_1D64_78BD_642F)
            .wrapping_add(0xE703_7ED1_A0B4_28DB);
    }
    fold(state ^ key.len() as u64, 0x8EBC_6AF0_9C88_C6E3)
}

/// Returns the bytes of a chunk and the number of records below it.
fn encode(level: u8, chunk: &[Entry]) -> (Vec<u8>, u64) {
    let u16 = |number: usize| u16::try_from(number).unwrap().to_le_bytes();
    let keys: Vec<&[u8]> = chunk.iter().map(Entry::key).collect();
    // The first separator of an interior chunk is kept by its parent.
    let keys = if level > 0 { &keys[1..] } else { &keys[..] };
    let prefix = match (keys.first(), keys.last()) {
        (Some(first), Some(last)) => {
            let same = first.iter().zip(last.iter());
            same.take_while(|(a, b)| a == b).count()
        }
        _ => 0,
    };
    let mut refs = Vec::new();
    let (mut bodies, mut counts, mut values, mut value_ends) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut records = 0;
    for entry in chunk {
        match entry {
            Entry::Record(_, value) => {
                refs.extend(value.body);
                let number = if value.body.is_some() { refs.len() } else { 0 };
                bodies.extend(u16(number));
                values.extend_from_slice(&value.bytes);
                value_ends.extend(u16(values.len()));
                records += 1;
            }
            Entry::Child(_, id, count) => {
                refs.push(*id);
                counts.extend(count.to_le_bytes());
                records += count;
            }
        }
    }
    let suffixes: Vec<&[u8]> = keys.iter().map(|key| &key[prefix..]).collect();
    let mut end = 0;
    let ends: Vec<u8> = suffixes
        .iter()
        .flat_map(|suffix| {
            end += suffix.len();
            u16(end)
        })
        .collect();
    let mut bytes = vec![if level == 0 { 1 } else { 2 }, 1];
    bytes.extend(u16(refs.len()));
    bytes.extend(u16(0));
    for id in &refs {
        bytes.extend_from_slice(id.as_bytes());
    }
    bytes.extend([level, 0]);
    bytes.extend(u16(chunk.len()));
    bytes.extend(u16(prefix));
    bytes.extend_from_slice(keys.first().map_or(&[][..], |key| &key[..prefix]));
    bytes.extend(ends);
    bytes.extend(value_ends);
    if level == 0 && !refs.is_empty() {
        bytes.extend(bodies);
    }
    bytes.extend(counts);
    bytes.extend(suffixes.concat());
    bytes.extend(values);
    (bytes, records)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_document_and_the_code_agree(model in model()) {
        let store = LocalStore::open_in_memory().unwrap();
        prop_assert_eq!(build(&store, &model).root(), root(&model));
    }
}

#[test]
fn three_levels_agree() {
    let model: Model = crate::tree::site(12_000).collect();
    let store = LocalStore::open_in_memory().unwrap();
    assert_eq!(build(&store, &model).root(), root(&model));
}
