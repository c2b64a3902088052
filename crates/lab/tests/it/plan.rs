//! Plans of JMeter, small ones made here: what they send, in which order, and what is refused.

use std::collections::HashMap;
use std::path::PathBuf;

use tympan_lab::measurement::MAX_LABELS;
use tympan_lab::plan::{PlanRunOutcome, RunOptions, TestPlan};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

/// Returns a plan with one thread group that holds `inside`.
pub(crate) fn plan(loops: &str, threads: &str, inside: &str) -> String {
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="p" enabled="true"/><hashTree>
<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="g" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">continue</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><boolProp name="LoopController.continue_forever">false</boolProp><stringProp name="LoopController.loops">{loops}</stringProp></elementProp>
<stringProp name="ThreadGroup.num_threads">{threads}</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp>
</ThreadGroup><hashTree>
{inside}
</hashTree></hashTree></hashTree></jmeterTestPlan>"#
    )
}

/// Returns a sampler that gets `path`, with `inside` below it.
pub(crate) fn sampler(path: &str, inside: &str) -> String {
    format!(
        r#"<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="GET {path}" enabled="true">
<stringProp name="HTTPSampler.path">{path}</stringProp><stringProp name="HTTPSampler.method">GET</stringProp>
<boolProp name="HTTPSampler.follow_redirects">true</boolProp><boolProp name="HTTPSampler.use_keepalive">true</boolProp>
</HTTPSamplerProxy><hashTree>{inside}</hashTree>"#
    )
}

