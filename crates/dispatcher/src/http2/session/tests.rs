use super::{Bounds, Kept, LAST_PING, News, Session, Step};
use crate::http2::frame::{self, HEAD_BYTES, Head, Kind, PREFACE, Reason, flag, setting};
use crate::http2::hpack::{Decoder, Fields, push_literal};
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use tympan_web::lane::STREAM_WINDOW;

const STALL_MS: u64 = 30_000;
const BOUNDS: Bounds =
    Bounds { max_streams: 8, header_bytes: 16 * 1024, stall: Duration::from_millis(STALL_MS) };
const END: u8 = flag::END_STREAM | flag::END_HEADERS;

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push(&mut out, kind, (flags, stream), payload);
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
    frame(Kind::Headers, END, stream, &block("/a"))
}

fn post(stream: u32) -> Vec<u8> {
    frame(Kind::Headers, flag::END_HEADERS, stream, &block("/a"))
}

fn window(stream: u32, bytes: u32) -> Vec<u8> {
    frame(Kind::WindowUpdate, 0, stream, &bytes.to_be_bytes())
}

/// A connection whose client has greeted.
fn greeted() -> Session {
    let mut session = Session::new(BOUNDS, 0);
    let mut input = PREFACE.to_vec();
    input.extend(settings(&[]));
    assert_eq!(feed(&mut session, &input), "");
    session.out.clear();
    session
}

/// Feeds bytes, and describes the steps.
fn feed(session: &mut Session, input: &[u8]) -> String {
    feed_some(session, input).0
}

/// Feeds bytes, and returns the steps and how many bytes are left.
fn feed_some(session: &mut Session, input: &[u8]) -> (String, usize) {
    let (mut rest, mut fields) = (input, Fields::default());
    let mut told = Vec::new();
    loop {
        match session.step(&mut rest, &mut fields) {
            Step::Wait => return (told.join(" "), rest.len()),
            Step::Over => {
                told.push("over".to_owned());
                return (told.join(" "), 0);
            }
            Step::Request { stream, is_whole } => {
                // Those with a body are left, as they can be nothing else.
                if !is_whole {
                    session.leave(stream, is_whole, stream + 1000);
                }
                let count = fields.iter().count();
                told.push(format!("{}{stream}:{count}", if is_whole { "get" } else { "post" }));
            }
            Step::Trailers { behind } => told.push(format!("trailers{behind}")),
            Step::Data { behind, bytes, is_last } => {
                let end = if is_last { "." } else { "" };
                told.push(format!("data{behind}:{}{end}", bytes.len()));
            }
        }
    }
}

/// Describes what was sent since the last time, as frames of `kind stream flags length`.
fn sent(session: &mut Session) -> Vec<(Kind, u32, u8, usize)> {
    let out = std::mem::take(&mut session.out).to_vec();
    frames(&out).map(|(head, _)| (head.kind, head.stream, head.flags, head.length)).collect()
}

fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (Head, &[u8])> {
    std::iter::from_fn(move || {
        let head = Head::read(bytes)?;
        let payload = bytes.get(HEAD_BYTES..HEAD_BYTES + head.length)?;
        bytes = &bytes[HEAD_BYTES + head.length..];
        Some((head, payload))
    })
}

/// Returns the reason of the GOAWAY that ended a connection.
fn farewell(session: &Session) -> Option<u32> {
    let out = session.out.to_vec();
    let goaway = frames(&out).find(|(head, _)| head.kind == Kind::Goaway);
    goaway.map(|(_, payload)| frame::read_number(&payload[4..]).unwrap())
}

/// Returns the reason of the first reset.
fn reset(session: &Session) -> Option<(u32, u32)> {
    let out = session.out.to_vec();
    let reset = frames(&out).find(|(head, _)| head.kind == Kind::Reset);
    reset.map(|(head, payload)| (head.stream, frame::read_number(payload).unwrap()))
}

