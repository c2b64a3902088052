//! Stored bytes from a publisher: answered from memory, and never older than content.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::program::{Answer, Demo, Running, ask, basic, free_address, get};

const FILE: &str = "/content/files/a.bin";

fn store(demo: &Demo, bytes: &[u8]) {
    let headers = [("Authorization", basic("admin", demo.password()))];
    let stored = ask(demo.author, "PUT", FILE, &headers, bytes).unwrap();
    assert!(matches!(stored.status, 200 | 201 | 204), "{} {}", stored.status, stored.text());
    assert_eq!(demo.post("/content/files", ":operation=activate&:deep=true").status, 200);
}

/// Asks until the publisher answers so.
fn await_answer(publish: SocketAddr, is_so: impl Fn(&Answer) -> bool) {
    wait_for(|| match get(publish, FILE) {
        answer if is_so(&answer) => Ok(()),
        answer => Err(format!("status {}", answer.status)),
    });
}

#[test]
fn a_file_is_answered_from_memory_until_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    demo.post("/content/files", "jcr:primaryType=sling:Folder");
    let versions: Vec<Vec<u8>> = (1..4).map(|seed| vec![seed; 50_000]).collect();
    for bytes in &versions {
        store(&demo, bytes);
        await_answer(demo.publish, |answer| answer.body == *bytes);
        // Seen once, it is what everybody gets from then on.
        for _ in 0..5 {
            assert!(get(demo.publish, FILE).body == *bytes);
        }
    }
    assert!(demo.running.stop());

    let home = dir.path().join("demo/publish");
    let (address, admin) = (free_address(), free_address());
    let listen = [address.to_string(), admin.to_string()];
    let home = home.to_str().unwrap();
    let arguments =
        ["publish", "--home", home, "--listen", &listen[0], "--admin-listen", &listen[1]];
    let running = Running::start(&arguments);
    let at_once = || -> u64 {
        let metrics = get(admin, "/metrics").text();
        let line =
            metrics.lines().find(|line| line.starts_with("tympan_response_cache_hits_total{"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    };
    let plain = |answer: &Answer| {
        let names = ["etag", "content-type", "content-length", "last-modified", "accept-ranges"];
        let kept = names.iter().map(|name| answer.header(name).map(str::to_owned));
        (answer.status, kept.collect::<Vec<_>>(), answer.body.clone())
    };
    let drawn = get(address, FILE);
    assert_eq!((drawn.status, at_once()), (200, 0));
    let repeated = get(address, FILE);
    assert_eq!(at_once(), 1);
    assert!(plain(&drawn) == plain(&repeated));
    let tag = drawn.header("etag").unwrap().to_owned();
    let ask = |method: &str, name: &'static str, value: &str| {
        ask(address, method, FILE, &[(name, value.to_owned())], b"").unwrap()
    };
    let unchanged = ask("GET", "If-None-Match", &tag);
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    assert_eq!(unchanged.header("etag"), Some(tag.as_str()));
    let part = ask("GET", "Range", "bytes=10-19");
    assert_eq!((part.status, part.body.as_slice()), (206, &[3; 10][..]));
    assert_eq!(part.header("content-range"), Some("bytes 10-19/50000"));
    assert_eq!(part.header("content-length"), Some("10"));
    assert_eq!(ask("GET", "Range", "bytes=50000-").status, 416);
    let head = ask("HEAD", "Accept", "*/*");
    assert_eq!((head.status, head.header("content-length")), (200, Some("50000")));
    assert_eq!(at_once(), 5, "none of them was drawn");
    // What may differ by who asks, or how, is drawn.
    assert_eq!(get(address, &format!("{FILE}?a=b")).status, 200);
    assert_eq!(ask("GET", "Surrogate-Capability", "a=\"SSI/1.0\"").status, 200);
    assert_eq!(at_once(), 5);

    // On a kept connection the same answers come past the general stack, header for header.
    let counted = || -> u64 {
        let metrics = get(admin, "/metrics").text();
        let name = "tympan_fast_path_hits_total{";
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    };
    assert_eq!(counted(), 0);
    let tag = format!("If-None-Match: {tag}\r\n");
    let wishes = [
        ("GET", ""),
        ("GET", "User-Agent: x\r\nAccept: */*\r\nReferer: http://a/\r\n"),
        ("GET", "Range: bytes=10-19\r\n"),
        ("GET", "Range: bytes=50000-\r\n"),
        ("GET", tag.as_str()),
        ("HEAD", ""),
        ("GET", ""),
    ];
    let request = |(method, more): &(&str, &str)| {
        format!("{method} {FILE} HTTP/1.1\r\nHost: h\r\n{more}\r\n")
    };
    let all: Vec<String> = wishes.iter().map(request).collect();
    // A head that says how long its body is goes the general way.
    let general: Vec<String> =
        all.iter().map(|one| one.replacen("Host: h", "Content-Length: 0\r\nHost: h", 1)).collect();
    let methods = wishes.map(|(method, _)| method);
    let expected = converse(address, &general, &methods);
    assert_eq!(counted(), 0);
    assert_eq!(converse(address, &all, &methods), expected);
    assert_eq!(counted(), 7);
    assert_eq!(converse(address, &[all.concat()], &methods), expected, "sent together");
    assert_eq!(counted(), 14);
    let (status, body) = (&expected[0].0[0], &expected[0].1);
    assert!(status.contains(" 200 ") && *body == versions[2], "{status}");
    let log = std::fs::read_to_string(dir.path().join("demo/publish/logs/access.log"));
    let begun = Instant::now();
    let wanted = "\"http://a/\" \"x\"";
    let mut log = log.unwrap();
    while log.matches(wanted).count() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{log}");
        log = std::fs::read_to_string(dir.path().join("demo/publish/logs/access.log")).unwrap();
    }
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(wanted)).collect();
    let what = |line: &str| line.split_once('"').unwrap().1.to_owned();
    assert!(lines.iter().all(|line| what(line) == what(lines[0])), "{lines:?}");
    // With a cookie that may name somebody, it is looked at who asks.
    let known = "GET /content/files/a.bin HTTP/1.1\r\nHost: h\r\nAuthorization: Basic eDp5\r\n\r\n";
    let refused = converse(address, &[known.to_owned()], &["GET"]);
    assert!(refused[0].0[0].contains(" 401 "), "{refused:?}");
    assert_eq!(counted(), 14);
    assert!(running.stop());
}

