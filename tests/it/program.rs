//! The program under test: started, asked over HTTP, stopped by its own process id.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::demo_homes::{DemoAddresses, prepare_demo_home};

/// The built program.
pub(crate) fn tympan() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tympan"));
    command.env("TYMPAN_LOG", "warn");
    command
}

/// Returns the command `tympan lab`.
pub(crate) fn lab_command() -> Command {
    require_lab_program();
    let mut command = tympan();
    command.arg("lab");
    command
}

/// Fails unless the lab's program is built beside the program, which starts it for `tympan lab`.
pub(crate) fn require_lab_program() {
    let program = Path::new(env!("CARGO_BIN_EXE_tympan")).with_file_name("tympan-lab");
    assert!(
        program.is_file(),
        "`{}` is missing; build both programs first: `cargo build --bins`",
        program.display()
    );
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    tympan().args(arguments).output().unwrap()
}

/// Runs the program, which must succeed, and returns its standard output.
pub(crate) fn run_ok(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Finds an address that nobody listens on: below the ports that the kernel hands out itself, and another one each time,
/// so that a process that is started anew finds its address free.
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Each process begins elsewhere.
    let start = std::process::id().wrapping_mul(331);
    loop {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + u16::try_from(start.wrapping_add(step) % 20_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A running program that is stopped when the test ends.
pub(crate) struct Running {
    child: Child,
    /// What it wrote until it was ready.
    pub(crate) greeting: String,
}

impl Running {
    /// Starts the program and waits for its word `ready`.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::try_start(arguments)
            .unwrap_or_else(|output| panic!("{arguments:?} did not get ready: {output}"))
    }

    /// Starts the program; gives what it wrote if it ends before it is ready.
    pub(crate) fn try_start(arguments: &[&str]) -> Result<Self, String> {
        Self::try_start_with(&[], arguments)
    }

    /// Does the same with more variables of the environment.
    pub(crate) fn try_start_with(
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<Self, String> {
        Self::try_start_logging(Stdio::piped(), variables, arguments)
    }

    /// Does the same with a log that goes elsewhere.
    pub(crate) fn try_start_logging(
        log: Stdio,
        variables: &[(&str, &str)],
        arguments: &[&str],
    ) -> Result<Self, String> {
        let mut command = tympan();
        command.envs(variables.iter().copied()).args(arguments).stderr(log);
        Self::try_start_command(command)
    }

    /// Starts the program where it may have so many files open at most.
    pub(crate) fn start_with_files(files: u64, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n $0 && exec \"$@\""]).arg(files.to_string());
        command.arg(tympan().get_program()).args(arguments).stderr(Stdio::piped());
        Self::try_start_command(command)
            .unwrap_or_else(|output| panic!("{arguments:?} did not get ready: {output}"))
    }

    /// Starts the program with a mask of modes that closes nothing.
    pub(crate) fn start_unmasked(arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "umask 0 && exec \"$0\" \"$@\""]).arg(tympan().get_program());
        command.args(arguments).stderr(Stdio::piped());
        Self::try_start_command(command)
            .unwrap_or_else(|output| panic!("{arguments:?} did not get ready: {output}"))
    }

    /// Starts another copy of the program.
    pub(crate) fn start_copy(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.env("TYMPAN_LOG", "warn").args(arguments).stderr(Stdio::piped());
        Self::try_start_command(command)
            .unwrap_or_else(|output| panic!("{arguments:?} did not get ready: {output}"))
    }

    /// Starts the program as a prepared command does, and waits for its word `ready`.
    pub(crate) fn start_command(command: Command) -> Self {
        let name = format!("{command:?}");
        Self::try_start_command(command)
            .unwrap_or_else(|output| panic!("{name} did not get ready: {output}"))
    }

    fn try_start_command(mut command: Command) -> Result<Self, String> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = String::new();
        for line in &mut lines {
            let line = line.unwrap();
            if line == "ready" {
                // Whatever it says later must not fill the pipe.
                std::thread::spawn(move || lines.for_each(drop));
                if let Some(mut errors) = child.stderr.take() {
                    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
                }
                return Ok(Self { child, greeting });
            }
            greeting.push_str(&line);
            greeting.push('\n');
        }
        if let Some(mut errors) = child.stderr.take() {
            errors.read_to_string(&mut greeting).unwrap();
        }
        Err(format!("{greeting}{:?}", child.wait().unwrap()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, as Ctrl-C does, and waits until it has; tells whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already gone where the test stopped it.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The demo with its three addresses.
pub(crate) struct Demo {
    pub(crate) running: Running,
    pub(crate) home: PathBuf,
    pub(crate) author: SocketAddr,
    pub(crate) publish: SocketAddr,
    pub(crate) dispatcher: SocketAddr,
    password: String,
}

impl Demo {
    /// Starts the demo in a folder with homes that hold the sample site already.
    pub(crate) fn start(home: &Path) -> Self {
        let [author, publish, dispatcher] = Self::prepare(home);
        Self::start_at(home, author, publish, dispatcher)
    }

    /// Makes a folder the home of a demo that has run before; returns its addresses: author, publish, dispatcher.
    pub(crate) fn prepare(home: &Path) -> DemoAddresses {
        prepare_demo_home(home, |first| {
            let addresses @ [author, publish, dispatcher] = [(); 3].map(|()| free_address());
            let demo = Self::start_at(first, author, publish, dispatcher);
            wait_until("the full-text indexes are built", || {
                ["author", "publish"]
                    .iter()
                    .all(|role| first.join(role).join("search/current").exists())
            });
            assert!(demo.running.stop());
            addresses
        })
    }

    /// Starts the demo in a folder; the same folder and addresses again are the same demo again.
    pub(crate) fn start_at(
        home: &Path,
        author: SocketAddr,
        publish: SocketAddr,
        dispatcher: SocketAddr,
    ) -> Self {
        let running = Running::start(&[
            "demo",
            "--home",
            home.to_str().unwrap(),
            "--author",
            &author.to_string(),
            "--publish",
            &publish.to_string(),
            "--dispatcher",
            &dispatcher.to_string(),
        ]);
        let password = std::fs::read_to_string(home.join("author/initial-password"))
            .unwrap()
            .trim()
            .to_owned();
        Self { running, home: home.to_owned(), author, publish, dispatcher, password }
    }

    /// Returns the password of the first user.
    pub(crate) fn password(&self) -> &str {
        &self.password
    }

    /// Returns the login link of this start.
    pub(crate) fn login_link(&self) -> String {
        let link = std::fs::read_to_string(self.home.join("author/login-link")).unwrap();
        // Where no terminal shows it, it stands in the file alone.
        assert!(!self.running.greeting.contains(link.trim()), "{}", self.running.greeting);
        link.trim().to_owned()
    }

    /// Returns the URL of publish's admin listener.
    pub(crate) fn publish_admin(&self) -> String {
        format!("http://{}", self.admin_address("publish"))
    }

    /// Returns the address of the admin listener of a role, as the greeting tells it.
    pub(crate) fn admin_address(&self, role: &str) -> String {
        let greeting = self.running.greeting.lines();
        let line = greeting
            .filter(|line| line.starts_with("monitoring "))
            .find(|line| line.contains(&format!("of {role}")));
        let url = line.unwrap().split_whitespace().nth(1).unwrap();
        url.trim_start_matches("http://").to_owned()
    }

    /// Posts a form to the author as its first user.
    pub(crate) fn post(&self, path: &str, form: &str) -> Answer {
        post(self.author, &self.password, path, form)
    }

    /// Asks the author as its first user.
    pub(crate) fn get_as_admin(&self, path: &str) -> Answer {
        let headers = [("Authorization", basic("admin", &self.password))];
        ask(self.author, "GET", path, &headers, b"").unwrap()
    }

    /// Counts the times that publish was asked for a page until now.
    pub(crate) fn renders_of(&self, path: &str) -> usize {
        // Lines reach the log in order: once this mark is there, so is all that came before.
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = format!("/mark-{}", MARKS.fetch_add(1, Ordering::Relaxed));
        get(self.publish, &mark);
        wait_for(|| {
            let log = std::fs::read_to_string(self.home.join("publish/logs/request.log")).unwrap();
            match log.split_once(&format!("-> GET {mark} ")) {
                Some((before, _)) => {
                    let renders = before.lines();
                    Ok(renders.filter(|line| line.contains(&format!("-> GET {path} "))).count())
                }
                None => Err(format!("the log does not show {mark}")),
            }
        })
    }
}

/// Posts a form with Basic credentials.
pub(crate) fn post(address: SocketAddr, password: &str, path: &str, form: &str) -> Answer {
    let headers = [
        ("Authorization", basic("admin", password)),
        ("Accept", "application/json".to_owned()),
        ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
    ];
    ask(address, "POST", path, &headers, form.as_bytes()).unwrap()
}

pub(crate) fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))
    )
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns a header's value, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Asks without credentials.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path, &[], b"").unwrap()
}

/// Sends one request on a connection of its own. HTTP/1.0 keeps the answer free of chunks.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n",
        body.len()
    )?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(body)?;
    read_answer(stream)
}

/// Reads an answer until the connection closes.
pub(crate) fn read_answer(mut stream: TcpStream) -> std::io::Result<Answer> {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else {
        return Err(read.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()));
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(Answer { status, head, body: bytes[end + 4..].to_vec() })
}
