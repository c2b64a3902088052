//! The fast path for cached responses: one thread per core that serves connections without a runtime.
//!
//! Input: connections that the listener lends. Output: responses from memory, byte for byte those of the regular path
//! except for the date. Everything else goes to the service: on HTTP/1.1 the connection goes back to the listener with
//! its bytes, on HTTP/2 the stream is passed on ([`crate::edge::http2`]).
//!
//! Invariants
//! * The fast path holds no rules: it returns what
//!   [`MemoryResponder::find_cached`](crate::cache::response_memory::memory_responder::MemoryResponder::find_cached) finds, and ranges of it by
//!   `edge::response_plan`.
//! * It reads changes by other processes each time sockets become readable, before it reads from them, so that a
//!   request sent after a change observes it.
//! * Reading stops while a response waits for its client to read.
//!
//! Why not in the runtime: with 512 connections a task wake-up for each request costs as much as the request itself.
//!
//! On failure: if a thread ends, its connections end, and later ones go to hyper. Threads that cannot be started are
//! tried again with the next configuration.

mod connection;
mod http2_stream;
mod log_buffer;
mod request_head;
mod worker;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;
use tympan_web::fast_path::{FastPath, LentConnection, ReturnedConnection};
use tympan_web::listen::ListenerCounters;

use crate::dispatcher::Dispatcher;
use worker::FastWorker;

/// The fast path of a dispatcher; its threads start with the first configuration that allows responses to be stored.
#[derive(Debug)]
pub(crate) struct LazyFastPath {
    dispatcher: Dispatcher,
    start_workers: fn(&Dispatcher) -> std::io::Result<FastPathWorkers>,
    state: Mutex<FastPathState>,
}

#[derive(Debug)]
enum FastPathState {
    NotStarted,
    /// Starting failed, with the configuration of this number.
    Failed(u64),
    Running(Arc<FastPathWorkers>),
}

impl LazyFastPath {
    pub(crate) fn new(dispatcher: Dispatcher) -> Self {
        Self {
            dispatcher,
            start_workers: FastPathWorkers::start_workers,
            state: Mutex::new(FastPathState::NotStarted),
        }
    }

    /// Returns the threads, or `None` if they are not running.
    fn running_workers(&self) -> Option<Arc<FastPathWorkers>> {
        match &*self.state.lock() {
            FastPathState::Running(workers) => Some(Arc::clone(workers)),
            FastPathState::NotStarted | FastPathState::Failed(_) => None,
        }
    }
}

impl FastPath for LazyFastPath {
    fn is_open(&self) -> bool {
        let inner = self.dispatcher.current_state();
        if !inner.memory_responder.is_enabled() {
            return false;
        }
        let mut started = self.state.lock();
        match &*started {
            FastPathState::Running(_) => return true,
            FastPathState::Failed(serial) if *serial == inner.parts.config_serial => return false,
            FastPathState::NotStarted | FastPathState::Failed(_) => {}
        }
        match (self.start_workers)(&self.dispatcher) {
            Ok(workers) => {
                *started = FastPathState::Running(Arc::new(workers));
                true
            }
            Err(error) => {
                tracing::warn!(reason = %error, "cannot start the fast path for cached responses");
                *started = FastPathState::Failed(inner.parts.config_serial);
                false
            }
        }
    }

    fn serve_connection(
        &self,
        lent_connection: LentConnection,
    ) -> Pin<Box<dyn Future<Output = Option<ReturnedConnection>> + Send>> {
        match self.running_workers() {
            Some(workers) => workers.serve(lent_connection),
            None => Box::pin(async move { Some(return_connection(lent_connection)) }),
        }
    }

    fn evict_idle(&self, count: usize, counters: &Arc<ListenerCounters>) {
        if let Some(workers) = self.running_workers() {
            workers.evict(count, counters);
        }
    }
}

impl Dispatcher {
    /// Returns a new fast path for the dispatcher's cached responses.
    pub(crate) fn open_fast_path(&self) -> Arc<dyn FastPath> {
        Arc::new(LazyFastPath::new(self.clone()))
    }
}

/// Returns a connection unchanged to its lender.
fn return_connection(lent_connection: LentConnection) -> ReturnedConnection {
    let LentConnection { socket, unread, requests_left, .. } = lent_connection;
    ReturnedConnection { socket, unread, requests_left, request_bytes: None }
}

/// The threads of the fast path; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct FastPathWorkers {
    mailboxes: Vec<Arc<WorkerMailbox>>,
    threads: Vec<JoinHandle<()>>,
    next_worker: AtomicUsize,
}

