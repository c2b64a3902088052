//! The dispatcher as a process: it reads its configuration again, and hands over to its successor.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::condition_wait::{wait_for, wait_until};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};
use tympan_testkit::tls_proxy::{CertificateAuthority, TlsProxy};

use crate::program::{Demo, Running, free_address, get, run_ok, tympan};

const PATIENCE: Duration = Duration::from_secs(120);

/// A process whose words are kept.
struct Process {
    child: Child,
    said: Arc<Mutex<String>>,
}

impl Process {
    fn start(dir: &Path, listen: SocketAddr, more: &[&str]) -> Self {
        let config = dir.join("dispatcher.any");
        Self::run(listen, &[&["--config", config.to_str().unwrap()], more].concat())
    }

    fn run(listen: SocketAddr, arguments: &[&str]) -> Self {
        let mut command = tympan();
        command
            .args(["dispatcher", "--listen"])
            .arg(listen.to_string())
            .args(arguments)
            .env("TYMPAN_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let lines: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for lines in lines {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(lines).lines().map_while(Result::ok) {
                    said.lock().unwrap().push_str(&format!("{line}\n"));
                }
            });
        }
        let process = Self { child, said };
        process.wait_for("\nready\n");
        process
    }

    fn says(&self, text: &str) -> bool {
        format!("\n{}", self.said.lock().unwrap()).contains(text)
    }

    fn wait_for(&self, text: &str) {
        wait_for(|| match self.says(text) {
            true => Ok(()),
            false => Err(format!("no {text:?} in {}", self.said.lock().unwrap())),
        });
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Writes a configuration that allows paths below `allowed`.
fn write_config(dir: &Path, origin: &OriginServer, allowed: &str) {
    let docroot = dir.join("docroot");
    std::fs::create_dir_all(&docroot).unwrap();
    let text = format!(
        "/farms {{ /site {{\n/virtualhosts {{ \"*\" }} /clientheaders {{ \"*\" }}\n\
         /renders {{ /r0 {{ /hostname \"127.0.0.1\" /port \"{}\" }} }}\n\
         /filter {{ /0 {{ /type \"deny\" /url \"*\" }} /1 {{ /type \"allow\" /url \"{allowed}\" }} }}\n\
         /cache {{ /docroot \"{}\" /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }}\n\
         /allowedClients {{ /0 {{ /type \"allow\" /glob \"127.0.0.1\" }} }} }}\n}} }}\n",
        origin.addr().port(),
        docroot.display()
    );
    std::fs::write(dir.join("dispatcher.any"), text).unwrap();
}

fn status(addr: SocketAddr, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let answer = tympan_testkit::origin_server::exchange_bytes(addr, request.as_bytes());
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

#[test]
fn a_changed_configuration_is_read_again_and_a_broken_one_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    write_config(dir.path(), &origin, "/a*");
    let addr = free_address();
    let process = Process::start(dir.path(), addr, &[]);
    let allows = |path: &str| status(addr, path) == 200;
    assert!(allows("/a.html") && !allows("/b.html"));

    write_config(dir.path(), &origin, "/b*");
    process.signal(Signal::HUP);
    wait_until("SIGHUP counts", || allows("/b.html"));
    assert!(!allows("/a.html"));

    write_config(dir.path(), &origin, "/c*");
    wait_until("a changed file counts without a signal", || allows("/c.html"));

    std::fs::write(dir.path().join("dispatcher.any"), "/farms {\n  /site { /renders {\n").unwrap();
    process.signal(Signal::HUP);
    process.wait_for("cannot use the changed configuration; keeping the old one");
    assert!(process.says("dispatcher.any:"), "{}", process.said.lock().unwrap());
    assert!(allows("/c.html"));

    write_config(dir.path(), &origin, "/d*");
    process.signal(Signal::HUP);
    wait_until("a mended file counts", || allows("/d.html"));
    // No terminal reads this.
    assert!(!process.says("\u{1b}"), "{:?}", process.said.lock().unwrap());
}

#[test]
fn settings_that_come_after_the_start_count() {
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    write_config(dir.path(), &origin, "/a*");
    let addr = free_address();
    let process = Process::run(addr, &["--home", dir.path().to_str().unwrap()]);
    assert_eq!(status(addr, "/moved"), 404);

    let rule = "[[dispatcher.host.rule]]\nmatch = '^/moved$'\nredirect = \"/a.html\"\n";
    let text = format!("[[dispatcher.host]]\nnames = [\"*\"]\n{rule}");
    std::fs::write(dir.path().join("tympan.toml"), text).unwrap();
    process.signal(Signal::HUP);
    wait_until("the new file counts", || status(addr, "/moved") == 302);
}

#[test]
fn a_render_over_tls_comes_with_a_changed_configuration_and_so_do_its_roots() {
    let dir = tempfile::tempdir().unwrap();
    let (origin, authority) =
        (OriginServer::start_constant(OriginResponse::html("page")), CertificateAuthority::new());
    let door = TlsProxy::start(origin.addr(), &authority, "127.0.0.1");
    write_config(dir.path(), &origin, "/*");
    let (settings, roots) = (dir.path().join("tympan.toml"), dir.path().join("ca.pem"));
    std::fs::write(&settings, "").unwrap();
    let addr = free_address();
    let process = Process::start(dir.path(), addr, &["--settings", settings.to_str().unwrap()]);
    let config = std::fs::read_to_string(dir.path().join("dispatcher.any")).unwrap();
    let port = |addr: SocketAddr| format!("/port \"{}\"", addr.port());
    let secure = config.replace(&port(origin.addr()), &format!("{} /secure 1", port(door.addr())));
    std::fs::write(&roots, authority.pem()).unwrap();
    let text = format!("[dispatcher.renders]\nroots = \"{}\"\n", roots.display());
    std::fs::write(&settings, text).unwrap();
    std::fs::write(dir.path().join("dispatcher.any"), secure).unwrap();
    process.signal(Signal::HUP);
    // With a query, so that no page is kept.
    let ask = || status(addr, "/a.html?x");
    wait_until("the render over TLS answers", || ask() == 200 && door.request_count() > 0);
    std::fs::write(&roots, CertificateAuthority::new().pem()).unwrap();
    wait_until("other roots count without a signal", || ask() == 502);
    std::fs::write(&roots, authority.pem()).unwrap();
    wait_until("the first roots count again", || ask() == 200);
}

#[test]
fn a_publisher_shows_a_changed_certificate_and_visitors_without_tls_are_redirected() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (CertificateAuthority::new(), CertificateAuthority::new());
    let home = dir.path().join("publish");
    let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
    let show = |authority: &CertificateAuthority| {
        let (certificate, secret) = authority.issue_identity("127.0.0.1");
        std::fs::write(&chain, certificate).unwrap();
        std::fs::write(&key, secret).unwrap();
    };
    show(&first);
    std::fs::create_dir_all(&home).unwrap();
    let listen = format!(
        "[listen]\ntls_certificate = \"{}\"\ntls_key = \"{}\"\n",
        chain.display(),
        key.display()
    );
    std::fs::write(home.join("tympan.toml"), listen).unwrap();
    let [publish, addr, plain] = [(); 3].map(|()| free_address());
    let _publisher = Running::start(&[
        "publish",
        "--home",
        home.to_str().unwrap(),
        "--listen",
        &publish.to_string(),
    ]);
    let roots = dir.path().join("ca.pem");
    std::fs::write(&roots, first.pem()).unwrap();
    let farm = format!(
        "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"127.0.0.1\" /port \"{}\" /secure 1 }} }} }} }}",
        publish.port()
    );
    std::fs::write(dir.path().join("dispatcher.any"), farm).unwrap();
    let settings = dir.path().join("tympan.toml");
    let text = format!(
        "[dispatcher]\nkeep_alive_timeout = \"0s\"\n[dispatcher.renders]\nroots = \"{}\"\n[dispatcher.https_redirect]\naddress = \"{plain}\"\n",
        roots.display()
    );
    std::fs::write(&settings, text).unwrap();
    let _process = Process::start(dir.path(), addr, &["--settings", settings.to_str().unwrap()]);
    let ask = || status(addr, "/a.html?x");
    assert_eq!(ask(), 404, "the publisher is empty");
    let moved = get(plain, "/a.html?x");
    assert_eq!(moved.status, 301);
    assert_eq!(moved.header("location"), Some("https://127.0.0.1/a.html?x"));
    show(&second);
    wait_until("another certificate is shown", || ask() == 502);
    // One that does not fit its key never takes the place of one that works.
    std::fs::write(&key, first.issue_identity("127.0.0.1").1).unwrap();
    std::fs::write(&roots, second.pem()).unwrap();
    wait_until("the second certificate is trusted", || ask() == 404);
}

