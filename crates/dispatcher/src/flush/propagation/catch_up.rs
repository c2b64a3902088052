//! Catching up at the start: siblings are asked for the events that this dispatcher missed.

use std::sync::Arc;
use std::time::Duration;

use super::catch_up_gate::CatchUpGate;
use super::message::{EventMessage, EventQuery, SiblingMessage};
use super::receiver::{MessageRejection, SiblingFlushReceiver};
use super::sender::{FarmSiblings, FlushSibling, SiblingReply};
use crate::farm_state::FarmState;

/// The maximum time for which a start waits for the events of siblings.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Queries siblings for missed events, applies them, and admits visitors.
pub(crate) async fn catch_up_with_siblings(
    receiver: Arc<SiblingFlushReceiver>,
    gate: Arc<CatchUpGate>,
) {
    let _opening = gate.open_when_dropped();
    let all = receiver.farms.iter().flat_map(|farm| {
        let siblings = farm.flush_siblings.iter().flat_map(FarmSiblings::siblings);
        siblings.map(|sibling| query_sibling(&receiver, Arc::clone(farm), Arc::clone(sibling)))
    });
    let all = futures_util::future::join_all(all);
    if tokio::time::timeout(CATCH_UP_TIMEOUT, all).await.is_err() {
        tracing::warn!("siblings are slow to report flushes; serving visitors meanwhile");
    }
}

async fn query_sibling(
    receiver: &Arc<SiblingFlushReceiver>,
    farm: Arc<FarmState>,
    sibling: Arc<FlushSibling>,
) {
    loop {
        let Some(positions) = receiver.received_positions(&farm).await else { return };
        let ask =
            EventQuery { instance: receiver.instance_id.to_string(), heard: positions.clone() };
        let ask = SiblingMessage::Ask(ask);
        let SiblingReply::Applied(bytes) = sibling.send_message(&ask).await else { return };
        let message = serde_json::from_slice::<EventMessage>(&bytes).ok();
        let Some(message) = message.filter(EventMessage::is_valid) else { return };
        let is_new = !message.events.is_empty();
        let Some(root) = farm.docroot.clone() else { return };
        let (log, origin) = (root.event_log_of(&farm.config.name), message.origin.clone());
        let is_own = tokio::task::spawn_blocking(move || log.has_origin(&root, &origin));
        // The process that this one replaces has no new events.
        if is_own.await.unwrap_or(true) {
            return;
        }
        let received = positions.into_iter().find(|(origin, _)| *origin == message.origin);
        let before = received.map(|(_, position)| position);
        // Visitors may be admitted before it ends; an operation that has begun is completed.
        let (receiver, own) = (Arc::clone(receiver), Arc::clone(&farm));
        let application =
            tokio::spawn(async move { receiver.apply_sibling_message(&own, message).await });
        match application.await {
            Ok(Ok(())) if is_new => {}
            // The sibling sends on its own as well, and was faster; more may follow.
            Ok(Err(MessageRejection::PositionMismatch(now))) if now != before => {}
            _ => return,
        }
    }
}
