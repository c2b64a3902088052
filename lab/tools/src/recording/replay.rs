//! Replays an `access.log`: the same requests at the original intervals.
//!
//! Invariants
//! * Every request is due at its own time, whether or not earlier ones are answered. Response times count from the due
//!   time, so a stalled target is not measured less often.
//! * The requests of one client use their own connections, as many at a time as a browser opens.
//!
//! The log's clock has whole seconds; the requests of one second are spread evenly over it.
//!
//! Not here: averages of a log ([`crate::recording::traffic_profile`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_engine::live_display::LiveDisplay;
use tympan_lab_engine::load::{
    LoadRun, LoadRunState, UserStep, UserTurn, VirtualUser, WorkerLoad, processor_count, run_load,
};
use tympan_lab_engine::measurement::{RecordedSample, RunResults, SampleLabelId};
use tympan_lab_engine::net::{
    ExchangeOutcome, LoadTarget, ResponseRetention, TargetRegistry, TargetRequest,
};
use tympan_lab_plan::AbsoluteUrl;

use crate::recording::traffic_profile::AccessLogVisit;
use crate::{Error, Result};

/// Connections per client.
const CONNECTIONS_PER_CLIENT: usize = 6;
/// Maximum number of labels; further labels are combined into one.
const MAX_REPLAY_LABELS: usize = 1000;

/// Configuration of a replay.
#[derive(Debug, Clone)]
pub struct LogReplay {
    /// The destination of all requests; its path precedes every request's path.
    pub base_url: String,
    /// Speed relative to the log; 1 is the original pace.
    pub speed: f64,
    /// Headers sent with every request.
    pub headers: Vec<(String, String)>,
    /// If true, also sends requests that may change something: all methods, without bodies.
    pub sends_all_methods: bool,
    /// Number of threads; 0 for one per processor.
    pub worker_count: usize,
    /// Maximum wait for a connection, and for the next byte.
    pub timeout: Duration,
}

/// The outcome of a replay.
#[derive(Debug)]
pub struct LogReplayOutcome {
    /// The measurements.
    pub results: RunResults,
    /// Visits that were skipped because they may change something.
    pub skipped_visits: u64,
    /// Duration of the log's part at the configured speed.
    pub planned_duration: Duration,
}

/// Returns the due time of each visit, relative to the first second. The visits must be sorted by time.
#[must_use]
pub fn schedule_visits(visits: &[AccessLogVisit], speed: f64) -> Vec<Duration> {
    let first = visits.first().map_or(0, |visit| visit.epoch_second);
    let mut due = Vec::with_capacity(visits.len());
    for second in visits.chunk_by(|left, right| left.epoch_second == right.epoch_second) {
        let at = second.first().map_or(0, |visit| visit.epoch_second - first) as f64;
        for index in 0..second.len() {
            let at = at + index as f64 / second.len() as f64;
            due.push(Duration::try_from_secs_f64(at / speed).unwrap_or_default());
        }
    }
    due
}

impl LogReplay {
    /// Replays the visits.
    ///
    /// # Errors
    /// [`Error::UnusableInput`], `Error::InvalidUrl`, `Error::Resolve`, [`Error::Engine`].
    pub fn run(&self, visits: &[AccessLogVisit]) -> Result<LogReplayOutcome> {
        self.run_with(visits, None)
    }

    /// Replays the visits and updates the live display.
    ///
    /// # Errors
    /// As [`LogReplay::run`].
    pub fn run_live(
        &self,
        visits: &[AccessLogVisit],
        live: &mut LiveDisplay,
    ) -> Result<LogReplayOutcome> {
        self.run_with(visits, Some(live))
    }

    fn run_with(
        &self,
        visits: &[AccessLogVisit],
        live: Option<&mut LiveDisplay>,
    ) -> Result<LogReplayOutcome> {
        if !self.speed.is_finite() || self.speed <= 0.0 {
            return Err(Error::UnusableInput(
                "the speed must be a number above 0, such as 2x".to_owned(),
            ));
        }
        let can_be_sent = |visit: &AccessLogVisit| {
            self.sends_all_methods || matches!(visit.method.as_str(), "GET" | "HEAD")
        };
        let sent: Vec<AccessLogVisit> =
            visits.iter().filter(|visit| can_be_sent(visit)).cloned().collect();
        if sent.is_empty() {
            return Err(Error::UnusableInput("the log contains no requests to replay".to_owned()));
        }
        let base = AbsoluteUrl::parse(&self.base_url)?;
        let target =
            TargetRegistry::default().get_or_resolve(base.is_tls, &base.host, base.port)?;
        let times = schedule_visits(&sent, self.speed);
        let planned = times.last().copied().unwrap_or_default();
        let left_out = (visits.len() - sent.len()) as u64;
        let context = Arc::new(LogReplayContext {
            replay: self.clone(),
            base_url: base,
            target,
            labels: visit_labels(&sent),
        });
        let workers = if self.worker_count == 0 { processor_count() } else { self.worker_count };
        let load = LoadRun {
            worker_loads: assign_visits(&context, sent, &times, workers),
            stop_after: None,
            drain_timeout: self.timeout.min(Duration::from_secs(5)),
            run_state: Arc::new(LoadRunState::default()),
            row_sink: None,
        };
        let mut results = match live {
            Some(live) => {
                live.set_run_duration(planned);
                run_load(load, live)?
            }
            None => run_load(load, &mut ())?,
        };
        results.generator.is_open_model = true;
        if !planned.is_zero() {
            results.generator.offered_rate = Some(times.len() as f64 / planned.as_secs_f64());
        }
        Ok(LogReplayOutcome { results, skipped_visits: left_out, planned_duration: planned })
    }
}

