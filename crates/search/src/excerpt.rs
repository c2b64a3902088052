//! Excerpts: the part of a text with the most words that were looked for, marked, and safe to put into a page.

use std::collections::HashSet;
use std::ops::Range;

use tantivy::tokenizer::TextAnalyzer;
use tympan_content::query::{TextExpression, word_form};

use crate::analyzer::{split, words};
use crate::expand::matches;

/// About so long is an excerpt.
const EXCERPT_BYTES: usize = 220;
/// The rest of a text is looked at if this much has none of the words.
const HEAD_BYTES: usize = 4096;
/// Before the first word that was found stands at most this much.
const LEAD_BYTES: usize = 60;

/// What is marked.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    exact: HashSet<String>,
    /// Words whose stems count too.
    stemmed: Vec<String>,
    prefixes: Vec<String>,
    patterns: Vec<String>,
}

impl Marks {
    /// Gathers the words that a hit may have because of an expression.
    pub(crate) fn of(expression: &TextExpression) -> Self {
        let mut marks = Self::default();
        marks.add(expression);
        marks
    }

    fn add(&mut self, expression: &TextExpression) {
        match expression {
            TextExpression::Term(text) => {
                self.exact.extend(tokens(text));
                self.stemmed.extend(tokens(text));
            }
            TextExpression::Phrase(text) => self.exact.extend(tokens(text)),
            TextExpression::Prefix(text) => {
                let mut found = tokens(text);
                self.prefixes.extend(found.pop());
                self.exact.extend(found);
            }
            TextExpression::Wildcard(pattern) => self.patterns.push(word_form(pattern)),
            TextExpression::And(parts) | TextExpression::Or(parts) => {
                parts.iter().for_each(|part| self.add(part));
            }
            TextExpression::Boost(part, _) => self.add(part),
            TextExpression::Not(_) | TextExpression::Similar(_) => {}
        }
    }

    fn matches(&self, word: &str) -> bool {
        self.exact.contains(word)
            || self.prefixes.iter().any(|prefix| word.starts_with(prefix))
            || self.patterns.iter().any(|pattern| matches(pattern, word))
    }

    /// Returns where in a text the words are.
    fn find(&self, text: &str, stems: Option<&mut TextAnalyzer>) -> Vec<Range<usize>> {
        let found = split(&mut words(), text).into_iter();
        let found = found.filter(|token| self.matches(&token.text));
        let mut places: Vec<Range<usize>> =
            found.map(|token| token.offset_from..token.offset_to).collect();
        if let Some(stems) = stems
            && !self.stemmed.is_empty()
        {
            let wanted: HashSet<String> = self
                .stemmed
                .iter()
                .flat_map(|word| split(stems, word))
                .map(|stem| stem.text)
                .collect();
            let found = split(stems, text).into_iter().filter(|stem| wanted.contains(&stem.text));
            places.extend(found.map(|stem| stem.offset_from..stem.offset_to));
            places.sort_by_key(|place| (place.start, place.end));
            places.dedup();
        }
        places
    }
}

/// Returns the most telling part of a text as HTML: escaped, with `<strong>` around the words.
pub(crate) fn excerpt(marks: &Marks, text: &str, mut stems: Option<&mut TextAnalyzer>) -> String {
    let head = match text.len() {
        ..=HEAD_BYTES => text,
        _ => (0..=HEAD_BYTES).rev().find_map(|end| text.get(..end)).unwrap_or(text),
    };
    let mut places = marks.find(head, stems.as_deref_mut());
    if places.is_empty() && head.len() < text.len() {
        places = marks.find(text, stems);
    }
    let window = window(text, &places);
    let mut out = String::new();
    if window.start > 0 {
        out.push_str("… ");
    }
    let mut at = window.start;
    for place in
        places.iter().filter(|place| place.start >= window.start && place.end <= window.end)
    {
        if place.start < at {
            continue;
        }
        escape(text.get(at..place.start).unwrap_or_default(), &mut out);
        out.push_str("<strong>");
        escape(text.get(place.clone()).unwrap_or_default(), &mut out);
        out.push_str("</strong>");
        at = place.end;
    }
    escape(text.get(at..window.end).unwrap_or_default(), &mut out);
    if window.end < text.len() {
        out.push_str(" …");
    }
    out
}

/// Chooses the part with the most places in it, the first of several.
fn window(text: &str, places: &[Range<usize>]) -> Range<usize> {
    let mut best = (0, 0);
    for (index, first) in places.iter().enumerate() {
        let rest = places.get(index..).unwrap_or_default().iter();
        let count =
            rest.take_while(|place| place.end <= first.start + EXCERPT_BYTES - LEAD_BYTES).count();
        if count > best.0 {
            best = (count, first.start);
        }
    }
    let start = between_words(text, best.1.saturating_sub(LEAD_BYTES), best.1);
    let end = between_words(text, (start + EXCERPT_BYTES).min(text.len()), text.len());
    start..end
}

/// Returns the first place from `at` on where a word begins, but not beyond `most`.
fn between_words(text: &str, at: usize, most: usize) -> usize {
    if at == 0 || at >= text.len() {
        return at.min(text.len());
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let start = (at..=text.len()).find(is_boundary).unwrap_or(text.len());
    let rest = text.get(start..).unwrap_or_default();
    let space = rest.find(char::is_whitespace).map(|space| start + space);
    match space {
        Some(space) if space < most && space - start < LEAD_BYTES => {
            let skipped = text.get(space..).unwrap_or_default();
            (space + skipped.len() - skipped.trim_start().len()).min(most)
        }
        _ => start.min(most),
    }
}

fn tokens(text: &str) -> Vec<String> {
    split(&mut words(), text).into_iter().map(|token| token.text).collect()
}

fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push(' '),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyzer::analyzers;

    fn check(expression: &TextExpression, text: &str, expected: &str) {
        let mut stems = analyzers().get("every_stem_en").unwrap();
        assert_eq!(excerpt(&Marks::of(expression), text, Some(&mut stems)), expected);
    }

    fn term(text: &str) -> TextExpression {
        TextExpression::Term(text.to_owned())
    }

    #[test]
    fn marks_words() {
        check(&term("world"), "Hello World", "Hello <strong>World</strong>");
        check(&term("run"), "He runs on", "He <strong>runs</strong> on");
        check(&TextExpression::Phrase("run".into()), "He runs on", "He runs on");
        check(&TextExpression::Prefix("wor".into()), "Hello world", "Hello <strong>world</strong>");
        check(&TextExpression::Not(Box::new(term("a"))), "a b", "a b");
    }

    #[test]
    fn escapes() {
        check(&term("b"), "a < b & \"c\"", "a &lt; <strong>b</strong> &amp; &quot;c&quot;");
        check(&term("script"), "<script>", "&lt;<strong>script</strong>&gt;");
    }

    #[test]
    fn looks_further_where_the_head_has_nothing() {
        let text = format!("{}needle", "häy ".repeat(3000));
        let shown = excerpt(&Marks::of(&term("needle")), &text, None);
        assert!(shown.ends_with("häy <strong>needle</strong>"), "{shown}");
    }

    #[test]
    fn chooses_the_part_with_the_most_words() {
        let text = format!("needle {} needle needle {}", "hay ".repeat(200), "ähay ".repeat(200));
        let shown = excerpt(&Marks::of(&term("needle")), &text, None);
        assert!(shown.contains("<strong>needle</strong> <strong>needle</strong>"), "{shown}");
        assert!(shown.starts_with("… hay") && shown.ends_with(" …"), "{shown}");
    }
}
