//! What plans of JMeter send, request by request, as JMeter 5.6.3 sends it.

use std::path::{Path, PathBuf};

use tympan_lab_engine::plan_run::{PlanRunOutcome, RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

/// An argument of a sampler: name, value, and whether JMeter encodes it.
type Argument<'a> = (&'a str, &'a str, bool);

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Returns a sampler with arguments; a body of its own is one without a name.
fn request(
    method: &str,
    path: &str,
    arguments: &[Argument<'_>],
    more: &str,
    inside: &str,
) -> String {
    let arguments: String = arguments
        .iter()
        .map(|(name, value, encodes)| {
            format!(
                r#"<elementProp name="{0}" elementType="HTTPArgument"><boolProp name="HTTPArgument.always_encode">{encodes}</boolProp><stringProp name="Argument.value">{1}</stringProp><stringProp name="Argument.metadata">=</stringProp><stringProp name="Argument.name">{0}</stringProp></elementProp>"#,
                escape(name),
                escape(value)
            )
        })
        .collect();
    format!(
        r#"<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="{method}" enabled="true">
<elementProp name="HTTPsampler.Arguments" elementType="Arguments"><collectionProp name="Arguments.arguments">{arguments}</collectionProp></elementProp>
<stringProp name="HTTPSampler.path">{}</stringProp><stringProp name="HTTPSampler.method">{method}</stringProp>
<boolProp name="HTTPSampler.use_keepalive">true</boolProp>{more}</HTTPSamplerProxy><hashTree>{inside}</hashTree>"#,
        escape(path)
    )
}

const FOLLOWS: &str = r#"<boolProp name="HTTPSampler.follow_redirects">true</boolProp>"#;
const FOLLOWS_SILENTLY: &str = r#"<boolProp name="HTTPSampler.auto_redirects">true</boolProp>"#;
const RAW: &str = r#"<boolProp name="HTTPSampler.postBodyRaw">true</boolProp>"#;

fn headers(pairs: &[(&str, &str)]) -> String {
    let pairs: String = pairs
        .iter()
        .map(|(name, value)| {
            format!(
                r#"<elementProp name="" elementType="Header"><stringProp name="Header.name">{name}</stringProp><stringProp name="Header.value">{value}</stringProp></elementProp>"#
            )
        })
        .collect();
    format!(
        r#"<HeaderManager guiclass="HeaderPanel" testclass="HeaderManager" testname="h" enabled="true"><collectionProp name="HeaderManager.headers">{pairs}</collectionProp></HeaderManager><hashTree/>"#
    )
}

fn play(origin: &OriginServer, loops: &str, inside: &str, folder: &Path) -> PlanRunOutcome {
    let text = plan(loops, "1", &format!("{}{inside}", defaults(origin)));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", folder.to_owned())
        .unwrap_or_else(|error| panic!("{error}"));
    run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap()
}

/// Says of requests what JMeter and the lab have to agree on.
fn shown(seen: &OriginRequest, names: &[&str]) -> String {
    let headers: Vec<String> = seen
        .headers
        .iter()
        .filter(|(name, _)| names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted)))
        .map(|(name, value)| format!("{}: {value}", name.to_lowercase()))
        .collect();
    let body = String::from_utf8_lossy(&seen.body);
    format!("{} {} {} {body}", seen.method, seen.target, headers.join("; ")).trim_end().to_owned()
}

#[track_caller]
fn check(inside: &str, names: &[&str], expected: &[&str]) {
    let origin = OriginServer::start(|seen| {
        let code = seen.target.strip_prefix("/to/").and_then(|code| code.parse().ok());
        match code {
            Some(code) => OriginResponse::with_status(code).with_header("Location", "/there"),
            None => OriginResponse::html("ok"),
        }
    });
    play(&origin, "1", inside, Path::new(""));
    let sent: Vec<String> = origin.requests().iter().map(|seen| shown(seen, names)).collect();
    assert_eq!(sent, expected);
}

const BODY: [&str; 2] = ["content-type", "content-length"];
const FORM: &str = "content-type: application/x-www-form-urlencoded; charset=UTF-8";

