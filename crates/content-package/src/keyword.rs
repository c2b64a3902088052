//! Keywords of packages and of the command line for enumerated values.

/// Returns the keyword of a value.
pub(crate) fn keyword_of<T: PartialEq + Copy>(all: &[(T, &'static str)], value: T) -> &'static str {
    all.iter().find(|(candidate, _)| *candidate == value).map_or("", |(_, name)| name)
}

/// Finds a value by its keyword, ignoring case.
pub(crate) fn find_by_keyword<T: Copy>(all: &[(T, &str)], text: &str) -> Option<T> {
    all.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)).map(|(candidate, _)| *candidate)
}
