//! Which farm takes a request (`FA`), and whether it may pass (`FI`).

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tympan_dispatcher::any_syntax::{ConfigEnvironment, ConfigSources};
use tympan_dispatcher::config::DispatcherConfig;
use tympan_dispatcher::{FarmMatch, RequestAction, RequestView, decide_request};
use tympan_testkit::fixture_folder::fixture_folder;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Setup, load};

fn request(method: &str, url: &str) -> Option<RequestView> {
    RequestView::from_url(method.parse::<Method>().unwrap(), url, HeaderMap::new()).ok()
}

/// Farms named `a`, `b`, ... in this order, with these entries.
fn farms(entries: &[&[&str]]) -> DispatcherConfig {
    let farms: String = entries
        .iter()
        .zip('a'..)
        .map(|(entries, name)| {
            let hosts: String = entries.iter().map(|entry| format!("\"{entry}\" ")).collect();
            format!("/{name} {{ /virtualhosts {{ {hosts} }} /renders {{ /hostname \"h\" }} }}\n")
        })
        .collect();
    let loaded = load(&format!("/farms {{ {farms} }}"));
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    loaded.config
}

fn farm_of(config: &DispatcherConfig, url: &str) -> (String, FarmMatch) {
    let request = request("GET", url).unwrap();
    let decision = decide_request(config, &request).unwrap();
    (decision.farm.name.clone(), decision.farm_match)
}

fn check_farm(config: &DispatcherConfig, url: &str, expected: &str) {
    assert_eq!(farm_of(config, url), (expected.to_owned(), FarmMatch::Matched), "{url}");
}

#[test]
fn fa38_the_last_farm_is_asked_first() {
    let config = farms(&[&["*"], &["www.a.com", "*.b.com"], &["www.a.com"]]);
    check_farm(&config, "http://www.a.com/", "c");
    check_farm(&config, "http://www.b.com/", "b");
    check_farm(&config, "http://other/", "a");
    check_farm(&config, "http://WWW.B.COM/", "b");
}

#[test]
fn fa39_an_entry_with_a_path_goes_before_one_without() {
    let config = farms(&[&["www.mycompany.com/products/*"], &["www.mycompany.com"]]);
    check_farm(&config, "http://www.mycompany.com/products/gloves.html", "a");
    check_farm(&config, "http://www.mycompany.com/about.html", "b");
    let config = farms(&[&["/path1/invalidate.cache"], &["*"]]);
    check_farm(&config, "http://flush/path1/invalidate.cache", "a");
    check_farm(&config, "http://flush/path2/invalidate.cache", "b");
}

#[test]
fn fa40_an_entry_may_ask_for_a_scheme() {
    let config = farms(&[&["http://*"], &["https://*"]]);
    check_farm(&config, "http://x/", "a");
    check_farm(&config, "https://x/", "b");
    let config = farms(&[&["https://www.a.com"], &["www.a.com"]]);
    check_farm(&config, "https://www.a.com/", "a");
    check_farm(&config, "http://www.a.com/", "b");
}

#[test]
fn fa41_a_port_counts_only_where_an_entry_names_one() {
    let config = farms(&[&["*"], &["myhost:8888/mysite"], &["other"]]);
    check_farm(&config, "http://myhost:8888/mysite/x.html", "b");
    check_farm(&config, "http://myhost:9999/mysite/x.html", "a");
    check_farm(&config, "http://other:1234/", "c");
    let config = farms(&[&["*:80"], &["*:443"]]);
    check_farm(&config, "https://x/", "b");
    check_farm(&config, "http://x/", "a");
    check_farm(&config, "http://[::1]:443/", "b");
}

#[test]
fn fa41_a_host_alone_is_better_than_nothing() {
    let config = farms(&[&["www.a.com/products/*"], &["www.b.com"]]);
    check_farm(&config, "http://www.a.com/about.html", "a");
}

