//! Counting what a document root holds, and evicting what was used longest ago, without an index.
//!
//! One walk counts and sorts the ages of files into a table of fixed size; from it follows the age from which on files
//! have to go, and a second walk evicts them. A file that nobody asked for since it was stored counts as
//! [`UNUSED_FACTOR`] times as old, so that a flood of URLs that come once evicts itself first.
//!
//! Invariants
//! * Only regular files of this process's user are evicted, and only those that `is_own` knows: no `.stat` file, nothing
//!   that a link leads to, nothing of other people.
//! * A body goes before its side files, so that whatever a crash leaves is not served with the wrong headers.
//! * A file that was replaced since the walk saw it stays.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstatvfs, openat, statat};
use rustix::io::Errno;

use super::beneath;
use super::docroot::{Docroot, TEMPORARY_FOLDER, side_file, time};
use super::headers::StoredHeaders;
use super::usage::Amount;
use crate::cacheable::is_reserved_name;

/// How much older a file counts that was never used since it was stored.
const UNUSED_FACTOR: u32 = 4;
/// Classes of ages: sixteen for each doubling.
const CLASSES: usize = 1024;
/// A walk that takes its time rests after so many files.
const STRIDE: u32 = 512;
/// A side file without its body is left over only after this long: its body may be on its way.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// What a walk needs to know.
pub(crate) struct Rules<'a> {
    /// Tells whether the cache may have written the file of this URL path.
    pub(crate) is_own: &'a dyn Fn(&str) -> bool,
    /// Tells whether the work has to end.
    pub(crate) is_over: &'a dyn Fn() -> bool,
    pub(crate) now: SystemTime,
    /// Whether the walk rests as long as it works, to leave the disk to visitors.
    pub(crate) is_patient: bool,
}

/// What a walk found.
#[derive(Debug)]
pub(crate) struct Survey {
    /// All files of the cache, their side files and the folders that hold some.
    pub(crate) all: Amount,
    /// Those that may be evicted, by the class of their age.
    classes: Vec<Amount>,
}

/// From which age on files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    class: usize,
    /// How much of the class itself goes; all of the older ones does.
    of_class: Amount,
}

/// The file system that a root lies on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Space {
    pub(crate) all: u64,
    pub(crate) free: u64,
    /// Whether it can hold no more files.
    pub(crate) is_out_of_files: bool,
}

impl Survey {
    /// Returns the cut that evicts at least `goal`, sparing what was used within `spared`; nothing if there is nothing to
    /// evict.
    pub(crate) fn cut(&self, goal: Amount, spared: Duration) -> Option<Cut> {
        let youngest = if spared.is_zero() { 0 } else { class_of(spared) + 1 };
        let (mut sum, mut last) = (Amount::default(), None);
        for (class, amount) in self.classes.iter().enumerate().skip(youngest).rev() {
            if amount.files == 0 {
                continue;
            }
            last = Some(Cut { class, of_class: goal - sum });
            sum = sum + *amount;
            if sum.covers(goal) {
                break;
            }
        }
        last
    }
}

/// Returns the class of an age.
fn class_of(age: Duration) -> usize {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let doublings = 63 - (age | 16).leading_zeros();
    let part = (age >> (doublings - 4)) & 15;
    let class = if age < 16 { age } else { u64::from(doublings - 3) * 16 + part };
    usize::try_from(class).unwrap_or(CLASSES).min(CLASSES - 1)
}

/// A file that may be evicted.
struct Candidate<'a> {
    folder: &'a OwnedFd,
    name: &'a OsStr,
    stat: Stat,
    amount: Amount,
    class: usize,
}

/// What is done with what a walk meets.
trait Visitor {
    fn folder(&mut self) {}
    fn candidate(&mut self, candidate: &Candidate<'_>);
    /// Tells whether something was taken out of the folder that ends here.
    fn has_taken(&mut self) -> bool {
        false
    }
}

struct Counting(Survey);

impl Visitor for Counting {
    fn folder(&mut self) {
        self.0.all = self.0.all + Amount::of_folder();
    }

    fn candidate(&mut self, candidate: &Candidate<'_>) {
        self.0.all = self.0.all + candidate.amount;
        if let Some(class) = self.0.classes.get_mut(candidate.class) {
            *class = *class + candidate.amount;
        }
    }
}

struct Evicting<'a> {
    docroot: &'a Docroot,
    cut: Cut,
    done: Amount,
    failure: Option<Errno>,
    has_taken: bool,
}

impl Visitor for Evicting<'_> {
    fn candidate(&mut self, candidate: &Candidate<'_>) {
        let is_at_cut = candidate.class == self.cut.class && self.cut.of_class != Amount::default();
        if candidate.class < self.cut.class || (candidate.class == self.cut.class && !is_at_cut) {
            return;
        }
        match self.docroot.evict_file(candidate.folder, candidate.name, &candidate.stat) {
            Ok(true) => {
                self.done = self.done + candidate.amount;
                self.has_taken = true;
                if is_at_cut {
                    self.cut.of_class = self.cut.of_class - candidate.amount;
                }
            }
            Ok(false) => {}
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }

    fn has_taken(&mut self) -> bool {
        std::mem::take(&mut self.has_taken)
    }
}

