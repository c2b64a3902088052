//! A read-only store owned by another process, and the lease that keeps one of its states readable.
//!
//! A composite store lies over a [`BaseStore`]; a standby copies one. Two implementations exist: the packs that another
//! process writes ([`ReadOnlyLocalStore`](crate::ReadOnlyLocalStore)), and a running instance over HTTP (in
//! `replicate`).
//!
//! Invariant: a lease that [`acquire_lease`] or [`renew_lease`] returned keeps its root complete until it expires. The
//! lease is granted first, and the root is looked up only then. A collection that ran too early to see the lease marked
//! the root because it was a ref or a retained revision; otherwise the root is neither any more when it is looked up.

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;

/// The maximum lifetime of a lease until its root has been looked up, so that a lease on a missing root does not hinder
/// collections.
const PROVISIONAL_LEASE_LIFETIME: Duration = Duration::from_mins(5);
/// The maximum number of attempts to take a lease when the ref moves between the read of the ref and the grant.
const MAX_LEASE_ATTEMPTS: usize = 16;
/// The number of revisions requested at a time.
const HISTORY_PAGE_SIZE: usize = 1_000;

/// The read side of a store that another process, or another machine, writes.
pub trait BaseStore: ReadChunks + Debug {
    /// Returns the name used in messages: the directory or URL.
    fn display_name(&self) -> String;

    /// Returns for each id whether the chunk is present now.
    ///
    /// # Errors
    /// A failed read.
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>>;

    /// Returns small blobs, in the order of `ids`; `None` for each that is absent.
    ///
    /// # Errors
    /// [`Error::BlobDamaged`] or a failed read.
    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>>;

    /// Returns all current refs, sorted by name.
    ///
    /// # Errors
    /// A failed read.
    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>>;

    /// Returns the retained revisions of a ref as [`ChunkStore::ref_history`](crate::ChunkStore::ref_history) does.
    ///
    /// # Errors
    /// A failed read, or a damaged history.
    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>>;

    /// Returns the lease of a holder, expired or not.
    ///
    /// # Errors
    /// A failed read.
    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>>;

    /// Grants a lease, or replaces the previous lease of the holder; durable on return.
    ///
    /// # Errors
    /// A failed write, or [`Error::ChunkMissing`] if the root is known to be absent.
    fn grant_lease(&self, lease: &RootLease) -> Result<()>;

    /// Ends a lease, if it exists.
    ///
    /// # Errors
    /// A failed write.
    fn release_lease(&self, holder: &str) -> Result<()>;

    /// Returns the reason why the store cannot be reached now, as far as it is known without a request.
    fn outage_reason(&self) -> Option<String> {
        None
    }
}

/// Takes a lease on the state that a ref of the base points to.
///
/// # Errors
/// [`Error::RefNotFound`], or an error of the base.
pub fn acquire_lease(
    base: &dyn BaseStore,
    holder: &str,
    name: &str,
    now: SystemTime,
    life: Duration,
) -> Result<RootLease> {
    let mut attempt = 0;
    loop {
        let refs = base.list_refs()?;
        let entry = refs.iter().find(|(ref_name, _)| ref_name == name);
        let missing = || Error::RefNotFound { name: name.to_owned(), store: base.display_name() };
        let (_, root) = entry.ok_or_else(missing)?;
        let lease = RootLease {
            holder: holder.to_owned(),
            root: *root,
            expires_at: Some(now + PROVISIONAL_LEASE_LIFETIME),
        };
        attempt += 1;
        match confirm_lease(base, lease, now + life) {
            Err(Error::LeaseLost { .. } | Error::ChunkMissing { .. })
                if attempt < MAX_LEASE_ATTEMPTS => {}
            confirmed => return confirmed,
        }
    }
}

/// Extends a lease. An expired lease is taken again if the base still has its root.
///
/// # Errors
/// [`Error::LeaseLost`], or an error of the base.
pub fn renew_lease(
    base: &dyn BaseStore,
    lease: &RootLease,
    (now, life): (SystemTime, Duration),
) -> Result<RootLease> {
    let expires = Some(now + life);
    if lease.is_live(now) {
        let renewed = RootLease { expires_at: expires, ..lease.clone() };
        return base.grant_lease(&renewed).map(|()| renewed);
    }
    let provisional =
        RootLease { expires_at: Some(now + PROVISIONAL_LEASE_LIFETIME), ..lease.clone() };
    let lost = lease_lost_error(base, lease);
    confirm_lease(base, provisional, now + life).map_err(|error| match error {
        Error::ChunkMissing { .. } => lost,
        error => error,
    })
}

/// Grants a provisional lease, checks that its root is present, and then grants the lease for its full lifetime.
fn confirm_lease(base: &dyn BaseStore, lease: RootLease, expires: SystemTime) -> Result<RootLease> {
    base.grant_lease(&lease)?;
    if !is_root_retained(base, &lease.root)? {
        base.release_lease(&lease.holder)?;
        return Err(lease_lost_error(base, &lease));
    }
    let lease = RootLease { expires_at: Some(expires), ..lease };
    base.grant_lease(&lease)?;
    Ok(lease)
}

fn lease_lost_error(base: &dyn BaseStore, lease: &RootLease) -> Error {
    Error::LeaseLost { base: base.display_name(), holder: lease.holder.clone(), root: lease.root }
}

/// Returns true if a ref or a retained revision of a ref points to the root.
fn is_root_retained(base: &dyn BaseStore, root: &ChunkId) -> Result<bool> {
    let refs = base.list_refs()?;
    if refs.iter().any(|(_, at)| at == root) {
        return Ok(true);
    }
    for (name, _) in &refs {
        let mut before = None;
        loop {
            let page = base.ref_history(name, before, HISTORY_PAGE_SIZE)?;
            if page.iter().any(|revision| revision.update.new_root == Some(*root)) {
                return Ok(true);
            }
            before = page.last().map(|revision| revision.sequence);
            if page.len() < HISTORY_PAGE_SIZE {
                break;
            }
        }
    }
    Ok(false)
}
