use super::{
    FAREWELL_PING, Http2Connection, Http2Limits, Http2ReadStep, Http2ResponseBody, StreamNotice,
};
use crate::edge::http2::frame::{
    self, CLIENT_PREFACE, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Http2ErrorCode, frame_flag,
    setting_id,
};
use crate::edge::http2::hpack::{FieldList, HpackDecoder, push_literal};
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tympan_web::fast_path::HTTP2_STREAM_WINDOW;

const STALL_MS: u64 = 30_000;
const BOUNDS: Http2Limits = Http2Limits {
    max_streams: 8,
    max_header_bytes: 16 * 1024,
    stall_timeout: Duration::from_millis(STALL_MS),
};
const END: u8 = frame_flag::END_STREAM | frame_flag::END_HEADERS;

fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_frame(&mut out, kind, (flags, stream), payload);
    out
}

fn settings(all: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_settings(&mut out, all);
    out
}

fn block(path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in
        [(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", path)]
    {
        push_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

fn get(stream: u32) -> Vec<u8> {
    frame(FrameKind::Headers, END, stream, &block("/a"))
}

fn post(stream: u32) -> Vec<u8> {
    frame(FrameKind::Headers, frame_flag::END_HEADERS, stream, &block("/a"))
}

fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(FrameKind::WindowUpdate, 0, stream, &bytes.to_be_bytes())
}

/// Returns a connection whose client has sent its preface.
fn greeted() -> Http2Connection {
    let mut session = Http2Connection::new(BOUNDS, 0);
    let mut input = CLIENT_PREFACE.to_vec();
    input.extend(settings(&[]));
    assert_eq!(feed(&mut session, &input), "");
    session.output.clear();
    session
}

/// Feeds bytes and returns a description of the steps.
fn feed(session: &mut Http2Connection, input: &[u8]) -> String {
    feed_some(session, input).0
}

/// Feeds bytes and returns the steps and the number of remaining bytes.
fn feed_some(session: &mut Http2Connection, input: &[u8]) -> (String, usize) {
    let (mut rest, mut fields) = (input, FieldList::default());
    let mut events = Vec::new();
    loop {
        match session.read_step(&mut rest, &mut fields) {
            Http2ReadStep::NeedMoreData => return (events.join(" "), rest.len()),
            Http2ReadStep::Closed => {
                events.push("over".to_owned());
                return (events.join(" "), 0);
            }
            Http2ReadStep::Request { stream, is_complete } => {
                // Requests with a body are assigned to the service, as there is no other choice.
                if !is_complete {
                    session.assign_to_service(stream, is_complete, stream + 1000);
                }
                let count = fields.iter().count();
                events
                    .push(format!("{}{stream}:{count}", if is_complete { "get" } else { "post" }));
            }
            Http2ReadStep::Trailers { service_stream } => {
                events.push(format!("trailers{service_stream}"))
            }
            Http2ReadStep::Data { service_stream, bytes, is_last } => {
                let end = if is_last { "." } else { "" };
                events.push(format!("data{service_stream}:{}{end}", bytes.len()));
            }
        }
    }
}

/// Returns the frames sent since the last call as `kind stream flags length`.
fn sent(session: &mut Http2Connection) -> Vec<(FrameKind, u32, u8, usize)> {
    let out = std::mem::take(&mut session.output).to_vec();
    frames(&out).map(|(head, _)| (head.kind, head.stream, head.flags, head.length)).collect()
}

fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (FrameHeader, &[u8])> {
    std::iter::from_fn(move || {
        let head = FrameHeader::parse(bytes)?;
        let payload = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + head.length)?;
        bytes = &bytes[FRAME_HEADER_BYTES + head.length..];
        Some((head, payload))
    })
}

/// Returns the error code of the GOAWAY that ended a connection.
fn farewell(session: &Http2Connection) -> Option<u32> {
    let out = session.output.to_vec();
    let goaway = frames(&out).find(|(head, _)| head.kind == FrameKind::Goaway);
    goaway.map(|(_, payload)| frame::read_u32(&payload[4..]).unwrap())
}

/// Returns the error code of the first reset.
fn reset(session: &Http2Connection) -> Option<(u32, u32)> {
    let out = session.output.to_vec();
    let reset = frames(&out).find(|(head, _)| head.kind == FrameKind::Reset);
    reset.map(|(head, payload)| (head.stream, frame::read_u32(payload).unwrap()))
}

/// Errors that end a connection, with their codes.
#[test]
fn mistakes_end_a_connection() {
    let large = vec![0; 16 * 1024 + 1];
    for (description, input, reason) in [
        ("settings for a stream", frame(FrameKind::Settings, 0, 1, &[]), 1),
        ("half a setting", frame(FrameKind::Settings, 0, 0, &[0; 5]), 6),
        ("an acknowledgment with settings", frame(FrameKind::Settings, 1, 0, &[0; 6]), 6),
        ("push 2", settings(&[(setting_id::ENABLE_PUSH, 2)]), 1),
        ("a window over 2^31", settings(&[(setting_id::INITIAL_WINDOW_SIZE, 1 << 31)]), 3),
        ("small frames", settings(&[(setting_id::MAX_FRAME_SIZE, 16_383)]), 1),
        ("large frames", settings(&[(setting_id::MAX_FRAME_SIZE, 1 << 24)]), 1),
        ("a frame that is too long", frame(FrameKind::Data, 0, 1, &large), 6),
        ("a ping for a stream", frame(FrameKind::Ping, 0, 1, &[0; 8]), 1),
        ("a short ping", frame(FrameKind::Ping, 0, 0, &[0; 7]), 6),
        ("data for nothing", frame(FrameKind::Data, 0, 0, b"x"), 1),
        ("data for a stream to come", frame(FrameKind::Data, 0, 1, b"x"), 1),
        ("a reset of the connection", frame(FrameKind::Reset, 0, 0, &[0; 4]), 1),
        ("a reset of a stream to come", frame(FrameKind::Reset, 0, 1, &[0; 4]), 1),
        ("a short reset", [get(1), frame(FrameKind::Reset, 0, 1, &[0; 3])].concat(), 6),
        ("a window of a stream to come", window(1, 1), 1),
        ("an empty window", window(0, 0), 1),
        ("a short window", frame(FrameKind::WindowUpdate, 0, 0, &[0; 3]), 6),
        ("too large a window", window(0, 0x7fff_ffff), 3),
        ("a promise", frame(FrameKind::PushPromise, 4, 1, &[0; 4]), 1),
        ("a block that goes on from nothing", frame(FrameKind::Continuation, 4, 1, &[]), 1),
        ("headers of an even stream", frame(FrameKind::Headers, END, 2, &block("/")), 1),
        ("headers of no stream", frame(FrameKind::Headers, END, 0, &block("/")), 1),
        ("a priority for nothing", frame(FrameKind::Priority, 0, 0, &[0; 5]), 1),
        ("a short priority", frame(FrameKind::Priority, 0, 1, &[0; 4]), 6),
        ("a farewell for a stream", frame(FrameKind::Goaway, 0, 1, &[0; 8]), 1),
        ("a block that is none", frame(FrameKind::Headers, END, 1, &[0x80]), 9),
        ("padding over all", frame(FrameKind::Headers, END | frame_flag::PADDED, 1, &[9, 0]), 1),
        (
            "a priority that is cut",
            frame(FrameKind::Headers, END | frame_flag::PRIORITY, 1, &[0; 4]),
            6,
        ),
        ("a lower stream", [get(5), get(3)].concat(), 5),
        ("headers after the end", [get(1), get(1)].concat(), 5),
        ("data after the end", [get(1), frame(FrameKind::Data, 0, 1, b"x")].concat(), 5),
        (
            "another frame within a block",
            [frame(FrameKind::Headers, 0, 1, &[]), frame(FrameKind::Ping, 0, 0, &[0; 8])].concat(),
            1,
        ),
        (
            "a block that goes on elsewhere",
            [frame(FrameKind::Headers, 0, 1, &[]), frame(FrameKind::Continuation, 4, 3, &[])]
                .concat(),
            1,
        ),
    ] {
        let mut session = greeted();
        let events = feed(&mut session, &input);
        assert!(events.ends_with("over"), "{description}: {events}");
        assert_eq!(farewell(&session), Some(reason), "{description}");
        assert!(session.is_closing() && !session.has_streams());
        assert_eq!(feed(&mut session, &get(99)), "over", "{description}: nothing is read any more");
    }
}

#[test]
fn a_connection_begins_with_its_greeting() {
    let whole =
        [CLIENT_PREFACE, &settings(&[(setting_id::MAX_HEADER_LIST_SIZE, 1)]), &get(1)].concat();
    let mut session = Http2Connection::new(BOUNDS, 0);
    for index in 0..whole.len() {
        let mut cut = Http2Connection::new(BOUNDS, 0);
        assert_eq!(feed(&mut cut, &whole[..index]), "", "{index}");
    }
    assert_eq!(feed(&mut session, &whole), "get1:4");
    let kinds: Vec<FrameKind> = sent(&mut session).iter().map(|frame| frame.0).collect();
    assert_eq!(kinds, [FrameKind::Settings, FrameKind::WindowUpdate, FrameKind::Settings]);
    for wrong in [
        &b"GET / HTTP/1.1\r\n"[..],
        &[CLIENT_PREFACE, &get(1)].concat(),
        &[CLIENT_PREFACE, &frame(FrameKind::Settings, frame_flag::ACK, 0, &[])].concat(),
    ] {
        let mut session = Http2Connection::new(BOUNDS, 0);
        assert_eq!(feed(&mut session, wrong), "over");
        assert_eq!(farewell(&session), Some(1));
    }
}

#[test]
fn extensions_and_priorities_are_ignored() {
    let mut session = greeted();
    let mut unknown = frame(FrameKind::Ping, 0xff, 5, b"anything");
    unknown[3] = 0x10;
    let mut prioritized = vec![0, 0, 0, 0, 16];
    prioritized.extend(block("/a"));
    let input = [
        unknown,
        frame(FrameKind::Priority, 0, 7, &[0; 5]),
        frame(FrameKind::Headers, END | frame_flag::PRIORITY, 1, &prioritized),
        settings(&[(99, 1)]),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get1:4");
    assert_eq!(sent(&mut session), [(FrameKind::Settings, 0, frame_flag::ACK, 0)]);
}

#[test]
fn a_ping_is_answered_with_its_bytes() {
    let mut session = greeted();
    feed(&mut session, &frame(FrameKind::Ping, 0, 0, b"12345678"));
    assert_eq!(session.output.to_vec(), frame(FrameKind::Ping, frame_flag::ACK, 0, b"12345678"));
}

#[test]
fn a_block_may_come_in_pieces() {
    let mut session = greeted();
    let block = block("/a");
    let (first, rest) = block.split_at(5);
    let (second, third) = rest.split_at(7);
    let input = [
        frame(FrameKind::Headers, frame_flag::END_STREAM, 1, first),
        frame(FrameKind::Continuation, 0, 1, second),
        frame(FrameKind::Continuation, frame_flag::END_HEADERS, 1, third),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get1:4");
}

#[test]
fn floods_end_with_a_request_for_calm() {
    let ping = frame(FrameKind::Ping, 0, 0, &[0; 8]);
    let empty = frame(FrameKind::Data, 0, 1, &[]);
    let piece = frame(FrameKind::Continuation, 0, 1, &[0, 1, b'x', 1, b'y']);
    for (description, first, flood) in [
        ("pings", vec![], ping),
        ("settings", vec![], settings(&[])),
        ("windows", vec![], settings(&[(setting_id::INITIAL_WINDOW_SIZE, 1)])),
        ("acknowledgments", vec![], frame(FrameKind::Settings, frame_flag::ACK, 0, &[])),
        ("priorities", vec![], frame(FrameKind::Priority, 0, 1, &[0; 5])),
        ("empty data", post(1), empty),
        ("pieces of a block", frame(FrameKind::Headers, 0, 1, &[]), piece),
        ("windows of a stream", post(1), window(1, 1)),
        ("resets of what has ended", get(1), frame(FrameKind::Reset, 0, 1, &[0; 4])),
    ] {
        let mut session = greeted();
        feed(&mut session, &first);
        let events = feed(&mut session, &flood.repeat(10_000));
        assert!(events.ends_with("over"), "{description}");
        assert_eq!(farewell(&session), Some(Http2ErrorCode::ENHANCE_YOUR_CALM.0), "{description}");
        assert!(session.output.len() < 64 * 1024, "{description}: {} bytes", session.output.len());
    }
}

#[test]
fn a_large_block_is_refused_and_a_larger_one_cut() {
    let mut session = greeted();
    let mut large = block("/a");
    for _ in 0..20 {
        push_literal(&mut large, b"x-long", &[b'y'; 1000]);
    }
    let (first, rest) = large.split_at(16_000);
    let input = [
        frame(FrameKind::Headers, frame_flag::END_STREAM, 1, first),
        frame(FrameKind::Continuation, frame_flag::END_HEADERS, 1, rest),
        get(3),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get3:4", "the first one was answered");
    let out = std::mem::take(&mut session.output).to_vec();
    let (head, payload) = frames(&out).next().unwrap();
    assert_eq!((head.kind, head.stream, head.flags), (FrameKind::Headers, 1, END));
    let mut fields = FieldList::default();
    HpackDecoder::default().decode_block(payload, &mut fields, 1000).unwrap();
    assert_eq!(fields.iter().next(), Some((&b":status"[..], &b"431"[..])));
    let input = [
        frame(FrameKind::Headers, frame_flag::END_STREAM, 5, &[0; 16_000]),
        frame(FrameKind::Continuation, 0, 5, &[0; 16_000]),
        frame(FrameKind::Continuation, 0, 5, &[0; 16_000]),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "over");
    assert_eq!(farewell(&session), Some(Http2ErrorCode::ENHANCE_YOUR_CALM.0));
}

#[test]
fn a_small_block_that_means_a_huge_one_is_cut() {
    let mut session = greeted();
    // Goes into the table: a name of 3000 bytes.
    let mut first = block("/a");
    first.extend([0x40, 0x7f, 0xb9, 0x16]);
    first.extend([b'x'; 3000]);
    first.push(0);
    assert_eq!(feed(&mut session, &frame(FrameKind::Headers, END, 1, &first)), "get1:5");
    let many = [0xbe; 16_000];
    assert_eq!(feed(&mut session, &frame(FrameKind::Headers, END, 3, &many)), "over");
    assert_eq!(farewell(&session), Some(Http2ErrorCode::ENHANCE_YOUR_CALM.0));
}

#[test]
fn requests_that_are_taken_back_at_once_end_the_connection() {
    let check = |description: &str, frames_of: &dyn Fn(u32) -> Vec<u8>| {
        let mut session = greeted();
        let mut input = Vec::new();
        for number in 0..1000 {
            input.extend(post(number * 2 + 1));
            input.extend(frames_of(number * 2 + 1));
        }
        let events = feed(&mut session, &input);
        assert!(events.ends_with("over"), "{description}");
        assert!(events.split(' ').count() < 150, "{description}: {events}");
        assert_eq!(farewell(&session), Some(Http2ErrorCode::ENHANCE_YOUR_CALM.0), "{description}");
    };
    check("reset", &|stream| frame(FrameKind::Reset, 0, stream, &8_u32.to_be_bytes()));
    // Errors for which this side resets the stream.
    check("window of nothing", &|stream| window(stream, 0));
    check("window too large", &|stream| window(stream, 0x7fff_ffff));
    let trailers =
        |stream| frame(FrameKind::Headers, frame_flag::END_HEADERS, stream, &block("/a"));
    check("trailers that do not end", &trailers);
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut session = greeted();
    let input: Vec<u8> = (0..9).flat_map(|number| post(number * 2 + 1)).collect();
    let events = feed(&mut session, &input);
    assert_eq!(events.split(' ').count(), 8, "{events}");
    assert_eq!(reset(&session), Some((17, Http2ErrorCode::REFUSED_STREAM.0)));
    // Frames still in transit for the stream are not an error.
    session.output.clear();
    assert_eq!(feed(&mut session, &frame(FrameKind::Data, 1, 17, b"body")), "");
    assert_eq!(sent(&mut session), [(FrameKind::WindowUpdate, 0, 0, 4)], "its window comes back");
}

#[test]
fn bodies_of_requests_are_bounded() {
    let mut session = greeted();
    let padded = frame(FrameKind::Data, frame_flag::PADDED, 1, b"\x02abcd");
    let events =
        feed(&mut session, &[post(1), padded, frame(FrameKind::Data, 1, 1, b"e")].concat());
    assert_eq!(events, "post1:4 data1001:2 data1001:1.");
    let expected = [(FrameKind::WindowUpdate, 0, 0, 4), (FrameKind::WindowUpdate, 1, 0, 4)];
    assert_eq!(sent(&mut session), expected, "padding is taken at once");
    let piece = |stream| frame(FrameKind::Data, 0, stream, &[0; 16 * 1024]);
    let pieces = HTTP2_STREAM_WINDOW / (16 * 1024);
    for stream in [3, 5] {
        feed(&mut session, &post(stream));
        for _ in 0..pieces {
            assert_eq!(feed(&mut session, &piece(stream)), format!("data{}:16384", stream + 1000));
        }
    }
    session.forward_window_update(3, 16 * 1024);
    assert_eq!(sent(&mut session), [(FrameKind::WindowUpdate, 3, 0, 4)]);
    assert_eq!(feed(&mut session, &piece(3)), "data1003:16384");
    assert_eq!(feed(&mut session, &piece(3)), "", "its window is used up");
    assert_eq!(reset(&session), Some((3, Http2ErrorCode::FLOW_CONTROL_ERROR.0)));
    assert_eq!(farewell(&session), None, "others go on");
    // Besides the window of the stream, the connection window applies.
    session.forward_window_update(5, 10_000_000);
    let events = feed(&mut session, &piece(5).repeat(1000));
    assert!(events.ends_with("over"));
    assert_eq!(farewell(&session), Some(Http2ErrorCode::FLOW_CONTROL_ERROR.0));
}

#[test]
fn streams_that_end_before_their_turn_leave_nothing_behind() {
    let mut session = greeted();
    let large = Bytes::from(vec![0; 100_000]);
    for number in 0..10_000 {
        let stream = number * 2 + 1;
        assert_eq!(feed(&mut session, &get(stream)), format!("get{stream}:4"));
        session.send_response(stream, &[&[0x88]], Http2ResponseBody::Bytes(large.clone()));
        // The connection window is used up after the first one.
        session.fill_output(1_000_000);
        assert_eq!(
            feed(&mut session, &frame(FrameKind::Reset, 0, stream, &8_u32.to_be_bytes())),
            ""
        );
        session.output.clear();
    }
    assert!(!session.has_streams());
    assert!(session.ready_streams.len() < 100, "{} turns wait", session.ready_streams.len());
}

#[test]
fn trailers_end_a_request() {
    let mut session = greeted();
    let events = feed(&mut session, &[post(1), get(1)].concat());
    assert_eq!(events, "post1:4 trailers1001");
    assert_eq!(feed(&mut session, &post(3)), "post3:4");
    assert_eq!(feed(&mut session, &post(3)), "", "trailers that do not end it");
    assert_eq!(reset(&session), Some((3, Http2ErrorCode::PROTOCOL_ERROR.0)));
    assert_eq!(
        session.take_notices(),
        [(1003, StreamNotice::Reset(Http2ErrorCode::PROTOCOL_ERROR))]
    );
    // Also for a request that is over here.
    session.output.clear();
    assert_eq!(feed(&mut session, &post(3)), "");
    assert_eq!(reset(&session), Some((3, Http2ErrorCode::PROTOCOL_ERROR.0)));
}

#[test]
fn cached_responses_obey_the_windows() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 10)]));
    feed(&mut session, &[get(1), get(3)].concat());
    session.output.clear();
    session.send_response(
        1,
        &[&[0x88]],
        Http2ResponseBody::Bytes(Bytes::from_static(b"0123456789abcdef")),
    );
    session.send_response(3, &[&[0x88]], Http2ResponseBody::Bytes(Bytes::from_static(b"short")));
    session.fill_output(1000);
    let expected = [
        (FrameKind::Headers, 1, frame_flag::END_HEADERS, 2),
        (FrameKind::Headers, 3, frame_flag::END_HEADERS, 1),
        (FrameKind::Data, 3, frame_flag::END_STREAM, 5),
        (FrameKind::Data, 1, 0, 10),
    ];
    assert_eq!(sent(&mut session), expected);
    assert!(session.waiting_count() == 1 && !session.can_send());
    feed(&mut session, &window(1, 1));
    session.fill_output(1000);
    assert_eq!(sent(&mut session), [(FrameKind::Data, 1, 0, 1)]);
    // The window becomes negative, and grows again.
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 0)]));
    feed(&mut session, &window(1, 10));
    session.output.clear();
    session.fill_output(1000);
    assert_eq!(sent(&mut session), []);
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 100)]));
    session.output.clear();
    session.fill_output(1000);
    assert_eq!(sent(&mut session), [(FrameKind::Data, 1, frame_flag::END_STREAM, 5)]);
    assert!(!session.has_streams());
}

