//! The persistent sorted map: equal content has an equal root.
//!
//! In: records, sorted for a bulk build, as a set of edits, or as a stream for a whole range. Out: lookups, ranges,
//! counts, ranks, differences and merges of maps, all read in place from chunks.
//!
//! Invariants
//! * The root is a function of the content, never of the order of edits.
//! * An edit reads and writes only the paths it touches; the content of a removed range is not read.
//! * A difference loads only chunks that differ, and their neighbors where chunk limits moved.
//! * A walk holds the chunks of its path and, where it reads ahead, a bounded window, however long the walk is.
//! * The work of a walk is proportional to the number of chunks, also in a damaged tree.
//!
//! Not here: the storage of chunks (`local`). The format is `docs/formats/tree.md`.

mod builder;
mod cursor;
mod diff;
mod edit;
mod edit_script;
mod level_chunker;
mod lookup;
mod merge;
mod node;
mod range_edit;
mod rank;
mod read_ahead;
mod scan;
mod sorted_map;
mod splitter;
mod verification;

pub use diff::{MapChange, MapDiff};
pub use merge::{ConflictResolution, MapMerge, MapMergeConflict, MapMergeResult, MergeStep};
pub use scan::MapScan;
pub use sorted_map::SortedMap;
pub(crate) use verification::{ExpectedChild, TreeFault, check_tree_chunk};
