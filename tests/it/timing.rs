//! What administrators are told of drawing, and what they ask of kept fragments: nobody else is told or heard.

use std::net::SocketAddr;

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Answer, Demo, ask, basic, get, lab_command};

const PAGE: &str = "/content/wayfare/en/journal.html";
const FOOTER: &str = "/apps/wayfare/components/footer";

/// Asks an instance as its first user.
fn by_admin(address: SocketAddr, password: &str, path: &str) -> Answer {
    ask(address, "GET", path, &[("Authorization", basic("admin", password))], b"").unwrap()
}

/// Returns how the fragments of a page were looked up: found, not found, never to be kept.
fn counts(answer: &Answer) -> (u64, u64, u64) {
    assert_eq!(answer.status, 200, "{}", answer.head);
    let counts = answer.header("x-tympan-fragments").unwrap_or_else(|| panic!("{}", answer.head));
    let count = |name: &str| -> u64 {
        let word = counts.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap().parse().unwrap()
    };
    (count("hit"), count("miss"), count("never"))
}

/// Runs a command of the lab, which must succeed, and returns what it prints.
fn lab_json(words: &[&str]) -> serde_json::Value {
    let output = lab_command().args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn administrators_bypass_renew_and_drop_cached_fragments() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let password = std::fs::read_to_string(demo.home.join("publish/initial-password")).unwrap();
    let look = |flex: &str| {
        by_admin(demo.publish, password.trim(), &format!("{PAGE}?tympan-profile=1{flex}"))
    };
    assert_eq!(demo.post(FOOTER, "cache=always").status, 200);
    assert_eq!(demo.post(FOOTER, ":operation=activate").status, 200);
    wait_until("the footer is kept", || counts(&look("")).0 != 0);
    let (hits, misses, never) = counts(&look(""));
    assert_eq!((hits, misses), (1, 0), "the footer is kept, and nothing else");

    assert_eq!(counts(&look("&_flex=nocache")), (0, 0, never + 1), "it is drawn past the cache");
    assert_eq!(counts(&look("")), (1, 0, never), "which is as it was");
    assert_eq!(counts(&look("&_flex=recompile")), (0, 1, never), "it is drawn anew and kept");
    assert_eq!(counts(&look("")), (1, 0, never));
    for clearing in ["clearvariations", "clearcache", "purge"] {
        assert_eq!(
            counts(&look(&format!("&_flex=online,{clearing}"))),
            (0, 1, never),
            "{clearing}"
        );
        assert_eq!(counts(&look("")), (1, 0, never), "after {clearing}");
    }

    // Nobody else is heard: what a visitor asks for drops nothing, and he is told nothing.
    let visitor = get(demo.publish, &format!("{PAGE}?_flex=clearcache&tympan-profile=1"));
    assert_eq!((visitor.status, visitor.header("x-tympan-fragments")), (200, None));
    assert_eq!(visitor.header("server-timing"), None, "{}", visitor.head);
    assert_eq!(counts(&look("")), (1, 0, never), "what a visitor wishes means nothing");
}

#[test]
fn request_times_are_shown_to_administrators_alone() {
    const HTML: &str = "/system/timing.html";
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let password = std::fs::read_to_string(demo.home.join("publish/initial-password")).unwrap();
    assert_eq!(get(demo.publish, PAGE).status, 200);
    for (address, password, role) in
        [(demo.publish, password.trim(), "publish"), (demo.author, demo.password(), "author")]
    {
        assert_eq!(get(address, HTML).status, 401, "{role}");
        assert_eq!(by_admin(address, "wrong", HTML).status, 401, "{role}");
        assert_eq!(by_admin(address, password, PAGE).status, 200, "{role}");
        let page = by_admin(address, password, HTML);
        assert_eq!(page.status, 200, "{role}: {}", page.head);
        assert_eq!(page.header("cache-control"), Some("private, no-store"), "{}", page.head);
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        let text = page.text().replace("&#x2f;", "/");
        assert!(text.contains(&format!("What requests took: {role}")), "{text}");
        // The page, its flames, and the same components in the table.
        assert!(text.contains(PAGE) && text.contains("<rect"), "{role}: {text}");
        let script = "/apps/wayfare/components/footer/footer.html";
        let (flames, table) = text.split_once("<h2>Components</h2>").unwrap();
        assert!(flames.contains(script) && table.contains(script), "{role}: {text}");
    }
}

