//! Repositories to save: of homes, in any storage, and of running instances by their URL.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tympan_backup::{BaseStoreReference, LiveStore, SeparateBase, redact_address};
use tympan_blobs::{BlobDelegate, CompositeBlobStorage, LocalBlobStore, ReadBlobs};
use tympan_content::Repository;
use tympan_replicate::{RemoteStore, RemoteStoreCredentials};
use tympan_store::{
    BaseStore, BlobId, ByteSize, CachedBaseStore, Chunk, ChunkDiskCacheOptions, ChunkId,
    ChunkStore, Error, LocalStoreOptions, ReadChunks, ReadOnlyBase, ReadOnlyLocalStore, Result, Revision,
    RootLease,
};
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::tls::TlsTrust;

use super::document_view::ContentDocumentView;
use crate::args::backup::{BackupSaveArgs, RepositoryInstanceArgs};
use crate::blob_storage;
use crate::config;
use crate::home::require_home;
use crate::home_chunk_store::{self, HomeChunkStore};
use crate::home_origin::{self, HomeOrigin, is_instance_url};

/// Bytes of chunks of another machine that are cached during a save.
const NEAR_CACHE_BYTES: u64 = 1 << 30;

/// An opened repository.
pub(super) struct OpenRepositorySource {
    /// Its chunks and small blobs.
    pub(super) base: Arc<dyn BaseStore>,
    /// Its large blobs.
    pub(super) blobs: Arc<dyn ReadBlobs>,
    /// The path that its snapshots have.
    pub(super) snapshot_path: String,
    /// The base of a clone, if the base's owner saves it.
    pub(super) separate_base: Option<SeparatelySavedBase>,
    /// Its home, if it is on this machine.
    pub(super) home: Option<PathBuf>,
    /// Stores large blobs of another machine while they are saved.
    _spool_dir: Option<tempfile::TempDir>,
}

impl OpenRepositorySource {
    /// Opens the human-readable view; `None` if the repository cannot be read as content, or if a part of it belongs to
    /// another home.
    pub(super) fn document_view(&self) -> Option<ContentDocumentView> {
        if self.separate_base.is_some() {
            return None;
        }
        let view = ContentDocumentView::new(Arc::new(ReadOnlyBase::new(self.base.clone())));
        view.inspect_err(|error| {
            tracing::warn!(
                reason = error_chain_text(error),
                "the snapshot has no folder `content`"
            );
        })
        .ok()
    }
}

/// The content of a home whose instance may be running. It is read-only.
pub(crate) struct LiveHomeContent {
    pub(crate) repository: Repository,
    /// Stores large blobs of another machine while they are read.
    _spool_dir: Option<tempfile::TempDir>,
}

impl LiveHomeContent {
    /// Opens the content of a home.
    ///
    /// # Errors
    /// If the folder is no home, or cannot be read.
    pub(crate) fn open(home: &Path) -> Result<Self, CommandFault> {
        let OpenRepositorySource { base, blobs, _spool_dir: _spool, .. } =
            open_home_source(home, BaseCoverage::SavedHere)?;
        let chunks: Arc<dyn ChunkStore> = Arc::new(ReadOnlyBase::new(base));
        let large = CompositeBlobStorage::new(vec![BlobDelegate::read_only("home", blobs)]);
        let blobs = Arc::new(LocalBlobStore::with_storage(Arc::new(large), chunks.clone()));
        let repository = Repository::open(chunks, blobs).map_err(|error| {
            let home = home.display();
            CommandFault::cannot_run(format!(
                "cannot read the home `{home}`: {}",
                error_chain_text(&error)
            ))
        })?;
        Ok(Self { repository, _spool_dir: _spool })
    }
}

/// The base of a clone, which its owner saves.
pub(crate) struct SeparatelySavedBase {
    reference: BaseStoreReference,
    open_base: Option<home_origin::BaseWithBlobs>,
}

impl SeparatelySavedBase {
    /// Opens the base of a home; `None` if the home is no clone. A base that cannot be reached now is not queried.
    ///
    /// # Errors
    /// If the home does not name its base.
    pub(crate) fn of_home(home: &Path) -> Result<Option<Self>, CommandFault> {
        let Some(origin) = HomeOrigin::read_clone(home)? else { return Ok(None) };
        let root = leased_root(&origin, home)?.to_string();
        let reach = origin.open_base(home).inspect_err(|fault| {
            tracing::warn!(
                reason = fault.message(),
                "cannot open the base; its data is not checked"
            );
        });
        let HomeOrigin { from, holder, .. } = origin;
        Ok(Some(Self {
            reference: BaseStoreReference { from, root, holder },
            open_base: reach.ok(),
        }))
    }

