//! Opening: what a crash left is finished or undone.

use std::sync::Arc;

use super::index::Index;
use super::index_file::{self, Contents, IndexFile};
use super::payload::Tables;
use super::record::Kind;
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
}

/// Opens all packs and fills the index.
pub(super) fn recover(disk: &dyn Disk, index: &Index, limit: u64) -> Result<Recovered> {
    let mut damage = Vec::new();
    let (mut packs, collected): (Vec<u32>, Vec<u32>) =
        find_packs(disk)?.into_iter().partition(|pack| !is_collected(*pack));
    let mut tables = Tables::default();
    if let (Some(pack), []) = (collected.first(), packs.as_slice()) {
        let file = pack_name(*pack);
        return Err(Error::FileMalformed { file, fault: "the packs that hold the refs are gone" });
    }
    for pack in collected {
        open_collected(disk, index, pack, &mut damage)?;
    }
    let Some(mut last) = packs.pop() else {
        return create(disk, index, limit, 1, &tables).map(|writer| Recovered {
            writer,
            tables,
            damage,
        });
    };
    for pack in &packs {
        tables = open_sealed(disk, index, *pack, tables, &mut damage)?;
    }
    let mut file = open_pack(disk, last)?;
    let mut found = scan_open(disk, last, file.as_ref(), tables.clone())?;
    if found.scanned.end == 0 {
        // The pack was being created; nothing in it was ever acknowledged.
        check_unused(last, file.as_ref())?;
        drop(file);
        let Some(before) = packs.pop() else {
            let writer = create(disk, index, limit, last, &tables)?;
            return Ok(Recovered { writer, tables, damage });
        };
        remove(disk, last)?;
        last = before;
        file = open_pack(disk, last)?;
        let length = length(last, file.as_ref())?;
        found = Opened {
            scanned: Scanned { tables, end: length, is_sealed: true, ..Scanned::default() },
            checkpoint: length,
            index: None,
        };
    } else {
        cut(last, file.as_ref(), found.scanned.end)?;
    }
    let Opened { scanned, checkpoint, index: known } = found;
    describe(last, &scanned, &mut damage);
    index.add_file(last, &file);
    let has_index = known.as_ref().is_some_and(IndexFile::is_sealed);
    let has_records = known.is_some() || !scanned.entries.is_empty();
    if let Some(known) = known {
        index.add_index(last, known);
    }
    index.publish(&scanned.entries);
    let mut writer = Writer {
        pack: last,
        file,
        length: scanned.end,
        synced: scanned.end,
        has_records,
        is_pending: false,
        is_sealed: scanned.is_sealed,
        checkpoint,
        unindexed: Vec::new(),
        limit,
    };
    if scanned.is_sealed && has_records && !has_index {
        let due = (last, scanned.end, scanned.tables.clone());
        writer.unindexed.push(due);
    }
    Ok(Recovered { writer, tables: scanned.tables, damage })
}

/// Returns the numbers of the packs, and removes what an interrupted write of an index file left.
fn find_packs(disk: &dyn Disk) -> Result<Vec<u32>> {
    let failed = |source| Error::Read { file: disk.dir().display().to_string(), source };
    let mut packs = Vec::new();
    for name in disk.list("").map_err(failed)? {
        if name.ends_with(".tmp") {
            disk.remove(&name).map_err(|source| Error::Write { file: name.clone(), source })?;
        }
        packs.extend(pack_number(&name));
    }
    packs.sort_unstable();
    Ok(packs)
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
    if let Some(found) = IndexFile::open(disk, pack).filter(IndexFile::is_sealed) {
        let tables = found.tables().clone();
        index.add_index(pack, found);
        return Ok(tables);
    }
    let mut scanned = scan_all(pack, file.as_ref(), before)?;
    // Later packs exist, so the whole pack was synced before the first of them began.
    scanned.entries.append(&mut scanned.tail);
    describe(pack, &scanned, damage);
    make_index(disk, index, pack, &mut scanned);
    Ok(scanned.tables)
}

