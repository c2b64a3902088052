//! Backups of a clone through the program: production's content stays production's, whether it can be reached or not.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tympan_store::BlobId;
use tympan_testkit::condition_wait::wait_until;

use crate::backup_site::Bench;
use crate::clone::{Author, bytes, check_is_clean};
use crate::program::{run, run_ok};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Tells whether the newest snapshot holds a large blob, which is a file named by its hash there.
fn holds(bench: &Bench, bytes: &[u8]) -> bool {
    let name: String =
        BlobId::hash_of(bytes).digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let listed = bench.ok("ls", &["latest"]);
    listed.iter().any(|node| node["path"].as_str().is_some_and(|path| path.ends_with(&name)))
}

fn count(said: &Value, name: &str) -> u64 {
    said[name].as_u64().unwrap_or_else(|| panic!("{name} in {said}"))
}

#[test]
fn a_clone_is_saved_without_production_and_comes_back_over_it() {
    let bench = Bench::new();
    let (production, staging) = (bench.path("production"), bench.path("staging"));
    let author = Author::start(&production, &production);
    author.upload("large.bin", &bytes(1, 200_000));
    for page in 0..30 {
        author.post(&format!("/pages/page-{page}"), &format!("./value={page}"));
    }
    run_ok(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    let staged = Author::start(&staging, &production);
    staged.post("/pages/page-7", "./value=700");
    staged.upload("mine.bin", &bytes(3, 100_000));
    // While both run.
    let source = format!("repo:{}", staging.display());
    let saved = bench.save(&[&source]);
    assert!(count(&saved, "left_chunks") > 0 && count(&saved, "errors") == 0, "{saved}");
    assert!(holds(&bench, &bytes(3, 100_000)) && !holds(&bench, &bytes(1, 200_000)));
    assert!(staged.running.stop() && author.running.stop());

    // Production cannot be reached, and is not needed for a save.
    let moved = bench.path("moved");
    fs::rename(&production, &moved).unwrap();
    let again = bench.save(&["--force", &source]);
    assert!(count(&again, "left_chunks") > 0, "{again}");
    assert_eq!(count(&again, "errors"), 0);
    let with_base = bench.run("save", &["--with-base", "--force", &source]);
    assert!(!with_base.status.success(), "{with_base:?}");

    // It is, for a home that serves.
    let home = bench.path("refused");
    let refused = bench.run("restore", &["latest", "--home", text(&home)]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains(text(&production)) && said.contains("--allow-missing"), "{said}");
    assert!(!home.exists());

    let home = bench.path("elsewhere");
    let base = ["--base", text(&moved)];
    let restored =
        bench.ok("restore", &[&["latest", "--home", text(&home)], &base[..]].concat()).remove(0);
    assert_eq!((count(&restored, "missing_chunks"), count(&restored, "missing_blobs")), (0, 0));
    assert_eq!(restored["base"], text(&moved));
    check_is_clean(&home);
    let staged = Author::start(&home, &moved);
    assert_eq!((staged.value("/pages/page-7"), staged.value("/pages/page-8")), (700, 8));
    assert!(staged.get("/uploads/large.bin") == bytes(1, 200_000));
    assert!(staged.get("/uploads/mine.bin") == bytes(3, 100_000));
    staged.post("/pages/page-9", "./value=900");
    assert!(staged.running.stop());

    // Without it, there is what staging had of its own, until production is back.
    let home = bench.path("missing");
    let restored = bench.run("restore", &["latest", "--home", text(&home), "--allow-missing"]);
    assert_eq!(restored.status.code(), Some(3), "{restored:?}");
    let said = String::from_utf8(restored.stdout).unwrap();
    let said = said.lines().find(|line| line.contains("missing_chunks")).unwrap();
    let said: Value = serde_json::from_str(said).unwrap();
    assert!(count(&said, "missing_chunks") > 0 && count(&said, "chunks") > 0, "{said}");
    let refused = run(&["author", "--home", text(&home), "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    fs::rename(&moved, &production).unwrap();
    let staged = Author::start(&home, &production);
    assert_eq!((staged.value("/pages/page-7"), staged.value("/pages/page-8")), (700, 8));
    assert!(staged.get("/uploads/large.bin") == bytes(1, 200_000));
    assert!(staged.running.stop());
    check_is_clean(&home);

    // Where nobody else saves production, all goes with the clone.
    let whole = bench.save(&["--with-base", &source]);
    assert_eq!((count(&whole, "left_chunks"), count(&whole, "left_blobs")), (0, 0));
    assert!(holds(&bench, &bytes(1, 200_000)));
    let home = bench.path("whole");
    fs::rename(&production, &moved).unwrap();
    let restored = bench.ok("restore", &["latest", "--home", text(&home)]).remove(0);
    assert!(restored["base"].is_null() && count(&restored, "missing_chunks") == 0, "{restored}");
    check_is_clean(&home);
    println!("{saved}\n{said}\n{restored}");
}

/// An author over production saves itself by schedule, and leaves production's content to production as well.
#[test]
fn a_clone_that_saves_itself_leaves_production_alone() {
    let bench = Bench::new();
    let (production, staging) = (bench.path("production"), bench.path("staging"));
    let author = Author::start(&production, &production);
    author.upload("large.bin", &bytes(1, 200_000));
    run_ok(&["repo", "clone", "--from", text(&production), "--to", text(&staging)]);
    let config = format!(
        "[backup]\nvault = {:?}\npassword_file = {:?}\nschedule = \"every 1s\"\n",
        bench.path("vault"),
        bench.path("secret")
    );
    fs::write(staging.join("tympan.toml"), config).unwrap();
    let staged = Author::start(&staging, &production);
    staged.upload("mine.bin", &bytes(3, 100_000));
    let is_saved = || {
        let snapshots = bench.ok("list", &[]);
        let tags = snapshots.last().map(|one| one["tags"].clone()).unwrap_or_default();
        let is_below = |tag: &Value| tag.as_str().is_some_and(|tag| tag.starts_with("below:"));
        assert!(tags.as_array().is_none_or(|tags| tags.iter().any(is_below)), "{tags}");
        !snapshots.is_empty() && holds(&bench, &bytes(3, 100_000))
    };
    wait_until("the clone is saved", is_saved);
    assert!(!holds(&bench, &bytes(1, 200_000)));
    assert!(staged.running.stop() && author.running.stop());
    let home = bench.path("again");
    let restored = bench.ok("restore", &["latest", "--home", text(&home)]).remove(0);
    assert_eq!(restored["base"], text(&production));
    check_is_clean(&home);
}
