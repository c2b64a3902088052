//! Giving way to visitors: a save beside an instance works less while the instance's answers take longer than before.
//!
//! In: the instance's `request.log`, as it grows. Out: the share of its time that the save works, and what the visitors
//! lost all the same.

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

use serde_json::{Value, json};
use tympan_backup::{Controller, Progress, Served, Throttle};
use tympan_web::log_time::LogTime;
use tympan_web::request_log::{Event, parse_line};

use crate::command::Fault;

/// For how long the instance is watched before the save begins.
const BEFORE: Duration = Duration::from_secs(5);
/// So many answers in that time tell what is usual; otherwise the last minutes are looked at.
const ENOUGH: usize = 100;
/// Fewer in the last minutes tell nothing.
const SOME: usize = 20;
/// How long ago is too long.
const MINUTES: Duration = Duration::from_mins(5);
/// The end of the log that is looked at for them, at most.
const MAX_TAIL: u64 = 8 << 20;
/// How often the share is decided about.
const SPAN: Duration = Duration::from_millis(500);

/// The end of a log that others write.
struct Tail {
    path: PathBuf,
    file: File,
    /// The beginning of a line that is not complete.
    rest: Vec<u8>,
}

impl Tail {
    fn open(path: PathBuf) -> std::io::Result<Self> {
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { path, file, rest: Vec::new() })
    }

    /// Returns the response times that were written since the last call. What cannot be read is left out.
    fn times(&mut self) -> Vec<Duration> {
        self.file.read_to_end(&mut self.rest).ok();
        // A log that was rotated goes on under the same name.
        let is_other =
            |path: &Path| Some(path.metadata().ok()?.ino() != self.file.metadata().ok()?.ino());
        if is_other(&self.path) == Some(true)
            && let Ok(file) = File::open(&self.path)
        {
            self.file = file;
            self.file.read_to_end(&mut self.rest).ok();
        }
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let left = self.rest.split_off(end + 1);
        let text = std::mem::replace(&mut self.rest, left);
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter_map(|line| parse_line(line).ok());
        lines
            .filter_map(|line| match line.event {
                Event::Exit { elapsed, .. } => Some(elapsed),
                Event::Entry { .. } => None,
            })
            .collect()
    }
}

/// Returns what was served in the last minutes, as far back as the log goes.
fn last_minutes(log: &Path, now: SystemTime) -> std::io::Result<Served> {
    let mut file = File::open(log)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_TAIL)))?;
    let mut bytes = Vec::new();
    file.take(MAX_TAIL).read_to_end(&mut bytes)?;
    let now = LogTime::from_system(now).unix_seconds();
    let (mut times, mut first) = (Vec::new(), now);
    for line in String::from_utf8_lossy(&bytes).lines().filter_map(|line| parse_line(line).ok()) {
        let at = line.at.unix_seconds();
        let age = u64::try_from(now - at).unwrap_or(0);
        if age <= MINUTES.as_secs()
            && let Event::Exit { elapsed, .. } = line.event
        {
            first = first.min(at);
            times.push(elapsed);
        }
    }
    let span = u64::try_from(now - first).unwrap_or(0).max(1);
    Ok(Served { span: Duration::from_secs(span), times })
}

/// How many answers took how long, to three digits: its size does not grow with their number.
#[derive(Debug, Default)]
struct Spread(BTreeMap<u64, u64>);

impl Spread {
    fn add(&mut self, time: Duration) {
        let mut unit = 1;
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        while micros / unit >= 1000 {
            unit *= 10;
        }
        *self.0.entry(micros / unit * unit).or_default() += 1;
    }

    /// Returns the 95th percentile; nothing if nobody was served.
    fn p95(&self) -> Option<Duration> {
        let at = (self.0.values().sum::<u64>() * 95).div_ceil(100);
        let mut passed = 0;
        let found = self.0.iter().find(|(_, count)| {
            passed += **count;
            passed >= at
        });
        found.map(|(micros, _)| Duration::from_micros(*micros))
    }
}

/// From what it is known what is usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The instance is watched for a moment before the save.
    Watched,
    /// Its log of the last minutes.
    Logged,
}

/// A save that gives way.
pub(crate) struct GivingWay {
    stop: Sender<()>,
    thread: JoinHandle<(Controller, Spread)>,
    throttle: Arc<Throttle>,
}

/// What came of it.
pub(crate) struct Yielded {
    before: Option<Duration>,
    meanwhile: Option<Duration>,
    lost: f64,
    paused: Duration,
}

