//! Throttling for visitors: a save of a running instance slows down while the instance's responses take longer than
//! before.
//!
//! Input: the instance's `request.log`, as it grows. Output: the share of time in which the save works, and the
//! slowdown that visitors still had.
//!
//! Not here: the decision how much to slow down (`throttle_controller`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tympan_web::log_time::LogTime;
use tympan_web::request_log::{RequestLogEvent, parse_request_log_line};

use crate::backup_progress::BackupProgress;
use crate::throttle_controller::{RunThrottle, ServedInterval, ThrottleController};

/// The duration of the baseline measurement before the save begins.
const BASELINE_DURATION: Duration = Duration::from_secs(5);
/// The number of responses in that time that suffices for a baseline; otherwise the log of the last minutes is used.
const SUFFICIENT_RESPONSE_COUNT: usize = 100;
/// The minimum number of responses in the last minutes for a baseline.
const MIN_RESPONSE_COUNT: usize = 20;
/// The age up to which log entries are used.
const LOG_WINDOW: Duration = Duration::from_mins(5);
/// The maximum size of the end of the log that is read for them.
const MAX_LOG_TAIL_BYTES: u64 = 8 << 20;
/// The interval at which the share is adjusted.
const THROTTLE_INTERVAL: Duration = Duration::from_millis(500);

/// The end of a log that another process writes.
#[derive(Debug)]
struct RequestLogTail {
    path: PathBuf,
    file: File,
    /// The beginning of an incomplete line.
    partial_line: Vec<u8>,
}

impl RequestLogTail {
    fn open(path: PathBuf) -> std::io::Result<Self> {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path, file, partial_line: Vec::new() })
    }

    /// Returns the response times that were written since the last call. Lines that cannot be parsed are skipped.
    fn read_new_times(&mut self) -> Vec<Duration> {
        self.file.read_to_end(&mut self.partial_line).ok();
        // A rotated log continues in a new file with the same name.
        let is_other =
            |path: &Path| Some(path.metadata().ok()?.ino() != self.file.metadata().ok()?.ino());
        if is_other(&self.path) == Some(true)
            && let Ok(file) = File::open(&self.path)
        {
            self.file = file;
            self.file.read_to_end(&mut self.partial_line).ok();
        }
        let Some(end) = self.partial_line.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let left = self.partial_line.split_off(end + 1);
        let text = std::mem::replace(&mut self.partial_line, left);
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter_map(|line| parse_request_log_line(line).ok());
        lines
            .filter_map(|line| match line.event {
                RequestLogEvent::Exit { elapsed, .. } => Some(elapsed),
                RequestLogEvent::Entry { .. } => None,
            })
            .collect()
    }
}

/// Returns the responses of the last minutes, as far back as the log goes.
fn recent_log_responses(log: &Path, now: SystemTime) -> std::io::Result<ServedInterval> {
    let mut file = File::open(log)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    let now = LogTime::from_system(now).unix_seconds();
    let (mut times, mut first) = (Vec::new(), now);
    for line in
        String::from_utf8_lossy(&bytes).lines().filter_map(|line| parse_request_log_line(line).ok())
    {
        let at = line.logged_at.unix_seconds();
        let age = u64::try_from(now - at).unwrap_or(0);
        if age <= LOG_WINDOW.as_secs()
            && let RequestLogEvent::Exit { elapsed, .. } = line.event
        {
            first = first.min(at);
            times.push(elapsed);
        }
    }
    let span = u64::try_from(now - first).unwrap_or(0).max(1);
    Ok(ServedInterval { duration: Duration::from_secs(span), response_times: times })
}

/// A histogram of response times to three significant digits: its size does not grow with the number of responses.
#[derive(Debug, Default)]
struct ResponseTimeHistogram(BTreeMap<u64, u64>);

impl ResponseTimeHistogram {
    fn add(&mut self, time: Duration) {
        let mut unit = 1;
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        while micros / unit >= 1000 {
            unit *= 10;
        }
        *self.0.entry(micros / unit * unit).or_default() += 1;
    }

    /// Returns the 95th percentile; `None` if there was no response.
    fn p95(&self) -> Option<Duration> {
        let at = (self.0.values().sum::<u64>() * 95).div_ceil(100);
        let mut passed = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            passed += **count;
            passed >= at
        });
        bucket.map(|(micros, _)| Duration::from_micros(*micros))
    }
}

/// The source of the baseline of response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineSource {
    /// A measurement of the instance before the save.
    LiveMeasurement,
    /// The instance's log of the last minutes.
    RequestLog,
}

/// A save that is throttled for visitors, by a thread that follows the instance's log.
#[derive(Debug)]
pub struct ThrottledSave {
    stop_sender: Sender<()>,
    thread: JoinHandle<(ThrottleController, ResponseTimeHistogram)>,
    throttle: Arc<RunThrottle>,
}

/// The result of throttling.
#[derive(Debug, Clone, PartialEq)]
pub struct ThrottleReport {
    /// The 95th percentile of response times before the save, if there were enough responses.
    pub baseline_p95: Option<Duration>,
    /// The 95th percentile of response times during the save, if there were any.
    pub p95_during_save: Option<Duration>,
    /// The estimated number of responses that visitors did not get because of the save.
    pub lost_share: f64,
    /// The time for which the save paused.
    pub paused_time: Duration,
}

