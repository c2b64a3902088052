//! Logs that are watched while a load runs: what is written to them as an error misses a goal.

use std::path::Path;

use tympan_lab::report::sheet::Sheet;
use tympan_lab::watch_log::{Errors, Logged, Watch};

use super::fault;
use crate::args::lab::Logs;
use crate::command::Fault;
use crate::home::chain;

/// The logs of a command, from before its load begins.
#[derive(Debug, Default)]
pub(super) struct WatchedLogs(Vec<Watch>);

impl WatchedLogs {
    /// Begins to watch.
    pub(super) fn begin(logs: &Logs) -> Result<Self, Fault> {
        let begin = |path| Watch::begin(path, logs.log_pattern.as_deref());
        let watches: Result<_, _> = logs.watch_log.iter().map(|path| begin(path)).collect();
        watches.map(Self).map_err(|error| fault(&error))
    }

    /// Returns what was written since.
    pub(super) fn end(&self) -> Vec<Logged> {
        self.0.iter().map(|watch| logged(watch.path(), watch.errors())).collect()
    }

    /// Returns what was written since it was asked for last.
    pub(super) fn take(&mut self) -> Vec<Logged> {
        let take = |watch: &mut Watch| {
            let errors = watch.take_errors();
            logged(watch.path(), errors)
        };
        self.0.iter_mut().map(take).collect()
    }

    /// Adds to a report what was written since.
    pub(super) fn tell(&self, sheet: &mut Sheet) {
        sheet.add_logged(&self.end());
    }
}

fn logged(path: &Path, errors: tympan_lab::Result<Errors>) -> Logged {
    let (errors, unread) = match errors {
        Ok(errors) => (errors, None),
        // A log that is not there tells nothing: that nothing was logged is not known then.
        Err(error) => (Errors::default(), Some(chain(&error))),
    };
    Logged { file: path.display().to_string(), errors, unread }
}
