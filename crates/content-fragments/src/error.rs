//! Errors of content fragments; what a GraphQL query does wrong is a part of its answer, not an error.

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of content fragments.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No model of a site is enabled, so there is nothing to query.
    #[error(
        "`{site}` has no enabled content fragment models; create one below `/conf/{site}/settings/dam/cfm/models`"
    )]
    NoModels {
        /// The configuration.
        site: String,
    },
    /// The models of a site cannot form a schema.
    #[error("the content fragment models of `{site}` have no GraphQL schema: {reason}")]
    Schema {
        /// The configuration.
        site: String,
        /// The reason.
        reason: String,
    },
    /// A request to store a query is malformed.
    #[error("the persisted query cannot be stored: {reason}")]
    PersistedQuery {
        /// The reason.
        reason: String,
    },
    /// Reading content failed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
}
