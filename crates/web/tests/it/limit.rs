//! Bodies and their bounds, with the clock paused.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tympan_web::body_limit::{
    BodyTooSlow, MinReadRate, is_body_timeout, is_body_too_large, limit_body,
};

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

/// A byte every second.
struct Trickle(tokio::time::Interval);

impl Body for Trickle {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_tick(cx).map(|_| Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }
}

fn pace(grace: u64, rate: u64) -> Option<MinReadRate> {
    let bytes_per_second = std::num::NonZeroU64::new(rate)?;
    Some(MinReadRate { grace_period: Duration::from_secs(grace), bytes_per_second })
}

fn trickle() -> Trickle {
    Trickle(tokio::time::interval(Duration::from_secs(1)))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_in_fails_although_it_never_stops() {
    for has_silence in [true, false] {
        let body = limit_body(trickle(), 1000).with_min_read_rate(pace(60, 100));
        let body = if has_silence { body.with_idle_timeout(Duration::from_secs(30)) } else { body };
        let began = tokio::time::Instant::now();
        let error = body.collect().await.unwrap_err();
        assert!(
            is_body_timeout(&*error) && error.downcast_ref::<BodyTooSlow>().is_some(),
            "{error}"
        );
        let after = began.elapsed().as_secs();
        assert!((60..=62).contains(&after), "{after} s");
    }
    // One byte in a second is what is asked for.
    let body = limit_body(trickle(), 1000).with_min_read_rate(pace(5, 1));
    assert!(is_body_too_large(&*body.collect().await.unwrap_err()), "it goes on to its limit");
    // And nothing is asked for.
    let body = limit_body(trickle(), 1000).with_min_read_rate(pace(5, 0));
    assert!(is_body_too_large(&*body.collect().await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_busy_is_not_held_against_the_sender() {
    let mut body = std::pin::pin!(
        limit_body(Full::new(Bytes::from("12345")), 10)
            .with_idle_timeout(Duration::from_secs(1))
            .with_min_read_rate(pace(1, 1000))
    );
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(body.frame().await.unwrap().is_ok());
    // The alarm counts from when somebody waits, and what is there goes before it.
    let mut slow = std::pin::pin!(limit_body(trickle(), 1000).with_min_read_rate(pace(3, 1000)));
    for _ in 0..3 {
        assert!(slow.frame().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
}

#[tokio::test]
async fn a_body_may_fill_its_limit_but_not_exceed_it() {
    let read = |max| limit_body(Full::new(Bytes::from("12345")), max).collect();
    assert_eq!(read(5).await.unwrap().to_bytes(), "12345");
    let error = read(4).await.unwrap_err();
    assert!(is_body_too_large(&*error) && !is_body_timeout(&*error));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_fails() {
    let body =
        limit_body(Silent(Some(Bytes::from("1"))), 10).with_idle_timeout(Duration::from_secs(30));
    let error = body.collect().await.unwrap_err();
    assert!(is_body_timeout(&*error) && !is_body_too_large(&*error));
}
