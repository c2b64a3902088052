//! The client against a scripted origin.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use tympan_testkit::origin::{Answer, Delivery, Origin, dead_addr};
use tympan_web::client::{Client, Error, Options};

fn get(addr: std::net::SocketAddr, target: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://{addr}{target}")).body(Empty::new()).unwrap()
}

#[tokio::test]
async fn a_request_and_its_answer_pass_whole() {
    let origin =
        Origin::start(|seen| Answer::html(seen.body.clone()).header("X-Was", &seen.method));
    let client = Client::default();
    let request = Request::post(format!("http://{}/a?b=c", origin.addr()))
        .body(Full::new(Bytes::from("text")))
        .unwrap();
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.headers()["x-was"], "POST");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "text");
    assert_eq!(origin.seen()[0].target, "/a?b=c");
}

#[tokio::test]
async fn a_closed_port_is_an_unsent_transient_error() {
    let error = Client::default().send(get(dead_addr(), "/")).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.is_transient() && error.is_unsent());
}

#[tokio::test]
async fn silence_ends_in_a_timeout() {
    let origin = Origin::always(Answer::html("x").deliver(Delivery::Silence));
    let client = Client::new(Options {
        response_timeout: Some(Duration::from_millis(50)),
        ..Options::default()
    });
    let error = client.send(get(origin.addr(), "/")).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    assert!(error.is_transient() && !error.is_unsent());
}

#[tokio::test]
async fn a_hangup_is_broken_and_not_repeated() {
    let origin = Origin::always(Answer::html("x").deliver(Delivery::Hangup));
    let error = Client::default().send(get(origin.addr(), "/")).await.unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error:?}");
    assert_eq!(origin.requests(), 1);
}

#[tokio::test]
async fn a_cut_body_is_an_error_of_the_body() {
    let origin = Origin::always(Answer::html("0123456789").deliver(Delivery::CutAfter(4)));
    let answer = Client::default().send(get(origin.addr(), "/")).await.unwrap();
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_body_arrives_before_it_is_complete() {
    let origin = Origin::always(Answer::html("0123456789").deliver(Delivery::StallAfter(4)));
    let answer = Client::default().send(get(origin.addr(), "/")).await.unwrap();
    let frame = answer.into_body().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "0123");
}

#[tokio::test]
async fn a_relative_uri_is_refused() {
    let request = Request::get("/x").body(Empty::<Bytes>::new()).unwrap();
    let error = Client::default().send(request).await.unwrap_err();
    assert!(matches!(error, Error::Request { .. }) && !error.is_transient());
}

#[tokio::test]
async fn tls_without_trust_is_refused_before_anything_is_sent() {
    let origin = Origin::always(Answer::html("x"));
    let uri = format!("https://{}/", origin.addr());
    let request = Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
    assert!(Client::default().send(request).await.unwrap_err().is_unsent());
    assert_eq!(origin.requests(), 0);
}
