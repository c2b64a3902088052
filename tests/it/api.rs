//! What the JSON API manages: users, groups, permissions, versions, branches, node types, references, packages; each as
//! far as the asker may.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Answer, Running, ask, basic, free_address, post};

pub(crate) const PASSWORD: &str = "a long password";

/// A running author and who asks it.
pub(crate) struct Author {
    pub(crate) address: SocketAddr,
    pub(crate) password: String,
    _running: Running,
}

impl Author {
    pub(crate) fn start(home: &Path) -> Self {
        let address = free_address();
        let listen = address.to_string();
        let running =
            Running::start(&["author", "--home", home.to_str().unwrap(), "--listen", &listen]);
        let password = std::fs::read_to_string(home.join("initial-password")).unwrap();
        Self { address, password: password.trim().to_owned(), _running: running }
    }

    pub(crate) fn ask(&self, user: &str, method: &str, path: &str, body: &Value) -> Answer {
        let password = if user == "admin" { &self.password } else { PASSWORD };
        self.ask_with(&basic(user, password), method, path, body)
    }

    pub(crate) fn ask_with(
        &self,
        credentials: &str,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Answer {
        let headers = [
            ("Authorization", credentials.to_owned()),
            ("Content-Type", "application/json".to_owned()),
        ];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(self.address, method, path, &headers, body.as_bytes()).unwrap()
    }

    pub(crate) fn status(&self, user: &str, method: &str, path: &str, body: &Value) -> u16 {
        self.ask(user, method, path, body).status
    }

    /// Asks as the administrator for what must succeed.
    pub(crate) fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.ask("admin", method, path, body);
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.done("GET", path, &Value::Null)
    }

