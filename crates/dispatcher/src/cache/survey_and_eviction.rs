//! Counting of the files of a document root, and eviction of the least recently used ones, without an index.
//!
//! One walk counts the files and sorts their ages into a table of fixed size. The minimum age for eviction follows from
//! this table, and a second walk evicts. A file that was not requested since it was stored counts as
//! [`UNUSED_AGE_FACTOR`] times as old, so that a flood of URLs that are requested once evicts itself first.
//!
//! Invariants
//! * Only regular files of this process's user are evicted, and only those that `is_cache_path` accepts: no `.stat`
//!   files, nothing behind a link, nothing of other users.
//! * A body is removed before its side files, so that the remains of a crash are not served with the wrong headers.
//! * A file that was replaced after the walk saw it stays.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstatvfs, openat, statat};
use rustix::io::Errno;

use super::confined_open;
use super::docroot::{Docroot, TEMPORARY_FOLDER, side_file_path};
use super::file_time::to_system_time;
use super::stored_headers::StoredHeaders;
use super::usage::DiskAmount;
use crate::cache::cacheability::is_reserved_name;

/// The factor by which the age of a file is multiplied if it was not used since it was stored.
const UNUSED_AGE_FACTOR: u32 = 4;
/// The number of age classes: sixteen for each doubling.
const AGE_CLASS_COUNT: usize = 1024;
/// The number of files after which a throttled walk pauses.
const FILES_PER_REST: u32 = 512;
/// The minimum age of a side file without its body before it counts as orphaned, because the body may be about to be
/// placed.
const MIN_ORPHAN_AGE: Duration = Duration::from_secs(60);

/// The parameters of a walk.
pub(crate) struct DocrootWalkRules<'a> {
    /// Returns true if the cache may have written the file of this URL path.
    pub(crate) is_cache_path: &'a dyn Fn(&str) -> bool,
    /// Returns true if the work has to end.
    pub(crate) is_cancelled: &'a dyn Fn() -> bool,
    pub(crate) now: SystemTime,
    /// True if the walk pauses for as long as it works, to leave disk bandwidth to visitors.
    pub(crate) is_throttled: bool,
}

/// The result of a walk.
#[derive(Debug)]
pub(crate) struct DocrootSurvey {
    /// The total of all cache files, their side files and the folders that hold them.
    pub(crate) total: DiskAmount,
    /// The evictable files by age class.
    age_classes: Vec<DiskAmount>,
}

/// The age from which files are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EvictionCutoff {
    age_class: usize,
    /// The amount to evict in the class itself; all older classes are evicted completely.
    amount_of_class: DiskAmount,
}

/// The free space of the file system that holds a root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystemSpace {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// True if the file system cannot hold more files.
    pub(crate) is_out_of_inodes: bool,
}

impl DocrootSurvey {
    /// Returns the cutoff that evicts at least `goal` and spares files used within `spared`; `None` if there is nothing
    /// to evict.
    pub(crate) fn cutoff_for(
        &self,
        goal: DiskAmount,
        spared_period: Duration,
    ) -> Option<EvictionCutoff> {
        let youngest = if spared_period.is_zero() { 0 } else { age_class_of(spared_period) + 1 };
        let (mut sum, mut last) = (DiskAmount::default(), None);
        for (class, amount) in self.age_classes.iter().enumerate().skip(youngest).rev() {
            if amount.files == 0 {
                continue;
            }
            last = Some(EvictionCutoff { age_class: class, amount_of_class: goal - sum });
            sum = sum + *amount;
            if sum.covers(goal) {
                break;
            }
        }
        last
    }
}

/// Returns the class of an age.
fn age_class_of(age: Duration) -> usize {
    let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let doublings = 63 - (age | 16).leading_zeros();
    let part = (age >> (doublings - 4)) & 15;
    let class = if age < 16 { age } else { u64::from(doublings - 3) * 16 + part };
    usize::try_from(class).unwrap_or(AGE_CLASS_COUNT).min(AGE_CLASS_COUNT - 1)
}

/// A file that may be evicted.
struct EvictionCandidate<'a> {
    folder: &'a OwnedFd,
    name: &'a OsStr,
    stat: Stat,
    amount: DiskAmount,
    age_class: usize,
}

/// The actions of a walk on the entries it visits.
trait DocrootWalkVisitor {
    fn enter_folder(&mut self) {}
    fn visit_candidate(&mut self, candidate: &EvictionCandidate<'_>);
    /// Returns true if something was removed from the folder that ends here.
    fn has_removed_files(&mut self) -> bool {
        false
    }
}

struct SurveyVisitor(DocrootSurvey);

impl DocrootWalkVisitor for SurveyVisitor {
    fn enter_folder(&mut self) {
        self.0.total = self.0.total + DiskAmount::of_folder();
    }

