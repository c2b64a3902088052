//! Files that are brought to a place before they may be seen there.

use super::FileKind;
use crate::id::Id;

/// A file that is in a place, or ready to be, and not there under its name yet.
#[derive(Debug)]
pub struct Staged {
    pub(super) kind: FileKind,
    pub(super) id: Id,
    /// Kept until the file has appeared: a place may lose what has no name.
    pub(super) bytes: Vec<u8>,
    /// What it is called in the place meanwhile; nothing if it is only here.
    pub(super) temporary: Option<String>,
}

impl Staged {
    /// Returns a file that is only here.
    #[must_use]
    pub const fn held(kind: FileKind, id: Id, bytes: Vec<u8>) -> Self {
        Self { kind, id, bytes, temporary: None }
    }

    /// Returns the name that it will have.
    #[must_use]
    pub const fn id(&self) -> Id {
        self.id
    }

    /// Returns what kind of file it is.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        self.kind
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
