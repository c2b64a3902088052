//! `[blobs]` of `tympan.toml`: the storage of large blobs. The keys for composites and buckets are those of Oak's
//! configuration (OAK-7083, `FileDataStore`, `S3DataStore`); `docs/compat/oak.md` lists the differences.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use tympan_blobs::garbage_collection::{SharedBlobStorage, list_members, read_home_id};
use tympan_blobs::{
    BlobBucket, BlobDelegate, BlobFolder, BlobStore, BucketOptions, CompositeBlobStorage,
    LocalBlobStore, ReadBlobs, ReadOnlyBlobFolder, StagedBlobs, WriteBlobs,
    parse_connection_string, parse_profile,
};
use tympan_notation::{ByteSize, DurationText};
use tympan_replicate::{RemoteGuestNotes, RemoteStore, RemoteStoreCredentials};
use tympan_store::ChunkStore;
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::tls::TlsTrust;

use crate::blob_sharing::StorageMembership;
use crate::config;
use crate::home_chunk_store;
use crate::home_origin::is_instance_url;

/// The role of a home's only storage.
const OWN_ROLE: &str = "own";
/// The role of the storage of a clone's base.
const BASE_ROLE: &str = "base";
/// The folder in a home that caches blobs of buckets.
const BLOB_CACHE_DIR: &str = "blob-cache";
/// The default size of the local cache of a bucket, in bytes.
const DEFAULT_BLOB_CACHE_BYTES: u64 = 16 << 30;

/// The storage of large blobs. By default, they are stored in the folder `blobs` of the home.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BlobsSection {
    /// One bucket for all blobs: `"s3://BUCKET/PREFIX"` or `"az://CONTAINER/PREFIX"`; `--blobs` takes precedence. Set
    /// it if machines share blobs or a local disk is too small.
    pub(crate) url: Option<String>,
    /// The roles of the delegates, as in Oak: `"staging, production"`, or a list. They must be those of `delegates`.
    pub(crate) roles: RoleNames,
    /// The folder that caches blobs of buckets; default `blob-cache` below the home.
    pub(crate) path: Option<PathBuf>,
    /// The storages. New blobs go to the first one that is not `readOnly`.
    pub(crate) delegates: Vec<BlobDelegateSection>,
    /// Folders in which other homes that only read these blobs leave their `marks`; marked blobs are not collected. A
    /// collection fails if one of the folders cannot be read.
    pub(crate) guests: Vec<PathBuf>,
}

/// One storage; the section is `[[blobs.delegates]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BlobDelegateSection {
    /// The role of the storage; one of `roles`.
    pub(crate) role: String,
    /// True if the storage is never written to; default false.
    #[serde(default)]
    pub(crate) read_only: OakFlag,
    /// A folder: the `blobs` of a home or, read-only, the data store of an Oak repository.
    pub(crate) path: Option<PathBuf>,
    /// A bucket (`s3://`, `az://`) or, read-only, another instance (`https://`).
    pub(crate) url: Option<String>,
    /// For a read-only storage: the folder in which this home records the blobs that it needs, so that their owner, who
    /// lists the folder in `guests`, keeps them. Without it the owner does not know of this home, unless the owner is
    /// another instance, which is notified over HTTP.
    pub(crate) marks: Option<PathBuf>,
    /// Accepted and checked, but without effect: blobs below 16 KiB are stored in the repository's packs.
    #[expect(dead_code, reason = "a key of Oak's that says nothing here")]
    pub(crate) min_record_length: Option<u64>,
    /// For another instance: the file with its replication key.
    pub(crate) key: Option<PathBuf>,
    /// For another instance: a file with a token of its user `admin`.
    pub(crate) token: Option<PathBuf>,
    /// A PEM file of certificates, one of which must have signed that of an `https` address; default those of the
    /// system.
    pub(crate) ca: Option<PathBuf>,
    /// The maximum size of the local cache of a bucket's blobs; default 16 GiB.
    pub(crate) cache_size: Option<OakByteSize>,
    /// The percentage of `cacheSize` for blobs that are stored locally and not uploaded yet; default 0: storing waits
    /// for the upload. Raise it if storing must not wait and only one process uses the bucket: other processes see a
    /// blob only after its upload.
    pub(crate) staging_split_percentage: Option<u8>,
    /// The number of concurrent staged uploads; default 10.
    pub(crate) upload_threads: Option<usize>,
    /// The delay before a failed staged upload is retried; default 10 min.
    pub(crate) staging_retry_interval: Option<OakSeconds>,
    /// The bucket, instead of `url`.
    pub(crate) s3_bucket: Option<String>,
    /// The region of the bucket; default that of the environment, or `us-east-1`.
    pub(crate) s3_region: Option<String>,
    /// The endpoint of the bucket, such as `"http://127.0.0.1:9000"`; default that of the environment, or Amazon.
    pub(crate) s3_end_point: Option<String>,
    /// The access key; by default read from the environment or the usual files, which is safer.
    pub(crate) access_key: Option<String>,
    /// The secret key; by default read from the environment or the usual files, which is safer.
    pub(crate) secret_key: Option<String>,
}

