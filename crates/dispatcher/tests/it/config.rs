//! The brace language and what its keys mean (`CF`).

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use tympan_dispatcher::any_syntax::{
    ConfigEnvironment, ConfigSources, ConfigValue, DiagnosticSeverity, parse_text,
};
use tympan_dispatcher::check_config;
use tympan_dispatcher::config::{
    ClientHeaderPolicy, DispatcherConfig, LoadedConfig, StatFileLayout,
};

fn load(text: &str) -> LoadedConfig {
    DispatcherConfig::parse(text.as_bytes(), Path::new("x.any"), &ConfigSources::default())
}

/// Writes files and loads the first one.
fn load_files(files: &[(&str, &str)], environment: &[(&str, &str)]) -> (LoadedConfig, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    let sources = ConfigSources {
        environment: environment.iter().copied().collect::<ConfigEnvironment>(),
        root: None,
    };
    let loaded = DispatcherConfig::load(&folder.path().join(files[0].0), &sources);
    (loaded, folder)
}

/// The findings as `line:column severity message`.
fn findings(loaded: &LoadedConfig) -> Vec<String> {
    loaded
        .diagnostics
        .iter()
        .map(|found| {
            let severity =
                if found.severity == DiagnosticSeverity::Error { "error" } else { "warning" };
            let name = found.position.file.file_name().unwrap().to_str().unwrap();
            format!(
                "{name}:{}:{} {severity} {}",
                found.position.line, found.position.column, found.message
            )
        })
        .collect()
}

fn hosts(loaded: &LoadedConfig) -> Vec<String> {
    let farm = &loaded.config.farms[0];
    farm.virtual_hosts.iter().map(|host| host.source.clone()).collect()
}

/// A farm that gives no findings of its own.
fn farm(body: &str) -> String {
    format!(
        "/farms {{ /f {{ /virtualhosts {{ \"*\" }} /renders {{ /hostname \"h\" }}\n{body} }} }}"
    )
}

#[test]
fn cf01_white_space_only_separates() {
    let texts = [
        "/farms { /f { /virtualhosts { \"a\" \"b\" } /renders { /r { /hostname \"h\" } } } }",
        "/farms{/f{/virtualhosts{\"a\" \"b\"}/renders{/r{/hostname \"h\"}}}}",
        "\u{feff}/farms\r\n{\r\n\t/f\t{ /virtualhosts\n{\n\"a\"\n\"b\"\n}\n/renders { /r\n{ /hostname\n\"h\"\n} } } }",
    ];
    for text in texts {
        let loaded = load(text);
        assert_eq!(findings(&loaded), Vec::<String>::new(), "{text}");
        assert_eq!(hosts(&loaded), ["a", "b"], "{text}");
        assert_eq!(loaded.config.farms[0].renders[0].hostname, "h", "{text}");
    }
}

#[test]
fn cf02_a_comment_may_touch_a_token() {
    let loaded = load(&farm("/retryDelay 350# text } { \"\n# more\n/failover 1"));
    assert_eq!(findings(&loaded), Vec::<String>::new());
    assert_eq!(loaded.config.farms[0].retry_delay, Duration::from_secs(350));
    assert!(loaded.config.farms[0].has_failover);
}

#[test]
fn cf03_a_value_may_stand_on_the_next_line() {
    let loaded = load(&farm("/retryDelay\n\n  \"7\""));
    assert_eq!(loaded.config.farms[0].retry_delay, Duration::from_secs(7));
}

