//! The password of a vault, as it is read from files and the output of commands.

use std::path::Path;

use crate::error::{Error, Result};

/// A vault's password.
pub struct VaultPassword {
    /// The password without surrounding whitespace.
    trimmed_line: Vec<u8>,
    /// The line with its whitespace, as some vaults may have been created; `None` if it is the same.
    untrimmed_line: Option<Vec<u8>>,
}

impl std::fmt::Debug for VaultPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VaultPassword")
    }
}

impl VaultPassword {
    /// Takes the bytes as they are.
    pub fn exact(bytes: Vec<u8>) -> Self {
        Self { trimmed_line: bytes, untrimmed_line: None }
    }

    /// Takes the first line of a text without surrounding whitespace, as restic does; `None` if there is none.
    pub fn from_first_line(text: &[u8]) -> Option<Self> {
        let line = first_trimmed_line(text)?;
        let whole = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
        let is_other = !whole.is_empty() && whole != line.as_slice();
        Some(Self { untrimmed_line: is_other.then(|| whole.to_vec()), trimmed_line: line })
    }

    /// Reads the password from a file, like [`read_password_file`].
    ///
    /// # Errors
    /// As there.
    pub fn from_file(file: &Path) -> Result<Self> {
        Self::from_first_line(&read_secret_file(file)?).ok_or_else(|| missing_password(file))
    }

    /// Returns the password without surrounding whitespace, for a new vault.
    pub fn as_bytes(&self) -> &[u8] {
        &self.trimmed_line
    }

    /// Opens a vault with the password, or with the whole line including its whitespace if the password does not open
    /// it.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn open_with<T>(&self, open: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let Some(whole) = &self.untrimmed_line else { return open(&self.trimmed_line) };
        match open(&self.trimmed_line) {
            Err(Error::WrongPassword) => {
                let opened = open(whole)?;
                tracing::warn!(
                    "the vault's password has surrounding whitespace: change it to one without"
                );
                Ok(opened)
            }
            opened => opened,
        }
    }
}

/// Reads a password from a file: its first line without surrounding whitespace, as restic does.
///
/// # Errors
/// [`Error::InvalidRequest`] if the file cannot be read, or has none.
pub fn read_password_file(file: &Path) -> Result<Vec<u8>> {
    first_trimmed_line(&read_secret_file(file)?).ok_or_else(|| missing_password(file))
}

fn read_secret_file(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Error::InvalidRequest(format!("cannot read `{}`: {error}", file.display()))
    })
}

fn missing_password(file: &Path) -> Error {
    Error::InvalidRequest(format!("`{}` contains no password", file.display()))
}

fn first_trimmed_line(bytes: &[u8]) -> Option<Vec<u8>> {
    let line = bytes.trim_ascii().split(|byte| matches!(byte, b'\n' | b'\r')).next();
    let line = line.unwrap_or_default().trim_ascii_end();
    (!line.is_empty()).then(|| line.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vaults_open_by_passwords_with_blanks() {
        let opened_by = |file: &[u8], password: &[u8]| {
            let open = |tried: &[u8]| {
                if tried == password { Ok(()) } else { Err(Error::WrongPassword) }
            };
            VaultPassword::from_first_line(file).unwrap().open_with(open).is_ok()
        };
        for file in [b" secret \r\nmore\n".as_slice(), b" secret \n", b" secret "] {
            assert!(opened_by(file, b"secret"));
            assert!(opened_by(file, b" secret "));
            assert!(!opened_by(file, b"secret "));
        }
        assert!(!opened_by(b"secret\n", b"secret\n"));
    }

    #[test]
    fn passwords_are_without_what_is_blank_around_them() {
        for text in ["secret word", "secret word\n", " secret word \r\nmore\n", "\n\tsecret word"] {
            let line = first_trimmed_line(text.as_bytes());
            assert_eq!(line.as_deref(), Some(b"secret word".as_slice()), "{text:?}");
        }
        assert!(first_trimmed_line(b" \n").is_none());
    }
}
