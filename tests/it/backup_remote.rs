//! `tympan backup` into vaults on another machine, as people run it: the command line of an Obnam user, several clients at
//! once, kills, and vaults to which only can be added.
//!
//! `TYMPAN_KILLS` sets how many runs are killed; `make torture` asks for the full count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tympan_testkit::condition_wait::wait_until;
use tympan_testkit::ssh_server::SshServer;

use crate::program::tympan;

const PASSWORD: &str = "correct horse";

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

/// A home of a user with the key of a host, the host itself, and a folder to save.
struct Bench {
    dir: tempfile::TempDir,
    sshd: Option<SshServer>,
    vault: String,
}

impl Bench {
    /// A vault in the folder `vault/repo`.
    fn local() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let vault = dir.path().join("vault/repo").display().to_string();
        fs::create_dir(dir.path().join("source")).unwrap();
        Self { dir, sshd: None, vault }
    }

    /// The same folder, as the home of a user of a host; nothing, said aloud, where there is no server.
    fn remote() -> Option<Self> {
        let bench = Self::local();
        let [home, there] = ["home/.ssh", "vault"].map(|name| bench.path(name));
        fs::create_dir_all(&home).unwrap();
        fs::create_dir_all(&there).unwrap();
        let sshd = SshServer::start(&bench.path("ssh"), &format!("-d {}", there.display()))?;
        fs::copy(sshd.user_key(), home.join("id_ed25519")).unwrap();
        fs::copy(sshd.write_known_hosts(sshd.addr()), home.join("known_hosts")).unwrap();
        let vault = format!("sftp://{}@{}/~/repo", sshd.user(), sshd.addr());
        Some(Self { vault, sshd: Some(sshd), ..bench })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that is to be saved.
    fn plant(&self, name: &str, length: usize, seed: &mut u64) {
        fs::write(self.path("source").join(name), noise(length, seed)).unwrap();
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = tympan();
        command.arg("backup").args(words).env("TYMPAN_VAULT_PASSWORD", PASSWORD);
        command.env("HOME", self.path("home")).env_remove("XDG_CACHE_HOME");
        command.env_remove("SSH_AUTH_SOCK").stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn source(&self) -> String {
        self.path("source").display().to_string()
    }

    /// Restores a snapshot's source, and compares it.
    fn comes_back_whole(&self, snapshot: &str, to: &str) {
        let (source, to) = (self.source(), self.path(to));
        self.ok(&[
            "restore",
            "-r",
            &self.vault,
            "--all-clients",
            snapshot,
            "--path",
            &source,
            "--to",
            to.to_str().unwrap(),
        ]);
        let same = Command::new("diff").arg("-r").args([Path::new(&source), &to]).output().unwrap();
        assert!(same.status.success(), "{same:?}");
        fs::remove_dir_all(to).unwrap();
    }

    fn snapshots(&self) -> Vec<serde_json::Value> {
        let list = self.ok(&["list", "-r", &self.vault, "--all-clients", "--json"]);
        list.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The command line of the tuning guide that this program's users come from, and the options it adds while it measures.
#[test]
fn an_obnam_users_line_saves_over_sftp() {
    let Some(bench) = Bench::remote() else { return };
    let mut seed = 0x5eed_0b4a_u64;
    bench.plant("first", 3 << 20, &mut seed);
    let (vault, source) = (bench.vault.as_str(), bench.source());
    bench.ok(&["-r", vault, "init"]);
    let line = ["-r", vault, "--compress-with=deflate", "--client-name=CLIENT", "backup", &source];
    assert!(bench.ok(&line).contains("snapshot"));
    let rest = &line[2..];
    let tuned = ["-r", vault, "--lru-size", "1024", "--upload-queue-size", "512", "--quiet"];
    assert_eq!(bench.ok(&[&tuned[..], rest].concat()), "");
    let told = bench.ok(&[&["-r", vault, "--verbose"][..], rest].concat());
    assert!(told.contains("scanned ") && told.contains("kB"), "{told}");
    let snapshots = bench.snapshots();
    assert_eq!(snapshots.len(), 3);
    assert!(snapshots.iter().all(|one| one["hostname"] == "CLIENT"), "{snapshots:?}");
    bench.comes_back_whole("latest", "out");
    assert!(bench.ok(&["-r", vault, "--client-name=CLIENT", "generations"]).contains("CLIENT"));
}

/// A search over a line finds how much of the vault is to be kept here, keeps it, and leaves nothing on the host.
#[test]
fn a_search_finds_the_tree_cache_of_a_vault_elsewhere() {
    let Some(bench) = Bench::remote() else { return };
    let mut seed = 0x5eed_07e5_u64;
    bench.plant("first", 64 << 10, &mut seed);
    let (vault, source) = (bench.vault.as_str(), bench.source());
    bench.ok(&["init", "-r", vault]);
    let tune = ["tune", "-r", vault, "--json", "--scenario", "nochange", &source];
    let told = bench.command(&tune).env("XDG_CONFIG_HOME", bench.path("config")).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    let text = String::from_utf8(told.stdout).unwrap();
    let told: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (chosen, tried) = told.split_last().unwrap();
    let best = tried.iter().find(|one| one["setting"] == "tree-cache" && one["best"] == true);
    let best = best.unwrap()["value"].as_u64().unwrap();
    let options = chosen["options"].as_str().unwrap();
    assert!(options.contains(&format!("--tree-cache {best} MiB")), "{options}");
    let kept = fs::read(chosen["written_to"].as_str().unwrap()).unwrap();
    let kept: serde_json::Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept["tree_cache_mib"], best);
    let names = fs::read_dir(bench.path("vault")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["repo"]);
    assert!(bench.snapshots().is_empty());
}

/// Clients that save at once share the vault; one of them is forgotten, and the others stay whole.
#[test]
fn several_clients_save_at_once_and_one_is_forgotten() {
    let Some(bench) = Bench::remote() else { return };
    let mut seed = 0x5eed_0c11_u64;
    bench.plant("shared", 2 << 20, &mut seed);
    let (vault, source) = (bench.vault.as_str(), bench.source());
    bench.ok(&["init", "-r", vault]);
    let clients = ["ann", "ben", "cid"];
    let save = |client: &str| {
        let mut save = bench.command(&["save", "-r", vault, "--client-name", client, &source]);
        save.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for running in clients.map(save) {
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    // What one of them brought is there for all.
    let again = bench.ok(&["save", "-r", vault, "--client-name", "dan", "--json", &source]);
    let summary: serde_json::Value = serde_json::from_str(again.lines().last().unwrap()).unwrap();
    assert_eq!(summary["data_blobs"], 0, "{again}");
    let of = |client: &str| {
        let snapshots = bench.snapshots();
        let found = snapshots.iter().find(|one| one["hostname"] == client);
        found.map(|one| one["id"].as_str().unwrap().to_owned())
    };
    bench.ok(&["forget", "-r", vault, &of("ann").unwrap(), "--prune", "--grace", "0s"]);
    bench.ok(&["check", "-r", vault, "--read-data"]);
    assert!(of("ann").is_none());
    for client in ["ben", "cid", "dan"] {
        bench.comes_back_whole(&of(client).unwrap(), "out");
    }
}

/// A vault that is opened append-only takes new snapshots and gives none away.
#[test]
fn nothing_is_removed_append_only() {
    let Some(bench) = Bench::remote() else { return };
    let mut seed = 0x5eed_0a99_u64;
    bench.plant("file", 1000, &mut seed);
    let (vault, source) = (bench.vault.as_str(), bench.source());
    bench.ok(&["init", "-r", vault]);
    bench.ok(&["save", "-r", vault, "--append-only", &source]);
    for words in
        [["forget", "latest"].as_slice(), &["forget", "--keep", "1", "--prune"], &["prune"]]
    {
        let refused = bench.run(&[words, &["-r", vault, "--append-only"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("append-only"), "{refused:?}");
    }
    assert_eq!(bench.snapshots().len(), 1);
    assert_eq!(fs::read_dir(bench.path("vault/repo/locks")).unwrap().count(), 0);
}

fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(3)
}

/// Returns the number of files below a folder.
fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

fn killed_saves_cost_nothing(bench: &Bench, mut seed: u64) {
    let (vault, source) = (bench.vault.as_str(), bench.source());
    bench.ok(&["init", "-r", vault]);
    bench.plant("first", 1 << 20, &mut seed);
    bench.ok(&["save", "-r", vault, &source]);
    let mut with_lock = 0;
    for round in 0..kills() {
        bench.plant(&format!("file{}", round % 7), 1 << 20, &mut seed);
        let mut save = bench.command(&["save", "-r", vault, &source]);
        let mut child = save.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // At its start, or when it has locked the vault and written some of its files.
        let written = files_below(&bench.path("vault/repo")) + next(&mut seed) as usize % 5;
        wait_until("the save writes", || {
            files_below(&bench.path("vault/repo")) >= written || child.try_wait().unwrap().is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let locks = fs::read_dir(bench.path("vault/repo/locks")).unwrap().count();
        with_lock += usize::from(locks > 0);
        bench.ok(&["check", "-r", vault, "--read-data"]);
        bench.ok(&["save", "-r", vault, &source]);
        bench.comes_back_whole("latest", "out");
    }
    // A prune needs the vault alone: what the dead have left does not hold it up.
    bench.ok(&["prune", "-r", vault, "--grace", "0s"]);
    eprintln!("{} kills, {with_lock} with the lock held: nothing lost", kills());
}

#[test]
fn saves_into_a_folder_are_killed_and_nothing_is_lost() {
    killed_saves_cost_nothing(&Bench::local(), 0x5eed_0001);
}

#[test]
fn saves_over_sftp_are_killed_and_nothing_is_lost() {
    let Some(bench) = Bench::remote() else { return };
    killed_saves_cost_nothing(&bench, 0x5eed_0002);
    drop(bench.sshd);
}
