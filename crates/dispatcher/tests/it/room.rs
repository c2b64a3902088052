//! The document root stays within its bounds, and a full disk costs no visitor a page.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::origin_server::{OriginGate, OriginResponse, OriginServer, ResponseDelivery};

use crate::front::{Front, Setup, front};

/// An origin whose pages have headers to keep and an end.
fn origin() -> OriginServer {
    OriginServer::start(|seen| {
        OriginResponse::html(format!("page {}", seen.target))
            .with_header("X-Kept", "yes")
            .with_header("Cache-Control", "max-age=100000")
    })
}

const KEEPS: &str = "/headers { \"X-Kept\" } /enableTTL 1 ";

/// Everything below the root but the folder for unfinished files: files, links, folders.
fn entries(front: &Front) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![front.file("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.ends_with(".tympan-tmp") {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

/// Tells whether a file has what belongs to it, or a folder something in it.
fn belongs(entry: &Path) -> bool {
    let name = entry.to_str().unwrap();
    let is_file = |name: &str| Path::new(name).is_file();
    match name.strip_suffix(".h").or_else(|| name.strip_suffix(".ttl")) {
        Some(main) => is_file(main),
        None if entry.is_dir() => {
            std::fs::read_dir(entry).is_ok_and(|mut entries| entries.next().is_some())
        }
        None => is_file(&format!("{name}.h")) && is_file(&format!("{name}.ttl")),
    }
}

fn evicted(front: &Front) -> u64 {
    front.metric(&format!("evicted_files_total{{docroot=\"{}\"}}", docroot(front)))
}

/// The root's path without the slash that joining leaves.
fn docroot(front: &Front) -> String {
    front.file("").to_str().unwrap().trim_end_matches('/').to_owned()
}

#[test]
fn a_flood_evicts_itself_and_pages_in_use_stay() {
    let origin = origin();
    // Nothing bounds what one client makes up here.
    let front = Front::start(&Setup {
        farm: "/x-variantLimit \"0\"",
        cache: "/headers { \"X-Kept\" } /enableTTL 1 /x-maxFiles 120",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let real: Vec<String> = (0..8).map(|number| format!("/content/real{number}.html")).collect();
    let visit = || {
        for page in &real {
            assert_eq!(front.get(page).status, 200);
        }
    };
    visit();
    front.advance(10);
    for number in 0..150 {
        if number % 10 == 0 {
            visit();
        }
        // Each with a folder of its own.
        assert_eq!(front.get(&format!("/content/x.html/{number}/s.html")).status, 200);
        front.advance(1);
    }
    // The root itself counts as a folder.
    wait_until("the bound to hold", || entries(&front).len() < 120);
    assert!(evicted(&front) > 0);
    for page in &real {
        assert!(front.has(&page[1..]), "{page} was in use");
    }
    assert_eq!(origin.request_count_for(&real[0]), 1, "visitors noticed nothing");
    // What is left belongs together, and no folder is empty, once the last round has ended.
    wait_until("files to belong together", || entries(&front).iter().all(|entry| belongs(entry)));
    // What was evicted is fetched again.
    assert_eq!(front.get("/content/x.html/0/s.html").status, 200);
}

#[test]
fn what_is_not_the_caches_own_is_neither_counted_nor_evicted() {
    let origin = origin();
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("kept.html");
    std::fs::write(&target, "kept").unwrap();
    let front = Front::start(&Setup {
        cache: "/x-maxFiles 12 /statfileslevel 1 \
                /rules { /0 { /type \"allow\" /glob \"*\" } /1 { /type \"deny\" /glob \"/own/*\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    let own = ["own/a.html", "content/robots", ".htaccess", "content/foo.bar.h", "content/x.y.ttl"];
    for name in own {
        front.write(name, "not the cache's");
    }
    std::os::unix::fs::symlink(&target, front.file("content/link.html")).unwrap();
    std::os::unix::fs::symlink(outside.path(), front.file("content/folder.html")).unwrap();
    front.flush("Activate", "/content/none", &[]);
    for number in 0..40 {
        assert_eq!(front.get(&format!("/content/p{number}.html")).status, 200);
        front.advance(1);
    }
    wait_until("the flood to go", || {
        let left = entries(&front);
        left.iter().filter(|path| path.to_str().unwrap().contains("/content/p")).count() <= 12
    });
    for name in own {
        assert_eq!(front.read(name), "not the cache's", "{name}");
    }
    assert_eq!(std::fs::read_to_string(target).unwrap(), "kept");
    assert!(front.has("content/link.html") && front.has("content/folder.html"));
    assert_eq!(front.stats(), [".stat", "content/.stat"]);
}

#[test]
fn what_is_named_in_another_way_is_neither_evicted_nor_counted_twice() {
    let origin = origin();
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", folder.path().join("link")).unwrap();
    let farm = |name: &str, docroot: &str, cache: &str| {
        let (port, folder) = (origin.addr().port(), folder.path().display());
        format!(
            "/{name} {{ /virtualhosts {{ \"{name}.example\" }}
                /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{port}\" }} }}
                /cache {{ /docroot \"{folder}/{docroot}\" /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }}
                    /allowedClients {{ /0 {{ /type \"allow\" /glob \"127.0.0.1\" }} }} {cache} }} }}"
        )
    };
    // A stat file of its own in the folder that the other farm looks after.
    let stat_file =
        format!("/statfile \"{}/link/../real/own/last.flush\"", folder.path().display());
    std::fs::create_dir(folder.path().join("real/own")).unwrap();
    let (one, two) = (farm("one", "link", "/x-maxFiles 12"), farm("two", "real", &stat_file));
    let front = Front::start_text(&format!("/farms {{ {one} {two} }}"));
    let ask = |host: &str, page: &str| {
        assert_eq!(front.send("GET", page, &[("Host", host)], "").status, 200);
    };
    let host = [("Host", "two.example"), ("CQ-Action", "Activate"), ("CQ-Handle", "/content/none")];
    assert_eq!(front.send("POST", "/dispatcher/invalidate.cache", &host, "").status, 200);
    let named = folder.path().join("real/own/last.flush");
    assert!(named.is_file());
    for number in 0..40 {
        front.advance(1);
        ask(["one.example", "two.example"][number % 2], &format!("/content/p{number}.html"));
    }
    let pages = || std::fs::read_dir(folder.path().join("real/content")).unwrap().count();
    wait_until("the flood to go", || pages() <= 12);
    assert!(named.is_file(), "the other farm keeps it there");
    let text = front.dispatcher.prometheus_metrics();
    let roots = text.lines().filter(|line| line.starts_with("tympan_dispatcher_cache_files{"));
    assert_eq!(roots.count(), 1, "{text}");
}

#[test]
fn other_users_files_stay() {
    let origin = origin();
    let front = front(&origin, "/x-maxFiles 10");
    front.write("content/theirs.html", "theirs");
    let file = std::fs::File::open(front.file("content/theirs.html")).unwrap();
    if std::os::unix::fs::fchown(&file, Some(1234), None).is_err() {
        eprintln!("skipped: only root gives files away");
        return;
    }
    for number in 0..30 {
        front.get(&format!("/content/p{number}.html"));
        front.advance(1);
    }
    wait_until("the bound to hold", || entries(&front).len() <= 11);
    assert_eq!(front.read("content/theirs.html"), "theirs");
}

#[test]
fn bytes_are_bounded_over_a_restart_and_reported() {
    let origin = OriginServer::start(|_| OriginResponse::html("x".repeat(40_000)));
    let setup =
        Setup { cache: "/x-maxSize \"1 MiB\"", renders: vec![origin.addr()], ..Setup::default() };
    let unbounded = Front::start(&Setup { cache: "", ..setup.clone() });
    for number in 0..60 {
        unbounded.get(&format!("/content/p{number}.html"));
    }
    assert_eq!(unbounded.files().len(), 60);
    // Nobody stores anything in the next run: what is there is counted at the start.
    let front = Front::start_in(&setup, unbounded.stop());
    let bytes = |front: &Front| {
        let files = front.files();
        // One that was listed may be evicted by now.
        let lengths = files.iter().filter_map(|name| std::fs::metadata(front.file(name)).ok());
        lengths.map(|metadata| metadata.len()).sum::<u64>()
    };
    wait_until("the bound to hold", || bytes(&front) <= 1 << 20);
    assert!(bytes(&front) > 800_000, "no more than needed goes");
    wait_until("the end of the round", || evicted(&front) > 0);
    let told = front.metric(&format!("cache_bytes{{docroot=\"{}\"}}", docroot(&front)));
    assert!(told <= 1 << 20 && told > 800_000, "{told}");
    let status = serde_json::to_value(front.dispatcher.status()).unwrap();
    let disk = &status["farms"][0]["disk"];
    assert_eq!(disk["bytes"], told);
    assert!(disk["evicted_files"].as_u64().unwrap() > 30 && disk["free"].as_u64().unwrap() > 0);
    assert_eq!(disk["is_counted"], true);
}

#[test]
fn sizes_without_a_unit_are_refused() {
    let text = |cache| Setup { cache, ..Setup::default() }.text("/".as_ref());
    for wrong in ["/x-maxSize \"20\"", "/x-minFree \"much\"", "/x-maxSize \"1 M\""] {
        assert!(crate::front::load(&text(wrong)).has_errors(), "{wrong}");
    }
    for right in
        ["/x-maxSize \"20 GiB\" /x-maxFiles 1000000 /x-minFree \"0\"", "/x-maxSize \"1 MB\""]
    {
        let found = crate::front::load(&text(right)).diagnostics;
        assert!(!found.iter().any(|finding| finding.message.contains("/x-")), "{found:?}");
    }
}

/// A small file system; dropping it unmounts it.
struct Small(TempDir);

impl Small {
    /// Mounts one, where this may be done.
    fn mount(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={size},mode=0755");
        let outcome = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .output();
        if outcome.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        eprintln!("skipped: a small file system cannot be mounted here");
        None
    }

    fn root(&self) -> String {
        self.0.path().to_str().unwrap().to_owned()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily, as the dispatcher may hold files open for a moment yet.
        Command::new("umount").arg("-l").arg(self.0.path()).output().ok();
    }
}

fn start_on(small: &Small, origin: &OriginServer, cache: &'static str) -> Front {
    let setup = Setup { cache, renders: vec![origin.addr()], ..Setup::default() };
    Front::start_text(&setup.text(Path::new(&small.root())))
}

fn leftovers(small: &Small) -> Vec<String> {
    let folder = small.0.path().join(".tympan-tmp");
    let names = std::fs::read_dir(folder).unwrap().flatten();
    names.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn a_full_disk_costs_no_visitor_a_page_and_leaves_no_half_file() {
    const LENGTH: usize = 100_000;
    let Some(small) = Small::mount("2m") else { return };
    let origin = OriginServer::start(|seen| {
        let length = if seen.target.contains("big") { 5_000_000 } else { LENGTH };
        OriginResponse::html("x".repeat(length)).with_header("X-Kept", "yes")
    });
    let front = start_on(&small, &origin, "/headers { \"X-Kept\" } /x-minFree \"0\"");
    for number in 0..60 {
        let reply = front.get(&format!("/content/p{number}.html"));
        assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
        front.advance(1);
    }
    let full =
        |front: &Front| front.metric(&format!("disk_full_total{{docroot=\"{}\"}}", small.root()));
    assert!(full(&front) > 0);
    // The cache gives way by itself, so that new pages are kept again.
    let mut number = 100;
    wait_until("a page to be kept", || {
        number += 1;
        let page = format!("/content/p{number}.html");
        front.get(&page);
        front.advance(1);
        front.get(&page).is_hit()
    });
    assert!(front.metric(&format!("evicted_files_total{{docroot=\"{}\"}}", small.root())) > 0);
    // One that is larger than the disk is served whole, too.
    let reply = front.get("/content/big.html");
    assert_eq!((reply.status, reply.body.len(), reply.is_complete), (200, 5_000_000, true));
    front.wait_for("fetches", 0);
    assert_eq!(leftovers(&small), Vec::<String>::new());
    for entry in std::fs::read_dir(small.0.path().join("content")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        // One may be evicted at this moment.
        if let Some(metadata) = entry.metadata().ok().filter(|_| name.ends_with(".html")) {
            assert_eq!(metadata.len(), LENGTH as u64, "{name}");
        }
    }
    drop(front);
}

#[test]
fn a_page_that_grows_waits_for_space() {
    const LENGTH: usize = 1_500_000;
    const PIECES: usize = 15;
    let Some(small) = Small::mount("4m") else { return };
    let (listener, filled) = (TcpListener::bind("127.0.0.1:0").unwrap(), OriginGate::default());
    let addr = listener.local_addr().unwrap();
    let is_filled = filled.clone();
    let render = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = BufReader::new(stream.try_clone().unwrap()).lines();
        while !head.next().unwrap().unwrap().is_empty() {}
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        for piece in 0..PIECES {
            if piece == PIECES - 3 {
                // Visitors have got what came so far, and now the disk fills up.
                is_filled.wait_open();
            }
            let piece = "x".repeat(LENGTH / PIECES);
            stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let setup = Setup { cache: "/x-minFree \"0\"", renders: vec![addr], ..Setup::default() };
    let front = Front::start_text(&setup.text(Path::new(&small.root())));
    std::thread::scope(|scope| {
        let visit = scope.spawn(|| front.get("/content/grows.html"));
        let temporary = small.0.path().join(".tympan-tmp");
        let size = || {
            let entries = std::fs::read_dir(&temporary).into_iter().flatten().flatten();
            entries.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum::<u64>()
        };
        wait_until("the page to grow", || size() > 1 << 20);
        // Cache files that may be evicted, until nothing more fits.
        std::fs::create_dir_all(small.0.path().join("content")).unwrap();
        let mut number = 0;
        while std::fs::write(
            small.0.path().join(format!("content/f{number}.html")),
            vec![b'x'; 50_000],
        )
        .is_ok()
        {
            number += 1;
        }
        filled.open();
        let reply = visit.join().unwrap();
        assert_eq!((reply.status, reply.body.len(), reply.is_complete), (200, LENGTH, true));
    });
    render.join().unwrap();
    front.wait_for("fetches", 0);
    assert_eq!(leftovers(&small), Vec::<String>::new());
    let kept = std::fs::metadata(small.0.path().join("content/grows.html")).unwrap();
    assert_eq!(kept.len(), LENGTH as u64);
    drop(front);
}

#[test]
fn a_flush_on_a_full_disk_is_carried_out_or_refused() {
    let Some(small) = Small::mount("1m") else { return };
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        OriginResponse::html(format!("{number} {}", "x".repeat(100_000)))
    });
    let front = start_on(&small, &origin, "/x-minFree \"0\" /statfileslevel 2");
    for number in 0..30 {
        front.get(&format!("/content/p{number}.html"));
    }
    for number in 0..30 {
        let page = format!("/content/p{number}.html");
        let before = front.get(&page).body;
        wait_until("the flush", || {
            let status = front.flush("Activate", &format!("/content/p{number}"), &[]).status;
            assert!(status == 200 || status == 500, "{status}");
            status == 200
        });
        assert_ne!(front.get(&page).body, before, "{page}");
    }
    drop(front);
}

#[test]
fn a_flush_that_cannot_be_recorded_frees_space() {
    // Few files rather than few bytes, so that there is no place for a new one.
    let Some(small) = Small::mount("1m,nr_inodes=40") else { return };
    let (origin, sibling) =
        (origin(), OriginServer::start_constant(OriginResponse::with_status(503)));
    let farm = format!(
        "/x-passFlushes \"1\" /x-siblings {{ /o {{ /hostname \"127.0.0.1\" /port \"{}\" }} }}",
        sibling.addr().port()
    );
    let setup = Setup {
        farm: Box::leak(farm.into_boxed_str()),
        cache: "/x-minFree \"0\"",
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    let front = Front::start_text(&setup.text(Path::new(&small.root())));
    let log = || {
        let entries = std::fs::read_dir(small.0.path()).unwrap().flatten();
        let mut files = entries.map(|entry| entry.path());
        files.find(|file| file.to_str().unwrap().contains(".tympan-passed-"))
    };
    // It is there before the first flush.
    wait_until("the log", || log().is_some());
    std::fs::create_dir(small.0.path().join("content")).unwrap();
    std::fs::remove_file(log().unwrap()).unwrap();
    let place = |number: u32| small.0.path().join(format!("content/f{number}.html"));
    let count = (0..100).take_while(|number| std::fs::write(place(*number), "x").is_ok()).count();
    assert!(count < 40, "{count}");
    wait_until("the flush", || front.flush("Activate", "/content/f0", &[]).status == 200);
    assert!(log().is_some());
    drop(front);
}

#[test]
fn bodies_that_break_off_leave_nothing() {
    let origin = OriginServer::start(|_| {
        OriginResponse::html("x".repeat(2_000_000))
            .with_delivery(ResponseDelivery::CutAfter(1_500_000))
    });
    let front = front(&origin, KEEPS);
    assert!(!front.get("/content/a.html").is_complete);
    front.wait_for("fetches", 0);
    assert_eq!(front.files(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(front.file(".tympan-tmp")).unwrap().count(), 0);
}
