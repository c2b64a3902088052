//! Activating and deactivating: wishes that are stored before the work and released after it.

use std::sync::Arc;
use std::time::SystemTime;

use tympan_content::ChunkId;
use tympan_replicate::{Wish, hold};

use crate::Instance;
use crate::failure::Result;

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
