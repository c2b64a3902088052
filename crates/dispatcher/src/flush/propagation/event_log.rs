//! The log of a farm's events for its siblings, in order; the latest events are retained.
//!
//! Invariants
//! * Each event has a unique position: the run of the process that wrote it, and its number.
//! * A file of events is either complete up to some event or counts as lost, and then siblings start anew.
//! * A file holds every acknowledged event, also after a power failure, or is empty and counts as lost.

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::message::{
    EventMessage, FlushEvent, LogPosition, MAX_MESSAGE_EVENTS, is_valid_id, new_random_id,
};
use crate::cache::DocrootState;

/// The maximum number of events retained for unreachable siblings.
const MAX_LOGGED_EVENTS: usize = 1024;
/// The maximum size of retained events, in bytes of their lines.
const MAX_LOGGED_BYTES: usize = 4 * 1024 * 1024;
/// The maximum size of a batch in bytes, except for a single event that is larger.
const MAX_BATCH_BYTES: usize = 512 * 1024;
/// The size in bytes above which the file is rewritten.
const LOG_REWRITE_BYTES: usize = 2 * MAX_LOGGED_BYTES;
/// The maximum size of the file in bytes; a longer one was not written by the dispatcher.
const MAX_LOG_FILE_BYTES: u64 = 4 * MAX_LOGGED_BYTES as u64;
/// The first word of the file and its version.
const LOG_FILE_VERSION: &str = "tympan-passed 1";

/// The latest events of a farm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlushEventLog {
    origin: String,
    run_id: String,
    /// The position before the first retained event.
    start_position: LogPosition,
    events: VecDeque<LoggedEvent>,
    total_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct LoggedEvent {
    position: LogPosition,
    event: FlushEvent,
    line_bytes: usize,
}

impl FlushEventLog {
    /// Returns an empty log with a new unique name.
    pub(crate) fn new(origin: String, run: String) -> Self {
        let start = LogPosition { run: run.clone(), count: 0 };
        Self { origin, run_id: run, start_position: start, events: VecDeque::new(), total_bytes: 0 }
    }

    /// Returns the position of the last event.
    fn last_position(&self) -> &LogPosition {
        self.events.back().map_or(&self.start_position, |logged| &logged.position)
    }

    /// Appends an event and returns its line.
    pub(crate) fn append(&mut self, event: FlushEvent) -> String {
        let position =
            LogPosition { run: self.run_id.clone(), count: self.last_position().count + 1 };
        let line = format_log_line(&position, &event);
        self.push(LoggedEvent { position, event, line_bytes: line.len() });
        line
    }

    fn push(&mut self, logged: LoggedEvent) {
        self.total_bytes += logged.line_bytes;
        self.events.push_back(logged);
        while self.events.len() > MAX_LOGGED_EVENTS
            || self.total_bytes > MAX_LOGGED_BYTES && self.events.len() > 1
        {
            let Some(first) = self.events.pop_front() else { break };
            self.total_bytes -= first.line_bytes;
            self.start_position = first.position;
        }
    }

    /// Returns a message for a sibling at `position`: the events that follow, or the event that invalidates everything
    /// if they are unknown.
    pub(super) fn message_after(
        &self,
        position: Option<&LogPosition>,
        instance: &str,
    ) -> EventMessage {
        let message = |next: &LogPosition, events| EventMessage {
            origin: self.origin.clone(),
            instance: instance.to_owned(),
            prev: position.cloned(),
            next: next.clone(),
            events,
        };
        let Some(begin) = self.index_after(position) else {
            return message(self.last_position(), vec![FlushEvent::All]);
        };
        let (mut bytes, mut events, mut next) = (0, Vec::new(), None);
        for logged in self.events.range(begin..).take(MAX_MESSAGE_EVENTS) {
            bytes += logged.line_bytes;
            if bytes > MAX_BATCH_BYTES && !events.is_empty() {
                break;
            }
            events.push(logged.event.clone());
            next = Some(&logged.position);
        }
        let next = next.or(position).unwrap_or(&self.start_position);
        message(next, events)
    }

