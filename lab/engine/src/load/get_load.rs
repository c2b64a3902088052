//! `tympan lab get`: one or more URLs under load, in the closed model or on a schedule.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tympan_lab_plan::{
    AbsoluteUrl, ArrivalProcess, ArrivalSchedule, LoadPortion, decode_content, decode_text,
    parse_user_info,
};

use crate::load::request_authorization::RequestAuthorization;
use crate::load::{
    LoadObserver, LoadRun, LoadRunState, SampleRowWriter, UserStep, UserTurn, VirtualUser,
    WorkerLoad, processor_count, run_load,
};
use crate::measurement::jtl::{JtlExtraColumns, JtlRow};
use crate::measurement::{
    ExchangeTrace, RecordedSample, RunResults, SampleLabelId, SampleMarkGenerator, SampleRecorder,
    insert_mark_header, redact_head, trace_request_text, truncate_text,
};
use crate::net::{
    ExchangeFailure, ExchangeOutcome, MAX_REDIRECTS, ResponseRetention, TargetRegistry,
    TargetRequest, TargetResponse, is_server_specific,
};
use crate::report::live_display::LiveDisplay;
use crate::{Error, Result};

/// The distribution of arrivals in the open model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum GetArrivals {
    /// At equal intervals.
    #[default]
    Uniform,
    /// Independent of each other, like visitors.
    Poisson,
}

/// The requests of a load and their rate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GetLoad {
    /// URLs, requested in rotation.
    pub urls: Vec<String>,
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// Headers added to, or replacing, the default ones.
    pub headers: Vec<(String, String)>,
    /// The body of each request.
    pub body: Vec<u8>,
    /// Users of the closed model.
    pub users: usize,
    /// Total number of requests.
    pub requests: Option<u64>,
    /// Duration of the run.
    pub duration: Option<Duration>,
    /// Arrivals per second: the open model.
    pub rate: Option<f64>,
    /// The distribution of arrivals.
    pub arrivals: GetArrivals,
    /// Maximum number of concurrent users in the open model.
    pub max_users: usize,
    /// Pause of a user between a response and the next request.
    pub think: Duration,
    /// Number of worker threads; 0 for one per processor.
    pub workers: usize,
    /// True if connections are reused.
    pub keep_alive: bool,
    /// Maximum wait for a connection, and for the next byte.
    pub timeout: Duration,
    /// True if redirects are followed.
    pub follow: bool,
    /// True if each connection makes a full TLS handshake.
    pub forgets_sessions: bool,
    /// True if connections use HTTP/2.
    pub is_http2: bool,
    /// The result file to write.
    pub rows: Option<PathBuf>,
    /// Columns of its rows in addition to JMeter's.
    pub added: JtlExtraColumns,
    /// The seed of random arrivals.
    pub seed: u64,
    /// Number of exchanges per label that are stored completely.
    pub trace: usize,
    /// The name of the run, if each request is marked with the sample that it belongs to.
    pub mark: Option<String>,
}

impl Default for GetLoad {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            users: 1,
            requests: None,
            duration: None,
            rate: None,
            arrivals: GetArrivals::Uniform,
            max_users: 10_000,
            think: Duration::ZERO,
            workers: 0,
            keep_alive: true,
            timeout: Duration::from_secs(30),
            follow: false,
            forgets_sessions: false,
            is_http2: false,
            rows: None,
            added: JtlExtraColumns::default(),
            seed: 1,
            trace: 0,
            mark: None,
        }
    }
}

/// Maximum size of a body that is stored completely, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

impl GetLoad {
    /// Runs the load.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] and `Error::InvalidUrl` for invalid options, [`Error::Resolve`], [`Error::Engine`].
    pub fn run(&self) -> Result<RunResults> {
        self.run_portion(LoadPortion::default(), &mut ())
    }

    /// Runs the load and displays its progress.
    ///
    /// # Errors
    /// As [`GetLoad::run`].
    pub fn run_with_display(&self, live: &mut LiveDisplay) -> Result<RunResults> {
        self.run_portion(LoadPortion::default(), live)
    }