/// What ends a connection, and with which reason.
#[test]
fn mistakes_end_a_connection() {
    let large = vec![0; 16 * 1024 + 1];
    for (what, input, reason) in [
        ("settings for a stream", frame(Kind::Settings, 0, 1, &[]), 1),
        ("half a setting", frame(Kind::Settings, 0, 0, &[0; 5]), 6),
        ("an acknowledgment with settings", frame(Kind::Settings, 1, 0, &[0; 6]), 6),
        ("push 2", settings(&[(setting::ENABLE_PUSH, 2)]), 1),
        ("a window over 2^31", settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), 3),
        ("small frames", settings(&[(setting::MAX_FRAME_SIZE, 16_383)]), 1),
        ("large frames", settings(&[(setting::MAX_FRAME_SIZE, 1 << 24)]), 1),
        ("a frame that is too long", frame(Kind::Data, 0, 1, &large), 6),
        ("a ping for a stream", frame(Kind::Ping, 0, 1, &[0; 8]), 1),
        ("a short ping", frame(Kind::Ping, 0, 0, &[0; 7]), 6),
        ("data for nothing", frame(Kind::Data, 0, 0, b"x"), 1),
        ("data for a stream to come", frame(Kind::Data, 0, 1, b"x"), 1),
        ("a reset of the connection", frame(Kind::Reset, 0, 0, &[0; 4]), 1),
        ("a reset of a stream to come", frame(Kind::Reset, 0, 1, &[0; 4]), 1),
        ("a short reset", [get(1), frame(Kind::Reset, 0, 1, &[0; 3])].concat(), 6),
        ("a window of a stream to come", window(1, 1), 1),
        ("an empty window", window(0, 0), 1),
        ("a short window", frame(Kind::WindowUpdate, 0, 0, &[0; 3]), 6),
        ("too large a window", window(0, 0x7fff_ffff), 3),
        ("a promise", frame(Kind::PushPromise, 4, 1, &[0; 4]), 1),
        ("a block that goes on from nothing", frame(Kind::Continuation, 4, 1, &[]), 1),
        ("headers of an even stream", frame(Kind::Headers, END, 2, &block("/")), 1),
        ("headers of no stream", frame(Kind::Headers, END, 0, &block("/")), 1),
        ("a priority for nothing", frame(Kind::Priority, 0, 0, &[0; 5]), 1),
        ("a short priority", frame(Kind::Priority, 0, 1, &[0; 4]), 6),
        ("a farewell for a stream", frame(Kind::Goaway, 0, 1, &[0; 8]), 1),
        ("a block that is none", frame(Kind::Headers, END, 1, &[0x80]), 9),
        ("padding over all", frame(Kind::Headers, END | flag::PADDED, 1, &[9, 0]), 1),
        ("a priority that is cut", frame(Kind::Headers, END | flag::PRIORITY, 1, &[0; 4]), 6),
        ("a lower stream", [get(5), get(3)].concat(), 5),
        ("headers after the end", [get(1), get(1)].concat(), 5),
        ("data after the end", [get(1), frame(Kind::Data, 0, 1, b"x")].concat(), 5),
        (
            "another frame within a block",
            [frame(Kind::Headers, 0, 1, &[]), frame(Kind::Ping, 0, 0, &[0; 8])].concat(),
            1,
        ),
        (
            "a block that goes on elsewhere",
            [frame(Kind::Headers, 0, 1, &[]), frame(Kind::Continuation, 4, 3, &[])].concat(),
            1,
        ),
    ] {
        let mut session = greeted();
        let told = feed(&mut session, &input);
        assert!(told.ends_with("over"), "{what}: {told}");
        assert_eq!(farewell(&session), Some(reason), "{what}");
        assert!(session.is_over() && !session.has_streams());
        assert_eq!(feed(&mut session, &get(99)), "over", "{what}: nothing is read any more");
    }
}