#[test]
fn cf04_one_and_two_backslashes_mean_the_same() {
    let text = |pattern: &str| {
        let source = format!("/x '{pattern}'");
        let parsed = parse_text(source.as_bytes(), Path::new("x"), &ConfigSources::default());
        match &parsed.block.items[0].value {
            ConfigValue::Text(text) => text.text.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(text(r".*\\.(css|js)$"), r".*\.(css|js)$");
    assert_eq!(text(r".*\.(css|js)$"), r".*\.(css|js)$");
    assert_eq!(text(r"it\'s"), "it's");
    assert_eq!(text("\\\"x\\d\\\\"), "\"x\\d\\");
}

#[test]
fn cf05_numbers_and_words_need_no_quotes() {
    let loaded = load(&farm(
        "/clientheaders { Host Cookie } /cache { /docroot /tmp/x /mode 0750 /gracePeriod 2 /statfileslevel 3 /enableTTL true }",
    ));
    let farm = &loaded.config.farms[0];
    assert_eq!(farm.client_headers, ClientHeaderPolicy::Only(vec!["host".into(), "cookie".into()]));
    let cache = farm.cache.as_ref().unwrap();
    assert_eq!(cache.mode, 0o750);
    assert_eq!(cache.grace_period, Duration::from_secs(2));
    assert_eq!(cache.stat_files, StatFileLayout::Level(3));
    assert!(cache.enable_ttl);
}

#[test]
fn a_port_that_nothing_can_have_is_reported() {
    for port in ["0", "65536", "99999"] {
        let render = format!("/renders {{ /hostname \"h\" /port \"{port}\" }}");
        let loaded = load(&format!("/farms {{ /f {{ /virtualhosts {{ \"*\" }} {render} }} }}"));
        let expected = format!("`/port` must be a number from 1 to 65535, not `{port}`");
        assert!(findings(&loaded).iter().any(|line| line.contains(&expected)), "{port}");
    }
}

#[test]
fn the_host_of_a_render_is_a_name_or_an_address() {
    let check = |host: &str, expected: &str, is_told: bool| {
        let render = format!("/renders {{ /hostname \"{host}\" /port \"4503\" }}");
        let loaded = load(&format!("/farms {{ /f {{ /virtualhosts {{ \"*\" }} {render} }} }}"));
        assert_eq!(loaded.config.farms[0].renders[0].hostname, expected);
        let found = findings(&loaded);
        assert_eq!(
            found.iter().any(|line| line.contains("must be only a name or an address")),
            is_told,
            "{found:?}"
        );
    };
    check("publish-1.example_net", "publish-1.example_net", false);
    check("127.0.0.1", "127.0.0.1", false);
    check(" 127.0.0.1 ", "127.0.0.1", false);
    check("::1", "[::1]", false);
    check("[2001:db8::1]", "[2001:db8::1]", false);
    check("${RENDER}", "${RENDER}", false);
    for host in ["http://publish", "publish:4503", "publish/site", "u@publish", "pub lish"] {
        check(host, host, true);
    }
}

#[test]
fn cf06_variables_stand_in_values_and_in_include_paths() {
    let main = "/farms { $include \"${KIND}.any\" }";
    let inner =
        "/f { /virtualhosts { \"www.${NAME}.com\" bare-${NAME} } /renders { /hostname \"h\" } }";
    let environment = [("KIND", "publish"), ("NAME", "acme")];
    let (loaded, _folder) = load_files(&[("main.any", main), ("publish.any", inner)], &environment);
    assert_eq!(findings(&loaded), Vec::<String>::new());
    assert_eq!(hosts(&loaded), ["www.acme.com", "bare-acme"]);
}

#[test]
fn cf07_an_unknown_variable_is_kept_and_reported() {
    let loaded = load(&farm("/name2 \"x\""));
    assert_eq!(loaded.config.farms[0].renders.len(), 1);
    let loaded = load(&farm(
        "/cache { /docroot \"/tmp/x\" /allowedClients { /0 { /type \"allow\" /glob \"${AEM_IP}\" } } }",
    ));
    assert_eq!(findings(&loaded), ["x.any:2:71 warning the variable `AEM_IP` is not set"]);
    let cache = loaded.config.farms[0].cache.as_ref().unwrap();
    let clients = cache.allowed_clients.as_ref().unwrap();
    assert!(clients.allows("${AEM_IP}") && !clients.allows("127.0.0.1"));
}

#[test]
fn cf08_cf09_includes_are_relative_to_their_file_and_sorted() {
    let farm = |name: &str| {
        format!(
            "/{name} {{ /virtualhosts {{ $include \"../hosts/{name}.any\" }} /renders {{ /hostname \"h\" }} }}"
        )
    };
    let (a, b) = (farm("a"), farm("b"));
    let files = [
        ("conf/main.any", "/farms { $include \"farms/*_farm.any\" }"),
        ("conf/farms/999_farm.any", b.as_str()),
        ("conf/farms/000_farm.any", a.as_str()),
        ("conf/farms/.hidden_farm.any", "}"),
        ("conf/hosts/a.any", "\"a.example\""),
        ("conf/hosts/b.any", "\"b.example\""),
    ];
    let (loaded, _folder) = load_files(&files, &[]);
    assert_eq!(findings(&loaded), Vec::<String>::new());
    let names: Vec<&str> = loaded.config.farms.iter().map(|farm| farm.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(hosts(&loaded), ["a.example"]);
}

#[test]
fn cf10_a_pattern_may_match_nothing_but_a_file_must_be_there() {
    let main = "/farms {\n  $include \"none/*.any\"\n  $include \"missing.any\"\n}";
    let (loaded, folder) = load_files(&[("main.any", main)], &[]);
    let missing = folder.path().join("missing.any");
    let expected = format!(
        "main.any:3:12 error cannot read `{}`: No such file or directory (os error 2)",
        missing.display()
    );
    assert_eq!(findings(&loaded)[0], expected);
    assert!(loaded.has_errors());
}

#[test]
fn cf11_files_that_include_each_other_are_refused() {
    let files = [("a.any", "$include \"b.any\""), ("b.any", "\n$include \"a.any\"")];
    let (loaded, _folder) = load_files(&files, &[]);
    let found = findings(&loaded);
    assert!(
        found[0].starts_with("b.any:2:10 error") && found[0].ends_with("includes itself"),
        "{found:?}"
    );
}

#[test]
fn cf12_an_unknown_key_is_skipped_with_its_block() {
    let loaded =
        load(&farm("/_cache { /rules { } }\n/0003 { /type \"deny\" }\n/failovr 1\n/info 1"));
    assert_eq!(
        findings(&loaded),
        [
            "x.any:2:1 warning entry not recognized: '/_cache'; it is skipped; did you mean `/cache`?",
            "x.any:3:1 warning entry not recognized: '/0003'; it is skipped",
            "x.any:4:1 warning entry not recognized: '/failovr'; it is skipped; did you mean `/failover`?",
        ]
    );
    assert!(loaded.config.farms[0].answers_info_requests);
    assert!(loaded.config.farms[0].cache.is_none());
    assert!(!loaded.has_errors());
}

#[test]
fn cf13_cf14_renders_need_no_labels() {
    let check = |renders: &str, expected: &[(&str, &str, u16)]| {
        let text =
            format!("/farms {{ /f {{ /virtualhosts {{ \"*\" }} /renders {{ {renders} }} }} }}");
        let loaded = load(&text);
        assert_eq!(findings(&loaded), Vec::<String>::new(), "{renders}");
        let found: Vec<_> = loaded.config.farms[0]
            .renders
            .iter()
            .map(|render| (render.name.as_str(), render.hostname.as_str(), render.port))
            .collect();
        assert_eq!(found, expected, "{renders}");
    };
    check("{ /hostname \"a\" } { /hostname \"b\" /port 1 }", &[("0", "a", 80), ("1", "b", 1)]);
    check("/hostname \"a\" /port \"4503\"", &[("0", "a", 4503)]);
    check("/r { /hostname \"a\" /secure 1 }", &[("r", "a", 443)]);
}

#[test]
fn cf15_both_ways_to_name_sticky_folders_add_up() {
    let loaded = load(&farm(
        "/stickyConnectionsFor \"/a\" /stickyConnections { /paths { \"/b\" \"/c\" } /httpOnly 1 }",
    ));
    let sticky = &loaded.config.farms[0].sticky;
    assert_eq!(sticky.paths, ["/a", "/b", "/c"]);
    assert!(sticky.is_http_only && !sticky.is_always_secure);
}

#[test]
fn cf16_a_binary_file_is_refused_by_line() {
    let loaded = DispatcherConfig::parse(
        b"/farms {\n\x89PNG\0",
        Path::new("x.any"),
        &ConfigSources::default(),
    );
    assert_eq!(findings(&loaded)[0], "x.any:2:1 error the file is binary; a text file is expected");
}

#[test]
fn cf17_a_missing_brace_names_where_it_opened() {
    let loaded = load("/farms {\n  /f {\n    /renders { /hostname \"h\"\n  }\n}");
    let found = findings(&loaded);
    assert!(
        found[0].starts_with("x.any:1:8 error the `{` opened here is never closed"),
        "{found:?}"
    );
    let loaded = load("/farms { } }\n/name \"x\"");
    assert_eq!(findings(&loaded)[0], "x.any:1:12 error unmatched `}`; remove it");
    assert_eq!(loaded.config.name.as_deref(), Some("x"));
}

#[test]
fn cf17_an_open_string_does_not_swallow_the_lines_below() {
    let loaded = load("/name \"x\n/ignoreEINTR 7\n");
    let found = findings(&loaded);
    assert_eq!(found[0], "x.any:1:7 error the string is not closed; add a \"");
    assert_eq!(found[1], "x.any:2:14 warning `/ignoreEINTR` must be `1` or `0`, not `7`");
}

#[test]
fn cf18_a_link_that_was_checked_out_as_text_is_followed() {
    let files = [
        ("conf/main.any", "/farms { $include \"enabled/*.farm\" }"),
        ("conf/enabled/default.farm", "../available/default.farm\n"),
        (
            "conf/available/default.farm",
            "/f { /virtualhosts { $include \"../hosts.any\" } /renders { /hostname \"h\" } }",
        ),
        ("conf/hosts.any", "\"a.example\""),
    ];
    let (loaded, _folder) = load_files(&files, &[]);
    let found = findings(&loaded);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("default.farm:1:1 warning the file contains only the path"),
        "{found:?}"
    );
    assert_eq!(hosts(&loaded), ["a.example"]);
}

#[test]
fn cf19_the_ninth_category_does_not_count() {
    let categories: String =
        (1..=9).map(|number| format!("/c{number} {{ /glob \"*\" }}\n")).collect();
    let loaded = load(&farm(&format!("/statistics {{ /categories {{\n{categories}}} }}")));
    assert_eq!(loaded.config.farms[0].categories.len(), 8);
    assert_eq!(
        findings(&loaded),
        ["x.any:11:1 warning only 8 categories are supported; this one is ignored"]
    );
}

#[test]
fn absolute_includes_can_be_looked_up_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("etc/httpd")).unwrap();
    std::fs::write(folder.path().join("etc/httpd/name.any"), "/name \"found\"").unwrap();
    let sources =
        ConfigSources { root: Some(folder.path().to_owned()), ..ConfigSources::default() };
    let text = b"$include \"/etc/httpd/name.any\"";
    let loaded = DispatcherConfig::parse(text, Path::new("x.any"), &sources);
    assert_eq!(loaded.config.name.as_deref(), Some("found"));
}

