//! What the author's interface asks for: listings that go on sorted, and pages, dialogs and previews of a launch.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::program::{Answer, Running, ask, basic, free_address};

struct Author {
    address: SocketAddr,
    password: String,
    _running: Running,
    _home: tempfile::TempDir,
}

impl Author {
    /// Starts an author with a folder of pages, each with a title.
    fn start(titles: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let address = free_address();
        let (path, listen) = (home.path().to_str().unwrap(), address.to_string());
        let running = Running::start(&["author", "--home", path, "--listen", &listen]);
        let password = std::fs::read_to_string(home.path().join("initial-password")).unwrap();
        let password = password.trim().to_owned();
        let author = Self { address, password, _running: running, _home: home };
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

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Content-Type", format!("application/{kind}")),
        ];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        ask(self.address, method, path, &headers, body.as_bytes()).unwrap()
    }

    fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.ask(method, path, body);
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    fn get(&self, path: &str) -> Value {
        self.done("GET", path, &Value::Null)
    }
}

fn titles(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["title"].as_str().unwrap()).collect()
}

#[test]
fn listings_of_pages_go_on_sorted() {
    let author = Author::start(&[("a", "Zebra"), ("b", "Ant"), ("c", "Mole")]);
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
    let mixed = author.ask("GET", "/api/v1/pages?path=/site&sort=title&offset=1", &Value::Null);
    assert_eq!(mixed.status, 400, "{}", mixed.text());
}

#[test]
fn a_launch_has_listings_pages_dialogs_and_previews_of_its_own() {
    let author = Author::start(&[("a", "Winter")]);
    author.done("POST", "/api/v1/branches", &json!({ "name": "spring-1" }));
    let patch = json!({ "properties": { "jcr:title": "Spring" } });
    author.done("PATCH", "/api/v1/nodes?path=/site/a/jcr:content&branch=spring-1", &patch);
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
        assert_eq!(author.ask("GET", path, &Value::Null).status, 404, "{path}");
    }
}
