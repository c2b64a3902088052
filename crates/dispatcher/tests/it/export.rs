//! Writing what a cache serves into an archive or folder.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use tympan_dispatcher::config::FarmConfig;
use tympan_dispatcher::{CacheExport, Error, ExportSink, ExportSummary, export_cache};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Setup, load};

/// Writes the archive of a farm.
fn archive(
    farm: &FarmConfig,
    change: impl FnOnce(&mut CacheExport<'_>),
) -> (Vec<u8>, ExportSummary) {
    let mut what = CacheExport {
        farm,
        now: SystemTime::now(),
        includes_stale: false,
        excludes_metadata: false,
        file_time: 0,
    };
    change(&mut what);
    let mut bytes = Vec::new();
    let exported = export_cache(&what, ExportSink::Tar(&mut bytes)).unwrap();
    (bytes, exported)
}

/// Reads an archive as the format says: names with times and contents, in their order.
fn read(bytes: &[u8]) -> Vec<(String, u64, Vec<u8>)> {
    let text = |field: &[u8]| {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        String::from_utf8(field[..end].to_vec()).unwrap()
    };
    let number = |field: &[u8]| u64::from_str_radix(text(field).trim(), 8).unwrap();
    let (mut at, mut files, mut long) = (0, Vec::new(), None);
    while bytes[at..at + 512].iter().any(|byte| *byte != 0) {
        let header = &bytes[at..at + 512];
        assert_eq!(&header[257..265], b"ustar\x0000");
        let mut plain = header.to_vec();
        plain[148..156].fill(b' ');
        let sum: u64 = plain.iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(number(&header[148..156]), sum);
        assert_eq!((number(&header[100..108]), number(&header[108..116])), (0o644, 0));
        let length = usize::try_from(number(&header[124..136])).unwrap();
        let content = bytes[at + 512..at + 512 + length].to_vec();
        at += 512 + length.next_multiple_of(512);
        if header[156] == b'x' {
            let record = String::from_utf8(content).unwrap();
            long = Some(record.split_once("path=").unwrap().1.trim_end().to_owned());
            continue;
        }
        let (prefix, name) = (text(&header[345..500]), text(&header[..100]));
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        files.push((long.take().unwrap_or(name), number(&header[136..148]), content));
    }
    assert_eq!(bytes.len() % 10_240, 0);
    assert!(bytes[at..].iter().all(|byte| *byte == 0) && bytes.len() >= at + 1024);
    files
}

fn names(bytes: &[u8]) -> Vec<String> {
    read(bytes).into_iter().map(|(name, ..)| name).collect()
}

/// The farm of a front, as its configuration has it.
fn farm(setup: &Setup, front: &Front) -> FarmConfig {
    FarmConfig::clone(&load(&setup.text(&front.file(""))).config.farms[0])
}

const KEPT: &str = "/headers { \"X-Kept\" \"X-Also\" } /statfileslevel 2";

fn site() -> OriginServer {
    OriginServer::start(|seen| {
        OriginResponse::html(format!("page {}", seen.target))
            .with_header("X-Kept", &seen.target)
            .with_header("X-Also", "1")
    })
}

#[test]
fn the_same_pages_are_the_same_bytes() {
    let origin = site();
    let setup = Setup { cache: KEPT, renders: vec![origin.addr()], ..Setup::default() };
    let long = format!("/content/{}/{}.html", "f".repeat(120), "n".repeat(120));
    let pages = [
        "/content/b.html",
        "/content/a.html",
        "/content/a/z.html",
        "/content/a%20%C3%BC.html",
        &long,
    ];
    let archives: Vec<Vec<u8>> = [pages.to_vec(), pages.into_iter().rev().collect()]
        .into_iter()
        .map(|pages| {
            let front = Front::start(&setup);
            for page in pages {
                front.advance(7);
                assert_eq!(front.get(page).status, 200);
            }
            let (bytes, exported) = archive(&farm(&setup, &front), |_| {});
            assert_eq!((exported.files, exported.unserved, exported.stale), (5, 0, 0));
            assert_eq!(archive(&farm(&setup, &front), |_| {}).0, bytes);
            bytes
        })
        .collect();
    assert_eq!(archives[0], archives[1], "whenever and in whatever order they were fetched");
    let files = read(&archives[0]);
    assert!(files.is_sorted_by_key(|(name, ..)| name.trim_end_matches(".h").to_owned()));
    assert!(files.iter().all(|(_, time, _)| *time == 0));
    let find = |name: &str| files.iter().find(|(own, ..)| own == name).unwrap().2.clone();
    assert_eq!(find("content/a.html"), b"page /content/a.html");
    let headers = String::from_utf8(find("content/a.html.h")).unwrap();
    assert_eq!(headers, "tympan-headers 1 0\nx-also: 1\nx-kept: /content/a.html\n");
    assert_eq!(find(&format!("{}.h", &long[1..])).len(), 38 + long.len());
    // Nothing of it is the dispatcher's own business.
    assert!(files.iter().all(|(name, ..)| name.starts_with("content/")));
}

#[test]
fn what_is_out_of_date_is_left_out_unless_it_is_wanted() {
    let origin = site();
    let cache = "/statfileslevel 2 /enableTTL 1 /x-flushMode \"soft\" /headers { \"X-Kept\" }";
    let setup = Setup { cache, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    for page in ["/content/en/a.html", "/content/en/b.png", "/content/en/c.html"] {
        front.get(page);
    }
    // The folder gets a stat file of its own.
    front.get("/content/de/a.html");
    front.flush("Activate", "/content/de/a", &[]);
    front.advance(1);
    front.get("/content/de/a.html");
    front.wait_for("fetches", 0);
    front.advance(1);
    front.flush("Activate", "/content/en/c", &[]);
    let farm = farm(&setup, &front);
    let (bytes, exported) = archive(&farm, |_| {});
    let bodies: Vec<String> =
        names(&bytes).into_iter().filter(|name| !name.ends_with(".h")).collect();
    assert_eq!(bodies, ["content/de/a.html", "content/en/b.png"]);
    assert_eq!((exported.files, exported.stale), (2, 2));
    let (bytes, exported) = archive(&farm, |what| {
        what.includes_stale = true;
        what.excludes_metadata = true;
    });
    assert_eq!(
        names(&bytes),
        ["content/de/a.html", "content/en/a.html", "content/en/b.png", "content/en/c.html"]
    );
    assert_eq!((exported.files, exported.stale), (4, 0));
}

#[test]
fn an_end_is_kept() {
    let origin = OriginServer::start_constant(
        OriginResponse::html("page").with_header("Cache-Control", "max-age=60"),
    );
    let setup = Setup { cache: "/enableTTL 1", renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get("/a.html");
    let farm = farm(&setup, &front);
    let now = SystemTime::now();
    let (bytes, _) = archive(&farm, |what| what.now = now);
    let files = read(&bytes);
    let (name, time, _) = &files[1];
    let end = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 60;
    assert_eq!((files.len(), name.as_str()), (2, "a.html.ttl"));
    assert!(time.abs_diff(end) <= 60, "{time} {end}");
    let later = now + std::time::Duration::from_secs(3600);
    assert_eq!(archive(&farm, |what| what.now = later).1.stale, 1);
}

#[test]
fn what_visitors_do_not_get_is_not_exported() {
    let origin = site();
    let setup = Setup {
        farm: "/filter { /0 { /type \"allow\" /url \"*\" } /1 { /type \"deny\" /url \"*secret*\" } }
            /auth_checker { /url \"/bin/check\" /filter { /0 { /type \"allow\" /glob \"/content/closed/*\" } } }",
        cache: "/rules { /0 { /type \"allow\" /glob \"/content/*\" } }
            /x-cacheKeyParams { /0 { /type \"allow\" /glob \"page\" } }",
        renders: vec![origin.addr()],
        ..Setup::default()
    };
    let front = Front::start(&setup);
    front.get("/content/a.html?page=2");
    for name in [
        "content/a.html",
        "content/secret.html",
        "content/closed/a.html",
        "content/noextension",
        "content/a.q~.other=1.html",
        "other/a.html",
        "robots.txt",
        "content/.htaccess/x.html.h",
    ] {
        front.write(name, name);
    }
    std::os::unix::fs::symlink("/etc/hostname", front.file("content/link.html")).unwrap();
    let (bytes, exported) = archive(&farm(&setup, &front), |what| what.excludes_metadata = true);
    assert_eq!(names(&bytes), ["content/a.html", "content/a.q~.page=2.html"]);
    assert_eq!(exported.unserved, 6);
}

#[test]
fn a_folder_holds_the_same() {
    let origin = site();
    let setup = Setup { cache: KEPT, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    for page in ["/content/a.html", "/content/en/b.html"] {
        front.get(page);
    }
    let farm = farm(&setup, &front);
    let (bytes, _) = archive(&farm, |_| {});
    let folder = tempfile::tempdir().unwrap();
    let what = CacheExport {
        farm: &farm,
        now: SystemTime::now(),
        includes_stale: false,
        excludes_metadata: false,
        file_time: 0,
    };
    export_cache(&what, ExportSink::<Vec<u8>>::Folder(folder.path().to_owned())).unwrap();
    for (name, time, content) in read(&bytes) {
        let file = folder.path().join(&name);
        assert_eq!(std::fs::read(&file).unwrap(), content);
        assert_eq!(time, 0);
        assert_eq!(file.metadata().unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    }
    let modified = folder.path().join("content").metadata().unwrap().modified().unwrap();
    assert_eq!(modified, SystemTime::UNIX_EPOCH);
    // Another dispatcher serves from it, headers and all.
    let other = Front::start_in(&setup, folder);
    let reply = other.get("/content/en/b.html");
    assert!(reply.is_hit());
    assert_eq!(reply.header("x-kept"), Some("/content/en/b.html"));
}

#[test]
fn nothing_is_made_where_there_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let docroot = folder.path().join("absent");
    let setup = Setup::default();
    let loaded = load(&setup.text(&docroot));
    let mut farm = FarmConfig::clone(&loaded.config.farms[0]);
    let try_it = |farm: &FarmConfig| {
        let what = CacheExport {
            farm,
            now: SystemTime::now(),
            includes_stale: false,
            excludes_metadata: false,
            file_time: 0,
        };
        export_cache(&what, ExportSink::Tar(Vec::new()))
    };
    assert!(matches!(try_it(&farm), Err(Error::Read { file, .. }) if file == docroot));
    assert!(!docroot.exists());
    std::fs::create_dir(&docroot).unwrap();
    assert_eq!(try_it(&farm).unwrap(), ExportSummary::default());
    assert_eq!(
        std::fs::read_dir(&docroot).unwrap().count(),
        0,
        "no folder of the dispatcher's own"
    );
    farm.cache = None;
    assert!(matches!(try_it(&farm), Err(Error::NoDocroot(name)) if name == "site"));
}

#[test]
fn no_file_is_mixed_while_pages_are_stored_and_flushed() {
    let count = AtomicUsize::new(0);
    let origin = OriginServer::start(move |_| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        // Now and then without a header file beside it.
        let answer = OriginResponse::html(format!("{number} ").repeat(2000 + number % 7));
        if number.is_multiple_of(3) {
            answer
        } else {
            answer.with_header("X-Kept", &number.to_string())
        }
    });
    let setup = Setup { cache: KEPT, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    let farm = farm(&setup, &front);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (front, is_over) = (&front, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    for page in 0..4 {
                        front.get(&format!("/content/{page}.html"));
                        front.flush("Activate", &format!("/content/{}", (page + thread) % 4), &[]);
                    }
                }
            });
        }
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        // Until enough was seen with and without headers, whatever the machine does meanwhile.
        let deadline = std::time::Instant::now() + tympan_testkit::origin_server::WAIT_TIMEOUT;
        while seen.get("with").copied().unwrap_or(0) < 200
            || seen.get("without").copied().unwrap_or(0) < 50
        {
            assert!(std::time::Instant::now() < deadline, "{seen:?}");
            let (bytes, _) = archive(&farm, |what| what.includes_stale = true);
            let files: BTreeMap<String, Vec<u8>> =
                read(&bytes).into_iter().map(|(name, _, content)| (name, content)).collect();
            for (name, content) in files.iter().filter(|(name, _)| !name.ends_with(".h")) {
                let text = String::from_utf8(content.clone()).unwrap();
                let mut words = text.split_ascii_whitespace();
                let number: usize = words.next().unwrap().parse().unwrap();
                assert_eq!(words.clone().count() + 1, 2000 + number % 7, "{name} is whole");
                assert!(words.all(|word| word == number.to_string()), "{name} is of one answer");
                let headers = files.get(&format!("{name}.h"));
                let kept = headers.map(|text| String::from_utf8(text.clone()).unwrap());
                let expected = (!number.is_multiple_of(3))
                    .then(|| format!("tympan-headers 1 0\nx-kept: {number}\n"));
                assert_eq!(kept, expected, "{name}");
                let kind = if expected.is_some() { "with" } else { "without" };
                *seen.entry(kind.to_owned()).or_default() += 1;
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(Path::new(&front.file("content")).exists());
}

#[test]
fn a_time_that_no_archive_can_tell_is_the_latest_that_one_can() {
    let origin = site();
    let setup = Setup { cache: KEPT, renders: vec![origin.addr()], ..Setup::default() };
    let front = Front::start(&setup);
    front.get("/content/a.html");
    for time in [1 << 33, u64::MAX] {
        let (bytes, _) = archive(&farm(&setup, &front), |what| what.file_time = time);
        let files = read(&bytes);
        assert!(files.iter().all(|(_, time, _)| *time == (1 << 33) - 1));
        let headers = String::from_utf8(files[1].2.clone()).unwrap();
        assert!(headers.starts_with("tympan-headers 1 8589934591"), "{headers}");
    }
}
