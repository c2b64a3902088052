//! The history of a home: listed, compared, taken back, branched, thinned and collected.

use std::path::Path;

use serde_json::Value;
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, free_address, post, run, run_ok};

/// Starts an author and makes a page whose text is saved anew again and again.
fn edit(home: &Path, texts: usize) {
    let address = free_address();
    let arguments = ["author", "--home", home.to_str().unwrap(), "--listen", &address.to_string()]
        .map(str::to_owned);
    let running = Running::start(&arguments.each_ref().map(String::as_str));
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    for n in 0..texts {
        // Different words each time, so that nothing is stored twice.
        let words: Vec<String> = (0..400).map(|word| format!("w{}", word * 7 + n * 31)).collect();
        let form = format!(
            "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent&jcr:content/jcr:title=T{n}&jcr:content/text={}",
            words.join("+")
        );
        let answer = post(address, password.trim(), "/content/page", &form);
        assert!(answer.status < 300, "{}", answer.text());
    }
    assert!(running.stop());
}

fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn history_is_listed_compared_taken_back_and_collected() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    edit(dir.path(), 30);
    let log = lines(&run_ok(&["repo", "log", "--json", "--home", home]));
    assert!(log.len() > 30, "{} revisions", log.len());
    assert_eq!(log[0]["author"], "admin");
    let (last, earlier) = (log[0]["root"].as_str().unwrap(), log[10]["root"].as_str().unwrap());
    let changed = run_ok(&["repo", "diff", earlier, "main", "--home", home]);
    assert_eq!(changed, "/content/page\n");

    run_ok(&["repo", "branch", "create", "launch", "--home", home]);
    run_ok(&["repo", "revert", earlier, "--home", home]);
    assert_eq!(run_ok(&["repo", "diff", "main", earlier, "--home", home]), "");
    assert_eq!(run_ok(&["repo", "diff", "main", "launch", "--home", home]), "/content/page\n");
    let branches = run_ok(&["repo", "branch", "list", "--home", home]);
    assert!(branches.contains(&format!("{last}  launch")), "{branches}");

    std::fs::write(
        dir.path().join("tympan.toml"),
        "[history]\nall = \"0s\"\nhourly = 0\ndaily = 0\nweekly = 0\n",
    )
    .unwrap();
    let gc = |dry: &[&str]| -> Value {
        let arguments = [&["repo", "gc", "--json", "--home", home], dry].concat();
        serde_json::from_str(&run_ok(&arguments)).unwrap()
    };
    let dry = gc(&["--dry-run"]);
    let keepers = dry["keepers"].as_array().unwrap();
    assert!(keepers.iter().any(|keeper| keeper["what"] == "ref `base/launch`"), "{dry}");
    assert!(dry["revisionsDropped"].as_u64().unwrap() > 20, "{dry}");
    let log = || lines(&run_ok(&["repo", "log", "--json", "--home", home])).len();
    assert!(log() > 30, "a dry run removes nothing");
    let done = gc(&[]);
    assert!(done["freedBytes"].as_u64().unwrap() > 20_000, "{done}");
    assert!(log() < 4, "{} revisions", log());
    assert!(run_ok(&["repo", "check", "--home", home]).contains("clean"));

    // What has gone cannot come back; what a branch keeps can.
    let gone = run(&["repo", "revert", &"ab".repeat(32), "--home", home]);
    assert_eq!(gone.status.code(), Some(2), "{gone:?}");
    run_ok(&["repo", "branch", "merge", "launch", "--home", home]);
    run_ok(&["repo", "revert", last, "--home", home]);
    run_ok(&["repo", "branch", "delete", "launch", "--home", home]);
    assert_eq!(run_ok(&["repo", "diff", last, "main", "--home", home]), "");
    let unknown = run(&["repo", "log", "--branch", "launch", "--home", home]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
}

#[test]
fn a_running_instance_collects_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    std::fs::write(
        dir.path().join("tympan.toml"),
        "[history]\nall = \"0s\"\nhourly = 0\ndaily = 0\nweekly = 0\n[collect]\ninterval = \"200ms\"\n",
    )
    .unwrap();
    edit(dir.path(), 40);
    // A collection ends the open pack, so that there are several, though little was written.
    let address = free_address().to_string();
    let running = Running::start(&["author", "--home", home, "--listen", &address]);
    let first = dir.path().join("store/pack-000001");
    wait_until("the first pack is collected", || !first.exists());
    assert!(running.stop());
    assert!(run_ok(&["repo", "check", "--home", home]).contains("clean"));
    let log = lines(&run_ok(&["repo", "log", "--json", "--home", home]));
    assert!(log.len() < 30, "{} revisions", log.len());
}
