//! `.stat` files: the time of the last change below a folder.
//!
//! The level of a folder is the number of its components below the document root. `.stat` files exist at the levels 0
//! to `statfileslevel`; the nearest one above a file counts, not the newest. When a file is stored, the folders above it
//! get the ones that they lack, so that a flush elsewhere does not make it stale.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, Timestamps, fstat, futimens, openat,
    renameat_with, statat,
};
use rustix::io::Errno;

use super::confined_open;
use super::docroot::{Docroot, OpenCacheFile, TEMPORARY_FOLDER};
use super::file_time::{same_timestamps, to_system_time};
use crate::cache::freshness::FreshnessInput;
use crate::cache::suffix_folder;
use crate::config::{CacheConfig, StatFileLayout};

const STAT_FILE_NAME: &str = ".stat";

/// The maximum number of attempts to touch a stat file whose folder disappears.
const MAX_TOUCH_ATTEMPTS: u32 = 100;

impl Docroot {
    /// Reads the facts that decide if `cached` is fresh; its file below the root and its page's path identify it.
    pub(crate) fn freshness_facts(
        &self,
        cache: &CacheConfig,
        file: &Path,
        path: &str,
        cached: &OpenCacheFile,
        now: SystemTime,
    ) -> FreshnessInput {
        let obeys_stat = cache.invalidate.allows(path);
        let touched = if obeys_stat { self.stat_file_times(file, &cache.stat_files) } else { None };
        FreshnessInput {
            now,
            fetch_time: cached.fetched_at,
            is_marked: cached.marked_at.is_some(),
            flush_time: touched.map(|touched| touched.touched_at),
            previous_flush_time: touched.and_then(|touched| touched.previous_touch),
            // A file from another program, or from before the farm obeyed HTTP, has no lifetime.
            expiry: if cache.is_http_cache && cached.terms().is_none() {
                Some(SystemTime::UNIX_EPOCH)
            } else {
                cached.expires_at
            },
        }
    }

    /// Returns the time of the last flush above `file`, even if its page does not obey it.
    pub(crate) fn last_flush_above(
        &self,
        file: &Path,
        stat_files: &StatFileLayout,
    ) -> Option<SystemTime> {
        self.stat_file_times(file, stat_files).map(|touched| touched.touched_at)
    }

