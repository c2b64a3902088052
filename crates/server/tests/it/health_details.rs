//! Who is told the details of `/health`.

use std::net::IpAddr;

use http::Method;

use crate::support::TestInstance;

#[tokio::test]
async fn the_state_of_an_instance_is_told_to_those_who_run_it() {
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
        ] {
            let told = request.send().await.json();
            assert!(told["status"].is_string(), "{told}");
            assert!(told.get("checks").is_none() && told.get("uptime_s").is_none(), "{told}");
        }
        assert_ne!(instance.visit("/metrics").await.status, 200);
    }
}

#[tokio::test]
async fn users_of_an_author_are_told_its_state_from_anywhere() {
    let author = TestInstance::author().await;
    let health = author.as_admin(Method::GET, "/health").header("x-forwarded-for", "192.0.2.1");
    let told = health.send().await.json();
    assert!(told["checks"].is_array(), "{told}");
}
