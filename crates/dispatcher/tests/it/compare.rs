//! What a changed configuration would decide otherwise.

use std::path::Path;

use tympan_dispatcher::any_syntax::{ConfigSources, parse_text};
use tympan_dispatcher::{ComparedConfig, ConfigComparison, DispatcherSettings, compare_configs};

use crate::front::load;

const RULES: &str = "
/0 { /type \"deny\" /url \"*\" }
/1 { /type \"allow\" /path \"/content/*\" /extension '(html|png)' }
/2 { /type \"deny\" /selectors \"tidy\" /extension \"json\" }
";

fn farm(rules: &str, cache: &str) -> String {
    format!(
        "/farms {{ /site {{
            /clientheaders {{ \"*\" }} /virtualhosts {{ \"www.example.com\" }}
            /renders {{ /r {{ /hostname \"127.0.0.1\" /port 1 }} }}
            /filter {{ {rules} }}
            /cache {{
                /docroot \"/docroot\"
                /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }}
                /invalidate {{ /0 {{ /type \"allow\" /glob \"*.html\" }} }}
                /allowedClients {{ /0 {{ /type \"allow\" /glob \"127.0.0.1\" }} }}
                {cache}
            }}
        }} }}"
    )
}

fn run(old: &str, new: &str, settings: [&str; 2], urls: &[&str]) -> ConfigComparison {
    let sources = ConfigSources::default();
    let read = |text: &str, settings: DispatcherSettings| ComparedConfig {
        syntax_tree: parse_text(text.as_bytes(), Path::new("x.any"), &sources).block,
        config: load(text).config,
        settings,
    };
    let [old_settings, new_settings] = settings.map(|text| toml::from_str(text).unwrap());
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    compare_configs(&read(old, old_settings), &read(new, new_settings), &urls).unwrap()
}

fn requests(comparison: &ConfigComparison) -> Vec<&str> {
    comparison.requests.iter().map(|change| change.request.as_str()).collect()
}

#[test]
fn equal_configurations_decide_alike_wherever_their_keys_stand() {
    let text = farm(RULES, "/gracePeriod 2");
    let moved = text.replace("/clientheaders", "\n\n# a comment\n/clientheaders");
    let comparison = run(&text, &moved, ["", ""], &["/content/a.html"]);
    assert_eq!((comparison.keys.len(), comparison.requests.len()), (0, 0), "{comparison:?}");
    assert!(comparison.tried > 50, "{}", comparison.tried);
}

#[test]
fn a_rule_that_opens_something_shows_without_a_url_for_it() {
    let opened = format!("{RULES} /3 {{ /type \"allow\" /url \"/secret/*\" }}");
    let comparison = run(&farm(RULES, ""), &farm(&opened, ""), ["", ""], &[]);
    let keys: Vec<String> = comparison.keys.iter().map(ToString::to_string).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let expected = "+ /farms/site/filter/3 { /type \"allow\" /url \"/secret/*\" }  (x.any:";
    assert!(keys[0].starts_with(expected), "{keys:?}");
    let found = requests(&comparison);
    assert_eq!(
        found,
        ["GET http://unknown.invalid/secret/x", "GET http://www.example.com/secret/x"]
    );
    let change = &comparison.requests[1];
    assert!(change.old.starts_with("farm /site: refused, by /0 (test.any:"), "{}", change.old);
    let expected =
        "farm /site: forwarded, not cacheable: request URL is missing extension, by /3 (";
    assert!(change.new.starts_with(expected), "{}", change.new);
}

#[test]
fn each_kind_of_difference_shows_in_the_requests_that_it_concerns() {
    let check = |old: &str, new: &str, settings, url: &str, expected: [&str; 2]| {
        let comparison = run(old, new, settings, &[url]);
        let named = format!("GET {url}");
        let change = comparison.requests.iter().find(|change| change.request == named);
        let change = change.unwrap_or_else(|| panic!("{url} in {comparison:?}"));
        for (told, expected) in [&change.old, &change.new].into_iter().zip(expected) {
            assert!(told.contains(expected), "{expected} in {told}");
        }
    };
    let plain = farm(RULES, "");
    let at = |path: &str| format!("http://www.example.com{path}");
    // A misplaced rule, an order, a key of the cache.
    let closed = farm(&RULES.replace("html|png", "png"), "");
    check(
        &plain,
        &closed,
        ["", ""],
        &at("/content/a.html"),
        ["cached as /docroot/content/a.html", "refused, by /0"],
    );
    let swapped = RULES.replace("/0 ", "/9 ");
    let (first, rest) = swapped.trim_start().split_once('\n').unwrap();
    let reordered = farm(&format!("{rest}{first}"), "");
    check(&plain, &reordered, ["", ""], &at("/content/a.html"), ["cached", "refused, by /9"]);
    let ignoring = farm(RULES, "/ignoreUrlParams { /0 { /type \"allow\" /glob \"utm_*\" } }");
    check(&plain, &ignoring, ["", ""], &at("/content/a.html?utm_x=1"), ["query string", "cached"]);
    let calm = farm(RULES, "/invalidate { /0 { /type \"deny\" /glob \"*\" } }");
    check(
        &plain,
        &calm,
        ["", ""],
        &at("/content/a.html"),
        ["obeys .stat files", "obeys no .stat file"],
    );
    // Another farm takes the host over.
    let more = plain.trim_end().strip_suffix('}').unwrap().to_owned()
        + "/other { /virtualhosts { \"www.example.com/content/new\" } /renders { /r { /hostname \"h\" } } } }";
    check(&plain, &more, ["", ""], &at("/content/new/a.html"), ["farm /site", "farm /other"]);
    // Rules of `tympan.toml`.
    let moved = "[[host]]\n[[host.rule]]\nmatch = '^/content/a'\nredirect = \"/b\"\n";
    check(
        &plain,
        &plain,
        ["", moved],
        &at("/content/a.html"),
        ["cached", "redirected with 302 to"],
    );
}

#[test]
fn rules_in_another_order_are_reported_as_such() {
    let rules = "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/a*\" }";
    let swapped = "/1 { /type \"allow\" /url \"/a*\" } /0 { /type \"deny\" /url \"*\" }";
    let comparison = run(&farm(rules, ""), &farm(swapped, ""), ["", ""], &[]);
    let keys: Vec<String> = comparison.keys.iter().map(ToString::to_string).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys[0].starts_with("~ /farms/site/filter  (x.any:"), "{keys:?}");
    assert!(requests(&comparison).contains(&"GET http://www.example.com/ax"), "{comparison:?}");
}