/// A set of names, written as a comma-separated string or as a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RoleNames(BTreeSet<String>);

/// A boolean in the notation of Oak's configuration: `true`, `"true"`, or a number other than 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OakFlag(bool);

/// A size with a unit, or a number of bytes as in Oak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OakByteSize(u64);

/// A duration with a unit, or a number of seconds as in Oak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OakSeconds(Duration);

impl<'de> Deserialize<'de> for RoleNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum RoleNamesInput {
            Text(String),
            List(Vec<String>),
        }
        let roles = match RoleNamesInput::deserialize(deserializer)? {
            RoleNamesInput::Text(text) => text.split(',').map(str::to_owned).collect(),
            RoleNamesInput::List(list) => list,
        };
        let roles = roles.iter().map(|role| role.trim().to_owned());
        Ok(Self(roles.filter(|role| !role.is_empty()).collect()))
    }
}

impl<'de> Deserialize<'de> for OakFlag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum OakFlagInput {
            Truth(bool),
            Number(i64),
            Text(String),
        }
        match OakFlagInput::deserialize(deserializer)? {
            OakFlagInput::Truth(truth) => Ok(Self(truth)),
            OakFlagInput::Number(number) => Ok(Self(number != 0)),
            OakFlagInput::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" => Ok(Self(true)),
                "false" | "" => Ok(Self(false)),
                // Oak reads any other string as false, and would then write to a storage that was meant to be
                // read-only.
                _ => Err(D::Error::custom(format!("`{text}` is neither true nor false"))),
            },
        }
    }
}

/// A number, or a string with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText<T> {
    Number(u64),
    Unit(T),
}

impl<'de> Deserialize<'de> for OakByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match NumberOrText::<ByteSize>::deserialize(deserializer)? {
            NumberOrText::Number(bytes) => Self(bytes),
            NumberOrText::Unit(size) => Self(size.as_bytes()),
        })
    }
}

impl<'de> Deserialize<'de> for OakSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match NumberOrText::<DurationText>::deserialize(deserializer)? {
            NumberOrText::Number(seconds) => Self(Duration::from_secs(seconds)),
            NumberOrText::Unit(span) => Self(span.0),
        })
    }
}

/// The destination of new blobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewBlobDestination {
    /// A folder, which other processes may share.
    Folder(PathBuf),
    /// The URL of a bucket.
    Bucket(String),
}

impl fmt::Display for NewBlobDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Bucket(url) => f.write_str(url),
        }
    }
}

/// The opened blob storages of a home.
pub(crate) struct HomeBlobStorage {
    /// The store that content stores blobs in.
    pub(crate) store: Arc<dyn BlobStore>,
    /// The writable storages, with their roles.
    pub(crate) writable: Vec<(String, Arc<SharedBlobStorage>)>,
    /// Folders for notes to the owners of read-only storages, with the roles of those storages.
    pub(crate) owner_note_folders: Vec<(String, Arc<dyn WriteBlobs>)>,
    /// Folders in which members that only read the writable storages leave their notes.
    pub(crate) guest_note_folders: Vec<Arc<dyn ReadBlobs>>,
    /// All storages, if there are several.
    pub(crate) composite: Option<Arc<CompositeBlobStorage>>,
    /// The buckets among them, with their roles.
    pub(crate) buckets: Vec<(String, Arc<BlobBucket>)>,
    /// The roles of other instances, which are notified over HTTP of the blobs that this home needs.
    pub(crate) instance_roles: Vec<String>,
}