#[test]
fn large_answers_take_turns_and_share_one_window() {
    let mut session = greeted();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; 100_000]).unwrap();
    let file = Arc::new(file);
    feed(&mut session, &[get(1), get(3)].concat());
    session.output.clear();
    for stream in [1, 3] {
        let body = Http2ResponseBody::File { file: Arc::clone(&file), offset: 10, length: 40_000 };
        session.send_response(stream, &[&[0x88]], body);
    }
    session.fill_output(1_000_000);
    let data: Vec<_> =
        sent(&mut session).into_iter().filter(|frame| frame.0 == FrameKind::Data).collect();
    let turns: Vec<u32> = data.iter().map(|frame| frame.1).collect();
    assert_eq!(turns, [1, 3, 1, 3]);
    assert_eq!(data.iter().map(|frame| frame.3).sum::<usize>(), 65_535, "the first window");
    feed(&mut session, &window(0, 100_000));
    session.fill_output(1_000_000);
    let ends: Vec<u8> = sent(&mut session).iter().map(|frame| frame.2).collect();
    assert_eq!(ends.iter().filter(|flags| **flags == frame_flag::END_STREAM).count(), 2);
    assert!(!session.has_streams());
}

/// Returns the time at which a response of 100,000 bytes is given up, if within an hour. The client reads `bytes` bytes
/// every `every` seconds and requests small pages in between.
fn given_up_after(bytes: u32, every: u64) -> Option<u64> {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 10)]));
    feed(&mut session, &window(0, 1 << 20));
    feed(&mut session, &get(1));
    session.send_response(1, &[&[0x88]], Http2ResponseBody::Bytes(vec![7; 100_000].into()));
    session.fill_output(1 << 20);
    assert_eq!(session.next_stall_deadline_ms(), Some(STALL_MS));
    let mut stream = 3;
    for second in 1..=3600 {
        session.advance_time(second * 1000);
        session.output.clear();
        if second % every == 0 {
            feed(&mut session, &window(1, bytes));
        }
        feed(&mut session, &get(stream));
        session.send_response(
            stream,
            &[&[0x88]],
            Http2ResponseBody::Bytes(Bytes::from_static(b"page")),
        );
        stream += 2;
        session.fill_output(1 << 20);
        if session.reset_stalled_streams() > 0 {
            assert_eq!(reset(&session), Some((1, Http2ErrorCode::CANCEL.0)));
            assert!(!session.has_streams() && session.next_stall_deadline_ms().is_none());
            return Some(second);
        }
        if !session.has_streams() {
            return None;
        }
        session.next_stall_deadline_ms();
    }
    panic!("the answer is neither taken nor given up");
}

