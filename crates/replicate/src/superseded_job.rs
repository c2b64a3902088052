//! Wishes that later ones overtook: what was given up, and is tried again, must not undo what was sent since.
//!
//! In: a job that is delivered, and jobs of its agent that were given up before. Out: notes with these jobs, and what the
//! notes mean when one of them is tried again.
//!
//! Invariants
//! * A job that was given up before a later one was sent holds a note of the later wish from the moment on at which the
//!   later job is gone. If the process ends before, the later job is still there and is sent again after it.
//! * A job without notes means what it meant when it was stored.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};
use tympan_content::{NodePath, Snapshot, StoredDocument, SubtreeScope};
use tympan_jobs::{Job, JobId, JobQueues};

use crate::replication_request::ReplicationAction;
use crate::tree_replication::tree_part_paths;
use crate::{Error, Result};

/// The property of a job with the wishes that overtook it.
const SUPERSEDED_BY_PROPERTY: &str = "overtakenBy";
/// With more notes a job means nothing any more that is worth telling apart.
const MAX_SUPERSEDING_SCOPES: usize = 500;

/// How many jobs are read at once.
const JOB_PAGE_SIZE: u32 = 200;

/// What a job asks for: an action for a node, and whether for everything below it, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicationScope {
    action: ReplicationAction,
    path: NodePath,
    is_subtree: bool,
}

impl ReplicationScope {
    /// Reads it from a job's properties, or from a note.
    fn from_properties(properties: &Json) -> Option<Self> {
        let text = |name: &str| properties.get(name).and_then(Json::as_str);
        let action = ReplicationAction::from_name(text("action")?)?;
        let is_deep = properties.get("deep").and_then(Json::as_bool).unwrap_or(false);
        let path = NodePath::new(text("path")?).ok()?;
        Some(Self { action, path, is_subtree: is_deep || action == ReplicationAction::Deactivate })
    }

    /// Reads what a job asks for; a part of a tree asks for each of its documents.
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

    /// Tells whether one of both is about a node that the other may be about.
    fn may_overlap(&self, other: &Self) -> bool {
        self.path.is_within(&other.path) || other.path.is_within(&self.path)
    }

    /// Tells whether it decides about a node and everything below.
    fn covers(&self, path: &NodePath) -> bool {
        self.is_subtree && path.is_within(&self.path)
    }
}

/// Returns the jobs of the same agent that were given up before a job was stored, and are about the same nodes.
pub(crate) async fn find_given_up_before(queues: &JobQueues, job: &Job) -> Result<Vec<JobId>> {
    let Some(scope) = ReplicationScope::from_properties(&job.properties) else {
        return Ok(Vec::new());
    };
    let mut met = queues.find_given_up_about(&job.topic, &scope.path, job.id).await?;
    // Those of an earlier version, which are read one by one.
    let mut after = None;
    loop {
        let page = queues
            .list_given_up_without_subject(&job.topic, (after, job.id), JOB_PAGE_SIZE)
            .await?;
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

/// Notes with jobs that a later one was delivered.
pub(crate) async fn mark_superseded(
    queues: &JobQueues,
    earlier: &[JobId],
    delivered: &Job,
) -> Result<()> {
    let scopes = ReplicationScope::all_of(&delivered.properties);
    for id in earlier {
        // It may have been removed meanwhile.
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

/// The wishes that overtook a job.
#[derive(Debug)]
pub(crate) struct SupersedingRequests {
    scopes: Vec<ReplicationScope>,
}

impl SupersedingRequests {
    /// Reads them from a job.
    ///
    /// # Errors
    /// [`Error::Superseded`] if there are too many to tell what is left of it.
    pub(crate) fn from_job(job: &Job) -> Result<Self> {
        let notes = superseding_scopes(job);
        match notes.last() {
            Some(last) if notes.len() >= MAX_SUPERSEDING_SCOPES => {
                Err(Error::Superseded(last.path.clone()))
            }
            _ => Ok(Self { scopes: notes }),
        }
    }

    /// Tells whether a deactivation still has something to take away.
    ///
    /// # Errors
    /// [`Error::Superseded`] if it would take away what was activated since.
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

    /// Tells whether a document of a part that takes away still has to go: whether nobody decided about it since.
    pub(crate) fn is_removal_needed(&self, path: &NodePath) -> bool {
        !self.scopes.iter().any(|note| note.path == *path || note.covers(path))
    }

    /// Tells whether something below a document was activated since.
    pub(crate) fn has_activated_below(&self, path: &NodePath) -> bool {
        let is_activated = |note: &ReplicationScope| note.action == ReplicationAction::Activate;
        self.scopes.iter().any(|note| is_activated(note) && note.path.is_within(path))
    }

    /// Removes the documents that were sent or taken away since.
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
            // What is activated inside a document takes the whole document along.
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
