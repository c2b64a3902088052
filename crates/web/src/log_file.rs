//! A log file written by its own thread, so that no request waits for a disk.
//!
//! In: lines as values; they are turned into text on the writer's thread. Out: an append-only text file, and with
//! [`Rotation`] one more for each day before, named as AEM does: `request.log.2026-11-20`, and behind it
//! `request.log.2026-11-20.1` where a day had more than a file may hold.
//!
//! Invariants
//! * [`LogFile::write`] never blocks: when the queue is full the line is dropped and counted.
//! * Lines of one sender keep their order. Text is on its way to the kernel at most one second after `write`.
//!
//! On failure: a line that cannot be written (full disk) is dropped and counted; the next one is tried again. A file
//! that cannot be renamed goes on under its name.

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::{Error, Result};

/// Lines that wait for the writer at most.
const QUEUE: usize = 16 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
const FLUSH_AFTER: Duration = Duration::from_secs(1);
/// After it has written all there was, the writer lets lines gather for so long: to wake it costs a request more than to
/// make a line, and a busy server would do it for each.
const GATHER: Duration = Duration::from_millis(5);

/// A new file for each day, in UTC, and perhaps more of them on a day of many requests.
#[derive(Debug, Clone, Copy)]
pub struct Rotation {
    /// How many files that were put aside are kept.
    pub keep: usize,
    /// The size at which a file is put aside before its day is over.
    pub max_bytes: Option<u64>,
    /// Tells the time.
    pub clock: fn() -> SystemTime,
}

impl Default for Rotation {
    /// Two weeks.
    fn default() -> Self {
        Self { keep: 14, max_bytes: None, clock: SystemTime::now }
    }
}

enum Order<L> {
    Line(L),
    Text(String),
    Reopen,
    Sync(SyncSender<()>),
}

/// The sending side; clones share the writer, which ends with the last of them.
#[derive(Debug)]
pub struct LogFile<L> {
    shared: Arc<Shared<L>>,
}

impl<L> Clone for LogFile<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

#[derive(Debug)]
struct Shared<L> {
    // `None` only while dropping, as the writer ends when its queue closes.
    orders: Option<SyncSender<Order<L>>>,
    writer: Option<JoinHandle<()>>,
    dropped: Arc<AtomicU64>,
}

impl<L> Drop for Shared<L> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            // The writer's own panic has been reported by then, and dropping cannot fail.
            drop(writer.join());
        }
    }
}

impl<L: Display + Send + 'static> LogFile<L> {
    /// Opens `file` for appending and starts its writer.
    ///
    /// # Errors
    /// [`Error::LogFile`] when the file cannot be opened or no thread started.
    pub fn open(file: &Path) -> Result<Self> {
        Self::open_with(file, None)
    }

    /// Opens `file` for appending, with a new one for each day.
    ///
    /// # Errors
    /// As [`LogFile::open`].
    pub fn open_daily(file: &Path, rotation: Rotation) -> Result<Self> {
        Self::open_with(file, Some(rotation))
    }

    fn open_with(file: &Path, rotation: Option<Rotation>) -> Result<Self> {
        let failed = |source| Error::LogFile { file: file.to_owned(), source };
        let opened = open_for_append(file).map_err(failed)?;
        // What an earlier run wrote on another day is put aside with the first line.
        let written = opened.metadata().ok().filter(|metadata| metadata.len() > 0);
        let bytes = written.as_ref().map_or(0, std::fs::Metadata::len);
        let written = written.and_then(|metadata| metadata.modified().ok());
        let day = rotation.map_or(0, |rotation| day_of(written.unwrap_or_else(rotation.clock)));
        let (orders, queue) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: file.to_owned(),
            file: BufWriter::with_capacity(BUFFER_BYTES, opened),
            dropped: Arc::clone(&dropped),
            rotation,
            day,
            bytes,
        };
        let writer = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(failed)?;
        Ok(Self {
            shared: Arc::new(Shared { orders: Some(orders), writer: Some(writer), dropped }),
        })
    }

    /// Queues `line`, or drops it if the queue is full.
    pub fn write(&self, line: L) {
        let is_queued = self
            .shared
            .orders
            .as_ref()
            .is_some_and(|orders| orders.try_send(Order::Line(line)).is_ok());
        if !is_queued {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues whole lines that are text already, each with its line break; drops all of them if the queue is full.
    pub fn write_text(&self, lines: String) {
        let Some(orders) = &self.shared.orders else { return };
        let refused = orders.try_send(Order::Text(lines));
        if let Err(TrySendError::Full(order) | TrySendError::Disconnected(order)) = refused
            && let Order::Text(lines) = order
        {
            let count = lines.bytes().filter(|byte| *byte == b'\n').count() as u64;
            self.shared.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Returns how many lines were lost to a full queue or disk.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Opens the path anew after what is queued, for tools that rotate logs by renaming.
    pub fn reopen(&self) {
        self.order(Order::Reopen);
    }

    /// Waits until everything queued before is written to the file.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        self.order(Order::Sync(done));
        // An error means that the writer ended, so nothing is left to wait for.
        wait.recv().ok();
    }

    fn order(&self, order: Order<L>) {
        if let Some(orders) = &self.shared.orders {
            orders.send(order).ok();
        }
    }
}

const DAY_SECONDS: u64 = 86_400;

/// Returns the day of a time, in UTC, since 1970.
fn day_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY_SECONDS)
}

