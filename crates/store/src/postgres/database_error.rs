//! Errors of the database client, and of a server that does not respond.

use crate::error::Error;

/// The error of a server that does not respond although the connection is open.
#[derive(Debug, thiserror::Error)]
#[error("the server does not respond")]
struct UnresponsiveServer;

/// Returns the error for an unresponsive server; the waiting caller treats the connection as lost.
pub(super) fn unresponsive_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, UnresponsiveServer))
}

/// Returns true if a server did not respond, so that a retry would take as long.
pub(super) fn is_unresponsive_error(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    error.get_ref().is_some_and(|inner| inner.is::<UnresponsiveServer>())
}

/// Returns a function that adds the failed action to a database error.
pub(super) fn database_error(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}
