//! A vault to which only can be added: what is there stays, whatever the process that uses it is made to do.
//!
//! Locks can be removed: each process writes and removes its own.
//!
//! Not here: a guard against somebody who has the keys to the place itself; that is up to the rights which the place
//! gives.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::{Around, Backend, FileKind, Listing, Staged};
use crate::id::Id;

/// A backend that removes and replaces nothing but locks.
#[derive(Debug)]
pub struct AppendOnly {
    inner: Arc<dyn Backend>,
}

impl AppendOnly {
    /// Guards a backend.
    #[must_use]
    pub const fn new(inner: Arc<dyn Backend>) -> Self {
        Self { inner }
    }
}

fn refused(text: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("the vault is opened append-only: {text}"))
}

impl Around for AppendOnly {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        // The one file that is not named by its bytes.
        if kind == FileKind::Config && self.inner.contains(kind, id)? {
            return Err(refused("its `config` stays as it is"));
        }
        self.inner.write(kind, id, bytes)
    }

    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        self.inner.stage(kind, id, bytes)
    }

    fn reveal(&self, staged: &Staged) -> io::Result<()> {
        match staged.kind {
            FileKind::Config => Around::write(self, staged.kind, &staged.id, &staged.bytes),
            _ => self.inner.reveal(staged),
        }
    }

    fn reveal_then_list(
        &self,
        staged: &Staged,
        kinds: &[FileKind],
    ) -> io::Result<Vec<io::Result<Listing>>> {
        if staged.kind == FileKind::Config {
            return Err(refused("its `config` stays as it is"));
        }
        self.inner.reveal_then_list(staged, kinds)
    }

    fn discard(&self, staged: &Staged) {
        self.inner.discard(staged);
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        match kind {
            FileKind::Lock => self.inner.remove(kind, id),
            _ => Err(refused("nothing is removed from it")),
        }
    }

    fn remove_folders(&self) -> io::Result<()> {
        Err(refused("nothing is removed from it"))
    }
}
