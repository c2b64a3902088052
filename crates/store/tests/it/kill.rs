//! Kills: a process that commits from several threads while it collects garbage dies at points that a seed chooses.
//!
//! The process is this test program, started again for one of its tests. It says on its output what was
//! acknowledged. After each kill a copy of what it left is opened and compared with a model, and the next process
//! goes on with the original. `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tympan_store::disk::FileDisk;
use tympan_store::{
    BlobId, ByteSize, ChunkBatch, ChunkId, ChunkStore, Error, GarbageCollectionOptions, LocalStore,
    LocalStoreOptions, RecordCompression, RefCommitter, RefUpdate, Result, RevisionRetention,
    RootLease, SortedMap, StoreRoot, body, check_store,
};

use crate::map_model::{Edits, Model, Numbers, value};

/// Names the folder to a process that is to be killed.
const FOLDER: &str = "TYMPAN_KILL_FOLDER";
/// Gives it its seed.
const SEED: &str = "TYMPAN_KILL_SEED";
/// Threads that commit.
const WRITERS: usize = 6;
/// Pages that each of them writes over and over.
const SLOTS: u64 = 32;
/// The lease that each process grants at its start.
const HOLDER: &str = "backup";

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    let kills: u64 =
        std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let mut numbers = Numbers(0x5eed);
    // Of each thread: what is known to be durable.
    let mut known = [0; WRITERS];
    let mut totals =
        ["acknowledged", "collected", "opened"].map(|word| (word.to_owned(), 0)).into();
    let totals: &mut BTreeMap<String, u64> = &mut totals;
    for kill in 0..kills {
        let said = run_and_kill(&home, kill, &mut numbers);
        for line in &said {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["acknowledged", thread, count] = words.as_slice() {
                let thread: usize = thread.parse().unwrap();
                known[thread] = known[thread].max(count.parse().unwrap());
            }
            if let Some(total) = totals.get_mut(words[0]) {
                *total += 1;
            }
        }
        if !home.is_dir() {
            continue;
        }
        // A copy, so that the next process meets what the kill left and not what this check tidied up.
        let copy = dir.path().join("copy");
        copy_files(&home, &copy);
        known = check_left(&copy, &known, &format!("kill {kill}"));
        std::fs::remove_dir_all(&copy).unwrap();
    }
    let files = std::fs::read_dir(&home).unwrap().flatten();
    let names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    eprintln!(
        "{kills} kills, {} of them after the store was open: {} acknowledged commits, none lost; {} collections came \
         to their end; newest pack {}; no store damaged",
        totals["opened"],
        totals["acknowledged"],
        totals["collected"],
        names.iter().filter(|name| name.starts_with("pack-")).max().unwrap(),
    );
    assert!(totals["opened"] > 0, "no process came as far as opening the store");
    assert!(known.iter().sum::<u64>() > 0, "nothing was committed");
}

/// Starts a process, kills it somewhere, and returns what it said.
fn run_and_kill(home: &Path, seed: u64, numbers: &mut Numbers) -> Vec<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::the_process_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(FOLDER, home)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines =
        BufReader::new(child.stdout.take().unwrap()).lines().map_while(|line| line.ok());
    let mut said = Vec::new();
    // One in eight dies while it starts, the others after some commits; some live long enough for collections to end.
    if numbers.below(8) > 0 {
        let last = numbers.below(150) * (1 + numbers.below(4) * numbers.below(2));
        let is_enough = |line: &String| line.starts_with("acknowledged");
        let mut count = 0;
        while count < last {
            let Some(line) = lines.next() else { break };
            count += u64::from(is_enough(&line));
            said.push(line);
        }
    }
    spin(Duration::from_micros(numbers.below(12_000)));
    kill(&mut child);
    said.extend(lines);
    said
}

/// Passes a time that is too short to sleep.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn kill(child: &mut Child) {
    assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Opens what a kill left and compares it with the model. Returns how far each thread came.
fn check_left(folder: &Path, known: &[u64; WRITERS], at: &str) -> [u64; WRITERS] {
    let store = open(folder, ByteSize::from_mib(1)).unwrap_or_else(|error| panic!("{at}: {error}"));
    let report = check_store(&store).unwrap();
    assert!(report.is_clean(), "{at}: {report:?}");
    assert!(report.external_blobs.is_empty(), "{at}: {report:?}");
    let Some(root) = store.read_ref("main").unwrap() else {
        assert_eq!(known, &[0; WRITERS], "{at}: `main` is gone");
        return *known;
    };
    let stored = records(&store, root);
    let mut counts = *known;
    for (thread, count) in counts.iter_mut().enumerate() {
        let stored = stored.get(&count_key(thread)).map_or(0, |count| number(&count.bytes));
        // The commit under way may have come through.
        assert!(
            (*count..=*count + 1).contains(&stored),
            "{at}: thread {thread} was told of commit {count}, and {stored} is stored"
        );
        *count = stored;
    }
    assert_eq!(
        stored.get(&b"total"[..]).map(|total| number(&total.bytes)),
        Some(counts.iter().sum())
    );
    assert_pages(&store, &stored, &counts, at);
    assert_kept(&store, at);
    counts
}

