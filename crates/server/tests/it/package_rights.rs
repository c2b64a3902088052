//! Packages hold and change what the user may read and change.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance};

/// An author with an open node and one that authors may not read, and packages of both as two users build them.
struct Builders {
    author: BlockingInstance,
    /// Of `chief`, an administrator.
    all: Answer,
    /// Of `ann`, one of the authors.
    part: Answer,
}

impl Builders {
    fn start() -> Self {
        let author = BlockingInstance::author();
        author.add_user("ann", &json!(["content-authors"]));
        author.add_user("chief", &json!(["administrators"]));
        for name in ["open", "closed"] {
            let node = json!({ "properties": { "word": format!("numbat-{name}") } });
            author.done("PUT", &format!("/api/v1/nodes?path=/content/{name}"), &node);
        }
        let deny =
            json!({ "allow": false, "principal": "content-authors", "privileges": ["jcr:read"] });
        author.done("POST", "/api/v1/permissions?path=/content/closed", &deny);
        let filter =
            b"<workspaceFilter version=\"1.0\"><filter root=\"/content\"/></workspaceFilter>";
        let build = "/api/v1/packages/build?id=g:p:1";
        let [all, part] = ["chief", "ann"].map(|user| send(&author, user, build, filter));
        assert_eq!((all.status, part.status), (200, 200), "{}", part.text());
        Self { author, all, part }
    }

    /// Stores the whole package where `ann` may read and write, and changes the closed node since.
    fn store(&self) {
        let author = &self.author;
        assert_eq!(self.send("chief", "/api/v1/packages", &self.all.body).status, 201);
        let grant = json!({ "principal": "ann", "privileges": ["jcr:read", "rep:write"] });
        author.done("PUT", "/api/v1/nodes?path=/etc/packages/g/x", &json!({}));
        author.done("POST", "/api/v1/permissions?path=/etc/packages", &grant);
        author.done(
            "PATCH",
            "/api/v1/nodes?path=/content/closed",
            &json!({ "properties": { "word": "numbat-since" } }),
        );
    }

    fn send(&self, user: &str, path: &str, body: &[u8]) -> Answer {
        send(&self.author, user, path, body)
    }
}

fn send(author: &BlockingInstance, user: &str, path: &str, body: &[u8]) -> Answer {
    author.send_as(user, "POST", path, ("application/octet-stream", body))
}

#[test]
fn packages_hold_what_their_builder_may_read() {
    let Builders { all, part, .. } = Builders::start();
    let words = |zip: &[u8]| {
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(zip.to_vec())).unwrap();
        let mut text = String::new();
        for index in 0..archive.len() {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut archive.by_index(index).unwrap(), &mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        ["numbat-open", "numbat-closed"].map(|word| text.contains(word))
    };
    assert_eq!((words(&all.body), words(&part.body)), ([true, true], [true, false]));
}

/// Storing takes the right to write where packages are; the group of administrators has all rights.
#[test]
fn packages_are_stored_by_those_who_may_write_them() {
    let builders = Builders::start();
    let author = &builders.author;
    let refused = builders.send("ann", "/api/v1/packages", &builders.part.body);
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.detail().contains("jcr:addChildNodes"), "{}", refused.text());
    assert_eq!(builders.send("chief", "/api/v1/packages", &builders.all.body).status, 201);
    assert!(!author.ask("ann", "GET", "/api/v1/packages", &Value::Null).text().contains("g/p-1"));
    assert_eq!(
        author.status("ann", "POST", "/api/v1/packages/install?id=g:p:1", &Value::Null),
        404
    );
}

/// Who may read the package, too, installs what its rights let through: here not the closed node.
#[test]
fn nodes_that_the_installer_does_not_see_are_not_replaced() {
    let builders = Builders::start();
    builders.store();
    let Builders { author, all, part } = &builders;
    let install = "/api/v1/packages/install?id=g:p:1";
    for refused in [
        builders.send("ann", "/api/v1/packages/diff", &all.body),
        author.ask("ann", "POST", install, &Value::Null),
    ] {
        // Nobody replaces what they do not see, nor learns from the refusal that it is there.
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(!refused.text().contains("numbat-since"), "{}", refused.text());
    }
    let diff = builders.send("ann", "/api/v1/packages/diff", &part.body);
    assert_eq!(diff.status, 200, "{}", diff.text());
    let diff = builders.send("chief", "/api/v1/packages/diff", &all.body).text();
    assert!(diff.contains("numbat-since"), "{diff}");
}

#[test]
fn packages_are_installed_by_those_who_may_change_the_content() {
    let builders = Builders::start();
    builders.store();
    let author = &builders.author;
    let revoke =
        json!({ "allow": false, "principal": "ann", "privileges": ["rep:alterProperties"] });
    author.done("POST", "/api/v1/permissions?path=/content", &revoke);
    author.done("DELETE", "/api/v1/permissions?path=/content/closed", &Value::Null);
    let installed = author.ask("ann", "POST", "/api/v1/packages/install?id=g:p:1", &Value::Null);
    assert_eq!(installed.status, 403, "{}", installed.text());
    assert_eq!(
        author.get("/api/v1/nodes?path=/content/closed")["properties"]["word"]["value"],
        "numbat-since"
    );
    assert_eq!(
        author.status("chief", "POST", "/api/v1/packages/install?id=g:p:1", &Value::Null),
        200
    );
}

#[test]
fn the_store_is_read_by_administrators_alone() {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!(["content-authors"]));
    author.add_user("chief", &json!(["administrators"]));
    assert_eq!(author.status("ann", "GET", "/bin/store/refs", &Value::Null), 403);
    assert_eq!(author.status("chief", "GET", "/bin/store/refs", &Value::Null), 200);
}
