//! Kills: a process that saves, prunes, forgets or changes keys is killed at moments that a seed chooses. What was saved
//! before stays whole, for the stock restic too, the next save succeeds, and the lock that was left is nobody's.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_backup::{LocalBackend, Vault, VaultUser};

use crate::vault_bench::{Bench, COST, PASSWORD, describe, noise, now, prune_vault, save};

/// The variables that make a run of this test the process that is killed: the test's folder, and what it does there.
const FOLDER: &str = "TYMPAN_TEST_VAULT";
const ACT: &str = "TYMPAN_TEST_ACT";

fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

/// A small generator: the same seeds give the same points.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// What the killed process runs; without the variables it is no test.
#[test]
fn a_process_that_is_killed() {
    let (Some(dir), Ok(act)) = (std::env::var_os(FOLDER), std::env::var(ACT)) else { return };
    let dir = Path::new(&dir);
    let backend = Arc::new(LocalBackend::new(dir.join("vault")));
    let vault = Arc::new(Vault::open(backend, PASSWORD.as_bytes()).unwrap());
    match &*act {
        "save" => drop(save(&vault, &[dir.join("source")]).unwrap()),
        "prune" => drop(prune_vault(&vault).unwrap()),
        "forget" => forget(&vault),
        _ => {
            let by = (&VaultUser::this_process(), now());
            let key = vault.add_key(b"second", COST, by).unwrap();
            vault.remove_key(&key.to_string()).unwrap();
        }
    }
}

fn start(bench: &Bench, act: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["kill::a_process_that_is_killed", "--exact", "--nocapture"])
        .env(FOLDER, bench.dir.path())
        .env(ACT, act)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn change(bench: &Bench, round: u64, seed: &mut u64) {
    let source = bench.source();
    fs::create_dir_all(&source).unwrap();
    for _ in 0..4 {
        let name = format!("file{:02}", next(seed) % 40);
        fs::write(source.join(name), noise(60_000, next(seed))).unwrap();
    }
    let folder = source.join(format!("folder{}", round % 5));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(round.to_string()), noise(1000, next(seed))).unwrap();
}

fn locks(bench: &Bench) -> usize {
    fs::read_dir(bench.path("vault/locks")).unwrap().count()
}

/// Forgets all snapshots but the last two.
fn forget(vault: &Vault) {
    let snapshots = vault.read_snapshots().unwrap();
    let gone = snapshots.len().saturating_sub(2);
    for snapshot in &snapshots[..gone] {
        vault.remove_snapshot(&snapshot.id).unwrap();
    }
}

const ACTS: [&str; 4] = ["save", "prune", "forget", "keys"];

/// Runs the acts to their ends, so that kills lie within them.
fn spans(bench: &Bench, seed: &mut u64) -> [Duration; 4] {
    ACTS.map(|act| {
        change(bench, 1, seed);
        let begin = Instant::now();
        assert!(start(bench, act).wait().unwrap().success(), "{act}");
        begin.elapsed()
    })
}

#[test]
fn kills_cost_no_snapshot() {
    let bench = Bench::new();
    let mut seed = 0x5eed_bacc_u64;
    change(&bench, 0, &mut seed);
    bench.save();
    let spans = spans(&bench, &mut seed);
    let (mut with_lock, mut counts) = (0, [0; 4]);
    for round in 2..kills() + 2 {
        change(&bench, round, &mut seed);
        // Most kills are of what writes most.
        let act = [0, 0, 0, 1, 1, 1, 2, 3][usize::try_from(next(&mut seed) % 8).unwrap()];
        counts[act] += 1;
        if act > 0 {
            bench.save();
        }
        if act == 1 {
            // What is thrown away by then is what a kill must not take along.
            forget(&bench.vault);
        }
        let part = u32::try_from(next(&mut seed) % 1000).unwrap();
        let moment = Instant::now() + spans[act] * part / 1000;
        let mut child = start(&bench, ACTS[act]);
        while Instant::now() < moment && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();

        with_lock += usize::from(locks(&bench) > 0);
        // One password opens always; the key of another may have been left.
        let backend = Arc::new(LocalBackend::new(bench.path("vault")));
        assert!(Vault::open(backend, PASSWORD.as_bytes()).is_ok());
        for key in bench.vault.keys().unwrap().into_iter().filter(|key| !key.is_used) {
            bench.vault.remove_key(&key.id.to_string()).unwrap();
        }
        // restic does not go past the lock of a dead process by itself, but may be told to.
        bench.restic_ok(&["check", "--no-lock"]);
        let report = bench.check();
        assert!(report.faults.is_empty(), "after {round} rounds: {:?}", report.faults);
        let saved = bench.save();
        bench.restore(&saved.snapshot, "out");
        assert_eq!(describe(&bench.path("out")), describe(&bench.source()));
        fs::remove_dir_all(bench.path("out")).unwrap();
        // A prune needs the vault alone, whatever lock was left.
        prune_vault(&bench.vault).unwrap();
        assert_eq!(locks(&bench), 0);
    }
    bench.restic_ok(&["check", "--read-data"]);
    let told: Vec<String> =
        ACTS.iter().zip(counts).map(|(act, count)| format!("{act} {count}")).collect();
    println!(
        "{} kills ({}), {with_lock} with the lock held: nothing lost",
        kills(),
        told.join(", ")
    );
}
