//! The metadata of a package: `properties.xml`, or the manifest if that is missing.

use std::collections::BTreeMap;

use crate::Result;
use crate::archive::PackageFileName;
use crate::dependency::PackageDependency;
use crate::keyword;
use crate::package_id::PackageId;
use crate::xml_reader::{XmlItem, XmlReader, push_escaped_attribute};

/// The treatment of existing access control when a package is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessControlHandling {
    /// Access control of the package is not imported. This is the default.
    #[default]
    Ignore,
    /// Access control of the package replaces the existing one.
    Overwrite,
    /// Entries of the package replace those of the same principals.
    Merge,
    /// Entries of the package are added for principals that have none.
    MergePreserve,
    /// Existing access control is removed, and that of the package is not imported.
    Clear,
}

impl AccessControlHandling {
    const ALL: [(Self, &str); 5] = [
        (Self::Ignore, "ignore"),
        (Self::Overwrite, "overwrite"),
        (Self::Merge, "merge"),
        (Self::MergePreserve, "merge_preserve"),
        (Self::Clear, "clear"),
    ];

    /// Finds a value by its name in the spelling of `acHandling`.
    #[must_use]
    pub fn from_name(text: &str) -> Option<Self> {
        keyword::find_by_keyword(&Self::ALL, text)
    }
}

/// The treatment of a nested package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NestedPackageHandling {
    /// It is installed, unless a newer version is installed.
    Install,
    /// It is installed, even if a newer version is installed.
    Force,
    /// It is only stored as a file.
    Store,
}

/// The properties of a package.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackageProperties {
    /// All entries, by key.
    pub entries: BTreeMap<String, String>,
    /// The treatment of existing access control.
    pub access_control: AccessControlHandling,
    /// The same for closed user groups, if specified separately.
    pub closed_user_groups: Option<AccessControlHandling>,
    /// The dependencies of the package.
    pub dependencies: Vec<PackageDependency>,
    nested_handlings: Vec<(String, NestedPackageHandling)>,
}

impl PackageProperties {
    /// Returns the value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str)
    }

    /// Returns the treatment of the nested package of this group and name.
    pub(crate) fn nested_handling(&self, id: &PackageId) -> NestedPackageHandling {
        let full = format!("{}:{}", id.group, id.name);
        let matches = |pattern: &str| {
            pattern == "*"
                || pattern == id.name
                || pattern == full
                || pattern == format!("{}:*", id.group)
        };
        // A later, more specific line overrides an earlier one.
        let last = self.nested_handlings.iter().rev().find(|(pattern, _)| matches(pattern));
        last.map_or(NestedPackageHandling::Install, |(_, handling)| *handling)
    }
}

/// Parses `properties.xml`, in the XML format of Java properties.
pub(crate) fn parse_properties(file: &PackageFileName, text: &[u8]) -> Result<PackageProperties> {
    let entries = parse_property_entries(file, text)?;
    let refuse = |key: &str, expectation: &str| {
        let value = entries.get(key).map_or("", String::as_str);
        file.to_error(0, format!("`{key}` is `{value}`; it must be {expectation}"))
    };
    let find = |key: &str| entries.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    match find("packageFormatVersion").map(str::parse::<u32>) {
        None | Some(Ok(0..=2)) => {}
        _ => return Err(refuse("packageFormatVersion", "a number from 0 to 2")),
    }
    const RULES: &str = "ignore, overwrite, merge, merge_preserve or clear";
    let rule = |key: &str| match find(key).map(AccessControlHandling::from_name) {
        None => Ok(None),
        Some(Some(rule)) => Ok(Some(rule)),
        Some(None) => Err(refuse(key, RULES)),
    };
    let access_control = rule("acHandling")?.unwrap_or_default();
    let closed_user_groups = rule("cugHandling")?;
    let Some(nested) = parse_nested_handling(find("subPackageHandling").unwrap_or_default()) else {
        return Err(refuse(
            "subPackageHandling",
            "a list of `name;option` with option install, extract, add, ignore, force_install or force_extract",
        ));
    };
    let dependencies = PackageDependency::parse_list(find("dependencies").unwrap_or_default())
        .map_err(|message| file.to_error(0, message))?;
    Ok(PackageProperties {
        access_control,
        closed_user_groups,
        dependencies,
        nested_handlings: nested,
        entries,
    })
}