    /// Returns the index of the first retained event after `position`; `None` if it is unknown.
    fn index_after(&self, position: Option<&LogPosition>) -> Option<usize> {
        // A sibling that received nothing has missed nothing of a log that is retained from its first event on.
        let is_at = |at: &LogPosition| position == Some(at);
        if is_at(&self.start_position) || position.is_none() && self.start_position.count == 0 {
            return Some(0);
        }
        self.events.iter().position(|logged| is_at(&logged.position)).map(|index| index + 1)
    }

    /// Returns the message that invalidates everything, for a sibling at `position` that cannot be sent more.
    fn invalidate_all_message(
        &self,
        position: Option<&LogPosition>,
        instance: &str,
    ) -> EventMessage {
        EventMessage {
            prev: position.cloned(),
            next: self.last_position().clone(),
            events: vec![FlushEvent::All],
            ..self.message_after(position, instance)
        }
    }

    /// Returns the content of the whole file.
    pub(crate) fn to_text(&self) -> String {
        let LogPosition { run, count } = &self.start_position;
        let mut text = format!("{LOG_FILE_VERSION} {} {run} {count}\n", self.origin);
        for logged in &self.events {
            text.push_str(&format_log_line(&logged.position, &logged.event));
        }
        text
    }

    /// Parses a file and continues it as `run`; `None` if it is malformed. An incomplete last line was never
    /// acknowledged.
    pub(crate) fn parse(text: &str, run: String) -> Option<Self> {
        let whole = text.get(..=text.rfind('\n')?)?;
        let mut lines = whole.strip_suffix('\n')?.split('\n');
        let mut words = lines.next()?.strip_prefix(LOG_FILE_VERSION)?.strip_prefix(' ')?.split(' ');
        let (origin, started) = (words.next()?, words.next()?);
        let count = words.next()?.parse().ok()?;
        let start = LogPosition { run: started.to_owned(), count };
        if words.next().is_some() || !is_valid_id(origin) || !start.is_valid() {
            return None;
        }
        let mut log = Self { start_position: start, ..Self::new(origin.to_owned(), run) };
        for line in lines {
            let (written_by, rest) = line.split_once(' ')?;
            let (count, event) = rest.split_once(' ')?;
            let position = LogPosition { run: written_by.to_owned(), count: count.parse().ok()? };
            let event: FlushEvent = serde_json::from_str(event).ok()?;
            let follows = position.count == log.last_position().count.checked_add(1)?;
            if !follows || !position.is_valid() || !event.is_valid() {
                return None;
            }
            // Use the length as it is written from now on: other versions may format JSON differently.
            let bytes = format_log_line(&position, &event).len();
            log.push(LoggedEvent { position, event, line_bytes: bytes });
        }
        Some(log)
    }
}

fn format_log_line(position: &LogPosition, event: &FlushEvent) -> String {
    // Every event can be serialized as JSON.
    let event = serde_json::to_string(event).unwrap_or_default();
    format!("{} {} {event}\n", position.run, position.count)
}

/// The error of an event that was not logged, so that unreachable siblings would never receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventLogError {
    /// Another process has taken over the log.
    TakenOver,
    /// The log cannot be written.
    WriteFailed,
}

/// The log of a farm with its file.
#[derive(Debug)]
pub(crate) struct FarmEventLog {
    /// Its file name in the document root.
    file_name: String,
    state: Mutex<FarmEventLogState>,
    /// The number of lines of [`FarmEventLogState::written_lines`] that are durable; locked by the thread that syncs
    /// the file.
    synced_lines: Mutex<u64>,
    /// The number of the last event, for senders and for monitoring.
    last_event: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct FarmEventLogState {
    log: Option<FlushEventLog>,
    /// The content of the file; `None` if the file differs from the log.
    file_size: Option<EventFileSize>,
    /// The number of lines written by this process.
    written_lines: u64,
}

/// The size of an event file.
#[derive(Debug, Clone, Copy)]
struct EventFileSize {
    lines: usize,
    bytes: usize,
}

impl EventFileSize {
    /// Returns true if one more line may be appended to the file.
    fn has_capacity_for(self, line: &str) -> bool {
        self.lines < 2 * MAX_LOGGED_EVENTS && self.bytes + line.len() <= LOG_REWRITE_BYTES
    }
}

impl FarmEventLog {
    /// Returns the log of a farm, not loaded yet.
    pub(crate) fn for_farm(farm: &str) -> Self {
        let digest = Sha256::digest(farm.as_bytes());
        let file = format!(".tympan-passed-{:.16}", hex::encode(digest));
        Self {
            file_name: file,
            state: Mutex::default(),
            synced_lines: Mutex::default(),
            last_event: watch::Sender::new(0),
        }
    }

