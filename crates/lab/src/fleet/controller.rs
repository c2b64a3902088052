//! The controller: gathers agents, gives each its portion, starts all at one moment, and adds up what they measure.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Post, channel};
use std::time::{Duration, Instant};

use super::carrier::{self, Line, Process};
use super::frame::{self, Kind, PIECE, PROTOCOL, Sender};
use super::job::{Done, Hello, Job, PartOver, Pulse, Work};
use super::merge::Merger;
use super::token::Token;
use super::wire;
use crate::get::Get;
use crate::load::Portion;
use crate::plan::{Plan, Run, Teller, moment};
use crate::record::summariser::{Tally, Threads};
use crate::record::{Results, jtl};
use crate::{Error, Result};

/// Where the controller starts an agent.
#[derive(Debug, Clone)]
pub enum Place {
    /// On this machine.
    Here {
        /// The program that is run with `lab agent --stdio`.
        program: PathBuf,
    },
    /// On a host, through the system's `ssh`.
    Host {
        /// `ssh`, or what takes its place.
        ssh: OsString,
        /// `[user@]host`, as `ssh` takes it.
        host: String,
        /// The program there.
        program: String,
    },
}

/// Several agents that share a load.
#[derive(Debug)]
pub struct Fleet {
    /// Agents that the controller starts.
    pub places: Vec<Place>,
    /// Agents that dial in, and how many of them.
    pub door: Option<(TcpListener, Token, usize)>,
    /// Whether every agent uses all rows of the plan's data, as JMeter's remote engines do.
    pub copies_rows: bool,
    /// Whether every agent makes the whole load, with all threads of the plan, as JMeter's remote engines do.
    pub copies_load: bool,
    /// How long all agents together may take until they are ready.
    pub patience: Duration,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was measured; what was lost is in it.
    pub results: Results,
    /// The totals of the last summary line.
    pub tally: Tally,
    /// What went wrong outside of samples.
    pub faults: Vec<String>,
}

/// From when everyone is ready until everyone begins.
const LEAD: Duration = Duration::from_secs(1);
/// An agent that says nothing for so long is lost.
const SILENCE: Duration = Duration::from_secs(20);
/// How often agents are asked whether they are there.
const ASK: Duration = Duration::from_secs(4);
/// Questions by which an agent's clock is learned.
const PINGS: u64 = 20;

/// What the thread that attends to an agent tells.
enum Event {
    /// The agent took its job; its clock is this many microseconds ahead.
    Ready(Seat),
    Frame(usize, Kind, Vec<u8>),
    /// Why it could not begin.
    Refused(String),
    Lost(usize, String),
}

/// A frame of the agent with this portion.
type Heard = (usize, Kind, Vec<u8>);

/// An agent that is ready.
struct Seat {
    index: usize,
    name: String,
    output: Sender,
    offset_us: i64,
    #[expect(dead_code, reason = "the process ends when this is dropped")]
    process: Option<Process>,
}

