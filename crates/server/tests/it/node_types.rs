//! Node types, namespaces and references through the JSON API.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

#[test]
fn types_and_namespaces_are_defined_by_those_who_may() {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!(["content-authors"]));
    let cnd = "<my = 'http://example.org/my'>\n[my:thing] > nt:unstructured\n- my:size (long)\n";
    let define = |user: &str, text: &str| {
        author.send_as(user, "POST", "/api/v1/types/cnd", ("text/plain", text.as_bytes()))
    };
    let refused = define("ann", cnd);
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.detail().contains("Management"), "{}", refused.text());
    assert_eq!(define("admin", "[my:thing > x").status, 422);
    assert_eq!(define("admin", cnd).status, 204);
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
}

#[test]
fn references_are_reported_in_both_directions() {
    let author = BlockingInstance::author();
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