/// What the plan calls encoded is decoded and encoded again in a form, and stands as it is in a query.
#[test]
fn parameters_are_encoded_as_in_jmeter() {
    let arguments =
        [("a", "1+2", false), ("b", "x&y=ü", true), ("c", "", false), ("d", "%41", false)];
    for method in ["POST", "PUT", "PATCH", "PROPFIND"] {
        let expected =
            format!("{method} /f {FORM}; content-length: 29 a=1+2&b=x%26y%3D%C3%BC&c=&d=A");
        check(&request(method, "/f", &arguments, "", ""), &BODY, &[&expected]);
    }
    let plain = [
        ("u", "https://h/x?a=b", false),
        ("w", "p&q", false),
        ("v", "a b", false),
        ("ü", "ö", false),
    ];
    let expected = format!(
        "POST /f {FORM}; content-length: 57 u=https%3A%2F%2Fh%2Fx%3Fa%3Db&w=p%26q&v=a+b&%C3%BC=%C3%B6"
    );
    check(&request("POST", "/f", &plain, "", ""), &BODY, &[&expected]);
    check(
        &request("GET", "/f", &arguments, "", ""),
        &BODY,
        &["GET /f?a=1+2&b=x%26y%3D%C3%BC&c=&d=%41"],
    );
    check(&request("HEAD", "/f", &arguments, "", ""), &BODY, &["HEAD /f"]);
    check(&request("OPTIONS", "/f", &arguments[..1], "", ""), &BODY, &["OPTIONS /f?a=1+2"]);
    // What cannot be decoded is not sent.
    check(&request("POST", "/f", &[("a", "100%", false)], "", ""), &BODY, &[]);
}

#[test]
fn a_delete_carries_its_parameters_twice() {
    let expected = format!("DELETE /d?a=1+2 {FORM}; content-length: 5 a=1+2");
    check(&request("DELETE", "/d", &[("a", "1+2", false)], "", ""), &BODY, &[&expected]);
    let expected = format!("DELETE /d {FORM}; content-length: 0");
    check(&request("DELETE", "/d", &[], "", ""), &BODY, &[&expected]);
    let json = headers(&[("Content-Type", "application/json")]);
    check(
        &request("DELETE", "/d", &[], "", &json),
        &BODY,
        &["DELETE /d content-type: application/json; content-length: 0"],
    );
    let expected = "DELETE /d content-type: text/plain; charset=UTF-8; content-length: 1 x";
    check(&request("DELETE", "/d", &[("", "x", false)], RAW, ""), &BODY, &[expected]);
}

#[test]
fn paths_are_sent_as_by_apaches_client() {
    for (path, expected) in [
        ("/a b?x=c d", "/a%20b?x=c%20d"),
        ("/t ", "/t%20"),
        ("//dbl//s", "/dbl/s"),
        ("//", "/"),
        ("/a//", "/a/"),
        ("/a%41%7e%2fb//c/%c3%a9/", "/aA~%2Fb/c/%C3%A9/"),
        ("/x%c3%a9/%41", "/x%c3%a9/%41"),
        ("/a/../b/./c", "/a/../b/./c"),
        ("/q?a=1//2", "/q?a=1//2"),
        ("/é", "/%C3%A9"),
        ("q", "/q"),
    ] {
        check(&request("GET", path, &[], "", ""), &[], &[&format!("GET {expected}")]);
    }
    // Java refuses these before anything is sent.
    for path in ["/a|b", "/[x]", "/q?x={a}", "/%", "/%zz", "/tab\tx"] {
        check(&request("GET", path, &[], "", ""), &[], &[]);
    }
    check(&request("GET", "/q", &[("a", "1 2", false)], "", ""), &[], &[]);
}

#[test]
fn headers_of_the_nearest_manager_are_all_sent() {
    let near = headers(&[("X-D", "1"), ("x-d", "2")]);
    let far = headers(&[("X-D", "3"), ("X-V", "4"), ("X-V", "5")]);
    let inside = format!(
        "{far}{}{}",
        request("GET", "/a", &[], "", &near),
        request("GET", "/b", &[], "", "")
    );
    check(
        &inside,
        &["x-d", "x-v"],
        &["GET /a x-d: 1; x-d: 2; x-v: 4", "GET /b x-d: 3; x-v: 4; x-v: 5"],
    );
}

