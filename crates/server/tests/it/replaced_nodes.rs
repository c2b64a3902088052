//! New content in place of what is closed does not open it.

use http::Method;
use serde_json::json;
use tympan_content::{Property, Subtree, ValueType};

use crate::support::{FormPart, TestInstance, path};

/// A policy by which `dam-users` alone may read and write, who may not see it.
fn policy() -> Subtree {
    let names = |texts: &[&str]| Property::parse_list(ValueType::Name, texts.to_vec()).unwrap();
    let entry = |kind: &str, name: &str, principal: &str, privileges: &[&str]| {
        Subtree::new(name, kind)
            .with_property("rep:principalName", principal)
            .with_property("rep:privileges", names(privileges))
    };
    Subtree::new("rep:policy", "rep:ACL")
        .with_child(entry("rep:DenyACE", "deny", "everyone", &["jcr:all"]))
        .with_child(entry("rep:GrantACE", "allow", "dam-users", &["jcr:read", "rep:write"]))
}

fn controlled() -> Property {
    Property::parse_list(ValueType::Name, ["rep:AccessControllable"]).unwrap()
}

/// An author with a file, an asset and a folder in `/content/dam`, each of them closed; the asset in a part, too.
async fn author() -> TestInstance {
    let author = TestInstance::author().await;
    author.edit(|session| {
        let blob = session.put_blob(&mut std::io::Cursor::new(b"old")).unwrap();
        let file = |name: &str| {
            let resource = Subtree::new("jcr:content", "nt:resource")
                .with_property("jcr:data", tympan_content::Value::Binary(blob));
            Subtree::new(name, "nt:file").with_child(resource)
        };
        let renditions = Subtree::new("renditions", "nt:folder")
            .with_child(file("original"))
            .with_property("jcr:mixinTypes", controlled())
            .with_child(policy());
        let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
        let close =
            |tree: Subtree| tree.with_property("jcr:mixinTypes", controlled()).with_child(policy());
        let inner = Subtree::new("inner", "nt:unstructured").with_property("a", "b");
        let dam = Subtree::new("", "sling:Folder")
            .with_child(close(file("file.txt")))
            .with_child(close(Subtree::new("asset.png", "dam:Asset").with_child(content)))
            .with_child(close(Subtree::new("folder", "sling:Folder").with_child(close(inner))));
        session.put_node(&path("/content/dam"), dam).unwrap();
    });
    author
}

const CLOSED: &[&str] = &[
    "/content/dam/file.txt",
    "/content/dam/asset.png",
    "/content/dam/asset.png/jcr:content/renditions",
    "/content/dam/folder",
    "/content/dam/folder/inner",
];

/// Returns the nodes that have lost their policy.
fn opened(author: &TestInstance) -> Vec<&'static str> {
    let snapshot = author.snapshot();
    let is_open = |at: &&&str| {
        let found = snapshot.node(&path(&format!("{at}/rep:policy"))).unwrap();
        found.is_none_or(|found| {
            let found = found.read_subtree().unwrap();
            found != policy()
        })
    };
    CLOSED.iter().filter(is_open).copied().collect()
}

#[tokio::test]
async fn a_put_of_content_leaves_policies() {
    let author = author().await;
    let put = async |at: &str, body: &serde_json::Value| {
        let target = format!("/api/v1/nodes?path={at}");
        let reply = author.as_admin(Method::PUT, &target).json(body).send().await;
        assert_eq!(reply.status, 200, "{at} {body}: {reply:?}");
        assert_eq!(opened(&author), Vec::<&str>::new(), "{at} {body}");
    };
    for at in CLOSED {
        let before = author.repository.head_root().unwrap();
        for depth in 0..4 {
            let read = author.get(&format!("/api/v1/nodes?path={at}&depth={depth}")).await.json();
            put(at, &read).await;
            // As a client sends it back that does not know of policies.
            let mut read = read;
            let children = read.get_mut("children").and_then(|children| children.as_object_mut());
            if let Some(children) = children {
                children.remove("rep:policy");
            }
            put(at, &read).await;
        }
        assert_eq!(author.repository.head_root().unwrap(), before, "{at}");
    }
    let folder = "/content/dam/folder";
    put(folder, &json!({ "type": "sling:Folder" })).await;
    put(folder, &json!({ "type": "sling:Folder", "children": { "inner": { "children": {} } } }))
        .await;
    let batch = json!({ "operations": [
        { "op": "put", "path": folder, "node": { "type": "sling:OrderedFolder", "children": { "inner": {} } } },
    ] });
    let reply = author.as_admin(Method::POST, "/api/v1/batch").json(&batch).send().await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(opened(&author), Vec::<&str>::new());
    // A policy goes where it is named.
    let patch = json!({ "children": { "rep:policy": null } });
    let target = format!("/api/v1/nodes?path={folder}");
    let reply = author.as_admin(Method::PATCH, &target).json(&patch).send().await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(opened(&author), [folder]);
}

#[tokio::test]
async fn uploads_and_imports_leave_policies() {
    let author = author().await;
    let writer = author.user("writer", &["dam-users"]).await;
    let admin = author.token_of("admin").await;
    let file: &[FormPart<'_>] = &[("./file.txt", Some(("file.txt", "text/plain")), b"new")];
    let asset: &[FormPart<'_>] =
        &[(":operation", None, b"createasset"), ("file", Some(("asset.png", "image/png")), b"new")];
    let import: &[FormPart<'_>] = &[
        (":operation", None, b"import"),
        (":name", None, b"folder"),
        (":replace", None, b"true"),
        (":contentType", None, b"json"),
        (
            ":content",
            None,
            b"{\"jcr:primaryType\":\"sling:Folder\",\"new\":{\"c\":1},\"inner\":{\"c\":1}}",
        ),
    ];
    for token in [&writer, &admin] {
        for form in [file, asset, import] {
            let request = author.request(Method::POST, "/content/dam").bearer(token);
            let reply = request.multipart(form).send().await;
            assert!(reply.status.is_success(), "{reply:?}");
            assert_eq!(opened(&author), Vec::<&str>::new(), "{reply:?}");
        }
    }
    assert_eq!(author.get("/content/dam/file.txt").await.text(), "new");
    assert_eq!(author.property("/content/dam/folder/inner", "a"), "-");
    assert_eq!(author.property("/content/dam/folder/new", "c"), "Long 1");
    let stranger = author.user("stranger", &["content-authors"]).await;
    for at in CLOSED {
        let reply = author.request(Method::GET, &format!("{at}.json")).bearer(&stranger);
        assert_eq!(reply.send().await.status, 404, "{at}");
    }
}
