//! The events of one farm that siblings are told, in their order, with the latest kept.
//!
//! Invariants
//! * Each event has a position that no other one ever had: the run of the process that wrote it, and its number.
//! * A file of events is either whole up to some event or counts as lost, and then siblings start anew.
//! * A file holds every event that was acknowledged, also after the power failed, or is empty and counts as lost.

use std::collections::VecDeque;
use std::io;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::message::{Event, MAX_EVENTS, Message, Position, is_word};
use super::new_word;
use crate::cache::Root;

/// Events that are kept for siblings that are away.
const MAX_KEPT: usize = 1024;
/// What they may take, in bytes of their lines.
const MAX_KEPT_BYTES: usize = 4 * 1024 * 1024;
/// What is sent at once, but for an event that takes more by itself.
const MAX_BATCH_BYTES: usize = 512 * 1024;
/// A file that would take more is written anew.
const MAX_GROWN_BYTES: usize = 2 * MAX_KEPT_BYTES;
/// A longer file is not ours.
const MAX_FILE_BYTES: u64 = 4 * MAX_KEPT_BYTES as u64;
/// The first word of the file, and its version.
const VERSION: &str = "tympan-passed 1";

/// The latest events of a farm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Log {
    origin: String,
    run: String,
    /// What the first event that is kept follows.
    start: Position,
    kept: VecDeque<Kept>,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    position: Position,
    event: Event,
    bytes: usize,
}

impl Log {
    /// Returns an empty log of a name that nobody had before.
    pub(crate) fn new(origin: String, run: String) -> Self {
        let start = Position { run: run.clone(), count: 0 };
        Self { origin, run, start, kept: VecDeque::new(), bytes: 0 }
    }

    /// Returns the position of the last event.
    pub(super) fn head(&self) -> &Position {
        self.kept.back().map_or(&self.start, |kept| &kept.position)
    }

    /// Adds an event and returns its line.
    pub(crate) fn append(&mut self, event: Event) -> String {
        let position = Position { run: self.run.clone(), count: self.head().count + 1 };
        let line = line_of(&position, &event);
        self.push(Kept { position, event, bytes: line.len() });
        line
    }

    fn push(&mut self, kept: Kept) {
        self.bytes += kept.bytes;
        self.kept.push_back(kept);
        while self.kept.len() > MAX_KEPT || self.bytes > MAX_KEPT_BYTES && self.kept.len() > 1 {
            let Some(first) = self.kept.pop_front() else { break };
            self.bytes -= first.bytes;
            self.start = first.position;
        }
    }

    /// Returns what follows `position`: some events, or the word that everything is out of date where nobody can tell.
    pub(super) fn after(&self, position: Option<&Position>, instance: &str) -> Message {
        let message = |next: &Position, events| Message {
            origin: self.origin.clone(),
            instance: instance.to_owned(),
            prev: position.cloned(),
            next: next.clone(),
            events,
        };
        let Some(begin) = self.index_after(position) else {
            return message(self.head(), vec![Event::All]);
        };
        let (mut bytes, mut events, mut next) = (0, Vec::new(), None);
        for kept in self.kept.range(begin..).take(MAX_EVENTS) {
            bytes += kept.bytes;
            if bytes > MAX_BATCH_BYTES && !events.is_empty() {
                break;
            }
            events.push(kept.event.clone());
            next = Some(&kept.position);
        }
        let next = next.or(position).unwrap_or(&self.start);
        message(next, events)
    }

    /// Returns which of the events that are kept is the first to follow `position`, if that is known.
    fn index_after(&self, position: Option<&Position>) -> Option<usize> {
        // Who has heard nothing has missed nothing of a log that is kept from its first event on.
        let is_at = |at: &Position| position == Some(at);
        if is_at(&self.start) || position.is_none() && self.start.count == 0 {
            return Some(0);
        }
        self.kept.iter().position(|kept| is_at(&kept.position)).map(|index| index + 1)
    }

    /// Returns the word that everything is out of date, for who is at `position` and cannot be told more.
    fn instead(&self, position: Option<&Position>, instance: &str) -> Message {
        Message {
            prev: position.cloned(),
            next: self.head().clone(),
            events: vec![Event::All],
            ..self.after(position, instance)
        }
    }

    /// Returns the whole file.
    pub(crate) fn to_text(&self) -> String {
        let Position { run, count } = &self.start;
        let mut text = format!("{VERSION} {} {run} {count}\n", self.origin);
        for kept in &self.kept {
            text.push_str(&line_of(&kept.position, &kept.event));
        }
        text
    }

