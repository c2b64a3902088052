//! Passing flushes on: what one dispatcher is told, its siblings are told, each once and none forgotten (`/x-passFlushes`).
//!
//! In: flushes that came to this dispatcher by themselves. Out: the same flushes at every sibling, in their order.
//!
//! Each farm keeps a log of them in its document root ([`event_log`]). A sibling keeps how far it has heard of whom ([`received_position`]), and
//! takes a message ([`message`]) only if that begins exactly there, so that one that comes twice, too late or too early
//! changes nothing. Who sends ([`sender`]) goes on from where the sibling says that it is.
//!
//! Invariants
//! * What came from a sibling is never passed on, so that nothing goes in a circle.
//! * An event is on the disk before its flush is answered; where that fails, the file says that it is not whole.
//! * A sibling notes that it has heard an event after it was carried out.
//! * Where nobody can tell what a sibling has missed, every file of its document root counts as out of date.
//! * Only who may flush a farm is listened to.
//!
//! On failure: a sibling that cannot be reached is told later; visitors and other siblings do not wait for it.
//!
//! Not here: what a flush does (`flush`, `storm`), copies that siblings give (`sibling_copy`).

mod event_log;
mod message;
mod received_position;
mod receiver;
mod sender;

#[cfg(any(fuzzing, test))]
pub(crate) use event_log::FlushEventLog;
pub(crate) use event_log::{EventLogError, FarmEventLog};
#[cfg(any(fuzzing, test))]
pub(crate) use message::SiblingMessage;
pub(crate) use message::{FLUSH_EVENTS_HEADER, FlushEvent};
pub(crate) use received_position::{FailedMessages, ReceivedPositions};
pub(crate) use sender::{CatchUpGate, FarmSiblings, SiblingStatus};

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a word that nobody used before.
pub(crate) fn new_random_id() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}
