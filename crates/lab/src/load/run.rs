//! Starts the workers, adds up what they hand over, and writes rows on a thread of their own.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::worker::{Duty, Hire, Worker};
use super::{Crowd, Schedule, User};
use crate::record::jtl::Added;
use crate::record::summariser::{Tally, Threads};
use crate::record::{Interval, Recorder, Results, RowSink};
use crate::{Error, Result};

/// What one worker has to do.
pub(crate) struct Crew {
    /// Users of the closed model and when they start, since the start of the run.
    pub(crate) users: Vec<(Duration, Box<dyn User>)>,
    /// Arrivals of the open model, and who receives them.
    pub(crate) arrivals: Option<(Schedule, Hire)>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

/// Takes pieces of rows in place of a file.
pub(crate) type RowTaker = Box<dyn FnMut(&[u8]) -> std::io::Result<()> + Send>;

/// Where rows of single samples go.
#[derive(Debug)]
pub(crate) struct Rows {
    writer: JoinHandle<std::io::Result<()>>,
    path: PathBuf,
    sink: RowSink,
}

impl Rows {
    /// Begins a result file; one that exists is replaced.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(crate) fn create(path: &Path, added: Added) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::write(path, source))?;
        Self::start(vec![file], path, added)
    }

    /// Adds to result files, as JMeter does; each gets its header if it is new.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Input`] for a file whose rows have other columns.
    pub(crate) fn append(paths: &[PathBuf], added: Added) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            let lost = |source| Error::write(path, source);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(lost)?;
            }
            if added != Added::default() {
                check_header(path, added)?;
            }
            files.push(File::options().append(true).create(true).open(path).map_err(lost)?);
        }
        Self::start(files, paths.first().map_or(Path::new(""), PathBuf::as_path), added)
    }

    /// Hands pieces of rows, without a header, to someone else who writes them.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub(crate) fn hand_over(mut to: RowTaker) -> Result<Self> {
        Self::spawn(Path::new(""), Added::default(), move |receiver| {
            receiver.into_iter().try_for_each(|piece| to(&piece))
        })
    }

    fn start(mut files: Vec<File>, path: &Path, added: Added) -> Result<Self> {
        Self::spawn(path, added, move |receiver| {
            for file in &mut files {
                if file.metadata()?.len() == 0 {
                    file.write_all(format!("{}\n", added.header()).as_bytes())?;
                }
            }
            for piece in receiver {
                for file in &mut files {
                    file.write_all(&piece)?;
                }
            }
            Ok(())
        })
    }

    fn spawn(
        path: &Path,
        added: Added,
        write: impl FnOnce(Receiver<Vec<u8>>) -> std::io::Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (sender, receiver) = sync_channel::<Vec<u8>>(64);
        let writer = std::thread::Builder::new().name("rows".to_owned());
        let writer = writer.spawn(move || write(receiver)).map_err(Error::Engine)?;
        let sink = RowSink { sender, epoch: SystemTime::now(), at: Instant::now(), added };
        Ok(Self { writer, path: path.to_owned(), sink })
    }

    pub(crate) fn sink(&self) -> RowSink {
        self.sink.clone()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// [`Error::File`] if the disk refused something.
    pub(crate) fn finish(self) -> Result<()> {
        drop(self.sink);
        let outcome = self.writer.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        outcome.map_err(|source| Error::write(&self.path, source))
    }
}

/// Refuses to add rows to a file whose rows have other columns.
fn check_header(path: &Path, added: Added) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut first = String::new();
    let read = BufReader::new(file).read_line(&mut first);
    if read.is_ok_and(|read| read == 0) || first.trim_end() == added.header() {
        return Ok(());
    }
    Err(Error::Input(format!(
        "`{}` holds rows without {}: name another file, or leave out --jtl-us and --mark",
        path.display(),
        added.names().collect::<Vec<_>>().join(" and ")
    )))
}

/// A run.
#[derive(Debug)]
pub(crate) struct Load {
    /// One per worker.
    pub(crate) crews: Vec<Crew>,
    /// When everyone is asked to finish.
    pub(crate) stop_after: Option<Duration>,
    /// How long exchanges under way may still take then.
    pub(crate) drain: Duration,
    pub(crate) crowd: Arc<Crowd>,
    pub(crate) rows: Option<RowSink>,
}

/// Someone who watches a run.
pub(crate) trait Observer {
    /// Is told about once a second.
    fn second(&mut self);

    /// Says when the load that is prepared begins; `None` at once. May wait for others.
    ///
    /// # Errors
    /// What keeps the load from beginning.
    fn begin(&mut self) -> Result<Option<Instant>> {
        Ok(None)
    }