    /// Returns a receiver that is notified when the log grows.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.last_event.subscribe()
    }

    /// Returns the number of the last event loaded so far; does not block.
    pub(crate) fn last_event_number(&self) -> u64 {
        *self.last_event.borrow()
    }

    /// Writes the file if it is absent or differs from the log; does file I/O.
    ///
    /// If a file exists, a line can be appended even if a full disk has no space for another file.
    pub(super) fn ensure_file(&self, root: &DocrootState, is_ours: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !is_ours() {
            return;
        }
        self.open_log(&mut state, root);
        if state.file_size.is_none()
            && let Err(error) = state.write_line(root, &self.file_name, "")
        {
            self.report_write_failure(root, &error);
        }
    }

    /// Appends an event and returns its number; does file I/O. `is_ours` returns true if no other process maintains the
    /// log.
    ///
    /// An event that cannot be written is still sent to siblings; after a restart they treat everything as out of date.
    ///
    /// # Errors
    /// [`EventLogError::TakenOver`] if nothing was added; [`EventLogError::WriteFailed`] if a restart would lose the
    /// event.
    pub(super) fn append(
        &self,
        root: &DocrootState,
        event: FlushEvent,
        is_ours: impl Fn() -> bool,
    ) -> Result<u64, EventLogError> {
        let mut state = self.state.lock();
        // Checked under the lock, which a process that hands over waits for.
        if !is_ours() {
            return Err(EventLogError::TakenOver);
        }
        let log = self.open_log(&mut state, root);
        let line = log.append(event);
        let count = log.last_position().count;
        let written = state.write_line(root, &self.file_name, &line);
        // Updated under the lock, so that the number never decreases.
        self.last_event.send_replace(count);
        drop(state);
        match written.and_then(|written| self.sync_file(root, written)) {
            Ok(()) => Ok(count),
            Err(error) => self.discard_file(root, &error, is_ours).map(|()| count),
        }
    }

    /// Adds an event for reachable siblings without writing it to a file.
    pub(super) fn append_unwritten(&self, root: &DocrootState, event: FlushEvent) {
        let mut state = self.state.lock();
        let log = self.open_log(&mut state, root);
        log.append(event);
        self.last_event.send_replace(log.last_position().count);
    }

    /// Waits until all writers that found the file to be theirs have finished.
    pub(super) fn wait_for_writers(&self) {
        drop(self.state.lock());
    }

