//! Regular expressions, compiled once per user.
//!
//! Most expressions run in linear time. Those with look-around, back-references, or possessive parts need a
//! backtracking library, which gives up after [`MAX_BACKTRACK_STEPS`]; the result is then no match.

use std::collections::HashMap;
use std::sync::Arc;

use super::regex_translation::{TextEndAnchor, translate_pattern};

/// A compiled expression.
#[derive(Debug, Clone)]
pub enum RegexPattern {
    /// Matched in linear time.
    Linear(regex::Regex),
    /// Matched by backtracking, for expressions that need it.
    Backtracking(Arc<fancy_regex::Regex>),
}

impl RegexPattern {
    /// Returns true if the expression matches anywhere in a text.
    pub fn is_match(&self, text: &str) -> bool {
        match self {
            Self::Linear(regex) => regex.is_match(text),
            Self::Backtracking(regex) => regex.is_match(text).unwrap_or(false),
        }
    }

    /// Returns the groups of every match, the whole match first; missing groups are empty.
    pub(super) fn match_groups(&self, text: &str) -> Vec<Vec<String>> {
        match self {
            Self::Linear(regex) => {
                let group_text = |group: Option<regex::Match<'_>>| {
                    group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                };
                regex
                    .captures_iter(text)
                    .map(|captures| captures.iter().map(group_text).collect())
                    .collect()
            }
            Self::Backtracking(regex) => {
                let group_text = |group: Option<fancy_regex::Match<'_>>| {
                    group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                };
                let all_captures = regex.captures_iter(text).map_while(Result::ok);
                all_captures.map(|captures| captures.iter().map(group_text).collect()).collect()
            }
        }
    }
}

/// Compiled expressions of one user, by their text; separate maps for search and full match.
#[derive(Debug, Default)]
pub struct RegexPatternCache([HashMap<String, Option<RegexPattern>>; 2]);

/// Maximum number of cached patterns, because patterns with variables may differ each time.
const MAX_CACHED_PATTERNS: usize = 200;
/// Maximum number of steps of a backtracking match.
const MAX_BACKTRACK_STEPS: usize = 1_000_000;
/// Maximum size of a compiled expression in bytes.
const MAX_COMPILED_BYTES: usize = 4 << 20;

impl RegexPatternCache {
    /// Returns the expression for searching in a text; `None` if it cannot be compiled.
    pub(super) fn search_pattern(&mut self, pattern: &str) -> Option<RegexPattern> {
        let [inside, _] = &mut self.0;
        get_or_compile(inside, pattern, compile_pattern)
    }

    /// Returns the expression for matching a whole text; `None` if it cannot be compiled.
    pub fn full_match_pattern(&mut self, pattern: &str) -> Option<RegexPattern> {
        let [_, whole] = &mut self.0;
        get_or_compile(whole, pattern, compile_full_match)
    }
}

fn get_or_compile(
    cache: &mut HashMap<String, Option<RegexPattern>>,
    pattern: &str,
    compile: impl Fn(&str) -> Result<RegexPattern, String>,
) -> Option<RegexPattern> {
    if let Some(compiled) = cache.get(pattern) {
        return compiled.clone();
    }
    if cache.len() >= MAX_CACHED_PATTERNS {
        cache.clear();
    }
    let compiled = compile(pattern).ok();
    cache.insert(pattern.to_owned(), compiled.clone());
    compiled
}

/// Compiles an expression in Perl or Java syntax for searching in a text.
///
/// # Errors
/// The expression that cannot be compiled, and the reason.
pub(super) fn compile_pattern(pattern: &str) -> Result<RegexPattern, String> {
    build_regex(pattern, &translate_pattern(pattern, TextEndAnchor::BeforeLineFeed))
}

/// Compiles an expression for matching a whole text.
///
/// # Errors
/// The expression that cannot be compiled, and the reason.
pub(super) fn compile_full_match(pattern: &str) -> Result<RegexPattern, String> {
    build_regex(pattern, &format!("^(?:{})\\z", translate_pattern(pattern, TextEndAnchor::Exact)))
}

fn build_regex(pattern: &str, translated: &str) -> Result<RegexPattern, String> {
    let plain = regex::RegexBuilder::new(translated).size_limit(MAX_COMPILED_BYTES).build();
    if let (Ok(regex), false) = (&plain, has_possessive_repetition(translated)) {
        return Ok(RegexPattern::Linear(regex.clone()));
    }
    fancy_regex::RegexBuilder::new(translated)
        .backtrack_limit(MAX_BACKTRACK_STEPS)
        .delegate_size_limit(MAX_COMPILED_BYTES)
        .build()
        .map(|regex| RegexPattern::Backtracking(Arc::new(regex)))
        .map_err(|error| {
            // The reason in one line: the library's message repeats the expression, with a marker below it.
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim();
            format!("regular expression `{pattern}`: {reason}")
        })
}

/// Returns true if a repetition is possessive, which the linear library parses as a repetition of a repetition.
fn has_possessive_repetition(pattern: &str) -> bool {
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

/// Replaces `$1$` with group 1.
pub(super) fn fill_group_template(template: &str, groups: &[String]) -> String {
    let template = if template.is_empty() { "$1$" } else { template };
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        match after.split_once('$') {
            Some((digits, tail)) if digits.parse::<usize>().is_ok() => {
                let group = digits.parse::<usize>().ok().and_then(|index| groups.get(index));
                out.push_str(group.map_or("", String::as_str));
                rest = tail;
            }
            _ => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: &[&str]) {
        let all_groups = compile_pattern(pattern).unwrap().match_groups(text);
        let joined_groups: Vec<String> = all_groups.iter().map(|groups| groups.join("|")).collect();
        assert_eq!(joined_groups, expected, "{pattern}");
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
        let holds = |pattern: &str, text: &str| compile_full_match(pattern).unwrap().is_match(text);
        assert!(holds("a|ab", "ab") && !holds("a$", "a\n") && !holds("b", "ab"));
        assert!(holds("(?!x).*", "abc") && !holds("(?!a).*", "abc"));
    }

    #[test]
    fn an_expression_that_never_ends_finds_nothing() {
        let endless = compile_pattern(r"(a|aa)+(?=b)c\1$").unwrap();
        assert!(!endless.is_match(&"a".repeat(200)));
    }

    #[test]
    fn what_does_not_compile_is_reported_in_one_line() {
        for pattern in ["(", "[a", "(?P<"] {
            let message = compile_pattern(pattern).unwrap_err();
            assert!(message.starts_with(&format!("regular expression `{pattern}`: ")), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
