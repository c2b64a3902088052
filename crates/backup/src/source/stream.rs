//! A stream as a source: saves one file, such as the output of another program.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::base_store::OmittedCounts;
use super::file_metadata::to_vault_mode;
use crate::error::{Error, Result};
use crate::piece_splitter::PieceReader;
use crate::save::{SaveOptions, SaveSession, SaveSummary};
use crate::vault::node::{NodeTime, SnapshotNode, SnapshotNodeKind, SnapshotTree};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::PackWriter;

/// Saves a stream, read to its end, as the file `/NAME` of one snapshot.
///
/// # Errors
/// [`Error::InvalidRequest`] for a name that is not a path below `/`, or an empty stream, such as that of a program
/// that failed before it wrote anything; [`Error::Source`] if the stream fails; or an error of the vault.
pub fn save_stream(
    session: &SaveSession<'_>,
    stream: impl Read,
    name: &str,
    options: &SaveOptions,
) -> Result<SaveSummary> {
    let path = stream_file_path(name)?;
    let failed = |source| Error::Source { path: PathBuf::from("-"), source };
    let paths = vec![path.display().to_string()];
    let parent = session.list_earlier_snapshots(options, &paths)?.comparable.pop();
    let writer = PackWriter::new(session.vault, session.index, session.lock);
    let mut node = new_stream_node(SnapshotNodeKind::File, 0o644, options);
    let progress = session.progress;
    let mut pieces = PieceReader::new(stream, Some(session.vault.splitter()), u64::MAX);
    let mut content = Vec::new();
    while let Some(piece) = pieces.next(|bytes| progress.record_read(bytes)).map_err(failed)? {
        progress.check_running()?;
        content.push(writer.add_blob(PackBlobKind::Data, piece)?.0);
        node.size += piece.len() as u64;
        progress.add_done(0, piece.len() as u64);
    }
    if node.size == 0 {
        return Err(Error::InvalidRequest(
            "the stream is empty: the program that writes it may have failed".to_owned(),
        ));
    }
    node.content = Some(content);
    progress.add_done(1, 0);
    // From the file up to the root.
    for part in path.iter().rev().filter(|part| *part != "/") {
        node.name = part.as_encoded_bytes().to_vec();
        let tree = writer
            .add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(vec![node]).to_bytes())?
            .0;
        node = new_stream_node(SnapshotNodeKind::Dir, 0o755, options);
        node.subtree = Some(tree);
    }
    let tree = node.subtree.unwrap_or_default();
    let (snapshot, written, _) = session.finish_snapshot(writer, tree, options, paths, parent)?;
    Ok(SaveSummary { snapshot, written, faults: Vec::new(), omitted: OmittedCounts::default() })
}

/// Returns the absolute path for a name.
fn stream_file_path(name: &str) -> Result<PathBuf> {
    let mut path = PathBuf::from("/");
    for part in Path::new(name).components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(part) => path.push(part),
            _ => {
                return Err(Error::InvalidRequest(format!(
                    "`{name}` is not a valid file name below `/`"
                )));
            }
        }
    }
    match path.file_name() {
        Some(_) => Ok(path),
        None => Err(Error::InvalidRequest(format!("`{name}` is not a valid file name"))),
    }
}

fn new_stream_node(kind: SnapshotNodeKind, mode: u32, options: &SaveOptions) -> SnapshotNode {
    let mut node = SnapshotNode::new("", kind, to_vault_mode(mode, kind));
    let now = options.started_at;
    let nanos = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
    node.mtime = NodeTime { seconds: now.as_second(), nanos };
    (node.atime, node.ctime) = (node.mtime, node.mtime);
    (node.uid, node.gid) = (options.user.uid, options.user.gid);
    node.user.clone_from(&options.user.user);
    node.links = 1;
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_below_the_root() {
        for (name, path) in [("stdin", "/stdin"), ("/db/dump.sql", "/db/dump.sql"), ("./a", "/a")] {
            assert_eq!(stream_file_path(name).unwrap(), Path::new(path));
        }
        for name in ["", "/", "..", "a/../b", "."] {
            assert!(stream_file_path(name).is_err(), "{name}");
        }
    }
}