impl HomeBlobStorage {
    /// Returns the storage that large blobs are read from.
    pub(crate) fn read_storage(&self, home: &Path) -> Arc<dyn ReadBlobs> {
        match (&self.composite, self.writable.first()) {
            (Some(composite), _) => composite.clone(),
            (None, Some((_, storage))) => storage.clone(),
            (None, None) => Arc::new(ReadOnlyBlobFolder::new(&home.join("blobs"))),
        }
    }
}

/// Opens the storages that the configuration of a home names, layered over the blobs of its base if it is a clone.
///
/// # Errors
/// [`CommandFault::usage`] if the delegates contradict each other; otherwise if a storage cannot be opened.
pub(crate) fn open_home_blobs(
    (dir, section): (&Path, &BlobsSection),
    membership: &StorageMembership,
    small: Arc<dyn ChunkStore>,
    base: Option<&Arc<dyn ReadBlobs>>,
) -> Result<HomeBlobStorage, CommandFault> {
    let caches = section.path.clone().unwrap_or_else(|| BLOB_CACHE_DIR.into());
    let mut opening = BlobStorageOpener::new(dir, (dir, dir.join(caches)));
    opening.membership = Some(membership.clone());
    for delegate in section.delegate_sections()? {
        opening.open_delegate(&delegate)?;
    }
    let guests = section.open_guest_note_folders(dir)?;
    let BlobStorageOpener {
        mut delegates,
        writable,
        owner_note_folders: guest_of,
        buckets,
        instance_roles: instances,
        ..
    } = opening;
    if let Some(base) = base {
        delegates.push(BlobDelegate::read_only(BASE_ROLE, base.clone()));
    }
    let only = match (&*delegates, &*writable) {
        ([_], [(_, storage)]) => Some(storage.clone()),
        _ => None,
    };
    let composite = only.is_none().then(|| Arc::new(CompositeBlobStorage::new(delegates)));
    let large: Arc<dyn WriteBlobs> = match (&composite, only) {
        (Some(composite), _) => composite.clone(),
        (None, Some(storage)) => storage,
        (None, None) => Arc::new(CompositeBlobStorage::new(Vec::new())),
    };
    let store = Arc::new(LocalBlobStore::with_storage(large, small));
    Ok(HomeBlobStorage {
        store,
        writable,
        owner_note_folders: guest_of,
        guest_note_folders: guests,
        composite,
        buckets,
        instance_roles: instances,
    })
}

/// Opens the blobs of another home, in the storages that its configuration names, and writes nothing there. The cache
/// of buckets is stored in `work`, a home of the caller's.
///
/// # Errors
/// As [`open_home_blobs`]; if the other home's configuration cannot be read.
pub(crate) fn open_other_home_blobs(
    dir: &Path,
    work: &Path,
) -> Result<Arc<dyn ReadBlobs>, CommandFault> {
    let section =
        home_chunk_store::blob_section_of_other_home(dir, &config::read_home_config(dir)?)?;
    let mut opening =
        BlobStorageOpener::new(dir, (work, work.join(BLOB_CACHE_DIR).join(BASE_ROLE)));
    for delegate in section.delegate_sections()? {
        let is_folder = delegate.bucket_url().is_none() && delegate.url.is_none();
        match delegate.path.clone().filter(|_| is_folder && !delegate.read_only.0) {
            // The home's own folder may be new and still empty.
            Some(path) => {
                let folder = Arc::new(ReadOnlyBlobFolder::new(&dir.join(path)));
                opening.delegates.push(BlobDelegate::read_only(&*delegate.role, folder));
            }
            None => {
                if delegate.bucket_url().is_some() && !delegate.read_only.0 {
                    // The cache is queried before the bucket: the bucket has the blobs that are missing here.
                    let caches = section.path.clone().unwrap_or_else(|| BLOB_CACHE_DIR.into());
                    let cache = dir.join(caches).join(role_dir_name(&delegate.role));
                    let role = format!("{} (staged)", delegate.role);
                    let staged = Arc::new(StagedBlobs::new(&cache));
                    opening.delegates.push(BlobDelegate::read_only(&*role, staged));
                }
                opening.open_delegate(&BlobDelegateSection {
                    read_only: OakFlag(true),
                    marks: None,
                    ..delegate
                })?;
            }
        }
    }
    Ok(Arc::new(CompositeBlobStorage::new(opening.delegates)))
}

