//! `tympan backup` as people run it: whose the lock is that it leaves when it is killed.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::tympan;

const PASSWORD: &str = "correct horse";
/// For what must happen; generous, as the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A small generator: the same seeds give the same points.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// Returns bytes that do not compress.
fn noise(length: usize, seed: &mut u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| next(seed).to_le_bytes());
    words.flatten().take(length).collect()
}

/// A vault and a folder that is saved into it.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(bench.source()).unwrap();
        bench.ok("init", &[]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    fn command(&self, word: &str, arguments: &[&str]) -> Command {
        let mut command = tympan();
        command.args(["backup", word, "-r"]).arg(self.path("vault")).args(arguments);
        command.env("TYMPAN_VAULT_PASSWORD", PASSWORD);
        // What the program keeps for a user stays in this folder.
        command.env("XDG_CACHE_HOME", self.path("cache")).env("XDG_STATE_HOME", self.path("state"));
        command
    }

    fn ok(&self, word: &str, arguments: &[&str]) {
        let output = self.command(word, arguments).output().unwrap();
        assert!(output.status.success(), "{word} {arguments:?}: {output:?}");
    }

    fn locks(&self) -> usize {
        fs::read_dir(self.path("vault/locks")).unwrap().count()
    }
}

/// A lock names the host whose process it is, whatever host the snapshot is to name: only so is it seen to be dead.
#[test]
fn the_lock_of_a_killed_save_for_another_host_is_nobodys() {
    let bench = Bench::new();
    let mut seed = 0x5eed_0057_u64;
    fs::write(bench.source().join("large"), noise(24 << 20, &mut seed)).unwrap();
    let source = bench.source();
    let begin = Instant::now();
    while bench.locks() == 0 {
        assert!(begin.elapsed() < PATIENCE, "no kill fell into a save");
        let mut save = bench.command("save", &["--host", "elsewhere", source.to_str().unwrap()]);
        let mut child = save.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while bench.locks() == 0 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    bench.ok("prune", &[]);
    assert_eq!(bench.locks(), 0);
}
