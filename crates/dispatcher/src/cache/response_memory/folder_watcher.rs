//! Detection of changes that other programs make in the document roots: scripts that remove files, another dispatcher
//! that touches `.stat`.
//!
//! Invariants
//! * The changes reported by [`FolderWatcher::drain_changes`] include every change in a watched folder that was
//!   complete before the call.
//! * A folder for which [`FolderWatcher::watch_folder`] returned true stays watched until a drain reports that it
//!   changed.
//!
//! On failure: a folder that cannot be watched (a limit of the kernel, another file system) is reported as such, and
//! its cached files have to be checked at each use.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// The maximum number of watched folders; the kernel's own limit may be lower.
const MAX_WATCHED_FOLDERS: usize = 64 * 1024;

/// Watched folders.
#[derive(Debug)]
pub(crate) struct FolderWatcher {
    inotify: Option<OwnedFd>,
    folders: Mutex<WatchedFolders>,
    /// Held from reading a change until the caller knows of it, so that a second caller who finds nothing to read does
    /// not continue before the first one has reported its change.
    drain_lock: Mutex<()>,
}

#[derive(Debug, Default)]
struct WatchedFolders {
    by_path: HashMap<PathBuf, i32>,
    by_number: HashMap<i32, PathBuf>,
}

impl FolderWatcher {
    /// Creates a watcher without watched folders.
    pub(crate) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC);
        if let Err(error) = &inotify {
            tracing::warn!(reason = %error, "cannot watch document roots; checking cache files on each use");
        }
        Self { inotify: inotify.ok(), folders: Mutex::default(), drain_lock: Mutex::default() }
    }

    /// Watches a folder; returns true if it is watched now.
    pub(crate) fn watch_folder(&self, folder: &Path) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut folders = self.folders.lock();
        if folders.by_path.contains_key(folder) {
            return true;
        }
        if folders.by_path.len() >= MAX_WATCHED_FOLDERS {
            return false;
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVE
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let Ok(number) = inotify::add_watch(inotify, folder, flags) else { return false };
        // The same folder under another name, for example through a link: the later name counts.
        if let Some(replaced_folder) = folders.by_number.insert(number, folder.to_owned()) {
            folders.by_path.remove(&replaced_folder);
        }
        folders.by_path.insert(folder.to_owned(), number);
        true
    }

    /// Calls `tell` if something changed since the last call.
    pub(crate) fn drain_changes(&self, tell: impl FnOnce()) {
        let _one_at_a_time = self.drain_lock.lock();
        if self.read_changes() {
            tell();
        }
    }

    fn read_changes(&self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut has_changed = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    has_changed = true;
                    let is_gone =
                        ReadFlags::MOVE_SELF | ReadFlags::DELETE_SELF | ReadFlags::IGNORED;
                    if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                        // It is unknown which folders are gone.
                        self.unwatch_all();
                    }
                    if event.events().intersects(is_gone) {
                        self.forget_folder(inotify, event.wd(), event.events());
                    }
                }
                Err(Errno::INTR) => {}
                Err(_nothing_more) => return has_changed,
            }
        }
    }

    /// Removes a folder that moved: it is no longer at its path, although the kernel still watches it.
    fn forget_folder(&self, inotify: &OwnedFd, number: i32, events: ReadFlags) {
        let mut folders = self.folders.lock();
        if let Some(path) = folders.by_number.remove(&number) {
            folders.by_path.remove(&path);
            if events.contains(ReadFlags::MOVE_SELF) {
                // The watch may have been removed already.
                inotify::remove_watch(inotify, number).ok();
                // Its subfolders moved with it, which the kernel does not report.
                let WatchedFolders { by_path, by_number } = &mut *folders;
                by_path.retain(|below, watch_number| {
                    let stays = !below.starts_with(&path);
                    if !stays {
                        by_number.remove(&*watch_number);
                        inotify::remove_watch(inotify, *watch_number).ok();
                    }
                    stays
                });
            }
        }
    }

    /// Removes all watches.
    pub(crate) fn unwatch_all(&self) {
        let mut folders = self.folders.lock();
        if let Some(inotify) = &self.inotify {
            for number in folders.by_number.keys() {
                inotify::remove_watch(inotify, *number).ok();
            }
        }
        *folders = WatchedFolders::default();
    }
}