    pub(crate) fn add_user(&self, name: &str, groups: &Value) {
        let user = json!({ "name": name, "password": PASSWORD, "groups": groups });
        self.done("POST", "/api/v1/users", &user);
    }
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

/// Returns the message of a problem.
pub(crate) fn detail(answer: &Answer) -> String {
    let problem: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    problem["detail"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn users_and_groups_are_managed_by_whoever_may() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("bob", &json!([]));
    author.add_user("ann", &json!(["content-authors"]));
    for (body, status) in [
        (json!({ "name": "bob", "password": PASSWORD }), 412),
        (json!({ "name": "eve", "password": "short" }), 422),
        (json!({ "name": "everyone", "password": PASSWORD }), 422),
        (json!({ "name": "a/b", "password": PASSWORD }), 400),
        (json!({ "name": "eve", "password": PASSWORD, "groups": ["none"] }), 404),
    ] {
        assert_eq!(author.status("admin", "POST", "/api/v1/users", &body), status, "{body}");
    }
    let placed = json!({ "name": "zoe", "password": PASSWORD, "folder": "north/berlin", "groups": ["content-authors"] });
    let zoe = author.done("POST", "/api/v1/users", &placed);
    assert_eq!(zoe["path"], "/home/users/north/berlin/zoe");
    assert_eq!(author.get("/api/v1/user?name=zoe")["groups"], json!(["content-authors"]));
    assert_eq!(author.status("admin", "POST", "/api/v1/users", &placed), 412);
    for folder in ["../../apps", "ann"] {
        let body = json!({ "name": "eve", "password": PASSWORD, "folder": folder });
        let status = author.status("admin", "POST", "/api/v1/users", &body);
        assert!((400..500).contains(&status), "{folder}: {status}");
    }
    assert_eq!(author.status("admin", "DELETE", "/api/v1/user?name=zoe", &Value::Null), 200);
    assert_eq!(names(&author.get("/api/v1/users")["users"]), ["admin", "ann", "bob"]);
    let page = author.get("/api/v1/users?limit=1&search=B");
    assert_eq!((names(&page["users"]), &page["next"]), (vec!["bob"], &Value::Null));

    // Groups hold groups, but not themselves.
    for group in ["editors", "team"] {
        author.done("POST", "/api/v1/groups", &json!({ "name": group }));
    }
    for (group, member) in [("team", "editors"), ("editors", "bob")] {
        author.done("POST", "/api/v1/group/members", &json!({ "group": group, "member": member }));
    }
    let circle = json!({ "group": "editors", "member": "team" });
    assert_eq!(author.status("admin", "POST", "/api/v1/group/members", &circle), 422);
    let team = author.get("/api/v1/group?name=team");
    assert_eq!(
        (&team["members"], &team["allUsers"]),
        (&json!([{ "name": "editors", "kind": "group" }]), &json!(["bob"]))
    );
    let bob = author.get("/api/v1/user?name=bob");
    assert_eq!(
        (&bob["groups"], &bob["allGroups"]),
        (&json!(["editors"]), &json!(["editors", "team"]))
    );
    let out = "/api/v1/group/members?group=editors&member=bob";
    assert_eq!(author.status("admin", "DELETE", out, &Value::Null), 204);
    assert_eq!(author.get("/api/v1/user?name=bob")["groups"], json!([]));

    // Whoever may not read accounts finds none; whoever may not change them is told the privilege.
    assert_eq!(author.status("ann", "GET", "/api/v1/user?name=bob", &Value::Null), 404);
    assert_eq!(author.status("ann", "DELETE", "/api/v1/user?name=bob", &Value::Null), 404);
    let refused = author.ask("ann", "POST", "/api/v1/groups", &json!({ "name": "mine" }));
    assert_eq!(refused.status, 403);
    assert!(detail(&refused).contains("rep:userManagement"), "{}", refused.text());
    let seen = author.ask("ann", "GET", "/api/v1/users", &Value::Null);
    assert!(!seen.text().contains("bob"), "{}", seen.text());
}

#[test]
fn managers_of_users_cannot_make_themselves_administrators() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("manager", &json!([]));
    author.add_user("chief", &json!(["administrators"]));
    author.done("POST", "/api/v1/groups", &json!({ "name": "staff" }));
    author.done(
        "POST",
        "/api/v1/group/members",
        &json!({ "group": "administrators", "member": "staff" }),
    );
    let entry = json!({ "principal": "manager", "privileges": ["jcr:read", "rep:write", "rep:userManagement"] });
    author.done("POST", "/api/v1/permissions?path=/home", &entry);
    let own = json!({ "name": "helper", "password": PASSWORD });
    assert_eq!(author.status("manager", "POST", "/api/v1/users", &own), 201);
    for (method, path, body) in [
        (
            "POST",
            "/api/v1/group/members",
            json!({ "group": "administrators", "member": "manager" }),
        ),
        ("POST", "/api/v1/group/members", json!({ "group": "staff", "member": "manager" })),
        (
            "POST",
            "/api/v1/users",
            json!({ "name": "x", "password": PASSWORD, "groups": ["staff"] }),
        ),
        ("PUT", "/api/v1/user/password?name=chief", json!({ "password": PASSWORD })),
        ("PUT", "/api/v1/user/password?name=admin", json!({ "password": PASSWORD })),
        ("PATCH", "/api/v1/user?name=chief", json!({ "disabled": "x" })),
        ("DELETE", "/api/v1/user?name=chief", Value::Null),
        ("DELETE", "/api/v1/group?name=staff", Value::Null),
    ] {
        assert_eq!(author.status("manager", method, path, &body), 403, "{method} {path} {body}");
    }
    // Nor by writing the nodes of accounts.
    let members = json!({ "properties": { "rep:members": { "type": "WeakReference", "values": ["manager"] } } });
    let password = json!({ "properties": { "rep:password": "x" } });
    for (place, body) in [("groups/administrators", members), ("users/chief", password)] {
        let path = format!("/api/v1/nodes?path=/home/{place}");
        assert_eq!(author.status("manager", "PATCH", &path, &body), 422, "{body}");
    }
    // The last way in stays open.
    for (path, status) in [("user?name=admin", 422), ("group?name=administrators", 422)] {
        let path = format!("/api/v1/{path}");
        assert_eq!(author.status("admin", "DELETE", &path, &Value::Null), status, "{path}");
    }
}

#[test]
fn passwords_are_changed_and_end_other_logins() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("bob", &json!([]));
    let form = [("Content-Type", "application/x-www-form-urlencoded".to_owned())];
    let body = format!("user=bob&password={}", PASSWORD.replace(' ', "+"));
    let session = ask(author.address, "POST", "/login", &form, body.as_bytes()).unwrap();
    assert_eq!(session.status, 200);
    let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let me = |cookie: &str| {
        ask(author.address, "GET", "/api/v1/me", &[("Cookie", cookie.to_owned())], b"")
            .unwrap()
            .status
    };
    assert_eq!(me(&cookie), 200);
    let path = "/api/v1/user/password?name=bob";
    let next = "another long password";
    for (body, status) in [
        (json!({ "password": next }), 400),
        (json!({ "password": next, "current": "wrong" }), 403),
        (json!({ "password": "short", "current": PASSWORD }), 422),
    ] {
        assert_eq!(author.status("bob", "PUT", path, &body), status, "{body}");
    }
    let changed = author.ask("bob", "PUT", path, &json!({ "password": next, "current": PASSWORD }));
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(changed.text(), r#"{"ended":1}"#);
    assert_eq!(me(&cookie), 401);
    assert_eq!(author.status("bob", "GET", "/api/v1/me", &Value::Null), 401);
    let bob = basic("bob", next);
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 200);
    // A disabled user is out at once, and may not let itself in again.
    let tag = author.ask("admin", "GET", "/api/v1/user?name=bob", &Value::Null);
    let tag = tag.header("etag").unwrap().to_owned();
    author.done("PATCH", "/api/v1/user?name=bob", &json!({ "disabled": "left" }));
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 401);
    assert_eq!(author.get("/api/v1/user?name=bob")["disabled"], "left");
    let headers = [("Authorization", basic("admin", &author.password)), ("If-Match", tag)];
    let stale = ask(author.address, "DELETE", "/api/v1/user?name=bob", &headers, b"").unwrap();
    assert_eq!(stale.status, 412, "{}", stale.text());
    author.done("PATCH", "/api/v1/user?name=bob", &json!({ "disabled": null }));
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 200);
}