#[test]
fn a_small_page_is_rendered_past_the_general_stack() {
    const PAGE: &str = "/content/pages/a.json";
    let dir = tempfile::tempdir().unwrap();
    let request = |more: &str| [format!("GET {PAGE} HTTP/1.1\r\nHost: h\r\n{more}\r\n")];
    // A head that says how long its body is goes the general way.
    let general = request("Content-Length: 0\r\n");
    let plain = request("User-Agent: x\r\nAccept: */*\r\nAccept-Language: de\r\n");
    let has = |answers: &[(Vec<String>, Vec<u8>)], title: &str| {
        let (head, body) = &answers[0];
        let body = String::from_utf8_lossy(body);
        head[0].contains(" 200 ") && body.contains(&format!("\"title\":\"{title}\""))
    };
    let demo = Demo::start(&dir.path().join("demo"));
    demo.post("/content/pages", "jcr:primaryType=sling:Folder");
    for title in ["one", "two", "three"] {
        let form = format!("jcr:primaryType=nt:unstructured&title={title}");
        demo.post("/content/pages/a", &form);
        assert_eq!(demo.post("/content/pages", ":operation=activate&:deep=true").status, 200);
        wait_until(format_args!("the publisher shows `{title}`"), || {
            has(&converse(demo.publish, &general, &["GET"]), title)
        });
        // Another state is drawn, not what was drawn of the former one.
        for _ in 0..20 {
            assert!(has(&converse(demo.publish, &plain, &["GET"]), title));
        }
    }
    assert!(demo.running.stop());

    let home = dir.path().join("demo/publish");
    let (address, admin) = (free_address(), free_address());
    let listen = [address.to_string(), admin.to_string()];
    let home = home.to_str().unwrap();
    let arguments =
        ["publish", "--home", home, "--listen", &listen[0], "--admin-listen", &listen[1]];
    let running = Running::start(&arguments);
    let drawn = || -> u64 {
        let metrics = get(admin, "/metrics").text();
        let line = metrics.lines().find(|line| line.starts_with("tympan_fast_path_renders_total{"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    };
    // It is little work once what it needs is in memory.
    let begun = Instant::now();
    while drawn() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "never drawn past the stack");
        let expected = converse(address, &general, &["GET"]);
        assert!(has(&expected, "three"), "{expected:?}");
        assert_eq!(converse(address, &plain, &["GET"]), expected);
    }
    // What somebody may be asked for, or is asked beside the path, is drawn the general way.
    let before = drawn();
    for more in ["Authorization: Basic eDp5\r\n", "Surrogate-Capability: a=\"SSI/1.0\"\r\n"] {
        converse(address, &request(more), &["GET"]);
        assert_eq!(drawn(), before, "{more}");
    }
    assert!(running.stop());
}

/// Sends requests on one connection, one after the other, and returns the sorted lines of each head and its body.
fn converse(
    address: SocketAddr,
    requests: &[String],
    methods: &[&str],
) -> Vec<(Vec<String>, Vec<u8>)> {
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    stream.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut waiting = requests.iter();
    let mut answers = Vec::new();
    for method in methods {
        if let Some(request) = waiting.next() {
            stream.get_mut().write_all(request.as_bytes()).unwrap();
        }
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            if !line.starts_with("date: ") {
                head.push(line);
            }
        }
        head.get_mut(1..).unwrap().sort();
        let mut body = vec![0; if *method == "HEAD" { 0 } else { length }];
        stream.read_exact(&mut body).unwrap();
        answers.push((head, body));
    }
    answers
}
