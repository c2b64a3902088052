//! Importing saved repositories.
//!
//! In: a snapshot of a repository, a folder that such a snapshot was restored into, or a plain copy; an empty store.
//! Out: the saved root, under its ref.
//!
//! Invariants
//! * Everything imported has the hash it is named by, and all of it exists before the ref is made: in the store, or in
//!   the base of the repository. Content that may be missing is counted.
//! * No file depends on its name or location, except `tympan.json` and the folder `state`.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;
use tracing::warn;
use tympan_blobs::{BlobStore, ReadBlobs, SMALL_BLOB_BYTES};
use tympan_store::{BaseStore, BlobId, Chunk, ChunkBatch, ChunkId, ChunkStore, RefUpdate};

use super::base_store::{BaseStoreReference, OmittedCounts, find_folder_base, find_snapshot_base};
use super::frame::{BLOB_FRAME_KIND, CHUNK_FRAME_KIND, FRAME_FILE_NAME};
use super::repository::{CHUNK_READ_BATCH_SIZE, HomeFile};
use super::repository_layout::{
    BRANCHES_FOLDER, HOME_FOLDER, METADATA_FILE_NAME, REPOSITORY_FORMAT_VERSION, REVISIONS_FOLDER,
    STATE_FOLDER, SavedBranchMetadata, SavedRepositoryMetadata, SavedRevisionMetadata,
};
use crate::backup_progress::BackupProgress;
use crate::copy::{UNFINISHED, ZipCopyReader};
use crate::deep_stack;
use crate::error::{Error, Result};
use crate::inspection::find_path;
use crate::object_id::VaultObjectId;
use crate::vault::index::VaultIndex;
use crate::vault::node::SnapshotNode;
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::{IndexedVault, Vault};

/// Number of bytes buffered before an import commits them.
const IMPORT_BYTES: usize = 16 << 20;

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportReport {
    /// The created ref.
    pub reference: String,
    /// The root it points to.
    pub root: ChunkId,
    /// Other created refs.
    pub branches: Vec<String>,
    /// The number of earlier states of the ref.
    pub revision_count: u64,
    /// The number of chunks.
    pub chunk_count: u64,
    /// The number of blobs, small and large.
    pub blob_count: u64,
    /// Referenced chunks and blobs that were not found; what is below such chunks is not counted.
    pub missing: OmittedCounts,
}

/// The policy for imports with missing content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingContentPolicy {
    /// The import is refused, and nothing is imported.
    #[default]
    Refuse,
    /// Imports what exists: missing blobs are allowed; for a snapshot with a base, everything in the base may be
    /// missing.
    Allow,
}

/// The options of an import.
#[derive(Clone, Copy, Default)]
pub struct ImportOptions<'a> {
    /// The policy for missing content.
    pub missing: MissingContentPolicy,
    /// The base of the repository, as it was when it was saved.
    pub base: Option<(&'a dyn BaseStore, &'a dyn ReadBlobs)>,
}

impl std::fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportOptions").field("missing", &self.missing).finish_non_exhaustive()
    }
}