impl Docroot {
    /// Counts everything.
    pub(crate) fn survey(&self, rules: &Rules<'_>) -> Survey {
        let classes = vec![Amount::default(); CLASSES];
        let mut counting = Counting(Survey { all: Amount::default(), classes });
        self.visit_all(rules, &mut counting);
        counting.0
    }

    /// Evicts what lies beyond the cut, with the folders that are empty then; returns how much, and what failed first.
    pub(crate) fn evict(&self, rules: &Rules<'_>, cut: Cut) -> (Amount, Option<std::io::Error>) {
        let mut evicting = Evicting {
            docroot: self,
            cut,
            done: Amount::default(),
            failure: None,
            has_taken: false,
        };
        let folders = self.visit_all(rules, &mut evicting);
        self.usage.replace(evicting.done + folders, Amount::default());
        (evicting.done, evicting.failure.map(Into::into))
    }

    /// Returns how full the file system is.
    pub(crate) fn space(&self) -> std::io::Result<Space> {
        let stat = fstatvfs(&self.root)?;
        Ok(Space {
            all: stat.f_blocks.saturating_mul(stat.f_frsize),
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            // Some file systems have no fixed number of files and say 0 for both.
            is_out_of_files: stat.f_files > 0 && stat.f_favail == 0,
        })
    }

    /// Goes through all folders; returns what the removed ones took.
    fn visit_all(&self, rules: &Rules<'_>, visitor: &mut dyn Visitor) -> Amount {
        let mut pace = Pace { began: Instant::now(), left: STRIDE, is_patient: rules.is_patient };
        let mut removed = Amount::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(path) = folders.pop() {
            let Ok(folder) = beneath::open_folder(self.root(), &path) else { continue };
            let Ok(entries) = Dir::read_from(&folder) else { continue };
            let mut holds_own = false;
            for entry in entries.flatten() {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." || name == TEMPORARY_FOLDER {
                    continue;
                }
                if pace.step() && (rules.is_over)() {
                    return removed;
                }
                let place = Place { folder: &folder, path: &path, name };
                match kind_of(&place, entry.file_type()) {
                    FileType::Directory => folders.push(path.join(name)),
                    FileType::RegularFile => {
                        if let Some(candidate) = self.judge(rules, &place) {
                            holds_own = true;
                            visitor.candidate(&candidate);
                        }
                    }
                    _ => {}
                }
            }
            if holds_own {
                visitor.folder();
            }
            if visitor.has_taken() {
                removed = removed + self.remove_empty(&path);
            }
        }
        removed
    }

    /// Returns a file with what decides about its eviction; nothing if it must stay.
    fn judge<'a>(&self, rules: &Rules<'_>, place: &Place<'a>) -> Option<Candidate<'a>> {
        let Place { folder, path, name } = *place;
        let text = name.to_str()?;
        let file = path.join(name);
        let url = file.to_str().map(|file| format!("/{file}"))?;
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours {
            return None;
        }
        if is_reserved_name(text) {
            return left_over(rules, place, stat);
        }
        if !(rules.is_own)(&url) {
            return None;
        }
        let length = |stat: &Stat| u64::try_from(stat.st_size).unwrap_or(0);
        let mut amount = Amount::of_file(length(&stat));
        for side in [".h", ".ttl"] {
            let side = side_file(Path::new(name), side);
            if let Ok(stat) = statat(folder, &side, AtFlags::SYMLINK_NOFOLLOW) {
                amount = amount + Amount::of_file(length(&stat));
            }
        }
        let fetched = time(stat.st_mtime, stat.st_mtime_nsec);
        let read = Some(time(stat.st_atime, stat.st_atime_nsec)).filter(|read| *read > fetched);
        let used = read.into_iter().chain(self.usage.uses.last(&file)).max();
        let age = |since| rules.now.duration_since(since).unwrap_or_default();
        let age = match used.filter(|used| *used > fetched) {
            Some(used) => age(used),
            None => age(fetched).saturating_mul(UNUSED_FACTOR),
        };
        Some(Candidate { folder, name, stat, amount, class: class_of(age) })
    }

    /// Evicts one file with its side files, unless it changed since `seen`.
    fn evict_file(&self, folder: &OwnedFd, name: &OsStr, seen: &Stat) -> rustix::io::Result<bool> {
        let _nothing_is_placed = self.placing.write();
        let now = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(now) => now,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_same = now.st_ino == seen.st_ino
            && now.st_mtime == seen.st_mtime
            && now.st_mtime_nsec == seen.st_mtime_nsec;
        if !is_same {
            return Ok(false);
        }
        let is_gone = beneath::unlink(folder.as_fd(), name)?;
        if !name.to_str().is_some_and(is_reserved_name) {
            for side in [".h", ".ttl"] {
                beneath::unlink(folder.as_fd(), side_file(Path::new(name), side).as_os_str())?;
            }
        }
        Ok(is_gone)
    }

    /// Removes a folder and those above it as long as they are empty; returns what they took.
    fn remove_empty(&self, path: &Path) -> Amount {
        let mut removed = Amount::default();
        for folder in path.ancestors().take_while(|folder| !folder.as_os_str().is_empty()) {
            let _nothing_is_placed = self.placing.write();
            let (parent, name) = (folder.parent().unwrap_or(Path::new("")), folder.file_name());
            let Some((parent, name)) = beneath::open_folder(self.root(), parent).ok().zip(name)
            else {
                break;
            };
            // One that holds a `.stat` file, or anything else, is not empty.
            if rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            removed = removed + Amount::of_folder();
        }
        removed
    }
}

