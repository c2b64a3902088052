//! Promise: a service manager starts the roles, hands them sockets, and is told what they do.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::program::{Running, free_address, get, run, run_ok, tympan};

/// A service manager, as far as a service sees one.
struct ServiceManager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl ServiceManager {
    fn listen(dir: &Path) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        // As long as the suite waits for a program.
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        Self { socket, path }
    }

    /// Returns the lines of the next message that has one with this beginning.
    fn wait_for(&self, beginning: &str) -> Vec<String> {
        let mut bytes = [0; 4096];
        loop {
            let length = self.socket.recv(&mut bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            if lines.iter().any(|line| line.starts_with(beginning)) {
                return lines;
            }
        }
    }

    /// Starts the program with a listening socket as descriptor 3, as a service manager passes it.
    fn start(&self, socket: TcpListener, arguments: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command
            .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null"])
            .arg(tympan().get_program())
            .args(arguments)
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", "200000")
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stderr(Stdio::piped());
        Running::start_command(command)
    }
}

fn send_signal(running: &Running, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A socket that this process binds, and goes on holding.
fn bound_socket() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Follows a role through its life: ready, alive, reloading, stopping.
fn follow_life(dir: &Path, running: Running, manager: &ServiceManager, address: SocketAddr) {
    let ready = manager.wait_for("READY=1");
    assert!(ready.iter().any(|line| line.starts_with("STATUS=")), "{ready:?}");
    assert_ne!(get(address, "/").status, 0, "it serves on the passed socket");
    manager.wait_for("WATCHDOG=1");
    send_signal(&running, Signal::HUP);
    let reloading = manager.wait_for("RELOADING=1");
    assert!(reloading.iter().any(|line| line.starts_with("MONOTONIC_USEC=")), "{reloading:?}");
    manager.wait_for("READY=1");
    send_signal(&running, Signal::TERM);
    manager.wait_for("STOPPING=1");
    assert!(running.stop(), "{}", dir.display());
}

#[test]
fn an_instance_serves_on_a_passed_socket_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let manager = ServiceManager::listen(dir.path());
    let (socket, address) = bound_socket();
    // This process goes on holding the socket, so that the program could not bind the address.
    let passed = socket.try_clone().unwrap();
    let home = dir.path().join("publish");
    let (home, listen) = (home.to_str().unwrap(), address.to_string());
    let running = manager.start(passed, &["publish", "--home", home, "--listen", &listen]);
    follow_life(dir.path(), running, &manager, address);
}

#[test]
fn a_dispatcher_takes_its_address_from_the_home_and_the_socket_of_that_address() {
    let dir = tempfile::tempdir().unwrap();
    let manager = ServiceManager::listen(dir.path());
    let (socket, address) = bound_socket();
    let home = dir.path().join("dispatcher");
    std::fs::create_dir(&home).unwrap();
    let render = free_address().port();
    let config = format!(
        "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{render}\" }} }}\n\
         /filter {{ /1 {{ /type \"deny\" /url \"*\" }} }} }} }}\n"
    );
    std::fs::write(home.join("dispatcher.any"), config).unwrap();
    std::fs::write(home.join("tympan.toml"), format!("[listen]\naddress = \"{address}\"\n"))
        .unwrap();
    let passed = socket.try_clone().unwrap();
    let running = manager.start(passed, &["dispatcher", "--home", home.to_str().unwrap()]);
    follow_life(dir.path(), running, &manager, address);
}

#[test]
fn unit_files_start_the_program_that_prints_them() {
    let unit = run_ok(&["service", "print", "author"]);
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_tympan")).unwrap();
    let start = format!("ExecStart={} author --home /var/lib/tympan/author-%i", program.display());
    assert!(unit.lines().any(|line| line == start), "{unit}");
    assert_eq!(run(&["service", "print", "author", "--user", "a b"]).status.code(), Some(2));
    // The service manager's own check, where it is installed.
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for role in ["author", "publish", "dispatcher"] {
        let user = rustix::process::getuid().as_raw().to_string();
        let file = dir.path().join(format!("tympan-{role}@.service"));
        std::fs::write(&file, run_ok(&["service", "print", role, "--user", &user])).unwrap();
        files.push(dir.path().join(format!("tympan-{role}@main.service")));
        std::os::unix::fs::symlink(&file, files.last().unwrap()).unwrap();
    }
    match Command::new("systemd-analyze").arg("verify").args(&files).output() {
        Ok(checked) => {
            let said = String::from_utf8_lossy(&checked.stderr);
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("tympan-")).collect();
            // Its manual is installed with the package.
            let faults: Vec<_> = ours.iter().filter(|line| !line.contains("man ")).collect();
            assert!(faults.is_empty(), "{faults:?}");
        }
        Err(error) => eprintln!("SKIPPED: unit files were not verified: systemd-analyze: {error}"),
    }
}

