//! The names of versions, numbered as in Jackrabbit.

use crate::Result;

/// The name of the first version.
const FIRST_VERSION_NAME: &str = "1.0";

/// Returns the name of the version after `base`, numbered as in Jackrabbit: `1.1` after `1.0`; if that is in use, as
/// after restoring an older one, `1.0.0`.
pub(super) fn next_version_name(
    base: &str,
    mut is_taken: impl FnMut(&str) -> Result<bool>,
) -> Result<String> {
    let mut name = FIRST_VERSION_NAME.to_owned();
    if let Some((stem, last)) = base.rsplit_once('.') {
        let last: u64 = last.parse().unwrap_or_default();
        name = format!("{stem}.{}", last + 1);
    }
    let mut branch = if base.is_empty() { name.clone() } else { base.to_owned() };
    while is_taken(&name)? {
        branch.push_str(".0");
        name.clone_from(&branch);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(base: &str, used_names: &[&str], expected: &str) {
        let name = next_version_name(base, |name| Ok(used_names.contains(&name))).unwrap();
        assert_eq!(name, expected, "{base} {used_names:?}");
    }

    #[test]
    fn versions_are_counted_as_jackrabbit_does() {
        check("", &[], "1.0");
        check("1.0", &["1.0"], "1.1");
        check("1.9", &["1.9"], "1.10");
        check("1.0", &["1.0", "1.1"], "1.0.0");
        check("1.0.0", &["1.0", "1.1", "1.0.0"], "1.0.1");
        check("1.0", &["1.0", "1.1", "1.0.0"], "1.0.0.0");
        check("", &["1.0"], "1.0.0");
    }
}