#[test]
fn cookies_of_the_manager_stand_in_the_place_of_the_plans_own() {
    let manager = r#"<CookieManager guiclass="CookiePanel" testclass="CookieManager" testname="c" enabled="true"><collectionProp name="CookieManager.cookies"><elementProp name="p" elementType="Cookie" testname="p"><stringProp name="Cookie.value">1</stringProp><stringProp name="Cookie.domain">127.0.0.1</stringProp><stringProp name="Cookie.path">/</stringProp><boolProp name="Cookie.secure">false</boolProp></elementProp></collectionProp></CookieManager><hashTree/>"#;
    let own = request("GET", "/a", &[], "", &headers(&[("Cookie", "m=1")]));
    check(&format!("{manager}{own}"), &["cookie"], &["GET /a cookie: p=1"]);
    check(&own, &["cookie"], &["GET /a cookie: m=1"]);
}

#[test]
fn redirects_are_followed_as_in_jmeter() {
    let check = |method: &str, code: u16, more: &str, follows: Option<&str>| {
        let json = headers(&[("Content-Type", "application/json")]);
        let more = format!("{RAW}{more}");
        let arguments = [("", "{}", false)];
        let arguments = if method == "GET" { &arguments[..0] } else { &arguments[..] };
        let first = match method {
            "GET" => format!("GET /to/{code} content-type: application/json"),
            _ => format!(
                "{method} /to/{code} content-type: application/json; content-length: 2 {{}}"
            ),
        };
        let mut expected = vec![first.as_str()];
        expected.extend(follows);
        self::check(
            &request(method, &format!("/to/{code}"), arguments, &more, &json),
            &BODY,
            &expected,
        );
    };
    let get = Some("GET /there content-type: application/json");
    let post = Some("POST /there content-type: application/json; content-length: 2 {}");
    for code in [301, 302, 303, 308] {
        for method in ["GET", "POST", "PUT", "DELETE"] {
            check(method, code, FOLLOWS, get);
        }
    }
    check("GET", 307, FOLLOWS, get);
    check("POST", 307, FOLLOWS, None);
    check("PUT", 307, FOLLOWS, None);
    check("GET", 305, FOLLOWS, None);
    for (method, code, follows) in [
        ("GET", 301, get),
        ("POST", 302, get),
        ("PUT", 302, None),
        ("PUT", 303, get),
        ("GET", 307, get),
        ("POST", 307, post),
        ("POST", 308, post),
        ("PUT", 308, None),
    ] {
        check(method, code, FOLLOWS_SILENTLY, follows);
    }
    // The type that the client adds to a form goes with the form.
    let form = request("POST", "/to/302", &[("a", "1", true)], FOLLOWS, "");
    let first = format!("POST /to/302 {FORM}; content-length: 3 a=1");
    self::check(&form, &BODY, &[&first, "GET /there"]);
}