/// Returns a label for each method and path; those beyond the limit have no label.
fn visit_labels(visits: &[AccessLogVisit]) -> HashMap<(String, String), String> {
    let mut counts: HashMap<(String, String), u64> = HashMap::new();
    for visit in visits {
        let path = visit.target.split('?').next().unwrap_or_default().to_owned();
        *counts.entry((visit.method.clone(), path)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|left, right| right.1.cmp(&left.1).then(left.0.cmp(&right.0)));
    counts.truncate(MAX_REPLAY_LABELS);
    counts
        .into_iter()
        .map(|(key, _)| {
            let label = format!("{} {}", key.0, key.1);
            (key, label)
        })
        .collect()
}

/// Distributes each client's visits over its connections in turn, and the connections over the workers.
fn assign_visits(
    context: &Arc<LogReplayContext>,
    visits: Vec<AccessLogVisit>,
    times: &[Duration],
    workers: usize,
) -> Vec<WorkerLoad> {
    let mut lanes: Vec<Vec<(Duration, AccessLogVisit)>> = Vec::new();
    let mut clients: HashMap<String, (Vec<usize>, usize)> = HashMap::new();
    for (visit, due) in visits.into_iter().zip(times) {
        let (own, next) = clients.entry(visit.client.clone()).or_default();
        if own.len() < CONNECTIONS_PER_CLIENT {
            own.push(lanes.len());
            lanes.push(Vec::new());
        }
        let lane_index = own.get(*next % own.len()).copied().unwrap_or(0);
        *next += 1;
        if let Some(lane) = lanes.get_mut(lane_index) {
            lane.push((*due, visit));
        }
    }
    let mut crews: Vec<WorkerLoad> =
        (0..workers.max(1)).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }).collect();
    for (number, lane) in lanes.into_iter().enumerate() {
        let start = lane.first().map_or(Duration::ZERO, |(due, _)| *due);
        let player = LogReplayUser {
            context: Arc::clone(context),
            visits: lane.into_iter(),
            next_visit: None,
            replay_start: None,
            pending_sample: None,
        };
        let crew_index = number % crews.len();
        if let Some(crew) = crews.get_mut(crew_index) {
            crew.users.push((start, Box::new(player)));
        }
    }
    crews
}

#[derive(Debug)]
struct LogReplayContext {
    replay: LogReplay,
    base_url: AbsoluteUrl,
    target: Arc<LoadTarget>,
    labels: HashMap<(String, String), String>,
}

impl LogReplayContext {
    fn label_of_visit(&self, visit: &AccessLogVisit) -> &str {
        let path = visit.target.split('?').next().unwrap_or_default();
        let key = (visit.method.clone(), path.to_owned());
        self.labels.get(&key).map_or("other", String::as_str)
    }

    fn request_for_visit(&self, visit: &AccessLogVisit) -> TargetRequest {
        let prefix = self
            .base_url
            .path_and_query
            .split('?')
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        // A target from the log may contain spaces and control characters, which would break the request line.
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
            if !self.replay.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name)) {
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
        TargetRequest {
            target: Arc::clone(&self.target),
            encoded_bytes: text.into_bytes().into(),
            is_head: visit.method == "HEAD",
            retention: ResponseRetention::Nothing,
            uses_keep_alive: true,
            connect_timeout: Some(self.replay.timeout),
            idle_timeout: Some(self.replay.timeout),
        }
    }
}

/// One connection of one client of the log.
#[derive(Debug)]
struct LogReplayUser {
    context: Arc<LogReplayContext>,
    visits: std::vec::IntoIter<(Duration, AccessLogVisit)>,
    /// The next visit and its due time.
    next_visit: Option<(Instant, AccessLogVisit)>,
    /// The instant from which the log's times count.
    replay_start: Option<Instant>,
    pending_sample: Option<(Instant, SampleLabelId)>,
}

impl LogReplayUser {
    fn record_reply(&self, turn: &mut UserTurn<'_>, reply: &ExchangeOutcome) {
        if let Some((due, label)) = self.pending_sample {
            turn.recorder.record_sample(&RecordedSample::from_reply(
                label,
                due.min(reply.started_at),
                reply,
            ));
        }
    }

    fn load_next_visit(&mut self, turn: &UserTurn<'_>) -> Option<()> {
        let (at, visit) = self.visits.next()?;
        // The first row is due when this user starts, which the engine passes as the time of the turn.
        let start = *self
            .replay_start
            .get_or_insert_with(|| turn.due_at.checked_sub(at).unwrap_or(turn.due_at));
        self.next_visit = Some((start + at, visit));
        Some(())
    }
}

impl VirtualUser for LogReplayUser {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        if let Some(reply) = turn.outcomes.pop() {
            self.record_reply(turn, &reply);
        }
        if turn.is_stopping {
            return UserStep::Leave;
        }
        if self.next_visit.is_none() && self.load_next_visit(turn).is_none() {
            return UserStep::Leave;
        }
        let Some((due, visit)) = self.next_visit.take() else { return UserStep::Leave };
        if due > turn.now {
            self.next_visit = Some((due, visit));
            return UserStep::WaitUntil(due);
        }
        let label = turn.recorder.label_id(self.context.label_of_visit(&visit));
        self.pending_sample = Some((due, label));
        UserStep::Fetch(self.context.request_for_visit(&visit))
    }
}
