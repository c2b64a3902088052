//! The pages in the snapshots of a home, for people who look for a lost one.
//!
//! In: the vault of scheduled saves. Out: the snapshots of this home, the names of the pages in one, and the text of a
//! page as a docview.
//!
//! Invariants
//! * Nothing is changed in the vault; a shared lock keeps prunes away while it is read.
//! * One reader at a time: the vault and its index stay in memory between two readings.
//!
//! Not here: writing a page into content, which a session of the administrator does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tympan_backup::{
    IndexedVault, SnapshotNode, SnapshotNodeKind, Vault, VaultIndex, VaultLock, VaultLockMode,
    VaultPassword, VaultSnapshot, VaultUser, find_path, list_folder, open_vault_backend,
    write_file_content,
};

use crate::document_view::{DOCVIEW_FILE, file_name_of_node, node_of_file_name};
use crate::error::{Error, Result};
use crate::repository_source::snapshot_path_of_home;
use crate::scheduled_save::ScheduledSaveOptions;

/// The folder of a snapshot with the view of the documents.
const CONTENT_FOLDER: &str = "content";
/// The maximum size of a page's docview in bytes.
const MAX_DOCVIEW_BYTES: usize = 16 << 20;
/// The maximum number of names in a listing.
const MAX_LISTED_NAMES: usize = 1000;
/// The maximum wait for other processes that lock the vault.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A state of the home in its vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultState {
    /// The id of the snapshot.
    pub id: String,
    /// The time at which the save began.
    pub time: Timestamp,
    /// True if the snapshot lacks parts of what was to be saved.
    pub is_incomplete: bool,
}

/// A page in a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultPage {
    /// The text of the page and its content as a docview.
    pub docview: Vec<u8>,
    /// True if values of the page are in files of their own, which the docview does not contain.
    pub has_files: bool,
}

/// The pages in the snapshots of a home.
pub struct VaultContent {
    options: ScheduledSaveOptions,
    snapshot_path: String,
    opened: Mutex<Option<(Arc<Vault>, Arc<VaultIndex>)>>,
}

impl std::fmt::Debug for VaultContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VaultContent").field("snapshot_path", &self.snapshot_path).finish()
    }
}

impl VaultContent {
    /// Creates the view of a home's snapshots; the vault is opened when something is read.
    #[must_use]
    pub fn new(home: &Path, options: ScheduledSaveOptions) -> Self {
        let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
        let snapshot_path = snapshot_path_of_home(&home);
        Self { options, snapshot_path, opened: Mutex::default() }
    }

    /// Lists the snapshots of the home, the newest first.
    ///
    /// # Errors
    /// [`Error::Refused`] while another reading lasts; otherwise if the vault cannot be read.
    pub fn list_states(&self, limit: usize) -> Result<Vec<VaultState>> {
        let mut states = self.read(|vault, _| {
            let (snapshots, _unreadable) = vault.read_readable_snapshots()?;
            let own = snapshots.into_iter().filter(|snapshot| self.is_own(snapshot));
            Ok(own
                .map(|snapshot| VaultState {
                    id: snapshot.id.to_string(),
                    time: snapshot.timestamp(),
                    is_incomplete: snapshot.is_incomplete(),
                })
                .collect::<Vec<_>>())
        })?;
        states.sort_by_key(|state| std::cmp::Reverse(state.time));
        states.truncate(limit);
        Ok(states)
    }

    /// Lists the names of the documents directly below a path in a snapshot, at most 1000. Names that the view shortened
    /// are left out.
    ///
    /// # Errors
    /// As [`VaultContent::list_states`]; [`Error::Refused`] if there is no such snapshot or path.
    pub fn list_names(&self, state: &str, path: &str) -> Result<Vec<String>> {
        self.read(|vault, index| {
            let snapshot = self.find_state(vault, state)?;
            let folder = find_path(vault, index, &snapshot, &folder_path(path))?;
            let nodes = list_folder(IndexedVault::new(vault, index), &folder)?;
            let folders = nodes.iter().filter(|node| node.kind == SnapshotNodeKind::Dir);
            let names = folders.filter_map(|node| node_of_file_name(&node.name));
            Ok(names.filter(|name| name != "jcr:content").take(MAX_LISTED_NAMES).collect())
        })
    }

