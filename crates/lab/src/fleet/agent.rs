//! An agent: takes a job from a controller, sends its portion of the load, and tells every second what it measured.
//!
//! Invariants
//! * Nothing is sent to the target before the controller says when.
//! * An agent whose controller is gone ends its load within about a second.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender as Post, channel};
use std::time::{Duration, Instant};

use super::frame::{self, Kind, PROTOCOL, Sender};
use super::job::{Done, Hello, Job, PartOver, Pulse, Work};
use super::pipe;
use super::token::Token;
use super::wire;
use crate::load::{Observer, RowTaker};
use crate::plan::files::Files;
use crate::plan::{Membership, Plan, Run};
use crate::record::summariser::{Tally, Threads};
use crate::record::{Interval, Results};
use crate::{Error, Result};

/// How an agent reaches its controller.
#[derive(Debug)]
pub enum Carrier {
    /// Standard input and output, as a process or through `ssh`.
    Stdio,
    /// TLS to the controller's address.
    Dial {
        /// `host:port`.
        controller: String,
        /// What both sides know.
        token: Token,
        /// The portion to ask for, counted from 0.
        index: Option<usize>,
        /// How long to try again while nobody answers.
        patience: Duration,
    },
}

/// Serves one job to its end.
///
/// # Errors
/// [`Error::Fleet`] if there is no controller, it goes away, or the load fails.
pub fn serve(carrier: Carrier) -> Result<()> {
    match carrier {
        Carrier::Stdio => work(&mut io::stdin(), &Sender::new(Box::new(io::stdout())), None),
        Carrier::Dial { controller, token, index, patience } => {
            let (mut input, output) = dial(&controller, &token, patience)?;
            work(&mut input, &Sender::new(Box::new(output)), index)
        }
    }
}

