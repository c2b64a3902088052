//! Sends requests as ab does: one URL, a number of connections, a number of requests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tympan_lab_engine::load::{
    LoadRun, LoadRunState, UserStep, UserTurn, VirtualUser, WorkerLoad, processor_count, run_load,
};
use tympan_lab_engine::measurement::{RecordedSample, RunResults, redact_head, trace_request_text};
use tympan_lab_engine::net::{
    ExchangeFailure, ExchangeOutcome, NegotiatedTls, ResponseRetention, TargetRegistry,
    TargetRequest, TargetResponse, TlsClientOptions,
};
use tympan_lab_plan::AbsoluteUrl;

use super::tls_option;
use crate::{Error, Result};

/// The options of ab that take a value.
#[derive(Debug, Clone)]
pub struct AbOptions {
    /// The requested URL.
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
    /// Headers from `-H`, and those that `-A`, `-P` and `-C` produce.
    pub headers: Vec<(String, String)>,
    /// `-X`: the proxy as `host:port`.
    pub proxy: Option<String>,
    /// `-B`: the local address that connections are bound to.
    pub source_address: Option<IpAddr>,
    /// `-b`: the size of the kernel's socket buffers, in bytes.
    pub socket_buffer_size: Option<usize>,
    /// `-f`: the TLS version.
    pub protocol: Option<String>,
    /// `-Z`: cipher suites, as OpenSSL names them.
    pub ciphers: Option<String>,
    /// `-E`: a PEM file with the client certificate, its chain, and its key.
    pub certificate: Option<PathBuf>,
    /// `-I`: omits the server name (SNI) from the TLS handshake.
    pub hides_server_name: bool,
    /// `-v`: the amount of output per request.
    pub verbosity: u32,
    /// `-q`: suppresses progress messages.
    pub is_quiet: bool,
    /// `-w`: prints the report as an HTML table.
    pub html_table: Option<AbTableAttributes>,
    /// Counts responses of a different length as failed, as ab does without `-l`.
    pub is_strict: bool,
    /// `-l`.
    pub allows_any_length: bool,
    /// `-S`.
    pub omits_deviation: bool,
    /// `-d`.
    pub omits_percentiles: bool,
    /// `-e`.
    pub csv_path: Option<PathBuf>,
    /// `-g`.
    pub gnuplot_path: Option<PathBuf>,
    /// Number of worker threads; 0 for one per processor.
    pub worker_count: usize,
}

impl Default for AbOptions {
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
            source_address: None,
            socket_buffer_size: None,
            protocol: None,
            ciphers: None,
            certificate: None,
            hides_server_name: false,
            verbosity: 0,
            is_quiet: false,
            html_table: None,
            is_strict: false,
            allows_any_length: false,
            omits_deviation: false,
            omits_percentiles: false,
            csv_path: None,
            gnuplot_path: None,
            worker_count: 0,
        }
    }
}

/// The attributes of an HTML table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AbTableAttributes {
    /// `-x`: attributes of the table.
    pub table_attributes: String,
    /// `-y`: attributes of its rows.
    pub row_attributes: String,
    /// `-z`: attributes of its cells.
    pub cell_attributes: String,
}

