//! Plain copies: one state of a repository as files in a folder, or as a ZIP file, without a vault and a password.
//!
//! In: a repository, and a target. Out: `tympan.json`, which names the root, and `state`, with a file of frames for
//! each part and a file for each large blob, as specified in `docs/formats/vault-repository.md`. An import accepts both
//! forms.
//!
//! Invariants
//! * `tympan.json` names a root that is complete and durable: it is replaced last, so that a copy that is killed leaves
//!   the previous one.
//! * In a folder, everything below an existing part exists, too, unless a run began and did not finish: then nothing is
//!   trusted, and each file is compared with its expected content.
//! * A ZIP file appears under its final name when it is complete.
//!
//! Not here: the human-readable view of a repository; retention and encryption, which vaults have.

mod archive;
mod folder;
mod sink;

use std::collections::{BTreeSet, HashSet};
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use tympan_blobs::SMALL_BLOB_BYTES;
use tympan_store::{BlobId, Chunk, ChunkId};

pub(crate) use self::archive::ZipCopyReader;
use self::archive::ZipCopyWriter;
use self::folder::CopyFolder;
pub(crate) use self::folder::UNFINISHED;
pub use self::sink::CopyDepth;
use self::sink::CopySink;
use crate::backup_progress::BackupProgress;
use crate::error::Result;
use crate::fault::{BackupFault, FaultCollector};
use crate::object_id::VaultObjectId;
use crate::source::frame::{BLOB_FRAME_KIND, CHUNK_FRAME_KIND, push_frame};
use crate::source::repository::{BackupRepositorySource, CHUNK_READ_BATCH_SIZE};
use crate::source::repository_layout::{
    CopyMetadata, README_TEXT, REPOSITORY_FORMAT_VERSION, SavedRepositoryMetadata,
};
use crate::source::root_lease::{RootLeaseRequest, run_with_root_lease};
use crate::vault::VaultUser;

/// The target of a copy.
#[derive(Clone, Debug)]
pub enum CopyTarget {
    /// A new or empty folder, or one with an earlier copy, which is updated to the new state.
    Folder(PathBuf),
    /// A new ZIP file; always a full copy.
    Zip(PathBuf),
}

/// The result of a copy.
#[derive(Clone, Debug)]
pub struct CopyReport {
    /// The root that the copy now contains.
    pub root: ChunkId,
    /// True if there was an earlier copy.
    pub is_incremental: bool,
    /// The number of files written.
    pub written_files: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// The number of files removed because the state no longer needs them.
    pub removed_files: u64,
    /// What the repository lacks. If there is any fault, the previous copy remains the valid one.
    pub faults: Vec<BackupFault>,
}

/// Copies the state that a ref points to.
///
/// # Errors
/// [`Error::InvalidRequest`](crate::Error::InvalidRequest) for a target that contains something else, or a ZIP file
/// that exists; errors of the repository and the target.
pub fn copy_repository(
    source: BackupRepositorySource<'_>,
    target: &CopyTarget,
    (user, depth): (&VaultUser, CopyDepth),
    progress: &BackupProgress,
) -> Result<CopyReport> {
    let BackupRepositorySource { base, reference, .. } = source;
    run_with_root_lease(
        RootLeaseRequest { base, reference, operation: "copy", user },
        progress,
        |lease| match target {
            CopyTarget::Folder(dir) => copy_to_folder(source, dir, lease.root, depth, progress),
            CopyTarget::Zip(file) => copy_to_zip(source, file, lease.root, progress),
        },
    )
}

