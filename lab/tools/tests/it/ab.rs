//! ab's text: printed as ab prints, and read from ab's own pages, old and new.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{
    HandshakeKind, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_tools::ab::{
    AbMessage, AbOptions, AbTableAttributes, parse_ab_report, parse_ab_reports,
};
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer};

/// The runs of source 004, as its page gives them.
const DIARY: &str = include_str!("../data/opencms-tuning.txt");

#[test]
fn the_runs_of_a_tuning_diary_are_compared_only_where_they_may_be() {
    let runs = parse_ab_reports(DIARY);
    let rates: Vec<f64> = runs.iter().map(|run| run.requests_per_second).collect();
    assert_eq!(rates, [10.48, 18.52, 65.44, 79.92, 108.49]);
    let told: Vec<String> =
        runs.windows(2).map(|pair| pair[1].compare(&pair[0]).to_string()).collect();
    assert_eq!(told[0], "1.77x");
    assert_eq!(
        told[1],
        "not comparable: document path `/portal/index.html` -> `/portal/opportunity/become_a_consultant/new_car/`, document length 5986 -> 7595"
    );
    assert_eq!(told[2], "1.22x");
    assert!(told[3].contains("concurrency 10 -> 200"), "{}", told[3]);
}

#[test]
fn every_line_of_an_old_text_reads() {
    let run = parse_ab_report(DIARY).unwrap();
    assert_eq!(
        (run.software.as_str(), run.host.as_str(), run.port),
        ("Apache-Coyote/1.1", "dev1.local", 80)
    );
    assert_eq!(
        (run.document_length, run.concurrency, run.completed_requests, run.failed_requests),
        (Some(5986), 10, 1000, 0)
    );
    assert_eq!(
        (run.duration_seconds, run.ms_per_request, run.ms_per_request_overall),
        (95.435_580, 954.356, 95.436)
    );
    assert_eq!(
        (run.total_transferred, run.html_transferred, run.transfer_rate_kib),
        (6_260_000, 5_986_000, 64.05)
    );
    let names: Vec<&str> = run.times.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Connect", "Processing", "Waiting", "Total"]);
    assert_eq!(run.times[3].1, [96.0, 952.0, 2084.1, 676.0, 36504.0]);
    let percents: Vec<u32> = run.percentiles.iter().map(|(percent, _)| *percent).collect();
    assert_eq!(percents, [50, 66, 75, 80, 90, 95, 98, 99, 100]);
    assert_eq!(
        (run.percentile(50), run.percentile(99), run.percentile(100)),
        (Some(676), Some(8735), Some(36504))
    );
}

#[test]
fn a_run_prints_a_text_that_reads_back() {
    let origin =
        OriginServer::start(|_| OriginResponse::html("0123456789").with_header("Server", "test/1"));
    let ab = AbOptions {
        url: format!("http://{}/page.html?q=1", origin.addr()),
        requests: 40,
        concurrency: 4,
        ..AbOptions::default()
    };
    let run = ab.run().unwrap();
    let text = run.to_string();
    let read = parse_ab_report(&text).unwrap();
    assert_eq!(
        (read.path.as_str(), read.document_length, read.port),
        ("/page.html?q=1", Some(10), origin.addr().port())
    );
    assert_eq!(
        (read.completed_requests, read.failed_requests, read.html_transferred, read.concurrency),
        (40, 0, 400, 4)
    );
    assert_eq!(read.software, "test/1");
    assert_eq!((read.times.len(), read.percentiles.len()), (4, 9));
    let order = [
        "Server Software:",
        "Server Hostname:",
        "Server Port:",
        "Document Path:",
        "Document Length:",
        "Concurrency Level:",
        "Time taken for tests:",
        "Complete requests:",
        "Failed requests:",
        "Total transferred:",
        "HTML transferred:",
        "Requests per second:",
        "Time per request:",
        "Transfer rate:",
        "Connection Times (ms)",
        "Percentage of the requests served",
    ];
    let places: Vec<usize> = order.iter().map(|line| text.find(line).expect(line)).collect();
    assert!(places.is_sorted(), "{text}");
    let seen = origin.requests();
    assert_eq!(seen.len(), 40);
    assert_eq!(seen[0].header("user-agent"), Some("ApacheBench/2.3"));
    assert_eq!(run.to_csv().lines().count(), 101);
    assert_eq!(run.to_gnuplot().lines().count(), 41);
}

