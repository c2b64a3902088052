//! Throttling of a run beside a site that serves requests: the share of time that the run may work, controlled by the
//! site's response times.
//!
//! In: the responses that the site served in each short interval. Out: a share of time between [`MIN_SHARE`] and 1,
//! which each thread of the run keeps to by pausing; and the total number of responses that the site lost compared with
//! its usual rate.
//!
//! The share is halved when significantly more than a twentieth of the responses take well longer than the 95th
//! percentile of the time before the run, and grows by a step when they do not; sparse responses are judged together.
//! If too few requests came before the run, the run pauses when they come, until it is known how long their responses
//! take without it. With a deadline, the share does not fall below what the rest of the run needs: a long throttled run
//! may cost a site more responses in total than a short unthrottled one.
//!
//! Not here: where and when response times are read (the binary).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Minimum share of time for a run, so that it ends.
const MIN_SHARE: f64 = 0.05;
/// Increase of the share after an interval without slow responses.
const SHARE_STEP: f64 = 0.1;
/// Factor by which response times may rise.
const RESPONSE_TIME_TOLERANCE: f64 = 1.2;
/// Differences below this are noise: logs have a resolution of whole milliseconds.
const RESPONSE_TIME_SLACK: Duration = Duration::from_millis(2);
/// Minimum number of responses for a meaningful percentile.
const MIN_PERCENTILE_SAMPLES: usize = 5;
/// Number of responses that are judged without waiting for more, and that suffice, beside a paused run, to learn the
/// usual response times.
const FULL_WINDOW_SAMPLES: usize = 20;
/// Time after which fewer responses are judged, separately from later ones.
const MAX_WINDOW: Duration = Duration::from_secs(10);
/// A pause consists of sleeps of this length, so that a stop request is noticed soon.
const MAX_PAUSE_SLEEP: Duration = Duration::from_millis(100);
/// A longer time between two pauses of a thread does not count as work for the run.
const MAX_CREDITED_WORK: Duration = Duration::from_secs(1);
const SHARE_SCALE: f64 = 1_000_000.0;

/// The responses that a site served in an interval.
#[derive(Clone, Debug, Default)]
pub struct ServedInterval {
    /// The length of the interval.
    pub duration: Duration,
    /// The response times in the interval.
    pub response_times: Vec<Duration>,
}

impl ServedInterval {
    /// Returns the 95th percentile; `None` if there are too few responses.
    #[must_use]
    pub fn p95(&self) -> Option<Duration> {
        let mut times = self.response_times.clone();
        times.sort();
        let at = (times.len() * 95).div_ceil(100).saturating_sub(1);
        (times.len() >= MIN_PERCENTILE_SAMPLES).then(|| times.get(at).copied()).flatten()
    }

    fn add(&mut self, other: &Self) {
        self.duration += other.duration;
        self.response_times.extend(&other.response_times);
    }

    /// Returns the number of responses per second.
    fn responses_per_second(&self) -> f64 {
        self.response_times.len() as f64 / self.duration.as_secs_f64().max(1e-9)
    }
}

/// Computes the share of a run.
#[derive(Debug)]
pub struct ThrottleController {
    baseline: ServedInterval,
    /// The responses served while the run was paused.
    idle_baseline: ServedInterval,
    /// The responses served since the last decision.
    window: ServedInterval,
    deadline: Option<Duration>,
    share: f64,
    lost_responses: f64,
    /// The time that the run worked, as the sum of share times interval.
    work_time: f64,
}

impl ThrottleController {
    /// Creates a controller from what the site served before the run. `deadline` is the maximum duration of the run.
    #[must_use]
    pub fn new(baseline: ServedInterval, deadline: Option<Duration>) -> Self {
        let (quiet, window) = (ServedInterval::default(), ServedInterval::default());
        Self {
            baseline,
            idle_baseline: quiet,
            window,
            deadline,
            share: 1.0,
            lost_responses: 0.0,
            work_time: 0.0,
        }
    }