/// A message that ab prints during a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbMessage<'a> {
    /// For standard error: progress of the run.
    Progress(&'a str),
    /// For standard output: details of a single request, if `-v` enables them.
    Log(&'a str),
}

/// Receives messages, on the threads that send requests.
pub type AbMessageListener = Arc<dyn Fn(AbMessage<'_>) + Send + Sync>;

/// Minimum number of requests for which ab reports progress.
const MIN_PROGRESS_REQUESTS: u64 = 150;
/// ab reports progress after every tenth of a run, but at most once per hundred requests.
const MIN_PROGRESS_INTERVAL: u64 = 100;

/// The times of one request, in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AbRequestTimes {
    /// Start time since the epoch.
    pub(super) start_us: u64,
    pub(super) connect_us: u64,
    pub(super) wait_us: u64,
    pub(super) total_us: u64,
}

impl AbRequestTimes {
    pub(super) fn processing_us(&self) -> u64 {
        self.total_us.saturating_sub(self.connect_us)
    }
}

/// The measurements of a run of ab.
#[derive(Debug, Clone, Default)]
pub(super) struct AbMeasurements {
    pub(super) times: Vec<AbRequestTimes>,
    pub(super) software: String,
    pub(super) document_length: Option<u64>,
    pub(super) length_mismatches: u64,
    pub(super) connect_failures: u64,
    pub(super) receive_failures: u64,
    pub(super) exceptions: u64,
    pub(super) non_2xx_count: u64,
    pub(super) kept_alive_count: u64,
    pub(super) received_bytes: u64,
    pub(super) body_bytes: u64,
    pub(super) sent_bytes: u64,
}

/// A finished run.
#[derive(Debug)]
pub struct AbRun {
    pub(super) options: AbOptions,
    pub(super) url: AbsoluteUrl,
    pub(super) measurements: AbMeasurements,
    /// The TLS parameters that the first handshake negotiated.
    pub(super) negotiated_tls: Option<NegotiatedTls>,
    /// The results of the same run in the lab's own types.
    pub results: RunResults,
}

impl AbOptions {
    /// Returns the number of requests between two progress messages; `None` if progress is not reported.
    pub(super) fn progress_interval(&self) -> Option<u64> {
        let says = !self.is_quiet && self.requests > MIN_PROGRESS_REQUESTS;
        says.then(|| (self.requests / 10).max(MIN_PROGRESS_INTERVAL))
    }

    /// Returns the parsed URL.
    ///
    /// # Errors
    /// `Error::InvalidUrl`.
    pub(super) fn parse_url(&self) -> Result<AbsoluteUrl> {
        Ok(match self.url.contains("://") {
            true => AbsoluteUrl::parse(&self.url)?,
            false => AbsoluteUrl::parse(&format!("http://{}", self.url))?,
        })
    }

    /// Performs the run.
    ///
    /// # Errors
    /// `Error::InvalidUrl` and [`Error::UnusableInput`] for invalid options, `Error::Resolve`, [`Error::Tls`],
    /// [`Error::Engine`].
    pub fn run(&self) -> Result<AbRun> {
        self.run_with_listener(Arc::new(|_| {}))
    }

    /// Performs the run and passes ab's messages to `listener`.
    ///
    /// # Errors
    /// As [`AbOptions::run`].
    pub fn run_with_listener(&self, listener: AbMessageListener) -> Result<AbRun> {
        if self.concurrency == 0 || self.requests == 0 {
            return Err(Error::UnusableInput("-n and -c must be above 0".to_owned()));
        }
        if self.concurrency as u64 > self.requests {
            return Err(Error::UnusableInput(
                "Cannot use concurrency level greater than total number of requests".to_owned(),
            ));
        }
        let url = self.parse_url()?;
        let request = self.build_request(&url)?;
        let target = Arc::clone(&request.target);
        if self.verbosity >= 2 {
            let text = trace_request_text(&request.encoded_bytes);
            listener(AbMessage::Log(&format!(
                "INFO: {} header == \n---\n{text}\n---",
                self.method
            )));
        }
        let shared = Arc::new(AbSharedState {
            request,
            remaining_requests: AtomicI64::new(i64::try_from(self.requests).unwrap_or(i64::MAX)),
            measurements: Mutex::default(),
            first_length: OnceLock::new(),
            label: format!("{} {}", self.method, url.path_and_query),
            is_strict: self.is_strict && !self.allows_any_length,
            verbosity: self.verbosity,
            progress_interval: self.progress_interval(),
            completed_count: AtomicU64::new(0),
            listener,
        });
        let worker_count =
            if self.worker_count == 0 { processor_count() } else { self.worker_count };
        let workers = worker_count.min(self.concurrency);
        let mut crews: Vec<WorkerLoad> =
            (0..workers).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }).collect();
        for number in 0..self.concurrency {
            if let Some(crew) = crews.get_mut(number % workers) {
                let user = AbUser::new(Arc::clone(&shared));
                crew.users.push((Duration::ZERO, Box::new(user)));
            }
        }
        let load = LoadRun {
            worker_loads: crews,
            stop_after: self.time_limit,
            drain_timeout: Duration::ZERO,
            run_state: Arc::new(LoadRunState::default()),
            row_sink: None,
        };
        let results = run_load(load, &mut ())?;
        let mut gathered = std::mem::take(
            &mut *shared.measurements.lock().unwrap_or_else(PoisonError::into_inner),
        );
        gathered.document_length = shared.first_length.get().copied();
        if shared.progress_interval.is_some() {
            let done = shared.completed_count.load(Ordering::Relaxed);
            (shared.listener)(AbMessage::Progress(&format!("Finished {done} requests")));
        }
        let agreed = target.negotiated_tls.get().cloned();
        Ok(AbRun {
            options: self.clone(),
            url,
            measurements: gathered,
            negotiated_tls: agreed,
            results,
        })
    }

    /// Returns the TLS options.
    fn tls_options(&self) -> Result<TlsClientOptions> {
        let suites = self.ciphers.as_deref().map(tls_option::parse_cipher_suites).transpose()?;
        Ok(TlsClientOptions {
            only_version: self
                .protocol
                .as_deref()
                .map(tls_option::parse_tls_version)
                .transpose()?
                .flatten(),
            cipher_suites: suites.unwrap_or_default(),
            client_identity: self
                .certificate
                .as_deref()
                .map(tls_option::read_identity)
                .transpose()?,
            hides_server_name: self.hides_server_name,
            disables_resumption: false,
            is_http2: false,
        })
    }

    fn build_request(&self, url: &AbsoluteUrl) -> Result<TargetRequest> {
        let speech = self.tls_options()?;
        if url.is_tls && self.proxy.is_some() {
            return Err(Error::UnusableInput(
                "-X: https URLs cannot be requested through a proxy: the proxy would see the request".to_owned(),
            ));
        }
        let targets = TargetRegistry::default();
        let own =
            targets.get_or_resolve_at(url.is_tls, &url.host, url.port, None, self.source_address);
        let (target, request_target) = match &self.proxy {
            Some(proxy) => {
                let at = AbsoluteUrl::parse(&format!("http://{proxy}"))?;
                let port = if at.port == 80 && !proxy.contains(':') { 80 } else { at.port };
                let request_target =
                    format!("http://{}:{}{}", url.host, url.port, url.path_and_query);
                (
                    targets.get_or_resolve_at(false, &at.host, port, None, self.source_address)?,
                    request_target,
                )
            }
            None => (own?, url.path_and_query.clone()),
        };
        let target = target.with_tls_options(&speech, self.socket_buffer_size)?;
        let has = |name: &str| {
            self.headers.iter().any(|(header_name, _)| header_name.eq_ignore_ascii_case(name))
        };
        let version = if self.keep_alive { "1.1" } else { "1.0" };
        let mut text = format!("{} {request_target} HTTP/{version}\r\n", self.method);
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
        Ok(TargetRequest {
            target,
            encoded_bytes: bytes.into(),
            is_head: self.method == "HEAD",
            retention: ResponseRetention::Head,
            uses_keep_alive: self.keep_alive,
            connect_timeout: Some(self.timeout),
            idle_timeout: Some(self.timeout),
        })
    }
}

