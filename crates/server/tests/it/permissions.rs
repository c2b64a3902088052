//! Policies through the JSON API: read, changed and explained.

use serde_json::{Value, json};

use crate::blocking_instance::{BlockingInstance, basic, names};
use crate::support::PASSWORD;

/// The policy of the folder `/content/a`.
const POLICY: &str = "/api/v1/permissions?path=/content/a";

/// An author with a folder that has no policy, `ann` of the authors, and `bob` without groups.
fn author_with_folder() -> BlockingInstance {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!(["content-authors"]));
    author.add_user("bob", &json!([]));
    author.done("PUT", "/api/v1/nodes?path=/content/a", &json!({ "type": "nt:folder" }));
    author
}

/// Sets a policy of two entries, and returns what is stored.
fn put_policy(author: &BlockingInstance) -> Value {
    let drafts = json!({ "rep:glob": ["/drafts*"] });
    let policy = json!({ "entries": [
        { "principal": "bob", "privileges": ["jcr:read", "rep:write"], "restrictions": drafts },
        { "allow": false, "principal": "everyone", "privileges": ["jcr:removeNode"] },
    ] });
    author.done("PUT", POLICY, &policy)
}

/// Adds an entry that lets `ann` read the policy.
fn add_reader(author: &BlockingInstance) -> Value {
    let entry = json!({ "principal": "ann", "privileges": ["jcr:readAccessControl"] });
    author.done("POST", POLICY, &entry)
}

#[test]
fn a_folder_without_a_policy_shows_the_inherited_one() {
    let author = author_with_folder();
    let effective = author.get(POLICY);
    assert_eq!(effective["policies"][0]["path"], "/rep:policy");
    assert_eq!(effective["policies"][0]["isInherited"], true);
}

#[test]
fn permissions_are_read_and_changed() {
    let author = author_with_folder();
    let stored = put_policy(&author);
    assert_eq!(names(&stored["entries"]), ["allow", "deny"]);
    let tag = stored["etag"].as_str().unwrap();
    let read = author.get(POLICY);
    assert_eq!(read["policies"][0]["entries"], stored["entries"]);
    assert_eq!(read["policies"][0]["node"], "/content/a");
    assert_eq!(names(&add_reader(&author)["entries"]), ["allow", "deny", "allow0"]);
    let headers = [("authorization", basic("admin", PASSWORD)), ("if-match", tag.to_owned())];
    assert_eq!(author.send("DELETE", POLICY, &headers, b"").status, 412);
    assert_eq!(
        names(&author.done("DELETE", &format!("{POLICY}&entry=deny"), &Value::Null)["entries"]),
        ["allow", "allow0"]
    );
    assert_eq!(author.done("DELETE", POLICY, &Value::Null)["entries"], json!([]));
    assert_eq!(author.get(POLICY)["policies"][0]["path"], "/rep:policy");
}

#[test]
fn unusable_entries_are_refused() {
    let author = author_with_folder();
    put_policy(&author);
    for (entry, status) in [
        (json!({ "principal": "nobody", "privileges": ["jcr:read"] }), 422),
        (json!({ "principal": "bob", "privileges": ["jcr:rad"] }), 422),
        (json!({ "principal": "bob", "privileges": [] }), 422),
        (
            json!({ "principal": "bob", "privileges": ["jcr:read"], "restrictions": { "rep:x": ["a"] } }),
            422,
        ),
    ] {
        assert_eq!(author.status("admin", "POST", POLICY, &entry), status, "{entry}");
    }
}

/// Reading and changing take their privileges, which are named.
#[test]
fn policies_need_privileges_of_their_own() {
    let author = author_with_folder();
    put_policy(&author);
    add_reader(&author);
    assert_eq!(author.status("bob", "GET", POLICY, &Value::Null), 403);
    assert_eq!(author.status("ann", "GET", POLICY, &Value::Null), 200);
    let entry = json!({ "principal": "ann", "privileges": ["jcr:readAccessControl"] });
    let refused = author.ask("ann", "POST", POLICY, &entry);
    assert_eq!(refused.status, 403);
    assert!(refused.detail().contains("jcr:modifyAccessControl"), "{}", refused.text());
    // Nor can a policy be written as a node.
    let written =
        json!({ "properties": { "rep:privileges": { "type": "Name", "values": ["jcr:all"] } } });
    let entry_node = "/api/v1/nodes?path=/content/a/rep:policy/allow";
    assert_eq!(author.status("admin", "PATCH", entry_node, &written), 422);
}

#[test]
fn permissions_are_explained_as_far_as_the_user_may_know() {
    let author = author_with_folder();
    put_policy(&author);
    add_reader(&author);
    let why =
        author.get("/api/v1/permissions/why?path=/content/a&user=bob&privilege=jcr:removeNode");
    let reason = &why["privileges"][0];
    assert_eq!(
        (&reason["granted"], &reason["cause"]["policy"]),
        (&false.into(), &"/content/a/rep:policy".into())
    );
    let missing = "/api/v1/permissions/why?path=/content/a&user=none";
    assert_eq!(author.status("admin", "GET", missing, &Value::Null), 404);
    let own = author.ask("bob", "GET", "/api/v1/privileges?path=/content/a", &Value::Null).json();
    assert_eq!(own["privileges"], json!(["rep:readNodes", "rep:readProperties"]));
    // What ann may see of why, without the right to read the policy at the root.
    let why = "/api/v1/permissions/why?path=/content/a&user=ann&privilege=rep:addProperties";
    let why = author.ask("ann", "GET", why, &Value::Null).json();
    assert_eq!(why["privileges"][0]["cause"], json!({ "kind": "hidden" }), "{why}");
}