#[test]
fn an_answer_without_a_window_is_given_up_whatever_else_is_asked() {
    assert_eq!(given_up_after(1, 3600), Some(30));
    assert_eq!(given_up_after(1, 1), Some(31));
    assert_eq!(given_up_after(1, 29), Some(31));
    assert_eq!(given_up_after(15_000, 29), None, "who takes enough gets all");
    assert_eq!(given_up_after(500, 1), None);
}

#[test]
fn small_answers_do_not_take_the_window_of_those_that_wait() {
    let mut session = greeted();
    feed(&mut session, &get(1));
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 1 << 20)]));
    session.send_response(1, &[&[0x88]], Http2ResponseBody::Bytes(vec![7; 200_000].into()));
    session.fill_output(1 << 20);
    assert!(session.is_blocked_by_window() && session.next_stall_deadline_ms().is_none());
    let take_output = |session: &mut Http2Connection, stream: u32| {
        let data =
            |frame: &&(FrameKind, u32, u8, usize)| (frame.0, frame.1) == (FrameKind::Data, stream);
        sent(session).iter().filter(data).map(|frame| frame.3).sum::<usize>()
    };
    session.output.clear();
    for (stream, opened) in [(3, 1000), (5, 17_000), (7, 40_000)] {
        feed(&mut session, &[window(0, opened), get(stream)].concat());
        session.send_response(stream, &[&[0x88]], Http2ResponseBody::Bytes(vec![7; 1000].into()));
        session.fill_output(1 << 20);
        assert!(take_output(&mut session, 1) * 2 >= opened as usize, "of {opened}");
        session.output.clear();
    }
    assert_eq!(session.sent_body_bytes(), 65_535 + 58_000);
}

