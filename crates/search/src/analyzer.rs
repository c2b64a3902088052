//! Analysis of text: splitting into exact words, and into stems by language.
//!
//! Words are runs of letters and digits in the normalized form in which content compares them. Scripts without spaces
//! (Chinese, Japanese, Thai, …) and emoji give one word for each character; a query for several of them is a phrase, so
//! that every substring is found. Stems are words stemmed by the language's Snowball rules, without accents in any
//! script; in documents of no known language, only the accents are removed. A stem that equals its word is not stored
//! twice: a search for a stem also searches the words.
//!
//! Every word of the content passes through this module twice, so cheap checks come first: ASCII text is not decoded,
//! and a word is stemmed once for all its occurrences.

use std::collections::HashMap;

use tantivy::tokenizer::{
    AsciiFoldingFilter, Language, RawTokenizer, Stemmer, TextAnalyzer, Token, TokenStream,
    Tokenizer, TokenizerManager,
};

use tympan_content_query::{is_single_character_word, is_word_character, normalize_word};
use unicode_normalization::UnicodeNormalization;

use crate::language::{LANGUAGES, UNKNOWN_LANGUAGE};

/// The analyzer of exact words.
pub(crate) const WORD_ANALYZER: &str = "words";
/// The analyzer that takes a whole value as one token.
pub(crate) const RAW_ANALYZER: &str = "raw";
/// The minimum length, in bytes, of text that is not treated as a word, such as encoded data.
const MAX_WORD_BYTES: usize = 128;
/// The number of words with cached stems, for each language and thread.
const STEM_CACHE_SIZE: usize = 32_768;

/// Returns the name of the analyzer and field for stems of a language that differ from their words.
pub(crate) fn changed_stems_name(language: &str) -> String {
    format!("stems_{language}")
}

/// Returns the name of the analyzer for the stems of all words of a language.
pub(crate) fn all_stems_name(language: &str) -> String {
    format!("every_stem_{language}")
}

/// Returns all analyzers by name.
pub(crate) fn build_analyzers() -> TokenizerManager {
    let manager = TokenizerManager::new();
    manager.register(RAW_ANALYZER, TextAnalyzer::from(RawTokenizer::default()));
    manager.register(WORD_ANALYZER, build_word_analyzer());
    // The library requests this analyzer if a JSON field is a column only.
    manager.register("default", build_word_analyzer());
    register_language(&manager, UNKNOWN_LANGUAGE, None);
    for (code, language) in LANGUAGES {
        register_language(&manager, code, Some(language));
    }
    manager
}

fn register_language(manager: &TokenizerManager, code: &str, language: Option<Language>) {
    manager.register(&all_stems_name(code), StemTokenizer::new(language, false));
    manager.register(&changed_stems_name(code), StemTokenizer::new(language, true));
}

/// Returns the analyzer of exact words.
pub(crate) fn build_word_analyzer() -> TextAnalyzer {
    TextAnalyzer::from(WordTokenizer::default())
}

/// Splits a text into words with their positions.
pub(crate) fn tokenize(analyzer: &mut TextAnalyzer, text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    analyzer.token_stream(text).process(&mut |token| tokens.push(token.clone()));
    tokens
}

/// The tokenizer of all text analyzers.
#[derive(Clone, Default)]
struct WordTokenizer {
    token: Token,
}

struct WordTokenStream<'a> {
    text: &'a str,
    offset: usize,
    token: &'a mut Token,
}

impl Tokenizer for WordTokenizer {
    type TokenStream<'a> = WordTokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordTokenStream<'a> {
        self.token.reset();
        WordTokenStream { text, offset: 0, token: &mut self.token }
    }
}

impl WordTokenStream<'_> {
    /// Returns the end of the run of ASCII letters and digits that begins at a position.
    fn end_of_ascii(&self, from: usize) -> usize {
        let rest = self.text.as_bytes().get(from..).unwrap_or_default();
        from + rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len())
    }

    fn character_at(&self, at: usize) -> Option<char> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            return Some(char::from(byte));
        }
        self.text.get(at..)?.chars().next()
    }

    /// Returns the end of the word whose characters up to `end` are known.
    fn end_of_word(&self, mut end: usize) -> usize {
        while let Some(character) = self.character_at(end) {
            if character.is_ascii_alphanumeric() {
                end = self.end_of_ascii(end);
                continue;
            }
            if character.is_ascii()
                || is_single_character_word(character)
                || !is_word_character(character)
            {
                break;
            }
            end += character.len_utf8();
        }
        end
    }

    /// Sets the current token to the text from `start` to `end`.
    fn set_token(&mut self, start: usize, end: usize) {
        let written = self.text.get(start..end).unwrap_or_default();
        self.token.text.clear();
        if written.is_ascii() {
            self.token.text.push_str(written);
            self.token.text.make_ascii_lowercase();
        } else {
            self.token.text.push_str(&normalize_word(written));
        }
    }
}

