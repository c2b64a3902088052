//! The service behind the lane: a connection of HTTP/2 within the process, on which hyper answers what the lane does not.
//!
//! Frames pass with other numbers of streams and with their fields written anew; nothing else is looked at, so that hyper
//! judges requests as it does without a lane.
//!
//! Invariants
//! * Bodies of requests: the client may send what the service lets the lane send ([`HTTP2_STREAM_WINDOW`](tympan_web::fast_path::HTTP2_STREAM_WINDOW) at first on both
//!   sides, and [`http2_connection_window`] of all), so that nothing gathers here.
//! * Bodies of answers: the service may send [`RESPONSE_WINDOW_BYTES`] bytes of each beyond what the client took.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tympan_web::fast_path::http2_connection_window;

use super::connection::{Http2Connection, StreamNotice};
use super::frame::{
    self, CLIENT_PREFACE, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Http2ErrorCode, MAX_31_BIT,
    frame_flag, read_u32, setting_id,
};
use super::hpack::{FieldList, HpackDecoder, push_literal, push_raw_field};
use super::stream::RESPONSE_WINDOW_BYTES;

/// The capacity of the pipe in each direction, in bytes.
const PIPE_BYTES: usize = 64 * 1024;
/// The number of bytes waiting for the pipe at which reading from the client stops.
const MAX_UNWRITTEN_BYTES: usize = 256 * 1024;
const INITIAL_WINDOW: i64 = 65_535;
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// The maximum size of the fields of a response; the service's own limits are lower.
const MAX_RESPONSE_FIELD_BYTES: usize = 1024 * 1024;

/// Notifies a fast-path worker that the service made progress; at most once until [`ServiceNotifier::reset`].
pub(crate) struct ServiceNotifier {
    notify: Box<dyn Fn() + Send + Sync>,
    is_notified: AtomicBool,
}

impl std::fmt::Debug for ServiceNotifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ServiceNotifier")
            .field("is_rung", &self.is_notified)
            .finish_non_exhaustive()
    }
}

impl ServiceNotifier {
    pub(crate) fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { notify: Box::new(ring), is_notified: AtomicBool::new(false) })
    }

    fn reset(&self) {
        self.is_notified.store(false, Ordering::SeqCst);
    }
}

impl Wake for ServiceNotifier {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_notified.swap(true, Ordering::SeqCst) {
            (self.notify)();
        }
    }
}

/// The service closed its connection.
#[derive(Debug)]
pub(crate) struct ServiceGone;

/// One connection to the service.
#[derive(Debug)]
pub(crate) struct ServiceConnection {
    pipe: DuplexStream,
    notifier: Arc<ServiceNotifier>,
    waker: Waker,
    /// The output, and the number of its bytes already written.
    write_buffer: Vec<u8>,
    written_bytes: usize,
    /// The frames that wait for the settings of the service.
    deferred_frames: Vec<u8>,
    has_service_settings: bool,
    send_window: i64,
    /// The initial window size from the settings of the service.
    initial_send_window: i64,
    read_buffer: Vec<u8>,
    decoder: HpackDecoder,
    fields: FieldList,
    /// An incomplete head: its stream, true if it ends the stream, and the fields.
    partial_block: Option<(u32, bool, Vec<u8>)>,
    streams: HashMap<u32, ServiceStream>,
    next_stream: u32,
}

/// A stream of the service.
#[derive(Debug)]
struct ServiceStream {
    /// The stream number at the client.
    client_stream: u32,
    is_request_complete: bool,
    is_response_complete: bool,
}

