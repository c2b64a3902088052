//! Bodies and their bounds, with the clock paused.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tympan_web::limit::{is_stalled, is_too_large, limited};

/// One frame, then silence.
struct Silent(Option<Bytes>);

impl Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn a_body_may_fill_its_limit_but_not_exceed_it() {
    let read = |max| limited(Full::new(Bytes::from("12345")), max).collect();
    assert_eq!(read(5).await.unwrap().to_bytes(), "12345");
    let error = read(4).await.unwrap_err();
    assert!(is_too_large(&*error) && !is_stalled(&*error));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_fails() {
    let body =
        limited(Silent(Some(Bytes::from("1"))), 10).stalling_at_most(Duration::from_secs(30));
    let error = body.collect().await.unwrap_err();
    assert!(is_stalled(&*error) && !is_too_large(&*error));
}
