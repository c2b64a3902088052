//! What the ledger's index is told and what it answers: drawings and steps, URLs that a step concerns, answers.

use std::sync::Arc;

use tympan_content::ChunkId;

use super::response_fingerprint::ResponseFingerprint;
use crate::changed_aspects::ChangedAspects;
use crate::dependency::{DependencySet, PathAspects};

/// What became of a drawing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IndexRecordOutcome {
    /// All that it read was known of its URL.
    AlreadyKnown,
    /// It has to be stored.
    Changed { evicted_count: u64 },
    /// A change overtook it.
    Outdated,
    /// It cannot be noted.
    NotRecorded,
    /// It shows a fault, and there are too many such URLs.
    TooManyFaults,
}

/// A drawing of a URL.
#[derive(Debug, Clone)]
pub(super) struct UrlRendering<'a> {
    pub(super) url: &'a str,
    /// The state that it is of, if it follows from one alone.
    pub(super) root: Option<ChunkId>,
    pub(super) dependencies: &'a DependencySet,
    /// A digest of what was read, with the keys of the index.
    pub(super) digest: Option<u64>,
    /// How it looks, if it can be drawn again.
    pub(super) fingerprint: Option<ResponseFingerprint>,
    /// Whether there is nothing at the URL that can be shown.
    pub(super) is_fault: bool,
}

/// A drawing of a URL of which no more than a digest of what it read was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct UrlRenderingDigest<'a> {
    pub(super) url: &'a str,
    pub(super) root: Option<ChunkId>,
    pub(super) digest: u64,
    pub(super) fingerprint: Option<&'a ResponseFingerprint>,
    pub(super) is_fault: bool,
}

/// A step of the follower.
#[derive(Debug, Clone)]
pub(super) struct FollowerStep {
    /// The state in which it begins, and the one in which it ends.
    pub(super) end_roots: [ChunkId; 2],
    pub(super) changes: Arc<ChangedAspects>,
}

/// What a step concerns.
#[derive(Debug)]
pub(super) struct StepImpact {
    pub(super) candidates: Vec<FlushCandidate>,
    /// When it was found out, as a count of drawings and answers.
    pub(super) clock: u64,
    /// How many of the candidates are there for their strays alone.
    pub(super) stray_only_count: usize,
}

/// An answer whose flushes are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcknowledgedAnswer<'a> {
    /// Its number.
    pub(super) answer_number: u64,
    /// When it was found out what the step concerns, and the state in which it ended; nothing of an answer to no step.
    pub(super) step_end: Option<(u64, ChunkId)>,
    pub(super) urls: &'a [String],
    pub(super) scopes: &'a [String],
}

/// A URL whose drawing read something that a change touches.
#[derive(Debug)]
pub(super) struct FlushCandidate {
    pub(super) url: Arc<str>,
    /// What of it the change touches; nothing where that cannot be told.
    pub(super) touched_aspects: PathAspects,
    /// How the copies of it look, if they can be compared.
    pub(super) fingerprint: Option<Arc<ResponseFingerprint>>,
}

impl FlushCandidate {
    /// Tells whether the change may well not show in it.
    pub(super) fn may_be_unaffected(&self) -> bool {
        !self.touched_aspects.overlaps(PathAspects::USUALLY_SHOWN)
    }
}

/// A URL that looks the same after a change that touched what it was drawn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnchangedUrl {
    pub(super) url: Arc<str>,
    /// What it was drawn from before or after the change.
    pub(super) joined_dependencies: Arc<DependencySet>,
    /// What it is drawn from after it.
    pub(super) dependencies: Arc<DependencySet>,
}
