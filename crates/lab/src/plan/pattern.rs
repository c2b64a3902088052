//! Regular expressions, compiled once per user.
//!
//! Most expressions run in linear time. Those with look-around, back-references, or parts that give nothing back need a
//! library that tries one way after the other; it gives up after [`MOST_STEPS`], and then nothing matches.

use std::collections::HashMap;
use std::sync::Arc;

use super::perl::{End, translate};

/// A compiled expression.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    Plain(regex::Regex),
    Looking(Arc<fancy_regex::Regex>),
}

impl Pattern {
    /// Reports whether the expression is somewhere in a text.
    pub(super) fn is_match(&self, text: &str) -> bool {
        match self {
            Self::Plain(regex) => regex.is_match(text),
            Self::Looking(regex) => regex.is_match(text).unwrap_or(false),
        }
    }

    /// Returns the groups of every place where the expression is, that of the whole first; what is not there is empty.
    pub(super) fn groups(&self, text: &str) -> Vec<Vec<String>> {
        match self {
            Self::Plain(regex) => {
                let shown = |group: Option<regex::Match<'_>>| {
                    group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                };
                regex.captures_iter(text).map(|found| found.iter().map(shown).collect()).collect()
            }
            Self::Looking(regex) => {
                let shown = |group: Option<fancy_regex::Match<'_>>| {
                    group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                };
                let found = regex.captures_iter(text).map_while(Result::ok);
                found.map(|found| found.iter().map(shown).collect()).collect()
            }
        }
    }
}

/// Compiled expressions of one user, by their text and whether they are to match whole texts.
#[derive(Debug, Default)]
pub(super) struct Patterns([HashMap<String, Option<Pattern>>; 2]);

/// Patterns with variables in them differ each time: more than this are forgotten.
const MOST: usize = 200;
/// Most steps of an expression that tries one way after the other.
const MOST_STEPS: usize = 1_000_000;
/// Largest compiled expression.
const MOST_BYTES: usize = 4 << 20;

impl Patterns {
    /// Returns the expression as it is looked for in a text; `None` if it cannot be compiled.
    pub(super) fn find(&mut self, pattern: &str) -> Option<Pattern> {
        let [inside, _] = &mut self.0;
        known(inside, pattern, compile)
    }

    /// Returns the expression as a whole text has to match it; `None` if it cannot be compiled.
    pub(super) fn find_whole(&mut self, pattern: &str) -> Option<Pattern> {
        let [_, whole] = &mut self.0;
        known(whole, pattern, compile_whole)
    }
}

fn known(
    known: &mut HashMap<String, Option<Pattern>>,
    pattern: &str,
    compile: impl Fn(&str) -> Result<Pattern, String>,
) -> Option<Pattern> {
    if let Some(compiled) = known.get(pattern) {
        return compiled.clone();
    }
    if known.len() >= MOST {
        known.clear();
    }
    let compiled = compile(pattern).ok();
    known.insert(pattern.to_owned(), compiled.clone());
    compiled
}

/// Compiles an expression in the form of Perl or Java, to be looked for in a text.
///
/// # Errors
/// What cannot be compiled, and why.
pub(super) fn compile(pattern: &str) -> Result<Pattern, String> {
    build(pattern, &translate(pattern, End::BeforeLineFeed))
}

/// Compiles an expression that a whole text has to match.
///
/// # Errors
/// What cannot be compiled, and why.
pub(super) fn compile_whole(pattern: &str) -> Result<Pattern, String> {
    build(pattern, &format!("^(?:{})\\z", translate(pattern, End::Exact)))
}

fn build(shown: &str, translated: &str) -> Result<Pattern, String> {
    let plain = regex::RegexBuilder::new(translated).size_limit(MOST_BYTES).build();
    if let (Ok(regex), false) = (&plain, gives_nothing_back(translated)) {
        return Ok(Pattern::Plain(regex.clone()));
    }
    fancy_regex::RegexBuilder::new(translated)
        .backtrack_limit(MOST_STEPS)
        .delegate_size_limit(MOST_BYTES)
        .build()
        .map(|regex| Pattern::Looking(Arc::new(regex)))
        .map_err(|error| {
            // The reason in one line: that of the library shows the expression again, with a mark below it.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim();
            format!("regular expression `{shown}`: {reason}")
        })
}

/// Reports whether a repetition is possessive, which the linear library reads as a repetition of a repetition.
fn gives_nothing_back(pattern: &str) -> bool {
    let mut is_escaped = false;
    let mut is_set = false;
    let mut before = ' ';
    for letter in pattern.chars() {
        if is_escaped {
            is_escaped = false;
            before = ' ';
            continue;
        }
        match letter {
            '\\' => is_escaped = true,
            '[' => is_set = true,
            ']' => is_set = false,
            '+' if !is_set && matches!(before, '*' | '+' | '?' | '}') => return true,
            _ => {}
        }
        before = if is_set { ' ' } else { letter };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: &[&str]) {
        let found = compile(pattern).unwrap().groups(text);
        let found: Vec<String> = found.iter().map(|groups| groups.join("|")).collect();
        assert_eq!(found, expected, "{pattern}");
    }

    #[test]
    fn expressions_of_real_plans_find_what_they_find_in_jmeter() {
        check(
            r#"{"id":"(.+?)"}"#,
            r#"[{"id":"7"},{"id":"8"}]"#,
            &[r#"{"id":"7"}|7"#, r#"{"id":"8"}|8"#],
        );
        check(r#"\<a b=\"([^\"]+)\"\/\>"#, r#"<a b="x"/>"#, &[r#"<a b="x"/>|x"#]);
        check(r"(?<=id=)\d+", "id=12 no=3", &["12"]);
        check(r"a(?!b)", "ab ac", &["a"]);
        check(r"(\w)\1", "xxyz", &["xx|x"]);
        check(r"a++b", "aab", &["aab"]);
        check(r"end$", "the end\n", &["end\n"]);
    }

    #[test]
    fn whole_texts_match_from_end_to_end() {
        let holds = |pattern: &str, text: &str| compile_whole(pattern).unwrap().is_match(text);
        assert!(holds("a|ab", "ab") && !holds("a$", "a\n") && !holds("b", "ab"));
        assert!(holds("(?!x).*", "abc") && !holds("(?!a).*", "abc"));
    }

    #[test]
    fn an_expression_that_never_ends_finds_nothing() {
        let endless = compile(r"(a|aa)+(?=b)c\1$").unwrap();
        assert!(!endless.is_match(&"a".repeat(200)));
    }

    #[test]
    fn what_does_not_compile_is_told_in_one_line() {
        for pattern in ["(", "[a", "(?P<"] {
            let told = compile(pattern).unwrap_err();
            assert!(told.starts_with(&format!("regular expression `{pattern}`: ")), "{told}");
            assert!(!told.contains('\n'), "{told}");
        }
    }
}
