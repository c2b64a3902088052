//! The names of the files and folders of a saved repository, and the metadata in `tympan.json`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tympan_store::ChunkId;

use crate::object_id::VaultObjectId;

pub(crate) const REPOSITORY_FORMAT_VERSION: u32 = 1;
pub(crate) const METADATA_FILE_NAME: &str = "tympan.json";
pub(crate) const STATE_FOLDER: &str = "state";
pub(crate) const BRANCHES_FOLDER: &str = "branches";
pub(crate) const HOME_FOLDER: &str = "home";
pub(crate) const REVISIONS_FOLDER: &str = "revisions";
pub(crate) const README_FILE_NAME: &str = "README.txt";
pub(crate) const README_TEXT: &str = "This is one state of a Tympan repository, as `tympan backup save` saved it.\n\
    `content`, if it is there, is for people: each document as a folder with its text and its files.\n\
    Make a home of it with `tympan backup restore --unpacked THIS-FOLDER --home NEW-HOME`.\n";
/// Metadata of a copy in a folder, stored beside its root.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CopyMetadata {
    /// The number of files at the last full check.
    pub(crate) files: u64,
    /// The number of files added since.
    pub(crate) added: u64,
}

/// The metadata that a snapshot of a repository contains.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedRepositoryMetadata {
    pub(crate) format: u32,
    #[serde(rename = "ref")]
    pub(crate) name: String,
    pub(crate) root: String,
    /// The other refs of the repository, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) branches: Vec<SavedBranchMetadata>,
    /// Earlier states of the ref, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) revisions: Vec<SavedRevisionMetadata>,
    /// Metadata that a plain copy in a folder stores for the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copy: Option<CopyMetadata>,
}

/// The metadata of another ref in a snapshot of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedBranchMetadata {
    #[serde(rename = "ref")]
    pub(crate) name: String,
    pub(crate) root: String,
}

impl SavedBranchMetadata {
    /// Returns the name of its folder: the ref's name may not be valid as a file name.
    pub(crate) fn folder_name(&self) -> String {
        VaultObjectId::of(self.name.as_bytes()).to_string()
    }

    pub(crate) fn root(&self) -> Option<ChunkId> {
        self.root.parse().ok()
    }
}

/// The metadata of an earlier state in a snapshot of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedRevisionMetadata {
    /// Its root, which also names its folder.
    pub(crate) root: String,
    /// The time at which the ref was moved to it, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The author of the move.
    pub(crate) author: String,
    /// The message of the move.
    pub(crate) message: String,
}

impl SavedRevisionMetadata {
    pub(crate) fn root(&self) -> Option<ChunkId> {
        self.root.parse().ok()
    }

    pub(crate) fn timestamp(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.at_ms)
    }
}
