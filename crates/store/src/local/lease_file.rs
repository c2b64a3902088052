//! Leases of clients that cannot write packs: one file each, in the folder `leases`.
//!
//! A file is there whole or not at all. One that cannot be read is an error, as nobody knows what it keeps.
//! The format is `docs/formats/lease.md`.

use crate::batch::LeaseUpdate;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::keep::Lease;

use super::payload::{check_lease, decode_lease, encode_lease};

/// Where the leases of a store lie.
pub(super) const FOLDER: &str = "leases";
const UNFINISHED: &str = ".tmp";
const MAGIC: [u8; 8] = *b"TYMPlea1";
/// No lease is longer: flags, holder, root, time.
const MAX_BYTES: u64 = 1_024;

/// Grants a lease, durably.
pub(super) fn write(disk: &dyn Disk, folder: &str, lease: &Lease) -> Result<()> {
    check_lease(&LeaseUpdate::Grant(lease.clone()))?;
    let mut bytes = MAGIC.to_vec();
    encode_lease(lease, &mut bytes);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let name = file_name(folder, &lease.holder);
    let unfinished = format!("{name}{UNFINISHED}");
    let write = || {
        let file = disk.create(&unfinished)?;
        file.append(&bytes)?;
        file.sync()?;
        disk.rename(&unfinished, &name)?;
        disk.sync_folder(folder)
    };
    write().map_err(|source| Error::Write { file: name.clone(), source })
}

/// Ends a lease, if there is one.
pub(super) fn remove(disk: &dyn Disk, folder: &str, holder: &str) -> Result<()> {
    let file = file_name(folder, holder);
    let removed = match disk.remove(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| disk.sync_folder(folder)),
    };
    removed.map_err(|source| Error::Write { file, source })
}

/// Returns all leases, expired ones too.
///
/// # Errors
/// [`Error::FileMalformed`] that names the file, or a failed read.
pub(super) fn read_all(disk: &dyn Disk, folder: &str) -> Result<Vec<Lease>> {
    let failed = |source| Error::Read { file: folder.to_owned(), source };
    let names = disk.list(folder).map_err(failed)?;
    let mut leases = Vec::new();
    for name in names.iter().filter(|name| !name.ends_with(UNFINISHED)) {
        leases.extend(read(disk, folder, name)?);
    }
    Ok(leases)
}

/// Reads a lease; `None` if it has ended meanwhile.
fn read(disk: &dyn Disk, folder: &str, name: &str) -> Result<Option<Lease>> {
    let file = path_in(folder, name);
    let read = || {
        let open = disk.open(&file)?;
        let mut bytes = vec![0; usize::try_from(open.len()?.min(MAX_BYTES)).unwrap_or(0)];
        open.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Ok(bytes) => bytes,
        Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(source) => return Err(Error::Read { file, source }),
    };
    let fault = "it is damaged, so what it keeps is unknown; remove it once its holder is stopped";
    let lease = parse(&bytes).filter(|lease| file_name(folder, &lease.holder) == file);
    lease.map(Some).ok_or(Error::FileMalformed { file, fault })
}

fn parse(bytes: &[u8]) -> Option<Lease> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    decode_lease(body.strip_prefix(&MAGIC)?)
}

/// Returns the file of a holder: as much of the name as any disk takes, for people, and a part of its hash.
fn file_name(folder: &str, holder: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain: String = holder.chars().filter(is_plain).take(64).collect();
    let hash = blake3::hash(holder.as_bytes()).to_hex();
    path_in(folder, &format!("{plain}-{}", hash.get(..16).unwrap_or_default()))
}

/// Returns the name of a file in a folder; `""` is the disk's own.
fn path_in(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::disk::MemoryDisk;
    use crate::id::ChunkId;

    fn lease(holder: &str, seconds: Option<u64>) -> Lease {
        let expires = seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        Lease { holder: holder.to_owned(), root: ChunkId::of(holder.as_bytes()), expires }
    }

    #[test]
    fn leases_are_read_back_until_they_end() {
        let disk = MemoryDisk::new();
        assert_eq!(read_all(&disk, FOLDER).unwrap(), []);
        write(&disk, FOLDER, &lease("a/../b", Some(7))).unwrap();
        write(&disk, FOLDER, &lease("other", None)).unwrap();
        write(&disk, FOLDER, &lease("a/../b", Some(9))).unwrap();
        let mut found = read_all(&disk, FOLDER).unwrap();
        found.sort_by(|left, right| left.holder.cmp(&right.holder));
        assert_eq!(found, [lease("a/../b", Some(9)), lease("other", None)]);
        disk.put("leases/half.tmp", vec![1]);
        remove(&disk, FOLDER, "other").unwrap();
        remove(&disk, FOLDER, "other").unwrap();
        assert_eq!(read_all(&disk, FOLDER).unwrap(), [lease("a/../b", Some(9))]);
        assert!(write(&disk, FOLDER, &lease("", None)).is_err());
    }

    #[test]
    fn damage_is_named() {
        let disk = MemoryDisk::new();
        write(&disk, FOLDER, &lease("ann", Some(7))).unwrap();
        let file = file_name(FOLDER, "ann");
        let bytes = disk.content(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            disk.put(&file, damaged);
            let error = read_all(&disk, FOLDER).unwrap_err();
            assert!(error.to_string().contains(&file), "{error}");
            disk.put(&file, bytes[..at].to_vec());
            assert!(read_all(&disk, FOLDER).is_err(), "cut {at}");
        }
        disk.put(&file, Vec::new());
        disk.put("leases/ffff", bytes);
        assert!(read_all(&disk, FOLDER).is_err(), "a lease under the name of another");
    }
}
