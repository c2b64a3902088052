//! New homes from another one: a clone, which reads from its base, and an independent copy.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_replicate::{StandbyCopyReport, StandbyStore};
use tympan_store::{ChunkId, LayeredStore, LocalStore, acquire_lease};

use crate::access::HomeAccess;
use crate::blob_config::is_instance_url;
use crate::blob_sharing::BlobSharing;
use crate::blob_storage::open_home_blobs;
use crate::config::{CONFIG_FILE, HomeConfig};
use crate::error::{Error, Result};
use crate::opened_home::KEY_FILE;
use crate::origin::{
    BaseAccess, BaseWithBlobs, HomeOrigin, LEASE_DURATION, MAIN_BRANCH, create_home_dir,
    lease_holder_name, open_base_at, open_own_packs, start_clone_branch, write_credentials,
};
use crate::storage_membership::StorageMembership;

/// Creates a clone in an empty or missing directory: a home whose `main` starts at the newest state of its base, on
/// which it takes a lease.
///
/// # Errors
/// [`Error::Refused`] if the directory is not empty; otherwise if the base cannot be read or leased. Nothing incomplete
/// remains.
pub fn create_clone(
    access: &HomeAccess,
    to: &Path,
    from: &str,
    base_access: &BaseAccess,
) -> Result<ChunkId> {
    require_empty_dir(to)?;
    let base = open_base_at(access, from, base_access, to)?;
    let origin = HomeOrigin {
        from: from.to_owned(),
        holder: lease_holder_name(to)?,
        root: None,
        ca: base_access.ca_file.clone(),
        leases: base_access.lease_dir.clone(),
    };
    start_clone(to, &origin, base_access, &base).inspect_err(|_| {
        // Release the lease and restore the empty folder.
        base.0.release_lease(&origin.holder).ok();
        fs::remove_dir_all(to).ok();
    })
}

/// Takes a lease on the newest state and creates a home whose `main` starts there.
fn start_clone(
    to: &Path,
    origin: &HomeOrigin,
    base_access: &BaseAccess,
    base: &BaseWithBlobs,
) -> Result<ChunkId> {
    let failed = |error: tympan_store::Error| {
        Error::failed(format!("cannot clone `{}`", origin.from), error)
    };
    let now = SystemTime::now();
    let lease = acquire_lease(base.0.as_ref(), &origin.holder, MAIN_BRANCH, now, LEASE_DURATION);
    let lease = lease.map_err(failed)?;
    let root = lease.root;
    // The file is written first: a store without it would be taken for an empty home.
    create_home_dir(to)?;
    write_credentials(to, base_access)?;
    HomeOrigin { root: Some(root.to_string()), ..origin.clone() }.write_clone(to)?;
    let own = open_own_packs(to)?;
    let store = LayeredStore::new(own, Arc::clone(&base.0), lease).map_err(failed)?;
    start_clone_branch(&store, &origin.from).map_err(failed)?;
    Ok(root)
}

/// A finished copy of a home.
#[derive(Debug)]
pub struct HomeCopyReport {
    /// The root of `main`; `None` if the origin has none.
    pub root: Option<ChunkId>,
    /// The copied data.
    pub copied: StandbyCopyReport,
}

/// Copies everything into an independent home, whose directory may contain its configuration and its key only.
///
/// # Errors
/// [`Error::Refused`] if there is anything else; otherwise if the origin cannot be read.
pub fn copy_home(
    access: &HomeAccess,
    to: &Path,
    from: &str,
    base_access: &BaseAccess,
) -> Result<HomeCopyReport> {
    require_unused_home_dir(to)?;
    let base = open_base_at(access, from, base_access, to)?;
    let config = access.read_config(to)?;
    let (standby, own) = open_standby(access, to, &config, base, &lease_holder_name(to)?)?;
    own.sharing.register()?;
    let copied = standby.catch_up(SystemTime::now());
    let copied = copied.map_err(|error| Error::failed(format!("cannot copy `{from}`"), error))?;
    Ok(HomeCopyReport { root: standby.local_root().ok().flatten(), copied })
}

/// A standby's own stores.
pub(crate) struct StandbyStores {
    pub(crate) chunks: Arc<LocalStore>,
    pub(crate) sharing: BlobSharing,
}

/// Opens a standby, with its blobs in the storage of its configuration.
pub(crate) fn open_standby(
    access: &HomeAccess,
    to: &Path,
    config: &HomeConfig,
    base: BaseWithBlobs,
    holder: &str,
) -> Result<(StandbyStore, StandbyStores)> {
    let chunks = open_own_packs(to)?;
    let membership = StorageMembership::new(to, None);
    let section = access.effective_blob_section(to, config)?;
    let blobs = open_home_blobs(access, to, &section, &membership, chunks.clone(), None)?;
    let standby = StandbyStore::new(base, (chunks.clone(), blobs.store.clone()), holder.to_owned());
    Ok((standby, StandbyStores { chunks, sharing: BlobSharing::new(membership, &blobs) }))
}

/// Returns the folder for the lease on a home, if that home honors leases in it.
///
/// # Errors
/// [`Error::Refused`] if it does not, or if `from` is an instance.
pub fn find_lease_folder(access: &HomeAccess, folder: &Path, from: &str) -> Result<PathBuf> {
    if is_instance_url(from) {
        return Err(Error::refused("`--leases` requires a home that is given as a directory"));
    }
    let folder = fs::canonicalize(folder)
        .map_err(|error| Error::refused(format!("cannot use `{}`: {error}", folder.display())))?;
    let heeded = access.read_config(Path::new(from))?.history.leases;
    if heeded.iter().any(|heeded_folder| {
        fs::canonicalize(heeded_folder).is_ok_and(|real_path| real_path == folder)
    }) {
        return Ok(folder);
    }
    Err(Error::refused(format!(
        "`{from}` does not honor leases in `{}`: add it to `leases` in the section `[history]` of its \
         `tympan.toml`, and restart its instance",
        folder.display()
    )))
}

/// Returns the absolute path of the directory of an origin; a URL is returned without a final slash.
///
/// # Errors
/// [`Error::Refused`] if there is no such directory, or if its name is not UTF-8.
pub fn absolute_origin(from: &str) -> Result<String> {
    if is_instance_url(from) {
        return Ok(from.trim_end_matches('/').to_owned());
    }
    let path = fs::canonicalize(from)
        .map_err(|error| Error::refused(format!("cannot clone `{from}`: {error}")))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Error::refused(format!("the name of `{}` is not UTF-8", path.display())))
}

/// Refuses a directory that is not empty.
fn require_empty_dir(to: &Path) -> Result<()> {
    require_only_known_entries(&[], to)
}

/// Refuses a directory with anything except files that prepare a new home.
pub(crate) fn require_unused_home_dir(to: &Path) -> Result<()> {
    require_only_known_entries(&[CONFIG_FILE, KEY_FILE], to)
}

fn require_only_known_entries(known_names: &[&str], to: &Path) -> Result<()> {
    let is_known = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| known_names.iter().any(|name| entry.file_name() == *name))
    };
    match fs::read_dir(to).map(|mut entries| entries.all(is_known)) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(Error::refused(format!("`{}` is not empty", to.display()))),
        Err(error) => Err(Error::refused(format!("cannot use `{}`: {error}", to.display()))),
    }
}