#[test]
fn fa42_fa43_without_a_match_the_last_farm_stands_in() {
    let config = farms(&[&["www.a.com"], &["www.b.com"]]);
    let expected = ("b".to_owned(), FarmMatch::Default);
    assert_eq!(farm_of(&config, "http://flush/"), expected);
    assert_eq!(farm_of(&config, "/"), expected);
    let config = farms(&[&["www.a.com"], &["flush"], &["www.b.com"]]);
    check_farm(&config, "http://flush/dispatcher/invalidate.cache", "b");
}

fn filtered(rules: &str) -> DispatcherConfig {
    let text = format!(
        "/farms {{ /f {{ /virtualhosts {{ \"*\" }} /renders {{ /hostname \"h\" }} {rules} }} }}"
    );
    let loaded = load(&text);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    loaded.config
}

/// Tells whether a request reaches the render.
fn passes(config: &DispatcherConfig, line: &str) -> bool {
    let (method, url) = line.split_once(' ').unwrap_or(("GET", line));
    let Some(request) = request(method, url) else {
        return false;
    };
    match decide_request(config, &request).unwrap().action {
        RequestAction::Pass(_) | RequestAction::Cache(_) => true,
        RequestAction::Refuse(_) | RequestAction::RefuseReserved | RequestAction::Purge => false,
    }
}

fn check_filter(rules: &[&str], passing: &[&str], refused: &[&str]) {
    let text: String = rules
        .iter()
        .enumerate()
        .map(|(index, rule)| format!("/{index:04} {{ {rule} }}\n"))
        .collect();
    let config = filtered(&format!("/filter {{ {text} }}"));
    for line in passing {
        assert!(passes(&config, line), "{rules:?} should let {line} pass");
    }
    for line in refused {
        assert!(!passes(&config, line), "{rules:?} should refuse {line}");
    }
}

const DENY_ALL: &str = "/type \"deny\" /url \"*\"";
const ALLOW_ALL: &str = "/type \"allow\" /url \"*\"";

#[test]
fn fi44_the_last_matching_rule_wins() {
    let rules =
        [DENY_ALL, "/type \"allow\" /url \"/content/*\"", "/type \"deny\" /url \"/content/x*\""];
    check_filter(&rules, &["/content/a.html"], &["/content/x.html", "/libs/a.html"]);
    check_filter(&[ALLOW_ALL, DENY_ALL], &[], &["/"]);
}

#[test]
fn fi45_fi46_no_match_refuses_and_no_section_passes() {
    check_filter(&["/type \"allow\" /url \"/a\""], &["/a"], &["/b"]);
    check_filter(&[], &[], &["/"]);
    assert!(passes(&filtered(""), "/libs/x.json"));
}

#[test]
fn fi47_a_glob_sees_the_whole_request_line() {
    let rules = [ALLOW_ALL, "/type \"deny\" /glob \"* /index.html *\""];
    check_filter(&rules, &["/index.html?a=b"], &["/index.html", "POST /index.html"]);
}

#[test]
fn fi48_a_url_rule_ignores_the_query() {
    let rules = [ALLOW_ALL, "/type \"deny\" /method \"GET\" /url \"/index.html\""];
    check_filter(&rules, &["POST /index.html"], &["/index.html", "/index.html?a=b"]);
}

#[test]
fn fi49_fi50_a_query_rule_needs_a_query() {
    let rules = [DENY_ALL, "/type \"allow\" /method \"GET\" /url \"/path.html\" /query \"a=*\""];
    check_filter(&rules, &["/path.html?a=b"], &["/path.html", "/path.html?b=a"]);
    let rules = [
        DENY_ALL,
        "/type \"allow\" /method \"POST\" /url \"/etc/*\"",
        "/type \"allow\" /method \"GET\" /url \"/path.html\"",
        "/type \"deny\" /method \"GET\" /url \"/path.html\" /query \"debug=*\"",
    ];
    check_filter(&rules, &["/path.html", "/path.html?x=y", "POST /etc/a"], &["/path.html?debug=1"]);
}