#[test]
fn a_connection_begins_with_its_greeting() {
    let whole = [PREFACE, &settings(&[(setting::MAX_HEADER_LIST_SIZE, 1)]), &get(1)].concat();
    let mut session = Session::new(BOUNDS, 0);
    for index in 0..whole.len() {
        let mut cut = Session::new(BOUNDS, 0);
        assert_eq!(feed(&mut cut, &whole[..index]), "", "{index}");
    }
    assert_eq!(feed(&mut session, &whole), "get1:4");
    let kinds: Vec<Kind> = sent(&mut session).iter().map(|frame| frame.0).collect();
    assert_eq!(kinds, [Kind::Settings, Kind::WindowUpdate, Kind::Settings]);
    for wrong in [
        &b"GET / HTTP/1.1\r\n"[..],
        &[PREFACE, &get(1)].concat(),
        &[PREFACE, &frame(Kind::Settings, flag::ACK, 0, &[])].concat(),
    ] {
        let mut session = Session::new(BOUNDS, 0);
        assert_eq!(feed(&mut session, wrong), "over");
        assert_eq!(farewell(&session), Some(1));
    }
}

#[test]
fn extensions_and_priorities_are_ignored() {
    let mut session = greeted();
    let mut unknown = frame(Kind::Ping, 0xff, 5, b"anything");
    unknown[3] = 0x10;
    let mut prioritized = vec![0, 0, 0, 0, 16];
    prioritized.extend(block("/a"));
    let input = [
        unknown,
        frame(Kind::Priority, 0, 7, &[0; 5]),
        frame(Kind::Headers, END | flag::PRIORITY, 1, &prioritized),
        settings(&[(99, 1)]),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get1:4");
    assert_eq!(sent(&mut session), [(Kind::Settings, 0, flag::ACK, 0)]);
}

#[test]
fn a_ping_is_answered_with_its_bytes() {
    let mut session = greeted();
    feed(&mut session, &frame(Kind::Ping, 0, 0, b"12345678"));
    assert_eq!(session.out.to_vec(), frame(Kind::Ping, flag::ACK, 0, b"12345678"));
}

#[test]
fn a_block_may_come_in_pieces() {
    let mut session = greeted();
    let block = block("/a");
    let (first, rest) = block.split_at(5);
    let (second, third) = rest.split_at(7);
    let input = [
        frame(Kind::Headers, flag::END_STREAM, 1, first),
        frame(Kind::Continuation, 0, 1, second),
        frame(Kind::Continuation, flag::END_HEADERS, 1, third),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get1:4");
}

#[test]
fn floods_end_with_a_request_for_calm() {
    let ping = frame(Kind::Ping, 0, 0, &[0; 8]);
    let empty = frame(Kind::Data, 0, 1, &[]);
    let piece = frame(Kind::Continuation, 0, 1, &[0, 1, b'x', 1, b'y']);
    for (what, first, flood) in [
        ("pings", vec![], ping),
        ("settings", vec![], settings(&[])),
        ("windows", vec![], settings(&[(setting::INITIAL_WINDOW_SIZE, 1)])),
        ("acknowledgments", vec![], frame(Kind::Settings, flag::ACK, 0, &[])),
        ("priorities", vec![], frame(Kind::Priority, 0, 1, &[0; 5])),
        ("empty data", post(1), empty),
        ("pieces of a block", frame(Kind::Headers, 0, 1, &[]), piece),
        ("windows of a stream", post(1), window(1, 1)),
        ("resets of what has ended", get(1), frame(Kind::Reset, 0, 1, &[0; 4])),
    ] {
        let mut session = greeted();
        feed(&mut session, &first);
        let told = feed(&mut session, &flood.repeat(10_000));
        assert!(told.ends_with("over"), "{what}");
        assert_eq!(farewell(&session), Some(Reason::ENHANCE_YOUR_CALM.0), "{what}");
        assert!(session.out.len() < 64 * 1024, "{what}: {} bytes", session.out.len());
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
        frame(Kind::Headers, flag::END_STREAM, 1, first),
        frame(Kind::Continuation, flag::END_HEADERS, 1, rest),
        get(3),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "get3:4", "the first one was answered");
    let out = std::mem::take(&mut session.out).to_vec();
    let (head, payload) = frames(&out).next().unwrap();
    assert_eq!((head.kind, head.stream, head.flags), (Kind::Headers, 1, END));
    let mut fields = Fields::default();
    Decoder::default().decode(payload, &mut fields, 1000).unwrap();
    assert_eq!(fields.iter().next(), Some((&b":status"[..], &b"431"[..])));
    let input = [
        frame(Kind::Headers, flag::END_STREAM, 5, &[0; 16_000]),
        frame(Kind::Continuation, 0, 5, &[0; 16_000]),
        frame(Kind::Continuation, 0, 5, &[0; 16_000]),
    ];
    assert_eq!(feed(&mut session, &input.concat()), "over");
    assert_eq!(farewell(&session), Some(Reason::ENHANCE_YOUR_CALM.0));
}

#[test]
fn a_small_block_that_means_a_huge_one_is_cut() {
    let mut session = greeted();
    // Into the table: a name of 3000 bytes.
    let mut first = block("/a");
    first.extend([0x40, 0x7f, 0xb9, 0x16]);
    first.extend([b'x'; 3000]);
    first.push(0);
    assert_eq!(feed(&mut session, &frame(Kind::Headers, END, 1, &first)), "get1:5");
    let many = [0xbe; 16_000];
    assert_eq!(feed(&mut session, &frame(Kind::Headers, END, 3, &many)), "over");
    assert_eq!(farewell(&session), Some(Reason::ENHANCE_YOUR_CALM.0));
}

#[test]
fn requests_that_are_taken_back_at_once_end_the_connection() {
    let check = |what: &str, way: &dyn Fn(u32) -> Vec<u8>| {
        let mut session = greeted();
        let mut input = Vec::new();
        for number in 0..1000 {
            input.extend(post(number * 2 + 1));
            input.extend(way(number * 2 + 1));
        }
        let told = feed(&mut session, &input);
        assert!(told.ends_with("over"), "{what}");
        assert!(told.split(' ').count() < 150, "{what}: {told}");
        assert_eq!(farewell(&session), Some(Reason::ENHANCE_YOUR_CALM.0), "{what}");
    };
    check("reset", &|stream| frame(Kind::Reset, 0, stream, &8_u32.to_be_bytes()));
    // Mistakes that make this side take them back.
    check("window of nothing", &|stream| window(stream, 0));
    check("window too large", &|stream| window(stream, 0x7fff_ffff));
    let trailers = |stream| frame(Kind::Headers, flag::END_HEADERS, stream, &block("/a"));
    check("trailers that do not end", &trailers);
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut session = greeted();
    let input: Vec<u8> = (0..9).flat_map(|number| post(number * 2 + 1)).collect();
    let told = feed(&mut session, &input);
    assert_eq!(told.split(' ').count(), 8, "{told}");
    assert_eq!(reset(&session), Some((17, Reason::REFUSED_STREAM.0)));
    // What is still on its way for it is no mistake.
    session.out.clear();
    assert_eq!(feed(&mut session, &frame(Kind::Data, 1, 17, b"body")), "");
    assert_eq!(sent(&mut session), [(Kind::WindowUpdate, 0, 0, 4)], "its window comes back");
}

#[test]
fn bodies_of_requests_are_bounded() {
    let mut session = greeted();
    let padded = frame(Kind::Data, flag::PADDED, 1, b"\x02abcd");
    let told = feed(&mut session, &[post(1), padded, frame(Kind::Data, 1, 1, b"e")].concat());
    assert_eq!(told, "post1:4 data1001:2 data1001:1.");
    let expected = [(Kind::WindowUpdate, 0, 0, 4), (Kind::WindowUpdate, 1, 0, 4)];
    assert_eq!(sent(&mut session), expected, "padding is taken at once");
    let piece = |stream| frame(Kind::Data, 0, stream, &[0; 16 * 1024]);
    let pieces = STREAM_WINDOW / (16 * 1024);
    for stream in [3, 5] {
        feed(&mut session, &post(stream));
        for _ in 0..pieces {
            assert_eq!(feed(&mut session, &piece(stream)), format!("data{}:16384", stream + 1000));
        }
    }
    session.pass_window(3, 16 * 1024);
    assert_eq!(sent(&mut session), [(Kind::WindowUpdate, 3, 0, 4)]);
    assert_eq!(feed(&mut session, &piece(3)), "data1003:16384");
    assert_eq!(feed(&mut session, &piece(3)), "", "its window is used up");
    assert_eq!(reset(&session), Some((3, Reason::FLOW_CONTROL_ERROR.0)));
    assert_eq!(farewell(&session), None, "others go on");
    // Whatever the window of a stream, there is one of all.
    session.pass_window(5, 10_000_000);
    let told = feed(&mut session, &piece(5).repeat(1000));
    assert!(told.ends_with("over"));
    assert_eq!(farewell(&session), Some(Reason::FLOW_CONTROL_ERROR.0));
}

#[test]
fn streams_that_end_before_their_turn_leave_nothing_behind() {
    let mut session = greeted();
    let large = Bytes::from(vec![0; 100_000]);
    for number in 0..10_000 {
        let stream = number * 2 + 1;
        assert_eq!(feed(&mut session, &get(stream)), format!("get{stream}:4"));
        session.answer(stream, &[&[0x88]], Kept::Bytes(large.clone()));
        // The window of all is closed behind the first of it.
        session.fill(1_000_000);
        assert_eq!(feed(&mut session, &frame(Kind::Reset, 0, stream, &8_u32.to_be_bytes())), "");
        session.out.clear();
    }
    assert!(!session.has_streams());
    assert!(session.ready.len() < 100, "{} turns wait", session.ready.len());
}

#[test]
fn trailers_end_a_request() {
    let mut session = greeted();
    let told = feed(&mut session, &[post(1), get(1)].concat());
    assert_eq!(told, "post1:4 trailers1001");
    assert_eq!(feed(&mut session, &post(3)), "post3:4");
    assert_eq!(feed(&mut session, &post(3)), "", "trailers that do not end it");
    assert_eq!(reset(&session), Some((3, Reason::PROTOCOL_ERROR.0)));
    assert_eq!(session.take_news(), [(1003, News::Ended(Reason::PROTOCOL_ERROR))]);
}

#[test]
fn kept_answers_keep_to_the_windows() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]));
    feed(&mut session, &[get(1), get(3)].concat());
    session.out.clear();
    session.answer(1, &[&[0x88]], Kept::Bytes(Bytes::from_static(b"0123456789abcdef")));
    session.answer(3, &[&[0x88]], Kept::Bytes(Bytes::from_static(b"short")));
    session.fill(1000);
    let expected = [
        (Kind::Headers, 1, flag::END_HEADERS, 2),
        (Kind::Headers, 3, flag::END_HEADERS, 1),
        (Kind::Data, 3, flag::END_STREAM, 5),
        (Kind::Data, 1, 0, 10),
    ];
    assert_eq!(sent(&mut session), expected);
    assert!(session.waiting() == 1 && !session.can_send());
    feed(&mut session, &window(1, 1));
    session.fill(1000);
    assert_eq!(sent(&mut session), [(Kind::Data, 1, 0, 1)]);
    // The window shrinks below nothing, and grows again.
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 0)]));
    feed(&mut session, &window(1, 10));
    session.out.clear();
    session.fill(1000);
    assert_eq!(sent(&mut session), []);
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 100)]));
    session.out.clear();
    session.fill(1000);
    assert_eq!(sent(&mut session), [(Kind::Data, 1, flag::END_STREAM, 5)]);
    assert!(!session.has_streams());
}

