//! A place that is read and never written: what a run would write is counted by the run, and dropped here.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Around, Backend, FileKind};
use crate::id::Id;

/// Reads from another place.
#[derive(Debug)]
pub(crate) struct DryBackend(pub(crate) Arc<dyn Backend>);

impl Around for DryBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.0
    }

    fn create(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write(&self, _: FileKind, _: &Id, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn expect_writes(&self, _: usize) {}

    fn remove(&self, _: FileKind, _: &Id) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove_leftovers(&self, _: SystemTime) -> io::Result<()> {
        Ok(())
    }

    fn remove_folders(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
