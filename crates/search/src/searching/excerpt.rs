//! Excerpts: the part of a text with the most matching words, highlighted and escaped for use in a page.

use std::collections::HashSet;
use std::ops::Range;

use tantivy::tokenizer::TextAnalyzer;
use tympan_content_query::{FullTextExpression, normalize_word};
use tympan_notation::{escape_html, matches_wildcards, wildcard_tokens};

use crate::analyzer::{build_word_analyzer, tokenize};

/// The approximate length of an excerpt, in bytes.
const EXCERPT_BYTES: usize = 220;
/// The length of the first part that is searched, in bytes; the rest of the text is searched only if this part has no
/// match.
const FIRST_SCAN_BYTES: usize = 4096;
/// The maximum length of the text before the first match, in bytes.
const MAX_LEAD_BYTES: usize = 60;

/// The words to highlight.
#[derive(Debug, Default)]
pub(crate) struct HighlightTerms {
    exact_words: HashSet<String>,
    /// Words whose stems are also highlighted.
    stemmed_words: Vec<String>,
    prefixes: Vec<String>,
    patterns: Vec<String>,
}

impl HighlightTerms {
    /// Collects the words of an expression that may occur in a hit.
    pub(crate) fn from_expression(expression: &FullTextExpression) -> Self {
        let mut marks = Self::default();
        marks.add_expression(expression);
        marks
    }

    fn add_expression(&mut self, expression: &FullTextExpression) {
        match expression {
            FullTextExpression::Term(text) => {
                self.exact_words.extend(word_texts(text));
                self.stemmed_words.extend(word_texts(text));
            }
            FullTextExpression::Phrase(text) => self.exact_words.extend(word_texts(text)),
            FullTextExpression::Prefix(text) => {
                let mut words = word_texts(text);
                self.prefixes.extend(words.pop());
                self.exact_words.extend(words);
            }
            FullTextExpression::Wildcard(pattern) => self.patterns.push(normalize_word(pattern)),
            FullTextExpression::And(parts) | FullTextExpression::Or(parts) => {
                parts.iter().for_each(|part| self.add_expression(part));
            }
            FullTextExpression::Boost(part, _) => self.add_expression(part),
            FullTextExpression::Not(_) | FullTextExpression::Similar(_) => {}
        }
    }

    fn matches(&self, word: &str) -> bool {
        self.exact_words.contains(word)
            || self.prefixes.iter().any(|prefix| word.starts_with(prefix))
            || self.patterns.iter().any(|pattern| matches_wildcards(wildcard_tokens(pattern), word))
    }

    /// Returns the ranges of the words in a text.
    fn find_ranges(&self, text: &str, stems: Option<&mut TextAnalyzer>) -> Vec<Range<usize>> {
        let tokens = tokenize(&mut build_word_analyzer(), text).into_iter();
        let tokens = tokens.filter(|token| self.matches(&token.text));
        let mut ranges: Vec<Range<usize>> =
            tokens.map(|token| token.offset_from..token.offset_to).collect();
        if let Some(stems) = stems
            && !self.stemmed_words.is_empty()
        {
            let target_stems: HashSet<String> = self
                .stemmed_words
                .iter()
                .flat_map(|word| tokenize(stems, word))
                .map(|stem| stem.text)
                .collect();
            let stem_tokens =
                tokenize(stems, text).into_iter().filter(|stem| target_stems.contains(&stem.text));
            ranges.extend(stem_tokens.map(|stem| stem.offset_from..stem.offset_to));
            ranges.sort_by_key(|range| (range.start, range.end));
            ranges.dedup();
        }
        ranges
    }
}

/// Returns the most relevant part of a text as HTML: escaped, with `<strong>` around the words.
pub(crate) fn make_excerpt(
    marks: &HighlightTerms,
    text: &str,
    mut stems: Option<&mut TextAnalyzer>,
) -> String {
    let head = match text.len() {
        ..=FIRST_SCAN_BYTES => text,
        _ => (0..=FIRST_SCAN_BYTES).rev().find_map(|end| text.get(..end)).unwrap_or(text),
    };
    let mut ranges = marks.find_ranges(head, stems.as_deref_mut());
    if ranges.is_empty() && head.len() < text.len() {
        ranges = marks.find_ranges(text, stems);
    }
    let window = choose_window(text, &ranges);
    let mut out = String::new();
    if window.start > 0 {
        out.push_str("… ");
    }
    let mut at = window.start;
    for range in
        ranges.iter().filter(|range| range.start >= window.start && range.end <= window.end)
    {
        if range.start < at {
            continue;
        }
        push_excerpt_text(&mut out, text.get(at..range.start).unwrap_or_default());
        out.push_str("<strong>");
        push_excerpt_text(&mut out, text.get(range.clone()).unwrap_or_default());
        out.push_str("</strong>");
        at = range.end;
    }
    push_excerpt_text(&mut out, text.get(at..window.end).unwrap_or_default());
    if window.end < text.len() {
        out.push_str(" …");
    }
    out
}

