//! Headers of pages: what browsers may do with them.

use http::header::CONTENT_SECURITY_POLICY;
use tympan_server::{InstanceRole, PageHeaders};

use crate::support::TestInstance;

const POLICY: &str = "default-src 'self'; frame-ancestors 'none'";

async fn start(role: InstanceRole) -> TestInstance {
    TestInstance::start(role, |options| {
        let headers = [("Content-Security-Policy", POLICY), ("Referrer-Policy", "same-origin")];
        options.page_headers = PageHeaders::parse(headers).unwrap();
    })
    .await
}

#[tokio::test]
async fn pages_of_a_publisher_have_the_configured_headers() {
    let publish = start(InstanceRole::Publish).await;
    let page = publish.visit("/content/none.html").await;
    assert_eq!(page.status, 404);
    assert_eq!(page.header("content-security-policy"), POLICY);
    assert_eq!(page.header("referrer-policy"), "same-origin");
    let data = publish.get("/content.json").await;
    assert_eq!(data.status, 200, "{data:?}");
    assert!(!data.headers.contains_key(CONTENT_SECURITY_POLICY), "{data:?}");
}

/// Its editor shows pages in a frame, and nobody else may.
#[tokio::test]
async fn pages_of_an_author_are_shown_in_its_own_frames_only() {
    let author = start(InstanceRole::Author).await;
    for target in ["/content.html", "/content/none.html", "/content.html?wcmmode=edit"] {
        let page = author.get(target).await;
        assert_eq!(page.header("content-security-policy"), "frame-ancestors 'self'", "{target}");
        assert!(!page.headers.contains_key("referrer-policy"), "{target}");
    }
}
