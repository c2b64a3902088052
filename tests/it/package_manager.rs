//! Packages on the command line: in a home, and through a running instance with `--url`.

use std::path::Path;

use serde_json::Value;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::program::{Running, ask, basic, free_address, run, run_ok};

/// An author, and what its administrator proves himself with.
struct Author {
    _running: Running,
    address: std::net::SocketAddr,
    password: String,
    token: String,
}

impl Author {
    fn start(home: &Path) -> Self {
        let address = free_address();
        let place = home.to_str().unwrap();
        let running =
            Running::start(&["author", "--home", place, "--listen", &address.to_string()]);
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        let token = run_ok(&["user", "token", "admin", "--home", place]).trim().to_owned();
        Self { _running: running, address, password: password.trim().to_owned(), token }
    }

    fn status(&self, path: &str) -> u16 {
        let headers = [("Authorization", basic("admin", &self.password))];
        ask(self.address, "GET", path, &headers, b"").unwrap().status
    }

    /// Runs `tympan package` against the instance.
    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let url = format!("http://{}", self.address);
        run(&[&["package"], arguments, &["--url", &url, "--token", &self.token]].concat())
    }
}

#[test]
fn the_command_line_reaches_running_instances() {
    let Some(folder) = fixture_folder("filevault") else { return };
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir.path().join("home"));
    let file = folder.join("test_c-2.0.zip");
    let file = file.to_str().unwrap();
    let ok = |arguments: &[&str]| {
        let output = author.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let told = ok(&["diff", file]);
    assert!(told.contains("+ /tmp/c\n") && told.contains("    + version: 2.0\n"), "{told}");
    assert!(ok(&["install", file]).starts_with("package my_packages:test_c:2.0\n"));
    let report: Value = serde_json::from_str(&ok(&["install", file, "--json"])).unwrap();
    assert_eq!(report["nodes_created"], 0);
    assert!(ok(&["list"]).contains("my_packages:test_c:2.0  4405 bytes, installed "));
    let filter = dir.path().join("filter.xml");
    std::fs::write(
        &filter,
        "<workspaceFilter version=\"1.0\"><filter root=\"/tmp/c\"/></workspaceFilter>",
    )
    .unwrap();
    let built = dir.path().join("built.zip");
    ok(&[
        "build",
        "-f",
        filter.to_str().unwrap(),
        "-o",
        built.to_str().unwrap(),
        "--id",
        "g:built:1",
    ]);
    assert!(ok(&["uninstall", "my_packages:test_c"]).contains("removed"));
    assert_eq!(author.status("/tmp/c.json"), 404);
    assert!(ok(&["install", built.to_str().unwrap()]).starts_with("package g:built:1\n"));
    assert_eq!(author.status("/tmp/c.json"), 200);
    let needs_others = folder.join("test_d-1.0.zip");
    let refused =
        author.run(&["install", needs_others.to_str().unwrap(), "--dependencies", "strict"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        message.contains("it needs `my_packages:test_b`, which is not stored here"),
        "{message}"
    );
    ok(&["install", needs_others.to_str().unwrap()]);
    assert_eq!(author.status("/tmp/d.json"), 200);
}

#[test]
fn a_home_lists_compares_and_uninstalls() {
    let Some(folder) = fixture_folder("filevault") else { return };
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let file = folder.join("test_c-2.0.zip");
    let file = file.to_str().unwrap();
    run_ok(&["package", "install", file, "--home", home]);
    assert_eq!(
        run_ok(&["package", "diff", file, "--home", home]),
        "0 nodes added, 0 changed, 0 removed\n"
    );
    let list = run_ok(&["package", "list", "--json", "--home", home]);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list[0]["path"], "/etc/packages/my_packages/test_c-2.0.zip");
    run_ok(&["package", "uninstall", "my_packages:test_c:2.0", "--home", home]);
    let difference: Value =
        serde_json::from_str(&run_ok(&["package", "diff", "--json", file, "--home", home]))
            .unwrap();
    let added =
        difference["nodes"].as_array().unwrap().iter().filter(|node| node["change"] == "added");
    let added: Vec<_> = added.map(|node| node["path"].as_str().unwrap().to_owned()).collect();
    assert_eq!(added, ["/tmp", "/tmp/c"]);
    run_ok(&["package", "install", "my_packages:test_c", "--home", home]);
    let check = run_ok(&["repo", "check", "--home", home]);
    assert!(check.trim_end().ends_with(": clean"), "{check}");
    run_ok(&["repo", "gc", "--home", home]);
    run_ok(&["package", "uninstall", "my_packages:test_c", "--home", home]);
    let again = run(&["package", "uninstall", "my_packages:test_c", "--home", home]);
    assert_eq!(again.status.code(), Some(2));
}
