//! Globs and regular expressions (`GL`).

use std::path::Path;

use proptest::prelude::*;
use tympan_dispatcher::any_syntax::{ConfigText, QuoteStyle, SourcePosition};
use tympan_dispatcher::{BrokenPatternPolicy, DispatcherGlob, RulePattern};

const WOMEN: &str = "GET /content/geometrixx-outdoors/en/women.html";
const MEN: &str = "GET /content/geometrixx-outdoors/en/men.html";

fn check(glob: &str, text: &str, expected: bool) {
    assert_eq!(DispatcherGlob::new(glob).matches(text), expected, "{glob} {text}");
}

#[test]
fn gl21_to_gl34_the_documented_table() {
    let outdoors = "GET /content/geometrixx-outdoors/en.html";
    check("*/geo*", "GET /content/geometrixx/en.html", true);
    check("*/geo*", outdoors, true);
    check("*outdoors/*", outdoors, true);
    check("*outdoors/*", "GET /content/geometrixx/en.html", false);
    check("*outdoors/??/*", MEN, true);
    check("*outdoors/??/*", outdoors, false);
    check("*[o]men.html*", WOMEN, true);
    check("*[o]men.html*", MEN, false);
    check("*[o/]men.html*", WOMEN, true);
    check("*[o/]men.html*", MEN, true);
    check("*[m-p]men.html*", WOMEN, true);
    check("*[m-p]men.html*", MEN, false);
    check("*[!o]men.html*", MEN, true);
    check("*[!o]men.html*", WOMEN, false);
    check("*[!o!/]men.html*", WOMEN, false);
    check("*[!o!/]men.html*", MEN, false);
    check("*[^o]men.html*", MEN, true);
    check("*[^o]men.html*", WOMEN, false);
    check("*[^o^/]men.html*", MEN, false);
    check("*[omen.html*", WOMEN, false);
    check("*[omen.html*", "GET /[omen.html", false);
}

#[test]
fn gl33_marks_outside_and_inside_a_class() {
    check("a-b!c^d", "a-b!c^d", true);
    check("[*?]", "*", true);
    check("[*?]", "?", true);
    check("[*?]", "x", false);
    check("[]a]", "]", true);
    check("[a-]", "-", true);
    check("[a-]", "b", false);
    check("[z-a]", "m", false);
    check("?", "\u{e4}", true);
    check("?", "", false);
    check("", "", true);
    check("", "x", false);
    check("*", "", true);
    check("/A", "/a", false);
}

#[test]
fn gl37_two_stars_are_one() {
    check("/content/forms/**/*.html", "/content/forms/a/b.html", true);
    check("/content/forms/**/*.html", "/content/forms/b.html", false);
    check("a**b", "ab", true);
}

fn regex(source: &str) -> Result<RulePattern, String> {
    let at = SourcePosition { file: Path::new("x").into(), line: 1, column: 1 };
    RulePattern::parse(&ConfigText {
        text: source.to_owned(),
        quote: QuoteStyle::Single,
        position: at,
    })
}

fn matches(source: &str, text: &str) -> bool {
    regex(source).unwrap().matches(text, BrokenPatternPolicy::MatchNone)
}

#[test]
fn gl35_an_empty_group_matches_absence() {
    let absent = |source| regex(source).unwrap().matches_absence(BrokenPatternPolicy::MatchNone);
    assert!(absent("()"));
    assert!(absent("(html)?"));
    assert!(!absent("html"));
    assert!(!matches("()", "html"));
}

#[test]
fn gl36_a_regex_matches_the_whole() {
    assert!(matches("css", "css"));
    assert!(!matches("css", "css2"));
    assert!(!matches("css", "xcss"));
    assert!(matches("css|js", "js"));
    assert!(!matches("css|js", "jsx"));
    assert!(matches("/(system|crx|admin)(/.*)?", "/crx/de"));
    assert!(!matches("/(system|crx|admin)(/.*)?", "/crxde"));
    assert!(matches("[[:digit:]]{2,3}", "123"));
    assert!(matches(".*x", "a\nx"));
}

#[test]
fn a_broken_regex_gives_its_reason_and_acts_to_the_safe_side() {
    for source in ["(json|xml|html|feed))", "a)|(?:b", "[a", "*x", "(?<n"] {
        assert!(!regex(source).unwrap_err().is_empty(), "{source}");
    }
    assert!(RulePattern::Invalid.matches("anything", BrokenPatternPolicy::MatchAll));
    assert!(!RulePattern::Invalid.matches("anything", BrokenPatternPolicy::MatchNone));
}

/// Matches by trying every length for every star.
fn model(glob: &[char], text: &[char]) -> bool {
    match (glob, text) {
        ([], []) => true,
        (['*', rest @ ..], _) => (0..=text.len()).any(|skip| model(rest, &text[skip..])),
        (['?', rest @ ..], [_, tail @ ..]) => model(rest, tail),
        ([char, rest @ ..], [first, tail @ ..]) => char == first && model(rest, tail),
        _ => false,
    }
}

proptest! {
    #[test]
    fn globs_agree_with_the_model(glob in "[ab*?]{0,8}", text in "[abc]{0,8}") {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        prop_assert_eq!(DispatcherGlob::new(&glob).matches(&text), model(&chars(&glob), &chars(&text)));
    }

    #[test]
    fn no_glob_panics(glob in any::<String>(), text in any::<String>()) {
        let _ = DispatcherGlob::new(&glob).matches(&text);
    }
}

#[test]
fn many_stars_cost_no_more_than_glob_times_text() {
    let glob = format!("{}b", "a*".repeat(200));
    check(&glob, &"a".repeat(5000), false);
}
