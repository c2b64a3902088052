//! Damage of every kind at random places, then check, repair, check: what is left, what is restored, what is said.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use tympan_store::disk::{Disk, MemoryDisk};
use tympan_store::{
    ByteSize, ChunkBatch, ChunkStore, Error, LocalStore, RepairedPartOutcome, StoreCheckReport,
    StoreRepairReport, body, inspect_store, plan_repair, repair_store,
};

use crate::map_model::moves;
use crate::site::{Files, Pages, Site, Titles, differences, disk, files, options, pages, site};

static SITE: LazyLock<Site> = LazyLock::new(site);
const LIMIT: ByteSize = ByteSize::from_kib(24);

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(90_000)
}

fn open(disk: &MemoryDisk) -> tympan_store::Result<LocalStore> {
    LocalStore::open(Arc::new(disk.clone()), options(LIMIT))
}

/// One kind of damage to one file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip(usize),
    Zero(usize, usize),
    Truncate(usize),
    Remove,
}

fn harm(files: &mut Files, name: &str, damage: Damage) {
    let content = files.get_mut(name).unwrap();
    let length = content.len().max(1);
    match damage {
        Damage::Flip(at) if !content.is_empty() => content[at % length] ^= 1 << (at % 8),
        Damage::Zero(at, bytes) => {
            let at = at % length;
            let end = (at + bytes).min(content.len());
            content[at..end].fill(0);
        }
        Damage::Truncate(at) => content.truncate(at % length),
        Damage::Flip(_) => {}
        Damage::Remove => drop(files.remove(name)),
    }
}

/// Says what a ref must hold after a repair, by what the repair says about it.
fn expected(site: &Site, name: &str, base: &Pages, repaired: &StoreRepairReport) -> Pages {
    let parts = || repaired.parts.iter().filter(|part| part.ref_name == name);
    // Without its root, everything comes from older revisions.
    let has_root = parts().all(|part| !part.map.is_empty());
    let mut pages = if has_root { base.clone() } else { Pages::new() };
    for part in parts().filter(|part| part.map == "content") {
        match &part.outcome {
            RepairedPartOutcome::Span { to, .. } => {
                pages.retain(|key, _| *key < part.key || to.as_ref().is_some_and(|to| key >= to))
            }
            RepairedPartOutcome::Lost => drop(pages.remove(&part.key)),
            RepairedPartOutcome::Restored { sequence } => {
                let (_, _, older) = &site.revisions[sequence];
                pages.insert(part.key.clone(), older[&part.key].clone());
            }
        }
    }
    pages
}

