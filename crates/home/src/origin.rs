//! Homes that depend on another one: a clone reads from it, a standby follows it.
//!
//! `base.toml` names the base of a clone and the lease on its state; `standby.toml` names the origin of a standby, and
//! exists until the standby is promoted. `base.secret` stores the credentials of either for a running instance.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tympan_notation::error_chain_text;

use serde::Deserialize;
use tokio::sync::watch;
use tympan_blobs::ReadBlobs;
use tympan_replicate::{RemoteStore, RemoteStoreCredentials};
use tympan_store::disk::FileDisk;
use tympan_store::{
    BaseStore, ByteSize, CachedBaseStore, ChunkBatch, ChunkDiskCacheOptions, ChunkId, ChunkStore,
    Error, LayeredStore, LocalStore, LocalStoreOptions, ReadOnlyLocalStore, RefUpdate, RootLease,
    renew_lease,
};
use tympan_web::tls::TlsTrust;

use crate::access::HomeAccess;
use crate::blob_config::is_instance_url;
use crate::blob_storage::open_other_home_blobs;
use crate::config::read_toml_file;
use crate::error::{Error as HomeError, Result};
use crate::private_file::{
    create_private_dir, random_text, sync_folder, write_file_durably, write_secret_file,
};

/// The duration of a lease without renewal: a clone that is stopped for longer must be created again.
pub(crate) const LEASE_DURATION: Duration = Duration::from_hours(14 * 24);
/// The interval at which a running instance renews its lease.
const LEASE_RENEW_INTERVAL: Duration = Duration::from_mins(10);
/// The delay before a failed renewal is retried.
const LEASE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The size of the local cache of chunks and small blobs of another instance.
const NEAR_CACHE_BYTES: u64 = 1 << 30;
/// The folder of this cache.
const NEAR_CACHE_DIR: &str = "near";

/// The branch that is cloned.
pub const MAIN_BRANCH: &str = "main";
const BASE_FILE: &str = "base.toml";
const STANDBY_FILE: &str = "standby.toml";
const SECRET_FILE: &str = "base.secret";

/// The home that another home depends on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomeOrigin {
    /// A home's directory, or the URL of a running instance.
    pub from: String,
    /// The name of the lease holder.
    pub holder: String,
    /// The leased root; only of a clone.
    pub root: Option<String>,
    /// A PEM file of certificates that an `https` URL is verified with.
    pub ca: Option<PathBuf>,
    /// The folder with the lease, instead of the home that is read.
    pub leases: Option<PathBuf>,
}

/// A base with its large blobs.
pub type BaseWithBlobs = (Arc<dyn BaseStore>, Arc<dyn ReadBlobs>);

/// The packs of a clone layered over its base, and the base's large blobs.
pub(crate) type OverlayWithBlobs = (Arc<LayeredStore>, Arc<dyn ReadBlobs>);

impl HomeOrigin {
    /// Reads the origin of a clone; `None` if the home is no clone.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn read_clone(home: &Path) -> Result<Option<Self>> {
        read_origin_file(&home.join(BASE_FILE))
    }

    /// Reads the origin of a standby; `None` if the home is no standby.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn read_standby(home: &Path) -> Result<Option<Self>> {
        read_origin_file(&home.join(STANDBY_FILE))
    }

    /// Makes a home a clone.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_clone(&self, home: &Path) -> Result<()> {
        self.write_to(&home.join(BASE_FILE))
    }

    /// Makes a home a standby.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_standby(&self, home: &Path) -> Result<()> {
        self.write_to(&home.join(STANDBY_FILE))
    }

    fn write_to(&self, file: &Path) -> Result<()> {
        // A JSON string is also a TOML string.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut text =
            format!("from = {}\nholder = {}\n", quoted(&self.from), quoted(&self.holder));
        if let Some(root) = &self.root {
            text.push_str(&format!("root = {}\n", quoted(root)));
        }
        if let Some(ca) = &self.ca {
            text.push_str(&format!("ca = {}\n", quoted(&ca.to_string_lossy())));
        }
        if let Some(leases) = &self.leases {
            text.push_str(&format!("leases = {}\n", quoted(&leases.to_string_lossy())));
        }
        write_file_durably(file, &text)
    }

    /// Opens the base of a home.
    ///
    /// # Errors
    /// If it cannot be reached, or cannot be a base.
    pub fn open_base(&self, access: &HomeAccess, home: &Path) -> Result<BaseWithBlobs> {
        let (ca, leases) = (self.ca.clone(), self.leases.clone());
        let base_access =
            BaseAccess { credentials: read_credentials(home)?, ca_file: ca, lease_dir: leases };
        open_base_at(access, &self.from, &base_access, home)
    }
}

