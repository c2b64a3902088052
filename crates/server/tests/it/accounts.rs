//! Users and groups through the JSON API, and who may change them.

use serde_json::{Value, json};

use crate::blocking_instance::{BlockingInstance, basic, first_cookie, names};
use crate::support::PASSWORD;

#[test]
fn users_and_groups_are_managed_by_whoever_may() {
    let author = BlockingInstance::author();
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
}

#[test]
fn groups_hold_groups_but_not_themselves() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
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
}

/// Whoever may not read accounts finds none; whoever may not change them is told the privilege.
#[test]
fn accounts_are_hidden_from_users_who_may_not_read_them() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
    author.add_user("ann", &json!(["content-authors"]));
    assert_eq!(author.status("ann", "GET", "/api/v1/user?name=bob", &Value::Null), 404);
    assert_eq!(author.status("ann", "DELETE", "/api/v1/user?name=bob", &Value::Null), 404);
    let refused = author.ask("ann", "POST", "/api/v1/groups", &json!({ "name": "mine" }));
    assert_eq!(refused.status, 403);
    assert!(refused.detail().contains("rep:userManagement"), "{}", refused.text());
    let seen = author.ask("ann", "GET", "/api/v1/users", &Value::Null);
    assert!(!seen.text().contains("bob"), "{}", seen.text());
}

/// Adds a user who may change accounts.
fn add_manager(author: &BlockingInstance) {
    author.add_user("manager", &json!([]));
    let privileges = ["jcr:read", "rep:write", "rep:userManagement"];
    let entry = json!({ "principal": "manager", "privileges": privileges });
    author.done("POST", "/api/v1/permissions?path=/home", &entry);
}

#[test]
fn managers_of_users_cannot_make_themselves_administrators() {
    let author = BlockingInstance::author();
    author.add_user("chief", &json!(["administrators"]));
    author.done("POST", "/api/v1/groups", &json!({ "name": "staff" }));
    author.done(
        "POST",
        "/api/v1/group/members",
        &json!({ "group": "administrators", "member": "staff" }),
    );
    add_manager(&author);
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
}

#[test]
fn managers_of_users_do_not_write_the_nodes_of_accounts() {
    let author = BlockingInstance::author();
    author.add_user("chief", &json!(["administrators"]));
    add_manager(&author);
    let members = json!({ "properties": { "rep:members": { "type": "WeakReference", "values": ["manager"] } } });
    let password = json!({ "properties": { "rep:password": "x" } });
    for (place, body) in [("groups/administrators", members), ("users/chief", password)] {
        let path = format!("/api/v1/nodes?path=/home/{place}");
        assert_eq!(author.status("manager", "PATCH", &path, &body), 422, "{body}");
    }
}

