//! `tympan lab get`: one or more URLs under load, closed or on a schedule.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::live::Live;
use crate::load::{
    Crew, Crowd, Load, Observer, Portion, Process, Rows, Schedule, Step, Turn, User, processors,
    run,
};
use crate::net::{
    Failure, Keep, MOST_HOPS, Reply, Request, Response, Targets, Url, is_for_one_server, user_info,
};
use crate::plan::answer::{decode, to_text};
use crate::record::jtl::{Added, Row};
use crate::record::{
    LabelId, Marks, Recorder, Results, Sample, Trace, cut, put_mark, request_text, without_secrets,
};
use crate::{Error, Result};

/// How arrivals of the open model follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Uniform,
    /// Independently, as visitors come.
    Poisson,
}

/// What to ask, how often.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Get {
    /// Asked in turn.
    pub urls: Vec<String>,
    /// `GET`.
    pub method: String,
    /// Added to, or replacing, the ones that are always sent.
    pub headers: Vec<(String, String)>,
    /// The body of each request.
    pub body: Vec<u8>,
    /// Users of the closed model.
    pub users: usize,
    /// Requests in all.
    pub requests: Option<u64>,
    /// When to stop.
    pub duration: Option<Duration>,
    /// Arrivals per second: the open model.
    pub rate: Option<f64>,
    /// How they follow each other.
    pub arrivals: Arrivals,
    /// Most users at a time in the open model.
    pub max_users: usize,
    /// Pause of a user between an answer and the next request.
    pub think: Duration,
    /// Threads; 0 for one per processor.
    pub workers: usize,
    /// Whether connections are used again.
    pub keep_alive: bool,
    /// Longest wait for a connection, and for the next byte.
    pub timeout: Duration,
    /// Whether redirects are followed.
    pub follow: bool,
    /// Whether each connection makes a full TLS handshake.
    pub forgets_sessions: bool,
    /// Whether connections speak HTTP/2.
    pub is_http2: bool,
    /// Result file to write.
    pub rows: Option<PathBuf>,
    /// Columns that its rows have besides JMeter's.
    pub added: Added,
    /// What random arrivals derive from.
    pub seed: u64,
    /// How many exchanges of each label are kept whole.
    pub trace: usize,
    /// The run's name, if each request says which sample of it it belongs to.
    pub mark: Option<String>,
}

impl Default for Get {
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
            arrivals: Arrivals::Uniform,
            max_users: 10_000,
            think: Duration::ZERO,
            workers: 0,
            keep_alive: true,
            timeout: Duration::from_secs(30),
            follow: false,
            forgets_sessions: false,
            is_http2: false,
            rows: None,
            added: Added::default(),
            seed: 1,
            trace: 0,
            mark: None,
        }
    }
}

/// Bytes of a body that are kept whole.
const MOST_BODY: usize = 1 << 20;

impl Get {
    /// Runs the load.
    ///
    /// # Errors
    /// [`Error::Input`] and [`Error::Url`] for what cannot be run, [`Error::Resolve`], [`Error::Engine`].
    pub fn run(&self) -> Result<Results> {
        self.run_as(Portion::default(), &mut ())
    }

    /// Runs the load and shows it meanwhile.
    ///
    /// # Errors
    /// As [`Get::run`].
    pub fn run_shown(&self, live: &mut Live) -> Result<Results> {
        self.run_as(Portion::default(), live)
    }

    /// Runs the portion of the load that falls to this process; `observer` is told about every second.
    pub(crate) fn run_as(&self, portion: Portion, observer: &mut dyn Observer) -> Result<Results> {
        let shared = Arc::new(self.prepare(portion)?);
        let workers = self.worker_count(portion);
        let rows = match (observer.row_taker(), self.rows.as_deref()) {
            (Some(taker), _) => Some(Rows::hand_over(taker)?),
            (None, path) => path.map(|path| Rows::create(path, self.added)).transpose()?,
        };
        let crowd = Arc::new(Crowd::default());
        crowd.trace(self.trace);
        let load = Load {
            crews: self.crews(&shared, workers),
            stop_after: self.duration,
            drain: self.timeout.min(Duration::from_secs(5)),
            crowd,
            rows: rows.as_ref().map(Rows::sink),
        };
        let results = run(load, observer)?;
        if let Some(rows) = rows {
            rows.finish()?;
        }
        Ok(results)
    }

    fn worker_count(&self, portion: Portion) -> usize {
        let wanted = if self.workers == 0 { processors() } else { self.workers };
        let users = usize::try_from(portion.of(self.users as u64)).unwrap_or(self.users);
        if self.rate.is_some() { wanted } else { wanted.min(users).max(1) }
    }

