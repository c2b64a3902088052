//! In which order controllers send, and what scripts and flow control say: small plans with the order that JMeter has.
//!
//! Where `TYMPAN_JMETER` names JMeter's folder, JMeter runs the same groups and must send the same, and write the same
//! rows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{element, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use super::jmeter::{home, rows, run_in_jmeter};

/// A thread group.
struct Case {
    loops: &'static str,
    on_error: &'static str,
    inside: String,
    /// What is sent, without the group's own prefix.
    expected: &'static str,
}

fn case(loops: &'static str, inside: String, expected: &'static str) -> Case {
    Case { loops, on_error: "continue", inside, expected }
}

/// Returns a sampler; `/P` stands for the prefix of its group.
fn get(name: &str) -> String {
    sampler(&format!("/P/{name}"), "")
}

fn wrap(class: &str, properties: &[(&str, &str)], inside: &[String]) -> String {
    element(class, class, properties, &inside.concat())
}

fn interleave(style: &str, inside: &[String]) -> String {
    wrap("InterleaveControl", &[("InterleaveControl.style", style)], inside)
}

fn random(style: &str, inside: &[String]) -> String {
    wrap("RandomController", &[("InterleaveControl.style", style)], inside)
}

fn simple(inside: &[String]) -> String {
    wrap("GenericController", &[], inside)
}

fn times(count: &str, inside: &[String]) -> String {
    let properties = [("LoopController.loops", count), ("LoopController.continue_forever", "true")];
    wrap("LoopController", &properties, inside)
}

fn never(inside: &[String]) -> String {
    let properties = [("IfController.condition", "false"), ("IfController.useExpression", "true")];
    wrap("IfController", &properties, inside)
}

fn transaction(inside: &[String]) -> String {
    wrap("TransactionController", &[("TransactionController.parent", "false")], inside)
}

/// Returns a transaction that stands for its samples.
fn parent(inside: &[String]) -> String {
    wrap("TransactionController", &[("TransactionController.parent", "true")], inside)
}

/// Returns a throughput controller that runs in so many of a hundred iterations.
fn share(percent: &str, inside: &[String]) -> String {
    let properties = [
        ("ThroughputController.style", "1"),
        ("ThroughputController.perThread", "true"),
        ("ThroughputController.percentThroughput", percent),
    ];
    wrap("ThroughputController", &properties, inside)
}

fn flow(action: &str) -> String {
    element(
        "TestAction",
        "flow",
        &[("ActionProcessor.action", action), ("ActionProcessor.target", "0")],
        "",
    )
}

/// Returns a sampler with a script behind it.
fn said(name: &str, script: &str) -> String {
    let properties = [("script", script), ("scriptLanguage", "groovy"), ("cacheKey", "true")];
    sampler(&format!("/P/{name}"), &element("JSR223PostProcessor", "s", &properties, ""))
}

fn assertion(field: &str, text: &str) -> String {
    format!(
        "<ResponseAssertion guiclass=\"AssertionGui\" testclass=\"ResponseAssertion\" testname=\"r\" enabled=\"true\"><collectionProp name=\"Asserion.test_strings\">\
         <stringProp name=\"1\">{text}</stringProp></collectionProp><stringProp name=\"Assertion.test_field\">Assertion.{field}</stringProp>\
         <intProp name=\"Assertion.test_type\">16</intProp></ResponseAssertion><hashTree/>"
    )
}

fn asserted(name: &str, field: &str, text: &str) -> String {
    sampler(&format!("/P/{name}"), &assertion(field, text))
}

fn each(inside: &[String]) -> String {
    let properties =
        [("ForeachController.inputVal", "word"), ("ForeachController.returnVal", "one")];
    wrap("ForeachController", &properties, inside)
}

