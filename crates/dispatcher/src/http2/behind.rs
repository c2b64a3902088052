//! The service behind the lane: a connection of HTTP/2 within the process, on which hyper answers what the lane does not.
//!
//! Frames pass with other numbers of streams and with their fields written anew; nothing else is looked at, so that hyper
//! judges requests as it does without a lane.
//!
//! Invariants
//! * Bodies of requests: the client may send what the service lets the lane send ([`STREAM_WINDOW`] at first on both
//!   sides, and [`connection_window`] of all), so that nothing gathers here.
//! * Bodies of answers: the service may send [`WINDOW`] bytes of each beyond what the client took.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tympan_web::lane::connection_window;

use super::frame::{
    self, HEAD_BYTES, Head, Kind, MAX_31, PREFACE, Reason, flag, read_number, setting,
};
use super::hpack::{Decoder, Fields, push_bytes, push_literal};
use super::session::{News, Session};

/// What the service may send of one answer before the client takes it.
pub(super) const WINDOW: u32 = 32 * 1024;
/// The pipe holds so much in each direction.
const PIPE_BYTES: usize = 64 * 1024;
/// With so much waiting for the pipe nothing is read of the client.
const MOST_WAITING: usize = 256 * 1024;
const FIRST_WINDOW: i64 = 65_535;
const READ_BYTES: usize = 16 * 1024;
/// The fields of an answer may count this; the service's own limits are lower.
const HEADER_BYTES: usize = 1024 * 1024;

/// Tells a lane that the service did something; at most once until [`Bell::reset`].
pub(crate) struct Bell {
    ring: Box<dyn Fn() + Send + Sync>,
    is_rung: AtomicBool,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Bell").field("is_rung", &self.is_rung).finish_non_exhaustive()
    }
}

impl Bell {
    pub(crate) fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { ring: Box::new(ring), is_rung: AtomicBool::new(false) })
    }

    fn reset(&self) {
        self.is_rung.store(false, Ordering::SeqCst);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            (self.ring)();
        }
    }
}

/// The service has gone.
#[derive(Debug)]
pub(crate) struct Gone;

/// One connection to the service.
#[derive(Debug)]
pub(crate) struct Behind {
    pipe: DuplexStream,
    bell: Arc<Bell>,
    waker: Waker,
    /// What is to be written, and how much of it was.
    out: Vec<u8>,
    written: usize,
    /// What waits until the service has said what it takes.
    held: Vec<u8>,
    is_open: bool,
    window: i64,
    /// The window from which on the service has said what it takes.
    open_window: i64,
    unread: Vec<u8>,
    decoder: Decoder,
    fields: Fields,
    /// A head that is not whole: its stream, whether it ends that, and the fields.
    block: Option<(u32, bool, Vec<u8>)>,
    links: HashMap<u32, Link>,
    next: u32,
}

/// A stream of the service.
#[derive(Debug)]
struct Link {
    /// Its number at the client.
    front: u32,
    has_asked: bool,
    has_answered: bool,
}

impl Behind {
    /// Opens a connection; the other end is for the service. `bell` rings when [`Behind::pump`] has something to do.
    pub(crate) fn open(bell: Arc<Bell>, max_streams: u32) -> (Self, DuplexStream) {
        let (pipe, far) = tokio::io::duplex(PIPE_BYTES);
        let mut out = PREFACE.to_vec();
        let settings = [(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, WINDOW)];
        frame::push_settings(&mut out, &settings);
        // The windows of the streams bound what comes.
        frame::push_window(&mut out, 0, MAX_31 - u32::try_from(FIRST_WINDOW).unwrap_or(0));
        let behind = Self {
            pipe,
            waker: Waker::from(Arc::clone(&bell)),
            bell,
            out,
            written: 0,
            held: Vec::new(),
            is_open: false,
            window: FIRST_WINDOW,
            open_window: connection_window(max_streams).into(),
            unread: Vec::new(),
            decoder: Decoder::default(),
            fields: Fields::default(),
            block: None,
            links: HashMap::new(),
            next: 1,
        };
        (behind, far)
    }

