//! Languages: the stemmer of a document, and the detection of its language.
//!
//! A document's own `jcr:language` has precedence (on the node or its `jcr:content`), then the last name in its path
//! that is a language code, as in `/content/site/de-ch/page`. Both depend only on the document, so that following and
//! rebuilding give the same index.

use tantivy::tokenizer::Language;

/// The languages with a stemmer, by ISO 639-1 code.
pub(crate) const LANGUAGES: [(&str, Language); 18] = [
    ("ar", Language::Arabic),
    ("da", Language::Danish),
    ("de", Language::German),
    ("el", Language::Greek),
    ("en", Language::English),
    ("es", Language::Spanish),
    ("fi", Language::Finnish),
    ("fr", Language::French),
    ("hu", Language::Hungarian),
    ("it", Language::Italian),
    ("nl", Language::Dutch),
    ("no", Language::Norwegian),
    ("pt", Language::Portuguese),
    ("ro", Language::Romanian),
    ("ru", Language::Russian),
    ("sv", Language::Swedish),
    ("ta", Language::Tamil),
    ("tr", Language::Turkish),
];

/// The code for a document of no known language.
pub(crate) const UNKNOWN_LANGUAGE: &str = "und";

/// Returns the known language for a code such as `de`, `de_CH` or `de-ch`.
pub(crate) fn language_of_code(code: &str) -> Option<&'static str> {
    let (language, region) = match code.split_once(['_', '-']) {
        Some((language, region)) => (language, Some(region)),
        None => (code, None),
    };
    let is_region = |region: &str| {
        matches!(region.len(), 2 | 3) && region.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    if language.len() != 2 || !region.is_none_or(is_region) {
        return None;
    }
    // Norwegian is also written as `nb` and `nn`.
    let language = language.to_ascii_lowercase();
    let language = if language == "nb" || language == "nn" { "no" } else { &language };
    LANGUAGES.iter().find(|(code, _)| *code == language).map(|(code, _)| *code)
}

/// Returns the language of a path: the last name in it that is a language code.
pub(crate) fn language_of_path(path: &str) -> Option<&'static str> {
    path.split('/').rev().find_map(language_of_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_codes() {
        for (code, language) in [
            ("de", Some("de")),
            ("de_CH", Some("de")),
            ("de-ch", Some("de")),
            ("EN_us", Some("en")),
            ("nb", Some("no")),
            ("es-419", Some("es")),
            ("design", None),
            ("de-design", None),
            ("xx", None),
            ("", None),
        ] {
            assert_eq!(language_of_code(code), language, "{code}");
        }
    }

    #[test]
    fn reads_paths() {
        assert_eq!(language_of_path("/content/site/de/products"), Some("de"));
        assert_eq!(language_of_path("/content/de/site/fr-ca/it-services"), Some("fr"));
        assert_eq!(language_of_path("/content/site/products"), None);
    }
}
