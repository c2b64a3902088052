//! Recovery: opening a store completes or undoes writes that a crash interrupted, and retains and reports damaged data.
//!
//! Invariants
//! * Refs never go back to older roots because a file is truncated or missing, as long as any index file or pack has
//!   the newer ones.
//! * A file that was in use is never removed, whatever its state.

use std::sync::Arc;

use super::index_file::{self, IndexFileContents, PackIndexFile};
use super::pack_name::{is_collection_pack, pack_file_name, parse_pack_number};
use super::pack_scan::{self, PackScan, record_at};
use super::pack_writer::{LocalPackWriter, begin_pack};
use super::record::{RECORD_HEADER_BYTES, RecordKind};
use super::record_index::RecordIndex;
use super::record_payload::{PackHead, StoreTables};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};

/// The folder for damaged packs.
const DAMAGED_FOLDER: &str = "damaged";

/// A store as recovered.
pub(super) struct RecoveredStore {
    pub(super) writer: LocalPackWriter,
    pub(super) tables: StoreTables,
    /// Ranges that were durable once and can no longer be read.
    pub(super) damage_found: Vec<String>,
    /// A text for each write that was undone.
    pub(super) recovery_notes: Vec<String>,
}

/// The files of a store, by pack number.
#[derive(Default)]
struct PackFiles {
    packs: Vec<u32>,
    collection_packs: Vec<u32>,
    /// Commit packs of which only the index file exists.
    orphan_indexes: Vec<u32>,
}

/// Opens all packs and fills the index.
pub(super) fn recover_store(
    disk: &dyn Disk,
    index: &RecordIndex,
    limit: u64,
) -> Result<RecoveredStore> {
    let mut damage = Vec::new();
    let PackFiles { mut packs, collection_packs, orphan_indexes } = list_pack_files(disk)?;
    if packs.is_empty()
        && let Some(pack) = collection_packs.iter().chain(&orphan_indexes).next()
    {
        let file = pack_file_name(*pack);
        let fault = "the packs that hold the refs are missing; restore them from a backup";
        return Err(Error::FileMalformed { file, fault });
    }
    let mut tables = StoreTables::default();
    // Checked before they are rebuilt.
    let notes =
        unusable_indexes(disk, collection_packs.iter().chain(&packs), packs.last().copied())?;
    for pack in collection_packs {
        keep_newest_tables(&mut tables, open_collection_pack(disk, index, pack, &mut damage)?);
    }
    let Some(last) = packs.pop() else {
        let writer = create_pack_writer(disk, index, limit, 1, &tables)?;
        return Ok(RecoveredStore { writer, tables, damage_found: damage, recovery_notes: notes });
    };
    for pack in &packs {
        tables = open_sealed_pack(disk, index, *pack, tables, &mut damage)?;
    }
    let opening = LastPackOpener { disk, index, pack_limit: limit };
    let mut recovered = opening.open_last_pack(last, packs.last().copied(), &tables, damage)?;
    recovered.recovery_notes.extend(notes);
    let newest_pack = recovered.writer.pack;
    // Index files of full packs are written after the next pack has begun. A damaged index file may be one of these.
    let is_followed = match PackIndexFile::open(disk, newest_pack)? {
        Some(index) => index.is_sealed(),
        None => disk.open_file(&index_file::index_file_name(newest_pack)).is_ok(),
    };
    if recovered.writer.is_sealed && is_followed {
        let (file, before) = (pack_file_name(newest_pack + 1), pack_file_name(newest_pack));
        recovered.damage_found.push(format!("`{file}`, which follows `{before}`, is missing"));
    }
    if let Some(pack) = orphan_indexes.into_iter().filter(|pack| *pack > last).max() {
        if let Some(pack_index) = PackIndexFile::open(disk, pack)?.filter(PackIndexFile::is_intact)
        {
            keep_newest_tables(&mut recovered.tables, pack_index.tables().clone());
        }
        // The next write starts a pack after the missing one, with all refs in its head.
        recovered.writer.pack = pack;
        recovered.writer.is_sealed = true;
    }
    Ok(recovered)
}

/// Returns a note for each existing index file that is ignored.
fn unusable_indexes<'a>(
    disk: &dyn Disk,
    packs: impl Iterator<Item = &'a u32>,
    last: Option<u32>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for pack in packs {
        let name = index_file::index_file_name(*pack);
        // A check verifies the body of an index. Only the index of the last pack is verified here, because a wrong one
        // would be extended.
        let pack_index = PackIndexFile::open(disk, *pack)?;
        let is_usable = pack_index.is_some_and(|index| Some(*pack) != last || index.is_intact());
        if !is_usable && disk.open_file(&name).is_ok() {
            tracing::warn!(file = name, "rebuilding a damaged index file");
            notes.push(format!("`{name}` was damaged; it is rebuilt from its pack"));
        }
    }
    Ok(notes)
}

