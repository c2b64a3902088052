//! S9: page saves while garbage is collected, opening a store, and units of work beside Apache Oak's.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tympan_store::{ChunkStore, GarbageCollectionOptions, GarbageCollectionProgress};

use super::{oak, open};
use crate::Outcome;
use crate::alternate::{Spread, alternate};
use crate::context::Context;
use crate::counting::SyncCost;
use crate::figure::{Figure, Goal};
use crate::random::Random;
use crate::tree::Tree;

pub(super) const ROW: &str = "S9";
/// The simulated time between two saves: with an hour of history kept, most of what a save replaces is garbage soon.
const BETWEEN_SAVES: Duration = Duration::from_mins(5);
/// What a paced collection reads and writes in a second, as an instance's does by default.
const PACE_BYTES_PER_SECOND: f64 = 32.0 * 1_048_576.0;
/// Waits below this are left to add up, as an instance does.
const LEAST_WAIT: Duration = Duration::from_millis(5);

/// How a collection runs beside the saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collecting {
    No,
    /// At the pace that an instance sets itself.
    Paced,
    /// As fast as it can, one after the other.
    Unpaced,
}

/// The saves of one turn.
#[derive(Debug)]
struct Turn {
    /// Milliseconds, ascending.
    times: Vec<f64>,
    collections: usize,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let mut figures = beside_saves(context)?;
    figures.extend(open::measure(context)?);
    figures.extend(oak::measure(context)?);
    Ok(figures)
}

fn beside_saves(context: &mut Context) -> Outcome<Vec<Figure>> {
    let (pairs, time) = (context.pairs(), Duration::from_secs(context.seconds() * 2));
    let tree = context.tree()?;
    let mut now = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365);
    let mut figures = Vec::new();
    let [without, paced, unpaced] = turns(tree, pairs, time, &mut now)?;
    for (side, words) in [(&paced, "at an instance's pace"), (&unpaced, "at full speed")] {
        figures.extend(compare(side, &without, words, Goal::AtMost(1.5)));
    }
    // Whether a save ever waits for a collection shows where it does not wait for the disk.
    tree.full.set_sync_cost(SyncCost::None);
    let turns = turns(tree, pairs, time, &mut now);
    tree.full.set_sync_cost(SyncCost::Real);
    let [without, _, unpaced] = turns?;
    figures.extend(compare(&unpaced, &without, "at full speed, syncs left out", Goal::None));
    Ok(figures)
}

/// Lets saves without collections, beside paced ones and beside others take turns.
fn turns(
    tree: &Tree,
    pairs: usize,
    time: Duration,
    now: &mut SystemTime,
) -> Outcome<[Vec<Turn>; 3]> {
    let mut random = Random::new(9);
    let mut turn = |how| run(tree, how, time, &mut random, now);
    let turn = std::cell::RefCell::new(&mut turn);
    let side = |how| {
        let turn = &turn;
        move || (turn.borrow_mut())(how)
    };
    alternate(
        pairs,
        [&mut side(Collecting::No), &mut side(Collecting::Paced), &mut side(Collecting::Unpaced)],
    )
}

fn compare(with: &[Turn], without: &[Turn], words: &str, goal: Goal) -> Vec<Figure> {
    let collections: usize = with.iter().map(|turn| turn.collections).sum();
    let [with, without] = [with, without].map(pooled);
    let figure = |what: &str, share: f64| {
        let [ours, theirs] = [at(&with, share), at(&without, share)];
        let note = format!(
            "{ours:.2} ms of {} saves against {theirs:.2} ms of {}; {collections} collections",
            with.len(),
            without.len()
        );
        Figure::value(ROW, format!("{what} while garbage is collected {words}"), ours / theirs, "x")
            .against("without a collection")
            .note(note)
    };
    vec![
        figure("median save", 0.5),
        figure("p99 of saves", 0.99).goal(goal),
        figure("longest save", 1.0),
    ]
}

/// Returns the times of all turns together, ascending.
fn pooled(turns: &[Turn]) -> Vec<f64> {
    let mut times: Vec<f64> = turns.iter().flat_map(|turn| turn.times.iter().copied()).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Returns what a share of the times do not exceed.
fn at(times: &[f64], share: f64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a small count"
    )]
    let index = (times.len() as f64 * share) as usize;
    times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Saves pages for some time, one after the other, while collections run or not; until one has come to its end.
fn run(
    tree: &Tree,
    how: Collecting,
    time: Duration,
    random: &mut Random,
    now: &mut SystemTime,
) -> Outcome<Turn> {
    let [is_over, is_collected] = [AtomicBool::new(false), AtomicBool::new(how == Collecting::No)];
    let began = *now;
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| collect_until(tree, how, began, [&is_over, &is_collected]));
        let begin = Instant::now();
        let mut times = Vec::new();
        let mut failed = None;
        let is_due = || {
            let is_collected = is_collected.load(Ordering::Relaxed) || collector.is_finished();
            begin.elapsed() < time || !is_collected
        };
        while is_due() && failed.is_none() {
            *now += BETWEEN_SAVES;
            match tree.save_at(random.below(tree.pages), *now) {
                Ok(save) => times.push(save.elapsed.as_secs_f64() * 1e3),
                Err(error) => failed = Some(error),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let collections = collector.join().map_err(|_| "the collector panicked")??;
        times.sort_by(f64::total_cmp);
        failed.map_or(Ok(Turn { times, collections }), Err)
    })
}

/// Runs collections one after the other until the saves are over; gives how many came to their end.
fn collect_until(
    tree: &Tree,
    how: Collecting,
    began: SystemTime,
    [is_over, is_collected]: [&AtomicBool; 2],
) -> Result<usize, String> {
    if how == Collecting::No {
        return Ok(0);
    }
    let mut collections = 0;
    while !is_over.load(Ordering::Relaxed) {
        let mut options = GarbageCollectionOptions::at_time(began);
        options.retention.full_period = Duration::from_hours(1);
        let collected = tree.full.collect_garbage(&options, &mut pace(how, is_over));
        let collected = collected.map_err(|error| error.to_string())?;
        if !collected.is_stopped {
            collections += 1;
            is_collected.store(true, Ordering::Relaxed);
        }
    }
    Ok(collections)
}

/// Returns what sets a collection's pace, and ends it when the saves are over.
fn pace(
    how: Collecting,
    is_over: &AtomicBool,
) -> impl FnMut(&GarbageCollectionProgress) -> ControlFlow<()> {
    let (mut began, mut phase) = (Instant::now(), None);
    move |progress| {
        if phase != Some(progress.phase) {
            (began, phase) = (Instant::now(), Some(progress.phase));
        }
        if how == Collecting::Paced {
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            let due = Duration::from_secs_f64(progress.byte_count as f64 / PACE_BYTES_PER_SECOND);
            let wait = due.saturating_sub(began.elapsed());
            if wait >= LEAST_WAIT {
                std::thread::sleep(wait);
            }
        }
        if is_over.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Returns a spread in milliseconds.
pub(super) fn milliseconds(times: &[Duration]) -> Spread {
    Spread::of(times.iter().map(|time| time.as_secs_f64() * 1e3))
}
