//! The protocol between the server and the decoder process, over one socket.
//!
//! ```text
//! server   u32 length, request as JSON; one byte with the open file attached, or one byte and the file's bytes
//! process  u32 length, message as JSON     `need` bytes of memory, or the final message
//! server   one byte: begin decoding        after `need`
//! process  u32 length, message as JSON; per rendition, or for appended bytes, u64 length and the bytes
//! ```
//! Lengths are little-endian.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::processing_request::{AssetProcessingRequest, AssetProcessingResult, MetadataValue};

/// Maximum size of a request or response in JSON, without the pictures, in bytes.
const MAX_JSON_BYTES: u32 = 64 << 20;
/// The byte that accompanies an open file, and the one that precedes a file's bytes.
const OPEN_FILE_MARKER: u8 = b'f';
pub(crate) const FILE_BYTES_MARKER: u8 = b'b';
/// The byte that starts decoding.
pub(crate) const BEGIN_DECODING_MARKER: u8 = b'+';

/// A message of the decoder process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum DecoderMessage {
    /// The process waits for this many bytes of memory to be free.
    Need(u64),
    /// The process is done; the renditions follow.
    Rendered(AssetProcessingResult),
    /// No rendition was generated, for this reason.
    Refused(String),
    /// The properties that the bytes to append set; the bytes follow. `None` if the file contains all of them already.
    Appended(Option<Vec<String>>),
    /// The open file cannot be read, which is not a fault of its content.
    Unread(String),
}

/// A request with the length of the file that follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FramedProcessingRequest {
    pub(crate) request: AssetProcessingRequest,
    pub(crate) length: u64,
    /// Niceness of the process.
    pub(crate) niceness: i32,
    /// Properties to write into the file; if set, no renditions are generated.
    pub(crate) append: Option<Vec<(String, MetadataValue)>>,
}

pub(crate) fn write_json(target: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length =
        u32::try_from(json.len()).map_err(|_| invalid_data_error("a message is too long"))?;
    target.write_all(&length.to_le_bytes())?;
    target.write_all(&json)
}

pub(crate) fn read_json<T: DeserializeOwned>(source: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_JSON_BYTES {
        return Err(invalid_data_error("a message is too long"));
    }
    let mut json = Vec::new();
    source.take(length.into()).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// Sends an open file to the other side, which avoids a copy.
pub(crate) fn send_file_descriptor(socket: impl AsFd, file: &File) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[OPEN_FILE_MARKER])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives an open file; `None` if its bytes follow instead.
pub(crate) fn receive_file_descriptor(socket: impl AsFd) -> io::Result<Option<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let received_file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next().map(File::from),
        _ => None,
    });
    match (byte, received_file) {
        ([FILE_BYTES_MARKER], None) => Ok(None),
        ([OPEN_FILE_MARKER], Some(file)) => Ok(Some(file)),
        _ => Err(invalid_data_error("an announced file was not received")),
    }
}

pub(crate) fn write_length_prefixed(target: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    target.write_all(&(bytes.len() as u64).to_le_bytes())?;
    target.write_all(bytes)
}

/// Reads length-prefixed bytes, at most `most`.
pub(crate) fn read_length_prefixed(source: &mut impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    source.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(invalid_data_error("an image is too large"));
    }
    let mut bytes = Vec::new();
    source.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn invalid_data_error(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn an_open_file_comes_between_messages() {
        let (mut sender, mut receiver) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"picture").unwrap();
        file.rewind().unwrap();
        for _ in 0..2 {
            write_json(&mut sender, &7).unwrap();
            send_file_descriptor(&sender, &file).unwrap();
            write_json(&mut sender, &8).unwrap();
            sender.write_all(&[FILE_BYTES_MARKER]).unwrap();
        }
        drop(file);
        let mut texts = Vec::new();
        for _ in 0..2 {
            assert_eq!(read_json::<u8>(&mut receiver).unwrap(), 7);
            let mut text = String::new();
            receive_file_descriptor(&receiver).unwrap().unwrap().read_to_string(&mut text).unwrap();
            texts.push(text);
            assert_eq!(read_json::<u8>(&mut receiver).unwrap(), 8);
            assert!(receive_file_descriptor(&receiver).unwrap().is_none());
        }
        assert_eq!(texts, ["picture", ""], "both are the same open file");
        drop(sender);
        assert!(receive_file_descriptor(&receiver).is_err());
    }
}