/// Damages a copy of the site, repairs it, and compares everything with what was acknowledged.
fn check_repair(damages: &[(String, Damage)]) -> Option<(StoreCheckReport, StoreRepairReport)> {
    let site = &*SITE;
    let mut damaged = site.files.clone();
    for (name, damage) in damages {
        if damaged.contains_key(name) {
            harm(&mut damaged, name, *damage);
        }
    }
    let target = disk(&damaged);
    let store = match open(&target) {
        Ok(store) => store,
        // Refused and named: nothing was touched.
        Err(Error::FileMalformed { .. }) => {
            assert!(damages.iter().any(|(name, _)| !name.ends_with(".index")), "{damages:?}");
            return None;
        }
        Err(other) => panic!("{damages:?}: {other}"),
    };
    let found = inspect_store(&store, now()).unwrap();
    let report = found.report.clone();
    let is_said = !report.is_clean() || !report.recovery_notes.is_empty();
    assert!(is_said || files(&target) == site.files || only_indexes(damages), "{damages:?}");
    let planned = plan_repair(&store, &found, &Titles(&store)).unwrap();
    let before = store.list_refs().unwrap();
    let repaired = repair_store(&store, &found, &Titles(&store), now()).unwrap();
    assert_eq!(planned.parts, repaired.parts, "the plan says what is done: {damages:?}");
    assert_eq!(
        (planned.restored_records, planned.lost_records),
        (repaired.restored_records, repaired.lost_records)
    );
    assert_eq!(planned.refs.len(), repaired.refs.len());
    assert_eq!(repaired.unlisted_count, 0);
    assert_eq!(store.write_failure(), None, "{damages:?}");
    drop(store);
    let store = open(&target).unwrap();
    let after = inspect_store(&store, now()).unwrap().report;
    let hopeless = repaired.refs.iter().any(|one| !one.is_restorable);
    assert!(
        after.is_clean() || hopeless,
        "{damages:?}: {after:#?}\nwas {report:#?}\n{repaired:#?}"
    );
    for (sequence, (name, root, _)) in &site.revisions {
        let is_newest = site.revisions.range(sequence + 1..).all(|(_, (other, ..))| other != name);
        if is_newest {
            let reached = before.iter().find(|(other, _)| other == name).map(|(_, root)| *root);
            assert!(reached == Some(*root) || is_said, "`{name}` went back silently: {damages:?}");
        }
    }
    for (name, was) in before {
        let Some(root) = store.read_ref(&name).unwrap() else { panic!("`{name}` vanished") };
        let Some((.., base)) = site.revisions.values().find(|(_, root, _)| *root == was) else {
            panic!("`{name}` stands at a state that never was");
        };
        let mended = repaired.refs.iter().find(|one| one.name == name);
        if mended.is_none() {
            assert_eq!(root, was, "{damages:?}");
        }
        if mended.is_none_or(|one| one.is_restorable) {
            let pages = pages(&store, &root).unwrap();
            let expected = expected(site, &name, base, &repaired);
            let differences = differences(&pages, &expected);
            assert!(
                differences.is_empty(),
                "`{name}`, {damages:?}: {differences:#?} {repaired:#?}"
            );
        }
    }
    check_leases(&store, &repaired, is_said);
    check_history(&store, &repaired);
    // It takes commits, and collections unless there is a ref that nothing could be done for.
    let mut batch = ChunkBatch::new();
    let note = body::write_body(&mut batch, b"a note", &[]).unwrap();
    batch.add_ref_update(moves("after", None, Some(note)));
    store.commit(batch).unwrap();
    if !hopeless {
        let options = tympan_store::GarbageCollectionOptions::at_time(now());
        store.collect_garbage(&options, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert!(inspect_store(&store, now()).unwrap().report.is_clean());
    }
    Some((report, repaired))
}

/// The lease is there, or was released and named.
fn check_leases(store: &LocalStore, repaired: &StoreRepairReport, is_said: bool) {
    let leases = store.list_leases().unwrap();
    assert!(repaired.released_leases.len() + leases.len() == 1 || is_said);
    for lease in leases {
        assert_eq!(lease.root, SITE.leased);
        assert!(pages(store, &lease.root).is_ok());
    }
}

/// Index files that are gone or cut short are made again by opening, whatever else was done to them.
fn only_indexes(damages: &[(String, Damage)]) -> bool {
    damages.iter().all(|(name, _)| {
        let is_shorter = |one: &(String, Damage)| {
            one.0 == *name && matches!(one.1, Damage::Remove | Damage::Truncate(_))
        };
        name.ends_with(".index") && damages.iter().any(is_shorter)
    })
}

/// Every revision that is kept can be read; those that are as they were, byte for byte.
fn check_history(store: &LocalStore, repaired: &StoreRepairReport) {
    let hopeless =
        |name: &str| repaired.refs.iter().any(|one| one.name == name && !one.is_restorable);
    for name in ["main", "draft"] {
        for one in store.ref_history(name, None, usize::MAX).unwrap() {
            let Some(root) = one.update.new_root.filter(|_| !hopeless(name)) else { continue };
            let found = pages(store, &root).unwrap();
            if one.update.author == "repair" || one.update.message.contains("repaired") {
                continue;
            }
            let (_, _, pages) = &SITE.revisions[&one.sequence];
            let differences = differences(&found, pages);
            assert!(differences.is_empty(), "revision {}: {differences:#?}", one.sequence);
        }
    }
}

/// How many random damages are tried; more with `PROPTEST_CASES`.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        6 => any::<usize>().prop_map(Damage::Flip),
        4 => (any::<usize>(), 1..3_000_usize).prop_map(|(at, bytes)| Damage::Zero(at, bytes)),
        2 => any::<usize>().prop_map(Damage::Truncate),
        1 => Just(Damage::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn random_damage(damages in proptest::collection::vec((any::<prop::sample::Index>(), damage()), 1..4)) {
        let names: Vec<&String> = SITE.files.keys().collect();
        let damages: Vec<(String, Damage)> =
            damages.iter().map(|(name, damage)| ((*name.get(&names)).clone(), *damage)).collect();
        check_repair(&damages);
    }
}

#[test]
fn what_is_left_of_a_pack_that_was_cut_off_counts_as_readable() {
    for (name, content) in SITE.files.iter().filter(|(name, _)| !name.ends_with(".index")) {
        // A record of 165 bytes ends the pack, so that one of these cuts between two records.
        let last = (1..200).step_by(41).map(|missing| content.len() - missing);
        for length in last.chain((0..content.len()).step_by(5_003)) {
            check_repair(&[(name.clone(), Damage::Truncate(length))]);
        }
    }
}

#[test]
fn an_index_that_is_damaged_and_then_removed_is_made_again() {
    let indexes = SITE.files.keys().filter(|name| name.ends_with(".index"));
    for name in indexes {
        for last in [Damage::Remove, Damage::Truncate(9_000)] {
            check_repair(&[(name.clone(), Damage::Flip(516_020)), (name.clone(), last)]);
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_repaired() {
    let (mut restored, mut lost, mut rewritten) = (0, 0, 0);
    for (name, content) in &SITE.files {
        let step = if name.ends_with(".index") { 701 } else { 2_903 };
        for at in (0..content.len()).step_by(step) {
            let Some((_, repaired)) = check_repair(&[(name.clone(), Damage::Flip(at))]) else {
                panic!("`{name}` byte {at}: a single bit keeps the store from opening");
            };
            restored += repaired.restored_records;
            lost += repaired.lost_records;
            rewritten += repaired.revisions.len();
        }
    }
    assert!(restored > 0 && lost > 0 && rewritten > 0, "{restored} {lost} {rewritten}");
}

#[test]
fn the_last_pack_is_gone_and_the_index_before_it_damaged() {
    let mut packs: Vec<&String> = SITE.files.keys().collect();
    packs.retain(|name| name.starts_with("pack") && !name.ends_with(".index"));
    let [.., before, last] = packs.as_slice() else { panic!("a site has several packs") };
    for at in [45, 200, 600] {
        let index = format!("{before}.index");
        let (report, _) =
            check_repair(&[((*last).clone(), Damage::Remove), (index, Damage::Flip(at))]).unwrap();
        assert!(report.faults.iter().any(|fault| fault.contains("`, is missing")), "{report:#?}");
    }
}

#[test]
fn nothing_is_done_to_a_store_that_is_whole() {
    let target = disk(&SITE.files);
    let store = open(&target).unwrap();
    let found = inspect_store(&store, now()).unwrap();
    assert!(found.report.is_clean(), "{:#?}", found.report);
    assert!(plan_repair(&store, &found, &Titles(&store)).unwrap().is_empty());
    assert!(repair_store(&store, &found, &Titles(&store), now()).unwrap().is_empty());
    drop(store);
    assert_eq!(files(&target), SITE.files);
}

#[test]
fn a_damaged_pack_is_set_aside_as_it_is() {
    let name = SITE.files.keys().find(|name| name.starts_with("live")).unwrap();
    let mut damaged = SITE.files.clone();
    harm(&mut damaged, name, Damage::Zero(3_000, 900));
    let target = disk(&damaged);
    let store = open(&target).unwrap();
    let found = inspect_store(&store, now()).unwrap();
    let repaired = repair_store(&store, &found, &Titles(&store), now()).unwrap();
    let aside = format!("damaged/{name}");
    assert!(repaired.quarantined_files.contains(&aside), "{repaired:#?}");
    assert!(repaired.moved_records > 0);
    assert_eq!(target.file_content(&aside).as_ref(), damaged.get(name));
    assert!(target.file_content(name).is_none());
}

#[test]
fn a_repair_that_is_cut_off_can_be_run_again() {
    use tympan_testkit::crash_disk::{CrashDisk, UnsyncedWrites};
    let name = SITE.files.keys().find(|name| name.starts_with("live")).unwrap();
    let mut damaged = SITE.files.clone();
    harm(&mut damaged, name, Damage::Zero(3_000, 900));
    let crash = CrashDisk::new();
    for (name, content) in &damaged {
        let file = crash.create_file(name).unwrap();
        file.append(content).unwrap();
        file.sync().unwrap();
    }
    crash.sync_folder("").unwrap();
    let first = crash.call_count();
    let store = LocalStore::open(Arc::new(crash.clone()), options(LIMIT)).unwrap();
    let found = inspect_store(&store, now()).unwrap();
    repair_store(&store, &found, &Titles(&store), now()).unwrap();
    drop(store);
    for calls in first..=crash.call_count() {
        for unsynced in [UnsyncedWrites::Lost, UnsyncedWrites::Persisted] {
            let target = crash.crash(calls, unsynced);
            let store = open(&target).unwrap();
            let found = inspect_store(&store, now()).unwrap();
            repair_store(&store, &found, &Titles(&store), now()).unwrap();
            drop(store);
            let store = open(&target).unwrap();
            let report = inspect_store(&store, now()).unwrap().report;
            assert!(report.is_clean(), "cut after call {calls}, {unsynced:?}: {report:#?}");
            for name in ["main", "draft"] {
                pages(&store, &store.read_ref(name).unwrap().unwrap()).unwrap();
            }
        }
    }
}

#[test]
fn leases_of_clients_are_judged_by_time_and_end_with_their_file() {
    use tympan_store::{BaseStore, ReadOnlyLocalStore, RootLease, SortedMap, StoreRoot};
    let target = disk(&SITE.files);
    let store = open(&target).unwrap();
    // A state of which only the root has been left by a collection.
    let mut whole = ChunkBatch::new();
    let records = [(b"page".to_vec(), crate::map_model::value("page"))];
    let map = SortedMap::build(&mut whole, records.into_iter()).unwrap();
    let maps = [("content".to_owned(), map)].into();
    let root = StoreRoot { maps }.write(&mut whole).unwrap();
    let mut rest = ChunkBatch::new();
    rest.add_chunk(whole.chunk(&root).unwrap().clone());
    store.commit(rest).unwrap();
    let client = ReadOnlyLocalStore::open(Arc::new(target.clone()), options(LIMIT)).unwrap();
    let holder = "a clone that is gone".to_owned();
    let expires = Some(now() + Duration::from_secs(10));
    client.grant_lease(&RootLease { holder: holder.clone(), root, expires_at: expires }).unwrap();
    let later = now() + Duration::from_secs(10);
    let found = inspect_store(&store, later).unwrap();
    assert!(found.report.is_clean(), "an expired lease keeps nothing: {:?}", found.report);
    assert!(found.report.recovery_notes.iter().any(|note| note.contains(&holder)));
    let found = inspect_store(&store, now()).unwrap();
    assert!(!found.report.is_clean(), "a live one keeps what is not there");
    let repaired = repair_store(&store, &found, &Titles(&store), now()).unwrap();
    assert_eq!(repaired.released_leases.len(), 1);
    assert_eq!(client.find_lease(&holder).unwrap(), None);
    assert!(inspect_store(&store, now()).unwrap().report.is_clean());
}
