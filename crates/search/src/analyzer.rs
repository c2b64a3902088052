//! How text becomes words: for exact words, and for stems by language.
//!
//! Words are runs of letters and digits in lower case. Scripts that write no spaces (Chinese, Japanese, Thai, …) give
//! one word for each character; a query for several of them is a phrase, so that every substring is found. Stems are
//! lower-cased, stemmed by the language's Snowball rules, and written without accents; of documents in no known
//! language only the accents are taken off. A stem that is the word itself is not kept twice: whoever looks for a stem
//! looks for it among the words too.

use std::str::CharIndices;

use tantivy::tokenizer::{
    AsciiFoldingFilter, BoxTokenStream, LowerCaser, RawTokenizer, RemoveLongFilter, Stemmer,
    TextAnalyzer, TextAnalyzerBuilder, Token, TokenStream, Tokenizer, TokenizerManager,
};

use tympan_content::query::{is_alone, is_word};

use crate::language::{LANGUAGES, UNKNOWN};

/// The analyzer of exact words.
pub(crate) const WORDS: &str = "words";
/// The analyzer that takes a value whole.
pub(crate) const RAW: &str = "raw";
/// Longer words are no words: encoded data and the like.
const MAX_WORD_BYTES: usize = 128;

/// Returns the name of the analyzer, and of the field, that has what stemming changes in a language.
pub(crate) fn stems_of(language: &str) -> String {
    format!("stems_{language}")
}

/// Returns the name of the analyzer that gives the stem of every word of a language.
pub(crate) fn every_stem_of(language: &str) -> String {
    format!("every_stem_{language}")
}

/// Returns all analyzers by name.
pub(crate) fn analyzers() -> TokenizerManager {
    let manager = TokenizerManager::new();
    manager.register(RAW, TextAnalyzer::from(RawTokenizer::default()));
    manager.register(WORDS, words());
    // The library asks for it where a JSON field is a column only.
    manager.register("default", words());
    let folded = lowered().filter(AsciiFoldingFilter);
    register(&manager, UNKNOWN, folded.build());
    for (code, language) in LANGUAGES {
        let stems = lowered().filter(Stemmer::new(language)).filter(AsciiFoldingFilter);
        register(&manager, code, stems.build());
    }
    manager
}

fn register(manager: &TokenizerManager, code: &str, stems: TextAnalyzer) {
    manager.register(&every_stem_of(code), stems.clone());
    manager.register(&stems_of(code), Changed { words: words(), stems });
}

/// Begins an analyzer of words in lower case.
fn lowered() -> TextAnalyzerBuilder<impl Tokenizer> {
    TextAnalyzer::builder(Words::default())
        .filter(RemoveLongFilter::limit(MAX_WORD_BYTES))
        .filter(LowerCaser)
}

/// Returns the analyzer of exact words.
pub(crate) fn words() -> TextAnalyzer {
    lowered().build()
}

/// Splits a text into words with their places.
pub(crate) fn split(analyzer: &mut TextAnalyzer, text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    analyzer.token_stream(text).process(&mut |token| tokens.push(token.clone()));
    tokens
}

/// The stems that are not the words themselves: what the field of stems holds beside the field of words.
#[derive(Clone)]
struct Changed {
    words: TextAnalyzer,
    stems: TextAnalyzer,
}

struct ChangedStream<'a> {
    words: BoxTokenStream<'a>,
    stems: BoxTokenStream<'a>,
}

impl Tokenizer for Changed {
    type TokenStream<'a> = ChangedStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> ChangedStream<'a> {
        let Self { words, stems } = self;
        ChangedStream { words: words.token_stream(text), stems: stems.token_stream(text) }
    }
}

impl TokenStream for ChangedStream<'_> {
    fn advance(&mut self) -> bool {
        // Both streams cut the same text the same way, so they advance together.
        while self.words.advance() && self.stems.advance() {
            if self.words.token().text != self.stems.token().text {
                return true;
            }
        }
        false
    }

    fn token(&self) -> &Token {
        self.stems.token()
    }

    fn token_mut(&mut self) -> &mut Token {
        self.stems.token_mut()
    }
}

/// The tokenizer under all analyzers of text.
#[derive(Clone, Default)]
struct Words {
    token: Token,
}

struct WordStream<'a> {
    text: &'a str,
    characters: CharIndices<'a>,
    token: &'a mut Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        self.token.reset();
        WordStream { text, characters: text.char_indices(), token: &mut self.token }
    }
}

impl WordStream<'_> {
    /// Returns where a word ends that began with the last character taken, which is not written alone.
    fn end(&mut self) -> usize {
        loop {
            let rest = self.characters.clone();
            match self.characters.next() {
                None => return self.text.len(),
                Some((at, next)) if is_alone(next) || !is_word(next) => {
                    // A character that stands alone begins the next word.
                    self.characters = rest;
                    return at;
                }
                Some(_) => {}
            }
        }
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        while let Some((start, character)) = self.characters.next() {
            if !is_word(character) {
                continue;
            }
            let end = if is_alone(character) { start + character.len_utf8() } else { self.end() };
            self.token.position = self.token.position.wrapping_add(1);
            self.token.offset_from = start;
            self.token.offset_to = end;
            self.token.text.clear();
            self.token.text.push_str(self.text.get(start..end).unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn check(analyzer: &str, text: &str, expected: &str) {
        let mut analyzer = analyzers().get(analyzer).unwrap();
        let tokens = split(&mut analyzer, text);
        let words: Vec<&str> = tokens.iter().map(|token| token.text.as_str()).collect();
        assert_eq!(words.join(" "), expected, "{text}");
    }

    #[test]
    fn splits_words() {
        check(WORDS, "Hello, World-wide Web 2.0", "hello world wide web 2 0");
        check(WORDS, "Grüße aus Zürich", "grüße aus zürich");
        check(WORDS, "東京 Tokyo東京tower", "東 京 tokyo 東 京 tower");
        check(WORDS, "", "");
        check(WORDS, "--- ...", "");
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
    fn tells_places() {
        let tokens = split(&mut words(), "a <bé>");
        assert_eq!((tokens[1].offset_from, tokens[1].offset_to, tokens[1].position), (3, 6, 1));
    }
}