    /// Reads a file, to go on as `run`; nothing if it is anything else. A last line without its end was never answered.
    pub(crate) fn parse(text: &str, run: String) -> Option<Self> {
        let whole = text.get(..=text.rfind('\n')?)?;
        let mut lines = whole.strip_suffix('\n')?.split('\n');
        let mut words = lines.next()?.strip_prefix(VERSION)?.strip_prefix(' ')?.split(' ');
        let (origin, started) = (words.next()?, words.next()?);
        let count = words.next()?.parse().ok()?;
        let start = Position { run: started.to_owned(), count };
        if words.next().is_some() || !is_word(origin) || !start.is_sound() {
            return None;
        }
        let mut log = Self { start, ..Self::new(origin.to_owned(), run) };
        for line in lines {
            let (written_by, rest) = line.split_once(' ')?;
            let (count, event) = rest.split_once(' ')?;
            let position = Position { run: written_by.to_owned(), count: count.parse().ok()? };
            let event: Event = serde_json::from_str(event).ok()?;
            let follows = position.count == log.head().count.checked_add(1)?;
            if !follows || !position.is_sound() || !event.is_sound() {
                return None;
            }
            // As it is written from now on: others may write JSON in other ways.
            let bytes = line_of(&position, &event).len();
            log.push(Kept { position, event, bytes });
        }
        Some(log)
    }
}

fn line_of(position: &Position, event: &Event) -> String {
    // Events hold nothing that JSON cannot.
    let event = serde_json::to_string(event).unwrap_or_default();
    format!("{} {} {event}\n", position.run, position.count)
}

/// Why an event is in no log, so that siblings that are away would never hear of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unlogged {
    /// Another process keeps the log by now.
    Left,
    /// It cannot be written.
    Failed,
}

/// The log of a farm with its file.
#[derive(Debug)]
pub(crate) struct FarmLog {
    /// Its name in the document root.
    file: String,
    state: Mutex<State>,
    /// So many lines of [`State::written`] will outlive a power failure; held by the one who sees to that.
    synced: Mutex<u64>,
    /// The number of the last event, for those who send and those who watch.
    grown: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    log: Option<Log>,
    /// What the file holds, if it is as the log is.
    size: Option<Size>,
    /// Lines that were written by this process.
    written: u64,
}

/// What a file holds.
#[derive(Debug, Clone, Copy)]
struct Size {
    lines: usize,
    bytes: usize,
}

impl Size {
    /// Tells whether one more line may be added to the file.
    fn has_room_for(self, line: &str) -> bool {
        self.lines < 2 * MAX_KEPT && self.bytes + line.len() <= MAX_GROWN_BYTES
    }
}

impl FarmLog {
    /// Returns the log of a farm, not read yet.
    pub(crate) fn of(farm: &str) -> Self {
        let digest = Sha256::digest(farm.as_bytes());
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let file = format!(".tympan-passed-{name}");
        Self {
            file,
            state: Mutex::default(),
            synced: Mutex::default(),
            grown: watch::Sender::new(0),
        }
    }

    /// Returns what tells that the log has grown.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// Returns the number of the last event, as far as the log was read; waits for nobody.
    pub(crate) fn last(&self) -> u64 {
        *self.grown.borrow()
    }

    /// Writes the file if it is not as the log is, as where there is none; does file work.
    ///
    /// A line is added to a file that is there also where a full disk has no room for one more file.
    pub(super) fn make(&self, root: &Root, is_ours: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !is_ours() {
            return;
        }
        self.open(&mut state, root);
        if state.size.is_none()
            && let Err(error) = state.write(root, &self.file, "")
        {
            self.tell_unwritten(root, &error);
        }
    }

    /// Adds an event and returns its number; does file work. `is_ours` tells whether no other process keeps the log.
    ///
    /// What cannot be written is told siblings nevertheless; after a restart they take everything for out of date then.
    ///
    /// # Errors
    /// [`Unlogged::Left`], and then nothing was added; [`Unlogged::Failed`] if a restart would lose the event.
    pub(super) fn append(
        &self,
        root: &Root,
        event: Event,
        is_ours: impl Fn() -> bool,
    ) -> Result<u64, Unlogged> {
        let mut state = self.state.lock();
        // Asked under the lock, which who leaves waits for.
        if !is_ours() {
            return Err(Unlogged::Left);
        }
        let log = self.open(&mut state, root);
        let line = log.append(event);
        let count = log.head().count;
        let written = state.write(root, &self.file, &line);
        // Under the lock, so that the number never goes back.
        self.grown.send_replace(count);
        drop(state);
        match written.and_then(|written| self.sync(root, written)) {
            Ok(()) => Ok(count),
            Err(error) => self.give_up(root, &error, is_ours).map(|()| count),
        }
    }

