//! Where nodes are used, moves that take references along, and activations that take along what they refer to.

use http::{Method, StatusCode};
use serde_json::{Value as Json, json};
use tympan_content::{Property, Subtree, Value, ValueType};

use crate::support::{TestInstance, path};

const LINK: &str = "<p>see <a href=\"/content/site/target.html?a=1&b=2#c\">it</a> <img src='/content/dam/x.jpg'></p>";

fn page(name: &str, text: &str) -> Subtree {
    let part = Subtree::new("text", "nt:unstructured").with_property("text", text);
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", name)
        .with_child(part);
    Subtree::new(name, "cq:Page").with_child(content)
}

/// A site with a page that links to another one and shows a picture.
async fn author() -> TestInstance {
    let author = TestInstance::author().await;
    author.edit(|session| {
        let picture = Subtree::new("x.jpg", "dam:Asset")
            .with_child(Subtree::new("jcr:content", "dam:AssetContent"));
        let site = Subtree::new("site", "sling:OrderedFolder")
            .with_child(page("target", "nothing"))
            .with_child(page("rich", LINK))
            .with_child(page("other", LINK));
        let dam = Subtree::new("dam", "sling:Folder").with_child(picture);
        session.put_node(&path("/content/site"), site).unwrap();
        session.put_node(&path("/content/dam"), dam).unwrap();
        let tags = Subtree::new("cq:tags", "sling:Folder")
            .with_child(Subtree::new("ns", "cq:Tag").with_child(Subtree::new("red", "cq:Tag")));
        session.put_node(&path("/content/cq:tags"), tags).unwrap();
    });
    author
}

fn holders(list: &Json) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn references_tell_of_links_in_rich_text() {
    let author = author().await;
    let answer = author.get("/api/v1/references?path=/content/site/target").await.json();
    let users = ["/content/site/other/jcr:content/text", "/content/site/rich/jcr:content/text"];
    assert_eq!(holders(&answer["usedBy"]), users);
    assert_eq!(answer["usedBy"][0]["kind"], "link");
    let deep = author.get("/api/v1/references?path=/content/dam&deep=true").await.json();
    let mut deep = holders(&deep["usedBy"]);
    // Policies name folders, too.
    deep.retain(|holder| holder.starts_with("/content/"));
    assert_eq!(deep, users);
    let own = author.get("/api/v1/references?path=/content/site/rich").await.json();
    let targets: Vec<_> =
        own["uses"].as_array().unwrap().iter().map(|one| &one["target"]).collect();
    assert_eq!(targets, ["/content/dam/x.jpg", "/content/site/target"]);
}

#[tokio::test]
async fn a_move_rewrites_what_it_is_asked_to() {
    let author = author().await;
    let text =
        |page: &str| author.property(&format!("/content/site/{page}/jcr:content/text"), "text");
    let send = |body: Json| author.as_admin(Method::POST, "/api/v1/nodes/move").json(&body).send();
    let moved = send(json!({ "from": "/content/site/target", "to": "/content/site/a" })).await;
    assert_eq!(moved.status, StatusCode::CREATED);
    assert_eq!((&moved.json()["rewritten"], &moved.json()["kept"]), (&json!([]), &json!([])));
    assert_eq!(text("rich"), format!("String {LINK}"));
    send(json!({ "from": "/content/site/a", "to": "/content/site/target" })).await;

    let rewriting =
        json!({ "from": "/content/site/target", "to": "/content/site/b", "rewrite": true });
    let moved = send(rewriting).await.json();
    assert_eq!(
        holders(&moved["rewritten"]),
        ["/content/site/other/jcr:content/text", "/content/site/rich/jcr:content/text"]
    );
    let expected = format!("String {}", LINK.replace("/site/target.", "/site/b."));
    assert_eq!(text("rich"), expected);
    assert_ne!(author.property("/content/site/rich/jcr:content", "cq:lastModified"), "-");

    let form = [(":operation", "move"), (":dest", "/content/dam/y.jpg"), (":rewrite", "true")];
    author.post("/content/dam/x.jpg", &form).await;
    assert_eq!(text("other"), expected.replace("x.jpg", "y.jpg"));
    let batch = json!({ "operations": [
        { "op": "move", "from": "/content/dam/y.jpg", "to": "/content/dam/z.jpg", "rewrite": true },
    ] });
    let done = author.as_admin(Method::POST, "/api/v1/batch").json(&batch).send().await.json();
    assert_eq!(done["results"][0]["rewritten"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_moved_tag_leads_from_its_old_place() {
    let author = author().await;
    author.edit(|session| {
        let tags = Property::List(ValueType::String, vec![Value::String("ns:red".to_owned())]);
        session.set_property(&path("/content/site/rich/jcr:content"), "cq:tags", tags).unwrap();
    });
    let users = author.get("/api/v1/references?path=/content/cq:tags/ns/red").await.json();
    assert_eq!(holders(&users["usedBy"]), ["/content/site/rich/jcr:content"]);
    let form = [(":operation", "move"), (":dest", "/content/cq:tags/ns/rouge")];
    author.post("/content/cq:tags/ns/red", &form).await;
    let moved_to = author.property("/content/cq:tags/ns/red", "cq:movedTo");
    assert_eq!(moved_to, "String /content/cq:tags/ns/rouge");
    let backlinks = author.property("/content/cq:tags/ns/rouge", "cq:backlinks");
    assert_eq!(backlinks, "String [/content/cq:tags/ns/red]");
}

#[tokio::test]
async fn an_activation_takes_along_what_visitors_lack() {
    let author = author().await;
    author.edit(|session| {
        let content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("enabled", Value::Boolean(true))
            .with_property("transportUri", "http://127.0.0.1:9/bin/receive");
        let agent = Subtree::new("one", "cq:Page").with_child(content);
        let agents = Subtree::new("agents.author", "cq:Page").with_child(agent);
        let replication = Subtree::new("replication", "sling:Folder").with_child(agents);
        session
            .put_node(&path("/etc"), Subtree::new("etc", "sling:Folder").with_child(replication))
            .unwrap();
    });
    let replicate =
        |body: Json| author.as_admin(Method::POST, "/api/v1/replication").json(&body).send();
    let alone = json!({ "action": "activate", "paths": ["/content/site/rich"] });
    assert_eq!(replicate(alone).await.json()["paths"], json!(["/content/site/rich"]));
    let along =
        json!({ "action": "activate", "paths": ["/content/site/rich"], "companions": true });
    let answer = replicate(along.clone()).await.json();
    assert_eq!(
        answer,
        json!({ "paths": ["/content/dam/x.jpg", "/content/site/rich"], "left": [] })
    );
    let again = replicate(along).await.json();
    assert_eq!(again["paths"], json!(["/content/site/rich"]), "visitors have the picture now");

    author.post("/content/dam/x.jpg", &[(":operation", "deactivate")]).await;
    let form = [(":operation", "activate"), (":companions", "true")];
    let reply = author.post("/content/site/other", &form).await;
    assert!(reply.text().contains("/content/dam/x.jpg"), "{}", reply.text());
    assert_eq!(
        author.property("/content/dam/x.jpg/jcr:content", "cq:lastReplicationAction"),
        "String Activate"
    );
}
