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
fn what_is_damaged_is_told_and_the_rest_comes_back() {
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
