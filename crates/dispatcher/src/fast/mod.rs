//! The lane for kept answers: a thread per core that serves connections without a runtime.
//!
//! In: connections that the listener lends. Out: answers from the memory, byte for byte those of the full way but for the
//! date. Everything else goes to the service: on HTTP/1.1 the connection goes back to the listener with its bytes, on
//! HTTP/2 the stream is passed on ([`crate::http2`]).
//!
//! Invariants
//! * The lane holds no rule: it gives what [`Inner::find_kept`](crate::dispatcher::Inner::find_kept) finds, and parts of
//!   it by `plan`.
//! * It learns of changes by others once for each time that sockets become readable and before it reads from them, so
//!   that a request that was sent after a change finds it.
//! * Reading stops while an answer waits for its client to read.
//!
//! Why not in the runtime: with 512 connections a task wake-up for each request costs as much as the request itself.
//!
//! On failure: if a thread ends, its connections end, and later ones go to hyper. Threads that cannot be started are tried
//! again with the next configuration.

mod connection;
mod head;
mod log;
mod streams;
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
use tympan_web::lane::{Handed, Lane, Lent};
use tympan_web::listen::Counters;

use crate::dispatcher::Dispatcher;
use worker::Worker;

/// The lane of a dispatcher, whose threads begin with the first configuration that lets answers be kept.
#[derive(Debug)]
pub(crate) struct Opening {
    dispatcher: Dispatcher,
    start: fn(&Dispatcher) -> std::io::Result<Lanes>,
    started: Mutex<Started>,
}

#[derive(Debug)]
enum Started {
    NotYet,
    /// In vain, with the configuration of this number.
    Failed(u64),
    Running(Arc<Lanes>),
}

impl Opening {
    pub(crate) fn new(dispatcher: Dispatcher) -> Self {
        Self { dispatcher, start: Lanes::start, started: Mutex::new(Started::NotYet) }
    }

    /// Returns the threads, if they run.
    fn running(&self) -> Option<Arc<Lanes>> {
        match &*self.started.lock() {
            Started::Running(lanes) => Some(Arc::clone(lanes)),
            Started::NotYet | Started::Failed(_) => None,
        }
    }
}

impl Lane for Opening {
    fn is_open(&self) -> bool {
        let inner = self.dispatcher.current();
        if !inner.keeps_answers() {
            return false;
        }
        let mut started = self.started.lock();
        match &*started {
            Started::Running(_) => return true,
            Started::Failed(serial) if *serial == inner.serial => return false,
            Started::NotYet | Started::Failed(_) => {}
        }
        match (self.start)(&self.dispatcher) {
            Ok(lanes) => {
                *started = Started::Running(Arc::new(lanes));
                true
            }
            Err(error) => {
                tracing::warn!(reason = %error, "there is no lane for kept answers");
                *started = Started::Failed(inner.serial);
                false
            }
        }
    }

    fn serve(&self, lent: Lent) -> Pin<Box<dyn Future<Output = Option<Handed>> + Send>> {
        match self.running() {
            Some(lanes) => lanes.serve(lent),
            None => Box::pin(async move { Some(give_back(lent)) }),
        }
    }

    fn evict(&self, count: usize, counters: &Arc<Counters>) {
        if let Some(lanes) = self.running() {
            lanes.evict(count, counters);
        }
    }
}

/// Gives a connection back as it was lent.
fn give_back(lent: Lent) -> Handed {
    let Lent { wire, unread, requests_left, .. } = lent;
    Handed { wire, unread, requests_left, request_bytes: None }
}

/// The lane's threads; they end with it.
#[derive(Debug)]
pub(crate) struct Lanes {
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
    next: AtomicUsize,
}

/// What the runtime tells a thread.
#[derive(Debug)]
enum Order {
    Serve(Box<Lent>, oneshot::Sender<Option<Handed>>),
    /// Some connections are to end.
    Sweep,
    /// About so many connections on which nothing is asked are to end, and to be counted.
    Evict(usize, Arc<Counters>),
    /// The service did something for the connection in this slot.
    News(usize),
    Stop,
}

