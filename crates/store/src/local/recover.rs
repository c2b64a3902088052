//! Opening: what a crash left is finished or undone, and what is damaged is kept and named.
//!
//! Invariants
//! * Refs never go back to older places because a file is cut off or gone, as long as any index file or pack knows the
//!   newer ones.
//! * A file that was in use is never removed, in whatever state it is.

use std::sync::Arc;

use super::index::Index;
use super::index_file::{self, Contents, IndexFile};
use super::mend::set_aside;
use super::payload::{Head, Tables};
use super::record::{HEADER_BYTES, Kind};
use super::scan::{self, Scanned, record_at};
use super::writer::{Writer, begin_pack};
use super::{is_collected, pack_name, pack_number};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};

/// A store as found.
pub(super) struct Recovered {
    pub(super) writer: Writer,
    pub(super) tables: Tables,
    /// Places that were durable once and can no longer be read.
    pub(super) damage: Vec<String>,
    /// What was undone, in words.
    pub(super) notes: Vec<String>,
}

/// The files of a store, by number of the pack.
#[derive(Default)]
struct Files {
    packs: Vec<u32>,
    collected: Vec<u32>,
    /// Packs of commits of which only the index file is there.
    orphans: Vec<u32>,
}

/// Opens all packs and fills the index.
pub(super) fn recover(disk: &dyn Disk, index: &Index, limit: u64) -> Result<Recovered> {
    let mut damage = Vec::new();
    let Files { mut packs, collected, orphans } = find_files(disk)?;
    if packs.is_empty()
        && let Some(pack) = collected.iter().chain(&orphans).next()
    {
        let file = pack_name(*pack);
        let fault = "the packs that hold the refs are gone; restore them from a backup";
        return Err(Error::FileMalformed { file, fault });
    }
    let mut tables = Tables::default();
    // Before they are made again.
    let notes = unusable_indexes(disk, collected.iter().chain(&packs), packs.last().copied())?;
    for pack in collected {
        newest(&mut tables, open_collected(disk, index, pack, &mut damage)?);
    }
    let Some(last) = packs.pop() else {
        let writer = create(disk, index, limit, 1, &tables)?;
        return Ok(Recovered { writer, tables, damage, notes });
    };
    for pack in &packs {
        tables = open_sealed(disk, index, *pack, tables, &mut damage)?;
    }
    let opening = Opening { disk, index, limit };
    let mut recovered = opening.open_last(last, packs.last().copied(), &tables, damage)?;
    recovered.notes.extend(notes);
    let newest_pack = recovered.writer.pack;
    // Index files of full packs are written after the next pack has begun. One that is damaged may be such a one.
    let is_followed = match IndexFile::open(disk, newest_pack)? {
        Some(index) => index.is_sealed(),
        None => disk.open(&index_file::file_name(newest_pack)).is_ok(),
    };
    if recovered.writer.is_sealed && is_followed {
        let (file, before) = (pack_name(newest_pack + 1), pack_name(newest_pack));
        recovered.damage.push(format!("`{file}`, which follows `{before}`, is gone"));
    }
    if let Some(pack) = orphans.into_iter().filter(|pack| *pack > last).max() {
        if let Some(known) = IndexFile::open(disk, pack)?.filter(IndexFile::is_intact) {
            newest(&mut recovered.tables, known.tables().clone());
        }
        // The next write begins a pack behind the one that is gone, with all refs in its head.
        recovered.writer.pack = pack;
        recovered.writer.is_sealed = true;
    }
    Ok(recovered)
}

/// Returns a note of each index file that is there and passed over.
fn unusable_indexes<'a>(
    disk: &dyn Disk,
    packs: impl Iterator<Item = &'a u32>,
    last: Option<u32>,
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for pack in packs {
        let name = index_file::file_name(*pack);
        // The body of an index is looked at by a check, but for the last pack, where a wrong one would be written on.
        let known = IndexFile::open(disk, *pack)?;
        let is_usable = known.is_some_and(|index| Some(*pack) != last || index.is_intact());
        if !is_usable && disk.open(&name).is_ok() {
            tracing::warn!(file = name, "a damaged index file is made again");
            notes.push(format!("`{name}` was damaged; it is made again from its pack"));
        }
    }
    Ok(notes)
}

/// Takes the tables that know more moves of refs.
fn newest(tables: &mut Tables, other: Tables) {
    if other.sequence > tables.sequence {
        *tables = other;
    }
}

/// What opening the last pack works with.
struct Opening<'a> {
    disk: &'a dyn Disk,
    index: &'a Index,
    limit: u64,
}