/// Returns an element with properties given as `name=value`; `true` and `false` are switches.
pub(crate) fn element(
    class: &str,
    name: &str,
    properties: &[(&str, &str)],
    inside: &str,
) -> String {
    let mut text = format!(
        r#"<{class} guiclass="{class}Gui" testclass="{class}" testname="{name}" enabled="true">"#
    );
    for (key, value) in properties {
        let kind = if matches!(*value, "true" | "false") { "boolProp" } else { "stringProp" };
        text.push_str(&format!(r#"<{kind} name="{key}">{value}</{kind}>"#));
    }
    format!("{text}</{class}><hashTree>{inside}</hashTree>")
}

pub(crate) fn defaults(origin: &OriginServer) -> String {
    format!(
        r#"<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="d" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{}</stringProp></ConfigTestElement><hashTree/>"#,
        origin.addr().port()
    )
}

/// Returns what gets a page of the origin.
pub(crate) fn get(origin: &OriginServer, path: &str) -> String {
    format!("{}{}", defaults(origin), sampler(path, ""))
}

struct Played {
    outcome: PlanRunOutcome,
    targets: Vec<String>,
    lines: Vec<String>,
    origin: OriginServer,
}

fn play_with(
    origin: OriginServer,
    text: &str,
    properties: &[(&str, &str)],
    folder: PathBuf,
) -> Played {
    let plan =
        TestPlan::parse(text.as_bytes(), "p.jmx", folder).unwrap_or_else(|error| panic!("{error}"));
    let properties: HashMap<String, String> =
        properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut lines = Vec::new();
    let run = RunOptions { properties, ..RunOptions::default() };
    let outcome = plan.run(&run, &mut |line| lines.push(line.to_owned())).unwrap();
    let targets = origin.requests().iter().map(|seen| seen.target.clone()).collect();
    Played { outcome, targets, lines, origin }
}

fn play(loops: &str, inside: &str) -> Played {
    let origin = OriginServer::start(|seen| {
        if seen.target.starts_with("/bad") {
            OriginResponse::with_status(500)
        } else {
            OriginResponse::html("id=17;id=18;")
        }
    });
    let text = plan(loops, "1", &format!("{}{inside}", defaults(&origin)));
    play_with(origin, &text, &[], PathBuf::new())
}

#[track_caller]
fn check(loops: &str, inside: &str, expected: &str) {
    let played = play(loops, inside);
    assert_eq!(played.targets.join(" "), expected);
}

#[test]
fn controllers_walk_as_in_jmeter() {
    let (a, b, c) = (sampler("/a", ""), sampler("/b", ""), sampler("/c", ""));
    let both = format!("{a}{b}");
    let all = format!("{a}{b}{c}");
    let wrap = |class: &str, properties: &[(&str, &str)], inside: &str| {
        element(class, "x", properties, inside)
    };
    check("2", &both, "/a /b /a /b");
    check(
        "1",
        &format!("{}{c}", wrap("LoopController", &[("LoopController.loops", "2")], &both)),
        "/a /b /a /b /c",
    );
    check("2", &wrap("LoopController", &[("LoopController.loops", "2")], &a), "/a /a /a /a");
    check(
        "1",
        &format!("{}{c}", wrap("LoopController", &[("LoopController.loops", "0")], &a)),
        "/c",
    );
    check("3", &format!("{}{b}", wrap("OnceOnlyController", &[], &a)), "/a /b /b /b");
    check(
        "4",
        &wrap("InterleaveControl", &[("InterleaveControl.style", "0")], &all),
        "/a /b /c /a",
    );
    check("1", &wrap("GenericController", &[], &both), "/a /b");
    check(
        "1",
        &format!("{}{c}", wrap("SwitchController", &[("SwitchController.value", "1")], &both)),
        "/b /c",
    );
    check("1", &wrap("SwitchController", &[("SwitchController.value", "GET /b")], &both), "/b");
    check(
        "4",
        &wrap(
            "ThroughputController",
            &[("ThroughputController.style", "0"), ("ThroughputController.maxThroughput", "2")],
            &a,
        ),
        "/a /a",
    );
    check(
        "4",
        &format!(
            "{}{c}",
            wrap(
                "ThroughputController",
                &[
                    ("ThroughputController.style", "1"),
                    ("ThroughputController.percentThroughput", "50")
                ],
                &a,
            )
        ),
        "/c /a /c /c /a /c",
    );
}

#[test]
fn conditions_decide_with_both_kinds_of_expression() {
    let a = sampler("/a", "");
    let with = |condition: &str, is_expression: &str| {
        element(
            "IfController",
            "x",
            &[("IfController.condition", condition), ("IfController.useExpression", is_expression)],
            &a,
        )
    };
    check("1", &with("true", "true"), "/a");
    check("1", &with("${__jexl3(1 == 2,)}", "true"), "");
    check("1", &with("${__groovy(\"x\".length() == 1)}", "true"), "/a");
    check("1", &with("1 &lt; 2 &amp;&amp; 'a' == \"a\"", "false"), "/a");
    let counter = element(
        "CounterConfig",
        "n",
        &[("CounterConfig.start", "1"), ("CounterConfig.incr", "1"), ("CounterConfig.name", "n")],
        "",
    );
    let played = play(
        "1",
        &element(
            "LoopController",
            "x",
            &[("LoopController.loops", "3")],
            &format!("{counter}{}", sampler("/w${n}", "")),
        ),
    );
    assert_eq!(played.targets, ["/w1", "/w2", "/w3"]);
}

#[test]
fn extractors_feed_later_requests() {
    let regex = |number: &str| {
        element(
            "RegexExtractor",
            "r",
            &[
                ("RegexExtractor.refname", "id"),
                ("RegexExtractor.regex", "id=(\\d+)"),
                ("RegexExtractor.template", "$1$"),
                ("RegexExtractor.match_number", number),
                ("RegexExtractor.default", "none"),
            ],
            "",
        )
    };
    let after = sampler("/x/${id}", "");
    check("1", &format!("{}{after}", sampler("/a", &regex("1"))), "/a /x/17");
    check("1", &format!("{}{after}", sampler("/a", &regex("2"))), "/a /x/18");
    check("1", &format!("{}{after}", sampler("/a", &regex("3"))), "/a /x/none");
    let each = element(
        "ForeachController",
        "e",
        &[("ForeachController.inputVal", "id"), ("ForeachController.returnVal", "one")],
        &sampler("/each/${one}", ""),
    );
    check("1", &format!("{}{each}", sampler("/a", &regex("-1"))), "/a /each/17 /each/18");
    let boundary = element(
        "BoundaryExtractor",
        "b",
        &[
            ("BoundaryExtractor.refname", "id"),
            ("BoundaryExtractor.lboundary", "id="),
            ("BoundaryExtractor.rboundary", ";"),
            ("BoundaryExtractor.match_number", "2"),
        ],
        "",
    );
    check("1", &format!("{}{after}", sampler("/a", &boundary)), "/a /x/18");
}

#[test]
fn values_of_json_are_taken_as_in_jmeter() {
    let server = || {
        OriginServer::start(|seen| match seen.target.as_str() {
            "/three" => OriginResponse::with_status(200).with_body("{\"a\":[1,null,\"x\"]}"),
            "/one" => OriginResponse::with_status(200).with_body("{\"a\":[\"only\"]}"),
            "/none" => OriginResponse::with_status(200).with_body("{\"b\":1}"),
            "/text" => OriginResponse::with_status(200).with_body("no json"),
            _ => OriginResponse::html(""),
        })
    };
    let extract = |number: &str| {
        let words = [
            ("JSONPostProcessor.referenceNames", "v"),
            ("JSONPostProcessor.jsonPathExprs", "$.a[*]"),
            ("JSONPostProcessor.match_numbers", number),
            ("JSONPostProcessor.defaultValues", "d"),
        ];
        element("JSONPostProcessor", "j", &words, "")
    };
    // What the variables are after an answer: the value, the first three, and how many. A name that is not set stands
    // as it is, which is no address.
    let names = ["v", "v_1", "v_2", "v_3", "v_matchNr"];
    let told = names.map(|name| format!("/${{__urlencode(${{{name}}})}}")).concat();
    let told = sampler(&format!("/told{told}"), "").replace(&format!("GET /told{told}"), "told");
    let text = |origin: &OriginServer, number: &str| {
        let asked = |path: &str| format!("{}{told}", sampler(path, &extract(number)));
        let all = ["/three", "/one", "/none", "/text"].map(asked).concat();
        plan("1", "1", &format!("{}{all}", defaults(origin)))
    };
    let told_by = |origin: &OriginServer| -> Vec<String> {
        let targets = origin.requests().into_iter().map(|seen| seen.target);
        targets.filter_map(|target| target.strip_prefix("/told/").map(str::to_owned)).collect()
    };
    for (number, wanted) in [
        (
            "-1",
            [
                "%24%7Bv%7D/1/d/x/3",
                "%24%7Bv%7D/only/%24%7Bv_2%7D/%24%7Bv_3%7D/1",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
            ],
        ),
        (
            "2",
            [
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/3",
                "only/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/1",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
            ],
        ),
        (
            "9",
            [
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/3",
                "only/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/1",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
                "d/%24%7Bv_1%7D/%24%7Bv_2%7D/%24%7Bv_3%7D/0",
            ],
        ),
    ] {
        let origin = server();
        let text_here = text(&origin, number);
        let played = play_with(origin, &text_here, &[], PathBuf::new());
        assert_eq!(told_by(&played.origin), wanted, "{number}");
        let Some(home) = crate::jmeter::home() else { continue };
        let origin = server();
        let folder = tempfile::tempdir().unwrap();
        crate::jmeter::run_in_jmeter(&home, &text(&origin, number), folder.path());
        assert_eq!(told_by(&origin), wanted, "JMeter, {number}");
    }
}

#[test]
fn data_sets_follow_their_modes() {
    let run = |properties: &[(&str, &str)], loops: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("u.csv"), "name,word\nann,a b\nbob,\"c,d\"\n").unwrap();
        let origin = OriginServer::start_constant(OriginResponse::html(""));
        let mut all = vec![("filename", "u.csv"), ("delimiter", ",")];
        all.extend_from_slice(properties);
        let data = element("CSVDataSet", "d", &all, "");
        let text =
            plan(loops, "1", &format!("{}{data}{}", defaults(&origin), sampler("/${name}", "")));
        play_with(origin, &text, &[], folder.path().to_owned()).targets.join(" ")
    };
    assert_eq!(run(&[("recycle", "true")], "3"), "/ann /bob /ann");
    assert_eq!(run(&[("recycle", "false"), ("stopThread", "true")], "5"), "/ann /bob");
    assert_eq!(
        run(
            &[("variableNames", "name,w"), ("ignoreFirstLine", "true"), ("quotedData", "true")],
            "2"
        ),
        "/ann /bob"
    );
    assert_eq!(
        run(&[("variableNames", "name,w"), ("recycle", "false"), ("stopThread", "true")], "9"),
        "/name /ann /bob"
    );
}