    /// Tells whether more is to be written than the service takes.
    pub(crate) fn is_full(&self) -> bool {
        self.out.len() - self.written + self.held.len() > MOST_WAITING
    }

    /// Tells whether the service answers nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.links.is_empty()
    }

    /// Tells whether there is a number for another stream.
    pub(crate) fn has_numbers(&self) -> bool {
        self.next <= MAX_31
    }

    fn target(&mut self) -> &mut Vec<u8> {
        if self.is_open { &mut self.out } else { &mut self.held }
    }

    /// Leaves a request to the service.
    pub(crate) fn ask(
        &mut self,
        session: &mut Session,
        (front, is_whole): (u32, bool),
        fields: &Fields,
    ) {
        let number = self.next;
        self.next += 2;
        let block = write_fields(fields);
        frame::push_block(self.target(), number, is_whole, &[&block]);
        self.links.insert(number, Link { front, has_asked: is_whole, has_answered: false });
        session.leave(front, is_whole, number);
    }

    /// Passes a piece of a request's body on.
    pub(crate) fn push_data(&mut self, number: u32, bytes: &[u8], is_last: bool) {
        if !self.links.contains_key(&number) {
            return;
        }
        let flags = if is_last { flag::END_STREAM } else { 0 };
        frame::push(self.target(), Kind::Data, (flags, number), bytes);
        if is_last {
            self.note_asked(number);
        }
    }

    /// Passes the trailers of a request on.
    pub(crate) fn push_trailers(&mut self, number: u32, fields: &Fields) {
        if self.links.contains_key(&number) {
            let block = write_fields(fields);
            frame::push_block(self.target(), number, true, &[&block]);
            self.note_asked(number);
        }
    }

    fn note_asked(&mut self, number: u32) {
        if let Some(link) = self.links.get_mut(&number) {
            link.has_asked = true;
            if link.has_answered {
                self.links.remove(&number);
            }
        }
    }

    fn note_answered(&mut self, number: u32) {
        if let Some(link) = self.links.get_mut(&number) {
            link.has_answered = true;
            if link.has_asked {
                self.links.remove(&number);
            }
        }
    }

    /// Writes and reads what can be without waiting.
    ///
    /// # Errors
    /// [`Gone`]; what the service holds is lost then.
    pub(crate) fn pump(&mut self, session: &mut Session) -> Result<(), Gone> {
        self.bell.reset();
        loop {
            for (number, news) in session.take_news() {
                self.tell(number, news);
            }
            self.write()?;
            let has_read = self.read(session)?;
            if !has_read && self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
                return Ok(());
            }
            if !has_read {
                return Ok(());
            }
        }
    }

    fn tell(&mut self, number: u32, news: News) {
        if !self.links.contains_key(&number) {
            return;
        }
        match news {
            News::Taken(bytes) => frame::push_window(self.target(), number, bytes),
            News::Ended(reason) => {
                self.links.remove(&number);
                // Of a client's mistakes the service is not to be told as its own.
                let reason = if reason == Reason::NO_ERROR { reason } else { Reason::CANCEL };
                frame::push_reset(self.target(), number, reason);
            }
        }
    }

    fn write(&mut self) -> Result<(), Gone> {
        let mut context = Context::from_waker(&self.waker);
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.pipe).poll_write(&mut context, rest) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(Gone),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Pending => break,
            }
        }
        if self.written > PIPE_BYTES {
            self.out.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// Reads what is there; returns whether there was something.
    fn read(&mut self, session: &mut Session) -> Result<bool, Gone> {
        let mut has_read = false;
        let mut room = [0; READ_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut room);
            let mut context = Context::from_waker(&self.waker);
            match Pin::new(&mut self.pipe).poll_read(&mut context, &mut buffer) {
                Poll::Pending => return Ok(has_read),
                Poll::Ready(Err(_)) => return Err(Gone),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Err(Gone),
                Poll::Ready(Ok(())) => {}
            }
            has_read = true;
            self.unread.extend_from_slice(buffer.filled());
            let unread = std::mem::take(&mut self.unread);
            let mut rest = &unread[..];
            let outcome = self.read_frames(session, &mut rest);
            let rest_bytes = rest.len();
            self.unread = unread;
            self.unread.drain(..self.unread.len() - rest_bytes);
            outcome?;
        }
    }

    fn read_frames(&mut self, session: &mut Session, input: &mut &[u8]) -> Result<(), Gone> {
        while let Some(head) = Head::read(input) {
            let Some(payload) = input.get(HEAD_BYTES..HEAD_BYTES + head.length) else { break };
            *input = input.get(HEAD_BYTES + head.length..).unwrap_or_default();
            self.read_frame(session, head, payload)?;
        }
        Ok(())
    }

    fn read_frame(
        &mut self,
        session: &mut Session,
        head: Head,
        payload: &[u8],
    ) -> Result<(), Gone> {
        let front = self.links.get(&head.stream).map(|link| link.front);
        match head.kind {
            Kind::Headers => {
                let mut block = Vec::new();
                block.extend_from_slice(frame::without_padding(head, payload).ok_or(Gone)?);
                self.block = Some((head.stream, head.has(flag::END_STREAM), block));
                self.end_block(session, head)?;
            }
            Kind::Continuation => {
                let (_, _, block) = self.block.as_mut().ok_or(Gone)?;
                block.extend_from_slice(payload);
                self.end_block(session, head)?;
            }
            Kind::Data => {
                let Some(front) = front else { return Ok(()) };
                let is_last = head.has(flag::END_STREAM);
                let bytes = frame::without_padding(head, payload).ok_or(Gone)?;
                session.pass_data(front, Bytes::copy_from_slice(bytes), is_last);
                if is_last {
                    self.note_answered(head.stream);
                }
            }
            Kind::Reset => {
                let reason = Reason(read_number(payload).ok_or(Gone)?);
                if let Some(link) = self.links.remove(&head.stream) {
                    session.pass_reset(link.front, reason);
                }
            }
            Kind::WindowUpdate => {
                let bytes = read_number(payload).ok_or(Gone)? & MAX_31;
                if let Some(front) = front {
                    session.pass_window(front, bytes);
                } else if head.stream > 0 {
                    // It has ended.
                } else if self.is_open {
                    session.pass_window(0, bytes);
                } else {
                    self.window += i64::from(bytes);
                    if self.window >= self.open_window {
                        self.is_open = true;
                        self.out.append(&mut self.held);
                    }
                }
            }
            Kind::Settings if !head.has(flag::ACK) => {
                frame::push(&mut self.out, Kind::Settings, (flag::ACK, 0), &[]);
            }
            Kind::Ping if !head.has(flag::ACK) => {
                frame::push(&mut self.out, Kind::Ping, (flag::ACK, 0), payload);
            }
            Kind::Goaway => {
                let reason = payload.get(4..).and_then(read_number).ok_or(Gone)?;
                // What the service minds, it minds of the client.
                if reason != Reason::NO_ERROR.0 {
                    session.fail(Reason(reason));
                }
            }
            Kind::Settings | Kind::Ping | Kind::Priority | Kind::PushPromise | Kind::Unknown => {}
        }
        Ok(())
    }

    fn end_block(&mut self, session: &mut Session, head: Head) -> Result<(), Gone> {
        if !head.has(flag::END_HEADERS) {
            return Ok(());
        }
        let (number, ends_stream, block) = self.block.take().ok_or(Gone)?;
        self.decoder.decode(&block, &mut self.fields, HEADER_BYTES).map_err(|_malformed| Gone)?;
        if let Some(front) = self.links.get(&number).map(|link| link.front) {
            let mut written = Vec::with_capacity(block.len() * 2);
            for (name, value) in self.fields.iter() {
                push_bytes(&mut written, name, value);
            }
            session.pass_head(front, &written, ends_stream);
            if ends_stream {
                self.note_answered(number);
            }
        }
        Ok(())
    }
}

