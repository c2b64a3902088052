//! Fetches the addresses that a script selects, as one visitor over persistent connections, and returns every exchange
//! in full.
//!
//! In: a script that maps the last exchanges to the next addresses. Out: the data that the script stores.
//!
//! Not here: load, which is in `load` and `plan`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_plan::{AbsoluteUrl, decode_content};

use crate::Result;
use crate::load::{LoadRun, LoadRunState, UserStep, UserTurn, VirtualUser, WorkerLoad, run_load};
use crate::net::{
    ExchangeOutcome, ResponseRetention, TargetRegistry, TargetRequest, TargetResponseHead,
};

/// Maximum length of a stored body, in bytes.
const MAX_BODY_BYTES: usize = 32 << 20;

/// A request to send.
#[derive(Debug, Clone)]
pub struct ScriptedRequest {
    pub(crate) method: &'static str,
    pub(crate) url: AbsoluteUrl,
    /// Names and values of additional headers.
    pub headers: Vec<(String, String)>,
    pub(crate) body: Arc<[u8]>,
    pub(crate) timeout: Duration,
}

impl ScriptedRequest {
    /// Returns a GET with headers.
    pub fn get(url: AbsoluteUrl, headers: &[(String, String)]) -> Self {
        Self {
            method: "GET",
            url,
            headers: headers.to_vec(),
            body: Arc::from([]),
            timeout: Duration::from_secs(30),
        }
    }

    fn to_target_request(&self, targets: &TargetRegistry) -> Result<TargetRequest> {
        let target = targets.get_or_resolve(self.url.is_tls, &self.url.host, self.url.port)?;
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.url.path_and_query);
        let mut add = |name: &str, value: &str| {
            if !self.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &target.authority());
        add("User-Agent", concat!("tympan-lab/", env!("CARGO_PKG_VERSION")));
        add("Accept", "*/*");
        if !self.body.is_empty() || self.method == "POST" {
            add("Content-Length", &self.body.len().to_string());
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
            retention: ResponseRetention::Body(MAX_BODY_BYTES),
            uses_keep_alive: true,
            connect_timeout: Some(self.timeout),
            idle_timeout: Some(self.timeout),
        })
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub struct ScriptedResponse {
    /// The URL that answered.
    pub url: AbsoluteUrl,
    /// The time at which the request was due.
    pub started_at: Instant,
    /// The time of connecting; zero on an open connection.
    pub connect_time: Duration,
    /// The time of the first received byte.
    pub first_byte_at: Instant,
    /// The time of the last received byte.
    pub ended_at: Instant,
    /// 0 if there was no response.
    pub status: u16,
    /// The reason why there was no response.
    pub failure: Option<String>,
    /// Status and headers.
    pub response_head: TargetResponseHead,
    /// The decoded body.
    pub body: Vec<u8>,
    /// Bytes received over the wire.
    pub received_bytes: u64,
}

impl ScriptedResponse {
    fn from_outcome(url: AbsoluteUrl, reply: ExchangeOutcome) -> Self {
        let ExchangeOutcome {
            started_at,
            connect_time,
            first_byte_at,
            ended_at,
            received_bytes,
            result,
            ..
        } = reply;
        let mut got = Self {
            url,
            started_at,
            connect_time,
            first_byte_at,
            ended_at,
            status: 0,
            failure: None,
            response_head: TargetResponseHead::default(),
            body: Vec::new(),
            received_bytes,
        };
        match result {
            Ok(response) => {
                got.status = response.status;
                got.response_head = response.head.unwrap_or_default();
                got.body =
                    decode_content(response.body, got.response_head.header("Content-Encoding"));
            }
            Err(failure) => got.failure = Some(failure.description().to_owned()),
        }
        got
    }

    fn from_failure(url: AbsoluteUrl, now: Instant, why: String) -> Self {
        Self {
            url,
            started_at: now,
            connect_time: Duration::ZERO,
            first_byte_at: now,
            ended_at: now,
            status: 0,
            failure: Some(why),
            response_head: TargetResponseHead::default(),
            body: Vec::new(),
            received_bytes: 0,
        }
    }

