//! The commands of `tympan lab` that prove, tune and look at a site: their exit codes and what they print.

use std::io::Write as _;
use std::process::Output;

use serde_json::Value;
use tympan_testkit::origin_server::{OriginResponse, OriginServer, refusing_addr};

use crate::program::lab_command;

struct Told {
    code: Option<i32>,
    text: String,
    errors: String,
}

impl Told {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

fn lab(folder: &std::path::Path, words: &[&str]) -> Told {
    let Output { status, stdout, stderr } =
        lab_command().current_dir(folder).args(words).output().unwrap();
    Told {
        code: status.code(),
        text: String::from_utf8(stdout).unwrap(),
        errors: String::from_utf8(stderr).unwrap(),
    }
}

#[test]
fn verify_tells_same_from_changed_from_unanswered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("pages.txt"), "/a.html\n").unwrap();
    std::fs::write(path.join("error.log"), "*ERROR* old\n").unwrap();
    let before = OriginServer::start_constant(OriginResponse::html("one"));
    let log = path.join("error.log");
    let after = OriginServer::start(move |_| {
        std::fs::write(&log, "*ERROR* old\n*ERROR* new\n").unwrap();
        OriginResponse::html("two")
    });
    let url = |origin: &OriginServer| format!("http://{}", origin.addr());
    let verify = |after: &str, more: &[&str]| {
        let before = url(&before);
        let mut words = vec!["verify", "pages.txt", "--before", &before, "--after", after];
        words.extend(more);
        lab(path, &words)
    };
    assert_eq!(verify(&url(&before), &["--watch-log", "error.log"]).code, Some(0));
    let changed = verify(&url(&after), &["--watch-log", "error.log", "--json"]);
    assert_eq!(changed.code, Some(1));
    assert_eq!(changed.json()["changes"][0]["diff"], "- one\n+ two");
    assert_eq!(changed.json()["errors_logged"][0]["line"], "*ERROR* new");
    assert_eq!(verify(&format!("http://{}", refusing_addr()), &[]).code, Some(3));
    assert_eq!(verify("nonsense", &[]).code, Some(2));
    let unread = verify(&url(&before), &["--watch-log", "error.lgo"]);
    assert_eq!(unread.code, Some(3), "{}", unread.text);
    assert!(unread.text.contains("LOG NOT READ cannot read `error.lgo`"), "{}", unread.text);
    let unread = verify(&url(&before), &["--watch-log", "error.lgo", "--json"]).json();
    assert_eq!(unread["logs_not_read"].as_array().unwrap().len(), 1);
}

/// Returns the words of every command that loads a site, each with as little load as it takes.
fn loads(site: &str) -> Vec<Vec<String>> {
    let page = format!("{site}/a.html");
    let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    vec![
        words(&format!("get {page} -n 2")),
        words(&format!("ab -n 2 {page}")),
        words(&format!("run plan.toml --target {site}")),
        words(&format!("run plan.toml --target {site} --agents 2")),
        words(&format!("jmeter -n -t plan.jmx -Jport={}", site.rsplit(':').next().unwrap())),
        words(&format!("slo {page} --samples 2")),
        words(&format!("slo {page} --samples 2 --watch --rounds 1")),
        words(&format!("page {page} --visits 1")),
        words(&format!("component {page} --avg 20/s --peak 20/s --hold 1s")),
        words(&format!("breakpoint {page} --users --from 1 --steps 1 --dwell 200ms --exact-dwell")),
        words(&format!("golive {page} --avg 20/s --peak 20/s --factor 1 --hold 1s")),
        words(&format!(
            "errors {page} --rate 20/s --for 1s --share 50% --within 60s --delta 100000%"
        )),
        words(&format!("replay access.log --target {site}")),
    ]
}