    /// Records what was served in the last interval, when the run has been going for `elapsed` and has done `part` of
    /// its work, if known. Returns the share for the next interval.
    pub fn observe(
        &mut self,
        served: &ServedInterval,
        elapsed: Duration,
        part: Option<f64>,
    ) -> f64 {
        let missing = (self.baseline.responses_per_second() - served.responses_per_second())
            * served.duration.as_secs_f64();
        // Responses above the usual rate compensate for earlier losses.
        self.lost_responses = (self.lost_responses + missing).max(0.0);
        self.work_time += self.share * served.duration.as_secs_f64();
        let floor = self.min_share(elapsed, part);
        let share = match self.baseline.p95() {
            Some(p95) => self.adjust_share(served, p95),
            None => self.learn_idle_baseline(served, floor),
        };
        self.share = share.clamp(floor, 1.0);
        self.share
    }

    /// Compares responses with the usual ones, as soon as there are enough.
    fn adjust_share(&mut self, served: &ServedInterval, usual: Duration) -> f64 {
        self.window.add(served);
        let count = self.window.response_times.len();
        if count == 0 {
            self.window = ServedInterval::default();
            return self.share + SHARE_STEP;
        }
        if count < FULL_WINDOW_SAMPLES && self.window.duration < MAX_WINDOW {
            return self.share;
        }
        let window = std::mem::take(&mut self.window);
        if count < MIN_PERCENTILE_SAMPLES {
            return self.share;
        }
        let bound =
            usual.mul_f64(RESPONSE_TIME_TOLERANCE).max(usual.saturating_add(RESPONSE_TIME_SLACK));
        let over = window.response_times.iter().filter(|time| **time > bound).count();
        if over as f64 > max_random_exceedances(count) {
            self.share / 2.0
        } else {
            self.share + SHARE_STEP
        }
    }

    /// Learns the usual response times while the run is paused as far as possible.
    fn learn_idle_baseline(&mut self, served: &ServedInterval, floor: f64) -> f64 {
        if self.share <= floor {
            self.idle_baseline.add(served);
        }
        if self.idle_baseline.response_times.len() >= FULL_WINDOW_SAMPLES {
            self.baseline = std::mem::take(&mut self.idle_baseline);
        }
        if served.response_times.is_empty() { self.share + SHARE_STEP } else { MIN_SHARE }
    }

    /// Returns the share below which the run would miss its deadline.
    fn min_share(&self, elapsed: Duration, part: Option<f64>) -> f64 {
        let Some(deadline) = self.deadline else { return MIN_SHARE };
        let left = deadline.saturating_sub(elapsed).as_secs_f64();
        let by_time = elapsed.as_secs_f64() / deadline.as_secs_f64().max(1e-9);
        let floor = match part.filter(|part| *part > 0.0 && *part < 1.0) {
            // Assumes that the rest needs as much work per part as the completed parts.
            Some(part) => self.work_time / part * (1.0 - part) / left.max(1e-9),
            // The remaining work is unknown.
            None => by_time,
        };
        floor.clamp(MIN_SHARE, 1.0)
    }

    /// Returns the number of responses that the site lost compared with the rate before the run.
    #[must_use]
    pub const fn lost_transactions(&self) -> f64 {
        self.lost_responses
    }

    /// Returns what the site served before the run.
    #[must_use]
    pub const fn baseline(&self) -> &ServedInterval {
        &self.baseline
    }
}

/// The share that the threads of a run keep to.
#[derive(Debug)]
pub struct RunThrottle {
    share: AtomicU32,
    paused_nanos: AtomicU64,
}

impl Default for RunThrottle {
    fn default() -> Self {
        Self { share: AtomicU32::new(SHARE_SCALE as u32), paused_nanos: AtomicU64::new(0) }
    }
}

/// The work time of a thread since its last pause.
#[derive(Clone, Copy, Debug)]
struct ThreadWorkTime {
    /// The total of the finished spans of work.
    accumulated: Duration,
    /// The start of the current span of work, or the end of the last pause.
    started_at: Option<Instant>,
}

