//! Launches and time travel on the command line: a node brought back, a branch compared, tried and merged in part.

use std::path::Path;

use serde_json::Value;

use crate::program::{Running, free_address, post, run, run_ok};

/// Starts an author and sends forms, each to a path.
fn edit(home: &Path, forms: &[(&str, &str)]) {
    let address = free_address();
    let listen = address.to_string();
    let running =
        Running::start(&["author", "--home", home.to_str().unwrap(), "--listen", &listen]);
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    for (path, form) in forms {
        let answer = post(address, password.trim(), path, form);
        assert!(answer.status < 300, "{path}: {}", answer.text());
    }
    assert!(running.stop());
}

fn page(title: &str) -> String {
    format!(
        "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent&jcr:content/jcr:title={title}"
    )
}

fn lines(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn nodes_come_back_and_launches_are_merged_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    edit(dir.path(), &[("/content/one", &page("early")), ("/content/two", &page("two"))]);
    let log = lines(&run_ok(&["repo", "log", "--json", "--limit", "1", "--home", home]));
    let (early, sequence) = (log[0]["at"].as_str().unwrap(), log[0]["sequence"].to_string());
    edit(
        dir.path(),
        &[("/content/one", "jcr:content/jcr:title=late"), ("/content/two", ":operation=delete")],
    );

    // A deleted page at the time when it was there, and a copy of it from the revision.
    let restored = run_ok(&["repo", "restore-path", "/content/two", "--at", early, "--home", home]);
    assert!(restored.starts_with("restored `/content/two` from root "), "{restored}");
    let copy = ["repo", "restore-path", "/content/two", "--revision", &sequence];
    let more = ["--to", "/content/copy", "--json", "--home", home];
    let copied = &lines(&run_ok(&[&copy[..], &more[..]].concat()))[0];
    assert_eq!(copied["path"], "/content/copy");
    let absent = run(&["repo", "restore-path", "/absent", "--at", early, "--home", home]);
    assert_eq!(absent.status.code(), Some(2), "{absent:?}");
    let never = ["repo", "restore-path", "/content/two", "--at", "1999-01-01", "--home", home];
    assert_eq!(run(&never).status.code(), Some(2));
    let nothing = run(&["repo", "restore-path", "/content/two", "--home", home]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");

    // A launch on which `one` is as it was early, and `copy` is gone in favor of `three`.
    run_ok(&["repo", "branch", "create", "launch", "--home", home]);
    run_ok(&["repo", "branch", "create", "look-back", "--at", early, "--home", home]);
    let on_launch = ["--branch", "launch", "--from", "main", "--at", early, "--home", home];
    run_ok(&[&["repo", "restore-path", "/content/one"], &on_launch[..]].concat());
    run_ok(
        &[&["repo", "restore-path", "/content/two", "--to", "/content/three"], &on_launch[..]]
            .concat(),
    );
    let back = run_ok(&["repo", "diff", "launch", "look-back", "--home", home]);
    assert!(!back.contains("/content/one"), "both are as early: {back}");
    let plain = run_ok(&["repo", "branch", "diff", "launch", "--home", home]);
    assert_eq!(plain, "changed  /content/one\nadded    /content/three\n");
    let diff = lines(&run_ok(&[
        "repo",
        "branch",
        "diff",
        "launch",
        "--details",
        "--json",
        "--home",
        home,
    ]));
    let names: Vec<&str> = diff[0]["nodes"][0]["properties"]
        .as_array()
        .unwrap()
        .iter()
        .map(|property| property["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"jcr:title"), "{diff:?}");

    // Main goes on: the title is changed on both sides.
    edit(dir.path(), &[("/content/one", "jcr:content/jcr:title=main")]);
    let merge = |more: &[&str]| {
        run(&[&["repo", "branch", "merge", "launch", "--home", home], more].concat())
    };
    let refused = merge(&[]);
    let text = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("changeChangedProperty at `/content/one/jcr:content`, property `jcr:title`, was `late`, ours is `early`, theirs is `main`, by `admin` at "), "{text}");
    assert!(text.ends_with("1 conflicts: nothing was merged\n"), "{text}");
    let part = merge(&["--only", "/content/three", "--dry-run"]);
    let text = String::from_utf8(part.stdout).unwrap();
    assert_eq!(text, "added    /content/three\nnothing was merged: this was a dry run\n");
    assert!(merge(&["--only", "/content/three"]).status.success());
    let left = run_ok(&["repo", "branch", "diff", "launch", "--home", home]);
    assert_eq!(left, "changed  /content/one\n", "what was merged no longer counts");
    let both = merge(&["--mine", "/content/one", "--theirs", "/content/one"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    let decided = merge(&["--mine", "/content/one", "--json"]);
    let body = &lines(&String::from_utf8(decided.stdout).unwrap())[0];
    assert_eq!(body["decided"][0]["side"], "mine", "{body}");
    assert_eq!(body["changes"][0]["path"], "/content/one");
    assert_eq!(run_ok(&["repo", "branch", "diff", "launch", "--home", home]), "");
    assert!(run_ok(&["repo", "check", "--home", home]).contains("clean"));
}
