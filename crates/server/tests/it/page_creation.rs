//! New pages begin with the initial content of their template, whichever request creates them.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

const ARTICLE: &str = "/conf/shop/settings/wcm/templates/article";
const CLOSED: &str = "/conf/shop/settings/wcm/templates/closed";

fn node(kind: &str, properties: Value, children: Value) -> Value {
    Value::from_iter([("type", kind.into()), ("properties", properties), ("children", children)])
}

fn template(initial_text: &str) -> Value {
    let text = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/text", "text": initial_text }),
        json!({}),
    );
    let root = node("nt:unstructured", json!({}), json!({ "text": text }));
    let about = json!({
        "sling:resourceType": "shop/page", "cq:template": ARTICLE, "jcr:title": "Initial title",
        "cq:lastModifiedBy": "designer", "navTitle": "From the template",
    });
    let initial = node("cq:PageContent", about, json!({ "root": root }));
    let content = node("cq:PageContent", json!({ "status": "enabled" }), json!({}));
    let initial = node("cq:Page", json!({}), json!({ "jcr:content": initial }));
    node("cq:Template", json!({}), json!({ "jcr:content": content, "initial": initial }))
}

/// A site that allows the template of articles.
fn site() -> BlockingInstance {
    let author = BlockingInstance::author();
    let plain = |children: Value| node("nt:unstructured", json!({}), children);
    let templates =
        plain(json!({ "article": template("Begin here"), "closed": template("Closed") }));
    let settings = plain(json!({ "wcm": plain(json!({ "templates": templates })) }));
    let conf = plain(json!({ "shop": plain(json!({ "settings": settings })) }));
    author.done("PUT", "/api/v1/nodes?path=/conf", &conf);
    let about = json!({ "cq:allowedTemplates": [ARTICLE] });
    let content = node("cq:PageContent", about, json!({}));
    let site = node("cq:Page", json!({}), json!({ "jcr:content": content }));
    author.done("PUT", "/api/v1/nodes?path=/content/site", &site);
    author
}

fn page(properties: &Value) -> Value {
    let content = json!({ "type": "cq:PageContent", "properties": properties });
    json!({ "type": "cq:Page", "children": { "jcr:content": content } })
}

/// Checks that a page has what its template begins with, and the title of the request.
fn check_page(author: &BlockingInstance, name: &str) {
    let page = author.get(&format!("/api/v1/nodes?path=/content/site/{name}&depth=4"));
    let content = &page["children"]["jcr:content"];
    let text = |property: &str| content["properties"][property]["value"].clone();
    assert_eq!(text("jcr:title"), "Own title", "{name}: {page}");
    assert_eq!(text("cq:template"), ARTICLE, "{name}");
    assert_eq!(text("sling:resourceType"), "shop/page", "{name}");
    assert_eq!(text("navTitle"), "From the template", "{name}");
    assert_ne!(text("cq:lastModifiedBy"), "designer", "{name}");
    let component = &content["children"]["root"]["children"]["text"];
    assert_eq!(component["properties"]["text"]["value"], "Begin here", "{name}: {page}");
}