#[test]
fn an_answer_whose_file_was_cut_is_reset() {
    let mut session = greeted();
    let file = tempfile::tempfile().unwrap();
    feed(&mut session, &get(1));
    session.output.clear();
    session.send_response(
        1,
        &[&[0x88]],
        Http2ResponseBody::File { file: Arc::new(file), offset: 0, length: 40_000 },
    );
    session.fill_output(1_000_000);
    assert_eq!(reset(&session), Some((1, Http2ErrorCode::INTERNAL_ERROR.0)));
    assert!(!session.has_streams());
}

#[test]
fn answers_of_the_service_are_passed_on_in_order() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 4)]));
    feed(&mut session, &post(1));
    session.output.clear();
    session.forward_head(1, &[0x08, 3, b'1', b'0', b'3'], false);
    session.forward_head(1, &[0x88], false);
    session.forward_data(1, Bytes::from_static(b"012345"), false);
    session.forward_head(1, &[0, 1, b't', 1, b'x'], true);
    session.forward_reset(1, Http2ErrorCode::NO_ERROR);
    session.fill_output(1000);
    let expected = [
        (FrameKind::Headers, 1, frame_flag::END_HEADERS, 6),
        (FrameKind::Headers, 1, frame_flag::END_HEADERS, 1),
        (FrameKind::Data, 1, 0, 4),
    ];
    assert_eq!(sent(&mut session), expected);
    feed(&mut session, &window(1, 10));
    session.fill_output(1000);
    let expected =
        [(FrameKind::Data, 1, 0, 2), (FrameKind::Headers, 1, END, 5), (FrameKind::Reset, 1, 0, 4)];
    assert_eq!(sent(&mut session), expected);
    assert!(!session.has_streams());
    assert_eq!(feed(&mut session, &frame(FrameKind::Data, 1, 1, b"late")), "");
}

