//! Replication agents, from author to publisher and from publisher to dispatcher: queue, send, receive, flush.
//!
//! In: requests of users to activate or deactivate, removals of activated documents by commits, and times at which
//! pages appear and vanish. Out: the content on every publisher, and a flush at every dispatcher and cache.
//!
//! Invariants
//! * An acknowledged request is a stored job; it is carried out at least once, in order per agent.
//! * What is sent is the state at the time of the request, however late it is sent, except for what a later request
//!   decided that was sent before it.
//! * A publisher applies a message in one commit, after every referenced chunk and blob is present.
//! * A publisher acknowledges only after the resulting flushes are stored jobs of its own.
//!
//! Not here: templates, cache files.

mod affected_url;
mod agent;
mod blob_bundle;
mod blob_upload;
mod circuit_breaker;
mod error;
mod flush;
mod flush_number;
mod frame_codec;
mod guest_note;
mod home_pair;
mod message;
mod message_receiver;
mod message_sender;
mod on_off_time;
mod referenced_document;
mod remote_store;
mod replication_request;
mod replication_status;
mod replicator;
mod standby;
mod store_service;
mod superseded_job;
mod tree_replication;
mod url_path;
mod withdrawal;
mod workflow_process;

pub use affected_url::{AffectedUrlResolver, AffectedUrlSet, UntrackedUrlResolver};
pub use agent::{ReplicationAgent, ReplicationAgentKind, read_agents};
pub use blob_bundle::store_bundle;
pub use blob_upload::BlobUploadTarget;
pub use error::{Error, Result};
pub use flush::PURGE_ALL_KEY;
pub use guest_note::{
    MAX_GUEST_NOTE_BYTES, RemoteGuestNotes, list_guest_notes, read_guest_note, remove_guest_note,
    write_guest_note,
};
pub use home_pair::{HomePair, HomePairs, MIN_PAIR_KEY_CHARACTERS, PairKeyPurpose, check_pair_key};
pub use message::{RECEIVE_PATH, ReplicationMessage, WireDocument};
pub use message_receiver::{
    AppliedMessage, ReceiverRole, apply_replication, store_blob, store_framed_chunks,
};
pub use on_off_time::{OnOffTimeFollower, OnOffTimeHandler};
pub use referenced_document::{
    ReferencedDocument, ReferencedDocumentKind, list_referenced_documents,
};
pub use remote_store::{RemoteStore, RemoteStoreCredentials};
pub use replication_request::{
    ActivationVersioning, HeldReplicationJobs, ReplicationAction, ReplicationRequest, is_live,
    mark_replicated, mark_replicated_with_versioning, require_replicate_permission,
    store_held_jobs,
};
pub use replication_status::{
    ReplicatedDocument, ReplicationStatus, document_status, list_live_documents, stamped_status,
};
pub use replicator::{Replicator, agent_topic};
pub use standby::{StandbyCopyReport, StandbyLag, StandbyStore};
pub use store_service::{
    MAX_STORE_REQUEST_BYTES, STORE_PATH, WireLease, WireLeaseRequest, WireRevision,
    find_missing_chunks, grant_store_lease, list_store_refs, list_store_revisions,
    read_store_blobs, read_store_chunks, read_store_lease, release_store_lease,
};
pub use tree_replication::{MAX_PART_DOCUMENTS, TREE_TOPIC, TreePartOutcome};
pub use tympan_blobs::garbage_collection::GuestNotes;
pub use withdrawal::{OrphanedDocument, list_orphaned_documents};
pub use workflow_process::replication_processes;