/// Replaces the tables if the other ones contain more ref updates.
fn keep_newest_tables(tables: &mut StoreTables, other: StoreTables) {
    if other.next_sequence > tables.next_sequence {
        *tables = other;
    }
}

/// The data needed to open the last pack.
struct LastPackOpener<'a> {
    disk: &'a dyn Disk,
    index: &'a RecordIndex,
    pack_limit: u64,
}

impl LastPackOpener<'_> {
    /// Opens the last pack; `before` is the previous pack, `tables` are those at the start of the last pack.
    fn open_last_pack(
        &self,
        last: u32,
        before: Option<u32>,
        tables: &StoreTables,
        mut damage: Vec<String>,
    ) -> Result<RecoveredStore> {
        let Self { disk, index, pack_limit } = *self;
        let mut notes = Vec::new();
        let file = open_pack_file(disk, last)?;
        let scan = scan_open_pack(disk, last, file.as_ref(), tables.clone())?;
        if scan.pack_scan.committed_end == 0 {
            let was_used = check_unused_pack(disk, last, file.as_ref(), tables)?;
            drop(file);
            if !was_used {
                remove_unused_pack(disk, last)?;
            } else if before.is_none() && *tables == StoreTables::default() {
                let fault = "nothing in it can be read; restore it from a backup, or move it away to start \
                    with an empty store";
                return Err(Error::FileMalformed { file: pack_file_name(last), fault });
            } else {
                let file = pack_file_name(last);
                quarantine_file(disk, &file)?;
                damage.push(format!("nothing in `{file}` could be read; it is set aside"));
            }
            let tables = scan.pack_scan.tables;
            let number = if was_used { last + 1 } else { last };
            let created = create_pack_writer(disk, index, pack_limit, number, &tables);
            // A full disk must not prevent reading the store.
            let writer = match before {
                Some(before) if !was_used => {
                    created.or_else(|_| self.resume_sealed_pack(before))?
                }
                _ => created?,
            };
            return Ok(RecoveredStore {
                writer,
                tables,
                damage_found: damage,
                recovery_notes: notes,
            });
        }
        describe_damage(last, &scan.pack_scan, &mut damage);
        if scan.is_truncated {
            let file = pack_file_name(last);
            damage.push(format!("`{file}` is shorter than its index file says"));
        } else {
            notes.extend(truncate_pack(last, file.as_ref(), scan.pack_scan.committed_end)?);
            if scan.indexed_length < scan.pack_scan.committed_end {
                sync_pack(disk, last, file.as_ref())?;
            }
        }
        let tables = scan.pack_scan.tables.clone();
        let writer = self.pack_writer(last, file, scan);
        Ok(RecoveredStore { writer, tables, damage_found: damage, recovery_notes: notes })
    }

    /// Creates the writer of a pack that has been read.
    fn pack_writer(
        &self,
        pack: u32,
        file: Arc<dyn DiskFile>,
        scan: OpenPackScan,
    ) -> LocalPackWriter {
        let OpenPackScan { pack_scan, indexed_length, index, is_truncated } = scan;
        self.index.add_pack_file(pack, &file);
        let has_index = index.as_ref().is_some_and(PackIndexFile::is_sealed);
        let has_records = index.is_some() || !pack_scan.entries.is_empty();
        if let Some(index) = index {
            self.index.add_pack_index(pack, index);
        }
        self.index.publish_entries(&pack_scan.entries);
        let mut unindexed = Vec::new();
        if pack_scan.is_sealed && has_records && !has_index && !is_truncated {
            unindexed.push((pack, pack_scan.committed_end, pack_scan.tables));
        }
        LocalPackWriter {
            pack,
            file,
            length: pack_scan.committed_end,
            synced_length: pack_scan.committed_end,
            has_records,
            has_uncommitted_records: false,
            // Nothing is written after a range that is missing.
            is_sealed: pack_scan.is_sealed || is_truncated,
            indexed_length,
            unindexed_packs: unindexed,
            pack_limit: self.pack_limit,
        }
    }

    /// Creates the writer of a sealed pack that has become the last one again.
    fn resume_sealed_pack(&self, pack: u32) -> Result<LocalPackWriter> {
        let file = open_pack_file(self.disk, pack)?;
        let length = pack_length(pack, file.as_ref())?;
        Ok(LocalPackWriter {
            pack,
            file,
            length,
            synced_length: length,
            has_records: true,
            has_uncommitted_records: false,
            is_sealed: true,
            indexed_length: length,
            unindexed_packs: Vec::new(),
            pack_limit: self.pack_limit,
        })
    }
}

