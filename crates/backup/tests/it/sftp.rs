//! Vaults on another machine over SFTP: connections that break in every phase, hosts that are not who they were, servers
//! that only read, links that are slow, and the stock restic beside.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tympan_backup::{
    BackupProgress, CheckDepth, ClientFilter, Error, IndexedVault, SaveOptions, SaveSession,
    SftpBackend, SftpOptions, UnknownHostPolicy, Vault, VaultBackend, VaultFileKind, VaultIndex,
    VaultLock, VaultLockMode, VaultObjectId, VaultOpening, VaultUser, check_vault, find_path,
    restore_snapshot, save_directories,
};
use tympan_testkit::cutting_proxy::CuttingProxy;
use tympan_testkit::delay_proxy::DelayProxy;

use crate::remote::Host;
use crate::vault_bench::{COST, PASSWORD, describe, noise, now, plant, prune_vault, save};

fn init(backend: SftpBackend) -> Result<Arc<Vault>, Error> {
    let by = (&VaultUser::this_process(), now());
    Vault::init(Arc::new(backend), PASSWORD.as_bytes(), COST, by).map(Arc::new)
}

fn open(backend: Arc<SftpBackend>) -> Result<Arc<Vault>, Error> {
    Vault::open(backend, PASSWORD.as_bytes()).map(Arc::new)
}

/// Restores what was the source of the last snapshot, and compares.
fn comes_back_whole(vault: &Arc<Vault>, host: &Host, to: &str) {
    let index = tympan_backup::VaultIndex::load(vault).unwrap();
    let latest = vault.find_snapshot("latest", &ClientFilter::All).unwrap();
    let path = host.path("source").display().to_string();
    let node = find_path(vault, &index, &latest, &path).unwrap();
    let options = tympan_backup::RestoreOptions::default();
    let to = host.path(to);
    restore_snapshot(
        IndexedVault::new(vault, &index),
        &node,
        &to,
        &options,
        &BackupProgress::default(),
    )
    .unwrap();
    assert_eq!(describe(&to), describe(&host.path("source")));
}