/// Where a walk is.
#[derive(Clone, Copy)]
struct Place<'a> {
    folder: &'a OwnedFd,
    path: &'a Path,
    name: &'a OsStr,
}

fn kind_of(place: &Place<'_>, told: FileType) -> FileType {
    match told {
        // Some file systems do not tell in the listing.
        FileType::Unknown => statat(place.folder, place.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
        kind => kind,
    }
}

/// Returns a side file whose body is gone, as after a crash between the two.
fn left_over<'a>(rules: &Rules<'_>, place: &Place<'a>, stat: Stat) -> Option<Candidate<'a>> {
    let bytes = place.name.as_bytes();
    let main = bytes.strip_suffix(b".h").or_else(|| bytes.strip_suffix(b".ttl"))?;
    let main = OsString::from(OsStr::from_bytes(main));
    let is_alone =
        matches!(statat(place.folder, &main, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT));
    let changed = time(stat.st_ctime, stat.st_ctime_nsec);
    let age = rules.now.duration_since(changed).unwrap_or_default();
    let file = place.path.join(&main);
    let is_own = file.to_str().is_some_and(|file| (rules.is_own)(&format!("/{file}")));
    if !is_alone || !is_own || age < LEFT_OVER || !is_side_file(place, &stat) {
        return None;
    }
    let amount = Amount::of_file(u64::try_from(stat.st_size).unwrap_or(0));
    // Nobody can use it, so it goes first.
    Some(Candidate { folder: place.folder, name: place.name, stat, amount, class: CLASSES - 1 })
}

/// Tells a side file from another one with such a name.
fn is_side_file(place: &Place<'_>, stat: &Stat) -> bool {
    if place.name.as_bytes().ends_with(b".ttl") {
        return stat.st_size == 0;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(place.folder, place.name, flags, Mode::empty()) else { return false };
    let mut text = Vec::new();
    let read = File::from(file).take(64).read_to_end(&mut text);
    read.is_ok() && StoredHeaders::is_one(&text)
}

/// Lets a walk rest as long as it worked.
struct Pace {
    began: Instant,
    left: u32,
    is_patient: bool,
}

impl Pace {
    /// Counts a file; tells whether a stride ended.
    fn step(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = STRIDE;
        if self.is_patient {
            std::thread::sleep(self.began.elapsed());
            self.began = Instant::now();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, CLASSES, Cut, Survey, class_of};
    use std::time::Duration;

    #[test]
    fn classes_rise_with_age() {
        let mut last = 0;
        for age in (0..10_000).chain((10_000..100_000_000).step_by(99_991)) {
            let class = class_of(Duration::from_millis(age));
            assert!(class >= last && class < CLASSES, "{age}");
            last = class;
        }
        assert!(class_of(Duration::MAX) < CLASSES);
        // An age is told apart from one that is an eighth longer.
        for seconds in [60, 3600, 86_400] {
            let age = Duration::from_secs(seconds);
            assert!(class_of(age) < class_of(age + age / 8), "{seconds}");
        }
    }

    #[test]
    fn a_cut_takes_the_oldest_until_it_is_enough() {
        let mut classes = vec![Amount::default(); CLASSES];
        let some = |files, bytes| Amount { files, bytes };
        let ages = [10, 100, 1000].map(|second| class_of(Duration::from_secs(second)));
        let [young, middle, old] = ages;
        for class in ages {
            classes[class] = some(10, 1000);
        }
        let survey = Survey { all: some(30, 3000), classes };
        let spared = Duration::ZERO;
        let cut = |class, of_class| Some(Cut { class, of_class });
        assert_eq!(survey.cut(some(1, 0), spared), cut(old, some(1, 0)));
        assert_eq!(survey.cut(some(0, 1000), spared), cut(old, some(0, 1000)));
        assert_eq!(survey.cut(some(0, 1001), spared), cut(middle, some(0, 1)));
        assert_eq!(survey.cut(some(11, 2500), spared), cut(young, some(0, 500)));
        assert_eq!(survey.cut(some(1000, 0), spared), cut(young, some(980, 0)));
        assert_eq!(survey.cut(some(1000, 0), Duration::from_secs(20)), cut(middle, some(990, 0)));
        assert_eq!(survey.cut(some(1, 1), Duration::from_secs(5000)), None);
    }
}