#[test]
fn data_files_are_read_whatever_wrote_them() {
    let run = |bytes: &[u8], properties: &[(&str, &str)], path: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("u.csv"), bytes).unwrap();
        let origin = OriginServer::start_constant(OriginResponse::html(""));
        let mut all = vec![("filename", "u.csv"), ("delimiter", ";"), ("recycle", "false")];
        all.extend_from_slice(properties);
        let data = element("CSVDataSet", "d", &all, "");
        let text = plan("2", "1", &format!("{}{data}{}", defaults(&origin), sampler(path, "")));
        play_with(origin, &text, &[], folder.path().to_owned()).targets.join(" ")
    };
    // With a mark of its coding, and the line ends of Windows.
    let windows = "\u{feff}name;word\r\nann;x\r\n\r\nbob;y".as_bytes();
    assert_eq!(run(windows, &[], "/${name}/${word}"), "/ann/x /bob/y");
    let quoted = b"name;word\n\"ann\nlee\";\"x;\"\"y\"\"\"\nbob;z\n";
    assert_eq!(
        run(quoted, &[("quotedData", "true")], "/${__urlencode(${name})}/${__urlencode(${word})}"),
        "/ann%0Alee/x%3B%22y%22 /bob/z"
    );
    let latin = b"name\nj\xfcrg\n\x80\n";
    let path = "/${__urlencode(${name})}";
    assert_eq!(run(latin, &[("fileEncoding", "ISO-8859-1")], path), "/j%C3%BCrg /%C2%80");
    assert_eq!(run(latin, &[("fileEncoding", "windows-1252")], path), "/j%C3%BCrg /%E2%82%AC");
    // As in JMeter, what a row lacks stays as it was.
    let short = b"name;word\nann;x\nbob\n";
    assert_eq!(run(short, &[], "/${name}/${word}"), "/ann/x /bob/x");
}

