//! `tympan lab get`: one or more URLs under load, closed or on a schedule.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crate::load::{
    Crew, Crowd, Load, Observer, Process, Rows, Schedule, Step, Turn, User, processors, run,
};
use crate::net::{Keep, Reply, Request, Targets, Url};
use crate::record::jtl::Row;
use crate::record::{LabelId, Recorder, Results, Sample};
use crate::{Error, Result};

/// How arrivals of the open model follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Uniform,
    /// Independently, as visitors come.
    Poisson,
}

/// What to ask, how often.
#[derive(Debug, Clone)]
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
    /// Result file to write.
    pub rows: Option<PathBuf>,
    /// What random arrivals derive from.
    pub seed: u64,
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
            rows: None,
            seed: 1,
        }
    }
}

/// Most redirects that are followed for one request.
const MOST_HOPS: usize = 20;

impl Get {
    /// Runs the load.
    ///
    /// # Errors
    /// [`Error::Input`] and [`Error::Url`] for what cannot be run, [`Error::Resolve`], [`Error::Engine`].
    pub fn run(&self) -> Result<Results> {
        self.run_watched(&mut ())
    }

    /// Runs the load; `observer` is told about every second.
    pub(crate) fn run_watched(&self, observer: &mut dyn Observer) -> Result<Results> {
        let shared = Arc::new(self.prepare()?);
        let workers = self.worker_count();
        let rows = self.rows.as_deref().map(Rows::create).transpose()?;
        let load = Load {
            crews: self.crews(&shared, workers),
            stop_after: self.duration,
            drain: self.timeout.min(Duration::from_secs(5)),
            crowd: Arc::new(Crowd::default()),
            rows: rows.as_ref().map(Rows::sink),
        };
        let results = run(load, observer)?;
        if let Some(rows) = rows {
            rows.finish()?;
        }
        Ok(results)
    }

    fn worker_count(&self) -> usize {
        let wanted = if self.workers == 0 { processors() } else { self.workers };
        if self.rate.is_some() { wanted } else { wanted.min(self.users).max(1) }
    }

    fn prepare(&self) -> Result<Shared> {
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
        let mut pages = Vec::new();
        let targets = Targets::default();
        for url in &self.urls {
            let url = Url::parse(url)?;
            pages.push(Page {
                label: format!("{} {}", self.method, url.target),
                request: self.request(&targets, &url)?,
                url,
            });
        }
        Ok(Shared {
            get: self.clone(),
            pages,
            targets,
            tickets: AtomicI64::new(
                self.requests.map_or(i64::MAX, |count| i64::try_from(count).unwrap_or(i64::MAX)),
            ),
        })
    }

    fn request(&self, targets: &Targets, url: &Url) -> Result<Request> {
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
            for number in 0..self.users {
                if let Some(crew) = crews.get_mut(number % workers) {
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
        (0..workers)
            .map(|number| {
                let shared = Arc::clone(shared);
                let most = self.max_users.div_ceil(workers);
                let mut hired = 0;
                let hire = move || {
                    if hired >= most {
                        return None;
                    }
                    hired += 1;
                    Some(Box::new(Asker::new(&shared, hired)) as Box<dyn User>)
                };
                Crew {
                    users: Vec::new(),
                    arrivals: Some((schedule.share(number, workers), Box::new(hire))),
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
}

/// A user of `get`.
#[derive(Debug)]
struct Asker {
    shared: Arc<Shared>,
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
}

impl Asker {
    fn new(shared: &Arc<Shared>, number: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
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
        let Some(page) = shared.pages.get(self.page) else { return Step::End };
        self.asked = Some(Asked {
            // Without pauses a user is due when it is there.
            due: if is_open || !shared.get.think.is_zero() { turn.due } else { turn.now },
            started: None,
            hops: 0,
            at: page.url.clone(),
            sent: 0,
            received: 0,
        });
        Step::Fetch(page.request.clone())
    }

    /// Returns the request that a redirect asks for.
    fn follow(&self, asked: &mut Asked, reply: &Reply) -> Option<Request> {
        let response = reply.result.as_ref().ok()?;
        let is_redirect = matches!(response.status, 301 | 302 | 303 | 307 | 308);
        if !self.shared.get.follow || !is_redirect || asked.hops >= MOST_HOPS {
            return None;
        }
        let location = response.head.as_ref()?.header("Location")?;
        let next = asked.at.join(location).ok()?;
        let mut get = self.shared.get.clone();
        if response.status == 303 || (get.method == "POST" && response.status < 307) {
            get.method = "GET".to_owned();
            get.body.clear();
        }
        let request = get.request(&self.shared.targets, &next).ok()?;
        asked.hops += 1;
        asked.at = next;
        Some(request)
    }

    fn note(&mut self, turn: &mut Turn<'_>, asked: &Asked, mut reply: Reply) {
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
        if turn.recorder.wants_rows() {
            self.write_row(turn.recorder, &reply, &asked.at);
        }
    }

    fn write_row(&self, recorder: &mut Recorder, reply: &Reply, at: &Url) {
        let Some(page) = self.shared.pages.get(self.page) else { return };
        let (code, message, is_ok) = match &reply.result {
            Ok(response) => (response.status.to_string(), String::new(), response.status < 400),
            Err(failure) => (
                format!("Non HTTP response code: {}", failure.exception()),
                format!("Non HTTP response message: {}", failure.words()),
                false,
            ),
        };
        let scheme = if at.is_tls { "https" } else { "http" };
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
            url: format!("{scheme}://{}:{}{}", at.host, at.port, at.target).into(),
            latency: millis(reply.started, reply.first_byte),
            connect: u64::try_from(reply.connect.as_millis()).unwrap_or(u64::MAX),
            ..Row::default()
        };
        recorder.row(reply.started, row);
    }
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
                self.asked = Some(asked);
                return Step::Fetch(request);
            }
            self.note(turn, &asked, *reply);
            self.page = (self.page + 1) % self.shared.pages.len().max(1);
            if self.shared.get.rate.is_some() {
                return Step::Rest;
            }
            self.has_thought = self.shared.get.think.is_zero();
        }
        if !self.has_thought && !turn.is_stopping {
            self.has_thought = true;
            return Step::Wait(turn.now + self.shared.get.think);
        }
        self.ask(turn)
    }
}
