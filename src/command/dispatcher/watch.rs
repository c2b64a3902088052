//! Reading the configuration again: on SIGHUP, and when a file of it changed.
//!
//! Invariants
//! * A configuration with errors, or one that cannot be read, never takes the place of one that works.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_dispatcher::Dispatcher;
use tympan_web::listen::Front;

use super::Files;
use crate::command::Fault;
use crate::home::chain;

/// How often the files are compared; a look costs a few microseconds a file.
const PERIOD: Duration = Duration::from_secs(2);

/// Waits for reasons to read the configuration again.
pub(super) struct Watcher {
    hangup: Option<Signal>,
}

/// What tells whether files changed: identity, length and time of each.
type Fingerprint = Vec<Option<(u64, u64, i64, i64)>>;

impl Watcher {
    /// Begins to listen for SIGHUP, which would end the process otherwise.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn listen() -> Result<Self, Fault> {
        let hangup = signal(SignalKind::hangup())
            .map_err(|error| Fault::cannot_run(format!("cannot listen for signals: {error}")))?;
        Ok(Self { hangup: Some(hangup) })
    }

    /// Looks at the files only: a program that belongs to a terminal ends with it.
    pub(super) fn of_files() -> Self {
        Self { hangup: None }
    }

    /// Reads the configuration again whenever there is a reason to, for as long as the dispatcher serves.
    pub(super) async fn run(
        mut self,
        files: Files,
        mut all: Vec<PathBuf>,
        (dispatcher, front): (Dispatcher, Front),
    ) {
        let mut seen = fingerprint(&all);
        let mut unsettled = None;
        loop {
            let is_asked = tokio::select! {
                asked = asked(&mut self.hangup) => asked,
                () = tokio::time::sleep(PERIOD) => false,
            };
            let now = fingerprint(&all);
            // An editor or a checkout may be in the middle of writing, so a change has to stand for one look.
            let is_changed = now != seen && unsettled.replace(now.clone()).as_ref() == Some(&now);
            if !is_asked && !is_changed {
                continue;
            }
            seen = now;
            unsettled = None;
            match read_again(&files, &dispatcher, &front) {
                Ok(read) => {
                    tracing::info!(file = %files.config.display(), "configuration loaded");
                    if read != all {
                        all = read;
                        seen = fingerprint(&all);
                    }
                }
                Err(fault) => {
                    tracing::error!(file = %files.config.display(), reason = %fault.message(),
                    "the changed configuration cannot be used; the old one stays")
                }
            }
        }
    }
}

async fn asked(hangup: &mut Option<Signal>) -> bool {
    match hangup {
        Some(hangup) => hangup.recv().await.is_some(),
        None => std::future::pending().await,
    }
}

fn read_again(
    files: &Files,
    dispatcher: &Dispatcher,
    front: &Front,
) -> Result<Vec<PathBuf>, Fault> {
    let (loaded, rest, all) = files.read()?;
    let trust = super::trust(&loaded.config, &rest.dispatcher)?;
    super::front_settings(&rest).renew(front).map_err(|error| Fault::usage(chain(&error)))?;
    dispatcher
        .reload(loaded.config, &rest.dispatcher, trust)
        .map_err(|error| Fault::usage(chain(&error)))?;
    Ok(all)
}

fn fingerprint(files: &[PathBuf]) -> Fingerprint {
    let one = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(one).collect()
}
