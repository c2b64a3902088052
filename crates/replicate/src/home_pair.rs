//! Credentials of pairs of instances: each pair has a key of its own and lists the purposes of the key.
//!
//! In: files in the folder `pairs` of a home, which `tympan pair` writes. Out: the key to send with, and whether a
//! presented key is valid for a purpose.
//!
//! Invariants
//! * A key serves only the purposes that its pair lists: the receiver of an author's replication cannot read the
//!   author's store with it.
//! * Keys are compared in constant time, and have at least [`MIN_PAIR_KEY_CHARACTERS`] characters.
//! * Added and removed pairs take effect with the next request.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The minimum number of characters of a key.
pub const MIN_PAIR_KEY_CHARACTERS: usize = 16;
/// The maximum size of a pair file, in bytes.
const MAX_PAIR_FILE_BYTES: u64 = 64 * 1024;
const PAIR_FILE_EXTENSION: &str = "json";

/// The purpose of a pair's key, from the side of the home that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PairKeyPurpose {
    /// This home sends to the other one with the key.
    Send,
    /// This home receives what the other one sends.
    Receive,
    /// The other home may read the whole store of this one: clones, standbys, backups, shared blobs.
    Clone,
    /// A publisher flushes a dispatcher's cache with the key; both homes hold the key for this purpose.
    Flush,
}

impl PairKeyPurpose {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Clone => "clone",
            Self::Flush => "flush",
        }
    }
}

/// One pair, as stored by one of its two homes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HomePair {
    /// The common name of the pair; a sending home has an agent of this name.
    pub name: String,
    /// The purposes of the key.
    pub purposes: BTreeSet<PairKeyPurpose>,
    /// The key.
    pub key: String,
}

/// The pairs of a home.
#[derive(Debug, Clone, Default)]
pub struct HomePairs {
    dir: Option<PathBuf>,
}

impl HomePairs {
    /// Opens the pairs in a folder, which need not exist.
    #[must_use]
    pub fn in_dir(folder: PathBuf) -> Self {
        Self { dir: Some(folder) }
    }

    /// Returns all pairs, sorted by name.
    ///
    /// # Errors
    /// If a file cannot be read or is not a valid pair; the message names it.
    pub fn list(&self) -> io::Result<Vec<HomePair>> {
        let Some(folder) = &self.dir else { return Ok(Vec::new()) };
        let mut pairs = Vec::new();
        let listed = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pairs),
            listed => listed?,
        };
        for entry in listed {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == PAIR_FILE_EXTENSION) {
                pairs.push(read_pair_file(&file)?);
            }
        }
        pairs.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(pairs)
    }

    /// Returns the key for sending to an agent, for [`PairKeyPurpose::Send`] or [`PairKeyPurpose::Flush`], if the home
    /// has a pair for it.
    ///
    /// # Errors
    /// As [`HomePairs::list`].
    pub fn key_for(&self, agent: &str, purpose: PairKeyPurpose) -> io::Result<Option<String>> {
        let mut all = self.list()?.into_iter();
        let matching_pair = all.find(|pair| pair.name == agent && pair.purposes.contains(&purpose));
        Ok(matching_pair.map(|pair| pair.key))
    }

    /// Returns true if a key belongs to a pair for this purpose; `None` if no pair has the purpose.
    ///
    /// # Errors
    /// As [`HomePairs::list`].
    pub fn check_key_for(&self, key: &[u8], purpose: PairKeyPurpose) -> io::Result<Option<bool>> {
        let all = self.list()?;
        let mut admitted = None;
        for pair in all.iter().filter(|pair| pair.purposes.contains(&purpose)) {
            // The digests are compared, so that the time reveals nothing about the keys.
            let is_same = Sha256::digest(key) == Sha256::digest(pair.key.as_bytes());
            admitted = Some(admitted.unwrap_or(false) | is_same);
        }
        Ok(admitted)
    }

    /// Stores a pair, replacing one of the same name.
    ///
    /// # Errors
    /// For an invalid name or key; if the file cannot be written.
    pub fn store(&self, pair: &HomePair) -> io::Result<()> {
        check_pair(pair)?;
        let file = self.pair_file(&pair.name)?;
        if let Some(folder) = file.parent() {
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.recursive(true).create(folder)?;
        }
        write_private_file(&file, serde_json::to_string_pretty(pair)?.as_bytes())
    }

    /// Removes a pair, so that its key is no longer valid here. Returns true if it existed.
    ///
    /// # Errors
    /// For an invalid name; if the file cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match fs::remove_file(self.pair_file(name)?) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn pair_file(&self, name: &str) -> io::Result<PathBuf> {
        check_pair_name(name)?;
        let folder =
            self.dir.as_ref().ok_or_else(|| invalid_pair_error("these pairs have no folder"))?;
        Ok(folder.join(format!("{name}.{PAIR_FILE_EXTENSION}")))
    }
}

impl HomePair {
    /// Reads a pair from a file.
    ///
    /// # Errors
    /// If it cannot be read or is not a valid pair; the message names it.
    pub fn read(file: &Path) -> io::Result<Self> {
        read_pair_file(file)
    }

