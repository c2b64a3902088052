//! HTTP/2 on the lane: kept answers and those of the service on one connection, and clients that mean no good.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, WAIT_TIMEOUT};
use tympan_web::listen::ListenerLimits;

use crate::front::{Front, Setup, limits};
use crate::tls::{Folder, connector};

const LARGE: usize = 700_000;

struct Site {
    front: Front,
    folder: Folder,
    origin: OriginServer,
    gate: OriginGate,
}

/// A page, a large page, one that tells what it was sent, and one that waits.
fn site(limits: ListenerLimits) -> Site {
    let gate = OriginGate::default();
    let wait = gate.clone();
    let origin = OriginServer::start(move |seen| match seen.target.split('?').next().unwrap() {
        "/large.html" | "/other.html" => OriginResponse::html("x".repeat(LARGE)),
        "/echo" => OriginResponse::html(format!("{} {} bytes", seen.method, seen.body.len())),
        "/slow.html" => {
            wait.wait_open();
            OriginResponse::html("slow")
        }
        "/vary.html" => {
            let lines = seen.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("cookie"));
            let lines: Vec<&str> = lines.map(|(_, value)| value.as_str()).collect();
            OriginResponse::html(format!("for {}", lines.join(" | "))).with_header("Vary", "Cookie")
        }
        target => OriginResponse::html(format!("page {target}")),
    });
    let folder = Folder::new();
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        limits: Some(limits),
        ..Setup::default()
    });
    Site { front, folder, origin, gate }
}

impl Site {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.front.addr).await.unwrap();
        let name = ServerName::try_from("www.example.com").unwrap();
        connector(&self.folder, b"h2", None).connect(name, stream).await.unwrap()
    }

    async fn client(&self) -> Client {
        let io = TokioIo::new(self.connect().await);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(100_000)
            .handshake(io)
            .await
            .unwrap();
        tokio::spawn(connection);
        Client(sender)
    }

    /// Asks often enough that an answer is kept.
    async fn keep(&self, target: &str) {
        let mut client = self.client().await;
        for _ in 0..3 {
            assert_eq!(client.get(target, &[]).await.status(), 200);
        }
    }

    fn hits(&self) -> u64 {
        self.front.metric("fast_path_hits_total")
    }

    /// Sends frames behind the greeting, and returns what comes until the connection ends.
    async fn answers_until_the_end(&self, frames: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
        let (mut reader, mut writer) = tokio::io::split(self.connect().await);
        let bytes = [PREFACE, &frame(4, 0, 0, &[]), frames].concat();
        // Who is cut off cannot write any more.
        let writing = tokio::spawn(async move {
            writer.write_all(&bytes).await.ok();
            writer.flush().await.ok();
            writer
        });
        let mut seen = Vec::new();
        let reading = tokio::time::timeout(WAIT_TIMEOUT, async {
            let mut piece = [0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut piece).await {
                seen.extend_from_slice(&piece[..count]);
            }
        });
        reading.await.expect("the connection ends");
        drop(writing.await.unwrap());
        split(&seen)
    }
}

struct Client(SendRequest<Full<Bytes>>);

type Whole = Response<Bytes>;

impl Client {
    async fn send(
        &mut self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Whole {
        let url = format!("https://www.example.com{target}");
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body))).unwrap();
        self.0.ready().await.unwrap();
        let sent = self.0.send_request(request);
        let response = tokio::time::timeout(WAIT_TIMEOUT, sent).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }

    async fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Whole {
        self.send(Method::GET, target, headers, Vec::new()).await
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const ENHANCE_YOUR_CALM: u32 = 11;
const GOAWAY: u8 = 7;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn split(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap());
        let payload = bytes.get(9..9 + length).unwrap_or_default().to_vec();
        frames.push((bytes[3], stream, payload));
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    frames
}

/// Returns the reasons of the farewells among frames.
fn farewells(frames: &[(u8, u32, Vec<u8>)]) -> Vec<u32> {
    let goaways = frames.iter().filter(|frame| frame.0 == GOAWAY);
    goaways.map(|frame| u32::from_be_bytes(frame.2[4..8].try_into().unwrap())).collect()
}

