//! Times in HTTP headers, such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first second after the year 9999, the last year of the format.
const END_OF_FORMAT: Duration = Duration::from_secs(253_402_300_800);

/// Formats a time; returns `None` before 1970 and after 9999. Stored times may be any.
#[must_use]
pub fn format_http_date(time: SystemTime) -> Option<String> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    (since < END_OF_FORMAT).then(|| httpdate::fmt_http_date(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_format_have_no_date() {
        let date = |since: Duration| format_http_date(UNIX_EPOCH + since);
        let millisecond = Duration::from_millis(1);
        assert_eq!(format_http_date(UNIX_EPOCH - millisecond), None);
        assert_eq!(date(Duration::ZERO).as_deref(), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
        let last = date(END_OF_FORMAT - millisecond);
        assert_eq!(last.as_deref(), Some("Fri, 31 Dec 9999 23:59:59 GMT"));
        assert_eq!(date(END_OF_FORMAT), None);
        assert_eq!(date(Duration::from_secs(i64::MAX as u64)), None);
    }
}
