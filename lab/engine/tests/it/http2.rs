//! Load by HTTP/2: what a server gets, what comes of its answers, and how connections are used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_plan::TestPlan;
use tympan_testkit::jmeter_plan::{element, plan, sampler};
use tympan_testkit::tls_proxy::CertificateAuthority;

/// A server of HTTP/2 that counts its connections; the first one ends after `most` requests.
struct Http2Server {
    scheme: &'static str,
    port: u16,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Http2Server {
    fn start(most: usize) -> Self {
        Self::open(most, None)
    }

    /// Starts a server over TLS that agrees to one protocol.
    fn start_tls(most: usize, protocol: &[u8]) -> Self {
        let (chain, key) = CertificateAuthority::new().issue_identity("localhost");
        let chain = CertificateDer::from_pem_slice(chain.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        config.alpn_protocols = vec![protocol.to_vec()];
        Self::open(most, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn open(most: usize, tls: Option<TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, requests) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&connections), Arc::clone(&requests));
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    let number = counts.0.fetch_add(1, Ordering::SeqCst);
                    let requests = Arc::clone(&counts.1);
                    let most = if number == 0 { most } else { usize::MAX };
                    match tls.clone() {
                        None => drop(tokio::spawn(serve(socket, requests, most))),
                        Some(tls) => drop(tokio::spawn(async move {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, requests, most).await;
                            }
                        })),
                    }
                }
            });
        });
        Self { scheme, port, connections, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    requests: Arc<AtomicUsize>,
    most: usize,
) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    let mut own = 0;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        requests.fetch_add(1, Ordering::SeqCst);
        own += 1;
        let path = request.uri().path().to_owned();
        let (head, mut body) = request.into_parts();
        let mut sent = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            sent.extend_from_slice(&data);
        }
        let status = if path == "/gone" { 404 } else { 200 };
        let response = http::Response::builder().status(status).header("x-cache", "HIT");
        let told = match path.as_str() {
            "/large" => vec![b'x'; 3 << 20],
            "/echo" => [head.method.as_str().as_bytes(), b" ", sent.as_slice()].concat(),
            _ => b"<p>id=7</p>".to_vec(),
        };
        if let Ok(mut stream) = respond.send_response(response.body(()).unwrap(), false) {
            stream.send_data(told.into(), true).unwrap();
        }
        if own == most {
            connection.graceful_shutdown();
        }
    }
}

fn get(
    server: &Http2Server,
    path: &str,
    requests: u64,
) -> tympan_lab_engine::measurement::RunResults {
    let get = GetLoad {
        urls: vec![server.url(path)],
        requests: Some(requests),
        is_http2: true,
        workers: 1,
        ..GetLoad::default()
    };
    get.run().unwrap()
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let server = Http2Server::start(usize::MAX);
    let results = get(&server, "/x", 50);
    let total = results.total_stats();
    assert_eq!((total.count(), total.error_count), (50, 0));
    assert_eq!(server.counts(), (1, 50));
    // More than all windows of the protocol hold at first.
    let results = get(&server, "/large", 3);
    assert_eq!((results.total_stats().error_count, server.counts()), (0, (2, 53)));
    let results = get(&server, "/gone", 1);
    assert_eq!(results.total_stats().error_count, 1);
}

#[test]
fn a_server_that_goes_away_is_asked_on_another_connection() {
    let server = Http2Server::start(5);
    let results = get(&server, "/x", 20);
    assert_eq!(results.total_stats().error_count, 0);
    assert_eq!(server.counts(), (2, 20));
}

#[test]
fn a_server_without_it_is_reported_as_such() {
    let origin = tympan_testkit::origin_server::OriginServer::start_constant(
        tympan_testkit::origin_server::OriginResponse::html("x"),
    );
    let get = GetLoad {
        urls: vec![format!("http://{}/", origin.addr())],
        requests: Some(2),
        is_http2: true,
        ..GetLoad::default()
    };
    let results = get.run().unwrap();
    assert_eq!(results.total_stats().error_count, 2);
}

#[test]
fn it_is_spoken_over_tls_where_the_server_agrees() {
    let server = Http2Server::start_tls(usize::MAX, b"h2");
    let results = get(&server, "/x", 50);
    let total = results.total_stats();
    assert_eq!((total.count(), total.error_count), (50, 0));
    assert_eq!(server.counts(), (1, 50));
    let results = get(&server, "/large", 3);
    assert_eq!((results.total_stats().error_count, server.counts()), (0, (2, 53)));
    // The connection that the server ends is followed by another one.
    let server = Http2Server::start_tls(5, b"h2");
    assert_eq!(get(&server, "/x", 20).total_stats().error_count, 0);
    assert_eq!(server.counts(), (2, 20));
    // One that agrees to HTTP/1.1 only is told as such.
    let server = Http2Server::start_tls(usize::MAX, b"http/1.1");
    assert_eq!(get(&server, "/x", 2).total_stats().error_count, 2);
    assert_eq!(server.counts().1, 0);
}

#[test]
fn plans_are_played_by_it() {
    play_by(&Http2Server::start(usize::MAX));
    play_by(&Http2Server::start_tls(usize::MAX, b"h2"));
}

fn play_by(server: &Http2Server) {
    let defaults = format!(
        r#"<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="d" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{}</stringProp>
<stringProp name="HTTPSampler.protocol">{}</stringProp></ConfigTestElement><hashTree/>"#,
        server.port, server.scheme
    );
    let id = element(
        "RegexExtractor",
        "r",
        &[
            ("RegexExtractor.refname", "id"),
            ("RegexExtractor.regex", "id=(\\d)"),
            ("RegexExtractor.template", "$1$"),
        ],
        "",
    );
    let version = element(
        "RegexExtractor",
        "v",
        &[
            ("RegexExtractor.refname", "version"),
            ("RegexExtractor.regex", "HTTP/(\\S+) 200"),
            ("RegexExtractor.useHeaders", "true"),
            ("RegexExtractor.template", "$1$"),
        ],
        "",
    );
    let text = plan(
        "1",
        "1",
        &format!(
            "{defaults}{}{}",
            sampler("/x", &format!("{id}{version}")),
            sampler("/${id}/${version}", "")
        ),
    );
    let plan = TestPlan::parse(text.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let run = RunOptions { is_http2: true, ..RunOptions::default() };
    let outcome = run_plan(&plan, &run, &mut |_| ()).unwrap();
    let total = outcome.results.total_stats();
    assert_eq!((total.count(), total.error_count), (2, 0));
    assert_eq!(server.counts(), (1, 2));
}
