//! S7: disk that the tree takes, after its load and after 10,000 page saves with collections.
//!
//! Time is simulated: the saves spread evenly over some days, and each day ends with a collection that keeps history
//! by the default policy: every revision of the last 24 hours, then one for each of 48 hours, 30 days and 52 weeks.
//! Disk is the size of all files of the store. Live is what a collection marks: the records that refs and kept
//! revisions reach.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tympan_store::{
    ChunkStore, GarbageCollectionMode, GarbageCollectionOptions, GarbageCollectionReport,
    RevisionRetention,
};

use crate::Outcome;
use crate::context::Context;
use crate::counting::SyncCost;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::{NODES_PER_PAGE, Tree, raw_bytes};

const ROW: &str = "S7";
const DAY: Duration = Duration::from_hours(24);

/// What the saves and their collections came to.
#[derive(Debug, Default)]
struct Outcomes {
    moved_bytes: u64,
    freed_bytes: u64,
    /// The largest ratio of disk to live before and after any collection.
    highest: f64,
    highest_day: u32,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let (saves, days) = if context.is_quick { (1_000, 30) } else { (10_000, 60) };
    let folder = context.new_folder("disk-")?;
    let tree = Tree::build(&folder, context.tree_pages())?;
    let nodes = tree.pages * NODES_PER_PAGE;
    let raw = raw_bytes(tree.pages);
    let loaded = |what: &str, store: &Path| -> Outcome<Figure> {
        let disk = disk_bytes(store)?;
        let note = format!("{} of {} raw, {nodes} nodes; {what}", mib(disk), mib(raw));
        Ok(Figure::value(ROW, "disk after the load", share(disk, raw), "x")
            .against("paths, names and values")
            .note(note))
    };
    let mut figures = vec![
        loaded("the content map alone", tree.plain.folder())?.goal(Goal::AtMost(0.4)),
        loaded("with five index maps, and what loading in sections leaves", tree.full.folder())?
            .goal(Goal::AtMost(0.4)),
    ];
    tree.full.set_sync_cost(SyncCost::None);
    let mut random = Random::new(7);
    let mut totals = Outcomes::default();
    let mut now = SystemTime::UNIX_EPOCH + DAY * 365;
    for day in 0..days {
        let today = saves * (day + 1) / days - saves * day / days;
        for _ in 0..today {
            now += DAY / today;
            tree.save_at(random.below(tree.pages), now)?;
        }
        end_day(&tree, day, now, &mut totals)?;
    }
    figures.extend(after_saves(&tree, now, saves, &totals)?);
    Ok(figures)
}

/// Samples disk and live before and after the day's collection.
fn end_day(tree: &Tree, day: u32, now: SystemTime, totals: &mut Outcomes) -> Outcome<()> {
    let mut sample = |live: u64| -> Outcome<()> {
        let ratio = share(disk_bytes(tree.full.folder())?, live);
        if ratio > totals.highest {
            (totals.highest, totals.highest_day) = (ratio, day + 1);
        }
        Ok(())
    };
    // What the load left behind is no subject here: samples begin after the first collection.
    if day > 0 {
        sample(dry_run(tree, now, RevisionRetention::default())?.live_bytes)?;
    }
    let collected =
        tree.full.collect_garbage(&GarbageCollectionOptions::at_time(now), &mut |_| {
            ControlFlow::Continue(())
        })?;
    sample(collected.live_bytes)?;
    totals.moved_bytes += collected.moved_bytes;
    totals.freed_bytes += collected.freed_bytes;
    Ok(())
}

fn after_saves(
    tree: &Tree,
    now: SystemTime,
    saves: u32,
    totals: &Outcomes,
) -> Outcome<Vec<Figure>> {
    let disk = disk_bytes(tree.full.folder())?;
    let kept = dry_run(tree, now, RevisionRetention::default())?;
    let newest = dry_run(tree, now, RevisionRetention::KEEP_NEWEST)?;
    let against = |live: u64, words: &str| {
        Figure::value(ROW, format!("disk after {saves} saves"), share(disk, live), "x")
            .against(words)
            .note(format!("{} of disk, {} live", mib(disk), mib(live)))
    };
    let highest = format!("day {}, before or after a collection", totals.highest_day);
    let moved = format!("{} freed; a save appends what S1 says", mib(totals.freed_bytes));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let moved_kib = totals.moved_bytes as f64 / 1024.0 / f64::from(saves);
    Ok(vec![
        against(kept.live_bytes, "what refs and kept revisions reach").goal(Goal::AtMost(1.3)),
        against(newest.live_bytes, "what the newest state alone reaches"),
        Figure::value(ROW, "most disk at any sample", totals.highest, "x")
            .against("what refs and kept revisions reach")
            .goal(Goal::AtMost(1.3))
            .note(highest),
        Figure::value(ROW, "moved by collections for a save", moved_kib, "KiB").note(moved),
    ])
}

fn dry_run(
    tree: &Tree,
    now: SystemTime,
    retention: RevisionRetention,
) -> Outcome<GarbageCollectionReport> {
    let options = GarbageCollectionOptions {
        retention,
        mode: GarbageCollectionMode::DryRun,
        ..GarbageCollectionOptions::at_time(now)
    };
    Ok(tree.full.collect_garbage(&options, &mut |_| ControlFlow::Continue(()))?)
}

fn disk_bytes(folder: &Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}
