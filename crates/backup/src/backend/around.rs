//! Backends that stand around another one, and change some of what it does.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::{Backend, FileKind, Listing, Staged};
use crate::id::Id;

/// A backend around another one: what it does not define itself is asked of that one.
///
/// Each method is that of [`Backend`] with the same name.
pub trait Around: Send + Sync + fmt::Debug {
    /// Returns the backend inside.
    fn inner(&self) -> &dyn Backend;

    /// As [`Backend::connections`].
    fn connections(&self) -> usize {
        self.inner().connections()
    }

    /// As [`Backend::is_remote`].
    fn is_remote(&self) -> bool {
        self.inner().is_remote()
    }

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

    /// As [`Backend::stage`]. Whoever changes [`Around::write`] sees the file when it is revealed, unless these
    /// four are passed on as well.
    ///
    /// # Errors
    /// As [`Backend::stage`].
    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        Ok(Staged::held(kind, *id, bytes))
    }

    /// As [`Backend::reveal`].
    ///
    /// # Errors
    /// As [`Backend::reveal`].
    fn reveal(&self, staged: &Staged) -> io::Result<()> {
        Around::write(self, staged.kind, &staged.id, &staged.bytes)
    }

    /// As [`Backend::reveal_then_list`].
    ///
    /// # Errors
    /// As [`Backend::reveal_then_list`].
    fn reveal_then_list(
        &self,
        staged: &Staged,
        kinds: &[FileKind],
    ) -> io::Result<Vec<io::Result<Listing>>> {
        Around::reveal(self, staged)?;
        Ok(kinds.iter().map(|kind| Around::list(self, *kind)).collect())
    }

    /// As [`Backend::discard`].
    fn discard(&self, staged: &Staged) {
        let _ = staged;
    }

    /// As [`Backend::expect_writes`].
    fn expect_writes(&self, files: usize) {
        self.inner().expect_writes(files);
    }

    /// As [`Backend::expect_no_writes`].
    fn expect_no_writes(&self) {
        self.inner().expect_no_writes();
    }

    /// As [`Backend::remove`].
    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        self.inner().remove(kind, id)
    }

    /// As [`Backend::remove_leftovers`].
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        self.inner().remove_leftovers(now)
    }

    /// As [`Backend::remove_folders`].
    fn remove_folders(&self) -> io::Result<()> {
        self.inner().remove_folders()
    }
}

impl<T: Around> Backend for T {
    fn place(&self) -> String {
        self.inner().place()
    }

    fn connections(&self) -> usize {
        Around::connections(self)
    }

    fn is_remote(&self) -> bool {
        Around::is_remote(self)
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

    fn stage(&self, kind: FileKind, id: &Id, bytes: Vec<u8>) -> io::Result<Staged> {
        Around::stage(self, kind, id, bytes)
    }

    fn reveal(&self, staged: &Staged) -> io::Result<()> {
        Around::reveal(self, staged)
    }

    fn reveal_then_list(
        &self,
        staged: &Staged,
        kinds: &[FileKind],
    ) -> io::Result<Vec<io::Result<Listing>>> {
        Around::reveal_then_list(self, staged, kinds)
    }

    fn discard(&self, staged: &Staged) {
        Around::discard(self, staged);
    }

    fn expect_writes(&self, files: usize) {
        Around::expect_writes(self, files);
    }

    fn expect_no_writes(&self) {
        Around::expect_no_writes(self);
    }

    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()> {
        Around::remove(self, kind, id)
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        Around::remove_leftovers(self, now)
    }

    fn remove_folders(&self) -> io::Result<()> {
        Around::remove_folders(self)
    }
}