impl GivingWay {
    /// Finds out how an instance serves, and then begins to brake the run.
    ///
    /// # Errors
    /// If the home has no log of requests.
    pub(crate) fn begin(
        home: &Path,
        (before, deadline): (Before, Option<Duration>),
        progress: &Arc<Progress>,
    ) -> Result<Self, Fault> {
        let log = home.join("logs").join("request.log");
        let mut tail = Tail::open(log.clone()).map_err(|error| {
            Fault::usage(format!(
                "cannot read `{}`: {error}; name the home of an instance that serves",
                log.display()
            ))
        })?;
        let throttle = Arc::new(Throttle::default());
        progress.brake_with(throttle.clone());
        let (stop, stopped) = channel::<()>();
        if before == Before::Watched {
            stopped.recv_timeout(BEFORE).ok();
        }
        let watched = Served { span: BEFORE, times: tail.times() };
        let before = if watched.times.len() >= ENOUGH {
            watched
        } else {
            // What few visitors saw, and what cannot be read, is learned from pauses.
            let minutes = last_minutes(&log, SystemTime::now()).unwrap_or_default();
            if minutes.times.len() >= SOME { minutes } else { Served::default() }
        };
        let mut controller = Controller::new(before, deadline);
        let (progress, braked) = (progress.clone(), throttle.clone());
        let thread = std::thread::spawn(move || {
            let begin = Instant::now();
            let mut last = begin;
            let mut all = Spread::default();
            loop {
                let is_over = stopped.recv_timeout(SPAN) != Err(RecvTimeoutError::Timeout);
                let now = Instant::now();
                let served = Served { span: now - last, times: tail.times() };
                last = now;
                let share = controller.observe(&served, now - begin, part_of(&progress));
                braked.set_share(share);
                served.times.iter().for_each(|time| all.add(*time));
                if is_over {
                    return (controller, all);
                }
            }
        });
        Ok(Self { stop, thread, throttle })
    }

    /// Ends with the run.
    pub(crate) fn end(self) -> Option<Yielded> {
        drop(self.stop);
        let (controller, all) = self.thread.join().ok()?;
        Some(Yielded {
            before: controller.baseline().p95(),
            meanwhile: all.p95(),
            lost: controller.transactions_lost(),
            paused: self.throttle.paused(),
        })
    }
}

/// Returns how much of a run is done, if it knows how much there is.
fn part_of(progress: &Progress) -> Option<f64> {
    let expected = progress.expected_items.load(Ordering::Relaxed);
    let done = progress.items.load(Ordering::Relaxed);
    (expected > 0).then(|| done as f64 / expected as f64)
}

impl Yielded {
    /// Tells whether the save had to wait for anybody.
    pub(crate) fn was_asked_for(&self) -> bool {
        !self.paused.is_zero()
    }

    pub(super) fn to_json(&self) -> Value {
        let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
        json!({
            "message_type": "gave_way", "p95_ms_before": ms(self.before), "p95_ms": ms(self.meanwhile),
            "transactions_lost": self.lost.round(), "paused_ms": self.paused.as_millis(),
        })
    }
}

impl std::fmt::Display for Yielded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Some(before), Some(meanwhile)) = (self.before, self.meanwhile) else {
            return f.write_str("hardly anybody was served meanwhile, so nothing was held up");
        };
        write!(
            f,
            "gave way: 95 of 100 answers took at most {before:?} before and {meanwhile:?} meanwhile; {:.0} answers fewer \
             than usual; paused for {:.1} s",
            self.lost,
            self.paused.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_million_answers_take_no_more_room_than_some() {
        let mut spread = Spread::default();
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
        let at = parse_line(line("00:51:00", 1).trim_end()).unwrap().at.unix_seconds();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at.try_into().unwrap());
        let served = last_minutes(&path, now).unwrap();
        assert_eq!(served.times, [20, 30].map(Duration::from_millis));
        assert_eq!(served.span, Duration::from_secs(280));
        let later = last_minutes(&path, now + MINUTES).unwrap();
        assert!(later.times.is_empty() && later.p95().is_none());
    }

    #[test]
    fn a_log_is_followed_past_half_lines_and_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("request.log");
        let exit = |ms: u64| format!("21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html {ms}ms\n");
        std::fs::write(&path, exit(1)).unwrap();
        let mut tail = Tail::open(path.clone()).unwrap();
        assert!(tail.times().is_empty(), "what was before does not count");
        let mut log = File::options().append(true).open(&path).unwrap();
        let entry = "21/Nov/2026:00:50:16 +0000 [2] -> GET /content/en.html HTTP/1.1\n";
        let text = format!("{entry}{}nonsense\n{}", exit(20), exit(30).trim_end());
        log.write_all(text.as_bytes()).unwrap();
        assert_eq!(tail.times(), [Duration::from_millis(20)]);
        log.write_all(b"\n").unwrap();
        std::fs::rename(&path, dir.path().join("request.log.1")).unwrap();
        std::fs::write(&path, exit(40)).unwrap();
        assert_eq!(tail.times(), [Duration::from_millis(30), Duration::from_millis(40)]);
    }
}
