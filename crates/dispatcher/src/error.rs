//! The errors of starting a dispatcher, or of exporting its cache.

use std::path::PathBuf;

/// The error of starting a dispatcher, or of exporting its cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration holds no farm.
    #[error("the configuration has no farm; add one below `/farms`")]
    NoFarm,
    /// A setting of `[dispatcher]` in `tympan.toml` cannot be used.
    #[error("`{key}` in `[dispatcher]`: {reason}")]
    Setting {
        /// The key.
        key: String,
        /// The problem, and the valid values.
        reason: String,
    },
    /// The path is invalid.
    #[error("the path is not valid; a request for it is answered with 400")]
    Path(#[from] tympan_web::cache_path::CanonicalPathError),
    /// The listening socket cannot be used.
    #[error("the dispatcher cannot accept connections")]
    Serve(#[from] tympan_web::Error),
    /// The certificates of renders cannot be used.
    #[error(transparent)]
    RenderTls(tympan_web::Error),
    /// There is a client certificate for renders, but nothing to verify them with.
    #[error("`certificate` in `[dispatcher.renders]` needs `roots`")]
    MissingRenderRoots,
    /// The farm has no document root.
    #[error("the farm `{0}` has no `/cache` with a `/docroot`")]
    NoDocroot(String),
    /// No farm, or more than one, has the cache that is requested.
    #[error("{0}")]
    CacheFarm(String),
    /// The file or folder of an export is in use.
    #[error("{0}")]
    ExportTarget(String),
    /// The file or folder of an export cannot be created or completed.
    #[error("cannot write `{}`", file.display())]
    Create {
        /// The file or folder.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file, or a document root, cannot be read.
    #[error("cannot read `{}`", file.display())]
    Read {
        /// The file that cannot be read.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The export cannot be written.
    #[error("cannot write the export at `{}`", file.display())]
    Write {
        /// The file that was being written, as the export names it.
        file: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}
