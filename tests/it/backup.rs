//! `tympan backup` as people run it: whose the lock is that it leaves when it is killed, what clients of one vault
//! see of each other, and how a mount ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::condition_wait::wait_until;

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

    /// As [`Bench::command`], with the signals that end a program heard, also where the tests run in the background of a
    /// shell, which lets them be ignored.
    fn hearing(&self, word: &str, arguments: &[&str]) -> Command {
        let command = self.command(word, arguments);
        let mut hearing = Command::new("env");
        hearing.arg("--default-signal=INT,HUP").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => hearing.env(name, value),
                None => hearing.env_remove(name),
            };
        }
        hearing
    }

    fn ok(&self, word: &str, arguments: &[&str]) {
        let output = self.command(word, arguments).output().unwrap();
        assert!(output.status.success(), "{word} {arguments:?}: {output:?}");
    }

    /// Counts the packs.
    fn packs(&self) -> usize {
        let folders = fs::read_dir(self.path("vault/data")).unwrap();
        folders.map(|folder| files_in(&folder.unwrap().path())).sum()
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
        wait_until("the save has locked the vault, or ended", || {
            bench.locks() > 0 || child.try_wait().unwrap().is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    bench.ok("prune", &[]);
    assert_eq!(bench.locks(), 0);
}

/// Saves the source for a client, and returns the id of its snapshot.
fn save_for(bench: &Bench, client: &str) -> String {
    let source = bench.source().display().to_string();
    let output = bench.command("save", &["--client-name", client, "--json", &source]).output();
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    summary["snapshot_id"].as_str().unwrap().to_owned()
}

/// What the stock restic sees of a client; nothing, said aloud, where it is not installed.
#[expect(clippy::print_stdout, reason = "a peer that is missing is said aloud")]
fn restic_sees(bench: &Bench, client: &str) -> Option<Vec<String>> {
    let mut restic = Command::new("restic");
    restic.args(["--no-cache", "-r"]).arg(bench.path("vault"));
    restic.args(["snapshots", "--json", "--host", client]).env("RESTIC_PASSWORD", PASSWORD);
    let Ok(output) = restic.output() else {
        println!("skipped: this machine has no restic");
        return None;
    };
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    Some(list.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect())
}

/// Clients of one vault see their own snapshots, and retention counts for each of them: what one forgets is its own.
#[test]
fn clients_see_and_forget_their_own() {
    let bench = Bench::new();
    let said = |word: &str, arguments: &[&str]| {
        let output = bench.command(word, arguments).output().unwrap();
        assert!(output.status.success(), "{word} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    fs::write(bench.source().join("whose"), "staging").unwrap();
    let staging = [save_for(&bench, "staging"), save_for(&bench, "staging")];
    fs::write(bench.source().join("whose"), "production").unwrap();
    let production = [save_for(&bench, "production"), save_for(&bench, "production")];
    let whose = bench.source().join("whose").display().to_string();
    for client in ["staging", "production"] {
        let named = ["--client-name", client, "latest", &whose];
        assert_eq!(said("dump", &named), client);
        let list = said("list", &["--host", client, "--json"]);
        assert_eq!(list.lines().count(), 2, "{list}");
    }
    assert_eq!(said("list", &["--all-clients", "--json"]).lines().count(), 4);
    let clients = said("clients", &[]);
    assert!(clients.contains("production: 2") && clients.contains("staging: 2"), "{clients}");

    // This host has saved nothing: it is told who has, and a rule finds nothing to remove.
    let nothing = bench.command("dump", &["latest", &whose]).output().unwrap();
    let told = String::from_utf8_lossy(&nothing.stderr).into_owned();
    assert_eq!(nothing.status.code(), Some(2), "{told}");
    assert!(told.contains("`production`, `staging`") && told.contains("--host"), "{told}");
    let kept = said("forget", &["--keep", "1"]);
    assert!(kept.contains("0 of 0") && kept.contains("4 of other clients"), "{kept}");

    // One client thins out its own; the other client's stay, as restic sees too.
    said("forget", &["--client-name", "staging", "--keep", "1", "--prune", "--grace", "0s"]);
    if let Some(left) = restic_sees(&bench, "staging") {
        assert_eq!(left, staging[1..]);
        assert_eq!(restic_sees(&bench, "production").unwrap(), production);
    }
    // A rule over all counts for each of them.
    said("forget", &["--all-clients", "--keep", "1"]);
    let left = said("list", &["--all-clients", "--json"]);
    let is_there = |id: &String| left.contains(id.as_str());
    assert_eq!(left.lines().count(), 2, "{left}");
    assert!(is_there(&staging[1]) && is_there(&production[1]), "{left}");
    bench.ok("check", &["--read-data"]);
    let out = bench.path("out").display().to_string();
    said("restore", &["--host", "production", "latest", "--path", &whose, "--to", &out]);
    assert_eq!(fs::read_to_string(bench.path("out/whose")).unwrap(), "production");
}

/// A mount ends with Ctrl-C, and leaves nothing mounted.
#[test]
fn a_mount_ends_when_it_is_interrupted() {
    use std::io::BufRead;
    let bench = Bench::new();
    fs::write(bench.source().join("file"), "text").unwrap();
    bench.ok("save", &[bench.source().to_str().unwrap()]);
    let dir = bench.path("mount");
    fs::create_dir(&dir).unwrap();
    let mut command = bench.hearing("mount", &[dir.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("cannot mount at"), "{told}");
        println!("skipped: {told}");
        return;
    }
    let file = dir.join("snapshots/latest").join(bench.source().strip_prefix("/").unwrap());
    assert_eq!(fs::read_to_string(file.join("file")).unwrap(), "text");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert_eq!(bench.locks(), 0);
}

/// With a wrong password each command ends with 12 and writes nothing; a password has no place among the words of a command.
#[test]
fn a_wrong_password_ends_each_command_with_its_own_code() {
    let bench = Bench::new();
    let source = bench.source().display().to_string();
    fs::write(bench.source().join("file"), "text").unwrap();
    bench.ok("save", &[&source]);
    let all = || {
        let find =
            Command::new("find").arg(bench.path("vault")).args(["-printf", "%p %T@ %s\n"]).output();
        String::from_utf8(find.unwrap().stdout).unwrap()
    };
    let before = all();
    let dir = bench.path("dir").display().to_string();
    fs::create_dir(&dir).unwrap();
    let secret = bench.path("other secret").display().to_string();
    fs::write(&secret, "other").unwrap();
    let commands: [(&str, &[&str]); 16] = [
        ("save", &[&source]),
        ("list", &[]),
        ("clients", &[]),
        ("ls", &["latest"]),
        ("find", &["*"]),
        ("dump", &["latest", "/x"]),
        ("restore", &["latest", "--to", &dir]),
        ("verify", &[]),
        ("forget", &["--keep", "1", "--prune"]),
        ("prune", &[]),
        ("check", &[]),
        ("repair", &[]),
        ("stats", &[]),
        ("mount", &[&dir]),
        ("key", &["add", "--new-password-file", &secret]),
        ("unlock", &["--remove-all"]),
    ];
    for (word, arguments) in commands {
        let mut command = bench.command(word, arguments);
        let output = command.env("TYMPAN_VAULT_PASSWORD", "wrong").output().unwrap();
        assert_eq!(output.status.code(), Some(12), "{word}: {output:?}");
        // By a file, and by a command that writes it.
        let given: [&[&str]; 2] =
            [&["--password-file", &secret], &["--password-command", "echo wrong"]];
        for option in given {
            let words = if word == "key" {
                [option, arguments].concat()
            } else {
                [arguments, option].concat()
            };
            let output = bench.command(word, &words).output().unwrap();
            assert_eq!(output.status.code(), Some(12), "{word}: {output:?}");
        }
    }
    assert_eq!(all(), before, "something was written");
    let refused = bench.command("list", &["--password", PASSWORD]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
fn files_in(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

/// A service manager ends a save: it gives its lock back, and what is durable is found by the next one.
#[test]
fn an_interrupted_save_leaves_no_lock_and_lists_what_it_stored() {
    let bench = Bench::new();
    let mut seed = 0x5eed_0516_u64;
    for number in 0..32 {
        let file = bench.source().join(format!("file{number}"));
        fs::write(file, noise(1 << 20, &mut seed)).unwrap();
    }
    let source = bench.source().display().to_string();
    // So slow that it is not through when it is told.
    let slowly = ["--upload-queue", "1 MiB", "--limit-upload", "1 MiB", source.as_str()];
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let before = files_in(&bench.path("vault/index"));
        let packs = bench.packs();
        let mut save = bench.hearing("save", &slowly);
        let mut child = save.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("a pack is written", || bench.packs() > packs);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal:?}");
        assert_eq!(bench.locks(), 0, "{signal:?}");
        assert!(files_in(&bench.path("vault/index")) > before, "{signal:?}");
    }
    bench.ok("check", &["--read-data"]);
    let output = bench.command("save", &["--json", &source]).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let summary: serde_json::Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert!(
        summary["data_added"].as_u64().unwrap() < 30 << 20,
        "what was listed is taken over: {summary}"
    );
}

/// Whoever starts a save with `nohup` may go.
#[test]
fn a_hangup_that_is_ignored_ends_nothing() {
    let bench = Bench::new();
    let mut seed = 0x5eed_0517_u64;
    fs::write(bench.source().join("file"), noise(3 << 20, &mut seed)).unwrap();
    let slowly = ["--upload-queue", "1 MiB", "--limit-upload", "1 MiB"];
    let save = bench.command("save", &slowly);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(save.get_program());
    shell.args(save.get_args()).arg(bench.source());
    for (name, value) in save.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let mut child = shell.stdout(Stdio::null()).spawn().unwrap();
    wait_until("the save begins", || bench.locks() > 0);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(bench.locks(), 0);
    assert_eq!(files_in(&bench.path("vault/snapshots")), 1);
}

/// The trials of a search save what is to be saved: nobody else can read it, and nothing of it stays.
#[test]
fn a_search_for_settings_shows_nothing_and_leaves_nothing() {
    let bench = Bench::new();
    let mut seed = 0x5eed_0701_u64;
    for number in 0..32 {
        let file = bench.source().join(format!("file{number}"));
        fs::write(file, noise(1 << 20, &mut seed)).unwrap();
    }
    let source = bench.source().display().to_string();
    let mut tune = bench.command("tune", &["--dry-run", "--limit-upload", "1 MiB", &source]);
    let child = tune.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let trials = bench.path(&format!("vault-tune-{}", child.id()));
    wait_until("a trial begins", || files_in(&trials.join("locks")) > 0);
    for guess in ["trial", PASSWORD] {
        let mut list = tympan();
        list.args(["backup", "list", "-r"]).arg(&trials).env("TYMPAN_VAULT_PASSWORD", guess);
        assert_eq!(list.output().unwrap().status.code(), Some(12), "{guess}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(!trials.exists());
    assert_eq!(bench.locks(), 0);
}

/// What is on a medium that cannot be written is read without a lock.
#[test]
fn a_vault_that_cannot_be_written_is_read() {
    let bench = Bench::new();
    fs::write(bench.source().join("file"), "text").unwrap();
    let source = bench.source().display().to_string();
    bench.ok("save", &[&source]);
    // No lock fits into what is no folder, whoever tries.
    fs::remove_dir(bench.path("vault/locks")).unwrap();
    fs::write(bench.path("vault/locks"), "").unwrap();
    let out = bench.path("out").display().to_string();
    let commands: [(&str, &[&str]); 3] = [
        ("restore", &["latest", "--path", &source, "--to", &out]),
        ("verify", &[]),
        ("check", &["--read-data"]),
    ];
    for (word, arguments) in commands {
        let refused = bench.command(word, arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{word}: {refused:?}");
        bench.ok(word, &[arguments, &["--no-lock"]].concat());
    }
    assert_eq!(fs::read_to_string(bench.path("out/file")).unwrap(), "text");
}

/// A save beside a site knows from its log how long answers took before, and is through by its time.
#[test]
fn a_save_beside_a_site_looks_at_its_log() {
    let bench = Bench::new();
    fs::write(bench.source().join("file"), "text").unwrap();
    let source = bench.source().display().to_string();
    let logs = bench.path("home/logs");
    fs::create_dir_all(&logs).unwrap();
    let mut date = Command::new("date");
    date.args(["-u", "+%d/%b/%Y:%H:%M:%S +0000"]).env("LC_ALL", "C");
    let now = String::from_utf8(date.output().unwrap().stdout).unwrap();
    let line = |number: u64| format!("{} [{number}] <- 200 text/html {number}ms\n", now.trim());
    fs::write(logs.join("request.log"), (11..=30).map(line).collect::<String>()).unwrap();
    let home = bench.path("home").display().to_string();
    let words = ["--json", "--beside", &home, "--finish-within", "1h", &source];
    let output = bench.command("save", &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let gave_way = said.lines().find(|line| line.contains("gave_way")).unwrap();
    let gave_way: serde_json::Value = serde_json::from_str(gave_way).unwrap();
    assert_eq!(gave_way["p95_ms_before"], 29.0, "{gave_way}");
    let nowhere = ["--beside", &source, source.as_str()];
    assert_eq!(bench.command("save", &nowhere).output().unwrap().status.code(), Some(2));
}

/// Programs read one object on each line, and hear what came of it in the last one.
#[test]
fn every_command_speaks_json() {
    let bench = Bench::new();
    fs::write(bench.source().join("file"), "text").unwrap();
    fs::write(bench.path("second"), "another password\n").unwrap();
    let source = bench.source().display().to_string();
    let (second, out) = (bench.path("second"), bench.path("out"));
    let (second, out) = (second.to_str().unwrap(), out.to_str().unwrap());
    let say = |words: &[&str]| {
        let (word, rest) = words.split_first().unwrap();
        let output = bench.command(word, &[&["--json"], rest].concat()).output().unwrap();
        let lines = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let objects = text.lines().map(serde_json::from_str::<serde_json::Value>);
            let objects: Vec<_> = objects.map(|one| one.expect(&text)).collect();
            assert!(objects.iter().all(serde_json::Value::is_object), "{words:?}: {text}");
            objects
        };
        let mut said = lines(&output.stdout);
        said.extend(lines(&output.stderr));
        (output.status.code(), said)
    };
    // What the last line is called; an empty word where lines are records.
    let check = |words: &[&str], message_type: &str| {
        let (code, said) = say(words);
        assert_eq!(code, Some(0), "{words:?}: {said:?}");
        let last = said.last().unwrap_or_else(|| panic!("{words:?} says nothing"));
        let found = last["message_type"].as_str().unwrap_or_default();
        assert_eq!(found, message_type, "{words:?}: {said:?}");
        last.clone()
    };
    check(&["save", &source], "summary");
    fs::write(bench.source().join("more"), "text").unwrap();
    check(&["save", "--verbose", &source], "summary");
    for records in [
        &["list"][..],
        &["clients"],
        &["runs"],
        &["ls", "latest"],
        &["find", "file"],
        &["stats"],
        &["key", "list"],
    ] {
        check(records, "");
    }
    let ids: Vec<String> =
        say(&["list"]).1.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    check(&["diff", &ids[0], &ids[1]], "");
    check(&["estimate", &source], "estimate");
    assert_eq!(check(&["verify"], "summary")["differences"], 0);
    assert_eq!(check(&["check", "--read-data"], "summary")["num_errors"], 0);
    assert_eq!(
        check(&["restore", "latest", "--path", &source, "--to", out], "summary")["items"],
        2
    );
    assert_eq!(check(&["forget", "--keep", "1"], "summary")["kept"], 1);
    check(&["prune"], "pruned");
    check(&["repair"], "repaired");
    let added = check(&["key", "add", "--new-password-file", second], "key_added");
    let removed = check(&["key", "remove", added["id"].as_str().unwrap()], "key_removed");
    assert_eq!(removed["id"], added["id"]);
    assert_eq!(check(&["unlock"], "unlocked")["removed_locks"], 0);
    check(&["key", "passwd", "--new-password-file", second], "password_changed");

    // The password is another one now.
    let (code, said) = say(&["list"]);
    let [failure] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((code, failure["code"].as_u64()), (Some(12), Some(12)), "{failure}");
    assert_eq!(failure["message_type"], "exit_error");
    assert!(failure["message"].as_str().is_some_and(|message| !message.is_empty()));
}

/// A program hears how far a long run is, and ends it.
#[test]
fn a_program_hears_how_far_a_save_is() {
    use std::io::{BufRead, BufReader};
    let bench = Bench::new();
    fs::write(bench.source().join("file"), vec![7; 1 << 20]).unwrap();
    let source = bench.source().display().to_string();
    // It takes a quarter of an hour, of which nobody waits for more than a second.
    let slowly = ["--json", "--limit-read", "1", source.as_str()];
    let mut save = bench.hearing("save", &slowly);
    let mut child = save.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let status: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(status["message_type"], "status", "{status}");
    assert!(status["seconds_elapsed"].as_u64().is_some_and(|seconds| seconds > 0), "{status}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let failure: serde_json::Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert_eq!(
        (&failure["message_type"], failure["code"].as_u64()),
        (&"exit_error".into(), Some(130))
    );
    assert_eq!(bench.locks(), 0);
}

/// A first save is foretold from the files, and the next one from what has changed.
#[test]
fn an_estimate_tells_of_a_first_save_and_of_the_next() {
    let bench = Bench::new();
    let mut seed = 0x5eed_0e57_u64;
    for number in 0..4 {
        fs::write(bench.source().join(format!("file{number}")), noise(1 << 20, &mut seed)).unwrap();
    }
    let source = bench.source().display().to_string();
    bench.ok("save", &[&source]);
    let before = bench.packs();
    fs::write(bench.source().join("file4"), noise(1 << 20, &mut seed)).unwrap();
    let output = bench.command("estimate", &["--json", &source]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let estimate: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let bytes = |which: &str| estimate[which]["data_added_packed"].as_u64().unwrap();
    // Noise does not compress, and little comes to it.
    let about = |mib: u64| (mib << 20)..((mib << 20) + (256 << 10));
    assert!(about(5).contains(&bytes("full")), "{estimate}");
    assert!(about(1).contains(&bytes("next")), "{estimate}");
    assert_eq!(estimate["full"]["items"], 5);
    assert_eq!(estimate["full"]["bytes"], 5 << 20);
    assert_eq!(bench.packs(), before, "nothing is written");
}

/// `latest` is what one save has made, for `verify` and `diff`, too.
#[test]
fn latest_is_verified_and_compared() {
    let bench = Bench::new();
    let source = bench.source();
    let whose = source.to_str().unwrap();
    fs::write(source.join("same"), "same").unwrap();
    fs::write(source.join("changed"), "first").unwrap();
    fs::write(source.join("gone"), "gone").unwrap();
    let said = |word: &str, arguments: &[&str], code: i32| {
        let output = bench.command(word, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{word} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    bench.ok("save", &[whose]);
    let list = said("list", &["--json"], 0);
    let first: serde_json::Value = serde_json::from_str(list.lines().next().unwrap()).unwrap();
    let first = first["id"].as_str().unwrap().to_owned();
    assert!(said("verify", &["latest"], 0).contains("0 differences"));
    assert_eq!(said("diff", &["latest", "latest"], 0), "");

    fs::write(source.join("changed"), "second").unwrap();
    fs::remove_file(source.join("gone")).unwrap();
    fs::write(source.join("new"), "new").unwrap();
    let differs = said("verify", &["latest"], 1);
    assert!(differs.contains("changed") && !differs.contains("same"), "{differs}");
    bench.ok("save", &[whose]);
    assert!(said("verify", &["latest"], 0).contains("0 differences"));
    let compared = said("diff", &[&first, "latest"], 0);
    for (sign, name) in [("M", "changed"), ("-", "gone"), ("+", "new")] {
        let is_said = |line: &str| line.starts_with(sign) && line.ends_with(&format!("/{name}"));
        assert!(compared.lines().any(is_said), "{sign} {name} in {compared}");
    }
    assert!(!compared.contains("/same"), "{compared}");
}