#[test]
fn an_empty_end_of_an_answer_is_reported() {
    let mut session = greeted();
    feed(&mut session, &post(1));
    session.output.clear();
    session.forward_head(1, &[0x88], false);
    session.forward_data(1, Bytes::new(), true);
    assert_eq!(sent(&mut session).last(), Some(&(FrameKind::Data, 1, frame_flag::END_STREAM, 0)));
    assert!(session.has_streams(), "the request goes on");
    assert_eq!(feed(&mut session, &frame(FrameKind::Data, 1, 1, b"rest")), "data1001:4.");
    assert!(!session.has_streams());
}

#[test]
fn streams_of_a_service_that_has_gone_are_reset() {
    let mut session = greeted();
    feed(&mut session, &[post(1), frame(FrameKind::Data, 0, 1, b"body")].concat());
    session.output.clear();
    session.abandon_service_streams();
    let expected = [(FrameKind::Reset, 1, 0, 4), (FrameKind::WindowUpdate, 0, 0, 4)];
    assert_eq!(sent(&mut session), expected);
}

#[test]
fn an_answer_that_is_whole_survives_its_service() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting_id::INITIAL_WINDOW_SIZE, 4)]));
    feed(&mut session, &[post(1), frame(FrameKind::Data, 1, 1, b"body")].concat());
    session.forward_head(1, &[0x88], false);
    session.forward_data(1, Bytes::from_static(b"answer"), true);
    session.fill_output(1000);
    session.output.clear();
    session.abandon_service_streams();
    assert_eq!(sent(&mut session), [(FrameKind::WindowUpdate, 0, 0, 4)]);
    feed(&mut session, &window(1, 10));
    session.fill_output(1000);
    assert_eq!(sent(&mut session), [(FrameKind::Data, 1, frame_flag::END_STREAM, 2)]);
    assert!(!session.has_streams());
}

