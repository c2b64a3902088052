//! Over TLS: HTTP/2 in front, certificates of clients, and renders that speak TLS themselves.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tympan_testkit::origin_server::{OriginResponse, OriginServer, WAIT_TIMEOUT};

use crate::front::{Front, Setup};
use crate::outsider::{CACHE, FARM, ROWS};

/// Certificates in a folder: of the front, of a client, and of those who signed it.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
    authority: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let folder =
            Self { dir: tempfile::tempdir().unwrap(), authority, issuer: Issuer::new(params, key) };
        std::fs::write(folder.path("ca.pem"), &folder.authority).unwrap();
        folder.sign("front", "www.example.com");
        folder.sign("client", "publish.example.com");
        folder
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn sign(&self, file: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    pub(crate) fn settings(&self, more: &str) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "[front]\nclient_roots = \"{}\"\n{more}\n[[front.certificate]]\nchain = \"{}\"\nkey = \"{}\"",
            path("ca.pem"),
            path("front.pem"),
            path("front.key")
        )
    }
}

pub(crate) fn connector(
    folder: &Folder,
    protocol: &[u8],
    own: Option<&str>,
) -> tokio_rustls::TlsConnector {
    let read = |file: &Path| std::fs::read(file).unwrap();
    let mut store = RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(folder.authority.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = read(&folder.path(&format!("{own}.pem")));
            let chain = vec![CertificateDer::from_pem_slice(&chain).unwrap()];
            let key = read(&folder.path(&format!("{own}.key")));
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key).unwrap())
                .unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    tokio_rustls::TlsConnector::from(Arc::new(config))
}

/// Sends one request, and returns status and body.
fn ask(
    front: &Front,
    (folder, protocol, own): (&Folder, &str, Option<&str>),
    request: http::request::Builder,
) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(front.addr).await.unwrap();
        let name = ServerName::try_from("www.example.com").unwrap();
        let connector = connector(folder, protocol.as_bytes(), own);
        let stream = connector.connect(name, stream).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = if protocol == "h2" {
            let executor = hyper_util::rt::TokioExecutor::new();
            let (mut sender, connection) = http2::handshake(executor, io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        } else {
            let (mut sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(request).await.unwrap()
        };
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    })
}

/// Sends bytes over one connection of HTTP/1.1, reads nothing until all are sent, and returns what came until it ended.
fn converse(front: &Front, folder: &Folder, bytes: &[u8]) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(front.addr).await.unwrap();
        let name = ServerName::try_from("www.example.com").unwrap();
        let connector = connector(folder, b"http/1.1", None);
        let mut stream = connector.connect(name, stream).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.flush().await.unwrap();
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).await.unwrap();
        answers
    })
}