#[test]
fn permissions_are_read_changed_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!(["content-authors"]));
    author.add_user("bob", &json!([]));
    let node = json!({ "type": "sling:OrderedFolder" });
    author.done("PUT", "/api/v1/nodes?path=/content", &node);
    author.done("PUT", "/api/v1/nodes?path=/content/a", &json!({ "type": "nt:folder" }));
    let path = "/api/v1/permissions?path=/content/a";
    let effective = author.get(path);
    assert_eq!(effective["policies"][0]["path"], "/rep:policy");
    assert_eq!(effective["policies"][0]["isInherited"], true);
    let policy = json!({ "entries": [
        { "principal": "bob", "privileges": ["jcr:read", "rep:write"], "restrictions": { "rep:glob": ["/drafts*"] } },
        { "allow": false, "principal": "everyone", "privileges": ["jcr:removeNode"] },
    ] });
    let stored = author.done("PUT", path, &policy);
    assert_eq!(names(&stored["entries"]), ["allow", "deny"]);
    let tag = stored["etag"].as_str().unwrap();
    let read = author.get(path);
    assert_eq!(read["policies"][0]["entries"], stored["entries"]);
    assert_eq!(read["policies"][0]["node"], "/content/a");
    let entry = json!({ "principal": "ann", "privileges": ["jcr:readAccessControl"] });
    assert_eq!(names(&author.done("POST", path, &entry)["entries"]), ["allow", "deny", "allow0"]);
    let headers =
        [("Authorization", basic("admin", &author.password)), ("If-Match", tag.to_owned())];
    assert_eq!(ask(author.address, "DELETE", path, &headers, b"").unwrap().status, 412);
    for (entry, status) in [
        (json!({ "principal": "nobody", "privileges": ["jcr:read"] }), 422),
        (json!({ "principal": "bob", "privileges": ["jcr:rad"] }), 422),
        (json!({ "principal": "bob", "privileges": [] }), 422),
        (
            json!({ "principal": "bob", "privileges": ["jcr:read"], "restrictions": { "rep:x": ["a"] } }),
            422,
        ),
    ] {
        assert_eq!(author.status("admin", "POST", path, &entry), status, "{entry}");
    }
    // Reading and changing take their privileges, which are named.
    assert_eq!(author.status("bob", "GET", path, &Value::Null), 403);
    assert_eq!(author.status("ann", "GET", path, &Value::Null), 200);
    let refused = author.ask("ann", "POST", path, &entry);
    assert_eq!(refused.status, 403);
    assert!(detail(&refused).contains("jcr:modifyAccessControl"), "{}", refused.text());
    // Nor can a policy be written as a node.
    let written =
        json!({ "properties": { "rep:privileges": { "type": "Name", "values": ["jcr:all"] } } });
    let entry_node = "/api/v1/nodes?path=/content/a/rep:policy/allow";
    assert_eq!(author.status("admin", "PATCH", entry_node, &written), 422);

    let why =
        author.get("/api/v1/permissions/why?path=/content/a&user=bob&privilege=jcr:removeNode");
    let reason = &why["privileges"][0];
    assert_eq!(
        (&reason["granted"], &reason["cause"]["policy"]),
        (&false.into(), &"/content/a/rep:policy".into())
    );
    let missing = "/api/v1/permissions/why?path=/content/a&user=none";
    assert_eq!(author.status("admin", "GET", missing, &Value::Null), 404);
    let own: Value = serde_json::from_slice(
        &author.ask("bob", "GET", "/api/v1/privileges?path=/content/a", &Value::Null).body,
    )
    .unwrap();
    assert_eq!(own["privileges"], json!(["rep:readNodes", "rep:readProperties"]));
    // What ann may see of why, without the right to read the policy at the root.
    let why = "/api/v1/permissions/why?path=/content/a&user=ann&privilege=rep:addProperties";
    let why: Value =
        serde_json::from_slice(&author.ask("ann", "GET", why, &Value::Null).body).unwrap();
    assert_eq!(why["privileges"][0]["cause"], json!({ "kind": "hidden" }), "{why}");
    assert_eq!(
        names(&author.done("DELETE", &format!("{path}&entry=deny"), &Value::Null)["entries"]),
        ["allow", "allow0"]
    );
    assert_eq!(author.done("DELETE", path, &Value::Null)["entries"], json!([]));
    assert_eq!(author.get(path)["policies"][0]["path"], "/rep:policy");
}