    fn visit_candidate(&mut self, candidate: &EvictionCandidate<'_>) {
        self.0.total = self.0.total + candidate.amount;
        if let Some(class) = self.0.age_classes.get_mut(candidate.age_class) {
            *class = *class + candidate.amount;
        }
    }
}

struct EvictionVisitor<'a> {
    docroot: &'a Docroot,
    cutoff: EvictionCutoff,
    evicted: DiskAmount,
    first_error: Option<Errno>,
    has_removed_files: bool,
}

impl DocrootWalkVisitor for EvictionVisitor<'_> {
    fn visit_candidate(&mut self, candidate: &EvictionCandidate<'_>) {
        let is_at_cut = candidate.age_class == self.cutoff.age_class
            && self.cutoff.amount_of_class != DiskAmount::default();
        if candidate.age_class < self.cutoff.age_class
            || (candidate.age_class == self.cutoff.age_class && !is_at_cut)
        {
            return;
        }
        match self.docroot.evict_file(candidate.folder, candidate.name, &candidate.stat) {
            Ok(true) => {
                self.evicted = self.evicted + candidate.amount;
                self.has_removed_files = true;
                if is_at_cut {
                    self.cutoff.amount_of_class = self.cutoff.amount_of_class - candidate.amount;
                }
            }
            Ok(false) => {}
            Err(error) => {
                self.first_error.get_or_insert(error);
            }
        }
    }

    fn has_removed_files(&mut self) -> bool {
        std::mem::take(&mut self.has_removed_files)
    }
}

impl Docroot {
    /// Counts all files.
    pub(crate) fn survey_files(&self, rules: &DocrootWalkRules<'_>) -> DocrootSurvey {
        let classes = vec![DiskAmount::default(); AGE_CLASS_COUNT];
        let mut counting =
            SurveyVisitor(DocrootSurvey { total: DiskAmount::default(), age_classes: classes });
        self.visit_all_folders(rules, &mut counting);
        counting.0
    }

    /// Evicts the files beyond the cutoff and the folders that become empty; returns the amount evicted and the first
    /// error.
    pub(crate) fn evict_beyond(
        &self,
        rules: &DocrootWalkRules<'_>,
        cut: EvictionCutoff,
    ) -> (DiskAmount, Option<std::io::Error>) {
        let mut evicting = EvictionVisitor {
            docroot: self,
            cutoff: cut,
            evicted: DiskAmount::default(),
            first_error: None,
            has_removed_files: false,
        };
        let folders = self.visit_all_folders(rules, &mut evicting);
        self.usage.record_replacement(evicting.evicted + folders, DiskAmount::default());
        (evicting.evicted, evicting.first_error.map(Into::into))
    }

    /// Returns the free space of the file system.
    pub(crate) fn file_system_space(&self) -> std::io::Result<FileSystemSpace> {
        let stat = fstatvfs(&self.root_fd)?;
        Ok(FileSystemSpace {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            // Some file systems have no fixed number of files and report 0 for both.
            is_out_of_inodes: stat.f_files > 0 && stat.f_favail == 0,
        })
    }