fn cases() -> Vec<Case> {
    let [a, b, c, d, z] = ["a", "b", "c", "d", "z"].map(get);
    let both = || simple(&[a.clone(), b.clone()]);
    vec![
        // Children in turn: of a controller below, one sampler for each iteration.
        case("6", interleave("0", &[both(), c.clone()]), "a c b c a c"),
        case(
            "6",
            interleave("0", &[times("2", std::slice::from_ref(&a)), c.clone()]),
            "a c a c a c",
        ),
        case("5", interleave("0", &[transaction(&[a.clone(), b.clone()]), c.clone()]), "a c b c a"),
        // A controller below as a whole.
        case("4", interleave("1", &[both(), c.clone()]), "a b c a b c"),
        case("3", interleave("1", &[times("2", std::slice::from_ref(&a)), c.clone()]), "a a c a a"),
        case(
            "3",
            interleave(
                "1",
                &[never(std::slice::from_ref(&a)), c.clone(), simple(&[b.clone(), d.clone()])],
            ),
            "c b d c",
        ),
        case("2", format!("{}{z}", interleave("1", &[never(std::slice::from_ref(&a))])), "z z"),
        case(
            "4",
            interleave("1", &[interleave("0", &[a.clone(), b.clone()]), c.clone()]),
            "a c b c",
        ),
        case(
            "2",
            format!("{}{z}", times("2", &[interleave("0", &[a.clone(), b.clone(), c.clone()])])),
            "a b z c a z",
        ),
        case(
            "3",
            wrap(
                "InterleaveControl",
                &[("InterleaveControl.accrossThreads", "true")],
                &[a.clone(), b.clone()],
            ),
            "a b a",
        ),
        // A loop that ends for good is passed over, in the iteration in which it ends too.
        case(
            "4",
            interleave(
                "1",
                &[
                    wrap(
                        "LoopController",
                        &[
                            ("LoopController.loops", "1"),
                            ("LoopController.continue_forever", "false"),
                        ],
                        std::slice::from_ref(&a),
                    ),
                    c.clone(),
                ],
            ),
            "a c c c c",
        ),
        // At random among one.
        case("4", random("0", &[both()]), "a b a b"),
        case("2", random("1", &[both()]), "a b a b"),
        case("2", format!("{}{z}", random("1", &[never(std::slice::from_ref(&a))])), "z z"),
        case("2", wrap("RandomOrderController", &[], &[both()]), "a b a b"),
        // What comes in turn stays in turn where a failed sample ends the iteration.
        Case {
            loops: "4",
            on_error: "startnextloop",
            inside: format!("{}{z}", interleave("0", &[get("bad"), c.clone()])),
            expected: "bad c z bad c z",
        },
        // The passes of a loop are given up, or left.
        case("1", format!("{}{z}", times("3", &[a.clone(), flow("4"), b.clone()])), "a a a z"),
        case("2", format!("{}{z}", times("3", &[a.clone(), flow("5"), b.clone()])), "a z a z"),
        case(
            "1",
            format!("{}{z}", times("2", &[transaction(&[a.clone(), flow("4"), b.clone()])])),
            "a a z",
        ),
        case(
            "1",
            format!(
                "{}{z}",
                times("2", &[times("3", &[a.clone(), flow("5"), b.clone()]), c.clone()])
            ),
            "a c a c z",
        ),
        case("1", format!("{}{z}", each(&[get("${one}"), flow("4"), b.clone()])), "one two z"),
        case("2", format!("{}{z}", each(&[get("${one}"), flow("5"), b.clone()])), "one z one z"),
        case("3", format!("{a}{}{b}", flow("4")), "a a a"),
        case("3", format!("{a}{}{b}", flow("5")), "a"),
        case("2", format!("{a}{}{b}", flow("3")), "a a"),
        // Scripts say that a sample is none, or that the thread ends.
        case("2", format!("{}{b}", said("a", "prev.setIgnore()")), "a b a b"),
        case("3", format!("{}{b}", said("a", "prev.setStopThread(true)")), "a"),
        case(
            "1",
            said(
                "a",
                "if (prev.getSamplerData().contains('[no cookies]')) { prev.setResponseMessage('none') }",
            ),
            "a",
        ),
        // What was sent, as JMeter tells it.
        case("1", asserted("a", "request_data", "[no cookies]"), "a"),
        case("1", asserted("a", "request_data", "GET data:"), "a"),
        case("1", asserted("a", "request_data", "not there"), "a"),
        // An iteration without samples is not the last one.
        case("6", share("34", std::slice::from_ref(&a)), "a a"),
    ]
}