#[test]
fn fi51_fi52_a_glob_on_an_absent_element() {
    check_filter(
        &[ALLOW_ALL, "/type \"deny\" /selectors \"*\""],
        &["/a.html", "/a"],
        &["/a.b.html"],
    );
    let rules = [DENY_ALL, "/type \"allow\" /extension \"html\" /selectors \"\" /suffix \"\""];
    check_filter(&rules, &["/a.html"], &["/a.b.html", "/a.html/c", "/a"]);
    let rules = [DENY_ALL, "/type \"allow\" /extension '()'"];
    check_filter(&rules, &["/a"], &["/a.html"]);
}

#[test]
fn fi53_one_bad_selector_is_enough_to_deny() {
    let rules = [
        ALLOW_ALL,
        "/type \"deny\" /selectors '((sys|doc)view|query|[0-9-]+)' /extension '(json|xml)'",
    ];
    check_filter(
        &rules,
        &["/content.tidy.json", "/content.json"],
        &["/content.tidy.-1.blubber.json", "/content.-1.json", "/content.a.sysview.xml"],
    );
}

#[test]
fn fi54_every_selector_must_be_good_to_allow() {
    let rules = [DENY_ALL, "/type \"allow\" /selectors '(print|a4|small)' /extension 'html'"];
    check_filter(
        &rules,
        &["/a.print.html", "/a.print.a4.html"],
        &["/a.print.infinity.html", "/a.html"],
    );
    let rules = [DENY_ALL, "/type \"allow\" /selectors \"print.a4\" /extension \"html\""];
    check_filter(&rules, &["/a.print.a4.html"], &["/a.print.html", "/a.print.a4.x.html"]);
}

#[test]
fn fi55_to_fi57_other_spellings_of_one_path() {
    let rules = [
        ALLOW_ALL,
        "/type \"deny\" /selectors \"query\" /extension \"json\"",
        "/type \"deny\" /url \"/libs/*\"",
    ];
    check_filter(
        &rules,
        &["/content/page.html"],
        &[
            "/content/page.qu%65ry.js%6Fn",
            "/content/../libs/x",
            "/content/%2e%2e/libs/x",
            "//libs//x",
            "/./libs/x",
            "/content/..;/libs/x",
            "/a/..;x=y/b",
            "/%2e%2e/libs/x",
            "/content%2f..%2flibs/x",
        ],
    );
    let rules = [
        ALLOW_ALL,
        "/type \"deny\" /url '.*/[.][.];/.*'",
        "/type \"deny\" /url '.*/[.].*[.].*/.*'",
    ];
    check_filter(&rules, &["/content/a.html"], &["/content/.{.}/libs/x", "/a/..;/b"]);
}

#[test]
fn fi58_fi59_the_caches_own_files_are_never_shown() {
    check_filter(
        &[ALLOW_ALL],
        &["/a.html", "/a.h", "/stat"],
        &["/.stat", "/content/.stat", "/a.html.h", "/a.html.ttl", "/.tympan-tmp/1-2", "/%2estat"],
    );
    let single = filtered("/cache { /docroot \"/var/www\" /statfile \"/var/www/x/my.stat\" }");
    assert!(!passes(&single, "/x/my.stat"));
    assert!(passes(&single, "/x/other.stat"));
}

