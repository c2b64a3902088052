//! Repositories that are saved: of homes, whatever they lie in, and of running instances by their URL.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tympan_backup::{Below, LiveStore, StoreReference, without_secrets};
use tympan_blobs::{Composite, Delegate, LocalBlobs, ReadBlobs};
use tympan_content::Repository;
use tympan_replicate::{Credentials, RemoteStore};
use tympan_store::{
    Base, BlobId, ByteSize, Chunk, ChunkId, ChunkStore, Error, FollowedStore, Lease, LocalOptions,
    NearBase, NearCache, ReadChunks, Result, Revision,
};
use tympan_web::tls::Trust;

use super::read_only::ReadOnly;
use super::view::ContentView;
use crate::args::backup::{InstanceArguments, Save};
use crate::backend::{self, Backend};
use crate::base::{self, Origin, is_url};
use crate::command::Fault;
use crate::config;
use crate::home::{chain, require_home};
use crate::places;

/// Bytes of chunks of another machine that stay at hand during a save.
const NEAR_BYTES: u64 = 1 << 30;

/// An opened repository.
pub(super) struct Opened {
    /// Its chunks and small blobs.
    pub(super) base: Arc<dyn Base>,
    /// Its large blobs.
    pub(super) blobs: Arc<dyn ReadBlobs>,
    /// The path of its snapshots.
    pub(super) path: String,
    /// What it stands on, if its owner saves that.
    pub(super) below: Option<LeftBelow>,
    /// Its home, if that is on this machine.
    pub(super) home: Option<PathBuf>,
    /// Large blobs of another machine lie here while they are saved.
    _spool: Option<tempfile::TempDir>,
}

impl Opened {
    /// Opens what people read of it; nothing if it cannot be read as content, or a part of it is another's.
    pub(super) fn view(&self) -> Option<ContentView> {
        if self.below.is_some() {
            return None;
        }
        let view = ContentView::new(Arc::new(ReadOnly::new(self.base.clone())));
        view.inspect_err(|error| {
            tracing::warn!(reason = chain(error), "the snapshot has no folder `content`");
        })
        .ok()
    }
}

/// The content of a home whose instance may run. Nothing can be written to it.
pub(crate) struct BesideInstance {
    pub(crate) repository: Repository,
    /// Large blobs of another machine lie here while they are read.
    _spool: Option<tempfile::TempDir>,
}

impl BesideInstance {
    /// Opens it.
    ///
    /// # Errors
    /// If the folder is no home, or cannot be read.
    pub(crate) fn open(home: &Path) -> Result<Self, Fault> {
        let Opened { base, blobs, _spool, .. } = open_home(home, OfBase::Saved)?;
        let chunks: Arc<dyn ChunkStore> = Arc::new(ReadOnly::new(base));
        let large = Composite::new(vec![Delegate::read_only("home", blobs)]);
        let blobs = Arc::new(LocalBlobs::over(Arc::new(large), chunks.clone()));
        let repository = Repository::open(chunks, blobs).map_err(|error| {
            let home = home.display();
            Fault::cannot_run(format!("cannot read the home `{home}`: {}", chain(&error)))
        })?;
        Ok(Self { repository, _spool })
    }
}

/// What a clone stands on, and somebody else saves.
pub(crate) struct LeftBelow {
    reference: StoreReference,
    reach: Option<base::Opened>,
}

impl LeftBelow {
    /// Opens what a home stands on; nothing if it is no clone. A base that cannot be reached now is not asked.
    ///
    /// # Errors
    /// If the home does not say what it stands on.
    pub(crate) fn of(home: &Path) -> Result<Option<Self>, Fault> {
        let Some(origin) = Origin::of_clone(home)? else { return Ok(None) };
        let root = root_of(&origin, home)?.to_string();
        let reach = origin.open(home).inspect_err(|fault| {
            tracing::warn!(
                reason = fault.message(),
                "the base cannot be asked: what is left to it is not looked up"
            );
        });
        let Origin { from, holder, .. } = origin;
        Ok(Some(Self { reference: StoreReference { from, root, holder }, reach: reach.ok() }))
    }