/// Lists the files, and removes the remains of an interrupted write of an index file.
fn list_pack_files(disk: &dyn Disk) -> Result<PackFiles> {
    let failed =
        |source| Error::FileRead { file: disk.display_path().display().to_string(), source };
    let mut files = PackFiles::default();
    let mut indexed = Vec::new();
    for name in disk.list_folder("").map_err(failed)? {
        if name.ends_with(".tmp") {
            disk.remove_file(&name)
                .map_err(|source| Error::FileWrite { file: name.clone(), source })?;
        }
        indexed.extend(name.strip_suffix(".index").and_then(parse_pack_number));
        match parse_pack_number(&name) {
            Some(pack) if is_collection_pack(pack) => files.collection_packs.push(pack),
            Some(pack) => files.packs.push(pack),
            None => {}
        }
    }
    files.packs.sort_unstable();
    files.collection_packs.sort_unstable();
    let is_orphan = |pack: &u32| !is_collection_pack(*pack) && !files.packs.contains(pack);
    files.orphan_indexes = indexed.into_iter().filter(is_orphan).collect();
    Ok(files)
}

fn create_pack_writer(
    disk: &dyn Disk,
    index: &RecordIndex,
    limit: u64,
    pack: u32,
    tables: &StoreTables,
) -> Result<LocalPackWriter> {
    let (file, length) = begin_pack(disk, pack, tables.clone())
        .map_err(|source| Error::FileWrite { file: pack_file_name(pack), source })?;
    index.add_pack_file(pack, &file);
    Ok(LocalPackWriter {
        pack,
        file,
        length,
        synced_length: length,
        has_records: false,
        has_uncommitted_records: false,
        is_sealed: false,
        indexed_length: 0,
        unindexed_packs: Vec::new(),
        pack_limit: limit,
    })
}

fn open_pack_file(disk: &dyn Disk, pack: u32) -> Result<Arc<dyn DiskFile>> {
    let file = pack_file_name(pack);
    disk.open_file(&file).map_err(|source| Error::FileRead { file, source })
}

fn pack_length(pack: u32, file: &dyn DiskFile) -> Result<u64> {
    let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
    file.len().map_err(failed)
}

/// Opens a pack that is not the last one; rebuilds its index if necessary. Returns the tables at its end.
fn open_sealed_pack(
    disk: &dyn Disk,
    index: &RecordIndex,
    pack: u32,
    before: StoreTables,
    damage: &mut Vec<String>,
) -> Result<StoreTables> {
    let file = open_pack_file(disk, pack)?;
    index.add_pack_file(pack, &file);
    let pack_index = PackIndexFile::open(disk, pack)?;
    let pack_index = match pack_index.filter(PackIndexFile::is_sealed) {
        Some(sealed_index) => {
            let tables = sealed_index.tables().clone();
            index.add_pack_index(pack, sealed_index);
            return Ok(tables);
        }
        None => PackIndexFile::open(disk, pack)?.filter(PackIndexFile::is_intact),
    };
    let mut scanned = scan_whole_pack(pack, file.as_ref(), before)?;
    // Later packs exist, so the whole pack was synced before the first of them began.
    scanned.entries.append(&mut scanned.uncommitted_entries);
    describe_damage(pack, &scanned, damage);
    let length = pack_length(pack, file.as_ref())?;
    if let Some(pack_index) = pack_index.filter(|pack_index| pack_index.covered_bytes() > length) {
        // The index file is retained as the proof until a repair.
        let file = pack_file_name(pack);
        damage.push(format!("`{file}` is shorter than its index file says"));
        keep_newest_tables(&mut scanned.tables, pack_index.tables().clone());
        index.publish_entries(&scanned.entries);
    } else {
        write_scanned_index(disk, index, pack, &mut scanned);
    }
    Ok(scanned.tables)
}

