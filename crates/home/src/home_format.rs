//! The version of a home: which program may open it.
//!
//! In: the file `home-format` of a home, with the version and the release that wrote it.
//! Out: nothing, or a refusal that says which program to start.
//!
//! Invariants
//! * A home that a newer program may have changed in a way that this program cannot read is not opened.
//! * The version is raised before the first change that an older program cannot read, and never lowered.
//!
//! Each format in a home also has a version of its own, which is checked where it is read.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};
use crate::private_file::write_file_durably;

/// The name of the file.
pub const HOME_FORMAT_FILE: &str = "home-format";

/// The version of the homes that this program writes. A change after which an older program would misread a home, or
/// fail in the middle, raises it.
pub const HOME_FORMAT_VERSION: u32 = 1;

/// The maximum length of the file; a longer one is not of a program.
const MAX_FILE_BYTES: usize = 1024;

/// The version of a home, and the release that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeFormat {
    /// The version.
    pub version: u32,
    /// The release of the program, such as `0.1.0`.
    pub program: String,
}

/// Reads the version of a home; `None` if there is no home, or if a program wrote it that recorded none, before the
/// first release.
///
/// # Errors
/// [`Error::Refused`] if the file is damaged.
pub fn read_home_format(dir: &Path) -> Result<Option<HomeFormat>> {
    let file = dir.join(HOME_FORMAT_FILE);
    let bytes = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Error::failed(format!("cannot read `{}`", file.display()), error));
        }
    };
    let text =
        bytes.get(..bytes.len().min(MAX_FILE_BYTES)).and_then(|text| str::from_utf8(text).ok());
    let mut words = text.unwrap_or_default().split_whitespace();
    let version = words.next().and_then(|version| version.parse().ok());
    match (version, words.next(), words.next()) {
        (Some(version), Some(program), None) => {
            Ok(Some(HomeFormat { version, program: program.to_owned() }))
        }
        _ => Err(Error::refused(format!(
            "`{}` does not contain the version of the home and of its program, such as `{HOME_FORMAT_VERSION} {}`; \
             restore it from a backup, or write the release that used the home last",
            file.display(),
            env!("CARGO_PKG_VERSION")
        ))),
    }
}

/// Refuses a home that a newer program uses.
///
/// # Errors
/// [`Error::Refused`] with the release to start.
pub fn check_home_format(dir: &Path) -> Result<()> {
    match read_home_format(dir)? {
        Some(HomeFormat { version, program }) if version > HOME_FORMAT_VERSION => {
            Err(Error::refused(format!(
                "the home `{}` has format {version}, which release {program} wrote; this program knows formats up to \
                 {HOME_FORMAT_VERSION}: start that release or a newer one, or restore a backup from before the upgrade \
                 into a new home",
                dir.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Records that this program uses a home.
///
/// # Errors
/// As [`check_home_format`], and if the file cannot be written.
pub(crate) fn record_home_format(dir: &Path) -> Result<()> {
    match read_home_format(dir)? {
        Some(format) if format.version >= HOME_FORMAT_VERSION => check_home_format(dir),
        _ => {
            let text = format!("{HOME_FORMAT_VERSION} {}\n", env!("CARGO_PKG_VERSION"));
            write_file_durably(&dir.join(HOME_FORMAT_FILE), &text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_of_a_newer_program_is_refused_with_its_release() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_home_format(dir.path()).unwrap(), None);
        record_home_format(dir.path()).unwrap();
        let own = HomeFormat { version: 1, program: env!("CARGO_PKG_VERSION").to_owned() };
        assert_eq!(read_home_format(dir.path()).unwrap(), Some(own));
        check_home_format(dir.path()).unwrap();
        let file = dir.path().join(HOME_FORMAT_FILE);
        fs::write(&file, "2 7.5.0\n").unwrap();
        for result in [check_home_format(dir.path()), record_home_format(dir.path())] {
            let refusal = result.unwrap_err().to_string();
            assert!(refusal.contains("release 7.5.0") && refusal.contains("format 2"), "{refusal}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "2 7.5.0\n", "the version is not lowered");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_old_home() {
        let dir = tempfile::tempdir().unwrap();
        let long = "1".repeat(2000);
        for text in ["", "x 1\n", "1\n", "1 0.1.0 more\n", "-1 0.1.0\n", "99999999999 1\n", &long] {
            fs::write(dir.path().join(HOME_FORMAT_FILE), text).unwrap();
            assert!(read_home_format(dir.path()).is_err(), "{text:?}");
            assert!(record_home_format(dir.path()).is_err(), "{text:?}");
        }
    }
}