    /// Runs this process's portion of the load; `observer` is notified every second.
    pub fn run_portion(
        &self,
        portion: LoadPortion,
        observer: &mut dyn LoadObserver,
    ) -> Result<RunResults> {
        let shared = Arc::new(self.prepare_shared_state(portion)?);
        let workers = self.worker_count(portion);
        let rows = match (observer.row_consumer(), self.rows.as_deref()) {
            (Some(taker), _) => Some(SampleRowWriter::forward_to(taker)?),
            (None, path) => {
                path.map(|path| SampleRowWriter::create(path, self.added)).transpose()?
            }
        };
        let crowd = Arc::new(LoadRunState::default());
        crowd.set_trace_limit(self.trace);
        let load = LoadRun {
            worker_loads: self.build_worker_loads(&shared, workers),
            stop_after: self.duration,
            drain_timeout: self.timeout.min(Duration::from_secs(5)),
            run_state: crowd,
            row_sink: rows.as_ref().map(SampleRowWriter::row_sink),
        };
        let results = run_load(load, observer)?;
        if let Some(rows) = rows {
            rows.finish()?;
        }
        Ok(results)
    }

    fn worker_count(&self, portion: LoadPortion) -> usize {
        let worker_count = if self.workers == 0 { processor_count() } else { self.workers };
        let users = usize::try_from(portion.share_of(self.users as u64)).unwrap_or(self.users);
        if self.rate.is_some() { worker_count } else { worker_count.min(users).max(1) }
    }

    /// Validates the load.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn validate(&self) -> Result<()> {
        if self.urls.is_empty() {
            return Err(Error::UnusableInput("no URL given".to_owned()));
        }
        if self.rate.is_some() && self.duration.is_none() && self.requests.is_none() {
            return Err(Error::UnusableInput(
                "a rate needs a duration or a number of requests".to_owned(),
            ));
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(Error::UnusableInput("the rate must be above 0".to_owned()));
        }
        if self.method.is_empty()
            || !self.method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(Error::UnusableInput(format!("`{}` is not an HTTP method", self.method)));
        }
        if self.users == 0 {
            return Err(Error::UnusableInput("the number of users must be at least 1".to_owned()));
        }
        Ok(())
    }

    fn prepare_shared_state(&self, portion: LoadPortion) -> Result<GetSharedState> {
        self.validate()?;
        let mut pages = Vec::new();
        let targets =
            TargetRegistry::without_tls_resumption(self.forgets_sessions).with_http2(self.is_http2);
        for text in &self.urls {
            let url = AbsoluteUrl::parse(text)?;
            let login = parse_user_info(text)
                .map(|login| RequestAuthorization::basic(&login).to_header().1);
            pages.push(GetPage {
                label: format!("{} {}", self.method, url.path_and_query),
                request: self.build_request_with_login(&targets, &url, login.as_deref())?,
                url,
            });
        }
        Ok(GetSharedState {
            sample_marks: self.mark.as_deref().map(SampleMarkGenerator::for_run),
            options: self.clone(),
            pages,
            targets,
            remaining_requests: AtomicI64::new(self.requests.map_or(i64::MAX, |count| {
                i64::try_from(portion.share_of(count)).unwrap_or(i64::MAX)
            })),
            portion,
        })
    }

    fn build_request(&self, targets: &TargetRegistry, url: &AbsoluteUrl) -> Result<TargetRequest> {
        self.build_request_with_login(targets, url, None)
    }

    /// Returns the request for a URL, with the credentials that the URL contains.
    fn build_request_with_login(
        &self,
        targets: &TargetRegistry,
        url: &AbsoluteUrl,
        login: Option<&str>,
    ) -> Result<TargetRequest> {
        let target = targets.get_or_resolve(url.is_tls, &url.host, url.port)?;
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, url.path_and_query);
        let mut add = |name: &str, value: &str| {
            if !self.headers.iter().any(|(header_name, _)| header_name.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &target.authority());
        add("User-Agent", concat!("tympan-lab/", env!("CARGO_PKG_VERSION")));
        add("Accept", "*/*");
        if let Some(login) = login {
            add("Authorization", login);
        }
        if !self.keep_alive {
            add("Connection", "close");
        }
        if !self.body.is_empty() {
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
            retention: if self.follow {
                ResponseRetention::Head
            } else {
                ResponseRetention::Nothing
            },
            uses_keep_alive: self.keep_alive,
            connect_timeout: Some(self.timeout),
            idle_timeout: Some(self.timeout),
        })
    }

    fn build_worker_loads(&self, shared: &Arc<GetSharedState>, workers: usize) -> Vec<WorkerLoad> {
        let Some(rate) = self.rate else {
            let mut crews: Vec<WorkerLoad> =
                (0..workers).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }).collect();
            let user_numbers =
                (0..self.users).filter(|&number| shared.portion.contains(number as u64));
            for (index, number) in user_numbers.enumerate() {
                if let Some(crew) = crews.get_mut(index % workers) {
                    crew.users.push((Duration::ZERO, Box::new(GetUser::new(shared, number))));
                }
            }
            return crews;
        };
        let by_count = self.requests.map(|count| Duration::from_secs_f64(count as f64 / rate));
        let end = match (self.duration, by_count) {
            (Some(left), Some(right)) => left.min(right),
            (left, right) => left.or(right).unwrap_or_default(),
        };
        let process = match self.arrivals {
            GetArrivals::Uniform => ArrivalProcess::Uniform,
            GetArrivals::Poisson => ArrivalProcess::Poisson,
        };
        let schedule = ArrivalSchedule::new(process, rate, end, self.seed);
        let portion = shared.portion;
        (0..workers)
            .map(|number| {
                let shared = Arc::clone(shared);
                let first_arrival = portion.global_index(number as u64);
                let step = portion.count * workers as u64;
                let pages = Arc::new(GetPageSequence {
                    next_arrival: AtomicU64::new(first_arrival),
                    arrival_step: step,
                });
                let user_share = shared.portion.share_of(self.max_users as u64).max(1);
                let most = usize::try_from(user_share).unwrap_or(usize::MAX).div_ceil(workers);
                let mut hired = 0;
                let hire = move || {
                    if hired >= most {
                        return None;
                    }
                    hired += 1;
                    let mut asker = GetUser::new(&shared, hired);
                    asker.page_sequence = Some(Arc::clone(&pages));
                    Some(Box::new(asker) as Box<dyn VirtualUser>)
                };
                WorkerLoad {
                    users: Vec::new(),
                    arrivals: Some((
                        schedule.for_share(
                            usize::try_from(first_arrival).unwrap_or(usize::MAX),
                            usize::try_from(step).unwrap_or(workers),
                        ),
                        Box::new(hire),
                    )),
                }
            })
            .collect()
    }
}

