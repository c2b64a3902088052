//! Companions of an activation: requests for the documents that the activated documents reference.

use std::collections::{BTreeMap, BTreeSet};

use tympan_content::{NodePath, Privileges, Snapshot, SubtreeScope};
use tympan_replicate::{ReplicationAction, ReplicationRequest, list_referenced_documents};

use crate::failure::{RequestFailure, Result};

/// Maximum number of companion documents of an activation.
const MAX_COMPANIONS: usize = 1000;

/// Replication requests, and the companions that could not be added.
#[derive(Debug)]
pub(crate) struct AccompaniedRequests {
    /// The requests for companions, followed by the explicit requests.
    pub(crate) requests: Vec<ReplicationRequest>,
    /// Number of requests for companions.
    pub(crate) companion_count: usize,
    /// The companions that the user may not activate.
    pub(crate) skipped_companions: Vec<NodePath>,
}

impl AccompaniedRequests {
    /// Creates a set of requests without companions.
    pub(crate) fn without_companions(requests: Vec<ReplicationRequest>) -> Self {
        Self { requests, companion_count: 0, skipped_companions: Vec::new() }
    }
}

/// Adds requests for documents that the activated documents reference and that are not published yet. These come first,
/// so that no document is published before the documents it depends on.
pub(crate) fn with_companions(
    snapshot: &Snapshot,
    requests: Vec<ReplicationRequest>,
) -> Result<AccompaniedRequests> {
    let (mut along, mut left) = (BTreeMap::new(), BTreeSet::new());
    let requested_paths: BTreeSet<&NodePath> =
        requests.iter().map(|request| &request.path).collect();
    for request in requests.iter().filter(|request| request.action == ReplicationAction::Activate) {
        let documents =
            list_referenced_documents(snapshot, &request.path, request.depth, MAX_COMPANIONS + 1)?;
        for companion in documents.into_iter().filter(|companion| companion.is_preselected) {
            let path = companion.document.path;
            if requested_paths.contains(&path) {
                continue;
            }
            if snapshot.has_privileges(&path, Privileges::REPLICATE)? {
                let depth = SubtreeScope::Document;
                along.insert(path.clone(), ReplicationRequest { path, depth, ..request.clone() });
            } else {
                left.insert(path);
            }
        }
    }
    if along.len() > MAX_COMPANIONS {
        let message = format!(
            "more than {MAX_COMPANIONS} referenced documents would be activated too; activate the folders \
             that contain them, or parts of the tree"
        );
        return Err(RequestFailure::unprocessable(message));
    }
    let companions = along.len();
    let requests = along.into_values().chain(requests).collect();
    Ok(AccompaniedRequests {
        requests,
        companion_count: companions,
        skipped_companions: left.into_iter().collect(),
    })
}