impl Opening<'_> {
    /// Opens the last pack; `before` is the one before it, `tables` are those at its start.
    fn open_last(
        &self,
        last: u32,
        before: Option<u32>,
        tables: &Tables,
        mut damage: Vec<String>,
    ) -> Result<Recovered> {
        let Self { disk, index, limit } = *self;
        let mut notes = Vec::new();
        let file = open_pack(disk, last)?;
        let found = scan_open(disk, last, file.as_ref(), tables.clone())?;
        if found.scanned.end == 0 {
            let was_used = check_unused(disk, last, file.as_ref(), tables)?;
            drop(file);
            if !was_used {
                remove(disk, last)?;
            } else if before.is_none() && *tables == Tables::default() {
                let fault = "nothing in it can be read; restore it from a backup, or move it away \
                             to begin with an empty store";
                return Err(Error::FileMalformed { file: pack_name(last), fault });
            } else {
                let file = pack_name(last);
                set_aside(disk, &file)?;
                damage.push(format!("nothing in `{file}` could be read; it is set aside"));
            }
            let tables = found.scanned.tables;
            let number = if was_used { last + 1 } else { last };
            let created = create(disk, index, limit, number, &tables);
            // A full disk must not keep the store from being read.
            let writer = match before {
                Some(before) if !was_used => created.or_else(|_| self.resume(before))?,
                _ => created?,
            };
            return Ok(Recovered { writer, tables, damage, notes });
        }
        describe(last, &found.scanned, &mut damage);
        if found.is_cut_off {
            let file = pack_name(last);
            damage.push(format!("`{file}` is shorter than its index file says"));
        } else {
            notes.extend(cut(last, file.as_ref(), found.scanned.end)?);
            if found.checkpoint < found.scanned.end {
                make_durable(disk, last, file.as_ref())?;
            }
        }
        let tables = found.scanned.tables.clone();
        let writer = self.writer(last, file, found);
        Ok(Recovered { writer, tables, damage, notes })
    }

    /// Makes the writer of a pack that has been read.
    fn writer(&self, pack: u32, file: Arc<dyn DiskFile>, found: Opened) -> Writer {
        let Opened { scanned, checkpoint, index: known, is_cut_off } = found;
        self.index.add_file(pack, &file);
        let has_index = known.as_ref().is_some_and(IndexFile::is_sealed);
        let has_records = known.is_some() || !scanned.entries.is_empty();
        if let Some(known) = known {
            self.index.add_index(pack, known);
        }
        self.index.publish(&scanned.entries);
        let mut unindexed = Vec::new();
        if scanned.is_sealed && has_records && !has_index && !is_cut_off {
            unindexed.push((pack, scanned.end, scanned.tables));
        }
        Writer {
            pack,
            file,
            length: scanned.end,
            synced: scanned.end,
            has_records,
            is_pending: false,
            // Nothing is written behind a place where something is missing.
            is_sealed: scanned.is_sealed || is_cut_off,
            checkpoint,
            unindexed,
            limit: self.limit,
        }
    }

    /// Makes the writer of a sealed pack that is the last again.
    fn resume(&self, pack: u32) -> Result<Writer> {
        let file = open_pack(self.disk, pack)?;
        let length = length(pack, file.as_ref())?;
        Ok(Writer {
            pack,
            file,
            length,
            synced: length,
            has_records: true,
            is_pending: false,
            is_sealed: true,
            checkpoint: length,
            unindexed: Vec::new(),
            limit: self.limit,
        })
    }
}

/// Lists the files, and removes what an interrupted write of an index file left.
fn find_files(disk: &dyn Disk) -> Result<Files> {
    let failed = |source| Error::Read { file: disk.dir().display().to_string(), source };
    let mut files = Files::default();
    let mut indexed = Vec::new();
    for name in disk.list("").map_err(failed)? {
        if name.ends_with(".tmp") {
            disk.remove(&name).map_err(|source| Error::Write { file: name.clone(), source })?;
        }
        indexed.extend(name.strip_suffix(".index").and_then(pack_number));
        match pack_number(&name) {
            Some(pack) if is_collected(pack) => files.collected.push(pack),
            Some(pack) => files.packs.push(pack),
            None => {}
        }
    }
    files.packs.sort_unstable();
    files.collected.sort_unstable();
    let is_orphan = |pack: &u32| !is_collected(*pack) && !files.packs.contains(pack);
    files.orphans = indexed.into_iter().filter(is_orphan).collect();
    Ok(files)
}