/// Opens the storage in which another home stores new blobs, to add blobs to it.
///
/// # Errors
/// As [`open_other_home_blobs`]; [`CommandFault::usage`] if others share the storage, and that home is not registered
/// there.
pub(crate) fn open_other_home_blobs_to_write(
    dir: &Path,
    work: &Path,
) -> Result<Arc<dyn WriteBlobs>, CommandFault> {
    let section =
        home_chunk_store::blob_section_of_other_home(dir, &config::read_home_config(dir)?)?;
    let mut opening = BlobStorageOpener::new(dir, (work, work.join(BLOB_CACHE_DIR).join("other")));
    let first = section.delegate_sections()?.into_iter().find(|delegate| !delegate.read_only.0);
    // There is at least one, or the configuration would have been refused. Without staging, the blobs are uploaded by
    // the time this ends.
    let first =
        first.map(|delegate| BlobDelegateSection { staging_split_percentage: None, ..delegate });
    first.map_or(Ok(()), |delegate| opening.open_delegate(&delegate))?;
    let storage = opening.write_storages.pop();
    let storage = storage
        .ok_or_else(|| CommandFault::usage("the other home has no writable blob storage"))?;
    let failed = |error: tympan_blobs::Error| CommandFault::cannot_run(error_chain_text(&error));
    let members = list_members(&*storage).map_err(failed)?;
    let name = read_home_id(dir).map_err(failed)?;
    let is_known = members.iter().any(|member| Some(&member.member.id) == name.as_ref());
    if !members.is_empty() && !is_known && !home_chunk_store::has_database_mark(dir) {
        return Err(CommandFault::usage(format!(
            "`{}` is not registered in its shared blob storage `{storage:?}`; start its instance once",
            dir.display()
        )));
    }
    Ok(storage)
}

impl BlobsSection {
    /// Returns true if a storage is configured.
    pub(crate) fn is_configured(&self) -> bool {
        self.url.is_some() || !self.roles.0.is_empty() || !self.delegates.is_empty()
    }

    /// Stores everything in one bucket, if `url` is given.
    pub(crate) fn with_bucket_url(self, url: Option<String>) -> Self {
        match url {
            Some(_) => Self { url, path: self.path, guests: self.guests, ..Self::default() },
            None => self,
        }
    }

    /// Opens the folders with the notes of members that only read.
    fn open_guest_note_folders(
        &self,
        home: &Path,
    ) -> Result<Vec<Arc<dyn ReadBlobs>>, CommandFault> {
        let mut guests: Vec<Arc<dyn ReadBlobs>> = Vec::new();
        for folder in &self.guests {
            let folder = home.join(folder);
            // A missing folder, such as one that is not mounted, may contain marks.
            if !folder.is_dir() {
                return Err(CommandFault::usage(format!(
                    "tympan.toml: [blobs]: guests: there is no folder `{}`; create it, or check that its disk \
                     is mounted",
                    folder.display()
                )));
            }
            guests.push(Arc::new(ReadOnlyBlobFolder::new(&folder)));
        }
        Ok(guests)
    }

    /// Returns the destination of a home's new blobs.
    ///
    /// # Errors
    /// [`CommandFault::usage`] if the delegates contradict each other.
    pub(crate) fn new_blob_destination(
        &self,
        home: &Path,
    ) -> Result<NewBlobDestination, CommandFault> {
        let delegates = self.delegate_sections()?;
        let first = delegates.iter().find(|delegate| !delegate.read_only.0);
        let folder =
            first.and_then(|delegate| delegate.path.clone()).unwrap_or_else(|| "blobs".into());
        Ok(match first.and_then(BlobDelegateSection::bucket_url) {
            Some(url) => NewBlobDestination::Bucket(url),
            None => NewBlobDestination::Folder(home.join(folder)),
        })
    }

