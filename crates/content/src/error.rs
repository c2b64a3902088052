//! What can go wrong with content, one variant for each different decision of the caller.

use tympan_store::{BlobId, ChunkId};

use crate::node_type::{CndDiagnostic, ConstraintViolation, summarize_violations};
use crate::{MergeConflict, NodePath};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the content model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name or path breaks JCR's rules.
    #[error("`{text}` is not a valid {subject}: {reason}")]
    InvalidName {
        /// What was given.
        text: String,
        /// `name`, `path`, …
        subject: &'static str,
        /// The broken rule.
        reason: &'static str,
    },
    /// A text cannot be read as the wanted type of value.
    #[error("`{text}` cannot be read as {expected_type}")]
    ValueFormat {
        /// The value's text.
        text: String,
        /// The name of the wanted type.
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
        /// What was asked for.
        name: String,
    },
    /// A node is in the way.
    #[error("a node exists already at `{0}`")]
    NodeExists(NodePath),
    /// The edit makes no sense for this node.
    #[error("cannot {action} `{path}`: {reason}")]
    InvalidEdit {
        /// What was tried, as a verb.
        action: &'static str,
        /// The node.
        path: NodePath,
        /// Why not.
        reason: &'static str,
    },
    /// A branch cannot be what is asked of it.
    #[error("branch `{name}`: {reason}")]
    InvalidBranch {
        /// The branch.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// Others changed the same things since this session began.
    #[error("{}", crate::conflict::conflict_message(.0))]
    Conflicts(Vec<MergeConflict>),
    /// Others changed a document that was to stay as it was read.
    #[error("`{0}` was changed since it was read; read it again")]
    DocumentChanged(NodePath),
    /// A place in the change feed that the history does not reach.
    #[error(
        "the cursor `{cursor}` leads nowhere: {reason}; history is kept from `{oldest}` on: read the present state, `{root}`, then go on from `{newest}`"
    )]
    CursorLost {
        /// The cursor.
        cursor: String,
        /// What is wrong with it.
        reason: &'static str,
        /// The cursor of the oldest revision from which every later one is kept.
        oldest: String,
        /// The cursor behind the newest revision.
        newest: String,
        /// The state that the newest revision led to.
        root: ChunkId,
    },
    /// The session's viewer lacks a privilege for what it would change.
    #[error("OakAccess0000: Access denied: `{path}` needs the privilege `{privilege}`")]
    AccessDenied {
        /// Where the privilege is missing.
        path: NodePath,
        /// The privilege.
        privilege: &'static str,
    },
    /// The edits break rules of node types, names or references.
    #[error("{}", summarize_violations(.0))]
    ConstraintViolations(Vec<ConstraintViolation>),
    /// Definitions of node types are wrong.
    #[error("the node types are refused: {}", .0.iter().map(CndDiagnostic::to_string).collect::<Vec<_>>().join("; "))]
    InvalidNodeTypes(Vec<CndDiagnostic>),
    /// A prefix cannot stand for a namespace.
    #[error("cannot register the prefix `{prefix}` for `{uri}`: {reason}")]
    InvalidNamespace {
        /// The prefix.
        prefix: String,
        /// The namespace.
        uri: String,
        /// Why not.
        reason: &'static str,
    },
    /// A content package is malformed.
    #[error("{file}{}: {message}", if *line == 0 { String::new() } else { format!(":{line}") })]
    InvalidPackage {
        /// The entry of the package, or the package file itself.
        file: String,
        /// The line in it, counted from 1; 0 where lines make no sense.
        line: u32,
        /// What is wrong and what to do.
        message: String,
    },
    /// Several things are wrong with a content package; each is an [`Error::InvalidPackage`].
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    PackageFaults(Vec<Self>),
    /// Two nodes have a value that a unique index allows once.
    #[error(
        "OakConstraint0030: `{path}` and {} have the same value of `{property}`, of which an index wants each once; give one of them another",
        path_or_placeholder(existing_path.as_ref())
    )]
    NotUnique {
        /// The property.
        property: String,
        /// The node that was to be written.
        path: NodePath,
        /// The node that has the value already; nothing for one that may not be read.
        existing_path: Option<NodePath>,
    },
    /// The text of a query is wrong.
    #[error("the query is not valid at {0}")]
    Query(#[from] crate::query::QuerySyntaxError),
    /// The full-text index cannot answer.
    #[error("the full-text index cannot answer")]
    FullText(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A query went beyond what it may use.
    #[error("the query was stopped: {limit}; narrow it, or raise the limit")]
    QueryLimit {
        /// The limit.
        limit: String,
    },
    /// A query cannot be run as it says.
    #[error("the query cannot be run: {reason}")]
    QueryRefused {
        /// Why.
        reason: String,
    },
    /// Stored bytes do not decode.
    #[error("the stored document of `{path}` is damaged: {reason}; run `tympan repo check`")]
    Damaged {
        /// The document's path.
        path: NodePath,
        /// What does not decode.
        reason: &'static str,
    },
    /// A node names a blob that no store holds.
    #[error("the blob `{0}` is missing; restore it from a backup")]
    BlobMissing(BlobId),
    /// The bytes of an upload are not those that its sender named; nothing was stored.
    #[error(
        "the bytes are those of `{actual}`, not of `{expected}` as their sender says; send them again"
    )]
    BlobMismatch {
        /// What the sender named.
        expected: BlobId,
        /// What came.
        actual: BlobId,
    },
    /// The root has no content map, or one of an unknown format.
    #[error("root `{0}` is not a content root")]
    MissingContentMap(ChunkId),
    /// The chunk store failed.
    #[error(transparent)]
    Store(#[from] tympan_store::Error),
    /// The blob store failed.
    #[error(transparent)]
    Blobs(#[from] tympan_blobs::Error),
    /// Reading an input failed.
    #[error("cannot read {input_name}")]
    Read {
        /// What was being read.
        input_name: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl Error {
    /// Brings together what is wrong with a package; nothing if nothing is.
    pub(crate) fn from_package_faults(faults: Vec<Self>) -> Option<Self> {
        let mut all = Vec::new();
        for fault in faults {
            match fault {
                Self::PackageFaults(more) => all.extend(more),
                one => all.push(one),
            }
        }
        let last = all.pop()?;
        if all.is_empty() {
            return Some(last);
        }
        all.push(last);
        Some(Self::PackageFaults(all))
    }

    /// Tells whether trying the same again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Blobs(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Tells what helps, if stored bytes are damaged or gone; nothing for any other error. The text names no file and no
    /// node, so that anybody may read it.
    #[must_use]
    pub fn repair_hint(&self) -> Option<&'static str> {
        use tympan_store::Error as StoreError;
        const BLOBS: &str = "`tympan blobs check` names what is damaged; restore it from a backup, or upload it again";
        const REPOSITORY: &str = "`tympan repo check` names what is damaged, with `--repair` it goes back to the newest good \
             state; or restore a backup";
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
            Self::Blobs(tympan_blobs::Error::Store(error)) => of_store(error),
            Self::Blobs(error) => error.is_damage().then_some(BLOBS),
            _ => None,
        }
    }

    /// Tells whether it is the store that this one lies over which cannot be had: not now, or no more.
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
    path.map_or_else(|| "a node that may not be read".to_owned(), |path| format!("`{path}`"))
}
