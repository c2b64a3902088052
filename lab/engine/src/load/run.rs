//! Starts the workers, adds up their measurements, and writes rows on a separate thread.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tympan_lab_plan::ArrivalSchedule;

use super::worker::{ArrivalUserFactory, LoadWorker, WorkerAssignment};
use super::{LoadRunState, VirtualUser};
use crate::measurement::jtl::JtlExtraColumns;
use crate::measurement::summariser::{SummaryTally, ThreadCounts};
use crate::measurement::{JtlRowSink, RunResults, SampleRecorder, WorkerInterval};
use crate::{Error, Result};

/// The work of one worker.
pub struct WorkerLoad {
    /// Users of the closed model with their start times since the start of the run.
    pub users: Vec<(Duration, Box<dyn VirtualUser>)>,
    /// Arrivals of the open model, and the factory of their users.
    pub arrivals: Option<(ArrivalSchedule, ArrivalUserFactory)>,
}

impl std::fmt::Debug for WorkerLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerLoad").field("users", &self.users.len()).finish_non_exhaustive()
    }
}

/// Receives chunks of rows in place of a file.
pub type RowConsumer = Box<dyn FnMut(&[u8]) -> std::io::Result<()> + Send>;

/// Writes the rows of samples.
#[derive(Debug)]
pub struct SampleRowWriter {
    writer_thread: JoinHandle<std::io::Result<()>>,
    path: PathBuf,
    row_sink: JtlRowSink,
}

impl SampleRowWriter {
    /// Creates a result file; an existing one is replaced.
    ///
    /// # Errors
    /// [`Error::FileAccess`].
    pub(crate) fn create(path: &Path, added: JtlExtraColumns) -> Result<Self> {
        let file = File::create(path).map_err(|source| Error::write_failed(path, source))?;
        Self::start_writing_files(vec![file], path, added)
    }

