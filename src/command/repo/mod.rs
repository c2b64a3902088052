//! `tympan repo`: looks after a repository.

mod check;
mod stats;

use crate::args::Repo;
use crate::command::Outcome;

/// Runs the command.
pub(crate) fn run(repo: &Repo) -> Outcome {
    match repo {
        Repo::Check { home, json } => check::run(home, *json),
        Repo::Stats { home, json } => stats::run(home, *json),
    }
}
