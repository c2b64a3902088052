//! Dependencies of a package on other packages, by group, name and version range.

use std::fmt;

use super::package_id::PackageId;
use super::version::{PackageVersion, VersionRange};

/// A dependency on another package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageDependency {
    /// The group of the required package.
    pub group: String,
    /// The name of the required package.
    pub name: String,
    /// The accepted versions.
    pub version_range: VersionRange,
}

impl PackageDependency {
    /// Creates a dependency on exactly one package.
    #[must_use]
    pub fn exactly(id: &PackageId) -> Self {
        Self {
            group: id.group.clone(),
            name: id.name.clone(),
            version_range: VersionRange::exactly(&id.version),
        }
    }

    /// Parses `group:name:range`, `group:name` or `name`. The error describes the fault.
    ///
    /// # Errors
    /// If the name is missing or the range is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.trim().splitn(3, ':').map(str::trim);
        let (first, second) = (parts.next().unwrap_or_default(), parts.next());
        let (group, name) = second.map_or(("", first), |name| (first, name));
        if name.is_empty() {
            return Err(format!("the dependency `{text}` does not name a package"));
        }
        let range = VersionRange::parse(parts.next().unwrap_or_default())?;
        Ok(Self { group: group.to_owned(), name: name.to_owned(), version_range: range })
    }

    /// Parses a list in the form of `properties.xml`: separated by commas, except those in ranges.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let mut depth = 0_usize;
        let parts = text.split(|character| {
            match character {
                '[' | '(' => depth += 1,
                ']' | ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            character == ',' && depth == 0
        });
        parts.map(str::trim).filter(|part| !part.is_empty()).map(Self::parse).collect()
    }

    /// Returns true if a package satisfies the dependency.
    #[must_use]
    pub fn is_met_by(&self, id: &PackageId) -> bool {
        self.group == id.group
            && self.name == id.name
            && self.version_range.contains(&PackageVersion::new(&id.version))
    }
}

impl fmt::Display for PackageDependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.group, self.name)?;
        let range = self.version_range.to_string();
        if range.is_empty() { Ok(()) } else { write!(f, ":{range}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_outside_of_ranges() {
        let list = "my_packages:test_b, my_packages:test_c:[1.0,2.0),plain,g:old:(,3],";
        let parsed = PackageDependency::parse_list(list).unwrap();
        let texts: Vec<_> = parsed.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            ["my_packages:test_b", "my_packages:test_c:[1.0,2.0)", ":plain", "g:old:[,3]"]
        );
        assert_eq!(PackageDependency::parse_list(" \n").unwrap(), []);
        assert!(
            PackageDependency::parse_list("a:b:[2,1]").unwrap_err().contains("contains no version")
        );
        assert!(PackageDependency::parse_list("a:").is_err());
    }

    #[test]
    fn a_dependency_asks_for_group_name_and_version() {
        let need = PackageDependency::parse("g:n:[1.0,2.0)").unwrap();
        let id = |text: &str| PackageId::parse(text);
        assert!(need.is_met_by(&id("g:n:1.5")));
        for package_id in ["g:n:2.0", "g:m:1.5", "h:n:1.5", "g:n"] {
            assert!(!need.is_met_by(&id(package_id)), "{package_id}");
        }
        assert!(PackageDependency::exactly(&id("g:n:1.5")).is_met_by(&id("g:n:1.5")));
        assert!(!PackageDependency::exactly(&id("g:n:1.5")).is_met_by(&id("g:n:1.6")));
        assert!(PackageDependency::exactly(&id("g:n")).is_met_by(&id("g:n:1.6")));
    }
}