impl ThreadWorkTime {
    const NONE: Self = Self { accumulated: Duration::ZERO, started_at: None };

    /// Returns the work time until `now`.
    fn elapsed_until(self, now: Instant) -> Duration {
        self.accumulated + self.started_at.map_or(Duration::ZERO, |since| now - since)
    }

    /// Starts a span of work, unless one is running.
    fn resumed(self, now: Instant) -> Self {
        Self { started_at: self.started_at.or(Some(now)), ..self }
    }

    /// Ends the span of work: from now on, the thread only waits.
    fn stopped(self, now: Instant) -> Self {
        Self { accumulated: self.elapsed_until(now), started_at: None }
    }
}

thread_local! {
    static WORK: Cell<ThreadWorkTime> = const { Cell::new(ThreadWorkTime::NONE) };
}

/// A span of work of a thread; the time between two spans does not count as work.
#[derive(Debug)]
pub(crate) struct WorkGuard;

impl Drop for WorkGuard {
    fn drop(&mut self) {
        WORK.set(WORK.get().stopped(Instant::now()));
    }
}

impl RunThrottle {
    /// Sets the share.
    pub fn set_share(&self, share: f64) {
        // Between 0 and a million, so the cast is lossless.
        self.share.store((share.clamp(MIN_SHARE, 1.0) * SHARE_SCALE) as u32, Ordering::Relaxed);
    }

    /// Returns the total pause time of all threads.
    #[must_use]
    pub fn total_pause(&self) -> Duration {
        Duration::from_nanos(self.paused_nanos.load(Ordering::Relaxed))
    }

    /// Pauses this thread as its work since the last pause requires, or until the run is asked to stop.
    pub(crate) fn pause_if_due(&self, stop: &AtomicBool) {
        let share = f64::from(self.share.load(Ordering::Relaxed)) / SHARE_SCALE;
        let now = Instant::now();
        let pause = pause_duration(WORK.get().elapsed_until(now).min(MAX_CREDITED_WORK), share);
        // Pauses below the clock resolution are postponed.
        if share < 1.0 && pause < Duration::from_millis(1) {
            WORK.set(WORK.get().resumed(now));
            return;
        }
        while let Some(left) = pause.checked_sub(now.elapsed()).filter(|left| !left.is_zero())
            && !stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(left.min(MAX_PAUSE_SLEEP));
        }
        // At full share there is no pause, whatever the clock says.
        let slept = if pause.is_zero() { pause } else { now.elapsed() };
        let nanos = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
        self.paused_nanos.fetch_add(nanos, Ordering::Relaxed);
        WORK.set(ThreadWorkTime::NONE.resumed(Instant::now()));
    }
}

/// Returns how many of `count` responses may exceed a 95th percentile by chance: a twentieth, plus twice the standard
/// deviation.
fn max_random_exceedances(count: usize) -> f64 {
    let count = count as f64;
    count * 0.05 + 2.0 * (count * 0.05 * 0.95).sqrt()
}

