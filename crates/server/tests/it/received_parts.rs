//! What an author takes of a tree that comes in parts: nothing outside the paths that it is told.

use axum::body::Body;
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tympan_content::Subtree;

use crate::support::{TestInstance, path};

async fn receive(instance: &TestInstance, ancestors: &[&str], taken_away: &[&str]) -> StatusCode {
    let ancestors: Vec<Value> =
        ancestors.iter().map(|path| json!([path, "sling:Folder"])).collect();
    let message = json!({
        "agent": "one",
        "sequence": 1,
        "action": "Deactivate",
        "path": "/content/dam",
        "user": "admin",
        "ancestors": ancestors,
        "documents": [],
        "chunks": [],
        "blobs": [],
        "taken_away": taken_away,
    });
    let request = instance.request(Method::POST, "/bin/receive");
    let request = request.header("x-tympan-replication-key", "a key of replication");
    request.json(&message).send().await.status
}

#[tokio::test]
async fn parts_of_trees_stay_below_the_paths_that_an_author_receives() {
    let instance = TestInstance::author().await;
    instance.instance.set_received_paths(vec![path("/content/dam")]);
    instance.edit(|session| {
        for name in ["/content/dam", "/content/dam/a", "/content/dam/b", "/content/other"] {
            session.put_node(&path(name), Subtree::new("folder", "sling:Folder")).unwrap();
        }
    });
    let has = |name: &str| instance.snapshot().node(&path(name)).unwrap().is_some();
    // Folders between the tree and its documents are among those that are made.
    let within = ["/content", "/content/dam", "/content/dam/a"];
    assert_eq!(receive(&instance, &within, &["/content/dam/a/x"]).await, StatusCode::OK);
    assert_eq!(receive(&instance, &[], &["/content/dam/a"]).await, StatusCode::OK);
    assert!(!has("/content/dam/a") && has("/content/dam/b"), "only the part goes");
    assert_eq!(receive(&instance, &[], &["/content/other"]).await, StatusCode::FORBIDDEN);
    assert_eq!(receive(&instance, &["/content/other"], &[]).await, StatusCode::FORBIDDEN);
    assert!(has("/content/other") && has("/content/dam/b"));
}

#[tokio::test]
async fn received_bodies_are_limited_without_a_listener() {
    let instance = TestInstance::author().await;
    instance.instance.set_received_paths(vec![path("/content/dam")]);
    let part = Bytes::from(vec![b' '; 1024 * 1024]);
    for target in ["/bin/receive", "/bin/receive/chunks", "/bin/receive/blobs"] {
        let parts = std::iter::repeat_n(part.clone(), 65).map(Ok::<_, std::io::Error>);
        let request = instance.request(Method::POST, target);
        let request = request.header("x-tympan-replication-key", "a key of replication");
        let body = Body::from_stream(futures_util::stream::iter(parts));
        let reply = request.body(body).send().await;
        assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE, "{target}: {reply:?}");
    }
}