#[test]
fn a_cache_manager_keeps_answers_apart_that_vary() {
    let origin = OriginServer::start(|seen| {
        let answer = OriginResponse::html("x");
        match seen.target.as_str() {
            "/vary" => answer.with_header("Cache-Control", "max-age=60").with_header("Vary", "X-V"),
            "/any" => answer.with_header("Cache-Control", "max-age=60").with_header("Vary", "*"),
            "/etag" => answer.with_header("ETag", "\"e\""),
            "/no-cache" => {
                answer.with_header("Cache-Control", "no-cache").with_header("ETag", "\"e\"")
            }
            _ => answer.with_header("Cache-Control", "no-store, max-age=60"),
        }
    });
    let manager = element(
        "CacheManager",
        "c",
        &[("clearEachIteration", "false"), ("useExpires", "true")],
        "",
    );
    let mut inside = manager;
    for path in ["/vary", "/any", "/etag", "/no-cache", "/no-store"] {
        for value in ["1", "1", "2"] {
            inside.push_str(&request("GET", path, &[], "", &headers(&[("X-V", value)])));
        }
    }
    play(&origin, "1", &inside, Path::new(""));
    let sent: Vec<String> =
        origin.requests().iter().map(|seen| shown(seen, &["x-v", "if-none-match"])).collect();
    assert_eq!(
        sent,
        [
            "GET /vary x-v: 1",
            "GET /vary x-v: 2",
            "GET /any x-v: 1",
            "GET /any x-v: 1",
            "GET /any x-v: 2",
            // Nothing says how long it is good: JMeter takes a year.
            "GET /etag x-v: 1",
            "GET /no-cache x-v: 1",
            "GET /no-cache x-v: 1; if-none-match: \"e\"",
            "GET /no-cache x-v: 2; if-none-match: \"e\"",
            "GET /no-store x-v: 1",
            "GET /no-store x-v: 1",
            "GET /no-store x-v: 2",
        ]
    );
}

fn rows(names: &str, share: &str) -> String {
    element(
        "CSVDataSet",
        "csv",
        &[
            ("filename", "u.csv"),
            ("variableNames", names),
            ("delimiter", ","),
            ("recycle", "true"),
            ("shareMode", share),
        ],
        "",
    )
}

#[test]
fn data_sets_over_one_file_share_its_rows() {
    for share in ["shareMode.all", "shareMode.group", "shareMode.thread", "word"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("u.csv"), "a1,b1\na2,b2\na3,b3\na4,b4\n").unwrap();
        let origin = OriginServer::start_constant(OriginResponse::html("x"));
        let inside =
            format!("{}{}{}", rows("x,y", share), rows("p,q", share), sampler("/${x}/${p}", ""));
        play(&origin, "2", &inside, folder.path());
        let sent: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
        assert_eq!(sent, ["/a2/a1", "/a4/a3"], "{share}");
    }
}