/// Opens a pack that a collection created; removes it if the collection did not finish. Returns the tables as of that
/// time.
fn open_collection_pack(
    disk: &dyn Disk,
    index: &RecordIndex,
    pack: u32,
    damage: &mut Vec<String>,
) -> Result<StoreTables> {
    let file = open_pack_file(disk, pack)?;
    let sealed_index = PackIndexFile::open(disk, pack)?.filter(PackIndexFile::is_sealed);
    if let Some(sealed_index) = sealed_index {
        let tables = sealed_index.tables().clone();
        index.add_pack_file(pack, &file);
        index.add_pack_index(pack, sealed_index);
        return Ok(tables);
    }
    // The seal is written after everything before it is durable, and nothing is removed before the seal is durable.
    let mut scanned = scan_whole_pack(pack, file.as_ref(), StoreTables::default())?;
    if !scanned.is_sealed {
        drop(file);
        tracing::info!(
            file = pack_file_name(pack),
            "removed the output of an interrupted collection"
        );
        remove_unused_pack(disk, pack)?;
        return Ok(StoreTables::default());
    }
    sync_pack(disk, pack, file.as_ref())?;
    index.add_pack_file(pack, &file);
    describe_damage(pack, &scanned, damage);
    write_scanned_index(disk, index, pack, &mut scanned);
    Ok(scanned.tables)
}

/// Syncs a scanned pack and its name. A process that was killed may have left both only in the caches of the operating
/// system, and data that depends on them must not outlive them.
fn sync_pack(disk: &dyn Disk, pack: u32, file: &dyn DiskFile) -> Result<()> {
    let synced = file.sync().and_then(|()| disk.sync_folder(""));
    synced.map_err(|source| Error::FileWrite { file: pack_file_name(pack), source })
}

/// Rebuilds the index file of a pack that is no longer written.
pub(super) fn rebuild_pack_index(
    disk: &dyn Disk,
    index: &RecordIndex,
    pack: u32,
    file: &dyn DiskFile,
) -> Result<()> {
    let mut scanned = scan_whole_pack(pack, file, StoreTables::default())?;
    scanned.entries.append(&mut scanned.uncommitted_entries);
    write_scanned_index(disk, index, pack, &mut scanned);
    Ok(())
}

/// Writes the index of a scanned pack; retains the entries in memory if that fails.
fn write_scanned_index(disk: &dyn Disk, index: &RecordIndex, pack: u32, scanned: &mut PackScan) {
    let contents = IndexFileContents {
        pack,
        is_sealed: true,
        covered_bytes: scanned.committed_end,
        entries: &mut scanned.entries,
        tables: &scanned.tables,
    };
    let written = index_file::write_index_file(disk, contents);
    match written.and_then(|()| PackIndexFile::open(disk, pack)) {
        Ok(Some(pack_index)) => index.add_pack_index(pack, pack_index),
        Ok(None) => index.publish_entries(&scanned.entries),
        Err(error) => {
            tracing::warn!(file = pack_file_name(pack), reason = %error, "cannot write an index file");
            index.publish_entries(&scanned.entries);
        }
    }
}

struct OpenPackScan {
    pack_scan: PackScan,
    /// The length in bytes up to which an index file covers the pack.
    indexed_length: u64,
    index: Option<PackIndexFile>,
    /// True if the index file covers more bytes than the pack has.
    is_truncated: bool,
}

/// Reads the last pack: the part covered by its index from the index, the rest by a scan.
fn scan_open_pack(
    disk: &dyn Disk,
    pack: u32,
    file: &dyn DiskFile,
    before: StoreTables,
) -> Result<OpenPackScan> {
    let length = pack_length(pack, file)?;
    let pack_index = PackIndexFile::open(disk, pack)?.filter(PackIndexFile::is_intact);
    let Some(index) = pack_index.filter(|index| index.covered_bytes() <= length) else {
        let mut scanned = scan_whole_pack(pack, file, before)?;
        let longer = PackIndexFile::open(disk, pack)?.filter(PackIndexFile::is_intact);
        let is_cut_off = longer.is_some();
        if let Some(longer) = longer {
            scanned.entries.append(&mut scanned.uncommitted_entries);
            keep_newest_tables(&mut scanned.tables, longer.tables().clone());
        }
        return Ok(OpenPackScan {
            pack_scan: scanned,
            indexed_length: 0,
            index: None,
            is_truncated: is_cut_off,
        });
    };
    let checkpoint = index.covered_bytes();
    let tables = index.tables().clone();
    let scanned = if index.is_sealed() {
        PackScan { tables, committed_end: checkpoint, is_sealed: true, ..PackScan::default() }
    } else {
        let bytes = file
            .map_content()
            .map_err(|source| Error::FileRead { file: pack_file_name(pack), source })?;
        pack_scan::scan_pack(pack, &bytes, checkpoint, tables)
    };
    Ok(OpenPackScan {
        pack_scan: scanned,
        indexed_length: checkpoint,
        index: Some(index),
        is_truncated: false,
    })
}