struct AbSharedState {
    request: TargetRequest,
    remaining_requests: AtomicI64,
    measurements: Mutex<AbMeasurements>,
    /// The length of the first response on any connection; ab compares all others with it.
    first_length: OnceLock<u64>,
    label: String,
    is_strict: bool,
    verbosity: u32,
    /// Number of requests between two progress messages.
    progress_interval: Option<u64>,
    completed_count: AtomicU64,
    listener: AbMessageListener,
}

impl std::fmt::Debug for AbSharedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AbSharedState").field("label", &self.label).finish_non_exhaustive()
    }
}

impl AbSharedState {
    /// Counts a completed request and reports progress when it is due.
    fn count_completed(&self) {
        let Some(heartbeat) = self.progress_interval else { return };
        let done = self.completed_count.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(heartbeat) {
            (self.listener)(AbMessage::Progress(&format!("Completed {done} requests")));
        }
    }

    /// Logs a response in the detail that `-v` requests.
    fn log_response(&self, response: &TargetResponse) {
        if self.verbosity < 2 {
            return;
        }
        let log = |text: String| (self.listener)(AbMessage::Log(&text));
        if self.verbosity >= 4
            && let Some(head) = &response.head
        {
            log(format!("LOG: header received:\n{}\n", redact_head(head.text())));
        }
        match response.status {
            200..300 if self.verbosity >= 3 => {
                log(format!("LOG: Response code = {}", response.status))
            }
            200..300 => {}
            status => log(format!("WARNING: Response code not 2xx ({status})")),
        }
    }
}

