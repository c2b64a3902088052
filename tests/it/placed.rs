//! Policies hold for everybody who writes: what may not lie in a container is refused, whichever way it comes.

use serde_json::{Value, json};

use crate::api::Author;
use crate::program::post;

const ROOT: &str = "/content/page/jcr:content/root";

fn component(kind: &str) -> Value {
    json!({ "properties": { "sling:resourceType": kind } })
}

fn put(author: &Author, path: &str, node: &Value) -> crate::program::Answer {
    author.ask("admin", "PUT", &format!("/api/v1/nodes?path={path}"), node)
}

/// An author whose page has a container that takes texts only.
fn author(home: &std::path::Path) -> Author {
    let author = Author::start(home);
    let done = |path: &str, node: Value| {
        let answer = put(&author, path, &node);
        assert!(answer.status < 300, "{path}: {}", answer.text());
    };
    for folder in ["/apps", "/apps/t", "/content"] {
        done(folder, json!({ "type": "sling:Folder" }));
    }
    for (name, group) in [("box", "T"), ("text", "T"), ("picture", "Media"), ("video", "Other")] {
        let node = json!({ "type": "cq:Component", "properties": { "componentGroup": group } });
        done(&format!("/apps/t/{name}"), node);
    }
    let set = |form: &str| {
        let answer = post(author.address, &author.password, "/apps/t/box", form);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    set("allowedChildren=t/text&allowedChildren=group:Media&allowedChildren@TypeHint=String[]");
    done("/content/page", json!({ "type": "cq:Page" }));
    done("/content/page/jcr:content", json!({ "type": "cq:PageContent" }));
    done(ROOT, component("t/box"));
    done("/content/page/jcr:content/free", component("t/free"));
    author
}

#[test]
fn a_component_that_a_container_does_not_allow_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let author = author(dir.path());
    let form = |path: &str, form: &str| post(author.address, &author.password, path, form);
    for allowed in ["t/text", "/apps/t/text", "t/picture"] {
        let answer = form(&format!("{ROOT}/*"), &format!("sling:resourceType={allowed}"));
        assert_eq!(answer.status, 201, "{allowed}: {}", answer.text());
    }
    let refused = form(&format!("{ROOT}/*"), "sling:resourceType=t/video");
    assert_eq!(refused.status, 422, "{}", refused.text());
    let reason = "`t/video` may not lie in `/content/page/jcr:content/root`: allowed are t/text, group:Media";
    assert!(refused.text().contains(reason), "{}", refused.text());
    // Whole trees, too.
    let imported = form(
        ROOT,
        ":operation=import&:contentType=json&:name=deep&:content={\"sling:resourceType\":\"t/video\"}",
    );
    assert_eq!(imported.status, 422, "{}", imported.text());

    // The API: put, patch, move, copy, and which operation of a batch it was.
    assert_eq!(put(&author, &format!("{ROOT}/a"), &component("t/video")).status, 422);
    assert_eq!(put(&author, &format!("{ROOT}/a"), &component("t/text")).status, 201);
    let patch = |path: &str| {
        author.status(
            "admin",
            "PATCH",
            &format!("/api/v1/nodes?path={path}"),
            &component("t/video"),
        )
    };
    assert_eq!(patch(&format!("{ROOT}/a")), 422);
    assert_eq!(put(&author, "/content/page/jcr:content/free/v", &component("t/video")).status, 201);
    for way in ["move", "copy"] {
        let transfer =
            json!({ "from": "/content/page/jcr:content/free/v", "to": format!("{ROOT}/v") });
        let answer = author.ask("admin", "POST", &format!("/api/v1/nodes/{way}"), &transfer);
        assert_eq!(answer.status, 422, "{way}: {}", answer.text());
        let operation = format!(":operation={way}&:dest={ROOT}/v");
        assert_eq!(form("/content/page/jcr:content/free/v", &operation).status, 422, "{way}");
    }
    let batch = json!({ "operations": [
        { "op": "put", "path": format!("{ROOT}/b"), "node": component("t/text") },
        { "op": "put", "path": format!("{ROOT}/c"), "node": component("t/video") },
    ]});
    let answer = author.ask("admin", "POST", "/api/v1/batch", &batch);
    assert_eq!(answer.status, 422, "{}", answer.text());
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["operation"], 1, "{problem}");
    assert_eq!(problem["path"], format!("{ROOT}/c"), "{problem}");
    let gone = author.status("admin", "GET", &format!("/api/v1/nodes?path={ROOT}/b"), &Value::Null);
    assert_eq!(gone, 404, "a batch is done whole or not at all");
}

#[test]
fn what_is_older_than_its_policy_can_be_edited() {
    let dir = tempfile::tempdir().unwrap();
    let author = author(dir.path());
    let form = |path: &str, form: &str| post(author.address, &author.password, path, form).status;
    assert_eq!(form(&format!("{ROOT}/old"), "sling:resourceType=t/text"), 201);
    assert_eq!(
        form("/apps/t/box", "allowedChildren=t/picture&allowedChildren@TypeHint=String[]"),
        200
    );
    let old = format!("{ROOT}/old");
    assert_eq!(form(&old, "text=new&sling:resourceType=t/text"), 200, "it stays what it was");
    assert_eq!(form(&old, &format!(":operation=move&:dest={ROOT}/renamed")), 200, "or is renamed");
    assert_eq!(form(&format!("{ROOT}/other"), "sling:resourceType=t/text"), 422);
    // The editor is told what may lie where, also for a container of which a template says it.
    let set =
        "allowedChildren=t/video&allowedChildren@TypeHint=String[]&jcr:primaryType=cq:Template";
    assert_eq!(form("/apps/t/template", set), 201);
    assert_eq!(form("/content/page/jcr:content", "cq:template=/apps/t/template"), 200);
    assert_eq!(form("/content/page/jcr:content/par", "text=a+group"), 201);
    let page = author.done("GET", "/api/v1/page?path=/content/page", &Value::Null);
    let allowed = |name: &str| {
        let all = page["components"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap()["allowed"].clone()
    };
    assert_eq!(allowed("root"), json!(["t/video"]), "{page:#}");
    assert_eq!(allowed("par"), json!(["t/video"]), "{page:#}");
    assert_eq!(form("/content/page/jcr:content/par/one", "sling:resourceType=t/text"), 422);
    assert_eq!(form("/content/page/jcr:content/par/one", "sling:resourceType=t/video"), 201);
}
