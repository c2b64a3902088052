//! What a check says: where, whom it affects, in refs, leases and revisions; and what opening says of files.

use std::sync::{Arc, LazyLock};

use tympan_store::disk::{Disk, MemoryDisk};
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, LocalStoreOptions,
    MapValue, RootOrigin, SortedMap, StoreCheckReport, StoreRoot, body, check_store,
};

use crate::map_model::{Numbers, moves};
use crate::site::{Files, Site, disk, options, site};

static SITE: LazyLock<Site> = LazyLock::new(site);

fn open(files: &Files) -> LocalStore {
    LocalStore::open(Arc::new(disk(files)), options(ByteSize::from_kib(24))).unwrap()
}

/// Finds the record of a chunk or blob and flips a bit of its payload.
fn harm_record(files: &mut Files, id: &[u8; 32]) {
    const ID_AT: usize = 20;
    const HEADER: usize = 52;
    for (name, content) in files.iter_mut().filter(|(name, _)| !name.ends_with(".index")) {
        let found = content.windows(32).position(|bytes| bytes == id);
        let Some(start) = found.and_then(|at| at.checked_sub(ID_AT)) else { continue };
        if content[start..].starts_with(b"TYMr") && matches!(content[start + 4], 2 | 3) {
            content[start + HEADER + 3] ^= 4;
            return;
        }
        panic!("`{name}` holds the id first outside of its record");
    }
    panic!("no record");
}

fn affected(report: &StoreCheckReport) -> Vec<String> {
    report.damaged_locations.iter().map(ToString::to_string).collect()
}

#[test]
fn a_body_affects_the_refs_that_share_it_and_a_number_of_revisions() {
    // Pages that the first save wrote and nobody has touched since are in every revision.
    let (_, _, first) = &SITE.revisions[&0];
    let newest =
        |ref_name: &str| SITE.revisions.values().rev().find(|(name, ..)| name == ref_name).unwrap();
    let shared = first.iter().find(|(key, page)| {
        ["main", "draft"].iter().all(|name| newest(name).2.get(*key) == Some(page))
    });
    let (key, _) = shared.expect("some page is as old as the site");
    let store = open(&SITE.files);
    let root = StoreRoot::read(&store, &newest("main").1).unwrap();
    let value = root.map("content").get(&store, key).unwrap().unwrap();
    drop(store);
    let mut files = SITE.files.clone();
    harm_record(&mut files, value.body.unwrap().as_bytes());
    let report = check_store(&open(&files)).unwrap();
    let places: Vec<(&RootOrigin, &[u8])> =
        report.damaged_locations.iter().map(|one| (&one.origin, one.key.as_slice())).collect();
    let key = key.as_slice();
    let expected = [
        (&RootOrigin::Ref("draft".to_owned()), key),
        (&RootOrigin::Ref("main".to_owned()), key),
        (&RootOrigin::Lease("backup".to_owned()), key),
    ];
    assert_eq!(places, expected);
    let of = |name: &str| SITE.revisions.values().filter(|(other, ..)| other == name).count();
    let counted = [("draft", of("draft")), ("main", of("main"))];
    let counted = counted.map(|(name, count)| (name.to_owned(), count as u64));
    assert_eq!(report.damaged_revisions, counted.into_iter().collect());
    assert_eq!(report.faults.len(), 2, "the place, and that the index names it: {report:#?}");
}

#[test]
fn what_only_old_revisions_have_is_named_with_the_newest_of_them() {
    let (old, newest) = (&SITE.revisions[&0], SITE.revisions.values().next_back().unwrap());
    let mut files = SITE.files.clone();
    assert_ne!(old.1, newest.1);
    harm_record(&mut files, old.1.as_bytes());
    let report = check_store(&open(&files)).unwrap();
    let origins: Vec<&RootOrigin> =
        report.damaged_locations.iter().map(|one| &one.origin).collect();
    assert_eq!(origins, [&RootOrigin::Revision { name: "main".to_owned(), sequence: 0 }]);
    assert_eq!(report.damaged_revisions, [("main".to_owned(), 1)].into_iter().collect());
}

#[test]
fn a_small_blob_is_named_and_its_page_stays() {
    let mut files = SITE.files.clone();
    let icon = (0..20).map(|n| BlobId::hash_of(format!("icon {n}").as_bytes()));
    let store = open(&files);
    let icon = icon.into_iter().find(|icon| store.contains_blob(icon).unwrap()).unwrap();
    drop(store);
    harm_record(&mut files, icon.digest());
    let report = check_store(&open(&files)).unwrap();
    assert_eq!(report.damaged_blobs, [icon].into_iter().collect());
    assert!(affected(&report)[0].contains("blob"), "{report:#?}");
    assert!(report.damaged_revisions.is_empty());
}

#[test]
fn everything_is_walked_and_counted() {
    let report = check_store(&open(&SITE.files)).unwrap();
    assert!(report.is_clean(), "{report:#?}");
    assert_eq!((report.ref_count, report.lease_count), (2, 1));
    assert_eq!(report.revision_count, SITE.revisions.len() as u64);
    assert!(SITE.files.keys().any(|name| name.starts_with("live")), "some packs were collected");
    assert!(report.reachable_chunks > 0 && report.reachable_chunks <= report.chunk_count);
}

