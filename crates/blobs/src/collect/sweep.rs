//! Sweeping: what no repository marked goes to the trash, and out of it after a while.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::join::Joined;
use super::marks::read_into;
use super::member::{Member, register, registered};
use super::sorter::{Sorted, Sorter};
use super::turn::{Asked, Clock, Turn};
use crate::{Error, Listed, ReadBlobs, Result, WriteBlobs};

/// How a sweep works.
#[derive(Debug, Clone)]
pub struct SweepOptions {
    /// The time by which everything is judged.
    pub now: SystemTime,
    /// How long it may take from the storing of a blob to the commit that refers to it, with what the clocks of machines
    /// differ by. Default 24 h.
    pub grace: Duration,
    /// How long blobs stay in the trash. Default 7 days.
    pub window: Duration,
    /// Whether something is moved, or only counted.
    pub mode: SweepMode,
    /// An existing folder for temporary files, of about 50 bytes for each blob.
    pub scratch: PathBuf,
    /// Who sweeps, if no other process sweeps under this name: what it left unfinished is taken up at once then.
    pub sweeper: Option<String>,
    /// For how long a process that sweeps and says nothing more keeps others from it. Default 10 min.
    pub turn: Duration,
    /// What tells the time by which turns are kept.
    pub clock: Clock,
    /// Where repositories that only read the place leave their notes.
    pub guests: Vec<Arc<dyn ReadBlobs>>,
}

impl SweepOptions {
    /// The default options at a time.
    #[must_use]
    pub fn at(now: SystemTime, scratch: PathBuf) -> Self {
        let (grace, window) = (Duration::from_hours(24), Duration::from_hours(7 * 24));
        Self {
            now,
            grace,
            window,
            mode: SweepMode::Remove,
            scratch,
            sweeper: None,
            turn: Duration::from_mins(10),
            clock: Clock::new(SystemTime::now),
            guests: Vec::new(),
        }
    }
}

/// What a sweep does with garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepMode {
    /// It is moved to the trash, and removed from there in time.
    Remove,
    /// It is counted.
    DryRun,
}

/// What a sweep has found and done; in a dry run, what it would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Blobs that some repository needs.
    pub live: Tally,
    /// Blobs that nobody marked, and that are too young to say that nobody needs them.
    pub young: Tally,
    /// Blobs that went to the trash.
    pub discarded: Tally,
    /// Blobs that were taken out of the trash, as a repository needs them.
    pub restored: Tally,
    /// Blobs that went for good.
    pub purged: Tally,
    /// Blobs that stay in the trash.
    pub in_trash: Tally,
    /// Repositories without marks: nothing is removed before they have some.
    pub waits_for: Vec<String>,
    /// The repository whose marks are the oldest, and when they were begun: what is younger than that, less the grace,
    /// stays.
    pub oldest: Option<(String, SystemTime)>,
    /// Whether it was stopped early.
    pub is_stopped: bool,
    /// Somebody else sweeps the place, at most until then: nothing was done, or what was begun was left to them.
    pub others_until: Option<SystemTime>,
}

/// A number of blobs, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub blobs: u64,
    /// Bytes of all.
    pub bytes: u64,
}

impl Tally {
    /// Counts a blob.
    pub(super) fn add(&mut self, listed: &Listed) {
        self.blobs += 1;
        self.bytes += listed.id.length();
    }
}

