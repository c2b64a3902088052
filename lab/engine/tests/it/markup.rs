//! Elements of JMeter's that look into XML and HTML, critical sections, and plans of several files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tympan_lab_engine::measurement::jtl;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::Error;
use tympan_lab_plan::TestPlan;
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

const XML: &str = "<?xml version=\"1.0\"?><!DOCTYPE shop [<!ENTITY amp2 \"and\">]>\n<shop xmlns:p=\"urn:p\">\n\
    <book id=\"1\" lang=\"en\"><title>One &amp; only</title><price>10</price></book>\n\
    <book id=\"2\"><title>Two <b>bold</b> words</title><price>20.5</price></book>\n\
    <p:extra>x</p:extra><!-- note --></shop>";

const HTML: &str = "<html><head><title>A  page</title></head><body><ul id=menu class=\"a b\"><li>one<li class=x>two <b>bold</b>\
    <li title=Third>three</ul><p>first</p><div><p lang=en>second <a href=\"/x?a=1&amp;b=2\">link</a></p>tail<br>more</div>\
    <a name=\"n\" href='/y'>other</a></body></html>";

fn element(class: &str, gui: &str, name: &str, properties: &[(&str, &str)], below: &str) -> String {
    let properties: String = properties
        .iter()
        .map(|(key, value)| {
            let value = value.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
            match value.as_str() {
                "true" | "false" => format!("<boolProp name=\"{key}\">{value}</boolProp>"),
                _ => format!("<stringProp name=\"{key}\">{value}</stringProp>"),
            }
        })
        .collect();
    format!(
        "<{class} guiclass=\"{gui}\" testclass=\"{class}\" testname=\"{name}\" enabled=\"true\">{properties}</{class}>\
         <hashTree>{below}</hashTree>\n"
    )
}

fn xpath(name: &str, path: &str, number: &str, default: &str, more: &[(&str, &str)]) -> String {
    let mut properties = vec![
        ("XPathExtractor.refname", name),
        ("XPathExtractor.xpathQuery", path),
        ("XPathExtractor.matchNumber", number),
        ("XPathExtractor.default", default),
        ("XPathExtractor.validate", "false"),
        ("XPathExtractor.namespace", "false"),
    ];
    properties.extend_from_slice(more);
    if !more.iter().any(|(key, _)| *key == "XPathExtractor.tolerant") {
        properties.push(("XPathExtractor.tolerant", "false"));
    }
    element("XPathExtractor", "XPathExtractorGui", name, &properties, "")
}

fn xpath2(name: &str, path: &str, number: &str) -> String {
    let properties = [
        ("XPathExtractor2.refname", name),
        ("XPathExtractor2.xpathQuery", path),
        ("XPathExtractor2.matchNumber", number),
        ("XPathExtractor2.default", "none"),
        ("XPathExtractor2.namespaces", ""),
    ];
    element("XPath2Extractor", "XPath2ExtractorGui", name, &properties, "")
}

fn css(name: &str, selector: &str, attribute: &str, number: &str) -> String {
    let properties = [
        ("HtmlExtractor.refname", name),
        ("HtmlExtractor.expr", selector),
        ("HtmlExtractor.attribute", attribute),
        ("HtmlExtractor.match_number", number),
        ("HtmlExtractor.default", "none"),
        ("HtmlExtractor.default_empty_value", "false"),
        ("HtmlExtractor.extractor_impl", ""),
    ];
    element("HtmlExtractor", "HtmlExtractorGui", name, &properties, "")
}

fn assertion(path: &str, negate: &str) -> String {
    let properties = [
        ("XPath.negate", negate),
        ("XPath.xpath", path),
        ("XPath.validate", "false"),
        ("XPath.whitespace", "false"),
        ("XPath.tolerant", "false"),
        ("XPath.namespace", "false"),
    ];
    element("XPathAssertion", "XPathAssertionGui", "XPath Assertion", &properties, "")
}