impl TokenStream for WordTokenStream<'_> {
    fn advance(&mut self) -> bool {
        while let Some(character) = self.character_at(self.offset) {
            let start = self.offset;
            if !(character.is_ascii_alphanumeric()
                || (!character.is_ascii() && is_word_character(character)))
            {
                self.offset += character.len_utf8();
                continue;
            }
            let end = if is_single_character_word(character) {
                start + character.len_utf8()
            } else {
                self.end_of_word(start)
            };
            self.set_token(start, end);
            self.offset = end;
            self.token.position = self.token.position.wrapping_add(1);
            if end - start >= MAX_WORD_BYTES {
                continue;
            }
            self.token.offset_from = start;
            self.token.offset_to = end;
            return true;
        }
        false
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

/// A filter that replaces words by their stems: either all of them, or only those that differ from their words, as in
/// the field of stems beside the field of words.
struct StemTokenizer {
    words: WordTokenizer,
    stemmer: CachingStemmer,
    is_changed_only: bool,
}

/// A stemmer with a cache of words.
struct CachingStemmer {
    /// The language; `None` for documents in no known language.
    language: Option<Language>,
    folding: TextAnalyzer,
    /// The stems of words; `None` if the stem is the word itself.
    stem_cache: HashMap<String, Option<String>>,
}

struct StemTokenStream<'a> {
    words: WordTokenStream<'a>,
    stemmer: &'a mut CachingStemmer,
    is_changed_only: bool,
}

impl Clone for StemTokenizer {
    /// The clone has an empty cache, because the cache belongs to one thread.
    fn clone(&self) -> Self {
        Self {
            words: WordTokenizer::default(),
            stemmer: CachingStemmer::new(self.stemmer.language),
            ..*self
        }
    }
}

impl StemTokenizer {
    fn new(language: Option<Language>, is_changed_only: bool) -> Self {
        Self {
            words: WordTokenizer::default(),
            stemmer: CachingStemmer::new(language),
            is_changed_only,
        }
    }
}

impl CachingStemmer {
    fn new(language: Option<Language>) -> Self {
        let whole = || TextAnalyzer::builder(RawTokenizer::default());
        let folding = match language {
            Some(language) => {
                whole().filter(Stemmer::new(language)).filter(AsciiFoldingFilter).build()
            }
            None => whole().filter(AsciiFoldingFilter).build(),
        };
        Self { language, folding, stem_cache: HashMap::new() }
    }

    /// Returns the stem of a word in lower case; `None` if the stem is the word itself.
    fn stem_of(&mut self, word: &str) -> Option<&str> {
        // ASCII text has no accents.
        if self.language.is_none() && word.is_ascii() {
            return None;
        }
        if !self.stem_cache.contains_key(word) {
            if self.stem_cache.len() >= STEM_CACHE_SIZE {
                self.stem_cache.clear();
            }
            let mut stem = None;
            self.folding.token_stream(word).process(&mut |token| {
                let plain = strip_accents(&token.text);
                stem = (plain != word).then_some(plain);
            });
            self.stem_cache.insert(word.to_owned(), stem);
        }
        self.stem_cache.get(word)?.as_deref()
    }
}

/// Removes the accents from a word: `ё` becomes `е`, and `ή` becomes `η`. `й` is a separate letter, not `и` with an
/// accent.
fn strip_accents(word: &str) -> String {
    if word.is_ascii() {
        return word.to_owned();
    }
    let mut base = None;
    let plain = word.nfd().filter(|&letter| match letter {
        '\u{306}' => base == Some('и'),
        '\u{300}'..='\u{36f}' => false,
        _ => {
            base = Some(letter);
            true
        }
    });
    plain.nfc().collect()
}

impl Tokenizer for StemTokenizer {
    type TokenStream<'a> = StemTokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> StemTokenStream<'a> {
        let words = self.words.token_stream(text);
        StemTokenStream { words, stemmer: &mut self.stemmer, is_changed_only: self.is_changed_only }
    }
}