    /// Returns the log, loading it first if necessary.
    fn open_log<'a>(
        &self,
        state: &'a mut FarmEventLogState,
        root: &DocrootState,
    ) -> &'a mut FlushEventLog {
        let is_new = state.log.is_none();
        let log = state.open_log(root, &self.file_name);
        if is_new {
            let count = log.last_position().count;
            // Existing events do not count as growth.
            self.last_event.send_if_modified(|last| {
                *last = count;
                false
            });
        }
        log
    }

    /// Makes at least the given number of lines durable, together with all lines written in the meantime.
    fn sync_file(&self, root: &DocrootState, written: u64) -> io::Result<()> {
        let mut synced = self.synced_lines.lock();
        if *synced < written {
            let all = self.state.lock().written_lines;
            root.docroot_for_writing()?.sync_own_file(&self.file_name)?;
            *synced = all;
        }
        Ok(())
    }

    /// Truncates the file, which lacks an event, so that readers do not take it for complete.
    fn discard_file(
        &self,
        root: &DocrootState,
        error: &io::Error,
        is_ours: impl Fn() -> bool,
    ) -> Result<(), EventLogError> {
        let mut state = self.state.lock();
        state.file_size = None;
        let docroot =
            if is_ours() { root.docroot_for_writing() } else { Err(io::ErrorKind::Other.into()) };
        let emptied = docroot.and_then(|docroot| docroot.truncate_own_file(&self.file_name));
        drop(state);
        let file = root.path().join(&self.file_name);
        match emptied {
            Ok(()) => {
                tracing::warn!(file = %file.display(), reason = %error,
                    "cannot record a flush for the siblings; if this process ends before it can, they treat \
                     all pages as stale");
                Ok(())
            }
            Err(_also) => {
                tracing::error!(file = %file.display(), reason = %error, "cannot record a flush for the \
                    siblings");
                Err(EventLogError::WriteFailed)
            }
        }
    }

    /// Returns the message for a sibling at `position`, or, without a position, the query that checks if it has
    /// received everything; also returns true if there is more. Does file I/O.
    pub(super) fn message_after(
        &self,
        root: &DocrootState,
        position: Option<Option<LogPosition>>,
        instance: &str,
    ) -> (EventMessage, bool) {
        let mut state = self.state.lock();
        let log = self.open_log(&mut state, root);
        let head = log.last_position().clone();
        let position = position.unwrap_or_else(|| Some(head.clone()));
        let message = log.message_after(position.as_ref(), instance);
        let has_more = message.next != head;
        (message, has_more)
    }

    /// Returns true if the log knows the events after `position`; does file I/O.
    pub(super) fn knows_position(
        &self,
        root: &DocrootState,
        position: Option<&LogPosition>,
    ) -> bool {
        self.open_log(&mut self.state.lock(), root).index_after(position).is_some()
    }

    /// Returns true if the log has this name; does file I/O.
    pub(super) fn has_origin(&self, root: &DocrootState, origin: &str) -> bool {
        self.open_log(&mut self.state.lock(), root).origin == origin
    }

    /// Returns the message for a sibling that accepts no message of the size that was tried; does file I/O.
    pub(super) fn invalidate_all_message(
        &self,
        root: &DocrootState,
        position: Option<&LogPosition>,
        instance: &str,
    ) -> EventMessage {
        self.open_log(&mut self.state.lock(), root).invalidate_all_message(position, instance)
    }

    /// Renames the log if another dispatcher has the same name, as after its document root was copied; does file I/O.
    /// `is_ours` returns true if no other process maintains the log.
    pub(super) fn avoid_origin_conflict(
        &self,
        root: &DocrootState,
        origin: &str,
        is_ours: impl Fn() -> bool,
    ) {
        let mut state = self.state.lock();
        if !is_ours() || self.open_log(&mut state, root).origin != origin {
            return;
        }
        let mut log = FlushEventLog::new(new_random_id(), new_random_id());
        // Events not passed on yet are unknown under the new name.
        log.append(FlushEvent::All);
        self.last_event.send_replace(log.last_position().count);
        *state = FarmEventLogState {
            log: Some(log),
            file_size: None,
            written_lines: state.written_lines,
        };
        let file = root.path().join(&self.file_name);
        tracing::warn!(file = %file.display(), "another dispatcher has a copy of this file; starting a new \
            one");
        if let Err(error) = state.write_line(root, &self.file_name, "") {
            self.report_write_failure(root, &error);
        }
    }

    fn report_write_failure(&self, root: &DocrootState, error: &io::Error) {
        let file = root.path().join(&self.file_name);
        tracing::warn!(file = %file.display(), reason = %error, "cannot record flushes for the siblings");
    }
}

impl FarmEventLogState {
    /// Returns the log, loading it first if necessary.
    fn open_log(&mut self, root: &DocrootState, file: &str) -> &mut FlushEventLog {
        let Self { log, file_size, .. } = self;
        log.get_or_insert_with(|| {
            let text = root
                .docroot_for_writing()
                .and_then(|docroot| docroot.read_own_file(file, MAX_LOG_FILE_BYTES));
            match text {
                Ok(None) => FlushEventLog::new(new_random_id(), new_random_id()),
                Ok(Some(text)) => match FlushEventLog::parse(&text, new_random_id()) {
                    Some(log) => {
                        // An incomplete line must not be terminated.
                        let read = EventFileSize { lines: log.events.len(), bytes: text.len() };
                        *file_size = text.ends_with('\n').then_some(read);
                        log
                    }
                    None => replace_lost_log(root, file, "it is malformed"),
                },
                Err(error) => replace_lost_log(root, file, &error.to_string()),
            }
        })
    }

