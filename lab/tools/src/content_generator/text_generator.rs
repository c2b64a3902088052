//! Generates words, sentences and titles that are readable enough to search in, and identical for identical seeds and
//! numbers.

use tympan_lab_plan::random_number;

const SYLLABLES: [&str; 32] = [
    "ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo", "lu", "ka",
    "re", "mi", "to", "nu", "pa", "se", "ri", "do", "fa", "ge", "li", "mo", "na", "si", "ta", "ve",
];
/// Size of the vocabulary; common words come first.
const WORD_COUNT: u64 = 2000;

fn generate_word(seed: u64, index: u64) -> String {
    // The product of two uniform random numbers is not uniform: some words are common and most are rare, as in a
    // natural language.
    let first_factor = random_number(seed, index * 2) % 1000;
    let second_factor = random_number(seed, index * 2 + 1) % 1000;
    let mut left = first_factor * second_factor * WORD_COUNT / 1_000_000 + 3;
    let mut out = String::new();
    while left > 0 || out.is_empty() {
        let syllable_index = usize::try_from(left % 32).unwrap_or(0);
        out.push_str(SYLLABLES.get(syllable_index).copied().unwrap_or("a"));
        left /= 32;
    }
    out
}

/// Returns a title of `count` words.
pub(super) fn generate_title(seed: u64, number: u64, count: u64) -> String {
    let words: Vec<String> =
        (0..count).map(|position| generate_word(seed ^ 0x7717, number * 8 + position)).collect();
    let mut text = format!("{} {number}", words.join(" "));
    if let Some(first) = text.get(..1) {
        let first = first.to_uppercase();
        text.replace_range(..1, &first);
    }
    text
}

/// Returns a text of `count` sentences.
pub(super) fn generate_text(seed: u64, number: u64, count: u64) -> String {
    let mut out = String::new();
    for sentence in 0..count {
        let start = (number * 64 + sentence) * 32;
        let length = 6 + random_number(seed ^ 0x5e47, start) % 10;
        let words: Vec<String> =
            (0..length).map(|position| generate_word(seed, start + position)).collect();
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&words.join(" "));
        out.push('.');
    }
    out
}
