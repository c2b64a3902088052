//! `tympan backup` on vaults in which something is wrong, and beside others that use them: what it says, and by which code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::tympan;

const PASSWORD: &str = "correct horse";
/// How often each client saves beside prunes.
const SAVES: usize = 3;

/// Returns bytes that do not compress.
fn noise(length: usize, mut seed: u64) -> Vec<u8> {
    let next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(length).collect()
}

/// A vault, and folders that are saved into it.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        bench.ok(&["init"]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that does not compress; returns its folder.
    fn plant(&self, folder: &str, name: &str, seed: u64) -> String {
        let folder = self.path(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), noise(300_000, seed)).unwrap();
        folder.display().to_string()
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = tympan();
        command.args(["backup", "-r"]).arg(self.path("vault")).args(words);
        command.env("TYMPAN_VAULT_PASSWORD", PASSWORD);
        command.env("XDG_CACHE_HOME", self.path("cache")).env("XDG_STATE_HOME", self.path("state"));
        command.output().unwrap()
    }

    fn ok(&self, words: &[&str]) -> String {
        self.ends_with(0, words)
    }

    /// Runs a command that ends with this code; returns all that it said.
    fn ends_with(&self, code: i32, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).unwrap()
    }

    fn packs(&self) -> BTreeSet<PathBuf> {
        let folders = fs::read_dir(self.path("vault/data")).unwrap();
        let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    Command::new("diff").arg("-r").args([one, other]).status().unwrap().success()
}

/// One damaged pack: it is named, what stands in others comes back, and a repair leaves a vault without faults.
#[test]
fn what_is_damaged_is_reported_and_the_rest_comes_back() {
    let bench = Bench::new();
    let source = bench.plant("source", "first", 1);
    bench.ok(&["save", &source]);
    let before = bench.packs();
    bench.plant("source", "second", 2);
    bench.ok(&["save", &source]);
    let new = bench.packs().into_iter().filter(|pack| !before.contains(pack));
    let damaged = new.max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[1_000] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let name = damaged.file_name().unwrap().to_str().unwrap();

    assert!(bench.ends_with(1, &["check", "--read-data"]).contains(name));
    let out = bench.path("out");
    let restore = ["restore", "latest", "--path", &source, "--to", out.to_str().unwrap()];
    let said = bench.ends_with(3, &restore);
    assert!(said.contains("second") && !said.contains("first"), "{said}");
    assert_eq!(fs::read(out.join("first")).unwrap(), noise(300_000, 1));
    assert!(!out.join("second").exists());

    assert!(bench.ends_with(3, &["repair", "--read-data"]).contains(name));
    bench.ok(&["check", "--read-data"]);
    // What the source still has is saved once more.
    bench.ok(&["save", &source]);
    fs::remove_dir_all(&out).unwrap();
    bench.ok(&restore);
    assert!(is_same(Path::new(&source), &out));
}

/// What is wrong with one source keeps no other from being saved.
#[test]
fn a_missing_source_costs_no_other() {
    let bench = Bench::new();
    let source = bench.plant("source", "first", 1);
    let missing = bench.path("no-such-share").display().to_string();
    let no_home = format!("repo:{missing}");
    for sources in [[&source, &missing], [&source, &no_home]] {
        let said = bench.ends_with(3, &["save", sources[0], sources[1]]);
        assert!(said.contains("no-such-share"), "{said}");
        let out = bench.path("out");
        let to = ["--path", &source, "--to", out.to_str().unwrap()];
        bench.ok(&[&["restore", "latest"], &to[..]].concat());
        assert!(is_same(Path::new(&source), &out));
        fs::remove_dir_all(out).unwrap();
    }
    assert_eq!(bench.ok(&["list"]).lines().count(), 2);
    bench.ends_with(1, &["save", &missing]);
    let said = bench.ok(&["save", "--dry-run", &source]);
    assert!(said.contains("would create a snapshot"), "{said}");
    assert_eq!(bench.ok(&["list"]).lines().count(), 2);
}

/// Of what a damaged index file lists, nothing comes back, and of all else everything.
#[test]
fn a_damaged_index_file_costs_what_it_lists() {
    let bench = Bench::new();
    let source = bench.plant("source", "file 1", 1);
    bench.ok(&["save", &source]);
    let index = fs::read_dir(bench.path("vault/index")).unwrap().next().unwrap().unwrap().path();
    bench.plant("source", "file 2", 2);
    bench.ok(&["save", &source]);
    let mut bytes = fs::read(&index).unwrap();
    bytes[50] ^= 1;
    fs::remove_file(&index).unwrap();
    fs::write(&index, bytes).unwrap();
    let out = bench.path("out");
    let restore = ["restore", "latest", "--path", &source, "--to", out.to_str().unwrap()];
    let said = bench.ends_with(3, &restore);
    assert!(said.contains("tympan backup repair"), "{said}");
    assert_eq!(fs::read(out.join("file 2")).unwrap(), noise(300_000, 2));
    let said = bench.ends_with(3, &["save", &source]);
    assert!(said.contains("tympan backup repair"), "{said}");
    bench.ok(&["repair"]);
    fs::remove_dir_all(&out).unwrap();
    bench.ok(&restore);
    assert!(is_same(Path::new(&source), &out));
}