/// How a home accesses the store of a running instance.
#[derive(Debug, Default)]
pub struct BaseAccess {
    /// The replication key or a token.
    pub credentials: Option<RemoteStoreCredentials>,
    /// A PEM file of certificates that an `https` URL is verified with.
    pub ca_file: Option<PathBuf>,
    /// The folder for the lease on a home, instead of that home.
    pub lease_dir: Option<PathBuf>,
}

/// Stores the credentials of a home.
///
/// # Errors
/// If the file cannot be written.
pub fn write_credentials(home: &Path, access: &BaseAccess) -> Result<()> {
    match &access.credentials {
        Some(RemoteStoreCredentials::Key(key)) => {
            write_secret_file(&home.join(SECRET_FILE), &format!("key {key}"))
        }
        Some(RemoteStoreCredentials::Token(token)) => {
            write_secret_file(&home.join(SECRET_FILE), &format!("token {token}"))
        }
        None => Ok(()),
    }
}

fn read_credentials(home: &Path) -> Result<Option<RemoteStoreCredentials>> {
    let file = home.join(SECRET_FILE);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(HomeError::failed(format!("cannot read `{}`", file.display()), error));
        }
    };
    match text.trim().split_once(' ') {
        Some(("key", key)) => Ok(Some(RemoteStoreCredentials::Key(key.to_owned()))),
        Some(("token", token)) => Ok(Some(RemoteStoreCredentials::Token(token.to_owned()))),
        _ => Err(HomeError::refused(format!("`{}` contains no credentials", file.display()))),
    }
}

fn open_base_at_url(url: &str, access: &BaseAccess, home: &Path) -> Result<BaseWithBlobs> {
    let secret = access.credentials.as_ref().ok_or_else(|| {
        HomeError::refused(format!(
            "`{url}` does not allow reading its store without credentials: give `--key FILE` with its \
             replication key, or `--token-file FILE` with a token of `tympan user token admin`"
        ))
    })?;
    let read_ca = |file: &PathBuf| {
        let pem = fs::read(file).map_err(|error| {
            HomeError::refused(format!("cannot read `{}`: {error}", file.display()))
        })?;
        TlsTrust::from_pem(&pem).map_err(|error| HomeError::refused(error_chain_text(&error)))
    };
    let trust = access.ca_file.as_ref().map(read_ca).transpose()?;
    let store = RemoteStore::new(url, secret, trust, &home.join("spool"));
    let store = Arc::new(store.map_err(|error| HomeError::refused(error_chain_text(&error)))?);
    Ok((store.clone(), store))
}

/// Opens the base of a home by its directory or URL.
///
/// # Errors
/// If it cannot be reached, or cannot be a base.
pub fn open_base_at(
    access: &HomeAccess,
    from: &str,
    base_access: &BaseAccess,
    home: &Path,
) -> Result<BaseWithBlobs> {
    if is_instance_url(from) {
        return open_base_at_url(from, base_access, home);
    }
    let dir = PathBuf::from(from);
    if HomeOrigin::read_clone(&dir)?.is_some() {
        return Err(HomeError::refused(format!(
            "`{from}` is itself a clone and contains only what differs from its base; clone the base"
        )));
    }
    let leases = base_access.lease_dir.as_deref();
    let followed = ReadOnlyLocalStore::open_with_lease_dir(
        &dir.join("store"),
        leases,
        LocalStoreOptions::default(),
    );
    let followed = followed.map_err(|error| {
        HomeError::refused(format!(
            "`{from}` is not a home with readable packs: {}",
            error_chain_text(&error)
        ))
    })?;
    Ok((Arc::new(followed), open_other_home_blobs(access, &dir, home)?))
}

