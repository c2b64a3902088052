//! The identity of a home among the members that share its blobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tympan_blobs::WriteBlobs;
use tympan_blobs::garbage_collection::{
    HomeIdentity, IdentityStatus, RepositoryIdentity, StorageMember,
};
use tympan_store::PostgresStore;

use crate::private_file::random_text;

/// The identity of a home among those that share its blobs.
#[derive(Debug, Clone)]
pub(crate) struct StorageMembership {
    pub(crate) dir: PathBuf,
    /// The database that stores the repository, if any: all homes on it are one repository.
    pub(crate) database: Option<Arc<PostgresStore>>,
}

/// A name, and the place that stores it.
pub(crate) enum MemberIdentity {
    Home(HomeIdentity),
    Database(RepositoryIdentity, String),
}

impl StorageMembership {
    /// Returns the membership of a home.
    pub(crate) fn new(dir: &Path, database: Option<Arc<PostgresStore>>) -> Self {
        Self { dir: dir.to_owned(), database }
    }

    /// Returns the name of the repository for programs and for display. Creates one if it has none.
    ///
    /// # Errors
    /// If its name cannot be read or written.
    pub(crate) fn member(&self) -> tympan_blobs::Result<StorageMember> {
        Ok(self.member_of(&self.identity()?))
    }

    pub(crate) fn identity(&self) -> tympan_blobs::Result<MemberIdentity> {
        let fresh = new_identifier()?;
        let Some(database) = &self.database else {
            let identity = HomeIdentity::open(&self.dir, &machine_name(), &fresh)?;
            warn_if_copied_home(identity.status, &identity.id);
            return Ok(MemberIdentity::Home(identity));
        };
        let identity = RepositoryIdentity::new(database.clone(), database.repository_identity()?);
        let (id, kinship) = identity.open(&fresh)?;
        warn_if_copied_home(kinship, &id);
        Ok(MemberIdentity::Database(identity, id))
    }

    pub(crate) fn member_of(&self, naming: &MemberIdentity) -> StorageMember {
        match naming {
            MemberIdentity::Home(identity) => {
                StorageMember { id: identity.id.clone(), name: display_name_of_dir(&self.dir) }
            }
            MemberIdentity::Database(_, id) => {
                StorageMember { id: id.clone(), name: "a database".to_owned() }
            }
        }
    }
}

impl MemberIdentity {
    /// Makes sure that the last marks in a storage are those of this repository, before it marks again with `turn`.
    pub(crate) fn begin_mark_round(
        &mut self,
        storage: &dyn WriteBlobs,
        turn: &str,
    ) -> tympan_blobs::Result<()> {
        let fresh = new_identifier()?;
        match self {
            Self::Home(identity) => {
                let before = identity.id.clone();
                identity.begin_mark_round(storage, (&machine_name(), &fresh), turn)?;
                if identity.id != before {
                    warn_if_copied_home(identity.status, &identity.id);
                }
            }
            Self::Database(identity, id) => {
                let (now, kinship) = identity.begin_mark_round(storage, &fresh, turn)?;
                warn_if_copied_home(kinship, &now);
                *id = now;
            }
        }
        Ok(())
    }
}

/// Returns a unique identifier of letters and digits.
pub(crate) fn new_identifier() -> tympan_blobs::Result<String> {
    let mut text = random_text()
        .map_err(|error| tympan_blobs::Error::Source(std::io::Error::other(error.to_string())))?;
    text.truncate(20);
    Ok(text)
}

/// Returns a display name of a folder that identifies it on other machines as well.
fn display_name_of_dir(dir: &Path) -> String {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}:{}", host.trim(), dir.display())
}

fn warn_if_copied_home(kinship: IdentityStatus, id: &str) {
    if kinship != IdentityStatus::Copy {
        return;
    }
    tracing::warn!(
        id,
        "this repository is a copy of another one; it was assigned a new id in the blob storage"
    );
}

/// Returns a name that identifies this machine.
fn machine_name() -> String {
    let id = fs::read_to_string(Path::new("/etc/machine-id")).unwrap_or_default();
    id.trim().to_owned()
}
