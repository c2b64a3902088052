//! Backends that stand around another one, and change some of what it does.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::{Backend, FileKind};
use crate::id::Id;

/// A backend around another one: what it does not define itself is asked of that one.
///
/// Each method is that of [`Backend`] with the same name.
pub trait Around: Send + Sync + fmt::Debug {
    /// Returns the backend inside.
    fn inner(&self) -> &dyn Backend;

    /// As [`Backend::create`].
    fn create(&self) -> io::Result<()> {
        self.inner().create()
    }

    /// As [`Backend::list`].
    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>> {
        self.inner().list(kind)
    }

    /// As [`Backend::contains`].
    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        self.inner().contains(kind, id)
    }

    /// As [`Backend::read`].
    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        self.inner().read(kind, id)
    }

    /// As [`Backend::read_range`].
    fn read_range(
        &self,
        kind: FileKind,
        id: &Id,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        self.inner().read_range(kind, id, start, length)
    }

    /// As [`Backend::write`].
    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        self.inner().write(kind, id, bytes)
    }

    /// As [`Backend::remove`].
    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        self.inner().remove(kind, id)
    }

    /// As [`Backend::remove_leftovers`].
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        self.inner().remove_leftovers(now)
    }
}

impl<T: Around> Backend for T {
    fn place(&self) -> String {
        self.inner().place()
    }

    fn connections(&self) -> usize {
        self.inner().connections()
    }

    fn is_remote(&self) -> bool {
        self.inner().is_remote()
    }

    fn create(&self) -> io::Result<()> {
        Around::create(self)
    }

    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>> {
        Around::list(self, kind)
    }

    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        Around::contains(self, kind, id)
    }

    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        Around::read(self, kind, id)
    }

    fn read_range(
        &self,
        kind: FileKind,
        id: &Id,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        Around::read_range(self, kind, id, start, length)
    }

    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()> {
        Around::write(self, kind, id, bytes)
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        Around::remove(self, kind, id)
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        Around::remove_leftovers(self, now)
    }
}
