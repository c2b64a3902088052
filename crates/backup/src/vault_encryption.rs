//! Sealing: restic's encryption, AES-256 in counter mode with Poly1305-AES over it.
//!
//! In: plain bytes and a [`VaultKey`]. Out: nonce, ciphertext and tag, [`SEAL_OVERHEAD_BYTES`] bytes more than the
//! input.
//!
//! Invariant: nothing is decrypted before its tag is verified.
//!
//! Not here: compression, and which bytes are sealed (`vault`).

use aes::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher};
use aes::{Aes128, Aes256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use poly1305::Poly1305;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

type AesCounterMode = ctr::Ctr128BE<Aes256>;

const SEAL_NONCE_BYTES: usize = 16;
const SEAL_TAG_BYTES: usize = 16;
/// The number of bytes that sealing adds.
pub(crate) const SEAL_OVERHEAD_BYTES: usize = SEAL_NONCE_BYTES + SEAL_TAG_BYTES;

/// A key for encryption and authentication: of the vault, or of one password.
#[derive(Clone)]
pub(crate) struct VaultKey {
    encryption_key: [u8; 32],
    mac_key: [u8; 16],
    mac_multiplier: [u8; 16],
}

impl std::fmt::Debug for VaultKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The stored form of a key inside a key file.
#[derive(Serialize, Deserialize)]
struct StoredVaultKey {
    mac: StoredMacKey,
    encrypt: String,
}

#[derive(Serialize, Deserialize)]
struct StoredMacKey {
    k: String,
    r: String,
}

impl VaultKey {
    /// Generates a random key.
    pub(crate) fn random() -> Result<Self> {
        let mut bytes = [0; 64];
        fill_random(&mut bytes)?;
        Ok(Self::from_bytes(&bytes))
    }

    /// Splits the output of a key derivation into a key.
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Self {
        let mut key = Self { encryption_key: [0; 32], mac_key: [0; 16], mac_multiplier: [0; 16] };
        let (encrypt, mac) = bytes.split_at(32);
        let (k, r) = mac.split_at(16);
        key.encryption_key.copy_from_slice(encrypt);
        key.mac_key.copy_from_slice(k);
        key.mac_multiplier.copy_from_slice(r);
        key
    }

    /// Parses the stored form of a key; `None` if it is invalid.
    pub(crate) fn parse(json: &[u8]) -> Option<Self> {
        let stored: StoredVaultKey = serde_json::from_slice(json).ok()?;
        let decode = |text: &str| STANDARD.decode(text).ok();
        Some(Self {
            encryption_key: decode(&stored.encrypt)?.try_into().ok()?,
            mac_key: decode(&stored.mac.k)?.try_into().ok()?,
            mac_multiplier: decode(&stored.mac.r)?.try_into().ok()?,
        })
    }

    /// Returns the stored form.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let encode = |bytes: &[u8]| STANDARD.encode(bytes);
        let mac = StoredMacKey { k: encode(&self.mac_key), r: encode(&self.mac_multiplier) };
        serde_json::to_vec(&StoredVaultKey { mac, encrypt: encode(&self.encryption_key) })
            .unwrap_or_default()
    }

    /// Seals bytes.
    pub(crate) fn seal(&self, plain: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(plain.len() + SEAL_OVERHEAD_BYTES);
        self.seal_appended(&mut out, |out| {
            out.extend_from_slice(plain);
            Ok(())
        })?;
        Ok(out)
    }

    /// Seals what `append` writes, in place, so that long data is not copied.
    pub(crate) fn seal_appended<T>(
        &self,
        out: &mut Vec<u8>,
        append: impl FnOnce(&mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        let mut nonce = [0; SEAL_NONCE_BYTES];
        fill_random(&mut nonce)?;
        out.extend_from_slice(&nonce);
        let start = out.len();
        let appended = append(out)?;
        let tag = self.encrypt(&nonce, out.get_mut(start..).unwrap_or_default());
        out.extend_from_slice(&tag);
        Ok(appended)
    }

    /// Seals bytes in place; returns the bytes to store before and after them.
    pub(crate) fn seal_in_place(
        &self,
        body: &mut [u8],
    ) -> Result<([u8; SEAL_NONCE_BYTES], [u8; SEAL_TAG_BYTES])> {
        let mut nonce = [0; SEAL_NONCE_BYTES];
        fill_random(&mut nonce)?;
        let tag = self.encrypt(&nonce, body);
        Ok((nonce, tag))
    }

    /// Encrypts bytes and returns their tag.
    fn encrypt(&self, nonce: &[u8; SEAL_NONCE_BYTES], body: &mut [u8]) -> [u8; SEAL_TAG_BYTES] {
        AesCounterMode::new(&self.encryption_key.into(), &(*nonce).into()).apply_keystream(body);
        self.compute_tag(nonce, body)
    }

    /// Opens sealed bytes in place; `None` if they were not sealed with this key, or are damaged.
    pub(crate) fn open(&self, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let (nonce, rest) = sealed.split_first_chunk_mut::<SEAL_NONCE_BYTES>()?;
        let (body, tag) = rest.split_last_chunk_mut::<SEAL_TAG_BYTES>()?;
        // The comparison need not take constant time: an attacker who can measure it already has the whole file.
        if self.compute_tag(nonce, body) != *tag {
            return None;
        }
        AesCounterMode::new(&self.encryption_key.into(), &(*nonce).into()).apply_keystream(body);
        let length = body.len();
        sealed.copy_within(SEAL_NONCE_BYTES..SEAL_NONCE_BYTES + length, 0);
        sealed.truncate(length);
        Some(sealed)
    }

    /// Poly1305-AES: the second half of the one-time key is the nonce, encrypted.
    fn compute_tag(&self, nonce: &[u8; SEAL_NONCE_BYTES], body: &[u8]) -> [u8; SEAL_TAG_BYTES] {
        let mut pad = (*nonce).into();
        Aes128::new(&self.mac_key.into()).encrypt_block(&mut pad);
        let mut key = [0; 32];
        let (r, s) = key.split_at_mut(16);
        r.copy_from_slice(&self.mac_multiplier);
        s.copy_from_slice(&pad);
        Poly1305::new(&key.into()).compute_unpadded(body).into()
    }
}

/// Fills a buffer with random bytes from the system.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| Error::Random(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_what_it_sealed_and_nothing_else() {
        let key = VaultKey::random().unwrap();
        let sealed = key.seal(b"some bytes").unwrap();
        assert_eq!(sealed.len(), 10 + SEAL_OVERHEAD_BYTES);
        assert_eq!(key.open(sealed.clone()).unwrap(), b"some bytes");
        let mut body = b"some bytes".to_vec();
        let (before, after) = key.seal_in_place(&mut body).unwrap();
        let in_place = [before.as_slice(), &body, &after].concat();
        assert!(in_place.len() == sealed.len() && body != b"some bytes");
        assert_eq!(key.open(in_place).unwrap(), b"some bytes");
        let mut appended = b"before".to_vec();
        key.seal_appended(&mut appended, |out| {
            out.extend_from_slice(b"some ");
            out.extend_from_slice(b"bytes");
            Ok(())
        })
        .unwrap();
        let appended = appended.strip_prefix(b"before").unwrap().to_vec();
        assert_eq!(key.open(appended).unwrap(), b"some bytes");
        for position in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[position] ^= 1;
            assert!(key.open(damaged).is_none(), "byte {position}");
        }
        assert!(VaultKey::random().unwrap().open(sealed).is_none());
        assert!(key.open(vec![0; 31]).is_none());
    }
}