#[test]
fn text_after_a_quote_and_values_without_a_key_are_reported() {
    let loaded = load("/name \"x\"y \"z\"");
    assert_eq!(
        findings(&loaded)[..2],
        [
            "x.any:1:10 warning `y` after the closing quote is ignored",
            "x.any:1:12 warning a value without a key is skipped; put a `/key` before it",
        ]
    );
}

#[test]
fn two_farms_of_one_name_are_refused() {
    let loaded = load("/farms { /f { } /f { } }");
    assert!(findings(&loaded).iter().any(|found| found.contains("a farm `/f` already exists")));
    assert!(loaded.has_errors());
}

#[test]
fn defaults_are_the_documented_ones() {
    let loaded = load(&farm("/cache { /docroot \"/tmp/x\" } /vanity_urls { /url \"/v\" }"));
    let farm = &loaded.config.farms[0];
    assert_eq!((farm.retry_delay, farm.retry_rounds), (Duration::from_secs(1), 5));
    assert_eq!(farm.unavailable_penalty, Duration::from_millis(100));
    assert!(!farm.has_failover && !farm.propagates_flushes && !farm.answers_info_requests);
    assert!(farm.filter.is_none());
    assert_eq!(farm.vanity_urls.as_ref().unwrap().fetch_interval, Duration::from_secs(300));
    let render = &farm.renders[0];
    assert_eq!(
        (render.connect_timeout, render.receive_timeout),
        (None, Some(Duration::from_secs(600)))
    );
    let cache = farm.cache.as_ref().unwrap();
    assert_eq!(cache.stat_files, StatFileLayout::Level(0));
    assert_eq!((cache.mode, cache.grace_period), (0o755, Duration::ZERO));
    assert!(!cache.allow_authorized && !cache.serve_stale_on_error && !cache.enable_ttl);
    assert!(cache.allowed_clients.is_none());
}

