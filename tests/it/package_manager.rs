//! Packages through a running instance: the addresses of AEM's package manager, the JSON API, and `--url`.

use std::path::Path;

use serde_json::Value;

use crate::program::{Answer, Running, ask, basic, fixtures, free_address, run, run_ok};

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

    fn ask(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> Answer {
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Content-Type", media_type.to_owned()),
        ];
        ask(self.address, method, path, &headers, body).unwrap()
    }

    /// Sends a file in a form, as `curl -F` does.
    fn send(&self, path: &str, field: &str, bytes: &[u8], others: &[(&str, &str)]) -> Answer {
        let mut body = Vec::new();
        for (name, value) in others {
            body.extend_from_slice(
                format!(
                    "--limit\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"
                )
                .as_bytes(),
            );
        }
        body.extend_from_slice(
            format!(
                "--limit\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"p.zip\"\r\n\
                 Content-Type: application/zip\r\n\r\n"
            )
            .as_bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n--limit--\r\n");
        self.ask("POST", path, "multipart/form-data; boundary=limit", &body)
    }

    /// Runs a command of the package manager.
    fn command(&self, path: &str, command: &str) -> String {
        let path = format!("/crx/packmgr/service/.json{path}?cmd={command}");
        let answer = self.ask("POST", &path, "application/x-www-form-urlencoded", b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }

    fn status(&self, path: &str) -> u16 {
        self.ask("GET", path, "", b"").status
    }

    /// Runs `tympan package` against the instance.
    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let url = format!("http://{}", self.address);
        run(&[&["package"], arguments, &["--url", &url, "--token", &self.token]].concat())
    }
}

#[test]
fn package_managers_find_what_they_expect() {
    let Some(folder) = fixtures("filevault") else { return };
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    let bytes = std::fs::read(folder.join("test_c-2.0.zip")).unwrap();
    const STORED: &str = "/etc/packages/my_packages/test_c-2.0.zip";
    let upload = "/crx/packmgr/service/.json/?cmd=upload";
    let uploaded =
        format!("{{\"success\":true,\"msg\":\"Package uploaded\",\"path\":\"{STORED}\"}}");
    assert_eq!(author.send(upload, "package", &bytes, &[]).text(), uploaded);
    assert_eq!(
        author.send(upload, "package", &bytes, &[]).text(),
        "{\"success\":false,\"msg\":\"Package already exists\"}"
    );
    assert_eq!(author.send(upload, "package", &bytes, &[("force", "true")]).text(), uploaded);
    assert_eq!(author.status("/tmp/c.json"), 404, "stored, not installed");
    assert!(author.command(STORED, "preview").contains("\"path\":\"/tmp/c\""));
    assert!(author.command(STORED, "install").contains("\"msg\":\"Package installed\""));
    assert_eq!(author.status("/tmp/c.json"), 200);
    let listed = author.ask("GET", "/crx/packmgr/service.jsp?cmd=ls", "", b"").text();
    for part in [
        "<crx version=\"1.4.1\" user=\"admin\" workspace=\"crx.default\"><request><param name=\"cmd\" value=\"ls\"/>",
        "<package><group>my_packages</group><name>test_c</name><version>2.0</version><downloadName>test_c-2.0.zip</downloadName>",
        "<lastUnpackedBy>admin</lastUnpackedBy>",
        "<status code=\"200\">ok</status>",
    ] {
        assert!(listed.contains(part), "{listed}");
    }
    let list = author.ask("GET", &format!("/crx/packmgr/list.jsp?path={STORED}"), "", b"").text();
    assert!(
        list.contains("\"pid\":\"my_packages:test_c:2.0\"") && list.contains("\"total\":1"),
        "{list}"
    );
    let file = author.ask("GET", &format!("/crx/packmgr/download.jsp?path={STORED}"), "", b"");
    assert_eq!(file.body, bytes);
    assert!(author.command(STORED, "uninstall").contains("\"msg\":\"Package uninstalled\""));
    assert_eq!(author.status("/tmp/c.json"), 404);
    assert!(author.command(STORED, "build").contains("\"msg\":\"Package built\""));
    assert!(author.command(STORED, "delete").contains("\"msg\":\"Package deleted\""));
    assert_eq!(author.command(STORED, "install"), "{\"success\":false,\"msg\":\"no package\"}");
    // The service of old stores and installs in one go.
    let answer = author.send("/crx/packmgr/service.jsp", "file", &bytes, &[("install", "true")]);
    assert!(answer.text().contains("<status code=\"200\">ok</status>"), "{}", answer.text());
    assert_eq!(author.status("/tmp/c.json"), 200);
    let broken = author.send("/crx/packmgr/service.jsp", "file", b"nonsense", &[]);
    assert!(
        broken.text().contains("<status code=\"500\">p.zip: cannot be read as a ZIP file"),
        "{}",
        broken.text()
    );
}

#[test]
fn packages_are_for_the_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    for path in ["/api/v1/packages", "/crx/packmgr/list.jsp", "/crx/packmgr/service.jsp?cmd=ls"] {
        assert_eq!(ask(author.address, "GET", path, &[], b"").unwrap().status, 401, "{path}");
    }
    for path in ["/api/v1/packages", "/crx/packmgr/service/.json/?cmd=upload"] {
        assert_eq!(ask(author.address, "POST", path, &[], b"x").unwrap().status, 401, "{path}");
    }
    // What a browser sends from another site is refused although it knows the password.
    let headers =
        [("Authorization", basic("admin", &author.password)), ("Origin", "http://evil".to_owned())];
    let path = "/crx/packmgr/service/.json/etc/packages/x.zip?cmd=delete";
    assert_eq!(ask(author.address, "POST", path, &headers, b"").unwrap().status, 403);
    assert_eq!(author.ask("GET", "/crx/packmgr/service/.json/x?cmd=delete", "", b"").status, 405);
}

#[test]
fn the_command_line_reaches_running_instances() {
    let Some(folder) = fixtures("filevault") else { return };
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
    let Some(folder) = fixtures("filevault") else { return };
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