/// Compares all pages with what the counts say they are.
fn assert_pages(store: &LocalStore, stored: &Model, counts: &[u64; WRITERS], at: &str) {
    let mut expected = 0;
    for (thread, count) in counts.iter().enumerate() {
        for n in (count.saturating_sub(SLOTS - 1)).max(1)..=*count {
            let page = stored.get(&page_key(thread, n));
            let Some(text) = text_of(thread, n) else {
                assert_eq!(page, None, "{at}: thread {thread}, commit {n} deleted a page");
                continue;
            };
            expected += 1;
            let page = page.unwrap_or_else(|| panic!("{at}: thread {thread}, commit {n} is gone"));
            assert_eq!(number(&page.bytes), n, "{at}: thread {thread}");
            let body = body::read_body(store, &page.body.unwrap()).unwrap();
            assert!(*body.payload == text, "{at}: thread {thread}, commit {n}: another text");
            let blob = store.read_blob(&BlobId::hash_of(&text)).unwrap();
            assert!(
                blob.is_some_and(|blob| *blob == text),
                "{at}: thread {thread}, commit {n}: no blob"
            );
        }
    }
    assert_eq!(
        stored.len(),
        expected + 1 + counts.iter().filter(|count| **count > 0).count(),
        "{at}"
    );
}

/// Reads the newest revisions and what is leased.
fn assert_kept(store: &LocalStore, at: &str) {
    let revisions = store.ref_history("main", None, 20).unwrap();
    assert!(!revisions.is_empty(), "{at}: no history");
    let roots = revisions.iter().filter_map(|revision| revision.update.new_root);
    for root in roots.chain(store.list_leases().unwrap().iter().map(|lease| lease.root)) {
        let records = records(store, root);
        for body in records.values().filter_map(|record| record.body) {
            body::read_body(store, &body).unwrap_or_else(|error| panic!("{at}: {error}"));
        }
    }
}

fn records(store: &LocalStore, root: ChunkId) -> Model {
    let map = StoreRoot::read(store, &root).unwrap().map("content");
    let all = map.range(store, (Bound::Unbounded, Bound::Unbounded));
    all.map(|record| record.map(|(key, value)| (key.to_vec(), value)))
        .collect::<Result<_>>()
        .unwrap()
}

/// No test of its own: what `a_killed_process_loses_nothing_acknowledged` starts, to kill it.
#[test]
fn the_process_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    // Small packs, so that they fill and are collected all the time.
    let limit = ByteSize::from_kib(64 << (seed % 5));
    let store = Arc::new(open(Path::new(&folder), limit).unwrap());
    say("opened");
    let committer = RefCommitter::new(store.clone(), "main");
    let commits = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..WRITERS {
            let (store, committer, commits) = (store.as_ref(), &committer, &commits);
            scope.spawn(move || write_forever(store, committer, thread, (seed, commits)));
        }
    });
}