fn open_for_append(file: &Path) -> std::io::Result<File> {
    File::options().append(true).create(true).open(file)
}

struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    dropped: Arc<AtomicU64>,
    rotation: Option<Rotation>,
    /// The day of the file, since 1970.
    day: u64,
    /// What the file holds, with what is on its way to it.
    bytes: u64,
}

impl Writer {
    fn run<L: Display>(mut self, queue: &Receiver<Order<L>>) {
        let (mut has_text, mut gathers) = (false, false);
        let mut text = String::new();
        loop {
            let order = match queue.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) if gathers => {
                    std::thread::sleep(GATHER);
                    gathers = false;
                    continue;
                }
                Err(TryRecvError::Empty) => match queue.recv_timeout(FLUSH_AFTER) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Timeout) if has_text => {
                        self.try_to(|file| file.flush());
                        has_text = false;
                        continue;
                    }
                    Err(RecvTimeoutError::Timeout) => match queue.recv() {
                        Ok(order) => order,
                        Err(_closed) => break,
                    },
                    Err(RecvTimeoutError::Disconnected) => break,
                },
            };
            gathers = matches!(order, Order::Line(_) | Order::Text(_));
            match order {
                Order::Line(line) => {
                    self.rotate();
                    text.clear();
                    // Writing to a string cannot fail.
                    writeln!(text, "{line}").ok();
                    self.bytes += text.len() as u64;
                    self.try_to(|file| file.write_all(text.as_bytes()));
                    has_text = true;
                }
                Order::Text(lines) => {
                    self.rotate();
                    self.try_to(|file| file.write_all(lines.as_bytes()));
                    has_text = true;
                }
                Order::Reopen => self.reopen(),
                Order::Sync(done) => {
                    self.try_to(|file| file.flush());
                    done.send(()).ok();
                }
            }
        }
        self.try_to(|file| file.flush());
    }

    /// Puts the file aside when its day is over, or when it is as large as it may be.
    fn rotate(&mut self) {
        let Some(rotation) = self.rotation else { return };
        let today = day_of((rotation.clock)());
        let is_large = rotation.max_bytes.is_some_and(|max| self.bytes >= max.max(1));
        if today == self.day && !is_large {
            return;
        }
        self.try_to(|file| file.flush());
        let aside = self.aside();
        self.day = today;
        if let Err(error) = std::fs::rename(&self.path, &aside) {
            tracing::warn!(file = %self.path.display(), reason = %error, "cannot put a log aside");
            // Tried again after as many bytes, not with each line.
            self.bytes = 0;
            return;
        }
        self.reopen();
        self.prune(rotation.keep);
    }

    /// Returns the name for the file of its day: behind all that the day has already.
    fn aside(&self) -> PathBuf {
        let days = i64::try_from(self.day).unwrap_or(i64::MAX);
        let date = jiff::Timestamp::from_second(days.saturating_mul(DAY_SECONDS as i64));
        let date = date.unwrap_or_default().to_zoned(jiff::tz::TimeZone::UTC).date();
        let of_day = self.dated().into_iter().filter(|(day, ..)| *day == date);
        let number = of_day.map(|(_, number, _)| number + 1).max();
        let mut name = self.path.as_os_str().to_owned();
        name.push(match number {
            None => format!(".{date}"),
            Some(number) => format!(".{date}.{number}"),
        });
        PathBuf::from(name)
    }

    /// Returns the files that were put aside, with day and number.
    fn dated(&self) -> Vec<(jiff::civil::Date, u64, String)> {
        let (Some(folder), Some(own)) = (self.path.parent(), self.path.file_name()) else {
            return Vec::new();
        };
        let own = format!("{}.", own.to_string_lossy());
        let read = |name: String| {
            let rest = name.strip_prefix(&own)?;
            let (date, number) = rest.split_at_checked(10)?;
            let number = match number.strip_prefix('.') {
                // Packed files (`.gz`) belong to their day, too.
                Some(number) => number.split('.').next()?.parse().unwrap_or(0),
                None => 0,
            };
            Some((date.parse().ok()?, number, name))
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(read).collect()
    }

    /// Removes the files that were put aside but for the newest ones.
    fn prune(&self, keep: usize) {
        let Some(folder) = self.path.parent() else { return };
        let mut files = self.dated();
        files.sort_unstable();
        files.truncate(files.len().saturating_sub(keep));
        for (_, _, name) in files {
            if let Err(error) = std::fs::remove_file(folder.join(&name)) {
                tracing::warn!(file = name, reason = %error, "cannot remove an old log");
            }
        }
    }

    fn reopen(&mut self) {
        self.try_to(|file| file.flush());
        match open_for_append(&self.path) {
            Ok(file) => {
                self.bytes = file.metadata().map_or(0, |metadata| metadata.len());
                self.file = BufWriter::with_capacity(BUFFER_BYTES, file);
            }
            Err(error) => {
                tracing::warn!(file = %self.path.display(), reason = %error, "cannot reopen the log");
            }
        }
    }

    fn try_to(&mut self, action: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) {
        if action(&mut self.file).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
