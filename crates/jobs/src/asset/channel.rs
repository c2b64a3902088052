//! What the server and the process that draws say to each other, over one socket.
//!
//! ```text
//! server   u32 length, order as JSON; u64 length, the file
//! process  u32 length, answer as JSON      `need` bytes of memory, or the end
//! server   one byte: go                    after `need`
//! process  u32 length, answer as JSON; per rendition u64 length and its bytes
//! ```
//! Lengths are little-endian.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::order::{Drawn, Order};

/// The most bytes of an order or answer without its pictures.
const MAX_JSON: u32 = 64 << 20;
/// The byte that lets decoding begin.
pub(crate) const GO: u8 = b'+';

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It waits for this many bytes of memory to be free.
    Need(u64),
    /// It is done; the pictures follow.
    Drawn(Drawn),
    /// Nothing was drawn, for this reason.
    Refused(String),
}

/// An order with the length of the file that follows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) order: Order,
    pub(crate) length: u64,
    /// How much the process stands behind others.
    pub(crate) niceness: i32,
}

pub(crate) fn write_json(target: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(|_| invalid("a message is too long"))?;
    target.write_all(&length.to_le_bytes())?;
    target.write_all(&json)
}

pub(crate) fn read_json<T: DeserializeOwned>(source: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    source.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MAX_JSON {
        return Err(invalid("a message is too long"));
    }
    let mut json = Vec::new();
    source.take(length.into()).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

pub(crate) fn write_bytes(target: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    target.write_all(&(bytes.len() as u64).to_le_bytes())?;
    target.write_all(bytes)
}

/// Reads bytes that are at most `most`.
pub(crate) fn read_bytes(source: &mut impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    source.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(invalid("a picture is too long"));
    }
    let mut bytes = Vec::new();
    source.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