#[test]
fn cookies_are_kept_and_cleared() {
    let origin = OriginServer::start(|seen| {
        let answer = OriginResponse::html("");
        if seen.target == "/login" {
            answer.with_header("Set-Cookie", "s=1; Path=/; HttpOnly")
        } else {
            answer
        }
    });
    let manager =
        element("CookieManager", "c", &[("CookieManager.clearEachIteration", "true")], "");
    let inside =
        format!("{}{manager}{}{}", defaults(&origin), sampler("/login", ""), sampler("/in", ""));
    let played = play_with(origin, &plan("2", "1", &inside), &[], PathBuf::new());
    let cookies: Vec<_> = played
        .origin
        .requests()
        .iter()
        .map(|seen| seen.header("cookie").map(str::to_owned))
        .collect();
    assert_eq!(cookies, [None, Some("s=1".to_owned()), None, Some("s=1".to_owned())]);
}

#[test]
fn only_what_is_fetched_is_taken_from_the_cache() {
    let origin = OriginServer::start(|_| {
        OriginResponse::html("x").with_header("Cache-Control", "max-age=600")
    });
    let manager = element("CacheManager", "c", &[("useExpires", "true")], "");
    let post = sampler("/a", "").replace(">GET<", ">POST<");
    let inside = format!("{}{manager}{}{post}", defaults(&origin), sampler("/a", ""));
    let played = play_with(origin, &plan("2", "1", &inside), &[], PathBuf::new());
    let sent: Vec<String> = played.origin.requests().into_iter().map(|seen| seen.method).collect();
    assert_eq!(sent, ["GET", "POST", "POST"]);
}

/// A page with a style sheet that can be kept, an image elsewhere, and a script that sets a cookie.
fn site_with_parts() -> OriginServer {
    OriginServer::start(|seen| {
        let of = |kind: &str| OriginResponse::with_status(200).with_header("Content-Type", kind);
        match seen.target.as_str() {
            "/page" => OriginResponse::html(
                "<html><head><link rel=\"stylesheet\" href=\"style.css\"><script src=\"a.js\"></script></head>\
                 <body><img src=\"old.png\"></body></html>",
            ),
            "/style.css" => of("text/css")
                .with_header("Cache-Control", "max-age=600")
                .with_body("@import 'more.css'; a { background: url(bg.png) }"),
            "/more.css" => of("text/css").with_body("b { background: url('deep.png') }"),
            "/a.js" => {
                of("text/javascript").with_header("Set-Cookie", "s=1; Path=/").with_body("1")
            }
            "/old.png" => OriginResponse::with_status(302).with_header("Location", "/new.png"),
            _ => of("image/png").with_body("p"),
        }
    })
}

/// Returns what was sent, with the cookies.
fn sent_with_cookies(origin: &OriginServer) -> Vec<String> {
    let shown = |seen: OriginRequest| {
        let cookie = seen.header("cookie").unwrap_or_default();
        format!("{} {cookie}", seen.target).trim_end().to_owned()
    };
    let mut all: Vec<String> = origin.requests().into_iter().map(shown).collect();
    all.sort();
    all
}