/// One of ab's connections.
#[derive(Debug)]
struct AbUser {
    shared: Arc<AbSharedState>,
    measurements: AbMeasurements,
    /// A wall-clock time and the monotonic time at the same moment.
    epoch: (Instant, SystemTime),
}

impl AbUser {
    fn new(shared: Arc<AbSharedState>) -> Self {
        Self {
            shared,
            measurements: AbMeasurements::default(),
            epoch: (Instant::now(), SystemTime::now()),
        }
    }

    fn record_outcome(&mut self, reply: &ExchangeOutcome) {
        let own = &mut self.measurements;
        own.sent_bytes += reply.sent_bytes;
        own.received_bytes += reply.received_bytes;
        match &reply.result {
            Err(
                ExchangeFailure::Connect
                | ExchangeFailure::ConnectTimeout
                | ExchangeFailure::Resolve
                | ExchangeFailure::ResourcesExhausted
                | ExchangeFailure::BindFailed,
            ) => {
                own.connect_failures += 1;
            }
            Err(ExchangeFailure::RunEnded) => {}
            Err(
                ExchangeFailure::NoResponse | ExchangeFailure::Malformed | ExchangeFailure::Tls,
            ) => own.exceptions += 1,
            Err(_) => own.receive_failures += 1,
            Ok(response) => {
                self.shared.log_response(response);
                own.body_bytes += response.body_bytes;
                own.non_2xx_count += u64::from(!(200..300).contains(&response.status));
                own.kept_alive_count += u64::from(reply.is_connection_reusable);
                let length = self.shared.first_length.get_or_init(|| response.body_bytes);
                own.length_mismatches += u64::from(*length != response.body_bytes);
                if own.software.is_empty()
                    && let Some(server) =
                        response.head.as_ref().and_then(|head| head.header("Server"))
                {
                    server.clone_into(&mut own.software);
                }
                let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
                let start = self.epoch.1 + reply.started_at.saturating_duration_since(self.epoch.0);
                let since = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let connected = reply.started_at + reply.connect_time;
                own.times.push(AbRequestTimes {
                    start_us: micros(since),
                    connect_us: micros(reply.connect_time),
                    wait_us: micros(reply.first_byte_at.saturating_duration_since(connected)),
                    total_us: micros(reply.ended_at.saturating_duration_since(reply.started_at)),
                });
            }
        }
    }

    /// Adds the measurements of this connection to the shared ones.
    fn merge_measurements(&mut self) {
        let own = std::mem::take(&mut self.measurements);
        let mut all = self.shared.measurements.lock().unwrap_or_else(PoisonError::into_inner);
        all.length_mismatches += own.length_mismatches;
        all.times.extend(own.times);
        if all.software.is_empty() {
            all.software = own.software;
        }
        all.connect_failures += own.connect_failures;
        all.receive_failures += own.receive_failures;
        all.exceptions += own.exceptions;
        all.non_2xx_count += own.non_2xx_count;
        all.kept_alive_count += own.kept_alive_count;
        all.received_bytes += own.received_bytes;
        all.body_bytes += own.body_bytes;
        all.sent_bytes += own.sent_bytes;
    }
}

impl VirtualUser for AbUser {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        if let Some(reply) = turn.outcomes.pop() {
            self.record_outcome(&reply);
            let is_finished = !matches!(reply.result, Err(ExchangeFailure::RunEnded));
            if is_finished {
                let shared = Arc::clone(&self.shared);
                shared.count_completed();
                let label = turn.recorder.label_id(&shared.label);
                let mut sample = RecordedSample::from_reply(label, reply.started_at, &reply);
                if sample.failure == Some("status") && !shared.is_strict {
                    // As in ab, an error status is reported on a line of its own and is not a failure.
                    sample.failure = None;
                }
                turn.recorder.record_sample(&sample);
            }
        }
        if turn.is_stopping || self.shared.remaining_requests.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.merge_measurements();
            return UserStep::Leave;
        }
        UserStep::Fetch(self.shared.request.clone())
    }
}
