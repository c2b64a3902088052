//! Errors: the faults of a source, each with its place, and what ends a run.

use std::fmt;
use std::sync::Arc;

use crate::budget::HtlLimit;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place in a script. Lines and columns begin with 1; a column counts characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptPlace {
    /// The name that the script was compiled with.
    pub script: Arc<str>,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl fmt::Display for ScriptPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}", self.script, self.line, self.column)
    }
}

/// An error that ends the run of a script. What was written until then stays in the output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host or one of its objects failed.
    #[error("{place}: {source}")]
    Host {
        /// The place of the expression or statement.
        place: ScriptPlace,
        /// The error of the host.
        source: HostError,
    },
    /// An expression has no value: operands that cannot be compared, an unknown type of format and the like.
    #[error("{place}: {message}")]
    Evaluation {
        /// The place of the expression.
        place: ScriptPlace,
        /// What is wrong with the values.
        message: String,
    },
    /// The run exceeded a limit of its budget.
    #[error("{place}: the limit of {limit} is exceeded")]
    Budget {
        /// The place that was reached.
        place: ScriptPlace,
        /// The exceeded limit.
        limit: HtlLimit,
    },
}

impl Error {
    /// Returns the place at which the run ended.
    #[must_use]
    pub fn place(&self) -> &ScriptPlace {
        match self {
            Self::Host { place, .. }
            | Self::Evaluation { place, .. }
            | Self::Budget { place, .. } => place,
        }
    }
}

/// An error of a host: a message, or any error of its own, which [`HostError::downcast_ref`] gives back.
pub struct HostError(Box<dyn std::error::Error + Send + Sync>);

impl HostError {
    /// Wraps an error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }

    /// Creates an error from a message: a lower-case fragment without a period.
    pub fn message(message: impl Into<String>) -> Self {
        Self(message.into().into())
    }

    /// Returns the error of a script that the host ran, or the error itself.
    pub(crate) fn into_script_error(self) -> Result<Error, Self> {
        self.0.downcast::<Error>().map(|error| *error).map_err(Self)
    }

    /// Returns the wrapped error if it has the type `E`.
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}

impl From<Error> for HostError {
    /// Wraps the error of a script that the host ran, such as an included one. It ends the including script as it is.
    fn from(error: Error) -> Self {
        Self::new(error)
    }
}

impl fmt::Debug for HostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, out)
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, out)
    }
}

impl std::error::Error for HostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// A fault or a warning in the source of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HtlDiagnostic {
    /// The place.
    pub place: ScriptPlace,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl fmt::Display for HtlDiagnostic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.message)
    }
}

/// The faults of a script that cannot be compiled, in the order of the source; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HtlCompileError {
    faults: Vec<HtlDiagnostic>,
}

impl HtlCompileError {
    pub(crate) fn new(faults: Vec<HtlDiagnostic>) -> Self {
        Self { faults }
    }

    /// Returns all faults.
    #[must_use]
    pub fn faults(&self) -> &[HtlDiagnostic] {
        &self.faults
    }
}

impl fmt::Display for HtlCompileError {
    /// Writes one line per fault.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.faults.iter().enumerate() {
            if number > 0 {
                out.write_str("\n")?;
            }
            fault.fmt(out)?;
        }
        Ok(())
    }
}

impl std::error::Error for HtlCompileError {}
