//! Several reads in one request: each is answered as if it were requested alone.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

fn author() -> BlockingInstance {
    let author = BlockingInstance::author();
    let content = json!({ "type": "cq:PageContent", "properties": { "jcr:title": "Winter" } });
    let page = json!({ "type": "cq:Page", "children": { "jcr:content": content } });
    author.done("PUT", "/api/v1/nodes?path=/site", &page);
    author
}

/// Returns the answers to reads, which are given as they stand in the address.
fn answers(author: &BlockingInstance, reads: &[&str]) -> Vec<Value> {
    let query: Vec<String> = reads.iter().map(|read| format!("read={read}")).collect();
    let mut reply = author.get(&format!("/api/v1/reads?{}", query.join("&")));
    std::mem::take(reply["answers"].as_array_mut().unwrap())
}

#[test]
fn reads_are_answered_as_if_each_were_requested_alone() {
    let author = author();
    let found =
        answers(&author, &["me", "nodes%3Fpath%3D/site/jcr:content", "nodes%3Fpath%3D/none"]);
    assert_eq!((&found[0]["status"], &found[0]["value"]["user"]), (&json!(200), &json!("admin")));

    let alone = author.ask("admin", "GET", "/api/v1/nodes?path=/site/jcr:content", &Value::Null);
    assert_eq!(found[1]["value"], alone.json());
    assert_eq!(found[1]["tag"].as_str(), alone.header("etag"));

    let alone = author.ask("admin", "GET", "/api/v1/nodes?path=/none", &Value::Null);
    assert_eq!((&found[2]["status"], &found[2]["value"]), (&json!(404), &alone.json()));
}

/// A read may look at the credentials again, as the change feed does, which outlives a login.
#[test]
fn every_read_without_parameters_has_the_status_that_it_has_alone() {
    let author = author();
    let description = author.get("/api/v1/openapi.json");
    let paths = description["paths"].as_object().unwrap().iter();
    let reads: Vec<&str> = paths
        .filter(|(_, methods)| methods.get("get").is_some())
        .filter_map(|(path, _)| path.strip_prefix("/api/v1/"))
        .collect();
    assert!(reads.len() > 30 && reads.contains(&"changes"), "{reads:?}");
    for read in reads {
        let alone = author.ask("admin", "GET", &format!("/api/v1/{read}"), &Value::Null);
        let combined = &answers(&author, &[read])[0]["status"];
        let is_refused = *combined == json!(400) || *combined == json!(404);
        assert!(
            *combined == json!(alone.status) || is_refused,
            "{read}: {} {combined}",
            alone.status
        );
    }
    assert_eq!(answers(&author, &["changes%3Fsince%3Dnow"])[0]["status"], 200);
}

#[test]
fn what_is_no_json_read_is_refused_and_the_rest_is_answered() {
    let author = author();
    let reads = [
        "reads%3Fread%3Dme",
        "blob%3Fpath%3D/site",
        "login",
        "nodes%3Fpart%3D/site",
        "changes%3Fsince%3Dnow%26wait%3D30s",
        "me",
    ];
    let statuses: Vec<Value> =
        answers(&author, &reads).iter().map(|answer| answer["status"].clone()).collect();
    assert_eq!(statuses, [400, 400, 404, 400, 400, 200].map(Value::from));
}

#[test]
fn the_number_of_reads_is_limited() {
    let author = author();
    let reads = ["read=me"; 9].join("&");
    let refused = author.ask("admin", "GET", &format!("/api/v1/reads?{reads}"), &Value::Null);
    assert_eq!(refused.status, 422, "{}", refused.text());
}
