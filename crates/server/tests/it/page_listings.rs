//! What the author's interface asks for: listings that go on sorted, and pages, dialogs and previews of a launch.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

/// Starts an author with a folder of pages, each with a title.
fn author_with_pages(titles: &[(&str, &str)]) -> BlockingInstance {
    let author = BlockingInstance::author();
    let page = |title: &str| {
        let properties = json!({ "jcr:title": title, "sling:resourceType": "none" });
        json!({
            "type": "cq:Page",
            "children": { "jcr:content": { "type": "cq:PageContent", "properties": properties } },
        })
    };
    let children: serde_json::Map<String, Value> =
        titles.iter().map(|(name, title)| ((*name).to_owned(), page(title))).collect();
    let folder = json!({ "type": "sling:OrderedFolder", "children": children });
    author.done("PUT", "/api/v1/nodes?path=/site", &folder);
    author
}

fn titles(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["title"].as_str().unwrap()).collect()
}

#[test]
fn listings_of_pages_go_on_sorted() {
    let author = author_with_pages(&[("a", "Zebra"), ("b", "Ant"), ("c", "Mole")]);
    assert_eq!(titles(&author.get("/api/v1/pages?path=/site")), ["Zebra", "Ant", "Mole"]);
    assert_eq!(titles(&author.get("/api/v1/pages?path=/site&offset=1&limit=1")), ["Ant"]);
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let page = author.get(&format!("/api/v1/pages?path=/site&sort=-title&limit=1{after}"));
        assert_eq!((&page["total"], &page["items"][0]["status"]), (&json!(3), &json!("draft")));
        found.extend(titles(&page).into_iter().map(str::to_owned));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(found, ["Zebra", "Mole", "Ant"]);
    let mixed =
        author.ask("admin", "GET", "/api/v1/pages?path=/site&sort=title&offset=1", &Value::Null);
    assert_eq!(mixed.status, 400, "{}", mixed.text());
}

#[test]
fn a_launch_has_listings_pages_dialogs_and_previews_of_its_own() {
    let author = author_with_pages(&[("a", "Winter")]);
    author.done("POST", "/api/v1/branches", &json!({ "name": "spring-1" }));
    let patch = json!({ "properties": { "jcr:title": "Spring" } });
    let node = "/api/v1/nodes?path=/site/a/jcr:content&branch=spring-1";
    let patch = patch.to_string();
    let merge_patch = ("application/merge-patch+json", patch.as_bytes());
    let patched = author.send_as("admin", "PATCH", node, merge_patch);
    assert_eq!(patched.status, 200, "{}", patched.text());
    for (branch, title) in [("", "Winter"), ("&branch=spring-1", "Spring")] {
        let list = author.get(&format!("/api/v1/pages?path=/site{branch}"));
        assert_eq!(titles(&list), [title]);
        let page = author.get(&format!("/api/v1/page?path=/site/a{branch}"));
        assert_eq!(page["title"], title);
        let dialog = author.get(&format!("/api/v1/dialog?path=/site/a/jcr:content{branch}"));
        assert_eq!(dialog["values"]["jcr:title"], title);
        let preview = author.get(&format!(
            "/site/a/jcr:content.json?x=y&tympan-{}",
            branch.trim_start_matches('&')
        ));
        assert_eq!(preview["jcr:title"], title);
    }
    for path in ["/api/v1/pages?path=/site&branch=none", "/site/a.json?tympan-branch=none"] {
        assert_eq!(author.ask("admin", "GET", path, &Value::Null).status, 404, "{path}");
    }
}
