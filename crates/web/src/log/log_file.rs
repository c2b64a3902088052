//! A log file written by its own thread, so that no request waits for a disk.
//!
//! In: lines, which are formatted at the end of a queue. Out: an append-only text file, and with [`LogRotation`] one
//! more for each earlier day, named as in AEM: `request.log.2026-11-20`, followed by `request.log.2026-11-20.1` if the
//! lines of a day exceed the maximum size of a file.
//!
//! Invariants
//! * [`LogFile::write`] does not wait for a disk: when too much text is queued, the line is dropped and counted.
//! * Lines of one sender keep their order. Text is passed to the kernel at most one second after `write`.
//!
//! On failure: a line that cannot be written (full disk) is dropped and counted; the next one is tried again. A file
//! that cannot be renamed continues under its name.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::{Error, Result};

/// Maximum size of the queued text, in bytes: about 16,000 lines.
const MAX_QUEUE_BYTES: usize = 4 * 1024 * 1024;
/// Buffers larger than this are freed after the writer has taken their contents.
const MAX_RETAINED_BUFFER_BYTES: usize = 256 * 1024;
const FILE_BUFFER_BYTES: usize = 64 * 1024;
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// After it has written all text, the writer lets lines accumulate for this time: waking it costs a request more than
/// formatting a line, and on a busy server each request would do so.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// Daily rotation in UTC, with further files on a day of many requests.
#[derive(Debug, Clone, Copy)]
pub struct LogRotation {
    /// Maximum number of rotated files.
    pub max_rotated_files: usize,
    /// File size in bytes at which a file is rotated before the end of its day.
    pub max_bytes: Option<u64>,
    /// The clock.
    pub clock: fn() -> SystemTime,
}

impl Default for LogRotation {
    /// Keeps 14 rotated files, those of two weeks.
    fn default() -> Self {
        Self { max_rotated_files: 14, max_bytes: None, clock: SystemTime::now }
    }
}

/// A command for the writer between two lines.
enum LogWriterCommand {
    Reopen,
    Sync(SyncSender<()>),
}

/// The data queued for the writer.
#[derive(Default)]
struct PendingLogText {
    text: String,
    /// Commands, each with the length of the text before it.
    commands: Vec<(usize, LogWriterCommand)>,
    /// True if the writer waits to be notified.
    is_writer_waiting: bool,
    is_closed: bool,
}

/// The queue of log lines.
#[derive(Default)]
struct LogQueue {
    pending: Mutex<PendingLogText>,
    writer_wakeup: Condvar,
}

impl LogQueue {
    fn lock_pending(&self) -> MutexGuard<'_, PendingLogText> {
        // The text of a line whose formatting panicked is still valid text.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the queue, and wakes the writer if it is waiting.
    fn enqueue(&self, add: impl FnOnce(&mut PendingLogText)) {
        let mut pending = self.lock_pending();
        add(&mut pending);
        let is_awaited = std::mem::take(&mut pending.is_writer_waiting);
        drop(pending);
        if is_awaited {
            self.writer_wakeup.notify_one();
        }
    }
}

/// A log line that is formatted directly into the queue, because a busy server writes several lines per request.
pub trait WriteLogLine {
    /// Writes the line, without its line break.
    ///
    /// # Errors
    /// Of `out`.
    fn write_line(&self, out: &mut impl fmt::Write) -> fmt::Result;
}

/// Adapter for a line that implements `Display`.
struct DisplayLogLine<'a, L>(&'a L);

impl<L: Display> WriteLogLine for DisplayLogLine<'_, L> {
    fn write_line(&self, out: &mut impl fmt::Write) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// The sender of a log whose lines are `L`; clones share the writer, which ends with the last of them.
#[derive(Debug)]
pub struct LogFile<L> {
    shared: Arc<LogFileShared>,
    line_type: PhantomData<fn(L)>,
}

impl<L> Clone for LogFile<L> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), line_type: PhantomData }
    }
}

struct LogFileShared {
    queue: Arc<LogQueue>,
    // `None` only while dropping.
    writer_thread: Option<JoinHandle<()>>,
    dropped_lines: Arc<AtomicU64>,
}

