//! `repo check` and `repo check --repair` on homes with real content, damaged on the disk.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tympan_testkit::fixture_folder::fixture_folder;

use crate::program::{Running, free_address, run, run_ok};

const PACKAGES: [&str; 3] =
    ["core.wcm.components.content-2.29.0.zip", "wknd.ui.content.zip", "wknd.ui.content.sample.zip"];

/// Makes a home whose history has one revision for each package; nothing without fixtures.
fn home(dir: &Path) -> Option<PathBuf> {
    let packages = fixture_folder("packages")?;
    let home = dir.join("home");
    for package in PACKAGES {
        let file = packages.join(package);
        run_ok(&["package", "install", file.to_str()?, "--home", home.to_str()?]);
    }
    Some(home)
}

fn stats(home: &Path) -> Value {
    let text = run_ok(&["repo", "stats", "--json", "--home", home.to_str().unwrap()]);
    serde_json::from_str(&text).unwrap()
}

/// Runs a check; gives its exit code and what it says.
fn check(home: &Path, more: &[&str]) -> (i32, Value) {
    let mut arguments = vec!["repo", "check", "--json", "--home", home.to_str().unwrap()];
    arguments.extend_from_slice(more);
    let output = run(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let json = serde_json::from_str(&text);
    (output.status.code().unwrap(), json.unwrap_or_else(|_| panic!("{text} {:?}", output.stderr)))
}

/// Flips one bit in the record of the chunk whose id is `hex`.
fn harm_chunk(home: &Path, hex: &str) {
    let id: Vec<u8> =
        (0..32).map(|n| u8::from_str_radix(&hex[n * 2..n * 2 + 2], 16).unwrap()).collect();
    let file = home.join("store/pack-000001");
    let mut pack = fs::read(&file).unwrap();
    // The id stands 20 bytes into its record, and elsewhere where it is referred to.
    let mut places = pack.windows(32).enumerate().filter(|(_, bytes)| *bytes == id);
    let (at, _) =
        places.find(|(at, _)| pack[at - 20..].starts_with(b"TYMr") && pack[at - 16] == 2).unwrap();
    pack[at + 33] ^= 1;
    fs::write(&file, pack).unwrap();
}

#[test]
fn a_home_whose_root_is_damaged_goes_back_to_the_newest_good_state() {
    let dir = tempfile::tempdir().unwrap();
    let Some(home) = home(dir.path()) else { return };
    let home_text = home.to_str().unwrap();
    let whole = stats(&home);
    harm_chunk(&home, whole["root"].as_str().unwrap());
    let stopped = run(&["repo", "stats", "--home", home_text]);
    assert_eq!(stopped.status.code(), Some(3), "the content cannot be read");
    let (code, found) = check(&home, &[]);
    assert_eq!(code, 1);
    let said = &found["repair"];
    assert_eq!(
        (&said["done"], &said["refs"][0]["restorable"]),
        (&false.into(), &true.into()),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(home.join("store")).unwrap().flatten().count(),
        3,
        "nothing was written"
    );
    let (code, repaired) = check(&home, &["--repair"]);
    assert_eq!(code, 0, "{repaired}");
    assert_eq!(repaired["clean"], true);
    let done = &repaired["repair"];
    assert_eq!(done["refs"][0]["damaged"], whole["root"]);
    assert!(home.join("store").join(done["set_aside"][0].as_str().unwrap()).is_file());
    let (code, again) = check(&home, &[]);
    assert_eq!((code, again["clean"].as_bool()), (0, Some(true)));
    // It is the state before the last package, whose pages are gone, and the indexes say the same.
    let now = stats(&home);
    assert_eq!(now["root"], done["refs"][0]["root"]);
    assert!(now["pages"].as_u64().unwrap() > 0);
    assert!(now["pages"].as_u64() < whole["pages"].as_u64());
    // Installing the package again gives the very state that was lost.
    let packages = fixture_folder("packages").unwrap();
    let file = packages.join(PACKAGES[2]);
    run_ok(&["package", "install", file.to_str().unwrap(), "--home", home_text]);
    assert_eq!(stats(&home)["pages"], whole["pages"]);
}

#[test]
fn flipped_bits_are_repaired_and_the_home_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(home) = home(dir.path()) else { return };
    let home_text = home.to_str().unwrap();
    let whole = stats(&home);
    let file = home.join("store/pack-000001");
    let pack = fs::read(&file).unwrap();
    let mut seed = 0x5eed_u64;
    let (mut restored_or_lost, mut untouched) = (0, 0);
    for _ in 0..4 {
        let mut harmed = pack.clone();
        for _ in 0..3 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(seed >> 33).unwrap() % harmed.len();
            harmed[at] ^= 1 << (seed % 8);
        }
        let trial = dir.path().join("trial");
        let copied =
            std::process::Command::new("cp").arg("-r").arg(&home).arg(&trial).status().unwrap();
        assert!(copied.success());
        fs::write(trial.join("store/pack-000001"), &harmed).unwrap();
        let (code, found) = check(&trial, &[]);
        assert_eq!(code, 1, "{found}");
        let (_, repaired) = check(&trial, &["--repair"]);
        let done = &repaired["repair"];
        let count = done["restored"].as_u64().unwrap() + done["lost"].as_u64().unwrap();
        // Small blobs that are gone are all that can be left to say.
        let faults = repaired["faults"].as_array().unwrap();
        assert!(
            faults.iter().all(|fault| fault.as_str().unwrap().starts_with("the blob")),
            "{repaired}"
        );
        assert_eq!(done["parts"], found["repair"]["parts"], "it was said before");
        let now = stats(&trial);
        if count == 0 && done["refs"].as_array().unwrap().is_empty() {
            assert_eq!(now["root"], whole["root"], "what is not damaged stays as it is");
            untouched += 1;
        } else {
            let lost = done["lost"].as_u64().unwrap();
            assert!(
                now["documents"].as_u64().unwrap() + lost >= whole["documents"].as_u64().unwrap()
            );
        }
        restored_or_lost += count;
        let address = free_address();
        let running = Running::start(&[
            "author",
            "--home",
            trial.to_str().unwrap(),
            "--listen",
            &address.to_string(),
        ]);
        drop(running);
        let (_, after) = check(&trial, &[]);
        assert_eq!(after["faults"], repaired["faults"]);
        fs::remove_dir_all(&trial).unwrap();
    }
    assert!(restored_or_lost + untouched > 0);
    run_ok(&["repo", "check", "--home", home_text]);
}