/// Returns cases with transactions that stand for their samples: of these JMeter writes rows for the samples, too.
fn transactions() -> Vec<Case> {
    let [a, b, c] = ["a", "b", "c"].map(get);
    vec![
        // A thread that ends within a transaction tells it where that stands for its samples.
        case("2", parent(&[a.clone(), said("b", "prev.setStopThread(true)"), c.clone()]), "a b"),
        case("2", parent(&[a.clone(), flow("0"), b.clone()]), "a"),
        case("2", transaction(&[a.clone(), flow("0"), b.clone()]), "a"),
        case("1", parent(&[a.clone(), parent(&[b.clone(), flow("0")]), c.clone()]), "a b"),
        Case {
            loops: "2",
            on_error: "stopthread",
            inside: parent(&[get("bad"), a.clone()]),
            expected: "bad",
        },
        // What is asserted of all samples is asserted of a transaction that stands for them, which holds no text.
        case("1", parent(&[assertion("response_data", "page"), a.clone()]), "a"),
        case("1", parent(&[assertion("response_code", "200"), a.clone()]), "a"),
        case("1", parent(&[get("bad"), a.clone()]), "bad a"),
        case("1", transaction(&[assertion("response_data", "page"), a.clone()]), "a"),
    ]
}

fn group(number: usize, case: &Case) -> String {
    let inside = case.inside.replace("/P/", &format!("/g{number}/"));
    format!(
        r#"<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="g{number}" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">{}</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><boolProp name="LoopController.continue_forever">false</boolProp><stringProp name="LoopController.loops">{}</stringProp></elementProp>
<stringProp name="ThreadGroup.num_threads">1</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp>
</ThreadGroup><hashTree>
{inside}
</hashTree>"#,
        case.on_error, case.loops
    )
}

fn plan(cases: &[Case], port: u16) -> String {
    let groups: String = cases.iter().enumerate().map(|(at, case)| group(at, case)).collect();
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="p" enabled="true"><boolProp name="TestPlan.serialize_threadgroups">true</boolProp></TestPlan><hashTree>
<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="d" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{port}</stringProp></ConfigTestElement><hashTree/>
<Arguments guiclass="ArgumentsPanel" testclass="Arguments" testname="v" enabled="true"><collectionProp name="Arguments.arguments">
<elementProp name="word_1" elementType="Argument"><stringProp name="Argument.name">word_1</stringProp><stringProp name="Argument.value">one</stringProp></elementProp>
<elementProp name="word_2" elementType="Argument"><stringProp name="Argument.name">word_2</stringProp><stringProp name="Argument.value">two</stringProp></elementProp>
</collectionProp></Arguments><hashTree/>
{groups}
</hashTree></hashTree></jmeterTestPlan>"#
    )
}

fn server() -> OriginServer {
    OriginServer::start(|seen| match seen.target.ends_with("/bad") {
        true => OriginResponse::with_status(500),
        false => OriginResponse::html("page"),
    })
}

/// Returns what was sent in each group.
fn sent(origin: &OriginServer, count: usize) -> Vec<String> {
    let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for seen in origin.requests() {
        let (group, name) = seen.target[2..].split_once('/').unwrap();
        groups.entry(group.parse().unwrap()).or_default().push(name.to_owned());
    }
    (0..count).map(|at| groups.remove(&at).unwrap_or_default().join(" ")).collect()
}

fn compare(who: &str, cases: &[Case], sent: &[String]) {
    for (at, (case, sent)) in cases.iter().zip(sent).enumerate() {
        assert_eq!(sent, case.expected, "{who}, group {at}: {}", case.inside);
    }
}

fn run_here(text: &str, folder: &Path) -> Vec<String> {
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", folder.to_owned());
    let file = folder.join("lab.jtl");
    let run = RunOptions { result_file: Some(file.clone()), ..RunOptions::default() };
    run_plan(&plan.unwrap_or_else(|error| panic!("{error}")), &run, &mut |_| {}).unwrap();
    rows(&file)
}

