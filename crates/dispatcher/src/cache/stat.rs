//! `.stat` files: when something below a folder changed last.
//!
//! The level of a folder is the number of its components below the document root. `.stat` files live at the levels 0
//! to `statfileslevel`; the nearest one above a file counts, not the newest.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, fstat, futimens, openat,
    statat,
};
use rustix::io::Errno;

use super::beneath;
use super::docroot::{CacheFile, Docroot, TEMPORARY_FOLDER, time};
use crate::config::{Cache, StatFiles};
use crate::freshness::Facts;

const STAT: &str = ".stat";

/// How often a folder may vanish while its stat file is touched.
const TOUCH_TRIES: u32 = 100;

impl Docroot {
    /// Reads what decides whether `cached` is fresh; its file below the root and its page's path name it.
    pub(crate) fn facts(
        &self,
        cache: &Cache,
        (file, path): (&Path, &str),
        cached: &CacheFile,
        now: SystemTime,
    ) -> Facts {
        let obeys_stat = cache.invalidate.allows(path);
        let touched = if obeys_stat { self.touched(file, &cache.stat_files) } else { None };
        Facts {
            now,
            fetched: cached.fetched,
            is_marked: cached.marked.is_some(),
            flushed: touched.map(|touched| touched.at),
            flushed_before: touched.and_then(|touched| touched.earlier),
            expires: cached.expires,
        }
    }

    /// Returns when something above `file` was flushed last, whether or not its page obeys that.
    pub(crate) fn flushed_at(&self, file: &Path, stat_files: &StatFiles) -> Option<SystemTime> {
        self.touched(file, stat_files).map(|touched| touched.at)
    }

    /// Returns the times of the stat file that `file` obeys, if there is one.
    fn touched(&self, file: &Path, stat_files: &StatFiles) -> Option<Touched> {
        let level = match stat_files {
            StatFiles::Single(file) => {
                return rustix::fs::lstat(file).ok().map(|stat| Touched::of(&stat));
            }
            StatFiles::Level(level) => *level,
        };
        let folder = file.parent().unwrap_or(Path::new(""));
        let depth = folder.components().count();
        let above = depth.saturating_sub(usize::try_from(level).unwrap_or(usize::MAX));
        folder.ancestors().skip(above).find_map(|folder| self.touched_in(folder))
    }

    /// Touches the stat files that a change of `handle` concerns, but for those that are in `touched` already, and adds
    /// them there.
    pub(crate) fn touch_stats(
        &self,
        handle: &Path,
        cache: &Cache,
        now: SystemTime,
        touched: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        let mode = cache.mode;
        let level = match &cache.stat_files {
            StatFiles::Single(file) => {
                if touched.insert(file.clone()) {
                    touch_single(file, now, mode)?;
                }
                return Ok(());
            }
            StatFiles::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
        };
        let mut folder = PathBuf::new();
        let mut names = handle.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        // The handle's own folder is touched as well if it exists, which errs to freshness.
        for depth in 0..=level {
            if depth > 0 {
                let Some(name) = names.next() else { break };
                folder.push(name);
            }
            let stat = self.path.join(&folder).join(STAT);
            if touched.contains(&stat) {
                continue;
            }
            if !self.touch(&folder, now, mode)? {
                break;
            }
            touched.insert(stat);
        }
        Ok(())
    }

