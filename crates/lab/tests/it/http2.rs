//! Load by HTTP/2: what a server gets, what comes of its answers, and how connections are used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tympan_lab::get::Get;
use tympan_lab::plan::{Plan, Run};

use super::plan::{element, plan, sampler};

/// A server of HTTP/2 that counts its connections; the first one ends after `most` requests.
struct Http2Server {
    port: u16,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Http2Server {
    fn start(most: usize) -> Self {
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
                    tokio::spawn(serve(
                        socket,
                        requests,
                        if number == 0 { most } else { usize::MAX },
                    ));
                }
            });
        });
        Self { port, connections, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

async fn serve(socket: tokio::net::TcpStream, requests: Arc<AtomicUsize>, most: usize) {
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

fn get(server: &Http2Server, path: &str, requests: u64) -> tympan_lab::record::Results {
    let get = Get {
        urls: vec![server.url(path)],
        requests: Some(requests),
        is_http2: true,
        workers: 1,
        ..Get::default()
    };
    get.run().unwrap()
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let server = Http2Server::start(usize::MAX);
    let results = get(&server, "/x", 50);
    let total = results.total();
    assert_eq!((total.count(), total.errors), (50, 0));
    assert_eq!(server.counts(), (1, 50));
    // More than all windows of the protocol hold at first.
    let results = get(&server, "/large", 3);
    assert_eq!((results.total().errors, server.counts()), (0, (2, 53)));
    let results = get(&server, "/gone", 1);
    assert_eq!(results.total().errors, 1);
}

#[test]
fn a_server_that_goes_away_is_asked_on_another_connection() {
    let server = Http2Server::start(5);
    let results = get(&server, "/x", 20);
    assert_eq!(results.total().errors, 0);
    assert_eq!(server.counts(), (2, 20));
}

#[test]
fn a_server_without_it_is_told_as_such() {
    let origin = tympan_testkit::origin::Origin::always(tympan_testkit::origin::Answer::html("x"));
    let get = Get {
        urls: vec![format!("http://{}/", origin.addr())],
        requests: Some(2),
        is_http2: true,
        ..Get::default()
    };
    let results = get.run().unwrap();
    assert_eq!(results.total().errors, 2);
}

#[test]
fn plans_are_played_by_it() {
    let server = Http2Server::start(usize::MAX);
    let defaults = format!(
        r#"<ConfigTestElement guiclass="HttpDefaultsGui" testclass="ConfigTestElement" testname="d" enabled="true">
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">{}</stringProp></ConfigTestElement><hashTree/>"#,
        server.port
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
    let plan = Plan::parse(text.as_bytes(), "p.jmx", std::path::PathBuf::new()).unwrap();
    let run = Run { is_http2: true, ..Run::default() };
    let outcome = plan.run(&run, &mut |_| ()).unwrap();
    let total = outcome.results.total();
    assert_eq!((total.count(), total.errors), (2, 0));
    assert_eq!(server.counts(), (1, 2));
}
