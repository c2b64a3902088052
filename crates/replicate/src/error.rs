//! What can go wrong with replication.

use tympan_content::{BlobId, ChunkId, NodePath};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an agent or of a receiver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The other side did not answer.
    #[error("`{target}` cannot be reached")]
    Unreachable {
        /// The agent's address.
        target: String,
        /// The cause.
        source: tympan_web::client::ClientError,
    },
    /// The other side answered with an error.
    #[error("`{target}` answered {status}: {message}")]
    Refused {
        /// The agent's address.
        target: String,
        /// The HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// The other side lacks parts that must be sent first.
    #[error("{} chunks and {} blobs are missing here", chunks.len(), blobs.len())]
    Missing {
        /// The chunks.
        chunks: Vec<ChunkId>,
        /// The blobs.
        blobs: Vec<BlobId>,
    },
    /// A message does not decode.
    #[error("the replication message is malformed: {0}")]
    Malformed(String),
    /// A blob or chunk is not what its id says, so it was not stored.
    #[error("the bytes that arrived as `{expected}` are `{actual}`; they were not kept")]
    Mismatch {
        /// The announced id.
        expected: String,
        /// The id of what arrived.
        actual: String,
    },
    /// What a client of the store asks for is not here.
    #[error("{0} is not here")]
    Absent(String),
    /// A note of a guest cannot be taken.
    #[error(transparent)]
    InvalidGuestNote(tympan_blobs::Error),
    /// The agent's configuration makes no sense.
    #[error("agent `{agent}`: {reason}")]
    InvalidAgent {
        /// The agent's name.
        agent: String,
        /// What is wrong.
        reason: String,
    },
    /// The source of a document lacks one of its blobs.
    #[error(
        "the blob `{0}` that is to be sent is not in this instance's store; run `tympan repo check`"
    )]
    LostBlob(BlobId),
    /// A later wish was carried out before this one.
    #[error(
        "what was asked for `{0}` later was carried out before this, which would undo it; ask again for what is still meant"
    )]
    Superseded(NodePath),
    /// Content failed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// The queues failed.
    #[error(transparent)]
    Jobs(#[from] tympan_jobs::Error),
    /// The blob store failed.
    #[error(transparent)]
    Blobs(#[from] tympan_blobs::Error),
    /// The chunk store failed.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}

impl Error {
    /// Tells whether trying again can help: everything but what the other side understood and refused.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => source.is_transient(),
            // A wrong key or a full disk is mended by people while the queue waits.
            Self::Refused { status, .. } => *status != 400 && *status != 422,
            Self::Missing { .. } => true,
            Self::Malformed(_)
            | Self::Mismatch { .. }
            | Self::InvalidAgent { .. }
            | Self::LostBlob(_)
            | Self::Superseded(_)
            | Self::InvalidGuestNote(_)
            | Self::Absent(_) => false,
            Self::Content(error) => error.is_transient(),
            Self::Jobs(_) => true,
            Self::Blobs(_) => true,
            Self::Store(error) => error.is_transient(),
        }
    }
}
