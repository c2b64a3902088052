//! What is written down about every request: two lines of `request.log`, one of `access.log`, counters.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body::{Frame, SizeHint};
use tympan_web::listen::Peer;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::Event;
use tympan_web::{access_log, request_log};

use crate::Instance;
use crate::login::Identity;
use crate::metrics::count;

/// Notes the request when it enters and when the last byte of its answer has left, or the client has gone.
pub(crate) async fn observe(
    State(instance): State<Arc<Instance>>,
    request: Request,
    next: Next,
) -> Response {
    let number = instance.numbers.take_next();
    let version = format!("{:?}", request.version());
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let method = request.method().to_string();
    let event =
        Event::Entry { method: method.clone(), target: target.clone(), version: version.clone() };
    instance.request_log.write(request_log::Line {
        at: LogTime::from_system(SystemTime::now()),
        request: number,
        event,
    });
    let text = |headers: &HeaderMap, name| {
        headers
            .get(name)
            .map(|value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let mut note = Note {
        number,
        started: Instant::now(),
        status: StatusCode::INTERNAL_SERVER_ERROR,
        media_type: None,
        bytes: 0,
        client: request
            .extensions()
            .get::<Peer>()
            .map_or_else(|| "-".to_owned(), |peer| peer.addr.ip().to_string()),
        user: None,
        request_line: format!("{method} {target} {version}"),
        referer: text(request.headers(), header::REFERER),
        user_agent: text(request.headers(), header::USER_AGENT),
        instance: instance.clone(),
    };
    let may_write = !request.method().is_safe();
    let response = next.run(request).await;
    if may_write {
        // Without this the full-text index would find the commit by itself, a little later.
        note.instance.search.wake();
    }
    note.status = response.status();
    note.user = response.extensions().get::<Identity>().map(|identity| identity.user.clone());
    note.media_type = Note::media_type_of(response.headers());
    response.map(|body| Body::new(Noted { body, note }))
}

/// What is known of a request; written down when it is dropped.
pub(crate) struct Note {
    pub(crate) number: u64,
    pub(crate) started: Instant,
    pub(crate) status: StatusCode,
    pub(crate) media_type: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) client: String,
    pub(crate) user: Option<String>,
    pub(crate) request_line: String,
    pub(crate) referer: Option<String>,
    pub(crate) user_agent: Option<String>,
    pub(crate) instance: Arc<Instance>,
}

impl Note {
    /// Returns the media type of an answer as the log has it.
    pub(crate) fn media_type_of(headers: &HeaderMap) -> Option<String> {
        let full = headers.get(header::CONTENT_TYPE)?;
        let full = String::from_utf8_lossy(full.as_bytes());
        Some(full.split(';').next().unwrap_or_default().to_owned())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let metrics = &self.instance.metrics;
        count(&metrics.requests);
        if self.status.is_server_error() {
            count(&metrics.server_errors);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            count(&metrics.put_off);
        }
        if matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            count(&metrics.refused);
        }
        let at = LogTime::from_system(SystemTime::now());
        let event = Event::Exit {
            status: self.status.as_u16(),
            media_type: self.media_type.take(),
            elapsed: self.started.elapsed(),
        };
        self.instance.request_log.write(request_log::Line { at, request: self.number, event });
        self.instance.access_log.write(access_log::Line {
            client: std::mem::take(&mut self.client),
            user: self.user.take(),
            at,
            request: std::mem::take(&mut self.request_line),
            status: self.status.as_u16(),
            bytes: (self.bytes > 0).then_some(self.bytes),
            referer: self.referer.take(),
            user_agent: self.user_agent.take(),
        });
    }
}

/// A body that counts its bytes and carries the note to its end.
struct Noted {
    body: Body,
    note: Note,
}

impl http_body::Body for Noted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.note.bytes += data.len() as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