#[test]
fn answers_of_another_length_are_failures_only_where_that_is_asked() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        let turn = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        OriginResponse::html("x".repeat(5 + turn % 2))
    });
    let url = format!("http://{}/", origin.addr());
    let plain = AbOptions { url: url.clone(), requests: 10, ..AbOptions::default() }.run().unwrap();
    assert_eq!((plain.failed_count(), plain.length_mismatch_count()), (0, 5));
    let strict =
        AbOptions { url, requests: 10, is_strict: true, ..AbOptions::default() }.run().unwrap();
    assert_eq!(strict.failed_count(), 5);
    assert!(strict.to_string().contains("   (Connect: 0, Receive: 0, Length: 5, Exceptions: 0)"));
}

/// Two connections, each with a first answer of its own length; all but the very first answer differ from it.
#[test]
fn lengths_are_held_against_the_first_answer_of_the_run() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let (first_is_received, both_go_on) = (OriginGate::default(), OriginGate::default());
    let origin = OriginServer::start(move |_| {
        let turn = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match turn {
            // The other connection's: it waits until the first has its answer, and asks again.
            1 => first_is_received.wait_open(),
            2 => {
                first_is_received.open();
                both_go_on.wait_open();
            }
            3 => both_go_on.open(),
            _ => {}
        }
        OriginResponse::html("x".repeat(5 + turn.min(2)))
    });
    let url = format!("http://{}/", origin.addr());
    let ab =
        AbOptions { url, requests: 9, concurrency: 2, is_strict: true, ..AbOptions::default() };
    let run = ab.run().unwrap();
    let text = run.to_string();
    assert!(text.contains("Document Length:        5 bytes"), "{text}");
    assert!(text.contains("   (Connect: 0, Receive: 0, Length: 8, Exceptions: 0)"), "{text}");
}

#[test]
fn keep_alive_works_with_chunked_answers() {
    let origin = OriginServer::start(|_| OriginResponse::with_status(404).with_body("no"));
    let ab = AbOptions {
        url: format!("{}/x", origin.addr()),
        requests: 12,
        keep_alive: true,
        ..AbOptions::default()
    };
    let text = ab.run().unwrap().to_string();
    assert!(text.contains("Keep-Alive requests:    12"), "{text}");
    assert!(text.contains("Non-2xx responses:      12"), "{text}");
}

#[test]
fn a_table_in_html_has_the_same_figures_and_the_attributes_given() {
    let origin =
        OriginServer::start(|_| OriginResponse::html("0123456789").with_header("Server", "<test>"));
    let ab = AbOptions {
        url: format!("http://{}/a?b&c", origin.addr()),
        requests: 4,
        method: "POST".to_owned(),
        body: b"x".to_vec(),
        html_table: Some(AbTableAttributes {
            table_attributes: "border=1".to_owned(),
            row_attributes: "class=r".to_owned(),
            cell_attributes: "align=left".to_owned(),
        }),
        ..AbOptions::default()
    };
    let run = ab.run().unwrap();
    let text = run.to_report();
    let pair = |name: &str, value: &str| {
        let row = format!(
            "<tr class=r><th colspan=2 align=left>{name}</th><td colspan=2 align=left>{value}</td></tr>"
        );
        assert!(text.contains(&row), "{row}\n{text}");
    };
    assert!(text.starts_with("<table border=1>\n") && text.ends_with("</table>\n"), "{text}");
    pair("Server Software:", "&lt;test&gt;");
    pair("Document Path:", "/a?b&amp;c");
    pair("Complete requests:", "4");
    pair("HTML transferred:", "40 bytes");
    let names = ["Connect:", "Processing:", "Total:", "kb/s sent", "Connection Times (ms)"];
    names.iter().for_each(|name| assert!(text.contains(name), "{name}\n{text}"));
    assert!(ab.banner().starts_with("<p>\n This is ApacheBench"), "{}", ab.banner());
}