#[test]
fn parts_of_pages_are_kept_and_followed_as_pages_are() {
    let text = |origin: &OriginServer| {
        let managers = format!(
            "{}{}",
            element("CookieManager", "k", &[("CookieManager.policy", "standard")], ""),
            element("CacheManager", "c", &[("useExpires", "true")], "")
        );
        let page = sampler("/page", "").replace(
            "</HTTPSamplerProxy>",
            "<boolProp name=\"HTTPSampler.image_parser\">true</boolProp></HTTPSamplerProxy>",
        );
        let same_user = "<boolProp name=\"ThreadGroup.same_user_on_next_iteration\">true</boolProp></ThreadGroup>";
        let inside = format!("{}{managers}{page}", defaults(origin));
        plan("2", "1", &inside).replace("</ThreadGroup>", same_user)
    };
    let origin = site_with_parts();
    let text_here = text(&origin);
    let sent = sent_with_cookies(&play_with(origin, &text_here, &[], PathBuf::new()).origin);
    assert_eq!(
        sent,
        [
            "/a.js",
            "/a.js s=1",
            // What a style sheet that is kept imports was fetched with it. JMeter fetches nothing else that it names.
            "/more.css s=1",
            "/new.png s=1",
            "/new.png s=1",
            "/old.png",
            "/old.png s=1",
            "/page",
            "/page s=1",
            "/style.css",
        ]
    );
    let Some(home) = crate::jmeter::home() else { return };
    let origin = site_with_parts();
    let folder = tempfile::tempdir().unwrap();
    crate::jmeter::run_in_jmeter(&home, &text(&origin), folder.path());
    let targets = |all: &[String]| -> Vec<String> {
        all.iter().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(targets(&sent_with_cookies(&origin)), targets(&sent));
}

#[test]
fn a_part_that_fails_fails_its_page() {
    let check = |part: OriginResponse, is_ok: bool| {
        let origin = OriginServer::start(move |seen| match seen.target.as_str() {
            "/page" => OriginResponse::html("<img src=x.png>"),
            _ => part.clone(),
        });
        let page = sampler("/page", "").replace(
            "</HTTPSamplerProxy>",
            "<boolProp name=\"HTTPSampler.image_parser\">true</boolProp></HTTPSamplerProxy>",
        );
        let text = plan("1", "1", &format!("{}{page}", defaults(&origin)));
        let total = play_with(origin, &text, &[], PathBuf::new()).outcome.results.total_stats();
        assert_eq!((total.count(), total.error_count), (1, u64::from(!is_ok)));
    };
    check(OriginResponse::with_status(200), true);
    check(OriginResponse::with_status(304), true);
    check(OriginResponse::with_status(404), false);
    check(OriginResponse::with_status(302).with_header("Location", "x.png"), false);
}

#[test]
fn a_manager_that_ignores_cookies_neither_takes_nor_sends_any() {
    let played = |policy: &str| {
        let origin = OriginServer::start(|_| {
            OriginResponse::html("").with_header("Set-Cookie", "s=1; Path=/")
        });
        let manager = element("CookieManager", "c", &[("CookieManager.policy", policy)], "");
        let inside = format!("{}{manager}{}", defaults(&origin), sampler("/a", ""));
        let played = play_with(origin, &plan("2", "1", &inside), &[], PathBuf::new());
        played.origin.requests().iter().filter(|seen| seen.header("cookie").is_some()).count()
    };
    assert_eq!(played("ignorecookies"), 0);
    assert_eq!([played("standard"), played("compatibility")], [1, 1]);
}

#[test]
fn forms_in_parts_are_those_of_browsers_where_the_plan_says_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f.txt"), "file").unwrap();
    let sent = |is_browser: &str| {
        let origin = OriginServer::start_constant(OriginResponse::html(""));
        let post = sampler("/a", "").replace(">GET<", ">POST<").replace(
            "</HTTPSamplerProxy>",
            &format!(
                "<boolProp name=\"HTTPSampler.DO_MULTIPART_POST\">true</boolProp>\
                 <boolProp name=\"HTTPSampler.BROWSER_COMPATIBLE_MULTIPART\">{is_browser}</boolProp>\
                 <elementProp name=\"HTTPsampler.Arguments\" elementType=\"Arguments\"><collectionProp name=\"Arguments.arguments\">\
                 <elementProp name=\"x\" elementType=\"HTTPArgument\"><stringProp name=\"Argument.name\">x</stringProp>\
                 <stringProp name=\"Argument.value\">1</stringProp></elementProp></collectionProp></elementProp>\
                 <elementProp name=\"HTTPsampler.Files\" elementType=\"HTTPFileArgs\"><collectionProp name=\"HTTPFileArgs.files\">\
                 <elementProp name=\"f.txt\" elementType=\"HTTPFileArg\"><stringProp name=\"File.path\">f.txt</stringProp>\
                 <stringProp name=\"File.paramname\">f</stringProp><stringProp name=\"File.mimetype\">text/plain</stringProp>\
                 </elementProp></collectionProp></elementProp></HTTPSamplerProxy>"
            ),
        );
        let inside = format!("{}{post}", defaults(&origin));
        let played = play_with(origin, &plan("1", "1", &inside), &[], folder.path().to_owned());
        let body = String::from_utf8(played.origin.requests()[0].body.clone()).unwrap();
        let boundary = body.lines().next().unwrap().to_owned();
        body.replace(&boundary, "--B")
    };
    assert_eq!(
        sent("true"),
        "--B\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n\
         --B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f.txt\"\r\nContent-Type: text/plain\r\n\r\nfile\r\n\
         --B--\r\n"
    );
    assert_eq!(sent("false").matches("Content-Transfer-Encoding").count(), 2);
}