    /// Returns the storages, and checks that they are consistent: an instance that starts with a missing role would
    /// lack its blobs.
    fn delegate_sections(&self) -> Result<Vec<BlobDelegateSection>, CommandFault> {
        let wrong =
            |reason: String| Err(CommandFault::usage(format!("tympan.toml: [blobs]: {reason}")));
        let is_composite = !self.roles.0.is_empty() || !self.delegates.is_empty();
        match (&self.url, is_composite) {
            (Some(_), true) => {
                return wrong(
                    "`url` cannot be combined with `roles` or `delegates`; set it in one of the `delegates`".to_owned(),
                );
            }
            (Some(url), false) => {
                return Ok(vec![BlobDelegateSection {
                    url: Some(url.clone()),
                    ..BlobDelegateSection::with_role(OWN_ROLE)
                }]);
            }
            (None, false) => {
                return Ok(vec![BlobDelegateSection {
                    path: Some("blobs".into()),
                    ..BlobDelegateSection::with_role(OWN_ROLE)
                }]);
            }
            (None, true) => {}
        }
        let mut roles = BTreeSet::new();
        for delegate in &self.delegates {
            if !roles.insert(delegate.role.clone()) {
                return wrong(format!("two delegates have the role `{}`", delegate.role));
            }
        }
        if let Some(role) = self.roles.0.difference(&roles).next() {
            return wrong(format!("`roles` lists `{role}`, but none of the `delegates` has it"));
        }
        if let Some(role) = roles.difference(&self.roles.0).next() {
            return wrong(format!("a delegate has the role `{role}`, which `roles` does not list"));
        }
        if self.delegates.iter().all(|delegate| delegate.read_only.0) {
            return wrong(
                "all delegates are `readOnly`; new blobs need a writable delegate".to_owned(),
            );
        }
        Ok(self.delegates.clone())
    }
}

impl BlobDelegateSection {
    fn with_role(role: &str) -> Self {
        Self {
            role: role.to_owned(),
            read_only: OakFlag(false),
            path: None,
            url: None,
            marks: None,
            min_record_length: None,
            key: None,
            token: None,
            ca: None,
            cache_size: None,
            staging_split_percentage: None,
            upload_threads: None,
            staging_retry_interval: None,
            s3_bucket: None,
            s3_region: None,
            s3_end_point: None,
            access_key: None,
            secret_key: None,
        }
    }

    fn bucket_url(&self) -> Option<String> {
        let url = self.url.clone().filter(|url| !is_instance_url(url));
        url.or_else(|| Some(format!("s3://{}", self.s3_bucket.as_deref()?)))
    }

    fn section_fault(&self, reason: &str) -> CommandFault {
        CommandFault::usage(format!("tympan.toml: [blobs]: the delegate `{}`: {reason}", self.role))
    }

    fn open_fault(&self, error: &dyn std::error::Error) -> CommandFault {
        CommandFault::cannot_run(format!(
            "cannot open the blobs of `{}`: {}",
            self.role,
            error_chain_text(error)
        ))
    }
}

struct BlobStorageOpener<'a> {
    /// The home that the storages belong to.
    home_dir: &'a Path,
    /// The home that uses them: stores its own files.
    work_dir: &'a Path,
    /// The folder that caches blobs of buckets.
    cache_dir: PathBuf,
    /// The identity under which blobs are stored; `None` for another party's home.
    membership: Option<StorageMembership>,
    delegates: Vec<BlobDelegate>,
    /// The writable storages.
    write_storages: Vec<Arc<dyn WriteBlobs>>,
    writable: Vec<(String, Arc<SharedBlobStorage>)>,
    owner_note_folders: Vec<(String, Arc<dyn WriteBlobs>)>,
    buckets: Vec<(String, Arc<BlobBucket>)>,
    instance_roles: Vec<String>,
}

