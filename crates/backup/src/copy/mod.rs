//! Plain copies: one state of a repository as files of a folder, or as a ZIP file, without a vault and a password.
//!
//! In: a repository, and a place. Out: `tympan.json`, which names the root, and `state`, with a file of frames for each
//! part and a file for each large blob, as `docs/formats/vault-repository.md` tells. An import takes both forms.
//!
//! Invariants
//! * `tympan.json` names a root of which everything is there and durable: it is replaced last, so that a copy that is
//!   killed leaves the one before.
//! * In a folder, a part that is there has all below it beside it, unless a run began and did not end: then nothing is
//!   taken for granted, and each file is compared with what it should be.
//! * A ZIP file appears under its name when it is whole.
//!
//! Not here: what people read of a repository; retention, encryption, which vaults have.

mod archive;
mod folder;

use std::collections::{BTreeSet, HashSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tympan_blobs::SMALL_BYTES;
use tympan_store::{BlobId, Chunk, ChunkId};

use self::archive::Archive;
pub(crate) use self::archive::Opened as ZipCopy;
use self::folder::Folder;
pub(crate) use self::folder::UNFINISHED;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::save::{Fault, Faults, Progress};
use crate::source::frames::{IS_BLOB, IS_CHUNK, push_frame};
use crate::source::lease::{Kept, keep_root};
use crate::source::repository::{FORMAT, Facts, README_TEXT, RepositorySource, TOGETHER};
use crate::vault::Who;

/// Where a copy is made.
#[derive(Clone, Debug)]
pub enum CopyTarget {
    /// A new folder, an empty one, or one with an earlier copy, which becomes that of the new state.
    Folder(PathBuf),
    /// A new ZIP file; always a full copy.
    Zip(PathBuf),
}

/// How much of a copy that is there is taken for granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyDepth {
    /// Parts that are there are not looked into.
    #[default]
    Changes,
    /// All is read from the repository, and compared with what is there.
    Everything,
}

/// What came of a copy.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The root that is there now.
    pub root: ChunkId,
    /// Whether there was a copy before.
    pub is_incremental: bool,
    /// Files that were written.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files that the state needs no more and that were removed.
    pub removed: u64,
    /// What the repository lacks. If there is any, the copy before is still the one that counts.
    pub faults: Vec<Fault>,
}

/// What a folder with a copy notes beside its root.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CopyFacts {
    /// Files when everything was looked at last.
    files: u64,
    /// Files that came since.
    added: u64,
}

/// A place that takes files one after another.
trait Place {
    /// Tells whether a part or blob is there, with all below it.
    fn holds(&self, name: &str) -> bool;
    /// Takes a file of a length; returns whether it had to be written. Where the stream fails, what was there stays.
    fn take(&mut self, name: &str, content: (u64, &mut dyn Read)) -> Result<bool>;
}

/// Copies the state that a ref points to.
///
/// # Errors
/// [`Error::Refused`] for a place that holds something else, or a ZIP file that is there; what repository and place say.
pub fn copy_repository(
    source: RepositorySource<'_>,
    target: &CopyTarget,
    (who, depth): (&Who, CopyDepth),
    progress: &Progress,
) -> Result<Copied> {
    let RepositorySource { base, reference, .. } = source;
    keep_root(Kept { base, reference, what: "copy", who }, progress, |lease| match target {
        CopyTarget::Folder(dir) => to_folder(source, dir, (lease.root, depth), progress),
        CopyTarget::Zip(file) => to_zip(source, file, lease.root, progress),
    })
}

fn to_folder(
    source: RepositorySource<'_>,
    dir: &Path,
    (root, depth): (ChunkId, CopyDepth),
    progress: &Progress,
) -> Result<Copied> {
    let (mut folder, before) = Folder::open(dir, depth)?;
    let is_incremental = before.is_some();
    let name = root.to_string();
    if folder.trusts() && before.as_ref().is_some_and(|facts| facts.root == name) {
        return Ok(Copied {
            root,
            is_incremental,
            files: 0,
            bytes: 0,
            removed: 0,
            faults: Vec::new(),
        });
    }
    folder.begin()?;
    let mut copier = Copier::new(source, &mut folder, progress);
    copier.part(&root)?;
    let Copier { seen, files, bytes, faults, .. } = copier;
    let faults = faults.into_sorted();
    if !faults.is_empty() {
        // The mark of a run that did not end stays: the next one looks at everything.
        return Ok(Copied { root, is_incremental, files, bytes, removed: 0, faults });
    }
    let is_full = !folder.trusts();
    let known = before.and_then(|facts| facts.copy).unwrap_or_default();
    let counts = if is_full {
        CopyFacts { files: seen.len() as u64, added: 0 }
    } else {
        CopyFacts { added: known.added + files, ..known }
    };
    folder.finish(&facts_of(source.reference, &root, Some(counts)))?;
    // Only who has looked at everything knows what nobody needs. A part may go after what is below it: cut off here, the next
    // run takes nothing for granted.
    let removed = if is_full { folder.sweep(&seen)? } else { 0 };
    folder.end()?;
    Ok(Copied { root, is_incremental, files, bytes, removed, faults })
}