    /// Says what of the load cannot be run.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.urls.is_empty() {
            return Err(Error::Input("no URL is given".to_owned()));
        }
        if self.rate.is_some() && self.duration.is_none() && self.requests.is_none() {
            return Err(Error::Input("a rate needs a duration or a number of requests".to_owned()));
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(Error::Input("a rate is a number above 0".to_owned()));
        }
        if self.method.is_empty()
            || !self.method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(Error::Input(format!("`{}` is no method", self.method)));
        }
        if self.users == 0 {
            return Err(Error::Input("without users nothing is sent".to_owned()));
        }
        Ok(())
    }

    fn prepare(&self, portion: Portion) -> Result<Shared> {
        self.check()?;
        let mut pages = Vec::new();
        let targets = Targets::forgetting(self.forgets_sessions).by_http2(self.is_http2);
        for text in &self.urls {
            let url = Url::parse(text)?;
            let login = user_info(text).map(|login| crate::browse::basic(&login).1);
            pages.push(Page {
                label: format!("{} {}", self.method, url.target),
                request: self.request_as(&targets, &url, login.as_deref())?,
                url,
            });
        }
        Ok(Shared {
            marks: self.mark.as_deref().map(Marks::of),
            get: self.clone(),
            pages,
            targets,
            tickets: AtomicI64::new(
                self.requests
                    .map_or(i64::MAX, |count| i64::try_from(portion.of(count)).unwrap_or(i64::MAX)),
            ),
            portion,
        })
    }

    fn request(&self, targets: &Targets, url: &Url) -> Result<Request> {
        self.request_as(targets, url, None)
    }

    /// Returns the request for an address, with the credentials that stand in it.
    fn request_as(&self, targets: &Targets, url: &Url, login: Option<&str>) -> Result<Request> {
        let target = targets.find(url.is_tls, &url.host, url.port)?;
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, url.target);
        let mut add = |name: &str, value: &str| {
            if !self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
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
        Ok(Request {
            target,
            bytes: bytes.into(),
            is_head: self.method == "HEAD",
            keep: if self.follow { Keep::Head } else { Keep::Nothing },
            keep_alive: self.keep_alive,
            connect_timeout: Some(self.timeout),
            response_timeout: Some(self.timeout),
        })
    }

    fn crews(&self, shared: &Arc<Shared>, workers: usize) -> Vec<Crew> {
        let Some(rate) = self.rate else {
            let mut crews: Vec<Crew> =
                (0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }).collect();
            let mine = (0..self.users).filter(|&number| shared.portion.has(number as u64));
            for (place, number) in mine.enumerate() {
                if let Some(crew) = crews.get_mut(place % workers) {
                    crew.users.push((Duration::ZERO, Box::new(Asker::new(shared, number))));
                }
            }
            return crews;
        };
        let by_count = self.requests.map(|count| Duration::from_secs_f64(count as f64 / rate));
        let end = match (self.duration, by_count) {
            (Some(one), Some(two)) => one.min(two),
            (one, two) => one.or(two).unwrap_or_default(),
        };
        let process = match self.arrivals {
            Arrivals::Uniform => Process::Uniform,
            Arrivals::Poisson => Process::Poisson,
        };
        let schedule = Schedule::new(process, rate, end, self.seed);
        let portion = shared.portion;
        (0..workers)
            .map(|number| {
                let shared = Arc::clone(shared);
                let place = portion.place(number as u64);
                let step = portion.count * workers as u64;
                let pages = Arc::new(Pages { next: AtomicU64::new(place), step });
                let mine = shared.portion.of(self.max_users as u64).max(1);
                let most = usize::try_from(mine).unwrap_or(usize::MAX).div_ceil(workers);
                let mut hired = 0;
                let hire = move || {
                    if hired >= most {
                        return None;
                    }
                    hired += 1;
                    let mut asker = Asker::new(&shared, hired);
                    asker.pages = Some(Arc::clone(&pages));
                    Some(Box::new(asker) as Box<dyn User>)
                };
                Crew {
                    users: Vec::new(),
                    arrivals: Some((
                        schedule.share(
                            usize::try_from(place).unwrap_or(usize::MAX),
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
struct Page {
    label: String,
    request: Request,
    url: Url,
}

#[derive(Debug)]
struct Shared {
    get: Get,
    pages: Vec<Page>,
    targets: Targets,
    /// Requests that may still be sent.
    tickets: AtomicI64,
    portion: Portion,
    /// Names samples to servers, if they are told.
    marks: Option<Marks>,
}

/// Which page an arrival asks for: the arrivals' number in the whole schedule says it, whoever is free and however the
/// schedule is divided, so that a slow page is asked for as often as a quick one.
#[derive(Debug)]
struct Pages {
    /// The number of this worker's next arrival.
    next: AtomicU64,
    /// From one arrival of this worker to the next.
    step: u64,
}

/// A user of `get`.
#[derive(Debug)]
struct Asker {
    shared: Arc<Shared>,
    /// In the open model.
    pages: Option<Arc<Pages>>,
    page: usize,
    labels: Vec<LabelId>,
    asked: Option<Asked>,
    has_thought: bool,
}

#[derive(Debug)]
struct Asked {
    due: Instant,
    started: Option<Instant>,
    hops: usize,
    at: Url,
    sent: u64,
    received: u64,
    /// The request as it was sent, if the exchange is kept whole.
    traced: Option<Arc<[u8]>>,
    /// By which servers know the sample.
    mark: Option<Box<str>>,
}

impl Asker {
    fn new(shared: &Arc<Shared>, number: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            pages: None,
            page: number % shared.pages.len().max(1),
            labels: Vec::new(),
            asked: None,
            has_thought: true,
        }
    }

    fn ask(&mut self, turn: &Turn<'_>) -> Step {
        if turn.is_stopping {
            return Step::End;
        }
        let shared = Arc::clone(&self.shared);
        let is_open = shared.get.rate.is_some();
        if !is_open && shared.tickets.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Step::End;
        }
        if let Some(pages) = &self.pages {
            let number = pages.next.fetch_add(pages.step, Ordering::Relaxed);
            let page = number % (shared.pages.len() as u64).max(1);
            self.page = usize::try_from(page).unwrap_or(0);
        }
        let Some(page) = shared.pages.get(self.page) else { return Step::End };
        self.asked = Some(Asked {
            // Without pauses a user is due when it is there.
            due: if is_open || !shared.get.think.is_zero() { turn.due } else { turn.now },
            started: None,
            hops: 0,
            at: page.url.clone(),
            sent: 0,
            received: 0,
            traced: None,
            mark: shared.marks.as_ref().map(Marks::take_next),
        });
        let mut request = page.request.clone();
        self.mark(&mut request);
        if turn.recorder.wants_trace(&page.label) {
            self.trace(&mut request);
        }
        Step::Fetch(request)
    }

    /// Tells the server which sample a request belongs to.
    fn mark(&self, request: &mut Request) {
        if let Some(mark) = self.asked.as_ref().and_then(|asked| asked.mark.as_deref()) {
            put_mark(&mut request.bytes, mark);
        }
    }

    /// Has an exchange kept whole.
    fn trace(&mut self, request: &mut Request) {
        request.keep = Keep::Body(MOST_BODY);
        if let Some(asked) = &mut self.asked {
            asked.traced = Some(Arc::clone(&request.bytes));
        }
    }

    /// Returns the request that a redirect asks for.
    fn follow(&self, asked: &mut Asked, reply: &Reply) -> Option<Request> {
        let response = reply.result.as_ref().ok()?;
        if !self.leads_on(response) || asked.hops >= MOST_HOPS {
            return None;
        }
        let location = response.head.as_ref()?.header("Location")?;
        let next = asked.at.join(location).ok()?;
        let mut get = self.shared.get.clone();
        let page = self.shared.pages.get(self.page)?;
        if !next.is_same_server(&page.url) {
            get.headers.retain(|(name, _)| !is_for_one_server(name));
        }
        if response.status == 303 || (get.method == "POST" && response.status < 307) {
            get.method = "GET".to_owned();
            get.body.clear();
        }
        let request = get.request(&self.shared.targets, &next).ok()?;
        asked.hops += 1;
        asked.at = next;
        Some(request)
    }

    /// Reports whether an answer leads to another address that is to be asked.
    fn leads_on(&self, response: &Response) -> bool {
        self.shared.get.follow && matches!(response.status, 301 | 302 | 303 | 307 | 308)
    }

    fn note(&mut self, turn: &mut Turn<'_>, asked: &Asked, mut reply: Reply) {
        // The last of too many redirects is no answer.
        if asked.hops >= MOST_HOPS
            && reply.result.as_ref().is_ok_and(|response| self.leads_on(response))
        {
            reply.result = Err(Failure::Redirects);
        }
        if self.labels.is_empty() {
            let shared = Arc::clone(&self.shared);
            self.labels =
                shared.pages.iter().map(|page| turn.recorder.label(&page.label)).collect();
        }
        let Some(&label) = self.labels.get(self.page) else { return };
        reply.started = asked.started.unwrap_or(reply.started);
        reply.sent += asked.sent;
        reply.received += asked.received;
        let sample = Sample::of(label, asked.due.min(reply.started), &reply);
        turn.recorder.sample(&sample);
        let response = reply.result.as_ref().ok();
        let header = response.and_then(|response| response.server_timing.as_deref());
        if let Some(mark) = &asked.mark {
            turn.recorder.mark(&sample, mark, header);
        }
        if let Some(header) = header {
            turn.recorder.phases(label, header);
        }
        if let Some(bytes) = &asked.traced
            && let Some(page) = self.shared.pages.get(self.page)
        {
            let trace = kept(&page.label, &asked.at, bytes, &mut reply);
            turn.recorder.trace(reply.started, trace);
        }
        if turn.recorder.wants_rows() {
            self.write_row(turn.recorder, &reply, asked);
        }
    }

    fn write_row(&self, recorder: &mut Recorder, reply: &Reply, asked: &Asked) {
        let Some(page) = self.shared.pages.get(self.page) else { return };
        let (code, message, is_ok) = match &reply.result {
            Ok(response) => (response.status.to_string(), String::new(), response.status < 400),
            Err(failure) => (
                format!("Non HTTP response code: {}", failure.exception()),
                format!("Non HTTP response message: {}", failure.words()),
                false,
            ),
        };
        let millis = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
        };
        let row = Row {
            elapsed: millis(reply.started, reply.ended),
            label: page.label.as_str().into(),
            code: code.into(),
            message: message.into(),
            thread: "get 1-1".into(),
            data_type: "text".into(),
            is_ok,
            bytes: reply.received,
            sent: reply.sent,
            url: show_url(&asked.at).into(),
            latency: millis(reply.started, reply.first_byte),
            connect: u64::try_from(reply.connect.as_millis()).unwrap_or(u64::MAX),
            elapsed_us: {
                let elapsed = reply.ended.saturating_duration_since(reply.started);
                u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
            },
            mark: asked.mark.as_deref().unwrap_or_default().into(),
            ..Row::default()
        };
        recorder.row(reply.started, row);
    }
}

/// Returns an exchange that is kept whole.
fn kept(label: &str, at: &Url, request: &[u8], reply: &mut Reply) -> Trace {
    let mut trace = Trace {
        label: label.to_owned(),
        url: show_url(at),
        elapsed_us: u64::try_from(reply.ended.saturating_duration_since(reply.started).as_micros())
            .unwrap_or(u64::MAX),
        request: request_text(request),
        ..Trace::default()
    };
    match &mut reply.result {
        Ok(response) => {
            trace.code = response.status.to_string();
            trace.is_ok = response.status < 400;
            trace.body_bytes = response.body_bytes;
            let head = response.head.take().unwrap_or_default();
            let body = decode(std::mem::take(&mut response.body), head.header("Content-Encoding"));
            let media_type = head.header("Content-Type");
            trace.media_type = media_type.unwrap_or_default().to_owned();
            trace.body = cut(to_text(body, media_type));
            trace.head = without_secrets(head.text());
            head.reason().clone_into(&mut trace.message);
        }
        Err(failure) => {
            trace.code = failure.exception().to_owned();
            trace.message = failure.words().to_owned();
        }
    }
    trace
}

fn show_url(at: &Url) -> String {
    let scheme = if at.is_tls { "https" } else { "http" };
    format!("{scheme}://{}:{}{}", at.host, at.port, at.target)
}

impl User for Asker {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        if let Some(reply) = turn.replies.pop()
            && let Some(mut asked) = self.asked.take()
        {
            if let Some(request) = self.follow(&mut asked, &reply) {
                asked.started = asked.started.or(Some(reply.started));
                asked.sent += reply.sent;
                asked.received += reply.received;
                let is_traced = asked.traced.is_some();
                self.asked = Some(asked);
                let mut request = request;
                self.mark(&mut request);
                if is_traced {
                    self.trace(&mut request);
                }
                return Step::Fetch(request);
            }
            self.note(turn, &asked, *reply);
            if self.shared.get.rate.is_some() {
                return Step::Rest;
            }
            self.page = (self.page + 1) % self.shared.pages.len().max(1);
            self.has_thought = self.shared.get.think.is_zero();
        }
        if !self.has_thought && !turn.is_stopping {
            self.has_thought = true;
            return Step::Wait(turn.now + self.shared.get.think);
        }
        self.ask(turn)
    }
}