/// Asks over kept connections until told to stop; returns how often, and what failed.
fn visit(addr: SocketAddr, path: &str, stop: &AtomicBool, count: &AtomicUsize) -> Vec<String> {
    let mut failures = Vec::new();
    let mut connection: Option<BufReader<TcpStream>> = None;
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    while !stop.load(Ordering::SeqCst) {
        let outcome = (|| {
            let reader = match connection.take() {
                Some(reader) => connection.insert(reader),
                None => {
                    let stream = TcpStream::connect(addr)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    connection.insert(BufReader::new(stream))
                }
            };
            reader.get_mut().write_all(request.as_bytes())?;
            read_answer(reader)
        })();
        match outcome {
            Ok(true) => {}
            // The server asked to come anew.
            Ok(false) => connection = None,
            Err(error) => {
                failures.push(format!("{path}: {error}"));
                connection = None;
            }
        }
        count.fetch_add(1, Ordering::SeqCst);
    }
    failures
}

/// Reads a page, and tells whether the connection stays.
fn read_answer(reader: &mut BufReader<TcpStream>) -> std::io::Result<bool> {
    let (mut length, mut stays, mut first) = (0, true, true);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::Error::other("the connection ended"));
        }
        let line = line.trim_end().to_ascii_lowercase();
        if std::mem::take(&mut first) && !line.starts_with("http/1.1 200 ") {
            return Err(std::io::Error::other(line));
        }
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().map_err(std::io::Error::other)?;
        }
        stays &= line != "connection: close";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if body != b"page" {
        return Err(std::io::Error::other("another page"));
    }
    Ok(stays)
}

