//! A new home from a backup: as a clone, if its source was one.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tympan_notation::error_chain_text;

use tympan_backup::{BaseStoreReference, ImportOptions, ImportReport, MissingContentPolicy};
use tympan_blobs::BlobStore;
use tympan_home::{
    BaseAccess, BaseWithBlobs, HomeAccess, HomeChunkStore, HomeConfig, HomeOrigin, create_home_dir,
    is_instance_url, lease_holder_name, lease_saved_root, open_base_at, open_own_packs,
    write_credentials,
};
use tympan_store::{ChunkId, ChunkStore, LayeredStore, RootLease};

use crate::error::{Error, Result};

/// A home to create from a backup.
#[derive(Debug)]
pub struct HomeRestoration {
    /// The directory of the home: empty, or missing.
    pub home: PathBuf,
    /// Whether the home may lack data that it refers to.
    pub missing: MissingContentPolicy,
    /// The present location of the base of a clone; `None` if it is where it was when the clone was saved.
    pub base: Option<String>,
    /// How the base is accessed.
    pub base_access: BaseAccess,
}

/// A home that was created from a backup.
#[derive(Debug)]
pub struct RestoredHome {
    /// The imported data.
    pub imported: ImportReport,
    /// The base, if the home is a clone.
    pub base: Option<String>,
}

/// A function that fills the stores of a new home.
pub type HomeFiller<'a> = dyn FnMut(
        (&dyn ChunkStore, &dyn BlobStore),
        ImportOptions<'_>,
    ) -> tympan_backup::Result<ImportReport>
    + 'a;

/// Creates a new home and fills it: as a clone, if its source had the base `reference`.
///
/// # Errors
/// [`Error::Refused`] if the directory is not empty, or the base cannot be used; otherwise if the stores cannot be
/// filled. An incomplete clone is removed again.
pub fn restore_home(
    access: &HomeAccess,
    restoration: &HomeRestoration,
    reference: Option<&BaseStoreReference>,
    fill: &mut HomeFiller<'_>,
) -> Result<RestoredHome> {
    let home = &*restoration.home;
    let is_empty = std::fs::read_dir(home).map_or(true, |mut entries| entries.next().is_none());
    if !is_empty {
        return Err(Error::Refused(format!(
            "`{}` is not empty; restore into a new home, which can replace the old one afterwards",
            home.display()
        )));
    }
    let Some(reference) = reference else {
        if restoration.base.is_some() {
            let reason = "the snapshot has no base; leave out `--base`";
            return Err(Error::Refused(reason.to_owned()));
        }
        let config = HomeConfig::default();
        let backend = HomeChunkStore::open(access, home, &config)?;
        let blobs = backend.open_blobs(access, home, &config)?.store;
        let options = ImportOptions { missing: restoration.missing, base: None };
        let imported = fill((&*backend.chunks, &*blobs), options)?;
        return Ok(RestoredHome { imported, base: None });
    };
    let clone = CloneRestoration::lease_base(access, restoration, reference)?;
    match clone.fill_home(access, restoration, fill) {
        Ok(imported) => Ok(RestoredHome { imported, base: Some(clone.origin.from) }),
        Err(error) => {
            // Release the lease and restore the empty folder, so that nothing incomplete remains.
            clone.release_lease();
            std::fs::remove_dir_all(home).ok();
            Err(error)
        }
    }
}

/// A home to restore as a clone of a base.
struct CloneRestoration {
    origin: HomeOrigin,
    /// The base, and the lease on it; `None` if the base is unavailable and not required.
    base_and_lease: Option<(BaseWithBlobs, RootLease)>,
}

impl CloneRestoration {
    /// Takes a lease on the base that a clone had when it was saved.
    fn lease_base(
        access: &HomeAccess,
        restoration: &HomeRestoration,
        reference: &BaseStoreReference,
    ) -> Result<Self> {
        let (home, base_access) = (&*restoration.home, &restoration.base_access);
        let from = match &restoration.base {
            None => reference.from.clone(),
            Some(from) if is_instance_url(from) => from.trim_end_matches('/').to_owned(),
            Some(dir) => absolute_dir(Path::new(dir))?,
        };
        let root: ChunkId = reference.root.parse().map_err(|_| {
            Error::Refused("the snapshot does not record the root of its base".to_owned())
        })?;
        let holder = lease_holder_name(home)?;
        let lease_root = || {
            let opened = open_base_at(access, &from, base_access, home)?;
            let holders = (holder.as_str(), reference.holder.as_str());
            let lease = lease_saved_root(&*opened.0, holders, root, SystemTime::now())?;
            Ok::<_, Error>((opened, lease))
        };
        let base_and_lease = match lease_root() {
            Ok(base) => Some(base),
            Err(error) if restoration.missing == MissingContentPolicy::Allow => {
                tracing::warn!(
                    reason = error_chain_text(&error),
                    "cannot use the base; creating the home without it"
                );
                None
            }
            Err(error) => {
                return Err(Error::Refused(format!(
                    "the snapshot contains only the data of a clone, and its base `{from}` cannot be used: \
                     {}; name the present location of the base with `--base`, or create the home without it \
                     with `--allow-missing`",
                    error_chain_text(&error)
                )));
            }
        };
        let (root, ca) = (Some(reference.root.clone()), base_access.ca_file.clone());
        let origin = HomeOrigin { from, holder, root, ca, leases: None };
        Ok(Self { origin, base_and_lease })
    }

    fn fill_home(
        &self,
        access: &HomeAccess,
        restoration: &HomeRestoration,
        fill: &mut HomeFiller<'_>,
    ) -> Result<ImportReport> {
        let home = &*restoration.home;
        // The file is written first: a store without it would be taken for an independent home.
        create_home_dir(home)?;
        write_credentials(home, &restoration.base_access)?;
        self.origin.write_clone(home)?;
        let own = open_own_packs(home)?;
        let backend = HomeChunkStore {
            chunks: own.clone(),
            local: Some(own.clone()),
            database: None,
            overlay_base: None,
            lock: None,
        };
        let blobs = backend.open_blobs(access, home, &HomeConfig::default())?.store;
        let base = self.base_and_lease.as_ref().map(|((base, blobs), lease)| {
            // From now on the clone's own refs may reach data that only the base has.
            let over = LayeredStore::new(own.clone(), base.clone(), lease.clone());
            over.map(|_| (&**base, &**blobs))
        });
        let base = base.transpose().map_err(tympan_home::Error::from)?;
        Ok(fill((&*own, &*blobs), ImportOptions { missing: restoration.missing, base })?)
    }

    fn release_lease(&self) {
        if let Some(((base, _), lease)) = &self.base_and_lease
            && let Err(error) = base.release_lease(&lease.holder)
        {
            tracing::warn!(
                reason = error_chain_text(&error),
                "cannot release the lease; it will expire"
            );
        }
    }
}

fn absolute_dir(dir: &Path) -> Result<String> {
    let cannot = |reason: &dyn std::fmt::Display| {
        Error::Refused(format!("cannot use `{}` as a base: {reason}", dir.display()))
    };
    let full = std::fs::canonicalize(dir).map_err(|error| cannot(&error))?;
    full.to_str().map(str::to_owned).ok_or_else(|| cannot(&"its name is not UTF-8"))
}
