//! The decision whether output has colors.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// Returns true if a stream shows colors: it is a terminal, and the environment has no `NO_COLOR` with a value
/// (<https://no-color.org>).
#[must_use]
pub fn is_color_shown(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !refuses_color(std::env::var_os("NO_COLOR").as_deref())
}

fn refuses_color(no_color: Option<&OsStr>) -> bool {
    no_color.is_some_and(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_counts_if_it_has_a_value() {
        assert!(!refuses_color(None));
        assert!(!refuses_color(Some(OsStr::new(""))));
        assert!(refuses_color(Some(OsStr::new("0"))));
        assert!(!is_color_shown(&std::fs::File::open("/dev/null").unwrap()));
    }
}