/// Chooses the part with the most matches, the first one of several.
fn choose_window(text: &str, ranges: &[Range<usize>]) -> Range<usize> {
    let mut best = (0, 0);
    for (index, first) in ranges.iter().enumerate() {
        let rest = ranges.get(index..).unwrap_or_default().iter();
        let count = rest
            .take_while(|range| range.end <= first.start + EXCERPT_BYTES - MAX_LEAD_BYTES)
            .count();
        if count > best.0 {
            best = (count, first.start);
        }
    }
    let start = next_word_start(text, best.1.saturating_sub(MAX_LEAD_BYTES), best.1);
    let end = next_word_start(text, (start + EXCERPT_BYTES).min(text.len()), text.len());
    start..end
}

/// Returns the first position from `at` on where a word begins, but at most `most`.
fn next_word_start(text: &str, at: usize, most: usize) -> usize {
    if at == 0 || at >= text.len() {
        return at.min(text.len());
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (at..=text.len()).find(is_boundary).unwrap_or(text.len());
    let rest = text.get(start..).unwrap_or_default();
    let space = rest.find(char::is_whitespace).map(|space| start + space);
    match space {
        Some(space) if space < most && space - start < MAX_LEAD_BYTES => {
            let skipped = text.get(space..).unwrap_or_default();
            (space + skipped.len() - skipped.trim_start().len()).min(most)
        }
        _ => start.min(most),
    }
}

fn word_texts(text: &str) -> Vec<String> {
    tokenize(&mut build_word_analyzer(), text).into_iter().map(|token| token.text).collect()
}

/// Appends escaped text, in one line.
fn push_excerpt_text(out: &mut String, text: &str) {
    out.push_str(&escape_html(text).replace('\n', " "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyzer::build_analyzers;

    fn check(expression: &FullTextExpression, text: &str, expected: &str) {
        let mut stems = build_analyzers().get("every_stem_en").unwrap();
        assert_eq!(
            make_excerpt(&HighlightTerms::from_expression(expression), text, Some(&mut stems)),
            expected
        );
    }

    fn term(text: &str) -> FullTextExpression {
        FullTextExpression::Term(text.to_owned())
    }

    #[test]
    fn marks_words() {
        check(&term("world"), "Hello World", "Hello <strong>World</strong>");
        check(&term("run"), "He runs on", "He <strong>runs</strong> on");
        check(&FullTextExpression::Phrase("run".into()), "He runs on", "He runs on");
        check(
            &FullTextExpression::Prefix("wor".into()),
            "Hello world",
            "Hello <strong>world</strong>",
        );
        check(&FullTextExpression::Not(Box::new(term("a"))), "a b", "a b");
    }

    #[test]
    fn escapes() {
        check(&term("b"), "a < b & \"c\"", "a &lt; <strong>b</strong> &amp; &quot;c&quot;");
        check(&term("script"), "<script>", "&lt;<strong>script</strong>&gt;");
    }

    #[test]
    fn looks_further_where_the_head_has_nothing() {
        let text = format!("{}needle", "häy ".repeat(3000));
        let excerpt = make_excerpt(&HighlightTerms::from_expression(&term("needle")), &text, None);
        assert!(excerpt.ends_with("häy <strong>needle</strong>"), "{excerpt}");
    }

    #[test]
    fn chooses_the_part_with_the_most_words() {
        let text = format!("needle {} needle needle {}", "hay ".repeat(200), "ähay ".repeat(200));
        let excerpt = make_excerpt(&HighlightTerms::from_expression(&term("needle")), &text, None);
        assert!(excerpt.contains("<strong>needle</strong> <strong>needle</strong>"), "{excerpt}");
        assert!(excerpt.starts_with("… hay") && excerpt.ends_with(" …"), "{excerpt}");
    }
}
