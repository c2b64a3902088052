//! The selectors and suffixes that the scripts of a component read from the URL, as the component names them.

/// What a component's scripts read from the URL beyond the selectors that their file names hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UrlParts {
    /// Patterns of selectors, from `requestSelectors`: `large`, `*`, or with an extension `*.pdf`.
    pub selectors: Vec<String>,
    /// Patterns of suffixes, from `requestSuffixes`: `/thanks`, `/*`.
    pub suffixes: Vec<String>,
}

impl UrlParts {
    /// Tells whether no selector and no suffix is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty() && self.suffixes.is_empty()
    }

    /// Tells whether a selector is named for URLs with this extension.
    #[must_use]
    pub fn names_selector(&self, selector: &str, extension: Option<&str>) -> bool {
        self.selectors.iter().any(|pattern| match pattern.split_once('.') {
            Some((pattern, only)) => Some(only) == extension && fits(pattern, selector),
            None => fits(pattern, selector),
        })
    }

    /// Tells whether a suffix is named.
    #[must_use]
    pub fn names_suffix(&self, suffix: &str) -> bool {
        self.suffixes.iter().any(|pattern| fits(pattern, suffix))
    }
}

/// Tells whether a text fits a pattern: the same, or beginning with what stands before a final `*`.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::UrlParts;

    #[test]
    fn patterns_name_selectors_and_suffixes() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let parts = UrlParts {
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
            assert_eq!(parts.names_selector(selector, extension), expected, "{selector}");
        }
        for (suffix, expected) in
            [("/thanks", true), ("/thanks/x", false), ("/find/a/b", true), ("/other", false)]
        {
            assert_eq!(parts.names_suffix(suffix), expected, "{suffix}");
        }
        assert!(UrlParts::default().is_empty() && !parts.is_empty());
    }
}
