//! Repositories to save: of homes, in any storage, and of running instances by their URL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tympan_notation::error_chain_text;

use tympan_backup::{BaseStoreReference, LiveStore, SeparateBase, redact_address};
use tympan_blobs::{BlobDelegate, CompositeBlobStorage, LocalBlobStore, ReadBlobs};
use tympan_content::Repository;
use tympan_home::{
    BaseWithBlobs, HomeAccess, HomeChunkStore, HomeOrigin, has_database_mark, is_instance_url,
    open_other_home_blobs, require_home,
};
use tympan_replicate::{RemoteStore, RemoteStoreCredentials};
use tympan_store::{
    BaseStore, ByteSize, CachedBaseStore, ChunkDiskCacheOptions, ChunkId, ChunkStore,
    LocalStoreOptions, ReadOnlyBase, ReadOnlyLocalStore,
};
use tympan_web::tls::TlsTrust;

use crate::document_view::ContentDocumentView;
use crate::error::{Error, Result};
use crate::saved_clone::SavedCloneStore;

/// Bytes of chunks of another machine that are cached during a save.
const NEAR_CACHE_BYTES: u64 = 1 << 30;

/// A repository that is open to be saved.
pub struct OpenRepositorySource {
    /// Its chunks and small blobs.
    pub base: Arc<dyn BaseStore>,
    /// Its large blobs.
    pub blobs: Arc<dyn ReadBlobs>,
    /// The path that its snapshots have.
    pub snapshot_path: String,
    /// The base of a clone, if the base's owner saves it.
    pub separate_base: Option<SeparatelySavedBase>,
    /// Its home, if it is on this machine.
    pub home: Option<PathBuf>,
    /// Stores large blobs of another machine while they are saved.
    _spool_dir: Option<tempfile::TempDir>,
}

impl fmt::Debug for OpenRepositorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.snapshot_path;
        f.debug_struct("OpenRepositorySource").field("path", path).finish_non_exhaustive()
    }
}