impl Fleet {
    /// Returns the number of agents.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.places.len() + self.door.as_ref().map_or(0, |(.., count)| *count)
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// As [`Plan::run`]; [`Error::Fleet`] if not every agent begins; [`Error::Input`] if the plan
    /// names files that cannot be sent.
    pub fn run_plan(self, path: &Path, run: &Run, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let plan = Plan::load_without(path, &run.left_out)?;
        let mut files = vec![path.to_owned()];
        let mut names = Vec::new();
        for (name, at) in plan.files(run)? {
            names.push(name);
            files.push(at);
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let work = Work::Plan {
            name,
            files: names,
            properties: run.properties.clone(),
            seed: run.seed,
            workers: run.workers,
            trace: run.trace,
            copies_rows: self.copies_rows,
            hosts: run.hosts.clone(),
            left_out: run.left_out.clone(),
        };
        let is_plan = true;
        self.play(work, &files, run.rows.as_deref(), (is_plan, say))
    }

    /// Puts URLs under load.
    ///
    /// # Errors
    /// As [`Get::run`]; [`Error::Fleet`] if not every agent begins.
    pub fn run_get(self, get: &Get, say: &mut dyn FnMut(&str)) -> Result<Outcome> {
        get.check()?;
        let agents = self.agents();
        if get.rate.is_none() && get.users < agents {
            return Err(Error::Input(format!(
                "{} users cannot be divided among {agents} agents",
                get.users
            )));
        }
        let work = Work::Get(Box::new(Get { rows: None, ..get.clone() }));
        self.play(work, &[], get.rows.as_deref(), (false, say))
    }

    fn play(
        self,
        work: Work,
        files: &[PathBuf],
        rows: Option<&Path>,
        (is_plan, say): (bool, &mut dyn FnMut(&str)),
    ) -> Result<Outcome> {
        let count = self.agents();
        if count == 0 {
            return Err(Error::Input("a load needs at least one agent".to_owned()));
        }
        let most_traces = match &work {
            Work::Get(get) => get.trace,
            Work::Plan { trace, .. } => *trace,
        };
        let job = Job {
            portion: Portion::default(),
            is_whole: self.copies_load,
            wants_rows: rows.is_some(),
            work,
        };
        let rows = rows.map(RowFile::create).transpose()?;
        let clock = Instant::now();
        let (post, events) = channel();
        let (seats, early) = self.gather(&job, files, (clock, &post), &events)?;
        drop(post);
        say(&format!("the load is divided among {count} agents"));
        if is_plan {
            say("Creating summariser <summary>");
            say(&format!("Starting distributed test @ {}", moment()));
        }
        let mut conductor = Conductor {
            clock,
            merger: Merger::new(seats.iter().map(|seat| seat.name.clone()).collect()),
            threads: vec![Threads::default(); count],
            seats: seats.into_iter().map(|seat| Some((seat, Standing::Working))).collect(),
            heard: vec![Instant::now(); count],
            teller: Teller::default(),
            faults: Vec::new(),
            rows,
        };
        for (index, kind, body) in early {
            conductor.take(index, kind, &body)?;
        }
        conductor.conduct(&events, is_plan, say)?;
        if let Some(rows) = conductor.rows.take() {
            rows.finish()?;
        }
        let tally = conductor.teller.total().clone();
        let mut results = conductor.merger.finish();
        results.thin_traces(most_traces);
        Ok(Outcome { results, tally, faults: conductor.faults })
    }

    /// Starts agents, lets others in, and waits until all have taken their jobs.
    fn gather(
        self,
        job: &Job,
        files: &[PathBuf],
        (clock, post): (Instant, &Post<Event>),
        events: &Receiver<Event>,
    ) -> Result<(Vec<Seat>, Vec<Heard>)> {
        let count = self.agents();
        let (door, guests) = channel::<Line>();
        if let Some((listener, token, _)) = self.door {
            carrier::admit(listener, token, move |line| door.send(line).is_ok())?;
        }
        let mut lines = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            lines.push(carrier::start(place, index)?);
        }
        let taken = Taken::new(count, lines.len());
        let give = |line: Line| attend(line, (job, files), &taken, (clock, post));
        for line in lines {
            give(line)?;
        }
        let until = Instant::now() + self.patience;
        let mut seats: Vec<Option<Seat>> = (0..count).map(|_| None).collect();
        let mut early = Vec::new();
        while seats.iter().any(Option::is_none) {
            while let Ok(line) = guests.try_recv() {
                give(line)?;
            }
            match events.recv_timeout(Duration::from_millis(50)) {
                Ok(Event::Ready(seat)) => {
                    let index = seat.index;
                    if let Some(place) = seats.get_mut(index) {
                        *place = Some(seat);
                    }
                }
                Ok(Event::Refused(reason)) => return Err(Error::Fleet(reason)),
                Ok(Event::Lost(_, reason)) => return Err(Error::Fleet(reason)),
                // Who is ready early says so.
                Ok(Event::Frame(index, kind, body)) => early.push((index, kind, body)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= until {
                let ready = seats.iter().flatten().count();
                return Err(Error::Fleet(format!(
                    "only {ready} of {count} agents were ready after {} s; nothing was sent to the target",
                    self.patience.as_secs()
                )));
            }
        }
        Ok((seats.into_iter().flatten().collect(), early))
    }
}

/// Which portions are given away.
#[derive(Debug, Clone)]
struct Taken(std::sync::Arc<std::sync::Mutex<Vec<bool>>>);

impl Taken {
    /// The first `started` of `count` portions are for agents that the controller starts.
    fn new(count: usize, started: usize) -> Self {
        let taken = (0..count).map(|index| index < started).collect();
        Self(std::sync::Arc::new(std::sync::Mutex::new(taken)))
    }

    /// Takes the wanted portion if it is free, or the first that is.
    fn take(&self, wanted: Option<usize>) -> Option<usize> {
        let mut taken = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let wanted = wanted.filter(|&index| taken.get(index) == Some(&false));
        let index = wanted.or_else(|| taken.iter().position(|is_taken| !is_taken))?;
        *taken.get_mut(index)? = true;
        Some(index)
    }
}

/// Starts the thread that speaks with an agent from its first word to its last.
fn attend(
    line: Line,
    (job, files): (&Job, &[PathBuf]),
    taken: &Taken,
    (clock, post): (Instant, &Post<Event>),
) -> Result<()> {
    let (job, files, taken, post) = (job.clone(), files.to_vec(), taken.clone(), post.clone());
    let speak = move || {
        let Line { name, mut input, output, index, process } = line;
        let output = Sender::new(output);
        let seat = match greet(&mut *input, (&name, index), &taken) {
            // Too many came; whoever is left over is sent home.
            Ok(None) => return,
            Ok(Some((index, name))) => {
                let job = job.of_agent(index as u64, taken_count(&taken));
                brief(&mut *input, &output, (&job, &files), clock)
                    .map(|(offset_us, early)| {
                        (Seat { index, name: name.clone(), output, offset_us, process }, early)
                    })
                    .map_err(|reason| format!("{name}: {reason}"))
            }
            Err(reason) => Err(format!("{name}: {reason}")),
        };
        let index = match seat {
            Ok((seat, early)) => {
                let index = seat.index;
                post.send(Event::Ready(seat)).ok();
                for (kind, body) in early {
                    post.send(Event::Frame(index, kind, body)).ok();
                }
                index
            }
            Err(reason) => {
                post.send(Event::Refused(reason)).ok();
                return;
            }
        };
        let reason = loop {
            match frame::read(&mut *input) {
                Ok(Some((kind, body))) => {
                    if post.send(Event::Frame(index, kind, body)).is_err() {
                        return;
                    }
                }
                Ok(None) => break "it hung up".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        post.send(Event::Lost(index, reason)).ok();
    };
    std::thread::Builder::new().name("agent".to_owned()).spawn(speak).map_err(Error::Engine)?;
    Ok(())
}

fn taken_count(taken: &Taken) -> u64 {
    taken.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len() as u64
}

/// Hears who an agent is; `None` if every portion is given away.
fn greet(
    input: &mut dyn Read,
    (name, index): (&str, Option<usize>),
    taken: &Taken,
) -> Result<Option<(usize, String)>, String> {
    let first = frame::read(input).map_err(|error| error.to_string())?;
    let Some((Kind::Hello, body)) = first else {
        return Err("it hung up before it said who it is".to_owned());
    };
    let hello: Hello = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "it is version {} and speaks another protocol than version {} here",
            hello.version,
            env!("CARGO_PKG_VERSION")
        ));
    }
    let Some(index) = index.or_else(|| taken.take(hello.index)) else { return Ok(None) };
    let name = match name.strip_prefix("agent at ") {
        Some(from) => format!("agent {} ({from})", index + 1),
        None => name.to_owned(),
    };
    Ok(Some((index, name)))
}

/// Microseconds that an agent's clock is ahead, and what the agent said early.
type Briefed = (i64, Vec<(Kind, Vec<u8>)>);

/// Gives an agent its job and learns its clock; returns how far the agent's clock is ahead, and what it said meanwhile
/// about its load.
fn brief(
    input: &mut dyn Read,
    output: &Sender,
    (job, files): (&Job, &[PathBuf]),
    clock: Instant,
) -> Result<Briefed, String> {
    let lost = |error: std::io::Error| format!("it went away: {error}");
    for (number, path) in files.iter().enumerate() {
        send_file(output, number as u64, path)?;
    }
    output.send_json(Kind::Job, job).map_err(lost)?;
    match frame::read(input).map_err(lost)? {
        Some((Kind::Ready, _)) => {}
        Some((Kind::Refused, reason)) => return Err(String::from_utf8_lossy(&reason).into_owned()),
        _ => return Err("it went away instead of taking its job".to_owned()),
    }
    let mut best: Option<(u64, i64)> = None;
    let mut early = Vec::new();
    for number in 0..PINGS {
        let before = micros(clock.elapsed());
        let mut body = Vec::new();
        wire::put(&mut body, number);
        output.send(Kind::Ping, &body).map_err(lost)?;
        let body = loop {
            match frame::read(input).map_err(lost)? {
                Some((Kind::Pong, body)) => break body,
                Some(frame) => early.push(frame),
                None => return Err("it hung up".to_owned()),
            }
        };
        let after = micros(clock.elapsed());
        let mut cursor = wire::Cursor(&body);
        let (Some(_), Some(theirs)) = (cursor.number(), cursor.number()) else {
            return Err("its clock does not read".to_owned());
        };
        let offset = theirs as i64 - (before + (after - before) / 2) as i64;
        // The fastest answer knows best how long the way was.
        if best.is_none_or(|(way, _)| after - before < way) {
            best = Some((after - before, offset));
        }
    }
    Ok((best.map_or(0, |(_, offset)| offset), early))
}

fn send_file(output: &Sender, number: u64, path: &Path) -> Result<(), String> {
    let unread = |error: std::io::Error| format!("cannot read `{}`: {error}", path.display());
    let mut file = File::open(path).map_err(unread)?;
    let mut is_first = true;
    loop {
        let mut body = Vec::new();
        wire::put(&mut body, number);
        let head = body.len();
        Read::by_ref(&mut file).take(PIECE as u64).read_to_end(&mut body).map_err(unread)?;
        if body.len() == head && !is_first {
            return Ok(());
        }
        is_first = false;
        output.send(Kind::File, &body).map_err(|error| format!("it went away: {error}"))?;
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What an agent is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Working,
    /// Waits for the others.
    Arrived,
}

/// Rows of all agents in one file.
#[derive(Debug)]
struct RowFile {
    file: File,
    path: PathBuf,
}

impl RowFile {
    fn create(path: &Path) -> Result<Self> {
        let lost = |source| Error::write(path, source);
        let mut file = File::create(path).map_err(lost)?;
        writeln!(file, "{}", jtl::HEADER).map_err(lost)?;
        Ok(Self { file, path: path.to_owned() })
    }

    fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|source| Error::write(&self.path, source))
    }

    fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::write(&self.path, source))
    }
}

/// Leads agents that are ready through a run.
struct Conductor {
    clock: Instant,
    merger: Merger,
    /// Agents that are still there.
    seats: Vec<Option<(Seat, Standing)>>,
    heard: Vec<Instant>,
    threads: Vec<Threads>,
    teller: Teller,
    faults: Vec<String>,
    rows: Option<RowFile>,
}

impl Conductor {
    fn conduct(
        &mut self,
        events: &Receiver<Event>,
        is_plan: bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let mut asked = Instant::now();
        while self.seats.iter().any(Option::is_some) {
            match events.recv_timeout(Duration::from_millis(500)) {
                Ok(Event::Frame(index, kind, body)) => match self.take(index, kind, &body) {
                    // Who tells nonsense is as good as gone; what the others measured stays.
                    Err(Error::Fleet(reason)) => self.lose(index, &reason, say),
                    outcome => outcome?,
                },
                Ok(Event::Lost(index, reason)) => self.lose(index, &reason, say),
                Ok(Event::Ready(_) | Event::Refused(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                self.ask(say);
            }
            self.start_when_all_are_there();
            if is_plan {
                self.teller.tell(false, sum(&self.threads), say);
            }
        }
        if is_plan {
            self.teller.tell(true, sum(&self.threads), say);
            say(&format!("Tidying up ...    @ {}", moment()));
            say("... end of run");
        }
        Ok(())
    }

    fn take(&mut self, index: usize, kind: Kind, body: &[u8]) -> Result<()> {
        if let Some(heard) = self.heard.get_mut(index) {
            *heard = Instant::now();
        }
        match kind {
            Kind::Arrived => {
                if let Some(Some((_, standing))) = self.seats.get_mut(index) {
                    *standing = Standing::Arrived;
                }
                self.merger.arrive(index);
            }
            Kind::Interval => {
                let interval = wire::decode(body)
                    .ok_or_else(|| Error::Fleet("it sent numbers that do not read".into()))?;
                if !self.merger.is_plausible(&interval) {
                    return Err(Error::Fleet("it told of a time that has not come".into()));
                }
                self.merger.add(index, &interval);
            }
            Kind::Tally => {
                let pulse: Pulse = read_json(body)?;
                self.teller.add(&pulse.tally);
                if let Some(threads) = self.threads.get_mut(index) {
                    *threads = pulse.threads;
                }
            }
            Kind::Rows => {
                if let Some(rows) = &mut self.rows {
                    rows.write(body)?;
                }
            }
            Kind::Part => {
                let part: PartOver = read_json(body)?;
                self.merger.end_part(index, &part);
                if part.is_stopping {
                    self.tell_all(Kind::Stop);
                }
            }
            Kind::Done => {
                let done: Done = read_json(body)?;
                self.faults.extend(done.faults);
                if let Some(failure) = done.failure {
                    self.merger.lose(index, &failure);
                }
                if let Some(seat) = self.seats.get_mut(index) {
                    *seat = None;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn lose(&mut self, index: usize, reason: &str, say: &mut dyn FnMut(&str)) {
        let Some(seat) = self.seats.get_mut(index) else { return };
        // Whoever said its last word may hang up.
        if let Some((seat, _)) = seat.take() {
            self.merger.lose(index, reason);
            say(&format!(
                "{} is lost: {reason}; its portion of the load is missing from now on",
                seat.name
            ));
        }
    }

    /// Asks every agent whether it is there, and gives up those who were silent for too long.
    fn ask(&mut self, say: &mut dyn FnMut(&str)) {
        let silent: Vec<usize> = (0..self.seats.len())
            .filter(|&index| self.heard.get(index).is_some_and(|heard| heard.elapsed() >= SILENCE))
            .collect();
        for index in silent {
            self.lose(index, &format!("it said nothing for {} s", SILENCE.as_secs()), say);
        }
        let mut body = Vec::new();
        wire::put(&mut body, 0);
        for (seat, _) in self.seats.iter().flatten() {
            seat.output.send(Kind::Ping, &body).ok();
        }
    }

    fn tell_all(&self, kind: Kind) {
        for (seat, _) in self.seats.iter().flatten() {
            seat.output.send(kind, &[]).ok();
        }
    }

    fn start_when_all_are_there(&mut self) {
        if self.seats.iter().all(Option::is_none) {
            return;
        }
        if self.seats.iter().flatten().any(|(_, standing)| *standing != Standing::Arrived) {
            return;
        }
        let at = self.clock.elapsed() + LEAD;
        self.merger.start(self.clock + at);
        for (seat, standing) in self.seats.iter_mut().flatten() {
            *standing = Standing::Working;
            let theirs = (micros(at) as i64).saturating_add(seat.offset_us).max(0);
            let mut body = Vec::new();
            wire::put(&mut body, theirs as u64);
            seat.output.send(Kind::Start, &body).ok();
        }
    }
}

fn read_json<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| Error::Fleet(format!("it sent what does not read: {error}")))
}

fn sum(threads: &[Threads]) -> Threads {
    threads.iter().fold(Threads::default(), |sum, one| Threads {
        active: sum.active + one.active,
        started: sum.started + one.started,
        finished: sum.finished + one.finished,
    })
}
