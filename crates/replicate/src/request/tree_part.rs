//! A part of a tree that is activated or deactivated in parts, as stored in the job of an agent.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use tympan_content::{ChunkId, NodePath, Repository, Snapshot, StoredDocument, SubtreeScope};
use tympan_jobs::Job;

use crate::Result;
use crate::delivery::message::parse_chunk_id;
use crate::request::replication_request::ReplicationRequest;

/// The maximum number of nodes of later requests that are recorded with a tree.
pub(crate) const MAX_LATER_REQUESTS: usize = 1000;

/// The job property with the documents of a part.
pub(crate) const DOCUMENTS_PROPERTY: &str = "documents";
/// The job property with those among them that changed since the request.
pub(crate) const CHANGED_PROPERTY: &str = "changed";
/// The job property with the state in which the tree was requested.
pub(crate) const REQUESTED_ROOT_PROPERTY: &str = "wishedRoot";
/// The job property of a deactivation with what was activated by name since.
pub(crate) const ACTIVATED_SINCE_PROPERTY: &str = "activatedSince";

/// The nodes activated by name since a deactivation was requested; for each, whether everything below it was included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LaterActivations(BTreeMap<NodePath, bool>);

impl LaterActivations {
    /// Reads them from a job.
    pub(crate) fn from_properties(properties: &Json) -> Self {
        let nodes = properties.get(ACTIVATED_SINCE_PROPERTY).and_then(Json::as_object);
        let nodes = nodes.into_iter().flatten().filter_map(|(path, is_deep)| {
            Some((NodePath::new(path).ok()?, is_deep.as_bool().unwrap_or(false)))
        });
        Self(nodes.collect())
    }

    /// Returns the value of the job property.
    pub(crate) fn to_json(&self) -> Json {
        let nodes = self.0.iter().map(|(path, is_deep)| (path.to_string(), json!(is_deep)));
        Json::Object(nodes.collect())
    }

    /// Adds a node. If there are too many, everything below the top of the tree counts as activated.
    pub(crate) fn add(&mut self, request: &ReplicationRequest, top: &NodePath) {
        if self.0.len() >= MAX_LATER_REQUESTS {
            self.0 = BTreeMap::from([(top.clone(), true)]);
        }
        *self.0.entry(request.path.clone()).or_default() |= request.depth == SubtreeScope::Subtree;
    }

    /// Returns true if the set may contain anything at or below a node.
    pub(crate) fn may_overlap(&self, path: &NodePath) -> bool {
        let meets = |(top, is_deep): (&NodePath, &bool)| {
            top.is_within(path) || (*is_deep && path.is_within(top))
        };
        self.0.iter().any(meets)
    }
}

/// A part of a tree, as stored in the job of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TreePart {
    document_paths: Vec<NodePath>,
    changed_paths: BTreeSet<NodePath>,
    requested_root: ChunkId,
    later_activations: LaterActivations,
}

impl TreePart {
    /// Returns the paths of its documents.
    pub(crate) fn document_paths(&self) -> &[NodePath] {
        &self.document_paths
    }

    /// Returns true if anything at or below a document may have been activated by name since the tree was requested.
    pub(crate) fn is_activated_since(&self, path: &NodePath) -> bool {
        self.later_activations.may_overlap(path)
    }

    /// Reads its documents: in the state in which they were marked, or, if they changed since the request, in the
    /// requested state.
    pub(crate) fn read_documents(
        &self,
        repository: &Repository,
        marked: &Snapshot,
    ) -> Result<Vec<StoredDocument>> {
        let requested_state = repository.snapshot_at(self.requested_root)?;
        let mut documents = Vec::new();
        for path in &self.document_paths {
            let snapshot =
                if self.changed_paths.contains(path) { &requested_state } else { marked };
            documents.extend(snapshot.stored_documents(path, SubtreeScope::Document)?);
        }
        Ok(documents)
    }
}

/// Returns the paths of the documents of a part of a tree; empty for any other job.
pub(crate) fn tree_part_paths(properties: &Json) -> Vec<NodePath> {
    let documents = properties.get(DOCUMENTS_PROPERTY).and_then(Json::as_array);
    let documents = documents.into_iter().flatten().filter_map(Json::as_str);
    documents.filter_map(|path| NodePath::new(path).ok()).collect()
}

/// Returns true if a job sends a part of a tree.
pub(crate) fn is_tree_part_job(job: &Job) -> bool {
    job.properties.get(DOCUMENTS_PROPERTY).is_some()
}

/// Reads a part of a tree from the job of an agent; `None` if it is another kind of job.
pub(crate) fn parse_tree_part(job: &Job) -> Result<Option<TreePart>> {
    if !is_tree_part_job(job) {
        return Ok(None);
    }
    let root =
        job.properties.get(REQUESTED_ROOT_PROPERTY).and_then(Json::as_str).unwrap_or_default();
    let wished_root = parse_chunk_id(root)?;
    let changed = job.properties.get(CHANGED_PROPERTY).and_then(Json::as_array);
    let changed = changed.into_iter().flatten().filter_map(Json::as_str);
    let changed = changed.filter_map(|path| NodePath::new(path).ok()).collect();
    let activated = LaterActivations::from_properties(&job.properties);
    Ok(Some(TreePart {
        document_paths: tree_part_paths(&job.properties),
        changed_paths: changed,
        requested_root: wished_root,
        later_activations: activated,
    }))
}