    /// Returns the base in the form that a save takes.
    pub(crate) fn as_separate_base(&self) -> SeparateBase<'_> {
        let reach = self.open_base.as_ref().map(|(base, blobs)| (&**base, &**blobs));
        SeparateBase { reference: &self.reference, stores: reach }
    }
}

fn leased_root(origin: &HomeOrigin, home: &Path) -> Result<ChunkId, CommandFault> {
    let root = origin.root.as_deref().and_then(|root| root.parse().ok());
    root.ok_or_else(|| {
        CommandFault::usage(format!("`{}` does not record the root of its base", home.display()))
    })
}

/// The party that saves the data that a clone reads from its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BaseCoverage {
    /// The base's owner.
    SavedByOwner,
    /// This save.
    SavedHere,
}

/// Opens the home of `repo:HOME`, or the running instance at a URL, which serves the data of its base as well.
///
/// # Errors
/// If it is no repository, or cannot be reached.
pub(super) fn open_source(
    source: &str,
    arguments: &BackupSaveArgs,
    of_base: BaseCoverage,
) -> Result<OpenRepositorySource, CommandFault> {
    if is_instance_url(source) {
        return open_instance_source(source, &arguments.instance);
    }
    open_home_source(Path::new(source.strip_prefix("repo:").unwrap_or(source)), of_base)
}

/// Opens the repository whose snapshots have a path: that of a local home, or of the instance at a URL.
///
/// # Errors
/// As [`open_source`].
pub(super) fn open_source_by_snapshot_path(
    path: &str,
    instance: &RepositoryInstanceArgs,
) -> Result<OpenRepositorySource, CommandFault> {
    let relative_path = path.strip_prefix("/tympan").unwrap_or(path);
    let url = ["http", "https"].iter().find_map(|scheme| {
        let rest = relative_path.strip_prefix(&format!("/{scheme}/"))?;
        Some(format!("{scheme}://{rest}"))
    });
    match url.filter(|_| !Path::new(relative_path).exists()) {
        Some(url) => open_instance_source(&url, instance),
        None => open_home_source(Path::new(relative_path), BaseCoverage::SavedByOwner),
    }
}

fn open_home_source(
    home: &Path,
    of_base: BaseCoverage,
) -> Result<OpenRepositorySource, CommandFault> {
    require_home(home)?;
    let failed = |error: &dyn std::error::Error| {
        CommandFault::with_code(
            format!("cannot read the home `{}`: {}", home.display(), error_chain_text(error)),
            1,
        )
    };
    let full = home.canonicalize().map_err(|error| failed(&error))?;
    let path = format!("/tympan{}", full.display());
    let config = config::read_home_config(home)?;
    let below = match of_base {
        BaseCoverage::SavedByOwner => SeparatelySavedBase::of_home(home)?,
        BaseCoverage::SavedHere => None,
    };
    let base: Arc<dyn BaseStore> =
        if home.join("store").join(home_chunk_store::DATABASE_MARK_FILE).exists() {
            let store = HomeChunkStore::open_beside_instance(home, &config)?;
            Arc::new(LiveStore::new(store))
        } else {
            let own =
                ReadOnlyLocalStore::open_dir(&home.join("store"), LocalStoreOptions::default())
                    .map_err(|error| failed(&error))?;
            match HomeOrigin::read_clone(home)?.filter(|_| of_base == BaseCoverage::SavedHere) {
                None => Arc::new(own),
                Some(origin) => Arc::new(SavedCloneStore::open(own, &origin, home)?),
            }
        };
    let spool = new_spool_dir()?;
    let own = blob_storage::open_other_home_blobs(home, spool.path())?;
    let blobs: Arc<dyn ReadBlobs> = match HomeOrigin::read_clone(home)?.filter(|_| below.is_none())
    {
        None => own,
        Some(origin) => Arc::new(CompositeBlobStorage::new(vec![
            BlobDelegate::read_only("own", own),
            BlobDelegate::read_only("base", origin.open_base(home)?.1),
        ])),
    };
    Ok(OpenRepositorySource {
        base,
        blobs,
        snapshot_path: path,
        separate_base: below,
        home: Some(full),
        _spool_dir: Some(spool),
    })
}

pub(crate) fn new_spool_dir() -> Result<tempfile::TempDir, CommandFault> {
    tempfile::tempdir().map_err(|error| {
        CommandFault::cannot_run(format!("cannot create a temporary folder: {error}"))
    })
}