const SAMPLER: &str = r#"<?xml version="1.0"?><jmeterTestPlan version="1.2"><hashTree><TestPlan testname="p"/><hashTree>
<ThreadGroup testname="g"><stringProp name="ThreadGroup.num_threads">1</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><stringProp name="LoopController.loops">1</stringProp></elementProp>
</ThreadGroup><hashTree><HTTPSamplerProxy testname="s"><stringProp name="HTTPSampler.domain">127.0.0.1</stringProp>
<stringProp name="HTTPSampler.port">${__P(port)}</stringProp><stringProp name="HTTPSampler.path">/a.html</stringProp>
<stringProp name="HTTPSampler.method">GET</stringProp></HTTPSamplerProxy><hashTree/></hashTree></hashTree></hashTree></jmeterTestPlan>"#;

#[test]
fn every_load_fails_on_what_is_logged_as_an_error_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("plan.jmx"), SAMPLER).unwrap();
    std::fs::write(
        path.join("plan.toml"),
        "target = \"http://127.0.0.1:9\"\n[load]\nusers = 2\nvisits = 1\n[[scenario]]\nname = \"s\"\n[[scenario.step]]\npath = \"/a.html\"\n",
    )
    .unwrap();
    std::fs::write(
        path.join("access.log"),
        "10.0.0.1 - - [21/Nov/2026:00:00:00 +0000] \"GET /a.html HTTP/1.1\" 200 5 \"-\" \"-\"\n",
    )
    .unwrap();
    std::fs::write(path.join("quiet.log"), "*ERROR* old\n").unwrap();
    std::fs::write(path.join("loud.log"), "*ERROR* old\n").unwrap();
    let log = path.join("loud.log");
    let origin = OriginServer::start(move |seen| {
        let mut file = std::fs::File::options().append(true).open(&log).unwrap();
        file.write_all(b"*INFO* ERRORS are not meant\n*ERROR* [x] new\n").unwrap();
        // The usual mistakes of `errors` are answered as they should be.
        match seen.target.as_str() {
            "/a.html" => OriginResponse::html("x"),
            _ => OriginResponse::with_status(404),
        }
    });
    let site = format!("http://{}", origin.addr());
    for words in loads(&site) {
        let told = |log: &str| {
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            words.splice(1..1, ["--watch-log", log]);
            lab(path, &words)
        };
        let check = |log: &str, code: i32, expected: &str| {
            let told = told(log);
            assert_eq!(told.code, Some(code), "{words:?} {log}\n{}{}", told.text, told.errors);
            assert!(told.text.contains(expected), "{words:?} {log}\n{}", told.text);
        };
        // Others judge times too, or how many random arrivals came.
        let is_judged_by_logs_only =
            matches!(words[0].as_str(), "get" | "ab" | "run" | "jmeter" | "page" | "replay");
        if is_judged_by_logs_only {
            check("quiet.log", 0, "");
        } else {
            let told = told("quiet.log").text;
            assert!(!told.contains("[x] new"), "{words:?}\n{told}");
        }
        check("loud.log", 1, "[x] new");
        check("gone.log", 3, "LOG NOT READ cannot read `gone.log`");
    }
    let page = format!("{site}/a.html");
    let json = lab(path, &["get", &page, "--watch-log", "loud.log", "--json"]).json();
    assert_eq!(json["errors_logged"][0]["count"], 1, "{json}");
    assert_eq!(json["goals"][0]["met"], false);
    let sheet = lab(path, &["page", &page, "--watch-log", "loud.log", "--json"]).json();
    assert!(sheet["errors_logged"][0]["count"].as_u64() > Some(0), "{sheet}");
    let own = ["--watch-log", "loud.log", "--log-pattern", "meant$"];
    let told = lab(path, &[&["get", &page][..], &own[..]].concat());
    assert!(told.text.contains("ERROR LOGGED loud.log: *INFO*"), "{}", told.text);
    let pods = ["run", "plan.toml", "--agents", "2", "--emit", "k8s", "--watch-log", "loud.log"];
    assert_eq!(lab(path, &pods).code, Some(2));
}

