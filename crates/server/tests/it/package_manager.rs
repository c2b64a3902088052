//! The addresses of AEM's package manager.

use serde_json::Value;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::blocking_instance::{Answer, BlockingInstance, basic};
use crate::support::PASSWORD;

/// An author whose package manager the administrator uses.
struct PackageManager(BlockingInstance);

impl PackageManager {
    fn get(&self, path: &str) -> Answer {
        self.0.ask("admin", "GET", path, &Value::Null)
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
        self.0.send_as("admin", "POST", path, ("multipart/form-data; boundary=limit", &body))
    }

    /// Runs a command of the package manager.
    fn command(&self, path: &str, command: &str) -> String {
        let path = format!("/crx/packmgr/service/.json{path}?cmd={command}");
        let answer = self.0.post(&path, "");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }

    fn status(&self, path: &str) -> u16 {
        self.get(path).status
    }
}

#[test]
fn package_managers_find_what_they_expect() {
    let Some(folder) = fixture_folder("filevault") else { return };
    let author = PackageManager(BlockingInstance::author());
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
    let listed = author.get("/crx/packmgr/service.jsp?cmd=ls").text();
    for part in [
        "<crx version=\"1.4.1\" user=\"admin\" workspace=\"crx.default\"><request><param name=\"cmd\" value=\"ls\"/>",
        "<package><group>my_packages</group><name>test_c</name><version>2.0</version><downloadName>test_c-2.0.zip</downloadName>",
        "<lastUnpackedBy>admin</lastUnpackedBy>",
        "<status code=\"200\">ok</status>",
    ] {
        assert!(listed.contains(part), "{listed}");
    }
    let list = author.get(&format!("/crx/packmgr/list.jsp?path={STORED}")).text();
    assert!(
        list.contains("\"pid\":\"my_packages:test_c:2.0\"") && list.contains("\"total\":1"),
        "{list}"
    );
    let file = author.get(&format!("/crx/packmgr/download.jsp?path={STORED}"));
    assert_eq!(file.body, bytes);
    assert!(author.command(STORED, "uninstall").contains("\"msg\":\"Package uninstalled\""));
    assert_eq!(author.status("/tmp/c.json"), 404);
    assert!(author.command(STORED, "build").contains("\"msg\":\"Package built\""));
    assert!(author.command(STORED, "delete").contains("\"msg\":\"Package deleted\""));
    assert_eq!(author.command(STORED, "install"), "{\"success\":false,\"msg\":\"no package\"}");
}

#[test]
fn the_service_of_old_stores_and_installs_in_one_go() {
    let Some(folder) = fixture_folder("filevault") else { return };
    let author = PackageManager(BlockingInstance::author());
    let bytes = std::fs::read(folder.join("test_c-2.0.zip")).unwrap();
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
    let author = BlockingInstance::author();
    for path in ["/api/v1/packages", "/crx/packmgr/list.jsp", "/crx/packmgr/service.jsp?cmd=ls"] {
        assert_eq!(author.send("GET", path, &[], b"").status, 401, "{path}");
    }
    for path in ["/api/v1/packages", "/crx/packmgr/service/.json/?cmd=upload"] {
        assert_eq!(author.send("POST", path, &[], b"x").status, 401, "{path}");
    }
    // What a browser sends from another site is refused although it knows the password.
    let headers =
        [("authorization", basic("admin", PASSWORD)), ("origin", "http://evil".to_owned())];
    let path = "/crx/packmgr/service/.json/etc/packages/x.zip?cmd=delete";
    assert_eq!(author.send("POST", path, &headers, b"").status, 403);
    assert_eq!(
        author.status("admin", "GET", "/crx/packmgr/service/.json/x?cmd=delete", &Value::Null),
        405
    );
}
