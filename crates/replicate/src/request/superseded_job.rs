//! Superseded requests: a job that was abandoned and is retried must not undo what was sent since.
//!
//! In: a job that is delivered, and jobs of its agent that were abandoned before. Out: notes on these jobs, and what is
//! left of such a job when it is retried.
//!
//! Invariants
//! * A job that was abandoned before a later one was sent has a note of the later request at the latest when the later
//!   job is removed. If the process ends before, the later job still exists and is sent again after it.
//! * A job without notes retains its original meaning.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};
use tympan_content::{NodePath, Snapshot, StoredDocument, SubtreeScope};
use tympan_jobs::{Job, JobId, JobQueues};

use crate::request::replication_request::ReplicationAction;
use crate::request::tree_part::tree_part_paths;
use crate::{Error, Result};

/// The property of a job with the requests that superseded it.
const SUPERSEDED_BY_PROPERTY: &str = "overtakenBy";
/// The maximum number of notes. With more, it is no longer worthwhile to determine what is left of a job.
const MAX_SUPERSEDING_SCOPES: usize = 500;

/// The number of jobs read at once.
const JOB_PAGE_SIZE: u32 = 200;

/// The scope of a job's request: an action for a node, and whether it includes everything below the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicationScope {
    action: ReplicationAction,
    path: NodePath,
    is_subtree: bool,
}

impl ReplicationScope {
    /// Reads a scope from a job's properties, or from a note.
    fn from_properties(properties: &Json) -> Option<Self> {
        let text = |name: &str| properties.get(name).and_then(Json::as_str);
        let action = ReplicationAction::from_name(text("action")?)?;
        let is_deep = properties.get("deep").and_then(Json::as_bool).unwrap_or(false);
        let path = NodePath::new(text("path")?).ok()?;
        Some(Self { action, path, is_subtree: is_deep || action == ReplicationAction::Deactivate })
    }

    /// Reads the scopes of a job; a part of a tree has one for each of its documents.
    fn all_of(properties: &Json) -> Vec<Self> {
        let Some(scope) = Self::from_properties(properties) else { return Vec::new() };
        let documents = tree_part_paths(properties);
        if documents.is_empty() {
            return vec![scope];
        }
        let is_whole = scope.action == ReplicationAction::Deactivate;
        let document = |path| Self { action: scope.action, path, is_subtree: is_whole };
        documents.into_iter().map(document).collect()
    }

    fn to_json(&self) -> Json {
        json!({ "action": self.action.name(), "path": self.path.as_str(), "deep": self.is_subtree })
    }

    /// Returns true if both scopes may cover a common node.
    fn may_overlap(&self, other: &Self) -> bool {
        self.path.is_within(&other.path) || other.path.is_within(&self.path)
    }

    /// Returns true if the scope covers a node and everything below it.
    fn covers(&self, path: &NodePath) -> bool {
        self.is_subtree && path.is_within(&self.path)
    }
}

/// Returns the jobs of the same agent that were abandoned before a job was stored, and that concern the same nodes.
pub(crate) async fn find_given_up_before(queues: &JobQueues, job: &Job) -> Result<Vec<JobId>> {
    let Some(scope) = ReplicationScope::from_properties(&job.properties) else {
        return Ok(Vec::new());
    };
    let mut met = queues.find_given_up_about(&job.topic, &scope.path, job.id).await?;
    // Jobs stored by an earlier version are read one by one.
    let mut after = None;
    loop {
        let page =
            queues.list_given_up_without_subject(&job.topic, after, job.id, JOB_PAGE_SIZE).await?;
        let of_page = page.iter().filter(|earlier| {
            ReplicationScope::from_properties(&earlier.properties)
                .is_some_and(|earlier| earlier.may_overlap(&scope))
        });
        met.extend(of_page.map(|earlier| earlier.id));
        match page.last() {
            Some(last) => after = Some(last.id),
            None => return Ok(met),
        }
    }
}