#[test]
fn a_process_is_replaced_without_a_failed_request() {
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    write_config(dir.path(), &origin, "/*");
    let addr = free_address();
    let path = dir.path().join("hand.sock");
    let more = ["--hand-over", path.to_str().unwrap()];
    let mut process = Process::start(dir.path(), addr, &more);
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let failures = std::thread::scope(|scope| {
        // Two that are served from the cache, two that the render answers.
        let visitors: Vec<_> = ["/a.html", "/b.html", "/c?q=1", "/d?q=1"]
            .map(|path| scope.spawn(|| visit(addr, path, &stop, &count)))
            .into_iter()
            .collect();
        for _ in 0..3 {
            let reached = count.load(Ordering::SeqCst);
            wait_until("visitors are served", || count.load(Ordering::SeqCst) > reached + 200);
            let next = Process::start(dir.path(), addr, &more);
            let mut old = std::mem::replace(&mut process, next);
            let reached = count.load(Ordering::SeqCst);
            wait_until("visitors are served", || count.load(Ordering::SeqCst) > reached + 200);
            assert!(old.child.wait().unwrap().success(), "{}", old.said.lock().unwrap());
        }
        stop.store(true, Ordering::SeqCst);
        visitors.into_iter().flat_map(|visitor| visitor.join().unwrap()).collect::<Vec<_>>()
    });
    let asked = count.load(Ordering::SeqCst);
    assert!(failures.is_empty(), "{} of {asked}: {failures:?}", failures.len());
    eprintln!("3 replacements, {asked} requests, none failed");
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    write_config(dir.path(), &origin, "/*");
    let addr = free_address();
    let path = dir.path().join("hand.sock");
    let _process = Process::start(dir.path(), addr, &["--hand-over", path.to_str().unwrap()]);
    let broken = dir.path().join("broken.toml");
    // Found only after the other process was asked for its sockets.
    std::fs::write(&broken, "[dispatcher]\nlog_level = \"loud\"\n").unwrap();
    let config = dir.path().join("dispatcher.any");
    let output = tympan()
        .args(["dispatcher", "--config", config.to_str().unwrap(), "--listen", &addr.to_string()])
        .args(["--settings", broken.to_str().unwrap(), "--hand-over", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(status(addr, "/a.html"), 200);
    // And the one that serves can still be replaced.
    let _next = Process::start(dir.path(), addr, &["--hand-over", path.to_str().unwrap()]);
    assert_eq!(status(addr, "/b.html"), 200);
}

#[test]
fn the_second_listener_is_a_process_s_too() {
    let dir = tempfile::tempdir().unwrap();
    let origin = OriginServer::start_constant(OriginResponse::html("page"));
    write_config(dir.path(), &origin, "/*");
    let (addr, admin) = (free_address(), free_address());
    let settings = dir.path().join("tympan.toml");
    std::fs::write(&settings, format!("[dispatcher.admin]\naddress = \"{admin}\"\n")).unwrap();
    let process = Process::start(dir.path(), addr, &["--settings", settings.to_str().unwrap()]);
    assert!(
        process.says(&format!("dispatcher reports its health and metrics on http://{admin}\n"))
    );
    let request = format!("GET /health HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    let answer = tympan_testkit::origin_server::exchange_bytes(admin, request.as_bytes());
    assert!(String::from_utf8_lossy(&answer).ends_with("ok\n"));
}

#[test]
fn the_demo_reads_its_dispatcher_again() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let file = demo.home.join("dispatcher/dispatcher.any");
    let text = std::fs::read_to_string(&file).unwrap();
    let page = "/content/wayfare/en.html";
    assert_eq!(status(demo.dispatcher, page), 200);
    let last =
        "/0032 { /type \"allow\" /method \"GET\" /path \"/content/bench/*\" /extension \"json\" }";
    let closed = text.replace(last, "/0032 { /type \"deny\" /url \"*\" }");
    assert_ne!(closed, text);
    std::fs::write(&file, closed).unwrap();
    wait_until("the demo's new file counts", || status(demo.dispatcher, page) == 404);
}

/// Asks until the page at `path` holds `text`.
fn see(address: SocketAddr, path: &str, text: &str) {
    let seen = || get(address, path).text();
    wait_for(|| match seen() {
        page if page.contains(text) => Ok(()),
        page => Err(format!("no `{text}` at {path}, which says {page}")),
    });
}

#[test]
fn the_demo_obeys_settings_and_flushes_what_an_edited_template_drew() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("shop");
    run_ok(&["site", "new", site.to_str().unwrap()]);
    let home = dir.path().join("home");
    std::fs::create_dir_all(home.join("dispatcher")).unwrap();
    let (admin, addresses) = (free_address(), [(); 3].map(|()| free_address()));
    let settings = home.join("dispatcher/tympan.toml");
    let set = |target: &str| {
        let text = format!(
            "[dispatcher.admin]\naddress = \"{admin}\"\n\n[[dispatcher.host]]\n\
             headers = {{ X-Edited = \"1\" }}\n\n[[dispatcher.host.rule]]\n\
             match = '^/old$'\nredirect = \"{target}\"\n"
        );
        std::fs::write(&settings, text).unwrap();
    };
    set("/first");
    let [author, publish, dispatcher] = addresses.map(|address| address.to_string());
    let arguments = [
        "demo",
        "--site",
        site.to_str().unwrap(),
        "--home",
        home.to_str().unwrap(),
        "--author",
        &author,
        "--publish",
        &publish,
        "--dispatcher",
        &dispatcher,
    ];
    let visitors = addresses[2];
    let demo = Running::start(&arguments);
    // The settings beside its configuration count, also when they change.
    let moved = get(visitors, "/old");
    assert_eq!((moved.status, moved.header("x-edited")), (302, Some("1")));
    assert!(moved.header("location").unwrap().ends_with("/first"));
    assert!(get(admin, "/metrics").text().contains("tympan_dispatcher_hits_total"));
    set("/second");
    let location = || get(visitors, "/old").header("location").unwrap_or_default().to_owned();
    wait_for(|| match location() {
        target if target.ends_with("/second") => Ok(()),
        target => Err(target),
    });

    // What a template drew is fetched anew once it is edited, as by an activation.
    let page = "/content/shop.html";
    let template = site.join("apps/shop/components/page/page.html.j2");
    let text = std::fs::read_to_string(&template).unwrap();
    let edit = |mark: &str| {
        let edited = text.replacen("<body", &format!("<!-- {mark} -->\n<body"), 1);
        assert_ne!(edited, text);
        std::fs::write(&template, edited).unwrap();
    };
    see(visitors, page, "</html>");
    edit("drawn by the first");
    see(visitors, page, "drawn by the first");
    edit("drawn by the second");
    see(visitors, page, "drawn by the second");
    assert!(demo.stop());
    // Edited while nothing runs, too: the dispatcher's copies are older than the start.
    edit("drawn by the third");
    let demo = Running::start(&arguments);
    see(visitors, page, "drawn by the third");
    assert!(demo.stop());
}

#[test]
fn a_changed_configuration_is_compared_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let farm = |rule: &str| {
        format!(
            "/farms {{ /site {{ /virtualhosts {{ \"www.example.com\" }}
             /renders {{ /r {{ /hostname \"127.0.0.1\" /port 1 }} }}
             /filter {{ /0 {{ /type \"deny\" /url \"*\" }} {rule} }} }} }}"
        )
    };
    let old = write("old.any", &farm(""));
    let new = write("new.any", &farm("/1 { /type \"allow\" /url \"/secret*\" }"));
    let urls = write(
        "access.log",
        "127.0.0.1 - - [21/Nov/2026:00:50:16 +0000] \"GET /secret/plan.html HTTP/1.1\" 200 1 \"-\" \"x\"\n",
    );
    let said = run_ok(&["dispatcher", "diff", &old, &old, "--urls", &urls]);
    assert!(said.starts_with("0 keys differ; 0 of "), "{said}");
    let output =
        tympan().args(["dispatcher", "diff", &old, &new, "--urls", &urls]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for expected in [
        "+ /farms/site/filter/1 { /type \"allow\" /url \"/secret*\" }  (",
        "\nGET /secret/plan.html\n    old: farm /site: refused, by /0 (",
        "\n    new: farm /site: forwarded, not cacheable: document root non-existent, by /1 (",
        "\n1 keys differ; ",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    let output = tympan().args(["dispatcher", "diff", &old, "none.any"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Asks with headers and returns the status and the body.
fn ask(addr: SocketAddr, line: &str, headers: &str) -> (u16, String) {
    let request = format!("{line} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{headers}\r\n");
    let answer = tympan_testkit::origin_server::exchange_bytes(addr, request.as_bytes());
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status.unwrap_or(0), body.unwrap_or_default())
}

#[test]
fn three_dispatchers_agree_over_kills() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        OriginResponse::html(format!("version {}", count.fetch_add(1, Ordering::SeqCst)))
    });
    let addresses = [free_address(), free_address(), free_address()];
    let folders = addresses.map(|_| tempfile::tempdir().unwrap());
    let siblings: String = addresses
        .iter()
        .enumerate()
        .map(|(index, addr)| {
            format!("/d{index} {{ /hostname \"127.0.0.1\" /port \"{}\" }} ", addr.port())
        })
        .collect();
    for folder in &folders {
        write_config(folder.path(), &origin, "/*");
        let file = folder.path().join("dispatcher.any");
        let text = std::fs::read_to_string(&file).unwrap();
        let more = format!("/site {{\n/x-passFlushes \"1\" /x-siblings {{ {siblings} }}\n");
        std::fs::write(&file, text.replacen("/site {\n", &more, 1)).unwrap();
    }
    let start = |index: usize| Process::start(folders[index].path(), addresses[index], &[]);
    let mut processes: Vec<Option<Process>> = (0..3).map(|index| Some(start(index))).collect();
    let page = "GET /content/a.html";
    let flush = |index: usize| {
        let headers = "CQ-Action: Activate\r\nCQ-Handle: /content/a\r\n";
        assert_eq!(ask(addresses[index], "POST /dispatcher/invalidate.cache", headers).0, 200);
    };
    for round in 0..6 {
        let (killed, flushed) = (round % 3, (round + 1) % 3);
        let before: Vec<String> = addresses.iter().map(|addr| ask(*addr, page, "").1).collect();
        // Killed, and not ended: nothing is written down on the way out.
        drop(processes[killed].take());
        flush(flushed);
        if round % 2 == 1 {
            // The one who was told is killed as well, before the first is back.
            drop(processes[flushed].take());
            processes[flushed] = Some(start(flushed));
        }
        processes[killed] = Some(start(killed));
        let other = addresses[(round + 2) % 3];
        for addr in [addresses[killed], addresses[flushed], other] {
            let is_new = || !before.contains(&ask(addr, page, "").1);
            if round % 2 == 0 {
                assert!(is_new(), "round {round}: {addr} shows what was flushed");
            } else {
                wait_until(format_args!("round {round}: {addr} hears of the flush"), is_new);
            }
        }
    }
    // What they keep can be taken along while they serve.
    let config = folders[0].path().join("dispatcher.any").display().to_string();
    let archive = folders[1].path().join("site.tar");
    let tar = archive.to_str().unwrap();
    let said = run_ok(&["dispatcher", "export", &config, "--tar", tar]);
    assert!(said.starts_with("1 pages with "), "{said}");
    let bytes = std::fs::read(&archive).unwrap();
    assert!(bytes.starts_with(b"content/a.html\0"));
    let output = tympan().args(["dispatcher", "export", &config, "--tar", "-"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, bytes);
    let folder = folders[2].path().join("site").display().to_string();
    let said = run_ok(&["dispatcher", "export", &config, "--folder", &folder, "--bare", "--json"]);
    assert!(said.contains("\"files\":1"), "{said}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    for wrong in [
        &["--folder", folder.as_str()][..],
        &["--tar", tar, "--farm", "none"],
        &["--tar", tar, "--folder", "x"],
        &["--tar", tar, "--time", "18446744073709551615"],
        &["--tar", tar, "--time", "8589934592"],
        &[],
    ] {
        let arguments = [&["dispatcher", "export", &config][..], wrong].concat();
        assert_eq!(tympan().args(arguments).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
    // What another export writes is left alone, as is what a link in its place leads to.
    let other = folders[1].path().join("other");
    std::fs::write(&other, "precious").unwrap();
    let part = folders[1].path().join("site.tar.part");
    std::os::unix::fs::symlink(&other, &part).unwrap();
    let output = tympan().args(["dispatcher", "export", &config, "--tar", tar]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("site.tar.part` already exists: another export is writing it"), "{said}");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "precious");
    assert!(part.is_symlink());
    std::fs::remove_file(&part).unwrap();
    run_ok(&["dispatcher", "export", &config, "--tar", tar, "--time", "8589934591"]);
    assert!(!part.is_symlink());
}