/// A store whose open pack is covered by an index file, closed. Returns its files and the last commit's root.
fn covered() -> (Files, ChunkId) {
    let target = MemoryDisk::new();
    let store = LocalStore::open(Arc::new(target.clone()), LocalStoreOptions::default()).unwrap();
    let mut numbers = Numbers(5);
    let mut root = None;
    for save in 0..3 {
        let mut batch = ChunkBatch::new();
        let mut records = Vec::new();
        for page in 0..60 {
            let noise: Vec<u8> = (0..9_000).map(|_| numbers.below(256) as u8).collect();
            let body = Some(body::write_body(&mut batch, &noise, &[]).unwrap());
            let bytes = format!("{save}").into_bytes().into();
            records.push((format!("page-{page:03}").into_bytes(), MapValue { bytes, body }));
        }
        let map = SortedMap::build(&mut batch, records.into_iter()).unwrap();
        let next =
            StoreRoot { maps: [("content".to_owned(), map)].into() }.write(&mut batch).unwrap();
        batch.add_ref_update(moves("main", root, Some(next)));
        store.commit(batch).unwrap();
        root = Some(next);
    }
    store.close().unwrap();
    drop(store);
    let files = crate::site::files(&target);
    assert!(files.contains_key("pack-000001.index"));
    (files, root.unwrap())
}

#[test]
fn a_pack_that_was_cut_off_does_not_take_refs_back() {
    let (mut files, root) = covered();
    let length = files["pack-000001"].len();
    for keep in [length * 2 / 3, length / 3, 30, 0] {
        files.get_mut("pack-000001").unwrap().truncate(keep);
        let target = disk(&files);
        let open = || LocalStore::open(Arc::new(target.clone()), LocalStoreOptions::default());
        for _ in 0..2 {
            let store = match open() {
                Ok(store) => store,
                Err(Error::FileMalformed { .. }) => continue,
                Err(other) => panic!("{other}"),
            };
            assert_eq!(store.read_ref("main").unwrap(), Some(root), "cut to {keep}");
            let report = check_store(&store).unwrap();
            assert!(!report.is_clean() && !report.damaged_locations.is_empty(), "cut to {keep}");
            // What is written then lies behind the loss, and hides nothing.
            let mut batch = ChunkBatch::new();
            let note = body::write_body(&mut batch, format!("{keep}").as_bytes(), &[]).unwrap();
            let old = store.read_ref("note").unwrap();
            batch.add_ref_update(moves("note", old, Some(note)));
            store.commit(batch).unwrap();
        }
    }
}

#[test]
fn a_pack_that_is_gone_does_not_take_refs_back() {
    let mut names: Vec<&String> = SITE.files.keys().collect();
    names.retain(|name| name.starts_with("pack") && !name.ends_with(".index"));
    // The last one that has an index file: no pack behind it tells of its refs.
    let last = names.pop().unwrap();
    let before = names.pop().unwrap();
    let mut files = SITE.files.clone();
    files.remove(last);
    files.remove(before);
    let store = open(&files);
    let known = SITE.files.contains_key(&format!("{before}.index"));
    assert!(known, "a pack that is full has an index file");
    let report = check_store(&store).unwrap();
    assert!(report.faults.iter().any(|fault| fault.contains(before.as_str())), "{report:#?}");
    assert!(
        report.faults.iter().any(|fault| fault.contains("is missing, but its index file exists")),
        "{report:#?}"
    );
    let root = store.read_ref("main").unwrap().unwrap();
    let (number, _) =
        SITE.revisions.iter().find(|(_, (_, other, _))| *other == root).expect("a state that was");
    let earlier =
        LocalStore::open(Arc::new(disk(&files)), options(ByteSize::from_kib(24))).unwrap();
    assert_eq!(earlier.read_ref("main").unwrap(), Some(root));
    assert!(*number > 0);
}

#[test]
fn files_that_were_in_use_are_never_removed() {
    let garbage = vec![7_u8; 5_000];
    // The only pack: the store says so and does not begin anew.
    let target = MemoryDisk::new();
    target.put_file("pack-000001", garbage.clone());
    let opened = LocalStore::open(Arc::new(target.clone()), LocalStoreOptions::default());
    let message = opened.err().unwrap().to_string();
    assert!(message.contains("pack-000001") && message.contains("backup"), "{message}");
    assert_eq!(target.file_content("pack-000001"), Some(garbage.clone()));
    // The last of several: it goes aside.
    let mut files = SITE.files.clone();
    let last = files.keys().rfind(|name| name.starts_with("pack")).unwrap();
    let last = last.trim_end_matches(".index").to_owned();
    files.insert(last.clone(), garbage.clone());
    let target = disk(&files);
    let store =
        LocalStore::open(Arc::new(target.clone()), options(ByteSize::from_kib(24))).unwrap();
    assert_eq!(target.file_content(&format!("damaged/{last}")), Some(garbage));
    assert!(!check_store(&store).unwrap().is_clean());
}

#[test]
fn a_write_that_was_cut_off_is_mentioned() {
    let mut files = SITE.files.clone();
    let last = files.keys().rfind(|name| name.starts_with("pack")).unwrap().clone();
    let last = last.trim_end_matches(".index").to_owned();
    files.get_mut(&last).unwrap().extend_from_slice(b"TYMr and so on");
    let target = disk(&files);
    let store =
        LocalStore::open(Arc::new(target.clone()), options(ByteSize::from_kib(24))).unwrap();
    let report = check_store(&store).unwrap();
    assert!(report.is_clean());
    assert!(
        report.recovery_notes[0].contains("14 bytes") && report.recovery_notes[0].contains(&last),
        "{report:#?}"
    );
    assert_eq!(target.list_folder("").unwrap().len(), SITE.files.len());
}
