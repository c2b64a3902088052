//! A TLS proxy for a scripted server, with a certificate of its own authority.
//!
//! Input: the address of the server, and the name in the certificate. Output: the address of the proxy, and the number
//! of requests forwarded. Each connection carries one request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::origin_server::exchange_bytes;

/// A certificate authority.
#[derive(Debug)]
pub struct CertificateAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl CertificateAuthority {
    /// Creates an authority that no client trusts yet.
    ///
    /// # Panics
    /// If the system provides no random bytes.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key is made");
        let mut params = CertificateParams::new(Vec::new()).expect("no name is invalid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("the key signs").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns the certificate of the authority.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns a certificate for a name and its key, both in PEM.
    ///
    /// # Panics
    /// If the name is invalid.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn issue_identity(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key is made");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("the name is valid");
        let chain = params.signed_by(&key, &self.issuer).expect("the authority signs").pem();
        (chain, key.serialize_pem())
    }

    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    fn server_config(&self, name: &str) -> Arc<ServerConfig> {
        let (chain, key) = self.issue_identity(name);
        let chain = CertificateDer::from_pem_slice(chain.as_bytes()).expect("a certificate");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has these")
            .with_no_client_auth()
            .with_single_cert(vec![chain], key);
        Arc::new(config.expect("the key is that of the certificate"))
    }
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::new()
    }
}

/// The proxy; dropping it stops accepting connections.
#[derive(Debug)]
pub struct TlsProxy {
    addr: SocketAddr,
    shared: Arc<TlsProxyState>,
}

#[derive(Debug, Default)]
struct TlsProxyState {
    request_count: AtomicUsize,
    is_stopped: AtomicBool,
}

impl TlsProxy {
    /// Starts a proxy on a free port of this machine, with a certificate for `name`.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails by panicking")]
    pub fn start(behind: SocketAddr, authority: &CertificateAuthority, name: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let shared = Arc::new(TlsProxyState::default());
        let (config, keeper) = (authority.server_config(name), Arc::clone(&shared));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if keeper.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (config, keeper) = (Arc::clone(&config), Arc::clone(&keeper));
                std::thread::spawn(move || forward_request(stream, config, (&keeper, behind)));
            }
        });
        Self { addr, shared }
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of requests forwarded.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.shared.request_count.load(Ordering::SeqCst)
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the listener, which then checks the flag.
        drop(TcpStream::connect(self.addr));
    }
}

/// Forwards one request. If the client aborts the handshake, nothing is forwarded.
fn forward_request(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    (shared, behind): (&TlsProxyState, SocketAddr),
) -> Option<()> {
    let connection = ServerConnection::new(config).ok()?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let (mut request, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim_end().is_empty() {
            break;
        }
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        if name == "content-length" {
            length = line.split_once(':')?.1.trim().parse().ok()?;
        }
        if name != "connection" {
            request.extend_from_slice(line.as_bytes());
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    request.extend_from_slice(b"Connection: close\r\n\r\n");
    request.extend_from_slice(&body);
    shared.request_count.fetch_add(1, Ordering::SeqCst);
    let response = exchange_bytes(behind, &request);
    let head = response.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let (status, rest) = response.split_at_checked(head)?;
    let stream = stream.get_mut();
    for part in [status, b"Connection: close\r\n", rest] {
        stream.write_all(part).ok()?;
    }
    stream.conn.send_close_notify();
    stream.flush().ok()
}