#[test]
fn large_answers_take_turns_and_share_one_window() {
    let mut session = greeted();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; 100_000]).unwrap();
    let file = Arc::new(file);
    feed(&mut session, &[get(1), get(3)].concat());
    session.out.clear();
    for stream in [1, 3] {
        let body = Kept::File { file: Arc::clone(&file), offset: 10, length: 40_000 };
        session.answer(stream, &[&[0x88]], body);
    }
    session.fill(1_000_000);
    let data: Vec<_> =
        sent(&mut session).into_iter().filter(|frame| frame.0 == Kind::Data).collect();
    let turns: Vec<u32> = data.iter().map(|frame| frame.1).collect();
    assert_eq!(turns, [1, 3, 1, 3]);
    assert_eq!(data.iter().map(|frame| frame.3).sum::<usize>(), 65_535, "the first window");
    feed(&mut session, &window(0, 100_000));
    session.fill(1_000_000);
    let ends: Vec<u8> = sent(&mut session).iter().map(|frame| frame.2).collect();
    assert_eq!(ends.iter().filter(|flags| **flags == flag::END_STREAM).count(), 2);
    assert!(!session.has_streams());
}

/// Returns when an answer of 100,000 bytes is given up of which the client takes so many every so many seconds and asks
/// for little pages besides, if it is within an hour.
fn given_up_after(bytes: u32, every: u64) -> Option<u64> {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 10)]));
    feed(&mut session, &window(0, 1 << 20));
    feed(&mut session, &get(1));
    session.answer(1, &[&[0x88]], Kept::Bytes(vec![7; 100_000].into()));
    session.fill(1 << 20);
    assert_eq!(session.stall_end_ms(), Some(STALL_MS));
    let mut stream = 3;
    for second in 1..=3600 {
        session.tick(second * 1000);
        session.out.clear();
        if second % every == 0 {
            feed(&mut session, &window(1, bytes));
        }
        feed(&mut session, &get(stream));
        session.answer(stream, &[&[0x88]], Kept::Bytes(Bytes::from_static(b"page")));
        stream += 2;
        session.fill(1 << 20);
        if session.give_up_stalled() > 0 {
            assert_eq!(reset(&session), Some((1, Reason::CANCEL.0)));
            assert!(!session.has_streams() && session.stall_end_ms().is_none());
            return Some(second);
        }
        if !session.has_streams() {
            return None;
        }
        session.stall_end_ms();
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
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]));
    session.answer(1, &[&[0x88]], Kept::Bytes(vec![7; 200_000].into()));
    session.fill(1 << 20);
    assert!(session.wants_window() && session.stall_end_ms().is_none());
    let taken = |session: &mut Session, stream: u32| {
        let data = |frame: &&(Kind, u32, u8, usize)| (frame.0, frame.1) == (Kind::Data, stream);
        sent(session).iter().filter(data).map(|frame| frame.3).sum::<usize>()
    };
    session.out.clear();
    for (stream, opened) in [(3, 1000), (5, 17_000), (7, 40_000)] {
        feed(&mut session, &[window(0, opened), get(stream)].concat());
        session.answer(stream, &[&[0x88]], Kept::Bytes(vec![7; 1000].into()));
        session.fill(1 << 20);
        assert!(taken(&mut session, 1) * 2 >= opened as usize, "of {opened}");
        session.out.clear();
    }
    assert_eq!(session.taken(), 65_535 + 58_000);
}

