//! Times of files as the system calls take and return them.

use std::time::{Duration, SystemTime};

use rustix::fs::{Timespec, Timestamps};

/// Sets an exact time. The kernel's own "now" is up to 4 ms old, and a fetch sent in between would count as newer than
/// a flush that came after it.
pub(super) fn same_timestamps(time: SystemTime) -> Timestamps {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = Timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    };
    Timestamps { last_access: time, last_modification: time }
}

/// Returns the time that a system call returned as seconds and nanoseconds.
pub(super) fn to_system_time(seconds: i64, nanoseconds: impl TryInto<u32>) -> SystemTime {
    let nanoseconds = nanoseconds.try_into().unwrap_or(0);
    match u64::try_from(seconds) {
        Ok(seconds) => SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds),
        Err(_before_1970) => SystemTime::UNIX_EPOCH,
    }
}
