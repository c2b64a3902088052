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
use tympan_content::{Depth, NodePath, Snapshot, StoredDocument};
use tympan_jobs::{Job, JobId, Queues};

use crate::activation::Action;
use crate::tree::paths_of_part;
use crate::{Error, Result};

/// The property of a job with the wishes that overtook it.
const OVERTAKEN_BY: &str = "overtakenBy";
/// With more notes a job means nothing any more that is worth telling apart.
const MAX_NOTES: usize = 500;

/// How many jobs are read at once.
const PAGE: u32 = 200;

/// What a job asks for: an action for a node, and whether for everything below it, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    action: Action,
    path: NodePath,
    is_whole: bool,
}

impl Scope {
    /// Reads it from a job's properties, or from a note.
    fn of(properties: &Json) -> Option<Self> {
        let text = |name: &str| properties.get(name).and_then(Json::as_str);
        let action = Action::find(text("action")?)?;
        let is_deep = properties.get("deep").and_then(Json::as_bool).unwrap_or(false);
        let path = NodePath::new(text("path")?).ok()?;
        Some(Self { action, path, is_whole: is_deep || action == Action::Deactivate })
    }

    /// Reads what a job asks for; a part of a tree asks for each of its documents.
    fn all_of(properties: &Json) -> Vec<Self> {
        let Some(scope) = Self::of(properties) else { return Vec::new() };
        let documents = paths_of_part(properties);
        if documents.is_empty() {
            return vec![scope];
        }
        let is_whole = scope.action == Action::Deactivate;
        let document = |path| Self { action: scope.action, path, is_whole };
        documents.into_iter().map(document).collect()
    }

    fn note(&self) -> Json {
        json!({ "action": self.action.name(), "path": self.path.as_str(), "deep": self.is_whole })
    }

    /// Tells whether one of both is about a node that the other may be about.
    fn may_meet(&self, other: &Self) -> bool {
        self.path.is_within(&other.path) || other.path.is_within(&self.path)
    }

    /// Tells whether it decides about a node and everything below.
    fn covers(&self, path: &NodePath) -> bool {
        self.is_whole && path.is_within(&self.path)
    }
}

/// Returns the jobs of the same agent that were given up before a job was stored, and are about the same nodes.
pub(crate) async fn given_up_before(queues: &Queues, job: &Job) -> Result<Vec<JobId>> {
    let Some(scope) = Scope::of(&job.properties) else { return Ok(Vec::new()) };
    let mut met = queues.given_up_about(&job.topic, &scope.path, job.id).await?;
    // Those of an earlier version, which are read one by one.
    let mut after = None;
    loop {
        let page = queues.given_up_about_unknown(&job.topic, (after, job.id), PAGE).await?;
        let of_page = page.iter().filter(|earlier| {
            Scope::of(&earlier.properties).is_some_and(|earlier| earlier.may_meet(&scope))
        });
        met.extend(of_page.map(|earlier| earlier.id));
        match page.last() {
            Some(last) => after = Some(last.id),
            None => return Ok(met),
        }
    }
}

/// Notes with jobs that a later one was delivered.
pub(crate) async fn note(queues: &Queues, earlier: &[JobId], delivered: &Job) -> Result<()> {
    let scopes = Scope::all_of(&delivered.properties);
    for id in earlier {
        // It may have been removed meanwhile.
        let Some(job) = queues.find(*id).await? else { continue };
        let mut notes = notes_of(&job);
        let own = Scope::all_of(&job.properties);
        for scope in &scopes {
            if notes.len() < MAX_NOTES && own.iter().any(|own| own.may_meet(scope)) {
                notes.retain(|note| !scope.covers(&note.path) && note != scope);
                notes.push(scope.clone());
            }
        }
        let mut properties = job.properties;
        if let Some(properties) = properties.as_object_mut() {
            let notes = notes.iter().map(Scope::note).collect();
            properties.insert(OVERTAKEN_BY.to_owned(), Json::Array(notes));
        }
        queues.amend(*id, &properties).await?;
    }
    Ok(())
}

fn notes_of(job: &Job) -> Vec<Scope> {
    let notes = job.properties.get(OVERTAKEN_BY).and_then(Json::as_array);
    notes.into_iter().flatten().filter_map(Scope::of).collect()
}

/// The wishes that overtook a job.
#[derive(Debug)]
pub(crate) struct Later {
    notes: Vec<Scope>,
}

impl Later {
    /// Reads them from a job.
    ///
    /// # Errors
    /// [`Error::Overtaken`] if there are too many to tell what is left of it.
    pub(crate) fn of(job: &Job) -> Result<Self> {
        let notes = notes_of(job);
        match notes.last() {
            Some(last) if notes.len() >= MAX_NOTES => Err(Error::Overtaken(last.path.clone())),
            _ => Ok(Self { notes }),
        }
    }

    /// Tells whether a deactivation still has something to take away.
    ///
    /// # Errors
    /// [`Error::Overtaken`] if it would take away what was activated since.
    pub(crate) fn leave_deactivation(&self, path: &NodePath) -> Result<bool> {
        let activated = self.notes.iter().find(|note| {
            note.action == Action::Activate && (note.path.is_within(path) || note.covers(path))
        });
        match activated {
            Some(note) => Err(Error::Overtaken(note.path.clone())),
            None => Ok(!self.notes.iter().any(|note| note.covers(path))),
        }
    }

    /// Tells whether a document of a part that takes away still has to go: whether nobody decided about it since.
    pub(crate) fn leaves_document(&self, path: &NodePath) -> bool {
        !self.notes.iter().any(|note| note.path == *path || note.covers(path))
    }

    /// Tells whether something below a document was activated since.
    pub(crate) fn has_activated_below(&self, path: &NodePath) -> bool {
        let is_activated = |note: &Scope| note.action == Action::Activate;
        self.notes.iter().any(|note| is_activated(note) && note.path.is_within(path))
    }

    /// Removes the documents that were sent or taken away since.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn retain_left(
        &self,
        snapshot: &Snapshot,
        documents: &mut Vec<StoredDocument>,
    ) -> Result<()> {
        if self.notes.is_empty() {
            return Ok(());
        }
        let mut sent = BTreeSet::new();
        for note in &self.notes {
            // What is activated inside a document takes the whole document along.
            if snapshot.node(&note.path)?.is_some() {
                let with_it = snapshot.documents(&note.path, Depth::Document)?;
                sent.extend(with_it.into_iter().map(|document| document.path));
            }
        }
        documents.retain(|document| {
            let path = &document.path;
            !sent.contains(path) && !self.notes.iter().any(|note| note.covers(path))
        });
        Ok(())
    }
}