#[test]
fn a_rule_that_cannot_be_read_closes_rather_than_opens() {
    let loaded = load(&farm(
        "/filter { /0 { /url \"*\" } /1 { /type \"allow\" /glob \"*\" /url \"/x\" } /2 { /type \"allow\" /url '(' } }",
    ));
    let found = findings(&loaded);
    assert!(found[0].contains("no valid `/type`; it denies"), "{found:?}");
    assert!(found[1].contains("either `/glob` or single elements"), "{found:?}");
    assert!(found[2].contains("cannot read the regular expression '('"), "{found:?}");
    assert_eq!(loaded.config.farms[0].filter.as_ref().unwrap().len(), 2);
    assert!(loaded.has_errors());
}

#[test]
fn a_list_with_a_slip_closes_rather_than_opens() {
    let cache = |text: &str| {
        let loaded = load(&farm(&format!("/cache {{ /docroot \"/tmp/x\" {text} }}")));
        assert!(!findings(&loaded).is_empty(), "{text}");
        loaded.config.farms[0].cache.clone().unwrap()
    };
    // With a rule, the list is nobody's that the rule does not name.
    for clients in [
        "{ /0 { /typ \"allow\" /glob \"*\" } }",
        "{ /0 { /type \"alow\" /glob \"*\" } }",
        "{ /0 { /type \"allow\" /globb \"*\" } }",
        "{ /0 { /type \"allow\" /glob \"*\" } /1 { /type \"deny\" } }",
        "{ \"127.0.0.1\" }",
        "\"127.0.0.1\"",
    ] {
        let list = cache(&format!("/allowedClients {clients}")).allowed_clients.unwrap();
        assert!(!list.rules.is_empty() && !list.allows("127.0.0.1"), "{clients}");
    }
    let rules = "{ /0 { /type \"allow\" /glob \"*\" } /1 { /tipe \"deny\" /glob \"/my/*\" } }";
    let rules = cache(&format!("/rules {rules}")).rules;
    assert!(rules.allows("/a.html") && !rules.allows("/my/a.html"));
    let stale = "{ /0 { /type \"deny\" /glob \"*\" } /1 { /tipe \"allow\" /glob \"*.html\" } }";
    let stale = cache(&format!("/invalidate {stale}")).invalidate;
    assert!(stale.allows("/a.html") && !stale.allows("/a.png"));
}

