//! The whole path in a real browser: log in, edit a page in its form, activate, see it through the dispatcher.

use std::path::Path;
use std::process::Command;

use crate::program::Demo;

#[test]
fn an_author_edits_and_activates_in_the_browser() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("ui/tests/demo.test.mjs");
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    if !Path::new(&chromium).exists() || !root.join("ui/node_modules").is_dir() {
        eprintln!(
            "skipped: no chromium at `{chromium}` or no node modules in `ui`; `make test` installs both"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let output = Command::new("node")
        .arg(&script)
        .env("CHROMIUM", &chromium)
        .env("LOGIN_LINK", demo.login_link())
        .env("AUTHOR", format!("http://{}", demo.author))
        .env("DISPATCHER", format!("http://{}", demo.dispatcher))
        .output()
        .unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{said}");
}
