//! What opens a door for a user ends with its account, in whatever way that goes.

use std::path::Path;

use serde_json::{Value, json};

use crate::api::{Author, PASSWORD};
use crate::program::{ask, basic, run_ok};

/// Proofs of who one is, as headers.
type Keys = Vec<(&'static str, (&'static str, String))>;

fn opens(author: &Author, header: &(&'static str, String)) -> bool {
    let answer = ask(author.address, "GET", "/api/v1/me", std::slice::from_ref(header), b"");
    let answer = answer.unwrap();
    assert!(matches!(answer.status, 200 | 401), "{}", answer.text());
    answer.status == 200
}

/// Lets `ann` log in, and gives her tokens.
fn keys_of_ann(author: &Author, home: &Path) -> Keys {
    let token = || {
        let made = run_ok(&["user", "token", "ann", "--home", home.to_str().unwrap()]);
        ("Authorization", format!("Bearer {}", made.trim()))
    };
    let form = [("Content-Type", "application/x-www-form-urlencoded".to_owned())];
    let body = format!("user=ann&password={}", PASSWORD.replace(' ', "+"));
    let begun = ask(author.address, "POST", "/login", &form, body.as_bytes()).unwrap();
    assert_eq!(begun.status, 200, "{}", begun.text());
    let cookie = begun.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let used = token();
    assert!(opens(author, &used));
    let session = ("Cookie", cookie);
    assert!(opens(author, &session));
    vec![
        ("a token that was used", used),
        ("a token that was not", token()),
        ("a session", session),
        ("a password", ("Authorization", basic("ann", PASSWORD))),
    ]
}

/// Removes `ann` in one way, then makes another user of that name: no key of the first opens for the second.
fn check(author: &Author, home: &Path, way: &str, remove: impl FnOnce()) {
    author.add_user("ann", &json!(["content-authors"]));
    let keys = keys_of_ann(author, home);
    remove();
    for (what, header) in &keys {
        assert!(!opens(author, header), "{what} outlived its user: {way}");
    }
    let other = json!({ "name": "ann", "password": "quite another one" });
    author.done("POST", "/api/v1/users", &other);
    for (what, header) in &keys {
        assert!(!opens(author, header), "{what} opens for another user: {way}");
    }
    assert!(opens(author, &("Authorization", basic("ann", "quite another one"))));
    author.done("DELETE", "/api/v1/user?name=ann", &Value::Null);
}

#[test]
fn keys_end_with_their_account_however_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let author = &Author::start(dir.path());
    let home = dir.path();
    let branch = |name: &str| author.done("POST", "/api/v1/branches", &json!({ "name": name }));
    let nothing = Value::Null;
    check(author, home, "the API", || {
        author.done("DELETE", "/api/v1/user?name=ann", &nothing);
    });
    check(author, home, "the API of nodes", || {
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
    });
    check(author, home, "Sling's POST", || {
        let form = [
            ("Authorization", basic("admin", &author.password)),
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
        ];
        let gone =
            ask(author.address, "POST", "/home/users/ann", &form, b":operation=delete").unwrap();
        assert_eq!(gone.status, 200, "{}", gone.text());
    });
    // A package of the place where she is not yet.
    let filter =
        "<workspaceFilter version=\"1.0\"><filter root=\"/home/users/ann\"/></workspaceFilter>";
    let send = |path: &str, media_type: &str, body: &[u8]| {
        let headers = [
            ("Authorization", basic("admin", &author.password)),
            ("Content-Type", media_type.to_owned()),
        ];
        let answer = ask(author.address, "POST", path, &headers, body).unwrap();
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer
    };
    let package = send("/api/v1/packages/build?id=my:gone:1", "text/plain", filter.as_bytes());
    check(author, home, "a package", || {
        send("/api/v1/packages?install=true", "application/zip", &package.body);
    });
    branch("before");
    check(author, home, "a restored state", || {
        author.done(
            "POST",
            "/api/v1/branches/promote",
            &json!({ "name": "before", "replace": true }),
        );
    });
    check(author, home, "a merge", || {
        branch("without");
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann&branch=without", &nothing);
        author.done("POST", "/api/v1/branches/merge", &json!({ "name": "without" }));
    });
    check(author, home, "another identifier", || {
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
        author.add_user("ann", &json!([]));
        author.done("DELETE", "/api/v1/nodes?path=/home/users/ann", &nothing);
    });
}

#[test]
fn an_account_without_an_identifier_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
    author.add_user("ann", &json!([]));
    let admin = basic("admin", &author.password);
    // As a package brings it: the account as it is, but for its identifier.
    let filter = "<workspaceFilter version=\"1.0\"><filter root=\"/home/users/ann\">\
                  <exclude pattern=\".*/jcr:uuid\" matchProperties=\"true\"/></filter></workspaceFilter>";
    let send = |path: &str, media_type: &str, body: &[u8]| {
        let headers = [("Authorization", admin.clone()), ("Content-Type", media_type.to_owned())];
        let answer = ask(author.address, "POST", path, &headers, body).unwrap();
        assert!(answer.status < 300, "{path}: {}", answer.text());
        answer
    };
    let package = send("/api/v1/packages/build?id=my:ann:1", "text/plain", filter.as_bytes());
    author.done("DELETE", "/api/v1/user?name=ann", &Value::Null);
    send("/api/v1/packages?install=true", "application/zip", &package.body);
    let node = "/api/v1/nodes?path=/home/users/ann";
    let identifier = |read: &Value| read["properties"]["jcr:uuid"]["value"].clone();
    let before = author.get(node);
    assert_eq!(identifier(&before), Value::Null, "{before}");
    // The package does not carry the hash, as nobody reads it: she gets a password first.
    author.done("PUT", "/api/v1/user/password?name=ann", &json!({ "password": PASSWORD }));
    let keys = keys_of_ann(&author, dir.path());
    assert!(identifier(&author.get(node)).is_string());
    author.done("DELETE", node, &Value::Null);
    author.add_user("ann", &json!([]));
    for (what, header) in keys.iter().filter(|(what, _)| *what != "a password") {
        assert!(!opens(&author, header), "{what}");
    }
}

#[test]
fn nobody_becomes_another_user_by_asking() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(dir.path());
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
        ("Cookie", "sling.sudo=ann"),
        ("Cookie", "sling.sudo=\"ann\""),
        ("Cookie", "tympan-login=ann"),
        ("sudo", "ann"),
        ("X-Sudo", "ann"),
        ("X-Forwarded-User", "ann"),
        ("X-Remote-User", "admin"),
        ("X-Impersonate-User", "admin"),
    ] {
        for path in ["/api/v1/me", "/api/v1/me?sudo=ann"] {
            let headers = [("Authorization", credentials.clone()), (name, value.to_owned())];
            let answer = ask(author.address, "GET", path, &headers, b"").unwrap();
            let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let is_eve = answer.status == 200 && body["user"] == "eve";
            assert!(is_eve || answer.status == 400, "{name}: {value} {path}: {}", answer.text());
        }
        let alone = ask(author.address, "GET", "/api/v1/me", &[(name, value.to_owned())], b"");
        assert_eq!(alone.unwrap().status, 401, "{name}: {value}");
    }
    // Sling's parameter on what Sling answers: the page is eve's, or it is not there.
    let headers = [("Authorization", credentials)];
    let home = ask(author.address, "GET", "/home/users/ann.json?sudo=admin", &headers, b"");
    assert_eq!(home.unwrap().status, 404);
}