#[test]
fn every_request_that_creates_a_page_gives_it_the_initial_content_of_its_template() {
    let author = site();
    let about = json!({ "jcr:title": "Own title", "cq:template": ARTICLE });
    author.done("PUT", "/api/v1/nodes?path=/content/site/put", &page(&about));
    check_page(&author, "put");

    let operations = json!({ "operations": [
        { "op": "put", "path": "/content/site/batch", "node": page(&about) },
    ] });
    author.done("POST", "/api/v1/batch", &operations);
    check_page(&author, "batch");

    let patch = json!({ "children": { "patched": page(&about) } });
    author.done("PATCH", "/api/v1/nodes?path=/content/site", &patch);
    check_page(&author, "patched");

    let form = format!(
        "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent\
         &./jcr:content/jcr:title=Own title&./jcr:content/cq:template={ARTICLE}"
    );
    let reply = author.post("/content/site/posted", &form);
    assert_eq!(reply.status, 201, "{}", reply.text());
    check_page(&author, "posted");

    let command = |parent: &str, name: &str| {
        let form = format!(
            "cmd=createPage&parentPath={parent}&title=Own title&label={name}&template={ARTICLE}"
        );
        author.post("/bin/wcmcommand", &form)
    };
    for _ in 0..2 {
        let reply = command("/content/site", "commanded");
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    check_page(&author, "commanded");
    check_page(&author, "commanded0");
    assert_eq!(command("/content/site/nowhere", "x").status, 404);
}

#[test]
fn what_the_request_sends_goes_before_the_initial_content() {
    let author = site();
    let about = json!({
        "cq:template": ARTICLE, "sling:resourceType": "shop/other", "navTitle": "Own",
    });
    let mut own = page(&about);
    let root = node("nt:unstructured", json!({}), json!({}));
    own["children"]["jcr:content"]["children"] = json!({ "root": root });
    author.done("PUT", "/api/v1/nodes?path=/content/site/own", &own);
    let content = author.get("/api/v1/nodes?path=/content/site/own/jcr:content&depth=3");
    assert_eq!(content["properties"]["sling:resourceType"]["value"], "shop/other");
    assert_eq!(content["properties"]["navTitle"]["value"], "Own");
    assert_eq!(content["properties"]["jcr:title"]["value"], "Initial title");
    assert_eq!(content["children"]["root"]["children"], json!({}), "{content}");
    // A page that exists does not begin anew.
    let change = json!({ "properties": { "cq:template": ARTICLE, "navTitle": null } });
    author.done("PATCH", "/api/v1/nodes?path=/content/site/own/jcr:content", &change);
    let content = author.get("/api/v1/nodes?path=/content/site/own/jcr:content");
    assert_eq!(content["properties"]["navTitle"], Value::Null, "{content}");
}

#[test]
fn templates_that_are_not_allowed_are_refused() {
    let author = site();
    let check = |place: &str, template: &str, status: u16| {
        let about = json!({ "jcr:title": "T", "cq:template": template });
        let path = format!("/api/v1/nodes?path={place}");
        let answer = author.ask("admin", "PUT", &path, &page(&about));
        assert_eq!(answer.status, status, "{place} {template}: {}", answer.text());
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent&./jcr:content/cq:template={template}"
        );
        let answer = author.post(&format!("{place}-posted"), &form);
        assert_eq!(answer.status, status, "{place} {template}: {}", answer.text());
    };
    check("/content/site/open", ARTICLE, 201);
    check("/content/site/open/below", ARTICLE, 201);
    check("/content/site/closed", CLOSED, 422);
    // Outside the site nothing allows it.
    check("/content/elsewhere", ARTICLE, 422);
    check("/content/site/unknown", "/conf/shop/settings/wcm/templates/unknown", 201);
}

#[test]
fn a_template_that_the_user_may_not_read_gives_nothing_away() {
    let author = site();
    author.add_user("ann", &json!(["content-authors"]));
    let about = json!({ "jcr:title": "T", "cq:template": ARTICLE });
    let put = |name: &str| {
        let path = format!("/api/v1/nodes?path=/content/site/{name}");
        author.ask("ann", "PUT", &path, &page(&about))
    };
    let answer = put("readable");
    assert_eq!(answer.status, 201, "{}", answer.text());
    let deny = json!({ "allow": false, "principal": "everyone", "privileges": ["jcr:read"] });
    author.done("POST", &format!("/api/v1/permissions?path={ARTICLE}"), &deny);
    let answer = put("hidden");
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(!answer.text().contains("Begin here"), "{}", answer.text());
    // A page that exists would show the structure.
    let plain = json!({ "jcr:title": "T" });
    author.done("PUT", "/api/v1/nodes?path=/content/site/plain", &page(&plain));
    let change = json!({ "properties": { "cq:template": ARTICLE } });
    let path = "/api/v1/nodes?path=/content/site/plain/jcr:content";
    assert_eq!(author.status("ann", "PATCH", path, &change), 422);
    author.done("PATCH", path, &change);
}
