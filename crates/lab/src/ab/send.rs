//! Sends as ab sends: one URL, a number of connections, a number of requests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::speech;
use crate::load::{Crew, Crowd, Load, Step, Turn, User, processors, run};
use crate::net::{Agreed, Failure, Keep, Reply, Request, Response, Speech, Targets, Url};
use crate::record::{Results, Sample, request_text, without_secrets};
use crate::{Error, Result};

/// The options of ab that are given as values.
#[derive(Debug, Clone)]
pub struct Ab {
    /// What is asked.
    pub url: String,
    /// `-n`.
    pub requests: u64,
    /// `-c`.
    pub concurrency: usize,
    /// `-t`.
    pub time_limit: Option<Duration>,
    /// `-s`.
    pub timeout: Duration,
    /// `-k`.
    pub keep_alive: bool,
    /// `-i` gives `HEAD`, `-p` `POST`, `-u` `PUT`, `-m` anything.
    pub method: String,
    /// The content of the file of `-p` or `-u`.
    pub body: Vec<u8>,
    /// `-T`.
    pub content_type: String,
    /// `-H`, and what `-A`, `-P` and `-C` amount to.
    pub headers: Vec<(String, String)>,
    /// `-X`: the proxy as `host:port`.
    pub proxy: Option<String>,
    /// `-B`: the address of this machine that connections begin at.
    pub source: Option<IpAddr>,
    /// `-b`: bytes of the kernel's buffers for a connection.
    pub window: Option<usize>,
    /// `-f`: the version of TLS.
    pub protocol: Option<String>,
    /// `-Z`: cipher suites, as OpenSSL names them.
    pub ciphers: Option<String>,
    /// `-E`: a file in PEM with a certificate for the server, its chain, and its key.
    pub certificate: Option<PathBuf>,
    /// `-I`: does not tell the server which of its names is meant.
    pub hides_name: bool,
    /// `-v`: how much is said of each request.
    pub verbosity: u32,
    /// `-q`: says nothing of how far the run has come.
    pub quiet: bool,
    /// `-w`: what is printed is a table in HTML.
    pub markup: Option<Markup>,
    /// Counts answers of another length as failed, as ab does without `-l`.
    pub strict: bool,
    /// `-l`.
    pub any_length: bool,
    /// `-S`.
    pub without_deviation: bool,
    /// `-d`.
    pub without_percentiles: bool,
    /// `-e`.
    pub csv: Option<PathBuf>,
    /// `-g`.
    pub gnuplot: Option<PathBuf>,
    /// Threads; 0 for one per processor.
    pub workers: usize,
}

impl Default for Ab {
    fn default() -> Self {
        Self {
            url: String::new(),
            requests: 1,
            concurrency: 1,
            time_limit: None,
            timeout: Duration::from_secs(30),
            keep_alive: false,
            method: "GET".to_owned(),
            body: Vec::new(),
            content_type: "text/plain".to_owned(),
            headers: Vec::new(),
            proxy: None,
            source: None,
            window: None,
            protocol: None,
            ciphers: None,
            certificate: None,
            hides_name: false,
            verbosity: 0,
            quiet: false,
            markup: None,
            strict: false,
            any_length: false,
            without_deviation: false,
            without_percentiles: false,
            csv: None,
            gnuplot: None,
            workers: 0,
        }
    }
}

/// The attributes of a table in HTML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Markup {
    /// `-x`: of the table.
    pub table: String,
    /// `-y`: of its rows.
    pub row: String,
    /// `-z`: of its cells.
    pub cell: String,
}