    /// Writes a line, or the whole file if that is shorter in the long run or the file is not as expected. Returns the
    /// number of lines written so far.
    fn write_line(&mut self, root: &DocrootState, file: &str, line: &str) -> io::Result<u64> {
        self.written_lines += 1;
        let Some(log) = &self.log else { return Ok(self.written_lines) };
        let docroot = root.docroot_for_writing()?;
        let size = self.file_size.take().filter(|size| size.has_capacity_for(line));
        if let Some(EventFileSize { lines, bytes }) = size
            && docroot.append_own_file(file, line)?
        {
            self.file_size = Some(EventFileSize { lines: lines + 1, bytes: bytes + line.len() });
            return Ok(self.written_lines);
        }
        let text = log.to_text();
        docroot.write_own_file_durably(file, &text)?;
        self.file_size = Some(EventFileSize { lines: log.events.len(), bytes: text.len() });
        Ok(self.written_lines)
    }
}

/// Returns a new log in place of an unreadable one: it is unknown what siblings have not received yet.
fn replace_lost_log(root: &DocrootState, file: &str, reason: &str) -> FlushEventLog {
    let file = root.path().join(file);
    tracing::warn!(file = %file.display(), reason, "cannot read the flushes pending for siblings; they treat \
        all pages as stale");
    let mut log = FlushEventLog::new(new_random_id(), new_random_id());
    log.append(FlushEvent::All);
    log
}

#[cfg(test)]
mod tests {
    use super::{
        FarmEventLog, FlushEventLog, LOG_REWRITE_BYTES, MAX_LOGGED_BYTES, MAX_LOGGED_EVENTS,
    };
    use crate::cache::DocrootState;
    use crate::flush::propagation::EventLogError;
    use crate::flush::propagation::message::{EventMessage, FlushEvent, LogPosition};
    use crate::flush::propagation::received_position::ReceivedPositions;
    use proptest::prelude::*;

    fn page(number: u64) -> FlushEvent {
        FlushEvent::Page(format!("/{number}.html"))
    }

    fn log(events: u64) -> FlushEventLog {
        let mut log = FlushEventLog::new("o".to_owned(), "r1".to_owned());
        (1..=events).for_each(|number| drop(log.append(page(number))));
        log
    }

    /// A sibling that accepts only consecutive messages.
    #[derive(Default)]
    struct TestSibling {
        received: ReceivedPositions,
        events: Vec<FlushEvent>,
    }

    impl TestSibling {
        fn take(&mut self, message: &EventMessage) -> bool {
            let follows = self.received.position("o") == message.prev.as_ref();
            if follows {
                self.events.extend(message.events.iter().cloned());
                self.received.record_position("o", message.next.clone());
            }
            follows
        }

        fn catch_up(&mut self, log: &FlushEventLog) {
            while self.received.position("o") != Some(log.last_position()) {
                let message = log.message_after(self.received.position("o"), "i");
                assert!(message.is_valid() && self.take(&message));
            }
        }
    }

    #[test]
    fn events_count_as_they_are_written_however_they_were_read() {
        let log = |event: &str| {
            let text = format!("tympan-passed 1 o r1 4\nr1 5 {event}\n");
            FlushEventLog::parse(&text, "r2".to_owned()).unwrap()
        };
        assert_eq!(log("{ \"page\": \"\\/5.html\" }"), log("{\"page\":\"/5.html\"}"));
    }

    #[test]
    fn the_first_version_is_read_and_written() {
        let text = "tympan-passed 1 o r1 4\nr1 5 {\"page\":\"/5.html\"}\nr2 6 \"stats\"\n";
        let log = FlushEventLog::parse(text, "r3".to_owned()).unwrap();
        assert_eq!(log.to_text(), text);
        // A truncated line was never acknowledged.
        let cut = format!("{text}r2 7 {{\"pa");
        assert_eq!(FlushEventLog::parse(&cut, "r3".to_owned()), Some(log));
        for broken in [
            "",
            "tympan-passed 2 o r1 4\n",
            "tympan-passed 1 o r1\n",
            "tympan-passed 1 o r1 4\nr1 6 \"all\"\n",
            "tympan-passed 1 o r1 4\nr1 5 \"none\"\n",
            "tympan-passed 1 o r1 18446744073709551615\nr1 0 \"all\"\n",
        ] {
            assert_eq!(FlushEventLog::parse(broken, "r3".to_owned()), None, "{broken}");
        }
    }

