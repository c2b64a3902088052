//! The client against a scripted origin.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use tympan_testkit::origin_server::{
    OriginResponse, OriginServer, ResponseDelivery, refusing_addr,
};
use tympan_web::client::{ClientError, ClientOptions, HttpClient};
use tympan_web::outgoing_policy::OutgoingPolicy;

fn get(addr: std::net::SocketAddr, target: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{addr}{target}")).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn a_request_and_its_answer_pass_whole() {
    let origin = OriginServer::start(|seen| {
        OriginResponse::html(seen.body.clone()).with_header("X-Was", &seen.method)
    });
    let client = HttpClient::default();
    let request = Request::post(format!("http://{}/a?b=c", origin.addr()))
        .body(Full::new(Bytes::from("text")))
        .unwrap();
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.headers()["x-was"], "POST");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "text");
    assert_eq!(origin.requests()[0].target, "/a?b=c");
}

#[tokio::test]
async fn a_closed_port_is_an_unsent_transient_error() {
    let error = HttpClient::default().send(get(refusing_addr(), "/")).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(error.is_transient() && error.is_unsent());
}

#[tokio::test]
async fn silence_ends_in_a_timeout() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_delivery(ResponseDelivery::NoResponse),
    );
    let client = HttpClient::new(ClientOptions {
        response_timeout: Some(Duration::from_millis(50)),
        ..ClientOptions::default()
    });
    let error = client.send(get(origin.addr(), "/")).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert!(error.is_transient() && !error.is_unsent());
}

#[tokio::test]
async fn a_hangup_is_broken_and_not_repeated() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("x").with_delivery(ResponseDelivery::Hangup),
    );
    let error = HttpClient::default().send(get(origin.addr(), "/")).await.unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error:?}");
    assert_eq!(origin.request_count(), 1);
}

#[tokio::test]
async fn a_cut_body_is_an_error_of_the_body() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("0123456789").with_delivery(ResponseDelivery::CutAfter(4)),
    );
    let answer = HttpClient::default().send(get(origin.addr(), "/")).await.unwrap();
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_body_arrives_before_it_is_complete() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("0123456789").with_delivery(ResponseDelivery::StallAfter(4)),
    );
    let answer = HttpClient::default().send(get(origin.addr(), "/")).await.unwrap();
    let frame = answer.into_body().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "0123");
}

#[tokio::test]
async fn a_relative_uri_is_refused() {
    let request = Request::get("/x").body(Empty::<Bytes>::new()).unwrap();
    let error = HttpClient::default().send(request).await.unwrap_err();
    assert!(matches!(error, ClientError::Request { .. }) && !error.is_transient());
}

#[tokio::test]
async fn tls_without_trust_is_refused_before_anything_is_sent() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let uri = format!("https://{}/", origin.addr());
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    assert!(HttpClient::default().send(request).await.unwrap_err().is_unsent());
    assert_eq!(origin.request_count(), 0);
}

/// Returns a client for one host that a configuration names.
fn client_for(outgoing: &OutgoingPolicy, uri: &str) -> HttpClient {
    let outgoing = Some(Arc::new(outgoing.for_configured_host(&uri.parse().unwrap())));
    HttpClient::new(ClientOptions { outgoing_policy: outgoing, ..ClientOptions::default() })
}

async fn asked(client: &HttpClient, uri: &str) -> Result<u16, ClientError> {
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    client.send(request).await.map(|answer| answer.status().as_u16())
}

#[tokio::test]
async fn a_named_host_is_asked_where_it_is_and_nobody_else() {
    let away = OriginResponse::with_status(302)
        .with_header("Location", "http://169.254.169.254/latest/meta-data");
    let origin = OriginServer::start_constant(away);
    let uri = format!("http://localhost:{}/a", origin.addr().port());
    let client = client_for(&OutgoingPolicy::default(), &uri);
    assert_eq!(asked(&client, &uri).await.unwrap(), 302, "and nobody follows");
    assert_eq!(origin.request_count(), 1);
    for other in [format!("http://{}/a", origin.addr()), "http://localhost:1/".to_owned()] {
        let error = asked(&client, &other).await.unwrap_err();
        assert!(matches!(error, ClientError::NotAllowed { .. }), "{error:?}");
    }
    for secret in ["http://169.254.169.254/", "http://[fe80::1]/", "http://2852039166/"] {
        let error =
            asked(&client_for(&OutgoingPolicy::default(), secret), secret).await.unwrap_err();
        assert!(
            error.to_string().contains("cloud metadata address") && error.is_unsent(),
            "{secret}: {error}"
        );
    }
    assert_eq!(origin.request_count(), 1);
}

#[tokio::test]
async fn a_name_that_comes_to_lead_nearer_is_refused_unless_that_is_listed() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let uri = format!("http://localhost:{}/a", origin.addr().port());
    for (networks, is_asked) in [(vec![], false), (vec!["127.0.0.0/8", "::1"], true)] {
        let networks = networks.iter().map(|one| one.parse().unwrap()).collect();
        let outgoing = OutgoingPolicy::new(&[], networks).unwrap();
        // At first, the name led into the internet.
        let public = SocketAddr::from(([93, 184, 216, 34], 80));
        let (admitted, _) =
            outgoing.for_configured_host(&uri.parse().unwrap()).partition_addresses([public]);
        assert_eq!(admitted, [public]);
        match asked(&client_for(&outgoing, &uri), &uri).await {
            Ok(status) => assert!(is_asked && status == 200, "{status}"),
            Err(error) => assert!(
                !is_asked && error.to_string().contains("closer to this machine"),
                "{error}"
            ),
        }
        assert_eq!(origin.request_count(), usize::from(is_asked));
    }
}
