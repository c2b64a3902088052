//! Clients of one vault whose clocks are an hour apart.
//!
//! A lock is nobody's when it was silent for half an hour, by the clock of who looks at it. So a client may take the lock of
//! a live one for a dead one's. Then the one that was passed over must end without an index, a snapshot or a removal: whoever
//! has the vault alone has it alone.
//!
//! The clients are processes of their own. Their clocks are set by a small library that is loaded before libc; without a C
//! compiler the tests are skipped, said aloud.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tympan_backup::{
    BackupProgress, Error, LocalBackend, PruneOptions, SaveOptions, SaveSession, Vault, VaultIndex,
    VaultLock, VaultLockMode, VaultUser, prune_snapshots, save_directories,
};
use tympan_testkit::external_tool::{command_succeeds, report_skip};

use crate::vault_bench::{Bench, PASSWORD, describe, noise};

const HOUR: i64 = 3600;
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, now);
  if (result == 0 && id == CLOCK_REALTIME) now->tv_sec += atol(getenv("TYMPAN_TEST_AHEAD"));
  return result;
}
"#;

/// The variables that make a run of this test a client: the test's folder, and what it does there.
const FOLDER: &str = "TYMPAN_TEST_SKEW";
const ACT: &str = "TYMPAN_TEST_ACT";
/// What a client says begins so, wherever that stands in what the test harness writes.
const SAYS: &str = "client: ";

/// Makes the library that sets clocks.
fn make_clock(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    fs::write(&source, CLOCK).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    if command_succeeds(&mut compile) {
        return Some(library);
    }
    report_skip("clients with clocks of their own", "a C compiler");
    None
}

/// What a client is; without the variables it is no test.
#[test]
fn a_client_with_a_clock_of_its_own() {
    let (Some(dir), Ok(act)) = (std::env::var_os(FOLDER), std::env::var(ACT)) else { return };
    let dir = Path::new(&dir);
    let backend = Arc::new(LocalBackend::new(dir.join("vault")));
    let vault = Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap());
    // Of another host, so that nobody sees that it lives.
    let who =
        VaultUser { host: format!("host{}", std::process::id()), ..VaultUser::this_process() };
    let (act, mode): (Act, VaultLockMode) = match &*act {
        "save" => (save, VaultLockMode::Shared),
        _ => (prune_all, VaultLockMode::Exclusive),
    };
    println!("{SAYS}{}", Timestamp::now());
    let lock = match VaultLock::acquire(&vault, &who, mode, Duration::ZERO) {
        Err(Error::Locked { .. }) => return println!("{SAYS}refused"),
        taken => taken.unwrap(),
    };
    println!("{SAYS}locked");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    match act(&vault, &lock, who, dir) {
        Ok(()) => println!("{SAYS}done"),
        Err(Error::LockLost) => println!("{SAYS}lost"),
        Err(error) => panic!("{error}"),
    }
}

type Act = fn(&Arc<Vault>, &VaultLock, VaultUser, &Path) -> Result<(), Error>;

fn save(vault: &Arc<Vault>, lock: &VaultLock, who: VaultUser, dir: &Path) -> Result<(), Error> {
    let index = Arc::new(VaultIndex::load(vault)?);
    let progress = BackupProgress::default();
    let session = SaveSession::new(vault, &index, lock, &progress);
    let options = SaveOptions::new(who, Timestamp::now());
    save_directories(&session, &[dir.join("source")], &options).map(drop)
}

fn prune_all(vault: &Arc<Vault>, lock: &VaultLock, _: VaultUser, _: &Path) -> Result<(), Error> {
    let now = Timestamp::now();
    let options = PruneOptions {
        snapshots_to_remove: Vec::new(),
        grace_period: Duration::ZERO,
        now,
        trusted_now: now,
    };
    prune_snapshots(vault, lock, &options, &BackupProgress::default()).map(drop)
}

/// A client's process.
struct Client {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    input: Option<ChildStdin>,
}

impl Client {
    /// Starts one whose clock is so many seconds ahead.
    fn start(bench: &Bench, clock: &Path, ahead: i64, act: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["skew::a_client_with_a_clock_of_its_own", "--exact", "--nocapture"])
            .env(FOLDER, bench.dir.path())
            .env(ACT, act)
            .env("LD_PRELOAD", clock)
            .env("TYMPAN_TEST_AHEAD", ahead.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take();
        let mut client = Self { child, lines, input };
        // The clock is what was asked for, or the test says nothing.
        let told: Timestamp = client.said().parse().unwrap();
        let found = told.duration_since(Timestamp::now()).as_secs();
        assert!((found - ahead).abs() < HOUR / 4, "{found} s in place of {ahead} s");
        client
    }

