//! Homes of demos with the sample site, which each test gets a copy of: its import takes seconds of CPU time.
//!
//! The replication agents in a home contain the addresses of the demo, so each set of addresses has its own home, and
//! is given to one demo at a time: to the next one when the folder of the previous one is gone.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The addresses of author, publisher and dispatcher.
pub(crate) type DemoAddresses = [SocketAddr; 3];

/// A set of addresses, and the home that a demo left there after its first start.
struct PreparedDemo {
    addresses: DemoAddresses,
    files: Arc<FolderCopy>,
    /// The folder of the demo that has the addresses.
    home: PathBuf,
}

static PREPARED: Mutex<Vec<PreparedDemo>> = Mutex::new(Vec::new());

/// Makes a folder the home of a demo that ran before, without its logs; files that are there stay as they are. Returns
/// the addresses that belong to it. `run_first` starts a demo in a folder, stops it, and returns its addresses.
pub(crate) fn prepare_demo_home(
    home: &Path,
    run_first: impl FnOnce(&Path) -> DemoAddresses,
) -> DemoAddresses {
    fs::create_dir_all(home).unwrap();
    let (addresses, files) = reuse_demo(home).unwrap_or_else(|| create_demo(home, run_first));
    files.write_to(home);
    addresses
}

/// Takes over the addresses of a demo whose folder is gone.
fn reuse_demo(home: &Path) -> Option<(DemoAddresses, Arc<FolderCopy>)> {
    let mut demos = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
    let demo = demos.iter_mut().find(|demo| !demo.home.exists())?;
    home.clone_into(&mut demo.home);
    Some((demo.addresses, Arc::clone(&demo.files)))
}

/// Runs a demo at new addresses, and keeps its files.
fn create_demo(
    home: &Path,
    run_first: impl FnOnce(&Path) -> DemoAddresses,
) -> (DemoAddresses, Arc<FolderCopy>) {
    let first = tempfile::tempdir().unwrap();
    let addresses = run_first(first.path());
    let files = Arc::new(FolderCopy::read(first.path()));
    let demo = PreparedDemo { addresses, files: Arc::clone(&files), home: home.to_owned() };
    PREPARED.lock().unwrap_or_else(PoisonError::into_inner).push(demo);
    (addresses, files)
}

/// The entries of a folder in memory, parents first, with their modes: no file outlives the tests.
struct FolderCopy(Vec<(PathBuf, Permissions, Option<Vec<u8>>)>);

impl FolderCopy {
    fn read(folder: &Path) -> Self {
        let mut copy = Self(Vec::new());
        copy.add(folder, Path::new(""));
        copy
    }

    fn add(&mut self, root: &Path, folder: &Path) {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let entry = entry.unwrap();
            let inner = folder.join(entry.file_name());
            // The dispatcher's configuration contains the folder, and its cache is empty.
            if inner == Path::new("dispatcher") || inner.ends_with("logs") {
                continue;
            }
            let metadata = entry.metadata().unwrap();
            let bytes = metadata.is_file().then(|| fs::read(entry.path()).unwrap());
            self.0.push((inner.clone(), metadata.permissions(), bytes));
            if metadata.is_dir() {
                self.add(root, &inner);
            }
        }
    }

    fn write_to(&self, home: &Path) {
        for (inner, permissions, bytes) in &self.0 {
            let path = home.join(inner);
            if path.exists() {
                continue;
            }
            match bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::create_dir(&path).unwrap(),
            }
            fs::set_permissions(&path, permissions.clone()).unwrap();
        }
    }
}
