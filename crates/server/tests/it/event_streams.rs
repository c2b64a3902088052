//! Event streams: a client holds a permit for as long as it is there.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{StatusCode, header};
use tower::ServiceExt;
use tympan_web::listen::ConnectionPeer;

use crate::support::TestInstance;

/// The maximum number of streams of one user.
const MAX_STREAMS: usize = 64;

async fn open_stream(author: &TestInstance, token: &str) -> Response {
    let request = Request::get("/api/v1/changes")
        .header(header::HOST, "localhost")
        .header(header::ACCEPT, "text/event-stream")
        .header(header::AUTHORIZATION, format!("Bearer {token}"));
    let peer = ConnectionPeer::new(SocketAddr::from(([127, 0, 0, 1], 50_000)), true);
    let request = request.extension(peer).body(Body::empty()).unwrap();
    author.router().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn a_client_that_goes_makes_room_for_the_next_one_at_once() {
    let author = TestInstance::author().await;
    let token = author.user("ann", &[]).await;
    let mut streams = Vec::new();
    for _ in 0..MAX_STREAMS {
        let stream = open_stream(&author, &token).await;
        assert_eq!(stream.status(), StatusCode::OK);
        streams.push(stream);
    }
    assert_eq!(open_stream(&author, &token).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    streams.pop();
    // The stream's task is on this thread, too.
    tokio::task::yield_now().await;
    assert_eq!(open_stream(&author, &token).await.status(), StatusCode::OK);
}