/// Every option of ab's manual is taken, with its effect on the request or the text, or refused with a reason.
#[test]
fn ab_takes_all_options_of_its_manual() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("body.txt"), "ABC").unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        let turn = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        OriginResponse::html("x".repeat(1 + turn % 2)).with_header("Server", "test/1")
    });
    let page = format!("http://{}/p", origin.addr());
    let proxy = origin.addr().to_string();
    // Words, what the text holds, and what the last request holds.
    let taken: &[(&[&str], &str, &[&str])] = &[
        (&["-n", "3", "-c", "2"], "Complete requests:      3", &["GET /p"]),
        (&["-t", "5", "-n", "2"], "Complete requests:      2", &[]),
        (&["-s", "7"], "Complete requests:      1", &[]),
        (
            &["-p", "body.txt", "-T", "text/x"],
            "Total body sent:",
            &["POST /p", "content-type: text/x", "ABC"],
        ),
        (&["-u", "body.txt"], "Total body sent:", &["PUT /p", "content-type: text/plain", "ABC"]),
        (&["-m", "PATCH"], "Complete requests:      1", &["PATCH /p"]),
        (&["-i"], "HTML transferred:       0 bytes", &["HEAD /p"]),
        (&["-C", "a=b", "-C", "c=d"], "Complete", &["cookie: a=b; c=d"]),
        (&["-H", "X-One: two"], "Complete", &["x-one: two"]),
        (&["-A", "u:p"], "Complete", &["authorization: Basic dTpw"]),
        (&["-X", &proxy, "-P", "u:p"], "[through ", &["proxy-authorization: Basic dTpw"]),
        (&["-k", "-n", "2"], "Keep-Alive requests:    2", &["connection: Keep-Alive"]),
        (&["-d", "-n", "2"], "Connection Times (ms)", &[]),
        (&["-S", "-n", "2"], "              min  avg  max", &[]),
        (&["-l", "-n", "2"], "Document Length:        Variable", &[]),
        (&["-r", "-q", "-n", "200", "-k"], "(be patient).....done", &[]),
        (&["-n", "200", "-k"], "Complete requests:      200", &[]),
        (&["-v", "3"], "LOG: Response code = 200", &[]),
        (&["-w"], "<table >", &[]),
        (
            &["-x", "border=1", "-y", "class=r", "-z", "nowrap"],
            "<table border=1>\n<tr class=r><th colspan=2 nowrap>",
            &[],
        ),
        (&["-g", "g.tsv", "-e", "e.csv"], "Complete", &[]),
        (&["-b", "8192"], "Complete", &[]),
        (&["-B", "127.0.0.1"], "Complete", &[]),
        (&["-f", "TLS1.3", "-Z", "ECDHE-RSA-AES128-GCM-SHA256", "-I"], "Complete", &[]),
        (&["--strict-ab", "-n", "2"], "Length: 1, Exceptions: 0", &[]),
    ];
    for (options, text, request) in taken {
        let told = lab(path, &[&["ab"][..], options, &[page.as_str()]].concat());
        assert_eq!(told.code, Some(0), "{options:?}\n{}{}", told.text, told.errors);
        assert!(told.text.contains(text), "{options:?}: {text}\n{}", told.text);
        let seen = origin.requests();
        let last = seen.last().unwrap();
        let body = String::from_utf8_lossy(&last.body);
        let headers: Vec<String> = last
            .headers
            .iter()
            .map(|(name, value)| format!("{}: {value}", name.to_ascii_lowercase()))
            .collect();
        let whole = format!("{} {} {} {body}", last.method, last.target, headers.join(" "));
        for part in *request {
            assert!(whole.contains(part), "{options:?}: {part}\n{whole}");
        }
    }
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    assert!(read("g.tsv").starts_with("starttime\tseconds\tctime\tdtime\tttime\twait\n"));
    assert!(read("e.csv").starts_with("Percentage served,Time in ms\n0,"));
    let long = lab(path, &["ab", "-n", "200", "-k", &page]);
    let told: Vec<&str> = long.errors.lines().collect();
    assert_eq!(told, ["Completed 100 requests", "Completed 200 requests", "Finished 200 requests"]);
    let version = lab(path, &["ab", "-V"]);
    assert_eq!(version.code, Some(0));
    assert!(version.text.starts_with("This is ApacheBench, Version 2.3"), "{}", version.text);
    let secure = format!("https://{}/", origin.addr());
    let refused: &[(&[&str], &str)] = &[
        (&["-f", "SSL3", &page], "-f SSL3: this protocol is insecure"),
        (&["-Z", "RC4-MD5", &page], "-Z RC4-MD5: unknown cipher suite"),
        (&["-E", "none.pem", &page], "-E none.pem: cannot read a PEM certificate"),
        (&["-X", &proxy, &secure], "through a proxy"),
        (&["-i", "-p", "body.txt", &page], "cannot be used with"),
        (&["-n", "1", "-c", "2", &page], "Cannot use concurrency level greater"),
        (&["-n", "0", &page], "-n and -c must be above 0"),
        (&["-o", &page], "unexpected argument"),
        (&[], "required"),
    ];
    let before = origin.request_count();
    for (words, why) in refused {
        let told = lab(path, &[&["ab"][..], words].concat());
        assert_eq!(told.code, Some(2), "{words:?}\n{}{}", told.text, told.errors);
        assert!(told.errors.contains(why), "{words:?}: {why}\n{}", told.errors);
    }
    assert_eq!(origin.request_count(), before);
}

