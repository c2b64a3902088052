//! Requests to back ends over HTTP: to the configured addresses only.

use std::time::Duration;

use tympan_render::{BackendClient, HttpBackendClient, HttpBackendEndpoint};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};
use tympan_web::outgoing_policy::OutgoingPolicy;

#[test]
fn a_back_end_is_asked_where_it_is_and_nobody_else() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = OriginServer::start(|request| match request.target.as_str() {
        "/value" => OriginResponse::html("1"),
        _ => OriginResponse::with_status(302)
            .with_header("Location", "http://169.254.169.254/latest"),
    });
    let near = format!("http://localhost:{}", server.addr().port());
    let endpoint = |url: &str| HttpBackendEndpoint {
        url_prefix: url.to_owned(),
        max_idle_connections: 16,
        tls_trust: None,
        outgoing_policy: OutgoingPolicy::default().for_configured_host(&url.parse().unwrap()),
    };
    let endpoints = [endpoint(&near), endpoint("http://169.254.169.254/latest")];
    let client = HttpBackendClient::new(endpoints, runtime.handle().clone());
    let get = |url: &str| client.fetch(url, Duration::from_secs(30), 100);
    assert_eq!(get(&format!("{near}/value")).unwrap(), b"1");
    assert_eq!(get(&format!("{near}/away")).unwrap_err(), "status 302");
    let refused = get("http://169.254.169.254/latest/meta-data").unwrap_err();
    assert!(
        refused.contains("requests to `169.254.169.254` are not allowed")
            && refused.contains("a cloud metadata address"),
        "{refused}"
    );
}