/// Returns a request that sends variables.
fn get(name: &str, port: u16, path: &str, variables: &[&str], below: &str) -> String {
    let arguments: String = variables
        .iter()
        .map(|name| {
            format!(
                "<elementProp name=\"{name}\" elementType=\"HTTPArgument\"><boolProp name=\"HTTPArgument.always_encode\">true</boolProp>\
                 <stringProp name=\"Argument.name\">{name}</stringProp><stringProp name=\"Argument.value\">${{{name}}}</stringProp>\
                 <stringProp name=\"Argument.metadata\">=</stringProp><boolProp name=\"HTTPArgument.use_equals\">true</boolProp></elementProp>"
            )
        })
        .collect();
    format!(
        "<HTTPSamplerProxy guiclass=\"HttpTestSampleGui\" testclass=\"HTTPSamplerProxy\" testname=\"{name}\" enabled=\"true\">\
         <elementProp name=\"HTTPsampler.Arguments\" elementType=\"Arguments\"><collectionProp name=\"Arguments.arguments\">{arguments}\
         </collectionProp></elementProp><stringProp name=\"HTTPSampler.domain\">127.0.0.1</stringProp>\
         <stringProp name=\"HTTPSampler.port\">{port}</stringProp><stringProp name=\"HTTPSampler.protocol\">http</stringProp>\
         <stringProp name=\"HTTPSampler.path\">{path}</stringProp><stringProp name=\"HTTPSampler.method\">GET</stringProp>\
         <boolProp name=\"HTTPSampler.use_keepalive\">true</boolProp></HTTPSamplerProxy><hashTree>{below}</hashTree>\n"
    )
}

fn whole(group: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><jmeterTestPlan version=\"1.2\" properties=\"5.0\" jmeter=\"5.6.3\"><hashTree>\
         <TestPlan guiclass=\"TestPlanGui\" testclass=\"TestPlan\" testname=\"p\" enabled=\"true\"/><hashTree>{group}</hashTree></hashTree>\
         </jmeterTestPlan>"
    )
}

fn threads(count: usize, loops: usize, below: &str) -> String {
    format!(
        "<ThreadGroup guiclass=\"ThreadGroupGui\" testclass=\"ThreadGroup\" testname=\"g\" enabled=\"true\">\
         <elementProp name=\"ThreadGroup.main_controller\" elementType=\"LoopController\" guiclass=\"LoopControlPanel\" \
         testclass=\"LoopController\"><boolProp name=\"LoopController.continue_forever\">false</boolProp>\
         <stringProp name=\"LoopController.loops\">{loops}</stringProp></elementProp>\
         <stringProp name=\"ThreadGroup.num_threads\">{count}</stringProp><stringProp name=\"ThreadGroup.ramp_time\">0</stringProp>\
         <boolProp name=\"ThreadGroup.scheduler\">false</boolProp></ThreadGroup><hashTree>{below}</hashTree>"
    )
}

fn critical(lock: &str, below: &str) -> String {
    let properties = [("CriticalSectionController.lockName", lock)];
    element(
        "CriticalSectionController",
        "CriticalSectionControllerGui",
        "critical",
        &properties,
        below,
    )
}

fn include(file: &str) -> String {
    element(
        "IncludeController",
        "IncludeControllerGui",
        "include",
        &[("IncludeController.includepath", file)],
        "",
    )
}