impl std::fmt::Debug for LogFileShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogFileShared")
            .field("dropped", &self.dropped_lines)
            .finish_non_exhaustive()
    }
}

impl Drop for LogFileShared {
    fn drop(&mut self) {
        self.queue.enqueue(|pending| pending.is_closed = true);
        if let Some(writer) = self.writer_thread.take() {
            // A panic of the writer has already been reported, and drop cannot fail.
            drop(writer.join());
        }
    }
}

impl<L: Display> LogFile<L> {
    /// Opens `file` for appending and starts its writer.
    ///
    /// # Errors
    /// [`Error::LogFile`] if the file cannot be opened or the thread cannot be started.
    pub fn open(file: &Path) -> Result<Self> {
        Self::open_with_rotation(file, None)
    }

    /// Opens `file` for appending, with daily rotation.
    ///
    /// # Errors
    /// As [`LogFile::open`].
    pub fn open_daily(file: &Path, rotation: LogRotation) -> Result<Self> {
        Self::open_with_rotation(file, Some(rotation))
    }

    fn open_with_rotation(file: &Path, rotation: Option<LogRotation>) -> Result<Self> {
        let failed = |source| Error::LogFile { file: file.to_owned(), source };
        let opened = open_for_append(file).map_err(failed)?;
        // The contents of an earlier run on another day are rotated at the first line.
        let written = opened.metadata().ok().filter(|metadata| metadata.len() > 0);
        let bytes = written.as_ref().map_or(0, std::fs::Metadata::len);
        let written = written.and_then(|metadata| metadata.modified().ok());
        let day = rotation.map_or(0, |rotation| unix_day(written.unwrap_or_else(rotation.clock)));
        let queue = Arc::new(LogQueue::default());
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = LogWriter {
            path: file.to_owned(),
            file: BufWriter::with_capacity(FILE_BUFFER_BYTES, opened),
            dropped_lines: Arc::clone(&dropped),
            rotation,
            day,
            file_bytes: bytes,
        };
        let writer = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn({
                let queue = Arc::clone(&queue);
                move || writer.run_loop(&queue)
            })
            .map_err(failed)?;
        let shared =
            Arc::new(LogFileShared { queue, writer_thread: Some(writer), dropped_lines: dropped });
        Ok(Self { shared, line_type: PhantomData })
    }

    /// Queues `line`, or drops it if the queue is full.
    pub fn write(&self, line: L) {
        self.write_line(&DisplayLogLine(&line));
    }

    /// Queues the line that `line` formats, or drops it if the queue is full; for borrowed lines.
    pub fn write_line(&self, line: &impl WriteLogLine) {
        self.shared.queue.enqueue(|pending| {
            if pending.text.len() >= MAX_QUEUE_BYTES {
                self.shared.dropped_lines.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // Writing to a string cannot fail.
            line.write_line(&mut pending.text).ok();
            pending.text.push('\n');
        });
    }

    /// Queues complete lines of text, each with its line break; drops all of them if the queue is full.
    pub fn write_text(&self, lines: &str) {
        self.shared.queue.enqueue(|pending| {
            if pending.text.len() >= MAX_QUEUE_BYTES {
                let count = lines.bytes().filter(|byte| *byte == b'\n').count() as u64;
                self.shared.dropped_lines.fetch_add(count, Ordering::Relaxed);
                return;
            }
            pending.text.push_str(lines);
        });
    }

    /// Returns the number of lines lost to a full queue or to disk errors.
    #[must_use]
    pub fn dropped_lines(&self) -> u64 {
        self.shared.dropped_lines.load(Ordering::Relaxed)
    }

    /// Reopens the file after the queued lines, for tools that rotate logs by renaming.
    pub fn reopen(&self) {
        self.send_command(LogWriterCommand::Reopen);
    }

    /// Waits until everything queued before is written to the file.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        self.send_command(LogWriterCommand::Sync(done));
        // An error means that the writer has ended, so there is nothing to wait for.
        wait.recv().ok();
    }