#[test]
fn the_end_is_announced_before_it_comes() {
    let mut session = greeted();
    feed(&mut session, &post(1));
    session.output.clear();
    session.begin_shutdown();
    session.begin_shutdown();
    assert_eq!(sent(&mut session), [(FrameKind::Goaway, 0, 0, 8), (FrameKind::Ping, 0, 0, 8)]);
    // Requested before the client received the notice.
    assert_eq!(feed(&mut session, &post(3)), "post3:4");
    feed(&mut session, &frame(FrameKind::Ping, frame_flag::ACK, 0, FAREWELL_PING));
    assert_eq!(farewell(&session), Some(0));
    let late = [post(5), frame(FrameKind::Data, 1, 5, b"body")].concat();
    assert_eq!(feed(&mut session, &late), "", "it is not looked at");
    assert!(!session.is_closing());
    for stream in [1, 3] {
        session.forward_head(stream, &[0x88], true);
        feed(&mut session, &frame(FrameKind::Data, 1, stream, &[]));
    }
    assert!(session.is_closing());
    session.output.clear();
    session.close_with_error(Http2ErrorCode::CANCEL);
    let last =
        frames(&session.output.to_vec()).next().and_then(|(_, payload)| frame::read_u32(payload));
    assert_eq!(last, Some(3), "no later stream is said to have been looked at");
}