fn write_fields(fields: &Fields) -> Vec<u8> {
    let mut block = Vec::with_capacity(512);
    for (name, value) in fields.iter() {
        push_literal(&mut block, name, value);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::{Behind, Bell, WINDOW};
    use crate::http2::frame::{self, Head, Kind, PREFACE, flag};
    use crate::http2::hpack::{Fields, push_literal};
    use crate::http2::session::{Bounds, Session, Step};
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
    use tympan_web::lane::{STREAM_WINDOW, connection_window};

    const PAGE: usize = 500_000;
    const MAX_STREAMS: u32 = 100;

    /// Answers with a large page, or with the length of what was sent.
    async fn serve(stream: DuplexStream) {
        let answer = |request: Request<Incoming>| async move {
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
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(connection_window(MAX_STREAMS))
            .serve_connection(TokioIo::new(stream), service_fn(answer));
        connection.await.ok();
    }

    fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame::push(&mut out, kind, (flags, stream), payload);
        out
    }

    fn request(stream: u32, flags: u8, path: &str) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in
            [(":method", "POST"), (":scheme", "https"), (":authority", "h"), (":path", path)]
        {
            push_literal(&mut block, name.as_bytes(), value.as_bytes());
        }
        frame(Kind::Headers, flags | flag::END_HEADERS, stream, &block)
    }

    /// A client, the lane between, and a service.
    struct Pair {
        session: Session,
        behind: Behind,
        rings: Arc<AtomicUsize>,
    }

    impl Pair {
        fn new() -> Self {
            let rings = Arc::new(AtomicUsize::new(0));
            let rung = Arc::clone(&rings);
            let bell = Bell::new(move || {
                rung.fetch_add(1, Ordering::SeqCst);
            });
            let (behind, far) = Behind::open(bell, MAX_STREAMS);
            tokio::spawn(serve(far));
            let stall = std::time::Duration::from_secs(30);
            let bounds = Bounds { max_streams: MAX_STREAMS, header_bytes: 16 * 1024, stall };
            let mut pair = Self { session: Session::new(bounds, 0), behind, rings };
            pair.feed(&[PREFACE, &frame(Kind::Settings, 0, 0, &[])].concat());
            pair
        }

        fn feed(&mut self, mut input: &[u8]) {
            let mut fields = Fields::default();
            loop {
                match self.session.step(&mut input, &mut fields) {
                    Step::Wait => return,
                    Step::Over => panic!("the connection ended"),
                    Step::Request { stream, is_whole } => {
                        self.behind.ask(&mut self.session, (stream, is_whole), &fields);
                    }
                    Step::Trailers { behind } => self.behind.push_trailers(behind, &fields),
                    Step::Data { behind, bytes, is_last } => {
                        self.behind.push_data(behind, bytes, is_last);
                    }
                }
            }
        }

        /// Lets all go on until nobody does anything, and returns what was sent.
        async fn settle(&mut self) -> Vec<(Head, Vec<u8>)> {
            let mut sent = Vec::new();
            for _ in 0..1000 {
                self.behind.pump(&mut self.session).unwrap();
                self.session.fill(1_000_000);
                sent.append(&mut std::mem::take(&mut self.session.out).to_vec());
                tokio::task::yield_now().await;
            }
            let mut rest = &sent[..];
            let mut frames = Vec::new();
            while let Some(head) = Head::read(rest) {
                frames.push((head, rest[9..9 + head.length].to_vec()));
                rest = &rest[9 + head.length..];
            }
            frames
        }
    }

    fn data_bytes(frames: &[(Head, Vec<u8>)]) -> usize {
        frames.iter().filter(|(head, _)| head.kind == Kind::Data).map(|(head, _)| head.length).sum()
    }

    #[tokio::test]
    async fn what_a_client_does_not_take_stays_with_the_service() {
        let mut pair = Pair::new();
        pair.feed(&frame(Kind::Settings, 0, 0, &[0, 4, 0, 0, 0, 0]));
        for number in 0..10 {
            pair.feed(&request(number * 2 + 1, flag::END_STREAM, "/page"));
        }
        let frames = pair.settle().await;
        assert_eq!(data_bytes(&frames), 0);
        assert!(pair.rings.load(Ordering::SeqCst) > 0);
        let held = pair.session.waiting_bytes();
        assert!(held > 0 && held <= 10 * WINDOW as usize, "{held} bytes wait");
        // The windows open, and everything comes.
        let open = frame(Kind::WindowUpdate, 0, 0, &10_000_000_u32.to_be_bytes());
        pair.feed(&open);
        pair.feed(&frame(Kind::Settings, 0, 0, &[0, 4, 0, 0x7f, 0xff, 0xff]));
        let frames = pair.settle().await;
        assert_eq!(data_bytes(&frames), 10 * PAGE);
        assert!(!pair.session.has_streams() && pair.behind.is_idle());
    }

    #[tokio::test]
    async fn a_body_passes_as_far_as_the_service_takes_it() {
        let mut pair = Pair::new();
        pair.feed(&request(1, 0, "/length"));
        // The greeting tells of the first windows.
        pair.settle().await;
        // Of all streams, and of this one.
        let mut windows = [connection_window(MAX_STREAMS), STREAM_WINDOW].map(i64::from);
        let piece = frame(Kind::Data, 0, 1, &[0; 16_000]);
        for _ in 0..200 {
            pair.feed(&piece);
            windows = windows.map(|window| window - 16_000);
            if windows.iter().any(|window| *window < 16_000) {
                for (head, payload) in pair.settle().await {
                    if head.kind == Kind::WindowUpdate {
                        let bytes = frame::read_number(&payload).unwrap();
                        windows[head.stream as usize] += i64::from(bytes);
                    }
                }
                assert!(windows.iter().all(|window| *window >= 16_000), "the service takes more");
            }
        }
        pair.feed(&frame(Kind::Data, flag::END_STREAM, 1, b"end"));
        let frames = pair.settle().await;
        let body = frames.iter().find(|(head, _)| head.kind == Kind::Data).unwrap();
        assert_eq!(body.1, b"3200003");
    }

    #[tokio::test]
    async fn bodies_that_nobody_takes_hold_up_no_other() {
        let mut pair = Pair::new();
        for number in 0..20 {
            pair.feed(&request(number * 2 + 1, 0, "/busy"));
            let mut left = STREAM_WINDOW as usize;
            while left > 0 {
                let length = left.min(16 * 1024);
                pair.feed(&frame(Kind::Data, 0, number * 2 + 1, &vec![0; length]));
                left -= length;
            }
            pair.settle().await;
        }
        pair.feed(&request(41, 0, "/length"));
        pair.feed(&frame(Kind::Data, flag::END_STREAM, 41, b"body"));
        let frames = pair.settle().await;
        let body = frames.iter().find(|(head, _)| head.kind == Kind::Data).unwrap();
        assert_eq!((body.0.stream, &body.1[..]), (41, &b"4"[..]));
    }

    #[tokio::test]
    async fn what_is_taken_back_ends_at_the_service_too() {
        let mut pair = Pair::new();
        pair.feed(&frame(Kind::Settings, 0, 0, &[0, 4, 0, 0, 0, 0]));
        pair.feed(&request(1, flag::END_STREAM, "/page"));
        pair.settle().await;
        assert!(!pair.behind.is_idle());
        pair.feed(&frame(Kind::Reset, 0, 1, &8_u32.to_be_bytes()));
        let frames = pair.settle().await;
        assert!(pair.behind.is_idle() && !pair.session.has_streams());
        assert_eq!(data_bytes(&frames), 0);
    }
}