fn create(
    disk: &dyn Disk,
    index: &Index,
    limit: u64,
    pack: u32,
    tables: &Tables,
) -> Result<Writer> {
    let (file, length) = begin_pack(disk, pack, tables.clone())
        .map_err(|source| Error::Write { file: pack_name(pack), source })?;
    index.add_file(pack, &file);
    Ok(Writer {
        pack,
        file,
        length,
        synced: length,
        has_records: false,
        is_pending: false,
        is_sealed: false,
        checkpoint: 0,
        unindexed: Vec::new(),
        limit,
    })
}

fn open_pack(disk: &dyn Disk, pack: u32) -> Result<Arc<dyn DiskFile>> {
    let file = pack_name(pack);
    disk.open(&file).map_err(|source| Error::Read { file, source })
}

fn length(pack: u32, file: &dyn DiskFile) -> Result<u64> {
    let failed = |source| Error::Read { file: pack_name(pack), source };
    file.len().map_err(failed)
}

/// Opens a pack that is not the last one; makes its index again if need be. Returns the tables at its end.
fn open_sealed(
    disk: &dyn Disk,
    index: &Index,
    pack: u32,
    before: Tables,
    damage: &mut Vec<String>,
) -> Result<Tables> {
    let file = open_pack(disk, pack)?;
    index.add_file(pack, &file);
    let known = IndexFile::open(disk, pack)?;
    let known = match known.filter(IndexFile::is_sealed) {
        Some(found) => {
            let tables = found.tables().clone();
            index.add_index(pack, found);
            return Ok(tables);
        }
        None => IndexFile::open(disk, pack)?.filter(IndexFile::is_intact),
    };
    let mut scanned = scan_all(pack, file.as_ref(), before)?;
    // Later packs exist, so the whole pack was synced before the first of them began.
    scanned.entries.append(&mut scanned.tail);
    describe(pack, &scanned, damage);
    let length = length(pack, file.as_ref())?;
    if let Some(known) = known.filter(|known| known.covered() > length) {
        // The index file stays as the proof until a repair.
        let file = pack_name(pack);
        damage.push(format!("`{file}` is shorter than its index file says"));
        newest(&mut scanned.tables, known.tables().clone());
        index.publish(&scanned.entries);
    } else {
        make_index(disk, index, pack, &mut scanned);
    }
    Ok(scanned.tables)
}

/// Opens a pack that a collection made; removes it if the collection did not come to its end. Returns the tables as
/// they were then.
fn open_collected(
    disk: &dyn Disk,
    index: &Index,
    pack: u32,
    damage: &mut Vec<String>,
) -> Result<Tables> {
    let file = open_pack(disk, pack)?;
    let found = IndexFile::open(disk, pack)?.filter(IndexFile::is_sealed);
    if let Some(found) = found {
        let tables = found.tables().clone();
        index.add_file(pack, &file);
        index.add_index(pack, found);
        return Ok(tables);
    }
    // The seal is written after everything before it is durable, and nothing is removed before the seal is.
    let mut scanned = scan_all(pack, file.as_ref(), Tables::default())?;
    if !scanned.is_sealed {
        drop(file);
        tracing::info!(file = pack_name(pack), "what an interrupted collection wrote is removed");
        remove(disk, pack)?;
        return Ok(Tables::default());
    }
    make_durable(disk, pack, file.as_ref())?;
    index.add_file(pack, &file);
    describe(pack, &scanned, damage);
    make_index(disk, index, pack, &mut scanned);
    Ok(scanned.tables)
}

/// Syncs a pack that is known by a scan, and its name: a process that was killed may have left both to the system's
/// caches, and what is built on them from now on must not outlive them.
fn make_durable(disk: &dyn Disk, pack: u32, file: &dyn DiskFile) -> Result<()> {
    let synced = file.sync().and_then(|()| disk.sync_folder(""));
    synced.map_err(|source| Error::Write { file: pack_name(pack), source })
}

/// Makes the index file of a pack that is not written any more again.
pub(super) fn remake_index(
    disk: &dyn Disk,
    index: &Index,
    pack: u32,
    file: &dyn DiskFile,
) -> Result<()> {
    let mut scanned = scan_all(pack, file, Tables::default())?;
    scanned.entries.append(&mut scanned.tail);
    make_index(disk, index, pack, &mut scanned);
    Ok(())
}

/// Writes the index of a pack that has been scanned; keeps what it says in memory if that fails.
fn make_index(disk: &dyn Disk, index: &Index, pack: u32, scanned: &mut Scanned) {
    let contents = Contents {
        pack,
        is_sealed: true,
        covered: scanned.end,
        entries: &mut scanned.entries,
        tables: &scanned.tables,
    };
    let written = index_file::write(disk, contents);
    match written.and_then(|()| IndexFile::open(disk, pack)) {
        Ok(Some(found)) => index.add_index(pack, found),
        Ok(None) => index.publish(&scanned.entries),
        Err(error) => {
            tracing::warn!(file = pack_name(pack), reason = %error, "index not written");
            index.publish(&scanned.entries);
        }
    }
}