#[test]
fn a_check_names_the_subset_of_each_plan_and_leaves_out_what_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("good.jmx"), SAMPLER).unwrap();
    let odd = "<JDBCSampler testname=\"users\"/><hashTree/></hashTree></hashTree></hashTree></jmeterTestPlan>";
    let text = SAMPLER.replace("</hashTree></hashTree></hashTree></jmeterTestPlan>", odd);
    std::fs::write(path.join("odd.jmx"), text).unwrap();
    let told = lab(path, &["check", "good.jmx", "odd.jmx"]);
    assert_eq!(told.code, Some(2), "{}", told.text);
    assert!(told.text.contains("good.jmx: can be run (subset 1 of 4)"), "{}", told.text);
    let beyond = "odd.jmx: cannot be run (beyond subset 4: JDBCSampler)";
    assert!(told.text.contains(beyond), "{}", told.text);
    let words = ["check", "odd.jmx", "--allow-ignore", "JDBCSampler", "--explain"];
    let told = lab(path, &words);
    assert_eq!(told.code, Some(0), "{}", told.text);
    assert!(told.text.contains("JDBCSampler \"users\": left out"), "{}", told.text);
    assert!(told.text.contains("1 HTTPSamplerProxy  (subset 1)"), "{}", told.text);
    let json = lab(path, &["check", "good.jmx", "odd.jmx", "--json"]).json();
    assert_eq!(
        (&json["plans"][0]["subset"], &json["plans"][1]["subset"]),
        (&1.into(), &Value::Null)
    );
    assert_eq!(json["plans"][1]["beyond"][0], "JDBCSampler");
    let refused = lab(path, &["run", "odd.jmx"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.errors.contains("--allow-ignore JDBCSampler"), "{}", refused.errors);
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let port = format!("-Jport={}", origin.addr().port());
    for agents in [&[][..], &["--agents", "2"]] {
        let words = ["run", "odd.jmx", &port, "--allow-ignore", "JDBCSampler"];
        let run = lab(path, &[&words[..], agents].concat());
        assert_eq!(run.code, Some(0), "{}{}", run.text, run.errors);
        assert!(run.text.contains("LEFT OUT odd.jmx:"), "{}", run.text);
    }
    assert_eq!(origin.request_count(), 2);
}