#[derive(Debug)]
struct GetPage {
    label: String,
    request: TargetRequest,
    url: AbsoluteUrl,
}

#[derive(Debug)]
struct GetSharedState {
    options: GetLoad,
    pages: Vec<GetPage>,
    targets: TargetRegistry,
    /// Number of requests that may still be sent.
    remaining_requests: AtomicI64,
    portion: LoadPortion,
    /// Generates sample marks for servers, if marks are enabled.
    sample_marks: Option<SampleMarkGenerator>,
}

/// Selects the page of an arrival by the arrival's number in the whole schedule. The selection does not depend on which
/// user is free or how the schedule is divided, so that a slow page is requested as often as a fast one.
#[derive(Debug)]
struct GetPageSequence {
    /// The index of this worker's next arrival.
    next_arrival: AtomicU64,
    /// The distance between two arrivals of this worker.
    arrival_step: u64,
}

/// A user of `get`.
#[derive(Debug)]
struct GetUser {
    shared: Arc<GetSharedState>,
    /// Set in the open model.
    page_sequence: Option<Arc<GetPageSequence>>,
    page_index: usize,
    label_ids: Vec<SampleLabelId>,
    pending: Option<PendingGet>,
    is_think_time_over: bool,
}

#[derive(Debug)]
struct PendingGet {
    due_at: Instant,
    started_at: Option<Instant>,
    redirect_count: usize,
    current_url: AbsoluteUrl,
    sent_bytes: u64,
    received_bytes: u64,
    /// The request as sent, if the exchange is traced.
    traced_request: Option<Arc<[u8]>>,
    /// The mark by which servers identify the sample.
    sample_mark: Option<Box<str>>,
}