#[test]
fn versions_are_labeled_compared_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    let node = "/api/v1/nodes?path=/content/n";
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    author.done("PUT", node, &json!({ "properties": { "a": 1 }, "children": { "part": { "properties": { "b": "old" } } } }));
    let keep = json!({ "path": "/content/n", "comment": "first" });
    assert_eq!(author.done("POST", "/api/v1/versions", &keep)["name"], "1.0");
    author.done("PATCH", node, &json!({ "properties": { "a": 2 }, "children": { "part": { "properties": { "b": "new" } } } }));
    author.done("POST", "/api/v1/versions", &keep);
    author.done(
        "POST",
        "/api/v1/versions/label",
        &json!({ "path": "/content/n", "version": "1.0", "label": "good" }),
    );
    let taken = json!({ "path": "/content/n", "version": "1.1", "label": "good" });
    assert_eq!(author.status("admin", "POST", "/api/v1/versions/label", &taken), 422);
    let diff = author.get("/api/v1/versions/diff?path=/content/n&from=good&to=1.1");
    assert_eq!((&diff["from"], &diff["to"]), (&"1.0".into(), &"1.1".into()));
    let paths: Vec<&str> = diff["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["", "part"]);
    assert_eq!(
        diff["nodes"][1]["properties"][0]["before"],
        json!({ "type": "String", "value": "old" })
    );
    let old = author.get("/api/v1/versions/node?path=/content/n&version=good&depth=1");
    assert_eq!(old["children"]["part"]["properties"]["b"]["value"], "old");
    let part = json!({ "path": "/content/n", "version": "1.0", "part": "part" });
    author.done("POST", "/api/v1/versions/restore", &part);
    let now = author.get(&format!("{node}&depth=1"));
    assert_eq!(
        (&now["properties"]["a"]["value"], &now["children"]["part"]["properties"]["b"]["value"]),
        (&2.into(), &"old".into())
    );
    // A node that is gone is listed, and comes back.
    author.done("DELETE", node, &Value::Null);
    let deleted = author.get("/api/v1/versions/deleted?path=/content");
    assert_eq!(deleted["nodes"][0]["path"], "/content/n");
    author.done(
        "POST",
        "/api/v1/versions/restore",
        &json!({ "path": "/content/n", "version": "good" }),
    );
    assert_eq!(author.get(node)["properties"]["a"]["value"], 1);
    assert_eq!(author.get("/api/v1/versions/deleted?path=/content")["nodes"], json!([]));
    let remove = "/api/v1/versions?path=/content/n&version=1.1";
    assert_eq!(author.status("admin", "DELETE", remove, &Value::Null), 204);
    assert_eq!(author.status("admin", "DELETE", remove, &Value::Null), 404);
    assert_eq!(names(&author.get("/api/v1/versions?path=/content/n")["versions"]), ["1.0"]);
}