#[test]
fn controllers_and_scripts_do_what_they_do_in_jmeter() {
    let cases = cases();
    let folder = tempfile::tempdir().unwrap();
    let origin = server();
    let own = run_here(&plan(&cases, origin.addr().port()), folder.path());
    compare("lab", &cases, &sent(&origin, cases.len()));
    assert!(!own.iter().any(|row| row.starts_with("GET /g25/a|")), "an ignored sample has no row");
    let Some(home) = home() else { return };
    let origin = server();
    let theirs = run_in_jmeter(&home, &plan(&cases, origin.addr().port()), folder.path());
    compare("JMeter", &cases, &sent(&origin, cases.len()));
    assert_eq!(own, theirs);
}

#[test]
fn transactions_end_and_are_judged_as_in_jmeter() {
    let cases = transactions();
    let folder = tempfile::tempdir().unwrap();
    let sums = |rows: Vec<String>| -> Vec<String> {
        rows.into_iter().filter(|row| row.starts_with("TransactionController|")).collect()
    };
    let origin = server();
    let own = sums(run_here(&plan(&cases, origin.addr().port()), folder.path()));
    compare("lab", &cases, &sent(&origin, cases.len()));
    let whole = |code: &str, samples: u32, failed: u32, is_ok: bool| {
        format!(
            "TransactionController|{code}|Number of samples in transaction : {samples}, number of failing samples : {failed}|{is_ok}|"
        )
    };
    let stopped = |code: &str, is_ok: bool| format!("TransactionController|{code}||{is_ok}|");
    assert_eq!(
        own,
        [
            whole("200", 1, 0, false),
            whole("200", 1, 0, true),
            whole("200", 1, 0, true),
            stopped("200", true),
            stopped("200", true),
            // The transaction within another one is a sample of it.
            stopped("200", true),
            stopped("200", true),
            whole("500", 2, 1, false),
            stopped("500", false),
        ]
    );
    let Some(home) = home() else { return };
    let origin = server();
    let theirs = sums(run_in_jmeter(&home, &plan(&cases, origin.addr().port()), folder.path()));
    compare("JMeter", &cases, &sent(&origin, cases.len()));
    assert_eq!(own, theirs);
}

#[test]
fn samples_without_requests_keep_nobody_from_his_turn() {
    let origin = server();
    let most = 1_000_000;
    let cases = [
        case("1000000", element("DebugSampler", "debug", &[], ""), ""),
        case("1", said("a", "prev.setStopTest(true)"), "a"),
    ];
    let text = plan(&cases, origin.addr().port())
        .replace("serialize_threadgroups\">true<", "serialize_threadgroups\">false<");
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", "".into());
    let run = RunOptions { worker_count: 1, ..RunOptions::default() };
    let outcome =
        run_plan(&plan.unwrap_or_else(|error| panic!("{error}")), &run, &mut |_| {}).unwrap();
    compare("lab", &cases, &sent(&origin, 2));
    let count = outcome.results.labels["debug"].total.count();
    assert!(count < most, "the test was to end before all samples: {count}");
}

#[test]
fn a_thread_whose_condition_never_holds_ends() {
    let origin = server();
    let cases = [case("-1", never(&[get("a")]), ""), case("1", get("b"), "b")];
    run_here(&plan(&cases, origin.addr().port()), tempfile::tempdir().unwrap().path());
    compare("lab", &cases, &sent(&origin, 2));
}

