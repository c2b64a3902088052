//! The spelling of points in time in responses.

use std::time::SystemTime;

use tympan_content::JcrDate;

/// Returns a point in time as text, such as `2026-11-21T12:00:00.000Z`.
pub(crate) fn to_iso_time(time: SystemTime) -> String {
    JcrDate::from_system_time(time).to_string()
}
