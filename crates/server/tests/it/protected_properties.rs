//! Properties that the repository alone sets.

use serde_json::json;

use crate::blocking_instance::BlockingInstance;

const NODE: &str = "/api/v1/nodes?path=/content/n";
const FORGED: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";

/// An author with a node that the repository gave an identifier, a creator and a time.
fn author_with_node() -> BlockingInstance {
    let author = BlockingInstance::author();
    let tree =
        json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable", "mix:created"], "a": 1 } });
    author.done("PUT", NODE, &tree);
    author
}

#[test]
fn nobody_sets_what_the_repository_alone_sets() {
    let author = author_with_node();
    for (method, path, body) in [
        ("PATCH", NODE, json!({ "properties": { "jcr:uuid": FORGED } })),
        ("PATCH", NODE, json!({ "properties": { "jcr:createdBy": "eve" } })),
        ("PATCH", NODE, json!({ "properties": { "jcr:uuid": FORGED, "jcr:mixinTypes": [] } })),
        (
            "PUT",
            "/api/v1/nodes?path=/content/m",
            json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable"], "jcr:uuid": FORGED } }),
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
        { "op": "patch", "path": "/content/n", "patch": { "properties": { "jcr:uuid": FORGED } } },
    ] });
    let refused = author.ask("admin", "POST", "/api/v1/batch", &batch);
    assert_eq!((refused.status, &refused.json()["operation"]), (422, &1.into()));
}

#[test]
fn no_form_sets_what_the_repository_alone_sets() {
    let author = author_with_node();
    for fields in [
        format!("./jcr:uuid={FORGED}"),
        "./jcr:createdBy=eve".to_owned(),
        "./jcr:uuid@CopyFrom=/content/n/a".to_owned(),
    ] {
        assert_eq!(author.post("/content/n", &fields).status, 422, "{fields}");
    }
    let fields = format!("./jcr:uuid={FORGED}&./jcr:mixinTypes=mix:referenceable");
    assert_eq!(author.post("/content/q", &fields).status, 422);
}

/// What Sling fills in is left to the repository, what is sent back as it was read passes, and an import passes over.
#[test]
fn values_of_the_repository_are_sent_back_and_ignored_by_imports() {
    let author = author_with_node();
    let made = author.get(NODE);
    let uuid = made["properties"]["jcr:uuid"]["value"].as_str().unwrap().to_owned();
    assert_eq!(author.post("/content/n", "./jcr:created=&./jcr:createdBy=&./b=1").status, 200);
    author.done("PUT", NODE, &made);
    author.done("PUT", NODE, &json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable", "mix:created"], "a": 3 } }));
    assert_eq!(author.get(NODE)["properties"]["jcr:uuid"]["value"], uuid.as_str());
    let import = format!(
        ":operation=import&:contentType=json&:name=i&:content={}",
        format!(
            "{{\"jcr:mixinTypes\":[\"mix:referenceable\"],\"jcr:uuid\":\"{FORGED}\",\"t\":\"x\"}}"
        )
        .bytes()
        .map(|byte| format!("%{byte:02X}"))
        .collect::<String>()
    );
    let answer = author.post("/content", &import);
    assert!(answer.status < 300, "{}", answer.text());
    let imported = author.get("/api/v1/nodes?path=/content/i");
    assert_eq!(imported["properties"]["t"]["value"], "x");
    assert_ne!(imported["properties"]["jcr:uuid"]["value"], FORGED);
}

/// What the repository alone sets cannot be slipped in by moving the node afterwards.
#[test]
fn protected_properties_are_judged_where_a_batch_leaves_them() {
    let author = BlockingInstance::author();
    let about = json!({ "jcr:mixinTypes": ["mix:referenceable"], "jcr:uuid": FORGED });
    let node = json!({ "type": "nt:unstructured", "properties": about });
    let sent = json!({ "op": "put", "path": "/content/u", "node": node });
    let moved = json!({ "op": "move", "from": "/content/u", "to": "/content/v" });
    for operations in [json!([sent]), json!([sent, moved])] {
        let body = json!({ "operations": operations });
        let answer = author.ask("admin", "POST", "/api/v1/batch", &body);
        assert_eq!(answer.status, 422, "{body}: {}", answer.text());
    }
}
