//! Bodies with a bound on their size, on how long the peer may send nothing, and on how slowly it may send.
//!
//! A handler wraps every request body that it reads and answers 413 on [`TooLarge`] and 408 where [`is_stalled`]. The
//! listener refuses a `Content-Length` over the limit by itself, before a byte of the body is read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};

pub use crate::pace::{Pace, Stalled, TooSlow, Wait};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The largest body that the front accepts; an extension of every request that came through [`crate::listen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimit(pub u64);

/// The body is larger than its limit: answer 413.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is larger than {limit} bytes")]
pub struct TooLarge {
    /// The limit in bytes.
    pub limit: u64,
}

/// Returns `body`, cut off with [`TooLarge`] after `max` bytes.
pub fn limited<B>(body: B, max: u64) -> Limited<B> {
    Limited { body, limit: max, left: max, wait: Wait::new(None) }
}

/// A body that fails once it exceeds its limit; made by [`limited`].
#[derive(Debug)]
pub struct Limited<B> {
    body: B,
    limit: u64,
    left: u64,
    wait: Wait,
}

impl<B> Limited<B> {
    /// Also fails with [`Stalled`] when no frame arrives for `after`.
    #[must_use]
    pub fn stalling_at_most(mut self, after: Duration) -> Self {
        self.wait.set_silence(after);
        self
    }

    /// Also fails with [`TooSlow`] when the body arrives slower than `pace`, if there is one.
    #[must_use]
    pub fn keeping(mut self, pace: Option<Pace>) -> Self {
        self.wait.set_pace(pace);
        self
    }
}

impl<B> Body for Limited<B>
where
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.wait.poll(cx).map(|reason| Some(Err(reason)));
        };
        let frame = match next {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        let size = frame.data_ref().map_or(0, |data| data.remaining() as u64);
        self.wait.arrive(size);
        match self.left.checked_sub(size) {
            Some(left) => self.left = left,
            None => {
                let limit = self.limit;
                return Poll::Ready(Some(Err(TooLarge { limit }.into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Tells whether `error`, or a cause of it, is [`TooLarge`].
#[must_use]
pub fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<TooLarge>())
}

/// Tells whether `error`, or a cause of it, is [`Stalled`] or [`TooSlow`].
#[must_use]
pub fn is_stalled(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<Stalled>() || cause.is::<TooSlow>())
}

fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
