//! Selection of the render to try first: scores by response time, load and failures.
//!
//! Not a formula but a property is promised: equal renders share the load, a slow one gets clearly less, and a dead one
//! nothing while another is alive.
//!
//! A score is the mean response time of the category, halved for every 10 s without a sample so that a slow render is
//! tried again; plus the penalty for failed connections, which decays alike. Times within a factor of two of the best
//! count as equal, and so do all below [`MIN_DISTINCT_LATENCY_MS`], since a render that is only slightly faster would
//! otherwise get all requests. The result is weighted with the number of requests in flight.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const PENALTY_HALF_LIFE: Duration = Duration::from_secs(10);
/// The weight of a new sample in the mean.
const SAMPLE_WEIGHT: f64 = 0.2;

/// The latency in milliseconds below which times count as equal: shorter times come from the network and from first
/// connections, and do not show how busy a render is.
const MIN_DISTINCT_LATENCY_MS: f64 = 8.0;

/// The scores of a farm's renders.
#[derive(Debug)]
pub(crate) struct RenderScoreboard {
    render_scores: Vec<RenderScore>,
    next_offset: AtomicUsize,
}

#[derive(Debug)]
struct RenderScore {
    in_flight: AtomicU32,
    penalty: Mutex<DecayingValue>,
    category_latencies: Vec<Mutex<DecayingValue>>,
}

/// A number that halves every [`PENALTY_HALF_LIFE`].
#[derive(Debug, Clone, Copy, Default)]
struct DecayingValue {
    value: f64,
    since: Option<Instant>,
}

impl DecayingValue {
    fn value_at(&self, now: Instant) -> f64 {
        let Some(since) = self.since else { return 0.0 };
        let age = now.saturating_duration_since(since).as_secs_f64();
        self.value * 0.5_f64.powf(age / PENALTY_HALF_LIFE.as_secs_f64())
    }

    fn set(&mut self, value: f64, now: Instant) {
        self.value = value;
        self.since = Some(now);
    }
}

impl RenderScoreboard {
    pub(crate) fn new(renders: usize, categories: usize) -> Self {
        let render = || RenderScore {
            in_flight: AtomicU32::new(0),
            penalty: Mutex::default(),
            category_latencies: (0..=categories).map(|_| Mutex::default()).collect(),
        };
        Self {
            render_scores: (0..renders).map(|_| render()).collect(),
            next_offset: AtomicUsize::new(0),
        }
    }

    /// Returns the renders, the best for `category` first; equal ones take turns. `part` returns the part of its load
    /// that a render can handle.
    pub(crate) fn rank_renders(
        &self,
        category: usize,
        now: Instant,
        part: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let count = self.render_scores.len();
        let turn = self.next_offset.fetch_add(1, Ordering::Relaxed);
        let scores: Vec<(f64, usize)> = (0..count)
            .map(|step| (turn.wrapping_add(step)) % count.max(1))
            .filter_map(|index| Some((self.category_score(index, category, now)?, index)))
            .collect();
        let best = scores.iter().map(|(score, _)| *score).fold(f64::INFINITY, f64::min);
        let mut order: Vec<(f64, usize)> = scores
            .into_iter()
            .map(|(score, index)| {
                // Fixed steps would separate two equal renders whose times lie on both sides of one.
                let score = if score <= 2.0 * best { best } else { score };
                let in_flight = f64::from(self.in_flight(index));
                (score * (1.0 + in_flight) / part(index), index)
            })
            .collect();
        order.sort_by(|left, right| left.0.total_cmp(&right.0));
        order.into_iter().map(|(_, index)| index).collect()
    }

    fn category_score(&self, render: usize, category: usize, now: Instant) -> Option<f64> {
        let render = self.render_scores.get(render)?;
        let mean = render.category_latencies.get(category)?.lock().value_at(now);
        let score = mean + render.penalty.lock().value_at(now);
        Some(score.max(MIN_DISTINCT_LATENCY_MS))
    }

    /// Returns true if the last connections to `render` did not fail.
    pub(crate) fn is_live(&self, render: usize, now: Instant) -> bool {
        self.render_scores
            .get(render)
            .is_some_and(|render| render.penalty.lock().value_at(now) < 1.0)
    }

    /// Returns the number of requests in flight at `render`.
    pub(crate) fn in_flight(&self, render: usize) -> u32 {
        self.render_scores.get(render).map_or(0, |render| render.in_flight.load(Ordering::Relaxed))
    }

    /// Returns the largest mean response time of `render` among the categories, with its penalty, in milliseconds.
    pub(crate) fn render_score(&self, render: usize, now: Instant) -> f64 {
        let Some(render) = self.render_scores.get(render) else { return 0.0 };
        let means = render.category_latencies.iter().map(|mean| mean.lock().value_at(now));
        means.fold(0.0, f64::max) + render.penalty.lock().value_at(now)
    }