    /// Returns the times of the stat file that applies to `file`; `None` if there is none.
    fn stat_file_times(&self, file: &Path, stat_files: &StatFileLayout) -> Option<StatFileTimes> {
        let level = match stat_files {
            StatFileLayout::Single(file) => {
                return rustix::fs::lstat(file).ok().map(|stat| StatFileTimes::from_stat(&stat));
            }
            StatFileLayout::Level(level) => *level,
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        let depth = folder.components().count();
        let above = depth.saturating_sub(usize::try_from(level).unwrap_or(usize::MAX));
        folder.ancestors().skip(above).find_map(|folder| self.stat_file_times_in(folder))
    }

    /// Creates the stat files that the folders above a stored file lack, with the time of the one that counted there until
    /// now.
    pub(crate) fn create_missing_stat_files(
        &self,
        file: &Path,
        cache: &CacheConfig,
    ) -> io::Result<()> {
        let StatFileLayout::Level(level) = &cache.stat_files else { return Ok(()) };
        let level = usize::try_from(*level).unwrap_or(usize::MAX);
        let mut folder = PathBuf::new();
        for component in file.parent().unwrap_or(Path::new("")).components().take(level) {
            let name = component.as_os_str();
            // Suffixes are made up by visitors, and each would leave a file that is never evicted.
            if name.to_str().is_none_or(suffix_folder::is_suffix_folder_name) {
                return Ok(());
            }
            folder.push(name);
            if self.stat_file_times_in(&folder).is_none() {
                self.create_stat_file_in(&folder, cache.mode)?;
            }
        }
        Ok(())
    }

    fn create_stat_file_in(&self, folder: &Path, mode: u32) -> io::Result<()> {
        let above = self.nearest_stat_file_times(folder);
        let touched = above.map_or(SystemTime::UNIX_EPOCH, |above| above.touched_at);
        let before = above.and_then(|above| above.previous_touch).unwrap_or(SystemTime::UNIX_EPOCH);
        let name = self.new_temporary_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        let created = openat(&self.temporary_fd, name.as_str(), flags, mode)?;
        let last_access = same_timestamps(before).last_access;
        // It appears with its time, as a newer one would make the files below it stale.
        let placed = futimens(&created, &Timestamps { last_access, ..same_timestamps(touched) })
            .and_then(|()| confined_open::open_folder_below(self.root_fd(), folder))
            .and_then(|opened| {
                let (from, to) = (name.as_str(), STAT_FILE_NAME);
                renameat_with(&self.temporary_fd, from, opened, to, RenameFlags::NOREPLACE)
            });
        if placed.is_ok() {
            return Ok(());
        }
        confined_open::unlink_if_present(self.temporary_fd.as_fd(), OsStr::new(&name))?;
        match placed {
            // A flush was faster, or the folder was removed meanwhile.
            Err(Errno::EXIST | Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(()),
            placed => Ok(placed?),
        }
    }

    /// Touches the stat files that a change of `handle` concerns, except those already in `touched`, and adds them
    /// there.
    pub(crate) fn touch_stat_files(
        &self,
        handle: &Path,
        cache: &CacheConfig,
        now: SystemTime,
        touched: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let mode = cache.mode;
        let level = match &cache.stat_files {
            StatFileLayout::Single(file) => {
                if touched.insert(file.clone()) {
                    touch_single_stat_file(file, now, mode)?;
                }
                return Ok(());
            }
            StatFileLayout::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
        };
        let mut folder = PathBuf::new();
        let mut names = handle.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        // The handle's own folder is touched as well if it exists; the error, if any, is on the side of freshness.
        for depth in 0..=level {
            if depth > 0 {
                let Some(name) = names.next() else { break };
                folder.push(name);
            }
            let stat = self.path.join(&folder).join(STAT_FILE_NAME);
            if touched.contains(&stat) {
                continue;
            }
            if !self.touch_stat_file_in(&folder, now, mode)? {
                break;
            }
            touched.insert(stat);
        }
        Ok(())
    }

    /// Touches the root's stat file and all stat files below it. Because the nearest one counts, none of them may hide
    /// the change. If `since` is set, stat files touched at or after that time stay as they are.
    pub(crate) fn touch_all_stat_files(
        &self,
        cache: &CacheConfig,
        (now, since): (SystemTime, Option<SystemTime>),
        touched: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        // A time in the future does not show what was touched until now.
        let is_done = |at: Option<SystemTime>| {
            since.zip(at).is_some_and(|(since, at)| (since..=now).contains(&at))
        };
        let level = match &cache.stat_files {
            StatFileLayout::Single(file) => {
                let at = rustix::fs::lstat(file)
                    .ok()
                    .map(|stat| StatFileTimes::from_stat(&stat).touched_at);
                if !is_done(at) {
                    touched.insert(file.clone());
                    touch_single_stat_file(file, now, cache.mode)?;
                }
                return Ok(());
            }
            StatFileLayout::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
        };
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let at = self.modified_at(&folder.join(STAT_FILE_NAME));
            let has_stat = folder.as_os_str().is_empty() || at.is_some();
            if has_stat && !is_done(at) && self.touch_stat_file_in(&folder, now, cache.mode)? {
                touched.insert(self.path.join(&folder).join(STAT_FILE_NAME));
            }
            if folder.components().count() < level {
                folders.extend(self.list_folders(&folder)?);
            }
        }
        Ok(())
    }

    fn list_folders(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let opened = match confined_open::open_folder_below(self.root_fd(), folder) {
            Ok(opened) => opened,
            // The folder was removed concurrently, and its stat file with it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut folders = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            // An entry that is not a folder has no stat file, so trying is enough where the listing does not report the
            // type.
            let may_be_folder =
                matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if may_be_folder && name != "." && name != ".." && name != TEMPORARY_FOLDER {
                folders.push(folder.join(name));
            }
        }
        Ok(folders)
    }

    /// Touches the stat file in `folder`, if the folder exists.
    fn touch_stat_file_in(&self, folder: &Path, now: SystemTime, mode: u32) -> io::Result<bool> {
        for _ in 0..MAX_TOUCH_ATTEMPTS {
            let opened = match confined_open::open_folder_below(self.root_fd(), folder) {
                Ok(opened) => opened,
                Err(
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG,
                ) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let before =
                || self.nearest_stat_file_times(folder).and_then(|above| above.touched_before(now));
            match touch_file_at(opened.as_fd(), STAT_FILE_NAME, OFlags::NOFOLLOW, now, mode, before)
            {
                Ok(()) => return Ok(true),
                // Eviction removed the empty folder after it was opened; a new one may exist at the path already.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// Returns the times of the nearest stat file above `folder`, which applies to files in it while it has none of its
    /// own.
    fn nearest_stat_file_times(&self, folder: &Path) -> Option<StatFileTimes> {
        folder.ancestors().skip(1).find_map(|folder| self.stat_file_times_in(folder))
    }

    fn stat_file_times_in(&self, folder: &Path) -> Option<StatFileTimes> {
        let stat = statat(self.root_fd(), folder.join(STAT_FILE_NAME), AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| StatFileTimes::from_stat(&stat))
    }
}

fn touch_single_stat_file(file: &Path, now: SystemTime, mode: u32) -> io::Result<()> {
    // This file may be reached by a link; stat files in folders may not.
    Ok(touch_file_at(rustix::fs::CWD, file, OFlags::empty(), now, mode, || None)?)
}

/// The times of a stat file.
#[derive(Debug, Clone, Copy)]
struct StatFileTimes {
    touched_at: SystemTime,
    /// The time before the last touch, if known.
    previous_touch: Option<SystemTime>,
}

impl StatFileTimes {
    fn from_stat(stat: &Stat) -> Self {
        let at = to_system_time(stat.st_mtime, stat.st_mtime_nsec);
        let earlier = to_system_time(stat.st_atime, stat.st_atime_nsec);
        Self { touched_at: at, previous_touch: Some(earlier).filter(|earlier| *earlier < at) }
    }

    /// Returns the stat file's time before the flushes that count at `time`.
    fn touched_before(self, time: SystemTime) -> Option<SystemTime> {
        if self.touched_at < time { Some(self.touched_at) } else { self.previous_touch }
    }
}

/// Sets the time of a stat file and creates it if it is absent. The previous time is stored as its access time: the new
/// time may be in the future, at the end of a window, and then does not show what is out of date already. A program
/// that reads the file, such as a backup, sets a later access time, which errs on the side of freshness.
///
/// A new file gets `before`, because it hides the stat file that counted there until now.
fn touch_file_at(
    folder: BorrowedFd<'_>,
    file: impl rustix::path::Arg + Copy,
    flags: OFlags,
    now: SystemTime,
    mode: u32,
    before: impl FnOnce() -> Option<SystemTime>,
) -> rustix::io::Result<()> {
    let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
    let (file, before) = match openat(folder, file, flags, Mode::empty()) {
        Ok(stat_file) => {
            let before = StatFileTimes::from_stat(&fstat(&stat_file)?).touched_before(now);
            (stat_file, before)
        }
        Err(Errno::NOENT) => {
            let mode = Mode::from_raw_mode(mode & 0o777);
            (openat(folder, file, flags | OFlags::CREATE, mode)?, before())
        }
        Err(error) => return Err(error),
    };
    let before = same_timestamps(before.unwrap_or(SystemTime::UNIX_EPOCH)).last_access;
    futimens(&file, &Timestamps { last_access: before, ..same_timestamps(now) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::SystemTime;

    use crate::cache::Docroot;

    /// Eviction removes empty folders while a flush touches the stat files in them.
    #[test]
    fn a_folder_that_vanishes_while_it_is_touched_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let content_folder = folder.path().join("content");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    std::fs::DirBuilder::new().mode(0o755).create(&content_folder).ok();
                    // A folder with a stat file is not empty.
                    std::fs::remove_file(content_folder.join(".stat")).ok();
                    std::fs::remove_dir(&content_folder).ok();
                }
            });
            let touch =
                || docroot.touch_stat_file_in(Path::new("content"), SystemTime::now(), 0o644);
            let outcomes: Vec<_> = (0..20_000).map(|_| touch()).collect();
            is_over.store(true, Ordering::SeqCst);
            let failure = outcomes.into_iter().find_map(Result::err);
            assert!(failure.is_none(), "{failure:?}");
        });
    }
}
