//! Certificates: a listener and a client that agree, and what is refused.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use rustls::HandshakeKind;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::service_fn;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::listen::{
    ConnectionPeer, ListenerOptions, PortReuse, bind_listener, serve_listener,
};
use tympan_web::tls::{
    ClientCertificateRoots, TlsHandshake, TlsServer, TlsServerSettings, TlsTrust,
};

use crate::certificates::{
    Authority, Made, client_config, client_config_with, connect, connect_as,
};

// A key pair for tests only, for `localhost` and 127.0.0.1, valid from 2020 to 2120.
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgEvksgGHlChF6nmsF
qPRvi6rpK2v1EnSRk8xgyt0lsZyhRANCAASjoWhW1eTXLhz0FH1p4UOrOcsunmZP
V2dZICAFUg1mRyw3o4gMWJrXK4eris21bfPy5ZkBhk+UDJrCIQ6kTbdB
-----END PRIVATE KEY-----
";

const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBZTCCAQqgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABKOhaFbV5NcuHPQU
fWnhQ6s5yy6eZk9XZ1kgIAVSDWZHLDejiAxYmtcrh6uKzbVt8/LlmQGGT5QMmsIh
DqRNt0GjSzBJMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAMBgNVHRMBAf8E
AjAAMB0GA1UdDgQWBBTkx7O71T9qsgDDGqlfSX7WO2+cxTAKBggqhkjOPQQDAgNJ
ADBGAiEAkqp2yn9ht5c6sh6YxlqMrwfUae/L9QUOECIMx7C+5h0CIQDXrSshvdkW
bLVW2KUXyAdrpQNMN5UeSSBWDDtD+Pc5DA==
-----END CERTIFICATE-----
";

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let peer: &ConnectionPeer = request.extensions().get().unwrap();
    let handshake: &TlsHandshake = request.extensions().get().unwrap();
    let client = handshake.client_certificate.as_ref();
    let names = ["one.example.com", "two.example.com"];
    let named =
        names.into_iter().find(|name| client.is_some_and(|client| client.is_valid_for(name)));
    let named = named.map(|name| format!(" as {name}")).unwrap_or_default();
    Ok(Response::new(Full::from(format!("tls {}{named}", peer.is_tls))))
}

fn client(trust: Option<TlsTrust>) -> HttpClient {
    HttpClient::new(ClientOptions { tls_trust: trust, ..ClientOptions::default() })
}

#[tokio::test]
async fn client_and_listener_agree_on_a_certificate() {
    let listener =
        bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let front = ListenerOptions {
        tls: Some(TlsServer::from_pem(CERTIFICATE.as_bytes(), KEY.as_bytes()).unwrap()),
        ..ListenerOptions::default()
    };
    let server =
        tokio::spawn(serve_listener(listener, service_fn(answer), front, std::future::pending()));
    let get = || Request::get(format!("https://{addr}/")).body(Empty::<Bytes>::new()).unwrap();
    let trust = TlsTrust::from_pem(CERTIFICATE.as_bytes()).unwrap();
    let body = client(Some(trust)).send(get()).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "tls true");
    assert!(client(None).send(get()).await.unwrap_err().is_unsent());
    server.abort();
}

