//! The throttling of a save for the visitors of the instance that uses a home.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{BackupProgress, BaselineSource, ThrottledSave};

use crate::error::{Error, Result};

/// Starts to throttle a save for the visitors of the instance that uses a home.
///
/// # Errors
/// If the home has no log of requests.
pub fn start_save_throttle(
    home: &Path,
    baseline_and_deadline: (BaselineSource, Option<Duration>),
    progress: &Arc<BackupProgress>,
) -> Result<ThrottledSave> {
    let log = home.join("logs").join("request.log");
    ThrottledSave::start(&log, baseline_and_deadline, progress).map_err(|error| {
        Error::Refused(format!(
            "cannot read `{}`: {error}; name the home of an instance that serves requests",
            log.display()
        ))
    })
}