    #[test]
    fn who_was_away_for_too_long_begins_anew() {
        let (mut log, mut sibling) = (log(3), TestSibling::default());
        sibling.catch_up(&log);
        assert_eq!(sibling.events, [page(1), page(2), page(3)]);
        (0..MAX_LOGGED_EVENTS as u64).for_each(|number| drop(log.append(page(100 + number))));
        sibling.events.clear();
        sibling.catch_up(&log);
        assert_eq!(
            sibling.events.len(),
            MAX_LOGGED_EVENTS,
            "the last that it heard is the one before the first"
        );
        sibling.events.clear();
        (0..=MAX_LOGGED_EVENTS as u64).for_each(|number| drop(log.append(page(number))));
        sibling.catch_up(&log);
        assert_eq!(sibling.events, [FlushEvent::All]);
        let mut newcomer = TestSibling::default();
        newcomer.catch_up(&log);
        assert_eq!(newcomer.events, [FlushEvent::All]);
    }

    #[test]
    fn a_log_that_was_restored_is_noticed() {
        let mut sibling = TestSibling::default();
        let old = log(5);
        sibling.catch_up(&old);
        sibling.events.clear();
        // Restored from a backup made before the fourth event, and now beyond the fifth.
        let mut restored = FlushEventLog::parse(&log(3).to_text(), "r2".to_owned()).unwrap();
        (0..4).for_each(|_| drop(restored.append(page(9))));
        sibling.catch_up(&restored);
        assert_eq!(sibling.events, [FlushEvent::All]);
        // A sibling that was behind has missed nothing.
        let mut behind = TestSibling::default();
        behind.catch_up(&log(2));
        behind.events.clear();
        behind.catch_up(&restored);
        assert_eq!(behind.events, [page(3), page(9), page(9), page(9), page(9)]);
    }

    #[test]
    fn long_events_are_bounded_and_sent_one_by_one() {
        let mut log = log(0);
        let long = FlushEvent::Keys(vec!["k".repeat(600 * 1024)]);
        (0..20).for_each(|_| drop(log.append(long.clone())));
        assert!(
            log.total_bytes <= MAX_LOGGED_BYTES && log.events.len() > 5,
            "{}",
            log.events.len()
        );
        let first = log.message_after(Some(&log.start_position), "i");
        assert_eq!(first.events.len(), 1);
    }

    /// Returns a document root with the path of the event file in it.
    fn root() -> (tempfile::TempDir, DocrootState, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = DocrootState::open(folder.path(), 0o755).unwrap();
        let file = folder.path().join(FarmEventLog::for_farm("site").file_name);
        (folder, root, file)
    }

    fn add(log: &FarmEventLog, root: &DocrootState, event: FlushEvent) {
        log.append(root, event, || true).unwrap();
    }

    /// Returns the events that a sibling at the current position receives after a restart.
    fn told_later(log: &FarmEventLog, root: &DocrootState) -> (Vec<FlushEvent>, u64) {
        let (message, _) = log.message_after(root, None, "i");
        let later = FarmEventLog::for_farm("site");
        let (message, _) = later.message_after(root, Some(Some(message.next)), "i");
        (message.events, later.last_event_number())
    }

    #[test]
    fn a_file_of_long_events_can_be_read_again() {
        let (_folder, root, file) = root();
        let log = FarmEventLog::for_farm("site");
        let long = FlushEvent::Keys(vec!["k".repeat(1024 * 1024)]);
        for count in 1..=20 {
            add(&log, &root, long.clone());
            assert!(file.metadata().unwrap().len() <= LOG_REWRITE_BYTES as u64, "{count}");
        }
        assert_eq!(told_later(&log, &root), (Vec::new(), 20));
    }

    #[test]
    fn a_file_that_lacks_an_event_counts_as_lost() {
        let (_folder, root, file) = root();
        let log = FarmEventLog::for_farm("site");
        add(&log, &root, page(1));
        // At the maximum size that the file system allows, so that nothing can be appended.
        let opened = std::fs::File::options().write(true).open(&file).unwrap();
        let longest = (0..63).rev().fold(0, |length, bit| {
            let longer = length | (1_u64 << bit);
            if opened.set_len(longer).is_ok() { longer } else { length }
        });
        opened.set_len(longest).unwrap();
        add(&log, &root, page(2));
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(told_later(&log, &root), (vec![FlushEvent::All], 1));
        // The next successful write restores all of them.
        add(&log, &root, page(3));
        assert_eq!(told_later(&log, &root), (Vec::new(), 3));
    }