    fn send_command(&self, command: LogWriterCommand) {
        self.shared.queue.enqueue(|pending| pending.commands.push((pending.text.len(), command)));
    }
}

const DAY_SECONDS: u64 = 86_400;

/// Returns the number of days since 1970, in UTC.
fn unix_day(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / DAY_SECONDS)
}

fn open_for_append(file: &Path) -> std::io::Result<File> {
    // Addresses and URLs of visitors must not be readable by all users of the machine.
    File::options().append(true).create(true).mode(0o600).open(file)
}

struct LogWriter {
    path: PathBuf,
    file: BufWriter<File>,
    dropped_lines: Arc<AtomicU64>,
    rotation: Option<LogRotation>,
    /// The day of the file, since 1970.
    day: u64,
    /// Size of the file in bytes, including data not yet written.
    file_bytes: u64,
}

/// A batch that the writer took from the queue.
enum LogQueueBatch {
    /// The queued commands; the queued text replaces the buffer passed in.
    Batch(Vec<(usize, LogWriterCommand)>),
    /// Nothing was queued in time.
    TimedOut,
    /// All senders are dropped.
    Closed,
}

impl LogQueue {
    /// Takes the queued text in exchange for the empty buffer `text`. Waits for data, at most for `timeout` if given.
    fn take_batch(&self, text: &mut String, timeout: Option<Duration>) -> LogQueueBatch {
        let mut pending = self.lock_pending();
        loop {
            if !pending.text.is_empty() || !pending.commands.is_empty() {
                pending.is_writer_waiting = false;
                std::mem::swap(&mut pending.text, text);
                return LogQueueBatch::Batch(std::mem::take(&mut pending.commands));
            }
            if pending.is_closed {
                return LogQueueBatch::Closed;
            }
            pending.is_writer_waiting = true;
            pending = match timeout {
                None => self.writer_wakeup.wait(pending).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let waited = self.writer_wakeup.wait_timeout(pending, timeout);
                    let (mut pending, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    let is_empty = pending.text.is_empty() && pending.commands.is_empty();
                    if waited.timed_out() && is_empty && !pending.is_closed {
                        pending.is_writer_waiting = false;
                        return LogQueueBatch::TimedOut;
                    }
                    pending
                }
            };
        }
    }
}