/// What ab says while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word<'a> {
    /// For standard error: how far it has come.
    Progress(&'a str),
    /// For standard output: of a single request, where `-v` asks for it.
    Log(&'a str),
}

/// Who hears it, on the threads that send.
pub type Listener = Arc<dyn Fn(Word<'_>) + Send + Sync>;

/// Requests below which ab tells nothing of how far it has come.
const SHORT: u64 = 150;
/// ab tells it every tenth of a run, and not more often than every hundred requests.
const OFTEN: u64 = 100;

/// One request, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// Since the epoch.
    pub(super) start: u64,
    pub(super) connect: u64,
    pub(super) wait: u64,
    pub(super) total: u64,
}

impl Times {
    pub(super) fn processing(&self) -> u64 {
        self.total.saturating_sub(self.connect)
    }
}

/// What a run of ab gathered.
#[derive(Debug, Clone, Default)]
pub(super) struct Gathered {
    pub(super) times: Vec<Times>,
    pub(super) software: String,
    pub(super) length: Option<u64>,
    pub(super) other_lengths: u64,
    pub(super) failed_connect: u64,
    pub(super) failed_receive: u64,
    pub(super) exceptions: u64,
    pub(super) non_2xx: u64,
    pub(super) kept_alive: u64,
    pub(super) received: u64,
    pub(super) body: u64,
    pub(super) sent: u64,
}

/// A finished run.
#[derive(Debug)]
pub struct AbRun {
    pub(super) options: Ab,
    pub(super) url: Url,
    pub(super) gathered: Gathered,
    /// What the first handshake agreed on.
    pub(super) agreed: Option<Agreed>,
    /// The same run in the lab's own terms.
    pub results: Results,
}

impl Ab {
    /// Returns after how many requests ab says how far it has come; `None` for never.
    pub(super) fn heartbeat(&self) -> Option<u64> {
        let says = !self.quiet && self.requests > SHORT;
        says.then(|| (self.requests / 10).max(OFTEN))
    }

    /// Returns what is asked.
    ///
    /// # Errors
    /// [`Error::Url`].
    pub(super) fn address(&self) -> Result<Url> {
        match self.url.contains("://") {
            true => Url::parse(&self.url),
            false => Url::parse(&format!("http://{}", self.url)),
        }
    }

    /// Runs.
    ///
    /// # Errors
    /// [`Error::Url`] and [`Error::Input`] for what cannot be run, [`Error::Resolve`], [`Error::Tls`], [`Error::Engine`].
    pub fn run(&self) -> Result<AbRun> {
        self.run_heard(Arc::new(|_| {}))
    }

    /// Runs, and says meanwhile what ab says.
    ///
    /// # Errors
    /// As [`Ab::run`].
    pub fn run_heard(&self, listener: Listener) -> Result<AbRun> {
        if self.concurrency == 0 || self.requests == 0 {
            return Err(Error::Input("-n and -c are numbers above 0".to_owned()));
        }
        if self.concurrency as u64 > self.requests {
            return Err(Error::Input(
                "Cannot use concurrency level greater than total number of requests".to_owned(),
            ));
        }
        let url = self.address()?;
        let request = self.request(&url)?;
        let target = Arc::clone(&request.target);
        if self.verbosity >= 2 {
            let text = request_text(&request.bytes);
            listener(Word::Log(&format!("INFO: {} header == \n---\n{text}\n---", self.method)));
        }
        let shared = Arc::new(Shared {
            request,
            tickets: AtomicI64::new(i64::try_from(self.requests).unwrap_or(i64::MAX)),
            gathered: Mutex::default(),
            length: OnceLock::new(),
            label: format!("{} {}", self.method, url.target),
            strict: self.strict && !self.any_length,
            verbosity: self.verbosity,
            heartbeat: self.heartbeat(),
            done: AtomicU64::new(0),
            listener,
        });
        let wanted = if self.workers == 0 { processors() } else { self.workers };
        let workers = wanted.min(self.concurrency);
        let mut crews: Vec<Crew> =
            (0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }).collect();
        for number in 0..self.concurrency {
            if let Some(crew) = crews.get_mut(number % workers) {
                let user = Bencher::new(Arc::clone(&shared));
                crew.users.push((Duration::ZERO, Box::new(user)));
            }
        }
        let load = Load {
            crews,
            stop_after: self.time_limit,
            drain: Duration::ZERO,
            crowd: Arc::new(Crowd::default()),
            rows: None,
        };
        let results = run(load, &mut ())?;
        let mut gathered =
            std::mem::take(&mut *shared.gathered.lock().unwrap_or_else(PoisonError::into_inner));
        gathered.length = shared.length.get().copied();
        if shared.heartbeat.is_some() {
            let done = shared.done.load(Ordering::Relaxed);
            (shared.listener)(Word::Progress(&format!("Finished {done} requests")));
        }
        let agreed = target.agreed.get().cloned();
        Ok(AbRun { options: self.clone(), url, gathered, agreed, results })
    }

    /// Reads how TLS is to be spoken.
    fn speech(&self) -> Result<Speech> {
        let suites = self.ciphers.as_deref().map(speech::ciphers).transpose()?;
        Ok(Speech {
            version: self.protocol.as_deref().map(speech::version).transpose()?.flatten(),
            suites: suites.unwrap_or_default(),
            identity: self.certificate.as_deref().map(speech::identity).transpose()?,
            hides_name: self.hides_name,
            forgets_sessions: false,
            is_http2: false,
        })
    }

    fn request(&self, url: &Url) -> Result<Request> {
        let speech = self.speech()?;
        if url.is_tls && self.proxy.is_some() {
            return Err(Error::Input(
                "-X: an https address cannot be asked for through a proxy here: the proxy would see the request".to_owned(),
            ));
        }
        let targets = Targets::default();
        let own = targets.find_at((url.is_tls, &url.host, url.port), None, self.source);
        let (target, asked) = match &self.proxy {
            Some(proxy) => {
                let at = Url::parse(&format!("http://{proxy}"))?;
                let port = if at.port == 80 && !proxy.contains(':') { 80 } else { at.port };
                let asked = format!("http://{}:{}{}", url.host, url.port, url.target);
                (targets.find_at((false, &at.host, port), None, self.source)?, asked)
            }
            None => (own?, url.target.clone()),
        };
        let target = target.adjusted(&speech, self.window)?;
        let has =
            |name: &str| self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        let version = if self.keep_alive { "1.1" } else { "1.0" };
        let mut text = format!("{} {asked} HTTP/{version}\r\n", self.method);
        if self.keep_alive {
            text.push_str("Connection: Keep-Alive\r\n");
        }
        if !self.body.is_empty() || self.method == "POST" || self.method == "PUT" {
            text.push_str(&format!(
                "Content-length: {}\r\nContent-type: {}\r\n",
                self.body.len(),
                self.content_type
            ));
        }
        if !has("Host") {
            let default = if url.is_tls { 443 } else { 80 };
            match url.port {
                port if port == default => text.push_str(&format!("Host: {}\r\n", url.host)),
                port => text.push_str(&format!("Host: {}:{port}\r\n", url.host)),
            }
        }
        if !has("User-Agent") {
            text.push_str("User-Agent: ApacheBench/2.3\r\n");
        }
        if !has("Accept") {
            text.push_str("Accept: */*\r\n");
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        Ok(Request {
            target,
            bytes: bytes.into(),
            is_head: self.method == "HEAD",
            keep: Keep::Head,
            keep_alive: self.keep_alive,
            connect_timeout: Some(self.timeout),
            response_timeout: Some(self.timeout),
        })
    }
}

struct Shared {
    request: Request,
    tickets: AtomicI64,
    gathered: Mutex<Gathered>,
    /// The length of the first answer that any connection received: ab holds all others against it.
    length: OnceLock<u64>,
    label: String,
    strict: bool,
    verbosity: u32,
    /// Says after so many requests how far the run has come.
    heartbeat: Option<u64>,
    done: AtomicU64,
    listener: Listener,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Shared {
    /// Says that a request is done, where ab does.
    fn count(&self) {
        let Some(heartbeat) = self.heartbeat else { return };
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(heartbeat) {
            (self.listener)(Word::Progress(&format!("Completed {done} requests")));
        }
    }

    /// Says of an answer what `-v` asks for.
    fn say(&self, response: &Response) {
        if self.verbosity < 2 {
            return;
        }
        let log = |text: String| (self.listener)(Word::Log(&text));
        if self.verbosity >= 4
            && let Some(head) = &response.head
        {
            log(format!("LOG: header received:\n{}\n", without_secrets(head.text())));
        }
        match response.status {
            200..300 if self.verbosity >= 3 => {
                log(format!("LOG: Response code = {}", response.status))
            }
            200..300 => {}
            other => log(format!("WARNING: Response code not 2xx ({other})")),
        }
    }
}

/// One of ab's connections.
#[derive(Debug)]
struct Bencher {
    shared: Arc<Shared>,
    own: Gathered,
    /// The wall clock at a moment of the steady one.
    epoch: (Instant, SystemTime),
}

impl Bencher {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, own: Gathered::default(), epoch: (Instant::now(), SystemTime::now()) }
    }

    fn note(&mut self, reply: &Reply) {
        let own = &mut self.own;
        own.sent += reply.sent;
        own.received += reply.received;
        match &reply.result {
            Err(
                Failure::Connect
                | Failure::ConnectTimeout
                | Failure::Resolve
                | Failure::Exhausted
                | Failure::Bind,
            ) => {
                own.failed_connect += 1;
            }
            Err(Failure::Unfinished) => {}
            Err(Failure::NoResponse | Failure::Malformed | Failure::Tls) => own.exceptions += 1,
            Err(_) => own.failed_receive += 1,
            Ok(response) => {
                self.shared.say(response);
                own.body += response.body_bytes;
                own.non_2xx += u64::from(!(200..300).contains(&response.status));
                own.kept_alive += u64::from(reply.kept_alive);
                let length = self.shared.length.get_or_init(|| response.body_bytes);
                own.other_lengths += u64::from(*length != response.body_bytes);
                if own.software.is_empty()
                    && let Some(server) =
                        response.head.as_ref().and_then(|head| head.header("Server"))
                {
                    server.clone_into(&mut own.software);
                }
                let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
                let start = self.epoch.1 + reply.started.saturating_duration_since(self.epoch.0);
                let since = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let connected = reply.started + reply.connect;
                own.times.push(Times {
                    start: micros(since),
                    connect: micros(reply.connect),
                    wait: micros(reply.first_byte.saturating_duration_since(connected)),
                    total: micros(reply.ended.saturating_duration_since(reply.started)),
                });
            }
        }
    }

    /// Adds what this connection gathered to what the others did.
    fn hand_over(&mut self) {
        let own = std::mem::take(&mut self.own);
        let mut all = self.shared.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        all.other_lengths += own.other_lengths;
        all.times.extend(own.times);
        if all.software.is_empty() {
            all.software = own.software;
        }
        all.failed_connect += own.failed_connect;
        all.failed_receive += own.failed_receive;
        all.exceptions += own.exceptions;
        all.non_2xx += own.non_2xx;
        all.kept_alive += own.kept_alive;
        all.received += own.received;
        all.body += own.body;
        all.sent += own.sent;
    }
}

impl User for Bencher {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        if let Some(reply) = turn.replies.pop() {
            self.note(&reply);
            let is_finished = !matches!(reply.result, Err(Failure::Unfinished));
            if is_finished {
                let shared = Arc::clone(&self.shared);
                shared.count();
                let label = turn.recorder.label(&shared.label);
                let mut sample = Sample::of(label, reply.started, &reply);
                if sample.failure == Some("status") && !shared.strict {
                    // As in ab, a status is told on a line of its own and is no failure.
                    sample.failure = None;
                }
                turn.recorder.sample(&sample);
            }
        }
        if turn.is_stopping || self.shared.tickets.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.hand_over();
            return Step::End;
        }
        Step::Fetch(self.shared.request.clone())
    }
}
