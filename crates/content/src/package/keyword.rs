//! The words of packages and of the command line that stand for one of a few things.

/// Returns the word of one thing.
pub(super) fn keyword_of<T: PartialEq + Copy>(
    all: &[(T, &'static str)],
    wanted: T,
) -> &'static str {
    all.iter().find(|(one, _)| *one == wanted).map_or("", |(_, name)| name)
}

/// Finds what a word stands for, in capital letters or not.
pub(super) fn find_by_keyword<T: Copy>(all: &[(T, &str)], text: &str) -> Option<T> {
    all.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(one, _)| *one)
}
