//! Errors of the content model, one variant for each different decision of the caller.

use tympan_store::{BlobId, ChunkId};

use crate::node_type::{CndDiagnostic, ConstraintViolation, summarize_violations};
use crate::{MergeConflict, NodePath};

/// The result of every fallible operation in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the content model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name or path breaks JCR's rules.
    #[error("`{text}` is not a valid {subject}: {reason}")]
    InvalidName {
        /// The invalid text.
        text: String,
        /// `name`, `path`, …
        subject: &'static str,
        /// The broken rule.
        reason: &'static str,
    },
    /// A text cannot be parsed as the expected type of value.
    #[error("`{text}` cannot be read as {expected_type}")]
    ValueFormat {
        /// The value's text.
        text: String,
        /// The name of the expected type.
        expected_type: &'static str,
    },
    /// There is no node at the path.
    #[error("there is no node at `{0}`")]
    NodeMissing(NodePath),
    /// The node has no such version.
    #[error("`{path}` has no version or label `{name}`")]
    VersionMissing {
        /// The node.
        path: NodePath,
        /// The requested version.
        name: String,
    },
    /// A node already exists at the path.
    #[error("a node already exists at `{0}`")]
    NodeExists(NodePath),
    /// The edit is not possible for this node.
    #[error("cannot {action} `{path}`: {reason}")]
    InvalidEdit {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The node.
        path: NodePath,
        /// The reason.
        reason: &'static str,
    },
    /// An operation on a branch is not possible.
    #[error("branch `{name}`: {reason}")]
    InvalidBranch {
        /// The branch.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// Others changed the same items since this session began.
    #[error("{}", crate::commit::conflict::conflict_message(.0))]
    Conflicts(Vec<MergeConflict>),
    /// Others changed a document that the commit requires to be unchanged.
    #[error("`{0}` was changed since it was read; read it again")]
    DocumentChanged(NodePath),
    /// A cursor of the change feed that is outside of the retained history.
    #[error(transparent)]
    CursorLost(Box<LostCursor>),
    /// The session's viewer lacks a privilege for the change.
    #[error("OakAccess0000: Access denied: `{path}` needs the privilege `{privilege}`")]
    AccessDenied {
        /// The path at which the privilege is missing.
        path: NodePath,
        /// The privilege.
        privilege: &'static str,
    },
    /// The edits break rules of node types, names or references.
    #[error("{}", summarize_violations(.0))]
    ConstraintViolations(Vec<ConstraintViolation>),
    /// Definitions of node types are invalid.
    #[error("the node types are not valid: {}", .0.iter().map(CndDiagnostic::to_string).collect::<Vec<_>>().join("; "))]
    InvalidNodeTypes(Vec<CndDiagnostic>),
    /// A prefix cannot be mapped to a namespace.
    #[error("cannot register the prefix `{prefix}` for `{uri}`: {reason}")]
    InvalidNamespace {
        /// The prefix.
        prefix: String,
        /// The namespace.
        uri: String,
        /// The reason.
        reason: &'static str,
    },
    /// Two nodes have a value that a unique index allows once.
    #[error(
        "OakConstraint0030: `{path}` and {} have the same value of `{property}`, which a unique index allows \
         only once; change one of them",
        path_or_placeholder(existing_path.as_ref())
    )]
    NotUnique {
        /// The property.
        property: String,
        /// The node to be written.
        path: NodePath,
        /// The node that already has the value; `None` if the viewer may not read it.
        existing_path: Option<NodePath>,
    },
    /// Stored bytes do not decode.
    #[error("the stored document of `{path}` is damaged: {reason}; run `tympan repo check`")]
    Damaged {
        /// The document's path.
        path: NodePath,
        /// The part that does not decode.
        reason: &'static str,
    },
    /// A node names a blob that no store holds.
    #[error("the blob `{0}` is missing; restore it from a backup")]
    BlobMissing(BlobId),
    /// The bytes of an upload do not match the identifier given by the sender; nothing was stored.
    #[error(
        "the received bytes have the identifier `{actual}`, not `{expected}` as the sender claims; send them \
         again"
    )]
    BlobMismatch {
        /// The identifier given by the sender.
        expected: BlobId,
        /// The identifier of the received bytes.
        actual: BlobId,
    },
    /// The root has no content map, or one of an unknown format.
    #[error("root `{0}` is not a content root")]
    MissingContentMap(ChunkId),
    /// The chunk store failed.
    #[error(transparent)]
    Store(Box<tympan_store::Error>),
    /// The blob store failed.
    #[error(transparent)]
    Blobs(Box<tympan_blobs::Error>),
}

/// Every fallible function of this crate and of those above it returns an [`Error`], also when it succeeds.
const _: () = assert!(size_of::<Error>() <= 88);

/// A cursor of the change feed outside of the retained history.
#[derive(Debug, thiserror::Error)]
#[error(
    "the cursor `{cursor}` is not valid: {reason}; history is retained since `{oldest}`: read the current \
     state, `{root}`, then continue from `{newest}`"
)]
pub struct LostCursor {
    /// The cursor.
    pub cursor: String,
    /// The problem with the cursor.
    pub reason: &'static str,
    /// The cursor of the oldest revision after which every revision is retained.
    pub oldest: String,
    /// The cursor after the newest revision.
    pub newest: String,
    /// The root of the newest revision.
    pub root: ChunkId,
}

impl From<tympan_store::Error> for Error {
    fn from(error: tympan_store::Error) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<tympan_blobs::Error> for Error {
    fn from(error: tympan_blobs::Error) -> Self {
        Self::Blobs(Box::new(error))
    }
}

impl Error {
    /// Returns true if a retry can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Blobs(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Returns repair instructions if stored bytes are damaged or missing; `None` for any other error. The text names
    /// no file and no node, so that it may be shown to any user.
    #[must_use]
    pub fn repair_hint(&self) -> Option<&'static str> {
        use tympan_store::Error as StoreError;
        const BLOBS: &str = "`tympan blobs check` lists the damage; restore the blobs from a backup, or \
            upload them again";
        const REPOSITORY: &str = "`tympan repo check` lists the damage, and with `--repair` reverts to the \
            newest good state; or restore a backup";
        let of_store = |error: &StoreError| match error {
            StoreError::BlobDamaged { .. } => Some(BLOBS),
            StoreError::ChunkDamaged { .. }
            | StoreError::ChunkMissing { .. }
            | StoreError::ChunkKindMismatch { .. }
            | StoreError::FileMalformed { .. } => Some(REPOSITORY),
            _ => None,
        };
        match self {
            Self::Damaged { .. } => Some(REPOSITORY),
            Self::Store(error) => of_store(error),
            Self::BlobMissing(_) => Some(BLOBS),
            Self::Blobs(error) => match &**error {
                tympan_blobs::Error::Store(error) => of_store(error),
                error => error.is_damage().then_some(BLOBS),
            },
            _ => None,
        }
    }

    /// Returns true if the base store of this store is unavailable, temporarily or permanently.
    #[must_use]
    pub fn is_base_store_error(&self) -> bool {
        match self {
            Self::Store(error) => error.is_base_error(),
            Self::Blobs(error) => error.is_base_unavailable(),
            _ => false,
        }
    }
}

fn path_or_placeholder(path: Option<&NodePath>) -> String {
    path.map_or_else(|| "a node that you may not see".to_owned(), |path| format!("`{path}`"))
}
