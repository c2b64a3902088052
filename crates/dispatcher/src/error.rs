//! Why a dispatcher cannot start, or its cache not be exported.

use std::path::PathBuf;

/// Why a dispatcher cannot start, or its cache not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration holds no farm.
    #[error("the configuration holds no farm; add one below `/farms`")]
    NoFarm,
    /// A setting of `[dispatcher]` in `tympan.toml` cannot be used.
    #[error("`{key}` in `[dispatcher]`: {reason}")]
    Setting {
        /// The key.
        key: String,
        /// What is wrong with it, and what to write.
        reason: String,
    },
    /// A path that no site could have meant.
    #[error("the path would be answered with 400")]
    Path(#[from] tympan_web::cache_path::CanonicalPathError),
    /// The listening socket cannot be used.
    #[error("the dispatcher cannot serve")]
    Serve(#[from] tympan_web::Error),
    /// The farm keeps no files.
    #[error("the farm `{0}` has no `/cache` with a `/docroot`")]
    NoDocroot(String),
    /// A document root cannot be read.
    #[error("cannot read `{}`", file.display())]
    Read {
        /// What cannot be read.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is exported cannot be written.
    #[error("cannot write the export at `{}`", file.display())]
    Write {
        /// The file that was being written, as the export names it.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