fn copy_to_folder(
    source: BackupRepositorySource<'_>,
    dir: &Path,
    root: ChunkId,
    depth: CopyDepth,
    progress: &BackupProgress,
) -> Result<CopyReport> {
    let (mut folder, before) = CopyFolder::open(dir, depth)?;
    let is_incremental = before.is_some();
    let name = root.to_string();
    if folder.trusts_existing() && before.as_ref().is_some_and(|facts| facts.root == name) {
        return Ok(CopyReport {
            root,
            is_incremental,
            written_files: 0,
            written_bytes: 0,
            removed_files: 0,
            faults: Vec::new(),
        });
    }
    folder.mark_unfinished()?;
    let mut copier = RepositoryCopier::new(source, &mut folder, progress);
    copier.copy_part_tree(&root)?;
    let RepositoryCopier { needed_names, written_files, written_bytes, faults, .. } = copier;
    let faults = faults.into_sorted();
    if !faults.is_empty() {
        // The unfinished marker stays: the next run checks everything.
        return Ok(CopyReport {
            root,
            is_incremental,
            written_files,
            written_bytes,
            removed_files: 0,
            faults,
        });
    }
    let is_full = !folder.trusts_existing();
    let previous_copy = before.and_then(|facts| facts.copy).unwrap_or_default();
    let counts = if is_full {
        CopyMetadata { files: needed_names.len() as u64, added: 0 }
    } else {
        CopyMetadata { added: previous_copy.added + written_files, ..previous_copy }
    };
    folder.finish(&copy_metadata(source.reference, &root, Some(counts)))?;
    // Only a full check knows which files are not needed. A part may be removed after what is below it: if the run is
    // interrupted here, the next one trusts nothing.
    let removed = if is_full { folder.remove_unneeded(&needed_names)? } else { 0 };
    folder.clear_unfinished_mark()?;
    Ok(CopyReport {
        root,
        is_incremental,
        written_files,
        written_bytes,
        removed_files: removed,
        faults,
    })
}

fn copy_to_zip(
    source: BackupRepositorySource<'_>,
    file: &Path,
    root: ChunkId,
    progress: &BackupProgress,
) -> Result<CopyReport> {
    let mut archive = ZipCopyWriter::create(file)?;
    let mut copier = RepositoryCopier::new(source, &mut archive, progress);
    copier.copy_part_tree(&root)?;
    let RepositoryCopier { written_files, written_bytes, faults, .. } = copier;
    let faults = faults.into_sorted();
    if faults.is_empty() {
        archive.finish_archive(&copy_metadata(source.reference, &root, None), README_TEXT)?;
    }
    Ok(CopyReport {
        root,
        is_incremental: false,
        written_files,
        written_bytes,
        removed_files: 0,
        faults,
    })
}

fn copy_metadata(
    reference: &str,
    root: &ChunkId,
    copy: Option<CopyMetadata>,
) -> SavedRepositoryMetadata {
    SavedRepositoryMetadata {
        format: REPOSITORY_FORMAT_VERSION,
        name: reference.to_owned(),
        root: root.to_string(),
        branches: Vec::new(),
        revisions: Vec::new(),
        copy,
    }
}

struct RepositoryCopier<'a, P> {
    source: BackupRepositorySource<'a>,
    sink: &'a mut P,
    progress: &'a BackupProgress,
    /// The names of everything that the state needs, as far as it was examined.
    needed_names: HashSet<String>,
    written_files: u64,
    written_bytes: u64,
    faults: FaultCollector,
}

impl<'a, P: CopySink> RepositoryCopier<'a, P> {
    fn new(
        source: BackupRepositorySource<'a>,
        target: &'a mut P,
        progress: &'a BackupProgress,
    ) -> Self {
        let faults = FaultCollector::default();
        Self {
            source,
            sink: target,
            progress,
            needed_names: HashSet::new(),
            written_files: 0,
            written_bytes: 0,
            faults,
        }
    }

    fn copy_part_tree(&mut self, root: &ChunkId) -> Result<()> {
        let name = root.to_string();
        if self.sink.contains(&name) {
            return Ok(());
        }
        let chunk = self.source.base.read_chunk(root)?;
        self.needed_names.insert(name);
        self.copy_part(root, &chunk)
    }