#[test]
fn an_answer_whose_file_was_cut_is_reset() {
    let mut session = greeted();
    let file = tempfile::tempfile().unwrap();
    feed(&mut session, &get(1));
    session.out.clear();
    session.answer(1, &[&[0x88]], Kept::File { file: Arc::new(file), offset: 0, length: 40_000 });
    session.fill(1_000_000);
    assert_eq!(reset(&session), Some((1, Reason::INTERNAL_ERROR.0)));
    assert!(!session.has_streams());
}

#[test]
fn answers_of_the_service_are_passed_on_in_order() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]));
    feed(&mut session, &post(1));
    session.out.clear();
    session.pass_head(1, &[0x08, 3, b'1', b'0', b'3'], false);
    session.pass_head(1, &[0x88], false);
    session.pass_data(1, Bytes::from_static(b"012345"), false);
    session.pass_head(1, &[0, 1, b't', 1, b'x'], true);
    session.pass_reset(1, Reason::NO_ERROR);
    session.fill(1000);
    let expected = [
        (Kind::Headers, 1, flag::END_HEADERS, 6),
        (Kind::Headers, 1, flag::END_HEADERS, 1),
        (Kind::Data, 1, 0, 4),
    ];
    assert_eq!(sent(&mut session), expected);
    feed(&mut session, &window(1, 10));
    session.fill(1000);
    let expected = [(Kind::Data, 1, 0, 2), (Kind::Headers, 1, END, 5), (Kind::Reset, 1, 0, 4)];
    assert_eq!(sent(&mut session), expected);
    assert!(!session.has_streams());
    assert_eq!(feed(&mut session, &frame(Kind::Data, 1, 1, b"late")), "");
}

