use http::{HeaderMap, HeaderValue, Method};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;
use tympan_web::sling_url::{
    REFUSED_READINGS, SlingUrl, SlingUrlReading, mangle_namespaces, split_selectors,
    strip_parameters, unmangle_namespaces,
};

use super::{deciding_filter_rule, refused_readings};
use crate::config::any_syntax::ConfigSources;
use crate::config::{DispatcherConfig, FilterRule, RuleVerdict};
use crate::request::view::RequestView;

fn rules(text: &str) -> Vec<FilterRule> {
    let text = format!("/farms {{ /f {{ /renders {{ }} /filter {{ {text} }} }} }}");
    let loaded =
        DispatcherConfig::parse(text.as_bytes(), Path::new("test.any"), &ConfigSources::default());
    loaded.config.farms[0].filter.clone().unwrap()
}

fn view(url: &str) -> Option<RequestView> {
    RequestView::from_url(Method::GET, url, HeaderMap::new()).ok()
}

fn passes(rules: &[FilterRule], url: &str) -> bool {
    view(url).is_some_and(|view| {
        deciding_filter_rule(rules, &view).is_some_and(|rule| rule.verdict == RuleVerdict::Allow)
    })
}

#[track_caller]
fn check(rules_text: &str, passing: &[&str], refused: &[&str]) {
    let rules = rules(rules_text);
    for (urls, expected) in [(passing, true), (refused, false)] {
        for url in urls {
            assert_eq!(passes(&rules, url), expected, "{rules_text}: {url}");
        }
    }
}

