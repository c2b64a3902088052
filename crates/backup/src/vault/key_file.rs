//! The keys of a vault: one file per password, each with the vault's own key sealed by it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::user::VaultUser;
use crate::backend::{VaultBackend, VaultFileKind};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault_encryption::{self, VaultKey};

/// Memory limit of the key derivation, so that a hostile vault cannot exceed it.
const MAX_SCRYPT_MEMORY: u64 = 1 << 31;

/// The cost of trying a password: the parameters of scrypt.
#[derive(Clone, Copy, Debug)]
pub struct KeyDerivationCost {
    /// The base-2 logarithm of the number of rounds.
    pub log_rounds: u8,
}

impl Default for KeyDerivationCost {
    /// The parameters that restic chooses on usual machines: about 32 MiB and 100 ms.
    fn default() -> Self {
        Self { log_rounds: 15 }
    }
}

/// The metadata of a key that is readable without its password.
#[derive(Clone, Debug, Serialize)]
pub struct KeyMetadata {
    /// The id of the key.
    pub id: VaultObjectId,
    /// True if the vault was opened with it.
    pub is_used: bool,
    /// The user who created it.
    pub user: String,
    /// The host on which it was created.
    pub host: String,
    /// The time at which it was created.
    pub created: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct VaultKeyFile {
    created: String,
    username: String,
    hostname: String,
    kdf: String,
    #[serde(rename = "N")]
    rounds: u64,
    r: u32,
    p: u32,
    salt: String,
    data: String,
}

/// The parameters of scrypt: rounds, `r` and `p`.
type ScryptParameters = (u64, u32, u32);

impl VaultKeyFile {
    /// Returns the parameters, the salt and the sealed key, or a description of the fault.
    pub(crate) fn decode_parts(&self) -> Result<(ScryptParameters, Vec<u8>, Vec<u8>), String> {
        if self.kdf != "scrypt" {
            return Err("its key derivation function is unknown".to_owned());
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| error.to_string());
        Ok(((self.rounds, self.r, self.p), decode(&self.salt)?, decode(&self.data)?))
    }
}

/// Adds a key.
pub(super) fn add_key(
    backend: &dyn VaultBackend,
    master: &VaultKey,
    password: &[u8],
    cost: KeyDerivationCost,
    (user, now): (&VaultUser, Timestamp),
) -> Result<VaultObjectId> {
    let mut salt = [0; 64];
    vault_encryption::fill_random(&mut salt)?;
    let (rounds, r, p) = (1_u64 << cost.log_rounds.min(20), 8, 1);
    let key = derive_key(password, &salt, (rounds, r, p)).ok_or_else(|| {
        Error::InvalidRequest("the key derivation cost is out of range".to_owned())
    })?;
    let file = VaultKeyFile {
        created: now.to_string(),
        username: user.user.clone(),
        hostname: user.host.clone(),
        kdf: "scrypt".to_owned(),
        rounds,
        r,
        p,
        salt: STANDARD.encode(salt),
        data: STANDARD.encode(key.seal(&master.to_json())?),
    };
    let bytes = serde_json::to_vec(&file).unwrap_or_default();
    let id = VaultObjectId::of(&bytes);
    backend.write(VaultFileKind::Key, &id, &bytes).map_err(Error::backend(
        "write",
        VaultFileKind::Key,
        &id,
    ))?;
    Ok(id)
}

/// Lists the ids of the keys.
pub(super) fn list_key_ids(backend: &dyn VaultBackend) -> Result<Vec<VaultObjectId>> {
    let keys = backend.list(VaultFileKind::Key).map_err(|source| Error::Backend {
        action: "list",
        what: "the keys".to_owned(),
        source,
    })?;
    Ok(keys.into_iter().map(|(id, _)| id).collect())
}

/// Finds the key that a password opens; returns it with the vault's key in it, and the bytes of its file.
pub(super) fn find_key(
    backend: &dyn VaultBackend,
    ids: &[VaultObjectId],
    password: &[u8],
) -> Result<(VaultObjectId, VaultKey, Vec<u8>)> {
    let mut damaged = None;
    for id in ids {
        let opened = read_key_bytes(backend, id)
            .and_then(|bytes| Ok((*id, open_key_file(id, &bytes, password)?, bytes)));
        match opened {
            Ok(opened_key) => return Ok(opened_key),
            Err(Error::WrongPassword) => {}
            Err(error) => damaged = Some(error),
        }
    }
    // A damaged key is reported only if no other one opened.
    Err(damaged.unwrap_or(Error::WrongPassword))
}

/// Opens one key.
pub(super) fn open_key(
    backend: &dyn VaultBackend,
    id: &VaultObjectId,
    password: &[u8],
) -> Result<VaultKey> {
    open_key_file(id, &read_key_bytes(backend, id)?, password)
}

/// Opens a key from the bytes of its file.
pub(super) fn open_key_file(id: &VaultObjectId, bytes: &[u8], password: &[u8]) -> Result<VaultKey> {
    let damaged = |fault: &str| Error::damaged(VaultFileKind::Key, id, &fault);
    let file = parse_key_file(id, bytes)?;
    let (parameters, salt, data) = file.decode_parts().map_err(|fault| damaged(&fault))?;
    let key = derive_key(password, &salt, parameters)
        .ok_or_else(|| damaged("its parameters are out of range"))?;
    let plain = key.open(data).ok_or(Error::WrongPassword)?;
    VaultKey::parse(&plain)
        .ok_or_else(|| damaged("it can be decrypted, but does not contain a key"))
}

/// Lists the keys.
pub(super) fn list_keys(
    backend: &dyn VaultBackend,
    used: &VaultObjectId,
) -> Result<Vec<KeyMetadata>> {
    let facts = |id: VaultObjectId| {
        let file = parse_key_file(&id, &read_key_bytes(backend, &id)?)?;
        let VaultKeyFile { username, hostname, created, .. } = file;
        Ok(KeyMetadata { id, is_used: id == *used, user: username, host: hostname, created })
    };
    let mut keys =
        list_key_ids(backend)?.into_iter().map(facts).collect::<Result<Vec<KeyMetadata>>>()?;
    keys.sort_by(|left, right| left.created.cmp(&right.created));
    Ok(keys)
}

fn read_key_bytes(backend: &dyn VaultBackend, id: &VaultObjectId) -> Result<Vec<u8>> {
    backend.read(VaultFileKind::Key, id).map_err(Error::backend("read", VaultFileKind::Key, id))
}

fn parse_key_file(id: &VaultObjectId, bytes: &[u8]) -> Result<VaultKeyFile> {
    if VaultObjectId::of(bytes) != *id {
        let fault = "its content does not match the hash in its name";
        return Err(Error::damaged(VaultFileKind::Key, id, &fault));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::damaged(VaultFileKind::Key, id, &error))
}

/// Derives a key; `None` if the parameters are out of bounds.
pub(crate) fn derive_key(
    password: &[u8],
    salt: &[u8],
    (rounds, r, p): ScryptParameters,
) -> Option<VaultKey> {
    let memory = rounds.checked_mul(u64::from(r))?.checked_mul(128)?;
    if !rounds.is_power_of_two() || memory > MAX_SCRYPT_MEMORY || p > 16 {
        return None;
    }
    let log_rounds = u8::try_from(rounds.trailing_zeros()).ok()?;
    let parameters = scrypt::Params::new(log_rounds, r, p).ok()?;
    let mut bytes = [0; 64];
    scrypt::scrypt(password, salt, &parameters, &mut bytes).ok()?;
    Some(VaultKey::from_bytes(&bytes))
}