    /// Returns it as a save takes it.
    pub(crate) fn as_below(&self) -> Below<'_> {
        let reach = self.reach.as_ref().map(|(base, blobs)| (&**base, &**blobs));
        Below { reference: &self.reference, reach }
    }
}

fn root_of(origin: &Origin, home: &Path) -> Result<ChunkId, Fault> {
    let root = origin.root.as_deref().and_then(|root| root.parse().ok());
    root.ok_or_else(|| {
        Fault::usage(format!("`{}` does not say which state it stands on", home.display()))
    })
}

/// Who saves what a clone reads of its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfBase {
    /// The base's owner.
    Left,
    /// This save.
    Saved,
}

/// Opens the home behind `repo:HOME`, or the running instance at a URL, which gives what it has of its base too.
///
/// # Errors
/// If it is no repository, or cannot be reached.
pub(super) fn open(source: &str, arguments: &Save, of_base: OfBase) -> Result<Opened, Fault> {
    if is_url(source) {
        return open_url(source, &arguments.instance);
    }
    open_home(Path::new(source.strip_prefix("repo:").unwrap_or(source)), of_base)
}

/// Opens the repository whose snapshots have a path: that of a home here, or of the instance at a URL.
///
/// # Errors
/// As [`open`].
pub(super) fn open_saved(path: &str, instance: &InstanceArguments) -> Result<Opened, Fault> {
    let place = path.strip_prefix("/tympan").unwrap_or(path);
    let url = ["http", "https"].iter().find_map(|scheme| {
        let rest = place.strip_prefix(&format!("/{scheme}/"))?;
        Some(format!("{scheme}://{rest}"))
    });
    match url.filter(|_| !Path::new(place).exists()) {
        Some(url) => open_url(&url, instance),
        None => open_home(Path::new(place), OfBase::Left),
    }
}

fn open_home(home: &Path, of_base: OfBase) -> Result<Opened, Fault> {
    require_home(home)?;
    let failed = |error: &dyn std::error::Error| {
        Fault::with_code(format!("cannot read the home `{}`: {}", home.display(), chain(error)), 1)
    };
    let full = home.canonicalize().map_err(|error| failed(&error))?;
    let path = format!("/tympan{}", full.display());
    let config = config::read(home)?;
    let below = match of_base {
        OfBase::Left => LeftBelow::of(home)?,
        OfBase::Saved => None,
    };
    let base: Arc<dyn Base> = if home.join("store").join(backend::MARK).exists() {
        let store = Backend::open_beside(home, &config)?;
        Arc::new(LiveStore::new(store))
    } else {
        let own = FollowedStore::open_dir(&home.join("store"), LocalOptions::default())
            .map_err(|error| failed(&error))?;
        match Origin::of_clone(home)?.filter(|_| of_base == OfBase::Saved) {
            None => Arc::new(own),
            Some(origin) => Arc::new(Layered::open(own, &origin, home)?),
        }
    };
    let spool = new_spool()?;
    let own = places::open_other(home, spool.path())?;
    let blobs: Arc<dyn ReadBlobs> = match Origin::of_clone(home)?.filter(|_| below.is_none()) {
        None => own,
        Some(origin) => Arc::new(Composite::new(vec![
            Delegate::read_only("own", own),
            Delegate::read_only("base", origin.open(home)?.1),
        ])),
    };
    Ok(Opened { base, blobs, path, below, home: Some(full), _spool: Some(spool) })
}

pub(crate) fn new_spool() -> Result<tempfile::TempDir, Fault> {
    tempfile::tempdir()
        .map_err(|error| Fault::cannot_run(format!("cannot make a temporary folder: {error}")))
}