/// Where nothing can be pruned, no snapshot goes either.
#[test]
fn forget_and_prune_of_a_damaged_vault_change_nothing() {
    let bench = Bench::new();
    let mut first = BTreeSet::new();
    for seed in 1..=3 {
        let source = bench.plant("source", &format!("file {seed}"), seed);
        bench.ok(&["save", &source]);
        first = if seed == 1 { bench.packs() } else { first };
    }
    let largest = first.iter().max_by_key(|pack| fs::metadata(pack).unwrap().len()).unwrap();
    fs::remove_file(largest).unwrap();
    let forget = ["forget", "--keep", "1", "--prune", "--grace", "0s"];
    let said = bench.ends_with(1, &forget);
    assert!(said.contains("tympan backup repair"), "{said}");
    assert_eq!(bench.ok(&["list"]).lines().count(), 3);
    // After a repair it does what it says.
    bench.ends_with(3, &["repair"]);
    bench.ok(&forget);
    assert_eq!(bench.ok(&["list"]).lines().count(), 1);
}

/// Words and copies of snapshots, and parts that are restored, by the commands.
#[test]
fn snapshots_are_tagged_copied_and_restored_in_part() {
    let bench = Bench::new();
    let source = bench.plant("source", "one.txt", 1);
    bench.plant("source", "two.bin", 2);
    fs::write(bench.path("patterns"), "# none of these\n*.tmp\n").unwrap();
    fs::write(Path::new(&source).join("x.tmp"), "left out").unwrap();
    fs::write(bench.path("list"), format!("{source}\n")).unwrap();
    let (patterns, list) = (bench.path("patterns"), bench.path("list"));
    let files = [patterns.to_str().unwrap(), list.to_str().unwrap()];
    bench.ok(&["save", "--exclude-file", files[0], "--files-from", files[1]]);
    let said = bench.ok(&["tag", "--add", "kept", "latest"]);
    assert!(said.contains("is now"), "{said}");
    let second = bench.path("second").display().to_string();
    let vault = bench.path("vault").display().to_string();
    let other = |words: &[&str]| {
        let mut command = tympan();
        command.args(["backup"]).args(words).args(["-r", &second]);
        command.env("TYMPAN_VAULT_PASSWORD", PASSWORD);
        command.env("XDG_CACHE_HOME", bench.path("cache"));
        let output = command.env("XDG_STATE_HOME", bench.path("state")).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    other(&["init"]);
    assert!(other(&["copy", "--from-vault", &vault]).contains("copied"));
    assert!(other(&["copy", "--from-vault", &vault]).contains("is already present"));
    assert!(other(&["list"]).contains("[kept]"));
    let out = bench.path("out").display().to_string();
    let place = ["--path", &source, "--to", &out];
    other(&[&["restore", "latest", "--include", "*.txt"], &place[..]].concat());
    let names = || {
        let entries = fs::read_dir(&out).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<String>>()
    };
    assert_eq!(names(), BTreeSet::from(["one.txt".to_owned()]));
    fs::write(Path::new(&out).join("more"), "goes").unwrap();
    other(&[&["restore", "latest", "--in-place", "--delete"], &place[..]].concat());
    assert_eq!(names(), BTreeSet::from(["one.txt".to_owned(), "two.bin".to_owned()]));
}

/// Clients save while this program and the stock restic prune: whoever comes second waits or is told so, and nothing that
/// a snapshot refers to goes.
#[test]
fn saves_beside_prunes_lose_nothing() {
    let bench = Bench::new();
    let restic = |words: &[&str]| {
        let mut restic = Command::new("restic");
        restic.args(["--no-cache", "-r"]).arg(bench.path("vault")).args(words);
        restic.env("RESTIC_PASSWORD", PASSWORD).output()
    };
    std::thread::scope(|scope| {
        for client in ["ann", "bob"] {
            let bench = &bench;
            scope.spawn(move || {
                for seed in 1..=SAVES {
                    // What the next save lacks, a prune may remove.
                    let source = bench.plant(client, "large", seed as u64);
                    let client = ["--client-name", client];
                    let wait = ["--retry-lock", "120"];
                    bench.ok(&[&["save", &source], &client[..], &wait].concat());
                    bench.ok(&[&["forget", "--keep", "1h"], &client[..], &wait].concat());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..SAVES {
                bench.ok(&["prune", "--retry-lock", "120"]);
                match restic(&["prune"]) {
                    // It does not wait for the locks of others in all its versions.
                    Ok(output) if output.status.success() => {}
                    Ok(output) => {
                        let said = String::from_utf8_lossy(&output.stderr).into_owned();
                        assert!(said.contains("locked"), "{said}");
                    }
                    Err(_) => println!("skipped: this machine has no restic"),
                }
            }
        });
    });
    assert!(bench.ok(&["check", "--read-data"]).contains("0 faults"));
    for client in ["ann", "bob"] {
        let (source, out) = (bench.path(client), bench.path(&format!("{client} again")));
        let path = source.to_str().unwrap();
        let to = ["--path", path, "--to", out.to_str().unwrap(), "--client-name", client];
        bench.ok(&[&["restore", "latest"], &to[..]].concat());
        assert!(is_same(&source, &out));
    }
    if let Ok(checked) = restic(&["check", "--read-data"]) {
        assert!(checked.status.success(), "{checked:?}");
    }
}