#[test]
fn the_progress_of_a_long_run_is_reported_as_ab_reports_it() {
    let origin = OriginServer::start_constant(OriginResponse::html("x"));
    let told = |ab: AbOptions| {
        let words = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&words);
        let url = format!("http://{}/", origin.addr());
        let listener = Arc::new(move |word: AbMessage<'_>| {
            let (AbMessage::Progress(text) | AbMessage::Log(text)) = word;
            heard.lock().unwrap().push(text.to_owned());
        });
        AbOptions { url, worker_count: 1, ..ab }.run_with_listener(listener).unwrap();
        Arc::try_unwrap(words)
            .map_or_else(|words| words.lock().unwrap().clone(), |words| words.into_inner().unwrap())
    };
    let keep_alive = true;
    let long = AbOptions { requests: 250, keep_alive, ..AbOptions::default() };
    let expected = ["Completed 100 requests", "Completed 200 requests", "Finished 250 requests"];
    assert_eq!(told(long.clone()), expected);
    assert_eq!(told(AbOptions { is_quiet: true, ..long }), Vec::<String>::new());
    assert_eq!(told(AbOptions { requests: 150, ..AbOptions::default() }), Vec::<String>::new());
}

#[test]
fn single_requests_are_logged_as_verbosely_as_requested_and_without_secrets() {
    let origin = OriginServer::start(|seen| match seen.target.as_str() {
        "/" => OriginResponse::html("x").with_header("Set-Cookie", "id=geheim"),
        _ => OriginResponse::with_status(404),
    });
    let told = |path: &str, verbosity: u32| {
        let words = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&words);
        let ab = AbOptions {
            url: format!("http://{}{path}", origin.addr()),
            headers: vec![("Authorization".to_owned(), "Basic geheim".to_owned())],
            verbosity,
            ..AbOptions::default()
        };
        let listener = Arc::new(move |word: AbMessage<'_>| {
            if let AbMessage::Log(text) = word {
                heard.lock().unwrap().push_str(text);
            }
        });
        ab.run_with_listener(listener).unwrap();
        let text = words.lock().unwrap().clone();
        assert!(!text.contains("geheim"), "{text}");
        text
    };
    assert_eq!(told("/", 1), "");
    assert!(told("/", 2).starts_with("INFO: GET header == \n---\nGET / HTTP/1.0\n"));
    assert!(
        !told("/", 2).contains("LOG:")
            && told("/x", 2).contains("WARNING: Response code not 2xx (404)")
    );
    assert!(
        told("/", 3).contains("LOG: Response code = 200") && !told("/", 3).contains("LOG: header")
    );
    assert!(told("/", 4).contains("LOG: header received:\nHTTP/1.1 200"));
}

/// What a server learns of one that connects with TLS.
#[derive(Debug, PartialEq)]
struct Met {
    name: Option<String>,
    has_certificate: bool,
    version: Option<ProtocolVersion>,
    handshake: Option<HandshakeKind>,
}

/// Answers every connection once, and asks for a certificate without insisting on one.
fn secure_server(client: &CertificateParams, key: &KeyPair) -> (SocketAddr, Receiver<Met>) {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(client.self_signed(key).unwrap().der().clone()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![own.cert.der().clone()],
            PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into()),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(session, stream);
            let mut bytes = [0; 4096];
            if stream.read(&mut bytes).is_err() {
                continue;
            }
            let met = Met {
                name: stream.conn.server_name().map(str::to_owned),
                has_certificate: stream.conn.peer_certificates().is_some(),
                version: stream.conn.protocol_version(),
                handshake: stream.conn.handshake_kind(),
            };
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx").unwrap();
            stream.conn.send_close_notify();
            stream.flush().ok();
            if sender.send(met).is_err() {
                return;
            }
        }
    });
    (addr, receiver)
}

