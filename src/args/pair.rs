//! Arguments of `tympan pair`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Manages credentials of single instances; additions and removals take effect at once, even while the instance runs.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tympan pair publish1 --home /srv/author --purpose send --out publish1.pair
          tympan pair --accept publish1.pair --home /srv/publish1
          tympan pair dispatcher1 --home /srv/publish1 --purpose flush --out dispatcher1.pair
          tympan pair --accept dispatcher1.pair --home /srv/dispatcher1
          tympan pair standby --home /srv/author --purpose clone --out standby.key
          tympan pair publish1 --home /srv/author --remove
          tympan pair --home /srv/author"
)]
pub(crate) struct PairArgs {
    /// The name of the pair on both sides. A sender's agent has this name. Without a name, lists the pairs of the home.
    #[arg(value_name = "NAME", conflicts_with = "accept")]
    pub(crate) name: Option<String>,
    /// The home; its instance may be running.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// The purpose of the key.
    #[arg(long, value_name = "PURPOSE", requires = "name", requires = "out")]
    pub(crate) purpose: Option<PairPurpose>,
    /// The file for the other side, which must not exist: for `send` and `flush` the file to accept with `--accept`,
    /// for `clone` the key file for `--key`. Transfer it securely, then delete it.
    #[arg(long, value_name = "FILE", requires = "purpose")]
    pub(crate) out: Option<PathBuf>,
    /// Reads the other side's half of the pair from a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) accept: Option<PathBuf>,
    /// Removes the pair, so that its key no longer gives access to this home.
    #[arg(long, requires = "name", conflicts_with_all = ["purpose", "accept"])]
    pub(crate) remove: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The purpose of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PairPurpose {
    /// This home sends activated content, and the other one receives it.
    Send,
    /// The other side reads the whole store of this home: clones, standbys, backups, shared blobs.
    Clone,
    /// This publisher flushes the cache of the other side, a dispatcher; the flush agent has the pair's name.
    Flush,
}
