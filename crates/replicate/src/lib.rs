//! Agents author to publish and publish to dispatcher: queue, send, receive, flush.
//!
//! In: a user's wish to activate or deactivate, what commits removed that visitors have, and times at which pages appear and vanish. Out: the content on every
//! publisher, and a flush at every dispatcher and cache.
//!
//! Invariants
//! * A wish that was acknowledged is a stored job; it is carried out at least once, in order per agent.
//! * What is sent is the state at the time of the wish, however late it is sent, but for what a later wish decided that
//!   was sent before it.
//! * A publisher applies a message in one commit, after every chunk and blob it names is there.
//! * A publisher acknowledges only after the flushes that follow are stored jobs of its own.
//!
//! Not here: templates, cache files.

mod activation;
mod affected;
mod agent;
mod bundle;
mod companion;
mod error;
mod flush;
mod frames;
mod guest;
mod message;
mod numbers;
mod outage;
mod overtaken;
mod pair;
mod process;
mod receive;
mod remote;
mod replicator;
mod send;
mod serve;
mod standby;
mod status;
mod times;
mod tree;
mod url;
mod withdraw;

pub use activation::{
    Action, Held, Keeping, Wish, hold, is_live, mark, mark_keeping, require_replicate,
};
pub use affected::{Affected, OwnPages, Reach};
pub use agent::{Agent, AgentKind, agents};
pub use bundle::put_blobs;
pub use companion::{Companion, CompanionKind, companions};
pub use error::{Error, Result};
pub use flush::ALL_KEY;
pub use guest::{
    MAX_NOTE, RemoteNotes, store_note, store_notes, store_remove_note, store_write_note,
};
pub use message::{Message, RECEIVE_PATH, WireDocument};
pub use pair::{MIN_KEY, Pair, Pairs, Purpose, check_key};
pub use process::processes;
pub use receive::{Applied, Receiver, apply, put_blob, put_chunks};
pub use remote::{Credentials, RemoteStore};
pub use replicator::{Replicator, topic_of};
pub use serve::{
    MAX_STORE_REQUEST, STORE_PATH, WireGrant, WireLease, WireRevision, store_blobs, store_chunks,
    store_grant, store_history, store_lacks, store_lease, store_refs, store_release,
};
pub use standby::{CaughtUp, Lag, Standby};
pub use status::{Live, Status, live, status_of, status_of_document};
pub use times::{Times, TimesHandler};
pub use tree::{PART_DOCUMENTS, TREES, TreeStep};
pub use tympan_blobs::collect::GuestNotes;
pub use withdraw::{Orphan, orphans};
