//! Who is told the details of `/health`.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use axum::body::Body;
use http::{Method, Request};
use tower::ServiceExt;
use tympan_server::{LoginTokenScope, Logins, TokenOwner, TokenTerms, admin_router};
use tympan_web::listen::ConnectionPeer;

use crate::support::TestInstance;

#[tokio::test]
async fn the_state_of_an_instance_is_shown_to_its_operators() {
    for instance in [TestInstance::author().await, TestInstance::publish().await] {
        let local = instance.visit("/health").await.json();
        assert!(local["checks"].is_array(), "{local}");
        let far = IpAddr::from([198, 51, 100, 9]);
        let health = || instance.request(Method::GET, "/health");
        for request in [
            health().with_address(far),
            health().header("x-forwarded-for", "192.0.2.1"),
            health().header("via", "1.1 site (dispatcher)"),
            health().with_address(far).header("x-forwarded-for", "127.0.0.1"),
            health().with_address(far).header("cookie", "tympan-login=0123"),
            health().with_host("evil.example"),
            health().with_host("localhost.evil.example:4502"),
        ] {
            let told = request.send().await.json();
            assert!(told["status"].is_string(), "{told}");
            assert!(told.get("checks").is_none() && told.get("uptime_s").is_none(), "{told}");
        }
        assert_ne!(instance.visit("/metrics").await.status, 200);
    }
}

#[tokio::test]
async fn users_of_an_author_see_its_state_from_anywhere() {
    let author = TestInstance::author().await;
    let health = author.as_admin(Method::GET, "/health").header("x-forwarded-for", "192.0.2.1");
    let told = health.send().await.json();
    assert!(told["checks"].is_array(), "{told}");
}

#[tokio::test]
async fn figures_are_for_administrators_and_for_tokens_of_monitors() {
    let author = TestInstance::author().await;
    let editor = author.user("editor", &["content-authors"]).await;
    author.user("chief", &["administrators"]).await;
    let token = async |user, scope| {
        let (owner, terms) =
            (TokenOwner { user, account: None }, TokenTerms { lifetime: None, scope });
        Logins::issue_token(author.state.pool(), owner, SystemTime::now(), terms).await.unwrap()
    };
    let monitor = token("editor", LoginTokenScope::Monitor).await;
    let reader = token("editor", LoginTokenScope::Read).await;
    let (chief, reading_chief) =
        (token("chief", LoginTokenScope::All).await, token("chief", LoginTokenScope::Read).await);
    let ask = async |token: &str, target: &str| {
        author.request(Method::GET, target).bearer(token).send().await.status.as_u16()
    };
    for target in ["/metrics", "/manager/status", "/manager/status?JSON=true"] {
        assert_eq!(author.visit(target).await.status, 401, "{target}");
        let expected = [(&editor, 403), (&reader, 403), (&monitor, 200), (&chief, 200)];
        for (token, status) in expected.into_iter().chain([(&reading_chief, 200)]) {
            assert_eq!(ask(token, target).await, status, "{target}");
        }
    }
    // It opens nothing else, not even what is for reading.
    for target in [
        "/content.json",
        "/api/v1/me",
        "/system/timing.json",
        "/bin/store/refs",
        "/crx/packmgr/list.jsp",
    ] {
        assert_eq!(ask(&monitor, target).await, 403, "{target}");
    }
    let query =
        author.request(Method::POST, "/bin/querybuilder.json").form(&[("path", "/content")]);
    assert_eq!(query.bearer(&monitor).send().await.status, 403);
    let post = author.request(Method::POST, "/content/n").form(&[("a", "b")]);
    assert_eq!(post.bearer(&monitor).send().await.status, 403);
    let health = author.request(Method::GET, "/health").bearer(&monitor);
    let health = health.header("x-forwarded-for", "192.0.2.1").send().await.json();
    assert!(health["checks"].is_array(), "{health}");
}

/// A page of another site lets the browser of an operator ask the listener under a name of that site.
#[tokio::test]
async fn the_admin_listener_answers_no_browser_that_another_site_directed_there() {
    let instance = TestInstance::author().await;
    let ask = async |address: [u8; 4], host: &str, target: &str| {
        let mut request = Request::builder().uri(target).header("host", host);
        let peer = ConnectionPeer::new(SocketAddr::from((address, 50_000)), false);
        request.extensions_mut().unwrap().insert(peer);
        let router = admin_router(instance.instance.clone());
        router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status().as_u16()
    };
    for target in ["/metrics", "/manager/status", "/health", "/health/ready"] {
        for (address, host, expected) in [
            ([127, 0, 0, 1], "localhost:4504", 200),
            ([127, 0, 0, 1], "127.0.0.1", 200),
            ([127, 0, 0, 1], "[::1]:4504", 200),
            ([127, 0, 0, 1], "evil.example", 403),
            ([127, 0, 0, 1], "evil.example:4504", 403),
            ([127, 0, 0, 1], "127.0.0.1.evil.example", 403),
            // A monitor elsewhere uses the name of the machine.
            ([192, 0, 2, 1], "author.example:4504", 200),
        ] {
            assert_eq!(ask(address, host, target).await, expected, "{target} {host}");
        }
    }
}
