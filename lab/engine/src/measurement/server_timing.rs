//! Parses the timing that a server reports in `Server-Timing` headers.

use std::time::Duration;

/// Maximum length of a phase name.
const MAX_PHASE_NAME_LEN: usize = 64;

/// Calls `each` with the phases of a header value that have a duration.
pub(crate) fn for_each_phase(value: &str, each: &mut dyn FnMut(&str, Duration)) {
    for metric in split_unquoted(value, ',') {
        let mut parts = split_unquoted(metric, ';');
        let name = parts.next().unwrap_or_default().trim();
        if name.is_empty() || name.len() > MAX_PHASE_NAME_LEN {
            continue;
        }
        let duration = parts.find_map(|part| {
            let (key, value) = part.split_once('=')?;
            if !key.trim().eq_ignore_ascii_case("dur") {
                return None;
            }
            let ms: f64 = value.trim().trim_matches('"').parse().ok()?;
            Duration::try_from_secs_f64(ms / 1000.0).ok()
        });
        if let Some(duration) = duration {
            each(name, duration);
        }
    }
}

/// Splits at a separator outside of quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let mut was_escape = false;
    text.split(move |c| {
        let escaped = std::mem::take(&mut was_escape);
        match c {
            '"' if !escaped => is_quoted = !is_quoted,
            '\\' if is_quoted && !escaped => was_escape = true,
            _ => {}
        }
        c == separator && !is_quoted
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn phases(value: &str) -> Vec<(String, u128)> {
        let mut out = Vec::new();
        for_each_phase(value, &mut |name, time| out.push((name.to_owned(), time.as_micros())));
        out
    }

    #[test]
    fn phases_are_read_with_their_durations() {
        let read =
            phases("render;dur=12.5, cache;desc=\"a, b;dur=9\";dur=0.25,miss, db ; DUR = \"3\"");
        let expected = [("render", 12_500), ("cache", 250), ("db", 3_000)];
        assert_eq!(read, expected.map(|(name, us)| (name.to_owned(), us)));
        assert_eq!(phases("a;dur=-1, b;dur=NaN, ;dur=2, c;dur=x"), []);
    }

    proptest! {
        #[test]
        fn any_value_is_read(value in "\\PC{0,60}") {
            phases(&value);
        }
    }
}
