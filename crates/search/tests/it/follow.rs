//! Following, reopening, building anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tympan_content::{Repository, Subtree};
use tympan_content_query::FullTextIndex;
use tympan_search::{SearchIndex, SearchIndexOptions};
use tympan_testkit::store_folder::{collect_history, open_stores};

use crate::indexed_site::{
    Site, hits, names, now, page, path, probe, probe_rebuilt, request, term,
};

#[test]
fn edits_are_followed() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha");
    assert_eq!(site.find(term("alpha")), ["a"]);
    site.page("/content/a", "One", "beta");
    assert_eq!(site.find(term("alpha")), Vec::<String>::new());
    assert_eq!(site.find(term("beta")), ["a"]);
    site.remove("/content/a");
    assert_eq!(site.find(term("beta")), Vec::<String>::new());
    assert_eq!(site.index.indexed_root(), Some(site.repository.head_root().unwrap()));
    let status = site.index.status(now()).unwrap();
    assert_eq!((status.lag_revisions, status.lag, status.pause_reason), (0, Duration::ZERO, None));
}

#[test]
fn a_document_that_becomes_a_part_of_another_is_no_hit() {
    let site = Site::new();
    site.put("/content/f", Subtree::new("", "sling:Folder"));
    site.page("/content/f/a", "One", "alpha");
    assert_eq!(site.find(term("alpha")), ["f/a"]);
    let inside = page("One", "alpha");
    let inside = Subtree { name: "a".to_owned(), ..inside };
    site.put("/content/f", Subtree::new("", "nt:unstructured").with_child(inside));
    assert_eq!(site.find(term("alpha")), ["f"]);
}

#[test]
fn an_index_goes_on_where_it_was() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha");
    site.caught_up().close();
    site.page("/content/b", "Two", "alpha");
    let index = SearchIndex::open(
        site.repository.clone(),
        site.folder.path(),
        SearchIndexOptions::default(),
    )
    .unwrap();
    assert!(index.wait_until_current(Duration::from_secs(60)));
    assert_eq!(names(&hits(&index, &request(term("alpha")))), ["a", "b"]);
    assert_eq!(index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// Damages the folder of a closed index, and expects the next one to be built anew and whole.
fn check_rebuilt(harm: impl FnOnce(&Path)) {
    let site = Site::new();
    for number in 0..20 {
        site.page(&format!("/content/p{number}"), "alpha", "beta gamma");
    }
    site.caught_up().close();
    let expected = probe(&site.index);
    harm(site.folder.path());
    let index = SearchIndex::open(
        site.repository.clone(),
        site.folder.path(),
        SearchIndexOptions::default(),
    )
    .unwrap();
    let begin = std::time::Instant::now();
    // What is damaged may answer until it is noticed.
    while index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed) == 0 {
        assert!(
            index.wait_until_current(Duration::from_secs(60)) && begin.elapsed().as_secs() < 60
        );
    }
    assert_eq!(probe(&index), expected);
    let folders = fs::read_dir(site.folder.path()).unwrap().flatten();
    assert_eq!(folders.filter(|entry| entry.path().is_dir()).count(), 1, "the old build is gone");
}

fn build_of(folder: &Path) -> PathBuf {
    let mut folders = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    folders.find(|path| path.is_dir()).unwrap()
}

#[test]
fn a_deleted_index_is_built_anew() {
    check_rebuilt(|folder| fs::remove_dir_all(folder).unwrap());
}

#[test]
fn a_missing_build_is_built_anew() {
    check_rebuilt(|folder| fs::remove_dir_all(build_of(folder)).unwrap());
}

#[test]
fn an_index_of_another_format_is_built_anew() {
    check_rebuilt(|folder| {
        let file = build_of(folder).join("meta.json");
        let text = fs::read_to_string(&file).unwrap();
        let at = text.find("\"payload\":").unwrap() + "\"payload\":".len();
        let version = text[at..].find('"').unwrap() + at + 1;
        fs::write(&file, format!("{}9{}", &text[..version], &text[version + 1..])).unwrap();
    });
}