    /// Visits all folders; returns the amount that removed folders used.
    fn visit_all_folders(
        &self,
        rules: &DocrootWalkRules<'_>,
        visitor: &mut dyn DocrootWalkVisitor,
    ) -> DiskAmount {
        let mut pace = WalkThrottle {
            stride_started: Instant::now(),
            files_left: FILES_PER_REST,
            is_throttled: rules.is_throttled,
        };
        let mut removed = DiskAmount::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(path) = folders.pop() {
            let Ok(folder) = confined_open::open_folder_below(self.root_fd(), &path) else {
                continue;
            };
            let Ok(entries) = Dir::read_from(&folder) else { continue };
            let mut holds_own = false;
            for entry in entries.flatten() {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." || name == TEMPORARY_FOLDER {
                    continue;
                }
                if pace.count_file() && (rules.is_cancelled)() {
                    return removed;
                }
                let docroot_entry = DocrootEntry { folder: &folder, path: &path, name };
                match file_type_of(&docroot_entry, entry.file_type()) {
                    FileType::Directory => folders.push(path.join(name)),
                    FileType::RegularFile => {
                        if let Some(candidate) = self.eviction_candidate(rules, &docroot_entry) {
                            holds_own = true;
                            visitor.visit_candidate(&candidate);
                        }
                    }
                    _ => {}
                }
            }
            if holds_own {
                visitor.enter_folder();
            }
            if visitor.has_removed_files() {
                removed = removed + self.remove_empty_folders(&path);
            }
        }
        removed
    }

    /// Returns a file with the facts that decide its eviction; `None` if it must stay.
    fn eviction_candidate<'a>(
        &self,
        rules: &DocrootWalkRules<'_>,
        docroot_entry: &DocrootEntry<'a>,
    ) -> Option<EvictionCandidate<'a>> {
        let DocrootEntry { folder, path, name } = *docroot_entry;
        let text = name.to_str()?;
        let file = path.join(name);
        let url = file.to_str().map(|file| format!("/{file}"))?;
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours {
            return None;
        }
        if is_reserved_name(text) {
            return orphaned_side_file(rules, docroot_entry, stat);
        }
        if !(rules.is_cache_path)(&url) {
            return None;
        }
        let length = |stat: &Stat| u64::try_from(stat.st_size).unwrap_or(0);
        let mut amount = DiskAmount::of_file(length(&stat));
        for side in [".h", ".ttl"] {
            let side = side_file_path(Path::new(name), side);
            if let Ok(stat) = statat(folder, &side, AtFlags::SYMLINK_NOFOLLOW) {
                amount = amount + DiskAmount::of_file(length(&stat));
            }
        }
        let fetched = to_system_time(stat.st_mtime, stat.st_mtime_nsec);
        let read =
            Some(to_system_time(stat.st_atime, stat.st_atime_nsec)).filter(|read| *read > fetched);
        let used = read.into_iter().chain(self.usage.last_uses.last_use(&file)).max();
        let age = |since| rules.now.duration_since(since).unwrap_or_default();
        let age = match used.filter(|used| *used > fetched) {
            Some(used) => age(used),
            None => age(fetched).saturating_mul(UNUSED_AGE_FACTOR),
        };
        Some(EvictionCandidate { folder, name, stat, amount, age_class: age_class_of(age) })
    }

    /// Evicts one file with its side files, unless it changed after `expected_stat`.
    fn evict_file(
        &self,
        folder: &OwnedFd,
        name: &OsStr,
        expected_stat: &Stat,
    ) -> rustix::io::Result<bool> {
        let _nothing_is_placed = self.placement_lock.write();
        let now = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(now) => now,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error),
        };
        let is_same = now.st_ino == expected_stat.st_ino
            && now.st_mtime == expected_stat.st_mtime
            && now.st_mtime_nsec == expected_stat.st_mtime_nsec;
        if !is_same {
            return Ok(false);
        }
        let is_gone = confined_open::unlink_if_present(folder.as_fd(), name)?;
        if !name.to_str().is_some_and(is_reserved_name) {
            for side in [".h", ".ttl"] {
                confined_open::unlink_if_present(
                    folder.as_fd(),
                    side_file_path(Path::new(name), side).as_os_str(),
                )?;
            }
        }
        Ok(is_gone)
    }

    /// Removes a folder and its ancestors as long as they are empty; returns the amount they used.
    fn remove_empty_folders(&self, path: &Path) -> DiskAmount {
        let mut removed = DiskAmount::default();
        for folder in path.ancestors().take_while(|folder| !folder.as_os_str().is_empty()) {
            let _nothing_is_placed = self.placement_lock.write();
            let (parent, name) = (folder.parent().unwrap_or(Path::new("")), folder.file_name());
            let Some((parent, name)) =
                confined_open::open_folder_below(self.root_fd(), parent).ok().zip(name)
            else {
                break;
            };
            // A folder that holds a `.stat` file, or anything else, is not empty.
            if rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            removed = removed + DiskAmount::of_folder();
        }
        removed
    }
}

/// The current position of a walk.
#[derive(Clone, Copy)]
struct DocrootEntry<'a> {
    folder: &'a OwnedFd,
    path: &'a Path,
    name: &'a OsStr,
}

