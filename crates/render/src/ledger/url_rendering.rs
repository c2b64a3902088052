//! Inputs and outputs of the ledger's index: renderings and steps, URLs that a step affects, answers.

use std::sync::Arc;

use tympan_content::ChunkId;

use super::response_fingerprint::ResponseFingerprint;
use crate::dependency::DependencySet;
use crate::dependency::changed_aspects::ChangedAspects;
use crate::dependency::path_dependency::PathAspects;

/// The result of recording a rendering.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IndexRecordOutcome {
    /// All its reads were known for its URL.
    AlreadyKnown,
    /// It has to be stored.
    Changed { evicted_count: u64 },
    /// A change overtook it.
    Outdated,
    /// It cannot be recorded.
    NotRecorded,
    /// It shows a fault, and there are too many such URLs.
    TooManyFaults,
}

/// A rendering of a URL.
#[derive(Debug, Clone)]
pub(super) struct UrlRendering<'a> {
    pub(super) url: &'a str,
    /// The state of the rendering, if it derives from one alone.
    pub(super) root: Option<ChunkId>,
    pub(super) dependencies: &'a DependencySet,
    /// A digest of the reads, with the keys of the index.
    pub(super) digest: Option<u64>,
    /// The fingerprint of the response, if it can be repeated.
    pub(super) fingerprint: Option<ResponseFingerprint>,
    /// True if the URL shows only a fault.
    pub(super) is_fault: bool,
}

/// A rendering of a URL with only a digest of its reads.
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

/// The effect of a step.
#[derive(Debug)]
pub(super) struct StepImpact {
    pub(super) candidates: Vec<FlushCandidate>,
    /// The time of its computation, as a count of renderings and answers.
    pub(super) clock: u64,
    /// The number of candidates that are included only for their strays.
    pub(super) stray_only_count: usize,
}

/// An answer whose flushes are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct AcknowledgedAnswer<'a> {
    /// Its number.
    pub(super) answer_number: u64,
    /// The time at which the effect of the step was computed, and the state in which it ended; `None` for an answer
    /// without a step.
    pub(super) step_end: Option<(u64, ChunkId)>,
    pub(super) urls: &'a [String],
    pub(super) scopes: &'a [String],
}

/// A URL whose rendering read something that a change touches.
#[derive(Debug)]
pub(super) struct FlushCandidate {
    pub(super) url: Arc<str>,
    /// The touched aspects; empty if they are unknown.
    pub(super) touched_aspects: PathAspects,
    /// The fingerprint of its copies, if they can be compared.
    pub(super) fingerprint: Option<Arc<ResponseFingerprint>>,
}

impl FlushCandidate {
    /// Returns true if the change is likely not to show in it.
    pub(super) fn may_be_unaffected(&self) -> bool {
        !self.touched_aspects.overlaps(PathAspects::USUALLY_SHOWN)
    }
}

/// A URL that looks the same after a change that touched its dependencies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnchangedUrl {
    pub(super) url: Arc<str>,
    /// Its dependencies before and after the change.
    pub(super) joined_dependencies: Arc<DependencySet>,
    /// Its dependencies after the change.
    pub(super) dependencies: Arc<DependencySet>,
}