fn pause_duration(worked: Duration, share: f64) -> Duration {
    worked.mul_f64((1.0 - share).max(0.0) / share.max(MIN_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(count: usize, ms: u64) -> ServedInterval {
        ServedInterval {
            duration: Duration::from_secs(1),
            response_times: vec![Duration::from_millis(ms); count],
        }
    }

    fn controller(deadline: Option<u64>) -> ThrottleController {
        ThrottleController::new(served(100, 20), deadline.map(Duration::from_secs))
    }

    #[test]
    fn slow_responses_halve_the_share_and_fast_ones_restore_it() {
        let mut run = controller(None);
        let mut observe =
            |ms| (run.observe(&served(100, ms), Duration::ZERO, None) * 100.0).round();
        // 24 ms is a fifth more than 20.
        assert_eq!(observe(24), 100.0);
        assert_eq!([observe(30), observe(30), observe(30)], [50.0, 25.0, 13.0]);
        assert_eq!([observe(30), observe(30), observe(30)], [6.0, 5.0, 5.0]);
        assert_eq!([observe(20), observe(20)], [15.0, 25.0]);
    }

    #[test]
    fn a_site_without_visitors_holds_nothing_up() {
        let mut run = controller(None);
        assert_eq!(run.observe(&served(0, 0), Duration::ZERO, None), 1.0);
        // A few responses are not significant, however slow.
        assert_eq!(
            run.observe(&served(MIN_PERCENTILE_SAMPLES - 1, 900), Duration::ZERO, None),
            1.0
        );
        let mut idle = ThrottleController::new(ServedInterval::default(), None);
        assert_eq!(idle.observe(&served(0, 0), Duration::ZERO, None), 1.0);
        assert_eq!(idle.lost_transactions(), 0.0);
    }

    /// A site with one or two requests per second is observed for longer, and not ignored.
    #[test]
    fn few_visitors_are_judged_together() {
        let mut run = controller(None);
        let mut observe = |count, ms| run.observe(&served(count, ms), Duration::ZERO, None);
        for _ in 0..9 {
            assert_eq!(observe(1, 90), 1.0);
        }
        // Ten answers in ten seconds, or twenty sooner.
        assert_eq!(observe(1, 90), 0.5);
        assert_eq!([observe(9, 90), observe(9, 90), observe(9, 90)], [0.5, 0.5, 0.25]);
        // Old responses are not judged together with new ones.
        observe(2, 90);
        for _ in 0..9 {
            assert_eq!(observe(0, 0), 0.25);
        }
        assert_eq!(observe(0, 0), 0.35);
    }

    /// Returns the mean share at a number of responses per second, whose times vary as those of a real site and are
    /// `factor` times the earlier ones.
    fn mean_share(a_second: usize, factor: f64) -> f64 {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1_u32 << 24)
        };
        // The sum of twelve uniform values approximates a normal distribution.
        let mut time = || ((0..12).map(|_| uniform()).sum::<f64>() - 6.0).mul_add(0.5, -3.0).exp();
        let mut served = |count: usize, factor: f64| ServedInterval {
            duration: Duration::from_secs(1),
            response_times: (0..count).map(|_| Duration::from_secs_f64(time() * factor)).collect(),
        };
        let mut run = ThrottleController::new(served(1_500, 1.0), None);
        let spans = 1_000_u32;
        let shares = (0..spans)
            .map(|_| run.observe(&served(a_second, factor), Duration::ZERO, None))
            .sum::<f64>();
        shares / f64::from(spans)
    }

    /// The slowest of a few responses is often slower than most were before, with and without a run.
    #[test]
    fn chance_does_not_brake_a_run() {
        for a_second in [1, 5, 7, 19, 20, 100] {
            let (same, doubled) = (mean_share(a_second, 1.0), mean_share(a_second, 2.0));
            assert!(same > 0.8, "{a_second} a second: {same}");
            assert!(doubled < 0.8, "{a_second} a second, twice as long: {doubled}");
        }
    }

    /// There were no requests before the run: it pauses when they come, learns the usual response times, and then
    /// throttles to preserve them.
    #[test]
    fn what_is_usual_is_learned_from_pauses() {
        let mut run = ThrottleController::new(ServedInterval::default(), None);
        let mut observe = |count, ms| run.observe(&served(count, ms), Duration::ZERO, None);
        assert_eq!(observe(0, 0), 1.0);
        // Responses beside a run at full share say nothing about those without a run.
        assert_eq!(observe(100, 90), MIN_SHARE);
        assert_eq!(observe(15, 20), MIN_SHARE);
        assert_eq!(observe(0, 0), MIN_SHARE + SHARE_STEP);
        assert_eq!(observe(100, 60), MIN_SHARE);
        assert_eq!(observe(15, 20), MIN_SHARE);
        // The usual times are known now: 20 ms are fine, and 30 are not.
        let quiet = observe(100, 20);
        assert!(quiet > MIN_SHARE, "{quiet}");
        assert!(observe(100, 30) < quiet);
        assert_eq!(run.baseline().p95(), Some(Duration::from_millis(20)));
    }

    #[test]
    fn a_deadline_keeps_the_share_up() {
        let mut run = controller(Some(10));
        // Half of the work took nine seconds, and one second is left: the run may not be throttled.
        for second in 1..=9 {
            run.observe(&served(100, 90), Duration::from_secs(second), None);
        }
        let share = run.observe(&served(100, 90), Duration::from_secs(9), Some(0.5));
        assert_eq!(share, 1.0);
        // With a hundredth left, a small share suffices.
        let share = run.observe(&served(100, 90), Duration::from_secs(9), Some(0.99));
        assert!(share <= 0.5, "{share}");
        let late = run.observe(&served(100, 90), Duration::from_secs(11), None);
        assert_eq!(late, 1.0);
        // More than expected: the remaining work is unknown, and time passes.
        let more = run.observe(&served(100, 90), Duration::from_secs(9), Some(1.2));
        assert!(more >= 0.9, "{more}");
    }

    #[test]
    fn lost_answers_are_summed_up_and_made_up_for() {
        let mut run = controller(None);
        for (count, lost) in [(60, 40.0), (100, 40.0), (130, 10.0), (200, 0.0), (90, 10.0)] {
            run.observe(&served(count, 20), Duration::ZERO, None);
            assert!((run.lost_transactions() - lost).abs() < 1e-6, "{count}");
        }
    }

    #[test]
    fn pauses_follow_the_share() {
        let work = Duration::from_millis(100);
        assert_eq!(pause_duration(work, 1.0), Duration::ZERO);
        assert_eq!(pause_duration(work, 0.5), work);
        assert_eq!(pause_duration(work, 0.25), work * 3);
        let throttle = RunThrottle::default();
        throttle.pause_if_due(&AtomicBool::new(false));
        assert_eq!(throttle.total_pause(), Duration::ZERO);
    }

    #[test]
    fn waiting_for_others_is_no_work() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let work = ThreadWorkTime::NONE.resumed(at(0)).stopped(at(30));
        assert_eq!(work.elapsed_until(at(900)), Duration::from_millis(30));
        let work = work.resumed(at(900)).resumed(at(910));
        assert_eq!(work.elapsed_until(at(920)), Duration::from_millis(50));
        assert_eq!(work.stopped(at(930)).stopped(at(999)).accumulated, Duration::from_millis(60));
    }

    /// Nineteen seconds of pause are due; a run that is to stop does not wait for them.
    #[test]
    fn a_pause_ends_with_the_run() {
        let throttle = RunThrottle::default();
        throttle.set_share(MIN_SHARE);
        WORK.set(ThreadWorkTime { accumulated: MAX_CREDITED_WORK, started_at: None });
        throttle.pause_if_due(&AtomicBool::new(true));
        assert!(throttle.total_pause() < MAX_CREDITED_WORK * 19, "{:?}", throttle.total_pause());
        assert_eq!(WORK.get().accumulated, Duration::ZERO);
    }

    /// The time between two spans of work does not count, and a pause resets the work time.
    #[test]
    fn a_thread_counts_what_it_works() {
        let throttle = RunThrottle::default();
        throttle.pause_if_due(&AtomicBool::new(false));
        assert!(WORK.get().started_at.is_some());
        drop(WorkGuard);
        assert_eq!(WORK.get().started_at, None);
        // A pause resets the work time.
        throttle.pause_if_due(&AtomicBool::new(false));
        assert_eq!(WORK.get().accumulated, Duration::ZERO);
        assert!(WORK.get().started_at.is_some());
    }

    #[test]
    fn the_percentile_is_that_of_the_slow_ones() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        let served = ServedInterval { duration: Duration::from_secs(1), response_times: times };
        assert_eq!(served.p95(), Some(Duration::from_millis(95)));
    }
}