/// Adds to jobs the note that a later one was delivered.
pub(crate) async fn mark_superseded(
    queues: &JobQueues,
    earlier: &[JobId],
    delivered: &Job,
) -> Result<()> {
    let scopes = ReplicationScope::all_of(&delivered.properties);
    for id in earlier {
        // The job may have been removed since.
        let Some(job) = queues.find_job(*id).await? else { continue };
        let mut notes = superseding_scopes(&job);
        let own = ReplicationScope::all_of(&job.properties);
        for scope in &scopes {
            if notes.len() < MAX_SUPERSEDING_SCOPES && own.iter().any(|own| own.may_overlap(scope))
            {
                notes.retain(|note| !scope.covers(&note.path) && note != scope);
                notes.push(scope.clone());
            }
        }
        let mut properties = job.properties;
        if let Some(properties) = properties.as_object_mut() {
            let notes = notes.iter().map(ReplicationScope::to_json).collect();
            properties.insert(SUPERSEDED_BY_PROPERTY.to_owned(), Json::Array(notes));
        }
        queues.replace_properties(*id, &properties).await?;
    }
    Ok(())
}

fn superseding_scopes(job: &Job) -> Vec<ReplicationScope> {
    let notes = job.properties.get(SUPERSEDED_BY_PROPERTY).and_then(Json::as_array);
    notes.into_iter().flatten().filter_map(ReplicationScope::from_properties).collect()
}

/// The requests that superseded a job.
#[derive(Debug)]
pub(crate) struct SupersedingRequests {
    scopes: Vec<ReplicationScope>,
}

impl SupersedingRequests {
    /// Reads them from a job.
    ///
    /// # Errors
    /// [`Error::Superseded`] if there are too many to determine what is left of the job.
    pub(crate) fn from_job(job: &Job) -> Result<Self> {
        let notes = superseding_scopes(job);
        match notes.last() {
            Some(last) if notes.len() >= MAX_SUPERSEDING_SCOPES => {
                Err(Error::Superseded(last.path.clone()))
            }
            _ => Ok(Self { scopes: notes }),
        }
    }

    /// Returns true if a deactivation still has something to withdraw.
    ///
    /// # Errors
    /// [`Error::Superseded`] if it would withdraw what was activated since.
    pub(crate) fn is_deactivation_needed(&self, path: &NodePath) -> Result<bool> {
        let activated = self.scopes.iter().find(|note| {
            note.action == ReplicationAction::Activate
                && (note.path.is_within(path) || note.covers(path))
        });
        match activated {
            Some(note) => Err(Error::Superseded(note.path.clone())),
            None => Ok(!self.scopes.iter().any(|note| note.covers(path))),
        }
    }

    /// Returns true if a document in a part of a deactivation still has to be removed: if no request has decided about
    /// it since.
    pub(crate) fn is_removal_needed(&self, path: &NodePath) -> bool {
        !self.scopes.iter().any(|note| note.path == *path || note.covers(path))
    }

    /// Returns true if something below a document was activated since.
    pub(crate) fn has_activated_below(&self, path: &NodePath) -> bool {
        let is_activated = |note: &ReplicationScope| note.action == ReplicationAction::Activate;
        self.scopes.iter().any(|note| is_activated(note) && note.path.is_within(path))
    }

    /// Removes the documents that were sent or withdrawn since.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn retain_undecided(
        &self,
        snapshot: &Snapshot,
        documents: &mut Vec<StoredDocument>,
    ) -> Result<()> {
        if self.scopes.is_empty() {
            return Ok(());
        }
        let mut sent = BTreeSet::new();
        for note in &self.scopes {
            // Activating a node inside a document sends the whole document.
            if snapshot.node(&note.path)?.is_some() {
                let with_it = snapshot.stored_documents(&note.path, SubtreeScope::Document)?;
                sent.extend(with_it.into_iter().map(|document| document.path));
            }
        }
        documents.retain(|document| {
            let path = &document.path;
            !sent.contains(path) && !self.scopes.iter().any(|note| note.covers(path))
        });
        Ok(())
    }
}
