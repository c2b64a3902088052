//! Group commit: many threads, one ref, few syncs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use tympan_store::{
    ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, LocalStore, LocalStoreOptions, RefCommitter,
    Result, SortedMap, StoreRoot,
};
use tympan_testkit::crash_disk::CrashDisk;
use tympan_testkit::watched_store::WatchedStore;

use crate::map_model::{Edits, moves, value};

/// Stages one more record on a state.
fn add(store: &dyn ChunkStore, head: Option<ChunkId>, key: &str) -> Result<(ChunkBatch, ChunkId)> {
    let mut batch = ChunkBatch::new();
    let map = match head {
        Some(root) => StoreRoot::read(store, &root)?.map("content"),
        None => SortedMap::EMPTY_MAP,
    };
    let edits = Edits::from([(key.as_bytes().to_vec(), Some(value(key)))]);
    let map = map.edit(store, &mut batch, edits)?;
    let root =
        StoreRoot { maps: BTreeMap::from([("content".to_owned(), map)]) }.write(&mut batch)?;
    batch.add_ref_update(moves("main", head, Some(root)));
    Ok((batch, root))
}

fn count(store: &dyn ChunkStore) -> u64 {
    let root = store.read_ref("main").unwrap().unwrap();
    StoreRoot::read(store, &root).unwrap().map("content").count_records(store).unwrap()
}

/// Commits a record; `staged` counts those that have been staged.
fn commit(committer: &RefCommitter, key: &str, staged: &AtomicUsize) -> Result<ChunkId> {
    let store = committer.staged_store();
    committer.commit_change(|head| {
        let added = add(store.as_ref(), head, key)?;
        staged.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Error>(added)
    })
}

#[test]
fn all_that_wait_share_one_sync() {
    const WRITERS: usize = 40;
    let disk = CrashDisk::new();
    let inner = LocalStore::open(Arc::new(disk.clone()), LocalStoreOptions::default()).unwrap();
    let (open_gate, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let store: Arc<dyn ChunkStore> = Arc::new(WatchedStore::new(Arc::new(inner), move |_| {
        gate.lock().unwrap().recv().unwrap();
        Ok(())
    }));
    let committer = RefCommitter::new(store.clone(), "main");
    let staged = AtomicUsize::new(0);
    let syncs = disk.sync_count();
    std::thread::scope(|scope| {
        let commit_as = |n: usize| {
            let (committer, staged) = (&committer, &staged);
            scope.spawn(move || commit(committer, &format!("{n}"), staged).unwrap())
        };
        let wait_for = |n: usize| {
            while staged.load(Ordering::SeqCst) < n {
                std::thread::yield_now();
            }
        };
        let mut threads = vec![commit_as(0)];
        wait_for(1);
        // The first is at the gate, or about to be; the others may come in its group or in the next.
        threads.extend((1..WRITERS).map(commit_as));
        wait_for(WRITERS);
        open_gate.send(()).unwrap();
        open_gate.send(()).unwrap();
        let roots: Vec<ChunkId> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(roots.contains(&store.read_ref("main").unwrap().unwrap()));
    });
    assert!(disk.sync_count() - syncs <= 2, "{} syncs", disk.sync_count() - syncs);
    assert_eq!(count(store.as_ref()), WRITERS as u64);
    // Each change is a revision of its own, on top of the one before.
    let history = store.ref_history("main", None, 100).unwrap();
    assert_eq!(history.len(), WRITERS);
    for pair in history.windows(2) {
        assert_eq!(pair[0].update.expected_root, pair[1].update.new_root);
    }
}

#[test]
fn a_change_that_fails_leaves_the_others_alone() {
    let store: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    let committer = RefCommitter::new(store.clone(), "main");
    let staged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..30 {
            let (committer, staged) = (&committer, &staged);
            scope.spawn(move || {
                let fails = n % 3 == 0;
                let result = committer.commit_change(|head| {
                    let (mut batch, root) =
                        add(committer.staged_store().as_ref(), head, &format!("{n}"))?;
                    staged.fetch_add(1, Ordering::SeqCst);
                    if fails && n % 2 == 0 {
                        // Refused by the store, with the whole group.
                        let mut update = moves("main", head, Some(root));
                        update.message = "m".repeat(100_000);
                        batch.add_ref_update(update);
                    } else if fails {
                        return Err(Error::CollectionRunning);
                    }
                    Ok((batch, ()))
                });
                assert_eq!(result.is_err(), fails, "{n}: {result:?}");
            });
        }
    });
    assert_eq!(count(store.as_ref()), 20);
}