/// Splits answers that all have a length into heads, in small letters, and bodies.
fn split(mut answers: &[u8]) -> Vec<(String, String)> {
    let mut split = Vec::new();
    while !answers.is_empty() {
        let end = answers.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&answers[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split('\r').next().unwrap().parse().unwrap();
        let body = String::from_utf8_lossy(&answers[end..end + length]).into_owned();
        split.push((head, body));
        answers = &answers[end + length..];
    }
    split
}

/// A render that tells which of some headers it got.
fn telling() -> OriginServer {
    OriginServer::start(|seen| {
        let names = ["host", "x-forwarded-ssl", "x-forwarded-port", "x-forwarded-ssl-client-cert"];
        let value = |name| seen.header(name).map_or("-", |value| &value[..value.len().min(16)]);
        OriginResponse::html(names.map(value).join(" "))
    })
}

#[test]
fn visitors_of_both_versions_get_the_same() {
    let (folder, origin) = (Folder::new(), telling());
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let expected = "www.example.com on 443 -";
    let url = "https://www.example.com/a.html";
    let second = ask(&front, (&folder, "h2", None), Request::get(url));
    assert_eq!(second, (200, expected.to_owned()));
    let first = Request::get("/a.html").header("host", "www.example.com");
    assert_eq!(ask(&front, (&folder, "http/1.1", None), first), (200, expected.to_owned()));
    assert_eq!(origin.request_count(), 1, "they share the cache");
    let forged = Request::get(url).header("x-forwarded-ssl-client-cert", "forged");
    let passed = ask(&front, (&folder, "h2", None), forged.uri(format!("{url}?q")));
    assert_eq!(passed, (200, expected.to_owned()));
    let two_hosts = Request::get(url).header("host", "other.example.com");
    assert_eq!(ask(&front, (&folder, "h2", None), two_hosts).0, 400);
}

#[test]
fn a_visitor_gets_no_further_over_http_2() {
    let folder = Folder::new();
    let origin = OriginServer::start(|seen| OriginResponse::html(format!("page {}", seen.target)));
    let front = Front::start(&Setup {
        farm: FARM,
        cache: CACHE,
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let (mut faults, mut asked) = (Vec::new(), 0);
    // HTTP/2 has neither these headers nor targets that are no paths.
    let is_sent = |name: &str| !matches!(name, "Host" | "Content-Length" | "Transfer-Encoding");
    for (line, headers, status, seen) in ROWS {
        let (method, target) = line.split_once(' ').unwrap();
        if !target.starts_with('/') || !headers.iter().all(|(name, _)| is_sent(name)) {
            continue;
        }
        let mut request =
            Request::builder().method(method).uri(format!("https://www.example.com{target}"));
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let before = origin.request_count();
        let (answered, _) = ask(&front, (&folder, "h2", None), request);
        let reached = origin.requests().get(before..).unwrap_or_default().to_vec();
        let reached = reached.first().map(|request| request.target.clone());
        asked += 1;
        if answered != *status || reached.as_deref() != *seen {
            faults.push(format!("{line} {headers:?}: {answered} and {reached:?}"));
        }
    }
    assert!(asked > 60, "{asked}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_fast_path_and_the_full_path_alternate_on_an_encrypted_connection() {
    let (folder, large) = (Folder::new(), "x".repeat(700_000));
    let text = large.clone();
    let origin = OriginServer::start(move |seen| match &*seen.target {
        "/large.html" => OriginResponse::html(text.clone()),
        target => OriginResponse::html(format!("page {target}")),
    });
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let request = |target: &str, more: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: www.example.com\r\n{more}\r\n")
    };
    // Drawn, kept, and kept in memory.
    let pages = ["/small.html", "/large.html"];
    let close = request("/small.html", "Connection: close\r\n");
    for _ in 0..3 {
        let all: String = pages.iter().map(|page| request(page, "")).collect();
        converse(&front, &folder, format!("{all}{close}").as_bytes());
    }
    let (drawn, quick) = (origin.request_count(), front.metric("fast_path_hits_total"));
    // More than the sockets hold, among it what only the full way answers.
    let mut asked = Vec::new();
    for round in 0..6 {
        asked.extend([("/small.html".to_owned(), ""), ("/large.html".to_owned(), "")]);
        asked.push(("/small.html".to_owned(), "X-Unknown: 1\r\n"));
        asked.push((format!("/new{round}.html?q=1"), ""));
    }
    asked.push(("/small.html".to_owned(), "Connection: close\r\n"));
    let bytes: String = asked.iter().map(|(target, more)| request(target, more)).collect();
    let answers = split(&converse(&front, &folder, bytes.as_bytes()));
    assert_eq!(answers.len(), asked.len());
    for ((target, _), (head, body)) in asked.iter().zip(&answers) {
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        let expected = if target == "/large.html" { &large } else { &format!("page {target}") };
        assert!(body == expected, "{target}: {} bytes", body.len());
    }
    assert_eq!(front.metric("fast_path_hits_total") - quick, 13, "the lane took part");
    assert_eq!(origin.request_count() - drawn, 6, "what has a query is asked for");
}

/// Text that no encoding makes much smaller.
fn digits(count: usize) -> String {
    let next = |number: &u32| Some(number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let numbers = std::iter::successors(Some(1_u32), next);
    numbers.map(|number| char::from(b'a' + (number >> 28) as u8)).take(count).collect()
}

#[test]
fn answers_from_memory_that_tls_takes_in_parts_come_whole() {
    let folder = Folder::new();
    let texts = [("/kept.html", digits(100_000)), ("/encoded.html", digits(900_000))];
    let pages = texts.clone();
    let origin = OriginServer::start(move |seen| {
        let page = pages.iter().find(|(target, _)| *target == seen.target);
        page.map_or(OriginResponse::with_status(404), |(_, text)| {
            OriginResponse::html(text.clone())
        })
    });
    let front = Front::start(&Setup {
        cache: "/x-compress 1",
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let get = |target: &str, more: &str| {
        let close = "Connection: close\r\n";
        let head = format!("GET {target} HTTP/1.1\r\nHost: www.example.com\r\n{close}{more}\r\n");
        let answer = converse(&front, &folder, head.as_bytes());
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        (head, answer[end..].to_vec())
    };
    for (target, text) in texts {
        for _ in 0..4 {
            assert!(get(target, "").1 == text.as_bytes(), "{target}");
        }
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        let encoded = loop {
            let (head, body) = get(target, "Accept-Encoding: gzip\r\n");
            if head.contains("content-encoding: gzip") {
                break body;
            }
            assert!(std::time::Instant::now() < deadline, "{target} stays as it is: {head}");
        };
        assert!(encoded.len() > text.len() / 3, "{} bytes", encoded.len());
        let mut decoded = String::new();
        flate2::read::GzDecoder::new(&*encoded).read_to_string(&mut decoded).unwrap();
        assert!(decoded == text, "{target}");
    }
    assert!(front.metric("fast_path_hits_total") >= 6, "the lane took part");
}

#[test]
fn the_end_of_an_encrypted_connection_is_reported() {
    let (folder, origin) = (Folder::new(), telling());
    let front = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let head = "GET /a.html HTTP/1.1\r\nHost: www.example.com\r\n";
    // `converse` fails where a connection ends without TLS's own good-bye.
    for _ in 0..4 {
        let answers =
            converse(&front, &folder, format!("{head}Connection: close\r\n\r\n").as_bytes());
        assert_eq!(split(&answers)[0].1, "www.example.com on 443 -");
    }
    assert!(front.metric("fast_path_hits_total") >= 1, "the lane took part");
}

#[test]
fn a_certificate_opens_the_flush_for_its_name() {
    let (folder, origin) = (Folder::new(), telling());
    folder.sign("other", "other.example.com");
    let front = Front::start(&Setup {
        cache: "/x-flushCertificate \"publish.example.com\"
                /allowedClients { /0 { /type \"deny\" /glob \"*\" } }",
        renders: vec![origin.addr()],
        settings: folder.settings(""),
        ..Setup::default()
    });
    let flush = || {
        Request::get("https://www.example.com/dispatcher/invalidate.cache")
            .header("cq-action", "Activate")
            .header("cq-handle", "/content/a")
    };
    for (own, expected) in [(None, 403), (Some("other"), 403), (Some("client"), 200)] {
        assert_eq!(ask(&front, (&folder, "h2", own), flush()).0, expected, "{own:?}");
    }
    let shown = Request::get("https://www.example.com/b?q");
    let (_, told) = ask(&front, (&folder, "h2", Some("client")), shown);
    assert!(told.contains(" MII"), "renders learn who the client is: {told}");
}

#[test]
fn certificates_are_renewed_while_serving() {
    let (folder, origin) = (Folder::new(), telling());
    let settings = folder.settings("http2 = false");
    let parsed: tympan_dispatcher::DispatcherSettings = toml::from_str(&settings).unwrap();
    let listening = parsed.front.apply_to(tympan_web::listen::ListenerOptions::default()).unwrap();
    std::fs::write(folder.path("front.pem"), "no certificate").unwrap();
    let error = parsed.front.reload_certificates(&listening).unwrap_err().to_string();
    assert!(error.contains("front.certificate") && error.contains("front.pem"), "{error}");
    folder.sign("front", "www.example.com");
    parsed.front.reload_certificates(&listening).unwrap();
    drop(origin);
    let missing: tympan_dispatcher::DispatcherSettings =
        toml::from_str("[[front.certificate]]\nchain = \"/none\"\nkey = \"/none\"").unwrap();
    let error = missing.front.apply_to(tympan_web::listen::ListenerOptions::default()).unwrap_err();
    assert!(error.to_string().contains("cannot read `/none`"), "{error}");
}

#[test]
fn renders_over_tls_are_verified() {
    let folder = Folder::new();
    folder.sign("render", "render.example.com");
    // A front that speaks TLS stands for the render.
    let origin = OriginServer::start_constant(OriginResponse::html("drawn"));
    let settings =
        folder.settings("require_client_certificate = true").replace("front.pem", "render.pem");
    let render = Front::start(&Setup {
        renders: vec![origin.addr()],
        settings: settings.replace("front.key", "render.key"),
        ..Setup::default()
    });
    let port = render.addr.port();
    let secure = |hostname: &str, trust: Option<tympan_web::tls::TlsTrust>| {
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /numberOfRetries 1 /retryDelay 0
               /renders {{ /r0 {{ /hostname \"{hostname}\" /port \"{port}\" /secure 1 }} }} }} }}"
        );
        Front::start_trusting(&text, trust).get("/a.html").status
    };
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    let own =
        tympan_web::tls::TlsIdentity::from_pem(&read("client.pem"), &read("client.key")).unwrap();
    let roots = read("ca.pem");
    let trusting = || tympan_web::tls::TlsTrust::with_identity(&roots, &own).ok();
    assert_eq!(secure("127.0.0.1", trusting()), 200);
    assert_eq!(secure("localhost", trusting()), 502, "its certificate is for another name");
    let strangers = Folder::new();
    let other = std::fs::read(strangers.path("ca.pem")).unwrap();
    assert_eq!(
        secure("127.0.0.1", tympan_web::tls::TlsTrust::with_identity(&other, &own).ok()),
        502
    );
    let without = tympan_web::tls::TlsTrust::from_pem(&roots).ok();
    assert_eq!(secure("127.0.0.1", without), 502, "it asks for a certificate");
    assert_eq!(secure("127.0.0.1", None), 502);
    assert_eq!(origin.request_count(), 1);
}
