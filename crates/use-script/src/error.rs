//! Errors of scripts, each with its place.

use std::time::Duration;

use tympan_htl::{HtlLimit, ScriptPlace};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that ended a script.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The script cannot be parsed, or threw an exception that it did not catch.
    #[error("{place}: {message}")]
    Exception {
        /// The innermost place of a script, or the beginning of the script that was run.
        place: ScriptPlace,
        /// The name and the message of the exception.
        message: String,
    },
    /// The page's budget is used up.
    #[error("{place}: the limit of {limit} is exceeded")]
    Budget {
        /// The script that was run.
        place: ScriptPlace,
        /// The exceeded limit.
        limit: HtlLimit,
    },
    /// The scripts of the component ran too long.
    #[error("{place}: the scripts of the component run longer than {limit:?}")]
    RunTime {
        /// The script that was run.
        place: ScriptPlace,
        /// The exceeded limit.
        limit: Duration,
    },
    /// The engine could not be started, or a value was read while a script ran.
    #[error("{place}: {message}")]
    Engine {
        /// The script that was run.
        place: ScriptPlace,
        /// What the engine reports.
        message: String,
    },
}

impl Error {
    /// Returns the place at which the script ended.
    #[must_use]
    pub fn place(&self) -> &ScriptPlace {
        match self {
            Self::Exception { place, .. }
            | Self::Budget { place, .. }
            | Self::RunTime { place, .. }
            | Self::Engine { place, .. } => place,
        }
    }

    /// Returns what happened, without the place.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Exception { message, .. } | Self::Engine { message, .. } => message.clone(),
            Self::Budget { limit, .. } => format!("the limit of {limit} is exceeded"),
            Self::RunTime { limit, .. } => {
                format!("the scripts of the component run longer than {limit:?}")
            }
        }
    }
}