/// Opens a pack that a collection made; removes it if the collection did not come to its end.
fn open_collected(
    disk: &dyn Disk,
    index: &Index,
    pack: u32,
    damage: &mut Vec<String>,
) -> Result<()> {
    let file = open_pack(disk, pack)?;
    let found = IndexFile::open(disk, pack).filter(IndexFile::is_sealed);
    if let Some(found) = found {
        index.add_file(pack, &file);
        index.add_index(pack, found);
        return Ok(());
    }
    // The seal is written after everything before it is durable, and nothing is removed before the seal is.
    let mut scanned = scan_all(pack, file.as_ref(), Tables::default())?;
    if !scanned.is_sealed {
        drop(file);
        tracing::info!(file = pack_name(pack), "what an interrupted collection wrote is removed");
        return remove(disk, pack);
    }
    index.add_file(pack, &file);
    describe(pack, &scanned, damage);
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
    match written.map(|()| IndexFile::open(disk, pack)) {
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
}

/// Reads the last pack: from its index where that covers it, by a scan from there on.
fn scan_open(disk: &dyn Disk, pack: u32, file: &dyn DiskFile, before: Tables) -> Result<Opened> {
    let length = length(pack, file)?;
    let known =
        IndexFile::open(disk, pack).filter(|index| index.covered() <= length && index.is_intact());
    let Some(index) = known else {
        let scanned = scan_all(pack, file, before)?;
        return Ok(Opened { scanned, checkpoint: 0, index: None });
    };
    let checkpoint = index.covered();
    let tables = index.tables().clone();
    let scanned = if index.is_sealed() {
        Scanned { tables, end: checkpoint, is_sealed: true, ..Scanned::default() }
    } else {
        let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
        scan::scan(pack, &bytes, checkpoint, tables)
    };
    Ok(Opened { scanned, checkpoint, index: Some(index) })
}

fn scan_all(pack: u32, file: &dyn DiskFile, before: Tables) -> Result<Scanned> {
    let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
    Ok(scan::scan(pack, &bytes, 0, before))
}

/// Refuses to take a file for unused that is not ours.
fn check_unused(pack: u32, file: &dyn DiskFile) -> Result<()> {
    let failed = |source| Error::Read { file: pack_name(pack), source };
    let bytes = file.map().map_err(failed)?;
    let is_head = record_at(pack, &bytes, 0).is_some_and(|found| found.header.kind == Kind::Head);
    if is_head {
        return Err(Error::FileMalformed {
            file: pack_name(pack),
            fault: "it is a pack of another format version",
        });
    }
    Ok(())
}

/// Removes a pack that was never in use, and the index that a former pack of its number may have left.
fn remove(disk: &dyn Disk, pack: u32) -> Result<()> {
    let file = pack_name(pack);
    let removed = disk.remove(&file).and_then(|()| disk.sync_folder(""));
    removed.map_err(|source| Error::Write { file, source })
}

/// Cuts what was never acknowledged off a pack.
fn cut(pack: u32, file: &dyn DiskFile, end: u64) -> Result<()> {
    let length = length(pack, file)?;
    if length <= end {
        return Ok(());
    }
    let bytes = length - end;
    tracing::warn!(file = pack_name(pack), bytes, "unfinished write removed");
    let done = file.truncate(end).and_then(|()| file.sync());
    done.map_err(|source| Error::Write { file: pack_name(pack), source })
}

fn describe(pack: u32, scanned: &Scanned, damage: &mut Vec<String>) {
    for range in &scanned.damaged {
        let file = pack_name(pack);
        let (start, end) = (range.start, range.end);
        tracing::error!(file, start, end, "a durable part of a pack is damaged");
        damage.push(format!("`{file}` is damaged from byte {start} to {end}"));
    }
}
