//! The names of users and groups of this system.

use std::collections::HashMap;

use crate::object_id::VaultObjectId;

/// Names by numeric id.
#[derive(Clone, Debug, Default)]
pub(crate) struct UserGroupNames {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl UserGroupNames {
    /// Reads the names from the system's own files; other ids have no name.
    pub(crate) fn read_system() -> Self {
        Self { users: read_name_file("/etc/passwd"), groups: read_name_file("/etc/group") }
    }

    /// Returns a digest of all names.
    pub(super) fn digest(&self) -> [u8; 32] {
        let of = |names: &HashMap<u32, String>| {
            let mut lines: Vec<String> =
                names.iter().map(|(number, name)| format!("{number} {name}\n")).collect();
            lines.sort();
            lines.concat()
        };
        *VaultObjectId::of(format!("{}\0{}", of(&self.users), of(&self.groups)).as_bytes())
            .as_bytes()
    }

    pub(crate) fn user(&self, number: u32) -> Option<&str> {
        self.users.get(&number).map(String::as_str)
    }

    pub(crate) fn group(&self, number: u32) -> Option<&str> {
        self.groups.get(&number).map(String::as_str)
    }
}

fn read_name_file(file: &str) -> HashMap<u32, String> {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let of_line = |line: &str| {
        let mut parts = line.split(':');
        let name = parts.next()?.to_owned();
        let number = parts.nth(1)?.parse().ok()?;
        Some((number, name))
    };
    // The first name of an id is used.
    text.lines().rev().filter_map(of_line).collect()
}