/// A line of one round is not told again in the next, and still fails the whole.
#[test]
fn a_latency_goal_that_is_watched_tells_new_lines_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let log = path.join("error.log");
    std::fs::write(&log, "").unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            std::fs::write(&log, "*ERROR* only once\n").unwrap();
        }
        OriginResponse::html("x")
    });
    let page = format!("http://{}/", origin.addr());
    let words = ["slo", &page, "--samples", "1", "--watch", "--rounds", "2"];
    // The line itself is the change that the second round waits for.
    let more = ["--watch-dir", ".", "--watch-log", "error.log"];
    let told = lab(path, &[&words[..], &more[..]].concat());
    assert_eq!(told.code, Some(1), "{}", told.text);
    assert_eq!(told.text.matches("only once").count(), 1, "{}", told.text);
    let lines: Vec<&str> = told.text.lines().collect();
    assert!(lines[0].starts_with("1 MISSED") && lines[2].starts_with("2 met"), "{}", told.text);
}

#[test]
fn settings_are_swept_and_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $((100 / $1)) points";
    let metric = ["--metric", "([0-9]+) points", "--runs", "1", "--json"];
    let program = ["--", "sh", "-c", script, "sh", "{n}"];
    let words = |command: &str, values: &str| {
        let knob = format!("n={values}");
        let mut words = vec![command, "--set", &knob];
        words.extend(metric);
        words.extend(program);
        lab(folder.path(), &words)
    };
    let swept = words("sweep", "1,2,4");
    assert_eq!(swept.code, Some(0), "{}", swept.errors);
    assert_eq!(swept.json()["best"]["n"], "4");
    assert_eq!(swept.json()["min_speedup"], 4.0);
    let tuned = words("autotune", "1..64:x2");
    assert_eq!(tuned.json()["chosen"]["n"], "64");
    assert_eq!(lab(folder.path(), &["sweep", "--set", "n=1", "--", "true"]).code, Some(2));
    assert_eq!(lab(folder.path(), &["sweep", "--set", "n=1", "--", "false", "{n}"]).code, Some(3));
    for more in ["--better=more", "--more-is-better"] {
        let swept = ["sweep", "--set", "n=1,2,4", more];
        let swept = lab(folder.path(), &[&swept[..], &metric, &program].concat());
        assert_eq!(swept.json()["best"]["n"], "1", "{more}: {}", swept.errors);
        let timed = lab(folder.path(), &["sweep", "--set", "n=1", more, "--", "true", "{n}"]);
        assert_eq!(timed.code, Some(2), "{more}");
    }
    let missed = ["tune", "--set", "n=1,2", "--goal", "1us", "--runs", "1", "--", "echo", "{n}"];
    assert_eq!(lab(folder.path(), &missed).code, Some(1));
}

#[test]
fn series_are_compared_if_there_are_enough_runs() {
    let folder = tempfile::tempdir().unwrap();
    let compare = |before: &str, after: &str, more: &[&str]| {
        std::fs::write(folder.path().join("a.txt"), before).unwrap();
        std::fs::write(folder.path().join("b.txt"), after).unwrap();
        let words = ["compare", "a.txt", "b.txt", "--fail-if-worse"];
        lab(folder.path(), &[&words[..], more].concat())
    };
    let slower = compare("1\n2\n3\n4\n", "11\n12\n13\n14\n", &["--trim", "0"]);
    assert_eq!(slower.code, Some(1), "{}", slower.text);
    for (better, code) in [
        (&[][..], 0),
        (&["--better=less"], 0),
        (&["--less-is-better"], 0),
        (&["--better", "more"], 1),
        (&["--more-is-better"], 1),
        (&["--better", "more", "--less-is-better"], 2),
    ] {
        let compared = compare("11\n12\n13\n14\n", "1\n2\n3\n4\n", better);
        assert_eq!(compared.code, Some(code), "{better:?}: {}", compared.text);
    }
    // The extremes are not dropped where nothing would stay.
    let few = compare("1\n2\n", "11\n12\n", &["--trim", "1"]);
    assert_eq!(few.code, Some(3));
    assert!(few.text.contains("1.50 -> 11.50"), "{}", few.text);
    assert!(few.text.trim_end().ends_with("too few runs to tell"), "{}", few.text);
}