    /// Returns what it says next.
    fn said(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("the client ended early").unwrap();
            if let Some((_, said)) = line.split_once(SAYS) {
                return said.to_owned();
            }
        }
    }

    /// Lets it do what it locked the vault for, and returns how that ended.
    fn finish(mut self) -> String {
        self.input.take().unwrap().write_all(b"\n").unwrap();
        let said = self.said();
        self.lines.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success());
        said
    }
}

/// Leaves something in the vault that a prune removes, and something in the source that a save adds.
fn change(bench: &Bench, round: u64) {
    fs::create_dir_all(bench.source()).unwrap();
    let passing = bench.source().join("passing");
    fs::write(&passing, noise(300_000, 2 * round + 1)).unwrap();
    let saved = bench.save();
    fs::remove_file(passing).unwrap();
    bench.save();
    bench.vault.remove_snapshot(&saved.snapshot.id).unwrap();
    fs::write(bench.source().join("kept"), noise(200_000, 2 * round + 2)).unwrap();
}

fn is_whole(bench: &Bench) {
    let report = bench.check();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

#[test]
fn of_two_whose_clocks_are_apart_one_has_the_vault() {
    let bench = Bench::new();
    let Some(clock) = make_clock(bench.dir.path()) else { return };
    let (mut round, mut passed) = (0, 0);
    for holder_ahead in [-HOUR, 0, HOUR] {
        for comer_ahead in [-HOUR, 0, HOUR] {
            for (held, came) in [("save", "prune"), ("prune", "save")] {
                round += 1;
                change(&bench, round);
                let before = bench.vault.read_snapshots().unwrap().len();
                let case = format!("{held} at {holder_ahead} s, {came} at {comer_ahead} s");
                let mut holder = Client::start(&bench, &clock, holder_ahead, held);
                assert_eq!(holder.said(), "locked", "{case}");
                let mut comer = Client::start(&bench, &clock, comer_ahead, came);
                // Half an hour of silence, by the clock of who comes.
                let passes = comer_ahead - holder_ahead > HOUR / 2;
                assert_eq!(comer.said(), if passes { "locked" } else { "refused" }, "{case}");
                if !passes {
                    comer.child.wait().unwrap();
                    assert_eq!(holder.finish(), "done", "{case}");
                } else if round.is_multiple_of(2) {
                    assert_eq!(holder.finish(), "lost", "{case}");
                    assert_eq!(comer.finish(), "done", "{case}");
                } else {
                    assert_eq!(comer.finish(), "done", "{case}");
                    assert_eq!(holder.finish(), "lost", "{case}");
                }
                passed += u32::from(passes);
                let has_saved = if passes { came } else { held } == "save";
                let after = bench.vault.read_snapshots().unwrap().len();
                assert_eq!(after, before + usize::from(has_saved), "{case}");
                is_whole(&bench);
                let locks = fs::read_dir(bench.path("vault/locks")).unwrap().count();
                assert_eq!(locks, 0, "{case}");
            }
        }
    }
    assert_eq!(passed, 6);
    let saved = bench.save();
    bench.restore(&saved.snapshot, "out");
    assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
    bench.restic_ok(&["check", "--read-data"]);
}

/// Saves share the vault, and what one of them holds for the lock of a dead client is in nobody's way.
#[test]
fn clients_whose_clocks_are_apart_save_at_once() {
    let bench = Bench::new();
    let Some(clock) = make_clock(bench.dir.path()) else { return };
    for round in 0..3 {
        change(&bench, 100 + round);
        let before = bench.vault.read_snapshots().unwrap().len();
        let mut clients = [-HOUR, 0, HOUR].map(|ahead| {
            let mut client = Client::start(&bench, &clock, ahead, "save");
            assert_eq!(client.said(), "locked");
            client
        });
        if round == 1 {
            clients.reverse();
        }
        assert_eq!(clients.map(Client::finish), ["done", "done", "done"]);
        assert_eq!(bench.vault.read_snapshots().unwrap().len(), before + 3);
        is_whole(&bench);
    }
}
