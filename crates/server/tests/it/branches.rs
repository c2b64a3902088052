//! Branches through the JSON API.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance, names};

/// An author with the branch `launch`, on which `ann` changed two nodes, one of which was changed on main too.
struct Launch {
    author: BlockingInstance,
    /// When nothing was changed yet.
    past: String,
}

impl Launch {
    fn begin() -> Self {
        let author = BlockingInstance::author();
        author.add_user("ann", &json!(["content-authors"]));
        for name in ["a", "b"] {
            author.done(
                "PUT",
                &format!("/api/v1/nodes?path=/content/{name}"),
                &json!({ "properties": { "v": "base" } }),
            );
        }
        let past = author.get("/api/v1/revisions?limit=1")["revisions"][0]["time"].clone();
        author.done("POST", "/api/v1/branches", &json!({ "name": "launch" }));
        let launch = Self { author, past: past.as_str().unwrap().to_owned() };
        launch.set("a&branch=launch", "launched");
        launch.set("b&branch=launch", "launched");
        launch.set("b", "edited");
        launch
    }

    /// Sets the value of a node as `ann`.
    fn set(&self, node: &str, value: &str) {
        let path = format!("/api/v1/nodes?path=/content/{node}");
        let patch = json!({ "properties": { "v": value } });
        let answer = self.author.ask("ann", "PATCH", &path, &patch);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    fn value(&self, node: &str) -> Value {
        let node = self.author.get(&format!("/api/v1/nodes?path=/content/{node}"));
        node["properties"]["v"]["value"].clone()
    }

    fn merge(&self, more: &Value) -> Answer {
        let mut body = json!({ "name": "launch" });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        self.author.ask("admin", "POST", "/api/v1/branches/merge", &body)
    }
}

#[test]
fn branches_have_names_of_their_own_and_are_created_by_those_who_may() {
    let author = &Launch::begin().author;
    assert_eq!(author.status("ann", "POST", "/api/v1/branches", &json!({ "name": "x" })), 403);
    assert_eq!(
        author.status("admin", "POST", "/api/v1/branches", &json!({ "name": "launch" })),
        422
    );
}

#[test]
fn branches_are_edited_and_compared() {
    let launch = Launch::begin();
    let author = &launch.author;
    let values = (launch.value("a"), launch.value("a&branch=launch"));
    assert_eq!(values, ("base".into(), "launched".into()));
    assert_eq!(launch.value(&format!("b&at={}", launch.past.replace('+', "%2B"))), "base");
    assert_eq!(
        author.status("admin", "GET", "/api/v1/nodes?path=/content/a&branch=none", &Value::Null),
        404
    );
    let diff = author.get("/api/v1/branches/diff?name=launch&details=true");
    let changed: Vec<&str> = diff["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["path"].as_str().unwrap())
        .collect();
    assert_eq!(changed, ["/content/a", "/content/b"]);
    assert_eq!(diff["changes"][0]["nodes"][0]["properties"][0]["after"]["value"], "launched");
}

#[test]
fn a_branch_is_merged_in_parts_and_by_decisions() {
    let launch = Launch::begin();
    let trial = launch.merge(&json!({ "dryRun": true })).json();
    assert_eq!(trial["conflicts"][0]["path"], "/content/b", "{trial}");
    let refused = launch.merge(&json!({}));
    assert_eq!(refused.status, 409);
    let problem = refused.json();
    assert_eq!(problem["conflicts"][0]["theirs"], "edited", "{problem}");
    assert_eq!(launch.merge(&json!({ "only": ["/content/a"] })).status, 200);
    assert_eq!((launch.value("a"), launch.value("b")), ("launched".into(), "edited".into()));
    let decided = launch.merge(&json!({ "decisions": { "/content/b": "mine" } }));
    assert_eq!(decided.status, 200, "{}", decided.text());
    assert_eq!(launch.value("b"), "launched");
}

/// A branch of the past, promoted: refused while that would drop something.
#[test]
fn a_branch_of_the_past_is_promoted_when_it_may_replace() {
    let launch = Launch::begin();
    let author = &launch.author;
    author.done("POST", "/api/v1/branches", &json!({ "name": "back", "at": launch.past }));
    let promote = |replace: bool| {
        author.status(
            "admin",
            "POST",
            "/api/v1/branches/promote",
            &json!({ "name": "back", "replace": replace }),
        )
    };
    assert_eq!((promote(false), promote(true)), (409, 200));
    assert_eq!(launch.value("b"), "base");
    assert_eq!(author.status("admin", "DELETE", "/api/v1/branches?name=launch", &Value::Null), 204);
    assert_eq!(author.status("admin", "DELETE", "/api/v1/branches?name=main", &Value::Null), 422);
    assert_eq!(names(&author.get("/api/v1/branches")["branches"]), ["back", "main"]);
}
