//! The description of the API holds: schemathesis asks a live author everything that the description allows, and
//! much that it does not.
//!
//! The tool is installed from PyPI below the target folder. Without Python or a network the test says that it was
//! skipped.
//!
//! `TYMPAN_API_EXAMPLES` sets how many random requests each operation gets at most, besides those of the boundaries of its
//! parameters; `make torture` asks for more.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::program::{Running, ask, basic, free_address, post, run_ok};

/// The version that the options below are for.
const PACKAGE: &str = "schemathesis==4.32.5";

/// Installs the tool once; gives nothing, said aloud, where that cannot be done.
fn schemathesis() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_BIN_EXE_tympan")).parent().unwrap().parent().unwrap();
    let home = target.join("schemathesis-4.32.5");
    let program = home.join("bin/schemathesis");
    if program.is_file() {
        return Some(program);
    }
    let run = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    let is_made = run(Command::new("python3").args(["-m", "venv"]).arg(&home));
    let pip = home.join("bin/pip");
    if is_made && run(Command::new(pip).args(["install", "--quiet", PACKAGE])) {
        return Some(program);
    }
    // Half an installation would be taken for a whole one.
    std::fs::remove_dir_all(&home).ok();
    eprintln!("skipped: {PACKAGE} cannot be installed; it takes python3-venv and a network");
    None
}

/// What the tool takes for granted and this API does not: statuses that say that a request fits the description but not
/// the content.
const OPTIONS: &str = r#"
[parameters]
"query.wait" = "0s"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 410, 412, 415, 416, 422, 428, 429, 431, 503]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 406, 409, 410, 412, 413, 415, 422, 428, 429, 431]
# A statement that makes no sense is told with its column.
[[operations]]
include-path-regex = "^/api/v1/(query|search)$"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 304, 400, 415, 422, 429, 431]
[operations.checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 413, 415, 422, 429, 431]
"#;

/// Takes Basic credentials out of a description: wrong ones are slowed down (429), while the tool wants to see 401 for each.
/// Tokens and sessions are left, which nobody guesses.
fn without_basic(description: &[u8]) -> String {
    let mut description: Value = serde_json::from_slice(description).unwrap();
    let schemes = description["components"]["securitySchemes"].as_object_mut().unwrap();
    schemes.remove("basic").unwrap();
    let ways = description["security"].as_array_mut().unwrap();
    ways.retain(|way| way.get("basic").is_none());
    description.to_string()
}

/// Returns the maximum number of random requests for each operation.
fn max_examples() -> String {
    std::env::var("TYMPAN_API_EXAMPLES").unwrap_or_else(|_| "1".to_owned())
}

#[test]
fn the_description_holds_whatever_is_asked() {
    let Some(program) = schemathesis() else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let address = free_address();
    let arguments = ["author", "--home", home.to_str().unwrap(), "--listen", &address.to_string()]
        .map(str::to_owned);
    let running = Running::start(&arguments.each_ref().map(String::as_str));
    let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
    let page = "jcr:primaryType=cq:Page&jcr:content/jcr:primaryType=cq:PageContent&jcr:content/jcr:title=T";
    assert_eq!(post(address, password.trim(), "/content/page", page).status, 201);
    let headers = [("Authorization", basic("admin", password.trim()))];
    let read = ask(address, "GET", "/api/v1/openapi.json", &headers, b"").unwrap();
    let token = run_ok(&["user", "token", "admin", "--home", home.to_str().unwrap()]);
    let description = dir.path().join("openapi.json");
    std::fs::write(&description, without_basic(&read.body)).unwrap();
    let options = dir.path().join("schemathesis.toml");
    std::fs::write(&options, OPTIONS).unwrap();
    let output = Command::new(program)
        .current_dir(dir.path())
        .arg("--config-file")
        .arg(&options)
        .arg("run")
        .arg(&description)
        .args(["--url", &format!("http://{address}")])
        // A token: guesses at the password of `admin`, which are among what is asked, would be slowed down.
        .args(["--header", &format!("Authorization: Bearer {}", token.trim())])
        // It might revoke the token that all requests use.
        .args(["--exclude-operation-id", "revokeToken"])
        .args(["--checks", "all"])
        .args(["--phases", "examples,coverage,fuzzing,stateful"])
        .args(["--max-examples", &max_examples()])
        .args(["--seed", "20261121", "--generation-database", "none"])
        .args(["--request-timeout", "60", "--suppress-health-check", "all", "--no-color"])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let end: Vec<&str> = report.lines().rev().take(120).collect();
    let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{end}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(running.stop(), "the author ends well after all that");
}