    /// Counts a request to `render` until the returned value is dropped.
    pub(crate) fn begin_request(&self, render: usize) {
        if let Some(render) = self.render_scores.get(render) {
            render.in_flight.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn end_request(&self, render: usize) {
        if let Some(render) = self.render_scores.get(render) {
            render.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Records that `render` responded after `elapsed`.
    pub(crate) fn record_success(
        &self,
        render: usize,
        category: usize,
        elapsed: Duration,
        now: Instant,
    ) {
        let Some(render) = self.render_scores.get(render) else {
            return;
        };
        render.penalty.lock().set(0.0, now);
        if let Some(mean) = render.category_latencies.get(category) {
            let mut mean = mean.lock();
            let sample = elapsed.as_secs_f64() * 1000.0;
            let value = match mean.since {
                None => sample,
                Some(_) => mean.value + SAMPLE_WEIGHT * (sample - mean.value),
            };
            mean.set(value, now);
        }
    }

    /// Records that `render` could not be reached.
    pub(crate) fn record_failure(&self, render: usize, penalty: Duration, now: Instant) {
        if let Some(render) = self.render_scores.get(render) {
            let mut own = render.penalty.lock();
            let value = own.value_at(now) + penalty.as_secs_f64() * 1000.0;
            own.set(value, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RenderScoreboard;
    use std::time::Duration;
    use tokio::time::Instant;

    const MS: Duration = Duration::from_millis(1);

    fn order(scores: &RenderScoreboard, category: usize, now: Instant) -> Vec<usize> {
        scores.rank_renders(category, now, |_| 1.0)
    }

    #[test]
    fn a_render_that_starts_slowly_gets_its_part() {
        let scores = RenderScoreboard::new(2, 0);
        let now = Instant::now();
        let mut counts = [0; 2];
        for _ in 0..110 {
            let render =
                scores.rank_renders(0, now, |render| if render == 0 { 0.1 } else { 1.0 })[0];
            scores.begin_request(render);
            counts[render] += 1;
        }
        assert!((8..=12).contains(&counts[0]), "{counts:?}");
    }

    /// Sends `requests` one after the other, a millisecond apart, to renders with these response times.
    fn share(times: &[u32], requests: usize) -> Vec<usize> {
        let scores = RenderScoreboard::new(times.len(), 0);
        let mut counts = vec![0; times.len()];
        let mut now = Instant::now();
        for request in 0..requests {
            let render = order(&scores, 0, now)[0];
            counts[render] += 1;
            // Real times differ a little from request to request.
            let jitter = Duration::from_micros((request as u64 * 7919) % 200);
            now += MS;
            scores.record_success(render, 0, times[render] * MS + jitter, now);
        }
        counts
    }

    #[test]
    fn lb120_equal_renders_share_the_load() {
        let counts = share(&[10, 10], 1000);
        assert!(counts.iter().all(|count| (450..=550).contains(count)), "{counts:?}");
        // Nor do times on both sides of a power of two.
        for times in [[11, 12], [22, 24], [45, 46]] {
            let counts = share(&times, 1000);
            assert!(counts.iter().all(|count| (450..=550).contains(count)), "{counts:?}");
        }
        // A slower first response soon makes no difference.
        let counts = share(&[1, 5], 1000);
        assert!(counts.iter().all(|count| (450..=550).contains(count)), "{counts:?}");
    }

    #[test]
    fn lb121_a_slow_render_gets_clearly_less() {
        let counts = share(&[10, 40], 1000);
        assert!(counts[1] < 250, "{counts:?}");
        assert!(counts[1] > 0, "{counts:?}");
    }

    #[test]
    fn lb122_a_dead_render_comes_last_and_is_tried_again_later() {
        let scores = RenderScoreboard::new(2, 0);
        let now = Instant::now();
        scores.record_failure(0, 100 * MS, now);
        assert!(!scores.is_live(0, now));
        for _ in 0..10 {
            assert_eq!(order(&scores, 0, now)[0], 1);
        }
        let later = now + Duration::from_secs(100);
        assert!(scores.is_live(0, later));
        let firsts: Vec<usize> = (0..4).map(|_| order(&scores, 0, later)[0]).collect();
        assert!(firsts.contains(&0), "{firsts:?}");
    }

    #[test]
    fn categories_are_scored_apart_and_load_counts() {
        let scores = RenderScoreboard::new(2, 1);
        let now = Instant::now();
        scores.record_success(0, 0, 50 * MS, now);
        scores.record_success(1, 0, 5 * MS, now);
        scores.record_success(0, 1, 5 * MS, now);
        scores.record_success(1, 1, 50 * MS, now);
        assert_eq!(order(&scores, 0, now)[0], 1);
        assert_eq!(order(&scores, 1, now)[0], 0);
        for _ in 0..20 {
            scores.begin_request(1);
        }
        assert_eq!(order(&scores, 0, now)[0], 0);
        for _ in 0..20 {
            scores.end_request(1);
        }
        assert_eq!(order(&scores, 0, now)[0], 1);
    }
}
