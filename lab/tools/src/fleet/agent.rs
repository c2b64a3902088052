//! An agent: receives a job from a controller, sends its portion of the load, and reports its measurements every
//! second.
//!
//! Invariants
//! * Nothing is sent to the target before the controller's start message.
//! * An agent that loses its controller ends its load within about a second.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender as Post, channel};
use std::time::{Duration, Instant};

use tympan_lab_engine::Error as EngineError;
use tympan_lab_engine::load::{LoadObserver, RowConsumer};
use tympan_lab_engine::measurement::interval_codec;
use tympan_lab_engine::measurement::summariser::{SummaryTally, ThreadCounts};
use tympan_lab_engine::measurement::{RunResults, WorkerInterval};
use tympan_lab_engine::plan_run::{RunMembership, RunOptions, run_plan_as_member};
use tympan_lab_plan::{PlanFiles, TestPlan};

use super::frame::{self, AgentFrameKind, AgentFrameSender, PROTOCOL_VERSION};
use super::job::{AgentCompletion, AgentHello, AgentJob, AgentWork, FinishedPart, TallyUpdate};
use super::tls_stream;
use super::token::FleetToken;
use crate::{Error, Result};

/// The connection between an agent and its controller.
#[derive(Debug)]
pub enum AgentTransport {
    /// Standard input and output, as a child process or through `ssh`.
    Stdio,
    /// TLS connection to the controller's address.
    Dial {
        /// `host:port`.
        controller: String,
        /// The shared secret.
        fleet_token: FleetToken,
        /// The portion to request, counted from 0.
        portion_index: Option<usize>,
        /// Time limit for connection attempts.
        connect_timeout: Duration,
    },
}

/// Executes one job.
///
/// # Errors
/// [`Error::FleetConnection`] if there is no controller, it disconnects, or the load fails.
pub fn serve_agent(carrier: AgentTransport) -> Result<()> {
    match carrier {
        AgentTransport::Stdio => {
            run_job(&mut io::stdin(), &AgentFrameSender::new(Box::new(io::stdout())), None)
        }
        AgentTransport::Dial { controller, fleet_token, portion_index, connect_timeout } => {
            let (mut input, output) = dial_controller(&controller, &fleet_token, connect_timeout)?;
            run_job(&mut input, &AgentFrameSender::new(Box::new(output)), portion_index)
        }
    }
}

