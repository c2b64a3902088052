//! Scripts of repository initialization through the JSON API.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

#[test]
fn a_script_is_carried_out_for_administrators_in_one_commit() {
    let author = BlockingInstance::author();
    author.add_user("ann", &json!(["content-authors"]));
    let run = |user: &str, query: &str| {
        let script = "create path (sling:Folder) /content/shop\nset ACL on /content/shop\n\
            allow jcr:read for everyone, nobody\nend";
        let address = format!("/api/v1/repoinit{query}");
        author.send_as(user, "POST", &address, ("text/plain", script.as_bytes()))
    };
    assert_eq!(run("ann", "").status, 403);
    let planned = run("admin", "?dryRun=true");
    assert_eq!(planned.status, 200, "{}", planned.text());
    let missing = author.status("admin", "GET", "/api/v1/nodes?path=/content/shop", &Value::Null);
    assert_eq!(missing, 404);
    let done = run("admin", "");
    assert_eq!(done.status, 200, "{}", done.text());
    let done: Value = serde_json::from_str(&done.text()).unwrap();
    let expected = json!([
        {
            "line": 1, "statement": "create path (sling:Folder) /content/shop", "result": "changed",
            "note": null,
        },
        {
            "line": 3, "statement": "set ACL on /content/shop: allow jcr:read for everyone, nobody",
            "result": "changed", "note": "there is no user or group `nobody`",
        },
    ]);
    assert_eq!(done["statements"], expected);
    let policy = author.get("/api/v1/permissions?path=/content/shop");
    assert_eq!(policy["policies"][0]["entries"][0]["principal"], "everyone");
    let again: Value = serde_json::from_str(&run("admin", "").text()).unwrap();
    assert_eq!(again["statements"][0]["result"], "unchanged");
}