#[test]
fn without_a_filter_that_can_be_read_every_page_is_asked_about() {
    for (filter, is_asked) in [
        ("", [true, true]),
        ("/filter { }", [true, true]),
        ("/filtr { /0 { /type \"deny\" /glob \"*\" } }", [true, true]),
        ("/filter { /0 { /typ \"deny\" /glob \"/my/*\" } }", [true, false]),
        ("/filter { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" } }", [true, true]),
        ("/filter { /0 { /type \"allow\" /glob \"*\" } /1 { /type \"deny\" } }", [true, true]),
        (
            "/filter { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob '(' } }",
            [true, true],
        ),
    ] {
        let loaded = load(&farm(&format!("/auth_checker {{ /url \"/check\" {filter} }}")));
        assert!(!findings(&loaded).is_empty(), "{filter}");
        let checker = loaded.config.farms[0].auth_checker.as_ref().unwrap();
        let asked = ["/my/a.html", "/a.html"].map(|path| checker.filter.allows(path));
        assert_eq!(asked, is_asked, "{filter}");
    }
    for section in ["filter", "auth_checker", "sessionmanagement"] {
        assert!(load(&farm(&format!("/{section} \"/x\""))).has_errors(), "{section}");
    }
}

#[test]
fn what_experience_warns_of_is_found() {
    let loaded = load(&farm(
        "/filter { /0 { /type \"allow\" /url \"*\" } }\n/cache { /docroot \"/tmp/x\" /allowAuthorized 1 }",
    ));
    let found: Vec<String> = check_config(&loaded).iter().map(ToString::to_string).collect();
    for expected in [
        "x.any:2:11: warning: the first rule of a filter should deny everything",
        "x.any:2:11: warning: this rule allows `GET /system/console` to reach the renders",
        "anyone may flush",
        "`/cache` has no `/rules`",
        "`/allowAuthorized` without `/auth_checker`",
    ] {
        assert!(found.iter().any(|line| line.contains(expected)), "{expected} in {found:#?}");
    }
}