#[test]
fn sessions_are_gone_on_with_unless_each_handshake_is_to_be_full() {
    let key = KeyPair::generate().unwrap();
    let client = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let (addr, met) = secure_server(&client, &key);
    let handshakes = |forgets_sessions: bool| {
        let get = GetLoad {
            urls: vec![format!("https://localhost:{}/", addr.port())],
            requests: Some(2),
            workers: 1,
            keep_alive: false,
            forgets_sessions,
            ..GetLoad::default()
        };
        assert_eq!(get.run().unwrap().total_stats().error_count, 0);
        [met.recv().unwrap().handshake, met.recv().unwrap().handshake]
    };
    let (full, resumed) = (Some(HandshakeKind::Full), Some(HandshakeKind::Resumed));
    assert_eq!(handshakes(false), [full, resumed]);
    assert_eq!(handshakes(true), [full, full]);
}

#[test]
fn tls_is_spoken_as_the_options_say() {
    let key = KeyPair::generate().unwrap();
    let client = CertificateParams::new(vec!["client".to_owned()]).unwrap();
    let (addr, met) = secure_server(&client, &key);
    let folder = tempfile::tempdir().unwrap();
    let pem: PathBuf = folder.path().join("client.pem");
    let certificate = client.self_signed(&key).unwrap().pem();
    std::fs::write(&pem, format!("{certificate}{}", key.serialize_pem())).unwrap();
    let plain =
        AbOptions { url: format!("https://localhost:{}/", addr.port()), ..AbOptions::default() };
    let check = |ab: AbOptions, name: Option<&str>, has_certificate: bool, version| {
        let run = ab.run().unwrap();
        assert_eq!(run.failed_count(), 0, "{run}");
        let (name, version) = (name.map(str::to_owned), Some(version));
        let handshake = Some(HandshakeKind::Full);
        let expected = Met { name, has_certificate, version, handshake };
        assert_eq!(met.recv().unwrap(), expected);
        run.to_report()
    };
    let newest = ProtocolVersion::TLSv1_3;
    let told = check(plain.clone(), Some("localhost"), false, newest);
    assert!(told.contains("SSL/TLS Protocol:       TLSv1.3,TLS_"), "{told}");
    assert!(
        told.contains("Server Temp Key:        X25519 253 bits\nTLS Server Name:        localhost")
    );
    let shy = AbOptions { hides_server_name: true, ..plain.clone() };
    assert!(!check(shy, None, false, newest).contains("TLS Server Name"));
    let older = AbOptions {
        protocol: Some("TLS1.2".to_owned()),
        ciphers: Some("ECDHE-ECDSA-AES128-GCM-SHA256".to_owned()),
        ..plain.clone()
    };
    let told = check(older, Some("localhost"), false, ProtocolVersion::TLSv1_2);
    assert!(told.contains("TLSv1.2,ECDHE-ECDSA-AES128-GCM-SHA256,128"), "{told}");
    let known =
        AbOptions { certificate: Some(pem), socket_buffer_size: Some(16_384), ..plain.clone() };
    check(known, Some("localhost"), true, newest);
    let refused = |ab: AbOptions, why: &str| {
        let error = ab.run().unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(why), "{error}");
    };
    refused(AbOptions { protocol: Some("SSL3".to_owned()), ..plain.clone() }, "insecure");
    refused(
        AbOptions { ciphers: Some("RC4-MD5".to_owned()), ..plain.clone() },
        "unknown cipher suite",
    );
    let none = Some(folder.path().join("none.pem"));
    refused(AbOptions { certificate: none, ..plain.clone() }, "cannot read a PEM certificate");
    refused(AbOptions { proxy: Some("127.0.0.1:1".to_owned()), ..plain }, "through a proxy");
}
