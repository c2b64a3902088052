//! A stream as a source: one file of a snapshot, such as what another program writes out.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::below::LeftOut;
use super::facts::mode_of;
use crate::cut::PieceReader;
use crate::error::{Error, Result};
use crate::save::{SaveOptions, Saved, Session};
use crate::vault::index::BlobKind;
use crate::vault::node::{Node, NodeKind, Time, Tree};
use crate::vault::write::Writer;

/// Saves what a stream gives, to its end, as the file `/NAME` of one snapshot.
///
/// # Errors
/// [`Error::Refused`] for a name that is no path below `/`, or a stream that gives nothing, as a program that failed before
/// it wrote does; [`Error::Source`] if the stream fails; or the vault fails.
pub fn save_stream(
    session: &Session<'_>,
    stream: impl Read,
    name: &str,
    options: &SaveOptions,
) -> Result<Saved> {
    let path = path_of(name)?;
    let failed = |source| Error::Source { path: PathBuf::from("-"), source };
    let paths = vec![path.display().to_string()];
    let parent = session.earlier(options, &paths)?.alike.pop();
    let writer = Writer::new(session.vault, session.index, session.lock);
    let mut node = describe(NodeKind::File, 0o644, options);
    let progress = session.progress;
    let mut pieces = PieceReader::new(stream, Some(session.vault.cutter()), u64::MAX);
    let mut content = Vec::new();
    while let Some(piece) = pieces.next(|bytes| progress.has_read(bytes)).map_err(failed)? {
        progress.go_on()?;
        content.push(writer.add(BlobKind::Data, piece)?.0);
        node.size += piece.len() as u64;
        progress.add(0, piece.len() as u64);
    }
    if node.size == 0 {
        return Err(Error::Refused(
            "the stream gave no bytes: whatever should have written it may have failed".to_owned(),
        ));
    }
    node.content = Some(content);
    progress.add(1, 0);
    // From the file up to the root.
    for part in path.iter().rev().filter(|part| *part != "/") {
        node.name = part.as_encoded_bytes().to_vec();
        let tree = writer.add(BlobKind::Tree, &Tree::of(vec![node]).to_bytes())?.0;
        node = describe(NodeKind::Dir, 0o755, options);
        node.subtree = Some(tree);
    }
    let tree = node.subtree.unwrap_or_default();
    let (snapshot, written, _) = session.finish(writer, tree, (options, paths, parent))?;
    Ok(Saved { snapshot, written, faults: Vec::new(), left_out: LeftOut::default() })
}

/// Makes the absolute path of a name.
fn path_of(name: &str) -> Result<PathBuf> {
    let mut path = PathBuf::from("/");
    for part in Path::new(name).components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(part) => path.push(part),
            _ => return Err(Error::Refused(format!("`{name}` is no name for a file below `/`"))),
        }
    }
    match path.file_name() {
        Some(_) => Ok(path),
        None => Err(Error::Refused(format!("`{name}` is no name for a file"))),
    }
}

fn describe(kind: NodeKind, mode: u32, options: &SaveOptions) -> Node {
    let mut node = Node::new("", kind, mode_of(mode, kind));
    let now = options.now;
    let nanos = u32::try_from(now.subsec_nanosecond()).unwrap_or(0);
    node.mtime = Time { seconds: now.as_second(), nanos };
    (node.atime, node.ctime) = (node.mtime, node.mtime);
    (node.uid, node.gid) = (options.who.uid, options.who.gid);
    node.user.clone_from(&options.who.user);
    node.links = 1;
    node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_below_the_root() {
        for (name, path) in [("stdin", "/stdin"), ("/db/dump.sql", "/db/dump.sql"), ("./a", "/a")] {
            assert_eq!(path_of(name).unwrap(), Path::new(path));
        }
        for name in ["", "/", "..", "a/../b", "."] {
            assert!(path_of(name).is_err(), "{name}");
        }
    }
}