#[test]
fn assertions_and_errors_decide_what_comes_next() {
    let wrong = r#"<ResponseAssertion testclass="ResponseAssertion" testname="ra" enabled="true"><collectionProp name="Asserion.test_strings"><stringProp name="1">nowhere</stringProp></collectionProp><stringProp name="Assertion.test_field">Assertion.response_data</stringProp><intProp name="Assertion.test_type">16</intProp></ResponseAssertion><hashTree/>"#;
    let played = play("1", &format!("{}{}", sampler("/a", wrong), sampler("/bad", "")));
    let total = played.outcome.results.total_stats();
    assert_eq!((total.count(), total.error_count), (2, 2));
    assert!(
        total.failure_reason_counts.contains_key("Test failed: text expected to contain /nowhere/"),
        "{:?}",
        total.failure_reason_counts
    );
    assert!(
        total.failure_reason_counts.contains_key("status 500"),
        "{:?}",
        total.failure_reason_counts
    );
    let text = plan("2", "1", "").replace("continue</string", "startnextloop</string");
    let origin = OriginServer::start_constant(OriginResponse::with_status(500));
    let inside = format!("{}{}{}", defaults(&origin), sampler("/a", ""), sampler("/b", ""));
    let text =
        text.replace("</ThreadGroup><hashTree>\n", &format!("</ThreadGroup><hashTree>\n{inside}"));
    assert_eq!(play_with(origin, &text, &[], PathBuf::new()).targets, ["/a", "/a"]);
}

#[test]
fn transactions_add_a_sample_after_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jtl");
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let inside = format!(
        "{}{}",
        defaults(&origin),
        element(
            "TransactionController",
            "login",
            &[("TransactionController.includeTimers", "false")],
            &format!("{}{}", sampler("/a", ""), sampler("/b", ""))
        )
    );
    let plan =
        TestPlan::parse(plan("1", "1", &inside).as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let run = RunOptions { result_file: Some(file.clone()), ..RunOptions::default() };
    let outcome = plan.run(&run, &mut |_| ()).unwrap();
    assert_eq!(outcome.tally.count, 2, "the summary leaves transactions out");
    assert_eq!(outcome.results.total_stats().count(), 2);
    let text = std::fs::read_to_string(file).unwrap();
    let mut rows = Vec::new();
    tympan_lab::measurement::jtl::read_jtl(&mut text.as_bytes(), "r", &mut |row| {
        rows.push((row.label.to_string(), row.response_message.to_string(), row.url.to_string()));
    })
    .unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(
        rows[2],
        (
            "login".to_owned(),
            "Number of samples in transaction : 2, number of failing samples : 0".to_owned(),
            "null".to_owned()
        )
    );
}

#[test]
fn the_summary_ends_as_build_servers_expect() {
    let played = play("3", &sampler("/a", ""));
    let lines = &played.lines;
    assert_eq!(lines[0], "Creating summariser <summary>");
    let summary = lines.iter().find(|line| line.starts_with("summary =")).unwrap();
    assert!(summary.starts_with("summary =      3 in 00:00:0"), "{summary}");
    assert!(summary.ends_with("Err:     0 (0.00%)"), "{summary}");
    assert_eq!(lines.last().unwrap(), "... end of run");
}

#[test]
fn a_stopped_test_still_tears_down_if_the_plan_says_so() {
    let run = |flag: &str| {
        let origin = OriginServer::start_constant(OriginResponse::html(""));
        let stop = element(
            "TestAction",
            "stop",
            &[("ActionProcessor.action", "2"), ("ActionProcessor.target", "2")],
            "",
        );
        let inside =
            format!("{}{}{stop}{}", defaults(&origin), sampler("/a", ""), sampler("/b", ""));
        let text = plan("5", "1", &inside);
        let text = text.replace(
            "testname=\"p\" enabled=\"true\"/>",
            &format!(
                "testname=\"p\" enabled=\"true\"><boolProp name=\"TestPlan.tearDown_on_shutdown\">{flag}</boolProp></TestPlan>"
            ),
        );
        let teardown = format!(
            "<PostThreadGroup testclass=\"PostThreadGroup\" testname=\"t\" enabled=\"true\"><stringProp name=\"ThreadGroup.num_threads\">1</stringProp>\
             <elementProp name=\"ThreadGroup.main_controller\" elementType=\"LoopController\"><stringProp name=\"LoopController.loops\">1</stringProp></elementProp></PostThreadGroup>\
             <hashTree>{}{}</hashTree>",
            defaults(&origin),
            sampler("/teardown", "")
        );
        let text = text.replace(
            "</hashTree></hashTree></jmeterTestPlan>",
            &format!("{teardown}</hashTree></hashTree></jmeterTestPlan>"),
        );
        play_with(origin, &text, &[], PathBuf::new()).targets.join(" ")
    };
    assert_eq!(run("true"), "/a /teardown");
    assert_eq!(run("false"), "/a");
}

#[test]
fn a_forgotten_property_is_refused_with_its_name() {
    let origin = OriginServer::start_constant(OriginResponse::html(""));
    let text =
        plan("1", "${__P(threads,)}", &format!("{}{}", defaults(&origin), sampler("/a", "")));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let error = plan.run(&RunOptions::default(), &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("p.jmx:4:1: thread group `g`: the number of threads is ``"),
        "{error}"
    );
    assert!(error.contains("-Jthreads=NUMBER"), "{error}");
    let played = play_with(origin, &text, &[("threads", "2")], PathBuf::new());
    assert_eq!(played.targets, ["/a", "/a"]);
}