#[test]
fn every_url_of_the_security_list_is_tried() {
    let open = load(&farm("/filter { /0 { /type \"allow\" /url \"*\" } }"));
    let found: Vec<String> = check_config(&open).iter().map(ToString::to_string).collect();
    let tried = found.iter().filter(|line| line.contains("reach the renders")).count();
    // The documented list has about 45.
    assert!(tried >= 45, "{tried}");
    for url in [
        "/crx",
        "/etc.xml",
        "/content/any/page.query.json?statement=//*",
        "/content/any/page.docview.xml",
        "/content/any/page.sysview.xml",
        "/content/.{.}/libs/foundation/components/text/text.jsp",
    ] {
        let expected = format!("this rule allows `GET {url}` to reach the renders");
        assert!(found.iter().any(|line| line.contains(&expected)), "{expected} in {found:#?}");
    }
}

#[test]
fn what_a_cache_leaves_to_renders_is_found() {
    let check = |cache: &str, expected: &str, is_found: bool| {
        let text = format!(
            "/cache {{ /docroot \"/tmp/x\" /invalidate {{ /0 {{ /type \"allow\" /glob \"*\" }} }} {cache} }}"
        );
        let found: Vec<String> =
            check_config(&load(&farm(&text))).iter().map(ToString::to_string).collect();
        assert_eq!(
            found.iter().any(|line| line.contains(expected)),
            is_found,
            "{cache}: {found:#?}"
        );
    };
    let grace = "no `/gracePeriod`, so each change of a batch";
    check("", grace, true);
    check("/gracePeriod \"0\"", grace, true);
    check("/gracePeriod \"2\"", grace, false);
    check("/x-flushWindow \"2\"", grace, false);
    let params = "`/ignoreUrlParams` ignores no parameter";
    let deny = "/0 { /type \"deny\" /glob \"*\" } /1 { /type \"deny\" /glob \"utm_campaign\" }";
    check(&format!("/ignoreUrlParams {{ {deny} }}"), params, true);
    let allow = "/2 { /type \"allow\" /glob \"utm_*\" }";
    check(&format!("/ignoreUrlParams {{ {deny} {allow} }}"), params, false);
    check("", params, false);
    check("", "no `/ignoreUrlParams`", true);
}

#[test]
fn pages_that_are_fetched_again_need_a_host() {
    let check = |hosts: &str, cache: &str| {
        let text = format!("/virtualhosts {{ {hosts} }} /cache {{ /docroot \"/tmp/x\" {cache} }}");
        let found = check_config(&load(&farm(&text)));
        found.iter().any(|found| found.message.contains("`/virtualhosts` has no literal host"))
    };
    for cache in ["/x-refetchHot \"5\"", "/x-refetchConcurrency \"2\""] {
        assert!(check("\"*\" \"*.example.com\"", cache), "{cache}");
        assert!(!check("\"*\" \"www.example.com\"", cache), "{cache}");
    }
    assert!(!check("\"*\"", ""));
}

/// The configuration in the guide.
const GUIDE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/dispatcher.md"));

