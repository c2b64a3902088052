//! The storages of large blobs that the configuration of a home names, opened.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tympan_notation::error_chain_text;

use tympan_blobs::garbage_collection::{SharedBlobStorage, list_members, read_home_id};
use tympan_blobs::{
    BlobBucket, BlobDelegate, BlobFolder, BlobStore, BucketOptions, CompositeBlobStorage,
    LocalBlobStore, ReadBlobs, ReadOnlyBlobFolder, StagedBlobs, WriteBlobs,
};
use tympan_replicate::{RemoteGuestNotes, RemoteStore, RemoteStoreCredentials};
use tympan_store::ChunkStore;
use tympan_web::tls::TlsTrust;

use crate::access::HomeAccess;
use crate::blob_config::{BlobDelegateSection, BlobsSection, OakFlag, OakSeconds};
use crate::error::{Error, Result};
use crate::private_file::has_database_mark;
use crate::storage_membership::StorageMembership;

/// The role of the storage of a clone's base.
const BASE_ROLE: &str = "base";
/// The folder in a home that caches blobs of buckets.
const BLOB_CACHE_DIR: &str = "blob-cache";
/// The default size of the local cache of a bucket, in bytes.
const DEFAULT_BLOB_CACHE_BYTES: u64 = 16 << 30;

/// The opened blob storages of a home.
pub struct HomeBlobStorage {
    /// The store that content stores blobs in.
    pub store: Arc<dyn BlobStore>,
    /// The writable storages, with their roles.
    pub writable: Vec<(String, Arc<SharedBlobStorage>)>,
    /// Folders for notes to the owners of read-only storages, with the roles of those storages.
    pub owner_note_folders: Vec<(String, Arc<dyn WriteBlobs>)>,
    /// Folders in which members that only read the writable storages leave their notes.
    pub guest_note_folders: Vec<Arc<dyn ReadBlobs>>,
    /// All storages, if there are several.
    pub composite: Option<Arc<CompositeBlobStorage>>,
    /// The buckets among them, with their roles.
    pub buckets: Vec<(String, Arc<BlobBucket>)>,
    /// The roles of other instances, which are notified over HTTP of the blobs that this home needs.
    pub instance_roles: Vec<String>,
}

impl fmt::Debug for HomeBlobStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeBlobStorage").field("store", &self.store).finish_non_exhaustive()
    }
}

