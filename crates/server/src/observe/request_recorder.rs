//! Recording of requests: two lines in `request.log`, one in `access.log`, and counters.

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
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::RequestLogEventRef;
use tympan_web::{access_log, request_log, sample_mark};

use crate::Instance;
use crate::login::RequestIdentity;
use crate::observe::metrics::increment;
use crate::observe::request_history::RequestOutcome;

/// Records a request when it arrives, and when the last byte of its response has been sent or the client has
/// disconnected.
pub(crate) async fn record_requests(
    State(instance): State<Arc<Instance>>,
    request: Request,
    next: Next,
) -> Response {
    let number = instance.request_numbers.take_next();
    let version = format!("{:?}", request.version());
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let method = request.method().to_string();
    let event = RequestLogEventRef::Entry { method: &method, target: &target, version: &version };
    let at = LogTime::from_system(SystemTime::now());
    instance.request_log.write_line(&request_log::RequestLogLineRef {
        logged_at: at,
        request_number: number,
        event,
    });
    let text = |headers: &HeaderMap, name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let mut note = RequestRecord {
        number,
        started_at: Instant::now(),
        status: StatusCode::INTERNAL_SERVER_ERROR,
        media_type: None,
        bytes: 0,
        client: request
            .extensions()
            .get::<ConnectionPeer>()
            .map_or_else(|| "-".to_owned(), |peer| peer.addr.ip().to_string()),
        user: None,
        request_line: format!("{method} {target} {version}"),
        referer: text(request.headers(), header::REFERER),
        user_agent: text(request.headers(), header::USER_AGENT),
        lab_sample: sample_mark::sample_mark_of(request.headers()).map(str::to_owned),
        instance: instance.clone(),
    };
    let may_write = !request.method().is_safe();
    let response = next.run(request).await;
    if may_write {
        // Wakes the full-text index, which would otherwise find the commit a little later.
        note.instance.search.wake_follower();
    }
    note.status = response.status();
    note.user =
        response.extensions().get::<RequestIdentity>().map(|identity| identity.user.clone());
    note.media_type = RequestRecord::logged_media_type(response.headers());
    response.map(|body| Body::new(RecordedBody { body, record: note }))
}

/// Returns a media type without its parameters.
pub(crate) fn media_type_essence(media_type: &HeaderValue) -> Cow<'_, str> {
    let full = media_type.as_bytes();
    let end = full.iter().position(|byte| *byte == b';').unwrap_or(full.len());
    String::from_utf8_lossy(full.get(..end).unwrap_or(full))
}

/// The data of a request; recorded on drop.
struct RequestRecord {
    number: u64,
    started_at: Instant,
    status: StatusCode,
    media_type: Option<String>,
    bytes: u64,
    client: String,
    user: Option<String>,
    request_line: String,
    referer: Option<String>,
    user_agent: Option<String>,
    lab_sample: Option<String>,
    instance: Arc<Instance>,
}

impl RequestRecord {
    /// Returns the media type of a response for the log.
    fn logged_media_type(headers: &HeaderMap) -> Option<String> {
        Some(media_type_essence(headers.get(header::CONTENT_TYPE)?).into_owned())
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.instance.record_completed_request(&CompletedRequest {
            number: self.number,
            started_at: self.started_at,
            status: self.status,
            media_type: self.media_type.as_deref(),
            bytes: self.bytes,
            client: &self.client,
            user: self.user.as_deref(),
            request_line: &self.request_line,
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
            lab_sample: self.lab_sample.as_deref(),
        });
    }
}

/// A request whose response has been sent, or whose client has disconnected.
pub(crate) struct CompletedRequest<'a> {
    pub(crate) number: u64,
    pub(crate) started_at: Instant,
    pub(crate) status: StatusCode,
    pub(crate) media_type: Option<&'a str>,
    pub(crate) bytes: u64,
    pub(crate) client: &'a str,
    pub(crate) user: Option<&'a str>,
    pub(crate) request_line: &'a str,
    pub(crate) referer: Option<&'a str>,
    pub(crate) user_agent: Option<&'a str>,
    /// The lab sample to which the request belongs.
    pub(crate) lab_sample: Option<&'a str>,
}

impl Instance {
    /// Counts a request, and writes the log lines for its end.
    pub(crate) fn record_completed_request(&self, left: &CompletedRequest<'_>) {
        let metrics = &self.metrics;
        increment(&metrics.requests);
        if left.status.is_server_error() {
            increment(&metrics.server_errors);
        }
        if left.status == StatusCode::SERVICE_UNAVAILABLE {
            increment(&metrics.overload_rejections);
        }
        if matches!(left.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            increment(&metrics.access_denied);
        }
        let method = left.request_line.split(' ').next().unwrap_or_default();
        self.request_latency.record_request_by_name(method, left.status, left.started_at.elapsed());
        let now = SystemTime::now();
        let at = LogTime::from_system(now);
        let outcome = RequestOutcome {
            elapsed: left.started_at.elapsed(),
            is_server_error: left.status.is_server_error(),
            is_page: left.status == StatusCode::OK
                && method == "GET"
                && left.media_type == Some("text/html"),
        };
        self.request_history.record_request(outcome, now);
        let (status, media_type) = (left.status.as_u16(), left.media_type);
        let (elapsed, sample) = (left.started_at.elapsed(), left.lab_sample);
        self.request_totals.record_request(elapsed, left.bytes);
        let event = RequestLogEventRef::Exit { status, media_type, elapsed, sample };
        self.request_log.write_line(&request_log::RequestLogLineRef {
            logged_at: at,
            request_number: left.number,
            event,
        });
        self.access_log.write_line(&access_log::AccessLogLineRef {
            client: left.client,
            user: left.user,
            completed_at: at,
            request: left.request_line,
            status,
            body_bytes: (left.bytes > 0).then_some(left.bytes),
            referer: left.referer,
            user_agent: left.user_agent,
        });
    }
}

/// A body that counts its bytes and holds the request record until it ends.
struct RecordedBody {
    body: Body,
    record: RequestRecord,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.record.bytes += data.len() as u64;
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
