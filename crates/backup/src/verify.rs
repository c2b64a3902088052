//! Comparing a snapshot of folders with what is there now, byte by byte.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::Id;
use crate::error::{Error, Result};
use crate::look::walk;
use crate::save::{Fault, Progress};
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index};
use crate::vault::node::{Node, NodeKind};
use crate::vault::snapshot::Snapshot;

/// Tells how the files that a snapshot holds differ from those that are at their paths now. Files that came later are
/// not told.
///
/// # Errors
/// If the vault cannot be read, or the run was asked to stop.
pub fn verify(
    (vault, index): (&Vault, &Index),
    snapshot: &Snapshot,
    progress: &Progress,
) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    walk((vault, index), &snapshot.tree, Path::new("/"), &mut |path, node| {
        progress.go_on()?;
        progress.add(1, node.size);
        if let Some(message) = difference(index, path, node)? {
            faults.push(Fault { path: path.to_owned(), message });
        }
        Ok(())
    })?;
    Ok(faults)
}

fn difference(index: &Index, path: &Path, node: &Node) -> Result<Option<String>> {
    let Ok(facts) = fs::symlink_metadata(path) else {
        return Ok(Some("it is not there any more".to_owned()));
    };
    let told = |text: &str| Ok(Some(text.to_owned()));
    match node.kind {
        NodeKind::File if !facts.is_file() => told("it is no file any more"),
        NodeKind::File if facts.len() != node.size => told("its length differs"),
        NodeKind::File => same_content(index, path, node),
        NodeKind::Symlink => {
            use std::os::unix::ffi::OsStrExt;
            let target = fs::read_link(path);
            if target.is_ok_and(|target| target.as_os_str().as_bytes() == node.target()) {
                return Ok(None);
            }
            told("it leads elsewhere")
        }
        _ => Ok(None),
    }
}

fn same_content(index: &Index, path: &Path, node: &Node) -> Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Ok(Some(error.to_string())),
    };
    for id in node.content.iter().flatten() {
        let length = index.plain_length(BlobKind::Data, id).ok_or_else(|| Error::Blob {
            what: "piece",
            id: *id,
            fault: "no index lists it".to_owned(),
        })?;
        let mut bytes = Vec::new();
        if let Err(error) = (&mut file).take(length).read_to_end(&mut bytes) {
            return Ok(Some(error.to_string()));
        }
        if Id::of(&bytes) != *id {
            return Ok(Some("its content differs".to_owned()));
        }
    }
    Ok(None)
}