/// Writes the plan with its fragment; returns its place.
fn write(folder: &Path, port: u16) -> PathBuf {
    let tolerant = [("XPathExtractor.tolerant", "true"), ("XPathExtractor.quiet", "true")];
    let fragment = [("XPathExtractor.fragment", "true")];
    let xml = [
        xpath("x1", "//title", "-1", "none", &[]),
        xpath("x2", "count(//book)", "-1", "none", &[]),
        xpath("x3", "//book", "-1", "none", &[]),
        xpath("x4", "//price", "2", "none", &fragment),
        xpath("x5", "//missing", "-1", "gone", &[]),
        xpath("x6", "//book/@id", "2", "none", &[]),
        xpath("x7", "//book[price &gt; 15]/title/b/text()", "1", "none", &[]),
        xpath("x8", "//comment()", "1", "none", &[]),
        xpath("x9", "//book[1]/following-sibling::book/@id", "1", "none", &[]),
        xpath("x10", "string(//book[2]/title)", "-1", "none", &[]),
        xpath("x11", "count(//book) = 2", "-1", "none", &[]),
        xpath2("y1", "//book[2]/title", "1"),
        xpath2("y2", "//book/@id", "-1"),
        xpath2("y3", "upper-case(//book[1]/title)", "1"),
        assertion("//book", "false"),
        assertion("//missing", "true"),
    ]
    .concat()
    .replace("&amp;gt;", "&gt;");
    let failing = assertion("count(//book) = 3", "false");
    let html = [
        css("c1", "ul li", "", "1"),
        css("c2", "a[href]", "href", "-1"),
        css("c3", "p:contains(second)", "", "1"),
        css("c4", "li:eq(1)", "", "1"),
        css("c5", "#none", "", "1"),
        css("c6", "ul.b > li[title^=th]", "title", "1"),
        css("c7", "div", "", "1"),
        css("c8", "li:not(.x)", "", "-1"),
        xpath("t1", "//li[2]/b", "1", "none", &tolerant),
        xpath("t2", "//a/@href", "-1", "none", &tolerant),
    ]
    .concat();
    let group = [
        get("xml", port, "/xml", &[], &xml),
        get(
            "use",
            port,
            "/use",
            &[
                "x1",
                "x1_1",
                "x1_2",
                "x1_matchNr",
                "x2",
                "x3",
                "x3_matchNr",
                "x4",
                "x5",
                "x5_matchNr",
                "x6",
                "x7",
                "x8",
                "x9",
                "x10",
                "x11",
                "y1",
                "y2",
                "y2_2",
                "y2_matchNr",
                "y3",
            ],
            "",
        ),
        get("wrong", port, "/xml", &[], &failing),
        get(
            "no xml",
            port,
            "/html",
            &[],
            &[xpath("n1", "//li", "1", "none", &[]), assertion("//li", "false")].concat(),
        ),
        get("html", port, "/html", &[], &html),
        get(
            "use again",
            port,
            "/use",
            &[
                "c1",
                "c2_1",
                "c2_2",
                "c2_matchNr",
                "c3",
                "c4",
                "c5",
                "c6",
                "c7",
                "c8_2",
                "t1",
                "t2",
                "t2_matchNr",
                "n1",
            ],
            "",
        ),
        critical("lock", &get("inside", port, "/inside", &[], "")),
        include("fragment.jmx"),
    ]
    .concat();
    let text = whole(&threads(1, 2, &group));
    let fragment = element(
        "TestFragmentController",
        "TestFragmentControllerGui",
        "fragment",
        &[],
        &[get("included", port, "/included", &["x6"], ""), include("second.jmx")].concat(),
    );
    let second = element(
        "TestFragmentController",
        "TestFragmentControllerGui",
        "fragment",
        &[],
        &get("twice included", port, "/twice", &[], ""),
    );
    std::fs::write(folder.join("plan.jmx"), text).unwrap();
    std::fs::write(folder.join("fragment.jmx"), whole(&fragment)).unwrap();
    std::fs::write(folder.join("second.jmx"), whole(&second)).unwrap();
    folder.join("plan.jmx")
}

fn server() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/xml" => OriginResponse::html(XML).with_header("Content-Type", "text/xml; charset=utf-8"),
        _ => OriginResponse::html(HTML),
    })
}

/// Returns the requests in their order, and the rows.
fn outcome(origin: &OriginServer, rows: &Path) -> (Vec<String>, Vec<String>) {
    let requests = origin.requests().iter().map(|seen| seen.target.clone()).collect();
    let text = std::fs::read(rows).unwrap();
    let mut found = Vec::new();
    jtl::read_jtl(&mut text.as_slice(), "rows", &mut |row| {
        found.push(format!("{} {} {}", row.label, row.response_code, row.is_ok));
    })
    .unwrap();
    (requests, found)
}

