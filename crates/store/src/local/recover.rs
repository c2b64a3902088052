//! Opening: what a crash left is finished or undone.

use std::sync::Arc;

use super::index::Index;
use super::index_file::{self, Contents, IndexFile};
use super::pack_name;
use super::payload::Refs;
use super::record::Kind;
use super::scan::{self, Scanned, record_at};
use super::writer::{Writer, begin_pack};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};

/// A store as found.
pub(super) struct Recovered {
    pub(super) writer: Writer,
    pub(super) refs: Refs,
    /// Places that were durable once and can no longer be read.
    pub(super) damage: Vec<String>,
}

/// Opens all packs and fills the index.
pub(super) fn recover(disk: &dyn Disk, index: &Index, limit: u64) -> Result<Recovered> {
    let mut packs = find_packs(disk)?;
    let mut damage = Vec::new();
    let mut refs = Refs::new();
    let Some(mut last) = packs.pop() else {
        return create(disk, index, limit, 1, &refs).map(|writer| Recovered {
            writer,
            refs,
            damage,
        });
    };
    for pack in &packs {
        refs = open_sealed(disk, index, *pack, refs, &mut damage)?;
    }
    let mut file = open_pack(disk, last)?;
    let mut found = scan_open(disk, last, file.as_ref(), refs.clone())?;
    if found.scanned.end == 0 {
        // The pack was being created; nothing in it was ever acknowledged.
        check_unused(last, file.as_ref())?;
        drop(file);
        let Some(before) = packs.pop() else {
            let writer = create(disk, index, limit, last, &refs)?;
            return Ok(Recovered { writer, refs, damage });
        };
        remove(disk, last)?;
        last = before;
        file = open_pack(disk, last)?;
        let length = length(last, file.as_ref())?;
        found = Opened {
            scanned: Scanned { refs, end: length, is_sealed: true, ..Scanned::default() },
            checkpoint: length,
        };
    } else {
        cut(last, file.as_ref(), found.scanned.end)?;
    }
    let Opened { scanned, checkpoint } = found;
    describe(last, &scanned, &mut damage);
    index.add_file(last, Arc::clone(&file));
    index.publish(&scanned.entries);
    let mut writer = Writer {
        pack: last,
        file,
        length: scanned.end,
        synced: scanned.end,
        has_records: !scanned.entries.is_empty(),
        is_pending: false,
        is_sealed: scanned.is_sealed,
        checkpoint,
        unindexed: Vec::new(),
        limit,
    };
    if scanned.is_sealed && !scanned.entries.is_empty() {
        let due = (last, scanned.end, scanned.refs.clone());
        writer.unindexed.push(due);
    }
    Ok(Recovered { writer, refs: scanned.refs, damage })
}

/// Returns the numbers of the packs, and removes what an interrupted write of an index file left.
fn find_packs(disk: &dyn Disk) -> Result<Vec<u32>> {
    let failed = |source| Error::Read { file: disk.dir().display().to_string(), source };
    let mut packs = Vec::new();
    for name in disk.list("").map_err(failed)? {
        if name.ends_with(".tmp") {
            disk.remove(&name).map_err(|source| Error::Write { file: name.clone(), source })?;
        }
        let number = name.strip_prefix("pack-").and_then(|rest| rest.parse().ok());
        packs.extend(number.filter(|pack| pack_name(*pack) == name));
    }
    packs.sort_unstable();
    Ok(packs)
}

fn create(disk: &dyn Disk, index: &Index, limit: u64, pack: u32, refs: &Refs) -> Result<Writer> {
    let (file, length) = begin_pack(disk, pack, refs.clone())
        .map_err(|source| Error::Write { file: pack_name(pack), source })?;
    index.add_file(pack, Arc::clone(&file));
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

/// Opens a pack that is not the last one; makes its index again if need be. Returns the refs at its end.
fn open_sealed(
    disk: &dyn Disk,
    index: &Index,
    pack: u32,
    before: Refs,
    damage: &mut Vec<String>,
) -> Result<Refs> {
    let file = open_pack(disk, pack)?;
    index.add_file(pack, Arc::clone(&file));
    let found = IndexFile::open(disk, pack).filter(IndexFile::is_sealed);
    if let Some((found, refs)) = found.and_then(|found| {
        let refs = found.refs()?;
        Some((found, refs))
    }) {
        index.add_index(pack, found);
        return Ok(refs);
    }
    let mut scanned = scan_all(pack, file.as_ref(), before)?;
    // Later packs exist, so the whole pack was synced before the first of them began.
    scanned.entries.append(&mut scanned.tail);
    describe(pack, &scanned, damage);
    let contents = Contents {
        pack,
        is_sealed: true,
        covered: scanned.end,
        entries: &mut scanned.entries,
        refs: &scanned.refs,
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
    Ok(scanned.refs)
}

struct Opened {
    scanned: Scanned,
    /// An index file covers the pack up to here.
    checkpoint: u64,
}

/// Reads the last pack: from its index where that covers it, by a scan from there on.
fn scan_open(disk: &dyn Disk, pack: u32, file: &dyn DiskFile, before: Refs) -> Result<Opened> {
    let length = length(pack, file)?;
    let known = IndexFile::open(disk, pack)
        .filter(|index| index.covered() <= length && index.is_intact())
        .and_then(|index| {
            let refs = index.refs()?;
            Some((index, refs))
        });
    let Some((index, refs)) = known else {
        let scanned = scan_all(pack, file, before)?;
        return Ok(Opened { scanned, checkpoint: 0 });
    };
    let checkpoint = index.covered();
    let mut scanned = if index.is_sealed() {
        Scanned { refs, end: checkpoint, is_sealed: true, ..Scanned::default() }
    } else {
        let bytes = file.map().map_err(|source| Error::Read { file: pack_name(pack), source })?;
        scan::scan(pack, &bytes, checkpoint, refs)
    };
    scanned.entries.extend(index.entries());
    Ok(Opened { scanned, checkpoint })
}

fn scan_all(pack: u32, file: &dyn DiskFile, before: Refs) -> Result<Scanned> {
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