    /// Copies what is below a chunk, and then the chunk together with the leaf chunks below it.
    fn copy_part(&mut self, id: &ChunkId, chunk: &Chunk) -> Result<()> {
        self.progress.check_running()?;
        let below: BTreeSet<ChunkId> = chunk.chunk_refs().collect();
        let unknown: Vec<ChunkId> =
            below.into_iter().filter(|id| !self.sink.contains(&id.to_string())).collect();
        let mut frames = Vec::new();
        push_frame(&mut frames, CHUNK_FRAME_KIND, chunk.bytes());
        let mut blobs: BTreeSet<BlobId> = chunk.blob_refs().collect();
        for batch in unknown.chunks(CHUNK_READ_BATCH_SIZE) {
            for (id, chunk) in batch.iter().zip(self.source.base.read_chunks(batch)?) {
                if chunk.chunk_refs().len() == 0 {
                    push_frame(&mut frames, CHUNK_FRAME_KIND, chunk.bytes());
                    blobs.extend(chunk.blob_refs());
                } else if self.needed_names.insert(id.to_string()) {
                    self.copy_part(id, &chunk)?;
                }
            }
        }
        let (small, large): (Vec<BlobId>, Vec<BlobId>) =
            blobs.into_iter().partition(|id| id.length() < SMALL_BLOB_BYTES as u64);
        for batch in small.chunks(CHUNK_READ_BATCH_SIZE) {
            for (id, bytes) in batch.iter().zip(self.source.base.read_blobs(batch)?) {
                match bytes {
                    Some(bytes) => push_frame(&mut frames, BLOB_FRAME_KIND, &bytes),
                    None => self.record_missing_blob(id),
                }
            }
        }
        for id in &large {
            self.copy_blob(id)?;
        }
        self.write_file(&id.to_string(), frames.len() as u64, &mut Cursor::new(frames))
    }

    fn copy_blob(&mut self, id: &BlobId) -> Result<()> {
        let name = VaultObjectId::from_bytes(*id.digest()).to_string();
        if !self.needed_names.insert(name.clone()) || self.sink.contains(&name) {
            return Ok(());
        }
        let Some(content) = self.source.blobs.open(id)? else {
            self.record_missing_blob(id);
            return Ok(());
        };
        let mut reader = HashCheckingReader::new(content.into_reader(), *id.digest());
        match self.write_file(&name, id.length(), &mut reader) {
            Err(_) if reader.has_mismatch => {
                self.faults.add(format!("blob {id}"), &"its content does not match its hash");
                Ok(())
            }
            result => result,
        }
    }

    fn record_missing_blob(&self, id: &BlobId) {
        self.faults.add(format!("blob {id}"), &"the repository refers to it, but it is missing");
    }

    fn write_file(&mut self, name: &str, length: u64, content: &mut dyn Read) -> Result<()> {
        if self.sink.write_file(name, (length, content))? {
            self.written_files += 1;
            self.written_bytes += length;
            self.progress.read_items.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.progress.add_done(1, length);
        Ok(())
    }
}

/// A stream that fails at its end if its bytes do not have the expected hash, so that they are not accepted as complete
/// and an existing file of an earlier copy stays.
struct HashCheckingReader<R> {
    source: R,
    hasher: sha2::Sha256,
    expected: [u8; 32],
    has_mismatch: bool,
}

impl<R: Read> HashCheckingReader<R> {
    fn new(source: R, expected: [u8; 32]) -> Self {
        Self { source, hasher: sha2::Digest::new(), expected, has_mismatch: false }
    }
}

impl<R: Read> Read for HashCheckingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.source.read(buffer)?;
        sha2::Digest::update(&mut self.hasher, buffer.get(..length).unwrap_or_default());
        if length == 0 && !buffer.is_empty() {
            let hash: [u8; 32] = sha2::Digest::finalize_reset(&mut self.hasher).into();
            self.has_mismatch = self.has_mismatch || hash != self.expected;
            if self.has_mismatch {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
        }
        Ok(length)
    }
}