fn by_lab() -> (Vec<String>, Vec<String>) {
    let (folder, origin) = (tempfile::tempdir().unwrap(), server());
    let path = write(folder.path(), origin.addr().port());
    let rows = folder.path().join("rows.jtl");
    let plan = TestPlan::load(&path).unwrap();
    run_plan(
        &plan,
        &RunOptions { result_file: Some(rows.clone()), ..RunOptions::default() },
        &mut |_| (),
    )
    .unwrap();
    outcome(&origin, &rows)
}

fn by_jmeter(home: &Path) -> (Vec<String>, Vec<String>) {
    let (folder, origin) = (tempfile::tempdir().unwrap(), server());
    let path = write(folder.path(), origin.addr().port());
    let rows = folder.path().join("rows.jtl");
    let home = home.display();
    let told = Command::new("java")
        .current_dir(folder.path())
        .args(["-Xmx512m", "-Djava.awt.headless=true", "-cp"])
        .arg(format!("{home}/bin/ApacheJMeter.jar:{home}/lib/*:{home}/lib/ext/*"))
        .arg(format!("-Djmeter.home={home}"))
        .args(["org.apache.jmeter.NewDriver", "-n", "-Jjmeterengine.force.system.exit=true", "-t"])
        .arg(&path)
        .arg("-l")
        .arg(&rows)
        .arg("-j")
        .arg(folder.path().join("jmeter.log"))
        .output()
        .unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stdout));
    outcome(&origin, &rows)
}

/// Returns the parameters of a request.
fn parameters(target: &str) -> HashMap<String, String> {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| {
            let value = value.replace('+', " ");
            let value =
                percent_encoding::percent_decode_str(&value).decode_utf8_lossy().into_owned();
            (name.to_owned(), value)
        })
        .collect()
}

#[test]
fn markup_is_looked_into_as_jmeter_does() {
    let lab = by_lab();
    let found = parameters(&lab.0[1]);
    let expected = [
        ("x1", "One & only"),
        ("x1_2", "Two "),
        ("x1_matchNr", "2"),
        ("x2", "2"),
        ("x3", "none"),
        ("x4", "<price xmlns:p=\"urn:p\">20.5</price>"),
        ("x5", "gone"),
        ("x6", "2"),
        ("x7", "bold"),
        ("x8", " note "),
        ("x9", "2"),
        ("x10", "Two bold words"),
        ("x11", "true"),
        ("y1", "Two bold words"),
        ("y2_2", "2"),
        ("y3", "ONE & ONLY"),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}: {found:?}");
    }
    let found = parameters(&lab.0[5]);
    let expected = [
        ("c1", "one"),
        ("c2_1", "/x?a=1&b=2"),
        ("c2_2", "/y"),
        ("c3", "second link"),
        ("c4", "two bold"),
        ("c5", "none"),
        ("c6", "Third"),
        ("c7", "second link tail more"),
        ("c8_2", "three"),
        ("t1", "bold"),
        ("t2", "/x?a=1&b=2"),
        ("n1", "none"),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}: {found:?}");
    }
    assert_eq!(lab.0[6..9], ["/inside", "/included?x6=2", "/twice"]);
    assert_eq!(lab.1[..4], ["xml 200 true", "use 200 true", "wrong 200 false", "no xml 200 false"]);
    match std::env::var_os("TYMPAN_JMETER") {
        None => eprintln!("skipped: the comparison with real JMeter needs TYMPAN_JMETER"),
        Some(home) => {
            let jmeter = by_jmeter(Path::new(&home));
            for (one, other) in lab.0.iter().zip(&jmeter.0) {
                assert_eq!(parameters(one), parameters(other), "{one}\n{other}");
            }
            assert_eq!(lab, jmeter);
        }
    }
}