impl<'a> BlobStorageOpener<'a> {
    fn new(dir: &'a Path, (work, caches): (&'a Path, PathBuf)) -> Self {
        Self {
            home_dir: dir,
            work_dir: work,
            cache_dir: caches,
            membership: None,
            delegates: Vec::new(),
            write_storages: Vec::new(),
            writable: Vec::new(),
            owner_note_folders: Vec::new(),
            buckets: Vec::new(),
            instance_roles: Vec::new(),
        }
    }

    fn open_delegate(&mut self, delegate: &BlobDelegateSection) -> Result<(), CommandFault> {
        match (&delegate.path, delegate.bucket_url(), &delegate.url) {
            (Some(path), None, None) => self.open_folder(delegate, &self.home_dir.join(path))?,
            (None, Some(url), _) => self.open_bucket(delegate, url)?,
            (None, None, Some(url)) => self.open_instance(delegate, url)?,
            (None, None, None) => return Err(delegate.section_fault("set `path` or `url`")),
            (Some(_), ..) => {
                return Err(delegate.section_fault(
                    "`path` cannot be combined with a bucket or `url`; set only one of them",
                ));
            }
        }
        match &delegate.marks {
            Some(_) if !delegate.read_only.0 => Err(delegate.section_fault(
                "`marks` requires `readOnly = true`; the marks for a writable delegate are stored beside its \
                 blobs",
            )),
            Some(marks) => self.open_owner_notes(delegate, &self.home_dir.join(marks)),
            None => Ok(()),
        }
    }

    /// Opens the folder in which the owner of a storage looks for the blobs that others need.
    fn open_owner_notes(
        &mut self,
        delegate: &BlobDelegateSection,
        folder: &Path,
    ) -> Result<(), CommandFault> {
        if !folder.is_dir() {
            let reason = format!(
                "`marks`: there is no folder `{}`; check that its disk is mounted",
                folder.display()
            );
            return Err(delegate.section_fault(&reason));
        }
        let notes = BlobFolder::open(folder).map_err(|error| delegate.open_fault(&error))?;
        self.owner_note_folders.push((delegate.role.clone(), Arc::new(notes)));
        Ok(())
    }

    /// Adds a writable storage. `memory` is a file that records who was registered there, for uploads that follow
    /// later.
    fn add_write_storage(
        &mut self,
        delegate: &BlobDelegateSection,
        to: Arc<dyn WriteBlobs>,
        memory: Option<PathBuf>,
    ) {
        self.write_storages.push(to.clone());
        let Some(membership) = self.membership.clone() else { return };
        let shared = SharedBlobStorage::new(to, move || membership.member());
        let shared = match memory {
            Some(file) => shared.with_registration_file(file),
            None => shared,
        };
        let shared = Arc::new(shared);
        self.delegates.push(BlobDelegate::writable(&*delegate.role, shared.clone()));
        self.writable.push((delegate.role.clone(), shared));
    }

    fn open_folder(
        &mut self,
        delegate: &BlobDelegateSection,
        path: &Path,
    ) -> Result<(), CommandFault> {
        if delegate.read_only.0 {
            if !path.is_dir() {
                let reason = format!(
                    "there is no folder `{}`; check that its disk is mounted",
                    path.display()
                );
                return Err(delegate.section_fault(&reason));
            }
            let folder = Arc::new(ReadOnlyBlobFolder::new_required(path));
            self.delegates.push(BlobDelegate::read_only(&*delegate.role, folder));
            return Ok(());
        }
        let folder = BlobFolder::open(path).map_err(|error| delegate.open_fault(&error))?;
        self.add_write_storage(delegate, Arc::new(folder), None);
        Ok(())
    }

    fn open_bucket(
        &mut self,
        delegate: &BlobDelegateSection,
        url: String,
    ) -> Result<(), CommandFault> {
        let cache = self.cache_dir.join(role_dir_name(&delegate.role));
        let memory = cache.join("registered");
        let size = delegate.cache_size.map_or(DEFAULT_BLOB_CACHE_BYTES, |size| size.0);
        let percentage = delegate.staging_split_percentage.unwrap_or(0);
        if percentage > 100 {
            return Err(delegate.section_fault("`stagingSplitPercentage` is above 100"));
        }
        let staging_bytes = size / 100 * u64::from(percentage);
        let mut options = BucketOptions {
            settings: bucket_client_settings(delegate)?,
            cache_bytes: size.saturating_sub(staging_bytes),
            staging_bytes,
            trust: Some(server_trust(delegate)?),
            ..BucketOptions::new(url, cache)
        };
        if let Some(threads) = delegate.upload_threads {
            options.upload_threads = threads;
        }
        if let Some(OakSeconds(every)) = delegate.staging_retry_interval {
            options.retry_interval = every;
        }
        let bucket = BlobBucket::open(options).map_err(|error| match error {
            tympan_blobs::Error::InvalidAddress { .. } => {
                delegate.section_fault(&error_chain_text(&error))
            }
            error => delegate.open_fault(&error),
        })?;
        let bucket = Arc::new(bucket);
        self.buckets.push((delegate.role.clone(), bucket.clone()));
        if delegate.read_only.0 {
            self.delegates.push(BlobDelegate::read_only(&*delegate.role, bucket));
        } else {
            self.add_write_storage(delegate, bucket, (percentage > 0).then_some(memory));
        }
        Ok(())
    }

    fn open_instance(
        &mut self,
        delegate: &BlobDelegateSection,
        url: &str,
    ) -> Result<(), CommandFault> {
        if !delegate.read_only.0 {
            return Err(
                delegate.section_fault("another instance is read-only: add `readOnly = true`")
            );
        }
        let read = |file: &PathBuf| {
            let file = self.home_dir.join(file);
            let text = fs::read_to_string(&file);
            text.map(|text| text.trim().to_owned()).map_err(|error| {
                delegate.section_fault(&format!("cannot read `{}`: {error}", file.display()))
            })
        };
        let credentials = match (&delegate.key, &delegate.token) {
            (Some(key), None) => RemoteStoreCredentials::Key(read(key)?),
            (None, Some(token)) => RemoteStoreCredentials::Token(read(token)?),
            _ => {
                return Err(delegate.section_fault(
                    "set `key` to a file with its replication key, or `token` to a file with a token of its \
                     user `admin`",
                ));
            }
        };
        let trust = Some(server_trust(delegate)?);
        let store = RemoteStore::new(url, &credentials, trust, &self.work_dir.join("spool"));
        let store = store.map_err(|error| delegate.section_fault(&error_chain_text(&error)))?;
        let store = Arc::new(store);
        self.delegates.push(BlobDelegate::read_only(&*delegate.role, store.clone()));
        // A reader of another party's home needs no blobs there for itself.
        if self.membership.is_some() && delegate.marks.is_none() {
            self.owner_note_folders
                .push((delegate.role.clone(), Arc::new(RemoteGuestNotes::new(store))));
            self.instance_roles.push(delegate.role.clone());
        }
        Ok(())
    }
}

