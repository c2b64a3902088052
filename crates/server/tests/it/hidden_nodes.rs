//! Nodes that a writer may not read.

use serde_json::{Value, json};

use crate::blocking_instance::{BlockingInstance, basic};
use crate::support::PASSWORD;

/// An author with nodes that `ann` may not read, one of them in a document that she reads.
fn author_with_hidden_nodes() -> BlockingInstance {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!(["content-authors"]));
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
    author
}

#[test]
fn what_is_not_seen_is_not_replaced() {
    let author = author_with_hidden_nodes();
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
}

#[test]
fn the_tag_of_a_document_guards_what_its_reader_sees() {
    let author = author_with_hidden_nodes();
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
            ("authorization", basic("ann", PASSWORD)),
            ("content-type", "application/json".to_owned()),
            ("if-match", tag.to_owned()),
        ];
        let body = br#"{"properties":{"a":1}}"#;
        author.send("PATCH", path, &headers, body).status
    };
    assert_eq!((change(&ann), change(&ann)), (200, 412));
}