    /// Returns the elapsed time.
    pub fn elapsed(&self) -> Duration {
        self.ended_at.saturating_duration_since(self.started_at)
    }

    /// Returns true if there was a response and its status is not an error.
    pub fn is_ok(&self) -> bool {
        (200..400).contains(&self.status)
    }
}

type FetchScript = Box<dyn FnMut(Vec<ScriptedResponse>) -> Vec<ScriptedRequest> + Send>;

struct ScriptedUser {
    script: FetchScript,
    targets: TargetRegistry,
    max_parallel: usize,
    /// Requests in progress; the response is set for those that failed before they were sent.
    pending_requests: Vec<(AbsoluteUrl, Option<ScriptedResponse>)>,
}

impl std::fmt::Debug for ScriptedUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedUser")
            .field("asked", &self.pending_requests.len())
            .finish_non_exhaustive()
    }
}

impl VirtualUser for ScriptedUser {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let mut replies = std::mem::take(&mut turn.outcomes).into_iter();
        let mut got: Vec<ScriptedResponse> = Vec::new();
        for (url, lost) in std::mem::take(&mut self.pending_requests) {
            match lost {
                Some(lost) => got.push(lost),
                None => got.extend(
                    replies.next().map(|reply| ScriptedResponse::from_outcome(url, *reply)),
                ),
            }
        }
        loop {
            let asks = (self.script)(std::mem::take(&mut got));
            if asks.is_empty() || turn.is_stopping {
                return UserStep::Leave;
            }
            let mut requests = Vec::new();
            for ask in asks {
                let lost = match ask.to_target_request(&self.targets) {
                    Ok(request) => {
                        requests.push(request);
                        None
                    }
                    Err(error) => Some(ScriptedResponse::from_failure(
                        ask.url.clone(),
                        Instant::now(),
                        error.to_string(),
                    )),
                };
                self.pending_requests.push((ask.url, lost));
            }
            if !requests.is_empty() {
                return UserStep::FetchPerHost {
                    requests,
                    max_parallel_per_host: self.max_parallel,
                };
            }
            got.extend(self.pending_requests.drain(..).filter_map(|(_, lost)| lost));
        }
    }
}

/// Runs a script until it requests nothing more. The first call passes no exchanges.
///
/// # Errors
/// [`crate::Error::Engine`].
pub fn run_fetch_script(
    parallel: usize,
    script: impl FnMut(Vec<ScriptedResponse>) -> Vec<ScriptedRequest> + Send + 'static,
) -> Result<()> {
    let visitor = ScriptedUser {
        script: Box::new(script),
        targets: TargetRegistry::default(),
        max_parallel: parallel,
        pending_requests: Vec::new(),
    };
    let crew = WorkerLoad { users: vec![(Duration::ZERO, Box::new(visitor))], arrivals: None };
    let load = LoadRun {
        worker_loads: vec![crew],
        stop_after: None,
        drain_timeout: Duration::ZERO,
        run_state: Arc::new(LoadRunState::default()),
        row_sink: None,
    };
    run_load(load, &mut ()).map(|_| ())
}

/// Fetches one address.
///
/// # Errors
/// As [`run_fetch_script`].
pub fn fetch_once(ask: ScriptedRequest) -> Result<ScriptedResponse> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut ask = Some(ask);
    let url = ask.as_ref().map(|ask| ask.url.clone());
    run_fetch_script(1, move |got| {
        got.into_iter().for_each(|got| drop(sender.send(got)));
        ask.take().into_iter().collect()
    })?;
    let got = receiver.try_recv().ok();
    got.or_else(|| {
        url.map(|url| ScriptedResponse::from_failure(url, Instant::now(), "not sent".to_owned()))
    })
    .ok_or_else(|| crate::Error::UnusableInput("no request was sent".to_owned()))
}