#[derive(Debug)]
struct Mailbox {
    orders: Mutex<Vec<Order>>,
    /// Readable while there are orders.
    wake: OwnedFd,
    is_dead: AtomicBool,
}

impl Lanes {
    /// Starts a thread per core.
    ///
    /// # Errors
    /// When the kernel refuses a thread or descriptor.
    pub(crate) fn start(dispatcher: &Dispatcher) -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut lanes =
            Self { mailboxes: Vec::new(), threads: Vec::new(), next: AtomicUsize::new(0) };
        for _ in 0..cores {
            // What was started ends with `lanes` if this fails.
            let (mailbox, thread) = start_worker(dispatcher)?;
            lanes.mailboxes.push(mailbox);
            lanes.threads.push(thread);
        }
        Ok(lanes)
    }

    fn pick(&self) -> Option<Arc<Mailbox>> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.mailboxes.get(next % self.mailboxes.len().max(1)).cloned()
    }
}

fn start_worker(dispatcher: &Dispatcher) -> std::io::Result<(Arc<Mailbox>, JoinHandle<()>)> {
    let mailbox = Arc::new(Mailbox {
        orders: Mutex::default(),
        wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        is_dead: AtomicBool::new(false),
    });
    let worker = Worker::new(dispatcher.clone(), Arc::clone(&mailbox))?;
    let thread = std::thread::Builder::new().name("lane".to_owned()).spawn(move || worker.run())?;
    Ok((mailbox, thread))
}

impl Mailbox {
    /// Gives an order; returns it if nobody takes orders any more.
    fn send(&self, order: Order) -> Result<(), Order> {
        let mut orders = self.orders.lock();
        if self.is_dead.load(Ordering::SeqCst) {
            return Err(order);
        }
        // Whoever takes orders takes all that there are by then.
        let is_told = !orders.is_empty();
        orders.push(order);
        drop(orders);
        if !is_told {
            // A full counter is readable, too.
            rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).ok();
        }
        Ok(())
    }

    /// Takes all orders.
    fn take(&self) -> Vec<Order> {
        rustix::io::read(&self.wake, &mut [0_u8; 8]).ok();
        std::mem::take(&mut *self.orders.lock())
    }

    /// Takes no order any more, and drops those that wait.
    fn close(&self) {
        let mut orders = self.orders.lock();
        self.is_dead.store(true, Ordering::SeqCst);
        orders.clear();
    }
}

#[cfg(any(fuzzing, test))]
pub(crate) use head::read_fields;

/// Reads the first request in `bytes`, if it is one for the lane: its length, method, host and target.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_head(bytes: &[u8]) -> Option<(usize, &'static str, &[u8], &str)> {
    match head::read(bytes, false) {
        head::Read::Plain(plain, length) => {
            let method = if plain.key.kind.is_head() { "HEAD" } else { "GET" };
            Some((length, method, plain.key.host, std::str::from_utf8(plain.key.target).ok()?))
        }
        _ => None,
    }
}