#[test]
fn the_configuration_of_the_guide_gives_no_finding() {
    let (_, rest) = GUIDE.split_once("```\n/farms {").unwrap();
    let (body, _) = rest.split_once("```").unwrap();
    let loaded = load(&format!("/farms {{{body}"));
    assert_eq!(check_config(&loaded), Vec::new());
    assert_eq!(loaded.config.farms[0].filter.as_ref().unwrap().len(), 4);
}

#[test]
fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
    let text = format!("{}{}", "/a {".repeat(200_000), "}".repeat(200_000));
    let loaded = load(&text);
    assert!(findings(&loaded)[0].contains("braces are nested more than 100 levels deep"));
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in any::<String>()) {
        drop(load(&text));
    }

    #[test]
    fn no_mixture_of_tokens_makes_the_reader_panic(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "/farms", "/f", "/filter", "/0001", "\"*\"", "'('", "\"", "'", "#", "\n", " ",
                "$include", "${X}", "/type", "allow", "/url", "/cache", "/rules", "/renders", "/glob", "\\",
            ]),
            0..60,
        )
    ) {
        let loaded = load(&parts.concat());
        drop(check_config(&loaded));
    }
}

/// Checks a file that others include.
fn check_part(text: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("part.any");
    std::fs::write(&file, text).unwrap();
    let loaded = DispatcherConfig::load_to_check(&file, &ConfigSources::default());
    tympan_dispatcher::check_config(&loaded).iter().map(|finding| finding.message.clone()).collect()
}

#[test]
fn parts_are_known_for_what_they_are() {
    let auth = "/url \"/bin/permissions\" /filter { /0 { /glob \"*\" /type \"deny\" } }
        /headers { /0 { /glob \"*\" /type \"deny\" } /1 { /glob \"Set-Cookie:*\" /type \"allow\" } }";
    let findings = check_part(auth);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].ends_with("an auth checker"), "{findings:?}");
    let findings = check_part("Define DOCROOT /mnt/var/www\nDefine PORT 4503\n");
    assert!(findings.iter().any(|finding| finding.contains("dispatcher convert")), "{findings:?}");
}

#[test]
fn rules_are_tried_wherever_they_stand() {
    let rules = "/0 { /type \"deny\" /url \"*\" } /1 { /type \"allow\" /url \"/content*\" }";
    let opens = |findings: &[String]| {
        findings.iter().filter(|text| text.starts_with("this rule allows `GET ")).count()
    };
    let part = check_part(rules);
    assert!(opens(&part) > 20, "{part:?}");
    assert_eq!(opens(&check_part(&format!("/filter {{ {rules} }}"))), opens(&part));
    // Renders that are left out reach nothing, and still the filter is what it is.
    let farm = |render: &str| {
        let text = format!("/farms {{ /f {{ /renders {{ {render} }} /filter {{ {rules} }} }} }}");
        let loaded = load(&text);
        let findings = tympan_dispatcher::check_config(&loaded);
        findings.iter().map(|finding| finding.message.clone()).collect::<Vec<_>>()
    };
    assert_eq!(opens(&farm("/0 { /hostname \"\" }")), opens(&part));
    assert_eq!(opens(&farm("/0 { /hostname \"h\" }")), opens(&part));
}

#[test]
fn spellings_that_publishers_read_otherwise_are_tried() {
    let text = "/farms { /f { /renders { /0 { /hostname \"h\" } } /filter {
        /0 { /type \"deny\" /url \"*\" }
        /1 { /type \"allow\" /path \"/content/*\" /extension '(html|jpg)' }
        /2 { /type \"allow\" /url \"/etc.clientlibs/*\" } } } }";
    let findings = tympan_dispatcher::check_config(&load(text));
    for url in
        ["/etc.clientlibs/any.infinity.json", "/content/dam/any.jpg/jcr:content.infinity.json"]
    {
        let expected = format!("this rule allows `GET {url}` to reach the renders");
        assert!(findings.iter().any(|finding| finding.message == expected), "{url}");
    }
    let closed =
        text.replace("/*\" } } } }", "/*\" } /3 { /type \"deny\" /extension \"json\" } } } }");
    let findings = tympan_dispatcher::check_config(&load(&closed));
    assert!(
        !findings.iter().any(|finding| finding.message.contains("reach the renders")),
        "{findings:?}"
    );
}