struct Opened {
    scanned: Scanned,
    /// An index file covers the pack up to here.
    checkpoint: u64,
    index: Option<IndexFile>,
    /// The index file covers more than there is.
    is_cut_off: bool,
}

/// Reads the last pack: from its index where that covers it, by a scan from there on.
fn scan_open(disk: &dyn Disk, pack: u32, file: &dyn DiskFile, before: Tables) -> Result<Opened> {
    let length = length(pack, file)?;
    let known = IndexFile::open(disk, pack)?.filter(IndexFile::is_intact);
    let Some(index) = known.filter(|index| index.covered() <= length) else {
        let mut scanned = scan_all(pack, file, before)?;
        let longer = IndexFile::open(disk, pack)?.filter(IndexFile::is_intact);
        let is_cut_off = longer.is_some();
        if let Some(longer) = longer {
            scanned.entries.append(&mut scanned.tail);
            newest(&mut scanned.tables, longer.tables().clone());
        }
        return Ok(Opened { scanned, checkpoint: 0, index: None, is_cut_off });
    };
    let checkpoint = index.covered();
    let tables = index.tables().clone();
    let scanned = if index.is_sealed() {
        Scanned { tables, end: checkpoint, is_sealed: true, ..Scanned::default() }
    } else {
        let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
        scan::scan(pack, &bytes, checkpoint, tables)
    };
    Ok(Opened { scanned, checkpoint, index: Some(index), is_cut_off: false })
}

fn scan_all(pack: u32, file: &dyn DiskFile, before: Tables) -> Result<Scanned> {
    let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
    Ok(scan::scan(pack, &bytes, 0, before))
}

/// Tells whether a pack without a commit point was in use once: then it is damaged, else a crash came while it was
/// created.
///
/// # Errors
/// [`Error::FileMalformed`] for a pack of another format.
fn check_unused(disk: &dyn Disk, pack: u32, file: &dyn DiskFile, before: &Tables) -> Result<bool> {
    let failed = |source| Error::Read { file: pack_name(pack), source };
    let bytes = file.map().map_err(failed)?;
    let is_head = record_at(pack, &bytes, 0).is_some_and(|found| found.header.kind == Kind::Head);
    if is_head {
        return Err(Error::FileMalformed {
            file: pack_name(pack),
            fault: "it is a pack of another format version; start the program that wrote it",
        });
    }
    // A crash leaves no more than the head that was being written.
    let head = HEADER_BYTES + Head { pack, tables: before.clone() }.encode().len();
    Ok(bytes.len() > head || IndexFile::open(disk, pack)?.is_some())
}

/// Removes a pack that was never in use, and the index that a former pack of its number may have left.
fn remove(disk: &dyn Disk, pack: u32) -> Result<()> {
    let file = pack_name(pack);
    let removed = disk.remove(&file).and_then(|()| disk.sync_folder(""));
    removed.map_err(|source| Error::Write { file, source })
}

/// Cuts what was never acknowledged off a pack. Returns a note of it.
fn cut(pack: u32, file: &dyn DiskFile, end: u64) -> Result<Option<String>> {
    let length = length(pack, file)?;
    if length <= end {
        return Ok(None);
    }
    let bytes = length - end;
    tracing::warn!(file = pack_name(pack), bytes, "unfinished write removed");
    let done = file.truncate(end).and_then(|()| file.sync());
    let name = pack_name(pack);
    done.map_err(|source| Error::Write { file: name.clone(), source })?;
    Ok(Some(format!(
        "the last {bytes} bytes of `{name}`, a commit that did not come to its end, were cut off"
    )))
}

fn describe(pack: u32, scanned: &Scanned, damage: &mut Vec<String>) {
    for range in &scanned.damaged {
        let file = pack_name(pack);
        let (start, end) = (range.start, range.end);
        tracing::error!(file, start, end, "a durable part of a pack is damaged");
        damage.push(format!("`{file}` is damaged from byte {start} to {end}"));
    }
    for moves in &scanned.lost_moves {
        let file = pack_name(pack);
        let (start, end) = (moves.start, moves.end - 1);
        tracing::error!(file, start, end, "moves of refs are lost");
        damage.push(format!(
            "`{file}`: the moves {start} to {end} of refs are lost; a ref may stand where it was before"
        ));
    }
}
