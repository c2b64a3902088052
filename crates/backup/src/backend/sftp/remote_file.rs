//! The file operations of a vault over one channel.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use russh_sftp::client::RawSftpSession;
use russh_sftp::protocol::{File, FileAttributes, OpenFlags, Packet, StatusCode};

use super::failure::SftpFailure;
use super::link::{SftpCapabilities, SftpChannel};
use crate::backend::vault_file::{TEMP_DIR, vault_folders};
use crate::object_id::VaultObjectId;

/// Maximum bytes per request: every server accepts this many.
const MAX_REQUEST_BYTES: usize = 32 << 10;
/// Maximum number of concurrent read requests for one file.
const MAX_PIPELINED_READS: usize = 64;
/// Maximum number of concurrent requests about folders.
const MAX_PIPELINED_FOLDERS: usize = 32;
/// Minimum age of a file in `tmp` before it counts as abandoned: clocks may differ, and a slow writer keeps writing.
const MIN_SWEEP_AGE: Duration = Duration::from_hours(24);

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The file type bits of a mode, and the values for a regular file and a folder.
const MODE_KIND_MASK: u32 = 0o170_000;
const MODE_REGULAR_FILE: u32 = 0o100_000;
const MODE_FOLDER: u32 = 0o040_000;

type SftpResult<T> = Result<T, SftpFailure>;

const fn attributes_with_mode(mode: u32) -> FileAttributes {
    FileAttributes {
        size: None,
        uid: None,
        user: None,
        gid: None,
        group: None,
        permissions: Some(mode),
        atime: None,
        mtime: None,
    }
}

fn is_file_kind(attributes: &FileAttributes, kind: u32) -> bool {
    attributes.permissions.is_none_or(|mode| mode & MODE_KIND_MASK == kind)
}

/// Lists a folder.
pub(super) async fn list_folder(channel: &Arc<SftpChannel>, path: &str) -> SftpResult<Vec<File>> {
    let handle = open_folder(channel, path).await?;
    list_open_folder(channel, handle).await
}

/// Opens a folder for listing.
pub(super) async fn open_folder(channel: &SftpChannel, path: &str) -> SftpResult<String> {
    Ok(channel.sftp.opendir(path).await?.handle)
}

