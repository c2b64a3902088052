//! A writer of tar archives that depend only on names and contents: POSIX.1-2001 (`pax`), regular files only.
//!
//! Names of up to 100 bytes, or 255 that can be split at a slash, are stored in the header of 1988 (`ustar`); longer
//! ones, and sizes from 8 GiB on, in a record before it.

use std::io::{self, Read, Write};

/// The block size; headers and contents are padded to whole blocks.
const BLOCK_BYTES: usize = 512;
/// The record size. An archive ends with two empty blocks and padding to a whole record, as standard tools write it.
const RECORD_BYTES: u64 = 20 * BLOCK_BYTES as u64;
/// The maximum size in a header: eleven octal digits.
const MAX_OCTAL_SIZE: u64 = 0o777_7777_7777;
/// The maximum time in a header, with the same number of digits: a second in the year 2242.
pub(crate) const MAX_OCTAL_TIME: u64 = MAX_OCTAL_SIZE;

/// An archive being written.
#[derive(Debug)]
pub(crate) struct TarWriter<W> {
    writer: W,
    written_bytes: u64,
}

/// A file of an archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TarMember<'a> {
    /// Its relative path, without `..`.
    pub(crate) name: &'a str,
    /// Its length in bytes.
    pub(crate) length: u64,
    /// Its modification time, in seconds since 1970.
    pub(crate) modification_seconds: u64,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { writer: to, written_bytes: 0 }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Also fails if `body` has fewer bytes than its length; the archive is then corrupt.
    pub(crate) fn add_member(
        &mut self,
        member: TarMember<'_>,
        body: &mut dyn Read,
    ) -> io::Result<()> {
        let split = split_name(member.name);
        let mut records = Vec::new();
        if split.is_none() {
            records.extend(pax_record("path", member.name));
        }
        if member.length > MAX_OCTAL_SIZE {
            records.extend(pax_record("size", &member.length.to_string()));
        }
        if !records.is_empty() {
            let length = records.len() as u64;
            self.write_header(("", "pax"), b'x', (length, 0))?;
            self.write_body(length, &mut records.as_slice())?;
        }
        let length = if member.length > MAX_OCTAL_SIZE { 0 } else { member.length };
        self.write_header(
            split.unwrap_or(("", "long-name")),
            b'0',
            (length, member.modification_seconds),
        )?;
        self.write_body(member.length, body)
    }

    /// Finishes the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let end = self.written_bytes + 2 * BLOCK_BYTES as u64;
        self.write_zeros(end.next_multiple_of(RECORD_BYTES) - self.written_bytes)?;
        self.writer.flush()?;
        Ok(self.writer)
    }

    fn write_header(
        &mut self,
        (prefix, name): (&str, &str),
        kind: u8,
        (length, modified): (u64, u64),
    ) -> io::Result<()> {
        let mut block = [0_u8; BLOCK_BYTES];
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(field) = block.get_mut(at..at + bytes.len()) {
                field.copy_from_slice(bytes);
            }
        };
        put(0, name.as_bytes());
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{length:011o}\0").as_bytes());
        put(136, format!("{:011o}\0", modified.min(MAX_OCTAL_TIME)).as_bytes());
        // The checksum is computed with spaces in its place.
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        put(345, prefix.as_bytes());
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        if let Some(field) = block.get_mut(148..156) {
            field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        self.write_bytes(&block)
    }

    fn write_body(&mut self, length: u64, body: &mut dyn Read) -> io::Result<()> {
        let copied = io::copy(&mut body.take(length), &mut self.writer)?;
        self.written_bytes += copied;
        if copied < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.write_zeros(length.next_multiple_of(BLOCK_BYTES as u64) - length)
    }

    fn write_zeros(&mut self, mut count: u64) -> io::Result<()> {
        let block = [0_u8; BLOCK_BYTES];
        while count > 0 {
            let length = usize::try_from(count).map_or(BLOCK_BYTES, |count| count.min(BLOCK_BYTES));
            self.write_bytes(block.get(..length).unwrap_or_default())?;
            count -= length as u64;
        }
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.written_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Splits a name into the two parts of a header; `None` if it does not fit.
fn split_name(name: &str) -> Option<(&str, &str)> {
    if name.len() <= 100 {
        return Some(("", name));
    }
    let mut slashes = name.match_indices('/').map(|(at, _)| at);
    let at = slashes.find(|at| name.len() - at - 1 <= 100 && *at > 0)?;
    let (prefix, rest) = (name.get(..at)?, name.get(at + 1..)?);
    (prefix.len() <= 155 && !rest.is_empty()).then_some((prefix, rest))
}

/// Returns a record, which begins with its own length.
fn pax_record(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::{TarMember, TarWriter, pax_record, split_name};

    #[test]
    fn records_count_themselves() {
        assert_eq!(pax_record("path", "abc"), b"12 path=abc\n");
        for length in [80, 90, 91, 92, 93, 988, 989, 990, 991] {
            let record = pax_record("path", &"x".repeat(length));
            let digits = record.iter().position(|byte| *byte == b' ').unwrap();
            let declared_length: usize =
                std::str::from_utf8(&record[..digits]).unwrap().parse().unwrap();
            assert_eq!(declared_length, record.len());
        }
    }

    #[test]
    fn long_names_are_split_where_they_can_be() {
        assert_eq!(split_name("a/b.html"), Some(("", "a/b.html")));
        let folder = "f".repeat(90);
        let name = format!("{folder}/{folder}");
        assert_eq!(split_name(&name), Some((folder.as_str(), folder.as_str())));
        assert_eq!(split_name(&"n".repeat(101)), None);
        assert_eq!(split_name(&format!("{folder}/{folder}/{folder}")), None);
        assert_eq!(split_name(&format!("{}/{folder}", "p".repeat(156))), None);
    }

    #[test]
    fn an_archive_is_the_same_each_time() {
        let write = || {
            let mut archive = TarWriter::new(Vec::new());
            let member = |name, length| TarMember { name, length, modification_seconds: 0 };
            archive.add_member(member("a.html", 3), &mut &b"abc"[..]).unwrap();
            archive.add_member(member(&"x".repeat(300), 0), &mut &b""[..]).unwrap();
            archive.finish().unwrap()
        };
        let bytes = write();
        assert_eq!(bytes, write());
        assert_eq!(bytes.len(), 10_240);
        assert_eq!(&bytes[..7], b"a.html\0");
        // The checksum that GNU tar writes for the same header.
        assert_eq!(&bytes[124..136], b"00000000003\0");
        let mut short = TarWriter::new(Vec::new());
        let member = TarMember { name: "a", length: 5, modification_seconds: 0 };
        assert!(short.add_member(member, &mut &b"abc"[..]).is_err());
    }
}