#[test]
fn a_journal_compares_only_what_asked_for_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("hello"));
    let url = format!("http://{}/", origin.addr());
    let add = |what: &str, count: &str| {
        lab(folder.path(), &["journal", "add", what, "--", "get", &url, "-n", count])
    };
    assert_eq!(add("baseline", "5").code, Some(0));
    assert_eq!(add("change", "5").code, Some(0));
    assert_eq!(add("other", "6").code, Some(0));
    let shown = lab(folder.path(), &["journal", "show", "--json"]).json();
    assert!(shown["steps"][1]["factor"].is_number());
    assert!(shown["steps"][2]["factor"].is_null());
    assert_eq!(shown["steps"][2]["differences"][0], "count 5 -> 6");
    assert!(folder.path().join("lab-journal.runs/step-003.json").exists());
    let compared =
        lab(folder.path(), &["compare", "lab-journal.runs", "lab-journal.runs", "--json"]);
    assert_eq!(compared.json()["metrics"][0]["verdict"], "too few runs");
    assert_eq!(
        lab(
            folder.path(),
            &["journal", "add", "x", "--", "users", "--users", "1", "--every", "1s"]
        )
        .code,
        Some(2)
    );
    let lost = format!("http://{}/", refusing_addr());
    assert_eq!(lab(folder.path(), &["journal", "add", "x", "--", "get", &lost]).code, Some(3));
    let shown = lab(folder.path(), &["journal", "show", "--json"]).json();
    assert_eq!(shown["steps"].as_array().unwrap().len(), 3, "what was not measured is no step");
}

#[test]
fn a_journal_keeps_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("hello"));
    let address = origin.addr().to_string();
    let url = format!("http://u5er:pa55@{address}/a?access_token=t0ken&page=2");
    let words = ["-H", "Authorization: Bearer be4rer", "-H", "Accept-Language: de", "-n", "2"];
    let added =
        lab(folder.path(), &[&["journal", "add", "x", "--", "get", &url], &words[..]].concat());
    assert_eq!(added.code, Some(0), "{}", added.errors);
    let url = format!("http://{address}/");
    let words = ["-A", "u5er:pa55", "-C", "sid=c00kie", "-H", "X-Key: be4rer", "-n", "2", &url];
    let added = lab(folder.path(), &[&["journal", "add", "x", "--", "ab"], &words[..]].concat());
    assert_eq!(added.code, Some(0), "{}", added.errors);
    let kept = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let all = kept("lab-journal.jsonl") + &kept("lab-journal.runs/step-001.json");
    for secret in ["u5er", "pa55", "t0ken", "be4rer", "c00kie"] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
    for known in ["accept-language: de", "authorization: ***", "page=2", "\"cookies\":\"sid\""] {
        assert!(all.contains(known), "{known}: {all}");
    }
}