#[test]
fn a_cut_segment_is_built_anew() {
    check_rebuilt(|folder| {
        for file in fs::read_dir(build_of(folder)).unwrap().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "term") {
                let bytes = fs::read(file.path()).unwrap();
                fs::write(file.path(), &bytes[..bytes.len() / 2]).unwrap();
            }
        }
    });
}

#[test]
fn flipped_bits_are_noticed() {
    check_rebuilt(|folder| {
        for file in fs::read_dir(build_of(folder)).unwrap().flatten() {
            if file.path().extension().is_some_and(|extension| extension == "idx") {
                let mut bytes = fs::read(file.path()).unwrap();
                bytes[3] ^= 0x55;
                fs::write(file.path(), &bytes).unwrap();
            }
        }
    });
}

/// Copies the folder of an index as a machine finds it that stopped while the index was open.
fn stopped(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let build = build_of(folder);
    let into = copy.path().join(build.file_name().unwrap());
    fs::create_dir(&into).unwrap();
    for (from, to) in [(folder, copy.path()), (&build, &into)] {
        for file in fs::read_dir(from).unwrap().flatten().filter(|file| file.path().is_file()) {
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    fs::write(copy.path().join("unsynced"), "another start").unwrap();
    copy
}

#[test]
fn what_a_stopped_machine_lost_never_answers() {
    let site = Site::new();
    for number in 0..20 {
        site.page(&format!("/content/p{number}"), "alpha", "beta gamma");
        site.caught_up();
    }
    let expected = probe(&site.index);
    let whole = stopped(site.folder.path());
    let extensions = ["idx", "term", "pos", "store", "fast", "fieldnorm", "del"];
    let mut lost = 0;
    for extension in extensions {
        let folder = stopped(site.folder.path());
        for file in fs::read_dir(build_of(folder.path())).unwrap().flatten() {
            if file.path().extension().is_some_and(|found| found == extension) {
                // The length was written, the bytes were not.
                let length = file.metadata().unwrap().len();
                fs::write(file.path(), vec![0; length as usize]).unwrap();
                lost += 1;
                break;
            }
        }
        let index = SearchIndex::open(
            site.repository.clone(),
            folder.path(),
            SearchIndexOptions::default(),
        )
        .unwrap();
        assert!(index.wait_until_current(Duration::from_secs(60)));
        assert_eq!(probe(&index), expected, "{extension}");
    }
    assert!(lost >= 6, "{lost}");
    let index =
        SearchIndex::open(site.repository.clone(), whole.path(), SearchIndexOptions::default())
            .unwrap();
    assert!(index.indexed_root().is_some(), "what is whole answers at once");
    assert_eq!(probe(&index), expected);
    assert_eq!(index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn what_a_killed_writer_left_is_in_nobodys_way() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha");
    site.page("/content/b", "Two", "alpha");
    site.caught_up().close();
    // Files of a commit that never was: deleted documents of each segment, numbered on from the last commit.
    let build = build_of(site.folder.path());
    let segments: Vec<String> = fs::read_dir(&build)
        .unwrap()
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.strip_suffix(".idx").map(str::to_owned))
        .collect();
    assert!(!segments.is_empty());
    for segment in &segments {
        for number in 0..200 {
            let file = build.join(format!("{segment}.{number}.del"));
            if !file.exists() {
                fs::write(file, "not of this commit").unwrap();
            }
        }
    }
    let index = SearchIndex::open(
        site.repository.clone(),
        site.folder.path(),
        SearchIndexOptions::default(),
    )
    .unwrap();
    site.page("/content/a", "One", "beta");
    assert!(index.wait_until_current(Duration::from_secs(60)), "{:?}", index.status(now()));
    assert_eq!(names(&hits(&index, &request(term("alpha")))), ["b"]);
    assert_eq!(names(&hits(&index, &request(term("beta")))), ["a"]);
    assert_eq!(index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn a_closed_index_is_on_disk() {
    let site = Site::new();
    site.page("/content/a", "One", "alpha");
    let mark = site.folder.path().join("unsynced");
    site.caught_up();
    assert!(mark.exists());
    site.index.close();
    assert!(!mark.exists());
    let index = SearchIndex::open(
        site.repository.clone(),
        site.folder.path(),
        SearchIndexOptions::default(),
    )
    .unwrap();
    assert!(index.wait_until_current(Duration::from_secs(60)));
    assert!(!mark.exists(), "nothing was written");
    site.page("/content/b", "Two", "alpha");
    assert!(index.wait_until_current(Duration::from_secs(60)));
    assert!(mark.exists());
}

#[test]
fn an_index_whose_root_was_collected_is_built_anew() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let (chunks, blobs) = open_stores(dir.path());
        Repository::open(chunks, blobs).unwrap()
    };
    let put = |repository: &Repository, name: &str| {
        let mut session = repository.session("author").unwrap();
        // Enough that a collection finds its pack worth rewriting, and nothing that compresses.
        let numbers = (0..20_000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let text: String = numbers.map(|number| format!("{name}{number:x} ")).collect();
        session.put_node(&path(name), page("alpha", "beta")).unwrap();
        session.put_node(&path("/noise"), page("noise", &text)).unwrap();
        session.commit("edit", UNIX_EPOCH).unwrap();
    };
    let search = dir.path().join("search");
    let repository = open();
    put(&repository, "/a");
    let index =
        SearchIndex::open(repository.clone(), &search, SearchIndexOptions::default()).unwrap();
    assert!(index.wait_until_current(Duration::from_secs(60)));
    let kept = index.indexed_root().unwrap();
    drop(index);
    put(&repository, "/b");
    drop(repository);
    // While the lease lives, the state is there, and following goes on from it.
    let repository = open();
    collect_history(&**repository.chunks(), std::time::SystemTime::now());
    assert!(repository.snapshot_at(kept).is_ok());
    let rebuilds = |index: &SearchIndex| {
        assert!(index.wait_until_current(Duration::from_secs(60)), "{:?}", index.status(now()));
        index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed)
    };
    let index =
        SearchIndex::open(repository.clone(), &search, SearchIndexOptions::default()).unwrap();
    assert_eq!(rebuilds(&index), 0);
    drop(index);
    put(&repository, "/c");
    drop(repository);
    // A year later it has ended.
    let repository = open();
    let later = std::time::SystemTime::now() + Duration::from_hours(24 * 365);
    collect_history(&**repository.chunks(), later);
    let index =
        SearchIndex::open(repository.clone(), &search, SearchIndexOptions::default()).unwrap();
    assert_eq!(rebuilds(&index), 1);
    assert_eq!(probe(&index), probe_rebuilt(&repository, &dir.path().join("other")));
}

#[test]
fn searches_go_on_while_it_is_built_anew() {
    let site = Site::new();
    for number in 0..300 {
        site.page(&format!("/content/p{number}"), "alpha", "beta");
    }
    site.caught_up();
    let rebuilds = || site.index.counters().rebuilds.load(std::sync::atomic::Ordering::Relaxed);
    let before = rebuilds();
    site.index.request_rebuild();
    let mut number = 300;
    while rebuilds() == before {
        // Following goes on beside the build, and nothing is lost when it is adopted.
        site.page(&format!("/content/p{number}"), "alpha", "beta");
        number += 1;
        assert_eq!(site.find(term("alpha")).len(), number);
    }
    assert_eq!(site.find(term("alpha")).len(), number);
}

#[test]
fn an_index_says_that_it_is_not_built_yet() {
    let repository = Repository::in_memory().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let index = SearchIndex::open(repository, dir.path(), SearchIndexOptions::default()).unwrap();
    // Either it is built by now, or the error says that it is not.
    if let Err(error) = index.search(&request(term("x"))) {
        let reason = std::error::Error::source(&error).unwrap().to_string();
        assert!(reason.contains("is being built"), "{reason}");
    }
    assert!(index.wait_until_current(Duration::from_secs(60)));
    assert!(index.search(&request(term("x"))).is_ok());
}
