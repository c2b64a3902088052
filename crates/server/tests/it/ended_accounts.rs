//! What opens a door for a user ends with its account, in whatever way that goes.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance, basic, first_cookie};
use crate::support::PASSWORD;

/// Proofs of who one is, as headers.
type Keys = Vec<(&'static str, (&'static str, String))>;

fn opens(author: &BlockingInstance, header: &(&str, String)) -> bool {
    let answer = author.send("GET", "/api/v1/me", std::slice::from_ref(header), b"");
    assert!(matches!(answer.status, 200 | 401), "{}", answer.text());
    answer.status == 200
}

/// Lets `ann` log in, and gives her tokens.
fn keys_of_ann(author: &BlockingInstance) -> Keys {
    let token = || ("authorization", format!("Bearer {}", author.token("ann")));
    let begun = author.log_in("ann", PASSWORD);
    assert_eq!(begun.status, 200, "{}", begun.text());
    let cookie = first_cookie(&begun);
    let used = token();
    assert!(opens(author, &used));
    let session = ("cookie", cookie);
    assert!(opens(author, &session));
    vec![
        ("a token that was used", used),
        ("a token that was not", token()),
        ("a session", session),
        ("a password", ("authorization", basic("ann", PASSWORD))),
    ]
}

/// Removes `ann` in one way, then makes another user of that name: no key of the first opens for the second.
fn check(author: &BlockingInstance, way: &str, remove: impl FnOnce()) {
    author.add_user("ann", &json!(["content-authors"]));
    let keys = keys_of_ann(author);
    remove();
    for (what, header) in &keys {
        assert!(!opens(author, header), "{what} outlived its user: {way}");
    }
    let other = json!({ "name": "ann", "password": "quite another one" });
    author.done("POST", "/api/v1/users", &other);
    for (what, header) in &keys {
        assert!(!opens(author, header), "{what} opens for another user: {way}");
    }
    assert!(opens(author, &("authorization", basic("ann", "quite another one"))));
    author.done("DELETE", "/api/v1/user?name=ann", &Value::Null);
}

#[test]
fn keys_end_with_their_account_however_it_goes() {
    let author = &BlockingInstance::author();
    let nothing = Value::Null;
    check(author, "the API", || {
        author.done("DELETE", "/api/v1/user?name=ann", &nothing);
    });
    check(author, "the API of nodes", || {
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
    });
    check(author, "Sling's POST", || {
        let gone = author.post("/home/users/ann", ":operation=delete");
        assert_eq!(gone.status, 200, "{}", gone.text());
    });
    check(author, "another identifier", || {
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
        author.add_user("ann", &json!([]));
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
    });
}

/// Sends a body as the administrator, and requires that it is taken.
fn send(author: &BlockingInstance, path: &str, media_type: &str, body: &[u8]) -> Answer {
    let answer = author.send_as("admin", "POST", path, (media_type, body));
    assert!(answer.status < 300, "{path}: {}", answer.text());
    answer
}

/// The package is of the place where she is not yet.
#[test]
fn keys_end_with_their_account_when_a_package_removes_it() {
    let author = &BlockingInstance::author();
    let filter =
        "<workspaceFilter version=\"1.0\"><filter root=\"/home/users/ann\"/></workspaceFilter>";
    let build = "/api/v1/packages/build?id=my:gone:1";
    let package = send(author, build, "text/plain", filter.as_bytes());
    check(author, "a package", || {
        send(author, "/api/v1/packages?install=true", "application/zip", &package.body);
    });
}

#[test]
fn keys_end_with_their_account_when_a_branch_removes_it() {
    let author = &BlockingInstance::author();
    let branch = |name: &str| author.done("POST", "/api/v1/branches", &json!({ "name": name }));
    branch("before");
    check(author, "a restored state", || {
        author.done(
            "POST",
            "/api/v1/branches/promote",
            &json!({ "name": "before", "replace": true }),
        );
    });
    check(author, "a merge", || {
        branch("without");
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann&branch=without", &Value::Null);
        author.done("POST", "/api/v1/branches/merge", &json!({ "name": "without" }));
    });
}

#[test]
fn an_account_without_an_identifier_gets_one() {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!([]));
    // As a package brings it: the account as it is, but for its identifier.
    let filter = "<workspaceFilter version=\"1.0\"><filter root=\"/home/users/ann\">\
                  <exclude pattern=\".*/jcr:uuid\" matchProperties=\"true\"/></filter></workspaceFilter>";
    let build = "/api/v1/packages/build?id=my:ann:1";
    let package = send(&author, build, "text/plain", filter.as_bytes());
    author.done("DELETE", "/api/v1/user?name=ann", &Value::Null);
    send(&author, "/api/v1/packages?install=true", "application/zip", &package.body);
    let node = "/api/v1/nodes?path=/home/users/ann";
    let identifier = |read: &Value| read["properties"]["jcr:uuid"]["value"].clone();
    let before = author.get(node);
    assert_eq!(identifier(&before), Value::Null, "{before}");
    // The package does not carry the hash, as nobody reads it: she gets a password first.
    author.done("PUT", "/api/v1/user/password?name=ann", &json!({ "password": PASSWORD }));
    let keys = keys_of_ann(&author);
    assert!(identifier(&author.get(node)).is_string());
    author.done("DELETE", node, &Value::Null);
    author.add_user("ann", &json!([]));
    for (what, header) in keys.iter().filter(|(what, _)| *what != "a password") {
        assert!(!opens(&author, header), "{what}");
    }
}

#[test]
fn nobody_becomes_another_user_by_asking() {
    let author = BlockingInstance::author();
    author.add_user("eve", &json!(["content-authors"]));
    author.add_user("ann", &json!([]));
    // Impersonation is not there: the property cannot be written by its user, and means nothing to anybody.
    let own = "/api/v1/nodes?path=/home/users/ann";
    let list = json!({ "properties": { "rep:impersonators": ["eve"] } });
    let refused = author.status("eve", "PATCH", own, &list);
    assert!(matches!(refused, 403 | 404), "{refused}");
    author.ask("admin", "PATCH", own, &list);
    let credentials = basic("eve", PASSWORD);
    for (name, value) in [
        ("cookie", "sling.sudo=ann"),
        ("cookie", "sling.sudo=\"ann\""),
        ("cookie", "tympan-login=ann"),
        ("sudo", "ann"),
        ("X-Sudo", "ann"),
        ("X-Forwarded-User", "ann"),
        ("X-Remote-User", "admin"),
        ("X-Impersonate-User", "admin"),
    ] {
        for path in ["/api/v1/me", "/api/v1/me?sudo=ann"] {
            let headers = [("authorization", credentials.clone()), (name, value.to_owned())];
            let answer = author.send("GET", path, &headers, b"");
            let body = answer.json();
            let is_eve = answer.status == 200 && body["user"] == "eve";
            assert!(is_eve || answer.status == 400, "{name}: {value} {path}: {}", answer.text());
        }
        let alone = author.send("GET", "/api/v1/me", &[(name, value.to_owned())], b"");
        assert_eq!(alone.status, 401, "{name}: {value}");
    }
    // Sling's parameter on what Sling answers: the page is eve's, or it is not there.
    let headers = [("authorization", credentials)];
    let home = author.send("GET", "/home/users/ann.json?sudo=admin", &headers, b"");
    assert_eq!(home.status, 404);
}
