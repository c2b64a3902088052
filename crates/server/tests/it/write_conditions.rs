//! Writes with a condition that does not hold write nothing.

use http::Method;
use serde_json::{Value as Json, json};
use tympan_content::{Property, Subtree, Value, ValueType};

use crate::support::{Reply, TestInstance, path};

const STALE: &str = "\"1234567890abcdef.-\"";

async fn author() -> TestInstance {
    let author = TestInstance::author().await;
    author.edit(|session| {
        let content =
            Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", "A page");
        let page = Subtree::new("", "cq:Page").with_child(content);
        let folder = Subtree::new("", "sling:OrderedFolder")
            .with_child(Subtree { name: "one".to_owned(), ..page.clone() })
            .with_child(Subtree { name: "two".to_owned(), ..page });
        session.put_node(&path("/content/site"), folder).unwrap();
        let blob = session.put_blob(&mut std::io::Cursor::new(b"bytes")).unwrap();
        let mixins = Property::parse_list(ValueType::Name, ["mix:versionable"]).unwrap();
        let resource = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(blob));
        let file = Subtree::new("", "nt:file")
            .with_property("jcr:mixinTypes", mixins)
            .with_child(resource);
        session.put_node(&path("/content/file.txt"), file).unwrap();
    });
    author
}

#[tokio::test]
async fn a_write_of_what_changed_since_it_was_read_is_refused_whole() {
    let author = author().await;
    let before = author.repository.head_root().unwrap();
    let refused = |reply: Reply, what: &str| {
        assert_eq!(reply.status.as_u16(), 412, "{what}: {reply:?}");
        assert_eq!(author.repository.head_root().unwrap(), before, "{what}");
    };
    let one = "/content/site/one";
    let nodes = format!("/api/v1/nodes?path={one}");
    let (from, to) = (one, "/content/site/three");
    let jsons: &[(Method, &str, Json)] = &[
        (Method::PUT, &nodes, json!({ "type": "cq:Page" })),
        (Method::PATCH, &nodes, json!({ "properties": { "a": "b" } })),
        (Method::DELETE, &nodes, Json::Null),
        (Method::POST, "/api/v1/nodes/move", json!({ "from": from, "to": to })),
        (Method::POST, "/api/v1/nodes/copy", json!({ "from": from, "to": to })),
        (
            Method::POST,
            "/api/v1/nodes/copy",
            json!({ "from": from, "to": "/content/site/two", "replace": true }),
        ),
        (Method::POST, "/api/v1/nodes/order", json!({ "path": one, "place": "last" })),
        (Method::POST, "/api/v1/versions", json!({ "path": one })),
    ];
    for (method, target, body) in jsons {
        let request = author.as_admin(method.clone(), target).header("if-match", STALE);
        let request = if body.is_null() { request } else { request.json(body) };
        refused(request.send().await, target);
    }
    // The first operation of a batch goes with the second.
    for second in [
        json!({ "op": "put", "path": one, "node": {}, "ifMatch": STALE }),
        json!({ "op": "patch", "path": one, "patch": {}, "ifMatch": STALE }),
        json!({ "op": "delete", "path": one, "ifMatch": STALE }),
    ] {
        let first = json!({ "op": "put", "path": "/content/made", "node": {} });
        let batch = json!({ "operations": [first, second] });
        let reply = author.as_admin(Method::POST, "/api/v1/batch").json(&batch).send().await;
        refused(reply, "batch");
    }
    for form in [
        &[("./jcr:content/a", "b")][..],
        &[(":operation", "delete")],
        &[(":operation", "delete"), (":applyTo", "/content/site/two")],
        &[(":operation", "copy"), (":dest", to)],
        &[(":operation", "move"), (":dest", to)],
        &[(":operation", "checkin")],
        &[(":operation", "import"), (":contentType", "json"), (":content", "{\"a\":1}")],
        &[(":order", "last")],
    ] {
        let request = author.as_admin(Method::POST, one).header("if-match", STALE);
        refused(request.form(form).send().await, &format!("{form:?}"));
    }
    let asset: &[crate::support::FormPart<'_>] =
        &[(":operation", None, b"createasset"), ("file", Some(("a.png", "image/png")), b"bytes")];
    let request = author.as_admin(Method::POST, "/content/site").header("if-match", STALE);
    refused(request.multipart(asset).send().await, "createasset");
    let blob = "/api/v1/blob?path=/content/file.txt/jcr:content";
    for target in ["/content/file.txt", blob] {
        let request = author.as_admin(Method::PUT, target).header("if-match", STALE);
        refused(request.header("content-type", "text/plain").body("new").send().await, target);
        let request = author.as_admin(Method::PUT, target).header("if-none-match", "*");
        refused(request.header("content-type", "text/plain").body("new").send().await, target);
    }
    // A condition that activation cannot keep is not passed over.
    let request = author.as_admin(Method::POST, one).header("if-match", STALE);
    let reply = request.form(&[(":operation", "activate")]).send().await;
    assert_eq!(reply.status.as_u16(), 400, "{reply:?}");
}
