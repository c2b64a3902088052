//! The lane and clients that are slow, half gone, greedy or many: each ends in time, and none at another's expense.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT};
use tympan_web::listen::ListenerLimits;

use crate::front::{Front, Setup, limits};

const HOUR: Duration = Duration::from_secs(3600);
const PAGE: &str = "GET /a.html HTTP/1.1\r\nHost: www.example.com\r\n\r\n";
const LAST: &str = "GET /a.html HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n";

/// Starts a front that never ends a connection by itself but as `limits` say, and that keeps `/a.html` in memory.
fn front_with(origin: &OriginServer, limits: ListenerLimits, settings: &str) -> Front {
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        limits: Some(limits),
        settings: settings.to_owned(),
        ..Setup::default()
    });
    while front.metric("fast_path_hits_total") == 0 {
        let answer = tympan_testkit::origin_server::exchange_bytes(front.addr, LAST.as_bytes());
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
    front
}

fn patient() -> ListenerLimits {
    ListenerLimits { header_timeout: HOUR, write_timeout: HOUR, ..limits() }
}

fn connect(front: &Front) -> TcpStream {
    let stream = TcpStream::connect(front.addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream
}

/// Reads one answer, whose body is `length` bytes long.
fn read_answer(stream: &mut TcpStream, length: usize) {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection ended in an answer");
        bytes.extend_from_slice(&piece[..count]);
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if end.is_some_and(|end| bytes.len() >= end + 4 + length) {
            assert!(bytes.starts_with(b"HTTP/1.1 200"));
            assert_eq!(bytes.len(), end.unwrap() + 4 + length);
            return;
        }
    }
}

/// Sends a byte again and again until the server has ended the connection.
fn trickle_until_ended(mut stream: TcpStream, bytes: &[u8]) {
    let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
    for byte in bytes.iter().cycle() {
        assert!(std::time::Instant::now() < deadline, "the connection does not end");
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        // Slow enough not to fill the buffers.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Connections that end with the test, also with one that fails.
#[derive(Default)]
struct Ending(Vec<TcpStream>);

impl Drop for Ending {
    fn drop(&mut self) {
        for stream in &self.0 {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_ends_in_time() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let timeout = Duration::from_millis(300);
    let front = front_with(&origin, ListenerLimits { header_timeout: timeout, ..patient() }, "");
    // The first one says nothing at all, the last one was answered before.
    let mut silent = connect(&front);
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    trickle_until_ended(connect(&front), b"a");
    let mut answered = connect(&front);
    answered.write_all(PAGE.as_bytes()).unwrap();
    read_answer(&mut answered, 4);
    trickle_until_ended(answered, b"a");
    front.wait_for("connections", 0);
}

#[test]
fn who_reads_nothing_of_its_answer_ends_in_time_whatever_it_sends() {
    let origin = OriginServer::start_constant(OriginResponse::html(vec![b'x'; 32 * 1024 * 1024]));
    let timeout = Duration::from_millis(300);
    let front = front_with(&origin, ListenerLimits { write_timeout: timeout, ..patient() }, "");
    front.wait_for("connections", 0);
    let mut stream = connect(&front);
    stream.write_all(PAGE.as_bytes()).unwrap();
    // The answer is on its way.
    assert!(stream.peek(&mut [0; 1]).unwrap() > 0);
    trickle_until_ended(stream, b"a");
    front.wait_for("connections", 0);
}

#[test]
fn large_answers_come_whole_in_many_turns() {
    const LENGTH: usize = 5 * 1024 * 1024 + 77;
    let origin = OriginServer::start_constant(OriginResponse::html(vec![b'x'; LENGTH]));
    let front = front_with(&origin, patient(), "");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut stream = connect(&front);
                for _ in 0..2 {
                    stream.write_all(PAGE.as_bytes()).unwrap();
                    read_answer(&mut stream, LENGTH);
                }
            });
        }
    });
    assert!(front.metric("fast_path_hits_total") >= 12, "the lane took part");
}

#[test]
fn others_are_answered_beside_clients_that_ask_without_a_pause() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = front_with(&origin, patient(), "");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        // Connections are dealt out in turn, so each thread of the lane gets one of the greedy and one of the others.
        let mut greedy = Ending::default();
        for _ in 0..cores {
            let stream = connect(&front);
            let mut reader = stream.try_clone().unwrap();
            scope.spawn(
                move || while reader.read(&mut [0; 64 * 1024]).is_ok_and(|count| count > 0) {},
            );
            let mut writer = stream.try_clone().unwrap();
            let many = PAGE.repeat(1000);
            scope.spawn(move || while writer.write_all(many.as_bytes()).is_ok() {});
            greedy.0.push(stream);
        }
        for _ in 0..cores {
            let mut stream = connect(&front);
            for _ in 0..50 {
                stream.write_all(PAGE.as_bytes()).unwrap();
                read_answer(&mut stream, 4);
            }
        }
        drop(greedy);
    });
}

#[test]
fn half_closed_connections_are_answered_and_end() {
    const LENGTH: usize = 3 * 1024 * 1024;
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/large.html" => OriginResponse::html(vec![b'x'; LENGTH]),
        _ => OriginResponse::html("page"),
    });
    let front = front_with(&origin, patient(), "");
    let large = PAGE.replace("/a.html", "/large.html");
    for round in 0..60 {
        let (request, is_large) =
            if round % 3 == 0 { (large.as_str(), true) } else { (PAGE, false) };
        let mut stream = connect(&front);
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Nothing but the client's end can end it.
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert_eq!(answer.len() - end, if is_large { LENGTH } else { 4 }, "round {round}");
    }
    // One that ends in the middle of a head.
    let mut stream = connect(&front);
    stream.write_all(b"GET /a.html HTTP/1.1\r\nHo").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    front.wait_for("connections", 0);
}