fn dial(controller: &str, token: &Token, patience: Duration) -> Result<(pipe::Half, pipe::Half)> {
    let started = Instant::now();
    loop {
        let socket = controller
            .to_socket_addrs()
            .and_then(|mut all| all.next().ok_or_else(|| io::ErrorKind::NotFound.into()))
            .and_then(|at| TcpStream::connect_timeout(&at, Duration::from_secs(10)));
        let met = socket.and_then(|socket| pipe::dial(socket, token));
        let error = match met {
            Ok(halves) => return Ok(halves),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Err(Error::Fleet(format!(
                "the controller at `{controller}` does not know this token"
            )));
        }
        if started.elapsed() >= patience {
            return Err(Error::Fleet(format!(
                "cannot reach a controller at `{controller}`: {error}"
            )));
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn gone(error: &io::Error) -> Error {
    Error::Fleet(format!("the controller is gone: {error}"))
}

/// What the thread that listens to the controller tells the one that works.
#[derive(Debug, Default)]
struct Orders {
    stop: AtomicBool,
    is_alone: AtomicBool,
}

fn work(input: &mut dyn Read, output: &Sender, index: Option<usize>) -> Result<()> {
    let clock = Instant::now();
    let hello = Hello { protocol: PROTOCOL, version: env!("CARGO_PKG_VERSION").to_owned(), index };
    output.send_json(Kind::Hello, &hello).map_err(|error| gone(&error))?;
    let folder = tempfile::tempdir().map_err(|source| Error::write(Path::new("."), source))?;
    let Some((job, files)) = receive(input, folder.path())? else { return Ok(()) };
    let task = match prepare(&job, &files) {
        Ok(task) => task,
        Err(error) => {
            output.send(Kind::Refused, error.to_string().as_bytes()).ok();
            return Err(error);
        }
    };
    output.send(Kind::Ready, &[]).map_err(|error| gone(&error))?;
    let orders = Arc::new(Orders::default());
    let (starts, moments) = channel();
    let mut messenger = Messenger {
        output: output.clone(),
        orders: Arc::clone(&orders),
        moments,
        wants_rows: job.wants_rows,
        clock,
        part: 0,
    };
    let worker = std::thread::Builder::new().name("load".to_owned());
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let speaker = output.clone();
    let worker = worker
        .spawn(move || {
            let outcome = task.run(&job, &mut messenger);
            let done = match &outcome {
                Ok(faults) => Done { faults: faults.clone(), failure: None },
                Err(error) => Done { faults: Vec::new(), failure: Some(error.to_string()) },
            };
            is_over.store(true, Ordering::SeqCst);
            speaker.send_json(Kind::Done, &done).ok();
            outcome
        })
        .map_err(Error::Engine)?;
    // The controller hangs up when it has read the last word.
    listen(input, output, &orders, &starts, clock);
    drop(starts);
    orders.is_alone.store(true, Ordering::SeqCst);
    let was_over = over.load(Ordering::SeqCst);
    let outcome = worker.join().unwrap_or_else(|_| Err(Error::Fleet("the load failed".to_owned())));
    match outcome {
        Ok(_) if was_over => Ok(()),
        Ok(_) => Err(Error::Fleet("the controller is gone; the load was ended".to_owned())),
        Err(error) => Err(error),
    }
}

/// Takes files and the job; `None` if the controller hangs up before.
fn receive(input: &mut dyn Read, folder: &Path) -> Result<Option<(Job, Vec<PathBuf>)>> {
    let mut files: Vec<PathBuf> = Vec::new();
    loop {
        match frame::read(input).map_err(|error| gone(&error))? {
            None => return Ok(None),
            Some((Kind::File, body)) => {
                let mut cursor = wire::Cursor(&body);
                let number = cursor.number().and_then(|number| usize::try_from(number).ok());
                match number {
                    Some(number) if number == files.len() => {
                        files.push(folder.join(format!("file-{number}")));
                    }
                    Some(number) if number + 1 == files.len() => {}
                    _ => return Err(Error::Fleet("a file of the job is out of order".to_owned())),
                }
                let Some(path) = files.last() else { continue };
                let lost = |source| Error::write(path, source);
                let mut file =
                    std::fs::File::options().append(true).create(true).open(path).map_err(lost)?;
                file.write_all(cursor.0).map_err(lost)?;
            }
            Some((Kind::Job, body)) => {
                let job = serde_json::from_slice(&body)
                    .map_err(|error| Error::Fleet(format!("the job does not read: {error}")))?;
                return Ok(Some((job, files)));
            }
            Some(_) => {}
        }
    }
}

/// A job that can be run.
enum Task {
    Get,
    Plan(Box<Plan>),
}

fn prepare(job: &Job, files: &[PathBuf]) -> Result<Task> {
    match &job.work {
        Work::Get(get) => get.check().map(|()| Task::Get),
        Work::Plan { name, files: names, left_out, .. } => {
            let (plan, others) = files
                .split_first()
                .ok_or_else(|| Error::Fleet("the plan is missing from the job".to_owned()))?;
            // Readers of plans tell their kinds by the ending.
            let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
            let ending = ending
                .filter(|ending| ending.bytes().all(|byte| byte.is_ascii_alphanumeric()))
                .unwrap_or("jmx");
            let known = plan.with_extension(ending);
            std::fs::rename(plan, &known).map_err(|source| Error::write(&known, source))?;
            let files = names.iter().cloned().zip(others.iter().cloned()).collect();
            let plan = Plan::load_with(&known, Files::sent(files), left_out)?;
            Ok(Task::Plan(Box::new(plan)))
        }
    }
}

impl Task {
    /// Runs it; returns what went wrong outside of samples.
    fn run(self, job: &Job, messenger: &mut Messenger) -> Result<Vec<String>> {
        match (self, &job.work) {
            (
                Self::Plan(plan),
                Work::Plan { properties, seed, workers, trace, copies_rows, hosts, .. },
            ) => {
                let run = Run {
                    properties: properties.clone(),
                    rows: None,
                    workers: *workers,
                    seed: *seed,
                    without_listeners: true,
                    trace: *trace,
                    hosts: hosts.clone(),
                    ..Run::default()
                };
                let member = Membership { portion: job.portion, copies_rows: *copies_rows };
                plan.run_as(&run, &member, messenger).map(|outcome| outcome.faults)
            }
            (_, Work::Get(get)) => get.run_as(job.portion, messenger).map(|_| Vec::new()),
            (Self::Get, Work::Plan { .. }) => Ok(Vec::new()),
        }
    }
}

/// Listens to the controller until it hangs up.
fn listen(
    input: &mut dyn Read,
    output: &Sender,
    orders: &Orders,
    starts: &Post<u64>,
    clock: Instant,
) {
    while let Ok(Some((kind, body))) = frame::read(input) {
        match kind {
            Kind::Ping => {
                let mut body = body;
                wire::put(&mut body, micros(clock.elapsed()));
                output.send(Kind::Pong, &body).ok();
            }
            Kind::Start => {
                if let Some(at) = wire::Cursor(&body).number() {
                    starts.send(at).ok();
                }
            }
            Kind::Stop => orders.stop.store(true, Ordering::SeqCst),
            _ => {}
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Tells the controller how the load goes on.
#[derive(Debug)]
struct Messenger {
    output: Sender,
    orders: Arc<Orders>,
    /// When to begin, in microseconds of the clock.
    moments: Receiver<u64>,
    wants_rows: bool,
    clock: Instant,
    part: u64,
}

impl Messenger {
    fn send(&self, kind: Kind, body: &[u8]) {
        if self.output.send(kind, body).is_err() {
            self.orders.is_alone.store(true, Ordering::SeqCst);
        }
    }
}

impl Observer for Messenger {
    fn second(&mut self) {}

    fn begin(&mut self) -> Result<Option<Instant>> {
        let mut body = Vec::new();
        wire::put(&mut body, self.part);
        self.part += 1;
        self.send(Kind::Arrived, &body);
        let at = self.moments.recv();
        let at = at.map_err(|_| Error::Fleet("the controller is gone".to_owned()))?;
        Ok(Some(self.clock + Duration::from_micros(at)))
    }

    fn interval(&mut self, interval: &Interval) {
        self.send(Kind::Interval, &wire::encode(interval));
    }

    fn tally(&mut self, delta: &Tally, threads: Threads) {
        let pulse = Pulse { tally: delta.clone(), threads };
        self.send(Kind::Tally, &serde_json::to_vec(&pulse).unwrap_or_default());
    }

    fn end(&mut self, results: &Results, is_stopping: bool) {
        let part = PartOver::of(results, is_stopping);
        self.send(Kind::Part, &serde_json::to_vec(&part).unwrap_or_default());
    }

    fn wants_stop(&self) -> bool {
        // An order holds for one part; what the plan tears down afterwards is still run.
        self.orders.stop.swap(false, Ordering::SeqCst)
            || self.orders.is_alone.load(Ordering::SeqCst)
    }

    fn row_taker(&self) -> Option<RowTaker> {
        let output = self.output.clone();
        self.wants_rows
            .then(|| Box::new(move |piece: &[u8]| output.send(Kind::Rows, piece)) as RowTaker)
    }
}
