//! Ids of vault objects: SHA-256 hashes, written as 64 hexadecimal digits.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// The SHA-256 hash of a blob's plain bytes, or of a vault file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct VaultObjectId([u8; 32]);

/// Eight bytes of a cryptographic hash are a sufficient hash for tables.
impl Hash for VaultObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let head = self.0.first_chunk::<8>();
        state.write_u64(head.map_or(0, |head| u64::from_le_bytes(*head)));
    }
}

impl VaultObjectId {
    /// Returns the id of the given bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the id with this hash.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first eight digits, as shown to users.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(8).collect()
    }

    /// Returns all digits at once: an index and a folder contain many ids.
    fn hex_digits(&self) -> [u8; 64] {
        let mut digits = [0; 64];
        // The lengths fit.
        let _ = hex::encode_to_slice(self.0, &mut digits);
        digits
    }
}

impl fmt::Display for VaultObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.hex_digits()).unwrap_or_default())
    }
}

impl fmt::Debug for VaultObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidVaultObjectId;

/// Returns the value of a hexadecimal digit; 16 if it is not one.
const fn hex_digit_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 16,
    }
}

impl FromStr for VaultObjectId {
    type Err = InvalidVaultObjectId;

    fn from_str(text: &str) -> Result<Self, InvalidVaultObjectId> {
        let digits: &[u8; 64] = text.as_bytes().try_into().map_err(|_| InvalidVaultObjectId)?;
        let (pairs, _) = digits.as_chunks::<2>();
        let mut bytes = [0; 32];
        let mut digit_bits = 0;
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let (high, low) = (hex_digit_value(*high), hex_digit_value(*low));
            digit_bits |= high | low;
            *byte = high << 4 | low & 15;
        }
        if digit_bits > 15 { Err(InvalidVaultObjectId) } else { Ok(Self(bytes)) }
    }
}

impl Serialize for VaultObjectId {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(std::str::from_utf8(&self.hex_digits()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for VaultObjectId {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        // Borrowed, because an index is a list of ids.
        input.deserialize_str(HexDigitsVisitor)
    }
}

struct HexDigitsVisitor;

impl Visitor<'_> for HexDigitsVisitor {
    type Value = VaultObjectId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 hexadecimal digits")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<VaultObjectId, E> {
        text.parse()
            .map_err(|InvalidVaultObjectId| E::custom("an id must have 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_and_read_back() {
        let id = VaultObjectId::of(b"vault");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<VaultObjectId>(&format!("\"{id}\"")).unwrap(), id);
        let text = "00".repeat(31);
        for (last, is_id) in [
            ("0f", true),
            ("F0", false),
            ("0g", false),
            ("/0", false),
            ("0", false),
            (":0", false),
            ("\u{e9}", false),
            ("000", false),
        ] {
            assert_eq!(format!("{text}{last}").parse::<VaultObjectId>().is_ok(), is_id, "{last}");
        }
    }
}