/// Returns what the lane finds the answer to the first request in `bytes` by, if it is one for the lane.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_key(bytes: &[u8]) -> Option<crate::memory::Key> {
    match head::read(bytes, false) {
        head::Read::Plain(plain, _) => Some(plain.key.to_key()),
        _ => None,
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            mailbox.send(Order::Stop).ok();
        }
        // Their log lines, and what they hold of the log's writer, must not end with the process.
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Lanes {
    fn serve(&self, lent: Lent) -> Pin<Box<dyn Future<Output = Option<Handed>> + Send>> {
        let mut ending = lent.ending.clone();
        let (done, mut wait) = oneshot::channel();
        let mailbox = self.pick();
        let order = Order::Serve(Box::new(lent), done);
        let sent = match &mailbox {
            Some(mailbox) => mailbox.send(order),
            None => Err(order),
        };
        Box::pin(async move {
            if let Err(Order::Serve(lent, _)) = sent {
                return Some(give_back(*lent));
            }
            tokio::select! {
                biased;
                handed = &mut wait => return handed.ok().flatten(),
                _ended = ending.wait_for(|ending| *ending) => {}
            }
            if let Some(mailbox) = mailbox {
                mailbox.send(Order::Sweep).ok();
            }
            wait.await.ok().flatten()
        })
    }

    fn evict(&self, count: usize, counters: &Arc<Counters>) {
        let each = count.div_ceil(self.mailboxes.len().max(1));
        for mailbox in &self.mailboxes {
            // One that serves nobody has nobody to part from.
            mailbox.send(Order::Evict(each, Arc::clone(counters))).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Lanes, Mailbox, Opening, Started};
    use crate::any::Sources;
    use crate::config::Config;
    use crate::dispatcher::{Dispatcher, Runtime};
    use crate::settings::Settings;
    use std::net::{Ipv4Addr, TcpStream};
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::sync::watch;
    use tympan_web::lane::{Closing, Lane, Lent};
    use tympan_web::listen::Peer;
    use tympan_web::wire::Wire;

    fn config() -> Config {
        let text = "/farms { /f { /virtualhosts { \"*\" } /renders { /r { /hostname \"h\" /port \"1\" } } } }";
        Config::parse(text.as_bytes(), Path::new("test.any"), &Sources::default()).config
    }

    fn dispatcher() -> Dispatcher {
        Dispatcher::new(config(), Runtime::default()).unwrap()
    }

    #[tokio::test]
    async fn a_connection_that_cannot_be_waited_for_goes_back_with_its_bytes() {
        let dispatcher = dispatcher();
        let lanes = Lanes::start(&dispatcher).unwrap();
        // The kernel tells of no file whether it can be read.
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let (_end, ending) = watch::channel(false);
        let lent = Lent {
            wire: Wire::free(TcpStream::from(file)),
            unread: b"GET / HT".to_vec(),
            peer: Peer::new((Ipv4Addr::LOCALHOST, 1).into(), false),
            requests_left: 7,
            idle_timeout: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(3600),
            closing: Closing::at_end(ending.clone()),
            ending,
            http2: None,
        };
        let handed = lanes.serve(lent).await.expect("it is handed back");
        assert_eq!((handed.unread.as_slice(), handed.requests_left), (&b"GET / HT"[..], 7));
        assert_eq!(handed.request_bytes, None);
        assert!(dispatcher.metrics().contains("tympan_dispatcher_lane_refusals_total 1"));
    }

    #[test]
    fn threads_that_cannot_be_started_are_tried_again_with_the_next_configuration() {
        static TRIES: AtomicUsize = AtomicUsize::new(0);
        let dispatcher = dispatcher();
        let start = |dispatcher: &Dispatcher| match TRIES.fetch_add(1, Ordering::Relaxed) {
            0 => Err(std::io::ErrorKind::OutOfMemory.into()),
            _ => Lanes::start(dispatcher),
        };
        let opening = Opening { start, ..Opening::new(dispatcher.clone()) };
        assert!(!opening.is_open() && !opening.is_open());
        assert_eq!(TRIES.load(Ordering::Relaxed), 1);
        dispatcher.reload(config(), &Settings::default(), None).unwrap();
        assert!(opening.is_open() && opening.is_open());
        assert_eq!(TRIES.load(Ordering::Relaxed), 2);
        assert!(matches!(&*opening.started.lock(), Started::Running(_)));
    }

    #[test]
    fn the_threads_have_ended_when_their_lanes_have() {
        let dispatcher = dispatcher();
        for _ in 0..20 {
            let lanes = Lanes::start(&dispatcher).unwrap();
            let mailboxes: Vec<Arc<Mailbox>> = lanes.mailboxes.clone();
            drop(lanes);
            for mailbox in mailboxes {
                assert_eq!(Arc::strong_count(&mailbox), 1, "a thread still holds it");
            }
        }
    }
}
