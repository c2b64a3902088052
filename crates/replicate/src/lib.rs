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

mod agent;
mod blocking;
mod delivery;
mod error;
mod flushing;
mod home_pair;
mod replicator;
mod request;
mod shared_store;
mod workflow_process;

pub use agent::{PurgeTemplate, ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};
pub use delivery::blob_bundle::store_bundle;
pub use delivery::blob_upload::BlobUploadTarget;
pub use delivery::message::{
    RECEIVE_PATH, REPLICATION_KEY_HEADER, ReplicationMessage, WireDocument,
};
pub use delivery::message_receiver::{
    AppliedMessage, ReceiverRole, apply_replication, store_blob, store_framed_chunks,
};
pub use error::{Error, Result};
pub use flushing::affected_url::{AffectedUrlResolver, AffectedUrlSet, UntrackedUrlResolver};
pub use flushing::purge_template::{PURGE_ALL_KEY, surrogate_key_of};
pub use home_pair::{HomePair, HomePairs, MIN_PAIR_KEY_CHARACTERS, PairKeyPurpose, check_pair_key};
pub use replicator::on_off_time_job::{OnOffTimeFollower, OnOffTimeHandler};
pub use replicator::tree_replication::TreePartOutcome;
pub use replicator::{Replicator, RequestRecording};
pub use request::referenced_document::{
    ReferencedDocument, ReferencedDocumentKind, list_referenced_documents,
};
pub use request::replication_request::{
    ActivationVersioning, ReplicationAction, ReplicationRequest, is_live, mark_replicated,
    mark_replicated_with_versioning, require_replicate_permission,
};
pub use request::replication_status::{
    ReplicatedDocument, ReplicationStatus, document_status, list_live_documents, stamped_status,
};
pub use request::request_job::{ReplicationRequestJobs, store_request_jobs};
pub use request::requested_tree::{MAX_PART_DOCUMENTS, TREE_TOPIC};
pub use request::withdrawal_job::{OrphanedDocument, list_orphaned_documents};
pub use shared_store::guest_note::{
    MAX_GUEST_NOTE_BYTES, RemoteGuestNotes, list_guest_notes, read_guest_note, remove_guest_note,
    write_guest_note,
};
pub use shared_store::remote_store::{RemoteStore, RemoteStoreCredentials};
pub use shared_store::standby::{StandbyCopyReport, StandbyLag, StandbyStore};
pub use shared_store::store_service::{
    MAX_STORE_REQUEST_BYTES, STORE_PATH, WireLease, WireLeaseRequest, WireRevision,
    find_missing_chunks, grant_store_lease, list_store_refs, list_store_revisions,
    read_store_blobs, read_store_chunks, read_store_lease, release_store_lease,
};
pub use tympan_blobs::garbage_collection::GuestNotes;
pub use workflow_process::replication_processes;
