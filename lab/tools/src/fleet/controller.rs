//! The controller: collects agents, assigns each its portion, starts all at the same time, and adds up their
//! measurements.

use std::fs::File;
use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Post, channel};
use std::time::{Duration, Instant};

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::measurement::interval_codec;
use tympan_lab_engine::measurement::summariser::{SummaryTally, ThreadCounts};
use tympan_lab_engine::measurement::{RunResults, jtl};
use tympan_lab_engine::plan_run::{RunOptions, SummaryLinePrinter, time_of_day_text};
use tympan_lab_plan::{LoadPortion, TestPlan};

use super::frame::{self, AgentFrameKind, AgentFrameSender, FILE_CHUNK_BYTES, PROTOCOL_VERSION};
use super::job::{AgentCompletion, AgentHello, AgentJob, AgentWork, FinishedPart, TallyUpdate};
use super::results_merger::ResultsMerger;
use super::token::FleetToken;
use super::transport::{self, AgentConnection, AgentPlacement, AgentProcess};
use crate::{Error, Result};

/// Several agents that share a load.
#[derive(Debug)]
pub struct AgentFleet {
    /// Agents that the controller starts.
    pub placements: Vec<AgentPlacement>,
    /// Agents that dial in: the listener, the token, and their number.
    pub dial_in: Option<(TcpListener, FleetToken, usize)>,
    /// True if every agent uses all rows of the plan's data, as JMeter's remote engines do.
    pub copies_data_rows: bool,
    /// True if every agent generates the whole load with all threads of the plan, as JMeter's remote engines do.
    pub copies_load: bool,
    /// Time limit until all agents are ready.
    pub start_timeout: Duration,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct FleetOutcome {
    /// The measurements, including a record of losses.
    pub results: RunResults,
    /// The totals of the last summary line.
    pub final_tally: SummaryTally,
    /// Faults outside of samples.
    pub faults: Vec<String>,
}

/// Delay between the moment all agents are ready and the start.
const START_DELAY: Duration = Duration::from_secs(1);
/// An agent that sends nothing for this long is lost.
const AGENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(4);
/// Number of pings used to measure the clock offset of an agent.
const CLOCK_SYNC_PINGS: u64 = 20;

/// An event from the thread that serves an agent.
enum AgentEvent {
    /// The agent accepted its job; its clock is this many microseconds ahead.
    Ready(ReadyAgent),
    Frame(usize, AgentFrameKind, Vec<u8>),
    /// The reason why the agent could not begin.
    Refused(String),
    Lost(usize, String),
}

/// A frame from the agent with this portion.
type ReceivedAgentFrame = (usize, AgentFrameKind, Vec<u8>);

/// An agent that is ready to start.
struct ReadyAgent {
    portion_index: usize,
    name: String,
    frame_sender: AgentFrameSender,
    clock_offset_us: i64,
    #[expect(dead_code, reason = "the process ends when this is dropped")]
    process: Option<AgentProcess>,
}

impl AgentFleet {
    /// Returns the number of agents.
    #[must_use]
    pub fn agent_count(&self) -> usize {
        self.placements.len() + self.dial_in.as_ref().map_or(0, |(.., count)| *count)
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// As `TestPlan::run`; [`Error::FleetConnection`] if not every agent begins; [`Error::UnusableInput`] if the plan
    /// names files that cannot be sent.
    pub fn run_plan(
        self,
        path: &Path,
        run: &RunOptions,
        say: &mut dyn FnMut(&str),
    ) -> Result<FleetOutcome> {
        let plan = TestPlan::load_without_classes(path, &run.excluded_classes)?;
        let mut files = vec![path.to_owned()];
        let mut names = Vec::new();
        for (name, at) in plan.file_paths(&run.properties, run.seed)? {
            names.push(name);
            files.push(at);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let work = AgentWork::Plan {
            name,
            files: names,
            properties: run.properties.clone(),
            seed: run.seed,
            workers: run.worker_count,
            trace: run.traces_per_label,
            copies_rows: self.copies_data_rows,
            hosts: run.host_addresses.clone(),
            left_out: run.excluded_classes.clone(),
        };
        let is_plan = true;
        self.run_work(work, &files, run.result_file.as_deref(), (is_plan, say))
    }

    /// Runs a load of URLs.
    ///
    /// # Errors
    /// As [`GetLoad::run`]; [`Error::FleetConnection`] if not every agent begins.
    pub fn run_get(self, get: &GetLoad, say: &mut dyn FnMut(&str)) -> Result<FleetOutcome> {
        get.validate()?;
        let agents = self.agent_count();
        if get.rate.is_none() && get.users < agents {
            return Err(Error::UnusableInput(format!(
                "{} users cannot be divided among {agents} agents",
                get.users
            )));
        }
        let work = AgentWork::Get(Box::new(GetLoad { rows: None, ..get.clone() }));
        self.run_work(work, &[], get.rows.as_deref(), (false, say))
    }

    fn run_work(
        self,
        work: AgentWork,
        files: &[PathBuf],
        rows: Option<&Path>,
        (is_plan, say): (bool, &mut dyn FnMut(&str)),
    ) -> Result<FleetOutcome> {
        let count = self.agent_count();
        if count == 0 {
            return Err(Error::UnusableInput("a load needs at least one agent".to_owned()));
        }
        let most_traces = match &work {
            AgentWork::Get(get) => get.trace,
            AgentWork::Plan { trace, .. } => *trace,
        };
        let job = AgentJob {
            portion: LoadPortion::default(),
            is_whole: self.copies_load,
            wants_rows: rows.is_some(),
            work,
        };
        let rows = rows.map(SampleRowFile::create).transpose()?;
        let clock = Instant::now();
        let (post, events) = channel();
        let (ready_agents, early) = self.gather_agents(&job, files, clock, &post, &events)?;
        drop(post);
        say(&format!("the load is divided among {count} agents"));
        if is_plan {
            say("Creating summariser <summary>");
            say(&format!("Starting distributed test @ {}", time_of_day_text()));
        }
        let mut conductor = FleetCoordinator {
            clock,
            merger: ResultsMerger::new(
                ready_agents.iter().map(|agent| agent.name.clone()).collect(),
            ),
            thread_counts: vec![ThreadCounts::default(); count],
            agents: ready_agents
                .into_iter()
                .map(|agent| Some((agent, AgentRunState::Running)))
                .collect(),
            last_heard_at: vec![Instant::now(); count],
            summary_teller: SummaryLinePrinter::default(),
            faults: Vec::new(),
            row_file: rows,
        };
        for (index, kind, body) in early {
            conductor.handle_frame(index, kind, &body)?;
        }
        conductor.coordinate(&events, is_plan, say)?;
        if let Some(rows) = conductor.row_file.take() {
            rows.finish()?;
        }
        let total = conductor.summary_teller.total().clone();
        let mut results = conductor.merger.into_results();
        results.limit_traces(most_traces);
        Ok(FleetOutcome { results, final_tally: total, faults: conductor.faults })
    }

    /// Starts agents, accepts others, and waits until all have accepted their jobs.
    fn gather_agents(
        self,
        job: &AgentJob,
        files: &[PathBuf],
        clock: Instant,
        post: &Post<AgentEvent>,
        events: &Receiver<AgentEvent>,
    ) -> Result<(Vec<ReadyAgent>, Vec<ReceivedAgentFrame>)> {
        let count = self.agent_count();
        let (door, guests) = channel::<AgentConnection>();
        if let Some((listener, token, _)) = self.dial_in {
            transport::accept_agents(listener, token, move |line| door.send(line).is_ok())?;
        }
        let mut lines = Vec::new();
        for (index, placement) in self.placements.iter().enumerate() {
            lines.push(transport::start_agent(placement, index)?);
        }
        let claims = PortionClaims::with_preclaimed(count, lines.len());
        let give =
            |line: AgentConnection| spawn_agent_thread(line, job, files, &claims, clock, post);
        for line in lines {
            give(line)?;
        }
        let until = Instant::now() + self.start_timeout;
        let mut ready_agents: Vec<Option<ReadyAgent>> = (0..count).map(|_| None).collect();
        let mut early = Vec::new();
        while ready_agents.iter().any(Option::is_none) {
            while let Ok(line) = guests.try_recv() {
                give(line)?;
            }
            match events.recv_timeout(Duration::from_millis(50)) {
                Ok(AgentEvent::Ready(agent)) => {
                    let index = agent.portion_index;
                    if let Some(slot) = ready_agents.get_mut(index) {
                        *slot = Some(agent);
                    }
                }
                Ok(AgentEvent::Refused(reason)) => return Err(Error::FleetConnection(reason)),
                Ok(AgentEvent::Lost(_, reason)) => return Err(Error::FleetConnection(reason)),
                // An agent that is ready early may already send frames.
                Ok(AgentEvent::Frame(index, kind, body)) => early.push((index, kind, body)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= until {
                let ready_count = ready_agents.iter().flatten().count();
                return Err(Error::FleetConnection(format!(
                    "only {ready_count} of {count} agents were ready after {} s; nothing was sent to the target",
                    self.start_timeout.as_secs()
                )));
            }
        }
        Ok((ready_agents.into_iter().flatten().collect(), early))
    }
}

/// The portions that are assigned.
#[derive(Debug, Clone)]
struct PortionClaims(std::sync::Arc<std::sync::Mutex<Vec<bool>>>);

impl PortionClaims {
    /// Reserves the first `started` of `count` portions for agents that the controller starts.
    fn with_preclaimed(count: usize, started: usize) -> Self {
        let claims = (0..count).map(|index| index < started).collect();
        Self(std::sync::Arc::new(std::sync::Mutex::new(claims)))
    }

    /// Assigns the wanted portion if it is free, otherwise the first free one.
    fn claim(&self, requested_index: Option<usize>) -> Option<usize> {
        let mut claims = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let requested_index = requested_index.filter(|&index| claims.get(index) == Some(&false));
        let index = requested_index.or_else(|| claims.iter().position(|is_taken| !is_taken))?;
        *claims.get_mut(index)? = true;
        Some(index)
    }
}

/// Starts the thread that communicates with an agent for the whole run.
fn spawn_agent_thread(
    line: AgentConnection,
    job: &AgentJob,
    files: &[PathBuf],
    claims: &PortionClaims,
    clock: Instant,
    post: &Post<AgentEvent>,
) -> Result<()> {
    let (job, files, claims, post) = (job.clone(), files.to_vec(), claims.clone(), post.clone());
    let speak = move || {
        let AgentConnection { name, mut reader, writer: output, portion_index: index, process } =
            line;
        let output = AgentFrameSender::new(output);
        let agent = match receive_hello(&mut *reader, &name, index, &claims) {
            // More agents dialed in than needed; reject the surplus.
            Ok(None) => return,
            Ok(Some((index, name))) => {
                let job = job.for_agent(index as u64, claimed_count(&claims));
                send_job(&mut *reader, &output, &job, &files, clock)
                    .map(|(offset_us, early)| {
                        (
                            ReadyAgent {
                                portion_index: index,
                                name: name.clone(),
                                frame_sender: output,
                                clock_offset_us: offset_us,
                                process,
                            },
                            early,
                        )
                    })
                    .map_err(|reason| format!("{name}: {reason}"))
            }
            Err(reason) => Err(format!("{name}: {reason}")),
        };
        let index = match agent {
            Ok((agent, early)) => {
                let index = agent.portion_index;
                post.send(AgentEvent::Ready(agent)).ok();
                for (kind, body) in early {
                    post.send(AgentEvent::Frame(index, kind, body)).ok();
                }
                index
            }
            Err(reason) => {
                post.send(AgentEvent::Refused(reason)).ok();
                return;
            }
        };
        let reason = loop {
            match frame::read_frame(&mut *reader) {
                Ok(Some((kind, body))) => {
                    if post.send(AgentEvent::Frame(index, kind, body)).is_err() {
                        return;
                    }
                }
                Ok(None) => break "it disconnected".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        post.send(AgentEvent::Lost(index, reason)).ok();
    };
    std::thread::Builder::new().name("agent".to_owned()).spawn(speak).map_err(Error::Engine)?;
    Ok(())
}

fn claimed_count(claims: &PortionClaims) -> u64 {
    claims.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len() as u64
}

/// Receives the hello message of an agent; `None` if every portion is assigned.
fn receive_hello(
    input: &mut dyn Read,
    name: &str,
    index: Option<usize>,
    claims: &PortionClaims,
) -> Result<Option<(usize, String)>, String> {
    let first = frame::read_frame(input).map_err(|error| error.to_string())?;
    let Some((AgentFrameKind::Hello, body)) = first else {
        return Err("it disconnected before it identified itself".to_owned());
    };
    let hello: AgentHello = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    if hello.protocol != PROTOCOL_VERSION {
        return Err(format!(
            "its version {} uses a different protocol than version {} here",
            hello.version,
            env!("CARGO_PKG_VERSION")
        ));
    }
    let Some(index) = index.or_else(|| claims.claim(hello.index)) else { return Ok(None) };
    let name = match name.strip_prefix("agent at ") {
        Some(from) => format!("agent {} ({from})", index + 1),
        None => name.to_owned(),
    };
    Ok(Some((index, name)))
}

/// The offset of an agent's clock in microseconds, and the frames that the agent sent early.
type AgentBriefing = (i64, Vec<(AgentFrameKind, Vec<u8>)>);

/// Sends an agent its job and measures its clock; returns the offset of the agent's clock, and the frames about its
/// load that arrived during the exchange.
fn send_job(
    input: &mut dyn Read,
    output: &AgentFrameSender,
    job: &AgentJob,
    files: &[PathBuf],
    clock: Instant,
) -> Result<AgentBriefing, String> {
    let lost = |error: std::io::Error| format!("connection lost: {error}");
    for (number, path) in files.iter().enumerate() {
        send_file(output, number as u64, path)?;
    }
    output.send_json(AgentFrameKind::Job, job).map_err(lost)?;
    match frame::read_frame(input).map_err(lost)? {
        Some((AgentFrameKind::Ready, _)) => {}
        Some((AgentFrameKind::Refused, reason)) => {
            return Err(String::from_utf8_lossy(&reason).into_owned());
        }
        _ => return Err("it disconnected instead of accepting its job".to_owned()),
    }
    let mut best: Option<(u64, i64)> = None;
    let mut early = Vec::new();
    for number in 0..CLOCK_SYNC_PINGS {
        let before = duration_us(clock.elapsed());
        let mut body = Vec::new();
        interval_codec::put_varint(&mut body, number);
        output.send_frame(AgentFrameKind::Ping, &body).map_err(lost)?;
        let body = loop {
            match frame::read_frame(input).map_err(lost)? {
                Some((AgentFrameKind::Pong, body)) => break body,
                Some(frame) => early.push(frame),
                None => return Err("it disconnected".to_owned()),
            }
        };
        let after = duration_us(clock.elapsed());
        let mut cursor = interval_codec::IntervalDecoder(&body);
        let (Some(_), Some(agent_time_us)) = (cursor.read_number(), cursor.read_number()) else {
            return Err("its clock reply is invalid".to_owned());
        };
        let offset = agent_time_us as i64 - (before + (after - before) / 2) as i64;
        // The reply with the shortest round trip gives the most accurate offset.
        if best.is_none_or(|(round_trip, _)| after - before < round_trip) {
            best = Some((after - before, offset));
        }
    }
    Ok((best.map_or(0, |(_, offset)| offset), early))
}

fn send_file(output: &AgentFrameSender, number: u64, path: &Path) -> Result<(), String> {
    let unread = |error: std::io::Error| format!("cannot read `{}`: {error}", path.display());
    let mut file = File::open(path).map_err(unread)?;
    let mut is_first = true;
    loop {
        let mut body = Vec::new();
        interval_codec::put_varint(&mut body, number);
        let head = body.len();
        Read::by_ref(&mut file)
            .take(FILE_CHUNK_BYTES as u64)
            .read_to_end(&mut body)
            .map_err(unread)?;
        if body.len() == head && !is_first {
            return Ok(());
        }
        is_first = false;
        output
            .send_frame(AgentFrameKind::File, &body)
            .map_err(|error| format!("connection lost: {error}"))?;
    }
}

fn duration_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The state of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentRunState {
    Running,
    /// Waiting for the other agents.
    WaitingForStart,
}

/// The result file that holds the rows of all agents.
#[derive(Debug)]
struct SampleRowFile {
    file: File,
    path: PathBuf,
}

impl SampleRowFile {
    fn create(path: &Path) -> Result<Self> {
        let lost = |source| Error::write_failed(path, source);
        let mut file = File::create(path).map_err(lost)?;
        writeln!(file, "{}", jtl::JTL_HEADER).map_err(lost)?;
        Ok(Self { file, path: path.to_owned() })
    }

    fn write_rows(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|source| Error::write_failed(&self.path, source))
    }

    fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::write_failed(&self.path, source))
    }
}

/// Controls a run of agents that are ready.
struct FleetCoordinator {
    clock: Instant,
    merger: ResultsMerger,
    /// Agents that are still connected.
    agents: Vec<Option<(ReadyAgent, AgentRunState)>>,
    last_heard_at: Vec<Instant>,
    thread_counts: Vec<ThreadCounts>,
    summary_teller: SummaryLinePrinter,
    faults: Vec<String>,
    row_file: Option<SampleRowFile>,
}

impl FleetCoordinator {
    fn coordinate(
        &mut self,
        events: &Receiver<AgentEvent>,
        is_plan: bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let mut last_ping_at = Instant::now();
        while self.agents.iter().any(Option::is_some) {
            match events.recv_timeout(Duration::from_millis(500)) {
                Ok(AgentEvent::Frame(index, kind, body)) => {
                    match self.handle_frame(index, kind, &body) {
                        // An agent that sends invalid data counts as lost; the measurements of the others are kept.
                        Err(Error::FleetConnection(reason)) => self.drop_agent(index, &reason, say),
                        outcome => outcome?,
                    }
                }
                Ok(AgentEvent::Lost(index, reason)) => self.drop_agent(index, &reason, say),
                Ok(AgentEvent::Ready(_) | AgentEvent::Refused(_))
                | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if last_ping_at.elapsed() >= PING_INTERVAL {
                last_ping_at = Instant::now();
                self.ping_agents(say);
            }
            self.start_part_when_ready();
            if is_plan {
                self.summary_teller.print_due_lines(false, sum_threads(&self.thread_counts), say);
            }
        }
        if is_plan {
            self.summary_teller.print_due_lines(true, sum_threads(&self.thread_counts), say);
            say(&format!("Tidying up ...    @ {}", time_of_day_text()));
            say("... end of run");
        }
        Ok(())
    }

    fn handle_frame(&mut self, index: usize, kind: AgentFrameKind, body: &[u8]) -> Result<()> {
        if let Some(last_heard_at) = self.last_heard_at.get_mut(index) {
            *last_heard_at = Instant::now();
        }
        match kind {
            AgentFrameKind::PartPrepared => {
                if let Some(Some((_, standing))) = self.agents.get_mut(index) {
                    *standing = AgentRunState::WaitingForStart;
                }
                self.merger.record_part_prepared(index);
            }
            AgentFrameKind::Interval => {
                let interval = interval_codec::decode_interval(body)
                    .ok_or_else(|| Error::FleetConnection("it sent an invalid interval".into()))?;
                if !self.merger.is_plausible(&interval) {
                    return Err(Error::FleetConnection(
                        "it sent an interval that lies in the future".into(),
                    ));
                }
                self.merger.add_interval(index, &interval);
            }
            AgentFrameKind::Tally => {
                let pulse: TallyUpdate = parse_json_body(body)?;
                self.summary_teller.add(&pulse.tally);
                if let Some(threads) = self.thread_counts.get_mut(index) {
                    *threads = pulse.threads;
                }
            }
            AgentFrameKind::Rows => {
                if let Some(rows) = &mut self.row_file {
                    rows.write_rows(body)?;
                }
            }
            AgentFrameKind::PartDone => {
                let part: FinishedPart = parse_json_body(body)?;
                self.merger.record_part_end(index, &part);
                if part.is_stopping {
                    self.broadcast(AgentFrameKind::Stop);
                }
            }
            AgentFrameKind::Done => {
                let done: AgentCompletion = parse_json_body(body)?;
                self.faults.extend(done.faults);
                if let Some(failure) = done.failure {
                    self.merger.record_agent_lost(index, &failure);
                }
                if let Some(slot) = self.agents.get_mut(index) {
                    *slot = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn drop_agent(&mut self, index: usize, reason: &str, say: &mut dyn FnMut(&str)) {
        let Some(slot) = self.agents.get_mut(index) else { return };
        // An agent may disconnect after its last message.
        if let Some((agent, _)) = slot.take() {
            self.merger.record_agent_lost(index, reason);
            say(&format!(
                "{} is lost: {reason}; its portion of the load is missing from now on",
                agent.name
            ));
        }
    }

    /// Pings every agent and drops those that were silent for too long.
    fn ping_agents(&mut self, say: &mut dyn FnMut(&str)) {
        let silent: Vec<usize> = (0..self.agents.len())
            .filter(|&index| {
                self.last_heard_at
                    .get(index)
                    .is_some_and(|instant| instant.elapsed() >= AGENT_TIMEOUT)
            })
            .collect();
        for index in silent {
            self.drop_agent(
                index,
                &format!("no message received for {} s", AGENT_TIMEOUT.as_secs()),
                say,
            );
        }
        let mut body = Vec::new();
        interval_codec::put_varint(&mut body, 0);
        for (agent, _) in self.agents.iter().flatten() {
            agent.frame_sender.send_frame(AgentFrameKind::Ping, &body).ok();
        }
    }

    fn broadcast(&self, kind: AgentFrameKind) {
        for (agent, _) in self.agents.iter().flatten() {
            agent.frame_sender.send_frame(kind, &[]).ok();
        }
    }

    fn start_part_when_ready(&mut self) {
        if self.agents.iter().all(Option::is_none) {
            return;
        }
        if self
            .agents
            .iter()
            .flatten()
            .any(|(_, standing)| *standing != AgentRunState::WaitingForStart)
        {
            return;
        }
        let at = self.clock.elapsed() + START_DELAY;
        self.merger.record_part_start(self.clock + at);
        for (agent, standing) in self.agents.iter_mut().flatten() {
            *standing = AgentRunState::Running;
            let start_time_us =
                (duration_us(at) as i64).saturating_add(agent.clock_offset_us).max(0);
            let mut body = Vec::new();
            interval_codec::put_varint(&mut body, start_time_us as u64);
            agent.frame_sender.send_frame(AgentFrameKind::Start, &body).ok();
        }
    }
}

fn parse_json_body<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::FleetConnection(format!("it sent an invalid message: {error}")))
}

fn sum_threads(threads: &[ThreadCounts]) -> ThreadCounts {
    threads.iter().fold(ThreadCounts::default(), |sum, counts| ThreadCounts {
        active: sum.active + counts.active,
        started: sum.started + counts.started,
        finished: sum.finished + counts.finished,
    })
}
