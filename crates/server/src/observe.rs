//! What is written down about every request: two lines of `request.log`, one of `access.log`, counters.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Instant, SystemTime};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use tympan_web::listen::Peer;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::EventRef;
use tympan_web::{access_log, request_log, sample_mark};

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
    let event = EventRef::Entry { method: &method, target: &target, version: &version };
    let at = LogTime::from_system(SystemTime::now());
    instance.request_log.write_as(&request_log::LineRef { at, request: number, event });
    let text = |headers: &HeaderMap, name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned())
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
        sample: sample_mark::of(request.headers()).map(str::to_owned),
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

/// Returns a media type without its parameters.
pub(crate) fn essence_of(media_type: &HeaderValue) -> Cow<'_, str> {
    let full = media_type.as_bytes();
    let end = full.iter().position(|byte| *byte == b';').unwrap_or(full.len());
    String::from_utf8_lossy(full.get(..end).unwrap_or(full))
}

/// What is known of a request; written down when it is dropped.
struct Note {
    number: u64,
    started: Instant,
    status: StatusCode,
    media_type: Option<String>,
    bytes: u64,
    client: String,
    user: Option<String>,
    request_line: String,
    referer: Option<String>,
    user_agent: Option<String>,
    sample: Option<String>,
    instance: Arc<Instance>,
}

impl Note {
    /// Returns the media type of an answer as the log has it.
    fn media_type_of(headers: &HeaderMap) -> Option<String> {
        Some(essence_of(headers.get(header::CONTENT_TYPE)?).into_owned())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        self.instance.note_left(&Left {
            number: self.number,
            started: self.started,
            status: self.status,
            media_type: self.media_type.as_deref(),
            bytes: self.bytes,
            client: &self.client,
            user: self.user.as_deref(),
            request_line: &self.request_line,
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
            sample: self.sample.as_deref(),
        });
    }
}

/// What is known of a request whose answer has left, or whose client has gone.
pub(crate) struct Left<'a> {
    pub(crate) number: u64,
    pub(crate) started: Instant,
    pub(crate) status: StatusCode,
    pub(crate) media_type: Option<&'a str>,
    pub(crate) bytes: u64,
    pub(crate) client: &'a str,
    pub(crate) user: Option<&'a str>,
    pub(crate) request_line: &'a str,
    pub(crate) referer: Option<&'a str>,
    pub(crate) user_agent: Option<&'a str>,
    /// The lab's sample that it belongs to.
    pub(crate) sample: Option<&'a str>,
}

impl Instance {
    /// Counts a request, and writes the lines about its end.
    pub(crate) fn note_left(&self, left: &Left<'_>) {
        let metrics = &self.metrics;
        count(&metrics.requests);
        if left.status.is_server_error() {
            count(&metrics.server_errors);
        }
        if left.status == StatusCode::SERVICE_UNAVAILABLE {
            count(&metrics.put_off);
        }
        if matches!(left.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            count(&metrics.refused);
        }
        let method = left.request_line.split(' ').next().unwrap_or_default();
        self.request_times.note_named(method, left.status, left.started.elapsed());
        let at = LogTime::from_system(SystemTime::now());
        let (status, media_type) = (left.status.as_u16(), left.media_type);
        let (elapsed, sample) = (left.started.elapsed(), left.sample);
        self.request_sums.note(elapsed, left.bytes);
        let event = EventRef::Exit { status, media_type, elapsed, sample };
        self.request_log.write_as(&request_log::LineRef { at, request: left.number, event });
        self.access_log.write_as(&access_log::LineRef {
            client: left.client,
            user: left.user,
            at,
            request: left.request_line,
            status,
            bytes: (left.bytes > 0).then_some(left.bytes),
            referer: left.referer,
            user_agent: left.user_agent,
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
