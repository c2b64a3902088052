//! Errors of content packages, one variant for each different decision of the caller.

/// The result of every fallible operation in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a content package.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A content package is malformed.
    #[error("{file}{}: {message}", if *line == 0 { String::new() } else { format!(":{line}") })]
    InvalidPackage {
        /// The entry of the package, or the package file itself.
        file: String,
        /// The line in it, counted from 1; 0 if lines do not apply.
        line: u32,
        /// The problem and its remedy.
        message: String,
    },
    /// A content package has several faults; each is an [`Error::InvalidPackage`].
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    PackageFaults(Vec<Self>),
    /// Reading an input failed.
    #[error("cannot read {input_name}")]
    Read {
        /// The name of the input.
        input_name: String,
        /// The cause.
        source: std::io::Error,
    },
    /// Reading or changing content failed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
}

impl Error {
    /// Combines the faults of a package into one error; `None` if there are none.
    pub(crate) fn from_package_faults(faults: Vec<Self>) -> Option<Self> {
        let mut all = Vec::new();
        for fault in faults {
            match fault {
                Self::PackageFaults(more) => all.extend(more),
                error => all.push(error),
            }
        }
        let last = all.pop()?;
        if all.is_empty() {
            return Some(last);
        }
        all.push(last);
        Some(Self::PackageFaults(all))
    }
}