#[test]
fn an_arrival_without_a_sample_takes_no_other_with_it() {
    let origin = server();
    let counter = element(
        "CounterConfig",
        "n",
        &[("CounterConfig.start", "1"), ("CounterConfig.incr", "1"), ("CounterConfig.name", "n")],
        "",
    );
    let odd = wrap(
        "IfController",
        &[
            ("IfController.condition", "${__groovy(vars.get('n').toInteger() % 2 == 1)}"),
            ("IfController.useExpression", "true"),
        ],
        &[get("${n}")],
    );
    let cases = [case("1", format!("{counter}{odd}"), "1 3 5 7 9 11 13 15 17 19")];
    let plan = TestPlan::parse(plan(&cases, origin.addr().port()).as_bytes(), "p.jmx", "".into());
    let offer = LoadOffer {
        amount: LoadAmount::Rate(20.0),
        duration: Duration::from_secs(1),
        ramp: Duration::ZERO,
        is_random: false,
    };
    let run = RunOptions { worker_count: 1, load_offer: Some(offer), ..RunOptions::default() };
    let outcome =
        run_plan(&plan.unwrap_or_else(|error| panic!("{error}")), &run, &mut |_| {}).unwrap();
    assert_eq!(outcome.visits, 20);
    let mut all: Vec<u32> =
        sent(&origin, 1)[0].split(' ').map(|number| number.parse().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
}

#[test]
fn a_name_has_the_address_that_the_plan_gives_it() {
    let hosts = "<DNSCacheManager guiclass=\"DNSCachePanel\" testclass=\"DNSCacheManager\" testname=\"n\" enabled=\"true\"><collectionProp name=\"DNSCacheManager.servers\"/>\
        <collectionProp name=\"DNSCacheManager.hosts\"><elementProp name=\"x\" elementType=\"StaticHost\"><stringProp name=\"StaticHost.Name\">lab.invalid</stringProp>\
        <stringProp name=\"StaticHost.Address\">127.0.0.1</stringProp></elementProp></collectionProp><boolProp name=\"DNSCacheManager.clearEachIteration\">false</boolProp>\
        <boolProp name=\"DNSCacheManager.isCustomResolver\">true</boolProp></DNSCacheManager><hashTree/>";
    let named = get("a").replace(
        "<stringProp name=\"HTTPSampler.method\">",
        "<stringProp name=\"HTTPSampler.domain\">lab.invalid</stringProp><stringProp name=\"HTTPSampler.method\">",
    );
    let origin = server();
    let cases = [case("2", format!("{hosts}{named}"), "a a")];
    let rows = run_here(&plan(&cases, origin.addr().port()), tempfile::tempdir().unwrap().path());
    compare("lab", &cases, &sent(&origin, 1));
    assert!(rows.iter().all(|row| row.contains("|200|")), "{rows:?}");
    assert!(origin.requests()[0].header("host").unwrap().starts_with("lab.invalid:"));
}

#[test]
fn threads_begin_across_the_children_of_an_interleave_controller() {
    let origin = server();
    let inside = wrap(
        "InterleaveControl",
        &[("InterleaveControl.accrossThreads", "true")],
        &["a", "b", "c"].map(get),
    );
    let text = plan(&[case("1", inside, "")], origin.addr().port());
    let text = text.replace("num_threads\">1<", "num_threads\">4<");
    run_here(&text, tempfile::tempdir().unwrap().path());
    let mut sent: Vec<String> = sent(&origin, 1)[0].split(' ').map(str::to_owned).collect();
    sent.sort();
    assert_eq!(sent, ["a", "a", "b", "c"]);
}

#[test]
fn a_script_ends_the_test_for_all_threads() {
    let origin = server();
    let cases = [case("5", said("a", "prev.setStopTest(true)"), "a"), case("1", get("b"), "")];
    run_here(&plan(&cases, origin.addr().port()), tempfile::tempdir().unwrap().path());
    compare("lab", &cases, &sent(&origin, 2));
}

#[test]
fn timers_of_scripts_and_of_throughput_hold_samples_back() {
    let begun = std::time::Instant::now();
    let origin = server();
    let script = element(
        "JSR223Timer",
        "t",
        &[("script", "return 20 + 5"), ("scriptLanguage", "groovy")],
        "",
    );
    let shaped = "<kg.apc.jmeter.timers.VariableThroughputTimer testclass=\"kg.apc.jmeter.timers.VariableThroughputTimer\" testname=\"v\" enabled=\"true\">\
        <collectionProp name=\"load_profile\"><collectionProp name=\"1\"><stringProp name=\"1\">50</stringProp><stringProp name=\"2\">50</stringProp>\
        <stringProp name=\"3\">1</stringProp></collectionProp></collectionProp></kg.apc.jmeter.timers.VariableThroughputTimer><hashTree/>";
    let precise = element(
        "PreciseThroughputTimer",
        "t",
        &[
            ("throughput", "100"),
            ("throughputPeriod", "1"),
            ("duration", "1"),
            ("batchSize", "1"),
            ("exactLimit", "10000"),
        ],
        "",
    );
    let cases = [
        case("8", format!("{script}{}", get("a")), ""),
        case("100", format!("{precise}{}", get("b")), ""),
        case("1000", format!("{shaped}{}", get("c")), ""),
    ];
    let text = plan(&cases, origin.addr().port());
    // One after the other, as all of them count from the start of the run.
    run_here(&text, tempfile::tempdir().unwrap().path());
    let sent = sent(&origin, 3);
    let count = |at: usize| sent[at].split(' ').filter(|name| !name.is_empty()).count();
    assert_eq!((count(0), count(1)), (8, 100));
    // Rows count from the start: none is left for samples when they are over, and the test ends.
    assert!(count(2) <= 50, "{}", count(2));
    // Eight samples wait for a script, and the last of 100 for a moment of the first second.
    assert!(begun.elapsed().as_millis() >= 8 * 25);
}

fn throughput(per_minute: &str, mode: &str) -> String {
    let properties = [("calcMode", mode), ("throughput", per_minute)];
    element("ConstantThroughputTimer", "t", &properties, "")
}

/// Lets the threads of a plan live for a minute at most.
fn for_a_minute(text: &str) -> String {
    text.replace(
        "<stringProp name=\"ThreadGroup.num_threads\">",
        "<boolProp name=\"ThreadGroup.scheduler\">true</boolProp><stringProp name=\"ThreadGroup.duration\">60</stringProp>\
         <stringProp name=\"ThreadGroup.num_threads\">",
    )
}

#[test]
fn a_throughput_is_that_of_a_thread_a_group_or_all_threads() {
    let play = |mode: &str| {
        let origin = server();
        // A sample of a minute that comes again after days: who would have to wait for it sends none.
        let inside = |name: &str| format!("{}{}", throughput("0.0001", mode), get(name));
        let cases = [case("2", inside("a"), ""), case("2", inside("b"), "")];
        let text = for_a_minute(&plan(&cases, origin.addr().port()));
        run_here(&text, tempfile::tempdir().unwrap().path());
        sent(&origin, 2).concat()
    };
    assert_eq!([play("0"), play("1"), play("2"), play("4")], ["ab", "ab", "ab", "ab"]);
    assert_eq!(play("3"), "a");
}

#[test]
fn a_throughput_of_all_threads_is_divided_among_all_groups() {
    let begun = std::time::Instant::now();
    let origin = server();
    let paced = sampler("/P/a", &throughput("1200", "1"));
    let pause = element("ConstantTimer", "c", &[("ConstantTimer.delay", "1")], "");
    let cases = [
        case("-1", sampler("/P/b", &pause), ""),
        case("1", format!("{}{}", times("7", &[paced]), said("z", "prev.setStopTest(true)")), ""),
    ];
    let text = plan(&cases, origin.addr().port())
        .replace("serialize_threadgroups\">true<", "serialize_threadgroups\">false<");
    run_here(&text, tempfile::tempdir().unwrap().path());
    assert_eq!(sent(&origin, 2)[1], "a a a a a a a z");
    // 50 ms for each of two threads, from the second sample on.
    assert!(begun.elapsed().as_millis() >= 6 * 100 - 50, "{:?}", begun.elapsed());
}

#[test]
fn who_is_late_for_a_throughput_does_not_hurry_afterwards() {
    let begun = std::time::Instant::now();
    let origin = server();
    let pause = element(
        "TestAction",
        "pause",
        &[
            ("ActionProcessor.action", "1"),
            ("ActionProcessor.target", "0"),
            ("ActionProcessor.duration", "300"),
        ],
        "",
    );
    let inside = format!(
        "{}{}",
        sampler("/P/a", &throughput("1200", "0")),
        wrap("OnceOnlyController", &[], &[pause])
    );
    run_here(
        &plan(&[case("5", inside, "")], origin.addr().port()),
        tempfile::tempdir().unwrap().path(),
    );
    assert_eq!(sent(&origin, 1)[0], "a a a a a");
    assert!(begun.elapsed().as_millis() >= 300 + 3 * 50, "{:?}", begun.elapsed());
}

#[test]
fn who_waits_for_others_in_vain_goes_on_after_a_time() {
    let begun = std::time::Instant::now();
    let origin = server();
    let timer = element("SyncTimer", "s", &[("groupSize", "10"), ("timeoutInMs", "300")], "");
    let cases = [case("1", format!("{timer}{}", get("a")), "")];
    let text = for_a_minute(&plan(&cases, origin.addr().port()))
        .replace("num_threads\">1<", "num_threads\">15<");
    run_here(&text, tempfile::tempdir().unwrap().path());
    assert_eq!(origin.request_count(), 15);
    assert!(begun.elapsed().as_millis() >= 300, "{:?}", begun.elapsed());
}

/// In JMeter a synchronizing timer blocks where it stands, and the delays of the timers before and after it are waited for
/// together afterwards. The first thread would delay the second for an hour if its delay came first.
#[test]
fn delays_before_a_synchronizing_timer_are_waited_for_after_it() {
    let delay = "${__jexl3(${__threadNum} == 1 ? 3600000 : 0,)}";
    let timers = [
        element("ConstantTimer", "delay", &[("ConstantTimer.delay", delay)], ""),
        element("SyncTimer", "gather", &[("groupSize", "2"), ("timeoutInMs", "0")], ""),
    ];
    let run = |timers: &[String]| {
        let origin = server();
        let cases = [case("1", format!("{}{}", timers.concat(), get("a")), "")];
        let text = for_a_minute(&plan(&cases, origin.addr().port()))
            .replace("num_threads\">1<", "num_threads\">2<");
        run_here(&text, tempfile::tempdir().unwrap().path());
        origin.request_count()
    };
    // The thread whose delay is longer than the test ends when all have gathered; the other one sends.
    assert_eq!(run(&timers), 1);
    assert_eq!(run(&[timers[1].clone(), timers[0].clone()]), 1);
}

#[test]
fn rows_in_random_order_come_once_each() {
    let origin = server();
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..40).map(|row| format!("r{row}\n")).collect();
    std::fs::write(folder.path().join("rows.csv"), format!("name\n{text}")).unwrap();
    let class = "com.blazemeter.jmeter.RandomCSVDataSetConfig";
    let data = element(
        class,
        "d",
        &[
            ("filename", "rows.csv"),
            ("delimiter", ","),
            ("randomOrder", "true"),
            ("rewindOnTheEndOfList", "false"),
        ],
        "",
    );
    let cases = [case("-1", format!("{data}{}", get("${name}")), "")];
    run_here(&plan(&cases, origin.addr().port()), folder.path());
    let sent = sent(&origin, 1);
    let mut names: Vec<&str> = sent[0].split(' ').collect();
    assert_eq!(names.len(), 40, "the thread ends with the rows");
    assert!(!names.is_sorted_by_key(|name| name[1..].parse::<u32>().unwrap()), "{names:?}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 40);
}

#[test]
fn arrivals_of_the_plugin_come_at_their_rate() {
    let origin = server();
    let inside = get("a").replace("/P/", "/g0/");
    let class = "com.blazemeter.jmeter.threads.arrivals.ArrivalsThreadGroup";
    let text = plan(&[case("1", String::new(), "")], origin.addr().port());
    let (before, rest) = text.split_once("<ThreadGroup ").unwrap();
    let (_, after) = rest.split_once("</hashTree>").unwrap();
    let group = element(
        class,
        "g",
        &[
            ("ThreadGroup.on_sample_error", "continue"),
            ("TargetLevel", "${__P(rate,)}"),
            ("RampUp", "1"),
            ("Steps", "2"),
            ("Hold", "1"),
            ("Unit", "S"),
        ],
        &inside,
    );
    let text = format!("{before}{group}{after}");
    let parsed = TestPlan::parse(text.as_bytes(), "p.jmx", "".into());
    let parsed = parsed.unwrap_or_else(|error| panic!("{error}"));
    let properties = [("rate".to_owned(), "20".to_owned())].into();
    run_plan(&parsed, &RunOptions { properties, ..RunOptions::default() }, &mut |_| {}).unwrap();
    // Half a second of 10/s, half a second of 20/s, one second of 20/s.
    assert_eq!(sent(&origin, 1)[0].split(' ').count(), 35);
    let refused = run_plan(&parsed, &RunOptions::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("-Jrate="), "{refused}");
}