/// Layers the packs of a clone over its base and renews the lease; `None` if the home is no clone. A running instance
/// that does not respond now is retried later.
///
/// # Errors
/// If the directory of the base is missing, or if the base no longer keeps the root that the clone depends on.
pub(crate) fn open_clone_overlay(
    access: &HomeAccess,
    home: &Path,
    own: &Arc<LocalStore>,
) -> Result<Option<OverlayWithBlobs>> {
    let Some(origin) = HomeOrigin::read_clone(home)? else {
        return Ok(None);
    };
    let failed = |error: Error| {
        let action = format!("cannot open `{}`, a clone of `{}`", home.display(), origin.from);
        HomeError::failed(action, error)
    };
    let root: Option<ChunkId> = origin.root.as_deref().and_then(|root| root.parse().ok());
    let root = root.ok_or_else(|| {
        HomeError::refused(format!("`{}` contains no root", home.join(BASE_FILE).display()))
    })?;
    let (mut base, blobs) = origin.open_base(access, home)?;
    if is_instance_url(&origin.from) {
        let cache = ChunkDiskCacheOptions {
            dir: home.join(NEAR_CACHE_DIR),
            max_size: ByteSize::from_bytes(NEAR_CACHE_BYTES),
        };
        base = Arc::new(CachedBaseStore::new(base, &cache));
    }
    let lease = match base.find_lease(&origin.holder) {
        // Until then, own and cached data is served.
        Err(error) if error.is_transient() => None,
        lease => lease.map_err(failed)?,
    };
    // A missing lease counts as expired: it is granted again if the base still has the root.
    let expired =
        RootLease { holder: origin.holder.clone(), root, expires_at: Some(SystemTime::UNIX_EPOCH) };
    let lease = lease.filter(|lease| lease.root == root).unwrap_or(expired);
    let store = LayeredStore::new(Arc::clone(own), base, lease).map_err(failed)?;
    match store.renew_lease(SystemTime::now(), LEASE_DURATION) {
        Err(error) if error.is_transient() => {
            tracing::warn!(reason = error_chain_text(&error), "cannot renew the lease; will retry");
        }
        renewed => renewed.map_err(failed)?,
    }
    start_clone_branch(&store, &origin.from).map_err(failed)?;
    Ok(Some((Arc::new(store), blobs)))
}

/// Takes a lease on the root that a clone depended on when it was saved. `former` held a lease then, which may still
/// keep the root.
///
/// # Errors
/// [`Error::LeaseLost`] if the base no longer keeps the root; or an error of the base.
pub fn lease_saved_root(
    base: &dyn BaseStore,
    (holder, former): (&str, &str),
    root: ChunkId,
    now: SystemTime,
) -> Result<RootLease, Error> {
    let lease =
        RootLease { holder: holder.to_owned(), root, expires_at: Some(now + LEASE_DURATION) };
    let is_kept = || {
        let former = base.find_lease(former)?;
        Ok::<_, Error>(former.is_some_and(|former| former.root == root && former.is_live(now)))
    };
    if is_kept()? {
        base.grant_lease(&lease)?;
        // If the former lease was released before this one was granted, nothing may have kept the root in between.
        if is_kept()? {
            return Ok(lease);
        }
    }
    let expired = RootLease { expires_at: Some(SystemTime::UNIX_EPOCH), ..lease };
    renew_lease(base, &expired, (now, LEASE_DURATION))
}