#[test]
fn unusable_pem_is_refused_by_name() {
    let error = |certificate: &str, key: &str| {
        TlsServer::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(error("", KEY).contains("TLS certificate"));
    assert!(error(CERTIFICATE, "").contains("TLS key"));
    assert!(error(CERTIFICATE, CERTIFICATE).contains("TLS key"));
    assert!(error(&CERTIFICATE.replace("MII", "XXX"), KEY).contains("TLS certificate"));
    assert!(TlsTrust::from_pem(KEY.as_bytes()).is_err());
}

/// A listener with `offering`, and what its certificates are changed by.
fn start(offering: &TlsServerSettings<'_>) -> (SocketAddr, TlsServer, tokio::task::JoinHandle<()>) {
    let listener =
        bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let tls = TlsServer::new(offering).unwrap();
    let front = ListenerOptions { tls: Some(tls.clone()), ..ListenerOptions::default() };
    let server = tokio::spawn(async move {
        serve_listener(listener, service_fn(answer), front, std::future::pending()).await.unwrap();
    });
    (addr, tls, server)
}

async fn ask<T: AsyncReadExt + AsyncWriteExt + Unpin>(stream: &mut T) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    loop {
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
        if let (Some(end), Some(Ok(length))) = (end, length.map(str::parse::<usize>))
            && answer.len() == end + 4 + length
        {
            return String::from_utf8_lossy(&answer[end + 4..]).into_owned();
        }
        answer.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn the_cheapest_cipher_is_chosen_but_for_clients_without_instructions_for_it() {
    let made = Made::for_names(&["one.example.com"]);
    let identities = vec![made.identity()];
    let (addr, _tls, server) =
        start(&TlsServerSettings { identities, ..TlsServerSettings::default() });
    let all = ring::default_provider().cipher_suites;
    // The clients' orders, each once for TLS 1.3 and once for 1.2, and what they get.
    for (offered, expected) in [
        (&["AES_256", "AES_128", "CHACHA20"][..], "AES_128"),
        (&["AES_128", "CHACHA20", "AES_256"], "AES_128"),
        (&["AES_256", "CHACHA20"], "AES_256"),
        (&["CHACHA20", "AES_128", "AES_256"], "CHACHA20"),
        (&["CHACHA20"], "CHACHA20"),
    ] {
        for version in ["TLS13_", "TLS_ECDHE_ECDSA_"] {
            let find = |cipher: &&str| {
                let named = all.iter().find(|suite| {
                    let name = suite.suite().as_str().unwrap();
                    name.starts_with(version) && name.contains(*cipher)
                });
                *named.unwrap()
            };
            let provider = CryptoProvider {
                cipher_suites: offered.iter().map(find).collect(),
                ..ring::default_provider()
            };
            let config = client_config_with(&provider, &made.certificate, &[], None);
            let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
            let name = ServerName::try_from("one.example.com").unwrap();
            let stream = TcpStream::connect(addr).await.unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            let chosen = stream.get_ref().1.negotiated_cipher_suite().unwrap().suite();
            let chosen = chosen.as_str().unwrap();
            assert!(
                chosen.starts_with(version) && chosen.contains(expected),
                "{offered:?} {version}: {chosen}"
            );
        }
    }
    server.abort();
}

#[tokio::test]
async fn the_name_that_a_client_asks_for_chooses_the_certificate() {
    let one = Made::for_names(&["one.example.com"]);
    let wild = Made::for_names(&["*.example.org", "example.org"]);
    let identities = vec![one.identity(), wild.identity()];
    let (addr, _tls, server) =
        start(&TlsServerSettings { identities, ..TlsServerSettings::default() });
    for (name, right, wrong) in [
        ("one.example.com", &one, &wild),
        ("www.example.org", &wild, &one),
        ("example.org", &wild, &one),
    ] {
        assert!(connect(addr, name, &right.certificate, &[]).await.is_ok(), "{name}");
        assert!(connect(addr, name, &wrong.certificate, &[]).await.is_err(), "{name}");
    }
    // A name that no certificate is for gets the first one, which its client then refuses by name.
    let error = connect(addr, "other.net", &one.certificate, &[]).await.unwrap_err().to_string();
    assert!(error.contains("not valid for name"), "{error}");
    assert!(TlsServer::new(&TlsServerSettings::default()).is_err());
    server.abort();
}

#[tokio::test]
async fn renewed_certificates_are_for_new_connections_and_open_ones_stay() {
    let (old, new) = (Made::for_names(&["one.example.com"]), Made::for_names(&["one.example.com"]));
    let offering = |made: &Made| TlsServerSettings {
        identities: vec![made.identity()],
        ..TlsServerSettings::default()
    };
    let (addr, tls, server) = start(&offering(&old));
    let mut open = connect(addr, "one.example.com", &old.certificate, &[]).await.unwrap();
    assert_eq!(ask(&mut open).await, "tls true");
    tls.replace(&offering(&new)).unwrap();
    assert!(connect(addr, "one.example.com", &old.certificate, &[]).await.is_err());
    let mut other = connect(addr, "one.example.com", &new.certificate, &[]).await.unwrap();
    assert_eq!(ask(&mut other).await, "tls true");
    assert_eq!(ask(&mut open).await, "tls true", "the open connection goes on");
    assert!(tls.replace(&TlsServerSettings::default()).is_err());
    assert!(connect(addr, "one.example.com", &new.certificate, &[]).await.is_ok());
    server.abort();
}

#[tokio::test]
async fn clients_prove_themselves() {
    let own = Made::for_names(&["localhost"]);
    let (authority, stranger) = (Authority::new(), Authority::new());
    let good = authority.sign("two.example.com");
    let bad = stranger.sign("two.example.com");
    for is_required in [false, true] {
        let clients =
            ClientCertificateRoots { roots_pem: authority.certificate.as_bytes(), is_required };
        let identities = vec![own.identity()];
        let (addr, _tls, server) = start(&TlsServerSettings {
            identities,
            client_roots: Some(clients),
            ..TlsServerSettings::default()
        });
        let connect = |client| connect_as(addr, "localhost", &own.certificate, &[], client);
        let mut stream = connect(Some(&good)).await.unwrap();
        assert_eq!(ask(&mut stream).await, "tls true as two.example.com");
        // With TLS 1.3 a client learns of its refusal only when it reads.
        let is_refused = async |client| match connect(client).await {
            Err(_) => true,
            Ok(mut stream) => {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.ok();
                !matches!(stream.read(&mut [0; 8]).await, Ok(1..))
            }
        };
        assert!(is_refused(Some(&bad)).await);
        assert_eq!(is_refused(None).await, is_required);
        server.abort();
    }
}

#[tokio::test]
async fn who_comes_again_goes_on_with_the_session_before() {
    comes_again(false, 2).await;
    // With HTTP/2, one connection is followed by one.
    comes_again(true, 1).await;
}

async fn comes_again(has_http2: bool, tickets: u32) {
    let made = Made::for_names(&["localhost"]);
    let listener =
        bind_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), PortReuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let offering = TlsServerSettings {
        identities: vec![made.identity()],
        has_http2,
        ..TlsServerSettings::default()
    };
    let front = ListenerOptions {
        tls: Some(TlsServer::new(&offering).unwrap()),
        ..ListenerOptions::default()
    };
    let server =
        tokio::spawn(serve_listener(listener, service_fn(answer), front, std::future::pending()));
    let config = Arc::new(client_config(&made.certificate, &[], None));
    let mut kinds = Vec::new();
    for _ in 0..3 {
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TcpStream::connect(addr).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("tls true"), "{answer}");
        let session = stream.get_ref().1;
        assert_eq!(session.tls13_tickets_received(), tickets, "{has_http2}");
        kinds.push(session.handshake_kind().unwrap());
    }
    let again = HandshakeKind::Resumed;
    assert_eq!(kinds, [HandshakeKind::Full, again, again]);
    server.abort();
}