const NO_JSON: &str = "/0 { /type \"deny\" /url \"*\" }
    /1 { /type \"allow\" /url \"/content/*\" }
    /2 { /type \"allow\" /url \"/etc.clientlibs/*\" }
    /3 { /type \"deny\" /selectors '(infinity|[0-9-]+)' /extension '(json|xml)' }
    /4 { /type \"deny\" /extension \"json\" }";

#[test]
fn path_parameters_open_nothing() {
    check(
        NO_JSON,
        &[
            "/content/en.html",
            "/content/en.html;x=1",
            "/content/en;v='1.0'.html",
            "/content/a%3Bb.html",
        ],
        &[
            "/content/en.1.json",
            "/content/en.1.json;a=b.html",
            "/content/en.json;x=1",
            "/content/en.json;/a.html",
            "/content/en.json;",
            "/content/en;x=1.json",
            "/content/en.infinity.json;a='/b.html'",
            "/content/en.infinity.json%3Ba=b.html",
            "/content/en.json%3bx",
            // A path that no publisher can read.
            "/content/en.html;x='1",
            "/content/en.html;x=%zz",
        ],
    );
    // A path that changes when its parameters are cut must pass in that form as well.
    check(
        "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/a/*.html\" } /2 { /type \"allow\" /url \"/a/*=1\" }",
        &["/a/b.html"],
        &["/a/b;x=1", "/a/b.html;x=1/c"],
    );
}

#[test]
fn a_denied_extension_is_denied_wherever_a_publisher_may_read_it() {
    check(
        NO_JSON,
        &[
            "/etc.clientlibs/site/a.min.js",
            "/content/v1.2/a.jpg",
            "/content/page.html/products/a.html",
            "/content/page.html/sku.12.html",
        ],
        &[
            "/etc.clientlibs/a.infinity.json",
            "/etc.clientlibs/a.1.xml",
            "/content/dam/a.jpg/jcr:content.json",
            "/content/dam/a.jpg/_jcr_content/metadata.1.json/x",
            "/content/x.y/a.json/b.html",
        ],
    );
    let many = format!("/content/a.html{}", "/b.c".repeat(60));
    check(NO_JSON, &[], &[&many]);
    // A rule that mentions suffixes applies to suffixes.
    check(
        "/0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /extension \"json\" /suffix '()' }",
        &["/a.html/b.json"],
        &["/a.json"],
    );
}

#[test]
fn escapes_in_a_query_hide_nothing() {
    let no_debug =
        "/0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /query \"*debug=layout*\" }
        /2 { /type \"deny\" /glob \"*secret=*\" }";
    check(
        no_debug,
        &["/a.html?x=1", "/a.html?x=%41"],
        &[
            "/a.html?debug=layout",
            "/a.html?%64ebug=layout",
            "/a.html?debug=%6Cayout",
            "/a.html?x=1&de%62ug=layout",
            "/a.html?secret=1",
            "/a.html?%73ecret=1",
        ],
    );
    check(
        "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"*\" /query '([a-c%0-9]+=[^&]*&?)+' }",
        &["/a?a=1&b=%20", "/a?c=%C3%A4"],
        &["/a?z=1", "/a?%7A=1", "/a?a=1&%7A=1"],
    );
}

#[test]
fn both_spellings_of_a_prefix_are_closed() {
    let rule = |name: &str| {
        format!("/0 {{ /type \"allow\" /url \"*\" }} /1 {{ /type \"deny\" /url \"*/{name}*\" }}")
    };
    let both = ["/a/_jcr_content/b.json", "/a/jcr:content/b.json", "/a/jcr%3Acontent.json"];
    check(&rule("jcr:content"), &["/a/content.html"], &both);
    check(&rule("_jcr_content"), &["/a/content.html"], &both);
    // An allowed path is allowed as it is written.
    check(
        "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/a/_jcr_content/form.html\" }",
        &["/a/_jcr_content/form.html"],
        &["/a/jcr:content/form.html"],
    );
}

#[test]
fn encoded_dots_are_read_once() {
    check(
        NO_JSON,
        &["/content/en%2ehtml"],
        &[
            "/content/en.1%2ejson",
            "/content/en%2E1%2Ejson",
            "/content/%2e%2e/apps/x.html",
            "/content/..%3Bx/apps/x.html",
        ],
    );
}

#[test]
fn the_publisher_gets_the_readings_that_are_refused() {
    let only_pages = rules(
        "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /path \"/content/*\" /extension '(html|jpg)' }",
    );
    let refused = |url: &str| refused_readings(&only_pages, &view(url).unwrap());
    assert_eq!(refused("/content/dam/a.jpg/jcr:content.json"), [0]);
    assert_eq!(refused("/content/dam/a.jpg/b.json/c.html"), [1]);
    assert_eq!(refused("/content/dam/a.jpg/b.json/"), [0]);
    assert_eq!(refused("/content/page.html/a.html"), [0; 0]);
    assert_eq!(refused("/content/page.html/a"), [0; 0]);
    assert_eq!(refused("/content/page.html"), [0; 0]);
    // A request that a vanity URL permitted has no refused readings.
    assert_eq!(refused("/promo.html/b.json"), [0; 0]);
}

/// A rule whose matches the test computes independently.
#[derive(Debug, Clone)]
struct ModelFilterRule {
    verdict: RuleVerdict,
    extension: Option<&'static str>,
    selector: Option<&'static str>,
    path_prefix: Option<&'static str>,
}

impl ModelFilterRule {
    fn text(&self, number: usize) -> String {
        let kind = if self.verdict == RuleVerdict::Allow { "allow" } else { "deny" };
        let mut text = format!("/{number} {{ /type \"{kind}\" /method \"GET\"");
        for (key, value) in [("extension", self.extension), ("selectors", self.selector)] {
            text += &value.map(|value| format!(" /{key} \"{value}\"")).unwrap_or_default();
        }
        let within = self.path_prefix.map(|value| format!(" /url \"*{value}*\""));
        text + &within.unwrap_or_default() + " }\n"
    }

    /// Returns true if the rule matches what a publisher renders for the request `path`.
    fn matches(&self, reading: &SlingUrlReading<'_>, path: &str) -> bool {
        let mut selectors = reading.selectors.unwrap_or_default().split('.');
        let spellings = [
            path.to_owned(),
            unmangle_namespaces(path).unwrap_or_default(),
            mangle_namespaces(path),
        ];
        let (has_selector, is_within) = match self.verdict {
            RuleVerdict::Allow => (
                self.selector.is_none_or(|selector_pattern| {
                    selectors.all(|selector| selector == selector_pattern)
                }),
                self.path_prefix.is_none_or(|within| path.contains(within)),
            ),
            RuleVerdict::Deny => (
                self.selector.is_none_or(|selector_pattern| {
                    selectors.any(|selector| selector == selector_pattern)
                }),
                self.path_prefix
                    .is_none_or(|within| spellings.iter().any(|path| path.contains(within))),
            ),
        };
        let has_extension = self
            .extension
            .is_none_or(|expected_extension| reading.extension == Some(expected_extension));
        has_extension && has_selector && is_within
    }
}

fn model() -> impl Strategy<Value = ModelFilterRule> {
    let optional =
        |words: &'static [&'static str]| proptest::option::of(proptest::sample::select(words));
    (
        any::<bool>(),
        optional(&["json", "html", "jpg"]),
        optional(&["infinity", "a"]),
        optional(&["b", "jcr:content", "_jcr_content"]),
    )
        .prop_map(|(is_allowed, extension, selector, within)| ModelFilterRule {
            verdict: if is_allowed { RuleVerdict::Allow } else { RuleVerdict::Deny },
            extension,
            selector,
            path_prefix: within,
        })
}

fn url() -> impl Strategy<Value = String> {
    const PIECES: [&str; 22] = [
        "/",
        "/",
        "a",
        "b",
        ".",
        ".",
        ".json",
        ".html",
        ".jpg",
        ".infinity",
        ";",
        "=",
        "'",
        "/jcr:content",
        "/_jcr_content",
        "%2e",
        "%3B",
        "%6a",
        "/..",
        "%25",
        "//",
        "%3A",
    ];
    let pieces = vec(proptest::sample::select(PIECES.as_slice()), 0..14);
    pieces.prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Regardless of which resources exist, a request that passes makes a publisher render only what the rules permit.
    #[test]
    fn the_publisher_renders_what_the_filter_judged(
        models in vec(model(), 0..5),
        url in url(),
        existing in any::<u16>(),
    ) {
        let text: String = models.iter().enumerate().map(|(number, model)| model.text(number)).collect();
        let rules = rules(&format!("/all {{ /type \"allow\" /url \"*\" }} {text}"));
        let Some(view) = view(&url) else { return Ok(()) };
        prop_assume!(deciding_filter_rule(&rules, &view).is_some_and(|rule| rule.verdict == RuleVerdict::Allow));
        let mut headers = HeaderMap::new();
        let refused: Vec<String> =
            refused_readings(&rules, &view).iter().map(ToString::to_string).collect();
        headers.insert(REFUSED_READINGS, HeaderValue::from_str(&refused.join(",")).unwrap());
        // Resources have whole names, or the part of a name before its first dot.
        let exists = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or_default();
            let names = path.split('/').count();
            existing >> (names * 2 + usize::from(name.contains('.'))).min(15) & 1 == 1
        };
        let Ok(rendered_url) = SlingUrl::split(&view.wire_path, exists) else { return Ok(()) };
        let cut = strip_parameters(&view.wire_path).unwrap();
        let Some(cut_view) = self::view(&cut) else { return Ok(()) };
        let cut_view = cut_view.path.as_str();
        if rendered_url.is_refused_by(&headers) || rendered_url.extension.is_none() && !rendered_url.path.contains('.') {
            return Ok(());
        }
        let reading = SlingUrlReading::all_readings(cut_view).find(|reading| reading.depth() == rendered_url.depth());
        let Some(reading) = reading.filter(|_| rendered_url.extension.is_some()) else { return Ok(()) };
        prop_assert_eq!(reading.extension, rendered_url.extension.as_deref());
        prop_assert!(split_selectors(reading.selectors.unwrap_or_default()).ends_with(&rendered_url.selectors));
        let decided = models.iter().rev().find(|model| model.matches(&reading, cut_view));
        prop_assert!(
            decided.is_none_or(|model| model.verdict == RuleVerdict::Allow),
            "{} draws {:?}, against {:?}", url, rendered_url, decided
        );
    }
}