/// Reads the credentials for an instance from a key file or a token file.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read_credentials(
    key: Option<&Path>,
    token_file: Option<&Path>,
) -> Result<Option<RemoteStoreCredentials>, CommandFault> {
    let read = |file: &Path| {
        let text = fs::read_to_string(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })?;
        Ok::<_, CommandFault>(text.trim().to_owned())
    };
    match (key, token_file) {
        (Some(file), _) => Ok(Some(RemoteStoreCredentials::Key(read(file)?))),
        (None, Some(file)) => Ok(Some(RemoteStoreCredentials::Token(read(file)?))),
        (None, None) => Ok(None),
    }
}

fn open_instance_source(
    url: &str,
    instance: &RepositoryInstanceArgs,
) -> Result<OpenRepositorySource, CommandFault> {
    let RepositoryInstanceArgs { key, token_file, ca } = instance;
    let secret = read_credentials(key.as_deref(), token_file.as_deref())?;
    let secret = secret.ok_or_else(|| {
        CommandFault::usage(format!(
            "`{}` does not allow reading its store without credentials: give `--key FILE` with its \
             replication key, or `--token-file FILE` with a token of `tympan user token admin`",
            redact_address(url)
        ))
    })?;
    let trust = ca.as_deref().map(|file| {
        let pem = fs::read(file).map_err(|error| {
            CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
        })?;
        TlsTrust::from_pem(&pem).map_err(|error| CommandFault::usage(error_chain_text(&error)))
    });
    // The key or the token identifies the client; a user name in the URL is for display.
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err(CommandFault::usage(
            "a password must not be part of a URL, where other users of this machine can see it: use `--key` \
             or `--token-file`",
        ));
    }
    let spool = new_spool_dir()?;
    let plain = format!("{scheme}://{host}/{folder}");
    let store = RemoteStore::new(&plain, &secret, trust.transpose()?, spool.path());
    let store = Arc::new(store.map_err(|error| CommandFault::usage(error_chain_text(&error)))?);
    let path = format!("/tympan/{}", plain.replace("://", "/").trim_end_matches('/'));
    // The human-readable view reads again the chunks that the import reads.
    let cache = ChunkDiskCacheOptions {
        dir: spool.path().join("near"),
        max_size: ByteSize::from_bytes(NEAR_CACHE_BYTES),
    };
    let base = Arc::new(CachedBaseStore::new(store.clone(), &cache));
    Ok(OpenRepositorySource {
        base,
        blobs: store,
        snapshot_path: path,
        separate_base: None,
        home: None,
        _spool_dir: Some(spool),
    })
}

/// The packs of a clone layered over its base.
#[derive(Debug)]
struct SavedCloneStore {
    own_store: ReadOnlyLocalStore,
    base: Arc<dyn BaseStore>,
    /// The root of the base that the clone depends on.
    base_root: ChunkId,
}

impl SavedCloneStore {
    fn open(
        own: ReadOnlyLocalStore,
        origin: &HomeOrigin,
        home: &Path,
    ) -> Result<Self, CommandFault> {
        Ok(Self {
            own_store: own,
            base: origin.open_base(home)?.0,
            base_root: leased_root(origin, home)?,
        })
    }
}

impl ReadChunks for SavedCloneStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        match self.own_store.read_chunk(id) {
            Err(Error::ChunkMissing { .. }) => self.base.read_chunk(id),
            read => read,
        }
    }

    fn has_costly_round_trips(&self) -> bool {
        self.base.has_costly_round_trips()
    }
}

impl BaseStore for SavedCloneStore {
    fn display_name(&self) -> String {
        self.own_store.display_name()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = self.own_store.contains_chunks(ids)?;
        let below = self.base.contains_chunks(ids)?;
        present.iter_mut().zip(below).for_each(|(present, below)| *present |= below);
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let mut blobs = self.own_store.read_blobs(ids)?;
        let lacking: Vec<BlobId> = ids
            .iter()
            .zip(&blobs)
            .filter(|(_, bytes)| bytes.is_none())
            .map(|(id, _)| *id)
            .collect();
        if lacking.is_empty() {
            return Ok(blobs);
        }
        let mut below = self.base.read_blobs(&lacking)?.into_iter();
        for bytes in blobs.iter_mut().filter(|bytes| bytes.is_none()) {
            *bytes = below.next().flatten();
        }
        Ok(blobs)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.own_store.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.own_store.ref_history(name, before, limit)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        self.own_store.find_lease(holder)
    }

    /// Grants a lease on the clone's own data, and on its base.
    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        self.base.grant_lease(&RootLease { root: self.base_root, ..lease.clone() })?;
        self.own_store.grant_lease(lease)
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        self.own_store.release_lease(holder)?;
        self.base.release_lease(holder)
    }
}