fn file_type_of(docroot_entry: &DocrootEntry<'_>, listed_type: FileType) -> FileType {
    match listed_type {
        // Some file systems do not report the type in the listing.
        FileType::Unknown => {
            statat(docroot_entry.folder, docroot_entry.name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
        }
        kind => kind,
    }
}

/// Returns a side file whose body is gone, for example after a crash between the two removals.
fn orphaned_side_file<'a>(
    rules: &DocrootWalkRules<'_>,
    docroot_entry: &DocrootEntry<'a>,
    stat: Stat,
) -> Option<EvictionCandidate<'a>> {
    let bytes = docroot_entry.name.as_bytes();
    let main = bytes.strip_suffix(b".h").or_else(|| bytes.strip_suffix(b".ttl"))?;
    let main = OsString::from(OsStr::from_bytes(main));
    let is_alone =
        matches!(statat(docroot_entry.folder, &main, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT));
    let changed = to_system_time(stat.st_ctime, stat.st_ctime_nsec);
    let age = rules.now.duration_since(changed).unwrap_or_default();
    let file = docroot_entry.path.join(&main);
    let is_own = file.to_str().is_some_and(|file| (rules.is_cache_path)(&format!("/{file}")));
    if !is_alone || !is_own || age < MIN_ORPHAN_AGE || !is_side_file(docroot_entry, &stat) {
        return None;
    }
    let amount = DiskAmount::of_file(u64::try_from(stat.st_size).unwrap_or(0));
    // It is useless without its body, so it is evicted first.
    Some(EvictionCandidate {
        folder: docroot_entry.folder,
        name: docroot_entry.name,
        stat,
        amount,
        age_class: AGE_CLASS_COUNT - 1,
    })
}

/// Returns true if the file is a side file and not another file with such a name.
fn is_side_file(docroot_entry: &DocrootEntry<'_>, stat: &Stat) -> bool {
    if docroot_entry.name.as_bytes().ends_with(b".ttl") {
        return stat.st_size == 0;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(file) = openat(docroot_entry.folder, docroot_entry.name, flags, Mode::empty()) else {
        return false;
    };
    let mut text = Vec::new();
    let read = File::from(file).take(64).read_to_end(&mut text);
    read.is_ok() && StoredHeaders::is_header_file(&text)
}

/// Makes a walk pause for as long as it worked.
struct WalkThrottle {
    stride_started: Instant,
    files_left: u32,
    is_throttled: bool,
}

impl WalkThrottle {
    /// Counts a file; returns true if a stride ended.
    fn count_file(&mut self) -> bool {
        self.files_left -= 1;
        if self.files_left > 0 {
            return false;
        }
        self.files_left = FILES_PER_REST;
        if self.is_throttled {
            std::thread::sleep(self.stride_started.elapsed());
            self.stride_started = Instant::now();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{AGE_CLASS_COUNT, DiskAmount, DocrootSurvey, EvictionCutoff, age_class_of};
    use std::time::Duration;

    #[test]
    fn classes_rise_with_age() {
        let mut last = 0;
        for age in (0..10_000).chain((10_000..100_000_000).step_by(99_991)) {
            let class = age_class_of(Duration::from_millis(age));
            assert!(class >= last && class < AGE_CLASS_COUNT, "{age}");
            last = class;
        }
        assert!(age_class_of(Duration::MAX) < AGE_CLASS_COUNT);
        // An age must be distinguished from one that is an eighth longer.
        for seconds in [60, 3600, 86_400] {
            let age = Duration::from_secs(seconds);
            assert!(age_class_of(age) < age_class_of(age + age / 8), "{seconds}");
        }
    }

    #[test]
    fn a_cut_takes_the_oldest_until_it_is_enough() {
        let mut classes = vec![DiskAmount::default(); AGE_CLASS_COUNT];
        let amount = |files, bytes| DiskAmount { files, bytes };
        let ages = [10, 100, 1000].map(|second| age_class_of(Duration::from_secs(second)));
        let [young, middle, old] = ages;
        for class in ages {
            classes[class] = amount(10, 1000);
        }
        let survey = DocrootSurvey { total: amount(30, 3000), age_classes: classes };
        let spared_period = Duration::ZERO;
        let cut =
            |class, of_class| Some(EvictionCutoff { age_class: class, amount_of_class: of_class });
        assert_eq!(survey.cutoff_for(amount(1, 0), spared_period), cut(old, amount(1, 0)));
        assert_eq!(survey.cutoff_for(amount(0, 1000), spared_period), cut(old, amount(0, 1000)));
        assert_eq!(survey.cutoff_for(amount(0, 1001), spared_period), cut(middle, amount(0, 1)));
        assert_eq!(survey.cutoff_for(amount(11, 2500), spared_period), cut(young, amount(0, 500)));
        assert_eq!(survey.cutoff_for(amount(1000, 0), spared_period), cut(young, amount(980, 0)));
        assert_eq!(
            survey.cutoff_for(amount(1000, 0), Duration::from_secs(20)),
            cut(middle, amount(990, 0))
        );
        assert_eq!(survey.cutoff_for(amount(1, 1), Duration::from_secs(5000)), None);
    }
}
