//! A source of files, and its target folder.

use std::sync::Arc;
use std::time::Duration;

use tympan_content::NodePath;

use crate::mount_source::MountSource;

/// The user in whose name assets are created and removed.
pub(crate) const SYNCHRONIZATION_USER: &str = "asset-synchronization-service";

/// The purpose of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountPurpose {
    /// The folder follows the source continuously.
    Synchronize,
    /// Files become assets like uploaded ones, once.
    Import,
}

/// A source of files, and its target folder.
#[derive(Debug, Clone)]
pub struct AssetMount {
    /// The name, which its assets record.
    pub name: String,
    /// The target folder.
    pub target: NodePath,
    /// The source.
    pub source: Arc<dyn MountSource>,
    /// The purpose.
    pub purpose: MountPurpose,
    /// Minimum age of a file; younger files are left for a later pass.
    pub min_file_age: Duration,
}
