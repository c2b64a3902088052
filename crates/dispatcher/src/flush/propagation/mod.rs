//! Flush propagation: every flush received by one dispatcher is passed on to its siblings exactly once
//! (`/x-passFlushes`).
//!
//! Input: flushes that reached this dispatcher directly. Output: the same flushes at every sibling, in their order.
//!
//! Each farm stores a log of them in its document root ([`event_log`]). A sibling stores its position in each log
//! ([`received_position`]), and accepts a message ([`message`]) only if it begins exactly there, so that repeated, late
//! or early messages change nothing. The sender ([`sender`]) continues from the position that the sibling reports.
//!
//! Invariants
//! * Events from a sibling are never passed on, so that there are no cycles.
//! * An event is on the disk before its flush is answered; if that fails, the file shows that it is incomplete.
//! * A sibling records an event as received after applying it.
//! * If it is unknown what a sibling has missed, every file of its document root counts as out of date.
//! * Only messages of clients that may flush a farm are accepted.
//!
//! On failure: an unreachable sibling receives the events later; visitors and other siblings do not wait for it.
//!
//! Not here: the effects of a flush (`flush`, `flush::batch`), copies from siblings (`sibling_copy`).

pub(crate) mod catch_up;
mod catch_up_gate;
mod event_log;
mod message;
mod received_position;
pub(crate) mod receiver;
pub(crate) mod recording;
mod sender;
mod sibling_status;

pub(crate) use catch_up_gate::CatchUpGate;
#[cfg(any(fuzzing, test))]
pub(crate) use event_log::FlushEventLog;
pub(crate) use event_log::{EventLogError, FarmEventLog};
#[cfg(any(fuzzing, test))]
pub(crate) use message::SiblingMessage;
pub(crate) use message::{FLUSH_EVENTS_HEADER, FlushEvent, new_random_id};
pub(crate) use received_position::{FailedMessages, ReceivedPositions};
pub(crate) use sender::{FarmSiblings, SenderContext};
pub(crate) use sibling_status::SiblingStatus;
