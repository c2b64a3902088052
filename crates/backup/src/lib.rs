//! Backups: sources (repository, directory), the vault in restic's repository format, save, restore, forget, check.
//!
//! It saves states, not meanings: it knows roots, chunks and blobs, never node types or access control. The vault
//! format is restic's repository version 2, so that stock restic restores what Tympan saved.
//!
//! Invariants
//! * What a snapshot refers to is durable before the snapshot is: pieces, then the index, then the snapshot.
//! * Nothing is removed from a vault except under an exclusive lock, which restic honors too; packs are marked before.
//! * What comes out of a vault has the hash it is named by.
//!
//! Not here: passwords' origin, the command line, how content looks to people.

mod backend;
mod check;
mod compress;
mod copy;
mod cut;
mod deep;
mod error;
mod forget;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod hostile;
mod id;
mod id_map;
mod look;
mod mount;
mod pace;
mod prune;
mod removal;
mod repair;
mod restore;
mod retag;
#[cfg(test)]
mod rewritten;
mod runs;
mod save;
mod seal;
mod selection;
mod source;
mod stats;
mod throttle;
mod vault;
mod verify;

pub use backend::{
    AppendOnly, Around, Backend, FileKind, FolderDisk, Limits, LocalBackend, PacedBackend,
    RestAddress, RestBackend, RestLogin, S3Address, S3Backend, SftpAddress, SftpBackend,
    SftpOptions, Staged, SystemDisk, UnknownHost, without_secrets,
};
pub use check::{CheckReport, Depth, check};
pub use compress::Compression;
pub use copy::{Copied, CopyDepth, CopyTarget, copy_repository};
pub use error::{Error, Result};
pub use forget::{Keep, Reason, choose};
pub use id::Id;
pub use look::{Change, Difference, diff, dump, find_path, walk};
pub use mount::{Mounted, Onlookers, Unmounted, mount};
pub use pace::Rate;
pub use prune::{PruneOptions, Pruned, prune};
pub use repair::{Repaired, repair};
pub use restore::{Existing, RestoreOptions, Restored, restore};
pub use retag::{TagChange, change_tags, copy_snapshot};
pub use runs::{Run, RunKind, RunLog};
pub use save::{Fault, Parent, Progress, ReadLimits, SaveOptions, Saved, Session};
pub use selection::Selection;
pub use source::below::{Below, LeftOut, StoreReference, folder_stands_on, stands_on};
pub use source::directory::{absolute, save_directories, source_path};
pub use source::estimate::{Estimate, estimate_full};
pub use source::exclude::{Excludes, FolderMark};
pub use source::glob::expand_glob;
pub use source::import::{
    ImportOptions, Imported, Missing, home_files, import_folder, import_snapshot,
};
pub use source::live::LiveStore;
pub use source::repository::{HomeFile, RepositorySource, save_repository};
pub use source::stream::save_stream;
pub use source::view::{DocumentChange, Documents, DrawnContent, DrawnFile, View};
pub use stats::{Stats, stats};
pub use throttle::{Controller, Served, Throttle};
pub use vault::index::Index;
pub use vault::lock::{Lock, LockMode, Unlock};
pub use vault::node::{Attribute, Node, NodeKind, Time, Tree};
pub use vault::snapshot::{Clients, Snapshot, is_for_programs};
pub use vault::write::Written;
pub use vault::{KeyCost, KeyFacts, Opening, Tuning, Vault, Who};
pub use verify::verify;

/// Joins an error's message with those of its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
