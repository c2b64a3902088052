//! Kills: a process that edits and indexes dies at points that a seed chooses, often while it builds anew.
//!
//! The process is this test program, started again for one of its tests. After each kill the folder is opened as the
//! kill left it; once caught up, the index says what one built from nothing says. `TYMPAN_KILLS` sets how often;
//! `make torture` asks for the full count.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use tympan_content::{Property, Repository, Subtree};
use tympan_content_query::FullTextIndex;
use tympan_search::{SearchIndex, SearchIndexOptions};
use tympan_testkit::store_folder::open_stores;

use crate::indexed_site::{now, page, path, probe, probe_rebuilt};

/// Names the folder to a process that is to be killed.
const FOLDER: &str = "TYMPAN_SEARCH_KILL_FOLDER";
/// Gives it its seed.
const SEED: &str = "TYMPAN_SEARCH_KILL_SEED";
const WORDS: [&str; 8] = ["alpha", "beta", "gamma", "delta", "running", "häuser", "tree", "0"];

/// Numbers that look random and follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn open(folder: &Path) -> Repository {
    let (chunks, blobs) = open_stores(folder);
    Repository::open(chunks, blobs).unwrap()
}

#[test]
fn a_killed_index_equals_one_built_from_nothing() {
    let kills: u64 =
        std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(8);
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let mut numbers = Numbers(0x5eed);
    let (mut behind, mut reopened, mut documents) = (0, 0, 0);
    for kill in 0..kills {
        run_and_kill(&home, kill, &mut numbers);
        if !home.join("store").is_dir() {
            continue;
        }
        let repository = open(&home);
        let search = home.join("search");
        let index =
            SearchIndex::open(repository.clone(), &search, SearchIndexOptions::default()).unwrap();
        if let Some(root) = index.indexed_root() {
            reopened += 1;
            behind += u64::from(root != repository.head_root().unwrap());
        }
        assert!(
            index.wait_until_current(Duration::from_secs(120)),
            "kill {kill}: {:?}",
            index.status(now())
        );
        let other = dir.path().join("other");
        assert_eq!(probe(&index), probe_rebuilt(&repository, &other), "kill {kill}");
        documents = index.status(now()).unwrap().documents;
        std::fs::remove_dir_all(other).unwrap();
    }
    eprintln!(
        "{kills} kills: {reopened} times an index was there, {behind} times behind the content; always equal to one \
         built from nothing; {documents} documents at the end"
    );
    assert!(reopened > 0 && documents > 0, "no process came as far as an index");
}

/// Starts a process and kills it somewhere.
fn run_and_kill(home: &Path, seed: u64, numbers: &mut Numbers) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::the_process_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(FOLDER, home)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // One in six dies while it starts, the others after some commits of the content.
    if numbers.below(6) > 0 {
        let commits = lines.map_while(Result::ok).filter(|line| line == "committed");
        let wanted = numbers.below(60) as usize;
        assert_eq!(commits.take(wanted).count(), wanted, "the process ended by itself");
    }
    spin(Duration::from_micros(numbers.below(20_000)));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Passes a time that is too short to sleep.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn the_process_that_is_killed() {
    let (Some(home), Ok(seed)) = (std::env::var_os(FOLDER), std::env::var(SEED)) else { return };
    let home = Path::new(&home);
    let mut numbers = Numbers(seed.parse::<u64>().unwrap() ^ 0xfeed);
    let repository = open(home);
    let index =
        SearchIndex::open(repository.clone(), &home.join("search"), SearchIndexOptions::default())
            .unwrap();
    let mut session = repository.session("author").unwrap();
    if session.node(&path("/content")).unwrap().is_none() {
        session.put_node(&path("/content"), Subtree::new("", "sling:Folder")).unwrap();
        session.commit("begin", UNIX_EPOCH).unwrap();
    }
    loop {
        for _ in 0..=numbers.below(6) {
            edit(&mut session, &mut numbers);
        }
        session.commit("edit", UNIX_EPOCH).unwrap();
        index.wake_follower();
        if numbers.below(12) == 0 {
            index.request_rebuild();
        }
        if numbers.below(4) == 0 {
            assert!(index.wait_until_current(Duration::from_secs(120)));
        }
        let mut output = std::io::stdout().lock();
        writeln!(output, "committed").unwrap();
        output.flush().unwrap();
    }
}

fn edit(session: &mut tympan_content::Session, numbers: &mut Numbers) {
    let folder = ["/content", "/content/de", "/content/en"][numbers.below(3) as usize];
    let at = path(&format!("{folder}/p{}", numbers.below(60)));
    let word = |numbers: &mut Numbers| WORDS[numbers.below(8) as usize];
    // What content refuses changes nothing: a page may be missing, or its folder.
    match numbers.below(8) {
        0 => drop(session.remove_node(&at)),
        1 => drop(session.put_node(&path(folder), Subtree::new("", "sling:Folder"))),
        2 => {
            let title = Property::text(word(numbers));
            drop(session.set_property(&path(&format!("{at}/jcr:content")), "jcr:title", title));
        }
        3 => drop(session.move_node(&at, &path(&format!("/content/m{}", numbers.below(20))))),
        _ => {
            let mut text = format!("{} {} {}", word(numbers), word(numbers), word(numbers));
            if numbers.below(3) == 0 {
                text = text.repeat(20);
            }
            drop(session.put_node(&at, page(word(numbers), &text)));
        }
    }
}