impl OpenRepositorySource {
    /// Opens the human-readable view; `None` if the repository cannot be read as content, or if a part of it belongs to
    /// another home.
    pub(crate) fn document_view(&self) -> Option<ContentDocumentView> {
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
#[derive(Debug)]
pub struct LiveHomeContent {
    /// The content.
    pub repository: Repository,
    /// Stores large blobs of another machine while they are read.
    _spool_dir: Option<tempfile::TempDir>,
}

impl LiveHomeContent {
    /// Opens the content of a home.
    ///
    /// # Errors
    /// If the folder is no home, or cannot be read.
    pub fn open(access: &HomeAccess, home: &Path) -> Result<Self> {
        let OpenRepositorySource { base, blobs, _spool_dir: _spool, .. } =
            open_home_source(access, home, BaseCoverage::SavedHere)?;
        let chunks: Arc<dyn ChunkStore> = Arc::new(ReadOnlyBase::new(base));
        let large = CompositeBlobStorage::new(vec![BlobDelegate::read_only("home", blobs)]);
        let blobs = Arc::new(LocalBlobStore::with_storage(Arc::new(large), chunks.clone()));
        let repository = Repository::open(chunks, blobs).map_err(|error| {
            let action = format!("cannot read the home `{}`", home.display());
            tympan_home::Error::Failed { action, source: Some(Box::new(error)) }
        })?;
        Ok(Self { repository, _spool_dir: _spool })
    }
}

/// The base of a clone, which its owner saves.
#[derive(Debug)]
pub struct SeparatelySavedBase {
    reference: BaseStoreReference,
    open_base: Option<BaseWithBlobs>,
}

impl SeparatelySavedBase {
    /// Opens the base of a home; `None` if the home is no clone. A base that cannot be reached now is not queried.
    ///
    /// # Errors
    /// If the home does not name its base.
    pub fn of_home(access: &HomeAccess, home: &Path) -> Result<Option<Self>> {
        let Some(origin) = HomeOrigin::read_clone(home)? else { return Ok(None) };
        let root = leased_root(&origin, home)?.to_string();
        let reach = origin.open_base(access, home).inspect_err(|error| {
            tracing::warn!(
                reason = error_chain_text(error),
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
    pub fn as_separate_base(&self) -> SeparateBase<'_> {
        let reach = self.open_base.as_ref().map(|(base, blobs)| (&**base, &**blobs));
        SeparateBase { reference: &self.reference, stores: reach }
    }
}

fn leased_root(origin: &HomeOrigin, home: &Path) -> Result<ChunkId> {
    let root = origin.root.as_deref().and_then(|root| root.parse().ok());
    root.ok_or_else(|| {
        Error::Refused(format!("`{}` does not record the root of its base", home.display()))
    })
}

/// The party that saves the data that a clone reads from its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseCoverage {
    /// The base's owner.
    SavedByOwner,
    /// This save.
    SavedHere,
}

/// How the store of a running instance is read.
#[derive(Debug, Clone, Default)]
pub struct InstanceAccess {
    /// Its replication key, or a token of its administrator.
    pub credentials: Option<RemoteStoreCredentials>,
    /// The certificates that an `https` address is verified with.
    pub tls_trust: Option<TlsTrust>,
}

/// Opens the home of `repo:HOME`, or the running instance at a URL, which serves the data of its base as well.
///
/// # Errors
/// If it is no repository, or cannot be reached.
pub fn open_source(
    access: &HomeAccess,
    source: &str,
    instance: &InstanceAccess,
    of_base: BaseCoverage,
) -> Result<OpenRepositorySource> {
    if is_instance_url(source) {
        return open_instance_source(source, instance);
    }
    let home = Path::new(source.strip_prefix("repo:").unwrap_or(source));
    open_home_source(access, home, of_base)
}

/// Opens the repository whose snapshots have a path: that of a local home, or of the instance at a URL.
///
/// # Errors
/// As [`open_source`].
pub fn open_source_by_snapshot_path(
    access: &HomeAccess,
    path: &str,
    instance: &InstanceAccess,
) -> Result<OpenRepositorySource> {
    let relative_path = path.strip_prefix("/tympan").unwrap_or(path);
    let url = ["http", "https"].iter().find_map(|scheme| {
        let rest = relative_path.strip_prefix(&format!("/{scheme}/"))?;
        Some(format!("{scheme}://{rest}"))
    });
    match url.filter(|_| !Path::new(relative_path).exists()) {
        Some(url) => open_instance_source(&url, instance),
        None => open_home_source(access, Path::new(relative_path), BaseCoverage::SavedByOwner),
    }
}

/// Returns the path that snapshots of a home's repository have.
pub(crate) fn snapshot_path_of_home(absolute_home: &Path) -> String {
    format!("/tympan{}", absolute_home.display())
}

fn read_error(home: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Read { home: home.display().to_string(), source: error.into() }
}

fn open_home_source(
    access: &HomeAccess,
    home: &Path,
    of_base: BaseCoverage,
) -> Result<OpenRepositorySource> {
    require_home(home)?;
    let full = home.canonicalize().map_err(|error| read_error(home, error))?;
    let path = snapshot_path_of_home(&full);
    let config = access.read_config(home)?;
    let below = match of_base {
        BaseCoverage::SavedByOwner => SeparatelySavedBase::of_home(access, home)?,
        BaseCoverage::SavedHere => None,
    };
    let base: Arc<dyn BaseStore> = if has_database_mark(home) {
        let store = HomeChunkStore::open_beside_instance(access, home, &config)?;
        Arc::new(LiveStore::new(store))
    } else {
        let own = ReadOnlyLocalStore::open_dir(&home.join("store"), LocalStoreOptions::default())
            .map_err(|error| read_error(home, error))?;
        match HomeOrigin::read_clone(home)?.filter(|_| of_base == BaseCoverage::SavedHere) {
            None => Arc::new(own),
            Some(origin) => {
                let (base, _) = origin.open_base(access, home)?;
                Arc::new(SavedCloneStore::new(own, base, leased_root(&origin, home)?))
            }
        }
    };
    let spool = new_spool_dir()?;
    let own = open_other_home_blobs(access, home, spool.path())?;
    let blobs: Arc<dyn ReadBlobs> = match HomeOrigin::read_clone(home)?.filter(|_| below.is_none())
    {
        None => own,
        Some(origin) => Arc::new(CompositeBlobStorage::new(vec![
            BlobDelegate::read_only("own", own),
            BlobDelegate::read_only("base", origin.open_base(access, home)?.1),
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

pub(crate) fn new_spool_dir() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|source| {
        let action = "cannot create a temporary folder".to_owned();
        Error::File { action, source }
    })
}

fn open_instance_source(url: &str, instance: &InstanceAccess) -> Result<OpenRepositorySource> {
    let credentials = instance.credentials.as_ref().ok_or_else(|| {
        Error::Refused(format!(
            "`{}` does not allow reading its store without credentials: give `--key FILE` with its \
             replication key, or `--token-file FILE` with a token of `tympan user token admin`",
            redact_address(url)
        ))
    })?;
    // The key or the token identifies the client; a user name in the URL is for display.
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err(Error::Refused(
            "a password must not be part of a URL, where other users of this machine can see it: use `--key` \
             or `--token-file`"
                .to_owned(),
        ));
    }
    let spool = new_spool_dir()?;
    let plain = format!("{scheme}://{host}/{folder}");
    let store = RemoteStore::new(&plain, credentials, instance.tls_trust.clone(), spool.path());
    let store = Arc::new(store.map_err(|error| Error::Refused(error_chain_text(&error)))?);
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
