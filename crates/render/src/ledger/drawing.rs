//! What the ledger's index is told and what it answers: drawings and steps, URLs that a step concerns, answers.

use std::sync::Arc;

use tympan_content::ChunkId;

use super::look::Look;
use crate::dependency::{Aspects, Dependencies};
use crate::touched::Touched;

/// What became of a drawing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// All that it read was known of its URL.
    Known,
    /// It has to be stored.
    Grown { given_up: u64 },
    /// A change overtook it.
    Outdated,
    /// It cannot be noted.
    Lost,
    /// It shows a fault, and there are too many such URLs.
    Crowded,
}

/// A drawing of a URL.
#[derive(Debug, Clone)]
pub(super) struct Drawn<'a> {
    pub(super) url: &'a str,
    /// The state that it is of, if it follows from one alone.
    pub(super) root: Option<ChunkId>,
    pub(super) read: &'a Dependencies,
    /// A digest of what was read, with the keys of the index.
    pub(super) digest: Option<u64>,
    /// How it looks, if it can be drawn again.
    pub(super) look: Option<Look>,
    /// Whether there is nothing at the URL that can be shown.
    pub(super) is_fault: bool,
}

/// A drawing of a URL of which no more than a digest of what it read was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sketch<'a> {
    pub(super) url: &'a str,
    pub(super) root: Option<ChunkId>,
    pub(super) digest: u64,
    pub(super) look: Option<&'a Look>,
    pub(super) is_fault: bool,
}

/// A step of the follower.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// The state in which it begins, and the one in which it ends.
    pub(super) ends: [ChunkId; 2],
    pub(super) touched: Arc<Touched>,
}

/// What a step concerns.
#[derive(Debug)]
pub(super) struct Concerned {
    pub(super) candidates: Vec<Candidate>,
    /// When it was found out, as a count of drawings and answers.
    pub(super) seen: u64,
    /// How many of the candidates are there for their strays alone.
    pub(super) strays: usize,
}

/// An answer whose flushes are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled<'a> {
    /// Its number.
    pub(super) number: u64,
    /// When it was found out what the step concerns, and the state in which it ended; nothing of an answer to no step.
    pub(super) end: Option<(u64, ChunkId)>,
    pub(super) urls: &'a [String],
    pub(super) scopes: &'a [String],
}

/// A URL whose drawing read something that a change touches.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) url: Arc<str>,
    /// What of it the change touches; nothing where that cannot be told.
    pub(super) shared: Aspects,
    /// How the copies of it look, if they can be compared.
    pub(super) look: Option<Arc<Look>>,
}

impl Candidate {
    /// Tells whether the change may well not show in it.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.shared.overlaps(Aspects::SHOWN)
    }
}

/// A URL that looks the same after a change that touched what it was drawn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spared {
    pub(super) url: Arc<str>,
    /// What it was drawn from before or after the change.
    pub(super) joined: Arc<Dependencies>,
    /// What it is drawn from after it.
    pub(super) read: Arc<Dependencies>,
}
