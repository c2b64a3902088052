//! Authorization managers of JMeter's plans, against servers that ask for credentials.

use std::collections::HashMap;
use std::path::PathBuf;

use md5::{Digest as _, Md5};
use tympan_lab::measurement::jtl;
use tympan_lab::plan::{PlanRunOutcome, RunOptions, TestPlan};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

use crate::plan::{defaults, element, plan, sampler};

fn hash(text: &str) -> String {
    Md5::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the words of a digest that a request carries.
fn words(seen: &OriginRequest) -> Option<HashMap<String, String>> {
    let all = seen.header("Authorization")?.strip_prefix("Digest ")?;
    let word = |part: &str| {
        let (name, value) = part.split_once('=')?;
        Some((name.trim().to_owned(), value.trim_matches('"').to_owned()))
    };
    all.split(", ").map(word).collect()
}

/// Reports whether a request proves that its sender knows the password of `ann`.
fn is_proven(seen: &OriginRequest, nonce: &str) -> bool {
    let Some(words) = words(seen) else { return false };
    let word = |name: &str| words.get(name).cloned().unwrap_or_default();
    let middle = format!("{}:{}:{}:{}", word("nonce"), word("nc"), word("cnonce"), word("qop"));
    let what = hash(&format!("{}:{}", seen.method, seen.target));
    let wanted = hash(&format!("{}:{middle}:{what}", hash("ann:staff only:s3cret")));
    word("response") == wanted && word("nonce") == nonce && word("uri") == seen.target
}

fn ask(nonce: &str, more: &str) -> OriginResponse {
    let challenge =
        format!("Digest realm=\"staff only\", qop=\"auth\", nonce=\"{nonce}\", opaque=\"o\"{more}");
    OriginResponse::with_status(401)
        .with_header("WWW-Authenticate", &challenge)
        .with_header("Set-Cookie", "asked=1")
}

fn guarded() -> OriginServer {
    OriginServer::start(|seen| {
        if is_proven(seen, "n1") { OriginResponse::html("in") } else { ask("n1", "") }
    })
}

/// Returns an authorization manager for everything of the origin below `prefix`.
fn manager(origin: &OriginServer, prefix: &str, password: &str, words: &str) -> String {
    let (mechanism, realm) = words.split_once(' ').unwrap_or((words, ""));
    let entry = [
        ("url", format!("http://127.0.0.1:{}{prefix}", origin.addr().port())),
        ("username", "ann".to_owned()),
        ("password", password.to_owned()),
        ("domain", String::new()),
        ("realm", realm.to_owned()),
        ("mechanism", mechanism.to_owned()),
    ];
    let entry: String = entry
        .iter()
        .map(|(name, value)| {
            format!("<stringProp name=\"Authorization.{name}\">{value}</stringProp>")
        })
        .collect();
    format!(
        "<AuthManager guiclass=\"AuthPanel\" testclass=\"AuthManager\" testname=\"m\" enabled=\"true\">\
         <collectionProp name=\"AuthManager.auth_list\"><elementProp name=\"\" elementType=\"Authorization\">{entry}\
         </elementProp></collectionProp></AuthManager><hashTree/>"
    )
}

fn play(text: &str) -> (PlanRunOutcome, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.jtl");
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", PathBuf::new())
        .unwrap_or_else(|error| panic!("{error}"));
    let run = RunOptions { result_file: Some(file.clone()), ..RunOptions::default() };
    let outcome = plan.run(&run, &mut |_| ()).unwrap();
    let mut rows = Vec::new();
    let text = std::fs::read(file).unwrap();
    jtl::read_jtl(&mut text.as_slice(), "rows", &mut |row| {
        rows.push(format!("{} {}", row.label, row.response_code));
    })
    .unwrap();
    (outcome, rows)
}

/// Returns what was sent: method and target, body, and whether it carried a digest.
fn sent(origin: &OriginServer) -> Vec<String> {
    let all = origin.requests();
    let shown = |seen: &OriginRequest| {
        let kind = match seen.header("Authorization") {
            None => "",
            Some(value) => value.split(' ').next().unwrap_or_default(),
        };
        let body = String::from_utf8_lossy(&seen.body);
        format!("{} {} {body} {kind}", seen.method, seen.target).trim_end().to_owned()
    };
    all.iter().map(shown).collect()
}

#[test]
fn a_digest_is_given_where_the_server_asks_for_it() {
    let origin = guarded();
    let post = sampler("/form", "").replace(">GET<", ">POST<").replace(
        "</HTTPSamplerProxy>",
        "<boolProp name=\"HTTPSampler.postBodyRaw\">true</boolProp><elementProp name=\"HTTPsampler.Arguments\" \
         elementType=\"Arguments\"><collectionProp name=\"Arguments.arguments\"><elementProp name=\"\" \
         elementType=\"HTTPArgument\"><stringProp name=\"Argument.value\">hello</stringProp></elementProp>\
         </collectionProp></elementProp></HTTPSamplerProxy>",
    );
    let inside = format!(
        "{}{}{}{post}",
        defaults(&origin),
        manager(&origin, "/", "s3cret", "DIGEST"),
        sampler("/a?b=c", "")
    );
    let (_, rows) = play(&plan("2", "1", &inside));
    // One sample each, whatever it took; each sample is asked anew, as in JMeter.
    let round = ["GET /a?b=c 200", "GET /form 200"];
    assert_eq!(rows, [round, round].concat());
    let round = ["GET /a?b=c", "GET /a?b=c  Digest", "POST /form hello", "POST /form hello Digest"];
    assert_eq!(sent(&origin), [round, round].concat());
}

#[test]
fn credentials_are_not_given_again_where_they_were_refused() {
    let origin = guarded();
    for words in ["DIGEST", "DIGEST staff only", "BASIC"] {
        let before = origin.request_count();
        let manager = manager(&origin, "/", "wrong", words);
        let inside = format!("{}{manager}{}", defaults(&origin), sampler("/a", ""));
        let (_, rows) = play(&plan("1", "1", &inside));
        assert_eq!(rows, ["GET /a 401"], "{words}");
        assert_eq!(origin.request_count() - before, 2, "{words}");
    }
    // What is for another realm, or for another address, is not told.
    for (prefix, words) in [("/", "DIGEST elsewhere"), ("/other", "DIGEST"), ("/other", "BASIC")] {
        let before = origin.request_count();
        let manager = manager(&origin, prefix, "s3cret", words);
        let inside = format!("{}{manager}{}", defaults(&origin), sampler("/a", ""));
        assert_eq!(play(&plan("1", "1", &inside)).1, ["GET /a 401"], "{prefix} {words}");
        assert_eq!(sent(&origin).split_off(before), ["GET /a"], "{prefix} {words}");
    }
}

#[test]
fn a_nonce_that_is_too_old_is_answered_once_more_but_not_for_ever() {
    let origin = OriginServer::start(|seen| match words(seen) {
        None => ask("n1", ""),
        Some(_) if is_proven(seen, "n2") => OriginResponse::html("in"),
        Some(_) if seen.target == "/always" => ask("n1", ", stale=true"),
        Some(_) => ask("n2", ", stale=TRUE"),
    });
    let manager = manager(&origin, "/", "s3cret", "DIGEST");
    let inside =
        format!("{}{manager}{}{}", defaults(&origin), sampler("/a", ""), sampler("/always", ""));
    let (_, rows) = play(&plan("1", "1", &inside));
    assert_eq!(rows, ["GET /a 200", "GET /always 401"]);
    assert_eq!(sent(&origin).iter().filter(|line| line.starts_with("GET /a ")).count(), 2);
    assert_eq!(sent(&origin).iter().filter(|line| line.starts_with("GET /always")).count(), 4);
}

#[test]
fn a_redirect_takes_no_credentials_elsewhere() {
    let other = OriginServer::start_constant(OriginResponse::html("elsewhere"));
    let place = format!("http://127.0.0.1:{}/there", other.addr().port());
    let origin = OriginServer::start(move |_| {
        OriginResponse::with_status(302).with_header("Location", &place)
    });
    let manager = manager(&origin, "/", "s3cret", "BASIC");
    let inside = format!("{}{manager}{}", defaults(&origin), sampler("/a", ""));
    let rows = ["GET /a 200", "GET /a-0 302", "GET /a-1 200"];
    assert_eq!(play(&plan("1", "1", &inside)).1, rows);
    assert_eq!(
        (sent(&origin), sent(&other)),
        (vec!["GET /a  Basic".to_owned()], vec!["GET /there".to_owned()])
    );
}

#[test]
fn parts_of_pages_behind_a_digest_are_refused() {
    let origin = guarded();
    let page = sampler("/a", "").replace(
        "</HTTPSamplerProxy>",
        "<boolProp name=\"HTTPSampler.image_parser\">true</boolProp></HTTPSamplerProxy>",
    );
    let inside = format!("{}{page}", manager(&origin, "/", "s3cret", "DIGEST"));
    let error =
        TestPlan::parse(plan("1", "1", &inside).as_bytes(), "p.jmx", PathBuf::new()).unwrap_err();
    assert!(error.to_string().contains("embedded resources with digest authorization"), "{error}");
}

#[test]
fn real_jmeter_is_asked_as_often() {
    let Some(home) = crate::jmeter::home() else { return };
    let (lab, jmeter) = (guarded(), guarded());
    let text = |origin: &OriginServer| {
        let manager = manager(origin, "/", "s3cret", "DIGEST staff only");
        let pause = element("ConstantTimer", "t", &[("ConstantTimer.delay", "1")], "");
        plan("2", "1", &format!("{}{manager}{pause}{}", defaults(origin), sampler("/a?b=c", "")))
    };
    let folder = tempfile::tempdir().unwrap();
    let rows = crate::jmeter::run_in_jmeter(&home, &text(&jmeter), folder.path());
    let (_, own) = play(&text(&lab));
    assert_eq!((own.len(), rows.len()), (2, 2), "{rows:?}");
    assert_eq!(sent(&lab), sent(&jmeter));
}