impl ThrottledSave {
    /// Measures the response times of an instance in its `request.log`, and then starts to throttle the run. A live
    /// measurement takes 5 seconds. With a deadline, the run is throttled so that it ends in time.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub fn start(
        log: &Path,
        (before, deadline): (BaselineSource, Option<Duration>),
        progress: &Arc<BackupProgress>,
    ) -> std::io::Result<Self> {
        let mut tail = RequestLogTail::open(log.to_owned())?;
        let throttle = Arc::new(RunThrottle::default());
        progress.set_throttle(throttle.clone());
        let (stop, stopped) = channel::<()>();
        if before == BaselineSource::LiveMeasurement {
            stopped.recv_timeout(BASELINE_DURATION).ok();
        }
        let watched =
            ServedInterval { duration: BASELINE_DURATION, response_times: tail.read_new_times() };
        let before = if watched.response_times.len() >= SUFFICIENT_RESPONSE_COUNT {
            watched
        } else {
            // If there are few visitors, or the log cannot be read, the baseline is learned from pauses of the save.
            let minutes = recent_log_responses(log, SystemTime::now()).unwrap_or_default();
            if minutes.response_times.len() >= MIN_RESPONSE_COUNT {
                minutes
            } else {
                ServedInterval::default()
            }
        };
        let mut controller = ThrottleController::new(before, deadline);
        let (progress, braked) = (progress.clone(), throttle.clone());
        let thread = std::thread::spawn(move || {
            let begin = Instant::now();
            let mut last = begin;
            let mut all = ResponseTimeHistogram::default();
            loop {
                let is_over =
                    stopped.recv_timeout(THROTTLE_INTERVAL) != Err(RecvTimeoutError::Timeout);
                let now = Instant::now();
                let served =
                    ServedInterval { duration: now - last, response_times: tail.read_new_times() };
                last = now;
                let share = controller.observe(&served, now - begin, progress_share(&progress));
                braked.set_share(share);
                served.response_times.iter().for_each(|time| all.add(*time));
                if is_over {
                    return (controller, all);
                }
            }
        });
        Ok(Self { stop_sender: stop, thread, throttle })
    }

    /// Ends the throttling with the run; returns `None` if its thread panicked.
    #[must_use]
    pub fn finish(self) -> Option<ThrottleReport> {
        drop(self.stop_sender);
        let (controller, all) = self.thread.join().ok()?;
        Some(ThrottleReport {
            baseline_p95: controller.baseline().p95(),
            p95_during_save: all.p95(),
            lost_share: controller.lost_transactions(),
            paused_time: self.throttle.total_pause(),
        })
    }
}

/// Returns the completed share of a run, if its total is known.
fn progress_share(progress: &BackupProgress) -> Option<f64> {
    let expected = progress.expected_items.load(Ordering::Relaxed);
    let done = progress.items.load(Ordering::Relaxed);
    (expected > 0).then(|| done as f64 / expected as f64)
}

impl ThrottleReport {
    /// Returns true if the save was slowed down.
    #[must_use]
    pub fn was_slowed(&self) -> bool {
        !self.paused_time.is_zero()
    }
}

impl std::fmt::Display for ThrottleReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(before), Some(meanwhile)) = (self.baseline_p95, self.p95_during_save) else {
            return f.write_str("too few requests were served during the save to measure a delay");
        };
        write!(
            f,
            "throttled: response time p95 was {before:?} before and {meanwhile:?} during the save; {:.0} \
             responses fewer than usual; paused for {:.1} s",
            self.lost_share,
            self.paused_time.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_million_responses_take_no_more_memory_than_some() {
        let mut spread = ResponseTimeHistogram::default();
        assert_eq!(spread.p95(), None);
        (0..1_000_000).for_each(|number| spread.add(Duration::from_micros(number)));
        assert!(spread.0.len() <= 1000 + 3 * 900, "{}", spread.0.len());
        assert_eq!(spread.p95(), Some(Duration::from_micros(949_000)));
        spread.add(Duration::MAX);
        assert_eq!(spread.p95(), Some(Duration::from_micros(950_000)));
    }

    #[test]
    fn the_last_minutes_of_a_log_tell_what_is_usual() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("request.log");
        let line =
            |at: &str, ms: u64| format!("21/Nov/2026:{at} +0000 [2] <- 200 text/html {ms}ms\n");
        let entry = "21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html HTTP/1.1\n";
        let lines =
            [line("00:44:00", 900), line("00:46:20", 20), entry.into(), line("00:50:16", 30)];
        std::fs::write(&path, lines.concat()).unwrap();
        let at = parse_request_log_line(line("00:51:00", 1).trim_end())
            .unwrap()
            .logged_at
            .unix_seconds();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at.try_into().unwrap());
        let served = recent_log_responses(&path, now).unwrap();
        assert_eq!(served.response_times, [20, 30].map(Duration::from_millis));
        assert_eq!(served.duration, Duration::from_secs(280));
        let later = recent_log_responses(&path, now + LOG_WINDOW).unwrap();
        assert!(later.response_times.is_empty() && later.p95().is_none());
    }

    #[test]
    fn a_log_is_followed_past_half_lines_and_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("request.log");
        let exit = |ms: u64| format!("21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html {ms}ms\n");
        std::fs::write(&path, exit(1)).unwrap();
        let mut tail = RequestLogTail::open(path.clone()).unwrap();
        assert!(tail.read_new_times().is_empty(), "what was before does not count");
        let mut log = File::options().append(true).open(&path).unwrap();
        let entry = "21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html HTTP/1.1\n";
        let text = format!("{entry}{}nonsense\n{}", exit(20), exit(30).trim_end());
        log.write_all(text.as_bytes()).unwrap();
        assert_eq!(tail.read_new_times(), [Duration::from_millis(20)]);
        log.write_all(b"\n").unwrap();
        std::fs::rename(&path, dir.path().join("request.log.1")).unwrap();
        std::fs::write(&path, exit(40)).unwrap();
        assert_eq!(tail.read_new_times(), [Duration::from_millis(30), Duration::from_millis(40)]);
    }
}
