//! Logs that are watched during a load: an error that is logged fails a goal.

use std::path::Path;

use tympan_lab_engine::measurement::log_watch_result::{LogErrors, LogWatchResult};
use tympan_lab_engine::report::report_sheet::ReportSheet;
use tympan_lab_tools::log_watch::LogWatch;
use tympan_terminal::{CommandFault, error_chain_text};

use super::lab_fault;
use crate::args::WatchedLogArgs;

/// The logs of a command, watched from before its load begins.
#[derive(Debug, Default)]
pub(super) struct WatchedLogs(Vec<LogWatch>);

impl WatchedLogs {
    /// Starts to watch the logs.
    pub(super) fn start(logs: &WatchedLogArgs) -> Result<Self, CommandFault> {
        let begin = |path| LogWatch::start(path, logs.log_pattern.as_deref());
        let watches: Result<_, _> = logs.watch_log.iter().map(|path| begin(path)).collect();
        watches.map(Self).map_err(lab_fault)
    }

    /// Returns the log lines since the start.
    pub(super) fn log_results(&self) -> Vec<LogWatchResult> {
        self.0.iter().map(|watch| log_result(watch.log_path(), watch.read_errors())).collect()
    }

    /// Returns the log lines since the last call.
    pub(super) fn take_log_results(&mut self) -> Vec<LogWatchResult> {
        let take = |watch: &mut LogWatch| {
            let errors = watch.take_errors();
            log_result(watch.log_path(), errors)
        };
        self.0.iter_mut().map(take).collect()
    }

    /// Adds the log lines since the start to a report.
    pub(super) fn add_to_sheet(&self, sheet: &mut ReportSheet) {
        sheet.add_log_watches(&self.log_results());
    }
}

fn log_result(path: &Path, errors: tympan_lab_tools::Result<LogErrors>) -> LogWatchResult {
    let (errors, unread) = match errors {
        Ok(errors) => (errors, None),
        // A missing log is a fault: it does not show that no errors were logged.
        Err(error) => (LogErrors::default(), Some(error_chain_text(&error))),
    };
    LogWatchResult { log_file: path.display().to_string(), errors, read_failure: unread }
}