impl HomeBlobStorage {
    /// Returns the storage that large blobs are read from.
    pub fn read_storage(&self, home: &Path) -> Arc<dyn ReadBlobs> {
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
/// [`Error::Refused`] if the delegates contradict each other; otherwise if a storage cannot be opened.
pub(crate) fn open_home_blobs(
    access: &HomeAccess,
    dir: &Path,
    section: &BlobsSection,
    membership: &StorageMembership,
    small: Arc<dyn ChunkStore>,
    base: Option<&Arc<dyn ReadBlobs>>,
) -> Result<HomeBlobStorage> {
    let caches = section.path.clone().unwrap_or_else(|| BLOB_CACHE_DIR.into());
    let mut opening = BlobStorageOpener::new(access, dir, (dir, dir.join(caches)));
    opening.membership = Some(membership.clone());
    for delegate in section.delegate_sections()? {
        opening.open_delegate(&delegate)?;
    }
    let guests = open_guest_note_folders(section, dir)?;
    let BlobStorageOpener {
        mut delegates,
        writable,
        owner_note_folders,
        buckets,
        instance_roles,
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
        owner_note_folders,
        guest_note_folders: guests,
        composite,
        buckets,
        instance_roles,
    })
}

/// Opens the blobs of another home, in the storages that its configuration names, and writes nothing there. The cache
/// of buckets is stored in `work`, a home of the caller's.
///
/// # Errors
/// As [`open_home_blobs`]; if the other home's configuration cannot be read.
pub fn open_other_home_blobs(
    access: &HomeAccess,
    dir: &Path,
    work: &Path,
) -> Result<Arc<dyn ReadBlobs>> {
    let section = access.blob_section_of_other_home(dir)?;
    let mut opening =
        BlobStorageOpener::new(access, dir, (work, work.join(BLOB_CACHE_DIR).join(BASE_ROLE)));
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
/// As [`open_other_home_blobs`]; [`Error::Refused`] if others share the storage, and that home is not registered
/// there.
pub(crate) fn open_other_home_blobs_to_write(
    access: &HomeAccess,
    dir: &Path,
    work: &Path,
) -> Result<Arc<dyn WriteBlobs>> {
    let section = access.blob_section_of_other_home(dir)?;
    let mut opening =
        BlobStorageOpener::new(access, dir, (work, work.join(BLOB_CACHE_DIR).join("other")));
    let first = section.delegate_sections()?.into_iter().find(|delegate| !delegate.read_only.0);
    // There is at least one, or the configuration would have been refused. Without staging, the blobs are uploaded by
    // the time this ends.
    let first =
        first.map(|delegate| BlobDelegateSection { staging_split_percentage: None, ..delegate });
    first.map_or(Ok(()), |delegate| opening.open_delegate(&delegate))?;
    let storage = opening.write_storages.pop();
    let storage =
        storage.ok_or_else(|| Error::refused("the other home has no writable blob storage"))?;
    let members = list_members(&*storage)?;
    let name = read_home_id(dir)?;
    let is_known = members.iter().any(|member| Some(&member.member.id) == name.as_ref());
    if !members.is_empty() && !is_known && !has_database_mark(dir) {
        return Err(Error::refused(format!(
            "`{}` is not registered in its shared blob storage `{storage:?}`; start its instance once",
            dir.display()
        )));
    }
    Ok(storage)
}

struct BlobStorageOpener<'a> {
    access: &'a HomeAccess,
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
    fn new(access: &'a HomeAccess, dir: &'a Path, (work, caches): (&'a Path, PathBuf)) -> Self {
        Self {
            access,
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

    fn open_delegate(&mut self, delegate: &BlobDelegateSection) -> Result<()> {
        match (&delegate.path, delegate.bucket_url(), &delegate.url) {
            (Some(path), None, None) => self.open_folder(delegate, &self.home_dir.join(path))?,
            (None, Some(url), _) => self.open_bucket(delegate, url)?,
            (None, None, Some(url)) => self.open_instance(delegate, url)?,
            (None, None, None) => return Err(delegate.section_error("set `path` or `url`")),
            (Some(_), ..) => {
                return Err(delegate.section_error(
                    "`path` cannot be combined with a bucket or `url`; set only one of them",
                ));
            }
        }
        match &delegate.marks {
            Some(_) if !delegate.read_only.0 => Err(delegate.section_error(
                "`marks` requires `readOnly = true`; the marks for a writable delegate are stored beside its \
                 blobs",
            )),
            Some(marks) => self.open_owner_notes(delegate, &self.home_dir.join(marks)),
            None => Ok(()),
        }
    }

    /// Opens the folder in which the owner of a storage looks for the blobs that others need.
    fn open_owner_notes(&mut self, delegate: &BlobDelegateSection, folder: &Path) -> Result<()> {
        if !folder.is_dir() {
            let reason = format!(
                "`marks`: there is no folder `{}`; check that its disk is mounted",
                folder.display()
            );
            return Err(delegate.section_error(&reason));
        }
        let notes = BlobFolder::open(folder).map_err(|error| open_error(delegate, error))?;
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

    fn open_folder(&mut self, delegate: &BlobDelegateSection, path: &Path) -> Result<()> {
        if delegate.read_only.0 {
            if !path.is_dir() {
                let reason = format!(
                    "there is no folder `{}`; check that its disk is mounted",
                    path.display()
                );
                return Err(delegate.section_error(&reason));
            }
            let folder = Arc::new(ReadOnlyBlobFolder::new_required(path));
            self.delegates.push(BlobDelegate::read_only(&*delegate.role, folder));
            return Ok(());
        }
        let folder = BlobFolder::open(path).map_err(|error| open_error(delegate, error))?;
        self.add_write_storage(delegate, Arc::new(folder), None);
        Ok(())
    }

    fn open_bucket(&mut self, delegate: &BlobDelegateSection, url: String) -> Result<()> {
        let cache = self.cache_dir.join(role_dir_name(&delegate.role));
        let memory = cache.join("registered");
        let size = delegate.cache_size.map_or(DEFAULT_BLOB_CACHE_BYTES, |size| size.0);
        let percentage = delegate.staging_split_percentage.unwrap_or(0);
        if percentage > 100 {
            return Err(delegate.section_error("`stagingSplitPercentage` is above 100"));
        }
        let staging_bytes = size / 100 * u64::from(percentage);
        let mut options = BucketOptions {
            settings: self.bucket_client_settings(delegate)?,
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
                delegate.section_error(&error_chain_text(&error))
            }
            error => open_error(delegate, error),
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

    fn open_instance(&mut self, delegate: &BlobDelegateSection, url: &str) -> Result<()> {
        if !delegate.read_only.0 {
            return Err(
                delegate.section_error("another instance is read-only: add `readOnly = true`")
            );
        }
        let read = |file: &PathBuf| {
            let file = self.home_dir.join(file);
            let text = fs::read_to_string(&file);
            text.map(|text| text.trim().to_owned()).map_err(|error| {
                delegate.section_error(&format!("cannot read `{}`: {error}", file.display()))
            })
        };
        let credentials = match (&delegate.key, &delegate.token) {
            (Some(key), None) => RemoteStoreCredentials::Key(read(key)?),
            (None, Some(token)) => RemoteStoreCredentials::Token(read(token)?),
            _ => {
                return Err(delegate.section_error(
                    "set `key` to a file with its replication key, or `token` to a file with a token of its \
                     user `admin`",
                ));
            }
        };
        let trust = Some(server_trust(delegate)?);
        let store = RemoteStore::new(url, &credentials, trust, &self.work_dir.join("spool"));
        let store = store.map_err(|error| delegate.section_error(&error_chain_text(&error)))?;
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

    /// Returns the settings of a bucket client: from the usual files first, then the environment, then the configuration.
    fn bucket_client_settings(
        &self,
        delegate: &BlobDelegateSection,
    ) -> Result<Vec<(String, String)>> {
        let mut settings = (self.access.read_bucket_settings)()
            .map_err(|reason| delegate.section_error(&reason))?;
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
}

/// Opens the folders with the notes of members that only read.
fn open_guest_note_folders(section: &BlobsSection, home: &Path) -> Result<Vec<Arc<dyn ReadBlobs>>> {
    let mut guests: Vec<Arc<dyn ReadBlobs>> = Vec::new();
    for folder in &section.guests {
        let folder = home.join(folder);
        // A missing folder, such as one that is not mounted, may contain marks.
        if !folder.is_dir() {
            return Err(Error::refused(format!(
                "tympan.toml: [blobs]: guests: there is no folder `{}`; create it, or check that its disk is \
                 mounted",
                folder.display()
            )));
        }
        guests.push(Arc::new(ReadOnlyBlobFolder::new(&folder)));
    }
    Ok(guests)
}

fn open_error(
    delegate: &BlobDelegateSection,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::failed(format!("cannot open the blobs of `{}`", delegate.role), error)
}

/// Returns the certificates that the servers of a storage are verified with.
fn server_trust(delegate: &BlobDelegateSection) -> Result<TlsTrust> {
    let Some(file) = &delegate.ca else {
        return TlsTrust::system_roots().map_err(|error| open_error(delegate, error));
    };
    let pem = fs::read(file).map_err(|error| {
        delegate.section_error(&format!("cannot read `{}`: {error}", file.display()))
    })?;
    TlsTrust::from_pem(&pem).map_err(|error| delegate.section_error(&error_chain_text(&error)))
}

/// Returns a folder name for a role.
fn role_dir_name(role: &str) -> String {
    let plain = |character: char| {
        if character.is_ascii_alphanumeric() || character == '-' { character } else { '_' }
    };
    role.chars().map(plain).collect()
}