/// Commits page after page; the first thread also collects garbage, the second grants a lease.
fn write_forever(
    store: &LocalStore,
    committer: &RefCommitter,
    thread: usize,
    (seed, commits): (u64, &AtomicU64),
) {
    let mut numbers = Numbers(seed ^ (thread as u64) << 32);
    let mut count = stored_count(store, thread);
    let mut is_lease_due = thread == 1;
    // Every other process begins with a collection, so that many come to their end before they are killed.
    let mut is_collection_due = thread == 0 && seed.is_multiple_of(2);
    loop {
        count += 1;
        committer.commit_change(|head| stage(committer, head, thread, count)).unwrap();
        say(&format!("acknowledged {thread} {count}"));
        commits.fetch_add(1, Ordering::Relaxed);
        if std::mem::take(&mut is_lease_due) {
            let mut batch = ChunkBatch::new();
            let root = store.read_ref("main").unwrap().unwrap();
            let _pin = store.pin_root(root);
            batch.grant_lease(RootLease { holder: HOLDER.to_owned(), root, expires_at: None });
            match store.commit(batch) {
                // The state went between the two calls, which the pin came too late for.
                Ok(()) | Err(Error::ChunkMissing { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if std::mem::take(&mut is_collection_due) {
            collect(store, &mut numbers);
        }
        is_collection_due = thread == 0 && numbers.below(12) == 0;
    }
}

fn collect(store: &LocalStore, numbers: &mut Numbers) {
    let root = store.read_ref("main").unwrap().unwrap();
    let total = total_of(store, root);
    let mut options = GarbageCollectionOptions::at_time(time_of(total));
    options.retention = RevisionRetention {
        full_period: Duration::from_mins(40),
        hourly_count: 3,
        ..RevisionRetention::KEEP_NEWEST
    };
    options.min_live_share = [0.3, 0.6, 0.9, 1.1][usize::try_from(numbers.below(4)).unwrap()];
    // One in four is broken off at some step.
    let mut steps = numbers.below(4) * 10_000 + numbers.below(40);
    let mut pace = |_: &_| {
        steps = steps.saturating_sub(1);
        if steps == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let collected = store.collect_garbage(&options, &mut pace).unwrap();
    if !collected.is_stopped {
        say("collected");
    }
}

/// Stages one save: the thread's page and count, and the total of all threads.
fn stage(
    committer: &RefCommitter,
    head: Option<ChunkId>,
    thread: usize,
    count: u64,
) -> Result<(ChunkBatch, ())> {
    let store = committer.staged_store();
    let store = store.as_ref();
    let mut batch = ChunkBatch::new();
    let map = match head {
        Some(root) => StoreRoot::read(store, &root)?.map("content"),
        None => SortedMap::EMPTY_MAP,
    };
    let total = map.get(store, b"total")?.map_or(0, |total| number(&total.bytes)) + 1;
    let mut edits = Edits::new();
    edits.insert(b"total".to_vec(), Some(value(total.to_string())));
    edits.insert(count_key(thread), Some(value(count.to_string())));
    let page = text_of(thread, count).map(|text| {
        let blob = BlobId::hash_of(&text);
        batch.add_blob(blob, text.clone().into());
        let mut page = value(count.to_string());
        page.body = Some(body::write_body(&mut batch, &text, &[blob])?);
        Ok::<_, Error>(page)
    });
    edits.insert(page_key(thread, count), page.transpose()?);
    let map = map.edit(store, &mut batch, edits)?;
    let new =
        StoreRoot { maps: BTreeMap::from([("content".to_owned(), map)]) }.write(&mut batch)?;
    batch.add_ref_update(RefUpdate {
        name: "main".to_owned(),
        expected_root: head,
        new_root: Some(new),
        updated_at: time_of(total),
        author: format!("thread {thread}"),
        message: "save".to_owned(),
    });
    Ok((batch, ()))
}

/// Returns what a commit puts on its page; `None` deletes the page. Some texts come back again and again.
fn text_of(thread: usize, count: u64) -> Option<Vec<u8>> {
    let mut numbers = Numbers(count << 8 | thread as u64);
    if numbers.below(6) == 0 {
        return None;
    }
    if numbers.below(4) == 0 {
        let often = numbers.below(5);
        return Some(format!("often {often} ").repeat(60).into_bytes());
    }
    let length = numbers.below(3_000);
    Some((0..length).map(|_| b'a' + numbers.below(26) as u8).collect())
}

/// A commit each minute.
fn time_of(total: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_mins(1_000 + total)
}

fn count_key(thread: usize) -> Vec<u8> {
    format!("count-{thread}").into_bytes()
}

fn page_key(thread: usize, count: u64) -> Vec<u8> {
    format!("page-{thread}-{:02}", count % SLOTS).into_bytes()
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn stored_count(store: &LocalStore, thread: usize) -> u64 {
    let Some(root) = store.read_ref("main").unwrap() else { return 0 };
    let map = StoreRoot::read(store, &root).unwrap().map("content");
    map.get(store, &count_key(thread)).unwrap().map_or(0, |count| number(&count.bytes))
}

fn total_of(store: &LocalStore, root: ChunkId) -> u64 {
    let _pin = store.pin_root(root);
    let map = StoreRoot::read(store, &root).unwrap().map("content");
    number(&map.get(store, b"total").unwrap().unwrap().bytes)
}

/// Writes a line to whoever counts, in one piece; ends the process if nobody does any more.
#[expect(clippy::exit, reason = "other threads of the process go on otherwise")]
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // The test runner has left its own line open.
    let written = output.write_all(format!("\n{line}\n").as_bytes());
    if written.and_then(|()| output.flush()).is_err() {
        std::process::exit(1);
    }
}

fn open(folder: &Path, pack_limit: ByteSize) -> Result<LocalStore> {
    let disk = Arc::new(FileDisk::open(folder).unwrap());
    let options = LocalStoreOptions {
        pack_limit,
        cache_size: ByteSize::from_kib(256),
        compression: RecordCompression::Lz4,
    };
    LocalStore::open(disk, options)
}
