//! What everyday plans of JMeter hold besides the usual: properties that mean nothing, listeners that are told, scripts that
//! look back, other character sets, and the rarer assertions.

use std::path::{Path, PathBuf};

use tympan_lab_engine::plan_run::{PlanRunOutcome, RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

fn origin() -> OriginServer {
    OriginServer::start(|seen| match seen.target.as_str() {
        "/json" => OriginResponse::with_status(200)
            .with_header("Content-Type", "application/json")
            .with_body("{\"id\":42,\"list\":[{\"name\":\"a\"},{\"name\":\"b\"}]}"),
        "/gone" => OriginResponse::with_status(404).with_body("<a><b>1</b></a>"),
        _ => OriginResponse::with_status(200).with_body("<a><b>1</b></a>"),
    })
}

fn play(origin: &OriginServer, inside: &str, folder: &Path) -> PlanRunOutcome {
    let text = plan("1", "1", &format!("{}{inside}", defaults(origin)));
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", folder.to_owned())
        .unwrap_or_else(|error| panic!("{error}"));
    run_plan(&plan, &RunOptions::default(), &mut |_| ()).unwrap()
}

#[track_caller]
fn check(inside: &str, expected: &[&str]) {
    let origin = origin();
    play(&origin, inside, Path::new(""));
    let seen: Vec<String> = origin.requests().into_iter().map(|seen| seen.target).collect();
    assert_eq!(seen, expected);
}

#[test]
fn what_jmeter_passes_over_is_passed_over() {
    // Properties that no element has, listeners that write files, settings of other protocols, and what stands where nobody
    // looks for it.
    let odd = sampler("/a", "").replace(
        "<stringProp name=\"HTTPSampler.method\">",
        "<stringProp name=\"HTTPSampler.retries\">7</stringProp><boolProp name=\"my.flag\">true</boolProp><stringProp name=\"HTTPSampler.method\">",
    );
    let timer = [("ConstantTimer.delay", "0"), ("ConstantTimer.other", "7")];
    let headers = element(
        "HeaderManager",
        "h",
        &[],
        &element("ResponseAssertion", "nobody's", &[("Assertion.test_type", "8")], ""),
    );
    let beside: String = [
        element("ResultSaver", "s", &[("FileSaver.filename", "x")], ""),
        element("DebugPostProcessor", "d", &[], ""),
        element("JDBCDataSource", "j", &[("dbUrl", "jdbc:x")], ""),
        element("LoginConfig", "l", &[("ConfigTestElement.username", "u")], ""),
    ]
    .concat();
    check(&format!("{beside}{headers}{odd}{}", element("ConstantTimer", "t", &timer, "")), &["/a"]);
}

#[test]
fn scripts_look_back_at_the_sample_before() {
    let before = element(
        "JSR223PreProcessor",
        "p",
        &[("script", "vars.put('code', prev.responseCode)")],
        "",
    );
    let timer = element("BeanShellTimer", "b", &[("script", "return prev.getTime() * 0;")], "");
    let heard = element(
        "JSR223Listener",
        "l",
        &[("script", "vars.put('heard', sampleResult.getSampleLabel())")],
        "",
    );
    let reads = element(
        "JSR223Sampler",
        "s",
        &[(
            "script",
            "vars.put('body', prev.getResponseDataAsString().substring(1, 2))\nSampleResult.setResponseCode('299')",
        )],
        "",
    );
    let inside = [
        // There is no sample before the first one, so its script fails and changes nothing.
        sampler("/gone", &format!("{before}{heard}")),
        sampler("/${code}", &before),
        reads,
        sampler("/${body}/${heard}", &timer),
    ]
    .concat();
    check(&inside, &["/gone", "/404", "/a/GET%20/gone"].map(|target| target));
}

#[test]
fn a_script_lets_its_thread_sleep_before_the_next_sample() {
    let sleep =
        element("JSR223PostProcessor", "p", &[("script", "Thread.sleep(1)\nsleep = 1")], "");
    check(&format!("{}{}", sampler("/a", &sleep), sampler("/b", "")), &["/a", "/b"]);
}

#[test]
fn json_is_read_by_scripts_and_by_functions() {
    let after = element(
        "JSR223PostProcessor",
        "p",
        &[(
            "script",
            "import groovy.json.JsonSlurper\ndef json = new JsonSlurper().parseText(prev.getResponseDataAsString())\nvars.put('id', json.id.toString())\nvars.put('name', json.list[1].name)\nlog.info \"read ${json.list.size()}\"",
        )],
        "",
    );
    let inside = format!(
        "{}{}{}",
        sampler("/json", &after),
        element(
            "kg.apc.jmeter.samplers.DummySampler",
            "d",
            &[("RESPONSE_CODE", "200"), ("RESPONSE_DATA", "x")],
            ""
        ),
        sampler("/${id}/${name}/${__BeanShell(6 * 7)}", "")
    );
    check(&inside, &["/json", "/42/b/42"]);
}

#[test]
fn forms_and_data_are_written_in_the_character_sets_of_the_plan() {
    let form = |name: &str| {
        format!(
            r#"<HTTPSamplerProxy testclass="HTTPSamplerProxy" testname="f" enabled="true"><elementProp name="HTTPsampler.Arguments" elementType="Arguments"><collectionProp name="Arguments.arguments"><elementProp name="a" elementType="HTTPArgument"><boolProp name="HTTPArgument.always_encode">true</boolProp><stringProp name="Argument.value">ü${{city}}</stringProp><stringProp name="Argument.metadata">=</stringProp><stringProp name="Argument.name">a</stringProp></elementProp></collectionProp></elementProp><stringProp name="HTTPSampler.contentEncoding">{name}</stringProp><stringProp name="HTTPSampler.path">/f</stringProp><stringProp name="HTTPSampler.method">POST</stringProp></HTTPSamplerProxy><hashTree/>"#
        )
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("d.csv"), b"\xd6\xd0\n").unwrap();
    let data = element(
        "CSVDataSet",
        "c",
        &[("filename", "d.csv"), ("variableNames", "city"), ("fileEncoding", "GB2312")],
        "",
    );
    let origin = origin();
    play(&origin, &format!("{data}{}{}", form("ISO-8859-1"), form("GBK")), folder.path());
    let seen: Vec<(String, String)> = origin
        .requests()
        .iter()
        .map(|seen| {
            let media_type = seen.header("content-type").unwrap_or_default().to_owned();
            (media_type, String::from_utf8(seen.body.clone()).unwrap())
        })
        .collect();
    let form = "application/x-www-form-urlencoded; charset=";
    assert_eq!(
        seen,
        [
            (format!("{form}ISO-8859-1"), "a=%FC%3F".to_owned()),
            (format!("{form}GBK"), "a=%A8%B9%D6%D0".to_owned()),
        ]
    );
}

#[test]
fn the_rarer_assertions_judge_as_in_jmeter() {
    let failed = |inside: &str| {
        let origin = origin();
        let outcome = play(&origin, &sampler("/x", inside), Path::new(""));
        outcome.results.total_stats().error_count
    };
    let path = |path: &str| element("XPath2Assertion", "x", &[("XPath.xpath", path)], "");
    assert_eq!(failed(&path("count(//b) = 1")), 0);
    assert_eq!(failed(&path("//c")), 1);
    let digest =
        |digest: &str| element("MD5HexAssertion", "m", &[("MD5HexAssertion.size", digest)], "");
    assert_eq!(failed(&digest("6F7A16CF96CB1B4B7FE4CD2A21B8B3CD")), 1);
    let size = |part: &str, size: &str| {
        let field = format!("SizeAssertion.{part}");
        element(
            "SizeAssertion",
            "s",
            &[
                ("Assertion.test_field", &field),
                ("SizeAssertion.size", size),
                ("SizeAssertion.operator", "1"),
            ],
            "",
        )
    };
    assert_eq!(failed(&size("response_code", "3")), 0);
    assert_eq!(failed(&size("response_message", "99")), 1);
}

#[test]
fn elements_of_plugins_are_held_to_what_is_known_of_them() {
    let text = plan("1", "1", &element("VariableThroughputTimer", "t", &[("other", "7")], ""));
    let error = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new()).unwrap_err().to_string();
    assert!(error.contains("property other is set"), "{error}");
}
