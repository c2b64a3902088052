//! The identifiers of packages, and the paths of their files.

use serde::Serialize;
use tympan_content::NodePath;

use crate::Result;

/// The path of stored packages in the content.
pub(crate) const PACKAGES_PATH: &str = "/etc/packages";

/// The identifier of a package: `group:name:version`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PackageId {
    /// The group, such as `adobe/cq60`; may be empty.
    pub group: String,
    /// The name.
    pub name: String,
    /// The version; may be empty.
    pub version: String,
}

impl PackageId {
    /// Parses `group:name:version`, `group:name` or `name`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut parts = text.trim().splitn(3, ':').map(|part| part.trim().to_owned());
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let version = parts.next().unwrap_or_default();
        match second {
            Some(name) => Self { group: first, name, version },
            None => Self { name: first, ..Self::default() },
        }
    }

    /// Derives the identifier from the path of a package file such as `/etc/packages/my/site-1.0.zip`.
    #[must_use]
    pub fn from_path(path: &str, version: &str) -> Self {
        let path = path.trim().trim_end_matches(".zip").trim_end_matches(".jar");
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let group = folder.strip_prefix(PACKAGES_PATH).unwrap_or(folder).trim_matches('/');
        let (name, version) =
            match file.strip_suffix(version).and_then(|name| name.strip_suffix('-')) {
                Some(name) if !version.is_empty() => (name, version),
                _ if version.is_empty() => split_version_suffix(file),
                _ => (file, version),
            };
        Self { group: group.to_owned(), name: name.to_owned(), version: version.to_owned() }
    }

    /// Returns the name of the package's file: `name-version.zip`.
    #[must_use]
    pub fn file_name(&self) -> String {
        let separator = if self.version.is_empty() { "" } else { "-" };
        format!("{}{separator}{}.zip", self.name, self.version)
    }

    /// Returns the path of the package in the content.
    ///
    /// # Errors
    /// [`tympan_content::Error::InvalidName`] if group, name or version cannot be node names.
    pub fn path(&self) -> Result<NodePath> {
        let folders = self.group.split('/').filter(|name| !name.is_empty());
        let mut path = NodePath::new(PACKAGES_PATH)?;
        for folder in folders {
            path = path.child(folder)?;
        }
        Ok(path.child(&self.file_name())?)
    }
}

impl std::fmt::Display for PackageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.group, self.name)?;
        if self.version.is_empty() { Ok(()) } else { write!(f, ":{}", self.version) }
    }
}

/// Splits a version off the end of a file name: it begins at the first part between hyphens that looks like a version.
fn split_version_suffix(file: &str) -> (&str, &str) {
    let is_version = |part: &str| {
        let number: String = part.chars().take_while(char::is_ascii_digit).collect();
        (!number.is_empty() && (number.len() < part.len() || number.len() < 4))
            || part == "SNAPSHOT"
    };
    let mut start = file.len();
    for (at, _) in file.rmatch_indices('-') {
        if !file.get(at + 1..start).is_some_and(is_version) {
            break;
        }
        start = at;
    }
    (file.get(..start).unwrap_or(file), file.get(start + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_paths() {
        for (id, path) in [
            ("g:n:1.0", "/etc/packages/g/n-1.0.zip"),
            ("a/b:n:1.0-SNAPSHOT", "/etc/packages/a/b/n-1.0-SNAPSHOT.zip"),
            (":n", "/etc/packages/n.zip"),
            ("g:my-name:2", "/etc/packages/g/my-name-2.zip"),
            ("g:n-hotfix-4711", "/etc/packages/g/n-hotfix-4711.zip"),
        ] {
            let parsed = PackageId::parse(id);
            assert_eq!(parsed.to_string(), id);
            assert_eq!(parsed.path().unwrap().as_str(), path);
            assert_eq!(PackageId::from_path(path, &parsed.version), parsed, "{path}");
            assert_eq!(PackageId::from_path(path, ""), parsed, "{path} alone");
        }
        assert_eq!(PackageId::parse("plain").to_string(), ":plain");
        assert!(PackageId::parse("g:a/b").path().is_err());
        assert!(PackageId::parse("../..:n").path().is_err());
    }
}