/// Imports a snapshot of a repository into an empty store.
///
/// # Errors
/// [`Error::InvalidRequest`] if the snapshot is not one of a repository, is incomplete, or the store is not empty.
pub fn import_snapshot(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshot: &VaultSnapshot,
    (target, blobs): (&dyn ChunkStore, &dyn BlobStore),
    (options, progress): (ImportOptions<'_>, &BackupProgress),
) -> Result<ImportReport> {
    let reference = find_snapshot_base(IndexedVault::new(vault, index), snapshot)?;
    let facts = find_path(vault, index, snapshot, METADATA_FILE_NAME);
    let facts = facts.map_err(|error| match error {
        Error::PathMissing { snapshot, .. } => Error::InvalidRequest(format!(
            "the snapshot `{snapshot}` was not made from a repository; restore it into a folder with `--to`"
        )),
        error => error,
    })?;
    let mut json = Vec::new();
    crate::restore::stream_file(IndexedVault::new(vault, index), &facts, &mut json)?;
    let mut import = SnapshotImporter::new((target, blobs), progress, &json, (options, reference))?;
    let mut left = vec![find_path(vault, index, snapshot, STATE_FOLDER)?];
    if !import.metadata.branches.is_empty() {
        left.push(find_path(vault, index, snapshot, BRANCHES_FOLDER)?);
    }
    if !import.metadata.revisions.is_empty() {
        left.push(find_path(vault, index, snapshot, REVISIONS_FOLDER)?);
    }
    let (mut seen, mut files) = (HashSet::new(), Vec::new());
    while let Some(node) = left.pop() {
        progress.check_running()?;
        let Some(tree) = &node.subtree else {
            files.push(node);
            continue;
        };
        for node in vault.read_tree(index, tree)?.nodes {
            // Every folder contains `chunks`; all other files are named by their hash.
            if node.name == FRAME_FILE_NAME.as_bytes()
                || seen.insert((node.name.clone(), node.subtree))
            {
                left.push(node);
            }
        }
    }
    // In pack order, so that read-ahead ranges are contiguous.
    files.sort_by_cached_key(|node| {
        let first = node.content.iter().flatten().next();
        let location = first.and_then(|id| index.find(PackBlobKind::Data, id));
        location.map(|location| (index.pack_id(location), location.offset))
    });
    let mut left = files.as_slice();
    while !left.is_empty() {
        let mut bytes = 0;
        let fits = |node: &&SnapshotNode| {
            bytes += node.size;
            bytes <= IMPORT_BYTES as u64
        };
        let (batch, later) = left.split_at(left.iter().take_while(fits).count().max(1));
        let mut ahead = read_files_ahead(IndexedVault::new(vault, index), batch);
        for node in batch {
            import_file(IndexedVault::new(vault, index), (node, &mut ahead), &mut import)?;
        }
        left = later;
    }
    import.finish()
}

/// Returns the home files in a snapshot of a repository; empty if it has none.
///
/// # Errors
/// If the vault cannot be read.
pub fn read_home_files(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshot: &VaultSnapshot,
) -> Result<Vec<HomeFile>> {
    let folder = match find_path(vault, index, snapshot, HOME_FOLDER) {
        Ok(folder) => folder,
        Err(Error::PathMissing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let nodes = match &folder.subtree {
        Some(tree) => vault.read_tree(index, tree)?.nodes,
        None => Vec::new(),
    };
    let mut files = Vec::new();
    for node in nodes {
        let mut bytes = Vec::new();
        crate::restore::stream_file(IndexedVault::new(vault, index), &node, &mut bytes)?;
        files.push(HomeFile { name: node.text_name(), bytes });
    }
    Ok(files)
}

/// Reads several files together, if each call costs a round trip. A file that exceeds the read-ahead limit is skipped.
fn read_files_ahead(
    IndexedVault { vault, index }: IndexedVault<'_>,
    files: &[SnapshotNode],
) -> HashMap<VaultObjectId, Vec<u8>> {
    if !vault.is_remote() {
        return HashMap::new();
    }
    let small = files.iter().filter(|node| node.size <= IMPORT_BYTES as u64);
    let ids: Vec<VaultObjectId> =
        small.flat_map(|node| node.content.iter().flatten().copied()).collect();
    deep_stack::run_on_deep_stacks(vault.files().backend().connections(), || {
        vault.read_pieces(index, &ids)
    })
}

fn import_file(
    IndexedVault { vault, index }: IndexedVault<'_>,
    (node, ahead): (&SnapshotNode, &mut HashMap<VaultObjectId, Vec<u8>>),
    import: &mut SnapshotImporter<'_>,
) -> Result<()> {
    let pieces = node.content.clone().unwrap_or_default().into_iter();
    let mut reader =
        PieceStream { vault, index, pieces, pieces_ahead: ahead, open_piece: Cursor::default() };
    import.import_file(&node.text_name(), node.size, &mut reader)
}

/// Reads the pieces of a file as one stream.
struct PieceStream<'a> {
    vault: &'a Vault,
    index: &'a VaultIndex,
    pieces: std::vec::IntoIter<VaultObjectId>,
    /// Pieces that were read ahead.
    pieces_ahead: &'a mut HashMap<VaultObjectId, Vec<u8>>,
    open_piece: Cursor<Vec<u8>>,
}

impl Read for PieceStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.open_piece.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(id) = self.pieces.next() else { return Ok(0) };
            let piece = match self.pieces_ahead.remove(&id) {
                Some(piece) => piece,
                None => {
                    let piece = self.vault.read_blob(self.index, PackBlobKind::Data, &id);
                    piece.map_err(io::Error::other)?
                }
            };
            self.open_piece = Cursor::new(piece);
        }
    }
}

