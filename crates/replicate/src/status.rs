//! What is live: for each page and asset whether visitors have it, since when, from whom, and whether it changed since.

use std::time::SystemTime;

use tympan_content::{Depth, Node, NodePath, Snapshot};

use crate::Result;
use crate::activation::{Action, is_stamped};

/// What visitors have of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Nothing: it was never activated.
    Never,
    /// Its present state.
    Live,
    /// An older state.
    Outdated,
    /// Nothing any more.
    TakenAway,
}

impl Status {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Live => "live",
            Self::Outdated => "outdated",
            Self::TakenAway => "taken-away",
        }
    }
}

/// A document with what visitors have of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Where it is.
    pub path: NodePath,
    /// Its title, if it has one.
    pub title: Option<String>,
    /// What visitors have.
    pub status: Status,
    /// When it was activated or deactivated last.
    pub at: Option<SystemTime>,
    /// Who did it.
    pub by: Option<String>,
}

/// Tells what visitors have of a document, also of one that carries no stamps, such as a tag.
///
/// # Errors
/// If content fails.
pub fn status_of_document(node: &Node) -> Result<Status> {
    if is_stamped(node) {
        return Ok(status_of(node));
    }
    let activated = node.snapshot().activated_documents(node.owner(), Depth::Document)?;
    Ok(match activated.first() {
        None => Status::Never,
        Some(document) if document.is_current => Status::Live,
        Some(_) => Status::Outdated,
    })
}

/// Tells what visitors have of a page or an asset.
#[must_use]
pub fn status_of(node: &Node) -> Status {
    let Some(summary) = node.summary() else { return Status::Never };
    match summary.activation().and_then(Action::find) {
        None => Status::Never,
        Some(Action::Deactivate) => Status::TakenAway,
        Some(Action::Activate) => {
            let (modified, activated) = (summary.modified(), summary.activated());
            let changed = modified.zip(activated).map(|(one, other)| one.millis > other.millis);
            if changed == Some(true) { Status::Outdated } else { Status::Live }
        }
    }
}

/// Lists pages and assets at and below a node that visitors have, in the order of content, from behind `after` on and at
/// most `limit`.
///
/// # Errors
/// If content fails.
pub fn live(
    snapshot: &Snapshot,
    top: &NodePath,
    after: Option<&NodePath>,
    limit: usize,
) -> Result<Vec<Live>> {
    let Some(node) = snapshot.node(top)? else { return Ok(Vec::new()) };
    let mut nodes = vec![node.clone()];
    nodes.extend(node.listed_descendants()?);
    let mut found = Vec::new();
    let mut is_behind = after.is_none();
    for node in nodes {
        if !is_behind {
            is_behind = Some(node.path()) == after;
            continue;
        }
        let status = status_of(&node);
        if !matches!(status, Status::Live | Status::Outdated) {
            continue;
        }
        found.push(described(&node, status)?);
        if found.len() >= limit {
            break;
        }
    }
    Ok(found)
}

/// Describes a document.
pub(crate) fn described(node: &Node, status: Status) -> Result<Live> {
    let summary = node.summary();
    let activated = summary.and_then(|summary| summary.activated());
    let content = node.content()?;
    Ok(Live {
        path: node.path().clone(),
        title: summary.and_then(|summary| summary.title()).map(str::to_owned),
        status,
        at: activated.map(tympan_content::Date::to_system_time),
        by: content.and_then(|content| content.text("cq:lastReplicatedBy")),
    })
}