#[test]
fn a_home_whose_packs_are_gone_passes_for_no_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    fs::create_dir(&store).unwrap();
    fs::write(store.join("lock"), "").unwrap();
    for command in ["check", "gc", "log"] {
        let output = run(&["repo", command, "--home", dir.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("contains no repository"), "{command}: {said}");
    }
    assert_eq!(fs::read_dir(&store).unwrap().count(), 1, "nothing is made");
}

/// Starts an author, which must end by itself, and returns its exit code and what it says.
fn failed_start(home: &Path) -> (Option<i32>, String) {
    let output = run(&["author", "--home", home.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!String::from_utf8_lossy(&output.stdout).contains("ready"), "{said}");
    (output.status.code(), said)
}

#[test]
fn a_start_names_the_state_database_that_is_damaged_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let home_text = home.to_str().unwrap();
    let started = Running::start(&["author", "--home", home_text, "--listen", "127.0.0.1:0"]);
    assert!(started.stop());
    let file = home.join("state.db");
    let whole = fs::read(&file).unwrap();
    let mut page = whole.clone();
    // The header is whole, and a page behind it is not.
    page[4096..8192].fill(0xa5);
    for (what, bytes) in [("no database", vec![7; whole.len()]), ("a page", page)] {
        fs::write(&file, bytes).unwrap();
        let (code, said) = failed_start(&home);
        assert_eq!(code, Some(3), "{what}: {said}");
        assert!(said.contains("state.db") && said.contains("damaged"), "{what}: {said}");
        assert!(said.contains("backup"), "the way out of {what}: {said}");
    }
    fs::write(&file, whole).unwrap();
    let again = Running::start(&["author", "--home", home_text, "--listen", "127.0.0.1:0"]);
    assert!(again.stop());
}

#[test]
fn a_start_names_the_start_chunk_that_is_damaged_and_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let home_text = home.to_str().unwrap();
    let started = Running::start(&["author", "--home", home_text, "--listen", "127.0.0.1:0"]);
    assert!(started.stop());
    harm_chunk(&home, stats(&home)["root"].as_str().unwrap());
    let (code, said) = failed_start(&home);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("damaged") && said.contains(&*home.to_string_lossy()), "{said}");
    assert!(said.contains("tympan repo check") && said.contains("--repair"), "{said}");
}