fn dial_controller(
    controller: &str,
    token: &FleetToken,
    timeout: Duration,
) -> Result<(tls_stream::TlsStreamHalf, tls_stream::TlsStreamHalf)> {
    let started = Instant::now();
    loop {
        let socket = controller
            .to_socket_addrs()
            .and_then(|mut all| all.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
            .and_then(|at| TcpStream::connect_timeout(&at, Duration::from_secs(10)));
        let met = socket.and_then(|socket| tls_stream::dial_tls(socket, token));
        let error = match met {
            Ok(halves) => return Ok(halves),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Err(Error::FleetConnection(format!(
                "the controller at `{controller}` rejected the token"
            )));
        }
        if started.elapsed() >= timeout {
            return Err(Error::FleetConnection(format!(
                "cannot reach a controller at `{controller}`: {error}"
            )));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn connection_lost(error: &io::Error) -> Error {
    Error::FleetConnection(format!("lost the connection to the controller: {error}"))
}

/// State that the listener thread sets for the worker thread.
#[derive(Debug, Default)]
struct ControllerSignals {
    is_stop_requested: AtomicBool,
    is_only_agent: AtomicBool,
}

fn run_job(input: &mut dyn Read, output: &AgentFrameSender, index: Option<usize>) -> Result<()> {
    let clock = Instant::now();
    let hello = AgentHello {
        protocol: PROTOCOL_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        index,
    };
    output.send_json(AgentFrameKind::Hello, &hello).map_err(|error| connection_lost(&error))?;
    let folder =
        tempfile::tempdir().map_err(|source| Error::write_failed(Path::new("."), source))?;
    let Some((job, files)) = receive_job(input, folder.path())? else { return Ok(()) };
    let task = match prepare_task(&job, &files) {
        Ok(task) => task,
        Err(error) => {
            output.send_frame(AgentFrameKind::Refused, error.to_string().as_bytes()).ok();
            return Err(error);
        }
    };
    output.send_frame(AgentFrameKind::Ready, &[]).map_err(|error| connection_lost(&error))?;
    let signals = Arc::new(ControllerSignals::default());
    let (start_sender, start_times) = channel();
    let mut messenger = AgentReporter {
        frame_sender: output.clone(),
        signals: Arc::clone(&signals),
        start_times,
        wants_rows: job.wants_rows,
        clock,
        part_number: 0,
    };
    let worker = std::thread::Builder::new().name("load".to_owned());
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let speaker = output.clone();
    let worker = worker
        .spawn(move || {
            let outcome = task.run(&job, &mut messenger);
            let done = match &outcome {
                Ok(faults) => AgentCompletion { faults: faults.clone(), failure: None },
                Err(error) => {
                    AgentCompletion { faults: Vec::new(), failure: Some(error.to_string()) }
                }
            };
            is_over.store(true, Ordering::SeqCst);
            speaker.send_json(AgentFrameKind::Done, &done).ok();
            outcome
        })
        .map_err(Error::Engine)?;
    // The controller closes the connection after it has read the last message.
    listen_to_controller(input, output, &signals, &start_sender, clock);
    drop(start_sender);
    signals.is_only_agent.store(true, Ordering::SeqCst);
    let was_over = over.load(Ordering::SeqCst);
    let outcome =
        worker.join().unwrap_or_else(|_| Err(Error::FleetConnection("the load failed".to_owned())));
    match outcome {
        Ok(_) if was_over => Ok(()),
        Ok(_) => Err(Error::FleetConnection(
            "lost the connection to the controller; the load was stopped".to_owned(),
        )),
        Err(error) => Err(error),
    }
}

/// Receives files and the job; `None` if the controller disconnects first.
fn receive_job(input: &mut dyn Read, folder: &Path) -> Result<Option<(AgentJob, Vec<PathBuf>)>> {
    let mut files: Vec<PathBuf> = Vec::new();
    loop {
        match frame::read_frame(input).map_err(|error| connection_lost(&error))? {
            None => return Ok(None),
            Some((AgentFrameKind::File, body)) => {
                let mut cursor = interval_codec::IntervalDecoder(&body);
                let number = cursor.read_number().and_then(|number| usize::try_from(number).ok());
                match number {
                    Some(number) if number == files.len() => {
                        files.push(folder.join(format!("file-{number}")));
                    }
                    Some(number) if number + 1 == files.len() => {}
                    _ => {
                        return Err(Error::FleetConnection(
                            "a file of the job is out of order".to_owned(),
                        ));
                    }
                }
                let Some(path) = files.last() else { continue };
                let lost = |source| Error::write_failed(path, source);
                let mut file =
                    std::fs::File::options().append(true).create(true).open(path).map_err(lost)?;
                file.write_all(cursor.0).map_err(lost)?;
            }
            Some((AgentFrameKind::Job, body)) => {
                let job = serde_json::from_slice(&body)
                    .map_err(|error| Error::FleetConnection(format!("invalid job: {error}")))?;
                return Ok(Some((job, files)));
            }
            Some(_) => {}
        }
    }
}

/// A job that is ready to run.
enum AgentTask {
    Get,
    Plan(Box<TestPlan>),
}

fn prepare_task(job: &AgentJob, files: &[PathBuf]) -> Result<AgentTask> {
    match &job.work {
        AgentWork::Get(get) => {
            get.validate()?;
            Ok(AgentTask::Get)
        }
        AgentWork::Plan { name, files: names, left_out, .. } => {
            let (plan, others) = files.split_first().ok_or_else(|| {
                Error::FleetConnection("the plan is missing from the job".to_owned())
            })?;
            // Plan parsers recognize the format by the file extension.
            let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
            let ending = ending
                .filter(|ending| ending.bytes().all(|byte| byte.is_ascii_alphanumeric()))
                .unwrap_or("jmx");
            let plan_path = plan.with_extension(ending);
            std::fs::rename(plan, &plan_path)
                .map_err(|source| Error::write_failed(&plan_path, source))?;
            let files = names.iter().cloned().zip(others.iter().cloned()).collect();
            let plan = TestPlan::load_with_files(
                &plan_path,
                PlanFiles::from_transferred(files),
                left_out,
            )?;
            Ok(AgentTask::Plan(Box::new(plan)))
        }
    }
}

impl AgentTask {
    /// Runs the task; returns faults outside of samples.
    fn run(self, job: &AgentJob, messenger: &mut AgentReporter) -> Result<Vec<String>> {
        match (self, &job.work) {
            (
                Self::Plan(plan),
                AgentWork::Plan { properties, seed, workers, trace, copies_rows, hosts, .. },
            ) => {
                let run = RunOptions {
                    properties: properties.clone(),
                    result_file: None,
                    worker_count: *workers,
                    seed: *seed,
                    without_listeners: true,
                    traces_per_label: *trace,
                    host_addresses: hosts.clone(),
                    ..RunOptions::default()
                };
                let member = RunMembership { portion: job.portion, copies_rows: *copies_rows };
                Ok(run_plan_as_member(&plan, &run, &member, messenger)?.errors)
            }
            (_, AgentWork::Get(get)) => {
                get.run_portion(job.portion, messenger)?;
                Ok(Vec::new())
            }
            (Self::Get, AgentWork::Plan { .. }) => Ok(Vec::new()),
        }
    }
}

/// Reads messages from the controller until it disconnects.
fn listen_to_controller(
    input: &mut dyn Read,
    output: &AgentFrameSender,
    signals: &ControllerSignals,
    start_sender: &Post<u64>,
    clock: Instant,
) {
    while let Ok(Some((kind, body))) = frame::read_frame(input) {
        match kind {
            AgentFrameKind::Ping => {
                let mut body = body;
                interval_codec::put_varint(&mut body, duration_us(clock.elapsed()));
                output.send_frame(AgentFrameKind::Pong, &body).ok();
            }
            AgentFrameKind::Start => {
                if let Some(at) = interval_codec::IntervalDecoder(&body).read_number() {
                    start_sender.send(at).ok();
                }
            }
            AgentFrameKind::Stop => signals.is_stop_requested.store(true, Ordering::SeqCst),
            _ => {}
        }
    }
}

fn duration_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Reports the progress of the load to the controller.
#[derive(Debug)]
struct AgentReporter {
    frame_sender: AgentFrameSender,
    signals: Arc<ControllerSignals>,
    /// Start times, in microseconds of the clock.
    start_times: Receiver<u64>,
    wants_rows: bool,
    clock: Instant,
    part_number: u64,
}

impl AgentReporter {
    fn send_frame(&self, kind: AgentFrameKind, body: &[u8]) {
        if self.frame_sender.send_frame(kind, body).is_err() {
            self.signals.is_only_agent.store(true, Ordering::SeqCst);
        }
    }
}

impl LoadObserver for AgentReporter {
    fn on_second(&mut self) {}

    fn wait_for_start(&mut self) -> Result<Option<Instant>, EngineError> {
        let mut body = Vec::new();
        interval_codec::put_varint(&mut body, self.part_number);
        self.part_number += 1;
        self.send_frame(AgentFrameKind::PartPrepared, &body);
        let at = self.start_times.recv();
        let at = at.map_err(|_| {
            EngineError::NotStarted("lost the connection to the controller".to_owned())
        })?;
        Ok(Some(self.clock + Duration::from_micros(at)))
    }

    fn on_interval(&mut self, interval: &WorkerInterval) {
        self.send_frame(AgentFrameKind::Interval, &interval_codec::encode_interval(interval));
    }

    fn on_tally(&mut self, delta: &SummaryTally, threads: ThreadCounts) {
        let pulse = TallyUpdate { tally: delta.clone(), threads };
        self.send_frame(AgentFrameKind::Tally, &serde_json::to_vec(&pulse).unwrap_or_default());
    }

    fn on_load_end(&mut self, results: &RunResults, is_stopping: bool) {
        let part = FinishedPart::from_results(results, is_stopping);
        self.send_frame(AgentFrameKind::PartDone, &serde_json::to_vec(&part).unwrap_or_default());
    }

    fn is_stop_requested(&self) -> bool {
        // A stop order applies to one part; the plan's tear-down part still runs.
        self.signals.is_stop_requested.swap(false, Ordering::SeqCst)
            || self.signals.is_only_agent.load(Ordering::SeqCst)
    }

    fn row_consumer(&self) -> Option<RowConsumer> {
        let output = self.frame_sender.clone();
        self.wants_rows.then(|| {
            Box::new(move |piece: &[u8]| output.send_frame(AgentFrameKind::Rows, piece))
                as RowConsumer
        })
    }
}
