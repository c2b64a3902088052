//! What an author answers stays out of shared caches and out of frames of other sites.

use http::Method;

use crate::support::{PASSWORD, TestInstance};

#[tokio::test]
async fn pages_of_an_author_are_cached_by_nobody_and_framed_by_no_other_site() {
    let author = TestInstance::author().await;
    author.post("/content/page", &[("jcr:primaryType", "cq:Page")]).await;
    for target in ["/content/page.html", "/content/nothing.html", "/", "/login.html"] {
        let reply = author.get(target).await;
        assert_eq!(reply.header("cache-control"), "no-store", "{target} {reply:?}");
    }
    let page = author.get("/content/page.html").await;
    assert_eq!(page.header("content-security-policy"), "frame-ancestors 'self'");
    let login = author.request(Method::POST, "/login");
    let login = login.form(&[("user", "admin"), ("password", PASSWORD)]).send().await;
    assert_eq!((login.status.as_u16(), login.header("cache-control")), (200, "no-store"));
    // A publisher's pages are for caches.
    let publish = TestInstance::publish().await;
    assert_ne!(publish.get("/content.html").await.header("cache-control"), "no-store");
}