#[test]
fn the_latency_goal_of_the_demo_is_known_to_hold_with_all_its_conditions() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let password = std::fs::read_to_string(demo.home.join("publish/initial-password")).unwrap();
    let page = format!("http://{}{PAGE}", demo.publish);
    let admin = demo.publish_admin();
    let measured = |login: Option<&str>| -> serde_json::Value {
        let mut command = lab_command();
        command.args(["slo", &page, "--samples", "20", "--admin", &admin, "--json"]);
        if let Some(login) = login {
            command.env("TYMPAN_LAB_LOGIN", login);
        }
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    };
    let told = measured(Some(&format!("admin:{}", password.trim())));
    assert_eq!((&told["comparable"], &told["clock"]), (&true.into(), &"server".into()), "{told}");
    // Who is not logged in is told as much as the server tells.
    let told = measured(None);
    let held = |number: usize| told["conditions"][number]["held"].as_bool();
    assert_eq!((held(0), held(3), held(4)), (Some(true), Some(true), Some(true)), "{told}");
    assert!(held(2).is_some(), "whether caches answered is counted: {told}");
}

#[test]
fn a_slow_sample_of_the_lab_is_found_in_the_log_of_publish() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let rows = dir.path().join("r.jtl");
    let rows = rows.to_str().unwrap();
    let picture = get(demo.publish, PAGE);
    let picture = picture.text();
    let picture = picture.split('"').find(|word| word.ends_with(".css")).unwrap();
    // Pages and files that are asked for often are answered in several ways, all of which are logged alike.
    let page = format!("http://{}{PAGE}", demo.publish);
    let file = format!("http://{}{picture}", demo.publish);
    let front = format!("http://{}/content/wayfare/en.html?only=once", demo.dispatcher);
    let words = ["get", &page, &file, &front, "-n", "60", "--mark", "--jtl", rows, "--json"];
    let told: serde_json::Value = lab_json(&words);
    assert_eq!(told["total"]["errors"], 0, "{told}");
    let slowest = told["slowest"][0]["mark"].as_str().unwrap().to_owned();
    let hostile = [
        "a-1 9ms\t",
        "a-1; x",
        "a-1-1",
        &"a".repeat(5000),
        "\u{fc}-1",
        "a-1\" [7] <- 200",
        "${jndi}-1",
    ];
    for value in hostile {
        let headers = [("X-Tympan-Lab", value.to_owned())];
        assert_eq!(ask(demo.publish, "GET", PAGE, &headers, b"").unwrap().status, 200, "{value}");
    }
    let log = demo.home.join("publish/logs/request.log");
    assert!(demo.running.stop());
    let lines = std::fs::read_to_string(&log).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains(&format!("lab={slowest} "))).count(), 1);
    for line in lines.lines() {
        assert!(
            line.len() < 200 && (line.contains("] -> GET /") || line.contains("] <- ")),
            "{line}"
        );
        let (_, mark) = line.split_once("lab=").unwrap_or_default();
        assert!(!mark.starts_with("a-1") && !mark.starts_with('$'), "{line}");
    }
    let log = log.to_str().unwrap();
    let words = ["report", rows, "--request-log", log, "--json"];
    let told: serde_json::Value = lab_json(&words);
    assert_eq!(told["joined"]["samples"], 60);
    let at_publish = told["joined"]["found"].as_u64().unwrap();
    // Of what came through the dispatcher, what its cache does not hold.
    assert!((40..=60).contains(&at_publish), "{told}");
    let label = format!("GET {PAGE}");
    let all = told["slowest"].as_array().unwrap();
    let of_page: Vec<_> = all.iter().filter(|one| one["label"] == label.as_str()).collect();
    assert!(!of_page.is_empty() && of_page.iter().all(|one| one["server_requests"] == 1), "{told}");
    // Rows without marks are found nowhere.
    let bare = dir.path().join("bare.jtl");
    std::fs::write(&bare, "timeStamp,elapsed,label\n1763700000000,9,x\n").unwrap();
    let output = lab_command()
        .args(["report", bare.to_str().unwrap(), "--request-log", log])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--mark"), "{output:?}");
}

#[test]
fn a_report_tells_when_the_dispatcher_began_to_answer() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let page = format!("http://{}{PAGE}", demo.dispatcher);
    let found = || -> serde_json::Value {
        let words = ["get", &page, "-n", "9", "-H", "X-Dispatcher-Info: 1", "--json"];
        let told: serde_json::Value = lab_json(&words);
        told["labels"][format!("GET {PAGE}")]["first_cached"].clone()
    };
    let first = found();
    assert_eq!(first["known_by"], "header", "{first}");
    assert!(first["first_cached_s"].as_f64() > first["first_answer_s"].as_f64(), "{first}");
    let again = found();
    assert_eq!(again["first_cached_s"], again["first_answer_s"], "it is cached from the start");
}