fn scan_whole_pack(pack: u32, file: &dyn DiskFile, before: StoreTables) -> Result<PackScan> {
    let bytes = file
        .map_content()
        .map_err(|source| Error::FileRead { file: pack_file_name(pack), source })?;
    Ok(pack_scan::scan_pack(pack, &bytes, 0, before))
}

/// Returns true if a pack without a commit point was in use once. Such a pack is damaged; otherwise a crash occurred
/// while it was created.
///
/// # Errors
/// [`Error::FileMalformed`] for a pack of another format.
fn check_unused_pack(
    disk: &dyn Disk,
    pack: u32,
    file: &dyn DiskFile,
    before: &StoreTables,
) -> Result<bool> {
    let failed = |source| Error::FileRead { file: pack_file_name(pack), source };
    let bytes = file.map_content().map_err(failed)?;
    let is_head =
        record_at(pack, &bytes, 0).is_some_and(|record| record.header.kind == RecordKind::Head);
    if is_head {
        return Err(Error::FileMalformed {
            file: pack_file_name(pack),
            fault: "its pack format version is not supported; start the program that wrote it",
        });
    }
    // A crash leaves at most the head that was being written.
    let head = RECORD_HEADER_BYTES + PackHead { pack, tables: before.clone() }.encode().len();
    Ok(bytes.len() > head || PackIndexFile::open(disk, pack)?.is_some())
}

/// Removes a pack that was never in use, and the index that an earlier pack with its number may have left.
fn remove_unused_pack(disk: &dyn Disk, pack: u32) -> Result<()> {
    let file = pack_file_name(pack);
    let removed = disk.remove_file(&file).and_then(|()| disk.sync_folder(""));
    removed.map_err(|source| Error::FileWrite { file, source })
}

/// Truncates a pack to remove records that were never acknowledged. Returns a note about it.
fn truncate_pack(pack: u32, file: &dyn DiskFile, end: u64) -> Result<Option<String>> {
    let length = pack_length(pack, file)?;
    if length <= end {
        return Ok(None);
    }
    let bytes = length - end;
    tracing::warn!(file = pack_file_name(pack), bytes, "unfinished write removed");
    let done = file.truncate(end).and_then(|()| file.sync());
    let name = pack_file_name(pack);
    done.map_err(|source| Error::FileWrite { file: name.clone(), source })?;
    Ok(Some(format!("the last {bytes} bytes of `{name}`, an incomplete commit, were cut off")))
}

fn describe_damage(pack: u32, scanned: &PackScan, damage: &mut Vec<String>) {
    for range in &scanned.damaged_ranges {
        let file = pack_file_name(pack);
        let (start, end) = (range.start, range.end);
        tracing::error!(file, start, end, "a durable part of a pack is damaged");
        damage.push(format!("`{file}` is damaged from byte {start} to {end}"));
    }
    for moves in &scanned.lost_sequences {
        let file = pack_file_name(pack);
        let (start, end) = (moves.start, moves.end - 1);
        tracing::error!(file, start, end, "ref updates are lost");
        damage.push(format!(
            "`{file}`: the ref updates {start} to {end} are lost; a ref may have an earlier root"
        ));
    }
}

/// Renames a file to an unused name and returns that name, or `None` if the file does not exist.
pub(super) fn quarantine_file(disk: &dyn Disk, file: &str) -> Result<Option<String>> {
    let names = std::iter::once(format!("{DAMAGED_FOLDER}/{file}"))
        .chain((2..).map(|number| format!("{DAMAGED_FOLDER}/{file}-{number}")));
    let mut free = names.skip_while(|name| disk.open_file(name).is_ok());
    let Some(to) = free.next().filter(|_| disk.open_file(file).is_ok()) else {
        return Ok(None);
    };
    let moved = disk.rename_file(file, &to);
    let synced =
        moved.and_then(|()| disk.sync_folder(DAMAGED_FOLDER)).and_then(|()| disk.sync_folder(""));
    synced.map_err(|source| Error::FileWrite { file: file.to_owned(), source })?;
    tracing::warn!(file, "damaged file set aside");
    Ok(Some(to))
}
