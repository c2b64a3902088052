//! `tympan pair`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Credentials of single instances; what is added or removed counts at once, also while the instance runs.
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
    /// What both sides call it. A sender's agent has this name. Without a name, lists the pairs of the home.
    #[arg(value_name = "NAME", conflicts_with = "accept")]
    pub(crate) name: Option<String>,
    /// The home, whose instance may run.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// What the key is for.
    #[arg(long, value_name = "P", requires = "name", requires = "out")]
    pub(crate) purpose: Option<PairPurpose>,
    /// The file for the other side, which must not exist: for `send` and `flush` what it accepts with `--accept`, for
    /// `clone` the key that it names with `--key`. Carry it there by a safe way, then delete it.
    #[arg(long, value_name = "FILE", requires = "purpose")]
    pub(crate) out: Option<PathBuf>,
    /// Takes the other side's half from a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) accept: Option<PathBuf>,
    /// Removes the pair, so that its key opens nothing in this home any more.
    #[arg(long, requires = "name", conflicts_with_all = ["purpose", "accept"])]
    pub(crate) remove: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PairPurpose {
    /// This home sends what is activated, and the other one receives it.
    Send,
    /// The other one reads the whole store of this home: clones, standbys, backups, shared blobs.
    Clone,
    /// This publisher flushes the cache of the other one, a dispatcher, and the agent that does so has the pair's name.
    Flush,
}
