//! The errors of replication.

use tympan_content::{BlobId, ChunkId, NodePath};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of an agent or of a receiver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The remote side did not respond.
    #[error("`{target}` cannot be reached")]
    Unreachable {
        /// The agent's target URI.
        target: String,
        /// The cause.
        source: tympan_web::client::ClientError,
    },
    /// The remote side responded with an error.
    #[error("`{target}` answered {status}: {message}")]
    Refused {
        /// The agent's target URI.
        target: String,
        /// The HTTP status.
        status: u16,
        /// The error message in the response.
        message: String,
    },
    /// The remote side is not an instance that receives blobs.
    #[error("`{target}` is not an instance that receives blobs")]
    NoReceiver {
        /// The URL of the remote side.
        target: String,
    },
    /// The address of a remote side is invalid.
    #[error("`{url}` is not a URL")]
    InvalidUrl {
        /// The address.
        url: String,
        /// The fault in it.
        source: http::Error,
    },
    /// The remote side lacks parts that must be sent first.
    #[error("{} chunks and {} blobs are missing here", chunks.len(), blobs.len())]
    Missing {
        /// The chunks.
        chunks: Vec<ChunkId>,
        /// The blobs.
        blobs: Vec<BlobId>,
    },
    /// A message cannot be decoded.
    #[error("the replication message is malformed: {0}")]
    Malformed(String),
    /// A blob or chunk does not match its id, so it was not stored.
    #[error("the bytes received as `{expected}` have the id `{actual}`; they were not stored")]
    Mismatch {
        /// The expected id.
        expected: String,
        /// The id of the received bytes.
        actual: String,
    },
    /// An object that a client of the store requested does not exist.
    #[error("{0} does not exist here")]
    Absent(String),
    /// A note of a guest was rejected.
    #[error(transparent)]
    InvalidGuestNote(tympan_blobs::Error),
    /// The agent's configuration is invalid.
    #[error("agent `{agent}`: {reason}")]
    InvalidAgent {
        /// The agent's name.
        agent: String,
        /// The reason.
        reason: String,
    },
    /// The source of a document lacks one of its blobs.
    #[error(
        "the blob `{0}`, which is to be sent, is missing from this instance's store; run `tympan repo check`"
    )]
    LostBlob(BlobId),
    /// A later request was carried out before this one.
    #[error(
        "a later request for `{0}` was already carried out, and this one would undo it; request again what is \
         still needed"
    )]
    Superseded(NodePath),
    /// An error of the content repository.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// An error of the job queues.
    #[error(transparent)]
    Jobs(#[from] tympan_jobs::Error),
    /// An error of the blob store.
    #[error(transparent)]
    Blobs(#[from] tympan_blobs::Error),
    /// An error of the chunk store.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
}

impl Error {
    /// Returns true if a retry may succeed: for everything except what the remote side understood and rejected.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => source.is_transient(),
            // An operator can fix a wrong key or a full disk while the queue waits.
            Self::Refused { status, .. } => *status != 400 && *status != 422,
            Self::Missing { .. } => true,
            Self::Malformed(_)
            | Self::NoReceiver { .. }
            | Self::InvalidUrl { .. }
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
