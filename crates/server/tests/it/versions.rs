//! Versions through the JSON API.

use serde_json::{Value, json};

use crate::blocking_instance::{BlockingInstance, names};

const NODE: &str = "/api/v1/nodes?path=/content/n";

/// An author with a node of two versions, the first of which has the label `good`.
fn author_with_versions() -> BlockingInstance {
    let author = BlockingInstance::author();
    let node = |a: u32, b: &str| json!({ "properties": { "a": a }, "children": { "part": { "properties": { "b": b } } } });
    author.done("PUT", NODE, &node(1, "old"));
    let version = json!({ "path": "/content/n", "comment": "first" });
    assert_eq!(author.done("POST", "/api/v1/versions", &version)["name"], "1.0");
    author.done("PATCH", NODE, &node(2, "new"));
    author.done("POST", "/api/v1/versions", &version);
    author.done(
        "POST",
        "/api/v1/versions/label",
        &json!({ "path": "/content/n", "version": "1.0", "label": "good" }),
    );
    author
}

#[test]
fn versions_are_labeled_and_compared() {
    let author = author_with_versions();
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
}

#[test]
fn the_newest_version_is_compared_unless_another_is_named() {
    let author = author_with_versions();
    let newest = author.get("/api/v1/versions/diff?path=/content/n");
    assert_eq!(newest, author.get("/api/v1/versions/diff?path=/content/n&from=1.1"));
    let none = author.ask("admin", "GET", "/api/v1/versions/diff?path=/content", &Value::Null);
    assert_eq!(none.status, 404, "{}", none.text());
}

#[test]
fn a_part_of_a_version_is_restored() {
    let author = author_with_versions();
    let old = author.get("/api/v1/versions/node?path=/content/n&version=good&depth=1");
    assert_eq!(old["children"]["part"]["properties"]["b"]["value"], "old");
    let part = json!({ "path": "/content/n", "version": "1.0", "part": "part" });
    author.done("POST", "/api/v1/versions/restore", &part);
    let now = author.get(&format!("{NODE}&depth=1"));
    assert_eq!(
        (&now["properties"]["a"]["value"], &now["children"]["part"]["properties"]["b"]["value"]),
        (&2.into(), &"old".into())
    );
}

#[test]
fn a_deleted_node_is_listed_and_restored() {
    let author = author_with_versions();
    author.done("DELETE", NODE, &Value::Null);
    let deleted = author.get("/api/v1/versions/deleted?path=/content");
    assert_eq!(deleted["nodes"][0]["path"], "/content/n");
    author.done(
        "POST",
        "/api/v1/versions/restore",
        &json!({ "path": "/content/n", "version": "good" }),
    );
    assert_eq!(author.get(NODE)["properties"]["a"]["value"], 1);
    assert_eq!(author.get("/api/v1/versions/deleted?path=/content")["nodes"], json!([]));
}

#[test]
fn a_version_is_removed_once() {
    let author = author_with_versions();
    let remove = "/api/v1/versions?path=/content/n&version=1.1";
    assert_eq!(author.status("admin", "DELETE", remove, &Value::Null), 204);
    assert_eq!(author.status("admin", "DELETE", remove, &Value::Null), 404);
    assert_eq!(names(&author.get("/api/v1/versions?path=/content/n")["versions"]), ["1.0"]);
}