    #[test]
    fn the_file_is_there_before_the_first_event() {
        let (_folder, root, file) = root();
        FarmEventLog::for_farm("site").ensure_file(&root, || false);
        assert!(!file.exists(), "another process keeps the log");
        let log = FarmEventLog::for_farm("site");
        log.ensure_file(&root, || true);
        let empty = std::fs::read_to_string(&file).unwrap();
        add(&log, &root, page(1));
        assert!(std::fs::read_to_string(&file).unwrap().starts_with(&empty));
        assert_eq!(told_later(&log, &root), (Vec::new(), 1));
        // A correct file stays unchanged.
        FarmEventLog::for_farm("site").ensure_file(&root, || true);
        assert_eq!(told_later(&log, &root), (Vec::new(), 1));
        // A lost file is rewritten with a mark for the loss.
        std::fs::write(&file, "").unwrap();
        FarmEventLog::for_farm("site").ensure_file(&root, || true);
        assert!(std::fs::read_to_string(&file).unwrap().ends_with(" 1 \"all\"\n"));
    }

    #[test]
    fn a_name_is_changed_by_who_keeps_the_log_only() {
        let (_folder, root, file) = root();
        let log = FarmEventLog::for_farm("site");
        add(&log, &root, page(1));
        let before = std::fs::read_to_string(&file).unwrap();
        let origin = before.split(' ').nth(2).unwrap();
        log.avoid_origin_conflict(&root, origin, || false);
        assert!(log.has_origin(&root, origin));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        log.avoid_origin_conflict(&root, origin, || true);
        assert!(!log.has_origin(&root, origin));
        assert_ne!(std::fs::read_to_string(&file).unwrap(), before);
    }

    #[test]
    fn a_log_knows_what_it_can_go_on_from() {
        let (_folder, root, _file) = root();
        let log = FarmEventLog::for_farm("site");
        add(&log, &root, page(1));
        let (at, _) = log.message_after(&root, None, "i");
        add(&log, &root, page(2));
        assert!(log.knows_position(&root, Some(&at.next)) && log.knows_position(&root, None));
        let foreign_position = LogPosition { run: "other".to_owned(), ..at.next };
        assert!(!log.knows_position(&root, Some(&foreign_position)));
    }

    #[test]
    fn what_a_restart_would_lose_is_not_done() {
        let (_folder, root, file) = root();
        let log = FarmEventLog::for_farm("site");
        add(&log, &root, page(1));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(log.append(&root, page(2), || true), Err(EventLogError::WriteFailed));
        std::fs::remove_dir(&file).unwrap();
        assert_eq!(log.append(&root, page(3), || true), Ok(3));
        assert_eq!(log.append(&root, page(4), || false), Err(EventLogError::TakenOver));
        assert_eq!(log.last_event_number(), 3);
        assert_eq!(told_later(&log, &root), (Vec::new(), 3));
    }

    proptest! {
        /// Whatever is lost, repeated or late, each event is applied once and in order, and finally all are.
        #[test]
        fn each_event_is_taken_once(steps in prop::collection::vec((0..4_u8, 0..40_usize), 1..60)) {
            let (mut log, mut sibling, mut sent) = (log(0), TestSibling::default(), Vec::new());
            let mut number = 0;
            for (step, which) in steps {
                match step {
                    0 => {
                        number += 1;
                        log.append(page(number));
                    }
                    1 => sent.push(log.message_after(sibling.received.position("o"), "i")),
                    2 if !sent.is_empty() => drop(sibling.take(&sent[which % sent.len()])),
                    _ => {
                        let text = log.to_text();
                        log = FlushEventLog::parse(&text, format!("r{which}-{number}")).unwrap();
                    }
                }
            }
            sibling.catch_up(&log);
            let expected: Vec<FlushEvent> = (1..=number).map(page).collect();
            prop_assert_eq!(sibling.events, expected);
        }
    }
}