#[test]
fn an_empty_end_of_an_answer_is_told() {
    let mut session = greeted();
    feed(&mut session, &post(1));
    session.out.clear();
    session.pass_head(1, &[0x88], false);
    session.pass_data(1, Bytes::new(), true);
    assert_eq!(sent(&mut session).last(), Some(&(Kind::Data, 1, flag::END_STREAM, 0)));
    assert!(session.has_streams(), "the request goes on");
    assert_eq!(feed(&mut session, &frame(Kind::Data, 1, 1, b"rest")), "data1001:4.");
    assert!(!session.has_streams());
}

#[test]
fn streams_of_a_service_that_has_gone_are_reset() {
    let mut session = greeted();
    feed(&mut session, &[post(1), frame(Kind::Data, 0, 1, b"body")].concat());
    session.out.clear();
    session.abandon();
    let expected = [(Kind::Reset, 1, 0, 4), (Kind::WindowUpdate, 0, 0, 4)];
    assert_eq!(sent(&mut session), expected);
}

#[test]
fn an_answer_that_is_whole_survives_its_service() {
    let mut session = greeted();
    feed(&mut session, &settings(&[(setting::INITIAL_WINDOW_SIZE, 4)]));
    feed(&mut session, &[post(1), frame(Kind::Data, 1, 1, b"body")].concat());
    session.pass_head(1, &[0x88], false);
    session.pass_data(1, Bytes::from_static(b"answer"), true);
    session.fill(1000);
    session.out.clear();
    session.abandon();
    assert_eq!(sent(&mut session), [(Kind::WindowUpdate, 0, 0, 4)]);
    feed(&mut session, &window(1, 10));
    session.fill(1000);
    assert_eq!(sent(&mut session), [(Kind::Data, 1, flag::END_STREAM, 2)]);
    assert!(!session.has_streams());
}