impl LogWriter {
    fn run_loop(mut self, queue: &LogQueue) {
        // Time since which there is text that was not passed to the kernel.
        let (mut text, mut since) = (String::new(), None::<Instant>);
        loop {
            let timeout = since.map(|since| FLUSH_INTERVAL.saturating_sub(since.elapsed()));
            if timeout.is_some_and(|timeout| timeout.is_zero()) {
                self.flush();
                since = None;
                continue;
            }
            let commands = match queue.take_batch(&mut text, timeout) {
                LogQueueBatch::Batch(commands) => commands,
                LogQueueBatch::TimedOut => continue,
                LogQueueBatch::Closed => break,
            };
            since.get_or_insert_with(Instant::now);
            let mut done = 0;
            for (end, command) in commands {
                self.write_lines(text.get(done..end).unwrap_or_default());
                done = end;
                match command {
                    LogWriterCommand::Reopen => self.reopen(),
                    LogWriterCommand::Sync(done_sender) => {
                        self.flush();
                        done_sender.send(()).ok();
                    }
                }
            }
            self.write_lines(text.get(done..).unwrap_or_default());
            if text.capacity() > MAX_RETAINED_BUFFER_BYTES {
                text = String::new();
            }
            text.clear();
            if !queue.lock_pending().is_closed {
                std::thread::sleep(BATCH_DELAY);
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if self.file.flush().is_err() {
            self.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes complete lines, and rotates the file before the line with which it would exceed its size.
    fn write_lines(&mut self, mut text: &str) {
        while !text.is_empty() {
            self.rotate();
            let most = self.rotation.and_then(|rotation| rotation.max_bytes);
            let length = most.map_or(text.len(), |most| {
                // Up to the end of the line with which the file reaches its size.
                let left = usize::try_from(most.max(1).saturating_sub(self.file_bytes))
                    .unwrap_or(usize::MAX);
                let rest = text.as_bytes().get(left.saturating_sub(1)..).unwrap_or_default();
                let end = rest.iter().position(|byte| *byte == b'\n');
                end.map_or(text.len(), |end| left.saturating_sub(1) + end + 1)
            });
            let (lines, rest) = text.split_at_checked(length).unwrap_or((text, ""));
            self.file_bytes += lines.len() as u64;
            let count = || lines.bytes().filter(|byte| *byte == b'\n').count() as u64;
            if self.file.write_all(lines.as_bytes()).is_err() {
                self.dropped_lines.fetch_add(count(), Ordering::Relaxed);
            }
            text = rest;
        }
    }

    /// Rotates the file at the end of its day, or when it reaches its maximum size.
    fn rotate(&mut self) {
        let Some(rotation) = self.rotation else { return };
        let today = unix_day((rotation.clock)());
        let is_large = rotation.max_bytes.is_some_and(|max| self.file_bytes >= max.max(1));
        if today == self.day && !is_large {
            return;
        }
        self.flush();
        let aside = self.rotated_path();
        self.day = today;
        if let Err(error) = std::fs::rename(&self.path, &aside) {
            tracing::warn!(file = %self.path.display(), reason = %error, "cannot rotate the log");
            // After a failure, retry after the same number of bytes, not with each line.
            self.file_bytes = 0;
            return;
        }
        self.reopen();
        self.prune_rotated_files(rotation.max_rotated_files);
    }

    /// Returns the name of the rotated file: the next free number of its day.
    fn rotated_path(&self) -> PathBuf {
        let days = i64::try_from(self.day).unwrap_or(i64::MAX);
        let date = jiff::Timestamp::from_second(days.saturating_mul(DAY_SECONDS as i64));
        let date = date.unwrap_or_default().to_zoned(jiff::tz::TimeZone::UTC).date();
        let of_day = self.list_rotated_files().into_iter().filter(|(day, ..)| *day == date);
        let number = of_day.map(|(_, number, _)| number + 1).max();
        let mut name = self.path.as_os_str().to_owned();
        name.push(match number {
            None => format!(".{date}"),
            Some(number) => format!(".{date}.{number}"),
        });
        PathBuf::from(name)
    }

    /// Returns the rotated files with day and number.
    fn list_rotated_files(&self) -> Vec<(jiff::civil::Date, u64, String)> {
        let (Some(folder), Some(own)) = (self.path.parent(), self.path.file_name()) else {
            return Vec::new();
        };
        let own = format!("{}.", own.to_string_lossy());
        let read = |name: String| {
            let rest = name.strip_prefix(&own)?;
            let (date, number) = rest.split_at_checked(10)?;
            let number = match number.strip_prefix('.') {
                // Compressed files (`.gz`) belong to their day, too.
                Some(number) => number.split('.').next()?.parse().unwrap_or(0),
                None => 0,
            };
            Some((date.parse().ok()?, number, name))
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(read).collect()
    }

    /// Removes all rotated files except the newest `keep`.
    fn prune_rotated_files(&self, keep: usize) {
        let Some(folder) = self.path.parent() else { return };
        let mut files = self.list_rotated_files();
        files.sort_unstable();
        files.truncate(files.len().saturating_sub(keep));
        for (_, _, name) in files {
            if let Err(error) = std::fs::remove_file(folder.join(&name)) {
                tracing::warn!(file = name, reason = %error, "cannot remove an old log");
            }
        }
    }

    fn reopen(&mut self) {
        self.flush();
        match open_for_append(&self.path) {
            Ok(file) => {
                self.file_bytes = file.metadata().map_or(0, |metadata| metadata.len());
                self.file = BufWriter::with_capacity(FILE_BUFFER_BYTES, file);
            }
            Err(error) => {
                tracing::warn!(file = %self.path.display(), reason = %error, "cannot reopen the log");
            }
        }
    }
}
