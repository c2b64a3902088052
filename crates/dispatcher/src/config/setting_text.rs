//! The texts of settings: levels, statuses, rates, durations, headers.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tympan_notation::{ByteSize, parse_duration};
use tympan_web::body_limit::MinReadRate;
use tympan_web::cache_path::EncodedSlashes;

use crate::Error;
use crate::observe::log::LogLevel;

/// The default time after which the rate of a body is checked.
const BODY_RATE_GRACE: Duration = Duration::from_secs(60);

/// The default rate, as in httpd's `RequestReadTimeout`.
const DEFAULT_BODY_RATE: &str = "500 B/s";

/// Parses a level's name, or its number in httpd's configuration.
pub(crate) fn parse_log_level(text: &str) -> Result<LogLevel, Error> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "error" | "0" => LogLevel::Error,
        "warn" | "1" => LogLevel::Warn,
        "info" | "2" => LogLevel::Info,
        "debug" | "3" => LogLevel::Debug,
        "trace" | "4" => LogLevel::Trace,
        _ => {
            let reason = format!("`{text}` is not one of error, warn, info, debug and trace");
            return Err(settings_error("log_level", reason));
        }
    })
}

pub(crate) fn settings_error(key: &str, reason: impl Into<String>) -> Error {
    Error::Setting { key: key.to_owned(), reason: reason.into() }
}

/// Parses a value of httpd's `AllowEncodedSlashes`, in lower case.
pub(crate) fn parse_encoded_slashes(text: Option<&str>) -> Result<EncodedSlashes, Error> {
    match text {
        None | Some("off") => Ok(EncodedSlashes::Refuse),
        Some("on") => Ok(EncodedSlashes::Decode),
        Some("no_decode") => Ok(EncodedSlashes::Keep),
        Some(text) => {
            let reason = format!("`{text}` is not one of `off`, `on` and `no_decode`");
            Err(settings_error("encoded_slashes", reason))
        }
    }
}

/// Parses `0`, `1` or a list such as `400-404,501`.
pub(crate) fn parse_statuses(text: &str) -> Result<Vec<RangeInclusive<u16>>, Error> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "0" | "off" => return Ok(Vec::new()),
        "1" | "on" => return Ok(vec![400..=599]),
        _ => {}
    }
    let status = |text: &str| text.trim().parse::<u16>().ok();
    text.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (status(first), status(last)) {
                (Some(first), Some(last)) if first >= 400 && first <= last && last < 600 => {
                    Ok(first..=last)
                }
                _ => Err(settings_error(
                    "pass_error",
                    format!("`{part}` is not a status from 400 to 599; write \"400-404,501\""),
                )),
            }
        })
        .collect()
}

pub(crate) fn parse_error_documents(
    documents: &BTreeMap<String, String>,
) -> Result<BTreeMap<u16, String>, Error> {
    let read = |(status, document): (&String, &String)| match status.parse::<u16>() {
        Ok(status) if (400..600).contains(&status) => Ok((status, document.clone())),
        _ => Err(settings_error(
            "error_documents",
            format!("`{status}` is not a status from 400 to 599"),
        )),
    };
    documents.iter().map(read).collect()
}

pub(crate) fn parse_headers(
    headers: &BTreeMap<String, String>,
) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
    let read = |(name, value): (&String, &String)| {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        match header.zip(HeaderValue::from_str(value).ok()) {
            Some(header) => Ok(header),
            None => Err(settings_error(
                "headers",
                format!("`{name}: {value}` cannot be sent as a header"),
            )),
        }
    };
    headers.iter().map(read).collect()
}

/// Parses `"500 B/s after 60s"`, where the time is optional; `None` for `"0"`.
pub(crate) fn parse_min_rate(key: &str, text: Option<&str>) -> Result<Option<MinReadRate>, Error> {
    let text = text.unwrap_or(DEFAULT_BODY_RATE).trim();
    let (rate, grace) = match text.split_once(" after ") {
        Some((rate, grace)) => (rate, parse_duration(grace).ok()),
        None => (text, Some(BODY_RATE_GRACE)),
    };
    let Some((rate, grace)) = parse_byte_rate(rate).zip(grace) else {
        let reason =
            format!("`{text}` is not a rate; write \"4 KiB/s\", \"4 KiB/s after 30s\" or \"0\"");
        return Err(settings_error(key, reason));
    };
    Ok(NonZeroU64::new(rate)
        .map(|bytes_per_second| MinReadRate { grace_period: grace, bytes_per_second }))
}

/// Parses `4 KiB/s` as bytes per second.
fn parse_byte_rate(text: &str) -> Option<u64> {
    let text = text.trim();
    let size = text.strip_suffix("/s").unwrap_or(text);
    size.parse().ok().map(ByteSize::as_bytes)
}

#[cfg(test)]
mod tests {
    use super::{parse_min_rate, parse_statuses};
    use std::time::Duration;

    #[test]
    fn statuses_are_ranges() {
        let check = |text: &str, inside: &[u16], outside: &[u16]| {
            let ranges = parse_statuses(text).unwrap();
            let holds = |status: &u16| ranges.iter().any(|range| range.contains(status));
            assert!(inside.iter().all(holds), "{text}");
            assert!(!outside.iter().any(holds), "{text}");
        };
        check("0", &[], &[404, 500]);
        check("1", &[400, 404, 599], &[200, 302]);
        check("400-411,413-417", &[400, 411, 413, 417], &[412, 418, 500]);
        check("404", &[404], &[403, 405]);
        for broken in ["200", "404-400", "x", "400-600", "400-"] {
            assert!(parse_statuses(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn rates_need_a_unit() {
        let read = |text| {
            parse_min_rate("k", text).map(|pace| pace.map(|pace| pace.bytes_per_second.get()))
        };
        for (text, expected) in [
            (None, Some(500)),
            (Some("4 KiB/s"), Some(4096)),
            (Some("1MiB"), Some(1024 * 1024)),
            (Some("1.5 kB/s after 1h30m"), Some(1500)),
            (Some(" 20 B/s "), Some(20)),
            (Some("0"), None),
            (Some("0 B/s"), None),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text:?}");
        }
        let pace = parse_min_rate("k", Some("1 B/s after 300ms")).unwrap().unwrap();
        assert_eq!(pace.grace_period, Duration::from_millis(300));
        for broken in [
            "500",
            "",
            "-1 B",
            "1 G/s",
            "x",
            "99999999999999999999 B",
            "20000000000000 MiB",
            "1 B/s after",
            "1 B/s after 3",
        ] {
            assert!(read(Some(broken)).is_err(), "{broken}");
        }
    }
}