/// A command from the runtime to a thread.
#[derive(Debug)]
enum WorkerCommand {
    Serve(Box<LentConnection>, oneshot::Sender<Option<ReturnedConnection>>),
    /// Close the connections that are to end.
    Sweep,
    /// Close about this number of idle connections and count them.
    Evict(usize, Arc<ListenerCounters>),
    /// The service made progress for the connection in this slot.
    ServiceReady(usize),
    Stop,
}

#[derive(Debug)]
struct WorkerMailbox {
    commands: Mutex<Vec<WorkerCommand>>,
    /// Readable while there are commands.
    wake_fd: OwnedFd,
    is_closed: AtomicBool,
}

impl FastPathWorkers {
    /// Starts one thread per core.
    ///
    /// # Errors
    /// Fails if the kernel refuses a thread or descriptor.
    fn start_workers(dispatcher: &Dispatcher) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut workers =
            Self { mailboxes: Vec::new(), threads: Vec::new(), next_worker: AtomicUsize::new(0) };
        for _ in 0..cores {
            // If this fails, the threads started so far end with `workers`.
            let (mailbox, thread) = start_worker(dispatcher)?;
            workers.mailboxes.push(mailbox);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    fn pick_mailbox(&self) -> Option<Arc<WorkerMailbox>> {
        let next = self.next_worker.fetch_add(1, Ordering::Relaxed);
        self.mailboxes.get(next % self.mailboxes.len().max(1)).cloned()
    }
}

fn start_worker(dispatcher: &Dispatcher) -> std::io::Result<(Arc<WorkerMailbox>, JoinHandle<()>)> {
    let mailbox = Arc::new(WorkerMailbox {
        commands: Mutex::default(),
        wake_fd: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        is_closed: AtomicBool::new(false),
    });
    let worker = FastWorker::new(dispatcher.clone(), Arc::clone(&mailbox))?;
    let thread = std::thread::Builder::new()
        .name("lane".to_owned())
        .spawn(move || worker.run_event_loop())?;
    Ok((mailbox, thread))
}

impl WorkerMailbox {
    /// Sends a command; returns it as an error if the mailbox is closed.
    fn send_command(&self, command: WorkerCommand) -> Result<(), WorkerCommand> {
        let mut orders = self.commands.lock();
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(command);
        }
        // The receiver takes all pending commands at once.
        let is_told = !orders.is_empty();
        orders.push(command);
        drop(orders);
        if !is_told {
            // A full counter is readable, too.
            rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes()).ok();
        }
        Ok(())
    }

    /// Takes all pending commands.
    fn take_commands(&self) -> Vec<WorkerCommand> {
        rustix::io::read(&self.wake_fd, &mut [0_u8; 8]).ok();
        std::mem::take(&mut *self.commands.lock())
    }

    /// Closes the mailbox and drops pending commands.
    fn close_mailbox(&self) {
        let mut orders = self.commands.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        orders.clear();
    }
}

#[cfg(any(fuzzing, test))]
pub(crate) use request_head::parse_http2_fields;

/// Parses the first request in `bytes`, if it is eligible for the fast path; returns its length, method, host and
/// target.
#[cfg(any(fuzzing, test))]
pub(crate) fn parse_fast_path_head(bytes: &[u8]) -> Option<(usize, &'static str, &[u8], &str)> {
    match request_head::parse_request_head(bytes, false) {
        request_head::HeadParseResult::Eligible(request, length) => {
            let method = if request.response_key.flags.is_head() { "HEAD" } else { "GET" };
            Some((
                length,
                method,
                request.response_key.host,
                std::str::from_utf8(request.response_key.target).ok()?,
            ))
        }
        _ => None,
    }
}

/// Returns the key of the response to the first request in `bytes`, if it is eligible for the fast path.
#[cfg(any(fuzzing, test))]
pub(crate) fn parse_response_key(
    bytes: &[u8],
) -> Option<crate::cache::response_memory::ResponseKey> {
    match request_head::parse_request_head(bytes, false) {
        request_head::HeadParseResult::Eligible(request, _) => Some(request.response_key.to_key()),
        _ => None,
    }
}

