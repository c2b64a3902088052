//! A publisher answers 404 to what a dispatcher's filter would have refused, had it known which resources exist.

use http::Method;
use tympan_content::{Property, Subtree, Value};

use crate::support::{Reply, TestInstance, path};

const HEADER: &str = "x-tympan-refused-readings";

/// A publisher with a folder whose name has a dot, a page below it, and a file.
async fn publisher() -> TestInstance {
    let publish = TestInstance::publish().await;
    publish.edit(|session| {
        let folder = Subtree::new("a.b", "sling:Folder");
        let page =
            Subtree::new("c", "nt:unstructured").with_property("title", Property::text("Hidden"));
        session.put_node(&path("/content/a.b"), folder.with_child(page)).unwrap();
        let blob = session.put_blob(&mut std::io::Cursor::new(b"{}")).unwrap();
        let content = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(blob));
        let file = Subtree::new("d.json", "nt:file").with_child(content);
        session.put_node(&path("/content/a.b/d.json"), file).unwrap();
        let plain = Subtree::new("plain", "nt:unstructured")
            .with_property("title", Property::text("Plain"));
        session.put_node(&path("/content/plain"), plain).unwrap();
    });
    publish
}

async fn ask(publish: &TestInstance, method: Method, target: &str, refused: &str) -> Reply {
    let request = publish.request(method, target);
    let request = if refused.is_empty() { request } else { request.header(HEADER, refused) };
    request.send().await
}

#[tokio::test]
async fn a_reading_that_the_filter_refuses_is_answered_404() {
    let publish = publisher().await;
    for (target, refused, status) in [
        // Its extension stands behind a dot that the filter, which knows no nodes, takes for a part of a suffix.
        ("/content/a.b/c.json", "", 200),
        ("/content/a.b/c.json", "0", 404),
        ("/content/a.b/c.json", "1", 200),
        ("/content/a.b/c.json", "2, 0", 404),
        ("/content/a.b/c.infinity.json", "0", 404),
        ("/content/a.b/c.1.json", "1,0,3", 404),
        ("/content/a%2Eb/c.json", "0", 404),
        ("/content/a.b/d.json", "", 200),
        ("/content/a.b/d.json", "0", 404),
        ("/content/plain.json", "0", 404),
        ("/content/plain.json", "1", 200),
        // What is not there is 404 in any case, so that the answers tell nothing apart.
        ("/content/a.b/nothing.json", "0", 404),
        ("/content/a.b/nothing.json", "", 404),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let reply = ask(&publish, method.clone(), target, refused).await;
            assert_eq!(reply.status, status, "{method} {target} {refused:?} {reply:?}");
            assert!(status == 200 || !reply.text().contains("Hidden"), "{reply:?}");
        }
    }
}

#[tokio::test]
async fn a_form_to_a_refused_reading_is_answered_404() {
    let publish = publisher().await;
    let request = publish.request(Method::POST, "/content/a.b/c.json").form(&[("a", "1")]);
    assert_eq!(request.header(HEADER, "0").send().await.status, 404);
}