#[test]
fn draining_finishes_answers_and_ends_idle_connections() {
    const LENGTH: usize = 16 * 1024 * 1024;
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/large.html" => OriginResponse::html(vec![b'x'; LENGTH]),
        _ => OriginResponse::html("page"),
    });
    // Only the end of all connections can end it.
    let front = front_with(&origin, ListenerLimits { drain_timeout: HOUR, ..patient() }, "");
    let large = PAGE.replace("/a.html", "/large.html");
    let mut idle = connect(&front);
    idle.write_all(PAGE.as_bytes()).unwrap();
    read_answer(&mut idle, 4);
    let mut open = connect(&front);
    for _ in 0..2 {
        open.write_all(large.as_bytes()).unwrap();
        read_answer(&mut open, LENGTH);
    }
    open.write_all(large.as_bytes()).unwrap();
    // The answer is on its way, and most of it waits for its reader.
    assert!(open.peek(&mut [0; 1]).unwrap() > 0);
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        drop(front.stop());
        ended.send(()).unwrap();
    });
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0, "nobody waits for an idle client");
    assert_eq!(end.try_recv(), Err(mpsc::TryRecvError::Empty), "an answer is still open");
    read_answer(&mut open, LENGTH);
    assert_eq!(open.read(&mut [0; 1]).unwrap(), 0);
    end.recv_timeout(WAIT_TIMEOUT).expect("the dispatcher ends when its answers are sent");
}

#[test]
fn a_request_costs_one_token_whoever_answers_it() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let settings = "[front]\nrequests_per_second = 0.000001\nburst = 40\n";
    let front = front_with(&origin, patient(), settings);
    let asked = |front: &Front| front.metric("hits_total") + front.metric("misses_total");
    let ask = |more: &str| {
        let request = LAST.replace("\r\n\r\n", &format!("\r\n{more}\r\n"));
        let answer = tympan_testkit::origin_server::exchange_bytes(front.addr, request.as_bytes());
        String::from_utf8_lossy(&answer[9..12]).into_owned()
    };
    let spent = usize::try_from(asked(&front)).unwrap();
    // The lane leaves answers to the full way that an error document may replace, and requests that it does not know.
    let mut answers = Vec::new();
    for turn in spent..40 {
        answers.push(ask(match turn % 3 {
            0 => "If-Match: \"x\"\r\n",
            1 => "X-Unknown: 1\r\n",
            _ => "",
        }));
    }
    assert!(!answers.iter().any(|status| status == "429"), "{answers:?}");
    assert!(answers.iter().any(|status| status == "412"), "{answers:?}");
    for more in ["", "If-Match: \"x\"\r\n", "X-Unknown: 1\r\n"] {
        assert_eq!(ask(more), "429");
    }
}

#[test]
fn what_arrived_while_the_server_was_late_counts() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let timeout = Duration::from_millis(1500);
    let front = front_with(&origin, ListenerLimits { header_timeout: timeout, ..patient() }, "");
    front.wait_for("connections", 0);
    let mut stream = connect(&front);
    stream.write_all(PAGE.as_bytes()).unwrap();
    read_answer(&mut stream, 4);
    // Its thread looks at the clock once a second, and stands still there.
    front.hold_lane(1);
    stream.write_all(PAGE.as_bytes()).unwrap();
    // Longer than a client may take.
    let written = Instant::now();
    wait_until("the time of the client is over", || written.elapsed() > timeout);
    front.release_lane();
    read_answer(&mut stream, 4);
}

#[test]
fn the_last_answer_arrives_although_the_client_goes_on_sending() {
    const LENGTH: usize = 700_000;
    let origin = OriginServer::start_constant(OriginResponse::html(vec![b'x'; LENGTH]));
    let front = front_with(&origin, patient(), "");
    // Answered by the lane, and by the full way.
    for fully in ["", "X-Unknown: 1\r\n"] {
        let last = LAST.replace("\r\n\r\n", &format!("\r\n{fully}\r\n"));
        // More than is read at once; a server that ends with it unread throws away what it could not send yet.
        let all = format!("{PAGE}{last}{}", PAGE.repeat(1000));
        for round in 0..8 {
            let mut stream = connect(&front);
            stream.write_all(all.as_bytes()).unwrap();
            let mut answers = Vec::new();
            stream.read_to_end(&mut answers).unwrap();
            let answers = String::from_utf8(answers).unwrap();
            assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2);
            let bodies = answers.matches('x').count();
            assert!(bodies >= 2 * LENGTH, "only {bodies} bytes in round {round}");
        }
    }
}

#[test]
fn an_upload_that_is_refused_gets_its_answer() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let limits = ListenerLimits { max_body_bytes: 1000, ..patient() };
    let front = front_with(&origin, limits, "");
    let body = vec![b'x'; 300_000];
    for _ in 0..20 {
        let mut stream = connect(&front);
        let head = "POST /form HTTP/1.1\r\nHost: www.example.com\r\nContent-Length: 300000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // Who sends everything before it reads.
        for piece in body.chunks(10_000) {
            match stream.write_all(piece) {
                Ok(()) => {}
                Err(error) => panic!("the upload was cut off: {error}"),
            }
        }
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), ErrorKind::ConnectionReset),
        }
        assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
    }
}