impl GetUser {
    fn new(shared: &Arc<GetSharedState>, number: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            page_sequence: None,
            page_index: number % shared.pages.len().max(1),
            label_ids: Vec::new(),
            pending: None,
            is_think_time_over: true,
        }
    }

    fn send_next(&mut self, turn: &UserTurn<'_>) -> UserStep {
        if turn.is_stopping {
            return UserStep::Leave;
        }
        let shared = Arc::clone(&self.shared);
        let is_open = shared.options.rate.is_some();
        if !is_open && shared.remaining_requests.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return UserStep::Leave;
        }
        if let Some(pages) = &self.page_sequence {
            let number = pages.next_arrival.fetch_add(pages.arrival_step, Ordering::Relaxed);
            let page = number % (shared.pages.len() as u64).max(1);
            self.page_index = usize::try_from(page).unwrap_or(0);
        }
        let Some(page) = shared.pages.get(self.page_index) else { return UserStep::Leave };
        self.pending = Some(PendingGet {
            // Without think time a user is due as soon as it is ready.
            due_at: if is_open || !shared.options.think.is_zero() { turn.due_at } else { turn.now },
            started_at: None,
            redirect_count: 0,
            current_url: page.url.clone(),
            sent_bytes: 0,
            received_bytes: 0,
            traced_request: None,
            sample_mark: shared.sample_marks.as_ref().map(SampleMarkGenerator::next_mark),
        });
        let mut request = page.request.clone();
        self.mark_request(&mut request);
        if turn.recorder.wants_trace(&page.label) {
            self.start_trace(&mut request);
        }
        UserStep::Fetch(request)
    }

    /// Adds the mark of the sample to the request.
    fn mark_request(&self, request: &mut TargetRequest) {
        if let Some(mark) = self.pending.as_ref().and_then(|pending| pending.sample_mark.as_deref())
        {
            insert_mark_header(&mut request.encoded_bytes, mark);
        }
    }

    /// Starts the trace of an exchange.
    fn start_trace(&mut self, request: &mut TargetRequest) {
        request.retention = ResponseRetention::Body(MAX_BODY_BYTES);
        if let Some(pending) = &mut self.pending {
            pending.traced_request = Some(Arc::clone(&request.encoded_bytes));
        }
    }

    /// Returns the request that follows a redirect.
    fn redirect_request(
        &self,
        pending: &mut PendingGet,
        reply: &ExchangeOutcome,
    ) -> Option<TargetRequest> {
        let response = reply.result.as_ref().ok()?;
        if !self.is_followed_redirect(response) || pending.redirect_count >= MAX_REDIRECTS {
            return None;
        }
        let location = response.head.as_ref()?.header("Location")?;
        let next = pending.current_url.join(location).ok()?;
        let mut get = self.shared.options.clone();
        let page = self.shared.pages.get(self.page_index)?;
        if !next.is_same_server(&page.url) {
            get.headers.retain(|(name, _)| !is_server_specific(name));
        }
        if response.status == 303 || (get.method == "POST" && response.status < 307) {
            get.method = "GET".to_owned();
            get.body.clear();
        }
        let request = get.build_request(&self.shared.targets, &next).ok()?;
        pending.redirect_count += 1;
        pending.current_url = next;
        Some(request)
    }

    /// Returns true if the response is a redirect that is to be followed.
    fn is_followed_redirect(&self, response: &TargetResponse) -> bool {
        self.shared.options.follow && matches!(response.status, 301 | 302 | 303 | 307 | 308)
    }

    fn record_sample(
        &mut self,
        turn: &mut UserTurn<'_>,
        pending: &PendingGet,
        mut reply: ExchangeOutcome,
    ) {
        // After too many redirects, the last one is not a valid response.
        if pending.redirect_count >= MAX_REDIRECTS
            && reply.result.as_ref().is_ok_and(|response| self.is_followed_redirect(response))
        {
            reply.result = Err(ExchangeFailure::TooManyRedirects);
        }
        if self.label_ids.is_empty() {
            let shared = Arc::clone(&self.shared);
            self.label_ids =
                shared.pages.iter().map(|page| turn.recorder.label_id(&page.label)).collect();
        }
        let Some(&label) = self.label_ids.get(self.page_index) else { return };
        reply.started_at = pending.started_at.unwrap_or(reply.started_at);
        reply.sent_bytes += pending.sent_bytes;
        reply.received_bytes += pending.received_bytes;
        let sample =
            RecordedSample::from_reply(label, pending.due_at.min(reply.started_at), &reply);
        turn.recorder.record_sample(&sample);
        let response = reply.result.as_ref().ok();
        let header = response.and_then(|response| response.server_timing.as_deref());
        if let Some(mark) = &pending.sample_mark {
            turn.recorder.record_marked(&sample, mark, header);
        }
        if let Some(header) = header {
            turn.recorder.record_server_timing(label, header);
        }
        if let Some(bytes) = &pending.traced_request
            && let Some(page) = self.shared.pages.get(self.page_index)
        {
            let trace = build_trace(&page.label, &pending.current_url, bytes, &mut reply);
            turn.recorder.record_trace(reply.started_at, trace);
        }
        if turn.recorder.wants_rows() {
            self.write_row(turn.recorder, &reply, pending);
        }
    }

    fn write_row(
        &self,
        recorder: &mut SampleRecorder,
        reply: &ExchangeOutcome,
        pending: &PendingGet,
    ) {
        let Some(page) = self.shared.pages.get(self.page_index) else { return };
        let (code, message, is_ok) = match &reply.result {
            Ok(response) => (response.status.to_string(), String::new(), response.status < 400),
            Err(failure) => (
                format!("Non HTTP response code: {}", failure.jmeter_exception()),
                format!("Non HTTP response message: {}", failure.description()),
                false,
            ),
        };
        let millis = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
        };
        let row = JtlRow {
            elapsed_ms: millis(reply.started_at, reply.ended_at),
            label: page.label.as_str().into(),
            response_code: code.into(),
            response_message: message.into(),
            thread_name: "get 1-1".into(),
            data_type: "text".into(),
            is_ok,
            received_bytes: reply.received_bytes,
            sent_bytes: reply.sent_bytes,
            url: format_url(&pending.current_url).into(),
            latency_ms: millis(reply.started_at, reply.first_byte_at),
            connect_ms: u64::try_from(reply.connect_time.as_millis()).unwrap_or(u64::MAX),
            elapsed_us: {
                let elapsed = reply.ended_at.saturating_duration_since(reply.started_at);
                u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
            },
            mark: pending.sample_mark.as_deref().unwrap_or_default().into(),
            ..JtlRow::default()
        };
        recorder.write_row(reply.started_at, row);
    }
}

