//! Reloading of the configuration: on SIGHUP, and when one of its files changes.
//!
//! Invariants
//! * A configuration with errors, or one that cannot be read, never replaces a working one.

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_dispatcher::Dispatcher;
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::file_watch::{FileWatch, POLL_INTERVAL};
use tympan_web::listen::ListenerOptions;

use super::DispatcherConfigFiles;
use crate::command::service_manager;

/// Waits for events that require a reload of the configuration.
pub(super) struct ConfigReloadWatcher {
    hangup_signal: Option<Signal>,
}

impl ConfigReloadWatcher {
    /// Installs a handler for SIGHUP, which would end the process otherwise.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn listen_for_hangup() -> Result<Self, CommandFault> {
        let hangup = signal(SignalKind::hangup()).map_err(|error| {
            CommandFault::cannot_run(format!("cannot listen for signals: {error}"))
        })?;
        Ok(Self { hangup_signal: Some(hangup) })
    }

    /// Watches only the files: a program that belongs to a terminal ends on SIGHUP.
    pub(super) fn without_hangup() -> Self {
        Self { hangup_signal: None }
    }

    /// Reloads the configuration on each event, for as long as the dispatcher serves.
    pub(super) async fn run(
        mut self,
        files: DispatcherConfigFiles,
        all: Vec<PathBuf>,
        dispatcher: Dispatcher,
        front: ListenerOptions,
    ) {
        let mut watch = FileWatch::new(all);
        loop {
            let is_asked = tokio::select! {
                asked = wait_for_hangup(&mut self.hangup_signal) => asked,
                () = tokio::time::sleep(POLL_INTERVAL) => false,
            };
            if !watch.has_changed() && !is_asked {
                continue;
            }
            // Only who asked for it waits for the end.
            let _report = is_asked.then(service_manager::report_reloading);
            watch.accept_current();
            match reload_config(&files, &dispatcher, &front) {
                Ok(read) => {
                    tracing::info!(file = %files.config.display(), "configuration loaded");
                    watch.watch_files(read);
                }
                Err(fault) => {
                    tracing::error!(file = %files.config.display(), reason = %fault.message(),
                    "cannot use the changed configuration; keeping the old one")
                }
            }
        }
    }
}

async fn wait_for_hangup(hangup: &mut Option<Signal>) -> bool {
    match hangup {
        Some(hangup) => hangup.recv().await.is_some(),
        None => std::future::pending().await,
    }
}

fn reload_config(
    files: &DispatcherConfigFiles,
    dispatcher: &Dispatcher,
    front: &ListenerOptions,
) -> Result<Vec<PathBuf>, CommandFault> {
    let (loaded, rest, all) = files.read_all()?;
    let trust = rest.dispatcher.renders.read_trust(&loaded.config);
    let trust = trust.map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    super::front_settings(&rest)
        .reload_certificates(front)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    dispatcher
        .reload(loaded.config, &rest.dispatcher, trust)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    Ok(all)
}