#[test]
fn branches_are_begun_edited_compared_merged_and_promoted() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!(["content-authors"]));
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    for name in ["a", "b"] {
        author.done(
            "PUT",
            &format!("/api/v1/nodes?path=/content/{name}"),
            &json!({ "properties": { "v": "base" } }),
        );
    }
    let past = author.get("/api/v1/revisions?limit=1")["revisions"][0]["time"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(author.status("ann", "POST", "/api/v1/branches", &json!({ "name": "x" })), 403);
    author.done("POST", "/api/v1/branches", &json!({ "name": "launch" }));
    assert_eq!(
        author.status("admin", "POST", "/api/v1/branches", &json!({ "name": "launch" })),
        422
    );
    let set = |place: &str, value: &str| {
        let path = format!("/api/v1/nodes?path=/content/{place}");
        let answer = author.ask("ann", "PATCH", &path, &json!({ "properties": { "v": value } }));
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    set("a&branch=launch", "launched");
    set("b&branch=launch", "launched");
    set("b", "edited");
    let value = |place: &str| {
        author.get(&format!("/api/v1/nodes?path=/content/{place}"))["properties"]["v"]["value"]
            .clone()
    };
    assert_eq!((value("a"), value("a&branch=launch")), ("base".into(), "launched".into()));
    assert_eq!(value(&format!("b&at={}", past.replace('+', "%2B"))), "base");
    assert_eq!(
        author.status("admin", "GET", "/api/v1/nodes?path=/content/a&branch=none", &Value::Null),
        404
    );
    let diff = author.get("/api/v1/branches/diff?name=launch&details=true");
    let changed: Vec<&str> = diff["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert_eq!(changed, ["/content/a", "/content/b"]);
    assert_eq!(diff["changes"][0]["nodes"][0]["properties"][0]["after"]["value"], "launched");

    let merge = |more: Value| {
        let mut body = json!({ "name": "launch" });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        author.ask("admin", "POST", "/api/v1/branches/merge", &body)
    };
    let trial: Value = serde_json::from_slice(&merge(json!({ "dryRun": true })).body).unwrap();
    assert_eq!(trial["conflicts"][0]["path"], "/content/b", "{trial}");
    let refused = merge(json!({}));
    assert_eq!(refused.status, 409);
    let problem: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(problem["conflicts"][0]["theirs"], "edited", "{problem}");
    assert_eq!(merge(json!({ "only": ["/content/a"] })).status, 200);
    assert_eq!((value("a"), value("b")), ("launched".into(), "edited".into()));
    let decided = merge(json!({ "decisions": { "/content/b": "mine" } }));
    assert_eq!(decided.status, 200, "{}", decided.text());
    assert_eq!(value("b"), "launched");

    // A branch of the past, promoted: refused while that would drop something.
    author.done("POST", "/api/v1/branches", &json!({ "name": "back", "at": past }));
    let promote = |replace: bool| {
        author.status(
            "admin",
            "POST",
            "/api/v1/branches/promote",
            &json!({ "name": "back", "replace": replace }),
        )
    };
    assert_eq!((promote(false), promote(true)), (409, 200));
    assert_eq!(value("b"), "base");
    assert_eq!(author.status("admin", "DELETE", "/api/v1/branches?name=launch", &Value::Null), 204);
    assert_eq!(author.status("admin", "DELETE", "/api/v1/branches?name=main", &Value::Null), 422);
    assert_eq!(names(&author.get("/api/v1/branches")["branches"]), ["back", "main"]);
}

#[test]
fn types_namespaces_and_references_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!(["content-authors"]));
    let cnd = "<my = 'http://example.org/my'>\n[my:thing] > nt:unstructured\n- my:size (long)\n";
    let headers = |user: &str, password: &str| {
        [("Authorization", basic(user, password)), ("Content-Type", "text/plain".to_owned())]
    };
    let define = |user: &str, password: &str, text: &str| {
        ask(author.address, "POST", "/api/v1/types/cnd", &headers(user, password), text.as_bytes())
            .unwrap()
    };
    let refused = define("ann", PASSWORD, cnd);
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(detail(&refused).contains("Management"), "{}", refused.text());
    assert_eq!(define("admin", &author.password, "[my:thing > x").status, 422);
    assert_eq!(define("admin", &author.password, cnd).status, 204);
    let types = author.get("/api/v1/types");
    let own = types["types"].as_array().unwrap().iter().filter(|one| one["isOwn"] == true);
    assert_eq!(own.map(|one| one["name"].as_str().unwrap()).collect::<Vec<_>>(), ["my:thing"]);
    let written = author.ask("ann", "GET", "/api/v1/types/cnd", &Value::Null).text();
    assert!(
        written.contains("my:size (long)") && written.contains("http://example.org/my"),
        "{written}"
    );
    let namespace = json!({ "prefix": "my", "uri": "http://example.org/other" });
    assert_eq!(author.status("admin", "POST", "/api/v1/namespaces", &namespace), 409);
    assert_eq!(author.status("admin", "DELETE", "/api/v1/types?name=my:thing", &Value::Null), 204);

    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    author.done("PUT", "/api/v1/nodes?path=/content/a", &json!({}));
    author.done(
        "PUT",
        "/api/v1/nodes?path=/content/b",
        &json!({ "properties": { "to": "/content/a" } }),
    );
    let references = author.get("/api/v1/references?path=/content/a");
    assert_eq!(
        references["usedBy"],
        json!([{ "path": "/content/b", "property": "to", "kind": "path" }])
    );
    assert_eq!(author.get("/api/v1/references?path=/content/b")["uses"][0]["target"], "/content/a");
}

