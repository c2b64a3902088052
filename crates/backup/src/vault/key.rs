//! The keys of a vault: one file per password, each with the vault's own key sealed by it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Who;
use crate::backend::{Backend, FileKind};
use crate::error::{Error, Result};
use crate::id::Id;
use crate::seal::{self, Key};

/// A hostile vault may not make the derivation take more memory than this.
const MAX_MEMORY: u64 = 1 << 31;

/// How much work it is to try a password: the parameters of scrypt.
#[derive(Clone, Copy, Debug)]
pub struct KeyCost {
    /// The logarithm of the number of rounds.
    pub log_rounds: u8,
}

impl Default for KeyCost {
    /// What restic finds on usual machines: about 32 MiB and 100 ms.
    fn default() -> Self {
        Self { log_rounds: 15 }
    }
}

/// What is known of a key without its password.
#[derive(Clone, Debug, Serialize)]
pub struct KeyFacts {
    /// Its id.
    pub id: Id,
    /// Whether the vault was opened with it.
    pub is_used: bool,
    /// Who made it.
    pub user: String,
    /// On which host.
    pub host: String,
    /// When.
    pub created: String,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct KeyFile {
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

/// How a key is derived from a password: rounds, `r` and `p` of scrypt.
type Parameters = (u64, u32, u32);

impl KeyFile {
    /// Returns the parameters, the salt and the sealed key, or what is wrong.
    pub(crate) fn parts(&self) -> Result<(Parameters, Vec<u8>, Vec<u8>), String> {
        if self.kdf != "scrypt" {
            return Err("its derivation is not known".to_owned());
        }
        let decode = |text: &str| STANDARD.decode(text).map_err(|error| error.to_string());
        Ok(((self.rounds, self.r, self.p), decode(&self.salt)?, decode(&self.data)?))
    }
}

/// Adds a key.
pub(super) fn add(
    backend: &dyn Backend,
    master: &Key,
    password: &[u8],
    cost: KeyCost,
    (who, now): (&Who, Timestamp),
) -> Result<Id> {
    let mut salt = [0; 64];
    seal::fill_random(&mut salt)?;
    let (rounds, r, p) = (1_u64 << cost.log_rounds.min(20), 8, 1);
    let key = derive(password, &salt, (rounds, r, p))
        .ok_or_else(|| Error::Refused("the cost of the key is out of bounds".to_owned()))?;
    let file = KeyFile {
        created: now.to_string(),
        username: who.user.clone(),
        hostname: who.host.clone(),
        kdf: "scrypt".to_owned(),
        rounds,
        r,
        p,
        salt: STANDARD.encode(salt),
        data: STANDARD.encode(key.seal(&master.to_json())?),
    };
    let bytes = serde_json::to_vec(&file).unwrap_or_default();
    let id = Id::of(&bytes);
    backend.write(FileKind::Key, &id, &bytes).map_err(Error::backend(
        "write",
        FileKind::Key,
        &id,
    ))?;
    Ok(id)
}

/// Lists the ids of the keys.
pub(super) fn ids(backend: &dyn Backend) -> Result<Vec<Id>> {
    let keys = backend.list(FileKind::Key).map_err(|source| Error::Backend {
        action: "list",
        what: "the keys".to_owned(),
        source,
    })?;
    Ok(keys.into_iter().map(|(id, _)| id).collect())
}

/// Finds the key that a password opens, and the vault's key in it, with the bytes of its file.
pub(super) fn find(
    backend: &dyn Backend,
    ids: &[Id],
    password: &[u8],
) -> Result<(Id, Key, Vec<u8>)> {
    let mut damaged = None;
    for id in ids {
        let opened = read_bytes(backend, id)
            .and_then(|bytes| Ok((*id, open_file(id, &bytes, password)?, bytes)));
        match opened {
            Ok(found) => return Ok(found),
            Err(Error::WrongPassword) => {}
            Err(error) => damaged = Some(error),
        }
    }
    // A damaged key is told only if no other one opened.
    Err(damaged.unwrap_or(Error::WrongPassword))
}

/// Opens one key.
pub(super) fn find_one(backend: &dyn Backend, id: &Id, password: &[u8]) -> Result<Key> {
    open_file(id, &read_bytes(backend, id)?, password)
}

/// Opens a key whose file has these bytes.
pub(super) fn open_file(id: &Id, bytes: &[u8], password: &[u8]) -> Result<Key> {
    let damaged = |fault: &str| Error::damaged(FileKind::Key, id, &fault);
    let file = parse(id, bytes)?;
    let (parameters, salt, data) = file.parts().map_err(|fault| damaged(&fault))?;
    let key = derive(password, &salt, parameters)
        .ok_or_else(|| damaged("its parameters are out of bounds"))?;
    let plain = key.open(data).ok_or(Error::WrongPassword)?;
    Key::parse(&plain).ok_or_else(|| damaged("it opens, and holds no key"))
}

/// Lists the keys.
pub(super) fn list(backend: &dyn Backend, used: &Id) -> Result<Vec<KeyFacts>> {
    let facts = |id: Id| {
        let file = parse(&id, &read_bytes(backend, &id)?)?;
        let KeyFile { username: user, hostname: host, created, .. } = file;
        Ok(KeyFacts { id, is_used: id == *used, user, host, created })
    };
    let mut keys = ids(backend)?.into_iter().map(facts).collect::<Result<Vec<KeyFacts>>>()?;
    keys.sort_by(|left, right| left.created.cmp(&right.created));
    Ok(keys)
}

fn read_bytes(backend: &dyn Backend, id: &Id) -> Result<Vec<u8>> {
    backend.read(FileKind::Key, id).map_err(Error::backend("read", FileKind::Key, id))
}

fn parse(id: &Id, bytes: &[u8]) -> Result<KeyFile> {
    if Id::of(bytes) != *id {
        let fault = "its bytes do not have the hash that it is named by";
        return Err(Error::damaged(FileKind::Key, id, &fault));
    }
    serde_json::from_slice(bytes).map_err(|error| Error::damaged(FileKind::Key, id, &error))
}

/// Derives a key; nothing if the parameters are out of bounds.
pub(crate) fn derive(password: &[u8], salt: &[u8], (rounds, r, p): Parameters) -> Option<Key> {
    let memory = rounds.checked_mul(u64::from(r))?.checked_mul(128)?;
    if !rounds.is_power_of_two() || memory > MAX_MEMORY || p > 16 {
        return None;
    }
    let log_rounds = u8::try_from(rounds.trailing_zeros()).ok()?;
    let parameters = scrypt::Params::new(log_rounds, r, p).ok()?;
    let mut bytes = [0; 64];
    scrypt::scrypt(password, salt, &parameters, &mut bytes).ok()?;
    Some(Key::from_bytes(&bytes))
}
