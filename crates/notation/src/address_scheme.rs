//! The scheme of an address that an author wrote: links with a scheme that may run code are refused.

/// Schemes whose addresses run no code.
const HARMLESS_SCHEMES: [&str; 20] = [
    "http", "https", "ftp", "ftps", "mailto", "tel", "sms", "sip", "sips", "fax", "callto", "geo",
    "news", "nntp", "irc", "ircs", "xmpp", "webcal", "skype", "whatsapp",
];

/// Returns true if an address has no scheme, or a known harmless one.
#[must_use]
pub fn has_harmless_scheme(address: &str) -> bool {
    let address = address.trim_start();
    let end = address.find(['/', '?']).unwrap_or(address.len());
    let before = address.get(..end).unwrap_or_default();
    // A browser decodes character references in attributes before it looks for a scheme.
    let lower = before.to_ascii_lowercase();
    if ["&#", "&colon", "&tab", "&newline"].iter().any(|reference| lower.contains(reference)) {
        return false;
    }
    let before = before.split('#').next().unwrap_or_default();
    match before.split_once(':') {
        None => true,
        Some((scheme, _)) => {
            HARMLESS_SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_may_run_code_are_refused() {
        for harmless in
            ["https://a:1/b", "MAILTO:a@b", "tel:1", "/a:b", "a/b:c", "?a:b", "#a:b", "//a", ""]
        {
            assert!(has_harmless_scheme(harmless), "{harmless:?}");
        }
        for refused in [
            "javascript:a()",
            " JavaScript:a()",
            "java\nscript:a()",
            "\u{1}javascript:a()",
            "javascript&colon;a()",
            "javascript&#58;a()",
            "data:text/html,a",
            "vbscript:a",
            "unknown:a",
        ] {
            assert!(!has_harmless_scheme(refused), "{refused:?}");
        }
    }
}