/// Returns the trace of an exchange.
fn build_trace(
    label: &str,
    at: &AbsoluteUrl,
    request: &[u8],
    reply: &mut ExchangeOutcome,
) -> ExchangeTrace {
    let mut trace = ExchangeTrace {
        label: label.to_owned(),
        url: format_url(at),
        elapsed_us: u64::try_from(
            reply.ended_at.saturating_duration_since(reply.started_at).as_micros(),
        )
        .unwrap_or(u64::MAX),
        request: trace_request_text(request),
        ..ExchangeTrace::default()
    };
    match &mut reply.result {
        Ok(response) => {
            trace.code = response.status.to_string();
            trace.is_ok = response.status < 400;
            trace.body_bytes = response.body_bytes;
            let head = response.head.take().unwrap_or_default();
            let body =
                decode_content(std::mem::take(&mut response.body), head.header("Content-Encoding"));
            let media_type = head.header("Content-Type");
            trace.media_type = media_type.unwrap_or_default().to_owned();
            trace.body = truncate_text(decode_text(body, media_type));
            trace.head = redact_head(head.text());
            head.reason().clone_into(&mut trace.message);
        }
        Err(failure) => {
            trace.code = failure.jmeter_exception().to_owned();
            trace.message = failure.description().to_owned();
        }
    }
    trace
}

fn format_url(at: &AbsoluteUrl) -> String {
    let scheme = if at.is_tls { "https" } else { "http" };
    format!("{scheme}://{}:{}{}", at.host, at.port, at.path_and_query)
}

impl VirtualUser for GetUser {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        if let Some(reply) = turn.outcomes.pop()
            && let Some(mut pending) = self.pending.take()
        {
            if let Some(request) = self.redirect_request(&mut pending, &reply) {
                pending.started_at = pending.started_at.or(Some(reply.started_at));
                pending.sent_bytes += reply.sent_bytes;
                pending.received_bytes += reply.received_bytes;
                let is_traced = pending.traced_request.is_some();
                self.pending = Some(pending);
                let mut request = request;
                self.mark_request(&mut request);
                if is_traced {
                    self.start_trace(&mut request);
                }
                return UserStep::Fetch(request);
            }
            self.record_sample(turn, &pending, *reply);
            if self.shared.options.rate.is_some() {
                return UserStep::AwaitArrival;
            }
            self.page_index = (self.page_index + 1) % self.shared.pages.len().max(1);
            self.is_think_time_over = self.shared.options.think.is_zero();
        }
        if !self.is_think_time_over && !turn.is_stopping {
            self.is_think_time_over = true;
            return UserStep::WaitUntil(turn.now + self.shared.options.think);
        }
        self.send_next(turn)
    }
}
