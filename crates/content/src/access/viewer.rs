//! Viewers: the identity in whose name content is read and changed.

use std::fmt;
use std::sync::Arc;

/// The principal of viewers that have not logged in.
pub(crate) const ANONYMOUS_PRINCIPAL: &str = "anonymous";

/// The identity in whose name content is read and changed. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Viewer(pub(crate) ViewerIdentity);

/// The identity of a viewer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ViewerIdentity {
    /// The program itself, to which no policy applies.
    System,
    /// A user by name.
    User(Arc<str>),
    /// A viewer that has not logged in.
    Anonymous,
}

impl Viewer {
    /// Returns the viewer of the program itself, to which no policy applies.
    #[must_use]
    pub fn system() -> Self {
        Self(ViewerIdentity::System)
    }

    /// Returns the viewer for a user; without a name, the anonymous viewer.
    ///
    /// The groups of the user are looked up when a snapshot or a session is opened for the viewer, not here.
    #[must_use]
    pub fn of_user(user: Option<&str>) -> Self {
        Self(match user {
            None | Some(ANONYMOUS_PRINCIPAL) => ViewerIdentity::Anonymous,
            Some(user) => ViewerIdentity::User(user.into()),
        })
    }

    /// Returns the viewer with a name that [`Viewer::name`] returned. No account can have the program's own name.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        if name == Self::system().name() { Self::system() } else { Self::of_user(Some(name)) }
    }

    /// Returns the viewer that has not logged in.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(ViewerIdentity::Anonymous)
    }

    /// Returns the name under which the viewer commits.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            ViewerIdentity::System => "system",
            ViewerIdentity::User(name) => name,
            ViewerIdentity::Anonymous => ANONYMOUS_PRINCIPAL,
        }
    }

    /// Returns true if the viewer has not logged in.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.0 == ViewerIdentity::Anonymous
    }

    /// Returns true if the viewer is the program itself.
    #[must_use]
    pub fn is_system(&self) -> bool {
        self.0 == ViewerIdentity::System
    }
}

impl fmt::Debug for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Viewer({})", self.name())
    }
}