/// Returns the IDs of the tokens and sessions that a user lists.
fn token_ids(author: &BlockingInstance, user: &str, query: &str) -> Vec<String> {
    let listed =
        author.ask(user, "GET", &format!("/api/v1/user/tokens{query}"), &Value::Null).json();
    let ids = listed["tokens"].as_array().unwrap().iter();
    ids.map(|token| token["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn tokens_are_made_listed_and_revoked() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
    let terms = json!({ "expires": "30d", "scope": "read" });
    let made = author.done("POST", "/api/v1/user/tokens?name=bob", &terms);
    let token = format!("Bearer {}", made["token"].as_str().unwrap());
    let read = |token: &str| author.ask_with(token, "GET", "/api/v1/users", &Value::Null).status;
    assert_eq!(read(&token), 200);
    let own_group = json!({ "name": "mine" });
    assert_eq!(author.ask_with(&token, "POST", "/api/v1/groups", &own_group).status, 403);
    let listed = author.get("/api/v1/user/tokens?name=bob");
    let entry = &listed["tokens"][0];
    assert_eq!((&entry["kind"], &entry["scope"]), (&json!("token"), &json!("read")), "{listed}");
    let life = entry["expires"].as_i64().unwrap() - entry["created"].as_i64().unwrap();
    assert_eq!(life, 30 * 24 * 3600);
    assert!(!listed.to_string().contains(made["token"].as_str().unwrap()), "{listed}");

    let revoke = format!("/api/v1/user/tokens?id={}", entry["id"].as_str().unwrap());
    assert_eq!(author.status("admin", "DELETE", &revoke, &Value::Null), 204);
    assert_eq!(author.status("admin", "DELETE", &revoke, &Value::Null), 404);
    assert_eq!(read(&token), 401);

    for (user, body, status) in [
        ("bob", json!({ "expires": "0s" }), 422),
        ("bob", json!({ "expires": "soon" }), 422),
        ("bob", json!({ "scope": "most" }), 400),
        ("nobody", json!({}), 404),
    ] {
        let path = format!("/api/v1/user/tokens?name={user}");
        assert_eq!(author.status("admin", "POST", &path, &body), status, "{user} {body}");
    }
    let disabled = json!({ "disabled": "left" });
    assert_eq!(author.status("admin", "PATCH", "/api/v1/user?name=bob", &disabled), 200);
    let path = "/api/v1/user/tokens?name=bob";
    assert_eq!(author.status("admin", "POST", path, &json!({})), 404);
}

#[test]
fn users_end_their_own_tokens_and_make_none() {
    let author = BlockingInstance::author();
    for name in ["ann", "bob"] {
        author.add_user(name, &json!([]));
        author.done("POST", &format!("/api/v1/user/tokens?name={name}"), &json!({}));
    }
    add_manager(&author);
    let of_ann = token_ids(&author, "admin", "?name=ann");
    for (user, query) in [("ann", "?name=bob"), ("ann", ""), ("manager", "?name=bob")] {
        let path = format!("/api/v1/user/tokens{query}");
        assert_eq!(author.status(user, "GET", &path, &Value::Null), 403, "{user} {query}");
    }
    for (user, name) in [("ann", "ann"), ("ann", "bob"), ("manager", "bob"), ("ann", "nobody")] {
        let path = format!("/api/v1/user/tokens?name={name}");
        assert_eq!(author.status(user, "POST", &path, &json!({})), 403, "{user} {name}");
    }
    let revoke = format!("/api/v1/user/tokens?id={}", of_ann[0]);
    for user in ["bob", "manager"] {
        assert_eq!(author.status(user, "DELETE", &revoke, &Value::Null), 404, "{user}");
    }
    assert_eq!(token_ids(&author, "ann", "?name=ann"), of_ann);
    assert_eq!(author.status("ann", "DELETE", &revoke, &Value::Null), 204);
    assert!(token_ids(&author, "ann", "?name=ann").is_empty());
}

#[test]
fn tokens_are_listed_page_by_page() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
    for _ in 0..3 {
        author.done("POST", "/api/v1/user/tokens?name=bob", &json!({}));
    }
    let all = token_ids(&author, "admin", "?name=bob");
    let first = author.get("/api/v1/user/tokens?name=bob&limit=2");
    assert_eq!((first["tokens"].as_array().unwrap().len(), &first["next"]), (2, &json!(all[1])));
    assert_eq!(token_ids(&author, "admin", &format!("?name=bob&after={}", all[1])), all[2..]);
}

/// A browser must not make a token at the wish of another site.
#[test]
fn tokens_are_made_and_revoked_only_with_the_csrf_token_of_a_session() {
    let author = BlockingInstance::author();
    let cookie = first_cookie(&author.log_in("admin", PASSWORD));
    let headers = [("cookie", cookie.clone()), ("content-type", "application/json".to_owned())];
    let made = author.send("POST", "/api/v1/user/tokens?name=admin", &headers, b"{}");
    assert_eq!(made.status, 403, "{}", made.text());
    let of_admin = token_ids(&author, "admin", "?name=admin");
    for id in &of_admin {
        let revoke = format!("/api/v1/user/tokens?id={id}");
        assert_eq!(author.send("DELETE", &revoke, &headers, b"").status, 403);
    }
    assert_eq!(token_ids(&author, "admin", "?name=admin"), of_admin);
}

/// The last way in stays open.
#[test]
fn the_first_administrator_is_not_removed() {
    let author = BlockingInstance::author();
    for (path, status) in [("user?name=admin", 422), ("group?name=administrators", 422)] {
        let path = format!("/api/v1/{path}");
        assert_eq!(author.status("admin", "DELETE", &path, &Value::Null), status, "{path}");
    }
}

#[test]
fn passwords_are_changed_and_end_other_logins() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
    let session = author.log_in("bob", PASSWORD);
    assert_eq!(session.status, 200);
    let cookie = first_cookie(&session);
    let me = |cookie: &str| {
        author.send("GET", "/api/v1/me", &[("cookie", cookie.to_owned())], b"").status
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
}

/// A disabled user is out at once, and may not let itself in again.
#[test]
fn a_disabled_user_is_out_until_an_administrator_enables_it() {
    let author = BlockingInstance::author();
    author.add_user("bob", &json!([]));
    let bob = basic("bob", PASSWORD);
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 200);
    let tag = author.ask("admin", "GET", "/api/v1/user?name=bob", &Value::Null);
    let tag = tag.header("etag").unwrap().to_owned();
    author.done("PATCH", "/api/v1/user?name=bob", &json!({ "disabled": "left" }));
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 401);
    assert_eq!(author.get("/api/v1/user?name=bob")["disabled"], "left");
    let headers = [("authorization", basic("admin", PASSWORD)), ("if-match", tag)];
    let stale = author.send("DELETE", "/api/v1/user?name=bob", &headers, b"");
    assert_eq!(stale.status, 412, "{}", stale.text());
    author.done("PATCH", "/api/v1/user?name=bob", &json!({ "disabled": null }));
    assert_eq!(author.ask_with(&bob, "GET", "/api/v1/me", &Value::Null).status, 200);
}