impl ServiceConnection {
    /// Opens a connection; the returned stream is for the service. `notifier` is notified when [`ServiceConnection::pump`]
    /// has work to do.
    pub(crate) fn open(notifier: Arc<ServiceNotifier>, max_streams: u32) -> (Self, DuplexStream) {
        let (pipe, far) = tokio::io::duplex(PIPE_BYTES);
        let mut out = CLIENT_PREFACE.to_vec();
        let settings = [
            (setting_id::ENABLE_PUSH, 0),
            (setting_id::INITIAL_WINDOW_SIZE, RESPONSE_WINDOW_BYTES),
        ];
        frame::push_settings(&mut out, &settings);
        // The stream windows bound the amount of data.
        frame::push_window_update(
            &mut out,
            0,
            MAX_31_BIT - u32::try_from(INITIAL_WINDOW).unwrap_or(0),
        );
        let behind = Self {
            pipe,
            waker: Waker::from(Arc::clone(&notifier)),
            notifier,
            write_buffer: out,
            written_bytes: 0,
            deferred_frames: Vec::new(),
            has_service_settings: false,
            send_window: INITIAL_WINDOW,
            initial_send_window: http2_connection_window(max_streams).into(),
            read_buffer: Vec::new(),
            decoder: HpackDecoder::default(),
            fields: FieldList::default(),
            partial_block: None,
            streams: HashMap::new(),
            next_stream: 1,
        };
        (behind, far)
    }

    /// Returns true if more output is pending than the service accepts.
    pub(crate) fn is_full(&self) -> bool {
        self.write_buffer.len() - self.written_bytes + self.deferred_frames.len()
            > MAX_UNWRITTEN_BYTES
    }

    /// Returns true if the service handles no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns true if a stream number is available.
    pub(crate) fn has_free_stream_id(&self) -> bool {
        self.next_stream <= MAX_31_BIT
    }

    fn frame_buffer(&mut self) -> &mut Vec<u8> {
        if self.has_service_settings { &mut self.write_buffer } else { &mut self.deferred_frames }
    }

    /// Forwards a request to the service.
    pub(crate) fn forward_request(
        &mut self,
        session: &mut Http2Connection,
        front: u32,
        is_whole: bool,
        fields: &FieldList,
    ) {
        let number = self.next_stream;
        self.next_stream += 2;
        let block = encode_fields(fields);
        frame::push_field_block(self.frame_buffer(), number, is_whole, &[&block]);
        self.streams.insert(
            number,
            ServiceStream {
                client_stream: front,
                is_request_complete: is_whole,
                is_response_complete: false,
            },
        );
        session.assign_to_service(front, is_whole, number);
    }

    /// Forwards a piece of a request's body.
    pub(crate) fn forward_data(&mut self, number: u32, bytes: &[u8], is_last: bool) {
        if !self.streams.contains_key(&number) {
            return;
        }
        let flags = if is_last { frame_flag::END_STREAM } else { 0 };
        frame::push_frame(self.frame_buffer(), FrameKind::Data, (flags, number), bytes);
        if is_last {
            self.finish_request(number);
        }
    }

    /// Forwards the trailers of a request.
    pub(crate) fn forward_trailers(&mut self, number: u32, fields: &FieldList) {
        if self.streams.contains_key(&number) {
            let block = encode_fields(fields);
            frame::push_field_block(self.frame_buffer(), number, true, &[&block]);
            self.finish_request(number);
        }
    }

    fn finish_request(&mut self, number: u32) {
        if let Some(link) = self.streams.get_mut(&number) {
            link.is_request_complete = true;
            if link.is_response_complete {
                self.streams.remove(&number);
            }
        }
    }

    fn finish_response(&mut self, number: u32) {
        if let Some(link) = self.streams.get_mut(&number) {
            link.is_response_complete = true;
            if link.is_request_complete {
                self.streams.remove(&number);
            }
        }
    }

    /// Writes and reads as much as possible without blocking.
    ///
    /// # Errors
    /// [`ServiceGone`]; the requests that the service holds are then lost.
    pub(crate) fn pump(&mut self, session: &mut Http2Connection) -> Result<(), ServiceGone> {
        self.notifier.reset();
        loop {
            for (number, notice) in session.take_notices() {
                self.forward_notice(number, notice);
            }
            self.write_pending()?;
            let has_read = self.read_available(session)?;
            if !has_read && self.written_bytes == self.write_buffer.len() {
                self.write_buffer.clear();
                self.written_bytes = 0;
                return Ok(());
            }
            if !has_read {
                return Ok(());
            }
        }
    }

