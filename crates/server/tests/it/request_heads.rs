//! Requests that an intermediary may have read differently are refused before any handler interprets them.

use axum::body::Body;
use http::{Request, Version};
use tower::ServiceExt;
use tympan_server::admin_router;

use crate::support::TestInstance;

async fn check(
    instance: &TestInstance,
    target: &str,
    version: Version,
    headers: &[(&str, &str)],
    expected: u16,
) {
    for router in [instance.router(), admin_router(instance.instance.clone())] {
        let mut request = Request::builder().uri(target).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{version:?} {headers:?}");
        let is_closed = response.headers().get("connection").is_some_and(|value| value == "close");
        assert_eq!(is_closed, expected != 200, "{version:?} {headers:?}");
    }
}

#[tokio::test]
async fn requests_with_an_ambiguous_head_are_refused() {
    let author = TestInstance::author().await;
    let publish = TestInstance::publish().await;
    for instance in [&author, &publish] {
        let one = |headers, expected| {
            check(instance, "/health/ready", Version::HTTP_11, headers, expected)
        };
        one(&[("host", "a.example")], 200).await;
        one(&[], 400).await;
        one(&[("host", "a.example"), ("host", "b.example")], 400).await;
        one(&[("host", "a.example"), ("host", "a.example")], 400).await;
        one(&[("host", "a/b")], 400).await;
        one(&[("host", "a.example"), ("transfer-encoding", "chunked")], 200).await;
        one(&[("host", "a.example"), ("transfer-encoding", "gzip, chunked")], 501).await;
        check(instance, "/health/ready", Version::HTTP_10, &[], 200).await;
        let own = "http://a.example/health/ready";
        check(instance, own, Version::HTTP_11, &[("host", "b.example")], 200).await;
        let foreign = "https://a.example/health/ready";
        check(instance, foreign, Version::HTTP_2, &[("host", "b.example")], 400).await;
        check(instance, "ftp://a.example/health/ready", Version::HTTP_11, &[], 400).await;
    }
}
