//! Activating and deactivating: wishes that are stored before the work and released after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{ChunkId, Depth, NodePath, Privileges, Snapshot};
use tympan_replicate::{Action, Wish, companions, hold};

use crate::Instance;
use crate::failure::{Failure, Result};

/// The most documents that go along with an activation.
const MAX_COMPANIONS: usize = 1000;

/// Wishes, and what was to go along with them and cannot.
#[derive(Debug)]
pub(crate) struct AccompaniedWishes {
    /// The wishes for companions, then those that were said.
    pub(crate) wishes: Vec<Wish>,
    /// How many are for companions.
    pub(crate) companions: usize,
    /// The companions that the user may not activate.
    pub(crate) left: Vec<NodePath>,
}

impl AccompaniedWishes {
    /// Takes wishes as they were said.
    pub(crate) fn alone(wishes: Vec<Wish>) -> Self {
        Self { wishes, companions: 0, left: Vec::new() }
    }
}

/// Adds wishes for what visitors lack of that which activated documents refer to. They come first, so that nothing is shown
/// before what belongs to it.
pub(crate) fn with_companions(seen: &Snapshot, wishes: Vec<Wish>) -> Result<AccompaniedWishes> {
    let (mut along, mut left) = (BTreeMap::new(), BTreeSet::new());
    let said: BTreeSet<&NodePath> = wishes.iter().map(|wish| &wish.path).collect();
    for wish in wishes.iter().filter(|wish| wish.action == Action::Activate) {
        let found = companions(seen, &wish.path, wish.depth, MAX_COMPANIONS + 1)?;
        for companion in found.into_iter().filter(|companion| companion.is_ticked) {
            let path = companion.document.path;
            if said.contains(&path) {
                continue;
            }
            if seen.allows(&path, Privileges::REPLICATE)? {
                let depth = Depth::Document;
                along.insert(path.clone(), Wish { path, depth, ..wish.clone() });
            } else {
                left.insert(path);
            }
        }
    }
    if along.len() > MAX_COMPANIONS {
        let message = format!(
            "more than {MAX_COMPANIONS} documents would go along; activate the folders that they are in, or parts of the tree"
        );
        return Err(Failure::unfit(message));
    }
    let companions = along.len();
    let wishes = along.into_values().chain(wishes).collect();
    Ok(AccompaniedWishes { wishes, companions, left: left.into_iter().collect() })
}

/// Does work on content together with what it means for visitors: the jobs are stored first and released after the
/// work, in the order of the work. Nothing is left half-done when the client goes away.
pub(crate) async fn with_wishes<T, F>(
    instance: &Arc<Instance>,
    wishes: Vec<Wish>,
    work: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Instance, &[Wish], SystemTime) -> Result<(T, ChunkId)> + Send + 'static,
{
    let instance = Arc::clone(instance);
    let task = async move {
        let now = SystemTime::now();
        let turn = instance.replicator.turn().await;
        let held = hold(&instance.repository, &instance.queues, &wishes, now).await?;
        let noted = held.noted_at_once(wishes);
        let worked = instance.work(move |instance| work(instance, &noted, now)).await;
        let (value, root) = match worked {
            Ok(worked) => worked,
            Err(failure) => {
                held.discard(&instance.queues).await?;
                return Err(failure);
            }
        };
        held.release(&instance.queues, root, now).await?;
        drop(turn);
        instance.replicator.ring();
        Ok(value)
    };
    tokio::spawn(task).await?
}