proptest! {
    #[test]
    fn frames_mean_the_same_in_any_pieces(
        frames in proptest::collection::vec((0_u8..11, any::<u8>(), 0_u32..6, proptest::collection::vec(any::<u8>(), 0..12)), 0..20),
        cut in 1_usize..40,
    ) {
        let mut input = [CLIENT_PREFACE, &settings(&[])].concat();
        for (kind, flags, stream, payload) in frames {
            let mut bytes = frame(FrameKind::Data, flags, stream, &payload);
            bytes[3] = kind;
            input.extend(bytes);
        }
        let mut whole = Http2Connection::new(BOUNDS, 0);
        let expected = feed(&mut whole, &input);
        let mut cut_up = Http2Connection::new(BOUNDS, 0);
        let (mut outputs, mut buffer) = (Vec::new(), Vec::new());
        for piece in input.chunks(cut) {
            buffer.extend_from_slice(piece);
            let (some, left) = feed_some(&mut cut_up, &buffer);
            outputs.extend((!some.is_empty()).then_some(some));
            buffer.drain(..buffer.len() - left);
        }
        let outputs = outputs.join(" ");
        let outputs = outputs.split("over").next().unwrap().trim();
        prop_assert_eq!(outputs, expected.split("over").next().unwrap().trim());
        prop_assert_eq!(cut_up.output.to_vec(), whole.output.to_vec());
    }
}
