//! The exporter of one folder: its options, the tree that is served, and the lock of runs.

mod on_demand;
mod run;
mod run_state;
mod seed_address;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::error::{ExportError, ExportResult};
use crate::folder::ExportFolder;
use crate::manifest::ExportManifest;
use crate::options::ExportOptions;

use self::on_demand::FolderNameCache;
pub use self::on_demand::OnDemandResponse;
pub use self::run::{ExportProgressFn, ExportWriteMode, FullExportStart};

/// A tree and its manifest.
#[derive(Debug)]
struct ExportTree {
    number: u64,
    manifest: ExportManifest,
}

/// Exports to one folder.
#[derive(Debug)]
pub struct StaticExporter {
    options: ExportOptions,
    folder: ExportFolder,
    tree: Mutex<Option<ExportTree>>,
    /// Held while a run changes the tree; requests change it too, one file at a time.
    run_lock: Mutex<()>,
    /// Number of content changes that were processed.
    followed_changes: AtomicU64,
    folder_names: Mutex<FolderNameCache>,
}

impl StaticExporter {
    /// Opens the folder of an export, and creates it if it does not exist.
    ///
    /// # Errors
    /// [`ExportError::Busy`], or [`ExportError::Folder`] if it cannot be used or holds something else.
    pub fn open(options: ExportOptions) -> ExportResult<Self> {
        let folder = ExportFolder::open(&options.dir).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => ExportError::Busy { dir: options.dir.clone() },
            _ => ExportError::Folder { dir: options.dir.clone(), source },
        })?;
        let exporter = Self {
            options,
            folder,
            tree: Mutex::new(None),
            run_lock: Mutex::new(()),
            followed_changes: AtomicU64::new(0),
            folder_names: Mutex::default(),
        };
        *exporter.tree.lock() = exporter.open_served_tree()?;
        Ok(exporter)
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &ExportOptions {
        &self.options
    }

    /// Returns the folder that a web server serves.
    #[must_use]
    pub fn served_dir(&self) -> PathBuf {
        self.options.dir.join("current")
    }

    /// Returns the number of files.
    #[must_use]
    pub fn file_count(&self) -> usize {
        let tree = self.tree.lock();
        tree.as_ref().map_or(0, |tree| {
            tree.manifest.iter().filter(|(_, entry)| entry.hash.is_some()).count()
        })
    }

    /// Opens the tree that is served; `None` if there is none with these settings.
    fn open_served_tree(&self) -> ExportResult<Option<ExportTree>> {
        self.folder.current_tree().map_or(Ok(None), |number| self.open_tree(number))
    }

    fn open_tree(&self, number: u64) -> ExportResult<Option<ExportTree>> {
        let manifest =
            ExportManifest::open(&self.folder.manifest_path(number), &self.options.fingerprint());
        match manifest {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            manifest => Ok(manifest
                .map_err(|error| self.folder_error(error))?
                .map(|manifest| ExportTree { number, manifest })),
        }
    }

    fn folder_error(&self, source: std::io::Error) -> ExportError {
        ExportError::Folder { dir: self.options.dir.clone(), source }
    }
}

/// Returns true if the disk is full.
fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Returns the folder part of a file's name.
fn parent_folder(file: &str) -> &Path {
    Path::new(file).parent().unwrap_or_else(|| Path::new(""))
}
