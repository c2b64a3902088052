//! Agents author to publish and publish to dispatcher: queue, send, receive, flush.
//!
//! In: a user's wish to activate or deactivate. Out: the content on every publisher, and a flush at every dispatcher.
//!
//! Invariants
//! * A wish that was acknowledged is a stored job; it is carried out at least once, in order per agent.
//! * What is sent is the state at the time of the wish, however late it is sent.
//! * A publisher applies a message in one commit, after every chunk and blob it names is there.
//! * A publisher acknowledges only after the flushes that follow are stored jobs of its own.
//!
//! Not here: templates, cache files.

mod activation;
mod agent;
mod error;
mod flush;
mod frames;
mod message;
mod receive;
mod remote;
mod replicator;
mod send;
mod serve;
mod standby;

pub use activation::{Action, Held, Keeping, Need, Wish, hold, is_live, mark, mark_keeping};
pub use agent::{Agent, AgentKind, agents};
pub use error::{Error, Result};
pub use flush::follow;
pub use message::{Message, RECEIVE_PATH, WireDocument};
pub use receive::{Applied, apply, put_blob, put_chunks};
pub use remote::{Credentials, RemoteStore};
pub use replicator::{Replicator, topic_of};
pub use serve::{
    MAX_STORE_REQUEST, STORE_PATH, WireGrant, WireLease, WireRevision, store_blobs, store_chunks,
    store_grant, store_history, store_lacks, store_lease, store_refs, store_release,
};
pub use standby::{CaughtUp, Lag, Standby};
