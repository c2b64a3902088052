//! The files of a vault: their kinds, and their paths in restic's layout.

use std::fmt;

use crate::object_id::VaultObjectId;

/// The folder for temporary files.
pub(super) const TEMP_DIR: &str = "tmp";

/// The kinds of files in a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VaultFileKind {
    /// The vault's configuration.
    Config,
    /// The vault's key, sealed with a password.
    Key,
    /// A process that uses the vault.
    Lock,
    /// A finished backup.
    Snapshot,
    /// The contents of some packs.
    Index,
    /// Pieces of files, and folders.
    Pack,
}

impl fmt::Display for VaultFileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "config",
            Self::Key => "key",
            Self::Lock => "lock",
            Self::Snapshot => "snapshot",
            Self::Index => "index",
            Self::Pack => "pack",
        })
    }
}

/// Files of one kind, with their lengths in bytes.
pub(crate) type VaultFileListing = Vec<(VaultObjectId, u64)>;

/// Returns the folder of a kind of files, relative to the vault's folder.
pub(super) const fn kind_folder_name(kind: VaultFileKind) -> &'static str {
    match kind {
        VaultFileKind::Config => "",
        VaultFileKind::Key => "keys",
        VaultFileKind::Lock => "locks",
        VaultFileKind::Snapshot => "snapshots",
        VaultFileKind::Index => "index",
        VaultFileKind::Pack => "data",
    }
}

/// Returns the path of a file, relative to the vault's folder.
pub(super) fn vault_file_path(kind: VaultFileKind, id: &VaultObjectId) -> String {
    match kind {
        VaultFileKind::Config => "config".to_owned(),
        VaultFileKind::Pack => {
            let name = id.to_string();
            format!("data/{}/{name}", name.get(..2).unwrap_or_default())
        }
        _ => format!("{}/{id}", kind_folder_name(kind)),
    }
}

/// Returns the folders of a vault, relative to the vault's folder, each after its subfolders.
pub(super) fn vault_folders() -> impl Iterator<Item = String> {
    let packs = (0..=u8::MAX).map(|number| format!("data/{number:02x}"));
    packs.chain(["data", "index", "keys", "locks", "snapshots", TEMP_DIR].map(str::to_owned))
}