#[test]
fn one_thread_at_a_time_is_in_a_critical_section() {
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, seen) = (Arc::clone(&inside), Arc::clone(&most));
    // Each visit of the section is two requests: the first goes in, the second comes out.
    let owner: Arc<Mutex<Vec<String>>> = Arc::default();
    let origin = OriginServer::start(move |request| {
        if request.target.starts_with("/in") {
            let count = now.fetch_add(1, Ordering::SeqCst) + 1;
            seen.fetch_max(count, Ordering::SeqCst);
        } else if request.target.starts_with("/out") {
            now.fetch_sub(1, Ordering::SeqCst);
        }
        owner.lock().unwrap().push(request.target.clone());
        OriginResponse::html("x")
    });
    let port = origin.addr().port();
    let section = [get("in", port, "/in", &[], ""), get("out", port, "/out", &[], "")].concat();
    let group =
        [get("free", port, "/free", &[], ""), critical("a", &critical("a", &section))].concat();
    let text = whole(&threads(12, 5, &group));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap();
    let outcome = run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(outcome.tally.count, 12 * 5 * 3);
    assert_eq!((most.load(Ordering::SeqCst), inside.load(Ordering::SeqCst)), (1, 0));
    // Without the section they meet, or the test would show nothing.
    let open = [get("free", port, "/free", &[], ""), section].concat();
    let plan = TestPlan::parse(whole(&threads(12, 40, &open)).as_bytes(), "p.jmx", PathBuf::new())
        .unwrap();
    run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap();
    assert!(most.load(Ordering::SeqCst) > 1);
}

#[test]
fn what_cannot_be_included_is_reported_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let refused = |group: &str| {
        write("plan.jmx", &whole(&threads(1, 1, group)));
        match TestPlan::load(&folder.path().join("plan.jmx")) {
            Err(Error::InvalidFile(findings)) => {
                findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&include("none.jmx")).contains("plan.jmx:1:"), "no place");
    assert!(refused(&include("none.jmx")).contains("cannot read"));
    assert!(refused(&include("${name}.jmx")).contains("known only while the plan runs"));
    write("empty.jmx", &whole(""));
    assert!(refused(&include("empty.jmx")).contains("has 0 test fragments"));
    write("broken.jmx", "<jmeterTestPlan>");
    assert!(refused(&include("broken.jmx")).contains("broken.jmx:1:"));
    let own = element(
        "TestFragmentController",
        "TestFragmentControllerGui",
        "f",
        &[],
        &include("itself.jmx"),
    );
    write("itself.jmx", &whole(&own));
    assert!(refused(&include("itself.jmx")).contains("nested too deeply"));
    let fragment = element(
        "TestFragmentController",
        "TestFragmentControllerGui",
        "f",
        &[],
        &element("JDBCSampler", "x", "load users", &[], ""),
    );
    write("sql.jmx", &whole(&fragment));
    let told = refused(&include("sql.jmx"));
    assert!(told.contains("sql.jmx:") && told.contains("JDBCSampler \"load users\""), "{told}");
}

#[test]
fn what_is_no_path_or_selector_is_reported_before_anything_is_sent() {
    let origin = server();
    let port = origin.addr().port();
    let below = [
        xpath("a", "//x[", "1", "", &[]),
        xpath("b", "id('x')", "1", "", &[]),
        css("c", "a:hover", "", "1"),
        assertion("$x", "false"),
        xpath2("d", "for $i in //x return $i", "1"),
    ]
    .concat();
    let text = whole(&threads(1, 1, &get("x", port, "/", &[], &below)));
    let Err(Error::InvalidFile(findings)) =
        TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new())
    else {
        panic!()
    };
    let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
    for expected in
        ["a name is missing", "function `id`", "`:hover` is not supported", "XPath variables"]
    {
        assert!(told.iter().any(|one| one.contains(expected)), "{expected}: {told:?}");
    }
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(origin.requests().len(), 0);
}
