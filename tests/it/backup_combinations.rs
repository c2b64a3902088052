//! The table of the tuning guide that this program's users come from: a save that finds little changed, over SFTP, with 16
//! combinations of what is kept of folders (`--lru-size`) and what waits to be sent (`--upload-queue-size`), over a line like
//! the guide's (1 ms, 3 MB/s) and one that is far (20 ms).
//!
//! It prints each run as it ends, and then conditions, shortest and longest time, peak memory, and runs; and how many times faster
//! the best is than the worst at least. Here with few files and one run each; `TYMPAN_COMBINATIONS=FILES,RUNS` asks for more, as `scripts/torture.sh backup`
//! does, and `TYMPAN` names another program, such as an optimized one. Times are printed, not judged: what is judged is that each
//! combination saves the same.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tympan_testkit::delay_proxy::DelayProxy;
use tympan_testkit::ssh_server::SshServer;

use crate::program::tympan;

const SIZES: [u64; 4] = [128, 256, 512, 1024];

fn asked() -> (usize, usize) {
    let text = std::env::var("TYMPAN_COMBINATIONS").unwrap_or_default();
    let numbers: Vec<usize> = text.split(',').filter_map(|part| part.parse().ok()).collect();
    match numbers.as_slice() {
        [files, runs] => (*files, (*runs).max(1)),
        _ => (400, 1),
    }
}

fn program() -> Command {
    std::env::var_os("TYMPAN").map_or_else(tympan, Command::new)
}

/// Times and peaks of the runs under some conditions.
#[derive(Default)]
struct Runs {
    seconds: Vec<f64>,
    peak_mib: Vec<f64>,
}

impl Runs {
    fn shortest(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn longest(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }

    fn line(&self, conditions: &str) -> String {
        let span = |values: &[f64], digits: usize| {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            format!("{least:.digits$} to {most:.digits$}")
        };
        let (seconds, memory) = (span(&self.seconds, 2), span(&self.peak_mib, 0));
        format!("{conditions:<44} {seconds:>15} {memory:>14} {:>5}", self.seconds.len())
    }
}

#[test]
fn all_combinations_of_the_guide_save_the_same() {
    let (count, runs) = asked();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (home, there) = (path("home/.ssh"), path("vault"));
    fs::create_dir_all(&home).unwrap();
    fs::create_dir_all(&there).unwrap();
    let Some(sshd) = SshServer::start(&path("ssh"), &format!("-d {}", there.display())) else {
        return;
    };
    fs::copy(sshd.user_key(), home.join("id_ed25519")).unwrap();
    for number in 0..count {
        let folder = path("source").join(format!("{:03}", number % 97));
        fs::create_dir_all(&folder).unwrap();
        // About as long as the guide's files are on average.
        let text = format!("file {number} ").repeat(count.min(400) + number % 700);
        fs::write(folder.join(format!("{number}")), text).unwrap();
    }
    let source = path("source").display().to_string();
    let backup = |vault: &str, words: &[&str]| {
        let mut command = program();
        command.args(["backup", "-r", vault]).args(words);
        command.env("TYMPAN_VAULT_PASSWORD", "correct horse").env("HOME", path("home"));
        for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SSH_AUTH_SOCK"] {
            command.env_remove(name);
        }
        let begin = Instant::now();
        let output = command.output().unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        assert!(output.status.success(), "{words:?}: {output:?}");
        (String::from_utf8(output.stdout).unwrap(), seconds)
    };
    // The first full save is made here, where the vault lies.
    let local = there.join("repo").display().to_string();
    backup(&local, &["init"]);
    backup(&local, &["--client-name", "CLIENT", "backup", &source]);

    let ms = Duration::from_millis;
    let links = [
        ("1 ms, 3 MB/s", DelayProxy::start_with_bandwidth(sshd.addr(), ms(1), 3_000_000)),
        ("20 ms", DelayProxy::start(sshd.addr(), ms(20))),
    ];
    println!("{count} files; each run saves one that has changed");
    println!("{:<44} {:>15} {:>14} {:>5}", "conditions", "seconds", "peak, MiB", "runs");
    for (name, link) in &links {
        let known = fs::read_to_string(sshd.write_known_hosts(link.addr())).unwrap();
        fs::write(home.join("known_hosts"), known).unwrap();
        let vault = format!("sftp://{}@{}/~/repo", sshd.user(), link.addr());
        let mut table: Vec<((u64, u64), Runs)> = Vec::new();
        for lru in SIZES {
            for queue in SIZES {
                table.push(((lru, queue), Runs::default()));
            }
        }
        // One run of each after another, so that a busy moment of the machine does not fall on one of them.
        for run in 0..runs {
            for ((lru, queue), found) in &mut table {
                // Other bytes for each line, too: what the vault has is not sent again.
                let text = format!("{name} {run} {lru} {queue}");
                fs::write(path("source").join("changed"), text).unwrap();
                let (lru, queue) = (lru.to_string(), queue.to_string());
                let words = [
                    "--lru-size",
                    &lru,
                    "--upload-queue-size",
                    &queue,
                    "--client-name=CLIENT",
                    "--json",
                    "backup",
                    &source,
                ];
                let (said, seconds) = backup(&vault, &words);
                let summary: serde_json::Value =
                    serde_json::from_str(said.lines().last().unwrap()).unwrap();
                assert_eq!(summary["data_blobs"], 1, "{summary}");
                assert_eq!(summary["errors"], 0, "{summary}");
                let peak = summary["peak_bytes"].as_f64().unwrap() / 1_048_576.0;
                println!(
                    "{name}, lru {lru}, queue {queue}, run {run}: {seconds:.2} s, {peak:.0} MiB"
                );
                found.seconds.push(seconds);
                found.peak_mib.push(peak);
            }
        }
        for ((lru, queue), found) in &table {
            println!("{}", found.line(&format!("{name}, lru {lru}, queue {queue}")));
        }
        let best = table.iter().min_by(|one, two| one.1.longest().total_cmp(&two.1.longest()));
        let worst = table.iter().max_by(|one, two| one.1.shortest().total_cmp(&two.1.shortest()));
        if let (Some(((lru, queue), best)), Some((_, worst))) = (best, worst) {
            let least = worst.shortest() / best.longest();
            let most = worst.longest() / best.shortest();
            println!(
                "{name}: lru {lru}, queue {queue} is at least {least:.2} and at most {most:.2} times as fast as the worst"
            );
        }
    }
    backup(&local, &["check", "--read-data"]);
    let (list, _) = backup(&local, &["list", "--all-clients", "--json"]);
    assert_eq!(list.lines().count(), 1 + 2 * 16 * runs);
}
