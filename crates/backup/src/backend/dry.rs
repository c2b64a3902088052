//! A place that is read and never written: what a run would write is counted by the run, and dropped here.

use std::io;
use std::sync::Arc;

use super::{Backend, FileKind};
use crate::id::Id;

/// Reads from another place.
#[derive(Debug)]
pub(crate) struct DryBackend(pub(crate) Arc<dyn Backend>);

impl Backend for DryBackend {
    fn place(&self) -> String {
        self.0.place()
    }

    fn connections(&self) -> usize {
        self.0.connections()
    }

    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }

    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        self.0.contains(kind, id)
    }

    fn create(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>> {
        self.0.list(kind)
    }

    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>> {
        self.0.read(kind, id)
    }

    fn read_range(
        &self,
        kind: FileKind,
        id: &Id,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        self.0.read_range(kind, id, start, length)
    }

    fn write(&self, _: FileKind, _: &Id, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: FileKind, _: &Id) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