    /// Adds an event to what siblings in reach are told, and to no file.
    pub(super) fn tell(&self, root: &Root, event: Event) {
        let mut state = self.state.lock();
        let log = self.open(&mut state, root);
        log.append(event);
        self.grown.send_replace(log.head().count);
    }

    /// Waits until nobody adds to the file any more who found it to be ours.
    pub(super) fn leave(&self) {
        drop(self.state.lock());
    }

    /// Returns the log, reading it first if that was not done yet.
    fn open<'a>(&self, state: &'a mut State, root: &Root) -> &'a mut Log {
        let is_new = state.log.is_none();
        let log = state.open(root, &self.file);
        if is_new {
            let count = log.head().count;
            // What was there before is no growth.
            self.grown.send_if_modified(|last| {
                *last = count;
                false
            });
        }
        log
    }

    /// Lets so many lines outlive a power failure, with all others that were written meanwhile.
    fn sync(&self, root: &Root, written: u64) -> io::Result<()> {
        let mut synced = self.synced.lock();
        if *synced < written {
            let all = self.state.lock().written;
            root.current()?.sync_own(&self.file)?;
            *synced = all;
        }
        Ok(())
    }

    /// Empties the file, which lacks an event: whoever reads it must not take it for whole.
    fn give_up(
        &self,
        root: &Root,
        error: &io::Error,
        is_ours: impl Fn() -> bool,
    ) -> Result<(), Unlogged> {
        let mut state = self.state.lock();
        state.size = None;
        let docroot = if is_ours() { root.current() } else { Err(io::ErrorKind::Other.into()) };
        let emptied = docroot.and_then(|docroot| docroot.empty_own(&self.file));
        drop(state);
        let file = root.path().join(&self.file);
        match emptied {
            Ok(()) => {
                tracing::warn!(file = %file.display(), reason = %error,
                    "cannot write down a flush for the siblings; if this process ends before it can, they take all pages for out of date");
                Ok(())
            }
            Err(_also) => {
                tracing::error!(file = %file.display(), reason = %error, "cannot write down a flush for the siblings");
                Err(Unlogged::Failed)
            }
        }
    }

    /// Returns what a sibling is told that is at `position`, or, without one, the question whether it has heard everything,
    /// and whether there is more; does file work.
    pub(super) fn after(
        &self,
        root: &Root,
        position: Option<Option<Position>>,
        instance: &str,
    ) -> (Message, bool) {
        let mut state = self.state.lock();
        let log = self.open(&mut state, root);
        let head = log.head().clone();
        let position = position.unwrap_or_else(|| Some(head.clone()));
        let message = log.after(position.as_ref(), instance);
        let has_more = message.next != head;
        (message, has_more)
    }

    /// Tells whether the log knows what follows `position`; does file work.
    pub(super) fn knows(&self, root: &Root, position: Option<&Position>) -> bool {
        self.open(&mut self.state.lock(), root).index_after(position).is_some()
    }

    /// Tells whether the log has this name; does file work.
    pub(super) fn is_named(&self, root: &Root, origin: &str) -> bool {
        self.open(&mut self.state.lock(), root).origin == origin
    }

    /// Returns what a sibling is told that takes no message of the size that was tried; does file work.
    pub(super) fn instead(
        &self,
        root: &Root,
        position: Option<&Position>,
        instance: &str,
    ) -> Message {
        self.open(&mut self.state.lock(), root).instead(position, instance)
    }

    /// Takes a new name if another dispatcher has this one, as after its document root was copied; does file work.
    /// `is_ours` tells whether no other process keeps the log.
    pub(super) fn avoid_name(&self, root: &Root, origin: &str, is_ours: impl Fn() -> bool) {
        let mut state = self.state.lock();
        if !is_ours() || self.open(&mut state, root).origin != origin {
            return;
        }
        let mut log = Log::new(new_word(), new_word());
        // What was not passed on yet is not known under the new name.
        log.append(Event::All);
        self.grown.send_replace(log.head().count);
        *state = State { log: Some(log), size: None, written: state.written };
        let file = root.path().join(&self.file);
        tracing::warn!(file = %file.display(), "another dispatcher has a copy of this file, and this one begins a new one");
        if let Err(error) = state.write(root, &self.file, "") {
            self.tell_unwritten(root, &error);
        }
    }

    fn tell_unwritten(&self, root: &Root, error: &io::Error) {
        let file = root.path().join(&self.file);
        tracing::warn!(file = %file.display(), reason = %error, "cannot write down flushes for the siblings");
    }
}