    /// Appends to result files, as JMeter does; each new file gets its header.
    ///
    /// # Errors
    /// [`Error::FileAccess`]; [`Error::UnusableInput`] for a file whose rows have other columns.
    pub(crate) fn append_to(paths: &[PathBuf], added: JtlExtraColumns) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            let lost = |source| Error::write_failed(path, source);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(lost)?;
            }
            if added != JtlExtraColumns::default() {
                check_columns(path, added)?;
            }
            files.push(File::options().append(true).create(true).open(path).map_err(lost)?);
        }
        Self::start_writing_files(
            files,
            paths.first().map_or(Path::new(""), PathBuf::as_path),
            added,
        )
    }

    /// Passes chunks of rows, without a header, to a consumer.
    ///
    /// # Errors
    /// [`Error::Engine`].
    pub(crate) fn forward_to(mut to: RowConsumer) -> Result<Self> {
        Self::spawn_writer(Path::new(""), JtlExtraColumns::default(), move |receiver| {
            receiver.into_iter().try_for_each(|piece| to(&piece))
        })
    }

    fn start_writing_files(
        mut files: Vec<File>,
        path: &Path,
        added: JtlExtraColumns,
    ) -> Result<Self> {
        Self::spawn_writer(path, added, move |receiver| {
            for file in &mut files {
                if file.metadata()?.len() == 0 {
                    file.write_all(format!("{}\n", added.header_line()).as_bytes())?;
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

    fn spawn_writer(
        path: &Path,
        added: JtlExtraColumns,
        write: impl FnOnce(Receiver<Vec<u8>>) -> std::io::Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (sender, receiver) = sync_channel::<Vec<u8>>(64);
        let writer = std::thread::Builder::new().name("rows".to_owned());
        let writer = writer.spawn(move || write(receiver)).map_err(Error::Engine)?;
        let sink = JtlRowSink {
            sender,
            epoch_time: SystemTime::now(),
            epoch_instant: Instant::now(),
            extra_columns: added,
        };
        Ok(Self { writer_thread: writer, path: path.to_owned(), row_sink: sink })
    }

    pub(crate) fn row_sink(&self) -> JtlRowSink {
        self.row_sink.clone()
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// [`Error::FileAccess`] if a write failed.
    pub(crate) fn finish(self) -> Result<()> {
        drop(self.row_sink);
        let outcome =
            self.writer_thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        outcome.map_err(|source| Error::write_failed(&self.path, source))
    }
}

/// Rejects a file whose rows have other columns.
fn check_columns(path: &Path, added: JtlExtraColumns) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let mut first = String::new();
    let read = BufReader::new(file).read_line(&mut first);
    if read.is_ok_and(|read| read == 0) || first.trim_end() == added.header_line() {
        return Ok(());
    }
    Err(Error::UnusableInput(format!(
        "`{}` contains rows without {}: choose another file, or omit --jtl-us and --mark",
        path.display(),
        added.column_names().collect::<Vec<_>>().join(" and ")
    )))
}

/// A load to run.
#[derive(Debug)]
pub struct LoadRun {
    /// One per worker.
    pub worker_loads: Vec<WorkerLoad>,
    /// Time after which users are told to finish.
    pub stop_after: Option<Duration>,
    /// Time limit for exchanges in progress after that.
    pub drain_timeout: Duration,
    /// The state of the whole run, of which this load may be a part.
    pub run_state: Arc<LoadRunState>,
    /// Receives a row per sample; `None` if no rows are stored.
    pub row_sink: Option<JtlRowSink>,
}

/// Observes a run.
pub trait LoadObserver {
    /// Called about once a second.
    fn on_second(&mut self);

    /// Called when the load is prepared; returns the start time, or `None` to start immediately. May block until others
    /// are ready.
    ///
    /// # Errors
    /// The reason why the load cannot begin.
    fn wait_for_start(&mut self) -> Result<Option<Instant>> {
        Ok(None)
    }

    /// Receives the measurements of a worker in one second.
    fn on_interval(&mut self, _interval: &WorkerInterval) {}

    /// Receives the tally of a plan's samples in about one second, and the thread counts.
    fn on_tally(&mut self, _delta: &SummaryTally, _threads: ThreadCounts) {}

    /// Receives the results of a finished load; `_is_stopping` is true if it ended the whole run.
    fn on_load_end(&mut self, _results: &RunResults, _is_stopping: bool) {}

    /// Returns true to end the load.
    fn is_stop_requested(&self) -> bool {
        false
    }

    /// Returns the goal whose miss ends the load, given the results so far.
    fn find_breach(&self, _results: &RunResults) -> Option<String> {
        None
    }

    /// Returns a consumer that receives rows in place of a file.
    fn row_consumer(&self) -> Option<RowConsumer> {
        None
    }
}

impl LoadObserver for () {
    fn on_second(&mut self) {}
}

/// Returns the number of processors available to this process.
pub fn processor_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a load to its end.
///
/// # Errors
/// [`Error::Engine`] if the system cannot provide threads or an epoll instance.
pub fn run_load(load: LoadRun, observer: &mut dyn LoadObserver) -> Result<RunResults> {
    let mut results = RunResults::new(SystemTime::now());
    results.generator.worker_count = load.worker_loads.len();
    results.generator.processor_count = processor_count();
    results.generator.is_open_model = load.worker_loads.iter().any(|crew| crew.arrivals.is_some());
    let offered = load.worker_loads.iter().find_map(|crew| crew.arrivals.as_ref());
    results.generator.offered_rate = offered.map(|(schedule, _)| schedule.mean_rate());
    let (sender, receiver) = channel();
    let crowd = Arc::clone(&load.run_state);
    let started = observer.wait_for_start()?.unwrap_or_else(Instant::now);
    // Agents that wait for others start together; a late agent starts late, which the lag records.
    std::thread::sleep(started.saturating_duration_since(Instant::now()));
    let threads = start_workers(load, started, &sender)?;
    drop(sender);
    let cpu = collect_intervals(&receiver, &mut results, started, &crowd, observer);
    let mut outcome = Ok(());
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        outcome = outcome.and(ended.map_err(Error::Engine));
    }
    results.elapsed = started.elapsed();
    results.generator.cpu_time = cpu;
    // If a run ends within its first second, no interval has recorded a user.
    results.generator.max_active_users =
        results.generator.max_active_users.max(crowd.take_peak_users());
    results.limit_traces(crowd.trace_limit());
    observer.on_load_end(&results, crowd.is_stopping());
    outcome.map(|()| results)
}

type WorkerThread = JoinHandle<std::io::Result<()>>;

fn start_workers(
    load: LoadRun,
    started: Instant,
    sender: &Sender<WorkerInterval>,
) -> Result<Vec<WorkerThread>> {
    let mut threads = Vec::new();
    for (number, crew) in load.worker_loads.into_iter().enumerate() {
        let mut recorder =
            SampleRecorder::new(number, started, sender.clone(), load.row_sink.clone());
        recorder.set_max_traces(load.run_state.trace_limit());
        let duty = WorkerAssignment {
            users: crew.users,
            arrivals: crew.arrivals,
            stop_after: load.stop_after,
            drain_timeout: load.drain_timeout,
        };
        for _ in &duty.users {
            load.run_state.record_user_start();
        }
        let worker = LoadWorker::new(started, duty, recorder, Arc::clone(&load.run_state))
            .map_err(|error| Error::Engine(error.into()))?;
        let thread = std::thread::Builder::new().name(format!("load {number}"));
        threads
            .push(thread.spawn(move || worker.run().map_err(Into::into)).map_err(Error::Engine)?);
    }
    Ok(threads)
}

/// Merges intervals until every worker has finished; returns the CPU time of all.
fn collect_intervals(
    receiver: &Receiver<WorkerInterval>,
    results: &mut RunResults,
    started: Instant,
    crowd: &LoadRunState,
    observer: &mut dyn LoadObserver,
) -> Duration {
    let mut cpu = vec![Duration::ZERO; results.generator.worker_count];
    let mut next = Duration::from_secs(1);
    loop {
        match receiver.recv_timeout(next.saturating_sub(started.elapsed())) {
            Ok(interval) => {
                results.add_interval(&interval);
                observer.on_interval(&interval);
                results.generator.max_active_users =
                    results.generator.max_active_users.max(interval.active_users);
                if let Some(worker_cpu_time) = cpu.get_mut(interval.worker) {
                    let own = results.generator.seconds.entry(interval.second).or_default();
                    own.cpu_time += interval.cpu_time.saturating_sub(*worker_cpu_time);
                    own.lag = own.lag.max(interval.lag.quantile(0.99));
                    own.late_arrivals += interval.late_arrivals;
                    own.active_users = own.active_users.max(interval.active_users);
                    *worker_cpu_time = interval.cpu_time;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                next += Duration::from_secs(1);
                observer.on_second();
                results.elapsed = started.elapsed();
                if results.breached_goal.is_none() {
                    results.breached_goal = observer.find_breach(results);
                }
                if observer.is_stop_requested() || results.breached_goal.is_some() {
                    crowd.request_stop();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return cpu.iter().sum(),
        }
    }
}
