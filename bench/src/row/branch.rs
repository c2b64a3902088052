//! S8: what a branch and a staging clone cost, at 1,000 nodes and at 1,000,000.
//!
//! A branch is a ref to the root that `main` names. It is made durable before the call returns, so that its time is
//! that of one sync; both sides take turns. A clone is a store of its own over the other: a lease there, and a ref to
//! the leased root here. Of the base, everything but what was written lately has its index, as after a collection.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_store::disk::FileDisk;
use tympan_store::{
    ChunkBatch, ChunkId, ChunkStore, LayeredStore, LocalStore, LocalStoreOptions,
    ReadOnlyLocalStore, RefUpdate, acquire_lease,
};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::counting::Counts;
use crate::figure::{Figure, Goal};
use crate::tree::{NODES_PER_PAGE, Tree};

const ROW: &str = "S8";
const SMALL_PAGES: usize = 40;
/// Branches created in one turn.
const TURN: usize = 20;

/// What creating branches cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    milliseconds: f64,
    bytes: f64,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let small = Tree::build(&context.new_folder("small-")?, SMALL_PAGES)?;
    let clones = context.new_folder("clones-")?;
    let large = context.tree()?;
    let (mut small_names, mut large_names) = (0.., 0..);
    let branches = alternate(
        pairs,
        [&mut || create(&small, &mut small_names), &mut || create(large, &mut large_names)],
    )?;
    let nodes = [&small, large].map(|tree| tree.pages * NODES_PER_PAGE);
    let mut figures = figures("create a branch", nodes, &branches);
    small.full.close()?;
    large.full.close()?;
    let mut numbers = 0..;
    let mut clone = |tree: &Tree| {
        let number = numbers.next().unwrap_or_default();
        start_clone(tree, &clones.join(u32::to_string(&number)))
    };
    let clone = std::cell::RefCell::new(&mut clone);
    let started = alternate(
        pairs,
        [&mut || (clone.borrow_mut())(&small), &mut || (clone.borrow_mut())(large)],
    )?;
    figures.extend(self::figures("start a staging clone", nodes, &started));
    Ok(figures)
}

fn figures(what: &str, nodes: [usize; 2], [small, large]: &[Vec<Cost>; 2]) -> Vec<Figure> {
    let written = |side: &[Cost], nodes: usize| {
        let bytes = Spread::of(side.iter().map(|cost| cost.bytes));
        Figure::spread(ROW, format!("written to {what} of {nodes} nodes"), &bytes, "B")
            .goal(Goal::AtMost(1_024.0))
    };
    let time = ratio(large, small, |cost| cost.milliseconds);
    let median = |side: &[Cost]| Spread::of(side.iter().map(|cost| cost.milliseconds)).median;
    vec![
        written(small, nodes[0]),
        written(large, nodes[1]),
        Figure::spread(ROW, format!("time to {what} of {} nodes", nodes[1]), &time, "x")
            .against(format!("{} nodes", nodes[0]))
            .goal(Goal::AtMost(1.2))
            .note(format!("{:.2} ms against {:.2} ms", median(large), median(small))),
    ]
}

/// Starts a clone of a tree's store in an empty folder; gives what it wrote there and in the base.
fn start_clone(tree: &Tree, folder: &Path) -> Outcome<Cost> {
    let now = SystemTime::now();
    let before = disk_bytes(tree.full.folder())?;
    let begin = Instant::now();
    let base = ReadOnlyLocalStore::open_dir(tree.full.folder(), LocalStoreOptions::default())?;
    let holder = folder.display().to_string();
    let lease = acquire_lease(&base, &holder, "main", now, Duration::from_mins(5))?;
    let root = lease.root;
    let own = LocalStore::open(Arc::new(FileDisk::open(folder)?), LocalStoreOptions::default())?;
    let clone = LayeredStore::new(Arc::new(own), Arc::new(base), lease)?;
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(moves("main", root));
    clone.commit(batch)?;
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    tympan_store::StoreRoot::read(&clone, &root)?;
    let written = disk_bytes(folder)? + disk_bytes(tree.full.folder())? - before;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let bytes = written as f64;
    Ok(Cost { milliseconds, bytes })
}

fn moves(name: &str, root: ChunkId) -> RefUpdate {
    RefUpdate {
        name: name.to_owned(),
        expected_root: None,
        new_root: Some(root),
        updated_at: SystemTime::UNIX_EPOCH,
        author: "bench".to_owned(),
        message: "create".to_owned(),
    }
}

/// Returns the bytes of all files in a folder and below.
fn disk_bytes(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { disk_bytes(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

/// Creates branches off `main`; gives the cost of one.
fn create(tree: &Tree, numbers: &mut std::ops::RangeFrom<u32>) -> Outcome<Cost> {
    let mut times = Vec::new();
    let mut bytes = Vec::new();
    for number in numbers.take(TURN) {
        let mut batch = ChunkBatch::new();
        batch.add_ref_update(moves(&format!("branch-{number:06}"), tree.repository.head_root()?));
        let before = tree.full.counts();
        let begin = Instant::now();
        tree.full.commit(batch)?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        let Counts { bytes: appended, .. } = tree.full.counts().since(before);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        bytes.push(appended as f64);
    }
    Ok(Cost { milliseconds: Spread::of(times).median, bytes: Spread::of(bytes).median })
}
