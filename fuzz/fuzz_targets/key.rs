//! Keys of records: what parses is the key of its path, and lies in the ranges of its ancestors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tympan_store::key;

fuzz_target!(|data: &[u8]| {
    let Ok(components) = key::parse_key(data) else { return };
    assert_eq!(key::record_key(&components).expect("it was parsed"), data);
    let Some((_, parents)) = components.split_last() else { return };
    assert!(key::children_range(parents).expect("it was parsed").contains_key(data));
    for length in 0..components.len() {
        let ancestor = components.get(..length).unwrap_or_default();
        assert!(key::subtree_range(ancestor).expect("it was parsed").contains_key(data));
    }
});