    /// Sees what a worker measured in a second.
    fn interval(&mut self, _interval: &Interval) {}

    /// Learns what a plan's samples of about a second amount to, and the threads.
    fn tally(&mut self, _delta: &Tally, _threads: Threads) {}

    /// Learns what a load amounts to that is over, and whether it ended the whole run.
    fn end(&mut self, _results: &Results, _is_stopping: bool) {}

    /// Asks for the end of the load.
    fn wants_stop(&self) -> bool {
        false
    }

    /// Returns the goal whose miss ends the load, by what was measured so far.
    fn breach(&self, _results: &Results) -> Option<String> {
        None
    }

    /// Takes rows in place of a file.
    fn row_taker(&self) -> Option<RowTaker> {
        None
    }
}

impl Observer for () {
    fn second(&mut self) {}
}

/// Returns the processors that this process may use.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a load to its end.
///
/// # Errors
/// [`Error::Engine`] if the system gives no threads or no epoll.
pub(crate) fn run(load: Load, observer: &mut dyn Observer) -> Result<Results> {
    let mut results = Results::new(SystemTime::now());
    results.generator.workers = load.crews.len();
    results.generator.processors = processors();
    results.generator.is_open = load.crews.iter().any(|crew| crew.arrivals.is_some());
    let offered = load.crews.iter().find_map(|crew| crew.arrivals.as_ref());
    results.generator.offered = offered.map(|(schedule, _)| schedule.rate());
    let (sender, receiver) = channel();
    let crowd = Arc::clone(&load.crowd);
    let started = observer.begin()?.unwrap_or_else(Instant::now);
    // Who waits for others begins with them; who is late begins late, and the lag tells.
    std::thread::sleep(started.saturating_duration_since(Instant::now()));
    let threads = start(load, started, &sender)?;
    drop(sender);
    let cpu = collect(&receiver, &mut results, (started, &crowd), observer);
    let mut outcome = Ok(());
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        outcome = outcome.and(ended.map_err(Error::Engine));
    }
    results.elapsed = started.elapsed();
    results.generator.cpu = cpu;
    // Of a run that ended within its first second, no interval has seen a user.
    results.generator.most_active = results.generator.most_active.max(crowd.take_most());
    results.thin_traces(crowd.traces());
    observer.end(&results, crowd.is_stopping());
    outcome.map(|()| results)
}

type Thread = JoinHandle<std::io::Result<()>>;

fn start(load: Load, started: Instant, sender: &Sender<Interval>) -> Result<Vec<Thread>> {
    let mut threads = Vec::new();
    for (number, crew) in load.crews.into_iter().enumerate() {
        let mut recorder = Recorder::new(number, started, sender.clone(), load.rows.clone());
        recorder.keep_traces(load.crowd.traces());
        let duty = Duty {
            users: crew.users,
            arrivals: crew.arrivals,
            stop_after: load.stop_after,
            drain: load.drain,
        };
        for _ in &duty.users {
            load.crowd.note_start();
        }
        let worker = Worker::new(started, duty, recorder, Arc::clone(&load.crowd))
            .map_err(|error| Error::Engine(error.into()))?;
        let thread = std::thread::Builder::new().name(format!("load {number}"));
        threads
            .push(thread.spawn(move || worker.run().map_err(Into::into)).map_err(Error::Engine)?);
    }
    Ok(threads)
}

/// Adds up until every worker has hung up; returns the processor time of all.
fn collect(
    receiver: &Receiver<Interval>,
    results: &mut Results,
    (started, crowd): (Instant, &Crowd),
    observer: &mut dyn Observer,
) -> Duration {
    let mut cpu = vec![Duration::ZERO; results.generator.workers];
    let mut next = Duration::from_secs(1);
    loop {
        match receiver.recv_timeout(next.saturating_sub(started.elapsed())) {
            Ok(interval) => {
                results.add(&interval);
                observer.interval(&interval);
                results.generator.most_active = results.generator.most_active.max(interval.active);
                if let Some(known) = cpu.get_mut(interval.worker) {
                    let own = results.generator.seconds.entry(interval.second).or_default();
                    own.cpu += interval.cpu.saturating_sub(*known);
                    own.lag = own.lag.max(interval.lag.quantile(0.99));
                    own.late += interval.late;
                    own.active = own.active.max(interval.active);
                    *known = interval.cpu;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                next += Duration::from_secs(1);
                observer.second();
                results.elapsed = started.elapsed();
                if results.breach.is_none() {
                    results.breach = observer.breach(results);
                }
                if observer.wants_stop() || results.breach.is_some() {
                    crowd.stop();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return cpu.iter().sum(),
        }
    }
}