#[test]
fn what_is_not_supported_is_named_with_its_line_and_nothing_is_sent() {
    let refuse = |inside: &str, wanted: &str| {
        let error = TestPlan::parse(plan("1", "1", inside).as_bytes(), "p.jmx", PathBuf::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
        assert!(error.contains("nothing was run"), "{error}");
    };
    refuse(
        &element("JDBCSampler", "load users", &[], ""),
        "p.jmx:9:1: JDBCSampler \"load users\": element not supported",
    );
    refuse(
        &sampler("/${__XPath(a,b)}", ""),
        "p.jmx:9:1: HTTPSamplerProxy \"GET /${__XPath(a,b)}\": function __XPath: not supported",
    );
    let source = sampler("/a", "").replace(
        "<stringProp name=\"HTTPSampler.method\">",
        "<intProp name=\"HTTPSampler.ipSourceType\">1</intProp><stringProp name=\"HTTPSampler.method\">",
    );
    refuse(&source, "sending from a device is not supported, only from an address");
    let wide = sampler("/a", "").replace(
        "<stringProp name=\"HTTPSampler.method\">",
        "<stringProp name=\"HTTPSampler.contentEncoding\">UTF-16</stringProp><stringProp name=\"HTTPSampler.method\">",
    );
    refuse(&wide, "character set `UTF-16` is not supported");
    TestPlan::parse(
        plan("1", "1", &wide.replace("UTF-16", "utf-8")).as_bytes(),
        "p.jmx",
        PathBuf::new(),
    )
    .unwrap();
    let cookies = element("CookieManager", "c", &[("CookieManager.policy", "rfc2109")], "");
    refuse(&format!("{cookies}{}", sampler("/a", "")), "cookie policy `rfc2109` is not supported");
    refuse(
        &sampler("/a", &element("JDBCPostProcessor", "x", &[], "")),
        "JDBCPostProcessor \"x\": element not supported",
    );
    refuse(
        &element("VariableThroughputTimer", "t", &[("other", "7")], ""),
        "VariableThroughputTimer \"t\": property other is set; tympan lab does not support it",
    );
    refuse(
        &element("ConstantTimer", "t", &[("ConstantTimer.delay", "5")], &sampler("/a", "")),
        "HTTPSamplerProxy \"GET /a\": it is below an element that runs nothing",
    );
    let two =
        format!("{}{}", element("FtpRequest", "f", &[], ""), element("JMSSampler", "j", &[], ""));
    refuse(&two, "2 problems; nothing was run");
    let disabled =
        element("JDBCSampler", "x", &[], "").replace("enabled=\"true\"", "enabled=\"false\"");
    TestPlan::parse(plan("1", "1", &disabled).as_bytes(), "p.jmx", PathBuf::new()).unwrap();
}

#[test]
fn broken_files_are_refused_and_never_panic() {
    for text in
        ["", "<", "<a/>", "<jmeterTestPlan/>", "<jmeterTestPlan><hashTree/></jmeterTestPlan>"]
    {
        assert!(
            TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap_err().is_usage(),
            "{text}"
        );
    }
    let deep = format!("{}{}", "<hashTree>".repeat(500), "</hashTree>".repeat(500));
    let deep = format!("<jmeterTestPlan>{deep}</jmeterTestPlan>");
    assert!(TestPlan::parse(deep.as_bytes(), "p.jmx", PathBuf::new()).is_err());
}

#[test]
fn scripts_prepare_and_judge_samples_in_the_order_of_the_file() {
    let script = |class: &str, name: &str, text: &str| {
        element(class, name, &[("scriptLanguage", "groovy"), ("script", text)], "")
    };
    let outer = script("JSR223PreProcessor", "outer", "vars.put('path', 'a')");
    let inside = format!(
        "{}{}{}{}",
        script("JSR223PreProcessor", "first", "vars.put('path', vars.get('path') + 'b')"),
        script("JSR223PreProcessor", "second", "vars.put('path', vars.get('path') + 'c')"),
        script("JSR223PostProcessor", "after", "vars.put('seen', prev.getResponseCode())"),
        script(
            "JSR223Assertion",
            "judge",
            "if (vars.get('seen') != '200') { AssertionResult.setFailure(true)\nAssertionResult.setFailureMessage('not yet') }"
        ),
    );
    let sample = script("JSR223Sampler", "script", "return 'x' + vars.get('path')");
    let played = play("1", &format!("{outer}{}{sample}", sampler("/${path}", &inside)));
    assert_eq!(played.targets, ["/abc"]);
    let results = &played.outcome.results;
    assert_eq!((results.total_stats().count(), results.total_stats().error_count), (2, 0));
    assert_eq!(
        results.labels["script"].total.body_bytes, 2,
        "the outer script runs before every sample"
    );
}

#[test]
fn a_redirect_that_never_ends_fails_as_in_jmeter() {
    let origin = OriginServer::start_constant(
        OriginResponse::with_status(302).with_header("Location", "/again"),
    );
    let text = plan("1", "1", &get(&origin, "/a"));
    let played = play_with(origin, &text, &[], PathBuf::new());
    assert_eq!(played.targets.len(), 21);
    let total = played.outcome.results.total_stats();
    let reason = total.failure_reason_counts.keys().next().unwrap();
    assert_eq!((total.error_count, total.status_counts.get(&0)), (1, Some(&1)));
    assert_eq!(reason, "Non HTTP response message: Exceeded maximum number of redirects: 20");
}

#[test]
fn requests_are_sent_from_the_address_that_the_plan_names() {
    let origin = OriginServer::start_constant(OriginResponse::html(""));
    let from = |address: &str, name: &str| {
        sampler("/a", "").replace("GET /a", name).replace(
            "<stringProp name=\"HTTPSampler.method\">",
            &format!("<stringProp name=\"HTTPSampler.ipSource\">{address}</stringProp><stringProp name=\"HTTPSampler.method\">"),
        )
    };
    let inside = format!(
        "{}{}{}{}",
        from("127.0.0.${__counter(TRUE,)}", "own"),
        // No address of this machine, and none at all.
        from("192.0.2.1", "absent"),
        from("nobody", "no address"),
        defaults(&origin)
    );
    let played = play_with(origin, &plan("3", "1", &inside), &[], PathBuf::new());
    assert_eq!(played.targets.len(), 3);
    let labels = &played.outcome.results.labels;
    assert_eq!((labels["own"].total.count(), labels["own"].total.error_count), (3, 0));
    let reason =
        |label: &str| labels[label].total.failure_reason_counts.keys().next().unwrap().clone();
    assert!(reason("absent").contains("no such address to connect from"), "{}", reason("absent"));
    assert!(reason("no address").contains("nobody"), "{}", reason("no address"));
}

#[test]
fn scripts_may_stand_in_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("set.groovy"), "vars.put('x', '${y}' + args[0])\n").unwrap();
    let script = |file: &str| {
        let all = [
            ("filename", file),
            ("parameters", "1 2"),
            ("script", "no script"),
            ("scriptLanguage", "groovy"),
        ];
        element("JSR223PreProcessor", "s", &all, "")
    };
    let origin = OriginServer::start_constant(OriginResponse::html(""));
    let inside =
        format!("{}{}", defaults(&origin), sampler("/${__urlencode(${x})}", &script("set.groovy")));
    let played = play_with(origin, &plan("1", "1", &inside), &[], folder.path().to_owned());
    // As in JMeter, nothing is replaced in a file.
    assert_eq!(played.targets, ["/%24%7By%7D1"]);
    for (file, told) in
        [("none.groovy", "cannot read `"), ("${f}", "known only while the plan runs")]
    {
        let text = plan("1", "1", &sampler("/", &script(file)));
        let error =
            TestPlan::parse(text.as_bytes(), "p.jmx", folder.path().to_owned()).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
    std::fs::write(folder.path().join("bad.groovy"), "new File('x')").unwrap();
    let text = plan("1", "1", &sampler("/", &script("bad.groovy")));
    let error = TestPlan::parse(text.as_bytes(), "p.jmx", folder.path().to_owned()).unwrap_err();
    assert!(
        error.to_string().contains("`bad.groovy`: line 1: script calls `new File` (not supported)"),
        "{error}"
    );
}

