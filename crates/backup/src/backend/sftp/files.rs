//! What a vault does with files, over one channel.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use russh_sftp::client::RawSftpSession;
use russh_sftp::protocol::{File, FileAttributes, OpenFlags, Packet, StatusCode};

use super::super::{TEMPORARY, folders};
use super::link::{Abilities, Channel, Failure};
use crate::id::Id;

/// What one request carries: every server takes so much.
const PIECE: usize = 32 << 10;
/// Requests for pieces of one file that are on their way at once.
const AHEAD: usize = 64;
/// Requests about folders that are on their way at once.
const FOLDERS_AHEAD: usize = 32;
/// What lies in `tmp` for so long is nobody's: clocks may differ, and a slow writer writes.
const SWEEP_AGE: Duration = Duration::from_hours(24);

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Which bits of a mode tell the kind of a file, and which kind is a plain one, and which a folder.
const KIND: u32 = 0o170_000;
const PLAIN: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

type Outcome<T> = Result<T, Failure>;

const fn with_mode(mode: u32) -> FileAttributes {
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

fn is_of(attributes: &FileAttributes, kind: u32) -> bool {
    attributes.permissions.is_none_or(|mode| mode & KIND == kind)
}

/// Lists a folder.
pub(super) async fn list(channel: &Arc<Channel>, path: &str) -> Outcome<Vec<File>> {
    let handle = open_folder(channel, path).await?;
    list_opened(channel, handle).await
}

/// Opens a folder that is to be listed.
pub(super) async fn open_folder(channel: &Channel, path: &str) -> Outcome<String> {
    Ok(channel.sftp.opendir(path).await?.handle)
}

/// Lists a folder that was opened for it, and closes it.
async fn list_opened(channel: &Arc<Channel>, handle: String) -> Outcome<Vec<File>> {
    let sftp = &channel.sftp;
    let mut files = Vec::new();
    // A short list is over with two answers, of which the second says so.
    let mut ahead = 2;
    let listed = loop {
        let asked = stream::iter(0..ahead).map(|_| sftp.readdir(handle.clone()));
        let answers: Vec<_> = asked.buffered(ahead).collect().await;
        let mut is_over = false;
        let mut failed = None;
        for answer in answers {
            match answer.map_err(Failure::from) {
                Ok(some) => files.extend(some.files),
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

/// Lists the files in a folder that are named by ids.
pub(super) async fn list_ids(channel: &Arc<Channel>, path: &str) -> Outcome<Vec<(Id, u64)>> {
    let handle = open_folder(channel, path).await?;
    list_ids_opened(channel, (path, handle)).await
}

/// Does the same in a folder that was opened for it, and closes it.
pub(super) async fn list_ids_opened(
    channel: &Arc<Channel>,
    (path, handle): (&str, String),
) -> Outcome<Vec<(Id, u64)>> {
    let files = list_opened(channel, handle).await?;
    let mut named = Vec::new();
    for file in files.into_iter().filter(|file| is_of(&file.attrs, PLAIN)) {
        let Ok(id) = file.filename.parse() else { continue };
        // Hosts may leave it out. A file that is passed over would be taken for one that is not there.
        let length = match file.attrs.size {
            Some(length) => length,
            None => length_of(channel, &format!("{path}/{}", file.filename)).await?,
        };
        named.push((id, length));
    }
    Ok(named)
}

async fn length_of(channel: &Channel, path: &str) -> Outcome<u64> {
    let size = channel.sftp.stat(path).await?.attrs.size;
    size.ok_or_else(|| {
        Failure::Said(std::io::Error::new(
            ErrorKind::InvalidData,
            format!("the host does not say how long `{path}` is"),
        ))
    })
}

/// Lists the packs, which lie in many folders.
pub(super) async fn list_packs(channel: &Arc<Channel>, path: &str) -> Outcome<Vec<(Id, u64)>> {
    let folders = list(channel, path).await?;
    let folders = folders.into_iter().filter(|folder| is_of(&folder.attrs, FOLDER));
    let packs = stream::iter(folders).map(|folder| async move {
        match list_ids(channel, &format!("{path}/{}", folder.filename)).await {
            // Somebody removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed,
        }
    });
    let packs: Vec<Vec<(Id, u64)>> = packs.buffer_unordered(FOLDERS_AHEAD).try_collect().await?;
    Ok(packs.into_iter().flatten().collect())
}

/// Returns the length of a file; nothing if it is not there.
pub(super) async fn length(channel: &Channel, path: &str) -> Outcome<Option<u64>> {
    match channel.sftp.stat(path).await.map_err(Failure::from) {
        Ok(found) => Ok(Some(found.attrs.size.unwrap_or(0))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a file.
pub(super) async fn read(channel: Arc<Channel>, path: &str) -> Outcome<Vec<u8>> {
    let sftp = &channel.sftp;
    let handle = sftp.open(path, OpenFlags::READ, FileAttributes::empty()).await?.handle;
    // Its length and its beginning come with one round trip, which is all that a short file takes.
    let (facts, first) =
        tokio::join!(sftp.fstat(handle.clone()), read_piece(sftp, &handle, (0, PIECE)));
    let whole = async {
        let length = facts?.attrs.size.unwrap_or(0);
        let mut bytes = first?;
        if bytes.len() == PIECE && length > PIECE as u64 {
            let rest = usize::try_from(length - PIECE as u64).unwrap_or(usize::MAX);
            bytes.extend(read_from(sftp, &handle, (PIECE as u64, rest)).await?);
        }
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(Failure::Said(ErrorKind::UnexpectedEof.into()))
        }
    };
    let whole = whole.await;
    close_later(channel.clone(), handle);
    whole
}

/// Reads a part of a file.
pub(super) async fn read_range(
    channel: Arc<Channel>,
    path: &str,
    (start, length): (u64, usize),
) -> Outcome<Vec<u8>> {
    let sftp = &channel.sftp;
    let handle = sftp.open(path, OpenFlags::READ, FileAttributes::empty()).await?.handle;
    let bytes = read_from(sftp, &handle, (start, length)).await;
    close_later(channel.clone(), handle);
    let bytes = bytes?;
    if bytes.len() == length {
        Ok(bytes)
    } else {
        Err(Failure::Said(ErrorKind::UnexpectedEof.into()))
    }
}

/// Closes a file or folder without waiting for the answer.
pub(super) fn close_later(channel: Arc<Channel>, handle: String) {
    tokio::spawn(async move { channel.sftp.close(handle).await.ok() });
}

/// Reads some bytes, or as many as there are.
async fn read_from(
    sftp: &RawSftpSession,
    handle: &str,
    (start, length): (u64, usize),
) -> Outcome<Vec<u8>> {
    let pieces = (0..length.div_ceil(PIECE)).map(|number| {
        let begin = number * PIECE;
        (start + begin as u64, PIECE.min(length - begin))
    });
    let mut pieces =
        stream::iter(pieces).map(|piece| read_piece(sftp, handle, piece)).buffered(AHEAD);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        let is_last = piece.len() < PIECE;
        bytes.extend(piece);
        // What an index promises may be far more than there is.
        if is_last {
            break;
        }
    }
    Ok(bytes)
}

/// Reads one piece, by more than one request if the server gives less than it was asked for.
async fn read_piece(
    sftp: &RawSftpSession,
    handle: &str,
    (start, length): (u64, usize),
) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let wanted = u32::try_from(length - bytes.len()).unwrap_or(u32::MAX);
        match sftp.read(handle, start + bytes.len() as u64, wanted).await.map_err(Failure::from) {
            Ok(some) if some.data.is_empty() => break,
            Ok(some) if some.data.len() > wanted as usize => {
                let text = "the host gives more than it was asked for";
                return Err(Failure::Said(io::Error::new(ErrorKind::InvalidData, text)));
            }
            Ok(some) => bytes.extend(some.data),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// A file in a folder for such files that is open for what will be written.
pub(super) struct Spare {
    pub(super) channel: Arc<Channel>,
    name: String,
    handle: String,
}

/// Opens a file under a name of its own.
pub(super) async fn open_spare(channel: Arc<Channel>, temporary: &str) -> Outcome<Spare> {
    let mut random = [0; 12];
    let failed = |error: getrandom::Error| Failure::Said(io::Error::other(error.to_string()));
    getrandom::fill(&mut random).map_err(failed)?;
    let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{temporary}/{name}");
    let handle = open_new(&channel, &name).await?;
    Ok(Spare { channel, name, handle })
}

/// Removes a file that was opened for nothing.
pub(super) async fn remove_spare(Spare { channel, name, handle }: Spare) {
    let sftp = &channel.sftp;
    let (closed, removed) = tokio::join!(sftp.close(handle), sftp.remove(name));
    // A prune sweeps away what stays.
    closed.and(removed).ok();
}

/// Writes a file under a name of its own in a folder for such files, and syncs it; returns the name.
pub(super) async fn stage(
    channel: &Arc<Channel>,
    (temporary, spare): (&str, Option<Spare>),
    bytes: &[u8],
) -> Outcome<String> {
    let opened = match spare {
        Some(spare) => Ok(spare),
        None => open_spare(channel.clone(), temporary).await,
    };
    let Spare { name, handle, .. } = match opened {
        // Vaults that restic made have no such folder.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folder(channel, temporary).await?;
            open_spare(channel.clone(), temporary).await
        }
        opened => opened,
    }?;
    match fill(channel, &handle, bytes).await {
        Ok(()) => Ok(name),
        Err(failed) => {
            give_up(channel, name, &failed).await;
            Err(failed)
        }
    }
}

/// Gives a staged file its name. The first request is sent before anything else is waited for.
pub(super) async fn reveal(
    (channel, abilities): (&Channel, Abilities),
    (name, path): (&str, &str),
    length: u64,
) -> Outcome<()> {
    let named = give_name((channel, abilities), (name, path), length).await;
    if let Err(failed) = &named {
        give_up(channel, name.to_owned(), failed).await;
    }
    named
}

/// Removes a staged file for which something went wrong.
async fn give_up(channel: &Channel, name: String, failed: &Failure) {
    if let Failure::Said(_) = failed {
        // What is said is why the write failed; a prune sweeps the file away, if it cannot be removed now.
        channel.sftp.remove(name).await.ok();
    }
}

async fn open_new(channel: &Channel, name: &str) -> Outcome<String> {
    let flags = OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUDE;
    Ok(channel.sftp.open(name, flags, with_mode(FILE_MODE)).await?.handle)
}

/// Writes all bytes, syncs and closes.
async fn fill(channel: &Channel, handle: &str, bytes: &[u8]) -> Outcome<()> {
    let sftp = &channel.sftp;
    let can_sync = channel.abilities().await?.can_sync;
    let pieces = bytes.chunks(PIECE).enumerate();
    let writing = stream::iter(pieces)
        .map(|(number, piece)| sftp.write(handle, (number * PIECE) as u64, piece.to_vec()))
        .buffer_unordered(AHEAD)
        .try_for_each(|_| async { Ok(()) });
    let syncing = async { if can_sync { sftp.fsync(handle).await.map(drop) } else { Ok(()) } };
    let closing = sftp.close(handle);
    let (written, synced, closed) = if bytes.len() <= AHEAD * PIECE {
        // All requests are sent at once, in this order, in which a host has to work on those for one file. After a write
        // that failed, what the others did does not matter.
        future::join3(writing, syncing, closing).await
    } else {
        let written = writing.await;
        if let Err(error) = &written
            && let broken @ Failure::Broken(_) = Failure::from(error.clone())
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

/// Renames a file to what it is called in the vault.
async fn give_name(
    (channel, abilities): (&Channel, Abilities),
    (name, path): (&str, &str),
    length: u64,
) -> Outcome<()> {
    let rename = || rename((channel, abilities), name, path);
    match rename().await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Some((folder, _)) = path.rsplit_once('/') else { return Err(error) };
            make_folder(channel, folder).await?;
            rename().await
        }
        // A rename that replaces nothing fails where the file is already: the same, as its name is that of its bytes.
        Err(Failure::Said(_)) if !abilities.can_replace => {
            match self::length(channel, path).await? {
                Some(there) if there == length => {
                    channel.sftp.remove(name).await?;
                    Ok(())
                }
                Some(_) => {
                    remove(channel, path).await?;
                    rename().await
                }
                None => rename().await,
            }
        }
        renamed => renamed,
    }
}

async fn rename((channel, abilities): (&Channel, Abilities), from: &str, to: &str) -> Outcome<()> {
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
        _ => Err(Failure::broken(ErrorKind::InvalidData, "an answer of the wrong kind".to_owned())),
    }
}

/// Removes a file; it is fine if it is gone.
pub(super) async fn remove(channel: &Channel, path: &str) -> Outcome<()> {
    match channel.sftp.remove(path).await.map_err(Failure::from) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a folder; it is fine if it is there.
async fn make_folder(channel: &Channel, path: &str) -> Outcome<()> {
    match channel.sftp.mkdir(path, with_mode(FOLDER_MODE)).await.map_err(Failure::from) {
        Ok(_) => Ok(()),
        Err(Failure::Said(error)) => match length(channel, path).await? {
            Some(_) => Ok(()),
            None => Err(Failure::Said(error)),
        },
        Err(error) => Err(error),
    }
}

/// Makes the folders of a vault, and those above it.
pub(super) async fn create_vault(channel: &Channel, root: &str) -> Outcome<()> {
    let ends = root.match_indices('/').map(|(at, _)| at).filter(|at| *at > 0);
    for end in ends.chain([root.len()]) {
        let above = root.get(..end).unwrap_or(root);
        // A folder above may be one that this user may not look into.
        if length(channel, above).await?.is_none() {
            make_folder(channel, above).await?;
        }
    }
    let (numbered, above): (Vec<String>, Vec<String>) =
        folders().partition(|folder| folder.contains('/'));
    for folder in above {
        make_folder(channel, &format!("{root}/{folder}")).await?;
    }
    let numbered = stream::iter(numbered)
        .map(|folder| async move { make_folder(channel, &format!("{root}/{folder}")).await });
    numbered.buffer_unordered(FOLDERS_AHEAD).try_for_each(|()| async { Ok(()) }).await
}

/// Removes the folders of a vault that holds nothing any more, with what is in the one for files without a name.
pub(super) async fn remove_vault(channel: &Arc<Channel>, root: &str) -> Outcome<()> {
    let temporary = format!("{root}/{TEMPORARY}");
    let left = match list(channel, &temporary).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        listed => listed?,
    };
    for file in left.into_iter().filter(|file| is_of(&file.attrs, PLAIN)) {
        // What stays is told by its folder, which stays with it.
        remove(channel, &format!("{temporary}/{}", file.filename)).await.ok();
    }
    let (numbered, above): (Vec<String>, Vec<String>) =
        folders().partition(|folder| folder.contains('/'));
    let numbered = stream::iter(numbered)
        .map(|folder| async move { remove_folder(channel, &format!("{root}/{folder}")).await });
    let numbered: Vec<Outcome<()>> = numbered.buffer_unordered(FOLDERS_AHEAD).collect().await;
    // All that can go does, whatever is in the way of others.
    let mut removed = numbered.into_iter().fold(Ok(()), Result::and);
    for folder in above {
        removed = removed.and(remove_folder(channel, &format!("{root}/{folder}")).await);
    }
    removed.and(remove_folder(channel, root).await)
}

/// Removes an empty folder; it is fine if it is gone.
async fn remove_folder(channel: &Channel, path: &str) -> Outcome<()> {
    match channel.sftp.rmdir(path).await.map_err(Failure::from) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes what crashed writers left.
pub(super) async fn sweep(channel: &Arc<Channel>, folder: &str, now: SystemTime) -> Outcome<()> {
    let files = match list(channel, folder).await {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    for file in files {
        let written = file.attrs.mtime.map(|time| UNIX_EPOCH + Duration::from_secs(time.into()));
        let age = written.and_then(|written| now.duration_since(written).ok());
        if is_of(&file.attrs, PLAIN) && age.is_some_and(|age| age > SWEEP_AGE) {
            remove(channel, &format!("{folder}/{}", file.filename)).await?;
        }
    }
    Ok(())
}