impl State {
    /// Returns the log, reading it first if that was not done yet.
    fn open(&mut self, root: &Root, file: &str) -> &mut Log {
        let Self { log, size, .. } = self;
        log.get_or_insert_with(|| {
            let text = root.current().and_then(|docroot| docroot.read_own(file, MAX_FILE_BYTES));
            match text {
                Ok(None) => Log::new(new_word(), new_word()),
                Ok(Some(text)) => match Log::parse(&text, new_word()) {
                    Some(log) => {
                        // A line without its end must not get one.
                        let read = Size { lines: log.kept.len(), bytes: text.len() };
                        *size = text.ends_with('\n').then_some(read);
                        log
                    }
                    None => lost(root, file, "it makes no sense"),
                },
                Err(error) => lost(root, file, &error.to_string()),
            }
        })
    }

    /// Writes a line, or the whole file where that is shorter in the long run or the file is not as it should be. Returns
    /// how many lines were written by now.
    fn write(&mut self, root: &Root, file: &str, line: &str) -> io::Result<u64> {
        self.written += 1;
        let Some(log) = &self.log else { return Ok(self.written) };
        let docroot = root.current()?;
        let size = self.size.take().filter(|size| size.has_room_for(line));
        if let Some(Size { lines, bytes }) = size
            && docroot.append_own(file, line)?
        {
            self.size = Some(Size { lines: lines + 1, bytes: bytes + line.len() });
            return Ok(self.written);
        }
        let text = log.to_text();
        docroot.write_own_for_good(file, &text)?;
        self.size = Some(Size { lines: log.kept.len(), bytes: text.len() });
        Ok(self.written)
    }
}

/// Returns the log in place of one that cannot be read: nobody knows what siblings were not told yet.
fn lost(root: &Root, file: &str, reason: &str) -> Log {
    let file = root.path().join(file);
    tracing::warn!(file = %file.display(), reason, "cannot read which flushes siblings were not told; they take all pages for out of date");
    let mut log = Log::new(new_word(), new_word());
    log.append(Event::All);
    log
}

#[cfg(test)]
mod tests {
    use super::{FarmLog, Log, MAX_GROWN_BYTES, MAX_KEPT, MAX_KEPT_BYTES};
    use crate::cache::Root;
    use crate::gossip::Unlogged;
    use crate::gossip::heard::Heard;
    use crate::gossip::message::{Event, Message, Position};
    use proptest::prelude::*;

    fn page(number: u64) -> Event {
        Event::Page(format!("/{number}.html"))
    }

    fn log(events: u64) -> Log {
        let mut log = Log::new("o".to_owned(), "r1".to_owned());
        (1..=events).for_each(|number| drop(log.append(page(number))));
        log
    }

    /// A sibling that takes only what follows.
    #[derive(Default)]
    struct Sibling {
        heard: Heard,
        events: Vec<Event>,
    }

    impl Sibling {
        fn take(&mut self, message: &Message) -> bool {
            let follows = self.heard.position("o") == message.prev.as_ref();
            if follows {
                self.events.extend(message.events.iter().cloned());
                self.heard.note("o", message.next.clone());
            }
            follows
        }

        fn catch_up(&mut self, log: &Log) {
            while self.heard.position("o") != Some(log.head()) {
                let message = log.after(self.heard.position("o"), "i");
                assert!(message.is_sound() && self.take(&message));
            }
        }
    }

    #[test]
    fn events_count_as_they_are_written_however_they_were_read() {
        let log = |event: &str| {
            let text = format!("tympan-passed 1 o r1 4\nr1 5 {event}\n");
            Log::parse(&text, "r2".to_owned()).unwrap()
        };
        assert_eq!(log("{ \"page\": \"\\/5.html\" }"), log("{\"page\":\"/5.html\"}"));
    }