#[cfg(test)]
mod tests {
    use super::FolderWatcher;

    fn has_changed(watch: &FolderWatcher) -> bool {
        let mut has_changed = false;
        watch.drain_changes(|| has_changed = true);
        has_changed
    }

    #[test]
    fn changes_by_others_are_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let watch = FolderWatcher::new();
        assert!(watch.watch_folder(folder.path()));
        assert!(!has_changed(&watch));
        let file = folder.path().join("a.html");
        std::fs::write(&file, "x").unwrap();
        assert!(has_changed(&watch));
        assert!(!has_changed(&watch));
        std::fs::File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(has_changed(&watch));
        std::fs::read(&file).unwrap();
        assert!(!has_changed(&watch), "reading changes nothing");
        std::fs::remove_file(&file).unwrap();
        assert!(has_changed(&watch));
    }

    #[test]
    fn a_folder_below_one_that_moved_is_watched_anew() {
        let root = tempfile::tempdir().unwrap();
        let (upper, deep) = (root.path().join("a"), root.path().join("a/b/c"));
        let watch = FolderWatcher::new();
        for round in 0..3 {
            std::fs::create_dir_all(&deep).unwrap();
            for folder in deep.ancestors().take(4) {
                assert!(watch.watch_folder(folder), "{}", folder.display());
            }
            has_changed(&watch);
            std::fs::write(deep.join("x"), "x").unwrap();
            assert!(has_changed(&watch), "round {round}");
            // The kernel reports only the folder that itself moved.
            std::fs::rename(&upper, root.path().join(format!("old{round}"))).unwrap();
            assert!(has_changed(&watch));
            std::fs::write(root.path().join(format!("old{round}/b/c/y")), "y").unwrap();
            assert!(!has_changed(&watch), "what moved away is not watched");
        }
    }

    #[test]
    fn after_more_changes_than_the_kernel_keeps_nothing_is_taken_for_watched() {
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let most: u64 = most.trim().parse().unwrap();
        if most > 500_000 {
            eprintln!("skipped: the kernel keeps {most} changes, too many to exceed in a test");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        std::fs::create_dir(&folder).unwrap();
        let watch = FolderWatcher::new();
        assert!(watch.watch_folder(root.path()) && watch.watch_folder(&folder));
        // Changes of two files alternately, because the kernel merges consecutive equal events.
        let open = |name| std::fs::File::create(root.path().join(name)).unwrap();
        let files = [open("x"), open("y")];
        for number in 0..most + 16 {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(number);
            files[usize::from(number % 2 == 0)].set_modified(time).unwrap();
        }
        // This change is not reported any more.
        std::fs::rename(&folder, root.path().join("old")).unwrap();
        std::fs::create_dir(&folder).unwrap();
        assert!(has_changed(&watch));
        assert!(watch.watch_folder(root.path()) && watch.watch_folder(&folder));
        has_changed(&watch);
        std::fs::write(folder.join("x"), "x").unwrap();
        assert!(has_changed(&watch), "the new folder is watched");
    }

    #[test]
    fn a_folder_that_was_replaced_is_watched_anew() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a");
        let watch = FolderWatcher::new();
        for _ in 0..3 {
            std::fs::create_dir(&folder).unwrap();
            assert!(watch.watch_folder(root.path()) && watch.watch_folder(&folder));
            has_changed(&watch);
            assert!(watch.watch_folder(&folder));
            std::fs::write(folder.join("x"), "x").unwrap();
            assert!(has_changed(&watch));
            std::fs::rename(&folder, root.path().join("old")).unwrap();
            assert!(has_changed(&watch));
            std::fs::write(root.path().join("old/y"), "y").unwrap();
            assert!(!has_changed(&watch), "what moved away is not watched");
            std::fs::remove_dir_all(root.path().join("old")).unwrap();
            has_changed(&watch);
        }
    }
}