impl Drop for FastPathWorkers {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            mailbox.send_command(WorkerCommand::Stop).ok();
        }
        // Wait for the threads, so that their log lines and their handles to the log writer do not end with the
        // process.
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl FastPathWorkers {
    fn serve(
        &self,
        lent_connection: LentConnection,
    ) -> Pin<Box<dyn Future<Output = Option<ReturnedConnection>> + Send>> {
        let mut ending = lent_connection.end_signal.clone();
        let (done, mut wait) = oneshot::channel();
        let mailbox = self.pick_mailbox();
        let command = WorkerCommand::Serve(Box::new(lent_connection), done);
        let sent = match &mailbox {
            Some(mailbox) => mailbox.send_command(command),
            None => Err(command),
        };
        Box::pin(async move {
            if let Err(WorkerCommand::Serve(lent_connection, _)) = sent {
                return Some(return_connection(*lent_connection));
            }
            tokio::select! {
                biased;
                handed = &mut wait => return handed.ok().flatten(),
                _ended = ending.wait_for(|ending| *ending) => {}
            }
            if let Some(mailbox) = mailbox {
                mailbox.send_command(WorkerCommand::Sweep).ok();
            }
            wait.await.ok().flatten()
        })
    }

    fn evict(&self, count: usize, counters: &Arc<ListenerCounters>) {
        let each = count.div_ceil(self.mailboxes.len().max(1));
        for mailbox in &self.mailboxes {
            // A closed mailbox has no connections to evict.
            mailbox.send_command(WorkerCommand::Evict(each, Arc::clone(counters))).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FastPathState, FastPathWorkers, LazyFastPath, WorkerMailbox};
    use crate::config::DispatcherConfig;
    use crate::config::any_syntax::ConfigSources;
    use crate::config::settings::DispatcherSettings;
    use crate::dispatcher::Dispatcher;
    use crate::dispatcher_runtime::DispatcherRuntime;
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::sync::watch;
    use tympan_web::connection_socket::ConnectionSocket;
    use tympan_web::fast_path::{FastPath, KeepAlivePolicy, LentConnection};
    use tympan_web::listen::ConnectionPeer;

    fn config() -> DispatcherConfig {
        let text = "/farms { /f { /virtualhosts { \"*\" } /renders { /r { /hostname \"h\" /port \"1\" } } } }";
        DispatcherConfig::parse(text.as_bytes(), Path::new("test.any"), &ConfigSources::default())
            .config
    }

    fn dispatcher() -> Dispatcher {
        Dispatcher::new(config(), DispatcherRuntime::default()).unwrap()
    }

    #[tokio::test]
    async fn a_connection_that_cannot_be_waited_for_goes_back_with_its_bytes() {
        let dispatcher = dispatcher();
        let workers = FastPathWorkers::start_workers(&dispatcher).unwrap();
        // The kernel does not report readability of files.
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let (_end, ending) = watch::channel(false);
        let lent_connection = LentConnection {
            socket: ConnectionSocket::from_detached(TcpStream::from(file)),
            unread: b"GET / HT".to_vec(),
            peer: ConnectionPeer::new((Ipv4Addr::LOCALHOST, 1).into(), false),
            requests_left: 7,
            idle_timeout: Duration::from_secs(3600),
            write_timeout: Duration::from_secs(3600),
            keep_alive_policy: KeepAlivePolicy::until_stopped(ending.clone()),
            end_signal: ending,
            http2: None,
        };
        let handed = workers.serve(lent_connection).await.expect("it is handed back");
        assert_eq!((handed.unread.as_slice(), handed.requests_left), (&b"GET / HT"[..], 7));
        assert_eq!(handed.request_bytes, None);
        assert!(
            dispatcher
                .prometheus_metrics()
                .contains("tympan_dispatcher_fast_path_refusals_total 1")
        );
    }

    #[test]
    fn threads_that_cannot_be_started_are_tried_again_with_the_next_configuration() {
        static TRIES: AtomicUsize = AtomicUsize::new(0);
        let dispatcher = dispatcher();
        let start = |dispatcher: &Dispatcher| match TRIES.fetch_add(1, Ordering::Relaxed) {
            0 => Err(std::io::ErrorKind::OutOfMemory.into()),
            _ => FastPathWorkers::start_workers(dispatcher),
        };
        let opening =
            LazyFastPath { start_workers: start, ..LazyFastPath::new(dispatcher.clone()) };
        assert!(!opening.is_open() && !opening.is_open());
        assert_eq!(TRIES.load(Ordering::Relaxed), 1);
        dispatcher.reload(config(), &DispatcherSettings::default(), None).unwrap();
        assert!(opening.is_open() && opening.is_open());
        assert_eq!(TRIES.load(Ordering::Relaxed), 2);
        assert!(matches!(&*opening.state.lock(), FastPathState::Running(_)));
    }

    #[test]
    fn the_threads_have_ended_when_their_lanes_have() {
        let dispatcher = dispatcher();
        for _ in 0..20 {
            let workers = FastPathWorkers::start_workers(&dispatcher).unwrap();
            let mailboxes: Vec<Arc<WorkerMailbox>> = workers.mailboxes.clone();
            drop(workers);
            for mailbox in mailboxes {
                assert_eq!(Arc::strong_count(&mailbox), 1, "a thread still holds it");
            }
        }
    }
}
