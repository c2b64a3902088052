//! Reading the configuration again: on SIGHUP, and when a file of it changed.
//!
//! Invariants
//! * A configuration with errors, or one that cannot be read, never takes the place of one that works.

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_dispatcher::Dispatcher;
use tympan_web::listen::Front;

use super::Files;
use crate::command::Fault;
use crate::command::file_watch::{FileWatch, PERIOD};
use crate::home::chain;

/// Waits for reasons to read the configuration again.
pub(super) struct Watcher {
    hangup: Option<Signal>,
}

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
        all: Vec<PathBuf>,
        (dispatcher, front): (Dispatcher, Front),
    ) {
        let mut watch = FileWatch::new(all);
        loop {
            let is_asked = tokio::select! {
                asked = asked(&mut self.hangup) => asked,
                () = tokio::time::sleep(PERIOD) => false,
            };
            if !watch.has_changed() && !is_asked {
                continue;
            }
            watch.note_seen();
            match read_again(&files, &dispatcher, &front) {
                Ok(read) => {
                    tracing::info!(file = %files.config.display(), "configuration loaded");
                    watch.follow(read);
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