#[test]
fn packages_hold_and_change_what_the_asker_may() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!(["content-authors"]));
    author.add_user("chief", &json!(["administrators"]));
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    for name in ["open", "closed"] {
        let node = json!({ "properties": { "word": format!("numbat-{name}") } });
        author.done("PUT", &format!("/api/v1/nodes?path=/content/{name}"), &node);
    }
    let deny =
        json!({ "allow": false, "principal": "content-authors", "privileges": ["jcr:read"] });
    author.done("POST", "/api/v1/permissions?path=/content/closed", &deny);
    let send = |user: &str, path: &str, body: &[u8]| {
        let password = if user == "admin" { &author.password } else { PASSWORD };
        let headers = [
            ("Authorization", basic(user, password)),
            ("Content-Type", "application/octet-stream".to_owned()),
        ];
        ask(author.address, "POST", path, &headers, body).unwrap()
    };
    let filter = b"<workspaceFilter version=\"1.0\"><filter root=\"/content\"/></workspaceFilter>";
    let build = "/api/v1/packages/build?id=g:p:1";
    let (all, part) = (send("chief", build, filter), send("ann", build, filter));
    assert_eq!((all.status, part.status), (200, 200), "{}", part.text());
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
    // Storing takes the right to write where packages are; the group of administrators has all rights.
    let refused = send("ann", "/api/v1/packages", &part.body);
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(detail(&refused).contains("jcr:addChildNodes"), "{}", refused.text());
    assert_eq!(send("chief", "/api/v1/packages", &all.body).status, 201);
    assert!(!author.ask("ann", "GET", "/api/v1/packages", &Value::Null).text().contains("g/p-1"));
    assert_eq!(
        author.status("ann", "POST", "/api/v1/packages/install?id=g:p:1", &Value::Null),
        404
    );
    // Who may read the package, too, installs what its rights let through: here not the closed node.
    let grant = json!({ "principal": "ann", "privileges": ["jcr:read", "rep:write"] });
    author.done("PUT", "/api/v1/nodes?path=/etc/packages/g/x", &json!({}));
    author.done("POST", "/api/v1/permissions?path=/etc/packages", &grant);
    author.done(
        "PATCH",
        "/api/v1/nodes?path=/content/closed",
        &json!({ "properties": { "word": "numbat-since" } }),
    );
    let install = "/api/v1/packages/install?id=g:p:1";
    for refused in [
        send("ann", "/api/v1/packages/diff", &all.body),
        author.ask("ann", "POST", install, &Value::Null),
    ] {
        // Nobody replaces what they do not see, nor learns from the refusal that it is there.
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(!refused.text().contains("numbat-since"), "{}", refused.text());
    }
    let diff = send("ann", "/api/v1/packages/diff", &part.body);
    assert_eq!(diff.status, 200, "{}", diff.text());
    assert!(send("chief", "/api/v1/packages/diff", &all.body).text().contains("numbat-since"));
    let revoke =
        json!({ "allow": false, "principal": "ann", "privileges": ["rep:alterProperties"] });
    author.done("POST", "/api/v1/permissions?path=/content", &revoke);
    author.done("DELETE", "/api/v1/permissions?path=/content/closed", &Value::Null);
    let installed = author.ask("ann", "POST", install, &Value::Null);
    assert_eq!(installed.status, 403, "{}", installed.text());
    assert_eq!(
        author.get("/api/v1/nodes?path=/content/closed")["properties"]["word"]["value"],
        "numbat-since"
    );
    assert_eq!(
        author.status("chief", "POST", "/api/v1/packages/install?id=g:p:1", &Value::Null),
        200
    );
    assert_eq!(author.status("ann", "GET", "/bin/store/refs", &Value::Null), 403);
    assert_eq!(author.status("chief", "GET", "/bin/store/refs", &Value::Null), 200);
}

