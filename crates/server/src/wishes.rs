//! What a change means for visitors: wishes that are stored before the work and released after it.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::{ChunkId, Depth, NodePath, Privileges, Snapshot, Viewer};
use tympan_replicate::{Action, Need, Wish, hold, is_live};

use crate::Instance;
use crate::failure::Result;

/// Returns the wishes to take away from visitors what they can see of nodes that are about to go.
///
/// # Errors
/// If the viewer lacks `crx:replicate` for one of them.
pub(crate) fn taken_away(seen: &Snapshot, gone: &[NodePath], viewer: &Viewer) -> Result<Vec<Wish>> {
    let mut wishes = Vec::new();
    for path in gone {
        if seen.node(path)?.is_some_and(|node| is_live(&node).unwrap_or(true)) {
            require_replicate(seen, path)?;
            let (path, user) = (path.clone(), viewer.name().to_owned());
            wishes.push(Wish { action: Action::Deactivate, path, depth: Depth::Subtree, user });
        }
    }
    Ok(wishes)
}

/// Refuses whoever may not activate or deactivate a node.
pub(crate) fn require_replicate(seen: &Snapshot, path: &NodePath) -> Result<()> {
    if seen.allows(path, Privileges::REPLICATE)? {
        return Ok(());
    }
    let privilege = "crx:replicate";
    Err(tympan_content::Error::AccessDenied { path: path.clone(), privilege }.into())
}

/// Does work on content together with what it means for visitors: the jobs are stored first and released after the
/// work, in the order of the work. Nothing is left half-done when the client goes away.
pub(crate) async fn with_wishes<T, F>(
    instance: &Arc<Instance>,
    wishes: Vec<Wish>,
    need: Need,
    work: F,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Instance, &[Wish], SystemTime) -> Result<(T, ChunkId)> + Send + 'static,
{
    let instance = Arc::clone(instance);
    let task = async move {
        let now = SystemTime::now();
        if wishes.is_empty() {
            return Ok(instance.work(move |instance| work(instance, &[], now)).await?.0);
        }
        let turn = instance.replicator.turn().await;
        let held = hold(&instance.repository, &instance.queues, &wishes, need, now).await?;
        let worked = instance.work(move |instance| work(instance, &wishes, now)).await;
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