    #[test]
    fn the_first_version_is_read_and_written() {
        let text = "tympan-passed 1 o r1 4\nr1 5 {\"page\":\"/5.html\"}\nr2 6 \"stats\"\n";
        let log = Log::parse(text, "r3".to_owned()).unwrap();
        assert_eq!(log.to_text(), text);
        // A line that was cut off was never answered.
        let cut = format!("{text}r2 7 {{\"pa");
        assert_eq!(Log::parse(&cut, "r3".to_owned()), Some(log));
        for broken in [
            "",
            "tympan-passed 2 o r1 4\n",
            "tympan-passed 1 o r1\n",
            "tympan-passed 1 o r1 4\nr1 6 \"all\"\n",
            "tympan-passed 1 o r1 4\nr1 5 \"none\"\n",
            "tympan-passed 1 o r1 18446744073709551615\nr1 0 \"all\"\n",
        ] {
            assert_eq!(Log::parse(broken, "r3".to_owned()), None, "{broken}");
        }
    }

    #[test]
    fn who_was_away_for_too_long_begins_anew() {
        let (mut log, mut sibling) = (log(3), Sibling::default());
        sibling.catch_up(&log);
        assert_eq!(sibling.events, [page(1), page(2), page(3)]);
        (0..MAX_KEPT as u64).for_each(|number| drop(log.append(page(100 + number))));
        sibling.events.clear();
        sibling.catch_up(&log);
        assert_eq!(
            sibling.events.len(),
            MAX_KEPT,
            "the last that it heard is the one before the first"
        );
        sibling.events.clear();
        (0..=MAX_KEPT as u64).for_each(|number| drop(log.append(page(number))));
        sibling.catch_up(&log);
        assert_eq!(sibling.events, [Event::All]);
        let mut newcomer = Sibling::default();
        newcomer.catch_up(&log);
        assert_eq!(newcomer.events, [Event::All]);
    }

    #[test]
    fn a_log_that_was_restored_is_noticed() {
        let mut sibling = Sibling::default();
        let old = log(5);
        sibling.catch_up(&old);
        sibling.events.clear();
        // From a backup before the fourth, and beyond the fifth by now.
        let mut restored = Log::parse(&log(3).to_text(), "r2".to_owned()).unwrap();
        (0..4).for_each(|_| drop(restored.append(page(9))));
        sibling.catch_up(&restored);
        assert_eq!(sibling.events, [Event::All]);
        // One that was behind has missed nothing.
        let mut behind = Sibling::default();
        behind.catch_up(&log(2));
        behind.events.clear();
        behind.catch_up(&restored);
        assert_eq!(behind.events, [page(3), page(9), page(9), page(9), page(9)]);
    }

    #[test]
    fn long_events_are_bounded_and_sent_one_by_one() {
        let mut log = log(0);
        let long = Event::Keys(vec!["k".repeat(600 * 1024)]);
        (0..20).for_each(|_| drop(log.append(long.clone())));
        assert!(log.bytes <= MAX_KEPT_BYTES && log.kept.len() > 5, "{}", log.kept.len());
        let first = log.after(Some(&log.start), "i");
        assert_eq!(first.events.len(), 1);
    }

