//! S3: 64 threads that save pages, each durably, against one.
//!
//! Each thread has pages of its own, so that saves follow each other and none is in conflict. On a disk that syncs
//! quickly there is little to share: the goals are for syncs of 2 ms, which such a disk is made to take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::counting::SyncCost;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::Tree;

const ROW: &str = "S3";
const MANY: usize = 64;
/// What a sync costs at least where the goals hold.
const SLOW_SYNC: Duration = Duration::from_millis(2);

/// What some writers did in one measurement.
#[derive(Clone, Copy, Debug)]
struct Rate {
    saves_each_second: f64,
    saves_each_sync: f64,
    sync_ms: f64,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let (pairs, time) = (context.pairs(), Duration::from_secs(context.seconds()));
    let tree = context.tree()?;
    let [one, many] = compare(tree, SyncCost::Real, pairs, time)?;
    let sync_ms = Spread::of(one.iter().map(|rate| rate.sync_ms)).median;
    let is_slow = sync_ms >= SLOW_SYNC.as_secs_f64() * 1e3;
    let disk = format!("a disk whose syncs take {sync_ms:.2} ms");
    let mut figures = figures(&disk, &one, &many, is_slow);
    if !is_slow {
        let [one, many] = compare(tree, SyncCost::AtLeast(SLOW_SYNC), pairs, time)?;
        figures.extend(self::figures(
            "the same disk, each sync made to take 2 ms",
            &one,
            &many,
            true,
        ));
    }
    Ok(figures)
}

/// Lets one writer and many take turns.
fn compare(tree: &Tree, cost: SyncCost, pairs: usize, time: Duration) -> Outcome<[Vec<Rate>; 2]> {
    tree.full.set_sync_cost(cost);
    let turns = alternate(pairs, [&mut || run(tree, 1, time), &mut || run(tree, MANY, time)]);
    tree.full.set_sync_cost(SyncCost::Real);
    turns
}

fn figures(disk: &str, one: &[Rate], many: &[Rate], is_slow: bool) -> Vec<Figure> {
    let goal = |limit| if is_slow { Goal::AtLeast(limit) } else { Goal::None };
    let shared = Spread::of(many.iter().map(|rate| rate.saves_each_sync));
    let rate = |side: &[Rate]| Spread::of(side.iter().map(|rate| rate.saves_each_second)).median;
    let note = format!("{:.0} against {:.0} saves/s; {disk}", rate(many), rate(one));
    let gained = ratio(many, one, |rate| rate.saves_each_second);
    vec![
        Figure::spread(ROW, "saves for each sync, 64 writers", &shared, "saves")
            .goal(goal(20.0))
            .note(disk),
        Figure::spread(ROW, "saves in the same time, 64 writers", &gained, "x")
            .against("one writer")
            .goal(goal(7.0))
            .note(note),
    ]
}

/// Lets threads save pages for some time.
fn run(tree: &Tree, writers: usize, time: Duration) -> Outcome<Rate> {
    let is_over = AtomicBool::new(false);
    let before = tree.full.counts();
    let begin = Instant::now();
    let saves: Outcome<usize> = std::thread::scope(|scope| {
        let writer = |number: usize| {
            let is_over = &is_over;
            // The message of a failure crosses threads; the failure itself need not be able to.
            scope.spawn(move || save_own(tree, number, writers, is_over).map_err(|e| e.to_string()))
        };
        let threads: Vec<_> = (0..writers).map(writer).collect();
        std::thread::sleep(time);
        is_over.store(true, Ordering::Relaxed);
        let mut saves = 0;
        for thread in threads {
            saves += thread.join().map_err(|_| "a writer panicked")??;
        }
        Ok(saves)
    });
    let seconds = begin.elapsed().as_secs_f64();
    let syncs = tree.full.counts().since(before).syncs.max(1);
    #[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
    let (saves, syncs) = (saves? as f64, syncs as f64);
    Ok(Rate {
        saves_each_second: saves / seconds,
        saves_each_sync: saves / syncs,
        sync_ms: sync_ms(tree)?,
    })
}

/// Saves pages that no other writer touches until time is up; gives how many.
fn save_own(tree: &Tree, number: usize, writers: usize, is_over: &AtomicBool) -> Outcome<usize> {
    let mut random = Random::new(number as u64 + 3);
    let mut saves = 0;
    while !is_over.load(Ordering::Relaxed) {
        let page = random.below(tree.pages / writers) * writers + number;
        tree.save(page)?;
        saves += 1;
    }
    Ok(saves)
}

/// Returns what one append of 20 KB costs to sync right now, as the median of a few.
fn sync_ms(tree: &Tree) -> Outcome<f64> {
    use std::io::Write;
    let mut file = tempfile::tempfile_in(tree.full.folder())?;
    let bytes = Random::new(3).bytes(20_000);
    let mut times = Vec::new();
    for _ in 0..9 {
        file.write_all(&bytes)?;
        let begin = Instant::now();
        file.sync_data()?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(times).median)
}