#[test]
fn completions_and_man_pages_are_of_all_commands() {
    let script = run_ok(&["completions", "bash"]);
    assert!(script.contains("--admin-listen") && script.contains("restore-path"));
    let dir = tempfile::tempdir().unwrap();
    run_ok(&["man-pages", dir.path().to_str().unwrap()]);
    for page in ["tympan.1", "tympan-author.1", "tympan-backup-save.1", "tympan-repo-gc.1"] {
        assert!(dir.path().join(page).is_file(), "{page}");
    }
    assert!(!dir.path().join("tympan-read-pdf.1").exists(), "an internal command");
    let checked = Command::new("bash").args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).spawn();
    let mut checked = checked.unwrap();
    std::io::Write::write_all(&mut checked.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(checked.wait().unwrap().success(), "bash reads the script");
}

#[test]
fn settings_are_shown_with_their_origin() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap();
    let file = dir.path().join("tympan.toml");
    std::fs::write(
        &file,
        "[database]\nurl = \"postgres://u:hunter2@h/d\"\n[listen]\nmax_header = \"8 KiB\"\n",
    )
    .unwrap();
    let shown = run_ok(&["config", "show", "--home", home, "--listen", "127.0.0.1:4600"]);
    let line =
        |key: &str| shown.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
    assert!(line("listen.max_header").contains(&format!("\"8 KiB\"  # {}:4", file.display())));
    assert!(line("listen.address").contains("\"127.0.0.1:4600\"  # option --listen"));
    assert!(line("listen.header_timeout").contains("60 s  # default"));
    assert!(!shown.contains("hunter2"), "{shown}");
    let changed = run_ok(&["config", "show", "--home", home, "--changed", "--json"]);
    assert_eq!(changed.matches("\"key\"").count(), 2, "{changed}");
    let other = tympan()
        .args(["config", "show", "--home", home])
        .env("TYMPAN_DATABASE", "postgres://other/d")
        .output()
        .unwrap();
    let other = String::from_utf8_lossy(&other.stdout).into_owned();
    assert!(
        other.contains("database.url = \"postgres://other/d\"  # environment TYMPAN_DATABASE"),
        "{other}"
    );
    let explained = run_ok(&["config", "explain", "listen.max_header"]);
    assert!(
        explained.contains("type:    size") && explained.contains("default: 64 KiB"),
        "{explained}"
    );
    let unknown = run(&["config", "explain", "listen.max_headers"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("did you mean `listen.max_header`?"));
    assert!(run_ok(&["config", "check", "--home", home]).ends_with("0 errors, 0 warnings\n"));
    std::fs::write(&file, "[listen]\nmax_headers = \"8 KiB\"\n").unwrap();
    assert_eq!(run(&["config", "check", "--home", home]).status.code(), Some(1));
}

#[test]
fn the_doctor_names_what_prevents_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("author");
    let (socket, address) = bound_socket();
    let arguments =
        ["doctor", "--home", home.to_str().unwrap(), "--listen", &address.to_string(), "--json"];
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is used by another program") && said.contains("ss -ltnp"), "{said}");
    assert!(!home.exists(), "it changes nothing");
    drop(socket);
    std::fs::create_dir(&home).unwrap();
    std::fs::write(
        home.join("tympan.toml"),
        "[database]\nurl = \"postgres://u:secret@127.0.0.1:1/d\"\n",
    )
    .unwrap();
    std::fs::write(home.join("home-format"), "7 9.9.9\n").unwrap();
    let said = String::from_utf8_lossy(&run(&arguments).stdout).into_owned();
    for fact in ["release 9.9.9 wrote", "cannot connect to the database", "\"check\": \"disk\""] {
        assert!(said.contains(fact), "`{fact}` is missing: {said}");
    }
    assert!(!said.contains("secret"), "{said}");
    let start = run(&["author", "--home", home.to_str().unwrap()]);
    assert_eq!(start.status.code(), Some(2), "{start:?}");
}
