//! Activation and deactivation: replication requests are stored before the work and released after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{ChunkId, NodePath, Privileges, Snapshot, SubtreeScope};
use tympan_replicate::{
    ReplicationAction, ReplicationRequest, list_referenced_documents, store_held_jobs,
};

use crate::Instance;
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
    pub(crate) fn without_companions(wishes: Vec<ReplicationRequest>) -> Self {
        Self { requests: wishes, companion_count: 0, skipped_companions: Vec::new() }
    }
}

/// Adds requests for documents that the activated documents reference and that are not published yet. These come first,
/// so that no document is published before the documents it depends on.
pub(crate) fn with_companions(
    seen: &Snapshot,
    wishes: Vec<ReplicationRequest>,
) -> Result<AccompaniedRequests> {
    let (mut along, mut left) = (BTreeMap::new(), BTreeSet::new());
    let said: BTreeSet<&NodePath> = wishes.iter().map(|wish| &wish.path).collect();
    for wish in wishes.iter().filter(|wish| wish.action == ReplicationAction::Activate) {
        let found = list_referenced_documents(seen, &wish.path, wish.depth, MAX_COMPANIONS + 1)?;
        for companion in found.into_iter().filter(|companion| companion.is_preselected) {
            let path = companion.document.path;
            if said.contains(&path) {
                continue;
            }
            if seen.has_privileges(&path, Privileges::REPLICATE)? {
                let depth = SubtreeScope::Document;
                along.insert(path.clone(), ReplicationRequest { path, depth, ..wish.clone() });
            } else {
                left.insert(path);
            }
        }
    }
    if along.len() > MAX_COMPANIONS {
        let message = format!(
            "more than {MAX_COMPANIONS} documents would go along; activate the folders that they are in, or parts of the tree"
        );
        return Err(RequestFailure::unprocessable(message));
    }
    let companions = along.len();
    let wishes = along.into_values().chain(wishes).collect();
    Ok(AccompaniedRequests {
        requests: wishes,
        companion_count: companions,
        skipped_companions: left.into_iter().collect(),
    })
}

/// Runs work on content together with its replication requests. The jobs are stored before the work and released after
/// it, in the order of the work. The operation completes even if the client disconnects.
pub(crate) async fn with_replication_requests<T, F>(
    instance: &Arc<Instance>,
    wishes: Vec<ReplicationRequest>,
    work: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Instance, &[ReplicationRequest], SystemTime) -> Result<(T, ChunkId)>
        + Send
        + 'static,
{
    let instance = Arc::clone(instance);
    let task = async move {
        let now = SystemTime::now();
        let turn = instance.replicator.lock_requests().await;
        let held = store_held_jobs(&instance.repository, &instance.queues, &wishes, now).await?;
        let noted = held.immediate_requests(wishes);
        let worked = instance.run_work(move |instance| work(instance, &noted, now)).await;
        let (value, root) = match worked {
            Ok(worked) => worked,
            Err(failure) => {
                held.discard(&instance.queues).await?;
                return Err(failure);
            }
        };
        held.release(&instance.queues, root, now).await?;
        drop(turn);
        instance.replicator.wake_workers();
        Ok(value)
    };
    tokio::spawn(task).await?
}