/// A request's fields, as literals.
fn fields(method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    let all = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "www.example.com"),
        (":path", path),
    ];
    for (name, value) in all {
        for text in [name, value] {
            if text == name {
                block.push(0);
            }
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn hits_and_answers_of_the_service_share_a_connection() {
    run(async {
        let site = site(limits());
        site.keep("/small.html").await;
        site.keep("/large.html").await;
        let (drawn, quick) = (site.origin.request_count(), site.hits());
        let client = site.client().await;
        let mut tasks = Vec::new();
        for number in 0..100 {
            let mut client = Client(client.0.clone());
            tasks.push(tokio::spawn(async move {
                match number % 5 {
                    0 => {
                        assert_eq!(client.get("/small.html", &[]).await.body(), "page /small.html")
                    }
                    1 => assert_eq!(client.get("/large.html", &[]).await.body().len(), LARGE),
                    2 => {
                        let answer = client.get("/small.html", &[("x-unknown", "1")]).await;
                        assert_eq!(answer.body(), "page /small.html");
                    }
                    3 => {
                        let target = format!("/other.html?{number}");
                        assert_eq!(client.get(&target, &[]).await.body().len(), LARGE);
                    }
                    _ => {
                        let body = vec![b'b'; 10_000 * number];
                        let answer = client.send(Method::POST, "/echo", &[], body).await;
                        let expected = format!("POST {} bytes", 10_000 * number);
                        assert_eq!(answer.body(), expected.as_bytes());
                    }
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(site.hits() - quick, 40, "the lane answered what is kept");
        assert_eq!(site.origin.request_count() - drawn, 40);
    });
}

/// What a head says beyond the moment.
fn lasting(answer: &Whole) -> HeaderMap {
    let mut headers = answer.headers().clone();
    assert!(headers.remove("date").is_some());
    headers
}

#[test]
fn pages_go_to_visitors_with_the_same_cookies_and_renders_get_one_line_of_them() {
    run(async {
        let site = site(limits());
        let mut client = site.client().await;
        for _ in 0..3 {
            for (cookies, expected) in [
                (&[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")][..], "a=1; b=2; c=3"),
                (&[("cookie", "a=1; b=2; c=3")][..], "a=1; b=2; c=3"),
                (&[("cookie", "a=1")][..], "a=1"),
                (&[][..], ""),
            ] {
                let answer = client.get("/vary.html", cookies).await;
                assert_eq!(answer.body(), &format!("for {expected}"));
            }
        }
        assert_eq!(site.origin.request_count(), 3);
    });
}

#[test]
fn both_ways_answer_alike() {
    run(async {
        let site = site(limits());
        site.keep("/small.html").await;
        let mut client = site.client().await;
        let whole = client.get("/small.html", &[]).await;
        let tag = whole.headers()["etag"].to_str().unwrap().to_owned();
        for (method, conditions, status) in [
            (Method::GET, &[][..], 200),
            (Method::GET, &[("range", "bytes=5-9")], 206),
            (Method::GET, &[("if-none-match", &*tag)], 304),
            (Method::GET, &[("x-dispatcher-info", "1")], 200),
            (Method::HEAD, &[], 200),
            (Method::HEAD, &[("if-none-match", &*tag)], 304),
            (Method::GET, &[("range", "bytes=900-")], 416),
        ] {
            // Kept by the first of them where it is another key.
            for _ in 0..2 {
                client.send(method.clone(), "/small.html", conditions, Vec::new()).await;
            }
            let before = site.hits();
            let quick = client.send(method.clone(), "/small.html", conditions, Vec::new()).await;
            let from_lane = site.hits() - before;
            assert_eq!(from_lane, u64::from(status != 416), "{method} {conditions:?}");
            let mut strange = conditions.to_vec();
            strange.push(("x-unknown", "1"));
            let full = client.send(method.clone(), "/small.html", &strange, Vec::new()).await;
            assert_eq!(quick.status(), status, "{method} {conditions:?}");
            assert_eq!(quick.status(), full.status());
            assert_eq!(lasting(&quick), lasting(&full), "{method} {conditions:?}");
            assert_eq!(quick.body(), full.body());
        }
    });
}

#[test]
fn what_is_malformed_is_judged_by_the_service() {
    run(async {
        let site = site(limits());
        site.keep("/small.html").await;
        let quick = site.hits();
        let literal = |name: &[u8], value: &[u8]| {
            let mut field = vec![0, u8::try_from(name.len()).unwrap()];
            field.extend(name);
            field.push(u8::try_from(value.len()).unwrap());
            field.extend(value);
            field
        };
        let mut frames = Vec::new();
        let hostile = [
            (&b"Accept"[..], &b"*"[..]),
            (b"connection", b"keep-alive"),
            (b"te", b"gzip"),
            (b"accept", b"a\rb"),
            (b":path", b"/small.html"),
            (b"transfer-encoding", b"chunked"),
        ];
        for (stream, (name, value)) in (1..).step_by(2).zip(hostile) {
            let block = [fields("GET", "/small.html"), literal(name, value)].concat();
            frames.extend(frame(1, 5, stream, &block));
        }
        // The end of a connection that the client breaks off.
        frames.extend(frame(4, 0, 1, &[]));
        let answers = site.answers_until_the_end(&frames).await;
        assert!(answers.iter().all(|(kind, _, _)| *kind != 0), "no page: {answers:?}");
        assert_eq!(farewells(&answers), [1]);
        assert_eq!(site.hits(), quick);
    });
}

#[test]
fn floods_are_cut_off_and_others_are_served() {
    run(async {
        let site = site(limits());
        site.keep("/small.html").await;
        let post = |stream| frame(1, 4, stream, &fields("POST", "/echo"));
        let repeated = |bytes: Vec<u8>| bytes.repeat(50_000);
        let long_name = [&[0x40, 0x7f, 0xb9, 0x16][..], &[b'x'; 3000], &[0]].concat();
        let resets = |path: &str| {
            let numbers = (0..20_000).map(|number| number * 2 + 1);
            let block = fields("GET", path);
            numbers
                .flat_map(|stream| {
                    [frame(1, 5, stream, &block), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
                })
                .collect::<Vec<u8>>()
        };
        for (what, frames) in [
            ("pings", repeated(frame(6, 0, 0, &[0; 8]))),
            ("settings", repeated(frame(4, 0, 0, &[0, 4, 0, 0, 0, 1]))),
            ("empty data", [post(1), repeated(frame(0, 0, 1, &[]))].concat()),
            ("windows", [post(1), repeated(frame(8, 0, 1, &[0, 0, 0, 1]))].concat()),
            (
                "a block without end",
                [frame(1, 1, 1, &fields("GET", "/a")), repeated(frame(9, 0, 1, &[0x20; 3]))]
                    .concat(),
            ),
            ("requests that are taken back", resets("/slow.html?1")),
            (
                // A name of 3000 bytes goes into the table, and each byte of the next block stands for it.
                "a small block that means a huge one",
                [
                    frame(1, 5, 1, &[&fields("GET", "/a")[..], &long_name].concat()),
                    frame(1, 5, 3, &[0xbe; 16_000]),
                ]
                .concat(),
            ),
        ] {
            let answers = site.answers_until_the_end(&frames).await;
            assert!(farewells(&answers).contains(&ENHANCE_YOUR_CALM), "{what}");
        }
        let mut client = site.client().await;
        assert_eq!(client.get("/small.html", &[]).await.body(), "page /small.html");
        assert!(site.origin.request_count() < 1000, "{} requests", site.origin.request_count());
        site.gate.open();
    });
}

#[test]
fn who_takes_nothing_or_asks_nothing_is_let_go() {
    run(async {
        let short = Duration::from_millis(300);
        let limits = ListenerLimits { write_timeout: short, header_timeout: short, ..limits() };
        let site = site(limits);
        site.keep("/large.html").await;
        let closed = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
        for path in ["/large.html", "/other.html?q"] {
            let ask = [closed.clone(), frame(1, 5, 1, &fields("GET", path))].concat();
            let answers = site.answers_until_the_end(&ask).await;
            assert!(answers.iter().any(|frame| frame.0 == 1), "{path} has a head");
            assert!(!answers.iter().any(|frame| frame.0 == 0 && !frame.2.is_empty()), "{path}");
        }
        let answers = site.answers_until_the_end(&[]).await;
        assert_eq!(farewells(&answers), [0]);
        let begun = frame(1, 1, 1, &fields("GET", "/a"));
        site.answers_until_the_end(&begun).await;
    });
}

#[test]
fn an_answer_for_which_no_window_opens_is_given_up_whatever_else_is_asked() {
    run(async {
        let limits = ListenerLimits { write_timeout: Duration::from_secs(2), ..limits() };
        let site = site(limits);
        site.keep("/large.html").await;
        site.keep("/small.html").await;
        // Kept, and of the service.
        for path in ["/large.html", "/other.html?q"] {
            let (mut stream, mut held) = (site.connect().await, Vec::new());
            // A window for `page /small.html`, and for nothing else; and one of all for many of these.
            let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 16]);
            let window = frame(8, 0, 0, &[0x3f, 0xff, 0, 0]);
            let ask = frame(1, 5, 1, &fields("GET", path));
            stream.write_all(&[PREFACE, &settings, &window, &ask].concat()).await.unwrap();
            let mut next = 3;
            let (mut taken, mut has_reset) = (0, false);
            while !has_reset {
                let ask = frame(1, 5, next, &fields("GET", "/small.html"));
                stream.write_all(&ask).await.unwrap();
                let is_page = |frame: &(u8, u32, Vec<u8>)| (frame.0, frame.1) == (0, next);
                loop {
                    let wanted = |frame: &(u8, u32, Vec<u8>)| {
                        is_page(frame) || (frame.0 != 1 && frame.1 == 1)
                    };
                    let found = read_until(&mut stream, &mut held, wanted).await;
                    match found.0 {
                        _ if is_page(&found) => break,
                        0 => taken += found.2.len(),
                        3 => {
                            assert_eq!(found.2, [0, 0, 0, 8], "{path}: canceled");
                            has_reset = true;
                        }
                        kind => panic!("{path}: a frame of kind {kind}"),
                    }
                }
                next += 2;
            }
            assert_eq!(taken, 16, "{path}");
        }
        assert_eq!(site.front.metric("responses_abandoned_total"), 2);
    });
}

/// Reads frames until one is found.
async fn read_until(
    stream: &mut TlsStream<TcpStream>,
    held: &mut Vec<u8>,
    is_wanted: impl Fn(&(u8, u32, Vec<u8>)) -> bool,
) -> (u8, u32, Vec<u8>) {
    let reading = async {
        let mut piece = [0; 4096];
        loop {
            while held.len() >= 9 {
                let length = u32::from_be_bytes([0, held[0], held[1], held[2]]) as usize;
                if held.len() < 9 + length {
                    break;
                }
                let frame: Vec<u8> = held.drain(..9 + length).collect();
                let frame = split(&frame).remove(0);
                if is_wanted(&frame) {
                    return frame;
                }
            }
            let count = stream.read(&mut piece).await.unwrap();
            assert!(count > 0, "the connection ended");
            held.extend_from_slice(&piece[..count]);
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, reading).await.expect("such a frame comes")
}

#[test]
fn a_request_under_way_is_answered_while_the_front_ends() {
    run(async {
        let site = site(limits());
        let (mut stream, mut held) = (site.connect().await, Vec::new());
        let ask = frame(1, 5, 1, &fields("GET", "/slow.html"));
        let greeting = [PREFACE, &frame(4, 0, 0, &[]), &ask].concat();
        stream.write_all(&greeting).await.unwrap();
        let Site { front, folder: _folder, origin, gate } = site;
        let origin = tokio::task::spawn_blocking(move || {
            origin.wait_for_requests(1);
            origin
        });
        let _origin = origin.await.unwrap();
        let stopping = tokio::task::spawn_blocking(move || front.stop());
        let goaway = read_until(&mut stream, &mut held, |frame| frame.0 == GOAWAY).await;
        assert_eq!(goaway.2, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let ping = read_until(&mut stream, &mut held, |frame| frame.0 == 6).await;
        // Asked before this side heard of the end.
        let ask = frame(1, 5, 3, &fields("GET", "/small.html"));
        let late = [ask, frame(6, 1, 0, &ping.2)].concat();
        stream.write_all(&late).await.unwrap();
        let goaway = read_until(&mut stream, &mut held, |frame| frame.0 == GOAWAY).await;
        assert_eq!(goaway.2, [0, 0, 0, 3, 0, 0, 0, 0]);
        let page = read_until(&mut stream, &mut held, |frame| frame.0 == 0 && frame.1 == 3).await;
        assert_eq!(page.2, b"page /small.html");
        gate.open();
        let page = read_until(&mut stream, &mut held, |frame| frame.0 == 0 && frame.1 == 1).await;
        assert_eq!(page.2, b"slow");
        drop(stopping.await.unwrap());
    });
}

#[test]
fn a_get_with_a_body_is_one_request_in_both_versions() {
    run(async {
        let site = site(limits());
        let mut seen = Vec::new();
        for target in ["/page.html", "/page.html", "/echo", "/page.html"] {
            let body = Bytes::from_static(b"cached by nobody");
            let over_http2 =
                site.client().await.send(Method::GET, target, &[], body.to_vec()).await;
            let name = ServerName::try_from("www.example.com").unwrap();
            let stream = TcpStream::connect(site.front.addr).await.unwrap();
            let stream =
                connector(&site.folder, b"http/1.1", None).connect(name, stream).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let request =
                Request::get(target).header("host", "www.example.com").body(Full::new(body));
            let over_http1 = sender.send_request(request.unwrap()).await.unwrap();
            let (head, body) = over_http1.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            assert_eq!((head.status, &body), (over_http2.status(), over_http2.body()), "{target}");
            seen.push(String::from_utf8(body.to_vec()).unwrap());
        }
        assert_eq!(seen, ["page /page.html", "page /page.html", "GET 16 bytes", "page /page.html"]);
        let pages: Vec<_> =
            site.origin.requests().into_iter().filter(|seen| seen.target == "/page.html").collect();
        assert_eq!(pages.len(), 1, "the body is no part of the request for a page that is stored");
        assert!(pages[0].body.is_empty());
    });
}