/// Returns the certificates that the servers of a storage are verified with.
fn server_trust(delegate: &BlobDelegateSection) -> Result<TlsTrust, CommandFault> {
    let Some(file) = &delegate.ca else {
        return TlsTrust::system_roots().map_err(|error| delegate.open_fault(&error));
    };
    let pem = fs::read(file).map_err(|error| {
        delegate.section_fault(&format!("cannot read `{}`: {error}", file.display()))
    })?;
    TlsTrust::from_pem(&pem).map_err(|error| delegate.section_fault(&error_chain_text(&error)))
}

/// Returns a folder name for a role.
fn role_dir_name(role: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' }
    };
    role.chars().map(plain).collect()
}

/// Returns the settings of a bucket client: from the usual files first, then the environment, then the configuration.
fn bucket_client_settings(
    delegate: &BlobDelegateSection,
) -> Result<Vec<(String, String)>, CommandFault> {
    let mut settings =
        default_bucket_settings().map_err(|reason| delegate.section_fault(&reason))?;
    for (name, value) in [
        ("AWS_REGION", &delegate.s3_region),
        ("AWS_ENDPOINT_URL", &delegate.s3_end_point),
        ("AWS_ACCESS_KEY_ID", &delegate.access_key),
        ("AWS_SECRET_ACCESS_KEY", &delegate.secret_key),
    ] {
        settings.extend(value.clone().map(|value| (name.to_owned(), value)));
    }
    Ok(settings)
}