#[test]
fn a_script_that_is_not_understood_is_refused_with_its_line() {
    let script = element(
        "JSR223PreProcessor",
        "p",
        &[("scriptLanguage", "groovy"), ("script", "new File('x').text")],
        "",
    );
    let text = plan("1", "1", &sampler("/a", &script));
    let error = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap_err().to_string();
    assert!(error.contains("script calls `new File` (not supported)"), "{error}");
    assert!(error.contains("1 problem; nothing was run"), "{error}");
}

#[test]
fn a_label_with_a_value_in_it_does_not_make_a_run_tell_labels_apart_without_end() {
    let more = 20;
    let loops = (MAX_LABELS + more).to_string();
    let item = sampler("/item", "").replace("GET /item", "item ${__counter(FALSE,)}");
    let played = play(&loops, &item);
    let results = &played.outcome.results;
    assert_eq!(results.total_stats().count(), (MAX_LABELS + more) as u64);
    assert_eq!(results.labels.len(), MAX_LABELS + 1);
    // A name is evaluated twice for each request, as in JMeter.
    assert_eq!(results.labels["item 2"].total.count(), 1);
    assert_eq!(results.other_label_samples(), more as u64);
    // Summary lines count every sample, whatever it is called.
    assert!(played.lines.iter().any(|line| line.contains(&format!("summary = {loops:>6} in"))));
}