/// Opens the packs of a home, which is created if it does not exist, without the base that they may be layered over.
///
/// # Errors
/// If another process has them open, or they are damaged.
pub fn open_own_packs(home: &Path) -> Result<Arc<LocalStore>> {
    let action = || format!("cannot open the home `{}`", home.display());
    create_home_dir(home)?;
    let disk = FileDisk::open(home.join("store"));
    let disk = disk.map_err(|error| HomeError::failed(action(), error))?;
    let store = LocalStore::open(Arc::new(disk), LocalStoreOptions::default());
    store.map(Arc::new).map_err(|error| HomeError::failed(action(), error))
}

/// Creates the folder of a home.
///
/// # Errors
/// If the system refuses.
pub fn create_home_dir(home: &Path) -> Result<()> {
    create_private_dir(home)
        .map_err(|error| HomeError::failed(format!("cannot create `{}`", home.display()), error))
}

/// Returns the holder name for the lease of a home.
///
/// # Errors
/// If the system provides no random bytes.
pub fn lease_holder_name(home: &Path) -> Result<String> {
    let mut unique = random_text()?;
    unique.truncate(12);
    let name = home.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
    Ok(format!("{name}-{unique}"))
}

/// Starts `main` of a clone at the leased root, unless that is done.
///
/// # Errors
/// If the ref cannot be written.
pub(crate) fn start_clone_branch(store: &LayeredStore, from: &str) -> Result<(), Error> {
    if store.read_ref(MAIN_BRANCH)?.is_some() {
        return Ok(());
    }
    let mut batch = ChunkBatch::new();
    batch.add_ref_update(RefUpdate {
        name: MAIN_BRANCH.to_owned(),
        expected_root: None,
        new_root: Some(store.lease().root),
        updated_at: SystemTime::now(),
        author: "system".to_owned(),
        message: format!("clone {from}"),
    });
    store.commit(batch)
}

/// Renews the lease of a clone until the instance stops.
pub async fn renew_lease_until_stopped(
    store: Arc<LayeredStore>,
    mut stopped: watch::Receiver<bool>,
) {
    loop {
        let wait =
            if store.current_fault().is_some() { LEASE_RETRY_DELAY } else { LEASE_RENEW_INTERVAL };
        tokio::select! {
            // The sender lives as long as the process serves.
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = tokio::time::sleep(wait) => {}
        }
        let store = Arc::clone(&store);
        let renewed = tokio::task::spawn_blocking(move || {
            store.renew_lease(SystemTime::now(), LEASE_DURATION)
        })
        .await;
        match renewed {
            Ok(Ok(())) => {}
            Ok(Err(error @ Error::LeaseLost { .. })) => {
                tracing::error!(reason = %error, "the clone lost the lease on its base");
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    reason = error_chain_text(&error),
                    "cannot renew the lease; will retry"
                );
            }
            Err(error) => tracing::warn!(reason = %error, "cannot renew the lease"),
        }
    }
}

/// Refuses a home that follows another one.
///
/// # Errors
/// [`HomeError::Refused`] with the remedy.
pub(crate) fn refuse_standby(home: &Path) -> Result<()> {
    match HomeOrigin::read_standby(home)? {
        None => Ok(()),
        Some(origin) => Err(HomeError::refused(format!(
            "`{home}` is a standby of `{}`; to let it take over, run `tympan repo promote --home {home}`",
            origin.from,
            home = home.display()
        ))),
    }
}

/// Makes a standby an independent home.
///
/// # Errors
/// If the file cannot be removed.
pub(crate) fn promote_standby_home(home: &Path) -> Result<()> {
    let file = home.join(STANDBY_FILE);
    let removed = fs::remove_file(&file).and_then(|()| sync_folder(home));
    removed.map_err(|error| HomeError::failed(format!("cannot write `{}`", file.display()), error))
}

fn read_origin_file(file: &Path) -> Result<Option<HomeOrigin>> {
    match fs::exists(file) {
        Ok(false) => Ok(None),
        _ => read_toml_file(file).map(Some),
    }
}