impl TokenStream for StemTokenStream<'_> {
    fn advance(&mut self) -> bool {
        while self.words.advance() {
            if let Some(stem) = self.stemmer.stem_of(&self.words.token.text) {
                self.words.token.text.clear();
                self.words.token.text.push_str(stem);
                return true;
            }
            if !self.is_changed_only {
                return true;
            }
        }
        false
    }

    fn token(&self) -> &Token {
        self.words.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.words.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(analyzer: &str, text: &str, expected: &str) {
        let mut analyzer = build_analyzers().get(analyzer).unwrap();
        let tokens = tokenize(&mut analyzer, text);
        let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(words.join(" "), expected, "{text}");
    }

    #[test]
    fn splits_words() {
        check(WORD_ANALYZER, "Hello, World-wide Web 2.0", "hello world wide web 2 0");
        check(WORD_ANALYZER, "Grüße aus Zürich", "grüße aus zürich");
        check(WORD_ANALYZER, "東京 Tokyo東京tower", "東 京 tokyo 東 京 tower");
        check(WORD_ANALYZER, "Well done 👍🏽! 👩‍👧", "well done 👍 👩 👧");
        check(WORD_ANALYZER, "", "");
        check(WORD_ANALYZER, "--- ...", "");
    }

    #[test]
    fn stems_by_language() {
        check("every_stem_en", "running runs runner", "run run runner");
        check("every_stem_de", "Häuser Haus", "haus haus");
        check("every_stem_fr", "continuellement", "continuel");
        check("every_stem_und", "Café Bar", "cafe bar");
        check("stems_en", "Running run runner", "run");
        check("stems_und", "Café Bar Zürich", "cafe zurich");
    }

    #[test]
    fn words_are_the_same_in_any_case_and_however_they_are_typed() {
        check(WORD_ANALYZER, "İstanbul I\u{307}STANBUL istanbul", "istanbul istanbul istanbul");
        check(WORD_ANALYZER, "ΟΔΟΣ οδος", "οδοσ οδοσ");
        check(WORD_ANALYZER, "Zu\u{308}rich ZÜRICH", "zürich zürich");
    }

    #[test]
    fn stems_have_no_accents_in_any_script() {
        check("every_stem_und", "Αθήνα ΑΘΗΝΑ αθηνα", "αθηνα αθηνα αθηνα");
        check("every_stem_und", "Ёлка елка йод", "елка елка йод");
        check("every_stem_und", "Việt Nam, Łódź", "viet nam lodz");
        for (language, accented, plain) in [("el", "Αθήνα", "αθηνα"), ("ru", "ёлка", "елка")]
        {
            let mut stems = build_analyzers().get(&all_stems_name(language)).unwrap();
            let [accented, plain] =
                [accented, plain].map(|word| tokenize(&mut stems, word)[0].text.clone());
            assert_eq!(accented, plain, "{language}");
        }
    }

    #[test]
    fn passes_over_what_is_too_long() {
        let long = "x".repeat(MAX_WORD_BYTES);
        let tokens = tokenize(&mut build_word_analyzer(), &format!("a {long} b"));
        let words: Vec<_> = tokens.iter().map(|token| (&*token.text, token.position)).collect();
        assert_eq!(words, [("a", 0), ("b", 2)]);
    }

    /// Splits a text character by character, as content does.
    fn plainly(text: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for character in text.chars() {
            if !is_word_character(character) || is_single_character_word(character) {
                words.push(String::new());
            }
            if is_word_character(character)
                && let Some(word) = words.last_mut()
            {
                word.push(character);
            }
            if is_word_character(character) && is_single_character_word(character) {
                words.push(String::new());
            }
        }
        words.retain(|word| !word.is_empty() && word.len() < MAX_WORD_BYTES);
        words.iter().map(|word| normalize_word(word)).collect()
    }

    proptest::proptest! {
        #[test]
        fn splits_as_content_does(text in "[a-zA-Z0-9 ,<ÄéßΣİ東กन्\u{301}\u{e31}\u{10400}]{0,60}|.{0,40}") {
            let tokens = tokenize(&mut build_word_analyzer(), &text);
            let found: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
            proptest::prop_assert_eq!(found, plainly(&text));
            for token in tokens {
                let word = text.get(token.offset_from..token.offset_to).unwrap();
                proptest::prop_assert_eq!(normalize_word(word), token.text);
            }
        }
    }

    #[test]
    fn tells_places() {
        let tokens = tokenize(&mut build_word_analyzer(), "a <bé>");
        assert_eq!((tokens[1].offset_from, tokens[1].offset_to, tokens[1].position), (3, 6, 1));
    }
}
