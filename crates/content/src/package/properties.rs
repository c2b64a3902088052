//! What a package says of itself: `properties.xml`, and the manifest where that is missing.

use std::collections::BTreeMap;

use serde::Serialize;

use super::archive::File;
use super::xml::{Item, Xml};
use crate::Result;

/// The name of a package: `group:name:version`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PackageId {
    /// The group, such as `adobe/cq60`; empty where there is none.
    pub group: String,
    /// The name.
    pub name: String,
    /// The version; empty where there is none.
    pub version: String,
}

impl std::fmt::Display for PackageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.group, self.name, self.version)
    }
}

/// How the access control of a package meets what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum AccessControl {
    /// That of the package is not imported. This is the default.
    #[default]
    Ignore,
    /// That of the package replaces what is there.
    Overwrite,
    /// Entries of the package replace those of the same principals.
    Merge,
    /// Entries of the package are added for principals that have none.
    MergePreserve,
    /// What is there is removed, and that of the package is not imported.
    Clear,
}

/// What becomes of a package inside of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NestedHandling {
    Install,
    /// Stored as a file only.
    Store,
}

/// The properties of a package.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties {
    /// All entries, by key.
    pub entries: BTreeMap<String, String>,
    pub(super) access_control: AccessControl,
    nested: Vec<(String, NestedHandling)>,
}

impl Properties {
    /// Returns the value of a key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str)
    }

    /// Returns what to do with the nested package of this group and name.
    pub(super) fn nested_handling(&self, id: &PackageId) -> NestedHandling {
        let full = format!("{}:{}", id.group, id.name);
        let matches = |pattern: &str| {
            pattern == "*"
                || pattern == id.name
                || pattern == full
                || pattern == format!("{}:*", id.group)
        };
        // A later, more special line overrides an earlier one.
        let last = self.nested.iter().rev().find(|(pattern, _)| matches(pattern));
        last.map_or(NestedHandling::Install, |(_, handling)| *handling)
    }
}

/// Reads `properties.xml`, which is in the format of Java's properties.
pub(super) fn parse(file: &File, text: &[u8]) -> Result<Properties> {
    let entries = parse_entries(file, text)?;
    let refuse = |key: &str, wanted: &str| {
        let value = entries.get(key).map_or("", String::as_str);
        Err(file.error(0, format!("`{key}` is `{value}`; it must be {wanted}")))
    };
    let find = |key: &str| entries.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    match find("packageFormatVersion").map(str::parse::<u32>) {
        None | Some(Ok(0..=2)) => {}
        _ => return refuse("packageFormatVersion", "a number up to 2"),
    }
    let access_control = match find("acHandling").map(str::to_ascii_lowercase).as_deref() {
        None | Some("ignore") => AccessControl::Ignore,
        Some("overwrite") => AccessControl::Overwrite,
        Some("merge") => AccessControl::Merge,
        Some("merge_preserve") => AccessControl::MergePreserve,
        Some("clear") => AccessControl::Clear,
        Some(_) => {
            return refuse("acHandling", "ignore, overwrite, merge, merge_preserve or clear");
        }
    };
    let mut nested = Vec::new();
    for line in find("subPackageHandling").unwrap_or_default().split(',').map(str::trim) {
        let (pattern, option) = line.split_once(';').unwrap_or((line, "install"));
        let handling = match option.trim().to_ascii_lowercase().as_str() {
            "install" | "extract" | "force_install" | "force_extract" => NestedHandling::Install,
            "add" | "ignore" => NestedHandling::Store,
            _ => {
                return refuse(
                    "subPackageHandling",
                    "a list of `name;option` with option install, extract, add or ignore",
                );
            }
        };
        if !pattern.trim().is_empty() {
            nested.push((pattern.trim().to_owned(), handling));
        }
    }
    Ok(Properties { entries, access_control, nested })
}

fn parse_entries(file: &File, text: &[u8]) -> Result<BTreeMap<String, String>> {
    let mut xml = Xml::new(file, text)?;
    let mut entries = BTreeMap::new();
    let mut depth = 0;
    let mut open: Option<(String, String)> = None;
    loop {
        match xml.next()? {
            Item::Open(element) => {
                match (depth, element.name.as_str()) {
                    (0, "properties") | (1, "comment") => {}
                    (1, "entry") => {
                        let key = element.attribute("key").unwrap_or_default().to_owned();
                        open = Some((key, String::new()));
                    }
                    (_, other) => {
                        let message = format!(
                            "`{other}` stands where `properties` with `entry` elements is expected"
                        );
                        return Err(file.error(element.line, message));
                    }
                }
                depth += 1;
            }
            Item::Close => {
                depth -= 1;
                entries.extend(open.take());
            }
            Item::Text(text) => {
                if let Some((_, value)) = &mut open {
                    value.push_str(&text);
                }
            }
            Item::End => return Ok(entries),
        }
    }
}

/// Returns the id in a manifest's `Content-Package-Id`.
pub(super) fn manifest_id(manifest: &[u8]) -> Option<PackageId> {
    let text = String::from_utf8_lossy(manifest).replace("\r\n", "\n").replace("\n ", "");
    let id = text.lines().find_map(|line| line.strip_prefix("Content-Package-Id:"))?.trim();
    let mut parts = id.splitn(3, ':').map(str::to_owned);
    let (group, name) = (parts.next()?, parts.next()?);
    Some(PackageId { group, name, version: parts.next().unwrap_or_default() })
}

/// Writes a `properties.xml`.
pub(super) fn to_xml(entries: &BTreeMap<String, String>) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"utf-8\" standalone=\"no\"?>\n\
         <!DOCTYPE properties SYSTEM \"http://java.sun.com/dtd/properties.dtd\">\n<properties>\n",
    );
    for (key, value) in entries {
        out.push_str("<entry key=\"");
        super::xml::push_attribute(&mut out, key);
        out.push_str("\">");
        super::xml::push_attribute(&mut out, value);
        out.push_str("</entry>\n");
    }
    out.push_str("</properties>\n");
    out
}
