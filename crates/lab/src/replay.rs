//! Plays an `access.log` again: the same requests, at the distances in time at which they came.
//!
//! Invariants
//! * Every request is due at its own time, whether or not earlier ones have been answered; response times count from
//!   then, so that a target that stalls is not measured less often.
//! * The requests of one client go over connections of their own, as many at a time as a browser opens.
//!
//! The log's clock has whole seconds; the requests of one second are spread evenly over it.
//!
//! Not here: what a log says on average ([`crate::profile`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::Live;
use crate::load::{Crew, Crowd, Load, Step, Turn, User, processors, run};
use crate::net::{Keep, Reply, Request, Target, Targets, Url};
use crate::profile::Visit;
use crate::record::{LabelId, Results, Sample};
use crate::{Error, Result};

/// Connections of one client.
const LANES: usize = 6;
/// More labels than that are put together under one.
const MOST_LABELS: usize = 1000;

/// How to replay.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Where everything goes; its path stands before every request's.
    pub url: String,
    /// How much faster than the log; 1 is its own pace.
    pub speed: f64,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// Also sends what may change something: all methods, without bodies.
    pub all_methods: bool,
    /// Threads; 0 for one per processor.
    pub workers: usize,
    /// Longest wait for a connection, and for the next byte.
    pub timeout: Duration,
}

/// What was replayed.
#[derive(Debug)]
pub struct Replayed {
    /// What was measured.
    pub results: Results,
    /// Visits that were left out, because they may change something.
    pub left_out: u64,
    /// How long the log's part took at the wanted speed.
    pub planned: Duration,
}

/// Returns when each of the visits, which stand in the order of their times, is due, since the first second.
#[must_use]
pub fn schedule(visits: &[Visit], speed: f64) -> Vec<Duration> {
    let first = visits.first().map_or(0, |visit| visit.at);
    let mut due = Vec::with_capacity(visits.len());
    for second in visits.chunk_by(|one, two| one.at == two.at) {
        let at = second.first().map_or(0, |visit| visit.at - first) as f64;
        for place in 0..second.len() {
            let at = at + place as f64 / second.len() as f64;
            due.push(Duration::try_from_secs_f64(at / speed).unwrap_or_default());
        }
    }
    due
}

impl Replay {
    /// Replays.
    ///
    /// # Errors
    /// [`Error::Input`], [`Error::Url`], [`Error::Resolve`], [`Error::Engine`].
    pub fn run(&self, visits: &[Visit]) -> Result<Replayed> {
        self.run_before(visits, None)
    }

    /// Replays and shows it meanwhile.
    ///
    /// # Errors
    /// As [`Replay::run`].
    pub fn run_shown(&self, visits: &[Visit], live: &mut Live) -> Result<Replayed> {
        self.run_before(visits, Some(live))
    }

    fn run_before(&self, visits: &[Visit], live: Option<&mut Live>) -> Result<Replayed> {
        if !self.speed.is_finite() || self.speed <= 0.0 {
            return Err(Error::Input("the speed is a number above 0, such as 2x".to_owned()));
        }
        let can_be_sent =
            |visit: &Visit| self.all_methods || matches!(visit.method.as_str(), "GET" | "HEAD");
        let sent: Vec<Visit> = visits.iter().filter(|visit| can_be_sent(visit)).cloned().collect();
        if sent.is_empty() {
            return Err(Error::Input("the log holds nothing that is replayed".to_owned()));
        }
        let base = Url::parse(&self.url)?;
        let target = Targets::default().find(base.is_tls, &base.host, base.port)?;
        let times = schedule(&sent, self.speed);
        let planned = times.last().copied().unwrap_or_default();
        let left_out = (visits.len() - sent.len()) as u64;
        let stage = Arc::new(Stage { replay: self.clone(), base, target, labels: labels(&sent) });
        let workers = if self.workers == 0 { processors() } else { self.workers };
        let load = Load {
            crews: crews(&stage, sent, &times, workers),
            stop_after: None,
            drain: self.timeout.min(Duration::from_secs(5)),
            crowd: Arc::new(Crowd::default()),
            rows: None,
        };
        let mut results = match live {
            Some(live) => {
                live.set_length(planned);
                run(load, live)?
            }
            None => run(load, &mut ())?,
        };
        results.generator.is_open = true;
        if !planned.is_zero() {
            results.generator.offered = Some(times.len() as f64 / planned.as_secs_f64());
        }
        Ok(Replayed { results, left_out, planned })
    }
}