#[test]
fn the_end_is_told_before_it_comes() {
    let mut session = greeted();
    feed(&mut session, &post(1));
    session.out.clear();
    session.announce_end();
    session.announce_end();
    assert_eq!(sent(&mut session), [(Kind::Goaway, 0, 0, 8), (Kind::Ping, 0, 0, 8)]);
    // Asked before the client heard of it.
    assert_eq!(feed(&mut session, &post(3)), "post3:4");
    feed(&mut session, &frame(Kind::Ping, flag::ACK, 0, LAST_PING));
    assert_eq!(farewell(&session), Some(0));
    let late = [post(5), frame(Kind::Data, 1, 5, b"body")].concat();
    assert_eq!(feed(&mut session, &late), "", "it is not looked at");
    assert!(!session.is_over());
    for stream in [1, 3] {
        session.pass_head(stream, &[0x88], true);
        feed(&mut session, &frame(Kind::Data, 1, stream, &[]));
    }
    assert!(session.is_over());
    session.out.clear();
    session.fail(Reason::CANCEL);
    let last =
        frames(&session.out.to_vec()).next().and_then(|(_, payload)| frame::read_number(payload));
    assert_eq!(last, Some(3), "no later stream is said to have been looked at");
}

proptest! {
    #[test]
    fn frames_mean_the_same_in_any_pieces(
        frames in proptest::collection::vec((0_u8..11, any::<u8>(), 0_u32..6, proptest::collection::vec(any::<u8>(), 0..12)), 0..20),
        cut in 1_usize..40,
    ) {
        let mut input = [PREFACE, &settings(&[])].concat();
        for (kind, flags, stream, payload) in frames {
            let mut bytes = frame(Kind::Data, flags, stream, &payload);
            bytes[3] = kind;
            input.extend(bytes);
        }
        let mut whole = Session::new(BOUNDS, 0);
        let expected = feed(&mut whole, &input);
        let mut cut_up = Session::new(BOUNDS, 0);
        let (mut told, mut held) = (Vec::new(), Vec::new());
        for piece in input.chunks(cut) {
            held.extend_from_slice(piece);
            let (some, left) = feed_some(&mut cut_up, &held);
            told.extend((!some.is_empty()).then_some(some));
            held.drain(..held.len() - left);
        }
        let told = told.join(" ");
        let told = told.split("over").next().unwrap().trim();
        prop_assert_eq!(told, expected.split("over").next().unwrap().trim());
        prop_assert_eq!(cut_up.out.to_vec(), whole.out.to_vec());
    }
}