#[test]
fn fi45_a_refusal_is_not_found_and_reaches_no_render() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = Front::start(&Setup {
        farm: "/filter { /0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/content/*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    front.write("libs/x.html", "in the cache from before");
    assert_eq!(front.get("/libs/x.html").status, 404);
    assert_eq!(front.get("/content/../libs/x.html").status, 404);
    assert_eq!(front.get("/content/%2e%2e/%2e%2e/etc/passwd").status, 400);
    assert_eq!(front.get("/content/a%00.html").status, 400);
    assert_eq!(origin.request_count(), 0);
    assert_eq!(front.get("/content/a.html").status, 200);
    assert_eq!(front.metric("refused_total"), 4);
}

#[test]
fn fi60_a_public_cloud_filter_holds_off_the_documented_attacks() {
    let Some(folder) = fixture_folder("dispatcher") else { return };
    let file = folder.join(
        "adobe__aem-project-archetype/src/main/archetype/dispatcher.cloud/src/conf.dispatcher.d/filters/filters.any",
    );
    let text = format!(
        "/farms {{ /f {{ /virtualhosts {{ \"*\" }} /renders {{ /hostname \"h\" }} /filter {{ $include \"{}\" }} }} }}",
        file.display()
    );
    let sources = ConfigSources { environment: ConfigEnvironment::default(), root: None };
    let loaded = DispatcherConfig::parse(text.as_bytes(), "x.any".as_ref(), &sources);
    let rules = loaded.config.farms[0].filter.as_ref().unwrap();
    assert!(rules.len() > 20, "{}", rules.len());
    // `check` tries the documented list.
    let found: Vec<String> =
        tympan_dispatcher::check_config(&loaded).iter().map(ToString::to_string).collect();
    let open: Vec<&String> =
        found.iter().filter(|found| found.contains("reach the renders")).collect();
    assert_eq!(open, Vec::<&String>::new());
    for line in [
        "/content/add_valid_page.query.json?statement=//*[@transportPassword]/(@transportPassword%20|%20@transportUri%20|%20@transportUser)",
        "POST /content/usergenerated/etc/commerce/smartlists/vouchers.json",
    ] {
        assert!(!passes(&loaded.config, line), "{line}");
    }
    for line in ["/content/site/en.html", "/etc.clientlibs/site/main.js", "/content/dam/a.jpg"] {
        assert!(passes(&loaded.config, line), "{line}");
    }
}

#[test]
fn fi61_a_vanity_url_passes_although_the_filter_denies_it() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/libs/granite/dispatcher/content/vanityUrls.html" => {
            OriginResponse::html("/hello\n/world\n")
        }
        target => OriginResponse::html(format!("page {target}")),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("vanity_urls");
    let text = format!(
        "/filter {{ /0 {{ /type \"deny\" /url \"*\" }} }}
         /vanity_urls {{ /url \"/libs/granite/dispatcher/content/vanityUrls.html\" /file \"{}\" /delay 300 }}",
        file.display()
    );
    let setup = Setup {
        farm: Box::leak(text.into_boxed_str()),
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    let front = Front::start(&setup);
    origin.wait_for_requests(1);
    while !file.exists() {
        std::thread::yield_now();
    }
    assert_eq!(front.get("/hello").body, "page /hello");
    assert_eq!(front.get("/other").status, 404);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "/hello\n/world\n");
    drop(origin);
    let offline = Front::start(&setup);
    assert_eq!(offline.get("/world").status, 502, "it passes, though no render lives");
}

#[test]
fn a_flush_is_known_by_its_headers_and_method() {
    let is_flush = |method: &str, names: &[&'static str]| {
        let headers: HeaderMap = names
            .iter()
            .map(|name| (HeaderName::from_static(name), HeaderValue::from_static("Delete")))
            .collect();
        let method = method.parse::<Method>().unwrap();
        let view = RequestView::from_url(method, "/any/path", headers).unwrap();
        tympan_dispatcher::is_flush(&view)
    };
    assert!(is_flush("POST", &["cq-action", "cq-handle"]));
    assert!(is_flush("GET", &["cq-action"]));
    assert!(!is_flush("PUT", &["cq-action", "cq-handle"]));
    assert!(!is_flush("POST", &["cq-handle"]));
}

#[test]
fn the_render_gets_the_readings_that_the_filter_refuses() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.header("x-tympan-refused-readings").unwrap_or("none").to_owned())
    });
    let front = Front::start(&Setup {
        farm: "/filter { /0 { /type \"deny\" /url \"*\" }
            /1 { /type \"allow\" /path \"/content/*\" /extension '(html|jpg)' } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let asked =
        |target: &str| front.send("GET", target, &[("X-Tympan-Refused-Readings", "0")], "").body;
    assert_eq!(asked("/content/dam/a.jpg/jcr:content.json"), "0");
    assert_eq!(asked("/content/dam/a.jpg/b.json/c.html"), "1");
    // What a visitor says of it counts for nothing.
    assert_eq!(asked("/content/a.html"), "none");
}
