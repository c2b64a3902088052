//! The option `format`: texts with placeholders, dates and numbers by the patterns of Java.

mod date_pattern;
mod locale_name;
mod number_pattern;

pub(crate) use date_pattern::{DateFormat, format_date_pattern, parse_fixed_zone};
pub(crate) use number_pattern::{NumberPattern, format_number};

/// Returns true if a text has a placeholder, such as `{0}`.
pub(crate) fn has_placeholder(text: &str) -> bool {
    next_placeholder(text).is_some()
}

/// Finds the first placeholder: its bytes and its number.
pub(crate) fn next_placeholder(text: &str) -> Option<(std::ops::Range<usize>, usize)> {
    let mut from = 0;
    while let Some(open) = text.get(from..)?.find('{').map(|at| from + at) {
        let rest = text.get(open + 1..)?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 && rest.as_bytes().get(digits) == Some(&b'}') {
            let number = rest.get(..digits)?.parse().unwrap_or(usize::MAX);
            return Some((open..open + digits + 2, number));
        }
        from = open + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_placeholders() {
        assert_eq!(next_placeholder("a {b} {12} {3}"), Some((6..10, 12)));
        assert_eq!(next_placeholder("{{0}}"), Some((1..4, 0)));
        assert_eq!(next_placeholder("{} {x"), None);
    }
}
