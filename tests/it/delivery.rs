//! Stored bytes from a publisher: answered from memory, and never older than content.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

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
    let begun = Instant::now();
    while !is_so(&get(publish, FILE)) {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "never so: {}",
            get(publish, FILE).status
        );
        std::thread::yield_now();
    }
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
        let line = metrics.lines().find(|line| line.starts_with("tympan_answered_at_once_total{"));
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
    assert!(running.stop());
}
