//! Leases of clients that cannot write packs: one file each, in the folder `leases`.
//!
//! A file is written atomically. A file that cannot be read is an error, because it is unknown which root it retains.
//! The format is `docs/formats/lease.md`.

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::interface::chunk_batch::LeaseUpdate;
use crate::interface::root_retention::RootLease;

use super::record_payload::{check_lease_update, decode_lease, encode_lease};

/// The folder with the leases of a store.
pub(super) const LEASE_FOLDER: &str = "leases";
const UNFINISHED_SUFFIX: &str = ".tmp";
const LEASE_MAGIC: [u8; 8] = *b"TYMPlea1";
/// The maximum length of a lease in bytes: flags, holder, root, time.
const MAX_LEASE_BYTES: u64 = 1_024;

/// Grants a lease, durably.
pub(super) fn write_lease(disk: &dyn Disk, folder: &str, lease: &RootLease) -> Result<()> {
    check_lease_update(&LeaseUpdate::Grant(lease.clone()))?;
    let mut bytes = LEASE_MAGIC.to_vec();
    encode_lease(lease, &mut bytes);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    let name = lease_file_name(folder, &lease.holder);
    let unfinished = format!("{name}{UNFINISHED_SUFFIX}");
    let write = || {
        let file = disk.create_file(&unfinished)?;
        file.append(&bytes)?;
        file.sync()?;
        disk.rename_file(&unfinished, &name)?;
        disk.sync_folder(folder)
    };
    write().map_err(|source| Error::FileWrite { file: name.clone(), source })
}

/// Ends a lease, if it exists.
pub(super) fn remove_lease(disk: &dyn Disk, folder: &str, holder: &str) -> Result<()> {
    let file = lease_file_name(folder, holder);
    let removed = match disk.remove_file(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| disk.sync_folder(folder)),
    };
    removed.map_err(|source| Error::FileWrite { file, source })
}

/// Returns all leases, including expired ones.
///
/// # Errors
/// [`Error::FileMalformed`] that names the file, or a failed read.
pub(super) fn read_leases(disk: &dyn Disk, folder: &str) -> Result<Vec<RootLease>> {
    let failed = |source| Error::FileRead { file: folder.to_owned(), source };
    let names = disk.list_folder(folder).map_err(failed)?;
    let mut leases = Vec::new();
    for name in names.iter().filter(|name| !name.ends_with(UNFINISHED_SUFFIX)) {
        leases.extend(read_lease(disk, folder, name)?);
    }
    Ok(leases)
}

/// Reads a lease; `None` if it has ended since the folder was listed.
fn read_lease(disk: &dyn Disk, folder: &str, name: &str) -> Result<Option<RootLease>> {
    let file = path_in_folder(folder, name);
    let read = || {
        let open = disk.open_file(&file)?;
        let mut bytes = vec![0; usize::try_from(open.len()?.min(MAX_LEASE_BYTES)).unwrap_or(0)];
        open.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Ok(bytes) => bytes,
        Err(error) if std::io::Error::kind(&error) == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(source) => return Err(Error::FileRead { file, source }),
    };
    let fault = "it is damaged, so the root that it retains is unknown; remove it once its holder is stopped";
    let lease = parse_lease(&bytes).filter(|lease| lease_file_name(folder, &lease.holder) == file);
    lease.map(Some).ok_or(Error::FileMalformed { file, fault })
}

fn parse_lease(bytes: &[u8]) -> Option<RootLease> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    decode_lease(body.strip_prefix(&LEASE_MAGIC)?)
}

/// Returns the path of a holder's lease file. The name has a readable part, as much of the holder as any disk accepts,
/// and a part of the holder's hash.
fn lease_file_name(folder: &str, holder: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain: String = holder.chars().filter(is_plain).take(64).collect();
    let hash = blake3::hash(holder.as_bytes()).to_hex();
    path_in_folder(folder, &format!("{plain}-{}", hash.get(..16).unwrap_or_default()))
}

/// Returns the path of a file in a folder; `""` is the disk's own folder.
fn path_in_folder(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::disk::MemoryDisk;
    use crate::id::ChunkId;

    fn lease(holder: &str, seconds: Option<u64>) -> RootLease {
        let expires = seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
        RootLease {
            holder: holder.to_owned(),
            root: ChunkId::hash_of(holder.as_bytes()),
            expires_at: expires,
        }
    }

    #[test]
    fn leases_are_read_back_until_they_end() {
        let disk = MemoryDisk::new();
        assert_eq!(read_leases(&disk, LEASE_FOLDER).unwrap(), []);
        write_lease(&disk, LEASE_FOLDER, &lease("a/../b", Some(7))).unwrap();
        write_lease(&disk, LEASE_FOLDER, &lease("other", None)).unwrap();
        write_lease(&disk, LEASE_FOLDER, &lease("a/../b", Some(9))).unwrap();
        let mut leases = read_leases(&disk, LEASE_FOLDER).unwrap();
        leases.sort_by(|left, right| left.holder.cmp(&right.holder));
        assert_eq!(leases, [lease("a/../b", Some(9)), lease("other", None)]);
        disk.put_file("leases/half.tmp", vec![1]);
        remove_lease(&disk, LEASE_FOLDER, "other").unwrap();
        remove_lease(&disk, LEASE_FOLDER, "other").unwrap();
        assert_eq!(read_leases(&disk, LEASE_FOLDER).unwrap(), [lease("a/../b", Some(9))]);
        assert!(write_lease(&disk, LEASE_FOLDER, &lease("", None)).is_err());
    }

    #[test]
    fn damage_is_named() {
        let disk = MemoryDisk::new();
        write_lease(&disk, LEASE_FOLDER, &lease("ann", Some(7))).unwrap();
        let file = lease_file_name(LEASE_FOLDER, "ann");
        let bytes = disk.file_content(&file).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            disk.put_file(&file, damaged);
            let error = read_leases(&disk, LEASE_FOLDER).unwrap_err();
            assert!(error.to_string().contains(&file), "{error}");
            disk.put_file(&file, bytes[..at].to_vec());
            assert!(read_leases(&disk, LEASE_FOLDER).is_err(), "cut {at}");
        }
        disk.put_file(&file, Vec::new());
        disk.put_file("leases/ffff", bytes);
        assert!(read_leases(&disk, LEASE_FOLDER).is_err(), "a lease under the name of another");
    }
}
