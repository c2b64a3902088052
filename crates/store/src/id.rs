//! Ids of immutable bytes: chunks by BLAKE3-256, blobs by SHA-256 and length.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The error for a text that is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id: expected {expected}")]
pub struct IdParseError {
    /// The text.
    pub text: String,
    /// The form of an id.
    pub expected: &'static str,
}

/// The id of a chunk: BLAKE3-256 of its uncompressed bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId([u8; 32]);

/// The id is a hash already, so hash tables need only eight of its bytes.
impl Hash for ChunkId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let head = self.0.first_chunk::<8>();
        state.write_u64(head.map_or(0, |head| u64::from_le_bytes(*head)));
    }
}

impl ChunkId {
    /// Returns the id of a chunk with these bytes.
    #[must_use]
    pub fn hash_of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Creates an id from a known hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ChunkId {
    type Err = IdParseError;

    fn from_str(text: &str) -> Result<Self, IdParseError> {
        parse_digest(text).map(Self).ok_or_else(|| IdParseError {
            text: text.to_owned(),
            expected: "64 hexadecimal digits",
        })
    }
}

/// Parses 64 hexadecimal digits in upper or lower case.
fn parse_digest(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(digits, &mut bytes).ok()?;
    Some(bytes)
}

/// The id of a blob: SHA-256 of its bytes, and their number. The text form is `<hex>#<length>`, as in Oak.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId {
    digest: [u8; 32],
    length: u64,
}

impl BlobId {
    /// Creates an id from a known digest and length.
    #[must_use]
    pub const fn new(digest: [u8; 32], length: u64) -> Self {
        Self { digest, length }
    }

    /// Returns the id of a blob with these bytes.
    #[must_use]
    pub fn hash_of(bytes: &[u8]) -> Self {
        Self { digest: Sha256::digest(bytes).into(), length: bytes.len() as u64 }
    }

    /// Returns the SHA-256 digest.
    #[must_use]
    pub const fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", hex::encode(self.digest), self.length)
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobId {
    type Err = IdParseError;

    fn from_str(text: &str) -> Result<Self, IdParseError> {
        text.split_once('#')
            .and_then(|(digest, length)| {
                // `parse` alone would also accept a sign, and then one blob would have two ids.
                let is_plain = length.bytes().all(|byte| byte.is_ascii_digit());
                is_plain
                    .then(|| Some(Self::new(parse_digest(digest)?, length.parse().ok()?)))
                    .flatten()
            })
            .ok_or_else(|| IdParseError {
                text: text.to_owned(),
                expected: "64 hexadecimal digits, `#` and a length",
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_and_read_back() {
        let chunk = ChunkId::hash_of(b"tympan");
        assert_eq!(chunk.to_string().parse::<ChunkId>().unwrap(), chunk);
        let blob = BlobId::hash_of(b"tympan");
        assert!(blob.to_string().ends_with("#6"), "{blob}");
        assert_eq!(blob.to_string().parse::<BlobId>().unwrap(), blob);
    }

    #[test]
    fn known_digests() {
        assert_eq!(
            ChunkId::hash_of(b"").to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(
            BlobId::hash_of(b"abc").to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad#3"
        );
    }

    #[test]
    fn malformed_ids_are_refused() {
        let hex = "ab".repeat(32);
        for text in ["", "ab", &"g".repeat(64), &format!("{hex}a"), &format!("{hex}#1")] {
            assert!(text.parse::<ChunkId>().is_err(), "{text}");
        }
        for text in ["", "#", &hex, &format!("{hex}#"), &format!("{hex}#+1"), &format!("{hex}#1x")]
        {
            assert!(text.parse::<BlobId>().is_err(), "{text}");
        }
    }
}
