//! Why a dispatcher cannot start.

/// Why a dispatcher cannot start.
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
    Path(#[from] tympan_web::cache_path::Fault),
    /// The listening socket cannot be used.
    #[error("the dispatcher cannot serve")]
    Serve(#[from] tympan_web::Error),
}
