//! What was read of a node by the JSON API can be sent back, and changes nothing.

use http::Method;
use serde_json::{Value as Json, json};
use tympan_content::{Property, Subtree, ValueType};

use crate::support::{Reply, TestInstance, path};

/// Puts a page with a child page, whose content has components in an order that is not that of their names.
fn put_pages(author: &TestInstance) {
    author.edit(|session| {
        let part = |name: &str| Subtree::new(name, "nt:unstructured").with_property("text", name);
        let content = || {
            Subtree::new("jcr:content", "cq:PageContent")
                .with_property("jcr:title", "A page")
                .with_child(part("z"))
                .with_child(part("a").with_child(part("inner")))
        };
        let page = |name: &str| Subtree::new(name, "cq:Page").with_child(content());
        session.put_node(&path("/content/top"), page("top").with_child(page("kid"))).unwrap();
    });
}

async fn put(author: &TestInstance, token: Option<&str>, at: &str, body: &Json) -> Reply {
    let target = format!("/api/v1/nodes?path={at}");
    match token {
        Some(token) => author.request(Method::PUT, &target).bearer(token),
        None => author.as_admin(Method::PUT, &target),
    }
    .json(body)
    .send()
    .await
}

/// Returns everything below `/content`, but for what a page remembers of who changed it.
async fn state(author: &TestInstance) -> Json {
    let mut state = author.get("/api/v1/nodes?path=/content&depth=20").await.json();
    let content = state.pointer_mut("/children/top/children/jcr:content/properties");
    if let Some(properties) = content.and_then(Json::as_object_mut) {
        properties.retain(|name, _| !name.starts_with("cq:lastModified"));
    }
    state
}

#[tokio::test]
async fn what_was_read_at_any_depth_can_be_sent_back() {
    let author = TestInstance::author().await;
    put_pages(&author);
    let before = state(&author).await;
    for at in ["/content/top", "/content/top/jcr:content", "/content/top/jcr:content/a", "/content"]
    {
        for depth in 0..5 {
            let read = author.get(&format!("/api/v1/nodes?path={at}&depth={depth}")).await.json();
            let reply = put(&author, None, at, &read).await;
            assert_eq!(reply.status, 200, "{at} {depth} {reply:?}");
            assert_eq!(state(&author).await, before, "{at} {depth}");
        }
        // As a script writes it that knows of properties alone.
        let read = author.get(&format!("/api/v1/nodes?path={at}")).await.json();
        let own = json!({ "type": read["type"], "properties": read["properties"] });
        assert_eq!(put(&author, None, at, &own).await.status, 200);
        let batch = json!({ "operations": [{ "op": "put", "path": at, "node": own }] });
        let reply = author.as_admin(Method::POST, "/api/v1/batch").json(&batch).send().await;
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!(state(&author).await, before, "{at}");
    }
}

#[tokio::test]
async fn children_that_are_named_are_all_that_stay() {
    let author = TestInstance::author().await;
    put_pages(&author);
    let body = json!({ "type": "cq:PageContent", "properties": { "jcr:title": "Other" }, "children": {
        "new": { "properties": { "text": "n" } },
        "a": { "properties": { "text": "changed" } },
    } });
    assert_eq!(put(&author, None, "/content/top/jcr:content", &body).await.status, 200);
    let content = author.snapshot().node(&path("/content/top/jcr:content")).unwrap().unwrap();
    let names: Vec<_> =
        content.children().unwrap().iter().map(|child| child.name().to_owned()).collect();
    assert_eq!(names, ["new", "a"]);
    // Nothing was said of the children of `a`.
    assert_eq!(author.property("/content/top/jcr:content/a/inner", "text"), "String inner");
    assert_eq!(author.property("/content/top/jcr:content/a", "text"), "String changed");
    assert_eq!(author.property("/content/top/jcr:content", "jcr:title"), "String Other");
    // A property that is not sent goes, and so do all children of an empty list of them.
    let bare = json!({ "type": "cq:PageContent", "children": {} });
    assert_eq!(put(&author, None, "/content/top/jcr:content", &bare).await.status, 200);
    assert_eq!(author.property("/content/top/jcr:content", "jcr:title"), "-");
    let content = author.snapshot().node(&path("/content/top/jcr:content")).unwrap().unwrap();
    assert!(content.children().unwrap().is_empty());
    assert!(author.snapshot().node(&path("/content/top/kid")).unwrap().is_some());
    // Another type, where records become parts of a document and back.
    for kind in ["nt:unstructured", "sling:OrderedFolder", "cq:Page"] {
        let reply = put(&author, None, "/content/top", &json!({ "type": kind })).await;
        assert_eq!(reply.status, 200, "{kind} {reply:?}");
        assert_eq!(author.property("/content/top/kid/jcr:content/z", "text"), "String z", "{kind}");
    }
    let null = json!({ "children": null });
    assert_eq!(put(&author, None, "/content/top", &null).await.status, 400);
}

#[tokio::test]
async fn what_a_user_cannot_read_stays_when_the_user_sends_back_what_was_read() {
    let author = TestInstance::author().await;
    put_pages(&author);
    let token = author.user("ann", &["content-authors"]).await;
    author.edit(|session| {
        let names = |texts: &[&str]| Property::parse_list(ValueType::Name, texts.to_vec()).unwrap();
        let deny = Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "ann")
            .with_property("rep:privileges", names(&["jcr:read"]));
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(deny);
        for hidden in ["/content/top/kid", "/content/top/jcr:content/z"] {
            session
                .set_property(&path(hidden), "jcr:mixinTypes", names(&["rep:AccessControllable"]))
                .unwrap();
            session.put_node(&path(&format!("{hidden}/rep:policy")), policy.clone()).unwrap();
        }
    });
    let before = state(&author).await;
    let request = |at: &str| {
        author.request(Method::GET, &format!("/api/v1/nodes?path={at}&depth=9")).bearer(&token)
    };
    let read = request("/content/top").send().await.json();
    assert!(read["children"].get("kid").is_none(), "{read}");
    assert!(read["children"]["jcr:content"]["children"].get("z").is_none(), "{read}");
    let reply = put(&author, Some(&token), "/content/top", &read).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(state(&author).await, before);
}