fn to_zip(
    source: RepositorySource<'_>,
    file: &Path,
    root: ChunkId,
    progress: &Progress,
) -> Result<Copied> {
    let mut archive = Archive::create(file)?;
    let mut copier = Copier::new(source, &mut archive, progress);
    copier.part(&root)?;
    let Copier { files, bytes, faults, .. } = copier;
    let faults = faults.into_sorted();
    if faults.is_empty() {
        archive.finish(&facts_of(source.reference, &root, None), README_TEXT)?;
    }
    Ok(Copied { root, is_incremental: false, files, bytes, removed: 0, faults })
}

fn facts_of(reference: &str, root: &ChunkId, copy: Option<CopyFacts>) -> Facts {
    Facts {
        format: FORMAT,
        name: reference.to_owned(),
        root: root.to_string(),
        branches: Vec::new(),
        revisions: Vec::new(),
        copy,
    }
}

struct Copier<'a, P> {
    source: RepositorySource<'a>,
    place: &'a mut P,
    progress: &'a Progress,
    /// The names of all that the state needs, as far as it was looked at.
    seen: HashSet<String>,
    files: u64,
    bytes: u64,
    faults: Faults,
}

impl<'a, P: Place> Copier<'a, P> {
    fn new(source: RepositorySource<'a>, place: &'a mut P, progress: &'a Progress) -> Self {
        let faults = Faults::default();
        Self { source, place, progress, seen: HashSet::new(), files: 0, bytes: 0, faults }
    }

    fn part(&mut self, root: &ChunkId) -> Result<()> {
        let name = root.to_string();
        if self.place.holds(&name) {
            return Ok(());
        }
        let chunk = self.source.base.read(root)?;
        self.seen.insert(name);
        self.copy_part(root, &chunk)
    }

    /// Copies what is below a chunk, and then the chunk with those below it that refer to no others.
    fn copy_part(&mut self, id: &ChunkId, chunk: &Chunk) -> Result<()> {
        self.progress.go_on()?;
        let below: BTreeSet<ChunkId> = chunk.chunk_refs().collect();
        let unknown: Vec<ChunkId> =
            below.into_iter().filter(|id| !self.place.holds(&id.to_string())).collect();
        let mut frames = Vec::new();
        push_frame(&mut frames, IS_CHUNK, chunk.bytes());
        let mut blobs: BTreeSet<BlobId> = chunk.blob_refs().collect();
        for some in unknown.chunks(TOGETHER) {
            for (id, chunk) in some.iter().zip(self.source.base.read_many(some)?) {
                if chunk.chunk_refs().len() == 0 {
                    push_frame(&mut frames, IS_CHUNK, chunk.bytes());
                    blobs.extend(chunk.blob_refs());
                } else if self.seen.insert(id.to_string()) {
                    self.copy_part(id, &chunk)?;
                }
            }
        }
        let (small, large): (Vec<BlobId>, Vec<BlobId>) =
            blobs.into_iter().partition(|id| id.length() < SMALL_BYTES as u64);
        for some in small.chunks(TOGETHER) {
            for (id, bytes) in some.iter().zip(self.source.base.read_blobs(some)?) {
                match bytes {
                    Some(bytes) => push_frame(&mut frames, IS_BLOB, &bytes),
                    None => self.missing(id),
                }
            }
        }
        for id in &large {
            self.blob(id)?;
        }
        self.take(&id.to_string(), frames.len() as u64, &mut Cursor::new(frames))
    }

    fn blob(&mut self, id: &BlobId) -> Result<()> {
        let name = Id::from_bytes(*id.digest()).to_string();
        if !self.seen.insert(name.clone()) || self.place.holds(&name) {
            return Ok(());
        }
        let Some(content) = self.source.blobs.open(id)? else {
            self.missing(id);
            return Ok(());
        };
        let mut reader = Hashed::new(content.into_reader(), *id.digest());
        match self.take(&name, id.length(), &mut reader) {
            Err(_) if reader.is_wrong => {
                self.faults.add(format!("blob {id}"), &"its bytes have another hash");
                Ok(())
            }
            taken => taken,
        }
    }

    fn missing(&self, id: &BlobId) {
        self.faults.add(format!("blob {id}"), &"the repository refers to it and does not hold it");
    }

    fn take(&mut self, name: &str, length: u64, content: &mut dyn Read) -> Result<()> {
        if self.place.take(name, (length, content))? {
            self.files += 1;
            self.bytes += length;
            self.progress.read_items.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.progress.add(1, length);
        Ok(())
    }
}

/// A stream that fails at its end if its bytes do not have the hash that they should have. So nobody takes them for whole,
/// and what is there of an earlier copy stays.
struct Hashed<R> {
    source: R,
    hash: sha2::Sha256,
    expected: [u8; 32],
    is_wrong: bool,
}

impl<R: Read> Hashed<R> {
    fn new(source: R, expected: [u8; 32]) -> Self {
        Self { source, hash: sha2::Digest::new(), expected, is_wrong: false }
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.source.read(buffer)?;
        sha2::Digest::update(&mut self.hash, buffer.get(..length).unwrap_or_default());
        if length == 0 && !buffer.is_empty() {
            let found: [u8; 32] = sha2::Digest::finalize_reset(&mut self.hash).into();
            self.is_wrong = self.is_wrong || found != self.expected;
            if self.is_wrong {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
        }
        Ok(length)
    }
}

/// Makes the error of a place that cannot be written.
fn cannot_write(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Target { path, source }
}