/// Returns the settings of a bucket client from the usual files and the environment.
pub(crate) fn default_bucket_settings() -> Result<Vec<(String, String)>, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut settings = Vec::new();
    let home = variable("HOME").map(PathBuf::from).unwrap_or_default();
    let profile = variable("AWS_PROFILE");
    for (name, usual) in
        [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")]
    {
        let file = variable(name).map_or_else(|| home.join(".aws").join(usual), PathBuf::from);
        match fs::read_to_string(&file) {
            Ok(text) => {
                settings.extend(parse_profile(&text, profile.as_deref().unwrap_or("default")))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("cannot read `{}`: {error}", file.display())),
        }
    }
    if let Some(text) = variable("AZURE_STORAGE_CONNECTION_STRING") {
        settings.extend(parse_connection_string(&text));
    }
    let is_ours = |name: &str| name.starts_with("AWS_") || name.starts_with("AZURE_");
    settings.extend(std::env::vars().filter(|(name, value)| is_ours(name) && !value.is_empty()));
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BlobsSection, String> {
        crate::config::parse_toml("tympan.toml", text)
    }

    fn places(text: &str) -> Result<Vec<String>, String> {
        let delegates =
            read(text)?.delegate_sections().map_err(|fault| fault.message().to_owned())?;
        let name = |delegate: &BlobDelegateSection| {
            format!("{}{}", delegate.role, if delegate.read_only.0 { " (read)" } else { "" })
        };
        Ok(delegates.iter().map(name).collect())
    }

    const COMPOSITE: &str = "roles = \" stg,prod \"\n[[delegates]]\nrole = \"prod\"\nreadOnly = \"true\"\npath = \"/p\"\n\
                             minRecordLength = 4096\n[[delegates]]\nrole = \"stg\"\npath = \"own\"\n";

    #[test]
    fn oaks_keys_are_read_in_oaks_words() {
        assert_eq!(places(COMPOSITE).unwrap(), ["prod (read)", "stg"]);
        let listed = COMPOSITE.replace("\" stg,prod \"", "[\"prod\", \"stg\"]");
        assert_eq!(places(&listed).unwrap(), ["prod (read)", "stg"]);
        for flag in ["true", "1", "\"TRUE\""] {
            let text = COMPOSITE.replace("\"true\"", flag);
            assert_eq!(places(&text).unwrap(), ["prod (read)", "stg"], "{flag}");
        }
        for flag in ["false", "0", "\"false\""] {
            assert_eq!(places(&COMPOSITE.replace("\"true\"", flag)).unwrap(), ["prod", "stg"]);
        }
        assert!(
            places(&COMPOSITE.replace("\"true\"", "\"yes\"")).is_err(),
            "never writable by a typo"
        );
    }

    #[test]
    fn a_store_that_lacks_a_role_does_not_start() {
        let config_text = COMPOSITE.replace(" stg,prod ", "stg,prod,archive");
        assert!(places(&config_text).unwrap_err().contains("lists `archive`"));
        assert!(places(&COMPOSITE.replace(" stg,prod ", "stg")).unwrap_err().contains("`prod`"));
        assert!(places(&COMPOSITE.replace("roles =", "# roles =")).is_err());
        let twice = COMPOSITE.replace("\"stg\"", "\"prod\"");
        assert!(places(&twice).unwrap_err().contains("two delegates"));
        let read_only = COMPOSITE.replace("\"own\"", "\"own\"\nreadOnly = true");
        assert!(places(&read_only).unwrap_err().contains("new blobs need a writable delegate"));
        assert!(
            places(&COMPOSITE.replace("readOnly", "readonly"))
                .unwrap_err()
                .contains("did you mean `readOnly`")
        );
        assert!(places(&format!("url = \"s3://b\"\n{COMPOSITE}")).is_err());
    }

    #[test]
    fn one_place_needs_no_roles() {
        assert_eq!(places("").unwrap(), ["own"]);
        assert_eq!(places("url = \"s3://site/blobs\"").unwrap(), ["own"]);
        let destination_text = |text: &str| {
            let destination = read(text).unwrap().new_blob_destination(Path::new("/srv/author"));
            destination.unwrap().to_string()
        };
        assert_eq!(destination_text("url = \"s3://site/blobs\""), "s3://site/blobs");
        assert_eq!(destination_text(""), "/srv/author/blobs");
        assert_eq!(destination_text(COMPOSITE), "/srv/author/own");
        let bucket = "s3Bucket = \"site\"\ncacheSize = 68719476736\nstagingRetryInterval = \"1 s\"";
        assert_eq!(destination_text(&COMPOSITE.replace("path = \"own\"", bucket)), "s3://site");
    }
}
