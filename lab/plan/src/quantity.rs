//! Sizes and durations as text, always with a unit.

use std::time::Duration;

/// Parses `64MiB`, `1.5 GB`, `300 kB`, `12B`; a number without a unit is rejected.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at_checked(end)?;
    let unit = match unit.trim_start() {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return None,
    };
    // Reject sizes that the integer type cannot hold.
    number.parse().ok().map(|number: f64| (number * unit) as u64)
}

/// Parses `22m21s`, `1h5m`, `150ms`, `2s`, `1.5h`; a number without a unit is rejected.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest.get(..end)?.parse().ok()?;
        rest = rest.get(end..)?;
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match rest.get(..end)?.trim() {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        seconds += number * unit;
        rest = rest.get(end..)?;
    }
    Duration::try_from_secs_f64(seconds).ok()
}