/// Lists an open folder and closes it.
async fn list_open_folder(channel: &Arc<SftpChannel>, handle: String) -> SftpResult<Vec<File>> {
    let sftp = &channel.sftp;
    let mut files = Vec::new();
    // A short listing ends with the second response, which reports the end.
    let mut ahead = 2;
    let listed = loop {
        let requests = stream::iter(0..ahead).map(|_| sftp.readdir(handle.clone()));
        let responses: Vec<_> = requests.buffered(ahead).collect().await;
        let mut is_over = false;
        let mut failed = None;
        for response in responses {
            match response.map_err(SftpFailure::from) {
                Ok(listing) => files.extend(listing.files),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => is_over = true,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => break Err(error),
            None if is_over => break Ok(()),
            None => ahead = 8,
        }
    };
    close_later(channel.clone(), handle);
    listed?;
    files.retain(|file| file.filename != "." && file.filename != "..");
    Ok(files)
}

/// Lists the files in a folder whose names are ids.
pub(super) async fn list_ids(
    channel: &Arc<SftpChannel>,
    path: &str,
) -> SftpResult<Vec<(VaultObjectId, u64)>> {
    let handle = open_folder(channel, path).await?;
    list_ids_in_open_folder(channel, path, handle).await
}

/// Like `list_ids`, for an open folder, which it closes.
pub(super) async fn list_ids_in_open_folder(
    channel: &Arc<SftpChannel>,
    path: &str,
    handle: String,
) -> SftpResult<Vec<(VaultObjectId, u64)>> {
    let files = list_open_folder(channel, handle).await?;
    let mut named = Vec::new();
    for file in files.into_iter().filter(|file| is_file_kind(&file.attrs, MODE_REGULAR_FILE)) {
        let Ok(id) = file.filename.parse() else { continue };
        // Hosts may omit the length. A file that is skipped would be treated as missing.
        let length = match file.attrs.size {
            Some(length) => length,
            None => file_length(channel, &format!("{path}/{}", file.filename)).await?,
        };
        named.push((id, length));
    }
    Ok(named)
}

async fn file_length(channel: &SftpChannel, path: &str) -> SftpResult<u64> {
    let size = channel.sftp.stat(path).await?.attrs.size;
    size.ok_or_else(|| {
        SftpFailure::Rejected(std::io::Error::new(
            ErrorKind::InvalidData,
            format!("the host does not report the size of `{path}`"),
        ))
    })
}

/// Lists the packs, which are spread over many folders.
pub(super) async fn list_packs(
    channel: &Arc<SftpChannel>,
    path: &str,
) -> SftpResult<Vec<(VaultObjectId, u64)>> {
    let folders = list_folder(channel, path).await?;
    let folders = folders.into_iter().filter(|folder| is_file_kind(&folder.attrs, MODE_FOLDER));
    let packs = stream::iter(folders).map(|folder| async move {
        match list_ids(channel, &format!("{path}/{}", folder.filename)).await {
            // Another process removed it concurrently.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    });
    let packs: Vec<Vec<(VaultObjectId, u64)>> =
        packs.buffer_unordered(MAX_PIPELINED_FOLDERS).try_collect().await?;
    Ok(packs.into_iter().flatten().collect())
}

/// Returns the length of a file; `None` if it does not exist.
pub(super) async fn find_file_length(channel: &SftpChannel, path: &str) -> SftpResult<Option<u64>> {
    match channel.sftp.stat(path).await.map_err(SftpFailure::from) {
        Ok(response) => Ok(Some(response.attrs.size.unwrap_or(0))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a file.
pub(super) async fn read_file(channel: Arc<SftpChannel>, path: &str) -> SftpResult<Vec<u8>> {
    let sftp = &channel.sftp;
    let handle = sftp.open(path, OpenFlags::READ, FileAttributes::empty()).await?.handle;
    // The length and the start of the file arrive in one round trip, which is enough for a short file.
    let (facts, first) = tokio::join!(
        sftp.fstat(handle.clone()),
        read_request_range(sftp, &handle, (0, MAX_REQUEST_BYTES))
    );
    let whole = async {
        let length = facts?.attrs.size.unwrap_or(0);
        let mut bytes = first?;
        if bytes.len() == MAX_REQUEST_BYTES && length > MAX_REQUEST_BYTES as u64 {
            let rest = usize::try_from(length - MAX_REQUEST_BYTES as u64).unwrap_or(usize::MAX);
            bytes.extend(read_handle_range(sftp, &handle, MAX_REQUEST_BYTES as u64, rest).await?);
        }
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(SftpFailure::Rejected(ErrorKind::UnexpectedEof.into()))
        }
    };
    let whole = whole.await;
    close_later(channel.clone(), handle);
    whole
}

/// Reads a range of a file.
pub(super) async fn read_file_range(
    channel: Arc<SftpChannel>,
    path: &str,
    (start, length): (u64, usize),
) -> SftpResult<Vec<u8>> {
    let sftp = &channel.sftp;
    let handle = sftp.open(path, OpenFlags::READ, FileAttributes::empty()).await?.handle;
    let bytes = read_handle_range(sftp, &handle, start, length).await;
    close_later(channel.clone(), handle);
    let bytes = bytes?;
    if bytes.len() == length {
        Ok(bytes)
    } else {
        Err(SftpFailure::Rejected(ErrorKind::UnexpectedEof.into()))
    }
}

/// Closes a file or folder without waiting for the response.
pub(super) fn close_later(channel: Arc<SftpChannel>, handle: String) {
    tokio::spawn(async move { channel.sftp.close(handle).await.ok() });
}

/// Reads up to a number of bytes, fewer at the end of the file.
async fn read_handle_range(
    sftp: &RawSftpSession,
    handle: &str,
    start: u64,
    length: usize,
) -> SftpResult<Vec<u8>> {
    let pieces = (0..length.div_ceil(MAX_REQUEST_BYTES)).map(|number| {
        let begin = number * MAX_REQUEST_BYTES;
        (start + begin as u64, MAX_REQUEST_BYTES.min(length - begin))
    });
    let mut pieces = stream::iter(pieces)
        .map(|piece| read_request_range(sftp, handle, piece))
        .buffered(MAX_PIPELINED_READS);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        let is_last = piece.len() < MAX_REQUEST_BYTES;
        bytes.extend(piece);
        // An index may claim far more bytes than the file has.
        if is_last {
            break;
        }
    }
    Ok(bytes)
}

/// Reads one piece, with more than one request if the server returns fewer bytes than requested.
async fn read_request_range(
    sftp: &RawSftpSession,
    handle: &str,
    (start, length): (u64, usize),
) -> SftpResult<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let requested_length = u32::try_from(length - bytes.len()).unwrap_or(u32::MAX);
        match sftp
            .read(handle, start + bytes.len() as u64, requested_length)
            .await
            .map_err(SftpFailure::from)
        {
            Ok(data) if data.data.is_empty() => break,
            Ok(data) if data.data.len() > requested_length as usize => {
                let text = "the host sent more data than requested";
                return Err(SftpFailure::Rejected(io::Error::new(ErrorKind::InvalidData, text)));
            }
            Ok(data) => bytes.extend(data.data),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// A file that is open for a later write, in the folder of temporary files.
pub(super) struct SpareFile {
    pub(super) channel: Arc<SftpChannel>,
    temp_name: String,
    handle: String,
}

/// Opens a file under a unique name.
pub(super) async fn open_spare_file(
    channel: Arc<SftpChannel>,
    temporary: &str,
) -> SftpResult<SpareFile> {
    let mut random = [0; 12];
    let failed =
        |error: getrandom::Error| SftpFailure::Rejected(io::Error::other(error.to_string()));
    getrandom::fill(&mut random).map_err(failed)?;
    let name = hex::encode(random);
    let name = format!("{temporary}/{name}");
    let handle = create_file(&channel, &name).await?;
    Ok(SpareFile { channel, temp_name: name, handle })
}

/// Removes a spare file that was not used.
pub(super) async fn remove_spare_file(SpareFile { channel, temp_name, handle }: SpareFile) {
    let sftp = &channel.sftp;
    let (closed, removed) = tokio::join!(sftp.close(handle), sftp.remove(temp_name));
    // A prune removes files that remain.
    closed.and(removed).ok();
}

/// Writes a file under a unique name in a folder of temporary files and syncs it; returns the name.
pub(super) async fn stage_file(
    channel: &Arc<SftpChannel>,
    (temporary, spare): (&str, Option<SpareFile>),
    bytes: &[u8],
) -> SftpResult<String> {
    let opened = match spare {
        Some(spare) => Ok(spare),
        None => open_spare_file(channel.clone(), temporary).await,
    };
    let SpareFile { temp_name, handle, .. } = match opened {
        // Vaults created by restic have no such folder.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create_folder(channel, temporary).await?;
            open_spare_file(channel.clone(), temporary).await
        }
        opened => opened,
    }?;
    match write_and_close(channel, &handle, bytes).await {
        Ok(()) => Ok(temp_name),
        Err(failed) => {
            remove_failed_file(channel, temp_name, &failed).await;
            Err(failed)
        }
    }
}

/// Renames a staged file to its final name. The first request is sent before anything is awaited.
pub(super) async fn reveal_file(
    (channel, abilities): (&SftpChannel, SftpCapabilities),
    (name, path): (&str, &str),
    length: u64,
) -> SftpResult<()> {
    let named = move_to_final_name(channel, abilities, name, path, length).await;
    if let Err(failed) = &named {
        remove_failed_file(channel, name.to_owned(), failed).await;
    }
    named
}

/// Removes a staged file after a failure.
async fn remove_failed_file(channel: &SftpChannel, name: String, failed: &SftpFailure) {
    if let SftpFailure::Rejected(_) = failed {
        // The error to report is the one of the failed write. If the file cannot be removed now, a prune removes it.
        channel.sftp.remove(name).await.ok();
    }
}

async fn create_file(channel: &SftpChannel, name: &str) -> SftpResult<String> {
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
    Ok(channel.sftp.open(name, flags, attributes_with_mode(FILE_MODE)).await?.handle)
}

/// Writes all bytes, syncs and closes the file.
async fn write_and_close(channel: &SftpChannel, handle: &str, bytes: &[u8]) -> SftpResult<()> {
    let sftp = &channel.sftp;
    let can_sync = channel.capabilities().await?.can_sync;
    let pieces = bytes.chunks(MAX_REQUEST_BYTES).enumerate();
    let writing = stream::iter(pieces)
        .map(|(number, piece)| {
            sftp.write(handle, (number * MAX_REQUEST_BYTES) as u64, piece.to_vec())
        })
        .buffer_unordered(MAX_PIPELINED_READS)
        .try_for_each(|_| async { Ok(()) });
    let syncing = async { if can_sync { sftp.fsync(handle).await.map(drop) } else { Ok(()) } };
    let closing = sftp.close(handle);
    let (written, synced, closed) = if bytes.len() <= MAX_PIPELINED_READS * MAX_REQUEST_BYTES {
        // All requests are sent at once in this order, in which a host has to process requests for one file. After a
        // failed write, the results of the others do not matter.
        future::join3(writing, syncing, closing).await
    } else {
        let written = writing.await;
        if let Err(error) = &written
            && let broken @ SftpFailure::ConnectionLost(_) = SftpFailure::from(error.clone())
        {
            return Err(broken);
        }
        let syncing = async { if written.is_ok() { syncing.await } else { Ok(()) } };
        let (synced, closed) = future::join(syncing, closing).await;
        (written, synced, closed)
    };
    written?;
    synced?;
    closed?;
    Ok(())
}

/// Renames a file to its final name in the vault.
async fn move_to_final_name(
    channel: &SftpChannel,
    abilities: SftpCapabilities,
    name: &str,
    path: &str,
    length: u64,
) -> SftpResult<()> {
    let rename = || rename_file((channel, abilities), name, path);
    match rename().await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Some((folder, _)) = path.rsplit_once('/') else { return Err(error) };
            create_folder(channel, folder).await?;
            rename().await
        }
        // A rename without replacement fails if the file exists. That file is identical, as its name is the hash of its
        // bytes.
        Err(SftpFailure::Rejected(_)) if !abilities.can_replace => {
            match self::find_file_length(channel, path).await? {
                Some(there) if there == length => {
                    channel.sftp.remove(name).await?;
                    Ok(())
                }
                Some(_) => {
                    remove_file(channel, path).await?;
                    rename().await
                }
                None => rename().await,
            }
        }
        renamed => renamed,
    }
}

async fn rename_file(
    (channel, abilities): (&SftpChannel, SftpCapabilities),
    from: &str,
    to: &str,
) -> SftpResult<()> {
    if !abilities.can_replace {
        channel.sftp.rename(from, to).await?;
        return Ok(());
    }
    let mut data = Vec::new();
    for path in [from, to] {
        data.extend(u32::try_from(path.len()).unwrap_or(u32::MAX).to_be_bytes());
        data.extend(path.as_bytes());
    }
    match channel.sftp.extended("posix-rename@openssh.com", data).await? {
        Packet::Status(status) if status.status_code == StatusCode::Ok => Ok(()),
        Packet::Status(status) => Err(russh_sftp::client::error::Error::from(status).into()),
        _ => Err(SftpFailure::connection_lost(
            ErrorKind::InvalidData,
            "unexpected response type".to_owned(),
        )),
    }
}

/// Removes a file; a missing file is not an error.
pub(super) async fn remove_file(channel: &SftpChannel, path: &str) -> SftpResult<()> {
    match channel.sftp.remove(path).await.map_err(SftpFailure::from) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a folder; an existing folder is not an error.
async fn create_folder(channel: &SftpChannel, path: &str) -> SftpResult<()> {
    match channel
        .sftp
        .mkdir(path, attributes_with_mode(FOLDER_MODE))
        .await
        .map_err(SftpFailure::from)
    {
        Ok(_) => Ok(()),
        Err(SftpFailure::Rejected(error)) => match find_file_length(channel, path).await? {
            Some(_) => Ok(()),
            None => Err(SftpFailure::Rejected(error)),
        },
        Err(error) => Err(error),
    }
}

/// Creates the folders of a vault and their missing parents.
pub(super) async fn create_vault_folders(channel: &SftpChannel, root: &str) -> SftpResult<()> {
    let ends = root.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends.chain([root.len()]) {
        let above = root.get(..end).unwrap_or(root);
        // The user may not have permission to read a parent folder.
        if find_file_length(channel, above).await?.is_none() {
            create_folder(channel, above).await?;
        }
    }
    let (numbered, above): (Vec<String>, Vec<String>) =
        vault_folders().partition(|folder| folder.contains('/'));
    for folder in above {
        create_folder(channel, &format!("{root}/{folder}")).await?;
    }
    let numbered = stream::iter(numbered)
        .map(|folder| async move { create_folder(channel, &format!("{root}/{folder}")).await });
    numbered.buffer_unordered(MAX_PIPELINED_FOLDERS).try_for_each(|()| async { Ok(()) }).await
}

/// Removes the folders of an empty vault, including the contents of the folder of temporary files.
pub(super) async fn remove_vault_folders(channel: &Arc<SftpChannel>, root: &str) -> SftpResult<()> {
    let temporary = format!("{root}/{TEMP_DIR}");
    let left = match list_folder(channel, &temporary).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    for file in left.into_iter().filter(|file| is_file_kind(&file.attrs, MODE_REGULAR_FILE)) {
        // A file that cannot be removed makes the removal of its folder fail, which reports it.
        remove_file(channel, &format!("{temporary}/{}", file.filename)).await.ok();
    }
    let (numbered, above): (Vec<String>, Vec<String>) =
        vault_folders().partition(|folder| folder.contains('/'));
    let numbered = stream::iter(numbered)
        .map(|folder| async move { remove_folder(channel, &format!("{root}/{folder}")).await });
    let numbered: Vec<SftpResult<()>> =
        numbered.buffer_unordered(MAX_PIPELINED_FOLDERS).collect().await;
    // Remove every folder that can be removed, even if others fail.
    let mut removed = numbered.into_iter().fold(Ok(()), Result::and);
    for folder in above {
        removed = removed.and(remove_folder(channel, &format!("{root}/{folder}")).await);
    }
    removed.and(remove_folder(channel, root).await)
}

/// Removes an empty folder; a missing folder is not an error.
async fn remove_folder(channel: &SftpChannel, path: &str) -> SftpResult<()> {
    match channel.sftp.rmdir(path).await.map_err(SftpFailure::from) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes files that crashed writers left.
pub(super) async fn remove_abandoned_files(
    channel: &Arc<SftpChannel>,
    folder: &str,
    now: SystemTime,
) -> SftpResult<()> {
    let files = match list_folder(channel, folder).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for file in files {
        let written = file.attrs.mtime.map(|time| UNIX_EPOCH + Duration::from_secs(time.into()));
        let age = written.and_then(|written| now.duration_since(written).ok());
        if is_file_kind(&file.attrs, MODE_REGULAR_FILE)
            && age.is_some_and(|age| age > MIN_SWEEP_AGE)
        {
            remove_file(channel, &format!("{folder}/{}", file.filename)).await?;
        }
    }
    Ok(())
}