/// Imports a folder that a snapshot of a repository was restored into by any program, or a plain copy: a folder, or a
/// ZIP file.
///
/// # Errors
/// As [`import_snapshot`], and if the folder cannot be read.
pub fn import_folder(
    dir: &Path,
    (target, blobs): (&dyn ChunkStore, &dyn BlobStore),
    (options, progress): (ImportOptions<'_>, &BackupProgress),
) -> Result<ImportReport> {
    let reference = find_folder_base(dir)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Source { path, source }
    };
    if dir.is_file() {
        let mut zip = ZipCopyReader::open(dir)?;
        let facts = zip.read_metadata()?;
        let mut import =
            SnapshotImporter::new((target, blobs), progress, &facts, (options, reference))?;
        zip.for_each_file(&mut |name, length, content| import.import_file(name, length, content))?;
        return import.finish();
    }
    let facts = dir.join(METADATA_FILE_NAME);
    let json = fs::read(&facts).map_err(failed(&facts))?;
    let mut import = SnapshotImporter::new((target, blobs), progress, &json, (options, reference))?;
    // A copy that is under way or was interrupted by a power loss: the content of its root is complete, which is
    // verified at the end.
    let is_unfinished = dir.join(UNFINISHED).exists();
    let mut folders = vec![dir.join(STATE_FOLDER)];
    if !import.metadata.branches.is_empty() {
        folders.push(dir.join(BRANCHES_FOLDER));
    }
    if !import.metadata.revisions.is_empty() {
        folders.push(dir.join(REVISIONS_FOLDER));
    }
    let mut seen = HashSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let path = entry.map_err(failed(&folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let facts = fs::symlink_metadata(&path).map_err(failed(&path))?;
            if name != FRAME_FILE_NAME && !seen.insert((name.clone(), facts.is_dir())) {
                continue;
            }
            if facts.is_dir() {
                folders.push(path);
            } else {
                let mut file = File::open(&path).map_err(failed(&path))?;
                match import.import_file(&name, facts.len(), &mut file) {
                    Err(error @ (Error::Source { .. } | Error::InvalidRequest(_)))
                        if is_unfinished =>
                    {
                        warn!(%error, file = %path.display(), "skipped a file of an unfinished copy");
                    }
                    result => result?,
                }
            }
        }
    }
    import.finish()
}

/// Imports files of frames, or large blobs, that are not in a folder.
#[cfg(any(fuzzing, test))]
pub(crate) fn import_files(
    target: (&dyn ChunkStore, &dyn BlobStore),
    facts: &[u8],
    files: &[&[u8]],
    progress: &BackupProgress,
) -> Result<ImportReport> {
    let mut import =
        SnapshotImporter::new(target, progress, facts, (ImportOptions::default(), None))?;
    for file in files {
        let (name, mut bytes) = (VaultObjectId::of(file).to_string(), *file);
        import.import_file(&name, file.len() as u64, &mut bytes)?;
    }
    import.finish()
}

