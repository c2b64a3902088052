//! S9, opening: after a clean stop of the large tree, and after a crash that leaves a full pack open.
//!
//! The files are copied while nothing is written: as a clean stop leaves them, and as a crash does. They are in the
//! page cache. Then the pack ends, and the commit that ends it is compared with the others.

use std::path::Path;
use std::time::{Duration, Instant};

use tympan_content::{NodePath, Repository};
use tympan_store::{ChunkBatch, ChunkStore, RefUpdate, body};

use super::collect::{ROW, milliseconds};
use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::counting::{CountingStore, SyncCost};
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{NODES_PER_PAGE, Tree, page_path};

const OPENS: usize = 5;
const PACK_MIB: usize = 256;
/// Bodies that one commit stores, each of a page's size: about what a save writes.
const BODIES: usize = 3;
const BODY_BYTES: usize = 5_000;

/// Measures opening.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let stopped = context.new_folder("stopped-")?;
    let crashed = context.new_folder("crashed-")?;
    let written = context.new_folder("written-")?;
    // A little below the limit, so that the pack is open.
    let mib = if context.is_quick { PACK_MIB / 4 } else { PACK_MIB - 4 };
    let tree = context.tree()?;
    tree.full.close()?;
    let mut times = Vec::new();
    for number in 0..OPENS {
        let folder = stopped.join(number.to_string());
        copy(tree.full.folder(), &folder)?;
        times.push(open_content(&folder, tree)?);
    }
    let nodes = tree.pages * NODES_PER_PAGE;
    let clean = Figure::spread(
        ROW,
        format!("open after a clean stop, {nodes} nodes, to the first page"),
        &milliseconds(&times),
        "ms",
    );
    let store = CountingStore::open(written)?;
    let (records, times) = fill(&store, mib << 20)?;
    let mut seconds = Vec::new();
    for number in 0..OPENS {
        let folder = crashed.join(number.to_string());
        copy(store.folder(), &folder)?;
        let begin = Instant::now();
        let opened = CountingStore::open(folder)?;
        let elapsed = begin.elapsed().as_secs_f64();
        if opened.read_ref("main")? != store.read_ref("main")? {
            return Err("the opened store is another".into());
        }
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        seconds.push(elapsed * PACK_MIB as f64 / mib as f64);
    }
    let note = format!("an open pack of {mib} MiB, {records} records, in the page cache");
    let mut figures = vec![
        clean.goal(Goal::AtMost(50.0)),
        Figure::spread(
            ROW,
            "open after a crash, for 256 MiB of open pack",
            &Spread::of(seconds),
            "s",
        )
        .goal(Goal::AtMost(1.0))
        .note(note),
    ];
    if !context.is_quick {
        figures.push(roll(&store, &times)?);
    }
    Ok(figures)
}

/// Commits until the pack is full; gives the time of the longest of these commits.
fn roll(store: &CountingStore, before: &[Duration]) -> Outcome<Figure> {
    let (_, times) = fill(store, (PACK_MIB + 4) << 20)?;
    let what = format!("longest commit as a pack of {PACK_MIB} MiB ends, syncs left out");
    let longest = milliseconds(&times).high;
    let note = format!("median before: {:.2} ms", milliseconds(before).median);
    Ok(Figure::value(ROW, what, longest, "ms").note(note))
}

/// Opens a store with its content and reads a page; gives how long that took.
fn open_content(folder: &Path, tree: &Tree) -> Outcome<Duration> {
    let path = NodePath::new(&page_path(tree.pages / 2))?;
    let begin = Instant::now();
    let store = std::sync::Arc::new(CountingStore::open(folder.to_owned())?);
    let blobs = std::sync::Arc::new(tympan_blobs::MemoryBlobStore::default());
    let repository = Repository::open(store, blobs)?;
    let page = repository.snapshot()?.node(&path)?.ok_or("a page is missing")?;
    let elapsed = begin.elapsed();
    if repository.head_root()? != tree.repository.head_root()? || page.name() != path.name() {
        return Err("the opened store is another".into());
    }
    Ok(elapsed)
}

/// Commits bodies until so much is written; gives the number of records, and the time of each commit.
fn fill(store: &CountingStore, bytes: usize) -> Outcome<(usize, Vec<Duration>)> {
    store.set_sync_cost(SyncCost::None);
    let mut random = Random::new(store.counts().bytes + 11);
    let mut expected = store.read_ref("main")?;
    let mut records = 0;
    let mut times = Vec::new();
    while store.counts().bytes < bytes as u64 {
        let mut batch = ChunkBatch::new();
        for _ in 0..BODIES {
            let bytes = random.words(BODY_BYTES);
            let id = body::write_body(&mut batch, bytes.as_bytes(), &[])?;
            if batch.ref_updates().is_empty() {
                batch.add_ref_update(RefUpdate {
                    name: "main".to_owned(),
                    expected_root: expected,
                    new_root: Some(id),
                    updated_at: std::time::SystemTime::UNIX_EPOCH,
                    author: "bench".to_owned(),
                    message: "save".to_owned(),
                });
                expected = Some(id);
            }
        }
        records += batch.chunks().len() + 1;
        let begin = Instant::now();
        store.commit(batch)?;
        times.push(begin.elapsed());
    }
    Ok((records, times))
}

/// Copies the files of a store, but not its lock.
pub(super) fn copy(from: &Path, to: &Path) -> Outcome<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