/// Returns a label for each method and path; those beyond the limit have none.
fn labels(visits: &[Visit]) -> HashMap<(String, String), String> {
    let mut counts: HashMap<(String, String), u64> = HashMap::new();
    for visit in visits {
        let path = visit.target.split('?').next().unwrap_or_default().to_owned();
        *counts.entry((visit.method.clone(), path)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|one, two| two.1.cmp(&one.1).then(one.0.cmp(&two.0)));
    counts.truncate(MOST_LABELS);
    counts
        .into_iter()
        .map(|(key, _)| {
            let label = format!("{} {}", key.0, key.1);
            (key, label)
        })
        .collect()
}

/// Gives every client's visits to its lanes in turn, and the lanes to the workers.
fn crews(stage: &Arc<Stage>, visits: Vec<Visit>, times: &[Duration], workers: usize) -> Vec<Crew> {
    let mut lanes: Vec<Vec<(Duration, Visit)>> = Vec::new();
    let mut clients: HashMap<String, (Vec<usize>, usize)> = HashMap::new();
    for (visit, due) in visits.into_iter().zip(times) {
        let (own, next) = clients.entry(visit.client.clone()).or_default();
        if own.len() < LANES {
            own.push(lanes.len());
            lanes.push(Vec::new());
        }
        let lane = own.get(*next % own.len()).copied().unwrap_or(0);
        *next += 1;
        if let Some(lane) = lanes.get_mut(lane) {
            lane.push((*due, visit));
        }
    }
    let mut crews: Vec<Crew> =
        (0..workers.max(1)).map(|_| Crew { users: Vec::new(), arrivals: None }).collect();
    for (number, lane) in lanes.into_iter().enumerate() {
        let start = lane.first().map_or(Duration::ZERO, |(due, _)| *due);
        let player = Player {
            stage: Arc::clone(stage),
            rows: lane.into_iter(),
            next: None,
            begun: None,
            asked: None,
        };
        let place = number % crews.len();
        if let Some(crew) = crews.get_mut(place) {
            crew.users.push((start, Box::new(player)));
        }
    }
    crews
}

#[derive(Debug)]
struct Stage {
    replay: Replay,
    base: Url,
    target: Arc<Target>,
    labels: HashMap<(String, String), String>,
}

impl Stage {
    fn label(&self, visit: &Visit) -> &str {
        let path = visit.target.split('?').next().unwrap_or_default();
        let key = (visit.method.clone(), path.to_owned());
        self.labels.get(&key).map_or("other", String::as_str)
    }

    fn request(&self, visit: &Visit) -> Request {
        let prefix = self.base.target.split('?').next().unwrap_or_default().trim_end_matches('/');
        // What a log holds as it came in may not go out: spaces and controls would break the request line.
        let target: String = visit
            .target
            .chars()
            .map(|letter| {
                if letter.is_whitespace() || letter.is_control() {
                    "%20".to_owned()
                } else {
                    letter.to_string()
                }
            })
            .collect();
        let mut text = format!("{} {prefix}{target} HTTP/1.1\r\n", visit.method);
        let mut add = |name: &str, value: &str| {
            if !self.replay.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        };
        add("Host", &self.target.authority());
        add("User-Agent", concat!("tympan-lab/", env!("CARGO_PKG_VERSION")));
        add("Accept", "*/*");
        if !matches!(visit.method.as_str(), "GET" | "HEAD") {
            add("Content-Length", "0");
        }
        for (name, value) in &self.replay.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        Request {
            target: Arc::clone(&self.target),
            bytes: text.into_bytes().into(),
            is_head: visit.method == "HEAD",
            keep: Keep::Nothing,
            keep_alive: true,
            connect_timeout: Some(self.replay.timeout),
            response_timeout: Some(self.replay.timeout),
        }
    }
}

/// One connection of one client of the log.
#[derive(Debug)]
struct Player {
    stage: Arc<Stage>,
    rows: std::vec::IntoIter<(Duration, Visit)>,
    /// What comes next, and when.
    next: Option<(Instant, Visit)>,
    /// The moment from which the log's times count.
    begun: Option<Instant>,
    asked: Option<(Instant, LabelId)>,
}

impl Player {
    fn note(&self, turn: &mut Turn<'_>, reply: &Reply) {
        if let Some((due, label)) = self.asked {
            turn.recorder.sample(&Sample::of(label, due.min(reply.started), reply));
        }
    }

    fn take_next(&mut self, turn: &Turn<'_>) -> Option<()> {
        let (at, visit) = self.rows.next()?;
        // The first row is due when this user starts, which the engine tells as the turn's own time.
        let begun = *self.begun.get_or_insert_with(|| turn.due.checked_sub(at).unwrap_or(turn.due));
        self.next = Some((begun + at, visit));
        Some(())
    }
}

impl User for Player {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        if let Some(reply) = turn.replies.pop() {
            self.note(turn, &reply);
        }
        if turn.is_stopping {
            return Step::End;
        }
        if self.next.is_none() && self.take_next(turn).is_none() {
            return Step::End;
        }
        let Some((due, visit)) = self.next.take() else { return Step::End };
        if due > turn.now {
            self.next = Some((due, visit));
            return Step::Wait(due);
        }
        let label = turn.recorder.label(self.stage.label(&visit));
        self.asked = Some((due, label));
        Step::Fetch(self.stage.request(&visit))
    }
}
