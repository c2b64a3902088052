//! Bodies that come too slowly: visitors' and renders'.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tympan_testkit::origin_server::{OriginResponse, OriginServer, ResponseDelivery, WAIT_TIMEOUT};

use crate::front::{Front, Setup};

fn start(origin: &OriginServer, settings: &str) -> Front {
    Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: settings.to_owned(),
        ..Setup::default()
    })
}

#[test]
fn an_upload_that_trickles_in_is_answered_408() {
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    let front = start(&origin, "[front]\nmin_body_rate = \"10 KiB/s after 200ms\"\n");
    for target in ["/form", "/dispatcher/invalidate.cache"] {
        let mut stream = TcpStream::connect(front.addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: h\r\nCQ-Action: Activate\r\nCQ-Handle: /x\r\n\
             Content-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
        );
        let head = if target == "/form" { head.replace("CQ-", "X-") } else { head };
        stream.write_all(head.as_bytes()).unwrap();
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        let mut answer = [0; 12];
        // A byte every few milliseconds is no silence.
        while stream.read_exact(&mut answer).is_err() {
            assert!(std::time::Instant::now() < deadline, "{target}: nobody answers");
            stream.write_all(b"x").ok();
        }
        assert_eq!(&answer, b"HTTP/1.1 408", "{target}");
    }
}

#[test]
fn a_page_that_trickles_out_of_a_render_is_not_waited_for() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("0123456789").with_delivery(ResponseDelivery::StallAfter(5)),
    );
    let front = start(&origin, "[renders]\nmin_rate = \"10 KiB/s after 200ms\"\n");
    assert_eq!(front.get("/a.html").status, 502);
    assert!(!front.has("a.html"));
}

#[test]
fn what_is_passed_on_may_be_as_slow_as_it_likes() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("0123456789").with_delivery(ResponseDelivery::StallAfter(5)),
    );
    let front = start(&origin, "[renders]\nmin_rate = \"10 KiB/s after 1ms\"\n");
    let mut stream = TcpStream::connect(front.addr).unwrap();
    stream.write_all(b"GET /events?stream HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut answer = Vec::new();
    // The connection stays open, and what came is there.
    assert!(stream.read_to_end(&mut answer).is_err());
    assert!(answer.ends_with(b"01234"), "{}", String::from_utf8_lossy(&answer));
}
