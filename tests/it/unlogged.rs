//! A log that cannot be written stops nothing: a disk that is full because of logs is full for the log first.

use std::fs::OpenOptions;
use std::process::Stdio;

use crate::program::{Running, ask, basic, free_address, tympan};

/// Every write to it fails with `ENOSPC`. Source: `full(4)`.
const FULL: &str = "/dev/full";

#[test]
fn a_log_on_a_full_disk_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let address = free_address();
    let (home_text, listen) = (home.to_str().unwrap(), address.to_string());
    let log = || Stdio::from(OpenOptions::new().write(true).open(FULL).unwrap());
    // Everything is logged, so that each request writes lines from wherever it comes to.
    let everything = [("TYMPAN_LOG", "trace")];
    let arguments = ["author", "--home", home_text, "--listen", &listen];
    let author = Running::try_start_logging(log(), &everything, &arguments).unwrap();
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let login = ("Authorization", basic("admin", password.trim()));
    for (method, path, body, expected) in [
        ("POST", "/content/logged", "jcr:primaryType=sling:Folder", 201),
        ("GET", "/content/logged.json", "", 200),
        ("GET", "/content/absent.json", "", 404),
        ("POST", "/content/logged", "title=Full", 200),
        ("GET", "/content/logged.json", "", 200),
    ] {
        let form = ("Content-Type", "application/x-www-form-urlencoded".to_owned());
        let answer = ask(address, method, path, &[login.clone(), form], body.as_bytes());
        assert_eq!(answer.unwrap().status, expected, "{method} {path}");
    }
    assert!(author.stop(), "it ends well");

    // So does a command that has something to complain about.
    let refused = tympan()
        .args(["repo", "log", "--home", dir.path().join("absent").to_str().unwrap()])
        .stderr(log())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
