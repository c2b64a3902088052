//! What `tympan backup` holds in memory of one large file: pieces of it, never the whole.
//!
//! The file compresses well, so that its packs are short: what is measured is what is held of its plain bytes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::condition_wait::wait_until;

use crate::program::tympan;

/// The file, in MiB.
const LARGE: u64 = 256;
/// What a run may take at most, in MiB. Opening a vault takes about half of it.
const BOUND: u64 = 160;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spawn(&self, words: &[&str]) -> Child {
        let mut command = tympan();
        command.args(["backup", "-r"]).arg(self.path("vault")).args(words);
        command.env("TYMPAN_VAULT_PASSWORD", "correct horse");
        command.env("XDG_CACHE_HOME", self.path("cache")).env("XDG_STATE_HOME", self.path("state"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a command; returns the most that it had in memory, in MiB.
    fn peak(&self, words: &[&str]) -> u64 {
        let mut child = self.spawn(words);
        let mut peak = 0;
        wait_until("the run ends", || {
            // Without it, it has ended meanwhile.
            peak = peak_of(&child).unwrap_or(peak);
            child.try_wait().unwrap().is_some()
        });
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        peak
    }
}

/// Returns the most that a process has had in memory so far, in MiB.
fn peak_of(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(peak.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// Writes a file whose pieces are all different.
fn write_large(path: &Path) {
    let mut file = File::create(path).unwrap();
    let mut block = vec![b'.'; 1 << 20];
    for number in 0..LARGE {
        for (place, page) in block.chunks_mut(4096).enumerate() {
            page[..32].copy_from_slice(format!("{number:016} {place:014}\n").as_bytes());
        }
        file.write_all(&block).unwrap();
    }
}

/// Returns the length of what a file gives, and whether it is all of the other's.
fn is_same(one: &Path, other: &Path) -> bool {
    let open = |path: &Path| BufReader::with_capacity(1 << 20, File::open(path).unwrap());
    let (mut one, mut other) = (open(one), open(other));
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..LARGE {
        one.read_exact(&mut left).unwrap();
        other.read_exact(&mut right).unwrap();
        if left != right {
            return false;
        }
    }
    one.fill_buf().unwrap().is_empty()
}

/// Mounts the vault and reads the file there; nothing, said aloud, where nothing can be mounted.
#[expect(clippy::print_stdout, reason = "what is left out is said aloud")]
fn peak_of_mount(bench: &Bench, large: &Path) -> Option<u64> {
    let dir = bench.path("mount");
    fs::create_dir(&dir).unwrap();
    let mut child = bench.spawn(&["mount", dir.to_str().unwrap()]);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("cannot mount at"), "{told}");
        println!("skipped: {told}");
        return None;
    }
    let there = dir.join("snapshots/latest").join(large.strip_prefix("/").unwrap());
    assert!(is_same(&there, large));
    let peak = peak_of(&child).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    Some(peak)
}

/// Each way through one large file takes a part of it at a time.
#[test]
fn a_large_file_is_never_in_memory_whole() {
    let bench = Bench { dir: tempfile::tempdir().unwrap() };
    let source = bench.path("source");
    fs::create_dir(&source).unwrap();
    let large = source.join("large");
    write_large(&large);
    let (source, out) = (source.to_str().unwrap(), bench.path("out"));
    bench.peak(&["init"]);
    let mut peaks = vec![("save", bench.peak(&["save", source]))];
    let to = ["restore", "latest", "--path", source, "--to", out.to_str().unwrap()];
    peaks.push(("verify", bench.peak(&["verify"])));
    peaks.push(("check", bench.peak(&["check", "--read-data"])));
    peaks.push(("restore", bench.peak(&to)));
    assert!(is_same(&out.join("large"), &large));
    fs::remove_dir_all(out).unwrap();
    peaks.extend(peak_of_mount(&bench, &large).map(|peak| ("mount", peak)));
    // It has written `/proc`'s number at least once.
    assert!(peaks.iter().all(|(_, peak)| (1..=BOUND).contains(peak)), "MiB: {peaks:?}");
}