#[test]
fn controllers_tell_their_passes() {
    let inside = [
        element(
            "Arguments",
            "v",
            &[],
            "",
        )
        .replace("</Arguments>", r#"<collectionProp name="Arguments.arguments"><elementProp name="v_1" elementType="Argument"><stringProp name="Argument.name">v_1</stringProp><stringProp name="Argument.value">A</stringProp></elementProp><elementProp name="v_2" elementType="Argument"><stringProp name="Argument.name">v_2</stringProp><stringProp name="Argument.value">B</stringProp></elementProp></collectionProp></Arguments>"#),
        element(
            "LoopController",
            "L",
            &[("LoopController.loops", "2")],
            &sampler("/l/${__jm__L__idx}", ""),
        ),
        element(
            "ForeachController",
            "each one",
            &[
                ("ForeachController.inputVal", "v"),
                ("ForeachController.returnVal", "r"),
                ("ForeachController.useSeparator", "true"),
            ],
            &sampler("/f/${r}/${__jm__each one__idx}", ""),
        ),
        element(
            "WhileController",
            "W",
            &[("WhileController.condition", "${__jexl3(${__jm__W__idx} &lt; 2)}")],
            &sampler("/w/${__jm__W__idx}", ""),
        ),
        sampler("/after/${__jm__L__idx}", ""),
    ]
    .concat();
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    play(&origin, "1", &inside, Path::new(""));
    let sent: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
    assert_eq!(sent, ["/l/0", "/l/1", "/f/A/0", "/f/B/1", "/w/0", "/w/1", "/after/0"]);
}

#[test]
fn functions_that_nobody_knows_are_sent_as_they_stand() {
    let given = headers(&[
        ("x-key", "${__GetSecret(key)}"),
        ("x-default", "${__P(nope,${__GetSecret(key)})}"),
        ("x-bare", "${__nothing}"),
    ]);
    let inside = request("GET", "/u", &[], "", &given);
    check(
        &inside,
        &["x-key", "x-default", "x-bare"],
        &[
            "GET /u x-key: ${__GetSecret(key)}; x-default: ${__GetSecret(key)}; x-bare: ${__nothing}",
        ],
    );
}

#[test]
fn a_graphql_request_is_its_body() {
    let more = format!(
        r#"{RAW}<stringProp name="GraphQLHTTPSampler.operationName"></stringProp><stringProp name="GraphQLHTTPSampler.query">{{a}}</stringProp><stringProp name="GraphQLHTTPSampler.variables">{{}}</stringProp>"#
    );
    check(
        &request("POST", "/graphql", &[("", "{\"query\":\"{a}\"}", false)], &more, ""),
        &[],
        &["POST /graphql  {\"query\":\"{a}\"}"],
    );
}

/// Returns which of some samples failed.
fn failures(origin: &OriginServer, inside: &str) -> Vec<String> {
    let outcome = play(origin, "1", inside, &PathBuf::new());
    let failed = outcome.results.labels.iter().filter(|(_, series)| series.total.error_count > 0);
    failed.map(|(label, _)| label.to_string()).collect()
}

#[test]
fn an_xml_assertion_takes_well_formed_answers() {
    let bodies = [
        ("/ok", "<a><b/></a>"),
        ("/space", "  <a/>"),
        ("/prefix", "<p:a q:x='1'><r:b/></p:a>"),
        ("/bad-tag", "<a><b></a>"),
        ("/bad-prefix", "<p:a><b></p:a>"),
        ("/bad-empty", ""),
        ("/bad-type", "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>"),
        ("/bad-two", "<a/><b/>"),
        ("/bad-declaration", " <?xml version='1.0'?><a/>"),
        ("/bad-quotes", "<a b=1/>"),
        ("/bad-text", "text"),
    ];
    let origin = OriginServer::start(move |seen| {
        let body =
            bodies.iter().find(|(path, _)| *path == seen.target).map_or("", |(_, body)| *body);
        OriginResponse::html(body)
    });
    let assertion = element("XMLAssertion", "x", &[], "");
    let inside: String = bodies.iter().map(|(path, _)| sampler(path, &assertion)).collect();
    let failed = failures(&origin, &inside);
    assert_eq!(failed.len(), 8, "{failed:?}");
    assert!(failed.iter().all(|label| label.starts_with("GET /bad")), "{failed:?}");
}

#[test]
fn a_json_assertion_compares_numbers_by_their_worth() {
    let origin = OriginServer::start_constant(OriginResponse::html(
        r#"{"d":1.50,"n":1.0,"e":1e3,"i":[{"id":1},{"id":2}],"s":"x","t":"1"}"#,
    ));
    let assertion = |path: &str, expected: &str| {
        let expected = expected.replace('"', "&quot;");
        element(
            "JSONPathAssertion",
            "j",
            &[
                ("JSON_PATH", path),
                ("EXPECTED_VALUE", &expected),
                ("JSONVALIDATION", "true"),
                ("ISREGEX", "false"),
            ],
            "",
        )
    };
    let mut inside = String::new();
    for (number, (path, expected)) in [
        ("$.d", "1.5"),
        ("$.d", "1.50"),
        ("$.n", "1.00"),
        ("$.e", "1E3"),
        ("$.i[0].id", "1"),
        ("$.i", r#"[{"id":1},{"id":2}]"#),
        ("$.i", r#"{"id":2}"#),
        ("$.i[*].id", "[1,2]"),
        ("$.i[*].id", "2"),
        ("s", "x"),
        ("i[0].id", "1"),
    ]
    .into_iter()
    .enumerate()
    {
        inside.push_str(&sampler(&format!("/good/{number}"), &assertion(path, expected)));
    }
    for (number, (path, expected)) in
        [("$.n", "1"), ("$.e", "1000"), ("$.nope", "x"), ("$.i[0].id", "2")].into_iter().enumerate()
    {
        inside.push_str(&sampler(&format!("/bad/{number}"), &assertion(path, expected)));
    }
    let failed = failures(&origin, &inside);
    assert_eq!(failed, ["GET /bad/0", "GET /bad/1", "GET /bad/2", "GET /bad/3"]);
}