    /// Writes the pair to a new file that only its owner may read.
    ///
    /// # Errors
    /// If it cannot be written, or exists already.
    pub fn write_new(&self, file: &Path) -> io::Result<()> {
        if file.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it already exists"));
        }
        write_private_file(file, serde_json::to_string_pretty(self)?.as_bytes())
    }
}

/// Writes a file that only its owner may read.
fn write_private_file(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut out = options.write(true).create(true).truncate(true).mode(0o600).open(file)?;
    out.write_all(bytes)?;
    out.write_all(b"\n")?;
    out.sync_all()
}

fn read_pair_file(file: &Path) -> io::Result<HomePair> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("the pair `{}`: {error}", file.display()))
    };
    if fs::metadata(file).map_err(named)?.len() > MAX_PAIR_FILE_BYTES {
        return Err(named(invalid_pair_error("the file is too long for a pair")));
    }
    let text = fs::read_to_string(file).map_err(named)?;
    let pair: HomePair = serde_json::from_str(&text).map_err(|error| named(error.into()))?;
    check_pair(&pair).map_err(named)?;
    Ok(pair)
}

fn check_pair(pair: &HomePair) -> io::Result<()> {
    check_pair_name(&pair.name)?;
    if pair.purposes.is_empty() {
        return Err(invalid_pair_error(
            "it names no purpose: `send`, `receive`, `clone` or `flush`",
        ));
    }
    check_pair_key(&pair.key).map_err(|reason| invalid_pair_error(&reason))
}

fn check_pair_name(name: &str) -> io::Result<()> {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_');
    if name.is_empty() || name.len() > 100 || !name.chars().all(is_plain) {
        return Err(invalid_pair_error(
            "a pair name must have 1 to 100 letters, digits, `-` and `_`",
        ));
    }
    Ok(())
}

/// Checks that a key is long enough not to be guessed.
///
/// # Errors
/// A description of the problem.
pub fn check_pair_key(key: &str) -> Result<(), String> {
    if key.chars().count() < MIN_PAIR_KEY_CHARACTERS {
        return Err(format!(
            "a key must have at least {MIN_PAIR_KEY_CHARACTERS} characters; have a new one generated"
        ));
    }
    if !key.chars().all(|character| character.is_ascii_graphic() || character == ' ') {
        return Err("a key must consist of printable ASCII characters in one line".to_owned());
    }
    Ok(())
}

fn invalid_pair_error(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, purpose: PairKeyPurpose, key: &str) -> HomePair {
        HomePair { name: name.to_owned(), purposes: [purpose].into(), key: key.to_owned() }
    }

    #[test]
    fn a_key_opens_what_it_is_for() {
        let folder = tempfile::tempdir().unwrap();
        let pairs = HomePairs::in_dir(folder.path().join("pairs"));
        assert_eq!(pairs.check_key_for(b"", PairKeyPurpose::Clone).unwrap(), None);
        pairs.store(&pair("one", PairKeyPurpose::Send, "the key of the first pair")).unwrap();
        pairs.store(&pair("two", PairKeyPurpose::Clone, "the key of the second pair")).unwrap();
        let admit = |key: &str, purpose| pairs.check_key_for(key.as_bytes(), purpose).unwrap();
        assert_eq!(admit("the key of the first pair", PairKeyPurpose::Clone), Some(false));
        assert_eq!(admit("the key of the second pair", PairKeyPurpose::Clone), Some(true));
        assert_eq!(admit("the key of the second pair", PairKeyPurpose::Receive), None);
        let key_for = |name, purpose| pairs.key_for(name, purpose).unwrap();
        assert_eq!(
            key_for("one", PairKeyPurpose::Send).as_deref(),
            Some("the key of the first pair")
        );
        assert_eq!(key_for("two", PairKeyPurpose::Send), None, "it is not for sending");
        pairs.store(&pair("cache", PairKeyPurpose::Flush, "the key of the third pair")).unwrap();
        assert_eq!(
            key_for("cache", PairKeyPurpose::Flush).as_deref(),
            Some("the key of the third pair")
        );
        assert_eq!(key_for("cache", PairKeyPurpose::Send), None, "it is not for sending");
        assert_eq!(admit("the key of the third pair", PairKeyPurpose::Flush), Some(true));
        assert_eq!(admit("the key of the third pair", PairKeyPurpose::Clone), Some(false));
        assert_eq!(admit("the key of the second pair", PairKeyPurpose::Flush), Some(false));
        assert!(pairs.remove("two").unwrap() && !pairs.remove("two").unwrap());
        assert_eq!(admit("the key of the second pair", PairKeyPurpose::Clone), None);
    }

    #[test]
    fn short_keys_and_odd_names_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pairs = HomePairs::in_dir(folder.path().to_owned());
        for (name, key) in [
            ("one", "short"),
            ("one", ""),
            ("../one", "a key that is long enough"),
            ("", "a key that is long enough"),
            ("one", "a key that is long enough\nbut has lines"),
        ] {
            assert!(pairs.store(&pair(name, PairKeyPurpose::Send, key)).is_err(), "{name} {key}");
        }
        let file = folder.path().join("x.json");
        fs::write(&file, r#"{"name":"x","purposes":["send"],"key":"short"}"#).unwrap();
        assert!(pairs.list().unwrap_err().to_string().contains("x.json"));
    }
}