    /// Reads a page of a snapshot.
    ///
    /// # Errors
    /// As [`VaultContent::list_names`]; [`Error::Refused`] if it is too large.
    pub fn read_page(&self, state: &str, path: &str) -> Result<VaultPage> {
        self.read(|vault, index| {
            let snapshot = self.find_state(vault, state)?;
            let folder = find_path(vault, index, &snapshot, &folder_path(path))?;
            let nodes = list_folder(IndexedVault::new(vault, index), &folder)?;
            let is_docview = |node: &&SnapshotNode| node.name == DOCVIEW_FILE.as_bytes();
            let file = nodes
                .iter()
                .find(is_docview)
                .ok_or_else(|| Error::Refused(format!("the snapshot has no text of `{path}`")))?;
            let content = file_name_of_node("jcr:content");
            let is_file = |node: &SnapshotNode| {
                node.kind == SnapshotNodeKind::File && node.name != DOCVIEW_FILE.as_bytes()
            };
            let has_files = nodes.iter().any(|node| is_file(node) || node.name == content);
            let mut docview = LimitedBuffer(Vec::new());
            write_file_content(IndexedVault::new(vault, index), file, &mut docview)?;
            Ok(VaultPage { docview: docview.0, has_files })
        })
    }

    fn is_own(&self, snapshot: &VaultSnapshot) -> bool {
        snapshot.repository_root().is_some() && snapshot.paths == [self.snapshot_path.as_str()]
    }

    fn find_state(&self, vault: &Vault, state: &str) -> Result<VaultSnapshot> {
        let (snapshots, _unreadable) = vault.read_readable_snapshots()?;
        let found = snapshots.into_iter().find(|snapshot| snapshot.id.to_string() == state);
        let missing = || Error::Refused(format!("this home has no snapshot `{state}`"));
        found.filter(|snapshot| self.is_own(snapshot)).ok_or_else(missing)
    }

    /// Opens the vault if it is not open, and reads from it.
    fn read<T>(&self, work: impl FnOnce(&Vault, &VaultIndex) -> Result<T>) -> Result<T> {
        let Some(mut opened) = self.opened.try_lock() else {
            return Err(Error::Refused("the vault is being read; try again".to_owned()));
        };
        if opened.is_none() {
            let password = VaultPassword::from_file(&self.options.password_file)?;
            let backend = open_vault_backend(&self.options.vault, &self.options.access)?;
            let vault = password.open_with(|password| Vault::open(backend.clone(), password))?;
            *opened = Some((Arc::new(vault), Arc::default()));
        }
        let Some((vault, index)) = &mut *opened else {
            return Err(Error::Refused("the vault is not open".to_owned()));
        };
        let (user, mode) = (VaultUser::this_process(), VaultLockMode::Shared);
        let _lock = VaultLock::acquire(vault, &user, mode, LOCK_TIMEOUT)?;
        VaultIndex::catch_up(index, vault)?;
        work(vault, index)
    }
}

/// Returns the path of a document's folder in a snapshot.
fn folder_path(path: &str) -> String {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(CONTENT_FOLDER.to_owned(), |folder, name| {
        format!("{folder}/{}", String::from_utf8_lossy(&file_name_of_node(name)))
    })
}

/// A buffer that refuses to grow beyond the size of a docview.
struct LimitedBuffer(Vec<u8>);

impl std::io::Write for LimitedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_DOCVIEW_BYTES {
            return Err(std::io::Error::other("the page is larger than 16 MiB"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
