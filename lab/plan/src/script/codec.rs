//! Bytes in scripts: Base64, hexadecimal, digests and message authentication codes.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, URL_SAFE};
use hmac::{Hmac, KeyInit, Mac as _};
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

/// A Java digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JavaDigest {
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl JavaDigest {
    /// Parses Java's name of a digest, or of the MAC based on it.
    pub(super) fn find(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_uppercase().replace("HMAC", "").replace('-', "");
        Some(match name.as_str() {
            "MD5" => Self::Md5,
            "SHA" | "SHA1" => Self::Sha1,
            "SHA256" => Self::Sha256,
            "SHA384" => Self::Sha384,
            "SHA512" => Self::Sha512,
            _ => return None,
        })
    }

    /// Returns the digest of bytes.
    pub(super) fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Md5 => Md5::digest(bytes).to_vec(),
            Self::Sha1 => Sha1::digest(bytes).to_vec(),
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// Returns the MAC of bytes (RFC 2104).
    pub(super) fn authenticate(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        macro_rules! code {
            ($hash:ty) => {
                match <Hmac<$hash> as KeyInit>::new_from_slice(key) {
                    Ok(mut mac) => {
                        mac.update(bytes);
                        mac.finalize().into_bytes().to_vec()
                    }
                    // Keys of every length are valid.
                    Err(_) => Vec::new(),
                }
            };
        }
        match self {
            Self::Md5 => code!(Md5),
            Self::Sha1 => code!(Sha1),
            Self::Sha256 => code!(Sha256),
            Self::Sha384 => code!(Sha384),
            Self::Sha512 => code!(Sha512),
        }
    }
}

fn base64_engine(is_for_urls: bool) -> &'static GeneralPurpose {
    if is_for_urls { &URL_SAFE } else { &STANDARD }
}

pub(super) fn encode_base64(bytes: &[u8], is_for_urls: bool) -> String {
    base64_engine(is_for_urls).encode(bytes)
}

/// Decodes Base64; `None` for invalid input.
pub(super) fn parse_base64(text: &str, is_for_urls: bool) -> Option<Vec<u8>> {
    base64_engine(is_for_urls).decode(text.trim()).ok()
}