/// Parses `subPackageHandling`; `None` if an option is unknown.
fn parse_nested_handling(text: &str) -> Option<Vec<(String, NestedPackageHandling)>> {
    let mut nested = Vec::new();
    for line in text.split(',').map(str::trim) {
        let (pattern, option) = line.split_once(';').unwrap_or((line, "install"));
        let handling = match option.trim().to_ascii_lowercase().as_str() {
            "install" | "extract" => NestedPackageHandling::Install,
            "force_install" | "force_extract" => NestedPackageHandling::Force,
            "add" | "ignore" => NestedPackageHandling::Store,
            _ => return None,
        };
        if !pattern.trim().is_empty() {
            nested.push((pattern.trim().to_owned(), handling));
        }
    }
    Some(nested)
}

fn parse_property_entries(file: &PackageFileName, text: &[u8]) -> Result<BTreeMap<String, String>> {
    let mut xml = XmlReader::new(file, text)?;
    let mut entries = BTreeMap::new();
    let mut depth = 0;
    let mut open: Option<(String, String)> = None;
    loop {
        match xml.next_item()? {
            XmlItem::StartElement(element) => {
                match (depth, element.name.as_str()) {
                    (0, "properties") | (1, "comment") => {}
                    (1, "entry") => {
                        let key = element.attribute("key").unwrap_or_default().to_owned();
                        open = Some((key, String::new()));
                    }
                    (_, tag_name) => {
                        let message = format!(
                            "expected `properties` with `entry` elements, found `{tag_name}`"
                        );
                        return Err(file.to_error(element.line, message));
                    }
                }
                depth += 1;
            }
            XmlItem::EndElement => {
                depth -= 1;
                entries.extend(open.take());
            }
            XmlItem::Text(text) => {
                if let Some((_, value)) = &mut open {
                    value.push_str(&text);
                }
            }
            XmlItem::EndDocument => return Ok(entries),
        }
    }
}

/// Returns a header of a manifest; long ones continue after a space.
pub(crate) fn read_manifest_header(manifest: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(manifest).replace("\r\n", "\n").replace("\n ", "");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Writes a `properties.xml`.
pub(crate) fn properties_to_xml(entries: &BTreeMap<String, String>) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"utf-8\" standalone=\"no\"?>\n\
         <!DOCTYPE properties SYSTEM \"http://java.sun.com/dtd/properties.dtd\">\n<properties>\n",
    );
    for (key, value) in entries {
        out.push_str("<entry key=\"");
        push_escaped_attribute(&mut out, key);
        out.push_str("\">");
        push_escaped_attribute(&mut out, value);
        out.push_str("</entry>\n");
    }
    out.push_str("</properties>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_within_are_handled_by_the_last_line_that_fits() {
        let nested = parse_nested_handling("*;add, g:*, g:n;force_install,m;ignore").unwrap();
        let properties =
            PackageProperties { nested_handlings: nested, ..PackageProperties::default() };
        let of = |id: &str| properties.nested_handling(&PackageId::parse(id));
        assert_eq!(of("x:y"), NestedPackageHandling::Store);
        assert_eq!(of("g:y"), NestedPackageHandling::Install);
        assert_eq!(of("g:n:1"), NestedPackageHandling::Force);
        assert_eq!(of("g:m"), NestedPackageHandling::Store);
        assert_eq!(
            PackageProperties::default().nested_handling(&PackageId::parse("x")),
            NestedPackageHandling::Install
        );
        assert_eq!(parse_nested_handling("a;copy"), None);
    }
}