    /// A document root with the name of the file in it.
    fn root() -> (tempfile::TempDir, Root, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path(), 0o755).unwrap();
        let file = folder.path().join(FarmLog::of("site").file);
        (folder, root, file)
    }

    fn add(log: &FarmLog, root: &Root, event: Event) {
        log.append(root, event, || true).unwrap();
    }

    /// What a sibling is told after a restart that is where the log was.
    fn told_later(log: &FarmLog, root: &Root) -> (Vec<Event>, u64) {
        let (message, _) = log.after(root, None, "i");
        let later = FarmLog::of("site");
        let (message, _) = later.after(root, Some(Some(message.next)), "i");
        (message.events, later.last())
    }

    #[test]
    fn a_file_of_long_events_can_be_read_again() {
        let (_folder, root, file) = root();
        let log = FarmLog::of("site");
        let long = Event::Keys(vec!["k".repeat(1024 * 1024)]);
        for count in 1..=20 {
            add(&log, &root, long.clone());
            assert!(file.metadata().unwrap().len() <= MAX_GROWN_BYTES as u64, "{count}");
        }
        assert_eq!(told_later(&log, &root), (Vec::new(), 20));
    }

    #[test]
    fn a_file_that_lacks_an_event_counts_as_lost() {
        let (_folder, root, file) = root();
        let log = FarmLog::of("site");
        add(&log, &root, page(1));
        // As long as the file system lets it be, so that nothing can be added.
        let opened = std::fs::File::options().write(true).open(&file).unwrap();
        let longest = (0..63).rev().fold(0, |length, bit| {
            let longer = length | (1_u64 << bit);
            if opened.set_len(longer).is_ok() { longer } else { length }
        });
        opened.set_len(longest).unwrap();
        add(&log, &root, page(2));
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(told_later(&log, &root), (vec![Event::All], 1));
        // The next one that can be written brings all of them back.
        add(&log, &root, page(3));
        assert_eq!(told_later(&log, &root), (Vec::new(), 3));
    }

    #[test]
    fn the_file_is_there_before_the_first_event() {
        let (_folder, root, file) = root();
        FarmLog::of("site").make(&root, || false);
        assert!(!file.exists(), "another process keeps the log");
        let log = FarmLog::of("site");
        log.make(&root, || true);
        let empty = std::fs::read_to_string(&file).unwrap();
        add(&log, &root, page(1));
        assert!(std::fs::read_to_string(&file).unwrap().starts_with(&empty));
        assert_eq!(told_later(&log, &root), (Vec::new(), 1));
        // One that is as it should be stays.
        FarmLog::of("site").make(&root, || true);
        assert_eq!(told_later(&log, &root), (Vec::new(), 1));
        // One that is lost is written with the word for that.
        std::fs::write(&file, "").unwrap();
        FarmLog::of("site").make(&root, || true);
        assert!(std::fs::read_to_string(&file).unwrap().ends_with(" 1 \"all\"\n"));
    }

    #[test]
    fn a_name_is_changed_by_who_keeps_the_log_only() {
        let (_folder, root, file) = root();
        let log = FarmLog::of("site");
        add(&log, &root, page(1));
        let before = std::fs::read_to_string(&file).unwrap();
        let origin = before.split(' ').nth(2).unwrap();
        log.avoid_name(&root, origin, || false);
        assert!(log.is_named(&root, origin));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        log.avoid_name(&root, origin, || true);
        assert!(!log.is_named(&root, origin));
        assert_ne!(std::fs::read_to_string(&file).unwrap(), before);
    }

    #[test]
    fn a_log_knows_what_it_can_go_on_from() {
        let (_folder, root, _file) = root();
        let log = FarmLog::of("site");
        add(&log, &root, page(1));
        let (at, _) = log.after(&root, None, "i");
        add(&log, &root, page(2));
        assert!(log.knows(&root, Some(&at.next)) && log.knows(&root, None));
        let other = Position { run: "other".to_owned(), ..at.next };
        assert!(!log.knows(&root, Some(&other)));
    }

    #[test]
    fn what_a_restart_would_lose_is_not_done() {
        let (_folder, root, file) = root();
        let log = FarmLog::of("site");
        add(&log, &root, page(1));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(log.append(&root, page(2), || true), Err(Unlogged::Failed));
        std::fs::remove_dir(&file).unwrap();
        assert_eq!(log.append(&root, page(3), || true), Ok(3));
        assert_eq!(log.append(&root, page(4), || false), Err(Unlogged::Left));
        assert_eq!(log.last(), 3);
        assert_eq!(told_later(&log, &root), (Vec::new(), 3));
    }

    proptest! {
        /// Whatever is lost, comes twice or late: each event is taken once, in its order, and all are in the end.
        #[test]
        fn each_event_is_taken_once(steps in prop::collection::vec((0..4_u8, 0..40_usize), 1..60)) {
            let (mut log, mut sibling, mut sent) = (log(0), Sibling::default(), Vec::new());
            let mut number = 0;
            for (step, which) in steps {
                match step {
                    0 => {
                        number += 1;
                        log.append(page(number));
                    }
                    1 => sent.push(log.after(sibling.heard.position("o"), "i")),
                    2 if !sent.is_empty() => drop(sibling.take(&sent[which % sent.len()])),
                    _ => {
                        let text = log.to_text();
                        log = Log::parse(&text, format!("r{which}-{number}")).unwrap();
                    }
                }
            }
            sibling.catch_up(&log);
            let expected: Vec<Event> = (1..=number).map(page).collect();
            prop_assert_eq!(sibling.events, expected);
        }
    }
}
