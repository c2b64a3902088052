//! Dictionaries: translations of component texts.
//!
//! Input: nodes `sling:MessageEntry` below a folder with `jcr:language`, and files `i18n/de.json` with keys and texts,
//! both below `/apps` or `/libs`. Output: the text of a key in a language, or in the nearest available one.
//!
//! Not here: replacing placeholders in a text (`message_format`).

pub(crate) mod message_format;

use std::collections::BTreeMap;

use tympan_content::Node;

use crate::Result;

/// The default language of texts.
const DEFAULT_LANGUAGE: &str = "en";

/// Translations of component texts: by language, by key.
pub(crate) type TranslationMessages = BTreeMap<String, BTreeMap<String, String>>;

/// All dictionaries, by language in lower case with `-`.
#[derive(Debug, Default)]
pub(crate) struct TranslationDictionaries(TranslationMessages);

impl TranslationDictionaries {
    pub(crate) fn new(messages: TranslationMessages) -> Self {
        Self(messages)
    }

    /// Finds the text of a key and its language: the requested language, the one without its region, English, or the
    /// key itself.
    pub(crate) fn find<'a>(&'a self, language: &'a str, key: &'a str) -> (&'a str, &'a str) {
        let normalized_language = normalize_language(language);
        let without = normalized_language.split('-').next().unwrap_or_default().to_owned();
        for candidate in [normalized_language.as_str(), without.as_str(), DEFAULT_LANGUAGE] {
            let entry = self.0.get_key_value(candidate);
            if let Some((name, text)) =
                entry.and_then(|(name, texts)| Some((name, texts.get(key)?)))
            {
                return (text, name);
            }
        }
        (key, if language.is_empty() { DEFAULT_LANGUAGE } else { language })
    }
}

/// Normalizes a language to the form of the keys: `de_CH` becomes `de-ch`.
fn normalize_language(language: &str) -> String {
    language.trim().replace('_', "-").to_ascii_lowercase()
}

/// Adds the texts of a file; `/apps` takes precedence over `/libs`, which is read later.
pub(crate) fn add_dictionary_file(messages: &mut TranslationMessages, path: &str, text: &str) {
    let language = path.rsplit('/').next().and_then(|name| name.strip_suffix(".json"));
    let texts: std::result::Result<BTreeMap<String, String>, _> = serde_json::from_str(text);
    match (language, texts) {
        (Some(language), Ok(texts)) => {
            let language_messages = messages.entry(normalize_language(language)).or_default();
            for (key, text) in texts {
                insert_message(language_messages, path, key, text);
            }
        }
        (_, Err(error)) => {
            tracing::warn!(path, reason = %error, "a dictionary is not a JSON object of texts");
        }
        (None, Ok(_)) => {}
    }
}

/// Adds the text of a node. Its language is that of the nearest ancestor folder that has one.
///
/// # Errors
/// If content cannot be read.
pub(crate) fn add_dictionary_node(messages: &mut TranslationMessages, node: &Node) -> Result<()> {
    let Some(text) = node.text("sling:message") else { return Ok(()) };
    let key = node.text("sling:key").unwrap_or_else(|| node.name().to_owned());
    let mut above = node.parent()?;
    while let Some(folder) = above {
        if let Some(language) = folder.text("jcr:language") {
            let language_messages = messages.entry(normalize_language(&language)).or_default();
            insert_message(language_messages, node.path().as_str(), key, text);
            return Ok(());
        }
        above = folder.parent()?;
    }
    Ok(())
}

fn insert_message(messages: &mut BTreeMap<String, String>, path: &str, key: String, text: String) {
    if path.starts_with("/apps/") {
        messages.insert(key, text);
    } else {
        messages.entry(key).or_insert(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_language() {
        let mut messages = BTreeMap::new();
        add_dictionary_file(
            &mut messages,
            "/apps/a/i18n/en.json",
            "{\"a\": \"a en\", \"b\": \"b en\"}",
        );
        add_dictionary_file(&mut messages, "/apps/a/i18n/de.json", "{\"a\": \"a de\"}");
        add_dictionary_file(&mut messages, "/apps/a/i18n/de_CH.json", "{\"c\": \"c ch\"}");
        add_dictionary_file(
            &mut messages,
            "/libs/a/i18n/de.json",
            "{\"a\": \"never\", \"d\": \"d libs\"}",
        );
        add_dictionary_file(&mut messages, "/apps/a/i18n/fr.json", "[]");
        let all = TranslationDictionaries::new(messages);
        for (language, key, expected) in [
            ("de", "a", ("a de", "de")),
            ("de_CH", "a", ("a de", "de")),
            ("de-ch", "c", ("c ch", "de-ch")),
            ("de", "b", ("b en", "en")),
            ("de", "d", ("d libs", "de")),
            ("", "a", ("a en", "en")),
            ("fr", "unknown", ("unknown", "fr")),
        ] {
            assert_eq!(all.find(language, key), expected, "{language} {key}");
        }
    }
}