    fn forward_notice(&mut self, number: u32, notice: StreamNotice) {
        if !self.streams.contains_key(&number) {
            return;
        }
        match notice {
            StreamNotice::WindowOpened(bytes) => {
                frame::push_window_update(self.frame_buffer(), number, bytes)
            }
            StreamNotice::Reset(reason) => {
                self.streams.remove(&number);
                // A client error must not be reported to the service as the service's own error.
                let reason = if reason == Http2ErrorCode::NO_ERROR {
                    reason
                } else {
                    Http2ErrorCode::CANCEL
                };
                frame::push_reset(self.frame_buffer(), number, reason);
            }
        }
    }

    fn write_pending(&mut self) -> Result<(), ServiceGone> {
        let mut context = Context::from_waker(&self.waker);
        while let Some(rest) =
            self.write_buffer.get(self.written_bytes..).filter(|rest| !rest.is_empty())
        {
            match Pin::new(&mut self.pipe).poll_write(&mut context, rest) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(ServiceGone),
                Poll::Ready(Ok(count)) => self.written_bytes += count,
                Poll::Pending => break,
            }
        }
        if self.written_bytes > PIPE_BYTES {
            self.write_buffer.drain(..self.written_bytes);
            self.written_bytes = 0;
        }
        Ok(())
    }

    /// Reads the available input; returns true if there was any.
    fn read_available(&mut self, session: &mut Http2Connection) -> Result<bool, ServiceGone> {
        let mut has_read = false;
        let mut storage = [0; READ_BUFFER_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut storage);
            let mut context = Context::from_waker(&self.waker);
            match Pin::new(&mut self.pipe).poll_read(&mut context, &mut buffer) {
                Poll::Pending => return Ok(has_read),
                Poll::Ready(Err(_)) => return Err(ServiceGone),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Err(ServiceGone),
                Poll::Ready(Ok(())) => {}
            }
            has_read = true;
            self.read_buffer.extend_from_slice(buffer.filled());
            let unread = std::mem::take(&mut self.read_buffer);
            let mut rest = &unread[..];
            let outcome = self.read_frames(session, &mut rest);
            let rest_bytes = rest.len();
            self.read_buffer = unread;
            self.read_buffer.drain(..self.read_buffer.len() - rest_bytes);
            outcome?;
        }
    }

    fn read_frames(
        &mut self,
        session: &mut Http2Connection,
        input: &mut &[u8],
    ) -> Result<(), ServiceGone> {
        while let Some(head) = FrameHeader::parse(input) {
            let Some(payload) = input.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + head.length)
            else {
                break;
            };
            *input = input.get(FRAME_HEADER_BYTES + head.length..).unwrap_or_default();
            self.read_frame(session, head, payload)?;
        }
        Ok(())
    }

    fn read_frame(
        &mut self,
        session: &mut Http2Connection,
        head: FrameHeader,
        payload: &[u8],
    ) -> Result<(), ServiceGone> {
        let front = self.streams.get(&head.stream).map(|link| link.client_stream);
        match head.kind {
            FrameKind::Headers => {
                let mut block = Vec::new();
                block.extend_from_slice(frame::strip_padding(head, payload).ok_or(ServiceGone)?);
                self.partial_block =
                    Some((head.stream, head.has_flag(frame_flag::END_STREAM), block));
                self.finish_block(session, head)?;
            }
            FrameKind::Continuation => {
                let (_, _, block) = self.partial_block.as_mut().ok_or(ServiceGone)?;
                block.extend_from_slice(payload);
                self.finish_block(session, head)?;
            }
            FrameKind::Data => {
                let Some(front) = front else { return Ok(()) };
                let is_last = head.has_flag(frame_flag::END_STREAM);
                let bytes = frame::strip_padding(head, payload).ok_or(ServiceGone)?;
                session.forward_data(front, Bytes::copy_from_slice(bytes), is_last);
                if is_last {
                    self.finish_response(head.stream);
                }
            }
            FrameKind::Reset => {
                let reason = Http2ErrorCode(read_u32(payload).ok_or(ServiceGone)?);
                if let Some(link) = self.streams.remove(&head.stream) {
                    session.forward_reset(link.client_stream, reason);
                }
            }
            FrameKind::WindowUpdate => {
                let bytes = read_u32(payload).ok_or(ServiceGone)? & MAX_31_BIT;
                if let Some(front) = front {
                    session.forward_window_update(front, bytes);
                } else if head.stream > 0 {
                    // The connection has ended.
                } else if self.has_service_settings {
                    session.forward_window_update(0, bytes);
                } else {
                    self.send_window += i64::from(bytes);
                    if self.send_window >= self.initial_send_window {
                        self.has_service_settings = true;
                        self.write_buffer.append(&mut self.deferred_frames);
                    }
                }
            }
            FrameKind::Settings if !head.has_flag(frame_flag::ACK) => {
                frame::push_frame(
                    &mut self.write_buffer,
                    FrameKind::Settings,
                    (frame_flag::ACK, 0),
                    &[],
                );
            }
            FrameKind::Ping if !head.has_flag(frame_flag::ACK) => {
                frame::push_frame(
                    &mut self.write_buffer,
                    FrameKind::Ping,
                    (frame_flag::ACK, 0),
                    payload,
                );
            }
            FrameKind::Goaway => {
                let reason = payload.get(4..).and_then(read_u32).ok_or(ServiceGone)?;
                // An error reported by the service is an error of the client.
                if reason != Http2ErrorCode::NO_ERROR.0 {
                    session.close_with_error(Http2ErrorCode(reason));
                }
            }
            FrameKind::Settings
            | FrameKind::Ping
            | FrameKind::Priority
            | FrameKind::PushPromise
            | FrameKind::Unknown => {}
        }
        Ok(())
    }

    fn finish_block(
        &mut self,
        session: &mut Http2Connection,
        head: FrameHeader,
    ) -> Result<(), ServiceGone> {
        if !head.has_flag(frame_flag::END_HEADERS) {
            return Ok(());
        }
        let (number, ends_stream, block) = self.partial_block.take().ok_or(ServiceGone)?;
        self.decoder
            .decode_block(&block, &mut self.fields, MAX_RESPONSE_FIELD_BYTES)
            .map_err(|_malformed| ServiceGone)?;
        if let Some(front) = self.streams.get(&number).map(|link| link.client_stream) {
            let mut written = Vec::with_capacity(block.len() * 2);
            for (name, value) in self.fields.iter() {
                push_raw_field(&mut written, name, value);
            }
            session.forward_head(front, &written, ends_stream);
            if ends_stream {
                self.finish_response(number);
            }
        }
        Ok(())
    }
}