    /// Touches the root's stat file and all that stand below it, so that nothing hides the change: the nearest one counts.
    /// Those that were touched from `since` on, if there is such a time, stay as they are.
    pub(crate) fn touch_all_stats(
        &self,
        cache: &Cache,
        (now, since): (SystemTime, Option<SystemTime>),
        touched: &mut BTreeSet<PathBuf>,
    ) -> io::Result<()> {
        // A time to come says nothing of what was touched until now.
        let is_done = |at: Option<SystemTime>| {
            since.zip(at).is_some_and(|(since, at)| (since..=now).contains(&at))
        };
        let level = match &cache.stat_files {
            StatFiles::Single(file) => {
                let at = rustix::fs::lstat(file).ok().map(|stat| Touched::of(&stat).at);
                if !is_done(at) {
                    touched.insert(file.clone());
                    touch_single(file, now, cache.mode)?;
                }
                return Ok(());
            }
            StatFiles::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
        };
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let at = self.modified(&folder.join(STAT));
            let has_stat = folder.as_os_str().is_empty() || at.is_some();
            if has_stat && !is_done(at) && self.touch(&folder, now, cache.mode)? {
                touched.insert(self.path.join(&folder).join(STAT));
            }
            if folder.components().count() < level {
                folders.extend(self.folders_in(&folder)?);
            }
        }
        Ok(())
    }

    fn folders_in(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let opened = match beneath::open_folder(self.root(), folder) {
            Ok(opened) => opened,
            // It was removed meanwhile, and its stat file with it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut folders = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            // What is no folder has no stat file, so that asking is enough where the listing does not tell.
            let may_be_folder =
                matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if may_be_folder && name != "." && name != ".." && name != TEMPORARY_FOLDER {
                folders.push(folder.join(name));
            }
        }
        Ok(folders)
    }

    /// Touches the stat file in `folder`, if the folder exists.
    fn touch(&self, folder: &Path, now: SystemTime, mode: u32) -> io::Result<bool> {
        for _ in 0..TOUCH_TRIES {
            let opened = match beneath::open_folder(self.root(), folder) {
                Ok(opened) => opened,
                Err(
                    Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG,
                ) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let before = || self.touched_above(folder).and_then(|above| above.before(now));
            match touch_in((opened.as_fd(), STAT), OFlags::NOFOLLOW, (now, mode), before) {
                Ok(()) => return Ok(true),
                // Eviction removed the empty folder since it was opened; another one may stand there already.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// Returns the times of the nearest stat file above `folder`, which files in it obey while it has none of its own.
    fn touched_above(&self, folder: &Path) -> Option<Touched> {
        folder.ancestors().skip(1).find_map(|folder| self.touched_in(folder))
    }

    fn touched_in(&self, folder: &Path) -> Option<Touched> {
        let stat = statat(self.root(), folder.join(STAT), AtFlags::SYMLINK_NOFOLLOW);
        stat.ok().map(|stat| Touched::of(&stat))
    }
}

fn touch_single(file: &Path, now: SystemTime, mode: u32) -> io::Result<()> {
    // It may be reached by a link; those in folders are none.
    Ok(touch_in((rustix::fs::CWD, file), OFlags::empty(), (now, mode), || None)?)
}

/// The times of a stat file.
#[derive(Debug, Clone, Copy)]
struct Touched {
    at: SystemTime,
    /// What its time was before, if that is known.
    earlier: Option<SystemTime>,
}

impl Touched {
    fn of(stat: &Stat) -> Self {
        let at = time(stat.st_mtime, stat.st_mtime_nsec);
        let earlier = time(stat.st_atime, stat.st_atime_nsec);
        Self { at, earlier: Some(earlier).filter(|earlier| *earlier < at) }
    }

    /// Returns the time that it had before the flushes which count at `moment`.
    fn before(self, moment: SystemTime) -> Option<SystemTime> {
        if self.at < moment { Some(self.at) } else { self.earlier }
    }
}

/// Sets the time of a stat file, making it if it is absent. The time that it had before becomes that of its last use: the
/// new one may lie ahead, at the end of a window, and says nothing then of what is out of date already. Whoever reads the
/// file, as a backup does, makes that a later time, which errs to freshness.
///
/// A new one gets `before`, as it hides the stat file that counted there until now.
fn touch_in(
    (folder, file): (BorrowedFd<'_>, impl rustix::path::Arg + Copy),
    flags: OFlags,
    (now, mode): (SystemTime, u32),
    before: impl FnOnce() -> Option<SystemTime>,
) -> rustix::io::Result<()> {
    let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC;
    let (file, before) = match openat(folder, file, flags, Mode::empty()) {
        Ok(known) => {
            let before = Touched::of(&fstat(&known)?).before(now);
            (known, before)
        }
        Err(Errno::NOENT) => {
            let mode = Mode::from_raw_mode(mode & 0o777);
            (openat(folder, file, flags | OFlags::CREATE, mode)?, before())
        }
        Err(error) => return Err(error),
    };
    let before = both(before.unwrap_or(SystemTime::UNIX_EPOCH)).last_access;
    futimens(&file, &Timestamps { last_access: before, ..both(now) })
}

/// Sets an exact time: the kernel's own "now" is up to 4 ms old, and a fetch that was sent in between would count as
/// newer than a flush that came after it.
pub(super) fn both(time: SystemTime) -> Timestamps {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::SystemTime;

    use crate::cache::Docroot;

    /// Eviction removes folders that are empty while a flush touches what stands in them.
    #[test]
    fn a_folder_that_vanishes_while_it_is_touched_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
        let place = folder.path().join("content");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    std::fs::DirBuilder::new().mode(0o755).create(&place).ok();
                    // One with a stat file is not empty.
                    std::fs::remove_file(place.join(".stat")).ok();
                    std::fs::remove_dir(&place).ok();
                }
            });
            let touch = || docroot.touch(Path::new("content"), SystemTime::now(), 0o644);
            let outcomes: Vec<_> = (0..20_000).map(|_| touch()).collect();
            is_over.store(true, Ordering::SeqCst);
            let failure = outcomes.into_iter().find_map(Result::err);
            assert!(failure.is_none(), "{failure:?}");
        });
    }
}
