//! The selectors and suffixes that a component's scripts read from the URL, as the component declares them.

/// The URL parts that a component's scripts read beyond the selectors in their file names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeclaredUrlParts {
    /// Patterns of selectors, from `requestSelectors`: `large`, `*`, or with an extension `*.pdf`.
    pub selectors: Vec<String>,
    /// Patterns of suffixes, from `requestSuffixes`: `/thanks`, `/*`.
    pub suffixes: Vec<String>,
}

impl DeclaredUrlParts {
    /// Returns true if no selector and no suffix is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty() && self.suffixes.is_empty()
    }

    /// Returns true if a selector is declared for URLs with this extension.
    #[must_use]
    pub fn allows_selector(&self, selector: &str, extension: Option<&str>) -> bool {
        self.selectors.iter().any(|pattern| match pattern.split_once('.') {
            Some((pattern, only)) => Some(only) == extension && matches_pattern(pattern, selector),
            None => matches_pattern(pattern, selector),
        })
    }

    /// Returns true if a suffix is declared.
    #[must_use]
    pub fn allows_suffix(&self, suffix: &str) -> bool {
        self.suffixes.iter().any(|pattern| matches_pattern(pattern, suffix))
    }
}

/// Returns true if a text equals a pattern, or begins with the part before a final `*`.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::DeclaredUrlParts;

    #[test]
    fn patterns_name_selectors_and_suffixes() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let parts = DeclaredUrlParts {
            selectors: list(&["large", "tag-*", "*.pdf"]),
            suffixes: list(&["/thanks", "/find/*"]),
        };
        for (selector, extension, expected) in [
            ("large", Some("html"), true),
            ("larger", Some("html"), false),
            ("tag-food", None, true),
            ("2214", Some("html"), false),
            ("2214", Some("pdf"), true),
        ] {
            assert_eq!(parts.allows_selector(selector, extension), expected, "{selector}");
        }
        for (suffix, expected) in
            [("/thanks", true), ("/thanks/x", false), ("/find/a/b", true), ("/other", false)]
        {
            assert_eq!(parts.allows_suffix(suffix), expected, "{suffix}");
        }
        assert!(DeclaredUrlParts::default().is_empty() && !parts.is_empty());
    }
}