fn encode_fields(fields: &FieldList) -> Vec<u8> {
    let mut block = Vec::with_capacity(512);
    for (name, value) in fields.iter() {
        push_literal(&mut block, name, value);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::{RESPONSE_WINDOW_BYTES, ServiceConnection, ServiceNotifier};
    use crate::edge::http2::connection::{Http2Connection, Http2Limits, Http2ReadStep};
    use crate::edge::http2::frame::{self, CLIENT_PREFACE, FrameHeader, FrameKind, frame_flag};
    use crate::edge::http2::hpack::{FieldList, push_literal};
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::DuplexStream;
    use tympan_web::fast_path::{HTTP2_STREAM_WINDOW, http2_connection_window};

    const PAGE: usize = 500_000;
    const MAX_STREAMS: u32 = 100;

    /// Responds with a large page, or with the length of the request body.
    async fn serve(stream: DuplexStream) {
        let respond = |request: Request<Incoming>| async move {
            let body = match request.uri().path() {
                "/page" => Bytes::from(vec![b'p'; PAGE]),
                "/busy" => std::future::pending().await,
                _ => {
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    Bytes::from(body.len().to_string())
                }
            };
            Ok::<_, Infallible>(Response::new(Full::new(body)))
        };
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(HTTP2_STREAM_WINDOW)
            .initial_connection_window_size(http2_connection_window(MAX_STREAMS))
            .serve_connection(TokioIo::new(stream), service_fn(respond));
        connection.await.ok();
    }

    fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::push_frame(&mut out, kind, (flags, stream), payload);
        out
    }

    fn request(stream: u32, flags: u8, path: &str) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in
            [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", path)]
        {
            push_literal(&mut block, name.as_bytes(), value.as_bytes());
        }
        frame(FrameKind::Headers, flags | frame_flag::END_HEADERS, stream, &block)
    }

    /// A client, the fast path in between, and a service.
    struct TestServicePair {
        session: Http2Connection,
        service: ServiceConnection,
        notify_count: Arc<AtomicUsize>,
    }

    impl TestServicePair {
        fn new() -> Self {
            let rings = Arc::new(AtomicUsize::new(0));
            let rung = Arc::clone(&rings);
            let notifier = ServiceNotifier::new(move || {
                rung.fetch_add(1, Ordering::SeqCst);
            });
            let (behind, far) = ServiceConnection::open(notifier, MAX_STREAMS);
            tokio::spawn(serve(far));
            let stall_timeout = std::time::Duration::from_secs(30);
            let bounds = Http2Limits {
                max_streams: MAX_STREAMS,
                max_header_bytes: 16 * 1024,
                stall_timeout,
            };
            let mut pair = Self {
                session: Http2Connection::new(bounds, 0),
                service: behind,
                notify_count: rings,
            };
            pair.feed(&[CLIENT_PREFACE, &frame(FrameKind::Settings, 0, 0, &[])].concat());
            pair
        }

        fn feed(&mut self, mut input: &[u8]) {
            let mut fields = FieldList::default();
            loop {
                match self.session.read_step(&mut input, &mut fields) {
                    Http2ReadStep::NeedMoreData => return,
                    Http2ReadStep::Closed => panic!("the connection ended"),
                    Http2ReadStep::Request { stream, is_complete } => {
                        self.service.forward_request(
                            &mut self.session,
                            stream,
                            is_complete,
                            &fields,
                        );
                    }
                    Http2ReadStep::Trailers { service_stream } => {
                        self.service.forward_trailers(service_stream, &fields)
                    }
                    Http2ReadStep::Data { service_stream, bytes, is_last } => {
                        self.service.forward_data(service_stream, bytes, is_last);
                    }
                }
            }
        }

        /// Runs all sides until no one makes progress; returns the output.
        async fn settle(&mut self) -> Vec<(FrameHeader, Vec<u8>)> {
            let mut sent = Vec::new();
            for _ in 0..1000 {
                self.service.pump(&mut self.session).unwrap();
                self.session.fill_output(1_000_000);
                sent.append(&mut std::mem::take(&mut self.session.output).to_vec());
                tokio::task::yield_now().await;
            }
            let mut rest = &sent[..];
            let mut frames = Vec::new();
            while let Some(head) = FrameHeader::parse(rest) {
                frames.push((head, rest[9..9 + head.length].to_vec()));
                rest = &rest[9 + head.length..];
            }
            frames
        }
    }

    fn data_bytes(frames: &[(FrameHeader, Vec<u8>)]) -> usize {
        frames
            .iter()
            .filter(|(head, _)| head.kind == FrameKind::Data)
            .map(|(head, _)| head.length)
            .sum()
    }

    #[tokio::test]
    async fn what_a_client_does_not_take_stays_with_the_service() {
        let mut pair = TestServicePair::new();
        pair.feed(&frame(FrameKind::Settings, 0, 0, &[0, 4, 0, 0, 0, 0]));
        for number in 0..10 {
            pair.feed(&request(number * 2 + 1, frame_flag::END_STREAM, "/page"));
        }
        let frames = pair.settle().await;
        assert_eq!(data_bytes(&frames), 0);
        assert!(pair.notify_count.load(Ordering::SeqCst) > 0);
        let waiting_bytes = pair.session.waiting_bytes();
        assert!(
            waiting_bytes > 0 && waiting_bytes <= 10 * RESPONSE_WINDOW_BYTES as usize,
            "{waiting_bytes} bytes wait"
        );
        // The windows open, and all data arrives.
        let open = frame(FrameKind::WindowUpdate, 0, 0, &10_000_000_u32.to_be_bytes());
        pair.feed(&open);
        pair.feed(&frame(FrameKind::Settings, 0, 0, &[0, 4, 0, 0x7f, 0xff, 0xff]));
        let frames = pair.settle().await;
        assert_eq!(data_bytes(&frames), 10 * PAGE);
        assert!(!pair.session.has_streams() && pair.service.is_idle());
    }

    #[tokio::test]
    async fn a_body_passes_as_far_as_the_service_takes_it() {
        let mut pair = TestServicePair::new();
        pair.feed(&request(1, 0, "/length"));
        // The preface exchange sets the initial windows.
        pair.settle().await;
        // The connection window and the stream window.
        let mut windows =
            [http2_connection_window(MAX_STREAMS), HTTP2_STREAM_WINDOW].map(i64::from);
        let piece = frame(FrameKind::Data, 0, 1, &[0; 16_000]);
        for _ in 0..200 {
            pair.feed(&piece);
            windows = windows.map(|window| window - 16_000);
            if windows.iter().any(|window| *window < 16_000) {
                for (head, payload) in pair.settle().await {
                    if head.kind == FrameKind::WindowUpdate {
                        let bytes = frame::read_u32(&payload).unwrap();
                        windows[head.stream as usize] += i64::from(bytes);
                    }
                }
                assert!(windows.iter().all(|window| *window >= 16_000), "the service takes more");
            }
        }
        pair.feed(&frame(FrameKind::Data, frame_flag::END_STREAM, 1, b"end"));
        let frames = pair.settle().await;
        let body = frames.iter().find(|(head, _)| head.kind == FrameKind::Data).unwrap();
        assert_eq!(body.1, b"3200003");
    }

    #[tokio::test]
    async fn bodies_that_nobody_takes_hold_up_no_other() {
        let mut pair = TestServicePair::new();
        for number in 0..20 {
            pair.feed(&request(number * 2 + 1, 0, "/busy"));
            let mut left = HTTP2_STREAM_WINDOW as usize;
            while left > 0 {
                let length = left.min(16 * 1024);
                pair.feed(&frame(FrameKind::Data, 0, number * 2 + 1, &vec![0; length]));
                left -= length;
            }
            pair.settle().await;
        }
        pair.feed(&request(41, 0, "/length"));
        pair.feed(&frame(FrameKind::Data, frame_flag::END_STREAM, 41, b"body"));
        let frames = pair.settle().await;
        let body = frames.iter().find(|(head, _)| head.kind == FrameKind::Data).unwrap();
        assert_eq!((body.0.stream, &body.1[..]), (41, &b"4"[..]));
    }

    #[tokio::test]
    async fn what_is_taken_back_ends_at_the_service_too() {
        let mut pair = TestServicePair::new();
        pair.feed(&frame(FrameKind::Settings, 0, 0, &[0, 4, 0, 0, 0, 0]));
        pair.feed(&request(1, frame_flag::END_STREAM, "/page"));
        pair.settle().await;
        assert!(!pair.service.is_idle());
        pair.feed(&frame(FrameKind::Reset, 0, 1, &8_u32.to_be_bytes()));
        let frames = pair.settle().await;
        assert!(pair.service.is_idle() && !pair.session.has_streams());
        assert_eq!(data_bytes(&frames), 0);
    }
}