struct SnapshotImporter<'a> {
    target: &'a dyn ChunkStore,
    blobs: &'a dyn BlobStore,
    progress: &'a BackupProgress,
    metadata: SavedRepositoryMetadata,
    root: ChunkId,
    batch: ChunkBatch,
    pending_bytes: usize,
    report: ImportReport,
    options: ImportOptions<'a>,
    /// The base that the snapshot names.
    base_reference: Option<BaseStoreReference>,
    /// Prevents garbage collection of stored data until the ref is made.
    _hold: tympan_store::CollectionHold,
}

impl<'a> SnapshotImporter<'a> {
    fn new(
        (target, blobs): (&'a dyn ChunkStore, &'a dyn BlobStore),
        progress: &'a BackupProgress,
        facts: &[u8],
        (options, reference): (ImportOptions<'a>, Option<BaseStoreReference>),
    ) -> Result<Self> {
        let refused = |text: &str| Error::InvalidRequest(format!("`{METADATA_FILE_NAME}` {text}"));
        let facts: SavedRepositoryMetadata =
            serde_json::from_slice(facts).map_err(|_| refused("cannot be parsed"))?;
        if facts.format != REPOSITORY_FORMAT_VERSION {
            return Err(refused("has an unsupported format version"));
        }
        let root: VaultObjectId = facts.root.parse().map_err(|_| refused("has an invalid root"))?;
        let root = ChunkId::from_bytes(*root.as_bytes());
        if !target.list_refs()?.is_empty() {
            let text = "the home already has a repository; restore into a new one";
            return Err(Error::InvalidRequest(text.to_owned()));
        }
        let (name, missing) = (facts.name.clone(), OmittedCounts::default());
        let branches = Vec::new();
        let imported = ImportReport {
            reference: name,
            root,
            branches,
            revision_count: 0,
            chunk_count: 0,
            blob_count: 0,
            missing,
        };
        let (batch, hold) = (ChunkBatch::new(), target.begin_hold()?);
        Ok(Self {
            target,
            blobs,
            progress,
            metadata: facts,
            root,
            batch,
            pending_bytes: 0,
            report: imported,
            options,
            base_reference: reference,
            _hold: hold,
        })
    }

    /// Imports a file: a large blob, or frames.
    fn import_file(&mut self, name: &str, length: u64, source: &mut dyn Read) -> Result<()> {
        self.progress.check_running()?;
        self.progress.add_done(1, length);
        let failed = |source| Error::Source { path: name.into(), source };
        if name == FRAME_FILE_NAME || length < SMALL_BLOB_BYTES as u64 {
            return self.import_frames(name, source);
        }
        // A file of frames is named by the hash of a chunk, which is not a SHA-256: a file is a blob only if its bytes
        // have that hash.
        let mut file = copy_to_temp_file(source).map_err(failed)?;
        let blob_id = tympan_blobs::compute_blob_id(&mut file).map_err(failed)?;
        io::Seek::rewind(&mut file).map_err(failed)?;
        if VaultObjectId::from_bytes(*blob_id.digest()).to_string() != name {
            return self.import_frames(name, &mut file);
        }
        self.blobs.put(&mut file)?;
        self.report.blob_count += 1;
        Ok(())
    }

    fn import_frames(&mut self, name: &str, source: &mut dyn Read) -> Result<()> {
        let failed = |source| Error::Source { path: name.into(), source };
        loop {
            let mut kind = [0; 1];
            if source.read(&mut kind).map_err(failed)? == 0 {
                return Ok(());
            }
            let mut length = [0; 4];
            source.read_exact(&mut length).map_err(failed)?;
            let length = u64::from(u32::from_le_bytes(length));
            let mut bytes = Vec::new();
            source.take(length).read_to_end(&mut bytes).map_err(failed)?;
            if bytes.len() as u64 != length {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            self.pending_bytes += bytes.len();
            let bytes = Bytes::from(bytes);
            let [kind] = kind;
            match kind {
                CHUNK_FRAME_KIND => {
                    Chunk::parse(bytes.clone())?;
                    self.batch.add_chunk(bytes);
                    self.report.chunk_count += 1;
                }
                BLOB_FRAME_KIND => {
                    self.batch.add_blob(BlobId::hash_of(&bytes), bytes);
                    self.report.blob_count += 1;
                }
                _ => {
                    return Err(Error::InvalidRequest(format!(
                        "`{name}` contains a frame of an unknown kind"
                    )));
                }
            }
            if self.pending_bytes >= IMPORT_BYTES {
                self.pending_bytes = 0;
                self.target.commit(std::mem::take(&mut self.batch))?;
            }
        }
    }

    /// Verifies completeness and makes the ref.
    fn finish(mut self) -> Result<ImportReport> {
        self.target.commit(std::mem::take(&mut self.batch))?;
        let (missing, visited) = self.check_completeness()?;
        self.report.missing = missing;
        // The ref of an unmodified clone can be made if its root is in the base.
        let is_there = self.target.contains_chunks(&[self.root])? == [true];
        if !is_there && self.options.base.is_none() {
            return Ok(self.report);
        }
        let mut expected = None;
        for revision in self.find_complete_revisions(visited)? {
            let Some(root) = revision.root().filter(|root| expected != Some(*root)) else {
                continue;
            };
            self.report.revision_count += 1;
            self.batch.add_ref_update(RefUpdate {
                name: self.metadata.name.clone(),
                expected_root: expected,
                new_root: Some(root),
                updated_at: revision.timestamp(),
                author: revision.author,
                message: revision.message,
            });
            expected = Some(root);
        }
        self.batch.add_ref_update(RefUpdate {
            name: self.metadata.name.clone(),
            expected_root: expected,
            new_root: Some(self.root),
            updated_at: SystemTime::now(),
            author: "backup".to_owned(),
            message: "restore a backup".to_owned(),
        });
        for branch in &self.metadata.branches {
            let Some(root) = branch.root() else { continue };
            if self.target.contains_chunks(&[root])? != [true] && self.options.base.is_none() {
                continue;
            }
            self.report.branches.push(branch.name.clone());
            self.batch.add_ref_update(RefUpdate {
                name: branch.name.clone(),
                expected_root: None,
                new_root: Some(root),
                updated_at: SystemTime::now(),
                author: "backup".to_owned(),
                message: "restore a backup".to_owned(),
            });
        }
        self.target.commit(self.batch)?;
        Ok(self.report)
    }

    /// Returns the complete earlier states, oldest first; what is in `whole` has been checked. An incomplete earlier
    /// state does not fail the import.
    fn find_complete_revisions(
        &self,
        mut whole: HashSet<ChunkId>,
    ) -> Result<Vec<SavedRevisionMetadata>> {
        let mut revisions = Vec::new();
        for revision in &self.metadata.revisions {
            let Some(root) = revision.root() else { continue };
            if !whole.contains(&root) {
                let mut visited = HashSet::from([root]);
                match self.count_missing_below(vec![root], &whole, &mut visited) {
                    Ok(missing) if missing == OmittedCounts::default() => whole.extend(visited),
                    Ok(_) | Err(Error::InvalidRequest(_)) => {
                        warn!(root = revision.root, "skipped an incomplete earlier state");
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            revisions.push(revision.clone());
        }
        Ok(revisions)
    }

    /// Follows all references from the roots. For chunks in the base, everything below them is in the base, too.
    /// Returns what is missing, if anything may be, and what was visited.
    fn check_completeness(&self) -> Result<(OmittedCounts, HashSet<ChunkId>)> {
        let branches = self.metadata.branches.iter().filter_map(SavedBranchMetadata::root);
        let mut visited: HashSet<ChunkId> = branches.chain([self.root]).collect();
        let level = visited.iter().copied().collect();
        let missing = self.count_missing_below(level, &HashSet::new(), &mut visited)?;
        Ok((missing, visited))
    }

    /// Follows chunks and everything below them, except those already in `whole` or `visited`. Returns what is missing.
    fn count_missing_below(
        &self,
        mut level: Vec<ChunkId>,
        whole: &HashSet<ChunkId>,
        visited: &mut HashSet<ChunkId>,
    ) -> Result<OmittedCounts> {
        let mut missing = OmittedCounts::default();
        let mut known_blobs = HashSet::new();
        while !level.is_empty() {
            let mut below = Vec::new();
            for batch in level.chunks(CHUNK_READ_BATCH_SIZE) {
                let there = self.target.contains_chunks(batch)?;
                let (there, absent): (Vec<_>, Vec<_>) =
                    batch.iter().zip(there).partition(|(_, is_there)| *is_there);
                let there: Vec<ChunkId> = there.into_iter().map(|(id, _)| *id).collect();
                let absent: Vec<ChunkId> = absent.into_iter().map(|(id, _)| *id).collect();
                missing.chunk_count += self.count_missing_in_base(&absent)?;
                for chunk in self.target.read_chunks(&there)? {
                    let is_new = |id: &ChunkId| !whole.contains(id) && visited.insert(*id);
                    below.extend(chunk.chunk_refs().filter(is_new));
                    for id in chunk.blob_refs().filter(|id| known_blobs.insert(*id)) {
                        missing.blob_count += u64::from(!self.has_blob(&id)?);
                    }
                }
            }
            level = below;
        }
        Ok(missing)
    }

    /// Looks up chunks in the base; returns the number of missing ones.
    fn count_missing_in_base(&self, absent: &[ChunkId]) -> Result<u64> {
        let there = match self.options.base {
            Some((base, _)) if !absent.is_empty() => base.contains_chunks(absent)?,
            _ => vec![false; absent.len()],
        };
        let missing: Vec<&ChunkId> =
            absent.iter().zip(there).filter(|(_, is_there)| !is_there).map(|(id, _)| id).collect();
        match missing.first() {
            // Without the base, it is as it was saved. Content missing from any other snapshot cannot be recovered.
            Some(id)
                if self.options.missing == MissingContentPolicy::Refuse
                    || self.base_reference.is_none() =>
            {
                Err(self.missing_content_error(&format!("the chunk `{id}`")))
            }
            _ => Ok(missing.len() as u64),
        }
    }

    fn has_blob(&self, id: &BlobId) -> Result<bool> {
        let is_small = id.length() < SMALL_BLOB_BYTES as u64;
        let is_own = match is_small {
            true => self.target.contains_blob(id)?,
            false => self.blobs.contains(id)?,
        };
        let is_below = || match self.options.base {
            None => Ok(false),
            Some((base, _)) if is_small => {
                Ok(base.read_blobs(std::slice::from_ref(id))?.iter().all(Option::is_some))
            }
            Some((_, blobs)) => Ok::<bool, Error>(blobs.contains(id)?),
        };
        let is_there = is_own || is_below()?;
        if !is_there && self.options.missing == MissingContentPolicy::Refuse {
            return Err(self.missing_content_error(&format!("the blob `{id}`")));
        }
        Ok(is_there)
    }

    fn missing_content_error(&self, subject: &str) -> Error {
        Error::InvalidRequest(match &self.base_reference {
            None => format!("the backup is incomplete: {subject} is missing; nothing was restored"),
            Some(BaseStoreReference { from, .. }) => {
                format!(
                    "the backup depends on `{from}`, which lacks {subject}; nothing was restored"
                )
            }
        })
    }
}

/// Copies a stream to an unnamed temporary file, since it must be hashed before its kind is known.
fn copy_to_temp_file(source: &mut dyn Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(source, &mut file)?;
    io::Seek::rewind(&mut file)?;
    Ok(file)
}