#[test]
fn nobody_sets_what_the_repository_alone_sets() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    let node = "/api/v1/nodes?path=/content/n";
    let tree =
        json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable", "mix:created"], "a": 1 } });
    author.done("PUT", node, &tree);
    let made = author.get(node);
    let uuid = made["properties"]["jcr:uuid"]["value"].as_str().unwrap().to_owned();
    let forged = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";
    for (method, path, body) in [
        ("PATCH", node, json!({ "properties": { "jcr:uuid": forged } })),
        ("PATCH", node, json!({ "properties": { "jcr:createdBy": "eve" } })),
        ("PATCH", node, json!({ "properties": { "jcr:uuid": forged, "jcr:mixinTypes": [] } })),
        (
            "PUT",
            "/api/v1/nodes?path=/content/m",
            json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable"], "jcr:uuid": forged } }),
        ),
        (
            "PUT",
            "/api/v1/nodes?path=/home/users/eve",
            json!({ "type": "rep:User", "properties": { "rep:principalName": "eve", "rep:password": "x" } }),
        ),
    ] {
        let answer = author.ask("admin", method, path, &body);
        assert_eq!(answer.status, 422, "{method} {path} {body}: {}", answer.text());
        assert!(answer.text().contains("protected"), "{}", answer.text());
    }
    let batch = json!({ "operations": [
        { "op": "patch", "path": "/content/n", "patch": { "properties": { "a": 2 } } },
        { "op": "patch", "path": "/content/n", "patch": { "properties": { "jcr:uuid": forged } } },
    ] });
    let refused = author.ask("admin", "POST", "/api/v1/batch", &batch);
    let problem: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!((refused.status, &problem["operation"]), (422, &1.into()));
    let form = |path: &str, form: &str| post(author.address, &author.password, path, form);
    for fields in [
        format!("./jcr:uuid={forged}"),
        "./jcr:createdBy=eve".to_owned(),
        "./jcr:uuid@CopyFrom=/content/n/a".to_owned(),
    ] {
        assert_eq!(form("/content/n", &fields).status, 422, "{fields}");
    }
    assert_eq!(
        form("/content/q", &format!("./jcr:uuid={forged}&./jcr:mixinTypes=mix:referenceable"))
            .status,
        422
    );
    // What Sling fills in is left to the repository, what is sent back as it was read passes, and an import passes over.
    assert_eq!(form("/content/n", "./jcr:created=&./jcr:createdBy=&./b=1").status, 200);
    author.done("PUT", node, &made);
    author.done("PUT", node, &json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable", "mix:created"], "a": 3 } }));
    assert_eq!(author.get(node)["properties"]["jcr:uuid"]["value"], uuid.as_str());
    let import = format!(
        ":operation=import&:contentType=json&:name=i&:content={}",
        format!(
            "{{\"jcr:mixinTypes\":[\"mix:referenceable\"],\"jcr:uuid\":\"{forged}\",\"t\":\"x\"}}"
        )
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect::<String>()
    );
    assert!(form("/content", &import).status < 300, "{}", form("/content", &import).text());
    let imported = author.get("/api/v1/nodes?path=/content/i");
    assert_eq!(imported["properties"]["t"]["value"], "x");
    assert_ne!(imported["properties"]["jcr:uuid"]["value"], forged);
}

