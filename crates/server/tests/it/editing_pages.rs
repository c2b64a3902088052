//! What the page editor asks for: times and rights of a page, what an activation takes along, who else is there.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

const PAGE: &str = "/content/site/page";

/// Starts an author with a page that shows a picture, and `ada`, who may edit below the site and activate the page but
/// not the picture, and `eve`, who may only read.
fn author() -> BlockingInstance {
    let author = BlockingInstance::author();
    let content = json!({
        "type": "cq:PageContent",
        "properties": { "jcr:title": "Page", "fileReference": "/content/dam/x.jpg" },
    });
    let page = json!({ "type": "cq:Page", "children": { "jcr:content": content } });
    let site = json!({ "type": "sling:OrderedFolder", "children": { "page": page } });
    author.done("PUT", "/api/v1/nodes?path=/content/site", &site);
    let asset = json!({
        "type": "dam:Asset",
        "children": { "jcr:content": { "type": "dam:AssetContent" } },
    });
    author.done("PUT", "/api/v1/nodes?path=/content/dam/x.jpg", &asset);
    for user in ["ada", "eve"] {
        author.add_user(user, &json!([]));
        let entry = json!({ "allow": true, "principal": user, "privileges": ["jcr:read"] });
        author.done("POST", "/api/v1/permissions?path=/content", &entry);
    }
    let entry =
        json!({ "allow": true, "principal": "ada", "privileges": ["rep:write", "crx:replicate"] });
    author.done("POST", "/api/v1/permissions?path=/content/site", &entry);
    author
}

fn read(author: &BlockingInstance, user: &str, address: &str) -> Value {
    let answer = author.ask(user, "GET", address, &Value::Null);
    assert_eq!(answer.status, 200, "{user} {address}: {}", answer.text());
    answer.json()
}

#[test]
fn a_page_tells_its_times_and_what_the_user_may_not_do() {
    let author = author();
    let address = format!("/api/v1/page?path={PAGE}");
    let page = read(&author, "ada", &address);
    assert_eq!((&page["onTime"], &page["offTime"]), (&Value::Null, &Value::Null));
    assert_eq!(page["denied"], json!({ "edit": false, "activate": false }));
    assert_eq!(read(&author, "eve", &address)["denied"], json!({ "edit": true, "activate": true }));
    let time = json!({ "type": "Date", "value": "2027-03-01T08:00:00.000+01:00" });
    let patch = json!({ "properties": { "onTime": time, "offTime": "2027-04-01T08:00:00.000Z" } });
    let operations =
        json!([{ "op": "patch", "path": format!("{PAGE}/jcr:content"), "patch": patch }]);
    author.done("POST", "/api/v1/batch", &json!({ "operations": operations }));
    let page = read(&author, "ada", &address);
    assert_eq!(page["onTime"], "2027-03-01T08:00:00.000+01:00");
    assert_eq!(page["offTime"], "2027-04-01T08:00:00.000Z", "a time that was stored as text");
}

#[test]
fn companions_tell_whether_the_user_may_activate_them() {
    let author = author();
    let address = format!("/api/v1/replication/companions?path={PAGE}");
    for (user, is_allowed) in [("admin", true), ("ada", false)] {
        let companions = read(&author, user, &address);
        let picture = &companions["companions"][0];
        assert_eq!(picture["path"], "/content/dam/x.jpg", "{companions}");
        assert_eq!((&picture["ticked"], &picture["allowed"]), (&json!(true), &json!(is_allowed)));
    }
}

#[test]
fn editors_of_a_page_see_each_other_while_they_report() {
    let author = author();
    let report = |user: &str, path: &str, tab: &str, leaving: bool| {
        let body = json!({ "path": path, "tab": tab, "leaving": leaving });
        let answer = author.ask(user, "POST", "/api/v1/presence", &body);
        (answer.status, answer.json())
    };
    let users = |value: &Value| -> Vec<String> {
        let editors = value["editors"].as_array().unwrap();
        editors.iter().map(|editor| editor["user"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(users(&report("ada", PAGE, "1", false).1), Vec::<String>::new());
    assert_eq!(users(&report("eve", PAGE, "1", false).1), ["ada"]);
    assert_eq!(users(&report("ada", PAGE, "2", false).1), ["ada", "eve"], "another tab");
    assert_eq!(report("ada", PAGE, "1", true).0, 200);
    assert_eq!(users(&report("eve", PAGE, "1", false).1), ["ada"]);
    let hidden = report("eve", "/content/none", "1", false);
    assert_eq!(hidden.0, 404, "{}", hidden.1);
    for tab in [String::new(), "x".repeat(65)] {
        assert_eq!(report("ada", PAGE, &tab, false).0, 400);
    }
    assert_eq!(report("ada", "content", "1", false).0, 400);
}
