//! Formats the figures of a report: dates, counts, durations and sizes.

use std::time::{Duration, SystemTime};

use super::goal::format_response_time;

/// Formats a time as date and time of day in UTC.
pub(super) fn format_date(at: SystemTime) -> String {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let at =
        i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()).unwrap_or_default()
}

/// Returns a number with its digits in groups of three.
pub(super) fn format_count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a duration: above two minutes in whole seconds, above two hours in whole minutes.
pub(super) fn format_duration(time: Duration) -> String {
    let seconds = (time.as_secs_f64() + 0.5) as u64;
    match seconds {
        0..120 => format_response_time(time),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Formats a number of bytes with its unit.
pub(super) fn format_bytes(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 {
        format!("{:.2} GB", count / 1e9)
    } else if count >= 1e6 {
        format!("{:.1} MB", count / 1e6)
    } else {
        format!("{:.1} kB", count / 1e3)
    }
}
