//! Indexes on the command line.

use serde_json::Value;

use crate::program::{Running, run, run_ok};

#[test]
fn indexes_are_reported_explained_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let author = dir.path().to_str().unwrap();
    let running = Running::start(&["author", "--home", author, "--listen", "127.0.0.1:0"]);
    assert!(running.stop());
    let status: Value =
        serde_json::from_str(&run_ok(&["index", "status", "--json", "--home", author])).unwrap();
    assert!(
        status["indexes"].as_array().unwrap().iter().all(|index| index["state"] == "ready"),
        "{status}"
    );
    let text = run_ok(&[
        "index",
        "explain",
        "SELECT * FROM [nt:base] WHERE ISSAMENODE('/content')",
        "--home",
        author,
    ]);
    assert!(text.contains("path, about 1 nodes"), "{text}");
    assert!(run_ok(&["index", "rebuild", "cqTags", "--home", author]).contains("1 maps built"));
    assert_eq!(run(&["index", "rebuild", "nope", "--home", author]).status.code(), Some(2));
    assert_eq!(run(&["index", "explain", "SELECT", "--home", author]).status.code(), Some(2));
}