/// Sweeps a place, unless somebody else does. `pace` is asked for each blob and may wait, or stop the sweep, which leaves
/// nothing undone that matters.
///
/// # Errors
/// If the place fails, cannot be listed, or holds notes that cannot be understood.
pub fn sweep(
    place: &dyn WriteBlobs,
    options: &SweepOptions,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Swept> {
    if options.mode == SweepMode::DryRun {
        return sweep_all(place, options, None, pace);
    }
    let mut turn = match Turn::take(place, options)? {
        Asked::Mine(turn) => turn,
        Asked::Others(until) => {
            return Ok(Swept { others_until: Some(until), ..Swept::default() });
        }
    };
    let swept = sweep_all(place, options, Some(&mut turn), pace);
    let ended = turn.end();
    let swept = swept?;
    ended.map(|()| swept)
}

/// Sweeps within a turn, or only counts.
fn sweep_all<'a>(
    place: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    turn: Option<&'a mut Turn<'_>>,
    pace: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Swept> {
    let mut swept = Swept::default();
    let mut sorter = Sorter::new(&options.scratch);
    let mut is_complete = true;
    for member in members(place, options)? {
        match read_marks(place, options, &member.id, &mut sorter)? {
            Some(begun) if swept.oldest.as_ref().is_none_or(|(_, oldest)| begun < *oldest) => {
                swept.oldest = Some((member.name, begun));
            }
            Some(_) => {}
            None => {
                is_complete = false;
                swept.waits_for.push(member.name);
            }
        }
    }
    let oldest = swept.oldest.as_ref().map(|(_, oldest)| *oldest);
    let unused_since = oldest.filter(|_| is_complete).and_then(|at| at.checked_sub(options.grace));
    let mut broom = Broom { place, options, unused_since, turn };
    // One list of what is needed serves for both: it is merged once, in order, beside each.
    let needed = Needed::of(sorter.finish()?, options)?;
    // The trash first: what goes there now is looked at by the next sweep.
    let trash = list(options, |visit| place.list_trash(visit))?;
    if broom.sweep_trash(trash, needed.read()?, &mut swept, pace)?.is_break() {
        return Ok(Swept { is_stopped: true, ..swept });
    }
    let live = list(options, |visit| place.list(visit))?;
    let stopped = broom.sweep_live(live, needed.read()?, &mut swept, pace)?;
    Ok(Swept { is_stopped: stopped.is_break(), ..swept })
}

/// Returns who needs blobs of a place. Guests are noted in the place itself: if what they leave elsewhere is not to be
/// seen one day, nothing goes.
fn members(place: &dyn WriteBlobs, options: &SweepOptions) -> Result<Vec<Member>> {
    let mut members = BTreeMap::new();
    for guests in &options.guests {
        for guest in registered(&**guests)? {
            if options.mode == SweepMode::Remove {
                register(place, &guest.member, options.now)?;
            }
            members.insert(guest.member.id.clone(), guest.member);
        }
    }
    let own = registered(place)?.into_iter();
    members.extend(own.map(|one| (one.member.id.clone(), one.member)));
    Ok(members.into_values().collect())
}

/// Adds the marks of a repository, from wherever it leaves them, and returns when the newest were begun.
fn read_marks(
    place: &dyn WriteBlobs,
    options: &SweepOptions,
    id: &str,
    sorter: &mut Sorter,
) -> Result<Option<SystemTime>> {
    let mut begun = read_into(place, id, sorter)?;
    for guests in &options.guests {
        begun = begun.max(read_into(&**guests, id, sorter)?);
    }
    Ok(begun)
}

/// Sorts what a place shows.
pub(super) fn list(
    options: &SweepOptions,
    show: impl FnOnce(&mut dyn FnMut(Listed) -> ControlFlow<()>) -> Result<()>,
) -> Result<Sorted> {
    let mut sorter = Sorter::new(&options.scratch);
    let mut failed: Option<Error> = None;
    show(&mut |listed| match sorter.add(&listed) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    sorter.finish()
}

/// Everything that is needed, sorted, to be read more than once.
struct Needed {
    file: std::fs::File,
    scratch: PathBuf,
}

impl Needed {
    fn of(sorted: Sorted, options: &SweepOptions) -> Result<Self> {
        use std::io::Write;
        let scratch = options.scratch.clone();
        let failed = |source| Error::Disk {
            action: "write a file in",
            path: options.scratch.clone(),
            source,
        };
        let file = tempfile::tempfile_in(&scratch).map_err(failed)?;
        let mut out = std::io::BufWriter::with_capacity(128 * 1024, &file);
        let mut last = None;
        for one in sorted {
            let digest = *one?.id.digest();
            if last != Some(digest) {
                out.write_all(&digest).map_err(failed)?;
                last = Some(digest);
            }
        }
        out.flush().map_err(failed)?;
        drop(out);
        Ok(Self { file, scratch })
    }

    fn read(&self) -> Result<impl Iterator<Item = Result<[u8; 32]>> + use<>> {
        use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
        let path = self.scratch.clone();
        let failed =
            move |source| Error::Disk { action: "read a file in", path: path.clone(), source };
        let mut file = self.file.try_clone().map_err(&failed)?;
        file.seek(SeekFrom::Start(0)).map_err(&failed)?;
        let mut file = BufReader::with_capacity(128 * 1024, file);
        Ok(std::iter::from_fn(move || {
            let mut digest = [0; 32];
            match file.read_exact(&mut digest) {
                Ok(()) => Some(Ok(digest)),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => None,
                Err(error) => Some(Err(failed(error))),
            }
        }))
    }
}

/// What carries a sweep out.
struct Broom<'a, 't> {
    place: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    /// What was put or touched before this, and is not marked, is garbage; nothing if that is not known.
    unused_since: Option<SystemTime>,
    /// Without it, everything is only counted.
    turn: Option<&'a mut Turn<'t>>,
}

impl Broom<'_, '_> {
    /// Does something in the place, unless everything is only counted; nothing if the turn was lost.
    fn act(
        &mut self,
        action: impl FnOnce(&dyn WriteBlobs) -> Result<bool>,
    ) -> Result<Option<bool>> {
        let Some(turn) = &mut self.turn else { return Ok(Some(true)) };
        if turn.go_on()? { action(self.place).map(Some) } else { Ok(None) }
    }

    fn sweep_live(
        &mut self,
        live: Sorted,
        needed: impl Iterator<Item = Result<[u8; 32]>>,
        swept: &mut Swept,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for joined in Joined::new(live, needed) {
            let (listed, is_needed) = joined?;
            let garbage = self.unused_since.filter(|since| listed.modified < *since);
            match garbage {
                _ if is_needed => swept.live.add(&listed),
                None => swept.young.add(&listed),
                Some(since) => match self.act(|place| place.discard(&listed.id, since))? {
                    Some(true) => swept.discarded.add(&listed),
                    Some(false) => swept.young.add(&listed),
                    None => return Ok(self.lose_turn(swept)),
                },
            }
            if pace().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn sweep_trash(
        &mut self,
        trash: Sorted,
        needed: impl Iterator<Item = Result<[u8; 32]>>,
        swept: &mut Swept,
        pace: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        for joined in Joined::new(trash, needed) {
            let (listed, is_needed) = joined?;
            let (tally, done) = if is_needed {
                (&mut swept.restored, self.act(|place| place.undelete(&listed.id))?)
            } else if self.is_outdated(&listed) {
                (&mut swept.purged, self.act(|place| place.purge(&listed.id))?)
            } else {
                (&mut swept.in_trash, Some(true))
            };
            if done.is_none() {
                return Ok(self.lose_turn(swept));
            }
            tally.add(&listed);
            if pace().is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Notes that somebody else sweeps, as this process stood still for too long.
    fn lose_turn(&self, swept: &mut Swept) -> ControlFlow<()> {
        swept.others_until = Some(self.options.clock.now() + self.options.turn);
        ControlFlow::Break(())
    }

    /// Tells whether everybody began to mark long after a blob came to the trash, and the window is over.
    fn is_outdated(&self, listed: &Listed) -> bool {
        let is_over = listed.modified + self.options.window <= self.options.now;
        is_over && self.unused_since.is_some_and(|since| listed.modified < since)
    }
}
