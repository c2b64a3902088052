//! Garbage collection of a storage whose blobs several repositories share.
//!
//! Each repository registers before it stores anything, and periodically declares which blobs it needs: its *marks*,
//! with the time at which marking began. Any of them may *sweep* at any time: blobs that no repository marked are moved
//! to the trash, and from there, after a retention period in which they can be restored, are removed permanently. All
//! of this is recorded in notes in the storage itself.
//!
//! Why no order of marks and sweeps can lose a blob: a reference is new only after its blob was put or touched, and is
//! committed within `grace` of that. A blob is moved to the trash only if every registered repository began to mark
//! more than `grace` after that time: so each mark saw the reference, if it still existed. The same applies again to
//! blobs that are purged from the trash, by the time at which they were discarded. A repository without marks stops
//! every sweep. Sweeps of one storage are mutually exclusive, as a bucket cannot move an object in one step.
//!
//! Invariants
//! * Nothing is removed that the marks of a registered repository name, or that is younger than the oldest marks less
//!   `grace`; only blobs in the trash are removed permanently.
//! * Marks are valid as a whole or not at all: their parts are written first, then the note that names them.
//! * Memory stays under 32 MiB, whatever the number of blobs.
//!
//! On failure: a storage that cannot be listed, or a note that cannot be parsed, ends a sweep before it changes
//! anything. An interrupted sweep is completed by the next one.
//!
//! Not here: which blobs a repository needs (its chunk store knows); when marks are made. `docs/formats/blob-notes.md`
//! describes the notes.

mod blob_tally;
mod guest;
mod id_sorter;
mod identity;
mod json_note;
mod mark;
mod member;
mod member_list;
mod needed_join;
mod shared_storage;
mod sweep;
mod sweep_lease;
mod sweep_options;

pub use blob_tally::BlobTally;
pub use guest::{GuestNotes, is_guest};
pub use id_sorter::{BlobIdSorter, SortedBlobIds};
pub use identity::{
    CompareAndSwapNote, FileFingerprint, HomeIdentity, IdentityStatus, RepositoryIdentity,
    read_home_id,
};
pub use mark::{MarkSummary, MarkWriter};
pub use member::{StorageMember, register_member};
pub use member_list::{RegisteredMember, list_members, unregister_member};
pub use needed_join::{BlobCensus, count_blobs, find_missing_blobs};
pub use shared_storage::SharedBlobStorage;
pub use sweep::{SweepReport, sweep_storage};
pub use sweep_options::{SweepClock, SweepMode, SweepOptions};