/// Reads what an instance is asked with from the file of a key, or of a token.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn credentials(
    key: Option<&Path>,
    token_file: Option<&Path>,
) -> Result<Option<Credentials>, Fault> {
    let read = |file: &Path| {
        let text = fs::read_to_string(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
        Ok::<_, Fault>(text.trim().to_owned())
    };
    match (key, token_file) {
        (Some(file), _) => Ok(Some(Credentials::Key(read(file)?))),
        (None, Some(file)) => Ok(Some(Credentials::Token(read(file)?))),
        (None, None) => Ok(None),
    }
}

fn open_url(url: &str, instance: &InstanceArguments) -> Result<Opened, Fault> {
    let InstanceArguments { key, token_file, ca } = instance;
    let secret = credentials(key.as_deref(), token_file.as_deref())?;
    let secret = secret.ok_or_else(|| {
        Fault::usage(format!(
            "`{}` lets nobody read its store without credentials: give `--key FILE` with its replication key, or \
             `--token-file FILE` with a token of `tympan user token admin`",
            without_secrets(url)
        ))
    })?;
    let trust = ca.as_deref().map(|file| {
        let pem = fs::read(file)
            .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
        Trust::from_pem(&pem).map_err(|error| Fault::usage(chain(&error)))
    });
    // Who asks is told by the key or the token; a name in the URL is for people.
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return Err(Fault::usage(
            "a password does not belong into a URL, where other users of this machine see it: use `--key` or `--token-file`",
        ));
    }
    let spool = new_spool()?;
    let plain = format!("{scheme}://{host}/{folder}");
    let store = RemoteStore::new(&plain, &secret, trust.transpose()?, spool.path());
    let store = Arc::new(store.map_err(|error| Fault::usage(chain(&error)))?);
    let path = format!("/tympan/{}", plain.replace("://", "/").trim_end_matches('/'));
    // What is read for the import is read again for people.
    let cache = NearCache { dir: spool.path().join("near"), size: ByteSize::bytes(NEAR_BYTES) };
    let base = Arc::new(NearBase::new(store.clone(), &cache));
    Ok(Opened { base, blobs: store, path, below: None, home: None, _spool: Some(spool) })
}

/// The packs of a clone over what it stands on, read together.
#[derive(Debug)]
struct Layered {
    own: FollowedStore,
    below: Arc<dyn Base>,
    /// What of it the clone stands on.
    root: ChunkId,
}

impl Layered {
    fn open(own: FollowedStore, origin: &Origin, home: &Path) -> Result<Self, Fault> {
        Ok(Self { own, below: origin.open(home)?.0, root: root_of(origin, home)? })
    }
}

impl ReadChunks for Layered {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        match self.own.read(id) {
            Err(Error::ChunkMissing { .. }) => self.below.read(id),
            read => read,
        }
    }

    fn has_costly_round_trips(&self) -> bool {
        self.below.has_costly_round_trips()
    }
}

impl Base for Layered {
    fn name(&self) -> String {
        self.own.name()
    }

    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = self.own.contains_many(ids)?;
        let below = self.below.contains_many(ids)?;
        present.iter_mut().zip(below).for_each(|(present, below)| *present |= below);
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let mut found = self.own.read_blobs(ids)?;
        let lacking: Vec<BlobId> = ids
            .iter()
            .zip(&found)
            .filter(|(_, bytes)| bytes.is_none())
            .map(|(id, _)| *id)
            .collect();
        if lacking.is_empty() {
            return Ok(found);
        }
        let mut below = self.below.read_blobs(&lacking)?.into_iter();
        for bytes in found.iter_mut().filter(|bytes| bytes.is_none()) {
            *bytes = below.next().flatten();
        }
        Ok(found)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.own.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.own.history(name, before, limit)
    }

    fn lease(&self, holder: &str) -> Result<Option<Lease>> {
        self.own.lease(holder)
    }

    /// Keeps what the clone has of its own, and what it stands on.
    fn grant(&self, lease: &Lease) -> Result<()> {
        self.below.grant(&Lease { root: self.root, ..lease.clone() })?;
        self.own.grant(lease)
    }

    fn release(&self, holder: &str) -> Result<()> {
        self.own.release(holder)?;
        self.below.release(holder)
    }
}
