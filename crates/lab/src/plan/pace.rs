//! Timers that let the samples of many threads begin at moments of one schedule: precise throughput, throughput shaping.
//!
//! Invariants
//! * Every moment is given to one thread. Over several processes that share a load, moment `i` goes to process
//!   `i mod N`.
//! * A precise pace has exactly its number of moments in each of its periods, at random times.

use std::time::Duration;

use crate::load::{Portion, Process, Schedule, Stretch, random};

/// Most moments that are prepared at a time; longer periods are prepared in pieces.
const MOST_PREPARED: f64 = 100_000.0;

/// A schedule and how far it is used up.
#[derive(Debug)]
pub(super) struct Pacer {
    moments: Moments,
    portion: Portion,
    /// Moments passed, those of other processes too.
    passed: u64,
}

#[derive(Debug)]
enum Moments {
    Exact(Exact),
    Shaped(Schedule),
}

/// Random moments, an exact number of them in each piece of time.
#[derive(Debug)]
struct Exact {
    /// Moments of a batch in each piece of time.
    rate: f64,
    piece: Duration,
    seed: u64,
    /// How many samples begin together, and how far they lie apart.
    batch: (u64, Duration),
    /// Pieces begun.
    pieces: u64,
    /// Random numbers drawn.
    drawn: u64,
    /// Of the present piece, the last first.
    left: Vec<Duration>,
    /// The batch that is given out, and how many of it are.
    current: Option<(Duration, u64)>,
}

impl Pacer {
    /// Returns a pace of `count` samples in each `period`, over and over, `batch` of them together.
    pub(super) fn exact(
        count: f64,
        period: Duration,
        batch: (u64, Duration),
        (seed, portion): (u64, Portion),
    ) -> Option<Self> {
        let batch = (batch.0.max(1), batch.1);
        let count = count / batch.0 as f64;
        if !(count.is_finite() && count > 0.0) || period.is_zero() {
            return None;
        }
        let pieces = (count / MOST_PREPARED).ceil().max(1.0);
        let exact = Exact {
            rate: count / pieces,
            piece: period.div_f64(pieces),
            seed,
            batch,
            pieces: 0,
            drawn: 0,
            left: Vec::new(),
            current: None,
        };
        (!exact.piece.is_zero()).then_some(Self {
            moments: Moments::Exact(exact),
            portion,
            passed: 0,
        })
    }

    /// Returns a pace whose rate changes; it ends.
    pub(super) fn shaped(stretches: &[Stretch], portion: Portion) -> Self {
        let schedule = Schedule::of(Process::Uniform, stretches, 0);
        Self { moments: Moments::Shaped(schedule), portion, passed: 0 }
    }

    /// Returns the next moment, counted from the start of the run; `None` if none is left.
    pub(super) fn next(&mut self) -> Option<Duration> {
        loop {
            let moment = match &mut self.moments {
                Moments::Exact(exact) => exact.next(),
                Moments::Shaped(schedule) => schedule.next()?,
            };
            self.passed += 1;
            if self.portion.has(self.passed - 1) {
                return Some(moment);
            }
        }
    }
}

impl Exact {
    fn next(&mut self) -> Duration {
        if let Some((moment, given)) = self.current.filter(|(_, given)| *given < self.batch.0) {
            self.current = Some((moment, given + 1));
            return moment + self.batch.1.saturating_mul(u32::try_from(given).unwrap_or(u32::MAX));
        }
        while self.left.is_empty() {
            self.prepare();
        }
        let moment = self.left.pop().unwrap_or_default();
        self.current = Some((moment, 1));
        moment
    }

    /// Draws the moments of the next piece of time.
    fn prepare(&mut self) {
        let until = |pieces: u64| (self.rate * pieces as f64).floor();
        // What a fraction leaves over comes in a later piece.
        let count = (until(self.pieces + 1) - until(self.pieces)) as u64;
        let start = self.piece.mul_f64(self.pieces as f64);
        self.left = (0..count)
            .map(|number| {
                let share = random(self.seed, self.drawn + number) >> 11;
                start + self.piece.mul_f64(share as f64 / (1u64 << 53) as f64)
            })
            .collect();
        self.left.sort_unstable_by(|one, other| other.cmp(one));
        self.drawn += count;
        self.pieces += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(pacer: &mut Pacer, count: usize) -> Vec<Duration> {
        (0..count).map(|_| pacer.next().unwrap()).collect()
    }

    fn precise(count: f64, batch: u64, portion: Portion) -> Pacer {
        let batch = (batch, Duration::from_millis(1));
        Pacer::exact(count, Duration::from_secs(60), batch, (7, portion)).unwrap()
    }

    #[test]
    fn a_precise_pace_has_its_number_in_every_period() {
        let mut pacer = precise(90.0, 1, Portion::default());
        let all = moments(&mut pacer, 270);
        assert!(all.is_sorted());
        for minute in 0..3u64 {
            let within = all.iter().filter(|moment| moment.as_secs() / 60 == minute).count();
            assert_eq!(within, 90, "minute {minute}");
        }
        let gaps: Vec<f64> = all.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
        assert!(gaps.iter().any(|gap| *gap < 0.1) && gaps.iter().any(|gap| *gap > 1.5));
        // A third of a sample in a minute is one in three minutes.
        let mut rare = precise(1.0 / 3.0, 1, Portion::default());
        let rare: Vec<u64> =
            moments(&mut rare, 3).iter().map(|moment| moment.as_secs() / 180).collect();
        assert_eq!(rare, [0, 1, 2]);
    }

    #[test]
    fn a_batch_begins_together() {
        let all = moments(&mut precise(60.0, 5, Portion::default()), 60);
        for batch in all.chunks(5) {
            assert_eq!(batch[4] - batch[0], Duration::from_millis(4));
        }
        assert_eq!(all.iter().filter(|moment| moment.as_secs() < 60).count(), 60);
    }

    #[test]
    fn many_moments_are_prepared_in_pieces() {
        let mut pacer = precise(250_000.0, 1, Portion::default());
        let all = moments(&mut pacer, 250_000);
        assert!(all.last().unwrap().as_secs_f64() <= 60.0 && all.is_sorted());
        assert!(pacer.next().unwrap() >= *all.last().unwrap());
    }

    #[test]
    fn processes_share_one_schedule() {
        let mut whole = moments(&mut precise(60.0, 1, Portion::default()), 60);
        let mut parts: Vec<Duration> = (0..3)
            .flat_map(|index| moments(&mut precise(60.0, 1, Portion { index, count: 3 }), 20))
            .collect();
        parts.sort_unstable();
        whole.sort_unstable();
        assert_eq!(parts, whole);
    }

    #[test]
    fn a_shaped_pace_follows_its_rows_and_ends() {
        let seconds = Duration::from_secs;
        let rows =
            [Stretch { from: 0.0, to: 10.0, lasts: seconds(4) }, Stretch::steady(10.0, seconds(2))];
        let mut pacer = Pacer::shaped(&rows, Portion::default());
        let all: Vec<Duration> = std::iter::from_fn(|| pacer.next()).collect();
        let before = |second: u64| all.iter().filter(|one| **one < seconds(second)).count();
        assert_eq!((before(2), before(4), before(6)), (5, 20, 40));
        assert!(Pacer::exact(0.0, seconds(1), (1, seconds(0)), (0, Portion::default())).is_none());
    }
}