#[test]
fn a_ref_that_others_move_is_followed() {
    let store: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    // As two processes on one database.
    let committers =
        [RefCommitter::new(store.clone(), "main"), RefCommitter::new(store.clone(), "main")];
    let staged = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let (committers, staged) = (&committers, &staged);
            scope.spawn(move || {
                for n in 0..25 {
                    let key = format!("{writer}-{n}");
                    commit(&committers[writer % 2], &key, staged).unwrap();
                }
            });
        }
    });
    assert_eq!(count(store.as_ref()), 200);
    assert_eq!(store.ref_history("main", None, 1_000).unwrap().len(), 200);
}

#[test]
fn a_full_disk_refuses_each_change_with_its_reason() {
    let disk = CrashDisk::new();
    let options =
        LocalStoreOptions { pack_limit: ByteSize::from_mib(1), ..LocalStoreOptions::default() };
    let store: Arc<dyn ChunkStore> =
        Arc::new(LocalStore::open(Arc::new(disk.clone()), options).unwrap());
    let committer = RefCommitter::new(store.clone(), "main");
    let staged = AtomicUsize::new(0);
    commit(&committer, "first", &staged).unwrap();
    disk.set_free_bytes(Some(100));
    let tried: Vec<ChunkId> = std::thread::scope(|scope| {
        let refused = |n: usize| {
            let (committer, staged) = (&committer, &staged);
            scope.spawn(move || {
                let mut tried = Vec::new();
                let refused = committer.commit_change(|head| {
                    let (batch, root) =
                        add(committer.staged_store().as_ref(), head, &format!("{n}"))?;
                    staged.fetch_add(1, Ordering::SeqCst);
                    tried.push(root);
                    Ok::<_, Error>((batch, ()))
                });
                assert!(matches!(refused, Err(Error::FileWrite { .. })), "{refused:?}");
                tried
            })
        };
        let threads: Vec<_> = (0..12).map(refused).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    // Nor is anything of them left in memory.
    for root in tried {
        assert!(committer.staged_store().read_chunk(&root).is_err(), "{root} was refused");
    }
    assert_eq!(count(store.as_ref()), 1);
    disk.set_free_bytes(None);
    commit(&committer, "later", &staged).unwrap();
    assert_eq!(count(store.as_ref()), 2);
}

#[test]
fn a_change_of_nothing_waits_for_what_it_saw() {
    let store: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    let committer = RefCommitter::new(store.clone(), "main");
    let staged = AtomicUsize::new(0);
    let first = commit(&committer, "first", &staged).unwrap();
    let seen = committer.commit_change(|head| Ok::<_, Error>((ChunkBatch::new(), head))).unwrap();
    assert_eq!(seen, Some(first));
    assert_eq!(store.ref_history("main", None, 10).unwrap().len(), 1);
}

#[test]
fn refused_groups_are_never_reported_as_done() {
    const WRITERS: usize = 12;
    const EACH: usize = 60;
    let inner: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    let calls = AtomicUsize::new(0);
    // Every second write is refused, so that groups fail while others gather, and many changes are tried alone.
    let store: Arc<dyn ChunkStore> = Arc::new(WatchedStore::new(inner.clone(), move |_| {
        std::thread::yield_now();
        if calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
            return Err(Error::CollectionRunning);
        }
        Ok(())
    }));
    let committer = RefCommitter::new(store, "main");
    let staged = AtomicUsize::new(0);
    let done: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (committer, staged, done) = (&committer, &staged, &done);
            scope.spawn(move || {
                for n in 0..EACH {
                    let key = format!("{writer}-{n}");
                    if commit(committer, &key, staged).is_ok() {
                        done.lock().unwrap().push(key);
                    }
                }
            });
        }
    });
    let root = inner.read_ref("main").unwrap().unwrap();
    let map = StoreRoot::read(inner.as_ref(), &root).unwrap().map("content");
    let lost: Vec<String> = done
        .into_inner()
        .unwrap()
        .into_iter()
        .filter(|key| map.get(inner.as_ref(), key.as_bytes()).unwrap().is_none())
        .collect();
    assert_eq!(lost, [""; 0], "reported as done and not there");
}

#[test]
fn a_store_that_panics_keeps_nobody_waiting() {
    let inner: Arc<dyn ChunkStore> = Arc::new(LocalStore::open_in_memory().unwrap());
    let calls = AtomicUsize::new(0);
    let store: Arc<dyn ChunkStore> = Arc::new(WatchedStore::new(inner.clone(), move |_| {
        assert!(calls.fetch_add(1, Ordering::SeqCst) > 0, "the first write panics");
        Ok(())
    }));
    let committer = RefCommitter::new(store, "main");
    let staged = AtomicUsize::new(0);
    let done = std::thread::scope(|scope| {
        let commit_as = |n: usize| {
            let (committer, staged) = (&committer, &staged);
            scope.spawn(move || commit(committer, &format!("{n}"), staged))
        };
        let threads: Vec<_> = (0..8).map(commit_as).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).filter(Result::is_ok).count()
    });
    assert_eq!(done, 7, "all but the one whose thread panicked");
    assert_eq!(count(inner.as_ref()), 7);
}