/// Runs the stock restic over its own SSH; nothing, said aloud, where there is none.
fn restic(host: &Host, vault: &str, arguments: &[&str]) -> Option<std::process::Output> {
    let at = host.sshd.addr();
    let ssh = format!(
        "ssh -p {} -i {} -o UserKnownHostsFile={} -o IdentitiesOnly=yes -F none {}@{} -s sftp",
        at.port(),
        host.sshd.user_key().display(),
        host.sshd.write_known_hosts(at).display(),
        host.sshd.user(),
        at.ip()
    );
    let place = format!("sftp:{}@{}:{}", host.sshd.user(), at.ip(), host.path(vault).display());
    let mut command = Command::new("restic");
    command.args(["--no-cache", "-o", &format!("sftp.command={ssh}"), "-r", &place]);
    let output = command.args(arguments).env("RESTIC_PASSWORD", PASSWORD).output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("skipped: this machine has no restic");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn restic_checks_and_prunes_what_was_saved_over_sftp() {
    let Some(host) = Host::start("") else { return };
    plant(&host.path("source"));
    let vault = init(host.backend("vault")).unwrap();
    save(&vault, &[host.path("source")]).unwrap();
    fs::write(host.path("source/later"), noise(2 << 20, 3)).unwrap();
    save(&vault, &[host.path("source")]).unwrap();
    comes_back_whole(&vault, &host, "out");
    for arguments in [["check", "--read-data"].as_slice(), &["forget", "latest", "--prune"]] {
        let Some(output) = restic(&host, "vault", arguments) else { return };
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let report = check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();
    assert!(report.faults.is_empty() && report.snapshots == 1, "{report:?}");
    prune_vault(&vault).unwrap();
}

/// Cuts the connection after ever more bytes of a save, wherever that falls.
#[test]
fn a_connection_that_breaks_in_any_phase_is_made_again() {
    let Some(host) = Host::start("") else { return };
    plant(&host.path("source"));
    drop(init(host.backend("vault")).unwrap());
    let backend = |link: &CuttingProxy| {
        let at = link.addr();
        Arc::new(host.backend_at(at, "vault", host.options(at)))
    };
    // Something new in each round, so that there is something to write.
    let change =
        |round| fs::write(host.path("source/changing"), noise(1 << 20, 50 + round)).unwrap();
    let mut sent = 0;
    for round in 100..102 {
        change(round);
        let whole = CuttingProxy::start(host.sshd.addr(), &[]);
        save(&open(backend(&whole)).unwrap(), &[host.path("source")]).unwrap();
        sent = whole.sent_bytes();
    }
    let (mut reconnected, rounds) = (0, 5);
    for round in 0..rounds {
        change(round);
        // The first connection gets through its handshake; the ones after it break too, each later than the one before.
        let first = 6_000 + (sent - 6_000) * round / rounds;
        let link = CuttingProxy::start(host.sshd.addr(), &[first, 30_000 + 2_000 * round]);
        let backend = backend(&link);
        let vault = open(backend.clone()).unwrap();
        let saved = save(&vault, &[host.path("source")]).unwrap();
        assert!(saved.faults.is_empty());
        assert!(link.cut_count() == 0 || backend.reconnects() > 0, "after {first} bytes");
        reconnected += backend.reconnects();
    }
    assert!(reconnected >= rounds, "{reconnected} connections were made again");
    let vault = open(Arc::new(host.backend("vault"))).unwrap();
    comes_back_whole(&vault, &host, "out");
    prune_vault(&vault).unwrap();
    let report = check_vault(&vault, CheckDepth::Data, &BackupProgress::default()).unwrap();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    assert_eq!(fs::read_dir(host.path("vault/locks")).unwrap().count(), 0);
}

/// A host that cannot be reached at all is said at once, and one that goes away for good when the patience is over.
#[test]
fn a_host_that_is_gone_is_reported() {
    let Some(host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let nobody = tympan_testkit::origin_server::refusing_addr();
    let options = SftpOptions { retry_timeout: Duration::from_secs(3600), ..host.options(nobody) };
    let refused = open(Arc::new(host.backend_at(nobody, "vault", options))).unwrap_err();
    assert!(matches!(refused, Error::Backend { .. }), "{refused:?}");

    // Every connection after the first one is cut before it can do anything.
    let link =
        CuttingProxy::start(host.sshd.addr(), &[60_000, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    let options =
        SftpOptions { retry_timeout: Duration::from_millis(500), ..host.options(link.addr()) };
    let backend = host.backend_at(link.addr(), "vault", options);
    assert!(backend.contains(VaultFileKind::Config, &VaultObjectId::default()).unwrap());
    let bytes = noise(1 << 20, 1);
    let id = VaultObjectId::of(&bytes);
    let lost = backend.write(VaultFileKind::Pack, &id, &bytes).unwrap_err();
    assert_ne!(lost.kind(), ErrorKind::NotFound, "{lost}");
    assert!(!host.backend("vault").contains(VaultFileKind::Pack, &id).unwrap(), "nothing in part");
}

fn refusal(host: &Host, options: SftpOptions) -> String {
    let at = host.sshd.addr();
    let error = open(Arc::new(host.backend_at(at, "vault", options))).unwrap_err();
    let Error::Backend { source, .. } = &error else { panic!("{error:?}") };
    source.to_string()
}

#[test]
fn a_host_with_another_key_is_refused_and_an_unknown_one_unless_asked_for() {
    let Some(mut host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let at = host.sshd.addr();
    let unknown = vec![host.path("none/known_hosts")];
    let strict = SftpOptions { known_hosts: unknown.clone(), ..host.options(at) };
    let said = refusal(&host, strict.clone());
    assert!(said.contains("is not known") && said.contains("SHA256:"), "{said}");
    assert!(!host.path("none").exists());

    // Asked for, the key is recorded, and from then on it is known.
    let learning = SftpOptions { unknown_host: UnknownHostPolicy::Record, ..strict.clone() };
    open(Arc::new(host.backend_at(at, "vault", learning.clone()))).unwrap();
    let line = fs::read_to_string(host.path("none/known_hosts")).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    open(Arc::new(host.backend_at(at, "vault", strict.clone()))).unwrap();

    host.sshd.change_host_key();
    for options in [strict, learning] {
        let said = refusal(&host, options);
        assert!(said.contains("line 1") && said.contains("has a different key"), "{said}");
    }
    assert_eq!(fs::read_to_string(host.path("none/known_hosts")).unwrap(), line);
}

#[test]
fn a_user_without_a_fitting_key_gets_the_list_of_tried_keys() {
    let Some(host) = Host::start("") else { return };
    let other = host.path("other");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&other)
        .status();
    assert!(made.unwrap().success());
    let locked = host.path("locked");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "secret", "-f"])
        .arg(&locked)
        .status();
    assert!(made.unwrap().success());
    let keys = vec![other, locked, host.path("missing")];
    let said = refusal(&host, SftpOptions { keys, ..host.options(host.sshd.addr()) });
    assert!(
        said.contains("other") && said.contains("ssh-add") && said.contains("missing"),
        "{said}"
    );
}

/// Keys that nothing names: the usual files, and those that an agent holds.
#[test]
fn keys_come_from_the_usual_files_and_from_the_agent() {
    let Some(host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let at = host.sshd.addr();
    let bare = SftpOptions { keys: Vec::new(), ..host.options(at) };
    let usual = SftpOptions { default_keys: vec![host.sshd.user_key()], ..bare.clone() };
    open(Arc::new(host.backend_at(at, "vault", usual))).unwrap();
    assert!(refusal(&host, bare.clone()).contains("none of these keys"));

    let socket = host.path("agent");
    let mut agent = Command::new("ssh-agent");
    let agent = agent.args(["-D", "-a"]).arg(&socket).stdout(std::process::Stdio::null()).spawn();
    let mut agent = agent.unwrap();
    while !socket.exists() {
        assert!(agent.try_wait().unwrap().is_none(), "the agent has ended");
        std::thread::yield_now();
    }
    let added = Command::new("ssh-add")
        .arg(host.sshd.user_key())
        .env("SSH_AUTH_SOCK", &socket)
        .stderr(std::process::Stdio::null())
        .status();
    assert!(added.unwrap().success());
    let asked = SftpOptions { agent: Some(socket), ..bare };
    let opened = open(Arc::new(host.backend_at(at, "vault", asked)));
    agent.kill().unwrap();
    agent.wait().unwrap();
    opened.unwrap();
}

#[test]
fn a_target_that_only_reads_is_reported_and_what_it_holds_is_restored() {
    let Some(writing) = Host::start("") else { return };
    plant(&writing.path("source"));
    let vault = init(writing.backend("vault")).unwrap();
    save(&vault, &[writing.path("source")]).unwrap();
    let Some(reading) = Host::start("-R") else { return };
    let at = reading.sshd.addr();
    let place = |name: &str| {
        let place = format!("sftp://{at}{}", writing.path(name).display());
        let address = tympan_backup::SftpAddress::parse(&place).unwrap().unwrap();
        SftpBackend::new(&place, address, reading.options(at)).unwrap()
    };
    let vault = open(Arc::new(place("vault"))).unwrap();
    let refused = save(&vault, &[writing.path("source")]).unwrap_err();
    let Error::Backend { source, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!(source.kind(), ErrorKind::PermissionDenied, "{refused:?}");
    assert!(init(place("another")).is_err());
    comes_back_whole(&vault, &writing, "out");
}

/// What a crash has left goes, once it is old enough that nobody can be writing it.
#[test]
fn leftovers_are_swept_by_a_prune() {
    let Some(host) = Host::start("") else { return };
    let vault = init(host.backend("vault")).unwrap();
    let (old, fresh) = (host.path("vault/tmp/old"), host.path("vault/tmp/fresh"));
    // By the clock of the tests, which is ahead.
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(86_400);
    for (file, modified) in [(&old, long_ago), (&fresh, now().into())] {
        fs::write(file, "half").unwrap();
        fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
    }
    prune_vault(&vault).unwrap();
    assert!(!old.exists(), "an old one stays");
    assert!(fresh.exists(), "a fresh one goes");
}

/// Files of a vault are for their owner alone.
#[test]
fn files_there_are_readable_by_their_owner_only() {
    let Some(host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let mode = |name: &str| fs::metadata(host.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("vault"), mode("vault/data/00"), mode("vault/config")), (0o700, 0o700, 0o600));
}

/// A round trip is paid for a file, and not for each of its pieces: of 200 pieces, far fewer turns are taken.
#[test]
fn a_slow_link_is_filled() {
    let Some(host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let link = DelayProxy::start(host.sshd.addr(), Duration::from_millis(60));
    let at: SocketAddr = link.addr();
    let backend = host.backend_at(at, "vault", host.options(at));
    assert!(backend.contains(VaultFileKind::Config, &VaultObjectId::default()).unwrap());
    let bytes = noise(200 * (32 << 10), 4);
    let id = VaultObjectId::of(&bytes);
    backend.write(VaultFileKind::Pack, &id, &bytes).unwrap();
    assert!(backend.read(VaultFileKind::Pack, &id).unwrap() == bytes);
    assert_eq!(link.connection_count(), 1);
}

/// Opens a vault as a save does, with what is kept of it.
fn open_to_save(host: &Host, at: SocketAddr, password: &[u8]) -> Result<Arc<Vault>, Error> {
    let backend = Arc::new(host.backend_at(at, "vault", host.options(at)));
    let keys = host.path("kept/keys");
    let who = VaultUser::this_process();
    let opening = VaultOpening { key_cache_dir: Some(&keys), saving_user: Some(&who) };
    let mut vault = Vault::open_with(backend, password, opening)?;
    vault.enable_cache(&host.path("kept"), 64 << 20).unwrap();
    Ok(Arc::new(vault))
}

/// A whole save: lock, index, one snapshot, unlock.
fn save_far(host: &Host, at: SocketAddr) {
    let vault = open_to_save(host, at, PASSWORD.as_bytes()).unwrap();
    let who = VaultUser::this_process();
    let lock = VaultLock::acquire(&vault, &who, VaultLockMode::Shared, Duration::ZERO).unwrap();
    let index = Arc::new(VaultIndex::load_locked(&vault, &lock).unwrap());
    let progress = BackupProgress::default();
    let session = SaveSession::new(&vault, &index, &lock, &progress);
    let saved =
        save_directories(&session, &[host.path("source")], &SaveOptions::new(who, now())).unwrap();
    assert!(saved.written.pieces > 0 && saved.faults.is_empty(), "{saved:?}");
}

fn names_in(folder: &std::path::Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

/// Seven or eight round trips let the user in and open a channel, two list keys and locks, read the vault's facts and write
/// a lock, one names it and lists locks, index and snapshots, one writes packs, index and snapshot, one each names packs,
/// index and snapshot, and one unlocks.
#[test]
fn a_save_of_one_file_waits_for_few_round_trips() {
    let Some(host) = Host::start("") else { return };
    plant(&host.path("source"));
    drop(init(host.backend("vault")).unwrap());
    let link = DelayProxy::start(host.sshd.addr(), Duration::from_millis(100));
    // The first one keeps key, index and snapshot here.
    save_far(&host, link.addr());
    let before = link.sequential_round_trips();
    fs::write(host.path("source/one"), noise(1000, 8)).unwrap();
    save_far(&host, link.addr());
    let trips = link.sequential_round_trips() - before;
    println!("{trips} round trips, and {before} before");
    // 15, and one each where the host takes longer to sync a file or to begin than the line does to come back.
    assert!((10..=19).contains(&trips), "{trips} round trips");
    assert_eq!(link.connection_count(), 2);
    assert!(names_in(&host.path("vault/tmp")).is_empty(), "what was prepared is gone");
    assert!(names_in(&host.path("vault/locks")).is_empty());
    comes_back_whole(&open(Arc::new(host.backend("vault"))).unwrap(), &host, "out");
}

/// A key that is kept here opens a vault only while the vault has it, and nothing is written for who knows no password.
#[test]
fn a_stored_key_opens_only_what_still_has_it() {
    let Some(host) = Host::start("") else { return };
    let at = host.sshd.addr();
    drop(init(host.backend("vault")).unwrap());
    let by = VaultUser::this_process();
    drop(open_to_save(&host, at, PASSWORD.as_bytes()).unwrap());
    assert_eq!(names_in(&host.path("kept/keys")).len(), 1);
    let mut vault = Vault::open(Arc::new(host.backend("vault")), PASSWORD.as_bytes()).unwrap();
    vault.change_password(b"another", COST, (&by, now())).unwrap();
    let prepared = names_in(&host.path("vault/tmp")).len();
    for password in [PASSWORD.as_bytes(), b"never"] {
        let refused = open_to_save(&host, at, password);
        assert!(matches!(refused, Err(Error::WrongPassword)), "{refused:?}");
        assert_eq!(names_in(&host.path("vault/tmp")).len(), prepared, "nothing is left behind");
    }
    drop(open_to_save(&host, at, b"another").unwrap());
    drop(open_to_save(&host, at, b"another").unwrap());
    // What is kept may be damaged; the vault's own is whole.
    for name in names_in(&host.path("kept/keys")) {
        fs::write(host.path("kept/keys").join(name), "{}").unwrap();
    }
    drop(open_to_save(&host, at, b"another").unwrap());
}

/// A staged file is there under its name only once it is revealed, over whichever connection, and whatever the host lost.
#[test]
fn a_staged_file_appears_when_it_is_revealed() {
    let Some(host) = Host::start("") else { return };
    drop(init(host.backend("vault")).unwrap());
    let there = host.backend("vault");
    for length in [10, 300 << 10, 3 << 20] {
        let link = CuttingProxy::start(host.sshd.addr(), &[]);
        let backend = host.backend_at(link.addr(), "vault", host.options(link.addr()));
        backend.expect_writes(3);
        let staged: Vec<_> = (0..3)
            .map(|number| {
                let bytes = noise(length, 60 + number);
                backend.stage(VaultFileKind::Pack, &VaultObjectId::of(&bytes), bytes).unwrap()
            })
            .collect();
        let is_there = |staged: &tympan_backup::StagedFile| {
            there.contains(VaultFileKind::Pack, &staged.id()).unwrap()
        };
        assert!(!staged.iter().any(is_there));
        let [first, second, third] = staged.as_slice() else { panic!("{staged:?}") };
        backend.reveal(first).unwrap();
        backend.discard(second);
        backend.expect_no_writes();
        assert_eq!(names_in(&host.path("vault/tmp")).len(), 1, "only the third is left");
        fs::remove_file(host.path("vault/tmp").join(&names_in(&host.path("vault/tmp"))[0]))
            .unwrap();
        backend.reveal(third).unwrap();
        backend.reveal(third).unwrap();
        assert_eq!(staged.iter().map(is_there).collect::<Vec<_>>(), [true, false, true]);
        for staged in [first, third] {
            assert!(there.read(VaultFileKind::Pack, &staged.id()).unwrap() == staged.bytes());
            there.remove(VaultFileKind::Pack, &staged.id()).unwrap();
        }
        assert!(names_in(&host.path("vault/tmp")).is_empty());
    }
}

/// What was fetched or written once is not asked for again, and damage here costs no more than a round trip.
#[test]
fn what_is_cached_here_is_not_fetched_again() {
    let Some(host) = Host::start("") else { return };
    plant(&host.path("source"));
    drop(init(host.backend("vault")).unwrap());
    let kept = host.path("kept");
    let opened = || {
        let backend = Arc::new(host.backend("vault"));
        let mut vault = Vault::open(backend, PASSWORD.as_bytes()).unwrap();
        vault.enable_cache(&kept, 64 << 20).unwrap();
        Arc::new(vault)
    };
    let first = save(&opened(), &[host.path("source")]).unwrap();
    let folders = kept.join(opened().id()).join("folders");
    let names = || -> Vec<_> {
        fs::read_dir(&folders).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    assert_eq!(names().len(), 1, "the pack of folders is kept as it is written");
    // Whatever lies there now, it has to be the same: damaged here, it is fetched.
    for pack in names() {
        let mut bytes = fs::read(&pack).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&pack, bytes).unwrap();
    }
    let again = save(&opened(), &[host.path("source")]).unwrap();
    assert_eq!(again.written.pieces, 0);
    let vault = opened();
    comes_back_whole(&vault, &host, "out");
    // What the vault forgot is forgotten here.
    vault.remove_snapshot(&first.snapshot.id).unwrap();
    vault.read_snapshots().unwrap();
    let snapshots = fs::read_dir(kept.join(vault.id()).join("snapshots")).unwrap().count();
    assert_eq!(snapshots, 1);
}