#[test]
fn a_journal_tells_other_plans_loads_and_targets() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (
        OriginServer::start_constant(OriginResponse::html("hello")),
        OriginServer::start_constant(OriginResponse::html("hello")),
    );
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let plan = |path: &str| {
        let text = format!(
            "target = \"http://{}\"\nload = {{ users = 1, visits = 2 }}\n[[data]]\nfile = \"d.csv\"\n[[scenario]]\nname = \"s\"\n[[scenario.step]]\npath = \"{path}\"\n",
            one.addr()
        );
        write("p.toml", &text);
    };
    let target = format!("http://{}", two.addr());
    let add = |words: &[&str]| {
        let words = [&["journal", "add", "x", "--", "run", "p.toml"], words].concat();
        let added = lab(folder.path(), &words);
        assert!(matches!(added.code, Some(0 | 3)), "{}", added.errors);
    };
    write("d.csv", "a\n1\n");
    plan("/a");
    add(&[]);
    add(&[]);
    plan("/b");
    add(&[]);
    write("d.csv", "a\n2\n");
    add(&[]);
    add(&["--target", &target]);
    add(&["--target", &target, "-Jx=1"]);
    add(&["--target", &target, "-Jx=1", "--users", "2", "--for", "200ms"]);
    add(&["--target", &target, "-Jx=1", "--users", "2", "--for", "300ms"]);
    let shown = lab(folder.path(), &["journal", "show", "--json"]).json();
    let differences: Vec<String> = shown["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| {
            let all = step["differences"].as_array().unwrap().iter();
            let name = |one: &Value| one.as_str().unwrap().split(' ').next().unwrap().to_owned();
            all.map(name).collect::<Vec<_>>().join(" ")
        })
        .collect();
    let wanted = ["", "", "plan", "file", "target", "properties", "time users", "time"];
    assert_eq!(differences, wanted);
    assert!(shown["steps"][1]["factor"].is_number());
}

#[test]
fn sites_are_walked_through_profiled_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/a.html" => OriginResponse::html("<a href='b.html?x=1'>b</a>"),
        _ => OriginResponse::html("x"),
    });
    let site = format!("http://{}", origin.addr());
    let walked = lab(folder.path(), &["cacheability", &format!("{site}/a.html"), "--json"]);
    assert_eq!(walked.code, Some(1));
    assert_eq!(walked.json()["found"][0]["obstacle"], "query-string");
    assert_eq!(lab(folder.path(), &["cacheability", &format!("{site}/c.html")]).code, Some(0));
    let line =
        "10.0.0.1 - - [21/Nov/2026:00:00:00 +0000] \"GET /a.html HTTP/1.1\" 200 5 \"-\" \"-\"\n";
    std::fs::write(folder.path().join("access.log"), line.repeat(3)).unwrap();
    let words = [
        "profile",
        "access.log",
        "--target",
        &site,
        "--plan",
        "plan.toml",
        "--goals",
        "goals.toml",
    ];
    assert_eq!(lab(folder.path(), &words).code, Some(0));
    assert_eq!(lab(folder.path(), &["check", "plan.toml"]).code, Some(0));
    let before = origin.request_count();
    let replayed =
        lab(folder.path(), &["replay", "access.log", "--target", &site, "--speed", "9x", "--json"]);
    assert_eq!(replayed.json()["total"]["samples"], 3, "{}", replayed.errors);
    assert_eq!(origin.request_count(), before + 3);
    std::fs::write(folder.path().join("no.log"), "nonsense\n").unwrap();
    assert_eq!(lab(folder.path(), &["profile", "no.log"]).code, Some(2));
}

#[test]
fn content_is_counted_and_a_project_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let counted = lab(folder.path(), &["content", "--dry-run", "--increments", "2", "--json"]);
    assert_eq!(counted.json()["total"]["pages"], 1400, "{}", counted.errors);
    assert_eq!(lab(folder.path(), &["content"]).code, Some(2));
    let project = "title = \"x\"\n[[use_case]]\nname = \"a\"\nkind = \"business\"\nkpi = \"max\"\naverage = \"1s\"\npeak = \"1s\"\n\
                   [[element]]\nname = \"b\"\nkind = \"c\"\nuse_cases = [\"a\"]\n";
    std::fs::write(folder.path().join("project.toml"), project).unwrap();
    let drawn = lab(folder.path(), &["map", "project.toml", "-o", "map.svg", "--json"]);
    assert_eq!(
        (drawn.code, drawn.json()["elements"][0]["color"].as_str()),
        (Some(0), Some("grey"))
    );
    let told = lab(folder.path(), &["report", "--project", "project.toml", "-o", "p.html"]);
    assert_eq!(told.code, Some(0), "{}", told.errors);
    assert!(std::fs::read_to_string(folder.path().join("p.html")).unwrap().contains("<svg"));
}
