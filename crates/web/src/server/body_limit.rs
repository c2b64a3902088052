//! Request bodies with limits on their size, on the time without data, and on the average transfer rate.
//!
//! A handler wraps every request body that it reads, and responds with 413 on [`BodyTooLarge`] and with 408 if
//! [`is_body_timeout`]. The listener itself refuses a `Content-Length` over the limit, before a byte of the body is
//! read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};

pub use crate::server::body_timeout::{BodyIdleTimeout, BodyReadTimeout, BodyTooSlow, MinReadRate};

type BodyLimitBoxError = Box<dyn std::error::Error + Send + Sync>;

/// The maximum body size of the listener in bytes; an extension of every request that came through
/// [`crate::server::listen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyLimit(pub u64);

impl BodyLimit {
    /// Returns the limit of a request; the default if the request did not come through a listener.
    #[must_use]
    pub fn of_request(extensions: &http::Extensions) -> Self {
        extensions.get().copied().unwrap_or_default()
    }
}

impl Default for BodyLimit {
    /// 64 MiB.
    fn default() -> Self {
        Self(64 * 1024 * 1024)
    }
}

/// The body is larger than its limit; the response is 413.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is larger than {limit} bytes")]
pub struct BodyTooLarge {
    /// The limit in bytes.
    pub limit: u64,
}

/// Returns `body`, which fails with [`BodyTooLarge`] after `max` bytes.
pub fn limit_body<B>(body: B, max: u64) -> LimitedBody<B> {
    LimitedBody { body, limit: max, remaining_bytes: max, read_timeout: BodyReadTimeout::new(None) }
}

/// A body that fails when it exceeds its limit; created by [`limit_body`].
#[derive(Debug)]
pub struct LimitedBody<B> {
    body: B,
    limit: u64,
    remaining_bytes: u64,
    read_timeout: BodyReadTimeout,
}

impl<B> LimitedBody<B> {
    /// Also fails with [`BodyIdleTimeout`] when no frame arrives for `after`.
    #[must_use]
    pub fn with_idle_timeout(mut self, after: Duration) -> Self {
        self.read_timeout.set_idle_timeout(after);
        self
    }

    /// Also fails with [`BodyTooSlow`] when the body arrives slower than `pace`, if given.
    #[must_use]
    pub fn with_min_read_rate(mut self, pace: Option<MinReadRate>) -> Self {
        self.read_timeout.set_min_read_rate(pace);
        self
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body + Unpin,
    B::Error: Into<BodyLimitBoxError>,
{
    type Data = B::Data;
    type Error = BodyLimitBoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.read_timeout.poll_timeout(cx).map(|reason| Some(Err(reason)));
        };
        let frame = match next {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            Some(Ok(frame)) => frame,
        };
        let size = frame.data_ref().map_or(0, |data| data.remaining() as u64);
        self.read_timeout.record_bytes(size);
        match self.remaining_bytes.checked_sub(size) {
            Some(left) => self.remaining_bytes = left,
            None => {
                let limit = self.limit;
                return Poll::Ready(Some(Err(BodyTooLarge { limit }.into())));
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

/// Returns true if `error`, or one of its causes, is [`BodyTooLarge`].
#[must_use]
pub fn is_body_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    error_causes(error).any(|cause| cause.is::<BodyTooLarge>())
}

/// Returns true if `error`, or one of its causes, is [`BodyIdleTimeout`] or [`BodyTooSlow`].
#[must_use]
pub fn is_body_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    error_causes(error).any(|cause| cause.is::<BodyIdleTimeout>() || cause.is::<BodyTooSlow>())
}

fn error_causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