#[test]
fn what_is_not_seen_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!(["content-authors"]));
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    author.done("PUT", "/api/v1/nodes?path=/content/doc", &json!({}));
    for place in ["hidden", "doc/hidden"] {
        let path = format!("/api/v1/nodes?path=/content/{place}");
        author.done("PUT", &path, &json!({ "properties": { "word": "kept" } }));
    }
    let deny = json!({
        "allow": false, "principal": "everyone", "privileges": ["jcr:read"],
        "restrictions": { "rep:itemNames": ["hidden"] },
    });
    author.done("POST", "/api/v1/permissions?path=/content", &deny);
    let child = json!({ "children": { "hidden": { "properties": { "word": "lost" } } } });
    for (method, path, body) in [
        ("PUT", "/api/v1/nodes?path=/content/hidden", json!({})),
        ("PUT", "/api/v1/nodes?path=/content/doc/hidden", json!({})),
        ("PATCH", "/api/v1/nodes?path=/content/doc", child),
        ("POST", "/api/v1/nodes/copy", json!({ "from": "/content/doc", "to": "/content/hidden" })),
        ("PUT", "/content/hidden", json!({})),
    ] {
        let answer = author.ask("ann", method, path, &body);
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("jcr:addChildNodes"), "{method} {path}: {}", answer.text());
    }
    for place in ["hidden", "doc/hidden"] {
        let node = author.get(&format!("/api/v1/nodes?path=/content/{place}"));
        assert_eq!(node["properties"]["word"]["value"], "kept", "{place}");
    }
    // Of a document that is seen in part, the tag guards what is seen.
    let path = "/api/v1/nodes?path=/content/doc";
    let tag =
        |user: &str| author.ask(user, "GET", path, &Value::Null).header("etag").unwrap().to_owned();
    let (ann, admin) = (tag("ann"), tag("admin"));
    author.done(
        "PATCH",
        &path.replace("doc", "doc/hidden"),
        &json!({ "properties": { "word": "new" } }),
    );
    assert_eq!(tag("ann"), ann);
    assert_ne!(tag("admin"), admin);
    let change = |tag: &str| {
        let headers = [
            ("Authorization", basic("ann", PASSWORD)),
            ("Content-Type", "application/json".to_owned()),
            ("If-Match", tag.to_owned()),
        ];
        let body = br#"{"properties":{"a":1}}"#;
        ask(author.address, "PATCH", path, &headers, body).unwrap().status
    };
    assert_eq!((change(&ann), change(&ann)), (200, 412));
}

#[test]
fn saves_at_one_moment_are_all_kept_or_told() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.done("PUT", "/api/v1/nodes?path=/content", &json!({ "type": "sling:OrderedFolder" }));
    let path = "/api/v1/nodes?path=/content/n";
    author.done("PUT", path, &json!({ "properties": { "start": 1 } }));
    let tag = author.ask("admin", "GET", path, &Value::Null).header("etag").unwrap().to_owned();
    let save = |number: usize, tag: Option<&str>| {
        let mut headers = vec![
            ("Authorization", basic("admin", &author.password)),
            ("Content-Type", "application/json".to_owned()),
        ];
        headers.extend(tag.map(|tag| ("If-Match", tag.to_owned())));
        let body = json!({ "properties": { format!("p{number}"): number } }).to_string();
        ask(author.address, "PATCH", path, &headers, body.as_bytes()).unwrap().status
    };
    // Of those that saw the same state, one wins; the others are told.
    let save = &save;
    let together = |tag: Option<&str>| -> Vec<u16> {
        std::thread::scope(|scope| {
            let tag = tag.map(str::to_owned);
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    let tag = tag.clone();
                    scope.spawn(move || save(number, tag.as_deref()))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    let mut told = together(Some(&tag));
    told.sort_unstable();
    assert_eq!(told, [vec![200], vec![412; 7]].concat());
    // Without a condition, different properties never clash.
    assert_eq!(together(None), [200; 8]);
    let properties = author.get(path)["properties"].clone();
    assert!(
        (0..8).all(|number| properties[format!("p{number}")]["value"] == number),
        "{properties}"
    );
}
