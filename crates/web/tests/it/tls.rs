//! Certificates: a listener and a client that agree, and what is refused.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use tower::service_fn;
use tympan_web::client::{Client, Options};
use tympan_web::listen::{Front, Peer, Reuse, bind, serve};
use tympan_web::tls::{Tls, Trust};

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
    let peer: &Peer = request.extensions().get().unwrap();
    Ok(Response::new(Full::from(format!("tls {}", peer.is_tls))))
}

fn client(trust: Option<Trust>) -> Client {
    Client::new(Options { trust, ..Options::default() })
}

#[tokio::test]
async fn client_and_listener_agree_on_a_certificate() {
    let listener = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Reuse::Exclusive).unwrap();
    let addr = listener.local_addr().unwrap();
    let front = Front {
        tls: Some(Tls::from_pem(CERTIFICATE.as_bytes(), KEY.as_bytes()).unwrap()),
        ..Front::default()
    };
    let server = tokio::spawn(serve(listener, service_fn(answer), front, std::future::pending()));
    let get = || Request::get(format!("https://{addr}/")).body(Empty::<Bytes>::new()).unwrap();
    let trust = Trust::from_pem(CERTIFICATE.as_bytes()).unwrap();
    let body = client(Some(trust)).send(get()).await.unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "tls true");
    assert!(client(None).send(get()).await.unwrap_err().is_unsent());
    server.abort();
}

#[test]
fn unusable_pem_is_refused_by_name() {
    let error = |certificate: &str, key: &str| {
        Tls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err().to_string()
    };
    assert!(error("", KEY).contains("TLS certificate"));
    assert!(error(CERTIFICATE, "").contains("TLS key"));
    assert!(error(CERTIFICATE, CERTIFICATE).contains("TLS key"));
    assert!(error(&CERTIFICATE.replace("MII", "XXX"), KEY).contains("TLS certificate"));
    assert!(Trust::from_pem(KEY.as_bytes()).is_err());
}
